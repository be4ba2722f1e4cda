"""Explain: the maps of a batch by one explainer, and whether they depend on what else is in the batch.

A map that is not finite, and an explainer that raises, become the reason why samples have no score; a strict run stops.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from saliency_bench.bound_explainer import Explainer
from saliency_bench.engine.context import RunContext
from saliency_bench.engine.precomputed import PrecomputedMaps
from saliency_bench.errors import UserError
from saliency_bench.map_sources.map_provider import halving, not_finite, reason_of
from saliency_bench.reasons import NOT_FINITE
from saliency_bench.types import Batch, Maps, Target
from saliency_bench.utils.untouched import untouched

# Of the norm of a map. All explainers of this package stay below 1e-5, for the size of a batch changes the last bits;
# but these decide whether a ReLU passes what is nearly zero, which moved the gradient of one photograph by 4e-3.
BATCH_TOLERANCE, FAR = 1e-3, 0.1
MIXING = 1e-4  # of the norm of logits; the size of a batch changes less than 1e-5 of it in float32


@dataclass(frozen=True)
class Explained:
    """The maps of a batch.

    Attributes:
        maps: (B, H, W), zeros where a map is not finite; None if the explainer raised.
        faults: {index in the batch: what is wrong with its map}.
        passes: images that went through the classifier.
        halved: how often a batch was halved because it did not fit in memory.
    """

    maps: Maps | None = None
    faults: dict[int, str] = field(default_factory=dict)
    passes: int = 0
    halved: int = 0


def explain(context: RunContext, batch: Batch, explainer: Explainer, target: Target) -> Explained:
    """Return the maps of a batch.

    Raises:
        UserError: A refusal by name, which holds for every chunk; in a strict run whatever is wrong.
    """
    seeds = [context.seed_for(image_id, "explain") for image_id in batch.ids]
    before = context.classifier.passes
    try:
        maps, halved = halving(explainer.seeded(context.spec.seed), context.classifier, batch.images, target, seeds)
    except UserError:
        raise
    except Exception as error:
        reason = reason_of(error)
        if context.spec.strict:
            raise UserError(f"{explainer}, {images_text(batch)}: {reason}") from error
        return Explained(None, dict.fromkeys(range(len(batch)), reason), context.classifier.passes - before)
    bad = not_finite(maps)
    reason = getattr(explainer.function, "not_finite", NOT_FINITE)
    if bad and context.spec.strict:
        raise UserError(f"{explainer}, image {batch.ids[bad[0]]}: {reason}")
    maps = maps.nan_to_num(0, 0, 0) if bad else maps
    return Explained(maps, dict.fromkeys(bad, reason), context.classifier.passes - before, halved)


def depends_on_batch(
    context: RunContext, batch: Batch, explainer: Explainer, target: Target, maps: Maps | None, logits: Sequence[float]
) -> bool:
    """Return whether the first half of a batch, explained alone, gets other maps than within the batch.

    The explainers of this package do not mix images, which their tests show, so that these are only explained again if
    the network does.

    Args:
        context: what the run works on.
        batch: the samples.
        explainer: that made the maps.
        target: (B, K) or (1, K).
        maps: (B, H, W), of the whole batch; None if there are none.
        logits: (K,), of the last image within the batch.
    """
    half = len(batch) // 2
    if maps is None or half == 0 or explainer.baseline or isinstance(explainer.function, PrecomputedMaps):
        return False
    if explainer.is_bundled and not _mixes_images(context, batch, logits):
        return False
    seeds = [context.seed_for(image_id, "explain") for image_id in batch.ids[:half]]
    target = target if len(target) == 1 else target[:half]
    with context.classifier.uncounted():
        try:
            alone = explainer.seeded(context.spec.seed)(context.classifier, batch.images[:half], target, seeds=seeds)
        except Exception:  # what an explainer raises for fewer images says nothing about its maps
            return False
    return differ(alone, maps[:half])


def _mixes_images(context: RunContext, batch: Batch, logits: Sequence[float]) -> bool:
    """Return whether the network gives the last image of a batch other logits alone than these, within the batch."""
    with untouched(context.classifier), context.classifier.uncounted(), torch.no_grad():
        try:
            alone = context.classifier(batch.images[-1:])[0].cpu()
        except Exception:  # networks may raise anything for one image
            return True
    together = torch.tensor(logits)
    finite = together.isfinite() | (alone != together)  # a class that is masked out has -infinity in both
    change = (alone - together)[finite].norm() / together[finite].norm().clamp(min=1e-30)
    return not bool(change <= MIXING)  # also for NaN


def differ(alone: Maps, together: Maps) -> bool:
    """Return whether most maps (B, H, W) differ by more than `BATCH_TOLERANCE` of their norm, or one by `FAR`."""
    change = (alone - together).flatten(1).norm(dim=1) / together.flatten(1).norm(dim=1).clamp(min=1e-30)
    return bool((change > BATCH_TOLERANCE).sum() > len(change) / 2) or bool((change > FAR).any())


def images_text(batch: Batch) -> str:
    """Name the images of a batch in a message; their order is that of the run, so that no range of ids names them."""
    first, *rest = batch.ids
    return f"images {first} ... {rest[-1]} ({len(batch)} images)" if rest else f"image {first}"
