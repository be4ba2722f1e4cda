"""Samples of a finished run, loaded, predicted and explained again with the run's settings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from saliency_bench.bound_explainer import Explainer, as_explainer
from saliency_bench.bound_metric import registered_metric
from saliency_bench.compute.context import RunContext
from saliency_bench.compute.explain import Explained
from saliency_bench.compute.loading.load import load
from saliency_bench.compute.maps.map_provider import MapProvider
from saliency_bench.compute.predictions import answers
from saliency_bench.compute.python_objects import entries_of
from saliency_bench.compute.reading import read_batch
from saliency_bench.compute.score import inputs_of, other_of
from saliency_bench.compute.scoring.inputs import MetricInputs, OtherModel
from saliency_bench.compute.scoring.partners import PartnerSamples
from saliency_bench.compute.targets.rules import stack
from saliency_bench.errors import UserError
from saliency_bench.read.manifest import Manifest, differing_settings
from saliency_bench.spec import PythonObject
from saliency_bench.types import Batch, Images, Maps, Samples, Target
from saliency_bench.utils.overlays import eight_bit, overlay


@dataclass(frozen=True)
class SuiteSample:
    """A sample of a run, ready to be explained.

    Attributes:
        context: The run.
        predicted: The sample with the classifiers' predictions.
        target: Target of the maps.
    """

    context: RunContext
    predicted: Samples
    target: Target

    @classmethod
    def at(cls, context: RunContext, position: int) -> "SuiteSample":
        """Return the sample at a position of a run."""
        read, other = read_batch(context.data.samples, context.classifier, [position], strict=True), context.other
        assert read.samples is not None
        names = context.schema.names
        rows = answers(context.classifier, context.question, read, names)
        of_other = None
        if other is not None:
            of_other = answers(other.classifier, other.question, context.of_other(read), names)
        terms = context.question.target_of(rows[0], np.asarray(rows[0]["logits"]))
        target = stack([terms], context.question.classes).to(context.classifier.device)
        return cls(context, replace(read.samples, rows=rows, rows_of_other=of_other), target)

    @property
    def batch(self) -> Batch:
        """Return the prepared sample as a batch of one."""
        return self.predicted.batch

    @property
    def row(self) -> dict[str, Any]:
        """Return the classifier's prediction."""
        return self.predicted.rows[0]

    @cached_property
    def other(self) -> OtherModel | None:
        """Return the other classifier's prediction, or None."""
        other = self.context.other
        return None if other is None else other_of(other, self.batch, self.predicted.rows_of_other or [])

    @cached_property
    def partner(self) -> PartnerSamples | None:
        """Return the first sample that a metric of the run pairs with this sample, or None."""
        (position,) = self.predicted.positions
        plans = self.context.plans.values()
        places = next((plan.partners[position] for plan in plans if position in plan.partners), ())
        return self.context.partners(places[:1]) if places else None

    @property
    def labels(self) -> np.ndarray:
        """Return the correct classes, Bool (1, K)."""
        right = self.context.question.right(self.row)
        return np.zeros((1, self.context.question.classes), bool) if right is None else right[None]

    @property
    def name(self) -> str:
        """Image id of the sample."""
        return self.batch.ids[0]

    @property
    def images(self) -> Images:
        """The prepared frame (1, 3, H, W)."""
        return self.batch.images

    @cached_property
    def picture(self) -> Image.Image:
        """The prepared frame as a picture."""
        return Image.fromarray(eight_bit(self.images[0]))

    def provider(self, explainer: Explainer, seeds: Sequence[int] = ()) -> MapProvider:
        """Return the provider of the run's maps. `seeds` replace the sample's seeds."""
        seeds = seeds or [self.context.seed_for(self.name, "explain")]
        return MapProvider(explainer.seeded(self.context.spec.seed), self.context.classifier, seeds)

    def scored(self, explainer: Explainer, name: str) -> tuple[float | None, str]:
        """Return (score by a metric that needs no map, or None; reason if there is no score)."""
        batch = self.inputs(explainer).score(registered_metric(name))
        return batch.values[0], batch.reasons[0] or ""

    def inputs(self, explainer: Explainer, maps: Maps | None = None) -> MetricInputs:
        """Return the inputs of metrics, computed as in a run."""
        return inputs_of(self.context, self.predicted, explainer, self.target, Explained(maps))

    def marked(self, values: np.ndarray, image: Images | None = None) -> Image.Image:
        """Overlay a map on the image and draw the border of the mask in white."""
        pixels = np.asarray(overlay(eight_bit((self.images if image is None else image)[0]), values)).copy()
        inside = self.batch.masks[0].numpy()
        padded = np.pad(inside, 1)
        whole = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
        pixels[inside & ~whole] = 255
        return Image.fromarray(pixels)


def loaded(
    folder: Path, manifest: Manifest, metrics: Sequence[str], explainers: Sequence[str] | None, device: str | None
) -> RunContext:
    """Load a run with these metrics and explainers.

    Raises:
        UserError: The run cannot be loaded, or its inputs have changed.
    """
    spec = manifest.spec
    for setting in ("dataset", "model", "other_model"):
        if not isinstance(getattr(spec, setting), str | None):
            raise UserError(
                f"the {setting.replace('_', ' ')} of {folder} is a Python object, which is not stored in a file; use a "
                f"run that was defined by names and folders"
            )
    # For security, functions in files are loaded only if named in this call, never because run.json names them.
    objects: dict[PythonObject, object] = {}
    named = [entry for entry in spec.explainers if isinstance(entry, str)]
    chosen = entries_of("explainers", explainers, as_explainer, objects) if explainers else named
    if not chosen:
        raise UserError(f"{folder} has no explainer that can be loaded by name; specify --explainers")
    changes = {"metrics": tuple(metrics), "explainers": tuple(chosen), "maps": (), "keep_maps": False,
               "out": str(folder)}  # fmt: skip
    context = load(spec.model_copy(update=changes), objects, device)
    if differing := differing_settings(context.identity, manifest.identity):
        raise UserError(f"the {differing[0]} has changed since {folder} was written; repeat the run with another --out")
    return context
