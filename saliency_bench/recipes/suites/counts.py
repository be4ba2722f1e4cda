"""Sizes of built datasets, summed over all splits, for tables that show them next to the paper's numbers."""

from collections import Counter

from saliency_bench.data.dataset_names import SPLITS
from saliency_bench.data.loading import find
from saliency_bench.errors import UserError
from saliency_bench.recipes.suites.number import NoNumberError


def counts_of(name: str) -> dict[str, int]:
    """Return the numbers of classes, images and masks in a dataset on this machine.

    Args:
        name: Value of `--dataset`.

    Returns:
        {"classes": number of classes, "images": images in all splits, "masks": images with a mask, "rarest": images of
        the class with the fewest images, "commonest": images of the class with the most images}.

    Raises:
        NoNumberError: The dataset is not on this machine.
    """
    try:
        source = find(name)
    except UserError as error:
        raise NoNumberError("the dataset is not built") from error
    if source.commit is not None:
        raise NoNumberError("the dataset is on the Hub but not on this machine")
    splits = []
    for split in SPLITS:
        try:
            splits.append(source.load(split))
        except UserError:  # not every dataset has all splits
            continue
    if not splits:
        raise NoNumberError("the dataset has no splits")
    images = sum(len(rows) for rows in splits)
    names = getattr(splits[0].features.get("label"), "names", None)
    labels = Counter(label for rows in splits for label in rows["label"])
    per_class = list(labels.values()) if names is None else [labels[number] for number in range(len(names))]
    # The Arrow column shows which masks are null, so no image is decoded.
    columns = [rows.with_format("arrow")["mask"][:] for rows in splits if "mask" in rows.features]
    return {
        "classes": len(per_class),
        "images": images,
        "masks": sum(len(masks) - masks.null_count for masks in columns),
        "rarest": min(per_class),
        "commonest": max(per_class),
    }
