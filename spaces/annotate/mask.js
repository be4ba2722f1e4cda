// A mask with one byte per pixel, 0 or 1, and drawing operations. This file does not use a canvas, because some browsers
// change the content of a canvas when it is read back.

const MOST_HISTORY = 96 * 1024 * 1024; // maximum size of the undo history in bytes

export class Mask {
  constructor(width, height, runs = null) {
    this.width = width;
    this.height = height;
    this.data = new Uint8Array(width * height);
    this.done = [];
    this.undone = [];
    this.step = null;
    this.box = null; // bounding box of changes since it was last read: [left, top, right, bottom), or null
    if (runs) this.fillRuns(runs);
  }

  // Draw all pixels whose centre is at most half the diameter from the segment, and the pixels that contain its ends.
  stroke(x0, y0, x1, y1, diameter, value) {
    const r = diameter / 2;
    const left = Math.max(0, Math.floor(Math.min(x0, x1) - r - 1));
    const right = Math.min(this.width, Math.ceil(Math.max(x0, x1) + r + 1));
    const top = Math.max(0, Math.floor(Math.min(y0, y1) - r - 1));
    const bottom = Math.min(this.height, Math.ceil(Math.max(y0, y1) + r + 1));
    const dx = x1 - x0;
    const dy = y1 - y0;
    const length = dx * dx + dy * dy;
    for (let y = top; y < bottom; y++) {
      for (let x = left; x < right; x++) {
        const px = x + 0.5 - x0;
        const py = y + 0.5 - y0;
        const t = length > 0 ? Math.min(1, Math.max(0, (px * dx + py * dy) / length)) : 0;
        const ex = px - t * dx;
        const ey = py - t * dy;
        if (ex * ex + ey * ey <= r * r) this.data[y * this.width + x] = value;
      }
    }
    this.set(Math.floor(x0), Math.floor(y0), value);
    this.set(Math.floor(x1), Math.floor(y1), value);
    this.touch(left, top, right, bottom);
  }

  set(x, y, value) {
    if (x >= 0 && y >= 0 && x < this.width && y < this.height) this.data[y * this.width + x] = value;
  }

  // Draw the pixels whose centre is inside a polygon [[x, y], ...], by the even-odd rule.
  polygon(points, value) {
    const ys = points.map((point) => point[1]);
    const top = Math.max(0, Math.floor(Math.min(...ys)));
    const bottom = Math.min(this.height, Math.ceil(Math.max(...ys)) + 1);
    for (let y = top; y < bottom; y++) {
      const crossings = [];
      for (let i = 0; i < points.length; i++) {
        const [xa, ya] = points[i];
        const [xb, yb] = points[(i + 1) % points.length];
        if (ya <= y + 0.5 !== yb <= y + 0.5) crossings.push(xa + ((y + 0.5 - ya) * (xb - xa)) / (yb - ya));
      }
      crossings.sort((a, b) => a - b);
      for (let i = 0; i + 1 < crossings.length; i += 2) {
        const from = Math.max(0, Math.ceil(crossings[i] - 0.5));
        const to = Math.min(this.width, Math.ceil(crossings[i + 1] - 0.5));
        if (to > from) this.data.fill(value, y * this.width + from, y * this.width + to);
      }
    }
    this.touch(0, top, this.width, bottom);
  }

  // Draw the pixels that have this number in an array of the same size. The box contains all of these pixels.
  region(numbers, number, value, [left, top, right, bottom]) {
    for (let y = top; y < bottom; y++) {
      for (let i = y * this.width + left; i < y * this.width + right; i++) if (numbers[i] === number) this.data[i] = value;
    }
    this.touch(left, top, right, bottom);
  }

  // Set the mask to `before` (bytes of the same size) plus the pixels that `runs` marks.
  fillWith(before, runs) {
    this.data.set(before);
    this.fillRuns(runs, false);
  }

  clear() {
    this.data.fill(0);
    this.touch(0, 0, this.width, this.height);
  }

  touch(left, top, right, bottom) {
    if (right <= left || bottom <= top) return;
    const union = (box) =>
      box
        ? [Math.min(box[0], left), Math.min(box[1], top), Math.max(box[2], right), Math.max(box[3], bottom)]
        : [left, top, right, bottom];
    this.box = union(this.box);
    if (this.step) this.step.box = union(this.step.box);
  }

  takeBox() {
    const box = this.box;
    this.box = null;
    return box;
  }

  // Undo steps: all changes between begin and commit are undone together.
  begin() {
    this.step = { before: this.data.slice(), box: null };
  }

  commit() {
    const step = this.step;
    this.step = null;
    if (!step || !step.box) return false;
    const before = this.patch(step.before, step.box);
    const after = this.patch(this.data, step.box);
    if (before.every((value, index) => value === after[index])) return false;
    this.done.push({ box: step.box, before, after });
    this.undone = [];
    let bytes = 0;
    for (let i = this.done.length - 1; i >= 0; i--) {
      bytes += 2 * this.done[i].before.length;
      if (bytes > MOST_HISTORY) {
        this.done.splice(0, i);
        break;
      }
    }
    return true;
  }

  rollback() {
    if (!this.step) return;
    if (this.step.box) this.paste(this.patch(this.step.before, this.step.box), this.step.box);
    this.step = null;
  }

  undo() {
    const step = this.done.pop();
    if (!step) return false;
    this.paste(step.before, step.box);
    this.undone.push(step);
    return true;
  }

  redo() {
    const step = this.undone.pop();
    if (!step) return false;
    this.paste(step.after, step.box);
    this.done.push(step);
    return true;
  }

  patch(data, [left, top, right, bottom]) {
    const width = right - left;
    const found = new Uint8Array(width * (bottom - top));
    for (let y = top; y < bottom; y++) {
      found.set(data.subarray(y * this.width + left, y * this.width + right), (y - top) * width);
    }
    return found;
  }

  paste(patch, [left, top, right, bottom]) {
    const width = right - left;
    for (let y = top; y < bottom; y++) {
      this.data.set(patch.subarray((y - top) * width, (y - top + 1) * width), y * this.width + left);
    }
    this.touch(left, top, right, bottom);
  }

  isEmpty() {
    return !this.data.includes(1);
  }

  // Return the run lengths [zeros, ones, zeros, ...], row by row.
  runs() {
    const found = [];
    let value = 0;
    let start = 0;
    for (let i = 0; i <= this.data.length; i++) {
      if (i < this.data.length && this.data[i] === value) continue;
      found.push(i - start);
      start = i;
      value = 1 - value;
    }
    return found;
  }

  // zeros: whether to write the zeros of the runs too.
  fillRuns(runs, zeros = true) {
    let at = 0;
    runs.forEach((length, index) => {
      if (zeros || index % 2) this.data.fill(index % 2, at, at + length);
      at += length;
    });
    this.touch(0, 0, this.width, this.height);
  }
}
