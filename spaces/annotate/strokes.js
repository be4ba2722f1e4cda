// The strokes from which the server finds a region: all strokes since the last change by another tool.

const MOST_POINTS = 400; // maximum number of points of all strokes together, as on the server
const PER_STROKE = 40;

export class Strokes {
  // board: the board. find(strokes): requests the region's run lengths from the server, null if there is no response.
  constructor(board, find) {
    this.board = board;
    this.find = find;
    this.forget();
  }

  forget() {
    this.list = [];
    this.undone = []; // undone strokes, the last undone stroke last
    this.drawing = null; // the current stroke
    this.before = null; // the pixels before the first stroke
    this.asked = (this.asked ?? 0) + 1; // invalidates replies to earlier requests
    this.pending = null; // promise of the region of the last stroke, or null
  }

  begin(point, add) {
    if (!this.list.length) this.before = this.board.mask.data.slice();
    this.drawing = { points: [this.inside(point)], add };
  }

  extend(point) {
    this.drawing?.points.push(this.inside(point));
  }

  cancel() {
    this.drawing = null;
  }

  end() {
    if (!this.drawing) return;
    this.list.push({ ...this.drawing, points: thinned(this.drawing.points, PER_STROKE) });
    this.drawing = null;
    this.undone = [];
    this.ask();
  }

  // Undo the last stroke and its changes. Return whether there was a stroke.
  undo() {
    const stroke = this.list.pop();
    if (!stroke) return false;
    this.asked++;
    this.pending = null;
    if (stroke.step) this.board.mask.undo();
    this.undone.push({ ...stroke, under: this.board.mask.done.at(-1) });
    return true;
  }

  // Redo the last undone stroke, unless other steps were undone since. Return whether there was a stroke.
  redo() {
    const { mask } = this.board;
    if (!this.undone.length || this.undone.at(-1).under !== mask.done.at(-1)) return false;
    const stroke = this.undone.pop();
    if (!this.list.length) this.before = mask.data.slice();
    this.list.push(stroke);
    if (stroke.step) mask.redo();
    if (stroke.step === undefined) this.ask(); // the stroke was undone before its region was found
    return true;
  }

  ask() {
    const asked = ++this.asked;
    const pending = this.fill(asked).finally(() => {
      if (this.pending === pending) this.pending = null;
    });
    this.pending = pending;
  }

  // Mark the region of the strokes, unless there was another request in the meantime.
  async fill(asked) {
    const { board, list, before } = this;
    const most = Math.max(1, Math.floor(MOST_POINTS / Math.max(1, list.length)));
    const strokes = list.map((stroke) => ({ ...stroke, points: thinned(stroke.points, most) }));
    const runs = strokes.some((stroke) => stroke.add) ? await this.find(strokes) : [before.length];
    if (asked !== this.asked || !runs) return;
    const steps = board.mask.done.at(-1);
    board.step(() => board.mask.fillWith(before, runs));
    list.at(-1).step = board.mask.done.at(-1) !== steps;
  }

  inside([x, y]) {
    const { width, height } = this.board.mask;
    return [Math.min(width, Math.max(0, x)), Math.min(height, Math.max(0, y))];
  }
}

// Return at most this many of the points, evenly spaced, including both ends.
function thinned(points, most) {
  if (points.length <= most) return points;
  return Array.from({ length: most }, (_, i) => points[Math.round((i * (points.length - 1)) / Math.max(1, most - 1))]);
}
