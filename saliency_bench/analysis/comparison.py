"""Several runs: those that agree on the cells they share become one; the first is compared with each other one."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from saliency_bench.analysis.differences import Conflict, Pair, conflicts, pairs, why_not
from saliency_bench.results.cell import CellResult
from saliency_bench.results.run_folder import RunData
from saliency_bench.results.summary import faults_of


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
class RunConflict(Conflict):
    """A conflict between two runs, by their numbers, counted from 1."""

    runs: tuple[int, int]


@dataclass(frozen=True)
class RunDifference:
    """Merged runs against the first ones: why they cannot be compared, or the pairs that both have."""

    merged: MergedRuns
    reason: str | None
    pairs: list[Pair]


@dataclass(frozen=True)
class Comparison:
    """Several runs: each cell once, the contradictions, and the first against each other one."""

    merged: list[MergedRuns]
    conflicts: list[RunConflict]

    @cached_property
    def differences(self) -> list[RunDifference]:
        first, *others = self.merged
        reasons = [why_not(first.data, other.data) for other in others]
        return [
            RunDifference(other, reason, [] if reason else pairs(first.data, other.data))
            for other, reason in zip(others, reasons, strict=True)
        ]

    def as_dict(self, folders: Sequence[str]) -> dict:
        """Plain data; `folders` are the names of the runs."""

        def named(numbers: Sequence[int]) -> list[str]:
            return [folders[number - 1] for number in numbers]

        return {
            "merged": [named(merged.members) for merged in self.merged],
            "conflicts": [conflict.as_dict() | {"runs": named(conflict.runs)} for conflict in self.conflicts],
            "differences": [
                {
                    "first": named(self.merged[0].members),
                    "second": named(difference.merged.members),
                    "why_not": difference.reason,
                    "pairs": [pair.as_dict() for pair in difference.pairs],
                }
                for difference in self.differences
            ],
        }


def compare_runs(runs: Sequence[RunData]) -> Comparison:
    """Runs that share a cell and contradict each other in none become one; the others are shown side by side."""
    contradictions = [
        RunConflict(**vars(conflict), runs=(first + 1, second + 1))
        for second in range(len(runs))
        for first in range(second)
        for conflict in conflicts(runs[first], runs[second])
    ]
    conflicting = {frozenset(number - 1 for number in conflict.runs) for conflict in contradictions}
    clusters = _clusters(runs, conflicting)
    cluster_of = {index + 1: cluster for cluster, indices in enumerate(clusters) for index in indices}
    # Runs that became one agree, so one of them speaks for all.
    once = {
        (conflict.cell_id, *(cluster_of[number] for number in conflict.runs)): conflict
        for conflict in reversed(contradictions)
    }
    merged = [
        MergedRuns([index + 1 for index in indices], own, merge_runs(own))
        for indices in clusters
        for own in [[runs[index] for index in indices]]
    ]
    return Comparison(merged, list(once.values())[::-1])


def _clusters(runs: Sequence[RunData], conflicting: set[frozenset[int]]) -> list[list[int]]:
    """The indices of runs that become one, in order."""
    clusters: list[list[int]] = []
    for index, run in enumerate(runs):
        compatible = [
            cluster
            for cluster in clusters
            if any(run.cell_ids & runs[other].cell_ids for other in cluster)
            and not any(frozenset((other, index)) in conflicting for other in cluster)
        ]
        joined: list[int] = []
        for cluster in compatible:  # a run may connect two that share nothing with each other
            if not any(frozenset((first, second)) in conflicting for first in cluster for second in joined):
                joined += cluster
                clusters.remove(cluster)
        clusters.append(sorted([*joined, index]))
    return sorted(clusters)


def merge_runs(runs: list[RunData]) -> RunData:
    """Runs that agree as one: each cell once, from the run with the most samples; of equal ones, the first."""
    if len(runs) == 1:
        return runs[0]
    ordered = sorted(runs, key=lambda run: (-run.summary["dataset"]["used"], -len(run.cells)))
    ids = list(dict.fromkeys(image_id for run in ordered for image_id in run.ids))
    index_of = {image_id: index for index, image_id in enumerate(ids)}
    cells: dict[str, CellResult] = {}
    values: dict[str, np.ndarray] = {}
    explained: dict[str, int] = {}
    for run in ordered:
        indices = [index_of[image_id] for image_id in run.ids]
        for cell in run.cells:
            if cell.cell_id not in cells:
                cells[cell.cell_id] = cell
                explained[cell.cell_id] = run.samples_explained
                values[cell.cell_id] = np.full(len(ids), np.nan)
                values[cell.cell_id][indices] = run.values[cell.cell_id]
    seconds: dict[str, float] = {}
    for run in reversed(ordered):
        seconds |= run.timings.get("explainers", {})
    base = ordered[0]
    with_pictures = next((run for run in ordered if run.examples), base)
    return RunData(
        base.folder,
        list(cells.values()),
        ids,
        values,
        base.summary | _merged_facts(runs, list(cells.values())),
        base.timings | {"explainers": seconds},
        with_pictures.examples,
        with_pictures.samples,
        explained,
    )


def _merged_facts(runs: list[RunData], cells: list[CellResult]) -> dict:
    """What the summary of several runs as one says differently from that of each."""
    return {
        "command": "\n".join(dict.fromkeys(run.summary["command"] for run in runs)),
        "faults": faults_of(cells),
        "halved_chunks": sum(run.summary["halved_chunks"] for run in runs),
    }


def lines(comparison: Comparison, folders: Sequence[str]) -> list[str]:
    """A comparison as text: what became one, what contradicts, and each significant difference."""

    def named(numbers: Sequence[int], conjunction: str) -> str:
        return conjunction.join(folders[number - 1] for number in numbers)

    text = [
        f"{named(merged.members, ' and ')} agree on all cells and samples they share"
        for merged in comparison.merged
        if len(merged.members) > 1
    ]
    for conflict in comparison.conflicts:
        text.append(
            f"conflict: {conflict.explainer} by {conflict.metric} ({conflict.cell_id}) differs between "
            f"{named(conflict.runs, ' and ')} on {conflict.samples} of {conflict.of} samples"
        )
    first = named(comparison.merged[0].members, " + ")
    for difference in comparison.differences:
        text += _difference_lines(difference, f"{named(difference.merged.members, ' + ')} minus {first}")
    return [*text, ""] if text else []


def _difference_lines(difference: RunDifference, title: str) -> list[str]:
    if difference.reason:
        return [f"{title}: not compared, {difference.reason}"]
    significant = [pair for pair in difference.pairs if pair.direction]
    return [
        f"{title}: {len(significant)} of {len(difference.pairs)} mean differences differ significantly from zero",
        *(
            f"  {pair.explainer} by {pair.metric}: {pair.mean:+.3f} [{pair.low:+.3f}, {pair.high:+.3f}], "
            f"{'better' if pair.direction > 0 else 'worse'}, n = {len(pair.ids)}"
            for pair in significant
        ),
    ]
