"""How large a submission may be: checked before it is sent, and when its pull request is reviewed."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from saliency_bench.errors import UserError, one_line
from saliency_bench.leaderboard import schema
from saliency_bench.leaderboard.files import recorded
from saliency_bench.leaderboard.files.maps import LARGEST_SHARD, MOST_SHARDS, SHARD
from saliency_bench.leaderboard.files.pages import check_table
from saliency_bench.leaderboard.schema import RECORDS, RESULT, read_result
from saliency_bench.leaderboard.submission import CELLS

LARGEST = {RESULT: schema.LARGEST, RECORDS: recorded.LARGEST, CELLS: schema.LARGEST}  # bytes
MOST = 100  # submissions of a pull request, such as the runs of a suite


def most_bytes(path: str) -> int | None:
    """Return the size that a file of a submission may have; None of a path that is no such file."""
    name = path.rpartition("/")[2]
    return LARGEST_SHARD if SHARD.fullmatch(name) else LARGEST.get(name)


def too_large(sizes: Mapping[str, int]) -> list[str]:
    """Return what is wrong with files of submissions, {path: bytes}, a line each."""
    problems = [
        f"{path} has {size:,} bytes, of which at most {most:,} are read"
        for path, size in sizes.items()
        if (most := most_bytes(path)) is not None and size > most
    ]
    shards = Counter(path.rpartition("/")[0] for path in sizes if SHARD.fullmatch(path.rpartition("/")[2]))
    return problems + [
        f"{folder} has {count:,} files of maps, of which at most {MOST_SHARDS:,} are read"
        for folder, count in shards.items()
        if count > MOST_SHARDS
    ]


def too_many(submissions: int) -> list[str]:
    """Return the line that refuses so many submissions in a pull request."""
    return [f"it adds {submissions} submissions, of which at most {MOST} are read"] if submissions > MOST else []


def check_written(folder: Path) -> None:
    """Check by their sizes alone whether a board reads the result and the records in a folder.

    Raises:
        UserError: A bound is broken; says which.
    """
    try:
        read_result(folder / RESULT)
        check_table(folder / RECORDS, recorded.LARGEST, recorded.MOST_ROWS)
    except UserError as error:
        raise UserError(f"no board reads this run: {str(error).replace(f'{folder}/', '')}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"no board reads {RECORDS} of this run: {one_line(error)}") from error
