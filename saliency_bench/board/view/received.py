"""Unpack an uploaded, untrusted run, which is a zip of the run's folder.

Only a few files are written, and their sizes are limited. Names in the archive are never used as paths; instead, the
files get fixed names in a new folder. The files are then checked by `source.read_folder`, as in `saliency-bench
review`.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from time import time
from zipfile import BadZipFile, ZipFile, ZipInfo

from huggingface_hub import HfApi

from saliency_bench.board.known import Known
from saliency_bench.board.published_maps import LARGEST_SHARD, MOST_SHARDS, PUBLISHED, SHARD, maps_in
from saliency_bench.board.source import asking, read_folder
from saliency_bench.board.submission import of_upload
from saliency_bench.board.submit import SubmissionPlan, plan
from saliency_bench.errors import UserError, one_line
from saliency_bench.utils.bounded import ReaderDiedError, bounded

MOST_PACKED = 100_000_000  # maximum size of an archive in bytes
# {file of a run: maximum size in bytes}. Other files are not unpacked.
WANTED = {"summary.json": 8_000_000, "run.json": 8_000_000, "timings.json": 1_000_000, "records.parquet": 200_000_000}
OPTIONAL = ("timings.json",)
MOST_MAPS = 400_000_000  # maximum total size of all unpacked maps in bytes
UPLOADS, PULLS = 20, 5  # maximum numbers of uploads and pull requests per account in 24 hours
DAY = 24 * 3600.0


def unfold(archive: Path, folder: Path, with_maps: bool = False) -> Path:
    """Unpack the files of a run from a zip into a folder. Return the folder.

    The zip is untrusted, so it is read in a child process with limited memory and time.

    Args:
        archive: The zip.
        folder: An empty folder.
        with_maps: Whether to unpack the published maps, which `submit --with-maps` has written.

    Raises:
        UserError: The file is not a zip of one run, or is too large.
    """
    if (size := archive.stat().st_size) > MOST_PACKED:
        raise UserError(f"the archive has {size:,} bytes, more than the limit of {MOST_PACKED:,}")
    largest = max(*WANTED.values(), LARGEST_SHARD)
    try:
        bounded(_unfold, str(archive), str(folder), with_maps, files=largest, memory=2**30, seconds=60)
        maps_in(folder / PUBLISHED)
    except ReaderDiedError as error:
        raise UserError(f"the archive cannot be read: {error}") from error
    except UserError as error:
        raise UserError(str(error).replace(f"{folder / PUBLISHED}/", "")) from error
    return folder


def _unfold(archive: str, folder: str, with_maps: bool) -> bytes:
    """Unpack a run. `bounded` calls this in a child process."""
    try:
        with ZipFile(archive) as packed:
            place, entries = _entries(packed)
            for name, entry in entries.items():
                Path(folder, name).write_bytes(_content(packed, entry, WANTED[name]))
            if with_maps:
                _unfold_maps(packed, place, Path(folder, PUBLISHED))
    except BadZipFile as error:
        raise UserError(
            f"the file is not a zip archive ({one_line(error)}); upload a zip of the folder of a run"
        ) from error
    except UserError:
        raise
    except Exception as error:  # the decoder can raise any error for a damaged file
        raise UserError(f"the archive cannot be read: {one_line(error)}") from error
    return b""


def _unfold_maps(packed: ZipFile, place: str, folder: Path) -> None:
    """Unpack the maps in the folder `place` of a zip into the new folder `folder`, and check the maps."""
    inside = f"{place}/{PUBLISHED}".lstrip("/")
    named = [(entry, *entry.filename.rpartition("/")[::2]) for entry in packed.infolist()]
    entries = [(entry, name) for entry, above, name in named if above == inside and SHARD.fullmatch(name)]
    if not entries:
        raise UserError(
            f"the archive contains no maps ({PUBLISHED}/); untick the box for maps, or, if the method is your own, "
            "first write the maps with `submit MAPS --with-maps --dry-run`"
        )
    if len({name for _, name in entries}) < len(entries) or len(entries) > MOST_SHARDS:
        raise UserError(f"the archive contains a map file twice, or more than {MOST_SHARDS:,} map files")
    if sum(entry.file_size for entry, _ in entries) > MOST_MAPS:
        raise UserError(f"the maps unpack to more than {MOST_MAPS:,} bytes; submit them with `saliency-bench submit`")
    folder.mkdir()
    bytes_left = MOST_MAPS  # count actual bytes, because the sizes stated in the zip may be false
    for entry, name in entries:
        content = _content(packed, entry, min(LARGEST_SHARD, bytes_left))
        bytes_left -= len(content)
        (folder / name).write_bytes(content)


def _entries(packed: ZipFile) -> tuple[str, dict[str, ZipInfo]]:
    """Return (folder of the only run in a zip or "", {name in `WANTED`: zip entry})."""
    by_folder: dict[str, dict[str, ZipInfo]] = {}
    for entry in packed.infolist():
        place, _, name = entry.filename.rpartition("/")
        if name in WANTED and place.count("/") == 0:
            if name in by_folder.setdefault(place, {}):
                raise UserError(f"the archive contains {name} twice")
            by_folder[place][name] = entry
    runs = {place: files for place, files in by_folder.items() if "summary.json" in files}
    if len(runs) != 1:
        no_run = "no summary.json; zip the folder of a finished run (the folder that was set as --out)"
        raise UserError(f"the archive contains {'several runs; zip one of them' if runs else no_run}")
    ((place, files),) = runs.items()
    if missing := [name for name in WANTED if name not in files and name not in OPTIONAL]:
        raise UserError(f"the archive contains no {missing[0]}; zip the whole folder of a finished run")
    return place, files


def _content(packed: ZipFile, entry: ZipInfo, most: int) -> bytes:
    """Return the content of an entry. Raise UserError if it exceeds `most` bytes, whatever size the zip states."""
    name = Path(entry.filename).name
    if entry.flag_bits & 1:
        raise UserError(f"{name} is encrypted; zip the folder without a password")
    if entry.file_size <= most:
        with packed.open(entry) as file:
            content = file.read(most + 1)
        if len(content) <= most:
            return content
    raise UserError(f"{name} unpacks to more than {most:,} bytes")


def proposal(
    run: Path, repo: str, api: HfApi, owners: Known, note: str = "", link: str = "", with_maps: bool = False
) -> SubmissionPlan:
    """Plan the submission of an unpacked run to a board, and check the submission as in a review.

    Raises:
        UserError: The submission is invalid, or the Hub rejects it.
    """
    try:
        proposed = plan(run, namespace=repo.partition("/")[0], note=note, link=link, with_maps=with_maps, api=api,
                        read=of_upload)  # fmt: skip
    except UserError as error:
        raise UserError(str(error).replace(f"{run}/", "").replace(str(run), "the run")) from error
    if proposed.create or proposed.bare:
        raise UserError(f"{repo} is not set up yet; its owner must first submit a run with `saliency-bench submit`")
    if proposed.new:
        with TemporaryDirectory(prefix="saliency-bench-") as folder:
            for path, content in proposed.files.items():
                (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, bytes):  # maps are paths and were already checked by `unfold`
                    (Path(folder) / path).write_bytes(content)
            where = next(iter(proposed.files)).rpartition("/")[0]
            read_folder(Path(folder), where, owners)
    return proposed


@dataclass
class Limits:
    """Limits on the uploads and pull requests of one account within 24 hours.

    Uploads are counted in this object. Pull requests are counted on the Hub.

    Attributes:
        uploads: Maximum number of uploads.
        pulls: Maximum number of pull requests.
        clock: Function that returns the Unix time in seconds.
    """

    uploads: int = UPLOADS
    pulls: int = PULLS
    clock: Callable[[], float] = time
    _seen: dict[str, deque[float]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def count(self, account: str) -> None:
        """Count an upload. Raise UserError if the account has reached its limit."""
        now = self.clock()
        with self._lock:
            for name in [name for name, times in self._seen.items() if times[-1] < now - DAY]:
                del self._seen[name]
            times = self._seen.setdefault(account, deque())
            while times and times[0] < now - DAY:
                times.popleft()
            if len(times) >= self.uploads:
                raise UserError(f"{account} has uploaded {self.uploads} runs within 24 hours; try again later")
            times.append(now)

    def check_pulls(self, account: str, repo: str, api: HfApi) -> None:
        """Raise UserError if an account has opened too many pull requests within 24 hours."""
        since = datetime.fromtimestamp(self.clock(), UTC) - timedelta(seconds=DAY)
        recent = 0
        with asking(repo):
            for pull in api.get_repo_discussions(
                repo, author=account, discussion_type="pull_request", repo_type="dataset"
            ):
                recent += pull.created_at >= since
                if recent >= self.pulls:
                    raise UserError(f"{account} has opened {recent} pull requests within 24 hours; try again later")
