"""The candidates of `choose`: every suitable explainer, each with a few settings, and their costs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args, get_type_hints

from saliency_bench import options, registry
from saliency_bench.bound_explainer import Explainer, as_explainer
from saliency_bench.bound_metric import Metric
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.layers import cam_layer, last_feature_map, layout_of
from saliency_bench.compute.misfits import COUNTS, check_fits
from saliency_bench.errors import UserError, one_line
from saliency_bench.recipes.suites.costs import cost_of_map, forward_pass, seconds_per_image
from saliency_bench.recipes.suites.suite_plan import WITH_GRADIENT
from saliency_bench.types import Images, Target

LESS = 4  # the cheaper setting of an explainer costs a quarter of the default
PER_OPTION = 2  # additional values to try for an option with several choices


@dataclass(frozen=True)
class Candidate:
    """An explainer with its options and its cost per image.

    Attributes:
        name: Name that a run uses for the explainer.
        explainer: Explainer with bound options.
        passes: Forward passes per map. 0 for explainers that need no passes, and for user-defined functions, whose
            cost is unknown.
    """

    name: str
    explainer: Explainer
    passes: int

    @property
    def baseline(self) -> bool:
        """Return whether the candidate ignores the network."""
        return self.explainer.baseline


def candidates(classifier: Classifier, images: Images, target: Target) -> tuple[list[Candidate], dict[str, str]]:
    """Return (candidates that suit a network, {name of any other explainer: reason why it is unsuitable}).

    Args:
        classifier: The network.
        images: An image of shape (1, 3, H, W), used to test the explainers.
        target: A target of shape (1, K).
    """
    fitting, misfits = [], {}
    for name in registry.names("explainers"):
        try:
            texts = [name, *_settings(name, classifier, images)]
            check_fits(as_explainer(name), classifier, images, target)
        except UserError as error:
            misfits[name] = one_line(error).partition(" (")[0].partition(";")[0]
            continue
        fitting += [candidate_of(as_explainer(text), images) for text in texts]
    return fitting, misfits


def candidate_of(explainer: Explainer, images: Images) -> Candidate:
    """Create a candidate from an explainer, with its cost for images of this size."""
    height, width = images.shape[2:]
    passes = explainer.declaration.passes_of(dict(explainer.options), height, width)
    return Candidate(str(explainer), explainer, passes)


def costs(
    chosen: Sequence[Candidate], metrics: Sequence[Metric], side: int
) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    """Return ({candidate: passes per map}, {(candidate, metric): passes per score}) for one image.

    A pass with gradients counts as three passes. A user-defined function counts as 0 unless it declares its passes.
    """
    maps, scoring = {}, {}
    for candidate in chosen:
        cost = cost_of_map(candidate.explainer, side)
        maps[candidate.name] = cost.forward + WITH_GRADIENT * cost.gradient
        for metric in metrics:
            pictures, further = metric.declaration.passes_of(dict(metric.options), side, side)
            scoring[candidate.name, str(metric)] = pictures + further * maps[candidate.name]
    return maps, scoring


def seconds_per_pass(classifier: Classifier, images: Images) -> float:
    """Time several forward passes of these images (B, 3, H, W). Return the seconds per image for the fastest pass."""
    return seconds_per_image(lambda: forward_pass(classifier, images), len(images))


def _settings(name: str, classifier: Classifier, images: Images) -> Iterator[str]:
    """Yield names of an explainer with other published settings.

    These settings are cheaper, or use a different baseline or an earlier layer.
    """
    function = as_explainer(name).function
    kinds = get_type_hints(function)
    for option, default in options.defaults(function).items():
        if option in COUNTS and isinstance(default, int):
            yield f"{name}:{option}={max(1, default // LESS)}"
        elif option in ("baseline", "reduction"):
            others = [value for value in get_args(kinds[option]) if value not in (default, "white")]
            yield from (f"{name}:{option}={value}" for value in others[:PER_OPTION])
        elif option == "layer" and (layer := _earlier_layer(classifier, images)):
            yield f"{name}:layer={options.spelled(layer)}"  # in a Sequential, the name may be "4"
        elif option == "relu" and default is True:
            yield f"{name}:relu=false"


def _earlier_layer(classifier: Classifier, images: Images) -> str | None:
    """Return the last layer with a larger feature map than Grad-CAM's layer, or None."""
    try:
        layout = layout_of(classifier, images, cam_layer(classifier, images))
    except UserError:  # the network has no feature maps, but some explainers with a layer option do not need them
        return None
    return None if layout is None else last_feature_map(classifier, images, layout.pixels)
