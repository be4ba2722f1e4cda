"""Load samples from a finished run, and classify and explain them again with the run's settings."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from saliency_bench.bound_explainer import Explainer, as_explainer
from saliency_bench.bound_metric import Metric, registered_metric
from saliency_bench.compute.explain import Explained
from saliency_bench.compute.loaded import Pairs, RunModel, identity_of
from saliency_bench.compute.loading.load import load
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.compute.maps.map_provider import MapProvider
from saliency_bench.compute.predictions import answers
from saliency_bench.compute.python_objects import entries_of
from saliency_bench.compute.reading import read_batch
from saliency_bench.compute.score import inputs_of, other_of
from saliency_bench.compute.scoring.inputs import MetricInputs, OtherModel
from saliency_bench.compute.scoring.partners import PartnerPlan, PartnerSamples
from saliency_bench.compute.targets.rules import stack
from saliency_bench.errors import UserError
from saliency_bench.read.manifest import Manifest, differing_settings
from saliency_bench.spec import PythonObject
from saliency_bench.types import Batch, Images, Maps, Samples, Target
from saliency_bench.utils.overlays import eight_bit, overlay
from saliency_bench.utils.seeds import seed_of


@dataclass(frozen=True)
class SuiteSample:
    """A sample of a run, ready to be explained.

    Attributes:
        data: Samples of the run.
        model: Network of the run.
        predicted: The sample with the predictions of the run's network and, if the run has one, of its other network.
        target: Target of the maps.
        plans: {metric that needs partners: partner plan}, or None if no partners are needed.
    """

    data: SplitTable
    model: RunModel
    predicted: Samples
    target: Target
    plans: dict[Metric, PartnerPlan] = field(default_factory=dict)

    @classmethod
    def at(
        cls, position: int, data: SplitTable, model: RunModel, plans: dict[Metric, PartnerPlan] | None = None
    ) -> "SuiteSample":
        """Return the sample at this position in a run."""
        classifier, question, other = model.classifier, model.question, model.other
        read = read_batch(data.samples, classifier, [position], strict=True)
        assert read.samples is not None
        names = data.schema.names
        rows = answers(classifier, question, read, names)
        of_other = None
        if other is not None:
            of_other = answers(other.classifier, other.question, model.of_other(read), names)
        terms = question.target_of(rows[0], np.asarray(rows[0]["logits"]))
        target = stack([terms], question.classes).to(classifier.device)
        return cls(data, model, replace(read.samples, rows=rows, rows_of_other=of_other), target, plans or {})

    @property
    def batch(self) -> Batch:
        """Return the preprocessed sample as a batch of one."""
        return self.predicted.batch

    @property
    def row(self) -> dict[str, Any]:
        """Return the row that contains the classifier's prediction for the sample."""
        return self.predicted.rows[0]

    @cached_property
    def other(self) -> OtherModel | None:
        """Return the run's other classifier with its prediction, or None if there is no other classifier."""
        other = self.model.other
        return None if other is None else other_of(other, self.predicted, self.data.spec.strict)

    @cached_property
    def partner(self) -> PartnerSamples | None:
        """Return the first sample that a metric of the run compares with this sample, or None."""
        (position,) = self.predicted.positions
        plans = self.plans.values()
        places = next((plan.partners[position] for plan in plans if position in plan.partners), ())
        return self.model.partners(self.data, places[:1]) if places else None

    @property
    def labels(self) -> np.ndarray:
        """Return whether each class is correct, bool (1, K)."""
        right = self.model.question.right(self.row)
        return np.zeros((1, self.model.question.classes), bool) if right is None else right[None]

    @property
    def name(self) -> str:
        """The sample's image id."""
        return self.batch.ids[0]

    @property
    def images(self) -> Images:
        """The preprocessed image, (1, 3, H, W)."""
        return self.batch.images

    @cached_property
    def picture(self) -> Image.Image:
        """The preprocessed image as a PIL image."""
        return Image.fromarray(eight_bit(self.images[0]))

    def provider(self, explainer: Explainer, seeds: Sequence[int] = ()) -> MapProvider:
        """Return the object that provides the run's maps to metrics.

        If `seeds` are given, they replace the sample's seeds.
        """
        seed = self.data.spec.seed
        seeds = seeds or [seed_of(seed, self.name, "explain")]
        return MapProvider(explainer.seeded(seed), self.model.classifier, seeds)

    def scored(self, explainer: Explainer, name: str) -> tuple[float | None, str]:
        """For a metric that needs no map, return (score or None, reason for a missing score or "")."""
        batch = self.inputs(explainer).score(registered_metric(name))
        return batch.values[0], batch.reasons[0] or ""

    def inputs(self, explainer: Explainer, maps: Maps | None = None) -> MetricInputs:
        """Return the inputs for metrics, computed as in a run."""
        return inputs_of(self.data, self.model, self.predicted, explainer, self.target, Explained(maps))

    def marked(self, values: np.ndarray, image: Images | None = None) -> Image.Image:
        """Overlay a map on the image, and outline the mask in white."""
        pixels = np.asarray(overlay(eight_bit((self.images if image is None else image)[0]), values)).copy()
        inside = self.batch.masks[0].numpy()
        padded = np.pad(inside, 1)
        whole = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
        pixels[inside & ~whole] = 255
        return Image.fromarray(pixels)


def loaded(
    folder: Path, manifest: Manifest, metrics: Sequence[str], explainers: Sequence[str] | None, device: str | None
) -> tuple[SplitTable, RunModel, Pairs]:
    """Load a run, restricted to these metrics and explainers.

    Raises:
        UserError: The run cannot be loaded, or its inputs have changed.
    """
    spec = manifest.spec
    for setting in ("dataset", "model", "other_model"):
        if not isinstance(getattr(spec, setting), str | None):
            raise UserError(
                f"the {setting.replace('_', ' ')} of {folder} is a Python object, which is not stored in a file; use "
                "a run whose settings are names and folders"
            )
    # For security, functions in files are loaded only if named in this call, never because run.json names them.
    objects: dict[PythonObject, object] = {}
    named = [entry for entry in spec.explainers if isinstance(entry, str)]
    chosen = entries_of("explainers", explainers, as_explainer, objects) if explainers else named
    if not chosen:
        raise UserError(f"no explainer of {folder} can be loaded by name; specify --explainers")
    changes = {"metrics": tuple(metrics), "explainers": tuple(chosen), "maps": (), "keep_maps": False,
               "out": str(folder)}  # fmt: skip
    data, model, pairs = load(spec.model_copy(update=changes), objects, device)
    if differing := differing_settings(identity_of(data, model), manifest.identity):
        raise UserError(
            f"the {differing[0]} has changed since {folder} was written; repeat the run with a different --out"
        )
    return data, model, pairs
