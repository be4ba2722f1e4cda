// The visible part of the image: fit, zoom and move a canvas. `this.mask` has the size of the image.

const MOST_SCALE = 40;
const EDGE = 60; // pixels of the image that always remain visible

export class View {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    new ResizeObserver(() => this.resize()).observe(canvas);
  }

  resize() {
    const ratio = devicePixelRatio || 1;
    const { width, height } = this.canvas.getBoundingClientRect();
    this.canvas.width = Math.max(1, Math.round(width * ratio));
    this.canvas.height = Math.max(1, Math.round(height * ratio));
    if (this.mask && this.fitted) this.fit();
    else this.draw();
  }

  fit() {
    const { width, height } = this.canvas.getBoundingClientRect();
    const margin = width < 600 ? 8 : 24;
    this.scale = Math.min((width - 2 * margin) / this.mask.width, (height - 2 * margin) / this.mask.height, MOST_SCALE);
    this.scale = Math.max(this.scale, 0.01);
    this.x = (width - this.mask.width * this.scale) / 2;
    this.y = (height - this.mask.height * this.scale) / 2;
    this.fitScale = this.scale;
    this.fitted = true;
    this.draw();
  }

  // centre: point of the canvas that keeps its position.
  zoom(factor, centre = null) {
    if (!this.mask) return;
    const { width, height } = this.canvas.getBoundingClientRect();
    const [cx, cy] = centre ?? [width / 2, height / 2];
    const scale = Math.min(MOST_SCALE, Math.max(this.fitScale / 2, this.scale * factor));
    this.x = cx - ((cx - this.x) * scale) / this.scale;
    this.y = cy - ((cy - this.y) * scale) / this.scale;
    this.scale = scale;
    this.fitted = false;
    this.keepInSight();
    this.draw();
  }

  pan(dx, dy) {
    this.x += dx;
    this.y += dy;
    this.fitted = false;
    this.keepInSight();
    this.draw();
  }

  keepInSight() {
    const { width, height } = this.canvas.getBoundingClientRect();
    this.x = Math.min(width - EDGE, Math.max(EDGE - this.mask.width * this.scale, this.x));
    this.y = Math.min(height - EDGE, Math.max(EDGE - this.mask.height * this.scale, this.y));
  }

  // Move a point of the image to the middle of the canvas if it is at the edge or outside.
  follow([x, y]) {
    const { width, height } = this.canvas.getBoundingClientRect();
    const [left, top] = [x * this.scale + this.x, y * this.scale + this.y];
    if (left < 20 || top < 20 || left > width - 20 || top > height - 20) this.pan(width / 2 - left, height / 2 - top);
  }

  // Return [x, y] of an event in canvas coordinates.
  place(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  }

  // Return [x, y] of an event in image coordinates.
  point(event) {
    const [x, y] = this.place(event);
    return [(x - this.x) / this.scale, (y - this.y) / this.scale];
  }

  // Schedule painting once before the next frame.
  draw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.paint();
    });
  }
}
