"""The logits of the samples of a chunk, of those that the classifier takes and in parts that fit in memory."""

from contextlib import suppress

import torch

from saliency_bench.compute.classifiers.classifier import Classifier, RefusedImagesError
from saliency_bench.compute.maps.map_provider import reason_of
from saliency_bench.types import Chunk, Images
from saliency_bench.utils.devices import is_out_of_memory
from saliency_bench.utils.messages import complain

# What a network raises for a picture. A refusal in our own words, a UserError, which is a ValueError, ends the run.
RAISED = (RuntimeError, ArithmeticError, AssertionError, LookupError, TypeError, AttributeError, MemoryError)


def classified(classifier: Classifier, chunk: Chunk) -> tuple[Chunk, torch.Tensor | None]:
    """Return (the samples that the classifier takes, their logits); where it raises, it gets them one by one."""
    if chunk.batch is None:
        return chunk, None
    with torch.no_grad(), suppress(RefusedImagesError, *RAISED):
        return chunk, _logits(classifier, chunk.batch.images)
    logits, faults = [], {}
    for index, position in enumerate(chunk.readable):
        try:
            with torch.no_grad():
                logits.append(classifier(chunk.batch.images[index : index + 1]).cpu())
        except (RefusedImagesError, *RAISED) as error:
            faults[position] = reason_of(error, "the model")
    return chunk.without(faults), torch.cat(logits) if logits else None


def _logits(classifier: Classifier, images: Images) -> torch.Tensor:
    """Return the logits of a batch; if it does not fit in memory, compute its halves one after the other."""
    try:
        return classifier(images).cpu()
    except (RuntimeError, MemoryError) as error:
        if len(images) == 1 or not is_out_of_memory(error):
            raise
    complain(f"{len(images)} images do not fit in memory at once; trying half as many")
    return torch.cat([_logits(classifier, half) for half in images.tensor_split(2)])
