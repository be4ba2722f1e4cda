"""The hidden track of a board: maps are scored with masks that only the owner of the board has.

An unlimited number of exact scores would reveal the masks. Therefore, each submitter is limited to `PER_DAY` attempts
per day and `PER_WEEK` attempts per seven days. An attempt scores one submitted method, or one or more of the package's
explainers, on all images. Published scores are rounded to multiples of `STEP` times the metric's range. With n < 200
images, they are rounded to multiples of 2/n times the range, which is twice the maximum effect of one image. Intervals
are rounded outwards.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, timedelta
from hashlib import shake_256
from math import ceil, cos, floor, isfinite, pi
from pathlib import Path

import numpy as np
from huggingface_hub import HfApi, snapshot_download
from scipy.stats import rankdata

from saliency_bench.board.known import Attempt, HiddenScore, Status
from saliency_bench.board.source import asking
from saliency_bench.errors import UserError
from saliency_bench.read.cell import CellResult
from saliency_bench.utils.messages import counted

MOST_METRICS = 10  # maximum number of metrics per method, because each metric reveals information about the masks
PER_DAY, PER_WEEK = 1, 3  # maximum number of attempts of a submitter on a dataset
STEP = 0.01  # share of a metric's range
WEEK = timedelta(days=7)
# Bits per view in a sketch, side length of a coarse map, correlation above which maps are reported as nearly equal.
BITS, GRID, NEARLY = 1024, 8, 0.95
VIEWS = 3  # number of views of a map that are compared
TINY = 1e-9  # share of a step, added because 0.29 / 0.01 is just below 29 in floating point


def kept_masks(location: str, api: HfApi) -> Path:
    """Return the folder that contains the hidden masks. If `location` is a private repository, download it.

    Raises:
        UserError: The repository does not exist or is public.
    """
    if Path(location).expanduser().is_dir():
        return Path(location).expanduser()
    with asking(location):
        info = api.dataset_info(location)
        if not info.private:
            raise UserError(
                f"{location} is public, so the masks are not hidden and were not used for scoring; make the repository "
                "private, and do not trust maps that were submitted while it was public"
            )
        return Path(snapshot_download(
            location, repo_type="dataset", revision=info.sha, endpoint=api.endpoint, token=api.token
        ))  # fmt: skip


def rounded(cell: CellResult) -> HiddenScore | None:
    """Return the score of a cell, rounded for publication, or None if the cell has no score."""
    if cell.value is None or not cell.n:
        return None
    low, high = cell.limits
    step = (high - low if isfinite(high - low) else 1.0) * max(STEP, 2 / cell.n)
    return HiddenScore(
        value=_clipped(round(cell.value / step) * step, cell),
        low=None if cell.low is None else _clipped(floor(cell.low / step + TINY) * step, cell),
        high=None if cell.high is None else _clipped(ceil(cell.high / step - TINY) * step, cell),
        n=cell.n,
        clusters=cell.clusters,
    )


def _clipped(value: float, cell: CellResult) -> float:
    """Clip a value to the range of a cell's metric, and remove digits that floating-point multiplication has added."""
    low, high = cell.limits
    return round(min(max(value, low), high), 6)


def attempts_of(statuses: Iterable[Status], submitter: str, fingerprint: str) -> list[Attempt]:
    """Return a submitter's attempts on a dataset, regardless of the method and the network.

    The Hub does not distinguish upper and lower case in account names, so the comparison ignores case.
    """
    return [
        attempt
        for status in statuses
        for attempt in status.attempts
        if (attempt.submitter.casefold(), attempt.fingerprint) == (submitter.casefold(), fingerprint)
    ]


def refusal(earlier: Sequence[Attempt], today: date) -> str | None:
    """Return the reason why a submitter has no attempt left today, or None."""
    every = (date.fromisoformat(attempt.date) for attempt in earlier)
    days = sorted(day for day in every if abs(day - today) < WEEK)  # dates after today occur if the clock was set back
    if len(days) >= PER_WEEK:
        again = days[-PER_WEEK] + WEEK
    elif days.count(today) >= PER_DAY:
        again = today + timedelta(days=1)
    else:
        return None
    return (
        f"not scored with the hidden masks yet: {earlier[0].submitter} has used {counted(len(days), 'attempt')} in 7 "
        f"days (limit: {PER_DAY} per day and {PER_WEEK} in 7 days); recompute the submission on or after "
        f"{again.isoformat()}"
    )


def problem_of(name: str, maps: Mapping[str, np.ndarray], ids: Collection[str]) -> str | None:
    """Return an error message if an image has no map or a map belongs to no image of the dataset, else None."""
    known = set(ids)
    if missing := sorted(known - set(maps)):
        return (
            f"{name} has no map for {counted(len(missing), 'image')}, such as {missing[0]}; submit maps for all "
            "images, because a selection could contain only easy images"
        )
    if extra := sorted(set(maps) - known):
        return f"{name} has maps for {counted(len(extra), 'image')} that are not in the dataset, such as {extra[0]}"
    return None


def sketch_of(maps: Mapping[str, np.ndarray]) -> str:
    """Return a sketch of maps as hexadecimal digits. Similar sketches indicate copied maps.

    The more strongly two sets of maps of the same images correlate, the fewer bits differ between their sketches. Each
    of the three `views` contributes the same number of digits.
    """
    coarse = {image_id: [_coarse(view) for view in views(maps[image_id])] for image_id in sorted(maps)}
    return "".join(_sketch({image_id: parts[view] for image_id, parts in coarse.items()}) for view in range(VIEWS))


def views(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return three views of a map (H, W): the map, the pixels above the midpoint of its range, and the ranks.

    Tied pixels get their mean rank. The second view contains the information that metrics with a threshold use. It
    stays the same if values change without crossing the threshold. The third view contains the information that metrics
    based on the order of pixels use. It stays the same if values change without changing their order.
    """
    values = values.astype(np.float64)
    ranks = rankdata(values).reshape(values.shape)
    return values, (values > (values.min() + values.max()) / 2).astype(np.float64), ranks


def _sketch(coarse: Mapping[str, np.ndarray]) -> str:
    """Return one view of all maps as hexadecimal digits.

    Each coarse map is centred and scaled to length 1. Each bit records on which side of a random hyperplane the set of
    maps lies (Charikar, 2002). For two sets with correlation r, the expected fraction of differing bits is
    arccos(r) / pi. Multiplying a map by a positive number or adding a constant to it does not change the bits.
    """
    sides = np.zeros(BITS)
    for image_id, values in coarse.items():
        centred = values.ravel() - values.mean()
        draws = np.frombuffer(shake_256(image_id.encode()).digest(centred.size * BITS // 8), np.uint8)
        length = np.linalg.norm(centred)
        sides += np.unpackbits(draws).reshape(BITS, -1) @ (centred / length if length else centred)
    return np.packbits(sides > 0).tobytes().hex()


def _coarse(values: np.ndarray) -> np.ndarray:
    """Divide a map (H, W) into `GRID` x `GRID` cells, and return the mean of each cell."""
    starts = [np.linspace(0, size, min(GRID, size), endpoint=False).astype(int) for size in values.shape]
    heights, widths = (np.diff(start, append=size) for start, size in zip(starts, values.shape, strict=True))
    sums = np.add.reduceat(np.add.reduceat(values, starts[0], axis=0), starts[1], axis=1)
    return sums / np.outer(heights, widths)


def _correlation(first: str, second: str) -> float:
    """Estimate the correlation between two sets of maps from their sketches.

    The view with the highest correlation counts.
    """
    digits = BITS // 4
    differing = [
        (int(first[start : start + digits], 16) ^ int(second[start : start + digits], 16)).bit_count()
        for start in range(0, len(first), digits)
    ]
    return cos(pi * min(differing) / BITS)


def copies_of(attempt: Attempt, statuses: Iterable[Status]) -> list[str]:
    """Return a message for every other submitter who has submitted the same or almost the same maps."""
    lines: dict[str, str] = {}
    for other in (other for status in statuses for other in status.attempts):
        if (
            len(other.maps) != len(attempt.maps) or not attempt.maps
        ):  # explainers of the package are not compared, because anyone can run them
            continue
        is_other = other.submitter.casefold() != attempt.submitter.casefold()
        if is_other and other.fingerprint == attempt.fingerprint and _correlation(other.maps, attempt.maps) > NEARLY:
            nearly = "" if other.maps == attempt.maps else "nearly "
            line = (
                f"the maps are {nearly}identical to the maps of {other.method} by {other.submitter}, scored on "
                f"{other.date}"
            )
            lines.setdefault(other.submitter.casefold(), line)
    return list(lines.values())
