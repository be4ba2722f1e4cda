"""Assign splits in datasets that papers use for both training and evaluation.

All evaluated images are in `test`. A hash assigns 15 % of the training images to `validation` and the rest to `train`.
"""

from saliency_bench.errors import UserError
from saliency_bench.utils.seeds import seed_of

VALIDATION = 15  # percent


def with_training(owner: str, parts: str) -> bool:
    """Return whether the option `parts` includes training images.

    Raises:
        UserError: The value is unknown.
    """
    if parts not in ("all", "test"):
        raise UserError(f"{owner}: parts={parts} is unknown; use 'all', or 'test' to leave out train and validation")
    return parts == "all"


def training_split(seed: int, group: str) -> str:
    """Return "train" or "validation" for a training image, chosen by a hash of the seed and the image's group."""
    return "validation" if seed_of(seed, "validation", group) % 100 < VALIDATION else "train"
