// Painting of the mask, the current polygon, strokes and the cursor.

const COLOUR = [255, 64, 129, 255];
const EDGE = [255, 255, 255, 255];
export const KNOWN = [0, 214, 255, 255]; // colour of a known mask

// Paint the changed part of a mask on a canvas of the same size.
export function paintMask(mask, context, colour = COLOUR) {
  const box = mask.takeBox();
  if (!box) return;
  const { width, height, data } = mask;
  // Include one more pixel on each side, because its edge may have changed.
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
      pixels.data.set(inside ? colour : EDGE, at);
    }
  }
  context.putImageData(pixels, left, top);
}

// end: position of the next corner, or null. takes: whether the polygon removes pixels (drawn with dashes).
export function paintPolygon(context, scale, corners, end, takes) {
  if (!corners.length) return;
  context.setLineDash(takes ? [6 / scale, 4 / scale] : []);
  const path = new Path2D();
  corners.forEach(([x, y], index) => (index ? path.lineTo(x, y) : path.moveTo(x, y)));
  if (end) path.lineTo(...end);
  const dots = new Path2D();
  corners.forEach(([x, y]) => {
    dots.moveTo(x + 4 / scale, y);
    dots.arc(x, y, 4 / scale, 0, 2 * Math.PI);
  });
  outline(context, scale, path);
  context.setLineDash([]);
  outline(context, scale, dots);
}

export function paintPiece(context, scale, path) {
  outline(context, scale, path);
}

// strokes: [{ points, add }], green for the region and orange for the background.
export function paintStrokes(context, scale, strokes) {
  context.lineCap = context.lineJoin = "round";
  for (const { points, add } of strokes) {
    const path = new Path2D();
    points.forEach(([x, y], index) => (index ? path.lineTo(x, y) : path.moveTo(x, y)));
    if (points.length === 1) path.lineTo(...points[0]);
    for (const [colour, width] of [["#fff", 7], [add ? "#1f9d57" : "#d9480f", 4]]) {
      context.strokeStyle = colour;
      context.lineWidth = width / scale;
      context.stroke(path);
    }
  }
}

// diameter: diameter of the brush, or null.
export function paintCursor(context, scale, [x, y], diameter, cross) {
  const path = new Path2D();
  if (diameter) path.arc(x, y, Math.max(diameter / 2, 1 / scale), 0, 2 * Math.PI);
  if (cross) {
    const arm = 7 / scale;
    path.moveTo(x - arm, y);
    path.lineTo(x + arm, y);
    path.moveTo(x, y - arm);
    path.lineTo(x, y + arm);
  }
  outline(context, scale, path);
}

// White on black, so that lines are visible on any image.
function outline(context, scale, path) {
  for (const [colour, width] of [["rgba(0,0,0,.75)", 3], ["#fff", 1.25]]) {
    context.strokeStyle = colour;
    context.lineWidth = width / scale;
    context.stroke(path);
  }
}
