"""Explain a single image, for use in a notebook."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from saliency_bench import notebook_views
from saliency_bench.bound_explainer import load_explainer
from saliency_bench.compute import targets
from saliency_bench.compute.classifiers.loading import load_classifier
from saliency_bench.compute.maps.default_explainer import fitting
from saliency_bench.compute.targets.class_groups import ClassGroups, load_groups
from saliency_bench.compute.targets.label_maps import index_of
from saliency_bench.compute.targets.terms import TargetTerms
from saliency_bench.errors import UserError, unknown, without_controls
from saliency_bench.target_weights import BINARY, two_weights, weighs_infinite
from saliency_bench.types import Maps, Target
from saliency_bench.utils.interrupts import handlers_end_work
from saliency_bench.utils.messages import complain
from saliency_bench.utils.overlays import eight_bit, overlay
from saliency_bench.utils.seeds import seed_of
from saliency_bench.utils.untouched import untouched

Asked = str | int | Sequence[str | int]  # a class, or several


@dataclass(frozen=True, repr=False)
class Explanation:
    """Prediction and saliency map of one image. A notebook shows the image and the map side by side.

    Attributes:
        map: Map that the explainer returned, Float32 (H, W), where (H, W) is the size of the image after the
            classifier's preprocessing.
        prediction: Name (or number) of the most probable class.
        probability: Probability of that class.
        target: Text that describes the explained target.
        explainer: Name and options of the explainer.
        overlay: Prepared image in grey with the map on top. In a signed map, values below zero are blue and values
            above zero are red.
        picture: Prepared image, as passed to the classifier.
        why: Reason for the choice of the explainer, if the caller did not name one.
        reliability: Expected correlation with a map that is computed from different random draws; None if the explainer
            draws no random numbers.
    """

    map: np.ndarray
    prediction: str
    probability: float
    target: str
    explainer: str
    overlay: Image.Image
    picture: Image.Image
    why: str = ""
    reliability: float | None = None

    def __repr__(self) -> str:
        height, width = self.map.shape
        chosen = f" (chosen: {self.why})" if self.why else ""
        return without_controls(
            f"{self.prediction} ({self.probability:.1%}), {self.explainer}{chosen} of {self.target}, "
            f"map {height} x {width}" + (f", {self._reliable}" if self._reliable else "")
        )

    @property
    def _reliable(self) -> str:
        """Return the reliability of the map as text, or "" if it is unknown."""
        return "" if self.reliability is None else f"reliability {self.reliability:.2f}"

    @property
    def caption(self) -> list[str]:
        """Caption below the map in a strip."""
        lines = [self.explainer, f"{self.prediction} ({self.probability:.1%})"]
        lines += [f"map of {self.target}"] * (self.target != self.prediction)
        return lines + [self._reliable] * bool(self._reliable)

    def _repr_png_(self) -> bytes:
        return notebook_views.png(
            notebook_views.strip([(self.picture, ["as the network sees it"]), (self.overlay, self.caption)])
        )

    def _repr_html_(self) -> str:
        names = f"{self.prediction} ({self.probability:.1%})", f"{self.explainer} of {self.target}"
        return notebook_views.pictures(dict(zip(names, (self.picture, self.overlay), strict=True)))


@handlers_end_work()
@untouched()
def explain(
    image: Image.Image | str | Path,
    model: Any,
    explainer: str | Callable[..., Maps] | None = None,
    *,
    target: Asked | Target | None = None,
    against: Asked | None = None,
    groups: ClassGroups | Mapping | str | Path | None = None,
    image_id: str | None = None,
    seed: int = 0,
    device: str | None = None,
    **options: object,
) -> Explanation:
    """Explain one image and return its prediction and saliency map.

        sb.explain(picture, "microsoft/resnet-18", "rise", masks=1000).overlay
        sb.explain(picture, "microsoft/resnet-18", "gradcam", target="tabby", against=["Egyptian cat", "tiger cat"])

    Args:
        image: PIL image or file name.
        model: Argument of `load_classifier`.
        explainer: Name, or a function (classifier, images, target) -> maps. None chooses an explainer that supports the
            network (`default_explainer.fitting`); the reason is printed, and the result contains it as `why`.
        target: None for the predicted class; a class by name or number; a group by its name, as a list of classes, or
            as names joined by "|"; or weights (1, K), which are (1, 1) for a single logit.
        against: Class or group to contrast with the target. If the group contains the target, only its other members
            are used.
        groups: Argument of `load_groups`. Groups of ImageNet, pets, VOC and shapes are bundled.
        image_id: Id of the image in a run. If it is passed, the map is identical to the map in that run, because the
            random draws are the same. If None, `seed` is the seed of the sample.
        seed: Seed of the run, or of the sample.
        device: Device to compute on.
        **options: Options of the explainer.

    Raises:
        UserError: A class or group is unknown (the message suggests names), the explainer has no such options, or the
            target's logits are NaN or infinite.
    """
    if options and not isinstance(explainer, str | None):
        raise UserError(
            "options apply only to an explainer given by name; bind them to the function with functools.partial"
        )
    why, method = "", None if explainer is None else load_explainer(explainer, **options)
    if isinstance(target, torch.Tensor) and against is not None:
        raise UserError(
            "target= is given as weights, which already define the contrast; remove against=, or pass the target as a "
            "class or group"
        )
    if isinstance(image, str | Path) and not Path(image).is_file():
        raise UserError(f"there is no image file {image}; pass the name of an existing file, or a PIL image")
    classifier = load_classifier(model, device=device)
    called = image if isinstance(image, str | Path) else "given to explain"
    images = classifier.prepare([{"image": image, "image_id": called}]).images
    with torch.no_grad():
        logits = classifier(images)
    if targets.no_probabilities(logits, classifier.activation).any():
        raise UserError(
            f"{classifier.id} returns NaN or infinite logits for this picture, so it predicts no class; use a "
            "different picture or model"
        )
    p, best = targets.probabilities(logits, classifier.activation)[0], int(logits[0].argmax())
    if isinstance(target, torch.Tensor):
        is_one = classifier.activation == BINARY and target.ndim == 2 and target.shape[1] == 1
        weights, words = two_weights(target) if is_one else target, "your own weights"
    else:
        terms = _terms(best if target is None else target, against, classifier.labels, len(p), groups)
        weights, words = terms.row(len(p)), terms.text(classifier.labels)
    if weights.shape[-1] == logits.shape[1] and weighs_infinite(logits, weights).any():
        raise UserError(
            f"the logit of {classifier.id} for {words} is infinite for every picture; explain a different class"
        )
    if method is None:
        name, why = fitting(classifier, images)
        complain(f"{classifier.id}: using {name}, because {why}; name an explainer to override this")
        method = load_explainer(name, **options)
    if against is not None and method.ignores_against:
        raise UserError(
            f"{method} always contrasts a class with all others; remove the option against=, or use on=logit"
        )
    sample_seed = seed if image_id is None else seed_of(seed, image_id, "explain")
    made = method.seeded(seed).made(classifier, images, weights, seeds=[sample_seed])
    values = made.maps[0].cpu().numpy()
    return Explanation(
        map=values,
        prediction=_name(best, classifier.labels),
        probability=float(p[best]),
        target=words,
        explainer=str(method),
        overlay=overlay(eight_bit(images[0]), values),
        picture=Image.fromarray(eight_bit(images[0])),
        why=why,
        reliability=made.reliability[0],
    )


def _terms(
    target: Asked,
    against: Asked | None,
    names: list[str] | None,
    classes: int,
    groups: ClassGroups | Mapping | str | Path | None,
) -> TargetTerms:
    known = load_groups(groups, names, classes)
    plus = _members(target, names, classes, known)
    if against is None:
        return TargetTerms(plus)
    minus = _members(against, names, classes, known)
    others = tuple(member for member in minus if member not in plus) if len(plus) == 1 else minus
    if not others or set(others) == set(plus):
        raise UserError(
            f"target={target} and against={against} are the same, so every map would be zero; choose different classes"
        )
    return TargetTerms(plus, others)


def _members(wanted: Asked, names: list[str] | None, classes: int, groups: ClassGroups | None) -> tuple[int, ...]:
    """Return the numbers of the requested classes. A name that is not a class is looked up as a group of classes."""
    if isinstance(wanted, str) and wanted not in (names or ()):
        called = dict(zip(groups.called, groups.members, strict=False)) if groups else {}
        if wanted in called:
            return called[wanted]
        if "|" in wanted:
            wanted = [part.strip() for part in wanted.split("|") if part.strip()]
    listed = list(wanted) if isinstance(wanted, Iterable) and not isinstance(wanted, str) else [wanted]
    if not listed:
        raise UserError("a group needs at least one class")
    try:
        return tuple(dict.fromkeys(index_of(member, names, classes) for member in listed))
    except UserError as error:
        if isinstance(wanted, str) and groups and groups.called and str(error).startswith("unknown"):
            raise unknown("class or group of the model", wanted, {*(names or ()), *groups.called}) from error
        raise


def _name(index: int, names: list[str] | None) -> str:
    return names[index] if names else str(index)
