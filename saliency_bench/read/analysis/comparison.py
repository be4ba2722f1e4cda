"""Compare several runs: compatible runs are merged and ranked again; all others are compared with the first run.

Runs are compatible if their identities are equal (`read/identity.py`), so that their cells differ only in explainer and
metric, and if they have equal scores in the cells that they share.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from saliency_bench.read.analysis.differences import Conflict, RunPair, conflicts, pairs, why_not
from saliency_bench.read.cell import RARE, CellResult, as_json
from saliency_bench.read.identity import PARTNERS
from saliency_bench.read.manifest import differing_settings
from saliency_bench.read.run_folder import RunData
from saliency_bench.read.statistics.clusters import cluster_codes
from saliency_bench.read.statistics.ranking import NOT_TESTED, TOO_FEW_TO_TELL, compare
from saliency_bench.read.summary import faults_of
from saliency_bench.spec import one_after_the_other

QUESTION = ("target", "groups", "precision", "seed")  # settings of a summary on which scores depend


@dataclass(frozen=True)
class MergedRuns:
    """Compatible runs that are merged into one. `members` are the numbers of the runs, counted from 1."""

    members: list[int]
    runs: list[RunData]
    data: RunData

    @property
    def shared(self) -> int:
        """Return the number of cells that occur in more than one run."""
        return sum(times > 1 for times in Counter(cell_id for run in self.runs for cell_id in run.cell_ids).values())

    @property
    def samples(self) -> list[int]:
        """Return the number of samples that each run covers."""
        return [run.summary["dataset"]["used"] for run in self.runs]


@dataclass(frozen=True)
class RunConflict(Conflict):
    """A conflict between two runs. `runs` are the numbers of the runs, counted from 1."""

    runs: tuple[int, int]


@dataclass(frozen=True)
class RunDifference:
    """Difference between a group of merged runs and the first group.

    Attributes:
        merged: The merged runs of the group.
        settings: Settings that differ between the two groups and prevent merging.
        reason: Reason why the groups cannot be compared sample by sample; None if they can be compared.
        pairs: The cells that both groups have.
    """

    merged: MergedRuns
    settings: list[str]
    reason: str | None
    pairs: list[RunPair]


@dataclass(frozen=True)
class Comparison:
    """Comparison of several runs: the merged runs, conflicting cells, and the differences from the first run."""

    merged: list[MergedRuns]
    conflicts: list[RunConflict]

    @cached_property
    def differences(self) -> list[RunDifference]:
        """Return the difference between the first group of merged runs and each other group."""
        first, *others = self.merged
        reasons = [why_not(first.data, other.data) for other in others]
        return [
            RunDifference(
                other,
                differing_question(first.data, other.data),
                reason,
                [] if reason else pairs(first.data, other.data),
            )
            for other, reason in zip(others, reasons, strict=True)
        ]

    def as_dict(self, folders: Sequence[str]) -> dict:
        """Return plain data; `folders` are the names of the runs."""

        def named(numbers: Sequence[int]) -> list[str]:
            return [folders[number - 1] for number in numbers]

        return {
            "merged": [named(merged.members) for merged in self.merged],
            "results": [merged.data.as_json() for merged in self.merged],
            "conflicts": [conflict.as_dict() | {"runs": named(conflict.runs)} for conflict in self.conflicts],
            "differences": [
                {
                    "first": named(self.merged[0].members),
                    "second": named(difference.merged.members),
                    "settings": difference.settings,
                    "why_not": difference.reason,
                    "pairs": [pair.as_dict() for pair in difference.pairs],
                }
                for difference in self.differences
            ],
        }


def compare_runs(runs: Sequence[RunData]) -> Comparison:
    """Merge compatible runs. Runs with different settings or conflicting cells stay separate."""
    contradictions = [
        RunConflict(**vars(conflict), runs=(first + 1, second + 1))
        for second in range(len(runs))
        for first in range(second)
        for conflict in conflicts(runs[first], runs[second])
    ]
    conflicting = {frozenset(number - 1 for number in conflict.runs) for conflict in contradictions}
    clusters = _clusters(runs, conflicting)
    cluster_of = {index + 1: cluster for cluster, indices in enumerate(clusters) for index in indices}
    # Merged runs have equal scores, so one conflict represents all runs of a group.
    once = {
        (conflict.cell_id, *(cluster_of[number] for number in conflict.runs)): conflict
        for conflict in reversed(contradictions)
    }
    merged = [
        MergedRuns([index + 1 for index in indices], members, merge_runs(members))
        for indices in clusters
        for members in [[runs[index] for index in indices]]
    ]
    return Comparison(merged, list(once.values())[::-1])


def _clusters(runs: Sequence[RunData], conflicting: set[frozenset[int]]) -> list[list[int]]:
    """Return the indices of the runs in order, grouped into runs to merge."""
    clusters: list[list[int]] = []
    for index, run in enumerate(runs):
        compatible = [
            cluster
            for cluster in clusters
            if any(_related(run, runs[other]) for other in cluster)
            and not any(frozenset((other, index)) in conflicting for other in cluster)
            and not any(differing_question(run, runs[other]) for other in cluster)
        ]
        joined: list[int] = []
        for cluster in compatible:  # a run may connect two clusters that share no cell
            if not any(frozenset((first, second)) in conflicting for first in cluster for second in joined):
                joined += cluster
                clusters.remove(cluster)
        clusters.append(sorted([*joined, index]))
    return sorted(clusters)


def _related(first: RunData, second: RunData) -> bool:
    """Return whether two runs without known differences share a cell, or both have a known identity."""
    return bool(first.cell_ids & second.cell_ids) or None not in (first.identity, second.identity)


def differing_question(first: RunData, second: RunData) -> list[str]:
    """Return the settings in which two runs differ, other than explainers and metrics."""
    if first.identity is not None and second.identity is not None:
        settings = differing_settings(first.identity, second.identity)
    else:
        settings = [name for name in QUESTION if first.summary.get(name) != second.summary.get(name)]
        settings += ["model"] * (first.summary["model"]["digest"] != second.summary["model"]["digest"])
        settings += ["dataset"] * (why_not(first, second) is not None)
    plans = {cell.metric_id: cell.asked_for.get(PARTNERS) for cell in first.cells}
    others = {cell.asked_for.get(PARTNERS) != plans.get(cell.metric_id, cell.asked_for.get(PARTNERS))
              for cell in second.cells}  # fmt: skip
    settings += ["choice of partners"] * any(others)
    cells = {(cell.explainer_id, cell.metric_id): cell.cell_id for cell in first.cells}
    named_alike = any(
        cells.get((cell.explainer_id, cell.metric_id), cell.cell_id) != cell.cell_id for cell in second.cells
    )
    return settings or ["setting that is visible only in the cell ids"] * named_alike


def merge_runs(runs: list[RunData]) -> RunData:
    """Merge compatible runs. If several runs have the same cell, use the run with the most samples.

    Every pair of explainers is compared again on the samples that both explainers have, and all explainers are ranked
    together.
    """
    if len(runs) == 1:
        return runs[0]
    ordered = sorted(runs, key=lambda run: (-run.summary["dataset"]["used"], -len(run.cells)))
    ids = list(dict.fromkeys(image_id for run in ordered for image_id in run.ids))
    index_of = {image_id: index for index, image_id in enumerate(ids)}
    cells: dict[str, CellResult] = {}
    values: dict[str, np.ndarray] = {}
    parts: dict[str, np.ndarray] = {}
    explained: dict[str, int] = {}
    folders: dict[str, Path] = {}
    for run in ordered:
        indices = [index_of[image_id] for image_id in run.ids]
        for cell in run.cells:
            if cell.cell_id not in cells:
                cells[cell.cell_id] = cell
                explained[cell.cell_id] = run.samples_explained
                folders[cell.cell_id] = run.folder
                values[cell.cell_id] = np.full(len(ids), np.nan)
                values[cell.cell_id][indices] = run.values[cell.cell_id]
                if (columns := run.parts.get(cell.cell_id)) is not None:
                    parts[cell.cell_id] = np.full((len(ids), columns.shape[1]), np.nan)
                    parts[cell.cell_id][indices] = columns
    seconds: dict[str, float] = {}
    for run in reversed(ordered):  # for an explainer of two runs, the run with more samples is used
        seconds |= run.timings.get("explainers", {})
    base = ordered[0]
    named = [cells[cell_id] for cell_id in dict.fromkeys(cell.cell_id for run in runs for cell in run.cells)]
    groups = {image_id: group for run in reversed(ordered) for image_id, group in zip(run.ids, run.groups, strict=True)}
    of_ids = [groups[image_id] for image_id in ids]
    contrasts, standings = compare(named, values, cluster_codes(ids, of_ids), base.summary["seed"], parts)
    merged = [cell.model_copy(update=standings[cell.cell_id].as_dict()) for cell in named]
    with_pictures = next((run for run in ordered if run.examples), base)
    return RunData(
        base.folder,
        merged,
        ids,
        of_ids,
        values,
        base.summary | _merged_facts(runs, merged) | {"comparisons": as_json(contrasts)},
        base.timings | {"explainers": seconds},
        with_pictures.examples,
        with_pictures.samples,
        explained,
        base.identity,
        parts,
        folders,
    )


def _merged_facts(runs: list[RunData], cells: list[CellResult]) -> dict:
    return {
        "command": one_after_the_other(run.summary["command"] for run in runs),
        "faults": faults_of(cells),
        "maps": {key: about for run in runs for key, about in run.summary.get("maps", {}).items()},
        "reliability": {key: about for run in runs for key, about in run.summary.get("reliability", {}).items()},
        "halved_chunks": sum(run.summary["halved_chunks"] for run in runs),
    }


def merged_words(merged: MergedRuns) -> str:
    """Describe why runs are merged."""
    shared = f"agree on the {merged.shared} cells they share" if merged.shared else "share no cell"
    return f"{shared}; they have the same settings, so they are merged and their explainers are ranked together"


def lines(comparison: Comparison, folders: Sequence[str]) -> list[str]:
    """Return a comparison as text: merged runs, conflicts, and each significant difference."""

    def named(numbers: Sequence[int], conjunction: str) -> str:
        return conjunction.join(folders[number - 1] for number in numbers)

    text = []
    for merged in comparison.merged:
        if len(merged.members) > 1:
            text.append(f"{named(merged.members, ' and ')} {merged_words(merged)}")
            if len(set(merged.samples)) > 1:
                covered = [f"{folders[number - 1]} covers {used} samples" for number, used
                           in zip(merged.members, merged.samples, strict=True)]  # fmt: skip
                text.append(f"{', '.join(covered)}; two explainers are compared on the samples that both have")
    for conflict in comparison.conflicts:
        text.append(
            f"conflict: {conflict.explainer} by {conflict.metric} ({conflict.cell_id}) differs between "
            f"{named(conflict.runs, ' and ')} on {conflict.samples} of {conflict.common} samples"
        )
    first = named(comparison.merged[0].members, " + ")
    for difference in comparison.differences:
        if difference.settings and not difference.reason:
            both = f"{named(difference.merged.members, ' + ')} and {first}"
            text.append(f"{both} are not merged: different {', different '.join(difference.settings)}")
        text += _difference_lines(difference, f"{named(difference.merged.members, ' + ')} minus {first}")
    return [*text, ""] if text else []


def _difference_lines(difference: RunDifference, title: str) -> list[str]:
    """Return the significant differences between merged runs and the first, as text."""
    if difference.reason:
        return [f"{title}: not compared, {difference.reason}"]
    significant = [pair for pair in difference.pairs if pair.direction]
    few = sum(pair.p is None and pair.is_tested for pair in difference.pairs)
    aggregates = sum(not pair.is_tested for pair in difference.pairs)
    undecided = f"; {TOO_FEW_TO_TELL} for {few}" if few else ""
    undecided += f"; {aggregates} {NOT_TESTED}" if aggregates else ""
    return [
        f"{title}: {len(significant)} of {len(difference.pairs)} mean differences are significant{undecided}",
        *(
            f"  {pair.explainer} by {pair.metric}: {pair.mean:+.3f} [{pair.low:+.3f}, {pair.high:+.3f}], "
            f"{pair.word}, n = {len(pair.ids)}" + f", {RARE}" * pair.rare
            for pair in significant
        ),
    ]
