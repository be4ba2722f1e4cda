// The board: an image, the mask over it, and the tools that draw on the mask.

import { KNOWN, paintCursor, paintMask, paintPolygon } from "./paint.js";
import { Pointers } from "./pointers.js";
import { View } from "./view.js";

const SIZES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384];

export class Board extends View {
  static sizes = SIZES;

  // changed(): a step was finished. announce(text): to a screen reader.
  constructor(canvas, { changed, announce }) {
    super(canvas);
    this.changed = changed;
    this.announce = announce;
    this.tool = "brush";
    this.size = 24;
    this.opacity = 0.5;
    this.readOnly = false;
    this.corners = []; // of the polygon
    this.cursor = null; // [x, y] in the image
    this.keyboard = false; // whether it is the arrow keys that move the cursor
    this.penDown = false; // of the keyboard
    this.pointers = new Pointers(this);
  }

  show(image, mask, superpixels = null) {
    this.image = image;
    this.mask = mask;
    this.superpixels = superpixels;
    this.known = null; // a canvas with a known mask, shown below
    this.overlay = new OffscreenCanvas(mask.width, mask.height);
    this.overlayContext = this.overlay.getContext("2d");
    mask.touch(0, 0, mask.width, mask.height);
    this.pointers.last = null;
    this.corners = [];
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

  showKnown(known) {
    this.known = new OffscreenCanvas(known.width, known.height);
    known.touch(0, 0, known.width, known.height);
    paintMask(known, this.known.getContext("2d"), KNOWN);
    this.draw();
  }

  paint() {
    const { context, canvas, mask } = this;
    const ratio = devicePixelRatio || 1;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (!mask) return;
    paintMask(mask, this.overlayContext);
    Object.assign(canvas.dataset, { scale: this.scale, x: this.x, y: this.y, size: this.size });
    context.setTransform(this.scale * ratio, 0, 0, this.scale * ratio, this.x * ratio, this.y * ratio);
    context.imageSmoothingEnabled = this.scale < 3;
    if (this.image) context.drawImage(this.image, 0, 0, mask.width, mask.height);
    context.globalAlpha = this.opacity;
    context.imageSmoothingEnabled = this.scale < 1;
    if (this.known) context.drawImage(this.known, 0, 0);
    context.drawImage(this.overlay, 0, 0);
    context.globalAlpha = 1;
    paintPolygon(context, this.scale, this.corners, this.cursor);
    if (!this.cursor || this.readOnly || this.tool === "pan") return;
    const brush = this.isBrush();
    paintCursor(context, this.scale, this.cursor, brush ? this.size : null, this.keyboard || !brush);
  }

  // tools

  isBrush() {
    return this.tool === "brush" || this.tool === "eraser";
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

  // One step of undo: what `change` does.
  step(change) {
    this.mask.begin();
    change();
    this.commit();
    this.draw();
  }

  commit() {
    if (this.mask.commit()) this.changed();
  }

  stroke(from, to) {
    this.mask.stroke(...from, ...to, this.size, this.tool === "eraser" ? 0 : 1);
  }

  addCorner(point) {
    const [first] = this.corners;
    const near = first && Math.hypot(point[0] - first[0], point[1] - first[1]) * this.scale < 10;
    if (near && this.corners.length > 2) this.closePolygon();
    else this.corners.push(point);
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

  // keys: arrows move a cursor, the space bar lowers and lifts the pen

  moveCursor(dx, dy, far) {
    if (!this.mask || this.readOnly) return;
    const { width, height } = this.mask;
    const step = far ? Math.max(10, this.size) : Math.max(1, Math.round(this.size / 4));
    const [x, y] = this.cursor ?? [width / 2, height / 2];
    const next = [Math.min(width, Math.max(0, x + dx * step)), Math.min(height, Math.max(0, y + dy * step))];
    if (this.penDown) this.stroke([x, y], next);
    this.cursor = next;
    this.keyboard = true;
    this.follow(next);
    this.draw();
  }

  pressSpace() {
    if (!this.mask || this.readOnly) return;
    this.cursor ??= [this.mask.width / 2, this.mask.height / 2];
    this.keyboard = true;
    const where = this.cursor.map(Math.round).join(", ");
    if (this.tool === "polygon") {
      this.addCorner(this.cursor);
      this.announce(`Corner at ${where}`);
    } else if (this.tool === "superpixel") this.select(this.cursor);
    else if (this.penDown) {
      this.liftPen();
      this.announce(`Pen up at ${where}`);
    } else if (this.isBrush()) {
      this.mask.begin();
      this.stroke(this.cursor, this.cursor);
      this.penDown = true;
      this.announce(`Pen down at ${where}`);
    }
    this.draw();
  }

  liftPen() {
    if (!this.penDown) return;
    this.penDown = false;
    this.commit();
    this.draw();
  }
}
