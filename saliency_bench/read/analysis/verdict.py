"""Sentences about the results of a run, for the console and the report, based on the same tests as the ranks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from saliency_bench import registry
from saliency_bench.read.cell import BEST_FROM, UNCOMPARED, CellResult, best, explainer_names, metric_names
from saliency_bench.read.statistics.ranking import (
    NO_DIFFERENCE,
    NOT_TESTED,
    RANKED_FROM,
    TOO_FEW,
    TOO_FEW_TO_TELL,
    Contrast,
)
from saliency_bench.read.summary import in_order, warnings
from saliency_bench.score_notes import PEAKED

NO_CHANCE = "This run has no random baseline, so it does not show what an uninformative map would score."
CONTROLLED = (
    "The error rate of 5 % applies to each metric separately; for comparisons with a baseline, it applies to all "
    "metrics jointly."
)
# Results of simulations (docs/numbers.md), as (explainers, independent samples, error rate). Runs with more explainers
# and fewer samples than these contain a false difference at this rate (%). In all other runs, it is about 7 %.
MANY_SHAPES = ((40, 500, 12), (10, 200, 12), (40, inf, 8))
BEST = {
    True: "Best (better than every baseline, and not significantly worse than any other explainer)",
    False: f"Best (not significantly worse than any other explainer; {UNCOMPARED})",
}
AT_CHANCE = "Not marked as best, because a baseline may be just as good"
AGGREGATES = "one value over all samples; differences have intervals but no test, so explainers are not ranked"
NOT_SHOWN = "on these samples, using the network gives no measurable advantage"
RANDOM = "random"
VERBS = {1: ("beats", "beat"), -1: ("falls behind", "fall behind")}
OTHERWISE = {0: NO_DIFFERENCE, None: TOO_FEW_TO_TELL}


@dataclass(frozen=True)
class Against:
    """Comparison of an explainer with another explainer on a metric.

    Attributes:
        contrast: First minus other.
        sign: 1 if the first is significantly better, -1 if worse, 0 if no difference was found; None if there are too
            few samples, or the values are not tested.
    """

    name: str
    other: str
    metric: str
    contrast: Contrast
    sign: int | None
    tested: bool = True

    @property
    def word(self) -> str:
        """Return one or two words that say how the first compares with the other."""
        if not self.tested:
            return NOT_TESTED
        return OTHERWISE[self.sign] if self.sign not in VERBS else VERBS[self.sign][0]


class Verdict:
    """Describes the cells of a run and the comparisons of its explainers in sentences."""

    def __init__(self, cells: Sequence[CellResult], contrasts: Iterable[Contrast]):
        self.names, self.metrics = explainer_names(cells), metric_names(cells)
        self.order = in_order(cells) if cells else []
        self.cells = {(cell.explainer_id, cell.metric_id): cell for cell in cells}
        self.marked = best(cells)
        self.baselines = sorted(
            (key for key in self.order if any(cell.baseline for cell in cells if cell.explainer_id == key)),
            key=lambda key: self.names[key] != RANDOM,
        )
        self.methods = [key for key in self.order if key not in self.baselines]
        self._pairs = {frozenset(contrast.cells): contrast for contrast in contrasts}

    def against(self, explainer: str, other: str) -> list[Against]:
        """Return the comparisons of two explainers on each metric for which both have scores."""
        comparisons = []
        for metric, name in self.metrics.items():
            cells = self.cells.get((explainer, metric)), self.cells.get((other, metric))
            if cells[0] is None or cells[1] is None:
                continue
            pair = self._pairs.get(frozenset((cells[0].cell_id, cells[1].cell_id)))
            if pair is not None:
                seen = pair.seen_from(cells[0].cell_id)
                sign = None if seen.p is None else seen.sign(cells[0].higher_is_better)
                tested = not cells[0].aggregate
                comparisons.append(Against(self.names[explainer], self.names[other], name, seen, sign, tested))
        return comparisons

    def against_baselines(self) -> list[list[Against]]:
        """Return, for each baseline, the comparisons of all explainers that use the network; `random` comes first."""
        return [
            comparisons
            for other in self.baselines
            if (comparisons := [comparison for key in self.methods for comparison in self.against(key, other)])
        ]

    def sentences(self) -> list[str]:
        """Return sentences about the explainers that beat each baseline or are best, or about too few samples."""
        against = [
            tested
            for comparisons in self.against_baselines()
            if (tested := [comparison for comparison in comparisons if comparison.tested])
        ]
        lines = [*warnings(list(self.cells.values())), *self._peaked()]
        lines += [] if any(self.names[key] == RANDOM for key in self.baselines) else [NO_CHANCE]
        ranked = self._tested_cells
        of_cells = dict.fromkeys(cell.metric_id for cell in self.cells.values() if cell.aggregate)
        aggregates = [self.metrics[metric] for metric in of_cells]
        lines += [f"{listed(aggregates)}: {AGGREGATES}."] if aggregates else []
        if few := self.too_few():
            return [*lines, few]
        for comparisons in against:
            lines += _sentences(comparisons)
        leading = [*self._leading(), *self._signed_at_chance()]
        if not against and not leading:
            return lines
        samples = min((cell.independent for cell in ranked if cell.rank), default=inf)
        return [*lines, *leading, CONTROLLED, *many_shapes(len(self.order), samples)]

    @property
    def _tested_cells(self) -> list[CellResult]:
        """Return the cells whose differences can be tested."""
        return [cell for cell in self.cells.values() if not cell.aggregate]

    def too_few(self) -> str:
        """Return a sentence if there are too few samples to rank any explainer, else ""."""
        cells = self._tested_cells
        if not all(cell.unranked == TOO_FEW for cell in cells) or (self.cells and not cells):
            return ""
        most = int(max((cell.independent for cell in cells), default=0))
        return f"Too few samples to rank explainers: {most} independent samples, but ranks need at least {RANKED_FROM}."

    def _leading(self) -> list[str]:
        """Return sentences about the best explainers on each metric, and metrics on which a baseline is unbeaten."""
        leaders: dict[tuple[bool, str], list[str]] = {}
        blind: dict[str, list[str]] = {}
        partial: list[str] = []
        at_chance: list[str] = []
        alike: dict[str, list[str]] = {}
        for metric, name in self.metrics.items():
            ranked = [cell for key in self.order if (cell := self.cells.get((key, metric))) and cell.rank]
            if ranked and all(cell.unbeaten for cell in ranked):
                alike.setdefault(self._named((cell for cell in ranked if cell.baseline), "or"), []).append(name)
                continue
            if baselines := self._named((cell for cell in ranked if cell.unbeaten and cell.baseline), "or"):
                blind.setdefault(baselines, []).append(name)
            methods = [cell for cell in ranked if cell.unbeaten and not cell.baseline]
            if marked := self._named(cell for cell in methods if cell.cell_id in self.marked):
                leaders.setdefault((any(cell.baseline for cell in ranked), marked), []).append(name)
            unmarked = [cell for cell in methods if cell.cell_id not in self.marked]
            if few := self._named(cell for cell in unmarked if cell.scored < BEST_FROM):
                partial.append(f"{few} on {name}")
            if not baselines and (chance := self._named(cell for cell in unmarked if cell.scored >= BEST_FROM)):
                at_chance.append(f"{chance} on {name}")
        lines = []
        for compared, meaning in BEST.items():
            clauses = [f"{names} on {all_or(metrics, len(self.metrics))}"
                       for (beaten, names), metrics in leaders.items() if beaten == compared]  # fmt: skip
            lines += [f"{meaning}: {'; '.join(clauses)}."] if clauses else []
        lines += [f"{AT_CHANCE}: {'; '.join(at_chance)}."] if at_chance else []
        for names, metrics in alike.items():
            others = f"any other, or even than {names}," if names else "any other"
            metrics_text = any_or(metrics, len(self.metrics))
            lines.append(f"No explainer is significantly better than {others} on {metrics_text}.")
        for names, metrics in blind.items():
            score = f"{names} on {listed(metrics, 'or')}"
            lines.append(f"No explainer is significantly better than {score}: {NOT_SHOWN}.")
        least = f"{BEST_FROM * 100:.0f} %"
        few = f"Not significantly worse than any other explainer, but with fewer than {least} of the samples scored"
        return lines + ([f"{few}: {'; '.join(partial)}."] if partial else [])

    def _peaked(self) -> list[str]:
        """Return sentences about explainers whose maps have very few values above the midpoint of the range.

        The sentences name the metrics that use only these pixels.
        """
        names: dict[str, list[str]] = {}
        for key in self.order:
            cells = [cell for metric in self.metrics if (cell := self.cells.get((key, metric)))]
            if peaked := [cell for cell in cells if cell.marked.get(PEAKED, 0) > cell.n / 2]:
                names.setdefault(listed(self.metrics[cell.metric_id] for cell in peaked), []).append(self.names[key])
        return [
            f"{listed(explainers)}: in most samples, fewer than 1 % of the pixels have values above the midpoint of "
            f"the map's range. The scores for {metrics} use only these pixels, so they depend little on where the map "
            "points."
            for metrics, explainers in names.items()
        ]

    def _signed_at_chance(self) -> list[str]:
        """Return sentences about metrics on which only explainers with unsigned maps beat `random`."""
        signs: dict[str, dict[str, int | None]] = {}
        better: set[str] = set()  # metrics on which an explainer with unsigned maps is better
        chance = next((key for key in self.baselines if self.names[key] == RANDOM), None)
        for key in self.methods if chance else []:
            signed = _has_signed_maps(next(cell for (explainer, _), cell in self.cells.items() if explainer == key))
            for comparison in self.against(key, str(chance)):
                if signed and comparison.tested:
                    signs.setdefault(comparison.metric, {})[comparison.name] = comparison.sign
                elif comparison.sign == 1:
                    better.add(comparison.metric)
        metrics: dict[str, list[str]] = {}
        for metric, of_metric in signs.items():
            if metric in better and len(of_metric) > 1 and all(sign in (0, -1) for sign in of_metric.values()):
                metrics.setdefault(listed(of_metric), []).append(metric)
        return [
            f"No explainer with signed maps ({names}) is significantly better than {RANDOM} on "
            f"{listed(of_names, 'or')}: the sign may be the cause, because some metrics do not interpret it."
            for names, of_names in metrics.items()
        ]

    def _named(self, cells: Iterable[CellResult], conjunction: str = "and") -> str:
        names = [self.names[cell.explainer_id] for cell in cells]
        return listed(names, conjunction) if names else ""


def _has_signed_maps(cell: CellResult) -> bool:
    """Return whether a cell's explainer declares that its maps are signed."""
    if not registry.is_named(cell.explainer_version) or cell.explainer not in registry.files("explainers"):
        return False
    signed = registry.declared("explainers", cell.explainer, "signed", False)
    if isinstance(signed, dict):
        return all(cell.explainer_options.get(key) == value for key, value in signed.items())
    return bool(signed)


def _sentences(comparisons: list[Against]) -> list[str]:
    """Return a sentence for each group of explainers with the same results against one baseline."""
    signs: dict[str, dict[str, int | None]] = {}
    for comparison in comparisons:
        signs.setdefault(comparison.name, {})[comparison.metric] = comparison.sign
    groups: dict[tuple, list[str]] = {}
    for name, signs_by_metric in signs.items():
        groups.setdefault(tuple(signs_by_metric.items()), []).append(name)
    return [_sentence(names, dict(signs_by_metric), comparisons[0].other) for signs_by_metric, names in groups.items()]


def _sentence(names: list[str], signs: dict[str, int | None], other: str) -> str:
    """Return a sentence that compares explainers with a baseline; `signs` is {metric: sign as in `Against`}."""
    clauses: list[str] = []
    for sign, verbs in VERBS.items():
        if metrics := [metric for metric, sign_of_metric in signs.items() if sign_of_metric == sign]:
            verb, named = verbs[len(names) > 1], "it" if clauses else other
            clauses.append(f"{verb} {named} on {all_or(metrics, len(signs))}")
    subject = listed(names) if clauses else f"{listed(names)} against {other}:"
    for unclear, text in OTHERWISE.items():
        if metrics := [metric for metric, sign_of_metric in signs.items() if sign_of_metric == unclear]:
            clauses.append(f"{text} on {any_or(metrics, len(signs))}")
    return f"{subject} {'; '.join(clauses)}."


def many_shapes(explainers: int, samples: float) -> list[str]:
    """Return [warning] if the error rate is increased for these numbers of explainers and samples, else []."""
    lines = [
        f"The error rate may reach {percent} % if more than {many} explainers are compared"
        f"{f' on fewer than {few} independent samples' if few < inf else ''} and if their scores have different "
        "distributions (some rare events, some smooth scores)."
        for many, few, percent in MANY_SHAPES
        if explainers > many and samples < few
    ]
    return lines[:1]


def listed(names: Iterable[str], conjunction: str = "and") -> str:
    """Join names: "a, b and c". After a negation, use "or": "better than a, b or c"."""
    *most, last = names
    return f"{', '.join(most)} {conjunction} {last}" if most else last


def all_or(metrics: list[str], total: int) -> str:
    """Return "all 3 metrics" or "both metrics" if all `total` metrics are given, else their names."""
    return ("both metrics" if total == 2 else f"all {total} metrics") if len(metrics) == total > 1 else listed(metrics)


def any_or(metrics: list[str], total: int) -> str:
    """Return "any of the 3 metrics" or "either metric", for negated sentences, where `all_or` would be ambiguous."""
    several = "either metric" if total == 2 else f"any of the {total} metrics"
    return several if len(metrics) == total > 1 else listed(metrics, "or")
