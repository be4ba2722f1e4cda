"""Metrics of thresholded maps against torchmetrics."""

import numpy as np
import pytest
import torch

from saliency_bench.bound_metric import load_metric
from saliency_bench.maps import normalise

PEERS = {
    "saliency_miou": "binary_jaccard_index",
    "saliency_precision": "binary_precision",
    "saliency_recall": "binary_recall",
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "peer"), PEERS.items())
def test_is_that_of_torchmetrics(name, peer):
    binary = getattr(pytest.importorskip("torchmetrics.functional.classification"), peer)
    rng = np.random.default_rng(0)
    maps, masks = rng.normal(size=(6, 8, 9)).astype(np.float32), rng.random((6, 8, 9)) > 0.6
    for threshold in (0.2, 0.5, 0.8):
        theirs = [
            binary(torch.from_numpy(one), torch.from_numpy(mask).int(), threshold=threshold).item()
            for one, mask in zip(normalise(maps), masks, strict=True)
        ]
        np.testing.assert_allclose(load_metric(name, threshold=threshold)(maps, masks), theirs, rtol=1e-6)
