"""A board with what its page needs beside it: rows to show, and the scores of single samples, read when asked for."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from huggingface_hub import DatasetInfo

from saliency_bench.errors import UserError
from saliency_bench.hub import client
from saliency_bench.leaderboard.board import Board, Row, load_results
from saliency_bench.leaderboard.checks import Checked
from saliency_bench.leaderboard.files.maps import find_maps
from saliency_bench.leaderboard.known import Known
from saliency_bench.leaderboard.schema import RECORDS
from saliency_bench.leaderboard.source import Source, asking, read_folder
from saliency_bench.leaderboard.view.pictures import Pictured, Pictures, drawn
from saliency_bench.leaderboard.view.rows import ShownRow, shown

KEPT = 8  # submissions whose scores are held in memory


class Sampled(NamedTuple):
    """The scores (n,) of the samples `ids`, NaN where there is none; their groups, None where one stands alone."""

    ids: list[str]
    groups: list[str | None]
    scores: np.ndarray


@dataclass(frozen=True)
class Archive:
    """Load with `Archive.of`.

    name      of the board: the folder, or NAMESPACE/results
    updated   the minute of its last change; "" where it is unknown
    commit    of a repository; "" of a folder
    pictures  the datasets that are on this machine
    """

    name: str
    board: Board
    source: Source
    root: Path
    updated: str
    commit: str
    pictures: Pictures = field(default_factory=Pictures)
    _held: dict[str, Checked] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, location: str | Path, data: Sequence[str | Path] = ()) -> "Archive":
        """Read the board of a folder or repository, as `load_results` takes them; of a repository its newest commit.

        Args:
            location: the folder or repository.
            data: folders of datasets whose pictures are shown under maps.

        Raises:
            UserError: As `load_results`.
        """
        folder = Path(location).expanduser()
        if folder.is_dir():
            changed = max((path.stat().st_mtime for path in folder.rglob("*.json")), default=folder.stat().st_mtime)
            time = _minute(datetime.fromtimestamp(changed, UTC))
            return cls(folder.resolve().name, load_results(folder), Source(folder), folder, time, "", Pictures(data))
        if str(location).count("/") != 1:
            raise UserError(f"{location} is not a folder; give a folder of results, or NAMESPACE/results of the Hub")
        repo, info = str(location), _info(str(location))
        source = Source(repo, info.sha)
        time, root = _minute(info.last_modified) if info.last_modified else "", source.folders()[0]
        return cls(repo, load_results(repo, info.sha), source, root, time, info.sha or "", Pictures(data))

    @cached_property
    def rows(self) -> list[ShownRow]:
        """The rows as the page holds them."""
        return [shown(row) for row in self.board.rows]

    @cached_property
    def by_key(self) -> dict[str, tuple[ShownRow, Row]]:
        """{key: (the row as the page holds it, the row)}."""
        return {shown_row.key: (shown_row, row) for shown_row, row in zip(self.rows, self.board.rows, strict=True)}

    def sampled(self, row: Row) -> Sampled:
        """Return the scores of a row's samples.

        Raises:
            UserError: Its files are gone since.
        """
        submission = self._read(row.folder)
        if (outcome := submission.recorded.outcomes.get(row.cell.cell_id)) is None:
            raise UserError(f"{row.folder} no longer holds this row")
        return Sampled(submission.recorded.ids, submission.recorded.groups, outcome.scores)

    def _read(self, folder: str) -> Checked:
        """Return a submission, kept from the last time where it was read before."""
        if folder not in self._held:
            submission = read_folder(self.root, folder, self.known)[1]
            while len(self._held) >= KEPT:
                self._held.pop(next(iter(self._held)), None)
            self._held[folder] = submission
        return self._held[folder]

    @cached_property
    def known(self) -> Known:
        """What the owner of the board vouches for."""
        return self.source.known()[0]

    def pictured(self, row: Row, ids: Collection[str]) -> Pictured:
        """Return the submitted maps of some samples of a row.

        Raises:
            UserError: They cannot be read.
        """
        setting = row.result.setting
        for folder in row.folders:
            place = self.source.maps(folder)
            if place is None:
                return Pictured({}, "Maps were submitted, too many to download for a look at a few of them.")
            if maps := find_maps(place, row.cell.explainer, ids):
                listed = self.known.datasets.get((setting.fingerprint, setting.split))
                return drawn(maps, setting, self.pictures.of_dataset(setting, listed))
        return Pictured({}, "")

    def labels_of(self, row: Row, ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return {image id: {"label", "prediction", "target": as its records say}} of some samples of a row."""
        columns = ["image_id", "label", "prediction", "target"]
        wanted = (pc.field("cell_id") == row.cell.cell_id) & pc.field("part").is_null()
        table = pq.read_table(self.root / row.folder / RECORDS, columns=columns, filters=wanted)
        rows = table.filter(pc.is_in(table["image_id"], value_set=pa.array(list(ids), pa.string())))
        return {record.pop("image_id"): record for record in rows.to_pylist()}


def commit_of(repo: str) -> str:
    """Return the newest commit of a repository of results.

    Raises:
        UserError: The Hub cannot be reached.
    """
    return _info(repo).sha or ""


def _info(repo: str) -> DatasetInfo:
    """Return what the Hub says of a repository."""
    with asking(repo):
        return client.default_api().dataset_info(repo)
    raise AssertionError  # `asking` has raised


def _minute(time: datetime) -> str:
    """Return a time to the minute."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
