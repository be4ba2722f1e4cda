"""Load a board from its index if the index matches the files, otherwise from the submissions."""

from collections.abc import Iterable
from pathlib import Path

from saliency_bench.board.board import Board, read_board
from saliency_bench.board.index import load_indexed
from saliency_bench.board.known import KnownDataset, known_dataset
from saliency_bench.board.source import source_at
from saliency_bench.board.submission_schema import RESULT
from saliency_bench.errors import UserError
from saliency_bench.utils.messages import complain


def load_results(location: str | Path, revision: str | None = None, *, known: Iterable[object] = ()) -> Board:
    """Load and check all submissions in a local folder or in a dataset repository "NAMESPACE/results" on the Hub.

    Invalid submissions are skipped and reported on standard error and in `refused`. Checked submissions are cached in
    the cache folder. The board's index (`board/index.py`) is used instead of the submissions as long as it matches the
    files.

    Args:
        location: A folder, or "NAMESPACE/results".
        revision: A branch, commit or pull request ("refs/pr/1") of the repository.
        known: Datasets with known samples, in addition to those listed by the owner of the board: names for
            `load_dataset` (split "test"), or `KnownDataset` objects. A submission for one of these datasets is rejected
            if its samples differ.

    Raises:
        UserError: The folder or repository contains no results, a dataset cannot be loaded, or the Hub cannot be
            reached.
    """
    source = source_at(location, revision)
    root, folders = source.folders()
    if not folders and not source.may_be_board():
        raise UserError(
            f"{location} contains no results; specify a folder or repository with files "
            f"DATASET/MODEL/SUBMITTER/{RESULT}"
        )
    owners, problems = source.known()
    listed = [item if isinstance(item, KnownDataset) else known_dataset(item) for item in known]
    board = load_indexed(source, root, folders, owners, problems) if not listed else None
    if board is None:
        board = read_board(root, folders, owners.adding(listed), problems)
    for refused in board.refused:
        complain(f"skipped: {refused.line}")
    return board
