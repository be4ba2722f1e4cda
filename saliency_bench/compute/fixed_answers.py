"""Compute a network's logits for fixed images, so that later calls of `run` can identify it.

See `read.network_answers`.
"""

from contextlib import suppress

import numpy as np
import torch

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.reading import SplitRows
from saliency_bench.read.network_answers import MOST, NetworkAnswers
from saliency_bench.types import Images
from saliency_bench.utils.messages import complain
from saliency_bench.utils.seeds import seed_of, uniform
from saliency_bench.utils.untouched import reset_generators, untouched

CELLS = (None, 16, 5, 2)  # rows and columns of random colours; None: one colour per pixel
TRIED = 8  # samples to try until one can be read


def answers_of(classifier: Classifier, samples: SplitRows | None = None) -> NetworkAnswers | None:
    """Return a network's logits for fixed images. If they are not reproducible, print the reason and return None.

    Args:
        classifier: The network.
        samples: Samples that determine the size of the pictures if the classifier has no fixed size.
    """
    size = classifier.geometry.frame or _size_of(classifier, samples)
    if size is None:
        return None
    images, classifier = fixed_pictures(*size).to(classifier.device), classifier.variant(precision="fp32")
    try:
        first, second = (_logits(classifier, images) for _ in range(2))
    except Exception as error:  # a network may raise any exception for unusual pictures
        complain(
            f"{classifier.id} raises {type(error).__name__} for the fixed test images, so later runs cannot check that "
            "the network is still the same"
        )  # fmt: skip
        return None
    if not torch.equal(first.nan_to_num(), second.nan_to_num()):
        return None  # `question.logits_of` has printed a message
    first = first[:, :: -(-first.shape[1] // MOST)]
    rows = [[value if np.isfinite(value) else None for value in row] for row in first.tolist()]
    return NetworkAnswers(size=size, logits=rows)


def fixed_pictures(height: int, width: int) -> Images:
    """Return pictures of randomly coloured tiles, Float (4, 3, H, W). They are identical on every machine."""
    pictures = []
    for number, cells in enumerate(CELLS):
        tall, wide = (height, width) if cells is None else (min(cells, height), min(cells, width))
        colours = uniform(seed_of("network answers", number), 3 * tall * wide).reshape(3, tall, wide)
        rows, columns = (np.arange(side) * count // side for side, count in ((height, tall), (width, wide)))
        pictures.append(colours[:, rows][:, :, columns])
    return torch.from_numpy(np.stack(pictures))


def _logits(classifier: Classifier, images: Images) -> torch.Tensor:
    """Return the logits."""
    with untouched(classifier), classifier.uncounted(), torch.no_grad():
        reset_generators(classifier)
        return classifier(images).float().cpu()


def _size_of(classifier: Classifier, samples: SplitRows | None) -> tuple[int, int] | None:
    for row in samples.rows.select(range(min(TRIED, len(samples.rows)))) if samples is not None else ():
        with suppress(Exception):  # a row may contain anything
            height, width = classifier.prepare([row]).images.shape[2:]
            return height, width
    return None
