"""Bounds on the size of a submission, checked before it is sent and when its pull request is reviewed."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from saliency_bench.errors import UserError, one_line
from saliency_bench.leaderboard import recorded, schema
from saliency_bench.leaderboard.parquet import check_table
from saliency_bench.leaderboard.published_maps import LARGEST_SHARD, MOST_SHARDS, SHARD
from saliency_bench.leaderboard.schema import RECORDS, RESULT, read_result
from saliency_bench.leaderboard.submission import CELLS

LARGEST = {RESULT: schema.LARGEST, RECORDS: recorded.LARGEST, CELLS: schema.LARGEST}  # bytes
MOST = 100  # submissions of a pull request, such as the runs of a suite


def most_bytes(path: str) -> int | None:
    """Return the largest size of a file of a submission in bytes, or None for a path that no submission has."""
    name = path.rpartition("/")[2]
    return LARGEST_SHARD if SHARD.fullmatch(name) else LARGEST.get(name)


def too_large(sizes: Mapping[str, int]) -> list[str]:
    """Return a line for each bound that files of submissions, {path: bytes}, break."""
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
    """Return the line that refuses a pull request with so many submissions; none if they are not too many."""
    return [f"it adds {submissions} submissions, of which at most {MOST} are read"] if submissions > MOST else []


def check_written(folder: Path) -> None:
    """Raise UserError if a board would refuse the result and the records in a folder for their size."""
    try:
        read_result(folder / RESULT)
        check_table(folder / RECORDS, recorded.LARGEST, recorded.MOST_ROWS)
    except UserError as error:
        raise UserError(f"no board reads this run: {str(error).replace(f'{folder}/', '')}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"no board reads {RECORDS} of this run: {one_line(error)}") from error
