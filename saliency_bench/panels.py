"""Implementation of `sb.draw`: rows of panels that show a metric's inputs for selected samples of a run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image

from saliency_bench.bound_explainer import Explainer
from saliency_bench.bound_metric import registered_metric
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.maps.map_provider import ExplainerRaisedError
from saliency_bench.compute.preflight import DRAWN_FIRST, PICTURE_FORMS, check_drawing
from saliency_bench.compute.scoring import bam
from saliency_bench.compute.scoring.perturbation import fraction_counts
from saliency_bench.errors import UserError, unknown
from saliency_bench.maps import descending
from saliency_bench.notebook_views import SIZE, StripLayout, layout, png, stacked, strip
from saliency_bench.read.finished_run import read_run
from saliency_bench.read.manifest import Manifest, read_manifest
from saliency_bench.read.report.plots import STYLE, check_form, write_figure
from saliency_bench.recipes.suites.suite_pictures import cell_of
from saliency_bench.recipes.suites.suite_samples import SuiteSample, loaded
from saliency_bench.recipes.suites.suite_schema import ViewSpec
from saliency_bench.target_weights import one_hot, probabilities
from saliency_bench.types import Images, Target
from saliency_bench.utils.files import write_with
from saliency_bench.utils.overlays import eight_bit, overlay

SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)  # shares of inserted pixels
OBJECT = "image_without_object"
DOTS = 96  # pixels per inch in PDF and SVG
METRICS = {"maps": (), "insertion": ("saliency_insertion",), "classes": ("saliency_class_sensitivity",),
           "models": ("saliency_mcr", "saliency_mcs"), "object": ("saliency_idr",)}  # fmt: skip
Panel = tuple[Image.Image, list[str]]
Rows = list[list[Panel]]
Drawn = tuple[Rows, list[dict[str, Any]]]  # rows of panels, and the scores of each sample and explainer


@dataclass(frozen=True, repr=False)
class Drawing:
    """Images of samples, which notebooks display.

    Attributes:
        rows: Panels of each row. A panel is an image with lines of text below it.
        scores: One dict per sample and explainer, which contains the scores. If there are several runs, it also
            contains the name of the run.
    """

    rows: Rows
    scores: list[dict[str, Any]]

    @property
    def picture(self) -> Image.Image:
        """Return all rows as a single image."""
        return stacked([strip(row) for row in self.rows])

    def save(self, out: str | Path) -> Path:
        """Write the image to a file and return the file's path. PDF and SVG files contain selectable text.

        Args:
            out: Output file. The suffix determines the format: .pdf, .svg, .png, .jpg or .webp.

        Raises:
            UserError: The suffix is not supported, or the file cannot be written.
        """
        path = Path(out)
        check_form(path, PICTURE_FORMS)
        if path.suffix.lower() in (".pdf", ".svg"):
            _write_figure(path, [layout(row) for row in self.rows])
        else:
            form = {".jpg": "JPEG", ".jpeg": "JPEG"}.get(path.suffix.lower(), path.suffix[1:].upper())
            write_with(path, lambda temporary: self.picture.save(temporary, format=form))
        return path

    def _repr_png_(self) -> bytes:
        return png(self.picture)


def draw(
    runs: Any, what: str = "maps", *, samples: Sequence[str] | None = None, explainers: Sequence[str] | None = None,
    device: str | None = None, out: str | Path | None = None,
) -> Drawing:  # fmt: skip
    """Draw the maps of selected samples of a run as a metric uses them.

        sb.draw("runs/first", "maps", samples=["cat-7"], out="maps.pdf")

    The command `saliency-bench draw` does the same. The dataset and model of the run are loaded again, and the maps are
    recomputed.

    Args:
        runs: A result of `run`, the folder of a run, or a list of these. If there are several runs, they are drawn
            one below the other.
        what: View to draw. "maps": the image, its mask and the map of each explainer with its scores. "insertion": the
            image at several steps of inserting the top pixels of each map. "classes": the maps of the most likely and
            the least likely class. "models": the maps of the run's two models. "object": the maps of the run's other
            model for the image with and without the object.
        samples: Ids of the samples. Defaults to the first two samples of the run.
        explainers: Names of explainers. Defaults to the explainers of the run.
        device: See `run`.
        out: Output file. The suffix determines the format: .pdf, .svg, .png, .jpg or .webp.

    Returns:
        Drawing with `picture`, `scores` and `save`.

    Raises:
        UserError: An argument is invalid, or a run cannot be loaded or lacks the requested data.
    """
    chosen = list(runs) if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs]
    folders = [Path(getattr(run, "folder", run)) for run in chosen]
    check_drawing(folders, what, explainers, None if out is None else Path(out))
    rows, scores = [], []
    for folder in folders:
        own_rows, own_scores = drawn(folder, what, samples, explainers, device)
        rows += own_rows
        scores += [({"run": folder.name} if len(folders) > 1 else {}) | row for row in own_scores]
    drawing = Drawing(rows, scores)
    if out is not None:
        drawing.save(out)
    return drawing


def _write_figure(path: Path, strips: Sequence[StripLayout]) -> None:
    """Write strips, stacked vertically, to a PDF or SVG file.

    The images are stored as pixels, and the text is selectable.
    """
    width, height = max(placed.size[0] for placed in strips), sum(placed.size[1] for placed in strips)
    with rc_context(STYLE | {"font.family": "DejaVu Sans", "svg.image_inline": True}):
        figure = Figure(figsize=(width / DOTS, height / DOTS))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        above = 0
        for placed in strips:
            for picture, left, top in placed.pictures:
                extent = (left, left + picture.width, above + top + picture.height, above + top)
                axes.imshow(picture, extent=extent, interpolation="none")
            for text, left, top, bold in placed.lines:
                axes.text(left, above + top, text, va="top", fontsize=SIZE * 72 / DOTS, parse_math=False,
                          fontweight="bold" if bold else "normal")  # fmt: skip
            above += placed.size[1]
        axes.set(xlim=(0, width), ylim=(height, 0), aspect="auto")
        write_figure(figure, path, tight=False)


def drawn(
    folder: Path, panel: str, samples: Sequence[str] | None, explainers: Sequence[str] | None, device: str | None
) -> Drawn:
    """Return (rows of panels, one dict {sample, explainer, scores} for each sample and explainer).

    Raises:
        UserError: The run cannot be loaded or lacks the requested data.
    """
    manifest = read_manifest(folder)
    if panel in ("models", "object") and manifest.spec.other_model is None:
        raise UserError(
            f"--what {panel} requires a second model, but the run in {folder} has none; use a run that was made with "
            "--other-model DIR --other-label COLUMN"
        )
    metrics = _metrics(manifest, panel)
    data, model, pairs = loaded(folder, manifest, metrics, explainers, device)
    names = data.samples.ids[: data.count]
    for name in samples or ():
        if name not in names:
            raise unknown("sample", name, names)
    rows: Rows = []
    scores: list[dict[str, Any]] = []
    for name in samples or names[:DRAWN_FIRST]:
        own_rows, own_scores = PANELS[panel](SuiteSample.at(names.index(name), data, model), list(pairs), metrics)
        rows += own_rows
        scores += own_scores
    return rows, scores


def _metrics(manifest: Manifest, panel: str) -> tuple[str, ...]:
    """Return the metrics of a view. For "insertion", use the run's options if the run computed the metric."""
    named = [cell.metric_text for cell in manifest.cells.values() if cell.metric == "saliency_insertion"]
    return (named[0],) if panel == "insertion" and named else METRICS[panel]


def _maps(sample: SuiteSample, explainers: Sequence[Explainer], metrics: Sequence[str]) -> Drawn:
    """Return a row with the image, its mask and each explainer's map, and with the scores from the run."""
    folder = Path(sample.data.spec.out).absolute()
    run = read_run(folder)
    mask = cell_of(sample, explainers[0], ViewSpec(kind="mask")).pixels
    assert mask is not None
    row: list[Panel] = [
        (sample.picture, [sample.name, folder.name]),
        (Image.fromarray(mask), [sample.batch.left_out[0] or "mask"]),
    ]
    scores = []
    for explainer in explainers:
        cell = cell_of(sample, explainer, ViewSpec())
        if cell.pixels is None:
            raise UserError(f"{explainer}: {', '.join(cell.lines)}")
        given = {each.metric_text: run.scores.values[each.cell_id][run.scores.position[sample.name]]
                 for each in run.cells if each.explainer_text == str(explainer) and not each.aggregate}  # fmt: skip
        known = {name: float(value) if np.isfinite(value) else None for name, value in given.items()}
        # Numbers first, because long names are cut at the panel's edge.
        lines = [f"{_number(value)} {name.removeprefix('saliency_')}" for name, value in known.items()]
        row.append((Image.fromarray(cell.pixels), [str(explainer), *lines]))
        scores.append(_about(sample, explainer) | known)
    return [row], scores


def _insertion(sample: SuiteSample, explainers: Sequence[Explainer], metrics: Sequence[str]) -> Drawn:
    """Return one row per explainer: its map, and the image at each of `SHARES` with the target's probability."""
    reference = str(dict(registered_metric(metrics[0]).options)["reference"])
    height, width = sample.images.shape[2:]
    counts = fraction_counts(height, width, SHARES)
    rows, scores = [], []
    for explainer in explainers:
        maps = _made(explainer, sample.provider(explainer), sample.images, sample.target)
        inputs = sample.inputs(explainer, maps=torch.from_numpy(maps))
        score = inputs.score(registered_metric(metrics[0]))
        values = inputs.curves.path("top", reference, counts)[0]
        about = [str(explainer), f"area {_number(score.values[0])}, {sample.name}"]
        row: list[Panel] = [(overlay(eight_bit(sample.images[0]), maps[0]), about)]
        order = descending(maps)[0]
        for share, count, value in zip(SHARES, counts, values, strict=True):
            kept = np.zeros(height * width, bool)
            kept[order[:count]] = True
            shown = inputs.curves.drawn(
                torch.tensor([0]), torch.from_numpy(kept).view(1, 1, height, width).to(sample.images.device),
                reference,
            )  # fmt: skip
            row.append((Image.fromarray(eight_bit(shown[0])), [f"p = {value:.3f}", f"top {share:.0%}"]))
        rows.append(row)
        curve = {f"top {share:.0%}": float(value) for share, value in zip(SHARES, values, strict=True)}
        scores.append(_about(sample, explainer) | {metrics[0]: score.values[0]} | curve)
    return rows, scores


def _classes(sample: SuiteSample, explainers: Sequence[Explainer], metrics: Sequence[str]) -> Drawn:
    """Return two rows: the maps of the most likely class, and the maps of the least likely class."""
    logits = torch.tensor([sample.row["logits"]])
    p = probabilities(logits.double(), sample.model.classifier.activation)[0]
    ends = [int(logits[0].argmax()), int(logits[0].argmin())]
    words = [f"{end} likely: {_label(sample.model.classifier, end_class)} ({p[end_class]:.3f})"
             for end, end_class in zip(("most", "least"), ends, strict=True)]  # fmt: skip
    rows: Rows = [[(sample.picture, [sample.name, text])] for text in words]
    scores = []
    for explainer in explainers:
        explain = sample.provider(explainer)
        score, reason = sample.scored(explainer, metrics[0])
        for row, end_class, text in zip(rows, ends, ("most likely", f"correlation {_number(score)}"), strict=True):
            target = one_hot([end_class], logits.shape[1]).to(sample.images.device)
            maps = _made(explainer, explain, sample.images, target)
            row.append((overlay(eight_bit(sample.images[0]), maps[0]), [str(explainer), text]))
        scores.append(_about(sample, explainer) | {metrics[0]: score} | _why(reason))
    return rows, scores


def _models(sample: SuiteSample, explainers: Sequence[Explainer], metrics: Sequence[str]) -> Drawn:
    """Return two rows: the maps of the run's model for its label, and those of the other model for its own label."""
    assert sample.other is not None
    labels, other = sample.labels, sample.other
    words = [
        f"model: {_name(sample.model.classifier, labels)}",
        f"other model: {_name(_other(sample), other.labels)}",
    ]
    rows: Rows = [[(sample.picture, [sample.name, text])] for text in words]
    scores = []
    for explainer in explainers:
        both = _raising(explainer, partial(bam.maps_of_both, sample.images, labels, other, sample.provider(explainer)))
        (mcr, reason), (mcs, _) = (sample.scored(explainer, name) for name in metrics)
        words = ["", f"MCR {_number(mcr)} (MCS {_number(mcs)})"]
        for row, maps, text in zip(rows, both, words, strict=True):
            row.append((sample.marked(maps[0]), [str(explainer), text]))
        scores.append(_about(sample, explainer) | dict(zip(metrics, (mcr, mcs), strict=True)) | _why(reason))
    return rows, scores


def _object(sample: SuiteSample, explainers: Sequence[Explainer], metrics: Sequence[str]) -> Drawn:
    """Return two rows: the other model's maps for its label, with the object in the image and without it."""
    assert sample.other is not None
    column, other = sample.batch.columns.get(OBJECT), sample.other
    if column is None or column.lacking[0] or not isinstance(column.values, torch.Tensor):
        raise UserError(f"{sample.name} has no {OBJECT}; choose a sample that has one")
    pictures = sample.images, column.values
    scene, rows = _name(_other(sample), other.labels), []
    for image, text in zip(pictures, ("with the object", "without"), strict=True):
        rows.append([(Image.fromarray(eight_bit(image[0])), [sample.name, f"{scene}, {text}"])])
    scores = []
    for explainer in explainers:
        score, reason = sample.scored(explainer, metrics[0])
        inside = []
        for row, image in zip(rows, pictures, strict=True):
            explain = partial(sample.provider(explainer), classifier=other.classifier)
            maps = bam.preprocessed(_made(explainer, explain, image, other.target))
            inside.append(float(bam.mean_inside(maps, sample.batch.masks.numpy())[0]))
            row.append((sample.marked(maps[0], image), [str(explainer), f"mean inside {inside[-1]:.3f}"]))
        shares = {metrics[0]: score, "inside with": inside[0], "inside without": inside[1]}
        scores.append(_about(sample, explainer) | shares | _why(reason))
    return rows, scores


PANELS = {"maps": _maps, "insertion": _insertion, "classes": _classes, "models": _models, "object": _object}


def _made(explainer: Explainer, explain: Callable[..., np.ndarray], images: Images, target: Target) -> np.ndarray:
    """Compute the map (1, H, W) of an image."""
    return _raising(explainer, partial(explain, images, target))


def _raising(explainer: Explainer, make: Callable[[], Any]) -> Any:
    """Call `make` and return its result.

    Raises:
        UserError: The explainer failed.
    """
    try:
        return make()
    except ExplainerRaisedError as error:
        raise UserError(f"{explainer}: {error}") from error


def _other(sample: SuiteSample) -> Classifier:
    assert sample.model.other is not None
    return sample.model.other.classifier


def _name(classifier: Classifier, right: np.ndarray) -> str:
    return ", ".join(_label(classifier, number) for number in np.flatnonzero(right[0]).tolist())


def _label(classifier: Classifier, number: int) -> str:
    return classifier.labels[number] if classifier.labels else str(number)


def _about(sample: SuiteSample, explainer: Explainer) -> dict[str, Any]:
    return {"sample": sample.name, "explainer": str(explainer)}


def _why(reason: str) -> dict[str, str]:
    return {"reason": reason} if reason else {}


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
