"""Score samples outside a run, for metrics that call the classifier and the explainer themselves."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from saliency_bench.bound_explainer import Explainer, as_explainer
from saliency_bench.bound_metric import Metric, check_without_people, load_metric
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.loading import load_classifier
from saliency_bench.compute.maps.map_provider import ExplainerRaisedError, MapProvider
from saliency_bench.compute.scoring.draws import Draws
from saliency_bench.compute.scoring.inputs import MetricInputs, OtherModel
from saliency_bench.compute.scoring.partners import PartnerSamples, PartnerSource, Predictions, plan_of
from saliency_bench.compute.scoring.perturbation import (
    check_batch_size,
    check_frame,
    per_image,
    read_images,
    right_classes,
)
from saliency_bench.compute.targets.class_groups import ClassGroups, load_groups
from saliency_bench.errors import UserError
from saliency_bench.maps import read_masks
from saliency_bench.score_notes import INFINITE_LOGIT, NO_PROBABILITIES, lacks
from saliency_bench.target_weights import BINARY, no_probabilities, one_hot, probabilities, two_weights, weighs_infinite
from saliency_bench.types import Column, Images, Maps, Scores, Target
from saliency_bench.utils.interrupts import handlers_end_work
from saliency_bench.utils.untouched import untouched


@handlers_end_work()
@untouched()
def score_samples(
    metric: str | Metric | Callable[..., Scores],
    images: Images | np.ndarray,
    classifier: nn.Module | str | Path,
    explainer: str | Explainer | Callable[..., Maps],
    *,
    target: Target | Sequence[int] | None = None,
    labels: Sequence[int] | np.ndarray | None = None,
    groups: ClassGroups | Mapping | str | Path | None = None,
    masks: np.ndarray | Tensor | None = None,
    columns: Mapping[str, Any] | None = None,
    other: nn.Module | str | Path | None = None,
    other_labels: Sequence[int] | np.ndarray | None = None,
    seeds: Sequence[int] | None = None,
    image_ids: Sequence[str] | None = None,
    seed: int = 0,
    batch_size: int = 16,
    parts: bool = False,
    **options: object,
) -> Scores:
    """Return a metric's scores for images (B, 3, H, W) in [0, 1], float64 (B,). An undefined score is NaN.

    Args:
        metric: Name of a metric, or your own function (`declarations`).
        images: Prepared images.
        classifier: Argument of `load_classifier`.
        explainer: Name of an explainer, or a function (classifier, images, target) -> maps.
        target: Weights (B, K) or (1, K), or the class of each image (B,); None for the predicted class.
        labels: Correct class of each image (B,), or bool (B, K), for metrics that need accuracy.
        groups: Argument of `load_groups`.
        masks: Masks (B, H, W), bool or with values 0 and one other number, for metrics that need masks.
        columns: Additional columns of the dataset: {name: pictures (B, 3, H, W) in [0, 1], or list of values}.
        other: Second classifier, for metrics that compare two classifiers.
        other_labels: Correct class of each image for the second classifier.
        seeds: Seed of each image's random draws; None for 0 to B-1.
        image_ids: Ids of the images in a run, instead of `seeds`. The scores then equal the run's scores exactly,
            provided that `batch_size` and the order of the images are also the same.
        seed: Seed of the run. It also determines random draws that all images share, such as the masks of RISE or the
            weights of a randomised network.
        batch_size: Number of samples per batch.
        parts: Whether to return the parts (B, P) of the scores, as `score_parts` does.
        **options: Options of the metric.

    Raises:
        UserError: An argument is invalid, maps or logits are not finite, or the metric has a single value for all
            samples and only its parts have a value per sample.
    """
    if isinstance(metric, Metric) and options:
        raise UserError(f"{metric.name} already has its options; remove {next(iter(options))}=")
    metric = load_metric(metric, **options)
    if metric.aggregate is not None and not parts:
        raise UserError(f"{metric} has one value for all samples and no value per sample; use score_parts")
    images, given = _checked(metric, images, target)
    inside, further = _masks(metric, masks, images), _columns(metric, columns or {}, images)
    draws = Draws.given(len(images), seeds, image_ids, seed)
    right = _labels(metric, labels, len(images))
    second, right_of_other = _other(metric, other, other_labels, len(images))
    check_batch_size(batch_size)
    explainer, module = as_explainer(explainer).seeded(seed), load_classifier(classifier)
    partners = _partners(metric, images, module, right, draws, batch_size)
    scored = []
    for start in range(0, len(images), batch_size):
        part = slice(start, start + batch_size)
        weights = None if given is None else given[part]
        inputs = _inputs(metric, images[part].to(module.device), module, explainer, weights, groups, draws[part])
        inputs.run_seed = seed
        inputs.labels = None if right is None else right_classes(right[part], inputs.logits.shape[1])
        inputs.masks = None if inside is None else inside[part]
        inputs.unusable = None if inside is None else [None if mask.any() else "empty mask" for mask in inside[part]]
        if second is not None and right_of_other is not None:
            inputs.other = _classified(second, inputs.images, right_of_other[part])
        inputs.columns = {name: column.part(range(len(images))[part]) for name, column in further.items()}
        inputs.partners = partners and partners(range(start, min(start + batch_size, len(images))))
        batch = inputs.score(metric)
        if faulty := batch.faulty | inputs.map_faults | inputs.faults:
            first = min(faulty)
            raise UserError(f"{metric.name} of {explainer}, image {start + first}: {faulty[first]}")
        scored.append(batch)
    if parts:
        return np.concatenate([np.stack(list(map(_numbers, batch.parts.values())), axis=1) for batch in scored])
    return np.concatenate([_numbers(batch.values) for batch in scored])


def score_parts(
    metric: str | Metric,
    images: Images | np.ndarray,
    classifier: nn.Module | str | Path,
    explainer: str | Explainer | Callable[..., Maps],
    **given: Any,
) -> np.ndarray:
    """Return the parts of the scores that `score_samples` returns, float64 (B, P). An undefined part is NaN."""
    return score_samples(metric, images, classifier, explainer, parts=True, **given)


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values])


def _partners(
    metric: Metric, images: Tensor, classifier: Classifier, labels: np.ndarray | None, draws: Draws, batch_size: int
) -> Callable[[Sequence[int]], PartnerSource] | None:
    """Return the function that returns a batch's `PartnerSource`, or None if the metric needs no partners."""
    if metric.declaration.plan is None:
        return None
    with untouched(classifier), torch.no_grad():
        logits = torch.cat([classifier(part.to(classifier.device)).cpu() for part in images.split(batch_size)])
    p = probabilities(logits.double(), classifier.activation).float().numpy()
    p[no_probabilities(logits, classifier.activation)] = np.nan
    right = np.zeros(p.shape, bool) if labels is None else right_classes(labels, p.shape[1])
    ids = [str(sample) for sample in draws.samples]
    plan = plan_of(metric, Predictions(draws.run or 0, ids, right, p, classifier.activation))

    def load(places: Sequence[int]) -> PartnerSamples:
        seeds, chosen = draws.seeds("explain"), list(places)
        return PartnerSamples([ids[place] for place in chosen], images[chosen].to(classifier.device), right[chosen],
                      [seeds[place] for place in chosen])  # fmt: skip

    return lambda samples: PartnerSource({metric: plan}, samples, load, batch_size)


def _checked(
    metric: Metric,
    images: Images | np.ndarray,
    target: Target | Sequence[int] | None,
) -> tuple[Images, Tensor | None]:
    """Check images and target, and return them with one entry per sample.

    Raises:
        UserError: The metric does not accept the images or the target.
    """
    check_without_people(metric)
    if target is not None and not metric.asks_of_target:
        raise UserError(f"{metric.name} chooses its own classes; leave out the target and the classes")
    images = read_images(images)
    if images.ndim != 4 or images.shape[1] != 3 or len(images) == 0:
        raise UserError(f"{metric.name} needs images of shape (B, 3, H, W) in [0, 1]; got {tuple(images.shape)}")
    check_frame(images)
    return images, None if target is None else per_image(torch.as_tensor(target), len(images))


def _masks(metric: Metric, masks: np.ndarray | Tensor | None, images: Images) -> np.ndarray | None:
    """Return the checked masks.

    Raises:
        UserError: The metric needs masks and an image has none, or masks are passed but the metric does not use them.
    """
    if ("masks" in metric.inputs) != (masks is not None):
        raise UserError(f"{metric.name} needs {'masks; pass one for each image' if masks is None else 'no masks'}")
    if masks is None:
        return None
    try:
        inside, shape = read_masks(masks), (len(images), *images.shape[2:])
    except ValueError as error:
        raise UserError(error) from error
    if inside.shape != shape:
        raise UserError(f"the masks of these images must have the shape {shape}; got {inside.shape}")
    return inside


def _columns(metric: Metric, given: Mapping[str, Any], images: Images) -> dict[str, Column]:
    """Return the checked additional columns.

    Raises:
        UserError: A column that the metric needs does not have one value per image, or a column is passed that the
            metric does not use.
    """
    if differing := set(metric.declaration.columns) ^ set(given):
        name = min(differing)
        if name in metric.declaration.columns:
            raise UserError(f"{metric.name} needs the column {name}; pass columns={{'{name}': ...}}")
        raise UserError(f"{metric.name} needs no column {name}; leave it out")
    return {name: _column(name, values, images) for name, values in given.items()}


def _column(name: str, given: Any, images: Images) -> Column:
    """Check an additional column, which contains pictures or values, and return it."""
    if len(given) != len(images):
        raise UserError(f"the column {name} has {len(given)} values for {len(images)} images; pass one for each")
    if np.ndim(given) == 4:
        pictures = read_images(given)
        check_frame(pictures)
        if pictures.shape != images.shape:
            shapes = f"{tuple(pictures.shape)}, but the images have the shape {tuple(images.shape)}"
            raise UserError(f"the pictures of {name} have the shape {shapes}; prepare them like the images")
        return Column(pictures.to(images.device), [None] * len(images))
    values = list(given)
    return Column(values, [lacks(name) if value is None else None for value in values])


def _labels(metric: Metric, labels: Sequence[int] | np.ndarray | None, count: int) -> np.ndarray | None:
    """Return the checked labels.

    Raises:
        UserError: The metric needs labels and a sample has none, or labels are passed but the metric does not use them.
    """
    if ("labels" in metric.inputs) != (labels is not None):
        if labels is None:
            raise UserError(f"{metric.name} needs correct classes; pass labels= (the class of each image)")
        raise UserError(f"{metric.name} needs no labels; leave them out")
    given = None if labels is None else np.asarray(labels)
    if given is not None and (given.ndim not in (1, 2) or len(given) != count):
        raise UserError(f"pass one label or row of correct classes for each of the {count} images; got {given.shape}")
    return given


def _other(
    metric: Metric, other: nn.Module | str | Path | None, labels: Sequence[int] | np.ndarray | None, count: int
) -> tuple[Classifier | None, np.ndarray | None]:
    """Return the checked second classifier and its labels.

    Raises:
        UserError: A second classifier or its labels are missing, or the metric does not use a second classifier.
    """
    if "other" not in metric.inputs and (other is not None or labels is not None):
        raise UserError(f"{metric.name} needs no second classifier; remove other= and other_labels=")
    if "other" not in metric.inputs:
        return None, None
    if other is None or labels is None:
        raise UserError(
            f"{metric.name} needs a second classifier; pass other= (the classifier) and other_labels= (its correct "
            "class for each image)"
        )
    given = np.asarray(labels)
    if given.ndim not in (1, 2) or len(given) != count:
        raise UserError(f"pass one entry of other_labels for each of the {count} images; got {given.shape}")
    return load_classifier(other), given


def _classified(classifier: Classifier, images: Images, labels: np.ndarray) -> OtherModel:
    with untouched(classifier), torch.no_grad():
        logits = classifier(images).cpu()
    right = right_classes(labels, logits.shape[1])
    without = no_probabilities(logits, classifier.activation)
    lacking = [f"other model: {NO_PROBABILITIES}" if is_lacking else None for is_lacking in without.tolist()]
    return OtherModel(classifier, logits, right, lacking)


def known_groups(
    metric: Metric, groups: ClassGroups | Mapping | str | Path | None, classifier: nn.Module, classes: int
) -> ClassGroups:
    """Return the groups of classes that a metric needs.

    Raises:
        UserError: No groups are given, and no bundled groups match the classes.
    """
    known = load_groups(groups, getattr(classifier, "labels", None), classes)
    if known is None:
        raise UserError(
            f"{metric.name} needs groups of classes; pass groups={{name: [class, ...]}}, or a file with such groups"
        )
    return known


def _inputs(
    metric: Metric,
    images: Images,
    classifier: Classifier,
    explainer: Explainer,
    given: Tensor | None,
    groups: ClassGroups | Mapping | str | Path | None,
    draws: Draws,
) -> MetricInputs:
    """Return a metric's inputs. `given` is the target (B, K), the classes (B,), or None for the predicted classes."""
    with untouched(classifier), torch.no_grad():
        logits = classifier(images).cpu()
    classes = logits.shape[1]
    given = logits.argmax(dim=1) if given is None else given
    target = (one_hot(given, classes) if given.ndim == 1 else given).to(images.device)
    if target.shape[1] == 1 and classifier.activation == BINARY:
        target = two_weights(target)
    if target.shape[1] != classes:
        raise UserError(
            f"the target has {target.shape[1]} classes, but the classifier has {classes}; pass one weight per class"
        )
    known = known_groups(metric, groups, classifier, classes) if "groups" in metric.inputs else None
    faults = dict.fromkeys(np.flatnonzero(no_probabilities(logits, classifier.activation)).tolist(), NO_PROBABILITIES)
    if metric.asks_of_target:
        faults |= dict.fromkeys(np.flatnonzero(weighs_infinite(logits, target)).tolist(), INFINITE_LOGIT)
    inputs = MetricInputs(
        classifier, explainer, images, target, logits, draws.seed, groups=known,
        faults=faults,
    )  # fmt: skip
    if {"maps", "curves"} & set(metric.inputs):
        explain = MapProvider(explainer, classifier, draws.seeds("explain"))
        try:
            inputs.maps = torch.from_numpy(explain(images, target))
        except ExplainerRaisedError as error:
            raise UserError(f"{metric.name} of {explainer}: {error}") from error
        inputs.map_faults = explain.faulty
    return inputs
