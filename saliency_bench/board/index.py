"""Index of a board: a copy of the computed rows, with which the board can be opened without reading every submission.

`board/rows.index` is written whenever the owner of a board reviews a folder, merges a pull request or recomputes a
submission. The key of the index is a hash of everything that determines the rows: all files of the submissions, the
facts that the owner vouches for, and the code of this package. Before the index is used, the key is computed again from
the current files. If the board or the package has changed, the index is ignored and the submissions are read.

Rows are used only if their scores match `result.json` and their statuses match `status/`. The rest of the index, such
as the ranks, is as trustworthy as `status/`, because only the owner can write to either of them. A pull request that
changes the index or `status/` is rejected, and the index in a pull request is never read.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from pydantic import create_model

from saliency_bench.board.board import Board, Contradiction, Refused, read_board
from saliency_bench.board.known import CHECKED, CLAIMED, HIDDEN, Known, KnownDataset, KnownModel, Status, content_of
from saliency_bench.board.row import Row
from saliency_bench.board.source import BoardSource
from saliency_bench.board.submission_cache import code_hash
from saliency_bench.board.submission_schema import RESULT, Result
from saliency_bench.errors import UserError
from saliency_bench.read.analysis.differences import same
from saliency_bench.read.cell import StrictModel
from saliency_bench.utils.files import read_bytes, write_with
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.messages import complain

INDEX = "board/rows.index"
LARGEST = 2**28  # bytes
KEPT = [field.name for field in fields(Row) if field.name != "result"]  # `result` is read from the submission
_HINTS = get_type_hints(Row)
_FIELDS: dict[str, Any] = {name: (_HINTS[name], ...) for name in KEPT}
IndexedRow: Any = create_model("IndexedRow", __base__=StrictModel, **_FIELDS)


class Index(StrictModel):
    """The content of an index file.

    Attributes:
        key: Hash of everything that determines the rows.
        folders: Folders of valid submissions in the order of the board.
        rows: Rows of the board, without the content of `result.json`.
        conflicts: Conflicts between the rows.
        refused: (folder, message) for each invalid file or submission.
    """

    key: str
    folders: list[str]
    rows: list[IndexedRow]
    conflicts: list[Contradiction]
    refused: list[tuple[str, str]]


def contents_of(root: Path, folders: Sequence[str]) -> dict[str, str]:
    """Return {folder of a submission: hash of its files}.

    If the files cannot be read, the type of the error replaces the hash.
    """
    contents = {}
    for folder in folders:
        try:
            contents[folder] = content_of(root / folder)
        except (OSError, ValueError) as error:
            contents[folder] = type(error).__name__
    return contents


def key_of(contents: Mapping[str, str], owners: Known, problems: Sequence[str]) -> str:
    """Return the hash of everything that determines the rows of a board."""
    items: list[KnownDataset | KnownModel | Status] = [
        *owners.datasets.values(), *owners.models.values(), *owners.statuses.values()
    ]  # fmt: skip
    vouched = sorted((item.name, item.model_dump_json()) for item in items)
    return hash_of(code_hash(), sorted(contents.items()), vouched, list(problems))


def packed(board: Board, key: str) -> bytes:
    """Return the index of a board as bytes."""
    rows = [IndexedRow.model_construct(**{name: getattr(row, name) for name in KEPT}) for row in board.rows]
    refused = [(item.folder, item.line) for item in board.refused]
    index = Index.model_construct(
        key=key, folders=list(board.results), rows=rows, conflicts=board.conflicts, refused=refused
    )
    return index.model_dump_json().encode()


def indexed_board(path: Path, key: str, root: Path, contents: Mapping[str, str], owners: Known) -> Board | None:
    """Load a board from its index. Return None if the index is missing, stale or damaged, or contradicts the files."""
    try:
        content = read_bytes(path, LARGEST)
        if not content.startswith(f'{{"key":"{key}"'.encode()):  # checked before parsing the whole file
            return None
        index = Index.model_validate_json(content)
        results = {folder: Result.model_validate_json(read_bytes(root / folder / RESULT)) for folder in index.folders}
        rows = [Row(result=results[row.folders[0]], **{name: getattr(row, name) for name in KEPT})
                for row in index.rows]  # fmt: skip
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError):
        complain(f"{INDEX} is damaged, so all submissions are read; run `saliency-bench review` to rewrite it")
        return None
    if not _agree(rows, contents, owners):
        complain(f"{INDEX} contradicts the submissions and is ignored; run `saliency-bench review` to rewrite it")
        return None
    return Board(rows, index.conflicts, [Refused(*item) for item in index.refused], results)


def _agree(rows: Sequence[Row], contents: Mapping[str, str], owners: Known) -> bool:
    """Return whether the rows of an index match the files.

    All scores must match `result.json` or `status/`, and no row may have a better status than `status/` states.
    """
    claimed = {folder: {cell.cell_id: cell.value for cell in result.cells}
               for folder, result in {row.folder: row.result for row in rows}.items()}  # fmt: skip
    shown, expected = [], []
    for row in rows:
        value = claimed[row.folder].get(row.cell.cell_id)
        if row.status not in (CHECKED, CLAIMED):
            status = owners.statuses.get(contents[row.folder])
            again = status.cells.get(row.cell.cell_id) if status else None
            if again != row.recomputed or again is None:
                return False
            value = again.score.value if row.status == HIDDEN and again.score else value
        shown.append(np.nan if row.value is None else row.value)
        expected.append(np.nan if value is None else value)
    return bool(same(shown, expected).all())


def load_indexed(
    source: BoardSource, root: Path, folders: Sequence[str], owners: Known, problems: Sequence[str]
) -> Board | None:
    """Load a source's board from its index, or return None if the index cannot be used.

    In a repository, the index is read from the main branch, because only the owner can write to this branch.
    """
    contents = contents_of(root, folders)
    try:
        path = source.root([INDEX], "main") / INDEX
    except UserError:  # without a connection, the cache may contain only a different revision
        return None
    return indexed_board(path, key_of(contents, owners, problems), root, contents, owners)


def index_of(source: BoardSource) -> tuple[Board, bytes]:
    """Read the board from the files of a source, and return (board, its index as bytes)."""
    root, folders = source.folders()
    owners, problems = source.known()
    board = read_board(root, folders, owners, problems)
    return board, packed(board, key_of(contents_of(root, folders), owners, problems))


def write_index(board: Path) -> Board:
    """Read the board in a folder and write its index. Return the board."""
    read, content = index_of(BoardSource(board))
    with suppress(OSError):  # if the folder is not writable, the board opens without an index
        write_with(board / INDEX, lambda path: path.write_bytes(content))
    return read
