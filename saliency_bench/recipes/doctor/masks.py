"""Checks of the masks and of the scores of baselines, which ignore the network."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from saliency_bench.bound_metric import as_metric
from saliency_bench.compute.cells import target_range
from saliency_bench.compute.loaded import identity_of
from saliency_bench.read.statistics.clusters import cluster_codes
from saliency_bench.read.statistics.intervals import interval
from saliency_bench.recipes.doctor.checks import Check, Mark
from saliency_bench.recipes.doctor.examine import BASELINES, Examined

FULL = 0.99  # a mask that covers more than this share of the image counts as full
LARGE = 0.7  # if the median mask covers more than this share of the image, alignment is uninformative
EASY = 0.8  # if the pointing game score of `centre` exceeds this, nearly all objects are in the centre
DRAW = "draw masks with `saliency-bench annotate`, or use metrics that need no masks"
CROP = (
    "the network's centre crop removes these objects: use a network that does not crop or, if this network was "
    "trained without a crop, load it without the crop (pass size=(height, width) to load_classifier)"
)
SKIPPED = "alignment metrics skip the other images"
FIXES = {
    "no mask": SKIPPED,
    "empty mask": "correct these masks if their images show an object; images with an empty mask are skipped by "
    "alignment metrics",
    "mask emptied by the crop": CROP,
}
POINTING = "saliency_pointing_game"


def check_masks(examined: Examined) -> list[Check]:
    """Check that the masks can be used, and report the mask area and the scores of the baselines."""
    rows = examined.rows
    shares = np.array([row["mask_share"] for row in rows if row["mask_share"] is not None])
    reasons = Counter(row["left_out"] for row in rows if row["mask_share"] is None)
    values = {"images": len(rows), "usable": len(shares), "reasons": dict(reasons)}
    if not len(shares):
        reason = reasons.most_common(1)[0][0]
        text = f"none of {len(rows)} images has a usable mask ({reason}): alignment metrics cannot be computed"
        fix = CROP if FIXES.get(reason) == CROP else DRAW
        return [Check("masks", "look" if set(reasons) == {"no mask"} else "wrong", text, fix, values)]
    return [_usable(rows, shares, reasons, values), _area(shares), _baselines(examined)]


def _usable(rows: Sequence[Mapping], shares: np.ndarray, reasons: Counter, values: dict) -> Check:
    text = f"{len(shares)} of {len(rows)} images have a usable mask"
    if not reasons:
        return Check("masks", "ok", text, values=values)
    listed = "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common(3))
    expected = reasons["no mask"] == reasons.total()
    mark: Mark = "wrong" if not expected and 2 * len(shares) < len(rows) else "look"
    unexpected = [reason for reason, _ in reasons.most_common() if reason != "no mask"]
    fix = FIXES.get(unexpected[0], "correct these masks") if unexpected else SKIPPED
    return Check("masks", mark, f"{text} ({listed})", fix, values)


def _area(shares: np.ndarray) -> Check:
    low, median, high = np.quantile(shares, (0.25, 0.5, 0.75)).tolist()
    full = int((shares >= FULL).sum())
    values = {"quartiles": [low, median, high], "full": full, "smallest": float(shares.min())}
    text = f"masks cover {median:.0%} of the prepared image (quartiles {low:.0%} and {high:.0%})"
    if full:
        text += f"; {full} of {len(shares)} masks cover the whole image"
    if 2 * full >= len(shares):
        return Check("mask area", "wrong", text, "the masks may be inverted; if they are, set --foreground", values)
    if full or median > LARGE:
        fix = "with masks this large, any map scores well; if the masks are inverted, set --foreground"
        return Check("mask area", "look", text, fix, values)
    return Check("mask area", "ok", text, values=values)


def _baselines(examined: Examined) -> Check:
    """Report the scores of the baselines, and whether nearly all objects are in the centre."""
    rows, model = examined.scored, examined.model
    target = target_range(identity_of(examined.data, model), model)
    codes = cluster_codes([row["image_id"] for row in rows], [row["group"] for row in rows])
    values: dict[str, dict] = {name: {} for name in BASELINES}
    for (name, metric), scores in examined.scores.items():
        limits = as_metric(metric).limits(target)
        value, low, high = interval(np.array(scores), codes, limits).known
        values[name][metric] = {"value": value, "low": low, "high": high}
    text = "; ".join(
        f"{name}: {', '.join(f'{metric} {_shown(score)}' for metric, score in of_name.items())}"
        for name, of_name in values.items()
    )
    centre = values["centre"].get(POINTING, {}).get("low")
    if centre is not None and centre >= EASY:
        fix = "the object is nearly always in the centre; compare every explainer with the baseline 'centre'"
        return Check("baselines", "look", text, fix, values)
    return Check("baselines", "ok", f"{text}; compare every explainer with these scores", values=values)


def _shown(score: Mapping) -> str:
    return "-" if score["value"] is None else f"{score['value']:.3f}"
