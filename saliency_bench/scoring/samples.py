"""A metric on samples at hand, outside a run: for metrics that call the classifier and the explainer themselves."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.classifiers.loading import load_classifier
from saliency_bench.errors import UserError
from saliency_bench.explainer import Explainer, as_explainer, untouched
from saliency_bench.explaining.map_provider import ExplainerRaisedError, MapProvider
from saliency_bench.metric import Metric, load_metric
from saliency_bench.reasons import NO_PROBABILITIES
from saliency_bench.scoring.inputs import MetricInputs
from saliency_bench.scoring.perturbation import check_frame, read_images
from saliency_bench.target import no_probabilities, one_hot
from saliency_bench.targets.class_groups import ClassGroups, load_groups
from saliency_bench.types import Images, Maps, Scores, Target


def score_samples(
    metric: str | Metric,
    images: Images | np.ndarray,
    classifier: nn.Module | str | Path,
    explainer: str | Explainer | Callable[..., Maps],
    *,
    target: Target | Sequence[int] | None = None,
    groups: ClassGroups | Mapping | str | Path | None = None,
    seeds: Sequence[int] | None = None,
    batch_size: int = 16,
    **options: object,
) -> Scores:
    """Float64 (B,): a metric that needs no masks, on images (B, 3, H, W) in [0, 1]; NaN where it is not defined.

    classifier: what `load_classifier` takes. explainer: a name or a function (classifier, images, target) -> maps.
    target: weights (B, K) or (1, K), or the class of each image (B,); None: the class that is predicted. groups: what
    `load_groups` takes. seeds: one for each image, for what is drawn at random; None: 0 to B-1.

    Raises: UserError for invalid arguments, and for maps or logits that are not finite.
    """
    metric = metric if isinstance(metric, Metric) else load_metric(metric, **options)
    explainer, module = as_explainer(explainer).seeded(0), load_classifier(classifier)
    images, given, seeds = _checked(metric, images, target, seeds)
    if batch_size < 1:
        raise UserError(f"batch_size={batch_size} must be 1 or more")
    scores = []
    for start in range(0, len(images), batch_size):
        part = slice(start, start + batch_size)
        weights = None if given is None else given[part]
        inputs = _inputs(metric, images[part].to(module.device), module, explainer, weights, groups, seeds[part])
        batch = inputs.score(metric)
        if faulty := batch.faulty | inputs.faults:
            first = min(faulty)
            raise UserError(f"{metric.name} of {explainer}, image {start + first}: {faulty[first]}")
        scores.append(np.array([np.nan if value is None else value for value in batch.values]))
    return np.concatenate(scores)


def _checked(
    metric: Metric,
    images: Images | np.ndarray,
    target: Target | Sequence[int] | None,
    seeds: Sequence[int] | None,
) -> tuple[Images, Tensor | None, list[int]]:
    """Images, target and seeds, one of each per sample. Raises: UserError for what the metric cannot take."""
    if "masks" in metric.needs:
        raise UserError(f"{metric.name} needs masks; call its function, or saliency_bench.run")
    if target is not None and not {"target", "maps", "curves"} & set(metric.needs):
        raise UserError(f"{metric.name} asks about classes of its own choice; leave out target and classes")
    images = read_images(images)
    if images.ndim != 4 or images.shape[1] != 3 or len(images) == 0:
        raise UserError(f"{metric.name} needs images of shape (B, 3, H, W) in [0, 1]; these have {tuple(images.shape)}")
    check_frame(images)
    listed = list(range(len(images))) if seeds is None else list(seeds)
    given = None if target is None else torch.as_tensor(target)
    if given is not None and given.ndim == 2 and len(given) == 1:
        given = given.expand(len(images), -1)
    if len(listed) != len(images) or (given is not None and len(given) != len(images)):
        raise UserError(f"give one seed and one class, or row of the target, for each of the {len(images)} images")
    return images, given, listed


def _inputs(
    metric: Metric,
    images: Images,
    classifier: Classifier,
    explainer: Explainer,
    given: Tensor | None,
    groups: ClassGroups | Mapping | str | Path | None,
    seeds: Sequence[int],
) -> MetricInputs:
    """given: the target (B, K), the classes (B,), or None for the predicted classes."""
    with untouched(classifier), torch.inference_mode():
        logits = classifier(images).cpu()
    classes = logits.shape[1]
    given = logits.argmax(dim=1) if given is None else given
    target = (one_hot(given, classes) if given.ndim == 1 else given).to(images.device)
    if target.shape[1] != classes:
        raise UserError(f"the target has {target.shape[1]} classes, but the classifier {classes}")
    known = load_groups(groups, classifier.labels, classes) if "groups" in metric.needs else None
    if "groups" in metric.needs and known is None:
        raise UserError(f"{metric.name} needs groups of classes: groups={{name: [class, ...]}}, or a file of it")
    faults = dict.fromkeys(np.flatnonzero(no_probabilities(logits)).tolist(), NO_PROBABILITIES)
    inputs = MetricInputs(
        classifier, explainer, images, target, logits, lambda sample, purpose: seeds[sample], groups=known,
        faults=faults,
    )  # fmt: skip
    if {"maps", "curves"} & set(metric.needs):
        explain = MapProvider(explainer, classifier, seeds)
        try:
            inputs.maps = torch.from_numpy(explain(images, target))
        except ExplainerRaisedError as error:
            raise UserError(f"{metric.name} of {explainer}: {error}") from error
        inputs.faults = explain.faulty | faults
    return inputs
