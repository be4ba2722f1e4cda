"""Compare saliency_cauc and saliency_cdrop with the published computation, on pictures built pixel by pixel."""

import math

import evaluate
import numpy as np
import pytest
from refusals import refused

from saliency_bench import load_classifier, registry
from saliency_bench.bound_metric import load_metric
from saliency_bench.compute.targets import class_vs_group, contrast
from saliency_bench.compute.targets.class_groups import ClassGroups
from saliency_bench.metrics.saliency_cauc.score import saliency_cauc
from saliency_bench.metrics.saliency_cdrop.score import saliency_cdrop
from saliency_bench.target_weights import one_hot

H, W, K = 6, 5, 4


def salient_pixels(one, threshold, salient):
    low, high = float(one.min()), float(one.max())
    if salient == "range":
        return sum(float(value) > low + threshold * (high - low) for value in one.flat)
    return sum(float(value) >= threshold * high for value in one.flat) if high > 0 else 0


def literal_path(slow, i, pos, neg, step, threshold, salient, fill):
    """Return the scores that the published loop collects before it stops."""
    chunks = [slow.orders[i][start : start + step] for start in range(0, H * W, step)]
    stop = -(-salient_pixels(slow.maps[i], threshold, salient) // step)
    gone, curve = 0, []
    for chunk in [[], *chunks]:
        if len(curve) >= max(stop, 1):
            break
        gone += len(chunk)
        p = slow.rest(i, gone, fill)
        curve.append(sum(p[k] for k in pos) * (1 - sum(p[k] for k in neg)))
    return curve, len(chunks)


def literal_cauc(curve, chunks):
    return (sum(curve) - (curve[0] + curve[-1]) / 2) / (chunks + 1)


@pytest.mark.parametrize("step", [1, 4, 16])
@pytest.mark.parametrize(("threshold", "salient"), [(0.5, "range"), (0.1, "range"), (0.5, "maximum"), (0, "maximum")])
@pytest.mark.parametrize("fill", ["mean", "black"])
def test_cauc_matches_literal_loop(slow, step, threshold, salient, fill):
    pairs = [({0}, {3}), ({1}, {2}), ({2}, {0})]
    curves = slow.curves(contrast([0, 1, 2], [3, 2, 0], K))
    scores = saliency_cauc(curves, step=step, threshold=threshold, salient=salient, reference=fill)
    for i, (pos, neg) in enumerate(pairs):
        path = literal_path(slow, i, pos, neg, step, threshold, salient, fill)
        assert scores[i] == pytest.approx(literal_cauc(*path), abs=1e-6)


def test_cauc_adds_class_probabilities_of_a_side(slow):
    scores = saliency_cauc(slow.curves(class_vs_group(0, [0, 1, 3], K)), step=2)
    for i, score in enumerate(scores):
        path = literal_path(slow, i, {0}, {1, 3}, 2, 0.5, "range", "mean")
        assert score == pytest.approx(literal_cauc(*path), abs=1e-6)


def test_rival_is_most_probable_class_of_all_or_of_group(slow):
    """Class 1 is the only member of its group. The last target is a pair of classes from both groups."""
    groups, target = ClassGroups("by hand", ((0, 2, 3), (1,))), one_hot([0, 1, 2], K)
    target[2, 1] = 1
    of_all = saliency_cauc(slow.curves(target), step=2)
    scores, drops = (metric(slow.curves(target), groups, step=2, rival="group")
                     for metric in (saliency_cauc, saliency_cdrop))  # fmt: skip
    for i, (explained, others) in enumerate([({0}, {2, 3}), ({1}, set()), ({1, 2}, {0, 3})]):
        whole = slow.rest(i, 0)
        for score, rivals in ((of_all[i], {*range(K)} - explained), (scores[i], others)):
            if rivals:
                path = literal_path(slow, i, explained, {max(rivals, key=lambda k: whole[k])}, 2, 0.5, "range", "mean")
                assert score == pytest.approx(literal_cauc(*path), abs=1e-6)
            else:
                assert np.isnan([score, drops[i]]).all()


def test_group_rival_requires_groups(slow):
    assert load_metric("saliency_cauc").inputs == ("curves",)
    assert load_metric("saliency_cauc", rival="group").inputs == ("curves", "groups")
    module = evaluate.load(str(registry.files("metrics")["saliency_cauc"].parent))
    given = {"images": slow.images, "classifier": load_classifier(slow.classifier, mean=0, std=1),
             "references": [0, 1, 2], "predictions": slow.maps, "rival": "group"}  # fmt: skip
    first, second = (module.compute(step=2, groups=groups, per_sample=True, **given)["scores"]
                     for groups in ({"a": [0, 1], "b": [2, 3]}, {"a": [0, 3], "b": [1, 2]}))  # fmt: skip
    assert first != second
    refused("saliency_cauc needs groups of classes", module.compute, **given)


@pytest.mark.parametrize("metric", [saliency_cauc, saliency_cdrop])
def test_few_salient_pixels_and_constant_maps_score_zero(slow, metric):
    slow.maps = np.zeros((3, H, W), np.float32)
    slow.maps[1, 0, :3] = 1
    assert metric(slow.curves(one_hot([0, 1, 2], K)), step=4).tolist() == [0, 0, 0]


def literal_cdrop(slow, i, a, b, step, threshold):
    salient = salient_pixels(slow.maps[i], threshold, "range")
    length, s = max(1, math.ceil(salient / step)), []
    for gone in range(0, length * step, step):
        p = slow.rest(i, gone, "mean")
        s.append(p[a] * (1 - p[b]))
    end = sum(s[-3:]) / 3 if length >= 3 else s[-1]
    tau = 0.05 * H * W
    return (s[0] - end) / math.log2(1 + max(salient, tau) / tau), length


def test_cdrop_matches_literal_loop(slow):
    lengths = set()
    for step in (1, 3, 5, 16):
        for threshold in (0.1, 0.5, 0.9):
            curves = slow.curves(contrast([0, 1, 2], [3, 2, 0], K))
            scores = saliency_cdrop(curves, step=step, threshold=threshold)
            for i, (a, b) in enumerate([(0, 3), (1, 2), (2, 0)]):
                expected, length = literal_cdrop(slow, i, a, b, step, threshold)
                lengths.add(min(length, 4))
                assert scores[i] == pytest.approx(expected, abs=1e-6)
    assert lengths == {1, 2, 3, 4}


def test_cdrop_classifies_only_scored_points(slow):
    """The whole image and the last three points of each path are classified; the paths have 1, 20 and 29 points."""
    slow.maps = np.zeros((3, H, W), np.float32)
    slow.maps[0, 0, 0], slow.maps[1, :4], slow.maps[2] = 1, 1, np.arange(1, 31).reshape(H, W)
    curves = slow.curves(contrast([0, 1, 2], [3, 2, 0], K))
    saliency_cdrop(curves, step=1, threshold=0.0)
    assert curves.passes == slow.classifier.pictures == 1 + 4 + 4 + 3  # plus three whole images, to find B
