// The pieces of an image: position and outline of each piece.

export class Pieces {
  // numbers: the number of each pixel's piece.
  constructor(numbers, width) {
    this.numbers = numbers;
    this.width = width;
    this.height = numbers.length / width;
    this.boxes = []; // [left, top, right, bottom) of each piece
    for (let y = 0, i = 0; y < this.height; y++) {
      for (let x = 0; x < width; x++, i++) {
        const box = (this.boxes[numbers[i]] ??= [x, y, x + 1, y + 1]);
        if (x < box[0]) box[0] = x;
        if (x >= box[2]) box[2] = x + 1;
        box[3] = y + 1;
      }
    }
  }

  // Return the piece at a point of the image, or null.
  at(point) {
    const [x, y] = point.map(Math.floor);
    return x >= 0 && y >= 0 && x < this.width && y < this.height ? this.numbers[y * this.width + x] : null;
  }

  outline(number) {
    if (this.outlined?.number === number) return this.outlined.path;
    const { numbers, width, height } = this;
    const [left, top, right, bottom] = this.boxes[number];
    const path = new Path2D();
    const line = (x0, y0, x1, y1) => (path.moveTo(x0, y0), path.lineTo(x1, y1));
    for (let y = top; y < bottom; y++) {
      for (let x = left; x < right; x++) {
        const i = y * width + x;
        if (numbers[i] !== number) continue;
        if (x === 0 || numbers[i - 1] !== number) line(x, y, x, y + 1);
        if (x === width - 1 || numbers[i + 1] !== number) line(x + 1, y, x + 1, y + 1);
        if (y === 0 || numbers[i - width] !== number) line(x, y, x + 1, y);
        if (y === height - 1 || numbers[i + width] !== number) line(x, y + 1, x + 1, y + 1);
      }
    }
    this.outlined = { number, path };
    return path;
  }
}
