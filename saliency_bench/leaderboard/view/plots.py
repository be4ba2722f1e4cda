"""What the plots show: alignment against faithfulness, and cost against quality with its Pareto front.

A plot is about one dataset and model; explainers are its dots. Axes turn so that right and up are better, but for cost,
of which left is less.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log10

from saliency_bench.leaderboard.view.rows import ShownRow, amount, short
from saliency_bench.leaderboard.view.state import STATUSES, View

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 14, 52  # margins
TICKS = 7
MOST = 40  # explainers of a plot
LETTER, LONGEST = 6.8, 24  # the width of a letter of a name, and how many are shown
HIGH, CROWDED = 14, 0.5  # the height of a name, and the share of it that other names and dots may cover
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Dot:
    """An explainer: its place in the plot, the ends of its intervals there, and what it says when pointed at."""

    name: str
    key: str
    x: float
    y: float
    across: tuple[float, float] | None
    up: tuple[float, float] | None
    baseline: bool
    on_front: bool
    title: str
    label: tuple[float, float, str] = (0.0, 0.0, "start")  # where its name stands, and how it is anchored there
    is_named: bool = True  # whether there is room for its name


@dataclass(frozen=True)
class Plot:
    """What a plot shows.

    Attributes:
        ticks: (place, text).
        front: the points of the Pareto front, from the cheapest up.
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
    """Values to places: from `low` to `high`, turned around where less is better, logarithmic of costs."""

    def __init__(self, values: Sequence[float], start: float, stop: float, *, turned: bool = False, log: bool = False):
        self.start, self.stop, self.log = (stop, start, log) if turned else (start, stop, log)
        numbers = [self._of(value) for value in values]
        low, high = min(numbers), max(numbers)
        spare = 0.06 * (high - low) or max(abs(high) * 0.05, 0.05)
        self.low, self.high = low - spare, high + spare

    def _of(self, value: float) -> float:
        """Return the place of a value on the scale, linear or logarithmic."""
        return log10(value) if self.log else value

    def __call__(self, value: float) -> float:
        """Return the place of a value in pixels."""
        share = (self._of(value) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.stop - self.start), 1)

    def ticks(self) -> list[tuple[float, str]]:
        """Return (place, text) of round values on the axis."""
        if self.log:
            decades = range(ceil(self.low), floor(self.high) + 1)
            exponents = list(decades) if len(decades) > 1 else [self._shared(index) for index in range(TICKS)]
            values = [10.0**exponent for exponent in exponents]
            return [(self(value), amount(value)) for value in values]
        step = _step((self.high - self.low) / TICKS)
        first, digits = ceil(self.low / step), max(0, -floor(log10(step)))
        count = floor(self.high / step) - first + 1
        return [(self((first + index) * step), f"{(first + index) * step:.{digits}f}") for index in range(count)]

    def _shared(self, index: int) -> float:
        """Return an end of the axis."""
        return self.low + (index + 0.5) / TICKS * (self.high - self.low)


def _step(rough: float) -> float:
    """Return 1, 2 or 5 times a power of ten, no less than `rough`."""
    power = 10.0 ** floor(log10(rough))
    return next(times * power for times in (1, 2, 5, 10) if times * power >= rough * (1 - 1e-9))


def pareto(costs: Sequence[float], gains: Sequence[float]) -> list[int]:
    """Return the places of all that nothing else beats, from the cheapest up.

    Something beats another if its cost is at most the other's and its gain at least, and one of both is better.
    """
    order = sorted(range(len(costs)), key=lambda index: (costs[index], -gains[index]))
    front: list[int] = []
    for index in order:
        last = front[-1] if front else None
        if last is None or gains[index] > gains[last] or (costs[index], gains[index]) == (costs[last], gains[last]):
            front.append(index)
    return front


def scenes(rows: Iterable[ShownRow]) -> list[tuple[str, str]]:
    """Return datasets and models that have rows with a value: (dataset, model), those with most first."""
    counts: dict[tuple[str, str], int] = {}
    for row in rows:
        if row.value is not None:
            counts[row.dataset, row.model] = counts.get((row.dataset, row.model), 0) + 1
    return sorted(counts, key=lambda scene: (-counts[scene], scene))


def metrics_of(rows: Iterable[ShownRow], family: str = "") -> list[str]:
    """Return the metrics of rows with a value, of a family or of all."""
    return sorted({row.metric for row in rows if row.value is not None and family in ("", row.family)})


def pick(wanted: str, names: Sequence[str]) -> str:
    """Return the name that is wanted, or the first."""
    return wanted if wanted in names else (names[0] if names else "")


def by_explainer(rows: Iterable[ShownRow], metric: str) -> dict[str, ShownRow]:
    """Return the row of each explainer by a metric, of several the best known."""
    rows_by_name: dict[str, ShownRow] = {}
    for row in sorted(rows, key=lambda row_of: (STATUSES.index(row_of.status), row_of.asks, row_of.key)):
        if row.metric == metric and row.value is not None:
            rows_by_name.setdefault(row.explainer, row)
    return rows_by_name


def scatter(rows: Sequence[ShownRow], x: str, y: str) -> Plot | None:
    """Return two metrics of the same explainers, of one dataset and model; None with none that has both."""
    across, up = by_explainer(rows, x), by_explainer(rows, y)
    names = [name for name in across if name in up]
    if not names:
        return None
    horizontal = Axis(_ends(across[name] for name in names), LEFT, WIDTH - RIGHT, turned=_turned(across[names[0]]))
    vertical = Axis(_ends(up[name] for name in names), HEIGHT - BOTTOM, TOP, turned=_turned(up[names[0]]))
    dots = []
    for name in names:
        left, other = across[name], up[name]
        title = f"{name}: {short(x)} {_score_text(left)}, {short(y)} {_score_text(other)}"
        place = horizontal(_value(left)), vertical(_value(other))
        spans = _span(left, horizontal), _span(other, vertical)
        dots.append(Dot(name, left.key, *place, *spans, left.baseline, False, title))
    dots = labelled(dots)
    return Plot(f"{short(y)} against {short(x)}", _axis_title(across[names[0]]), _axis_title(up[names[0]]), dots,
                horizontal.ticks(), vertical.ticks(), [])  # fmt: skip


def cost(rows: Sequence[ShownRow], y: str, kind: str) -> Plot | None:
    """Return a metric against the cost of an image, passes or seconds; None with no row that says its cost.

    Seconds are those of one device, that of most rows: others cannot be compared.
    """
    known = {name: row for name, row in by_explainer(rows, y).items() if getattr(row, kind)}
    if not known:
        return None
    where = ""
    if kind == "seconds":
        device = Counter(row.device for row in known.values()).most_common(1)[0][0]
        known = {name: row for name, row in known.items() if row.device == device}
        where = f" on {device}"
    names = list(known)
    costs = [float(getattr(known[name], kind)) for name in names]
    first = known[names[0]]
    gains = [_value(known[name]) * (1 if first.higher_is_better else -1) for name in names]
    front = pareto(costs, gains)
    horizontal = Axis(costs, LEFT, WIDTH - RIGHT, log=True)
    vertical = Axis(_ends(known.values()), HEIGHT - BOTTOM, TOP, turned=_turned(first))
    dots = []
    for index, name in enumerate(names):
        row = known[name]
        title = f"{name}: {amount(costs[index])} {kind} per image{where}, {short(y)} {_score_text(row)}"
        place = horizontal(costs[index]), vertical(_value(row))
        spans = None, _span(row, vertical)
        dots.append(Dot(name, row.key, *place, *spans, row.baseline, index in front, title))
    dots = labelled(dots)
    line = [(dots[index].x, dots[index].y) for index in front]
    return Plot(f"{short(y)} against {kind} per image", f"{kind} per image{where}, less is better",
                _axis_title(first), dots, horizontal.ticks(), vertical.ticks(), line)  # fmt: skip


def labelled(dots: Sequence[Dot]) -> list[Dot]:
    """Return dots with a place for each name beside its dot, where it overlaps as few names and dots as may be."""
    taken = [(dot.x - 6, dot.y - 6, dot.x + 6, dot.y + 6) for dot in dots]
    named = []
    for dot in dots:
        width = LETTER * min(len(dot.name), LONGEST)
        places = []
        for across, anchor in ((8, "start"), (-8, "end")):
            for down in (-7, 15):
                left = dot.x + across - (width if anchor == "end" else 0)
                box = (left, dot.y + down + 3 - HIGH, left + width, dot.y + down + 3)
                outside = box[0] < LEFT or box[2] > WIDTH
                places.append((sum(_overlap(box, other) for other in taken) + 1e6 * outside, across, down, anchor, box))
        covered, across, down, anchor, box = min(places, key=lambda place: place[0])
        is_named = covered <= CROWDED * width * HIGH
        taken += [box] * is_named
        label = round(dot.x + across, 1), round(dot.y + down, 1), anchor
        named.append(replace(dot, label=label, is_named=is_named))
    return named


def _overlap(first: Box, other: Box) -> float:
    """Return the common area of two boxes (left, top, right, bottom)."""
    wide = min(first[2], other[2]) - max(first[0], other[0])
    return max(0.0, wide) * max(0.0, min(first[3], other[3]) - max(first[1], other[1]))


def pairs(points: Sequence[tuple[float, float]], x: str, y: str) -> Plot | None:
    """Return the scores of two rows sample by sample, on axes of one range."""
    if not len(points):
        return None
    values = [float(value) for point in points for value in point]
    horizontal, vertical = Axis(values, LEFT, WIDTH - RIGHT), Axis(values, HEIGHT - BOTTOM, TOP)
    dots = [Dot("", "", horizontal(float(a)), vertical(float(b)), None, None, False, False, f"{a:.3f}, {b:.3f}")
            for a, b in points]  # fmt: skip
    ends = [(horizontal(value), vertical(value)) for value in (min(values), max(values))]
    return Plot(f"{y} against {x}, a dot per sample", x, y, dots, horizontal.ticks(), vertical.ticks(), ends)


def fewer(rows: Sequence[ShownRow]) -> tuple[list[ShownRow], int]:
    """Return (the rows of as many explainers as a plot shows, recomputed ones and baselines first.

    How many are left out).
    """
    order = sorted(rows, key=lambda row: (STATUSES.index(row.status) - row.baseline, row.explainer.casefold()))
    names = list(dict.fromkeys(row.explainer for row in order))
    kept = set(names[:MOST])
    return [row for row in rows if row.explainer in kept], len(names) - len(kept)


def plotted(rows: Sequence[ShownRow], view: View) -> tuple[View, list[ShownRow]]:
    """Return (the view with everything chosen that the plots need, the rows of its dataset and model)."""
    known = scenes(rows)
    wanted = [scene for scene in known if _passes(view.dataset, scene[0]) and _passes(view.model, scene[1])] or known
    dataset, model = wanted[0] if wanted else ("", "")
    of_scene = [row for row in rows if (row.dataset, row.model) == (dataset, model)]
    names = metrics_of(of_scene)
    x = view.x if view.x in names else pick("", metrics_of(of_scene, "alignment") or names)
    others = metrics_of(of_scene, "faithfulness") or [name for name in names if name != x] or names
    y = view.y if view.y in names else pick("", others)
    return replace(view, dataset=(dataset,), model=(model,), x=x, y=y) if wanted else replace(view, x=x, y=y), of_scene


def _passes(wanted: tuple[str, ...], value: str) -> bool:
    """Return whether a filter lets a value pass."""
    return not wanted or value in wanted


def _value(row: ShownRow) -> float:
    """Return a row's score."""
    return 0.0 if row.value is None else row.value


def _ends(rows: Iterable[ShownRow]) -> list[float]:
    """Return the scores of rows and the ends of their intervals."""
    return [value for row in rows for value in (row.value, row.low, row.high) if value is not None]


def _span(row: ShownRow, axis: Axis) -> tuple[float, float] | None:
    """Return the ends of a row's interval on an axis."""
    return None if row.low is None or row.high is None else (axis(row.low), axis(row.high))


def _turned(row: ShownRow) -> bool:
    """Return whether lower is better."""
    return not row.higher_is_better


def _score_text(row: ShownRow) -> str:
    """Return a score with its interval as text."""
    ends = "" if row.low is None or row.high is None else f" [{row.low:.3f}, {row.high:.3f}]"
    return f"{row.value:.3f}{ends}"


def _axis_title(row: ShownRow) -> str:
    """Return the title of a metric's axis."""
    return f"{short(row.metric)}, {'higher' if row.higher_is_better else 'lower'} is better"
