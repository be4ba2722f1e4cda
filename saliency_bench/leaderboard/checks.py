"""What a submission says, against what follows from its records, and what the package knows of metrics and explainers.

Numbers that do not follow from the records refuse it. What the package knows itself (what explainers and metrics are
called, which of them look at no network, directions, ranges) is taken from the package, whatever the submission says.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from saliency_bench import options, registry
from saliency_bench.analysis.differences import same
from saliency_bench.errors import UserError, one_line
from saliency_bench.explainer import Explainer, load_explainer
from saliency_bench.leaderboard.files.recorded import Recorded, read_recorded
from saliency_bench.leaderboard.schema import RECORDS, RESULT, Result, read_result
from saliency_bench.maps import mean_of_parts
from saliency_bench.metric import Metric, load_metric
from saliency_bench.results.cell import CellKey, CellResult, PartResult, bounds, by_metric, with_version
from saliency_bench.results.identity import Identity
from saliency_bench.results.intervals import check_range
from saliency_bench.results.ranking import aggregate_of, compare
from saliency_bench.results.summary import Outcome, numbers_of, result_of
from saliency_bench.target_weights import TargetRange
from saliency_bench.utils.hashing import hash_of

NUMBERS = ("value", "low", "high", "clusters")
COUNTS = ("left_out", "flat", "marked")
RANKS = ("rank", "unranked", "scored")
MOST_METHODS = 100  # of one metric in a submission: each is compared with each
LOADED = 1000  # explainers and metrics with their options that are kept: a board asks for the same ones in every row


@dataclass(frozen=True)
class Checked:
    """A submission whose numbers follow from its records.

    Attributes:
        result: what it says of itself.
        recorded: its records.
        cells: as they follow from the records, not as it says.
    """

    result: Result
    cells: list[CellResult]
    recorded: Recorded


def known_explainer(cell: CellKey) -> Explainer | None:
    """Return the explainer of the package that a cell names, with the same options and version.

    None if there is none.
    """
    if cell.explainer not in _names("explainers"):
        return None
    try:
        explainer = _explainer(cell.explainer, _json(cell.explainer_options))
    except UserError:  # other options, or an optional library that is not installed
        return None
    is_same = options.text(explainer.options) == _text_of(cell.explainer_options)
    return explainer if is_same and explainer.version == cell.explainer_version else None


def known_metric(cell: CellKey) -> Metric | None:
    """Return the metric of the package that a cell names, with the same options and version; None if there is none.

    Raises:
        UserError: This very version of the metric does not take the options.
    """
    if cell.metric not in _names("metrics"):
        return None
    try:
        metric = _metric(cell.metric, _json(cell.metric_options))
    except UserError as error:
        if isinstance(error.__cause__, ModuleNotFoundError):  # an optional library that is not installed
            return None
        raise UserError(f"metric_options of cell {cell.cell_id}: {error}") from error
    is_same = options.text(metric.options) == _text_of(cell.metric_options)
    return metric if is_same and metric.version == cell.metric_version else None


@cache
def _names(kind: str) -> frozenset[str]:
    """Return the names of the package's items: files, which stay as they are while it runs."""
    return frozenset(registry.names(kind))


@lru_cache(LOADED)
def _explainer(name: str, chosen: str) -> Explainer:
    """Return an explainer of the package."""
    return load_explainer(name, **json.loads(chosen))


@lru_cache(LOADED)
def _metric(name: str, chosen: str) -> Metric:
    """Return a metric of the package."""
    return load_metric(name, **json.loads(chosen))


def _json(chosen: dict) -> str:
    """Return options as text."""
    return json.dumps(chosen, sort_keys=True)


def derived_key(cell: CellResult) -> CellKey:
    """Return a cell's key with everything that the package knows.

    Texts of what it does not know are made of name and options. What has the name of an explainer or metric of the
    package and is not it is shown with its version.
    """
    explainer, metric = known_explainer(cell), known_metric(cell)
    about = {name: getattr(cell, name) for name in CellKey.model_fields}
    about |= {"explainer_id": hash_of(_versioned(cell)), "baseline": explainer is not None and explainer.baseline}
    about["explainer_text"] = _called(cell.explainer, cell.explainer_options, cell.explainer_version, explainer)
    about["metric_text"] = _called(cell.metric, cell.metric_options, cell.metric_version, metric)
    if metric is not None:
        about |= {"higher_is_better": metric.higher_is_better, "aggregate": metric.aggregate is not None}
        about["note"] = metric.note
    return CellKey(**about)


def _called(name: str, chosen: dict, version: int | str, known: Explainer | Metric | None) -> str:
    """Return the text of an explainer or metric."""
    if known is not None:
        return str(known)
    text = name + options.differing(sorted(chosen.items()), {})
    return one_line(with_version(text, version) if _plain(name) in _taken() else text)


@cache
def _taken() -> frozenset[str]:
    """Return the names of the package's explainers and metrics, as people take them."""
    return frozenset(map(_plain, _names("explainers") | _names("metrics")))


def _plain(name: str) -> str:
    """Return what people take for the same name: "Grad-CAM" for "gradcam"."""
    return re.sub(r"[._-]", "", name.casefold())


def read_checked(folder: Path) -> Checked:
    """Return a submission in a folder.

    Raises:
        UserError: Something is wrong with it; names file and field.
    """
    result = read_result(folder / RESULT)
    try:
        return checked(result, read_recorded(result, folder / RECORDS), folder / RECORDS)
    except UserError:
        raise
    except Exception as error:  # a stranger's numbers may drive any code of ours to what it was not made for
        raise UserError(f"{folder / RESULT} cannot be checked: {one_line(error)}") from error


def checked(result: Result, recorded: Recorded, path: Path) -> Checked:
    """Return the cells as they follow from records.

    Raises:
        UserError: The result says something else.
    """
    seed = result.setting.seed
    keys = []
    for cell in result.cells:
        _check_metric(cell, result.setting, path)
        if (count := recorded.outcomes[cell.cell_id].count(cell.aggregate)) != cell.n:
            raise UserError(f"{path}: value has {count} numbers of cell {cell.cell_id}, but {RESULT} says n = {cell.n}")
        _check_scores(cell, recorded.outcomes[cell.cell_id], path)
        keys.append(derived_key(cell))
    rivals = max(by_metric(keys), key=len)
    if len(rivals) > MOST_METHODS:
        raise UserError(
            f"{path.with_name(RESULT)} has {len(rivals)} methods by {rivals[0].metric_text}, of which a submission has "
            f"at most {MOST_METHODS}"
        )
    parts = {key.cell_id: recorded.outcomes[key.cell_id].columns for key in keys if key.aggregate}
    _, standings = compare(keys, recorded.values, recorded.codes, seed, parts)
    kept = {cell_id: dict(outcome.parts) for cell_id, outcome in recorded.outcomes.items()}
    numbers = {
        cell_id: computed
        for rivals in by_metric(keys)
        for cell_id, computed in numbers_of(rivals, recorded.outcomes, recorded.codes, seed)
    }
    cells = []
    for key, stated in zip(keys, result.cells, strict=True):
        outcome = recorded.outcomes[key.cell_id]
        outcome.parts.update(kept[key.cell_id])
        computed = result_of(key, outcome, numbers[key.cell_id], stated.forward_passes, standings[key.cell_id])
        if key.aggregate and aggregate_of(key) is None:  # made by a function that is not known here
            computed = computed.model_copy(update={name: getattr(stated, name) for name in (*NUMBERS, "n", "median")})
        _compare(computed, stated, path)
        cells.append(computed)
    return Checked(result, cells, recorded)


def _compare(computed: CellResult, stated: CellResult, path: Path) -> None:
    """Raise UserError for a cell that says something else than its records."""
    subject = f"cell {computed.cell_id}"
    for name in (*NUMBERS, "median"):
        _check_number(name, getattr(computed, name), getattr(stated, name), subject, path)
    for name, part in computed.parts.items():
        _check_part(part, stated.parts[name], f"part {name} of {subject}", path)
    for name in (*COUNTS, *RANKS):
        ours, claimed = getattr(computed, name), getattr(stated, name)
        if ours != claimed and not (name == "scored" and same(ours, claimed)):
            raise UserError(f"{path}: {name} of {subject} comes to {ours}, but {RESULT} says {claimed}")


def _check_part(computed: PartResult, stated: PartResult, subject: str, path: Path) -> None:
    """Raise UserError for a part of a score that says something else than its records."""
    if computed.n != stated.n:
        raise UserError(f"{path}: {subject} has {computed.n} numbers, but {RESULT} says n = {stated.n}")
    for name in NUMBERS:
        _check_number(name, getattr(computed, name), getattr(stated, name), subject, path)


def _check_number(name: str, computed: float | None, claimed: float | None, subject: str, path: Path) -> None:
    """Raise UserError for a number that does not follow from the records."""
    if not same(*(np.nan if number is None else number for number in (computed, claimed))):
        raise UserError(f"{path}: {name} of {subject} comes to {_text(computed)}, but {RESULT} says {_text(claimed)}")


def _text(number: float | None) -> str:
    """Return a number as text."""
    return "none" if number is None else f"{number:.6g}"


def _check_scores(cell: CellResult, outcome: Outcome, path: Path) -> None:
    """Raise UserError for scores that are outside their range, or do not follow from their parts."""
    subject = f"{path}: cell {cell.cell_id}"
    check_range(outcome.scores, cell.limits, subject)
    for name, values in outcome.parts.items():
        check_range(values, cell.limits, f"{path}: part {name} of cell {cell.cell_id}")
    metric = known_metric(cell)
    if metric is None:
        return
    if (metric.part_names is None) != (not cell.parts):
        raise UserError(f"{subject} has {'parts' if cell.parts else 'no parts'}, unlike its metric")
    if not cell.parts:
        return
    if (names := _part_names(metric)) and list(cell.parts) != names:
        raise UserError(f"{subject} has the parts {', '.join(cell.parts)}; those of its metric are {', '.join(names)}")
    columns, chosen = outcome.columns, dict(metric.options)
    from_parts = np.full(len(columns), np.nan)  # of an aggregate, whose samples have no scores
    if metric.aggregate is None:
        from_parts = np.asarray((metric.reduction or mean_of_parts)(columns, chosen), dtype=float)
    if len(wrong := np.flatnonzero(np.isfinite(outcome.scores) & ~same(from_parts, outcome.scores))):
        place = wrong[0]
        raise UserError(
            f"{subject} has a score of {outcome.scores[place]:.6g}, where its parts make it {from_parts[place]:.6g}"
        )


def _part_names(metric: Metric) -> list[str]:
    """Return the names of a metric's parts; [] where they depend on the classifier, which is not here."""
    try:
        return list(metric.parts(None))
    except UserError:
        return []


def _check_metric(cell: CellResult, setting: Identity, path: Path) -> None:
    """Raise UserError for a cell that says something else of its metric than the package knows."""
    about = path.with_name(RESULT)
    try:
        metric = known_metric(cell)
    except UserError as error:
        raise UserError(f"{about}: {error}") from error
    if metric is None:
        return
    where = f"of cell {cell.cell_id} ({metric})"
    if cell.higher_is_better != metric.higher_is_better:
        raise UserError(f"{about}: higher_is_better {where} must be {metric.higher_is_better}")
    if cell.aggregate != (is_aggregate := metric.aggregate is not None):
        raise UserError(f"{about}: aggregate {where} must be {is_aggregate}")
    own_id = setting.cell_id(_versioned(cell), metric.identity, metric.needs, cell.asked_for)
    if cell.cell_id != own_id:
        raise UserError(f"{about}: cell_id {cell.cell_id} is not what its metric and settings make it, {own_id}")
    ranges = [bounds(metric.limits(target)) for target in _target_ranges(setting)]
    if ranges and cell.range not in ranges:
        either = " or ".join(str(list(ends)) for ends in dict.fromkeys(ranges))
        raise UserError(
            f"{about}: range {where} must be {either}, not {list(cell.range)}; a run of an earlier version writes its "
            "summary anew when it is started again with its --out"
        )


def _versioned(cell: CellKey) -> tuple[str, str, int | str]:
    """Return name, options and version of a metric."""
    return cell.explainer, _text_of(cell.explainer_options), cell.explainer_version


def _text_of(chosen: Mapping[str, Any]) -> str:
    """Return options as text."""
    return options.text(tuple(sorted(chosen.items())))


def _target_ranges(setting: Identity) -> list[TargetRange]:
    """Return the ranges that the targets of a run may have.

    [] of a file with a sigmoid, which may ask about any classes.

    A file holds single classes and groups, or contrasts.
    """
    if setting.target_range is not None:
        return [setting.target_range]
    return [TargetRange.of_classes(1, minus) for minus in (0, 1)] if setting.activation == "softmax" else []
