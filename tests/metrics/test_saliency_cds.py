"""Compare saliency_cds with values computed from pictures built pixel by pixel."""

import pytest

from saliency_bench.compute.targets import contrast, group
from saliency_bench.metrics.saliency_cds.score import saliency_cds
from saliency_bench.target_weights import one_hot

K = 4


@pytest.mark.parametrize("fill", ["black", "mean"])
@pytest.mark.parametrize("members", [{1}, {0, 2}])
def test_mean_shift_by_loops(slow, fill, members):
    scores = saliency_cds(slow.curves(group(members, K)), reference=fill)
    for i, score in enumerate(scores):
        whole = sum(slow.rest(i, 0, fill)[k] for k in members)
        shifts = [whole - sum(slow.rest(i, count, fill)[k] for k in members) for count in range(3, 30, 3)]
        area = sum((shifts[j] + shifts[j - 1]) / 2 * 0.1 for j in range(1, 9))
        assert score == pytest.approx(area / 0.8, abs=1e-6)


def test_looks_at_the_target_class_alone(slow):
    alone = saliency_cds(slow.curves(one_hot([0, 1, 2], K)))
    against = saliency_cds(slow.curves(contrast([0, 1, 2], [3, 3, 3], K)))
    assert (alone == against).all()
