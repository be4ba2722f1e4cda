"""The table that the Hub itself shows of a results repository: the rows of the board, with status and official rank.

Its owner's commands write it anew whenever they change the board. What submitters write beside their results
(`cells.parquet`) has neither.
"""

from io import BytesIO
from typing import Any

from huggingface_hub import CommitOperationAdd, HfApi

from saliency_bench.leaderboard.board import Board, load_results

ROWS = "board/rows.parquet"
FIRST = ("explainer", "metric", "dataset", "model", "value", "low", "high", "n", "rank", "status", "recomputed", "best")


def table_of(board: Board) -> bytes:
    """Return the rows of a board as Parquet, what readers look for first."""
    table = board.table()
    buffer = BytesIO()
    table.select_columns([*FIRST, *(name for name in table.column_names if name not in FIRST)]).to_parquet(buffer)
    return buffer.getvalue()


def rewrite(repo: str, api: HfApi, commit: str | None = None) -> Any:
    """Write the table of a results repository as of a commit (default: the newest), and return what the Hub answers."""
    content = table_of(load_results(repo, commit))
    return api.create_commit(
        repo, [CommitOperationAdd(ROWS, content)], repo_type="dataset", commit_message="The board, for the viewer"
    )
