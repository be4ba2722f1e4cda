"""Uniform noise: the chance level in every table.

It ignores the image's content and the network. It is redrawn for every sample, class and perturbation: the seed of a
map is a hash of the sample's seed, its target and its pixels, so the same call gives the same map and any other call
gives another map.
"""

from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.declarations import explainer
from saliency_bench.types import Images, Maps, Target
from saliency_bench.utils.seeds import seed_of, uniform


@explainer(version=1, needs="nothing", passes=0, also_called=("noise", "random noise"))
def random(classifier: Classifier, images: Images, target: Target, *, seeds: list[int]) -> Maps:
    """Return uniform noise.

    Args:
        classifier: not used.
        images: (B, 3, H, W) in [0, 1].
        target: (B, K), weights over the logits; part of the seed.
        seeds: one per image; hashed with its pixels and target.

    Returns:
        Maps (B, H, W) in [0, 1).
    """
    height, width = images.shape[2:]
    drawn = [
        uniform(seed_of(seed, "random", _hash(weights), _hash(image)), height * width).reshape(height, width)
        for seed, weights, image in zip(seeds, target, images, strict=True)
    ]
    return torch.from_numpy(np.stack(drawn)).to(images.device)


def _hash(tensor: Tensor) -> str:
    return blake2b(tensor.detach().cpu().contiguous().numpy().tobytes(), digest_size=8).hexdigest()
