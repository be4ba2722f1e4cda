"""Strings in the records: reasons for missing scores, and remarks on valid scores."""

FLAT = "flat map"  # remark on a valid value: a constant map was scored as zeros
FLAT_UNRANKED = "flat map, not ranked"  # no value, because a constant map would have the best possible score
UNDEFINED = "not defined for this sample"  # the metric's reason may follow after a colon
HALVED = "computed in smaller passes to fit in memory"  # remark on a value whose last bits may differ
CHANGES_NETWORK = "changes the network"  # no value, because the predictions changed after the explainer or a metric
DEPENDS_ON_BATCH = "depends on its batch"  # remark on a value: other images of the batch change the map
TIED = "more than a tenth of its pixels tie"  # remark on a value that depends on the order of the map's pixels
PEAKED = "under 1 % of its pixels above half of its range"  # remark on a value computed from the pixels above half
NO_LABEL = "no label"
NO_PART = "takes no part"  # for a metric that uses only selected samples
PARTS_ONLY = "only its parts count"  # for a metric with one value over all samples (`aggregate`)
NO_MAP = "no map was handed in"  # for precomputed maps
NOT_FINITE = "the map holds NaN or infinite values"
INFINITE_LOGIT = "a class in the target has an infinite logit, perhaps because the class is masked out"
NO_PROBABILITIES = "the classifier gave NaN or infinite values"
NO_PROBABILITIES_CHANGED = f"{NO_PROBABILITIES} for a changed image"
# Reasons to leave out a sample that come from the data or the definition; any other reason is a fault.
EXPECTED = ("no mask", "empty mask", "mask emptied by the crop", NO_LABEL, NO_PART, PARTS_ONLY, UNDEFINED, FLAT,
            FLAT_UNRANKED, NO_MAP)  # fmt: skip
MARKS = "; "  # separator between several remarks on a valid value
PRECOMPUTED = "maps-"  # prefix of the version of an explainer with precomputed maps; a hash of the maps follows


def is_expected(reason: str) -> bool:
    """Return whether a reason follows from the data or from the definition of a metric."""
    return reason in EXPECTED or reason.startswith(f"{UNDEFINED}: ") or has_parts_only(reason)


def has_parts_only(reason: str | None) -> bool:
    """Return whether a reason states that a sample has parts but no score. Remarks may follow, separated by `MARKS`."""
    return reason is not None and reason.split(MARKS)[0] == PARTS_ONLY


def lacks(column: str) -> str:
    """Return the reason that is given for a sample without a value in this column of the dataset."""
    return f"{UNDEFINED}: no {column}"


def reason_for(value: float | None, flat: bool, undefined: str, mark: str = "", parts_only: bool = False) -> str | None:
    """Return the reason why a value is missing, or a remark on a value, or None.

    Args:
        value: Score of the sample.
        flat: Whether the sample's map is constant.
        undefined: The metric's reason for samples without a defined score, or "".
        mark: Remark on a value.
        parts_only: Whether the metric uses only the parts of the sample's score.
    """
    if value is not None or parts_only:
        return MARKS.join(filter(None, (PARTS_ONLY if parts_only else "", FLAT if flat else "", mark))) or None
    return FLAT_UNRANKED if flat else f"{UNDEFINED}: {undefined}" if undefined else UNDEFINED
