"""What a network answers to fixed pictures, by which later starts recognise it (`results.network_answers`)."""

from contextlib import suppress

import numpy as np
import torch

from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.engine.reading import Samples
from saliency_bench.results.network_answers import MOST, NetworkAnswers
from saliency_bench.types import Images
from saliency_bench.utils.messages import complain
from saliency_bench.utils.seeds import seed_of, uniform
from saliency_bench.utils.untouched import untouched

CELLS = (None, 16, 5, 2)  # random colours in so many rows and columns; None: one for each pixel
TRIED = 8  # samples, until one can be read


def answers_of(classifier: Classifier, samples: Samples | None = None) -> NetworkAnswers | None:
    """Return the answers of a network; None, after a line, if it has none that can be compared.

    Args:
        classifier: The network.
        samples: Gives the size of the pictures where the classifier has none.
    """
    size = classifier.geometry.frame or _size_of(classifier, samples)
    if size is None:
        return None
    images, classifier = fixed_pictures(*size).to(classifier.device), classifier.variant(precision="fp32")
    try:
        first, second = (_logits(classifier, images) for _ in range(2))
    except Exception as error:  # a network may raise anything for pictures that are none of its kind
        complain(f"{classifier.id} raises for fixed pictures ({type(error).__name__}), so that a later start cannot "
                 "check that it is the same network")  # fmt: skip
        return None
    if not torch.equal(first.nan_to_num(), second.nan_to_num()):
        return None  # which `question.logits_of` has said
    first = first[:, :: -(-first.shape[1] // MOST)]
    rows = [[value if np.isfinite(value) else None for value in row] for row in first.tolist()]
    return NetworkAnswers(size=size, logits=rows)


def fixed_pictures(height: int, width: int) -> Images:
    """Return pictures of random colours in squares of several sizes, Float (4, 3, H, W), equal on every machine."""
    pictures = []
    for number, cells in enumerate(CELLS):
        tall, wide = (height, width) if cells is None else (min(cells, height), min(cells, width))
        colours = uniform(seed_of("network answers", number), 3 * tall * wide).reshape(3, tall, wide)
        rows, columns = (np.arange(side) * count // side for side, count in ((height, tall), (width, wide)))
        pictures.append(colours[:, rows][:, :, columns])
    return torch.from_numpy(np.stack(pictures))


def _logits(classifier: Classifier, images: Images) -> torch.Tensor:
    """Return logits; a network that draws at random draws the same each time."""
    with untouched(classifier), classifier.uncounted(), torch.no_grad():
        torch.manual_seed(0)  # `untouched` sets the generators back
        return classifier(images).float().cpu()


def _size_of(classifier: Classifier, samples: Samples | None) -> tuple[int, int] | None:
    """Return height and width of the first sample that can be read."""
    for row in samples.rows.select(range(min(TRIED, len(samples.rows)))) if samples is not None else ():
        with suppress(Exception):  # of whatever a row holds
            height, width = classifier.prepare([row]).images.shape[2:]
            return height, width
    return None
