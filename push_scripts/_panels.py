"""Pictures of chosen samples for `draw`: what a metric sees of them, in rows of panels with words below."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from saliency_bench.bound_explainer import Explainer, as_explainer
from saliency_bench.bound_metric import load_metric
from saliency_bench.displays import stacked, strip
from saliency_bench.engine.context import RunContext
from saliency_bench.engine.loading.load import load
from saliency_bench.engine.predictions import answers
from saliency_bench.engine.python_objects import entries_of
from saliency_bench.engine.reading import read_chunk
from saliency_bench.errors import UserError, unknown
from saliency_bench.map_sources.map_provider import ExplainerRaisedError, MapProvider
from saliency_bench.maps import descending
from saliency_bench.metrics import _bam
from saliency_bench.push_scripts.draw import COUNT
from saliency_bench.results.manifest import Manifest, differing_settings, read_manifest
from saliency_bench.scoring.inputs import MetricInputs, Other
from saliency_bench.scoring.perturbation import fraction_counts
from saliency_bench.spec import PythonObject
from saliency_bench.target_weights import one_hot, probabilities
from saliency_bench.targets.rules import stack
from saliency_bench.types import Batch, Images, Target
from saliency_bench.utils.overlays import eight_bit, overlay
from saliency_bench.utils.seeds import seed_of

SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)  # of the pixels that have entered
OBJECT = "image_without_object"
METRICS = {"insertion": ("saliency_insertion",), "classes": ("saliency_class_sensitivity",),
           "models": ("saliency_mcr", "saliency_mcs"), "object": ("saliency_idr",)}  # fmt: skip
Panel = tuple[Image.Image, list[str]]
Rows = list[list[Panel]]


@dataclass(frozen=True)
class Sample:
    """A sample of a run: what is known of it before it is explained.

    Attributes:
        context: the run.
        position: of the sample in the run.
        row: what the classifier says.
        other: what the other classifier says.
    """

    context: RunContext
    batch: Batch
    row: dict[str, Any]
    target: Target
    other: Other | None

    @classmethod
    def at(cls, context: RunContext, position: int) -> "Sample":
        """Return the sample at a position of a run."""
        chunk = read_chunk(context.data.samples, context.classifier, [position], strict=True)
        assert chunk.batch is not None
        row, other = answers(context, chunk)[0], None
        terms = context.question.target_of(row, np.asarray(row["logits"]))
        if context.other is not None:
            of_other = answers(context.other, context.of_other(chunk))[0]
            right = _right(context.other, of_other)
            logits = torch.tensor([of_other["logits"]])
            other = Other(context.other.classifier, torch.from_numpy(right).float().to(context.other.classifier.device),
                          logits, right, [None])  # fmt: skip
        target = stack([terms], context.question.classes).to(context.classifier.device)
        return cls(context, chunk.batch, row, target, other)

    @property
    def name(self) -> str:
        """Its image id."""
        return self.batch.ids[0]

    @property
    def images(self) -> Images:
        """The prepared frame (1, 3, H, W)."""
        return self.batch.images

    @cached_property
    def picture(self) -> Image.Image:
        """The prepared frame as a picture."""
        return Image.fromarray(eight_bit(self.images[0]))

    def provider(self, explainer: Explainer) -> MapProvider:
        """Return what makes the maps of a run."""
        seed = seed_of(self.context.spec.seed, self.name, "explain")
        return MapProvider(explainer.seeded(self.context.spec.seed), self.context.classifier, [seed])

    def scored(self, explainer: Explainer, name: str, **more: Any) -> tuple[float | None, str]:
        """Return (the score that a run gives it, or None; why there is none)."""
        batch = self.inputs(explainer, **more).score(load_metric(name))
        return batch.values[0], batch.reasons[0] or ""

    def inputs(self, explainer: Explainer, **more: Any) -> MetricInputs:
        """Return what metrics get."""
        context = self.context
        right = None if context.question.members is None else _right(context, self.row)
        return MetricInputs(
            context.classifier, explainer.seeded(context.spec.seed), self.images, self.target,
            torch.tensor([self.row["logits"]]), lambda sample, purpose: seed_of(context.spec.seed, self.name, purpose),
            masks=self.batch.masks.numpy(), unusable=self.batch.left_out, labels=right, other=self.other,
            columns=self.batch.columns, run_seed=context.spec.seed, **more,
        )  # fmt: skip

    def marked(self, values: np.ndarray, image: Images | None = None) -> Image.Image:
        """Return a map over the picture, with the border of the mask in white."""
        pixels = np.asarray(overlay(eight_bit((self.images if image is None else image)[0]), values)).copy()
        inside = self.batch.masks[0].numpy()
        padded = np.pad(inside, 1)
        whole = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
        pixels[inside & ~whole] = 255
        return Image.fromarray(pixels)


def drawn(
    folder: Path, panel: str, samples: Sequence[str] | None, explainers: Sequence[str] | None, device: str | None
) -> tuple[Image.Image, list[dict[str, Any]]]:
    """Return (the picture; {sample, explainer, scores} of each sample and explainer).

    Raises:
        UserError: The run cannot be loaded again, or does not have what is asked for.
    """
    manifest = read_manifest(folder)
    if panel in ("models", "object") and manifest.spec.other_model is None:
        raise UserError(
            f"{folder} has no other model, whose maps --what {panel} shows; draw a run that was made with "
            "--other-model DIR --other-label COLUMN"
        )
    metrics = _metrics(manifest, panel)
    context = _loaded(folder, manifest, metrics, explainers, device)
    names = context.data.samples.ids[: context.data.count]
    for name in samples or ():
        if name not in names:
            raise unknown("sample", name, names)
    rows, scores = [], []
    for name in samples or names[:COUNT]:
        own_rows, own_scores = PANELS[panel](Sample.at(context, names.index(name)), metrics)
        rows += own_rows
        scores += own_scores
    return stacked([strip(row) for row in rows]), scores


def _metrics(manifest: Manifest, panel: str) -> tuple[str, ...]:
    """Return the metrics to draw; insertion with the options of the run's own, if it has any."""
    named = [cell.metric_text for cell in manifest.cells.values() if cell.metric == "saliency_insertion"]
    return (named[0],) if panel == "insertion" and named else METRICS[panel]


def _loaded(
    folder: Path, manifest: Manifest, metrics: Sequence[str], explainers: Sequence[str] | None, device: str | None
) -> RunContext:
    """Return the run, with these metrics and explainers.

    Raises:
        UserError: It is not what it was.
    """
    spec = manifest.spec
    for setting in ("dataset", "model", "other_model"):
        if not isinstance(getattr(spec, setting), str | None):
            raise UserError(
                f"the {setting.replace('_', ' ')} of {folder} is a Python object, which no file holds; draw a run of "
                "names and folders"
            )
    # Functions in files only as they are named now, never as somebody else's run.json names them.
    objects: dict[PythonObject, object] = {}
    named = [entry for entry in spec.explainers if isinstance(entry, str)]
    chosen = entries_of("explainers", explainers, as_explainer, objects) if explainers else named
    if not chosen:
        raise UserError(f"{folder} has no explainer that can be made again by its name; give --explainers")
    changes = {
        "metrics": tuple(metrics),
        "explainers": tuple(chosen),
        "maps": (),
        "keep_maps": False,
        "out": str(folder),
    }
    context = load(spec.model_copy(update=changes | {"out": str(folder)}), objects, device)
    if differing := differing_settings(context.identity, manifest.identity):
        raise UserError(f"the {differing[0]} is no longer that of {folder}; make the run again with another --out")
    return context


def _right(context: RunContext, row: dict[str, Any]) -> np.ndarray:
    """Return Bool (1, K), the classes that are right."""
    right = context.question.right(row)
    return np.zeros((1, context.question.classes), bool) if right is None else right[None]


def _insertion(sample: Sample, metrics: Sequence[str]) -> tuple[Rows, list[dict[str, Any]]]:
    """Return a row per explainer: its map, and the picture at each of `SHARES` with the probability of the target."""
    reference = str(dict(load_metric(metrics[0]).options)["reference"])
    height, width = sample.images.shape[2:]
    counts = fraction_counts(height, width, SHARES)
    rows, scores = [], []
    for explainer in sample.context.explainers:
        maps = _made(explainer, sample.provider(explainer), sample.images, sample.target)
        inputs = sample.inputs(explainer, maps=torch.from_numpy(maps))
        score = inputs.score(load_metric(metrics[0]))
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


def _classes(sample: Sample, metrics: Sequence[str]) -> tuple[Rows, list[dict[str, Any]]]:
    """Return two rows: the maps of the most likely class, and of the least likely."""
    logits = torch.tensor([sample.row["logits"]])
    p = probabilities(logits.double(), sample.context.classifier.activation)[0]
    ends = [int(logits[0].argmax()), int(logits[0].argmin())]
    words = [f"{end} likely: {_label(sample.context, end_class)} ({p[end_class]:.3f})"
             for end, end_class in zip(("most", "least"), ends, strict=True)]  # fmt: skip
    rows: Rows = [[(sample.picture, [sample.name, text])] for text in words]
    scores = []
    for explainer in sample.context.explainers:
        explain = sample.provider(explainer)
        score, reason = sample.scored(explainer, metrics[0])
        for row, end_class, text in zip(rows, ends, ("most likely", f"correlation {_number(score)}"), strict=True):
            target = one_hot([end_class], logits.shape[1]).to(sample.images.device)
            maps = _made(explainer, explain, sample.images, target)
            row.append((overlay(eight_bit(sample.images[0]), maps[0]), [str(explainer), text]))
        scores.append(_about(sample, explainer) | {metrics[0]: score} | _why(reason))
    return rows, scores


def _models(sample: Sample, metrics: Sequence[str]) -> tuple[Rows, list[dict[str, Any]]]:
    """Return two rows: the maps of the run's model for the label, and of the other model for its own."""
    assert sample.other is not None
    labels, other = _right(sample.context, sample.row), sample.other
    words = [f"model: {_named(sample.context, labels)}", f"other model: {_named(_other(sample), other.labels)}"]
    rows: Rows = [[(sample.picture, [sample.name, text])] for text in words]
    scores = []
    for explainer in sample.context.explainers:
        both = _raising(explainer, partial(_bam.maps_of_both, sample.images, labels, other, sample.provider(explainer)))
        (mcr, reason), (mcs, _) = (sample.scored(explainer, name) for name in metrics)
        words = ["", f"MCR {_number(mcr)} (MCS {_number(mcs)})"]
        for row, maps, text in zip(rows, both, words, strict=True):
            row.append((sample.marked(maps[0]), [str(explainer), text]))
        scores.append(_about(sample, explainer) | dict(zip(metrics, (mcr, mcs), strict=True)) | _why(reason))
    return rows, scores


def _object(sample: Sample, metrics: Sequence[str]) -> tuple[Rows, list[dict[str, Any]]]:
    """Return two rows: the maps of the other model for its label, with the object and without."""
    assert sample.other is not None
    column, other = sample.batch.columns.get(OBJECT), sample.other
    if column is None or column.lacking[0] or not isinstance(column.values, torch.Tensor):
        raise UserError(f"{sample.name} has no {OBJECT}; draw a sample that has a picture without its object")
    pictures = sample.images, column.values
    scene, rows = _named(_other(sample), other.labels), []
    for image, text in zip(pictures, ("with the object", "without"), strict=True):
        rows.append([(Image.fromarray(eight_bit(image[0])), [sample.name, f"{scene}, {text}"])])
    scores = []
    for explainer in sample.context.explainers:
        score, reason = sample.scored(explainer, metrics[0])
        inside = []
        for row, image in zip(rows, pictures, strict=True):
            explain = partial(sample.provider(explainer), classifier=other.classifier)
            maps = _bam.preprocessed(_made(explainer, explain, image, other.target))
            inside.append(float(_bam.mean_inside(maps, sample.batch.masks.numpy())[0]))
            row.append((sample.marked(maps[0], image), [str(explainer), f"mean inside {inside[-1]:.3f}"]))
        shares = {metrics[0]: score, "inside with": inside[0], "inside without": inside[1]}
        scores.append(_about(sample, explainer) | shares | _why(reason))
    return rows, scores


PANELS = {"insertion": _insertion, "classes": _classes, "models": _models, "object": _object}


def _made(explainer: Explainer, explain: Callable[..., np.ndarray], images: Images, target: Target) -> np.ndarray:
    """Return a map (1, H, W)."""
    return _raising(explainer, partial(explain, images, target))


def _raising(explainer: Explainer, make: Callable[[], Any]) -> Any:
    """Return what `make` returns.

    Raises:
        UserError: The explainer failed.
    """
    try:
        return make()
    except ExplainerRaisedError as error:
        raise UserError(f"{explainer}: {error}") from error


def _other(sample: Sample) -> RunContext:
    """Return the run of the other model."""
    assert sample.context.other is not None
    return sample.context.other


def _named(context: RunContext, right: np.ndarray) -> str:
    """Return the classes that are right, by name."""
    return ", ".join(_label(context, number) for number in np.flatnonzero(right[0]).tolist())


def _label(context: RunContext, number: int) -> str:
    """Return the name of a class."""
    return context.classifier.labels[number] if context.classifier.labels else str(number)


def _about(sample: Sample, explainer: Explainer) -> dict[str, Any]:
    """Return sample and explainer."""
    return {"sample": sample.name, "explainer": str(explainer)}


def _why(reason: str) -> dict[str, str]:
    """Return why there is no score, if there is none."""
    return {"reason": reason} if reason else {}


def _number(value: float | None) -> str:
    """Return a number as text."""
    return "–" if value is None else f"{value:.3f}"
