// Mouse, pen and touch input: one pointer draws, two fingers move and zoom, and a palm next to the pen is ignored.

const PALM = 1000; // milliseconds after pen input in which touches are ignored as the palm

export class Pointers {
  constructor(board) {
    this.board = board;
    this.down = new Map(); // id -> position of each pointer on the canvas
    this.penSeen = 0;
    this.last = null; // last point of the stroke
    this.dragged = false; // whether the image is being moved
    for (const [kind, handler] of [
      ["pointerdown", this.press],
      ["pointermove", this.move],
      ["pointerup", this.release],
      ["pointercancel", this.cancel],
      ["pointerleave", this.leave],
      ["wheel", this.wheel],
      ["contextmenu", (event) => event.preventDefault()],
      ["dblclick", this.closeByClick],
      ["blur", () => board.liftPen()],
    ]) {
      board.canvas.addEventListener(kind, handler.bind(this), { passive: false });
    }
  }

  press(event) {
    const { board } = this;
    if (!board.mask) return;
    event.preventDefault();
    board.canvas.focus({ preventScroll: true });
    if (event.pointerType === "pen") this.penSeen = Date.now();
    if (event.pointerType === "touch" && Date.now() - this.penSeen < PALM) return;
    board.canvas.setPointerCapture(event.pointerId);
    this.down.set(event.pointerId, board.place(event));
    board.keyboard = false;
    board.liftPen();
    if (this.down.size > 1) {
      board.mask.rollback();
      board.strokes.cancel();
      this.last = null;
      return board.draw();
    }
    this.dragged = board.tool === "pan" || event.button === 1 || event.button === 2 || board.readOnly;
    if (this.dragged) return;
    board.cursor = board.point(event);
    if (board.isBrush()) {
      board.mask.begin();
      this.last = board.cursor;
      board.stroke(this.last, this.last);
    } else if (board.tool === "superpixel") {
      board.mask.begin();
      board.marked = null;
      this.value = board.valueAt(board.cursor);
      this.last = board.cursor;
      board.markPieces(this.last, this.last, this.value);
    } else if (board.tool === "segment") {
      this.last = board.cursor;
      board.strokes.begin(this.last, board.takes === event.shiftKey);
    } else if (board.tool === "polygon") {
      board.addCorner(board.cursor);
    }
    board.draw();
  }

  move(event) {
    const { board } = this;
    if (!board.mask) return;
    board.cursor = event.pointerType === "touch" ? null : board.point(event);
    board.keyboard = false;
    if (!this.down.has(event.pointerId)) return board.draw();
    const before = this.down.get(event.pointerId);
    const now = board.place(event);
    if (this.down.size > 1) return this.pinch(event.pointerId, before, now);
    this.down.set(event.pointerId, now);
    if (this.dragged) board.pan(now[0] - before[0], now[1] - before[1]);
    else if (this.last) {
      const events = event.getCoalescedEvents?.() ?? [];
      for (const one of events.length ? events : [event]) {
        const point = board.point(one);
        if (board.isBrush()) board.stroke(this.last, point);
        else if (board.tool === "superpixel") board.markPieces(this.last, point, this.value);
        else board.strokes.extend(point);
        this.last = point;
      }
    }
    board.draw();
  }

  pinch(id, before, now) {
    const other = [...this.down].find(([key]) => key !== id)[1];
    const distance = (point) => Math.hypot(point[0] - other[0], point[1] - other[1]);
    this.down.set(id, now);
    this.board.pan((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
    if (distance(before) > 10) {
      this.board.zoom(distance(now) / distance(before), [(now[0] + other[0]) / 2, (now[1] + other[1]) / 2]);
    }
  }

  release(event) {
    const { board } = this;
    if (!this.down.delete(event.pointerId)) return;
    if (this.last) {
      this.last = null;
      if (board.tool === "segment") board.strokes.end();
      else board.commit();
    }
    this.lifted();
  }

  cancel(event) {
    this.down.delete(event.pointerId);
    this.board.mask?.rollback();
    this.board.strokes.cancel();
    this.last = null;
    this.lifted();
  }

  lifted() {
    this.dragged = false;
    this.board.draw();
  }

  leave() {
    if (!this.board.keyboard && !this.down.size) this.board.cursor = null;
    this.board.draw();
  }

  closeByClick(event) {
    event.preventDefault();
    if (this.board.tool !== "polygon" || this.board.readOnly) return;
    this.board.corners.pop(); // the second click of the double click
    this.board.closePolygon();
  }

  wheel(event) {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 30 : 1;
    this.board.zoom(Math.exp(-event.deltaY * lines * (event.ctrlKey ? 0.01 : 0.0015)), this.board.place(event));
  }
}
