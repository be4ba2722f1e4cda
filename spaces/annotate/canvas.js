// The image and the mask on the screen, and what mouse, pen, fingers and keys do there.

const SIZES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384];
const COLOUR = [255, 64, 129, 255];
const EDGE = [255, 255, 255, 255];
const MOST_SCALE = 40;

export class Board {
  // changed(): a step was finished. said(text): for a screen reader.
  constructor(canvas, { changed, said }) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.changed = changed;
    this.said = said;
    this.tool = "brush";
    this.size = 24;
    this.opacity = 0.5;
    this.readOnly = false;
    this.pointers = new Map();
    this.last = null; // of the stroke
    this.corners = []; // of the polygon
    this.cursor = null; // [x, y] in the image
    this.keyboard = false;
    this.penDown = false;
    this.penSeen = 0;
    for (const [kind, handler] of [
      ["pointerdown", this.down],
      ["pointermove", this.move],
      ["pointerup", this.up],
      ["pointercancel", this.cancel],
      ["pointerleave", this.leave],
      ["wheel", this.wheel],
      ["contextmenu", (event) => event.preventDefault()],
      ["dblclick", this.closeByClick],
      ["blur", this.liftPen],
    ]) {
      canvas.addEventListener(kind, handler.bind(this), { passive: false });
    }
    new ResizeObserver(() => this.resize()).observe(canvas);
  }

  show(image, mask, superpixels = null) {
    this.image = image;
    this.mask = mask;
    this.superpixels = superpixels;
    this.overlay = new OffscreenCanvas(mask.width, mask.height);
    this.overlayContext = this.overlay.getContext("2d");
    mask.touch(0, 0, mask.width, mask.height);
    this.corners = [];
    this.last = null;
    this.penDown = false;
    this.keyboard = false;
    this.cursor = null;
    if (this.sizedFor !== Math.max(mask.width, mask.height)) {
      this.sizedFor = Math.max(mask.width, mask.height);
      const wanted = this.sizedFor / 20;
      this.size = SIZES.reduce((best, one) => (Math.abs(one - wanted) < Math.abs(best - wanted) ? one : best));
    }
    this.resize();
    this.fit();
  }

  // view

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

  // Some of the image always stays on the screen.
  keepInSight() {
    const { width, height } = this.canvas.getBoundingClientRect();
    const edge = 60;
    this.x = Math.min(width - edge, Math.max(edge - this.mask.width * this.scale, this.x));
    this.y = Math.min(height - edge, Math.max(edge - this.mask.height * this.scale, this.y));
  }

  draw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.paint();
    });
  }

  paint() {
    const { context, canvas, mask } = this;
    const ratio = devicePixelRatio || 1;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (!mask) return;
    this.paintMask();
    Object.assign(canvas.dataset, { scale: this.scale, x: this.x, y: this.y, size: this.size });
    context.setTransform(this.scale * ratio, 0, 0, this.scale * ratio, this.x * ratio, this.y * ratio);
    context.imageSmoothingEnabled = this.scale < 3;
    if (this.image) context.drawImage(this.image, 0, 0, mask.width, mask.height);
    context.globalAlpha = this.opacity;
    context.imageSmoothingEnabled = this.scale < 1;
    context.drawImage(this.overlay, 0, 0);
    context.globalAlpha = 1;
    this.paintPolygon();
    this.paintCursor();
  }

  paintMask() {
    const box = this.mask.takeBox();
    if (!box) return;
    const { width, height, data } = this.mask;
    // One pixel more on each side, whose edge may have changed.
    const [left, top] = [Math.max(0, box[0] - 1), Math.max(0, box[1] - 1)];
    const [right, bottom] = [Math.min(width, box[2] + 1), Math.min(height, box[3] + 1)];
    const pixels = new ImageData(right - left, bottom - top);
    let at = 0;
    for (let y = top; y < bottom; y++) {
      for (let x = left; x < right; x++, at += 4) {
        const i = y * width + x;
        if (!data[i]) continue;
        const inside =
          (x === 0 || data[i - 1]) && (x === width - 1 || data[i + 1]) &&
          (y === 0 || data[i - width]) && (y === height - 1 || data[i + width]);
        pixels.data.set(inside ? COLOUR : EDGE, at);
      }
    }
    this.overlayContext.putImageData(pixels, left, top);
  }

  outlined(path) {
    const { context } = this;
    for (const [colour, width] of [["rgba(0,0,0,.75)", 3], ["#fff", 1.25]]) {
      context.strokeStyle = colour;
      context.lineWidth = width / this.scale;
      context.stroke(path);
    }
  }

  paintPolygon() {
    if (!this.corners.length) return;
    const path = new Path2D();
    this.corners.forEach(([x, y], index) => (index ? path.lineTo(x, y) : path.moveTo(x, y)));
    if (this.cursor) path.lineTo(...this.cursor);
    const dots = new Path2D();
    this.corners.forEach(([x, y]) => {
      dots.moveTo(x + 4 / this.scale, y);
      dots.arc(x, y, 4 / this.scale, 0, 2 * Math.PI);
    });
    this.outlined(path);
    this.outlined(dots);
  }

  paintCursor() {
    if (!this.cursor || this.readOnly || this.tool === "pan") return;
    const [x, y] = this.cursor;
    const path = new Path2D();
    if (this.isBrush()) path.arc(x, y, Math.max(this.size / 2, 1 / this.scale), 0, 2 * Math.PI);
    if (this.keyboard || !this.isBrush()) {
      const arm = 7 / this.scale;
      path.moveTo(x - arm, y);
      path.lineTo(x + arm, y);
      path.moveTo(x, y - arm);
      path.lineTo(x, y + arm);
    }
    this.outlined(path);
  }

  // tools

  isBrush() {
    return this.tool === "brush" || this.tool === "eraser";
  }

  value() {
    return this.tool === "eraser" ? 0 : 1;
  }

  choose(tool) {
    this.liftPen();
    this.corners = [];
    this.tool = tool;
    this.canvas.style.cursor = tool === "pan" ? "grab" : "crosshair";
    this.draw();
  }

  resizeBrush(step) {
    const at = SIZES.findIndex((one) => one >= this.size);
    this.size = SIZES[Math.min(SIZES.length - 1, Math.max(0, at + step))];
    this.draw();
  }

  static get sizes() {
    return SIZES;
  }

  step(change) {
    this.mask.begin();
    change();
    if (this.mask.commit()) this.changed();
    this.draw();
  }

  closePolygon() {
    const corners = this.corners;
    this.corners = [];
    if (corners.length > 2) this.step(() => this.mask.polygon(corners, 1));
    this.draw();
    return corners.length > 0;
  }

  select(point) {
    const [x, y] = point.map(Math.floor);
    if (!this.superpixels || x < 0 || y < 0 || x >= this.mask.width || y >= this.mask.height) return;
    const at = y * this.mask.width + x;
    const value = this.mask.data[at] ? 0 : 1; // a second click takes it away
    this.step(() => this.mask.region(this.superpixels, this.superpixels[at], value));
  }

  // pointers

  place(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  }

  point(event) {
    const [x, y] = this.place(event);
    return [(x - this.x) / this.scale, (y - this.y) / this.scale];
  }

  down(event) {
    if (!this.mask) return;
    event.preventDefault();
    this.canvas.focus({ preventScroll: true });
    if (event.pointerType === "pen") this.penSeen = Date.now();
    if (event.pointerType === "touch" && Date.now() - this.penSeen < 1000) return; // the palm beside the pen
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, this.place(event));
    this.keyboard = false;
    this.liftPen();
    if (this.pointers.size > 1) {
      this.mask.rollback(); // two fingers move the picture
      this.last = null;
      this.pinched = true;
      return this.draw();
    }
    const moves = this.tool === "pan" || event.button === 1 || event.button === 2 || this.readOnly;
    this.dragged = moves ? this.place(event) : null;
    if (moves) return;
    this.cursor = this.point(event);
    if (this.isBrush()) {
      this.mask.begin();
      this.last = this.cursor;
      this.mask.stroke(...this.last, ...this.last, this.size, this.value());
    } else if (this.tool === "polygon") {
      this.addCorner(this.cursor);
    }
    this.draw();
  }

  addCorner(point) {
    const [first] = this.corners;
    const near = first && Math.hypot(point[0] - first[0], point[1] - first[1]) * this.scale < 10;
    if (near && this.corners.length > 2) this.closePolygon();
    else this.corners.push(point);
  }

  move(event) {
    if (!this.mask) return;
    this.cursor = event.pointerType === "touch" ? null : this.point(event);
    this.keyboard = false;
    if (!this.pointers.has(event.pointerId)) return this.draw();
    const before = this.pointers.get(event.pointerId);
    const now = this.place(event);
    if (this.pointers.size > 1) return this.pinch(event.pointerId, before, now);
    this.pointers.set(event.pointerId, now);
    if (this.dragged) this.pan(now[0] - before[0], now[1] - before[1]);
    else if (this.last) {
      const events = event.getCoalescedEvents?.() ?? [];
      for (const one of events.length ? events : [event]) {
        const point = this.point(one);
        this.mask.stroke(...this.last, ...point, this.size, this.value());
        this.last = point;
      }
    }
    this.draw();
  }

  pinch(id, before, now) {
    const other = [...this.pointers].find(([key]) => key !== id)[1];
    const distance = (point) => Math.hypot(point[0] - other[0], point[1] - other[1]);
    this.pointers.set(id, now);
    this.pan((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
    if (distance(before) > 10) {
      this.zoom(distance(now) / distance(before), [(now[0] + other[0]) / 2, (now[1] + other[1]) / 2]);
    }
  }

  up(event) {
    if (!this.pointers.delete(event.pointerId)) return;
    if (this.last) {
      this.last = null;
      if (this.mask.commit()) this.changed();
    } else if (this.tool === "superpixel" && !this.dragged && !this.pinched && !this.readOnly) {
      this.select(this.point(event));
    }
    if (!this.pointers.size) this.pinched = false;
    this.dragged = null;
    this.draw();
  }

  cancel(event) {
    this.pointers.delete(event.pointerId);
    this.mask?.rollback();
    this.last = null;
    this.dragged = null;
    if (!this.pointers.size) this.pinched = false;
    this.draw();
  }

  leave() {
    if (!this.keyboard && !this.pointers.size) this.cursor = null;
    this.draw();
  }

  closeByClick(event) {
    event.preventDefault();
    if (this.tool !== "polygon" || this.readOnly) return;
    this.corners.pop(); // the second of the two clicks
    this.closePolygon();
  }

  wheel(event) {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 30 : 1;
    this.zoom(Math.exp(-event.deltaY * lines * (event.ctrlKey ? 0.01 : 0.0015)), this.place(event));
  }

  // keys: arrows move a cursor, the space bar lowers and lifts the pen

  moveCursor(dx, dy, far) {
    if (!this.mask || this.readOnly) return;
    const { width, height } = this.mask;
    const step = far ? Math.max(10, this.size) : Math.max(1, Math.round(this.size / 4));
    const [x, y] = this.cursor ?? [width / 2, height / 2];
    const next = [Math.min(width, Math.max(0, x + dx * step)), Math.min(height, Math.max(0, y + dy * step))];
    if (this.penDown) this.mask.stroke(x, y, ...next, this.size, this.value());
    this.cursor = next;
    this.keyboard = true;
    const { width: w, height: h } = this.canvas.getBoundingClientRect();
    const [sx, sy] = [next[0] * this.scale + this.x, next[1] * this.scale + this.y];
    if (sx < 20 || sy < 20 || sx > w - 20 || sy > h - 20) this.pan(w / 2 - sx, h / 2 - sy);
    this.draw();
  }

  pressSpace() {
    if (!this.mask || this.readOnly) return;
    this.cursor ??= [this.mask.width / 2, this.mask.height / 2];
    this.keyboard = true;
    const where = this.cursor.map(Math.round).join(", ");
    if (this.tool === "polygon") {
      this.addCorner(this.cursor);
      this.said(`Corner at ${where}`);
    } else if (this.tool === "superpixel") this.select(this.cursor);
    else if (this.penDown) {
      this.liftPen();
      this.said(`Pen up at ${where}`);
    } else if (this.isBrush()) {
      this.mask.begin();
      this.mask.stroke(...this.cursor, ...this.cursor, this.size, this.value());
      this.penDown = true;
      this.said(`Pen down at ${where}`);
    }
    this.draw();
  }

  liftPen() {
    if (!this.penDown) return;
    this.penDown = false;
    if (this.mask.commit()) this.changed();
    this.draw();
  }
}
