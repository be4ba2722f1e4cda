"""Train, validation and test parts of the sets that the papers both train and evaluate on.

Everything that is evaluated is `test`; of the images to train on, a hash makes 15 % `validation` and the rest `train`.
"""

from saliency_bench.errors import UserError
from saliency_bench.utils.seeds import seed_of

VALIDATION = 15  # percent


def with_training(owner: str, parts: str) -> bool:
    """Return whether the option `parts` asks for images to train on.

    Raises:
        UserError: It is another word.
    """
    if parts not in ("all", "test"):
        raise UserError(f"{owner}: parts={parts} is unknown; use all, or test to leave out train and validation")
    return parts == "all"


def training_split(seed: int, group: str) -> str:
    """Return the split of an image to train on."""
    return "validation" if seed_of(seed, "validation", group) % 100 < VALIDATION else "train"
