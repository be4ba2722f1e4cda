"""A submission in memory: create it from a run, check it, and write it to files."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from time import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from saliency_bench.board.checks import CheckedSubmission, checked
from saliency_bench.board.published_maps import LARGEST_SHARD, MOST_SHARDS, SHARD
from saliency_bench.board.recorded import LARGEST as LARGEST_RECORDS
from saliency_bench.board.recorded import Recorded, recorded
from saliency_bench.board.submission_cache import pack, unpack
from saliency_bench.board.submission_schema import LARGEST as LARGEST_RESULT
from saliency_bench.board.submission_schema import LICENSE, RECORDS, RESULT, TEXTS, Result, validated
from saliency_bench.errors import UserError
from saliency_bench.read import records
from saliency_bench.read.cell import as_json
from saliency_bench.read.finished_run import read_run
from saliency_bench.read.manifest import read_manifest
from saliency_bench.read.public_names import public_maps, public_name, public_spec
from saliency_bench.read.statistics.ranking import ranked
from saliency_bench.utils.bounded import ReaderDiedError, bounded
from saliency_bench.utils.files import write_json

LARGEST = {RESULT: LARGEST_RESULT, RECORDS: LARGEST_RECORDS}  # maximum size of each file in bytes
MOST = 100  # maximum number of submissions in a pull request (a suite has many runs)


def most_bytes(path: str) -> int | None:
    """Return the size limit in bytes for a path in a submission, or None if a submission may not contain this path."""
    name = path.rpartition("/")[2]
    return LARGEST_SHARD if SHARD.fullmatch(name) else LARGEST.get(name)


def too_much(sizes: Mapping[str, int], submissions: int) -> list[str]:
    """Return a message for each limit that a pull request exceeds.

    Args:
        sizes: {path: size in bytes} of the files.
        submissions: Number of added submissions.
    """
    problems = [f"the pull request adds {submissions} submissions, more than the limit of {MOST}"] * (
        submissions > MOST
    )
    problems += [
        f"{path} has {size:,} bytes, more than the limit of {most:,}"
        for path, size in sizes.items()
        if (most := most_bytes(path)) is not None and size > most
    ]
    shards = Counter(path.rpartition("/")[0] for path in sizes if SHARD.fullmatch(path.rpartition("/")[2]))
    return problems + [
        f"{folder} has {count:,} map files, more than the limit of {MOST_SHARDS:,}"
        for folder, count in shards.items()
        if count > MOST_SHARDS
    ]


@dataclass(frozen=True)
class Submission:
    """A result with its records in memory.

    Attributes:
        result: Content of `result.json`.
        recorded: Scores in the records.
        where: Name of the submission in messages.
    """

    result: Result
    records: pa.Table
    recorded: Recorded
    where: str

    def write(self, root: Path) -> list[Path]:
        """Write `root`/DATASET/MODEL/SUBMITTER/{result.json, records.parquet}, and return both paths."""
        folder = root / self.result.folder
        write_json(folder / RESULT, self.result.model_dump(mode="json"))
        pieces = (pa.Table.from_batches([batch]) for batch in self.records.to_batches(max_chunksize=records.ROWS))
        records.concat(pieces, folder / RECORDS, records.SCHEMA)
        return [folder / RESULT, folder / RECORDS]

    def only(self, cells: set[str]) -> "Submission":
        """Return a submission that contains only the cells with these ids, with recomputed ranks."""
        rows = self.records.filter(pc.is_in(self.records["cell_id"], pa.array(sorted(cells))))
        result = self.result.only(cells)
        recorded = replace(self.recorded, outcomes={key: self.recorded.outcomes[key] for key in cells})
        standings = ranked(result.cells, recorded.values, recorded.codes, result.setting.seed)
        cells_in_order = [cell.model_copy(update=standings[cell.cell_id].as_dict()) for cell in result.cells]
        return Submission(result.model_copy(update={"cells": cells_in_order}), rows, recorded, self.where)

    @property
    def checked(self) -> CheckedSubmission:
        """The checked submission, for comparisons with other submissions."""
        return CheckedSubmission(self.result, self.result.cells, self.recorded)


def of_run(folder: str | Path, submitter: str, note: str = "", link: str = "") -> Submission:
    """Create a submission from a finished run. Paths of local folders are removed (`read.public_names`).

    Raises:
        UserError: The folder contains no finished run, or its files contradict each other.
    """
    folder = Path(folder)
    run = read_run(folder)
    summary = run.summary
    dataset, model = summary["dataset"], summary["model"]
    manifest = read_manifest(folder)
    names = {"dataset": dataset["id"], "model": public_name(model["id"], model.get("repo") is None)}
    public = public_spec(manifest.spec, **{kind: _pinned(summary[kind], names[kind]) for kind in names})
    maps = {explainer: public_maps(entry) for explainer, entry in manifest.maps.items()}
    explained = {cell.explainer_id for cell in run.cells}
    content = {
        "submitter": submitter,
        "note": note,
        "link": link,
        "ran": _day(run.timings.get("started")),
        "submitted": _day(time()),
        "seconds": {key: value for key, value in run.timings.get("explainers", {}).items() if key in explained},
        "peak_memory": run.timings.get("peak_memory"),
        "dataset": dataset | {"id": names["dataset"]},
        "license": LICENSE,
        "model": model | {"id": names["model"]},
        "target": summary["target"],
        "setting": manifest.identity.model_dump(mode="json"),
        "answers": None if (answers := manifest.answers.get("model")) is None else answers.model_dump(mode="json"),
        "cells": as_json(run.cells),
        "command": manifest.model_copy(update={"spec": public, "maps": maps}).commands(run.cells),
        "provenance": summary["provenance"],
    }
    result = validated(json.dumps(content), folder / "summary.json")
    columns = records.read_columns(folder / RECORDS, records.SCHEMA.names, records.SCHEMA)
    table = columns.replace_schema_metadata(None).unify_dictionaries()
    outcomes = checked(result, recorded(result, table, folder / RECORDS), folder / RECORDS).recorded
    return Submission(result, table, outcomes, str(folder))


def of_upload(folder: str | Path, submitter: str, note: str = "", link: str = "") -> Submission:
    """Create a submission from an uploaded run.

    Uploads are untrusted, so the run is read in a child process with limited memory and time.
    """
    try:
        packed = bounded(run_packed, str(folder), submitter, note, link)
    except ReaderDiedError as error:
        raise UserError(f"the run cannot be read: {error}") from error
    submission = unpack(packed)
    with np.load(BytesIO(packed), allow_pickle=False) as arrays:
        table = pq.read_table(BytesIO(arrays["records"].tobytes()), read_dictionary=TEXTS)
    return Submission(submission.result, table.unify_dictionaries(), submission.recorded, str(folder))


def run_packed(folder: str, submitter: str, note: str, link: str) -> bytes:
    """Serialise a run as a submission. pyarrow rewrites its records."""
    submission = of_run(folder, submitter, note, link)
    buffer = BytesIO()
    pq.write_table(submission.records, buffer)
    return pack(submission.checked, records=np.frombuffer(buffer.getvalue(), dtype=np.uint8))


def _day(seconds: float | None) -> str | None:
    """Format a Unix time as a date in UTC, YYYY-MM-DD."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).date().isoformat()


def _pinned(source: dict, name: str) -> str:
    """Return a name that includes the commit on the Hub, so that the same dataset or model can be loaded again."""
    return f"{source['repo']}@{source['revision']}" if source.get("repo") else name
