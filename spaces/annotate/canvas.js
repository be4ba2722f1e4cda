// The board: an image, the mask on top, and the drawing tools.

import { KNOWN, paintCursor, paintMask, paintPiece, paintPolygon, paintStrokes } from "./paint.js";
import { Pointers } from "./pointers.js";
import { Strokes } from "./strokes.js";
import { View } from "./view.js";

const SIZES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384];

export class Board extends View {
  static sizes = SIZES;

  // changed(): called after each step. announce(text): read by screen readers. find(strokes): returns run lengths.
  constructor(canvas, { changed, announce, find }) {
    super(canvas);
    this.changed = changed;
    this.announce = announce;
    this.tool = "brush";
    this.brush = 24; // diameter in pixels of the screen
    this.takes = false; // whether polygons and strokes remove pixels from the mask
    this.opacity = 0.5;
    this.readOnly = false;
    this.corners = []; // corners of the polygon
    this.cursor = null; // [x, y] in pixels of the image
    this.keyboard = false; // whether arrow keys move the cursor
    this.penDown = false; // whether the keyboard's pen is down
    this.pointers = new Pointers(this);
    this.strokes = new Strokes(this, find);
  }

  // Diameter of the brush in pixels of the image, at least 1.
  get size() {
    return Math.max(1, this.brush / this.scale);
  }

  show(image, mask) {
    this.image = image;
    this.mask = mask;
    this.pieces = null;
    this.strokes.forget();
    this.known = null; // canvas with a known mask, displayed below the mask
    this.overlay = new OffscreenCanvas(mask.width, mask.height);
    this.overlayContext = this.overlay.getContext("2d");
    mask.touch(0, 0, mask.width, mask.height);
    this.pointers.last = null;
    this.corners = [];
    this.penDown = false;
    this.keyboard = false;
    this.cursor = null;
    this.resize();
    this.fit();
  }

  showKnown(known) {
    if (!known) return (this.known = null), this.draw();
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
    paintPolygon(context, this.scale, this.corners, this.cursor, this.takes);
    const { list, drawing } = this.strokes;
    paintStrokes(context, this.scale, drawing ? [...list, drawing] : list);
    if (!this.cursor || this.readOnly || this.tool === "pan") return;
    const piece = this.tool === "superpixel" ? (this.pieces?.at(this.cursor) ?? null) : null;
    if (piece !== null) paintPiece(context, this.scale, this.pieces.outline(piece));
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
    this.strokes.forget();
    this.tool = tool;
    this.canvas.style.cursor = tool === "pan" ? "grab" : "crosshair";
    this.draw();
  }

  resizeBrush(step) {
    const at = SIZES.indexOf(this.brush);
    this.brush = SIZES[Math.min(SIZES.length - 1, Math.max(0, at + step))];
    this.draw();
  }

  // Record the changes that `change` makes as one undo step.
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
    if (corners.length > 2) this.step(() => this.mask.polygon(corners, this.takes ? 0 : 1));
    this.draw();
    return corners.length > 0;
  }

  // Return the value that a click or drag from this point gives to pieces: 0 if the point is marked, otherwise 1.
  valueAt(point) {
    const [x, y] = point.map(Math.floor);
    return this.mask.data[y * this.mask.width + x] ? 0 : 1;
  }

  // Change all pieces between two points.
  markPieces(from, to, value) {
    if (!this.pieces) return;
    const steps = Math.max(1, Math.ceil(Math.hypot(to[0] - from[0], to[1] - from[1])));
    for (let i = 0; i <= steps; i++) {
      const piece = this.pieces.at([0, 1].map((axis) => from[axis] + ((to[axis] - from[axis]) * i) / steps));
      if (piece === null || piece === this.marked) continue;
      this.mask.region(this.pieces.numbers, piece, value, this.pieces.boxes[piece]);
      this.marked = piece;
    }
  }

  select(point) {
    this.marked = null;
    this.step(() => this.markPieces(point, point, this.valueAt(point)));
  }

  // keyboard: arrow keys move a cursor, the space bar lowers and lifts the pen

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
    else if (this.tool === "segment") {
      this.strokes.begin(this.cursor, !this.takes);
      this.strokes.end();
      this.announce(`Point at ${where}`);
    }
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
