"""Texts of the records: why a sample has no score, or remarks on a valid score."""

FLAT = "flat map"  # remark on a valid value: a constant map was scored as zeros
FLAT_UNRANKED = "flat map, not ranked"  # no value, where a constant map would be the best possible
UNDEFINED = "not defined for this sample"  # what the metric says of it may follow after a colon
HALVED = "computed in smaller passes to fit in memory"  # beside a value, whose last bits may differ
CHANGES_NETWORK = "changes the network"  # no value: after the explainer or one of its metrics, answers were others
DEPENDS_ON_BATCH = "depends on its batch"  # beside a value: other images of the batch change the map
TIED = "more than a tenth of its pixels tie"  # beside a value that goes by the order of the map's pixels
PEAKED = "under 1 % of its pixels above half of its range"  # beside a value that goes by the pixels above it
NO_LABEL = "no label"
NO_PART = "takes no part"  # reason of a metric that uses only chosen samples
PARTS_ONLY = "only its parts count"  # for a metric with one value over all samples (`aggregate`)
NO_MAP = "no map was handed in"  # for maps made elsewhere
NOT_FINITE = "the map holds NaN or infinite values"
INFINITE_LOGIT = "a class of its target has an infinite logit, as if it were masked out"
NO_PROBABILITIES = "the classifier gave NaN or infinite values"
NO_PROBABILITIES_CHANGED = f"{NO_PROBABILITIES} for a changed image"
# Reasons to leave out a sample that come from the data or the definition; any other reason is a fault.
EXPECTED = ("no mask", "empty mask", "mask emptied by the crop", NO_LABEL, NO_PART, PARTS_ONLY, UNDEFINED, FLAT,
            FLAT_UNRANKED, NO_MAP)  # fmt: skip
MARKS = "; "  # between several reasons beside a value that stands
PRECOMPUTED = "maps-"  # how the version of an explainer begins that is a folder of such maps; then a hash of them


def is_expected(reason: str) -> bool:
    """Return whether a reason comes from the data or the definition of a metric."""
    return reason in EXPECTED or reason.startswith(f"{UNDEFINED}: ") or has_parts_only(reason)


def has_parts_only(reason: str | None) -> bool:
    """Return whether a sample without a score counts by its parts; further `MARKS` may follow."""
    return reason is not None and reason.split(MARKS)[0] == PARTS_ONLY


def lacks(column: str) -> str:
    """Return the reason for a sample that has no value in a column of the dataset."""
    return f"{UNDEFINED}: no {column}"


def reason_for(value: float | None, flat: bool, undefined: str, mark: str = "", parts_only: bool = False) -> str | None:
    """Return why a metric gave a sample no value, or a remark on its value, or None.

    Args:
        value: the score of the sample.
        flat: whether its map is constant.
        undefined: the metric's text for samples on which it is undefined; may be empty.
        mark: remark on a value.
        parts_only: whether the sample counts only by its parts.
    """
    if value is not None or parts_only:
        return MARKS.join(filter(None, (PARTS_ONLY if parts_only else "", FLAT if flat else "", mark))) or None
    return FLAT_UNRANKED if flat else f"{UNDEFINED}: {undefined}" if undefined else UNDEFINED
