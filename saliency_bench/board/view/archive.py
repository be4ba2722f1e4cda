"""Data for the page of a board.

The rows are loaded first. The scores and maps of samples are read only when they are needed.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
from huggingface_hub import DatasetInfo

from saliency_bench.board.board import Board
from saliency_bench.board.checks import CheckedSubmission
from saliency_bench.board.known import RUN, Known
from saliency_bench.board.opening import load_results
from saliency_bench.board.published_maps import find_maps
from saliency_bench.board.row import Row
from saliency_bench.board.source import BoardSource, asking, read_folder, source_at
from saliency_bench.board.submission_schema import RECORDS
from saliency_bench.board.view.board_pictures import BoardPictures, Pictured, drawn
from saliency_bench.board.view.overall import Scored
from saliency_bench.board.view.rows import ShownRow, shown
from saliency_bench.errors import UserError
from saliency_bench.hub import client
from saliency_bench.utils.bounded import bounded

KEPT = 8  # number of submissions whose scores are cached in memory


@dataclass(frozen=True)
class Archive:
    """A board and its files. Use `Archive.load` to create an archive.

    Attributes:
        name: Name of the board: the folder or NAMESPACE/results.
        root: Folder of the downloaded files.
        updated: Time of the last change, accurate to the minute, or "" if unknown.
        commit: Commit of the repository, or "" for a folder.
        pictures: Datasets on this machine. Their images are used in pictures of samples.
    """

    name: str
    board: Board
    source: BoardSource
    root: Path
    updated: str
    commit: str
    pictures: BoardPictures = field(default_factory=BoardPictures)
    _submissions: dict[str, CheckedSubmission] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, location: str | Path, data: Sequence[str | Path] = ()) -> "Archive":
        """Load the board from a folder, or from the newest commit of a repository.

        Args:
            location: Location of the results, as for `load_results`.
            data: Folders of datasets whose images are displayed under the maps.

        Raises:
            UserError: The board cannot be loaded by `load_results`.
        """
        source, pictures = source_at(location), BoardPictures(data)
        place = source.location
        if isinstance(place, Path):
            changed = max((path.stat().st_mtime for path in place.rglob("*.json")), default=place.stat().st_mtime)
            time = _minute(datetime.fromtimestamp(changed, UTC))
            return cls(place.resolve().name, load_results(place), source, place, time, "", pictures)
        repo, info = place, _info(place)
        source.revision = info.sha
        time, root = _minute(info.last_modified) if info.last_modified else "", source.folders()[0]
        return cls(repo, load_results(repo, info.sha), source, root, time, info.sha or "", pictures)

    @cached_property
    def rows(self) -> list[ShownRow]:
        """The rows of the board in the form that the page displays."""
        return [shown(row) for row in self.board.rows]

    @cached_property
    def by_key(self) -> dict[str, tuple[ShownRow, Row]]:
        """{key of a row in URLs: (row as displayed on the page, row of the board)}."""
        return {shown_row.key: (shown_row, row) for shown_row, row in zip(self.rows, self.board.rows, strict=True)}

    def sampled(self, row: Row) -> Scored:
        """Return the scores of a row's samples. Raise UserError if the files no longer contain this row."""
        submission = self._read(row.folder)
        if (outcome := submission.recorded.outcomes.get(row.cell.cell_id)) is None:
            raise UserError(f"{row.folder} no longer contains this row; reload the board")
        recorded = submission.recorded
        return Scored(recorded.ids, recorded.groups, outcome.scores, row.status == RUN, row.cell.limits)

    def _read(self, folder: str) -> CheckedSubmission:
        """Read the submission in a folder. The `KEPT` most recently read submissions are kept in memory."""
        if folder not in self._submissions:
            submission = read_folder(self.root, folder, self.known)[1]
            while len(self._submissions) >= KEPT:
                self._submissions.pop(next(iter(self._submissions)), None)
            self._submissions[folder] = submission
        return self._submissions[folder]

    @cached_property
    def known(self) -> Known:
        """Return the facts that the owner of the board vouches for."""
        return self.source.known()[0]

    def pictured(self, row: Row, ids: Collection[str]) -> Pictured:
        """Draw the submitted maps of these samples. Raise UserError if the maps cannot be read."""
        # Use only the first submission, because a later submission with the same scores may contain different maps.
        setting, hashes = row.result.setting, row.result.maps
        place = self.source.maps(row.folder) if hashes else Path()
        if place is None:
            return Pictured({}, "Maps were submitted, but they are too large to download for display.")
        if not (maps := find_maps(place, row.cell.explainer, ids, hashes)):
            return Pictured({}, "")
        listed = self.known.datasets.get((setting.fingerprint, setting.split))
        return drawn(maps, setting, self.pictures.of_dataset(setting, listed))

    def labels_of(self, row: Row, ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return {image id: {"label", "prediction", "target"}} for these samples. The values come from the records."""
        return json.loads(bounded(labels_in, str(self.root / row.folder / RECORDS), row.cell.cell_id, list(ids)))


def labels_in(path: str, cell_id: str, ids: Sequence[str]) -> bytes:
    """Return `Archive.labels_of` as JSON. `bounded` calls this in a child process, because records are untrusted."""
    columns = ["image_id", "label", "prediction", "target"]
    wanted = (pc.field("cell_id") == cell_id) & pc.field("part").is_null() & pc.field("image_id").isin(list(ids))
    table = pq.read_table(path, columns=columns, filters=wanted)
    return json.dumps({labels.pop("image_id"): labels for labels in table.to_pylist()}).encode()


def commit_of(repo: str) -> str:
    """Return the newest commit of a results repository. Raise UserError if the Hub cannot be reached."""
    return _info(repo).sha or ""


def _info(repo: str) -> DatasetInfo:
    with asking(repo):
        return client.default_api().dataset_info(repo)
    raise AssertionError  # not reached, because `asking` raises


def _minute(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
