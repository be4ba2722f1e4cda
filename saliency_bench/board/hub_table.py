"""Generate two files of a results repository: the table that the Hub displays, and the index (`index.py`).

The files are rewritten whenever the owner runs a command that changes the board.
"""

from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub import CommitOperationAdd, HfApi

from saliency_bench.board.board import Board
from saliency_bench.board.columns import COLUMNS, features
from saliency_bench.board.index import INDEX, index_of
from saliency_bench.board.source import BoardSource

ROWS = "board/rows.parquet"
NO_RESULT = "no result yet: this row only shows the columns"


def table_of(board: Board | None) -> bytes:
    """Return the rows of a board as Parquet. If `board` is None, the table has a single placeholder row."""
    # The Hub and `datasets` do not display a table without rows.
    rows = [dict.fromkeys(COLUMNS) | {"explainer": NO_RESULT}] if board is None else board.cells
    with BytesIO() as buffer:
        pq.write_table(pa.Table.from_pylist(rows, schema=features().arrow_schema), buffer)
        return buffer.getvalue()


def rewrite(repo: str, api: HfApi, commit: str | None = None) -> Any:
    """Write the table and the index that belong to a commit of a results repository, and return the Hub's response.

    By default, the newest commit is used.
    """
    board, index = index_of(BoardSource(repo, commit, api))
    files = [CommitOperationAdd(ROWS, table_of(board)), CommitOperationAdd(INDEX, index)]
    return api.create_commit(
        repo, files, repo_type="dataset", commit_message="Update the table and the index of the board"
    )
