"""Quality of a run's classifier: accuracy, or the mean average precision of a multi-label head."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from saliency_bench.read.cell import Interval
from saliency_bench.read.statistics.clusters import cluster_codes
from saliency_bench.read.statistics.intervals import cluster_bootstrap, interval
from saliency_bench.target_weights import BINARY

COLUMNS = ("image_id", "group", "label", "labels", "correct", "top5", "mask_share", "left_out", "logits")
JUDGED_FROM = 20  # samples; with fewer, a low accuracy does not show that the order of classes is wrong
DRAWS = 500  # bootstrap draws for a mean average precision, which is slow because every class is sorted
Members = Sequence[Sequence[int]]


def quality(predictions: pa.Table, members: Members, activation: str, seed: int) -> dict:
    """Return the accuracy of a run's classifier as entries for `model` in a summary.

    If the activation is a sigmoid, or if there is a single logit and images have several labels, `accuracy` is the mean
    average precision over the classes that occur. Otherwise, it is the fraction of correct predictions. `accuracy_kind`
    says which of the two measures was used. `top5` is computed for a softmax over more than 5 classes, and is None
    otherwise. `no_class` is the number of images whose label matches no class of the model; it is omitted if there are
    no such images. An image with several rows counts once.

    Args:
        predictions: Table with `COLUMNS`, in which logits may be missing for a softmax.
        members: For each class of the dataset, the matching classes of the model.
        activation: "softmax", "sigmoid" or "binary".
        seed: Seed of the bootstrap.
    """
    rows = _images(predictions)
    codes = cluster_codes(rows["image_id"].to_pylist(), rows["group"].to_pylist())
    if activation == "sigmoid" or (activation == BINARY and rows["labels"].null_count < len(rows)):
        value = mean_average_precision(*_scores_and_truth(rows, codes, members), seed)
        return {"accuracy": value.model_dump(), "accuracy_kind": "mean average precision", "top5": None}
    top5 = _share(rows["top5"], codes)
    labels = rows["label"].to_pylist() if members else []
    without = sum(label is not None and label >= 0 and not members[label] for label in labels)
    return {
        **({"no_class": without} if without else {}),
        "accuracy": _share(rows["correct"], codes).model_dump(),
        "accuracy_kind": "accuracy",
        "top5": top5.model_dump() if top5.n else None,
    }


def below_chance(model: Mapping) -> str:
    """Return a warning if the interval of the accuracy lies entirely below chance, else "".

    Args:
        model: Entry `model` of a summary.
    """
    accuracy, classes = Interval.model_validate(model["accuracy"]), model.get("classes") or 1
    is_accuracy = model.get("accuracy_kind") in ("", "accuracy", None)
    if not is_accuracy or classes < 2 or accuracy.n < JUDGED_FROM or accuracy.ends is None:
        return ""
    if accuracy.ends[1] >= 1 / classes:
        return ""
    return (
        f"accuracy {accuracy.value:.1%} is below chance ({1 / classes:.1%} for {classes} classes), so the classes are "
        "probably in the wrong order; load the model with labels=[...] in the order of the logits, or give "
        "a label map (--label-map)"
    )


def _share(column: pa.ChunkedArray, codes: np.ndarray) -> Interval:
    """Return the fraction of True among the non-null entries of a column, with its interval."""
    truths = np.array([np.nan if truth is None else truth for truth in column.to_pylist()], dtype=float)
    return Interval.from_estimate(interval(truths, codes, (0.0, 1.0)))


def mean_average_precision(scores: np.ndarray, truth: np.ndarray, codes: np.ndarray, seed: int) -> Interval:
    """Return the mean average precision over classes, with its bootstrap interval.

    AP = sum_i (R_i - R_(i-1)) P_i over distinct scores, where images with equal scores form one step, as in
    scikit-learn. Classes without an image are ignored.

    Args:
        scores: Scores (n, C).
        truth: Whether each image belongs to each class, bool (n, C).
        codes: Cluster (n,) of each image.
        seed: Seed of the bootstrap.
    """
    if not truth.any():
        return Interval(value=None, low=None, high=None, n=0, clusters=0)
    return Interval.from_estimate(cluster_bootstrap(_mean_of_classes(scores, truth), codes, seed, DRAWS))


def average_precision(scores: np.ndarray, truth: np.ndarray) -> float:
    """Return the mean average precision without an interval; NaN if no image has a class."""
    if not truth.any():
        return float("nan")
    return float(_mean_of_classes(scores, truth)(np.ones((1, len(scores))))[0])


def _mean_of_classes(scores: np.ndarray, truth: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that maps weights (draws, n) to the mean AP (draws,) over the classes that occur."""
    present = np.flatnonzero(truth.any(axis=0))
    orders = [np.argsort(-scores[:, index], kind="stable") for index in present]
    ends = [
        np.append(scores[order[1:], index] != scores[order[:-1], index], True)
        for order, index in zip(orders, present, strict=True)
    ]
    sorted_truth = [truth[order, index] for order, index in zip(orders, present, strict=True)]

    def weighted(weights: np.ndarray) -> np.ndarray:
        classes = zip(orders, ends, sorted_truth, strict=True)
        each = np.array([_average_precision(weights[:, order], end, right) for order, end, right in classes])
        with np.errstate(invalid="ignore"):  # NaN for a draw without any class
            return np.nansum(each, axis=0) / np.isfinite(each).sum(axis=0)

    return weighted


def _average_precision(weights: np.ndarray, end: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return AP (draws,) for weights (draws, n) of samples with descending scores; NaN for a draw without hits."""
    hits = np.cumsum(weights * right, axis=1)[:, end]
    seen = np.cumsum(weights, axis=1)[:, end]
    gained = np.diff(hits, axis=1, prepend=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = np.where(seen > 0, hits / seen, 0)
        return (gained * precision).sum(axis=1) / hits[:, -1]


def _images(predictions: pa.Table) -> pa.Table:
    """Return the first row of each image. If images have several labels, rows with the same group are of one image."""
    if predictions["labels"].null_count == len(predictions):
        return predictions
    pairs = zip(predictions["group"].to_pylist(), predictions["image_id"].to_pylist(), strict=True)
    first: dict[str, int] = {}
    for position, (group, image_id) in enumerate(pairs):
        first.setdefault(group or image_id, position)
    return predictions.take(list(first.values()))


def _scores_and_truth(rows: pa.Table, codes: np.ndarray, members: Members) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scores, truth and clusters of the images with known labels and logits.

    Returns:
        (highest logit among each class's members (n, C), whether the image has the class (n, C), its cluster (n,)).
    """
    columns = zip(*(rows[name].to_pylist() for name in ("label", "labels", "logits")), codes.tolist(), strict=True)
    labelled = [
        (labels or [label], logits, code)
        for label, labels, logits, code in columns
        if logits and (labels or label is not None)
    ]
    if not labelled or not members:
        return np.empty((0, 0)), np.empty((0, 0), dtype=bool), np.empty(0, dtype=np.intp)
    logits = np.array([logits for _, logits, _ in labelled])
    of_model = [index for index, member in enumerate(members) if len(member)]
    scores = np.stack([logits[:, list(members[index])].max(axis=1) for index in of_model], axis=1)
    truth = np.zeros((len(labelled), len(members)), dtype=bool)
    for row, (labels, _, _) in zip(truth, labelled, strict=True):
        row[labels] = True
    truth = truth[:, of_model]
    known = ~np.isnan(scores).any(axis=1)  # a masked-out class has -infinity
    kept_codes = np.array([code for _, _, code in labelled])[known]
    return scores[known], truth[known], np.unique(kept_codes, return_inverse=True)[1]
