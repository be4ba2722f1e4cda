"""Compare saliency_kae and saliency_roae with values computed from pictures built pixel by pixel."""

import numpy as np
import pytest

from saliency_bench.bound_metric import load_metric
from saliency_bench.compute.targets import contrast, group
from saliency_bench.target_weights import one_hot

K = 4
EXPOSURES = (0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1)
COUNTS = (0, 2, 3, 4, 6, 9, 15, 22, 30)  # of 30 pixels; halves (1.5, 4.5, 22.5) are rounded to the even number
LABELS = ({0}, {1}, {2})


def table(labels):
    """Return the correct classes of each sample, Bool (B, K)."""
    return np.array([[k in right for k in range(K)] for right in labels])


def saliency_kae(curves, labels=LABELS, **options):
    return load_metric("saliency_kae", **options)(curves, table(labels))


def saliency_roae(curves, labels=LABELS, **options):
    return load_metric("saliency_roae", **options)(curves, table(labels))


both = pytest.mark.parametrize("score", [saliency_kae, saliency_roae])


def drawn(score, slow, *picture):
    """Return the probabilities of a sample's perturbed picture for a pixel count and a fill."""
    return slow.top(*picture) if score is saliency_kae else slow.rest(*picture)


def right(p, members):
    return float(max(range(K), key=lambda k: (p[k], -k)) in members)


@both
@pytest.mark.parametrize("fill", ["black", "mean"])
def test_accuracy_at_each_exposure_and_its_area_by_loops(slow, score, fill):
    labels = [0, 1, 2]
    curves = slow.curves(one_hot(labels, K))
    scores, metric = score(curves, reference=fill), load_metric(score.__name__, reference=fill)
    assert metric.parts(None) == tuple(f"{exposure:g}" for exposure in EXPOSURES)
    seen = set()
    for i, label in enumerate(labels):
        accuracy = [right(drawn(score, slow, i, count, fill), {label}) for count in COUNTS]
        seen |= set(accuracy)
        area = sum((EXPOSURES[j] - EXPOSURES[j - 1]) * (accuracy[j] + accuracy[j - 1]) / 2
                   for j in range(1, len(EXPOSURES)))  # fmt: skip
        assert scores[i] == pytest.approx(area)
        assert metric.with_parts(curves, table([{0}, {1}, {2}]))[1][i].tolist() == accuracy
        for exposure, expected in zip(EXPOSURES, accuracy, strict=True):
            assert score(curves, reference=fill, exposure=exposure)[i] == expected
    assert seen == {0.0, 1.0}


@both
@pytest.mark.parametrize("labels", [[{0}, {1}, {2}], [{3}, {3}, {3}], [{1, 3}, {0, 2}, {0, 1, 2, 3}]])
def test_right_is_the_label_whatever_the_map_explains(slow, score, labels):
    """Maps of another class, a contrast and a group are also scored by comparing the prediction with the label."""
    expected = [right(drawn(score, slow, i, 9), members) for i, members in enumerate(labels)]
    for target in (one_hot([1, 2, 3], K), contrast([0, 0, 0], [1, 2, 3], K), group([1, 3], K)):
        assert score(slow.curves(target), labels, exposure=0.3).tolist() == expected


@both
def test_with_sigmoid_outputs_right_is_above_one_half(slow, score):
    slow.classifier.activation = "sigmoid"
    labels = [{0}, {1, 2}, {3}]
    for exposure, count in ((0.3, 9), (0.5, 15)):
        found = score(slow.curves(one_hot([0, 1, 2], K)), labels, exposure=exposure)
        for i, members in enumerate(labels):
            p = drawn(score, slow, i, count)
            assert found[i] == float(any(p[member] > 0.5 for member in members))
