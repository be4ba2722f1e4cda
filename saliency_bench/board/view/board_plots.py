"""Plots of a board's page: alignment against faithfulness, and quality against cost with the Pareto front.

A plot shows one dataset and one model, with a dot for each explainer. A metric's axis is reversed if lower scores are
better, so dots further to the right or further up are always better. The cost axis is not reversed: dots further to the
right are more expensive.

Unlike `read.report.plots`, these plots are not drawn by matplotlib. This module computes the positions, and the HTML
template draws the plots, so dots can link to rows, show a tooltip, and use the page's colours.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log10

from saliency_bench.board.known import HIDDEN, RUN, STATUSES
from saliency_bench.board.view.matrix import is_official
from saliency_bench.board.view.rows import ShownRow, amount
from saliency_bench.board.view.state import View
from saliency_bench.read.report.titles import metric_title

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 14, 52  # margins
TICKS = 7  # approximate number of ticks per axis
MOST = 40  # maximum number of explainers in a plot
LETTER, LONGEST = 6.8, 24  # width of a letter of a name, and maximum number of displayed letters
HIGH, CROWDED = 14, 0.5  # height of a name, and share of a name that other names and dots may cover
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Dot:
    """A dot in a plot: an explainer or a sample.

    Attributes:
        across: Ends of the horizontal interval.
        up: Ends of the vertical interval.
        on_front: Whether the dot is on the Pareto front.
        official: Whether all values of the dot are official: the board ran the explainer, or scored its maps with
            hidden masks.
        title: Text for tooltips and screen readers.
        label: (x, y, anchor) at which the name is drawn.
        is_named: Whether there is space for the name.
    """

    name: str
    key: str
    x: float
    y: float
    across: tuple[float, float] | None
    up: tuple[float, float] | None
    baseline: bool
    on_front: bool
    title: str
    official: bool = True
    label: tuple[float, float, str] = (0.0, 0.0, "start")
    is_named: bool = True


@dataclass(frozen=True)
class Plot:
    """A plot. All positions are in pixels.

    Attributes:
        x: Title of the horizontal axis.
        y: Title of the vertical axis.
        x_ticks: (position, text) of each tick on the horizontal axis.
        y_ticks: (position, text) of each tick on the vertical axis.
        front: Points of the line to draw: the Pareto front, starting with the cheapest explainer, or the diagonal on
            which both scores are equal.
    """

    title: str
    x: str
    y: str
    dots: list[Dot]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    front: list[tuple[float, float]]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


class Axis:
    """An axis that maps values to positions in a plot. There is a margin at both ends.

    Args:
        values: Values that the axis must include.
        start: Position of the low end in pixels.
        stop: Position of the high end in pixels.
        turned: Whether the axis is reversed.
        log: Whether the axis is logarithmic.
    """

    def __init__(self, values: Sequence[float], start: float, stop: float, *, turned: bool = False, log: bool = False):
        self.start, self.stop, self.log = (stop, start, log) if turned else (start, stop, log)
        numbers = [self._scaled(value) for value in values]
        low, high = min(numbers), max(numbers)
        # If all values are equal, add a margin of a twentieth of the value, so that the range is not empty.
        spare = 0.06 * (high - low) or max(abs(high) * 0.05, 0.05)
        self.low, self.high = low - spare, high + spare

    def _scaled(self, value: float) -> float:
        return log10(value) if self.log else value

    def __call__(self, value: float) -> float:
        """Return the position of a value on the axis in pixels."""
        share = (self._scaled(value) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.stop - self.start), 1)

    def ticks(self) -> list[tuple[float, str]]:
        """Return (position, text) for each tick. Ticks are at round numbers.

        On a logarithmic axis, the ticks are at powers of ten if the axis includes at least two of them.
        """
        if self.log:
            decades = range(ceil(self.low), floor(self.high) + 1)
            even = [self.low + (index + 0.5) / TICKS * (self.high - self.low) for index in range(TICKS)]
            exponents = list(decades) if len(decades) > 1 else even
            values = [10.0**exponent for exponent in exponents]
            return [(self(value), amount(value)) for value in values]
        step = _step((self.high - self.low) / TICKS)
        first, digits = ceil(self.low / step), max(0, -floor(log10(step)))
        count = floor(self.high / step) - first + 1
        return [(self((first + index) * step), f"{(first + index) * step:.{digits}f}") for index in range(count)]


def _step(rough: float) -> float:
    """Return the smallest number that is at least `rough` and is 1, 2 or 5 times a power of ten."""
    power = 10.0 ** floor(log10(rough))
    return next(times * power for times in (1, 2, 5, 10) if times * power >= rough * (1 - 1e-9))


def pareto(costs: Sequence[float], gains: Sequence[float]) -> list[int]:
    """Return the indices of the points on the Pareto front, sorted by cost.

    The front consists of all points that are not dominated. A point dominates another point if its cost is not higher,
    its gain is not lower, and at least one of the two is strictly better. Equal points do not dominate each other.
    """
    order = sorted(range(len(costs)), key=lambda index: (costs[index], -gains[index]))
    front: list[int] = []
    for index in order:
        last = front[-1] if front else None
        if last is None or gains[index] > gains[last] or (costs[index], gains[index]) == (costs[last], gains[last]):
            front.append(index)
    return front


def scenes(rows: Iterable[ShownRow]) -> list[tuple[str, str]]:
    """Return each (dataset, model) for which there are rows with values, sorted by the number of official rows."""
    rows = list(rows)
    official = Counter((row.dataset, row.model) for row in rows if row.value is not None and is_official(row))
    counts = Counter((row.dataset, row.model) for row in rows if row.value is not None)
    return sorted(counts, key=lambda scene: (-official[scene], -counts[scene], scene))


def metrics_of(rows: Iterable[ShownRow], family: str = "") -> list[str]:
    """Return the names of the metrics that have values. If `family` is set, return only metrics in this family."""
    return sorted({row.metric for row in rows if row.value is not None and family in ("", row.family)})


def by_explainer(rows: Iterable[ShownRow], metric: str) -> dict[str, ShownRow]:
    """Return {explainer: row} for a metric. If an explainer has several rows, the row with the best status is used."""
    best: dict[str, ShownRow] = {}
    for row in sorted(rows, key=lambda row: (STATUSES.index(row.status), row.asks, row.key)):
        if row.metric == metric and row.value is not None:
            best.setdefault(row.explainer, row)
    return best


def scatter(rows: Sequence[ShownRow], x: str, y: str) -> Plot | None:
    """Plot two metrics of the same explainers against each other.

    Returns:
        The plot, or None if no explainer has both scores.
    """
    across, up = by_explainer(rows, x), by_explainer(rows, y)
    names = [name for name in across if name in up]
    if not names:
        return None
    horizontal = Axis(_ends(across[name] for name in names), LEFT, WIDTH - RIGHT, turned=_turned(across[names[0]]))
    vertical = Axis(_ends(up[name] for name in names), HEIGHT - BOTTOM, TOP, turned=_turned(up[names[0]]))
    dots = []
    for name in names:
        first, second = across[name], up[name]
        title = f"{name}: {metric_title(x)} {_score_text(first)}, {metric_title(y)} {_score_text(second)}"
        place = horizontal(_value(first)), vertical(_value(second))
        spans = _span(first, horizontal), _span(second, vertical)
        official = {first.status, second.status} <= {RUN, HIDDEN}
        dots.append(Dot(name, first.key, *place, *spans, first.baseline, False, title, official))
    title = f"{metric_title(y)} against {metric_title(x)}"
    return Plot(title, _axis_title(across[names[0]]), _axis_title(up[names[0]]),
                labelled(dots), horizontal.ticks(), vertical.ticks(), [])  # fmt: skip


def cost(rows: Sequence[ShownRow], y: str, kind: str) -> Plot | None:
    """Plot a metric against the cost of explaining an image.

    Times in seconds are shown only for the most common device, because times on different devices cannot be compared.

    Args:
        rows: Rows of one dataset and model.
        y: Metric.
        kind: Unit of the cost: "passes" or "seconds".

    Returns:
        The plot, or None if no row states a cost.
    """
    costed = {name: row for name, row in by_explainer(rows, y).items() if getattr(row, kind)}
    if not costed:
        return None
    device_note = ""
    if kind == "seconds":
        device = Counter(row.device for row in costed.values()).most_common(1)[0][0]
        costed = {name: row for name, row in costed.items() if row.device == device}
        device_note = f" on {device}"
    names = list(costed)
    costs = [float(getattr(costed[name], kind)) for name in names]
    first = costed[names[0]]
    gains = [_value(costed[name]) * (1 if first.higher_is_better else -1) for name in names]
    run = [index for index, name in enumerate(names) if costed[name].status == RUN]
    front = [run[index] for index in pareto([costs[index] for index in run], [gains[index] for index in run])]
    horizontal = Axis(costs, LEFT, WIDTH - RIGHT, log=True)
    vertical = Axis(_ends(costed.values()), HEIGHT - BOTTOM, TOP, turned=_turned(first))
    dots = []
    for index, name in enumerate(names):
        row = costed[name]
        title = f"{name}: {amount(costs[index])} {kind} per image{device_note}, {metric_title(y)} {_score_text(row)}"
        place = horizontal(costs[index]), vertical(_value(row))
        spans = None, _span(row, vertical)
        official = row.status in (RUN, HIDDEN)
        dots.append(Dot(name, row.key, *place, *spans, row.baseline, index in front, title, official))
    dots = labelled(dots)
    line = [(dots[index].x, dots[index].y) for index in front]
    return Plot(f"{metric_title(y)} against {kind} per image", f"{kind} per image{device_note}, less is better",
                _axis_title(first), dots, horizontal.ticks(), vertical.ticks(), line)  # fmt: skip


def labelled(dots: Sequence[Dot]) -> list[Dot]:
    """Place a name next to each dot. Names overlap other names and dots as little as possible."""
    taken = [(dot.x - 6, dot.y - 6, dot.x + 6, dot.y + 6) for dot in dots]
    placed = []
    for dot in dots:
        width = LETTER * min(len(dot.name), LONGEST)
        places = []
        for across, anchor in ((8, "start"), (-8, "end")):
            for down in (-7, 15):
                left = dot.x + across - (width if anchor == "end" else 0)
                box = (left, dot.y + down + 3 - HIGH, left + width, dot.y + down + 3)
                outside = box[0] < LEFT or box[2] > WIDTH
                places.append((sum(_overlap(box, other) for other in taken) + 1e6 * outside, across, down, anchor, box))
        covered, across, down, anchor, box = min(places, key=lambda choice: choice[0])
        is_named = covered <= CROWDED * width * HIGH
        taken += [box] * is_named
        label = round(dot.x + across, 1), round(dot.y + down, 1), anchor
        placed.append(replace(dot, label=label, is_named=is_named))
    return placed


def _overlap(first: Box, second: Box) -> float:
    """Return the area of the overlap of two boxes (left, top, right, bottom)."""
    wide = min(first[2], second[2]) - max(first[0], second[0])
    return max(0.0, wide) * max(0.0, min(first[3], second[3]) - max(first[1], second[1]))


def pairs(points: Sequence[tuple[float, float]], x: str, y: str) -> Plot | None:
    """Plot the scores (x, y) of two rows for each sample, on axes with the same range.

    Return None if there are no points.
    """
    if not len(points):
        return None
    values = [float(value) for point in points for value in point]
    horizontal, vertical = Axis(values, LEFT, WIDTH - RIGHT), Axis(values, HEIGHT - BOTTOM, TOP)
    dots = [Dot("", "", horizontal(float(a)), vertical(float(b)), None, None, False, False, f"{a:.3f}, {b:.3f}")
            for a, b in points]  # fmt: skip
    ends = [(horizontal(value), vertical(value)) for value in (min(values), max(values))]
    return Plot(f"{y} against {x}, one dot per sample", x, y, dots, horizontal.ticks(), vertical.ticks(), ends)


def fewer(rows: Sequence[ShownRow]) -> tuple[list[ShownRow], int]:
    """Limit rows to `MOST` explainers. Baselines and rows with a better status take precedence.

    Returns:
        (rows, number of explainers that were removed).
    """
    order = sorted(rows, key=lambda row: (STATUSES.index(row.status) - row.baseline, row.explainer.casefold()))
    names = list(dict.fromkeys(row.explainer for row in order))
    kept = set(names[:MOST])
    return [row for row in rows if row.explainer in kept], len(names) - len(kept)


def plotted(rows: Sequence[ShownRow], view: View) -> tuple[View, list[ShownRow]]:
    """Fill in the settings of the plots that are missing in a view. Return (view, rows of its dataset and model)."""
    all_scenes = scenes(rows)
    wanted = [
        scene for scene in all_scenes if _passes(view.dataset, scene[0]) and _passes(view.model, scene[1])
    ] or all_scenes
    dataset, model = wanted[0] if wanted else ("", "")
    scene_rows = [row for row in rows if (row.dataset, row.model) == (dataset, model)]
    names = metrics_of(scene_rows)
    x = view.x if view.x in names else next(iter(metrics_of(scene_rows, "alignment") or names), "")
    others = metrics_of(scene_rows, "faithfulness") or [name for name in names if name != x] or names
    y = view.y if view.y in names else next(iter(others), "")
    return replace(view, dataset=(dataset,), model=(model,), x=x, y=y) if wanted else replace(
        view, x=x, y=y
    ), scene_rows


def _passes(wanted: tuple[str, ...], value: str) -> bool:
    return not wanted or value in wanted


def _value(row: ShownRow) -> float:
    return 0.0 if row.value is None else row.value


def _ends(rows: Iterable[ShownRow]) -> list[float]:
    """Return all values and interval ends of the rows, which an axis must include."""
    return [value for row in rows for value in (row.value, row.low, row.high) if value is not None]


def _span(row: ShownRow, axis: Axis) -> tuple[float, float] | None:
    """Return the positions of both ends of a row's interval, or None if it has no interval."""
    return None if row.low is None or row.high is None else (axis(row.low), axis(row.high))


def _turned(row: ShownRow) -> bool:
    return not row.higher_is_better


def _score_text(row: ShownRow) -> str:
    ends = "" if row.low is None or row.high is None else f" [{row.low:.3f}, {row.high:.3f}]"
    return f"{row.value:.3f}{ends}"


def _axis_title(row: ShownRow) -> str:
    return f"{metric_title(row.metric)}, {'higher' if row.higher_is_better else 'lower'} is better"
