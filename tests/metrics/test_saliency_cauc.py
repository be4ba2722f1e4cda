"""Compare saliency_cauc with a literal version of the published computation, on pictures built pixel by pixel."""

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
def test_every_score_by_loops(slow, step, threshold, salient, fill):
    pairs = [({0}, {3}), ({1}, {2}), ({2}, {0})]
    curves = slow.curves(contrast([0, 1, 2], [3, 2, 0], K))
    scores = saliency_cauc(curves, step=step, threshold=threshold, salient=salient, reference=fill)
    for i, (pos, neg) in enumerate(pairs):
        path = literal_path(slow, i, pos, neg, step, threshold, salient, fill)
        assert scores[i] == pytest.approx(literal_cauc(*path), abs=1e-6)


def test_several_classes_of_a_side_add_up(slow):
    scores = saliency_cauc(slow.curves(class_vs_group(0, [0, 1, 3], K)), step=2)
    for i, score in enumerate(scores):
        path = literal_path(slow, i, {0}, {1, 3}, 2, 0.5, "range", "mean")
        assert score == pytest.approx(literal_cauc(*path), abs=1e-6)


def test_one_class_is_compared_with_the_most_probable_other(slow):
    scores = saliency_cauc(slow.curves(one_hot([0, 1, 2], K)), step=2)
    for i, score in enumerate(scores):
        whole = slow.rest(i, 0)
        rival = max((k for k in range(K) if k != i), key=lambda k: whole[k])
        path = literal_path(slow, i, {i}, {rival}, 2, 0.5, "range", "mean")
        assert score == pytest.approx(literal_cauc(*path), abs=1e-6)


def test_or_with_the_most_probable_other_of_its_group(slow):
    """Class 1 is the only member of its group."""
    groups = ClassGroups("by hand", ((0, 2, 3), (1,)))
    scores = saliency_cauc(slow.curves(one_hot([0, 1, 2], K)), groups, step=2, rival="group")
    drops = saliency_cdrop(slow.curves(one_hot([0, 1, 2], K)), groups, step=2, rival="group")
    for i, others in enumerate([(2, 3), (), (0, 3)]):
        if not others:
            assert np.isnan(scores[i])
            assert np.isnan(drops[i])
            continue
        whole = slow.rest(i, 0)
        path = literal_path(slow, i, {i}, {max(others, key=lambda k: whole[k])}, 2, 0.5, "range", "mean")
        assert scores[i] == pytest.approx(literal_cauc(*path), abs=1e-6)


def test_groups_are_asked_for_by_the_option_that_needs_them(slow):
    assert load_metric("saliency_cauc").inputs == ("curves",)
    assert load_metric("saliency_cauc", rival="group").inputs == ("curves", "groups")
    module = evaluate.load(str(registry.files("metrics")["saliency_cauc"].parent))
    given = {"images": slow.images, "classifier": load_classifier(slow.classifier, mean=0, std=1),
             "references": [0, 1, 2], "predictions": slow.maps, "rival": "group"}  # fmt: skip
    first, second = (module.compute(step=2, groups=groups, per_sample=True, **given)["scores"]
                     for groups in ({"a": [0, 1], "b": [2, 3]}, {"a": [0, 3], "b": [1, 2]}))  # fmt: skip
    assert first != second
    refused("saliency_cauc needs groups of classes", module.compute, **given)


def test_few_salient_pixels_look_perfect(slow):
    slow.maps = np.zeros((3, H, W), np.float32)
    slow.maps[1, 0, :3] = 1
    assert saliency_cauc(slow.curves(one_hot([0, 1, 2], K)), step=4).tolist() == [0, 0, 0]
