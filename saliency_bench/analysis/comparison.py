"""Runs beside each other: the cells they share, where those contradict, and the differences sample by sample."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from saliency_bench.errors import UserError
from saliency_bench.reasons import is_expected
from saliency_bench.results.run_folder import RunData, is_baseline, read_run
from saliency_bench.results.statistics import mean_intervals

TOLERANCE = 1e-5  # relative: what another machine or batch size may change in the last digits
NOTHING = 1e-9  # a difference below it is none, however small the numbers
MOST = 5  # samples named per pair


def same(one, two):
    """Whether numbers are equal but for their last digits; two gaps are equal, a gap and a number are not."""
    near = np.abs(np.subtract(one, two)) <= np.maximum(TOLERANCE * np.maximum(np.abs(one), np.abs(two)), NOTHING)
    return near | (np.isnan(one) & np.isnan(two))


@dataclass(frozen=True)
class Names:
    """Explainers and metrics over several runs: what counts as the same, and what it is called.

    Same name, version and options make the same; but for the seed, which follows the run's own, unless a run has two
    that differ in nothing else.
    """

    keys: dict[tuple, tuple]
    texts: dict[tuple, str]

    def key(self, cell: dict, kind: str) -> tuple:
        return self.keys[_exactly(cell, kind)]

    def text(self, cell: dict, kind: str) -> str:
        return self.texts[self.key(cell, kind)]


def _exactly(cell: dict, kind: str) -> tuple:
    options = json.dumps(cell[f"{kind}_options"], sort_keys=True)
    return kind, cell[f"{kind}_text"], options, str(cell[f"{kind}_version"])


def _but_seed(cell: dict, kind: str) -> tuple:
    options = {name: value for name, value in cell[f"{kind}_options"].items() if name != "seed"}
    return kind, _text_but_seed(cell, kind), json.dumps(options, sort_keys=True), str(cell[f"{kind}_version"])


def _text_but_seed(cell: dict, kind: str) -> str:
    name, _, options = cell[f"{kind}_text"].partition(":")
    kept = ",".join(option for option in options.split(",") if not option.startswith("seed="))
    return f"{name}:{kept}" if kept else name


def names_of(runs: Sequence[RunData]) -> Names:
    keys: dict[tuple, tuple] = {}
    written: dict[tuple, set[str]] = {}
    for kind in ("explainer", "metric"):
        found = [{_exactly(cell, kind): _but_seed(cell, kind) for cell in run.summary["cells"]} for run in runs]
        twice = {key for one in found for key, times in Counter(one.values()).items() if times > 1}
        for one in found:
            for exact, loose in one.items():
                keys[exact] = exact if loose in twice else loose
                written.setdefault(keys[exact], set()).add(exact[1])
    texts = {key: next(iter(seen)) if len(seen) == 1 else key[1] for key, seen in written.items()}
    often = Counter((key[0], text) for key, text in texts.items())
    for key, text in texts.items():
        if often[key[0], text] > 1:
            texts[key] = f"{text} (version {key[3]})"
    return Names(keys, texts)


@dataclass(frozen=True)
class Pair:
    """One explainer and metric in two runs, on the samples that both have scored, in the order of the first run."""

    explainer: str
    metric: str
    baseline: bool
    higher_is_better: bool
    cells: tuple[dict, dict]
    ids: list[str]
    first: np.ndarray
    second: np.ndarray
    low: float
    high: float
    unpaired: int  # samples that only one of the two has scored

    @cached_property
    def differences(self) -> np.ndarray:
        """Second minus first; nothing where they differ in their last digits alone."""
        return np.where(same(self.first, self.second), 0.0, self.second - self.first)

    @property
    def is_same(self) -> bool:
        """The same cell with the same scores."""
        return (
            self.cells[0]["cell_id"] == self.cells[1]["cell_id"] and self.unpaired == 0 and not self.differences.any()
        )

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.second - self.first)) if len(self.ids) else None

    @property
    def standing(self) -> int:
        """1 if the second is better and the interval lies to one side of zero, -1 if worse, else 0."""
        if not self.differences.any():
            return 0
        return (int(self.low > 0) - int(self.high < 0)) * (1 if self.higher_is_better else -1)

    @property
    def shares(self) -> tuple[float, float, float] | None:
        """Of samples on which the second is better, equal, worse."""
        if not len(self.ids):
            return None
        turned = self.differences if self.higher_is_better else -self.differences
        return float(np.mean(turned > 0)), float(np.mean(turned == 0)), float(np.mean(turned < 0))

    @property
    def largest(self) -> list[dict]:
        """The samples that differ most, those that differ at all."""
        order = np.argsort(-np.abs(self.differences), kind="stable")[:MOST]
        return [
            {
                "image_id": self.ids[index],
                "first": float(self.first[index]),
                "second": float(self.second[index]),
                "difference": float(self.second[index] - self.first[index]),
            }
            for index in order
            if self.differences[index]
        ]

    def as_dict(self) -> dict:
        better, equal, worse = self.shares or (None, None, None)
        return {
            "explainer": self.explainer,
            "metric": self.metric,
            "higher_is_better": self.higher_is_better,
            "cell_ids": [cell["cell_id"] for cell in self.cells],
            "n": len(self.ids),
            "unpaired": self.unpaired,
            "mean": self.mean,
            "low": _known(self.low),
            "high": _known(self.high),
            "better": better,
            "equal": equal,
            "worse": worse,
            "largest": self.largest,
        }


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None


def why_not(first: RunData, second: RunData) -> str | None:
    """What keeps two runs from being compared sample by sample."""
    one, two = first.summary["dataset"], second.summary["dataset"]
    if one["fingerprint"] != two["fingerprint"]:
        said = [f"{dataset['id']} with fingerprint {dataset['fingerprint'][:8]}" for dataset in (one, two)]
        return f"they are over different datasets ({' and '.join(said)})"
    if one["split"] != two["split"]:
        return f"they are over different splits ({one['split']} and {two['split']})"
    return None


def differences(first: RunData | str | Path, second: RunData | str | Path) -> list[dict]:
    """Each explainer and metric that two runs share, compared sample by sample, as plain data.

    first, second: folders of runs over the same dataset and split, whose model, target rule, precision, seed or batch
    size may differ. An entry has `mean` (second minus first, over the `n` samples that both have scored) with its 95 %
    bootstrap interval `low` to `high`; the shares of samples on which the second is `better`, `equal` (but for the last
    digits) or `worse`, which know whether higher or lower is better; `largest`, the five samples that differ most;
    `unpaired`, how many samples only one run has scored. What is not known is None.

    Raises: UserError for runs over different datasets, or a folder without a finished run.
    """
    one, two = (run if isinstance(run, RunData) else read_run(Path(run)) for run in (first, second))
    if reason := why_not(one, two):
        raise UserError(f"{one.folder} and {two.folder} have no differences sample by sample: {reason}")
    return [pair.as_dict() for pair in pairs(one, two)]


def _shared(first: RunData, second: RunData) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The samples that both runs have, in the order of the first, and their places in each."""
    ids = [image_id for image_id in first.ids if image_id in second.position]
    here = np.array([first.position[image_id] for image_id in ids], dtype=int)
    there = np.array([second.position[image_id] for image_id in ids], dtype=int)
    return ids, here, there


def pairs(first: RunData, second: RunData) -> list[Pair]:
    """In the order of the first run, baselines last within each metric."""
    names = names_of([first, second])

    def placed(run: RunData) -> dict[tuple, dict]:
        return {(names.key(cell, "metric"), names.key(cell, "explainer")): cell for cell in run.summary["cells"]}

    one, two = placed(first), placed(second)
    metrics = list(dict.fromkeys(key[0] for key in one))
    shared = sorted((key for key in one if key in two), key=lambda key: (metrics.index(key[0]), is_baseline(one[key])))
    ids, here, there = _shared(first, second)
    found = []
    for key in shared:
        scores = first.values[one[key]["cell_id"]][here], second.values[two[key]["cell_id"]][there]
        kept = np.isfinite(scores[0]) & np.isfinite(scores[1])
        found.append(
            Pair(
                explainer=names.text(one[key], "explainer"),
                metric=names.text(one[key], "metric"),
                baseline=is_baseline(one[key]),
                higher_is_better=one[key]["higher_is_better"],
                cells=(one[key], two[key]),
                ids=[ids[index] for index in np.flatnonzero(kept)],
                first=scores[0][kept],
                second=scores[1][kept],
                low=np.nan,
                high=np.nan,
                unpaired=one[key]["n"] + two[key]["n"] - 2 * int(kept.sum()),
            )
        )
    return _with_intervals(found)


def _with_intervals(found: list[Pair]) -> list[Pair]:
    """Pairs of equal n are resampled together: the bootstrap's draws depend on n alone, and drawing is what costs."""
    ends: dict[int, tuple[float, float]] = {}
    for count in {len(pair.ids) for pair in found}:
        places = [place for place, pair in enumerate(found) if len(pair.ids) == count]
        columns = np.stack([found[place].second - found[place].first for place in places], axis=1)
        low, high = mean_intervals(columns)
        ends |= {place: (float(low[index]), float(high[index])) for index, place in enumerate(places)}
    return [replace(pair, low=ends[place][0], high=ends[place][1]) for place, pair in enumerate(found)]


def conflicts(first: RunData, second: RunData) -> list[dict]:
    """Cells of the same id whose scores differ, of the samples that both runs have: which, where, by how much."""
    theirs = {cell["cell_id"]: cell for cell in second.summary["cells"]}
    ids, here, there = _shared(first, second)
    alike = len(ids) == len(first.ids) == len(second.ids)
    found = []
    for cell in first.summary["cells"]:
        other = theirs.get(cell["cell_id"])
        if other is None:
            continue
        one, two = first.values[cell["cell_id"]][here], second.values[cell["cell_id"]][there]
        differing = np.flatnonzero(~same(one, two))
        whole = [np.nan if side["value"] is None else side["value"] for side in (cell, other)]
        if len(differing) == 0 and (not alike or same(*whole)):
            continue
        gaps = np.abs(one - two)[differing]
        worst = differing[int(np.argmax(np.where(np.isnan(gaps), np.inf, gaps)))] if len(differing) else None
        found.append(
            {
                "cell_id": cell["cell_id"],
                "explainer": cell["explainer_text"],
                "metric": cell["metric_text"],
                "samples": len(differing),
                "of": len(ids),
                "values": [cell["value"], other["value"]],
                "n": [cell["n"], other["n"]],
                "largest": None
                if worst is None
                else {"image_id": ids[worst], "first": _known(float(one[worst])), "second": _known(float(two[worst]))},
            }
        )
    return found


@dataclass(frozen=True)
class MergedRuns:
    """Runs that share cells and agree on them, as one; `members` are their numbers, counted from 1."""

    members: list[int]
    runs: list[RunData]
    data: RunData

    @property
    def name(self) -> str:
        return f"Run {self.members[0]}" if len(self.members) == 1 else "Runs " + " + ".join(map(str, self.members))


@dataclass(frozen=True)
class Comparison:
    """Several runs: what is shown once, what contradicts, and the first against each other one."""

    groups: list[MergedRuns]
    conflicts: list[dict]  # as `conflicts` gives them, with `runs`, the numbers of the two

    @cached_property
    def differences(self) -> list[tuple[MergedRuns, str | None, list[Pair]]]:
        """Each later group with why it cannot be compared with the first one, or its pairs."""
        first, *rest = self.groups
        reasons = [why_not(first.data, group.data) for group in rest]
        return [
            (group, reason, [] if reason else pairs(first.data, group.data))
            for group, reason in zip(rest, reasons, strict=True)
        ]

    def as_dict(self, folders: Sequence[str]) -> dict:
        """Plain data; `folders` are the names of the runs."""

        def named(numbers: list[int]) -> list[str]:
            return [folders[number - 1] for number in numbers]

        return {
            "merged": [named(group.members) for group in self.groups],
            "conflicts": [conflict | {"runs": named(conflict["runs"])} for conflict in self.conflicts],
            "differences": [
                {
                    "first": named(self.groups[0].members),
                    "second": named(group.members),
                    "why_not": reason,
                    "pairs": [pair.as_dict() for pair in found],
                }
                for group, reason, found in self.differences
            ],
        }


def compare(runs: Sequence[RunData]) -> Comparison:
    """Runs that share a cell and contradict each other in none become one; the others stay beside each other."""
    together: list[list[int]] = []
    contradictions: list[dict] = []
    conflicting: set[tuple[int, int]] = set()
    for number, run in enumerate(runs):
        for before in range(number):
            if found := conflicts(runs[before], run):
                conflicting.add((before, number))
                contradictions += [conflict | {"runs": [before + 1, number + 1]} for conflict in found]
        compatible = [
            group
            for group in together
            if any(run.cell_ids & runs[member].cell_ids for member in group)
            and not any((member, number) in conflicting for member in group)
        ]
        joined: list[int] = []
        for group in compatible:  # a run may be what connects two that share nothing with each other
            if not any((min(a, b), max(a, b)) in conflicting for a in group for b in joined):
                joined += group
                together.remove(group)
        together.append(sorted([*joined, number]))
    groups = sorted(together)
    home = {number + 1: place for place, group in enumerate(groups) for number in group}
    # Runs that became one say the same, so one of them speaks for all.
    once = {(one["cell_id"], *(home[number] for number in one["runs"])): one for one in reversed(contradictions)}
    return Comparison(
        [
            MergedRuns([member + 1 for member in group], own, merged(own))
            for group in groups
            for own in [[runs[member] for member in group]]
        ],
        list(once.values())[::-1],
    )


def merged(runs: list[RunData]) -> RunData:
    """Runs that agree as one: each cell once, from the run with the most samples; of equal ones, the first."""
    if len(runs) == 1:
        return runs[0]
    ordered = sorted(runs, key=lambda run: (-run.summary["dataset"]["used"], -len(run.summary["cells"])))
    base = ordered[0]
    ids = list(dict.fromkeys(image_id for run in ordered for image_id in run.ids))
    place = {image_id: index for index, image_id in enumerate(ids)}
    cells: dict[str, dict] = {}
    values: dict[str, np.ndarray] = {}
    for run in ordered:
        where = [place[image_id] for image_id in run.ids]
        for cell in run.summary["cells"]:
            if cell["cell_id"] not in cells:
                cells[cell["cell_id"]] = cell | {"computed": run.computed}
                values[cell["cell_id"]] = np.full(len(ids), np.nan)
                values[cell["cell_id"]][where] = run.values[cell["cell_id"]]
    commands = dict.fromkeys(run.summary["command"] for run in runs)
    summary = base.summary | {"cells": list(cells.values()), "command": "\n".join(commands)}
    if any("faults" in run.summary for run in runs):
        left_out: Counter = sum((Counter(cell["left_out"]) for cell in cells.values()), Counter())
        summary["faults"] = {why: times for why, times in sorted(left_out.items()) if not is_expected(why)}
    if halved := [run.summary["halved_chunks"] for run in runs if "halved_chunks" in run.summary]:
        summary["halved_chunks"] = sum(halved)
    seconds: dict[str, float] = {}
    for run in reversed(ordered):
        seconds |= run.timings.get("explainers", {})
    shown = next((run for run in ordered if run.examples), base)
    return RunData(
        base.folder, summary, base.timings | {"explainers": seconds}, ids, values, shown.examples, shown.samples
    )


def lines(comparison: Comparison, folders: Sequence[str]) -> list[str]:
    """A comparison as text: what became one, what contradicts, and each difference that is told apart."""
    told = comparison.as_dict(folders)
    said = [f"{' and '.join(group)} agree on the cells they share" for group in told["merged"] if len(group) > 1]
    for conflict in told["conflicts"]:
        said.append(
            f"conflict: {conflict['explainer']} by {conflict['metric']} ({conflict['cell_id']}) differs between "
            f"{' and '.join(conflict['runs'])} on {conflict['samples']} of {conflict['of']} samples"
        )
    for one, (_, _, found) in zip(told["differences"], comparison.differences, strict=True):
        between = f"{' + '.join(one['second'])} minus {' + '.join(one['first'])}"
        if one["why_not"]:
            said.append(f"{between}: not compared, {one['why_not']}")
            continue
        told_apart = [pair for pair in found if pair.standing]
        said.append(f"{between}: {len(told_apart)} of {len(found)} mean differences are told apart from zero")
        said += [
            f"  {pair.explainer} by {pair.metric}: {pair.mean:+.3f} [{pair.low:+.3f}, {pair.high:+.3f}], "
            f"{'better' if pair.standing > 0 else 'worse'}, n = {len(pair.ids)}"
            for pair in told_apart
        ]
    return [*said, ""] if said else []
