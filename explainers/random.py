"""Uniform noise: the chance level in every table.

The noise ignores the image's content and the network. It is redrawn for every sample, class and perturbation: the seed
of a map is a hash of the sample's seed, target and pixels. The same call therefore returns the same map, and any other
call returns a different map.
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
        classifier: Not used.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Weights over the logits, of shape (B, K), which are part of the seed.
        seeds: One seed per image, hashed with the image's pixels and target.

    Returns:
        Maps of shape (B, H, W) with values in [0, 1).
    """
    height, width = images.shape[2:]
    drawn = [
        uniform(seed_of(seed, "random", _hash(weights), _hash(image)), height * width).reshape(height, width)
        for seed, weights, image in zip(seeds, target, images, strict=True)
    ]
    return torch.from_numpy(np.stack(drawn)).to(images.device)


def _hash(tensor: Tensor) -> str:
    return blake2b(tensor.detach().cpu().contiguous().numpy().tobytes(), digest_size=8).hexdigest()
