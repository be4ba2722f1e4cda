"""Compute the logits of the images that a classifier accepts, in batches that fit in memory."""

from contextlib import suppress

import torch

from saliency_bench.compute.classifiers.classifier import Classifier, RefusedImagesError
from saliency_bench.compute.maps.map_provider import reason_of
from saliency_bench.types import Images
from saliency_bench.utils.devices import is_out_of_memory
from saliency_bench.utils.messages import complain

# Exceptions that a network may raise for a picture. UserError, a ValueError, is excluded because it must end the run.
RAISED = (RuntimeError, ArithmeticError, AssertionError, LookupError, TypeError, AttributeError, MemoryError)


def classified(classifier: Classifier, images: Images) -> tuple[list[torch.Tensor], dict[int, str]]:
    """Return a list with the logits (K,) of each accepted image, and {index: reason} for the rejected images.

    If the classifier raises an error for the whole batch, the images are passed one by one.
    """
    with torch.no_grad(), suppress(RefusedImagesError, *RAISED):
        return list(_logits(classifier, images)), {}
    logits, faults = [], {}
    for index in range(len(images)):
        try:
            with torch.no_grad():
                logits.append(classifier(images[index : index + 1]).cpu()[0])
        except (RefusedImagesError, *RAISED) as error:
            faults[index] = reason_of(error, "the model")
    return logits, faults


def _logits(classifier: Classifier, images: Images) -> torch.Tensor:
    """Return the logits of a batch. A batch that does not fit in memory is split in two."""
    try:
        return classifier(images).cpu()
    except (RuntimeError, MemoryError) as error:
        if len(images) == 1 or not is_out_of_memory(error):
            raise
    complain(f"{len(images)} images do not fit in memory at once; trying half as many")
    return torch.cat([_logits(classifier, half) for half in images.tensor_split(2)])
