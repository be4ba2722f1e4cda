"""Samples of a run that are looked at once more: loaded, predicted and explained as the run did it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from saliency_bench.bound_explainer import Explainer, as_explainer
from saliency_bench.bound_metric import registered_metric
from saliency_bench.engine.context import RunContext
from saliency_bench.engine.loading.load import load
from saliency_bench.engine.predictions import answers
from saliency_bench.engine.python_objects import entries_of
from saliency_bench.engine.reading import read_chunk
from saliency_bench.errors import UserError
from saliency_bench.map_sources.map_provider import MapProvider
from saliency_bench.results.manifest import Manifest, differing_settings
from saliency_bench.scoring.inputs import MetricInputs, Other
from saliency_bench.spec import PythonObject
from saliency_bench.targets.rules import stack
from saliency_bench.types import Batch, Images, Target
from saliency_bench.utils.overlays import eight_bit, overlay
from saliency_bench.utils.seeds import seed_of


@dataclass(frozen=True)
class Sample:
    """A sample of a run: what is known of it before it is explained.

    Attributes:
        context: the run.
        batch: the sample alone, prepared.
        row: what the classifier says.
        target: what its maps explain.
        other: what the other classifier says; None without another.
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
            right = right_classes(context.other, of_other)
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
        batch = self.inputs(explainer, **more).score(registered_metric(name))
        return batch.values[0], batch.reasons[0] or ""

    def inputs(self, explainer: Explainer, **more: Any) -> MetricInputs:
        """Return what metrics get."""
        context = self.context
        right = None if context.question.members is None else right_classes(context, self.row)
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


def loaded(
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


def right_classes(context: RunContext, row: dict[str, Any]) -> np.ndarray:
    """Return Bool (1, K), the classes that are right."""
    right = context.question.right(row)
    return np.zeros((1, context.question.classes), bool) if right is None else right[None]
