"""Draw the pictures of a suite: samples from its runs, explained again and laid out in rows and columns like a table.

    OUT/pictures/NAME.pdf .svg .png

A cell shows one view of an image, such as an explainer's map, and below it the sample's scores in the run. The axes are
those of tables, plus `image` and `view`. If an axis is used neither for rows nor for columns, it must have a single
name.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image
from torch import nn

from saliency_bench.bound_explainer import Explainer
from saliency_bench.compute.loaded import RunModel, identity_of
from saliency_bench.compute.maps.map_provider import ExplainerRaisedError
from saliency_bench.compute.predictions import plans_of
from saliency_bench.compute.scoring.perturbation import Curves
from saliency_bench.compute.targets.terms import TargetTerms
from saliency_bench.errors import UserError, unknown
from saliency_bench.maps import descending
from saliency_bench.read.analysis.clever_hans import found_by
from saliency_bench.read.finished_run import Run
from saliency_bench.read.manifest import read_manifest
from saliency_bench.read.parts import RunStore
from saliency_bench.read.report import words
from saliency_bench.read.report.plots import STYLE, save_figure
from saliency_bench.recipes.suites.drawing import mark_smoke
from saliency_bench.recipes.suites.numbers import Results, cells_by_metric, explainer_text, metric_text
from saliency_bench.recipes.suites.suite_jobs import SuiteJob
from saliency_bench.recipes.suites.suite_samples import SuiteSample, loaded
from saliency_bench.recipes.suites.suite_schema import Images, PictureAxis, PictureSpec, ViewSpec
from saliency_bench.recipes.suites.suite_tables import SMOKE
from saliency_bench.target_weights import activation_of, probabilities
from saliency_bench.types import Images as BatchImages
from saliency_bench.types import Target
from saliency_bench.utils.csv_text import csv_rows
from saliency_bench.utils.overlays import eight_bit, overlay

AXES = ("dataset", "model", "image", "explainer", "view")
WITHOUT = "image_without_object"
PASTED = ("pasted", "inverse")  # kinds of views with two images
CELL, HEADING, LINE = 1.35, 0.3, 0.13  # heights in inches: a cell, the names above columns, a line of text below a cell
NAMES = 1.0  # inches for the names to the left of the rows


@dataclass(frozen=True)
class Panel:
    """A cell of a picture: an image, uint8 (h, w, 3) or None, and `lines` of text below the image, such as scores."""

    pixels: np.ndarray | None
    lines: tuple[str, ...] = ()


def draw_picture(results: Results, name: str, folder: Path) -> tuple[str, list[str]]:
    """Write a picture of a suite as PDF, SVG and PNG.

    Returns:
        (SVG, or "" if there is nothing to draw; notes below the picture).

    Raises:
        UserError: A listed image is not in the run.
    """
    picture = results.suite.pictures[name]
    runs = results.finished(picture.runs)
    finished = [(job, run) for job, run in runs if picture.needs(dataset=job.dataset, model=job.model)]
    cells = {key: cell for job, run in finished for key, cell in _cells(results, picture, job, run)}
    if not finished:
        return "", ["None of the runs that this picture needs exists."]
    note = f"No image of the runs matches the rule {picture.images.rule!r}."
    with rc_context(STYLE):
        if cells:
            axes = picture.axes
            placed = {tuple(key[AXES.index(axis)] for axis in axes): cell for key, cell in cells.items()}
            rows, columns = (_keys(placed, axes, wanted, picture) for wanted in (picture.rows, picture.columns))
            figure = _figure(placed, rows, columns, results.suite.names)
            note = f"Images: {', '.join(dict.fromkeys(key[2] for key in cells))}."
        else:
            figure = Figure(figsize=(4, 1))
            figure.text(0.5, 0.5, note, ha="center", va="center", fontsize=7)
        if results.choice.smoke:
            mark_smoke(figure)
        svg = save_figure(figure, folder, name)
    notes = [SMOKE] * results.choice.smoke + [note]
    return svg, notes


def _keys(
    placed: dict, axes: Sequence[str], wanted: Sequence[PictureAxis], picture: PictureSpec
) -> list[tuple[str, ...]]:  # fmt: skip
    """Return the names of the rows or columns.

    Names in `show` come first, followed by others in the order of the runs.
    """
    order = {}
    for axis in wanted:
        names = dict.fromkeys([*picture.show.get(axis, ()), *(key[axes.index(axis)] for key in placed)])
        order[axis] = list(names)
    named = {tuple(key[axes.index(axis)] for axis in wanted) for key in placed}
    return sorted(named, key=lambda names: [order[axis].index(part) for axis, part in zip(wanted, names, strict=True)])


def _cells(results: Results, picture: PictureSpec, job: SuiteJob, run: Run) -> Iterator[tuple[tuple[str, ...], Panel]]:
    """Yield ((dataset, model, image, explainer, view), cell) for each cell that comes from one run."""
    explainers = [text for text in results.suite.runs[job.name].explainers if picture.needs(explainer=text)]
    if not explainers or not picture.needs(dataset=job.dataset, model=job.model):
        return
    manifest = read_manifest(job.folder)
    metrics = {name: results.sized(value.metric) for name, value in picture.values.items()}
    # In a smoke test, two explainers of the suite can be the same, but each needs its own cell.
    called = {text: explainer_text(results.sized(text)) for text in explainers}
    # Include the run's metrics so that the columns that they need are loaded.
    sized = list(dict(zip(called.values(), map(results.sized, called), strict=True)).values())
    data, model, pairs = loaded(
        job.folder, manifest, list(dict.fromkeys(metrics.values())), sized, results.choice.device
    )
    made = {str(explainer): explainer for explainer in pairs}
    are_paired = any(view.partner or view.kind in PASTED for view in picture.views.values())
    plans = plans_of(RunStore(job.folder, identity_of(data, model)), data, model, pairs) if are_paired else {}
    scores = {name: metric_text(text) for name, text in metrics.items()}
    if picture.images.rule == "false positive":
        ids = _false_positives(model, run, list(scores.values()), next(iter(made)))[: picture.images.count]
    else:
        ids = chosen(picture.images, run, list(scores.values()), list(made))
    for image_id in ids:
        sample = SuiteSample.at(data.samples.ids.index(image_id), data, model, plans)
        for text, (view_name, view) in product(explainers, picture.views.items()):
            explainer = made[called[text]]
            cell = cell_of(sample, explainer, view)
            below = [score_line(run, image_id, explainer, metric, name) for name, metric in scores.items()]
            lines = (*cell.lines, *filter(None, below if view.has_scores else ()))
            yield (job.dataset, job.model, image_id, text, view_name), Panel(cell.pixels, lines)


def chosen(images: Images, run: Run, metrics: Sequence[str], explainers: Sequence[str]) -> list[str]:
    """Select the images of a run for a picture, and return their ids.

    Args:
        images: Rule or list that selects the images.
        run: The run.
        metrics: The picture's metrics, under the names that cells use. The rules "lowest", "highest" and "disputed" use
            the first metric; "clever hans" uses the first two.
        explainers: The picture's explainers, whose scores the rules use.

    Raises:
        UserError: An image is not in the run, or the run lacks scores that the rule needs.
    """
    if images.file or images.ids:
        ids = list(images.ids) if images.ids else _listed(Path(images.file))
        if unknown_ids := [image_id for image_id in ids if image_id not in run.scores.position]:
            raise unknown("image", unknown_ids[0], run.scores.ids)
        return ids
    if images.rule == "first":
        return run.scores.ids[: images.count]
    if images.rule == "per class":
        return _per_class(run, images.count)
    if images.rule == "clever hans":
        return [run.scores.ids[position] for position in _clever_hans(run, metrics, explainers[0])[: images.count]]
    cells = [cell for cell in run.cells if cell.metric_text in metrics[:1] and cell.explainer_text in explainers]
    if not cells:
        raise UserError(f"the rule {images.rule!r} needs scores, but the run has none for the picture's first value")
    scores = np.array([run.scores.oriented(cell) for cell in cells])  # higher is better
    if images.rule == "disputed":
        order = -scores.std(axis=0)
    else:
        order = scores.mean(axis=0) * (1 if images.rule == "lowest" else -1)
    known = np.flatnonzero(np.isfinite(order))
    return [run.scores.ids[position] for position in known[np.argsort(order[known], kind="stable")][: images.count]]


def _clever_hans(run: Run, metrics: Sequence[str], explainer: str) -> list[int]:
    """Return the positions of the samples that eq. 19 of Li et al. (2020) selects for an explainer.

    The sample with the highest faithfulness comes first.

    Raises:
        UserError: The run does not contain both of the first two metrics (localisation and faithfulness).
    """
    cells = cells_by_metric(run, explainer)
    if len(metrics) < 2 or not {*metrics[:2]} <= cells.keys():
        raise UserError(
            "the rules 'clever hans' and 'false positive' need two values: a localisation metric and a faithfulness "
            "metric, in that order"
        )
    return found_by(run, cells[metrics[0]], cells[metrics[1]]).order


def _false_positives(model: RunModel, run: Run, metrics: Sequence[str], explainer: str) -> list[str]:
    """Return the ids of images whose most probable absent class has p > 0.5 and has Clever Hans samples.

    An absent class is one that is not in the image. The images are sorted by this probability, highest first. Only one
    image per cluster is returned.

    Raises:
        UserError: The run does not contain the metrics that `_clever_hans` needs.
    """
    columns = ["image_id", "label", "labels", "logits"]
    table = pq.read_table(run.folder / "predictions.parquet", columns=columns)
    rows = {row["image_id"]: row for row in table.to_pylist()}
    image_ids = [run.scores.ids[position] for position in _clever_hans(run, metrics, explainer)]
    members = model.question.members
    suspects = {index for image_id in image_ids for index in _classes_in(members, rows[image_id] | {"labels": None})}
    images: dict[int, tuple[float, str]] = {}
    for image_id, code in zip(run.scores.ids, run.scores.codes(), strict=True):
        if (absent := _likeliest_absent(members, rows[image_id])) in suspects:
            logits = torch.tensor([rows[image_id]["logits"]], dtype=torch.float64)
            p = float(probabilities(logits, model.classifier.activation)[0, absent])
            if p > 0.5:
                images.setdefault(int(code), (-p, image_id))
    return [image_id for _, image_id in sorted(images.values())]


def _classes_in(members: Sequence[Sequence[int]] | None, row: Mapping[str, Any]) -> set[int]:
    """Return the model's classes that correspond to the labels of an image.

    If `members` is None, the set is empty.
    """
    labels = row["labels"] or ([] if row["label"] is None else [row["label"]])
    return {index for label in labels for index in members[label]} if members is not None else set()


def _likeliest_absent(members: Sequence[Sequence[int]] | None, row: Mapping[str, Any]) -> int | None:
    """Return the most probable class that is not in the image, or None if classes or predictions are unknown."""
    present = _classes_in(members, row)
    if not present or row["logits"] is None:
        return None
    order = np.argsort(-np.asarray(row["logits"]), kind="stable")
    return next((int(index) for index in order if int(index) not in present), None)


def _per_class(run: Run, count: int) -> list[str]:
    """Return the ids of the first `count` images of each class that occurs in the run's predictions."""
    labels = pd.read_parquet(run.folder / "predictions.parquet", columns=["image_id", "label"])
    labels = labels[labels["image_id"].isin(run.scores.ids)]
    return [image_id for _, group in labels.groupby("label") for image_id in group["image_id"].head(count)]


def _listed(path: Path) -> list[str]:
    """Read image ids from a file, which is a CSV file with the column image_id, or contains one id per line."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    lines = text.splitlines()
    if lines and "image_id" in lines[0].split(","):
        return [row["image_id"] for row in csv_rows(text)]
    return [line.strip() for line in lines if line.strip()]


def score_line(run: Run, image_id: str, explainer: Explainer, metric: str, name: str) -> str:
    """Format a sample's score, such as "IoU 0.312". Return "" if the explainer has no cell for the metric."""
    for cell in run.cells:
        if (cell.explainer_text, cell.metric_text) == (explainer_text(str(explainer)), metric):
            return f"{name} {words.number(float(run.scores.values[cell.cell_id][run.scores.position[image_id]]))}"
    return ""


def cell_of(sample: SuiteSample, explainer: Explainer, view: ViewSpec) -> Panel:
    """Draw one view of a sample. If its target or a column is missing, the cell contains only a note."""
    if view.partner or view.kind in PASTED:
        return _of_partner(sample, explainer, view)
    images = sample.images
    if view.without:
        column = (sample.batch.columns or {}).get(WITHOUT)
        if column is None or not isinstance(column.values, torch.Tensor) or column.lacking[0]:
            return Panel(None, (f"no {WITHOUT}",))
        images = column.values
    pixels = eight_bit(images[0])
    if view.kind == "picture":
        return Panel(pixels, () if view.without else (_prediction(sample),))
    if view.kind == "mask":
        return Panel(np.where(sample.batch.masks[0].numpy()[..., None], pixels, pixels // 4))
    target, line = sample.target, ""
    explain: Callable[..., np.ndarray] = sample.provider(explainer)
    if view.other:
        if sample.other is None:
            return Panel(None, ("no other model",))
        target = sample.other.target
        explain = partial(explain, classifier=sample.other.classifier)
    elif view.target:
        terms = _terms(sample, view.target)
        if terms is None:
            return Panel(None, (f"no {view.target}",))
        target = terms.row(sample.model.question.classes).to(images.device)
        line = terms.text(sample.model.class_names)
        if view.target == "false positive":
            line = f"{line}, {_probability(sample.model.classifier, images, target)}"
    try:
        maps = explain(images, target)
    except ExplainerRaisedError as error:
        return Panel(None, (str(error),))
    if view.kind == "map":
        return Panel(np.asarray(sample.marked(maps[0], images)), tuple(filter(None, (line,))))
    classifier = sample.other.classifier if view.other and sample.other else sample.model.classifier
    return _parts(classifier, images, target, maps, view)


def _prediction(sample: SuiteSample) -> str:
    """Format the classifier's prediction for a sample with its probability, such as "cat 0.913"."""
    row = sample.row
    if row["prediction"] is None:
        return "no prediction"
    named = TargetTerms((row["prediction"],)).text(sample.model.class_names)
    return f"{named} {words.number(row['confidence'])}"


def _of_partner(sample: SuiteSample, explainer: Explainer, view: ViewSpec) -> Panel:
    """Draw the partner image of a sample, or the sample with a region of the partner pasted in."""
    if (partner := sample.partner) is None:
        return Panel(None, ("not paired",))
    classifier, pixels = sample.model.classifier, eight_bit(partner.images[0])
    right = torch.from_numpy(partner.right).float().to(partner.images.device)
    if view.kind == "picture":
        return Panel(pixels, (_probability(classifier, partner.images, right),))
    try:
        maps = sample.provider(explainer, partner.seeds)(partner.images, right)
    except ExplainerRaisedError as error:
        return Panel(None, (str(error),))
    if view.kind == "map":
        return Panel(np.asarray(overlay(pixels, maps[0])))
    if view.kind not in PASTED:
        return _parts(classifier, partner.images, right, maps, view)
    inside = torch.from_numpy(_salient(maps[0]) == (view.kind == "pasted")).to(partner.images.device)
    images = torch.where(inside, partner.images, sample.images)
    return Panel(eight_bit(images[0]), (_probability(classifier, images, right),))


def _probability(classifier: nn.Module, images: BatchImages, target: Target) -> str:
    """Format the probability of a target for an image, such as "p 0.913"."""
    with torch.no_grad():
        p = probabilities(classifier(images).double(), activation_of(classifier))
    return f"p {words.number(float((p * target.to(p)).sum()))}"


def _salient(values: np.ndarray) -> np.ndarray:
    """Return which pixels of a map (H, W) have values above the midpoint of the map's range, bool (H, W).

    The ICLR 2020 submission "On Evaluating Explainability Algorithms" calls this region S.
    """
    return values - values.min() > 0.5 * np.ptp(values.astype(np.float64))


def _terms(sample: SuiteSample, rule: str) -> TargetTerms | None:
    """Select a target with a rule that uses the sample's logits. Return None if there is no such target."""
    logits, groups = np.asarray(sample.row["logits"]), sample.model.question.groups
    ordered = [int(index) for index in np.argsort(-logits, kind="stable")]
    first = ordered[0]
    if rule == "false positive":
        absent = _likeliest_absent(sample.model.question.members, sample.row)
        return None if absent is None else TargetTerms((absent,))
    if rule in ("most likely", "least likely"):
        return TargetTerms((ordered[0 if rule == "most likely" else -1],))
    group = () if groups is None else groups.group_of(first)
    second = None if groups is None else groups.runner_up(first, logits)
    if rule == "contrast":
        return None if second is None else TargetTerms((first,), (second,))
    others = tuple(member for member in group if member != first)
    if rule == "class against group":
        return TargetTerms((first,), others) if others else None
    return TargetTerms(group) if group else None


def _parts(classifier: nn.Module, images: BatchImages, target: Target, maps: np.ndarray, view: ViewSpec) -> Panel:
    """Draw only the `top` pixels, the `rest` or the salient `region` of an image, as determined by its map.

    The reference replaces all other pixels. The text below shows the target's probability for the image as drawn.
    """
    height, width = images.shape[2:]
    if view.kind == "region":
        inside = _salient(maps[0])
        line = f"{inside.mean():.0%} of the image"
    else:
        inside = np.zeros(height * width, bool)
        inside[descending(maps)[0][: round(view.share * height * width)]] = True
        inside = inside.reshape(height, width) == (view.kind == "top")
        line = f"{'top' if view.kind == 'top' else 'without'} {view.share:.0%}"
    curves = Curves(classifier, images, target, maps)
    kept = torch.from_numpy(inside).to(images.device)[None, None]
    drawn = curves.drawn(torch.zeros(1, dtype=torch.long), kept, view.reference)
    return Panel(eight_bit(drawn[0]), (f"{line}, {_probability(classifier, drawn, target)}",))


def _figure(placed: dict, rows: list, columns: list, names: dict[str, str]) -> Figure:
    """Lay out the cells with row names on the left and column names on top."""
    lines = max(len(cell.lines) for cell in placed.values())
    step = CELL + LINE * (lines + 0.5)
    width, height = NAMES + len(columns) * CELL * 1.05, HEADING + len(rows) * step
    figure = Figure(figsize=(width, height))
    for row, column in product(range(len(rows)), range(len(columns))):
        if (cell := placed.get((*rows[row], *columns[column]))) is None:
            continue
        left, top = NAMES + column * CELL * 1.05, HEADING + row * step
        axes = figure.add_axes((left / width, 1 - (top + CELL) / height, CELL / width, CELL / height))
        axes.set_xticks([])
        axes.set_yticks([])
        if cell.pixels is not None:
            axes.imshow(np.asarray(Image.fromarray(cell.pixels)), interpolation="nearest")
        axes.spines[["left", "bottom"]].set_visible(cell.pixels is None)
        axes.set_xlabel("\n".join(line[:34] for line in cell.lines), fontsize=6, labelpad=2)
        if row == 0:
            axes.set_title(_called(columns[column], names), fontsize=7, pad=3)
        if column == 0:
            axes.set_ylabel(_called(rows[row], names), fontsize=7, rotation=0, ha="right", va="center", labelpad=4)
    return figure


def _called(key: Sequence[str], names: dict[str, str]) -> str:
    """Return the names that the paper uses for a row or column, one per line."""
    return "\n".join(names.get(name, name) for name in key)
