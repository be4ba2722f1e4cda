"""Explains one picture, for use in a notebook."""

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from saliency_bench import targets
from saliency_bench.classifiers.loading import load_classifier
from saliency_bench.errors import UserError
from saliency_bench.explainer import as_explainer, load_explainer
from saliency_bench.maps import normalise
from saliency_bench.targets.label_maps import index_of
from saliency_bench.types import Maps, Target
from saliency_bench.utils.overlays import eight_bit, overlay


@dataclass(frozen=True, repr=False)
class Explanation:
    """The prediction and the saliency map of one picture; displayed as the overlay in a notebook.

    map           float32 (H, W), as the explainer returned it, in the prepared frame
    prediction    class name (or number) with the highest probability, and its `probability`
    target        what the map explains, as text
    overlay       the prepared picture in grey with the normalised map over it
    """

    map: np.ndarray
    prediction: str
    probability: float
    target: str
    explainer: str
    overlay: Image.Image

    def __repr__(self) -> str:
        height, width = self.map.shape
        return f"{self.prediction} ({self.probability:.1%}), {self.explainer} of {self.target}, map {height} x {width}"

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.overlay.save(buffer, format="png")
        return buffer.getvalue()


def explain(
    image: Image.Image | str | Path,
    model: Any,
    explainer: str | Callable[..., Maps] = "gradcam",
    *,
    target: str | int | Target | None = None,
    device: str | None = None,
    **options: object,
) -> Explanation:
    """The saliency map of one picture (a PIL image or a file).

    model: what `load_classifier` takes. explainer: a name (its options as keywords), or a function (classifier, images,
    target) -> maps. target: a class by name or number, weights (1, K), or None for the predicted class.

        sb.explain(picture, "microsoft/resnet-18", "rise", masks=1000).overlay
    """
    classifier = load_classifier(model, device=device)
    if options and not isinstance(explainer, str):
        raise UserError("options are for an explainer given by name; bind them to the function with functools.partial")
    method = load_explainer(explainer, **options) if isinstance(explainer, str) else as_explainer(explainer)
    images = classifier.prepare([{"image": image}]).images
    with torch.no_grad():
        probabilities = classifier(images).softmax(dim=1)[0]
    best = int(probabilities.argmax())
    weights, words = _target(target, best, classifier.labels, len(probabilities))
    values = method(classifier, images, weights)[0].cpu().numpy()
    return Explanation(
        map=values,
        prediction=_name(best, classifier.labels),
        probability=float(probabilities[best]),
        target=words,
        explainer=str(method),
        overlay=overlay(eight_bit(images[0]), normalise(values[None])[0]),
    )


def _target(target: Any, best: int, names: list[str] | None, classes: int) -> tuple[Target, str]:
    if isinstance(target, torch.Tensor):
        return target, "your own weights"
    chosen = best if target is None else index_of(target, names, classes)
    return targets.one_hot(chosen, classes), _name(chosen, names)


def _name(index: int, names: list[str] | None) -> str:
    return names[index] if names else str(index)
