"""Chunk files become records.parquet and predictions.parquet: the same bytes whatever way they were computed."""

from collections import Counter
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from saliency_bench.engine.context import RunContext
from saliency_bench.engine.predictions import prediction_file
from saliency_bench.results import records
from saliency_bench.results.cell import CellKey
from saliency_bench.results.manifest import read_manifest
from saliency_bench.utils.messages import complain


def merge(context: RunContext) -> None:
    """Chunk files to records.parquet and predictions.parquet, cut to the run's samples (a chunk is computed whole).

    Cells of an earlier start that cover fewer samples than this one are named and not shown with the others.
    """
    chunks = len(context.chunks)
    plan = read_manifest(context.out).cells
    files = chunk_files(context.out, plan, chunks)
    complete = complete_cells(plan, files, chunks)

    # One file after the other: memory does not grow with the samples.
    last = pq.read_table(prediction_file(context, chunks - 1))
    last = last.slice(0, context.samples - (chunks - 1) * context.spec.batch_size)
    whole = (pq.read_table(prediction_file(context, number)) for number in range(chunks - 1))
    schema = last.schema.remove_metadata()
    records.concat(chain(whole, [last]), context.out / "predictions.parquet", schema)
    used = last["image_id"].combine_chunks()

    def cut(path: Path) -> pa.Table:
        table = pq.read_table(path)
        table = table.filter(pc.is_in(table["cell_id"], pa.array(complete, pa.string())))
        return table.filter(pc.is_in(table["image_id"], used)) if number_of(path) == chunks - 1 else table

    records.concat(map(cut, files), context.out / "records.parquet", records.SCHEMA)


def number_of(path: Path) -> int:
    """The number of the chunk that a file holds."""
    return int(path.name[:6])


def chunk_files(folder: Path, plan: dict[str, CellKey], chunks: int) -> list[Path]:
    """All files of a run's first chunks, in the order of explainers in run.json, then chunks."""
    order = {key: position for position, key in enumerate(dict.fromkeys(cell.explainer_id for cell in plan.values()))}
    files = [path for key in order for path in (folder / "chunks" / key).glob("*.parquet")]
    return sorted(
        (path for path in files if number_of(path) < chunks), key=lambda path: (order[path.parent.name], path.name)
    )


def complete_cells(plan: dict[str, CellKey], files: list[Path], chunks: int) -> list[str]:
    """The cells that have all chunks; of others a line on standard error says how to complete them."""
    found: Counter = Counter(cell for path in files for cell in records.notes_of(path)["cells"])
    for cell_id in plan:
        if found[cell_id] < chunks:
            name = f"{plan[cell_id].explainer_text} by {plan[cell_id].metric_text}"
            complain(f"{name} was computed for fewer samples before and is not shown; name it again to complete it")
    return [cell_id for cell_id in plan if found[cell_id] == chunks]
