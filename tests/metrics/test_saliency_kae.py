"""saliency_kae against pictures made pixel by pixel: whether the classifier is right when only top pixels are kept."""

import numpy as np
import pytest

from saliency_bench.errors import UserError
from saliency_bench.metrics.saliency_kae.score import saliency_kae
from saliency_bench.perturbation import Curves
from saliency_bench.targets import class_vs_group, contrast, group, one_hot

K = 4
EXPOSURES = (0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1)
COUNTS = (0, 2, 3, 4, 6, 9, 15, 22, 30)  # of 30 pixels; halves (1.5, 4.5, 22.5) to the even number


def right(p, members):
    return float(max(range(K), key=lambda k: (p[k], -k)) in members)


@pytest.mark.parametrize("fill", ["black", "mean"])
def test_accuracy_at_each_exposure_and_its_area_by_loops(slow, fill):
    labels = [0, 1, 2]
    curves = slow.curves(one_hot(labels, K))
    scores = saliency_kae(curves, reference=fill)
    seen = set()
    for i, label in enumerate(labels):
        accuracy = [right(slow.top(i, count, fill), {label}) for count in COUNTS]
        seen |= set(accuracy)
        area = sum(
            (EXPOSURES[j] - EXPOSURES[j - 1]) * (accuracy[j] + accuracy[j - 1]) / 2 for j in range(1, len(EXPOSURES))
        )
        assert scores[i] == pytest.approx(area)
        for exposure, expected in zip(EXPOSURES, accuracy, strict=True):
            assert saliency_kae(curves, reference=fill, exposure=exposure)[i] == expected
    assert seen == {0.0, 1.0}


def test_mean_score_is_the_area_under_the_accuracy(slow):
    auc = pytest.importorskip("sklearn.metrics").auc
    curves = slow.curves(one_hot([0, 1, 2], K))
    accuracy = [saliency_kae(curves, exposure=exposure).mean() for exposure in EXPOSURES]
    assert saliency_kae(curves).mean() == pytest.approx(auc(EXPOSURES, accuracy))


def test_a_target_of_several_classes_is_met_by_any_that_it_weighs_positively(slow):
    for target, members in (
        (contrast([0, 0, 0], [1, 2, 3], K), {0}),
        (group([1, 3], K), {1, 3}),
        (class_vs_group(2, [1, 2, 3], K), {2}),
    ):
        scores = saliency_kae(slow.curves(target), exposure=0.3)
        assert scores.tolist() == [right(slow.top(i, 9), members) for i in range(3)]


def test_a_classifier_that_gives_no_number_gives_none(slow):
    slow.classifier.linear.weight.data[:] = np.nan
    assert np.isnan(saliency_kae(Curves(slow.classifier, slow.images, one_hot([0, 1, 2], K), slow.maps))).all()


@pytest.mark.parametrize(("options", "line"), [({"exposure": 1.5}, "exposure=1.5"), ({"reference": "men"}, "mean")])
def test_what_is_out_of_range_is_named(slow, options, line):
    with pytest.raises(UserError, match=line):
        saliency_kae(slow.curves(one_hot([0, 1, 2], K)), **options)
