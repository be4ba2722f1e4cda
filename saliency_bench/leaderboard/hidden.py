"""The hidden track of a board: maps are scored with masks that nobody but the owner of the board has.

Scores would tell about the masks if they were exact and as many as one likes. So a submitter has `PER_DAY` attempt a
day and `PER_WEEK` in seven days, with a method or with explainers of the package, always on all images, and a value is
rounded to `STEP` of the range of the metric, or 2/n of it where there are fewer than 200 images: twice what one image
can move it by. Intervals are rounded outwards.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, timedelta
from hashlib import sha256
from math import ceil, floor, isfinite
from pathlib import Path

import numpy as np
from huggingface_hub import HfApi, snapshot_download

from saliency_bench.errors import UserError
from saliency_bench.leaderboard.known import Attempt, HiddenScore, Status
from saliency_bench.leaderboard.source import asking
from saliency_bench.results.cell import CellResult
from saliency_bench.utils.messages import counted

MOST_METRICS = 10  # of a method: each is told about the same maps
PER_DAY, PER_WEEK = 1, 3  # attempts of a submitter on a dataset
STEP = 0.01  # of the range of a metric
WEEK = timedelta(days=7)
TINY = 1e-9  # of a step: 0.29 / 0.01 is just below 29


def kept_masks(location: str, api: HfApi) -> Path:
    """Return the folder of hidden masks: a folder, or what a private repository holds.

    Raises:
        UserError: There is no such repository, or it is public.
    """
    if Path(location).expanduser().is_dir():
        return Path(location).expanduser()
    with asking(location):
        info = api.dataset_info(location)
        if not info.private:
            raise UserError(
                f"{location} is public, so its masks are not hidden: nothing is scored with them; make it private, "
                "and do not trust maps that were submitted meanwhile"
            )
        return Path(snapshot_download(
            location, repo_type="dataset", revision=info.sha, endpoint=api.endpoint, token=api.token
        ))  # fmt: skip


def rounded(cell: CellResult) -> HiddenScore | None:
    """Return the score of a cell as it may be published; None if it has none."""
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
    """Return a value within the range of a cell's metric, without digits that only the multiplication has made."""
    low, high = cell.limits
    return round(min(max(value, low), high), 6)


def attempts_of(statuses: Iterable[Status], submitter: str, fingerprint: str) -> list[Attempt]:
    """Return all attempts of a submitter on a dataset, whatever the methods and networks; the Hub ignores case."""
    return [
        attempt
        for status in statuses
        for attempt in status.attempts
        if (attempt.submitter.casefold(), attempt.fingerprint) == (submitter.casefold(), fingerprint)
    ]


def refusal(earlier: Sequence[Attempt], today: date) -> str | None:
    """Return why no further attempt of a submitter is scored today; None if one may be."""
    days = sorted(day for attempt in earlier if (day := date.fromisoformat(attempt.date)) > today - WEEK)
    if len(days) >= PER_WEEK:
        again = days[-PER_WEEK] + WEEK
    elif days.count(today) >= PER_DAY:
        again = today + timedelta(days=1)
    else:
        return None
    return (
        f"not scored with the hidden masks yet: {earlier[0].submitter} has had {counted(len(days), 'attempt')} in 7 "
        f"days, of at most {PER_DAY} a day and {PER_WEEK} in 7 days; recompute it again from {again.isoformat()} on"
    )


def problem_of(name: str, maps: Mapping[str, np.ndarray], ids: Collection[str]) -> str | None:
    """Return what is wrong with the images that the maps of a method are of: all must have one, and no others."""
    known = set(ids)
    if missing := sorted(known - set(maps)):
        return (
            f"{name} has no map of {counted(len(missing), 'image')}, such as {missing[0]}; maps of easy images alone "
            "are no score"
        )
    if extra := sorted(set(maps) - known):
        return f"{name} has maps of {counted(len(extra), 'image')} that the dataset does not have, such as {extra[0]}"
    return None


def print_of(maps: Mapping[str, np.ndarray]) -> str:
    """Return a hash of maps that stays the same when they are multiplied, or shifted, by a positive number."""
    digest = sha256()
    for image_id in sorted(maps):
        values = maps[image_id].astype(np.float64)
        span = np.ptp(values)
        grey = np.round(255 * (values - values.min()) / span) if span else np.zeros_like(values)
        digest.update(sha256(image_id.encode()).digest() + sha256(grey.astype(np.uint8).tobytes()).digest())
    return digest.hexdigest()


def copies_of(attempt: Attempt, statuses: Iterable[Status]) -> list[str]:
    """Return a line for each other submitter who has had these very maps scored."""
    if not attempt.maps:  # explainers of the package, which anybody may run
        return []
    others = {other.submitter: other for status in statuses for other in status.attempts
              if other.maps == attempt.maps and other.submitter.casefold() != attempt.submitter.casefold()}  # fmt: skip
    return [f"its maps are those of {other.method} by {name}, scored on {other.date}" for name, other in others.items()]
