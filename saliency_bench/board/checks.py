"""Check a submission against its records and against the package's metrics and explainers.

A submission is rejected if one of its numbers does not follow from its records. For the package's own explainers and
metrics, the package (not the submission) determines the displayed name, the direction, the range, and whether an
explainer is a baseline.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from saliency_bench import options, registry
from saliency_bench.board.recorded import Recorded, read_recorded
from saliency_bench.board.submission_schema import RECORDS, RESULT, Result, read_result
from saliency_bench.bound_explainer import Explainer, registered_explainer
from saliency_bench.bound_metric import Metric, registered_metric
from saliency_bench.errors import UserError, one_line
from saliency_bench.read.analysis.differences import same
from saliency_bench.read.cell import CellKey, CellResult, PartResult, bounds, by_metric, with_version
from saliency_bench.read.identity import CellIds, Identity
from saliency_bench.read.statistics.intervals import check_range
from saliency_bench.read.statistics.ranking import aggregate_of, ranked
from saliency_bench.read.summary import Outcome, numbers_of, result_of
from saliency_bench.spec import PREDICTED_BY, TARGETS
from saliency_bench.target_weights import TargetRange
from saliency_bench.utils.hashing import hash_of

NUMBERS = ("value", "low", "high", "clusters")
COUNTS = ("left_out", "flat", "marked")
RANKS = ("rank", "unranked", "scored")
MOST_METHODS = 100  # maximum number of methods per metric in a submission, because all pairs are compared
LOADED = 1000  # size of the cache of explainers and metrics, which many rows of a board share


@dataclass(frozen=True)
class CheckedSubmission:
    """A submission that agrees with its records, from which `cells` are computed."""

    result: Result
    cells: list[CellResult]
    recorded: Recorded


def known_explainer(cell: CellKey) -> Explainer | None:
    """Return the package's explainer that matches the cell's explainer name, options and version, or None."""
    if cell.explainer not in _names("explainers"):
        return None
    try:
        explainer = _explainer(cell.explainer, chosen := json.dumps(cell.explainer_options, sort_keys=True))
    except UserError:  # unknown options, or an optional library is not installed
        return None
    return explainer if explainer.identity[1:] == (chosen, cell.explainer_version) else None


def known_metric(cell: CellKey) -> Metric | None:
    """Return the package's metric that matches the cell's metric name, options and version, or None.

    Raises:
        UserError: This version of the metric does not accept these options.
    """
    if cell.metric not in _names("metrics"):
        return None
    try:
        metric = _metric(cell.metric, chosen := json.dumps(cell.metric_options, sort_keys=True))
    except UserError as error:
        if isinstance(error.__cause__, ModuleNotFoundError):  # an optional library that is not installed
            return None
        raise UserError(f"metric_options of cell {cell.cell_id}: {error}") from error
    return metric if metric.identity[1:] == (chosen, cell.metric_version) else None


def needs_masks(metric: Metric) -> bool:
    """Return whether a metric needs masks or other columns that a hidden split does not contain."""
    return "masks" in metric.inputs or bool(metric.declaration.columns)


@cache
def _names(kind: str) -> frozenset[str]:
    """Return the names of the package's explainers or metrics.

    The result is cached, because the package's files do not change while the process runs.
    """
    return frozenset(registry.names(kind))


@lru_cache(LOADED)
def _explainer(name: str, chosen: str) -> Explainer:
    """Load an explainer.

    `chosen` contains its options as JSON, because the arguments of a cached function must be hashable.
    """
    return registered_explainer(name, **json.loads(chosen))


@lru_cache(LOADED)
def _metric(name: str, chosen: str) -> Metric:
    return registered_metric(name, **json.loads(chosen))


def _derived_key(cell: CellResult, metric: Metric | None) -> CellKey:
    """Return a cell's key with the properties that the package declares for the explainer and the metric.

    Unknown explainers and metrics are displayed with their name and options. If the package has an explainer or metric
    with a similar name, the version is displayed too, so that readers can tell the two apart.
    """
    explainer = known_explainer(cell)
    about = {name: getattr(cell, name) for name in CellKey.model_fields}
    about |= {"explainer_id": hash_of(_versioned(cell)), "baseline": explainer is not None and explainer.baseline}
    about["explainer_text"] = _called(cell.explainer, cell.explainer_options, cell.explainer_version, explainer)
    about["metric_text"] = _called(cell.metric, cell.metric_options, cell.metric_version, metric)
    if metric is not None:
        about |= {"higher_is_better": metric.higher_is_better, "aggregate": metric.aggregate is not None}
        about["note"] = metric.declaration.note
    return CellKey(**about)


def _called(name: str, chosen: dict, version: int | str, item: Explainer | Metric | None) -> str:
    """Return the display name of an explainer or metric. `item` is the package's explainer or metric, if known."""
    if item is not None:
        return str(item)
    text = name + options.differing(sorted(chosen.items()), {})
    return one_line(with_version(text, version) if _plain(name) in _taken() else text)


@cache
def _taken() -> frozenset[str]:
    """Return the names of the package's explainers and metrics, normalised by `_plain`."""
    return frozenset(map(_plain, _names("explainers") | _names("metrics")))


def _plain(name: str) -> str:
    """Normalise a name. For example, "Grad-CAM" becomes "gradcam"."""
    return re.sub(r"[._-]", "", name.casefold())


def read_checked(folder: Path) -> CheckedSubmission:
    """Read and check the submission in a folder.

    If its content is invalid, raise a UserError that names the file and the field.
    """
    result = read_result(folder / RESULT)
    try:
        return checked(result, read_recorded(result, folder / RECORDS), folder / RECORDS)
    except (UserError, MemoryError):
        raise
    except Exception as error:  # untrusted numbers can make the statistics fail in unforeseen ways
        raise UserError(f"{folder / RESULT} cannot be checked: {one_line(error)}") from error


def checked(result: Result, recorded: Recorded, path: Path) -> CheckedSubmission:
    """Derive the cells of a result from the records and compare them with the submitted cells.

    Raises:
        UserError: A number in the result differs from the number computed from the records.
    """
    seed = result.setting.seed
    _check_target(result, path)
    keys, ids = [], CellIds(result.setting)
    for cell in result.cells:
        metric = _checked_metric(cell, ids, path)
        if (count := recorded.outcomes[cell.cell_id].count(cell.aggregate)) != cell.n:
            raise UserError(
                f"{path}: cell {cell.cell_id} has {count} numbers in the column `value`, but {RESULT} states "
                f"n = {cell.n}"
            )
        _check_scores(cell, metric, recorded.outcomes[cell.cell_id], path)
        keys.append(_derived_key(cell, metric))
    rivals = max(by_metric(keys), key=len)
    if len(rivals) > MOST_METHODS:
        raise UserError(
            f"{path.with_name(RESULT)} has {len(rivals)} methods for {rivals[0].metric_text}, more than the limit of "
            f"{MOST_METHODS} per metric"
        )
    parts = {key.cell_id: recorded.outcomes[key.cell_id].columns for key in keys if key.aggregate}
    standings = ranked(keys, recorded.values, recorded.codes, seed, parts)
    # `numbers_of` discards the parts after summarising them, but they are needed below and by readers of the records.
    all_parts = {cell_id: dict(outcome.parts) for cell_id, outcome in recorded.outcomes.items()}
    numbers = {
        cell_id: derived
        for rivals in by_metric(keys)
        for cell_id, derived in numbers_of(rivals, recorded.outcomes, recorded.codes, seed)
    }
    cells = []
    for key, stated in zip(keys, result.cells, strict=True):
        outcome = recorded.outcomes[key.cell_id]
        outcome.parts.update(all_parts[key.cell_id])
        derived = result_of(key, outcome, numbers[key.cell_id], stated.forward_passes, standings[key.cell_id])
        if key.aggregate and aggregate_of(key) is None:  # computed by a function that this package does not contain
            derived = derived.model_copy(update={name: getattr(stated, name) for name in (*NUMBERS, "n", "median")})
        _compare(derived, stated, path)
        cells.append(derived)
    return CheckedSubmission(result, cells, recorded)


def _check_target(result: Result, path: Path) -> None:
    """Raise UserError if the description of the target does not match the target rule in `setting`."""
    rule, words = result.setting.target.partition(" ")[0], result.target
    rules = (*TARGETS, PREDICTED_BY.rstrip(":"))
    stated = next((name for name in rules if words == name or words.startswith(f"{name}:")), None)
    if stated != (rule if rule in rules else None):
        raise UserError(f"{path.with_name(RESULT)}: target is {words}, but setting.target is {rule}")


def _compare(derived: CellResult, stated: CellResult, path: Path) -> None:
    """Raise UserError if a number, count or rank in `stated` differs from the value derived from the records."""
    where = f"cell {derived.cell_id}"
    _check_numbers((*NUMBERS, "median"), derived, stated, where, path)
    for name, part in derived.parts.items():
        if part.n != stated.parts[name].n:
            part_n = f"part {name} of {where} has {part.n} numbers"
            raise UserError(f"{path}: {part_n}, but {RESULT} states n = {stated.parts[name].n}")
        _check_numbers(NUMBERS, part, stated.parts[name], f"part {name} of {where}", path)
    for name in (*COUNTS, *RANKS):
        computed, claimed = getattr(derived, name), getattr(stated, name)
        if computed != claimed and not (name == "scored" and same(computed, claimed)):
            raise UserError(f"{path}: {name} of {where} is {computed}, but {RESULT} states {claimed}")


def _check_numbers(
    names: Iterable[str], derived: CellResult | PartResult, stated: CellResult | PartResult, where: str, path: Path
) -> None:
    """Raise UserError if a number in a cell or part differs from the derived number by more than a rounding error.

    The intervals in older submissions are not widened for rare extreme scores that a sample may have missed. The ends
    of these intervals are not compared, and the board displays the derived intervals instead.
    """
    widened = ("low", "high") if derived.rare and not stated.rare else ()
    for name in (name for name in names if name not in widened):
        computed, claimed = getattr(derived, name), getattr(stated, name)
        if not same(*(np.nan if number is None else number for number in (computed, claimed))):
            raise UserError(f"{path}: {name} of {where} is {_text(computed)}, but {RESULT} states {_text(claimed)}")


def _text(number: float | None) -> str:
    return "none" if number is None else f"{number:.6g}"


def _check_scores(cell: CellResult, metric: Metric | None, outcome: Outcome, path: Path) -> None:
    """Raise UserError if scores are outside their range or do not follow from their parts."""
    where = f"{path}: cell {cell.cell_id}"
    check_range(outcome.scores, cell.limits, where)
    for name, values in outcome.parts.items():
        check_range(values, cell.limits, f"{path}: part {name} of cell {cell.cell_id}")
    if metric is None:
        return
    if (metric.declaration.parts is None) != (not cell.parts):
        raise UserError(f"{where} has {'parts' if cell.parts else 'no parts'}, unlike its metric")
    if not cell.parts:
        return
    if (names := _part_names(metric)) and list(cell.parts) != names:
        raise UserError(
            f"{where} has the parts {', '.join(cell.parts)}, but its metric has the parts {', '.join(names)}"
        )
    columns = outcome.columns
    derived = np.full(len(columns), np.nan)  # an aggregate metric has no score per sample
    if metric.aggregate is None:
        derived = np.asarray(metric.reduced(columns), dtype=float)
    if len(wrong := np.flatnonzero(np.isfinite(outcome.scores) & ~same(derived, outcome.scores))):
        index = wrong[0]
        raise UserError(
            f"{where} has a score of {outcome.scores[index]:.6g}, but the score derived from its parts is "
            f"{derived[index]:.6g}"
        )


def _part_names(metric: Metric) -> list[str]:
    """Return the names of a metric's parts, or [] if they depend on the classifier, which is not available here."""
    try:
        return list(metric.parts(None))
    except UserError:
        return []


def _checked_metric(cell: CellResult, ids: CellIds, path: Path) -> Metric | None:
    """Return the package's metric for a cell, or None. Raise UserError if the cell contradicts the metric."""
    about = path.with_name(RESULT)
    try:
        metric = known_metric(cell)
    except UserError as error:
        raise UserError(f"{about}: {error}") from error
    if metric is None:
        return None
    where = f"of cell {cell.cell_id} ({metric})"
    if cell.higher_is_better != metric.higher_is_better:
        raise UserError(f"{about}: higher_is_better {where} must be {metric.higher_is_better}")
    if cell.aggregate != (is_aggregate := metric.aggregate is not None):
        raise UserError(f"{about}: aggregate {where} must be {is_aggregate}")
    expected = ids.id_of(_versioned(cell), metric.identity, metric.inputs, cell.asked_for)
    if cell.cell_id != expected:
        raise UserError(
            f"{about}: cell_id is {cell.cell_id}, but must be {expected} for this metric and these settings"
        )
    ranges = [bounds(metric.limits(target)) for target in _target_ranges(ids.identity)]
    if ranges and cell.range not in ranges:
        either = " or ".join(str(list(ends)) for ends in dict.fromkeys(ranges))
        raise UserError(
            f"{about}: range {where} must be {either}, not {list(cell.range)}; if the run is from an earlier version, "
            "run the same command again with the same --out to update the summary"
        )
    return metric


def _versioned(cell: CellKey) -> tuple[str, str, int | str]:
    """Return the name, options and version of a cell's explainer. Together, they identify the explainer."""
    return cell.explainer, _text_of(cell.explainer_options), cell.explainer_version


def _text_of(chosen: Mapping[str, Any]) -> str:
    return options.text(tuple(sorted(chosen.items())))


def _target_ranges(setting: Identity) -> list[TargetRange]:
    """Return the possible target ranges of a run, or [] if unknown.

    A target file contains either contrasts, or classes and groups of classes, so a softmax has two possible ranges.
    With a sigmoid, a target can combine any number of classes, so the range cannot be derived.
    """
    if setting.target_range is not None:
        return [setting.target_range]
    return [TargetRange.of_classes(1, minus) for minus in (0, 1)] if setting.activation == "softmax" else []
