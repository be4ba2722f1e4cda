"""Compare several runs. Compatible runs are merged and ranked again; all others are compared with the first run.

Runs are compatible if their identities are equal (`read/identity.py`), so that their cells differ only in explainer and
metric, and if they have equal scores in the cells that they share.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from saliency_bench.read.analysis.differences import Conflict, RunPair, conflicts, pairs, why_not
from saliency_bench.read.cell import RARE, CellResult, as_json
from saliency_bench.read.identity import PARTNERS
from saliency_bench.read.manifest import differing_settings
from saliency_bench.read.run_folder import CellScores, RunFiles
from saliency_bench.read.statistics.ranking import NOT_TESTED, TOO_FEW_TO_TELL, compare
from saliency_bench.read.summary import faults_of
from saliency_bench.spec import one_after_the_other

if TYPE_CHECKING:
    from saliency_bench.read.finished_run import Run

QUESTION = ("target", "groups", "precision", "seed")  # settings of a summary on which scores depend


@dataclass(frozen=True)
class RunConflict(Conflict):
    """A conflict between two runs. `runs` are the numbers of the runs, counted from 1."""

    runs: tuple[int, int]


@dataclass(frozen=True)
class RunDifference:
    """Difference between a single or merged run and the first run.

    Attributes:
        run: The run.
        settings: Settings that differ between the two runs and prevent merging.
        reason: Reason why the runs cannot be compared sample by sample; None if they can be compared.
        pairs: The cells that both runs have.
    """

    run: "Run"
    settings: list[str]
    reason: str | None
    pairs: list[RunPair]


@dataclass(frozen=True)
class Comparison:
    """Comparison of several runs.

    Attributes:
        runs: All runs, in the order in which they were given.
        merged: The runs after merging the compatible ones.
        conflicts: Cells that have different scores in two runs.
    """

    runs: list["Run"]
    merged: list["Run"]
    conflicts: list[RunConflict]

    def numbers(self, merged: "Run") -> list[int]:
        """Return the numbers of the runs, counted from 1, that were merged into a run."""
        members = merged.members
        return [number for number, run in enumerate(self.runs, start=1) if any(run is member for member in members)]

    @cached_property
    def differences(self) -> list[RunDifference]:
        """Return the difference between the first run and each other run after merging."""
        first, *others = self.merged
        reasons = [why_not(first, other) for other in others]
        return [
            RunDifference(other, differing_question(first, other), reason, [] if reason else pairs(first, other))
            for other, reason in zip(others, reasons, strict=True)
        ]

    def as_dict(self, folders: Sequence[str]) -> dict:
        """Return plain data; `folders` are the names of the runs."""

        def named(numbers: Sequence[int]) -> list[str]:
            return [folders[number - 1] for number in numbers]

        return {
            "merged": [named(self.numbers(run)) for run in self.merged],
            "results": [run.summary for run in self.merged],
            "conflicts": [conflict.as_dict() | {"runs": named(conflict.runs)} for conflict in self.conflicts],
            "differences": [
                {
                    "first": named(self.numbers(self.merged[0])),
                    "second": named(self.numbers(difference.run)),
                    "settings": difference.settings,
                    "why_not": difference.reason,
                    "pairs": [pair.as_dict() for pair in difference.pairs],
                }
                for difference in self.differences
            ],
        }


def compare_runs(runs: Sequence["Run"]) -> Comparison:
    """Merge compatible runs. Runs with different settings or conflicting cells stay separate."""
    contradictions = [
        RunConflict(**vars(conflict), runs=(first + 1, second + 1))
        for second in range(len(runs))
        for first in range(second)
        for conflict in conflicts(*((runs[index].cells, runs[index].scores) for index in (first, second)))
    ]
    conflicting = {frozenset(number - 1 for number in conflict.runs) for conflict in contradictions}
    clusters = _clusters(runs, conflicting)
    cluster_of = {index + 1: cluster for cluster, indices in enumerate(clusters) for index in indices}
    # Merged runs have equal scores, so one conflict represents all runs of a group.
    once = {
        (conflict.cell_id, *(cluster_of[number] for number in conflict.runs)): conflict
        for conflict in reversed(contradictions)
    }
    merged = [merge_runs([runs[index] for index in indices]) for indices in clusters]
    return Comparison(list(runs), merged, list(once.values())[::-1])


def _clusters(runs: Sequence["Run"], conflicting: set[frozenset[int]]) -> list[list[int]]:
    """Return groups of indices of runs, in order. The runs of a group can be merged."""
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


def _related(first: "Run", second: "Run") -> bool:
    """Return whether two runs without known differences share a cell, or both have a known identity."""
    return bool(first.origins.keys() & second.origins.keys()) or None not in (first.identity, second.identity)


def differing_question(first: "Run", second: "Run") -> list[str]:
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
    return settings or ["values of a setting that is recorded only in the cell ids"] * named_alike


def largest_first(runs: Iterable["Run"]) -> list["Run"]:
    """Return runs sorted by their number of samples, then by their number of cells, largest first."""
    return sorted(runs, key=lambda run: (-run.summary["dataset"]["used"], -len(run.cells)))


def merge_runs(runs: Sequence["Run"]) -> "Run":
    """Merge compatible runs. If several runs have the same cell, use the run with the most samples.

    All explainers are compared pairwise again on their common samples, and all explainers are ranked together.
    """
    if len(runs) == 1:
        return runs[0]
    ordered = largest_first(runs)
    merged = replace(ordered[0], runs=tuple(runs))
    cells = {cell.cell_id: cell for run in ordered[::-1] for cell in run.cells}
    cells = {cell_id: cells[cell_id] for cell_id in dict.fromkeys(cell.cell_id for run in runs for cell in run.cells)}
    scores = _merged_scores(ordered, {cell_id: merged.origins[cell_id] for cell_id in cells})
    contrasts, standings = compare(list(cells.values()), scores.values, scores.codes(), merged.seed, scores.parts)
    ranked = [cell.model_copy(update=standings[cell.cell_id].as_dict()) for cell in cells.values()]
    # For an explainer that occurs in two runs, the time in the run with more samples is used.
    seconds = {key: time for run in ordered[::-1] for key, time in run.timings.get("explainers", {}).items()}
    with_pictures = next((run for run in ordered if run.examples), merged)
    return replace(
        merged,
        summary=merged.summary | _merged_summary(runs, ranked) | {"comparisons": as_json(contrasts)},
        files=RunFiles(
            scores, merged.timings | {"explainers": seconds}, with_pictures.examples, with_pictures.samples,
            merged.identity,
        ),
    )  # fmt: skip


def _merged_scores(runs: Sequence["Run"], origins: Mapping[str, "Run"]) -> CellScores:
    """Return the scores of each cell from its run in `origins`, over the images of all runs."""
    groups: dict[str, str | None] = {}
    for run in runs:
        for image_id, group in zip(run.scores.ids, run.scores.groups, strict=True):
            groups.setdefault(image_id, group)
    index_of = {image_id: index for index, image_id in enumerate(groups)}
    values: dict[str, np.ndarray] = {}
    parts: dict[str, np.ndarray] = {}
    for cell_id, run in origins.items():
        indices = [index_of[image_id] for image_id in run.scores.ids]
        values[cell_id] = np.full(len(index_of), np.nan)
        values[cell_id][indices] = run.scores.values[cell_id]
        if (columns := run.scores.parts.get(cell_id)) is not None:
            parts[cell_id] = np.full((len(index_of), columns.shape[1]), np.nan)
            parts[cell_id][indices] = columns
    return CellScores(list(groups), list(groups.values()), values, parts)


def _merged_summary(runs: Sequence["Run"], cells: list[CellResult]) -> dict:
    return {
        "cells": as_json(cells),
        "command": one_after_the_other(run.summary["command"] for run in runs),
        "faults": faults_of(cells),
        "maps": {key: about for run in runs for key, about in run.summary.get("maps", {}).items()},
        "reliability": {key: about for run in runs for key, about in run.summary.get("reliability", {}).items()},
        "halved_chunks": sum(run.summary["halved_chunks"] for run in runs),
    }


def merged_words(merged: "Run") -> str:
    """Describe why runs are merged."""
    uses = Counter(cell.cell_id for run in merged.runs for cell in run.cells)
    shared = sum(times > 1 for times in uses.values())
    reason = f"agree on the {shared} cells they share" if shared else "share no cell"
    return f"{reason}; they have the same settings, so they are merged and their explainers are ranked together"


def lines(comparison: Comparison, folders: Sequence[str]) -> list[str]:
    """Return a comparison as text: merged runs, conflicts, and each significant difference."""

    def named(numbers: Sequence[int], conjunction: str) -> str:
        return conjunction.join(folders[number - 1] for number in numbers)

    text = []
    for merged in filter(lambda run: run.runs, comparison.merged):
        numbers = comparison.numbers(merged)
        text.append(f"{named(numbers, ' and ')} {merged_words(merged)}")
        samples = [run.summary["dataset"]["used"] for run in merged.runs]
        if len(set(samples)) > 1:
            sizes = [f"{folders[number - 1]} covers {used} samples"
                     for number, used in zip(numbers, samples, strict=True)]  # fmt: skip
            text.append(f"{', '.join(sizes)}; two explainers are compared on their common samples")
    for conflict in comparison.conflicts:
        text.append(
            f"conflict: {conflict.explainer} by {conflict.metric} ({conflict.cell_id}) differs between "
            f"{named(conflict.runs, ' and ')} on {conflict.samples} of {conflict.common} samples"
        )
    first = named(comparison.numbers(comparison.merged[0]), " + ")
    for difference in comparison.differences:
        name = named(comparison.numbers(difference.run), " + ")
        if difference.settings and not difference.reason:
            text.append(f"{name} and {first} are not merged: different {', different '.join(difference.settings)}")
        text += _difference_lines(difference, f"{name} minus {first}")
    return [*text, ""] if text else []


def _difference_lines(difference: RunDifference, title: str) -> list[str]:
    """Return the significant differences between merged runs and the first, as text."""
    if difference.reason:
        return [f"{title}: not compared, because {difference.reason}"]
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
