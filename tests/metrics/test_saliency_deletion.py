"""Compare saliency_deletion with values from pictures built pixel by pixel, with Quantus, and with insertion."""

from itertools import pairwise

import numpy as np
import pytest
from torch import nn

from saliency_bench.compute.scoring.perturbation import Curves
from saliency_bench.compute.targets import contrast
from saliency_bench.metrics.saliency_deletion.score import saliency_deletion
from saliency_bench.target_weights import one_hot

H, W, K = 6, 5, 4


@pytest.mark.parametrize("fill", ["black", "mean"])
@pytest.mark.parametrize(("steps", "counts"), [(None, range(0, 31, 5)), (3, (0, 10, 20, 30))])
def test_area_by_a_loop_over_the_curve(slow, fill, steps, counts):
    target = contrast([0, 1, 2], [3, 3, 3], K)
    scores = saliency_deletion(slow.curves(target), reference=fill, steps=steps)
    for i, score in enumerate(scores):
        curve = [p[i] - p[3] for p in (slow.rest(i, count, fill) for count in counts)]
        trapezoids = [(left + right) / 2 / (len(counts) - 1) for left, right in pairwise(curve)]
        assert score == pytest.approx(sum(trapezoids), abs=1e-6)


class Grey(nn.Module):
    """Network for one channel. With three channels, Quantus would order the pixels of all channels together."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, images):
        return self.network(images.expand(-1, 3, -1, -1))


def test_every_point_but_the_whole_image_is_that_of_quantus_pixel_flipping(slow):
    quantus = pytest.importorskip("quantus")
    images, labels = slow.images.mean(dim=1, keepdim=True), np.arange(3)
    images[:, 0, 0, 0] = 0  # black in Quantus is the smallest value of the images
    maps = np.random.default_rng(1).permutation(90).reshape(3, H, W).astype(np.float32)  # Quantus has no rule for ties
    metric = quantus.PixelFlipping(features_in_step=W, perturb_baseline="black", abs=False, normalise=False,
                                   disable_warnings=True)  # fmt: skip
    theirs = metric(model=Grey(slow.classifier).eval(), x_batch=images.numpy(), y_batch=labels, a_batch=maps[:, None],
                    device="cpu")  # fmt: skip
    curves = Curves(slow.classifier, images.expand(-1, 3, -1, -1), one_hot(labels, K), maps)
    whole = curves.path("rest", "black", [0])
    expected = np.trapezoid(np.concatenate([whole, theirs], axis=1), axis=1) / H
    assert saliency_deletion(curves) == pytest.approx(expected, abs=1e-6)
