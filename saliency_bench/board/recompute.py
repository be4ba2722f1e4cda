"""Recompute the scores of a submission, as the owner of a board.

Explainers of the package are run on a few images, drawn at random so that submitters cannot predict them. Their rows
get the status "run by the board" and official ranks. All submitted maps are scored again, and their rows get the status
"scored by the board". This does not prove how the maps were computed, but maps that no known explainer could have
produced are reported. A submission is rejected if any score, or any part of a score, differs by more than 1e-4. If the
masks of a dataset are hidden, a submission contains no scores, and this module scores all of its maps (`board.hidden`).
"""

import secrets
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from datasets import Dataset
from huggingface_hub import CommitOperationAdd, HfApi

import saliency_bench
from saliency_bench.board import hidden as hidden_track
from saliency_bench.board.checks import CheckedSubmission, known_explainer, known_metric, needs_masks
from saliency_bench.board.hub_table import rewrite
from saliency_bench.board.index import write_index
from saliency_bench.board.known import (
    DATASETS,
    FOLDERS,
    Attempt,
    Known,
    KnownDataset,
    KnownModel,
    Recomputed,
    Status,
    known_dataset,
    write_known,
)
from saliency_bench.board.published_maps import maps_in
from saliency_bench.board.source import asking, read_folder, source_at
from saliency_bench.board.submission_schema import RECORDS, RESULT, Result
from saliency_bench.bound_explainer import Explainer, registered_explainer
from saliency_bench.bound_metric import Metric
from saliency_bench.compute.classifiers.own_networks import refuse_own
from saliency_bench.compute.run import run
from saliency_bench.data.dataset_names import list_datasets
from saliency_bench.data.hidden_masks import join_masks
from saliency_bench.data.loading import find, load_dataset, sample_ids
from saliency_bench.errors import UserError, unknown
from saliency_bench.hub import client
from saliency_bench.hub.repo_names import FORCED, could_be_on_the_hub
from saliency_bench.read.cell import CellResult, Interval
from saliency_bench.read.finished_run import Run, read_run
from saliency_bench.read.manifest import differing_settings, read_manifest
from saliency_bench.read.network_answers import check_same_network
from saliency_bench.read.public_names import FOLDER, public_name
from saliency_bench.read.records import by_part
from saliency_bench.read.run_folder import CellScores
from saliency_bench.score_notes import PRECOMPUTED
from saliency_bench.spec import PREDICTED_BY, TARGETS
from saliency_bench.target_weights import asked_activation
from saliency_bench.utils.messages import counted

Parts = Mapping[str, np.ndarray]

TOLERANCE = 1e-4  # tolerance of a score, relative for scores above 1
TOLERANCE_OF_ACCURACY = 0.01  # predictions may differ on other hardware if logits are nearly equal
# Thresholds for suspicious maps: maps that nearly equal the masks, and one map for all images.
LIKE_MASKS, MOST_IMAGES = 0.95, 0.5
MATCH = "saliency_miou"
SAMPLES = 16
SIDE = 224  # pixels
MOST_PASSES, MOST_OF_SUBMISSION = 100_000, 2_000_000  # limit of forward passes per image, for a cell and for all cells
CHOSEN = "chosen_to_recompute"
PACKAGE = "explainers of the package"  # method of their attempt; no submitted method has spaces in its name
WITH_HIDDEN = " with hidden masks"  # suffix of "maps" or "explainer" in descriptions


def recompute(
    root: Path,
    folder: str,
    *,
    samples: int = SAMPLES,
    seed: int | None = None,
    progress: bool = True,
    hidden: str | None = None,
    owner: str = "",
    api: HfApi | None = None,
    **given: Any,
) -> tuple[Status, KnownDataset | None, KnownModel | None]:
    """Recompute the submission in `root`/`folder`.

    Args:
        root: Root folder of the results.
        folder: Folder of the submission.
        samples: Number of images on which each explainer of the package is run again.
        seed: Seed that selects these images. By default, the seed is random, so that submitters cannot predict the
            images.
        progress: Whether to show progress bars.
        hidden: If the masks are hidden, the private repository or the folder that contains them. The default is the
            location that the board lists.
        owner: The account that recomputes the submission. If this account itself submits explainers of the package,
            they do not count as attempts with hidden masks.
        api: `HfApi` client for the account of the board's owner.
        **given: Run settings that the submission does not contain: `dataset` and `model` (default: those that the board
            lists, otherwise the repositories named in the submission), `target`, `groups`, `label_map` and `device`.

    Returns:
        The status, the dataset to list on the board, and the model to list on the board. The dataset is None if the
        board already lists it and it was not passed explicitly. The same applies to the model.

    Raises:
        UserError: The submission is invalid, or the settings differ from those in the submission.
    """
    listed, _ = Known.read(root)
    content, submission = read_folder(root, folder, Known(listed.datasets.values(), listed.models.values()))
    setting, result = submission.result.setting, submission.result
    old_dataset, old_model = _listed_dataset(listed, result), listed.models.get(setting.classifier)
    renamed = {"dataset": bool(given.get("dataset")), "model": bool(given.get("model"))}
    names = {
        "dataset": given.pop("dataset", None) or _named(old_dataset, result.dataset),
        "model": given.pop("model", None) or _named(old_model, result.model),
    }
    dataset = _dataset(names["dataset"], result, old_dataset)
    masks, dataset = _masks_of(dataset, old_dataset, hidden, names["dataset"])
    read_folder(root, folder, Known([dataset]))  # check ids and groups, even if the board does not list the dataset yet
    further: dict[str, str] = {}
    cells: dict[str, Recomputed] = {}
    about = {"samples": samples, "seed": secrets.randbits(32) if seed is None else seed}
    device, model = "", None  # list a model only if it was loaded, because the submitter's name for it is unverified
    suspicions: dict[str, list[str]] = {}
    maps = maps_in(root / folder, result.maps)
    ways = _ways(submission, maps, further, has_hidden=masks is not None)
    rows = with_masks = None
    if any(by.endswith(WITH_HIDDEN) for by in ways):
        rows = load_dataset(names["dataset"], setting.split)
        _take_out_parts(ways, len(set(rows["image_id"]) - set(submission.recorded.ids)), further)
    attempts, problem = _attempts(submission, ways, maps, listed, content, further, owner)
    for by, some_cells in ways.items() if not problem else ():
        settings = names | {"progress": progress, **given}
        is_hidden, their_maps = by.endswith(WITH_HIDDEN), maps if by.startswith("maps") else {}
        if is_hidden and masks is not None and rows is not None:
            if with_masks is None:
                kept = hidden_track.kept_masks(masks, api or client.default_api())
                with_masks = join_masks(rows, kept, setting.split, dataset.repo)
            settings["dataset"] = with_masks
        their_maps = {cell.explainer: their_maps[cell.explainer] for cell in some_cells} if their_maps else {}
        again, parts = _run(submission, some_cells, their_maps, about, settings, is_hidden=is_hidden)
        # `submission` comes from the cache of the board, which does not contain parts.
        stated_parts = {} if is_hidden else by_part(root / folder / RECORDS, parts, again.scores.ids)
        device, model = again.summary["provenance"]["device"], _model(again.summary["model"])
        problem = problem or _wrong_quality(result, again.summary["model"])
        like_masks = _like_masks(again.cells, again.scores, is_hidden=is_hidden)
        for name, line in (*like_masks, *_all_the_same(their_maps)) if their_maps else ():
            suspicions.setdefault(name, []).append(line)
        for cell in some_cells:
            if is_hidden:
                compared = _scored(again.cells, cell, "maps" if their_maps else "explainer")
            else:
                name = cell.cell_id
                compared = _compare(submission, again.scores, cell, by, stated_parts.get(name, {}), parts.get(name, {}))
            if isinstance(compared, str):
                problem = problem or compared
            else:
                cells[cell.cell_id] = compared
    for attempt in attempts:
        if lines := hidden_track.copies_of(attempt, listed.statuses.values()):
            suspicions.setdefault(attempt.method, []).extend(lines)
    status = Status(
        content=content, folder=folder, cells={} if problem else cells, further=further,
        refused=problem or None, suspicions=suspicions, attempts=attempts, saliency_bench=saliency_bench.__version__,
        date=datetime.now(UTC).date().isoformat(), device=device or "none",
    )  # fmt: skip
    return (
        status,
        dataset if old_dataset is None or renamed["dataset"] or dataset.hidden != old_dataset.hidden else None,
        model if old_model is None or renamed["model"] else None,
    )


def _masks_of(
    dataset: KnownDataset, listed: KnownDataset | None, hidden: str | None, name: Any
) -> tuple[str | None, KnownDataset]:
    """Return (location of the hidden masks or None, dataset to list on the board, which includes that location).

    Raises:
        UserError: The masks are hidden and no location was given.
    """
    before = listed.hidden if listed else None
    where = hidden or before
    if where is None and find(name).hidden_masks == dataset.split:
        raise UserError(
            f"the masks of the split {dataset.split} of {dataset.id} are hidden; set --hidden to the private "
            "repository of the masks, OWNER/NAME"
        )
    if where and where.startswith(FOLDER):
        raise UserError(
            f"the hidden masks of {dataset.id} are in a local folder, {where}; set --hidden to your copy of the masks"
        )
    is_folder = where is not None and Path(where).expanduser().is_dir()
    public = f"{FOLDER}{Path(where).expanduser().resolve().name}" if where and is_folder else where
    return where, dataset.model_copy(update={"hidden": public})


def _take_out_parts(ways: dict[str, list[CellResult]], missing: int, further: dict[str, str]) -> None:
    """If images are missing, remove cells that need hidden masks from `ways`. Their scores could reveal the masks."""
    for by in [by for by in ways if by.endswith(WITH_HIDDEN) and missing]:
        why = f"scoring with hidden masks requires all images of the split, but {missing} are missing"
        further |= dict.fromkeys((cell.cell_id for cell in ways.pop(by)), why)


def _attempts(
    submission: CheckedSubmission,
    ways: dict[str, list[CellResult]],
    maps: Mapping[str, Mapping[str, np.ndarray]],
    listed: Known,
    content: str,
    further: dict[str, str],
    owner: str = "",
) -> tuple[list[Attempt], str]:
    """Remove methods that exceed the limit on attempts from `ways`, and add the reasons to `further`.

    A method that was scored before with exactly these files can be scored again, because this reveals nothing new.
    Explainers of the package count as attempts, because a different seed, option or network leads to different maps.
    Explainers that the owner of the board submits do not count as attempts.

    Returns:
        The attempts of the submission, and the problem with its maps ("" if there is none).
    """
    result, statuses, today = submission.result, listed.statuses.values(), datetime.now(UTC).date()
    before = {attempt.method: attempt for attempt in listed.statuses[content].attempts} \
        if content in listed.statuses else {}  # fmt: skip
    earlier = hidden_track.attempts_of(statuses, result.submitter, result.setting.fingerprint)
    scored, methods = dict(before), _methods(ways, is_owner=result.submitter.casefold() == owner.casefold())
    for name in methods:
        if name in maps and (problem := hidden_track.problem_of(name, maps[name], submission.recorded.ids)):
            return list(before.values()), problem
    for name, cells in methods.items():
        further |= _beyond(cells)
        if name in before:
            continue
        if (why := hidden_track.refusal(earlier, today)) is not None:
            further |= {cell.cell_id: why for cell in cells}
            continue
        scored[name] = Attempt(
            submitter=result.submitter, fingerprint=result.setting.fingerprint, method=name, date=today.isoformat(),
            maps=hidden_track.sketch_of(maps[name]) if name in maps else "",
        )  # fmt: skip
        earlier.append(scored[name])
    for by in [by for by in ways if by.endswith(WITH_HIDDEN)]:
        ways[by] = [cell for cell in ways[by] if cell.cell_id not in further]
        if not ways[by]:
            del ways[by]
    return list(scored.values()), ""


def _methods(ways: Mapping[str, Sequence[CellResult]], *, is_owner: bool) -> dict[str, list[CellResult]]:
    """Return {name of an attempt: cells}.

    A method with submitted maps is an attempt. All explainers of the package with default options together count as one
    attempt. Each explainer with non-default options counts as a separate attempt. The owner's explainers (`is_owner`)
    do not count.
    """
    methods: dict[str, list[CellResult]] = {}
    for cell in ways.get(f"maps{WITH_HIDDEN}", ()):
        methods.setdefault(cell.explainer, []).append(cell)
    for cell in () if is_owner else ways.get(f"explainer{WITH_HIDDEN}", ()):
        explainer = known_explainer(cell)
        is_default = explainer is None or explainer.options == registered_explainer(cell.explainer).options
        methods.setdefault(PACKAGE if is_default else f"{PACKAGE}: {cell.explainer_text}", []).append(cell)
    return methods


def _beyond(cells: Sequence[CellResult]) -> dict[str, str]:
    """For an explainer's cells that are not scored because of the limit on metrics, return {cell id: reason}."""
    by_explainer: dict[str, list[str]] = {}
    for cell in cells:
        by_explainer.setdefault(cell.explainer_id, []).append(cell.cell_id)
    why = f"at most {hidden_track.MOST_METRICS} metrics per method are scored with hidden masks"
    return dict.fromkeys(
        (cell_id for ids in by_explainer.values() for cell_id in ids[hidden_track.MOST_METRICS :]), why
    )


def _scored(cells: Sequence[CellResult], cell: CellResult, by: Literal["explainer", "maps"]) -> Recomputed | str:
    """Return the score of a cell that was computed with hidden masks, rounded, or the reason why there is no score."""
    ours = next(
        (item for item in cells if (item.explainer_id, item.metric_id) == (cell.explainer_id, cell.metric_id)),
        None,
    )
    if ours is None:
        return f"{cell.explainer_text} produces maps that differ from the maps in the submission"
    if (score := hidden_track.rounded(ours)) is None:
        return f"{cell.explainer_text} has no {cell.metric_text} score"
    return Recomputed(samples=ours.n, largest=0, by=by, score=score)


def _like_masks(
    cells: Sequence[CellResult], scores: CellScores, *, is_hidden: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield (method, warning) if most of a method's maps match the masks better than any explainer's maps could.

    With hidden masks (`is_hidden`), the warning does not contain the number of images, because it would reveal more
    than the rounded score.
    """
    for cell in cells:
        values = scores.values[cell.cell_id]
        share = np.mean(values[np.isfinite(values)] > LIKE_MASKS) if np.isfinite(values).any() else 0
        if cell.metric == MATCH and share > MOST_IMAGES:
            many = "most" if is_hidden else f"{share:.0%}"
            yield cell.explainer, f"the maps match the masks almost exactly for {many} of the images"


def _all_the_same(maps: Mapping[str, Mapping[str, np.ndarray]]) -> Iterator[tuple[str, str]]:
    """Yield (method, warning) for each method that has the same map for more than half of its images."""
    for name, by_image in maps.items():
        most = Counter(sha256(values.tobytes()).digest() for values in by_image.values()).most_common(1)
        if most and len(by_image) > 1 and (share := most[0][1] / len(by_image)) > MOST_IMAGES:
            yield name, f"{share:.0%} of the images have exactly the same map"


def _listed_dataset(listed: Known, result: Result) -> KnownDataset | None:
    """Return the board's entry for the dataset of a submission. Raise UserError if a different split is listed."""
    setting = result.setting
    dataset = next((item for item in listed.datasets.values() if item.fingerprint == setting.fingerprint), None)
    if dataset is not None and dataset.split != setting.split:
        raise UserError(
            f"{result.folder} states the split {setting.split}, but the board lists these samples as the split "
            f"{dataset.split} of {dataset.id}"
        )
    return dataset


def _dataset(name: Any, result: Result, listed: KnownDataset | None) -> KnownDataset:
    """Load the dataset of a submission.

    Raises:
        UserError: `name` is not the submission's dataset, or its groups differ from those on the board.
    """
    dataset = known_dataset(name, result.setting.split)
    if dataset.fingerprint != result.setting.fingerprint:
        raise UserError(
            f"{name} is not the dataset of {result.folder}; set --dataset to the dataset of this submission"
        )
    if listed is not None and listed.samples != dataset.samples:
        raise UserError(
            f"the groups of {name} differ from the groups on the board; set --dataset to the original dataset, or "
            f"delete {DATASETS}/{dataset.fingerprint}.json to list the dataset again"
        )
    return dataset


def _named(listed: Any, submitted: Any) -> str:
    """Return the name for loading a dataset or model: the board's name if it can be loaded, else the submitted name.

    A submitted name is only looked up on the Hub and in the package. It is never used as a path on this machine.

    Raises:
        UserError: The dataset or model is available only to the submitter.
    """
    has_place = listed is not None and (listed.repo or not listed.id.startswith((FOLDER, "module:")))
    loaded, kind = listed if has_place else submitted, type(submitted).__name__.lower()
    name = loaded.repo or loaded.id
    if kind == "model":
        refuse_own(name)
    if name in list_datasets() or name.startswith("torchvision:") or (has_place and not loaded.repo):
        return name
    if not could_be_on_the_hub(name) or (kind == "dataset" and "/" not in name):
        raise UserError(f"the {kind} {name} is not on the Hub; set --{kind} to your copy of it")
    return f"{FORCED}{name}" + (f"@{loaded.revision}" if loaded.revision else "")


def _ways(
    submission: CheckedSubmission, maps: Collection[str], further: dict[str, str], *, has_hidden: bool = False
) -> dict[str, list[CellResult]]:
    """Return {"explainer" or "maps": cells to recompute from explainers or from maps}.

    For every other cell, the reason why it cannot be recomputed is added to `further`. If the masks are hidden
    (`has_hidden`), `WITH_HIDDEN` is appended to the keys of cells that need masks.
    """
    ways: dict[str, list[CellResult]] = {}
    passes_left = MOST_OF_SUBMISSION
    for cell in submission.cells:
        metric = known_metric(cell)
        if metric is None:
            further[cell.cell_id] = "this package does not contain the metric"
        elif metric.declaration.keeps:
            further[cell.cell_id] = "the metric retrains networks, which the board does not do"
        elif (passes := _passes(explainer := known_explainer(cell), metric)) > MOST_PASSES:
            further[cell.cell_id] = (
                f"the cell needs {passes:,} passes per image, more than the limit of {MOST_PASSES:,}"
            )
        elif explainer is None and not _has_maps(cell, maps):
            further[cell.cell_id] = "this package does not contain the method, and the maps were not submitted"
        elif passes > passes_left:
            further[cell.cell_id] = f"the submission needs more passes than the limit of {MOST_OF_SUBMISSION:,}"
        else:
            passes_left -= passes
            with_hidden = WITH_HIDDEN if has_hidden and needs_masks(metric) else ""
            ways.setdefault(("maps" if explainer is None else "explainer") + with_hidden, []).append(cell)
    return ways


def _has_maps(cell: CellResult, maps: Collection[str]) -> bool:
    return str(cell.explainer_version).startswith(PRECOMPUTED) and cell.explainer in maps


def _passes(explainer: Explainer | None, metric: Metric) -> int:
    """Return an upper bound on the number of passes that a cell needs per image.

    If `explainer` is None, only the metric is counted. A limit is necessary because submitters choose the options:
    rise:masks=1000000000 would keep the owner's machine busy for years. The bound also depends directly on the options,
    because metrics need not declare their cost. It is at least as large as every integer option and as the length of
    every list option.
    """
    explain = 1 if explainer is None else explainer.declaration.passes_of(dict(explainer.options), SIDE, SIDE)
    pictures, further_maps = metric.declaration.passes_of(dict(metric.options), SIDE, SIDE)
    options = (*metric.options, *(explainer.options if explainer is not None else ()))
    numbers = [abs(value) for _, value in options if type(value) is int]
    numbers += [len(value) for _, value in options if isinstance(value, Sequence)]
    return max(explain * (1 + further_maps) + pictures, *numbers, 0)


def _run(
    submission: CheckedSubmission,
    cells: Sequence[CellResult],
    maps: Mapping,
    about: Mapping,
    given: Mapping,
    *,
    is_hidden: bool = False,
) -> tuple[Run, Mapping[str, Parts]]:
    """Recompute cells from submitted maps. If there are none, run the explainers on randomly chosen samples.

    With hidden masks (`is_hidden`), there are no submitted scores to compare with, so all samples are scored.

    Returns:
        The run, whose folder has already been deleted, and {cell id: parts of the scores}.
    """
    setting = submission.result.setting
    settings: dict[str, Any] = {
        "split": setting.split, "seed": setting.seed, "target": given.get("target") or target_of(submission.result),
        "label_column": setting.label_column, "activation": asked_activation(setting.activation),
        **_arithmetic(setting.precision),
        "mask_values": setting.mask_values,
        "metrics": list(dict.fromkeys(str(known_metric(cell)) for cell in cells)),
    } | {name: value for name, value in given.items() if value is not None}  # fmt: skip
    if maps:
        settings |= {"explainers": [], "maps": maps}
        if any("masks" in metric.inputs for cell in cells if (metric := known_metric(cell))):
            settings["metrics"] = list(dict.fromkeys([*settings["metrics"], MATCH]))  # for `_like_masks`
    else:
        settings["explainers"] = list(dict.fromkeys(str(known_explainer(cell)) for cell in cells))
    ids = submission.recorded.ids
    # All submitted maps are scored, because this needs no explainer. Explainers are run on only a few samples, chosen
    # among the submitted samples, because a run with a limit does not contain the whole dataset.
    if not maps and not is_hidden:
        few = min(len(ids), about["samples"])
        chosen = np.random.default_rng(about["seed"]).choice(len(ids), few, replace=False)
        settings["only"] = [f"{CHOSEN}=true"]
        settings["dataset"] = _marked(given["dataset"], setting.split, {ids[place] for place in chosen})
    with TemporaryDirectory() as out:
        again = read_run(run(out=Path(out) / "run", **settings).folder)
        parts = again.values_by_part([cell.cell_id for cell in again.cells])
        answers = read_manifest(again.folder).answers.get("model")
    if is_hidden and again.identity is not None:  # the published split has no masks, so its fingerprint is different
        setting = setting.model_copy(update={"fingerprint": again.identity.fingerprint})
    if again.identity is not None and (other := differing_settings(again.identity, setting)):
        raise UserError(
            f"the {other[0]} is not the same as in {submission.result.folder}; use the settings of the submission"
        )
    difference = f"{submission.result.folder} was computed with a different model"
    fix = "set --model to the model of the submission"
    check_same_network(submission.result.answers, answers, setting.precision, difference, fix)
    return again, parts


def target_of(result: Result) -> str:
    """Return the target rule of a submission in the syntax of `run`.

    For `predicted-by:MODEL` and for a file, the setting contains only a hash. The name of MODEL is therefore read from
    the submission, but it is used only if the model is on the Hub or in torchvision. Local folders named in a
    submission are never loaded.

    Raises:
        UserError: The rule is a file, or requires a model that only the submitter has.
    """
    rule = result.setting.target.partition(" ")[0]
    if rule in TARGETS:
        return rule
    model = result.target.removeprefix(PREDICTED_BY)
    if rule != PREDICTED_BY.rstrip(":") or model == result.target:
        raise UserError(
            f"the maps explain the classes in the file {result.target}; set --target to your copy of this file"
        )
    if model.startswith((FOLDER, "module:")) or public_name(model) != model:
        raise UserError(
            f"the model {model} that predicts the targets is not on the Hub; set --target {PREDICTED_BY}MODEL"
        )
    return result.target


def _marked(name: Any, split: str, chosen: set[str]) -> Dataset:
    """Mark the chosen samples in a new column of a dataset. The fingerprint of the dataset does not change."""
    rows = load_dataset(name, split)
    return rows.add_column(CHOSEN, [image_id in chosen for image_id in sample_ids(rows)])


def _arithmetic(precision: str) -> dict[str, Any]:
    """Convert the precision stated in a submission, such as "bf16, channels last", to run settings."""
    first, *more = precision.split(", ")
    settings = {} if first.endswith("weights") else {"precision": first}
    return settings | {"channels_last": "channels last" in more or None, "compile": "compiled" in more or None}


def _model(model: dict) -> KnownModel:
    return KnownModel(id=model["id"], repo=model["repo"], revision=model["revision"], digest=model["digest"])


def _wrong_quality(result: Result, computed: Mapping[str, Any]) -> str:
    """Return a message if the stated accuracy is wrong, else "".

    The accuracy is checked only if all samples are available.
    """
    for name in ("accuracy", "top5") if result.dataset.used == result.dataset.samples else ():
        theirs, ours = getattr(result.model, name), computed[name] and Interval(**computed[name])
        if theirs is None or theirs.value is None:
            continue
        value, n = (np.nan, 0) if ours is None or ours.value is None else (ours.value, ours.n)
        if theirs.n != n or not abs(theirs.value - value) <= TOLERANCE_OF_ACCURACY:  # NaN differs, too
            stated = f"{theirs.value:.6g} (n = {theirs.n})"
            return f"{name} of {result.model.id} is {value:.6g} (n = {n}), not {stated}"
        ends, stated_ends = np.array([[item.low, item.high] for item in (ours, theirs)], dtype=float)
        if not np.allclose(stated_ends, ends, rtol=0, atol=TOLERANCE_OF_ACCURACY, equal_nan=True):
            return f"the interval for {name} of {result.model.id} is {_ends(ends)}, not {_ends(stated_ends)}"
        if name == "accuracy" and result.model.accuracy_kind != (kind := computed["accuracy_kind"]):
            return f"accuracy_kind of {result.model.id} is {kind}, not {result.model.accuracy_kind}"
    return ""


def _ends(ends: np.ndarray) -> str:
    return f"[{ends[0]:.6g}, {ends[1]:.6g}]"


def _compare(
    submission: CheckedSubmission, again: CellScores, cell: CellResult, by: str, stated_parts: Parts, parts: Parts
) -> Recomputed | str:
    """Compare a cell's submitted scores and their parts with the recomputed values.

    For an aggregate, only the parts are compared, because its samples have no scores.

    Args:
        submission: The submission.
        again: Scores of the run that recomputed the submission.
        cell: A cell of both `submission` and `again`.
        by: Source of the recomputed cell: its explainer or the submitted maps.
        stated_parts: {part: submitted values for the images of `again`}.
        parts: {part: recomputed values}.

    Returns:
        The largest difference, or a message about the first difference that is too large.
    """
    name = f"{cell.metric_text} of {cell.explainer_text}"
    if cell.cell_id not in again.values:
        return f"{name} has a different cell id when recomputed"
    scores, missing = submission.recorded.outcomes[cell.cell_id].scores, np.full(len(again.ids), np.nan)
    # Samples that were not submitted have index -1, which selects the NaN at the end.
    stated = {"": np.append(scores, np.nan)[submission.recorded.positions(again.ids)], **stated_parts}
    computed, largest = {"": again.values[cell.cell_id], **parts}, 0.0
    for part in {**stated, **computed}:
        theirs, ours = stated.get(part, missing), computed.get(part, missing)
        scale = np.maximum(1, np.maximum(np.abs(theirs), np.abs(ours)))
        gaps = np.where(np.isnan(theirs) & np.isnan(ours), 0, np.abs(theirs - ours) / scale)
        if len(wrong := np.flatnonzero(~(gaps <= TOLERANCE))):
            first, of_part = wrong[0], f"part {part} of " if part else ""
            return f"{of_part}{name} is {ours[first]:.6g} on image {again.ids[first]}, not {theirs[first]:.6g}"
        largest = max(largest, float(gaps.max(initial=0)))
    return Recomputed(samples=len(again.ids), largest=largest, by="maps" if by == "maps" else "explainer")


def vouch(
    location: str, folder: str, *, dry_run: bool = False, api: HfApi | None = None, **given: Any
) -> tuple[Status, list[str]]:
    """Recompute a submission on the main branch of a results repository or in a folder, and store the status.

    Args:
        location: NAMESPACE/results or a folder.
        folder: Folder of the submission.
        dry_run: If true, compare without storing the status.
        api: `HfApi` client for the account of the board's owner.
        **given: Other arguments of `recompute`.

    Returns:
        The status, and the lines of text that describe it.

    Raises:
        UserError: The account has no write access to the repository (checked before anything is computed), or
            `recompute` fails.
    """
    source = source_at(location, api=api)
    is_folder = isinstance(source.location, Path)
    if not is_folder and not dry_run and (rights := client.rights(source.api, location)).may is not True:
        raise UserError(f"{location}: {rights.line}")
    if not folder or ".." in folder.split("/") or len(folder.split("/")) != 3 or set(folder) & set("*?[]"):
        raise UserError(f"{folder} is not the folder of a submission; specify DATASET/MODEL/SUBMITTER")
    root = source.root([f"{folder}/*", *(f"{name}/*.json" for name in FOLDERS)])
    if not (root / folder / RESULT).is_file():
        known = [path.parent.relative_to(root).as_posix() for path in root.glob(f"*/*/*/{RESULT}")]
        raise (
            unknown("submission", folder, known, owner=location)
            if known
            else UserError(f"{location} has no submission {folder}; specify the folder as DATASET/MODEL/SUBMITTER")
        )
    status, *listed = recompute(root, folder, owner="" if is_folder else _account(source.api), api=source.api, **given)
    files = [item for item in (status, *listed) if item is not None]
    lines = _lines(status) + [_line(item, given) for item in listed if item is not None]
    if dry_run:
        return status, [*lines, "dry run: nothing was written"]
    if is_folder:
        written = [write_known(root, item) for item in files]
        write_index(root)
        return status, [*lines, *(f"written: {path}" for path in written)]
    with TemporaryDirectory() as temporary, asking(location):
        paths = [write_known(Path(temporary), item) for item in files]
        commit = source.api.create_commit(
            location,
            [CommitOperationAdd(path.relative_to(temporary).as_posix(), path.read_bytes()) for path in paths],
            repo_type="dataset",
            commit_message=f"Recomputed: {folder}",
        )
        rewrite(location, source.api, commit.oid)
    return status, [*lines, f"written: {commit.commit_url}"]


def _account(api: HfApi) -> str:
    if client.token_of(api) is None:
        return ""
    with asking("the Hub"):
        return client.account(api).name


def _line(listed: KnownDataset | KnownModel, given: Mapping[str, Any]) -> str:
    """Describe how the board will list a dataset or a model."""
    kind = "dataset" if isinstance(listed, KnownDataset) else "model"
    source = "" if given.get(kind) else f", from the submission; use --{kind} to list a different {kind}"
    return f"  the {kind} is listed as {listed.repo or listed.id}{source}"


def _in_words(cell: Recomputed) -> str:
    if (score := cell.score) is None:
        return f"{counted(cell.samples, 'sample')} ({cell.by}), largest difference {cell.largest:.2g}"
    interval = "" if score.low is None else f" [{score.low:g}, {score.high:g}]"
    return f"{score.value:g}{interval}, {counted(score.n, 'sample')} ({cell.by}{WITH_HIDDEN}), rounded"


def _lines(status: Status) -> list[str]:
    if status.refused:
        return [f"{status.folder} is rejected: {status.refused}"]
    is_single = len(status.cells) == 1
    if any(cell.score for cell in status.cells.values()):
        done = "was scored" if is_single else "were scored"
    else:
        done = "matches" if is_single else "match"
    lines = [f"{counted(len(status.cells), 'cell')} of {status.folder} {done}"]
    lines += [f"  {name}: {_in_words(cell)}" for name, cell in status.cells.items()]
    lines += [f"  {name}: not recomputed, {why}" for name, why in status.further.items()]
    return lines + [f"  check the maps of {name} before trusting them: {line}"
                    for name, about in status.suspicions.items() for line in about]  # fmt: skip
