"""Parts become one file: records.parquet and predictions.parquet, the same bytes however the parts came about."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from saliency_bench.engine.chunks import prediction_part
from saliency_bench.engine.context import RunContext
from saliency_bench.results import records
from saliency_bench.utils.files import read_json
from saliency_bench.utils.messages import complain


def merge(context: RunContext, samples: int) -> None:
    """Parts to records.parquet and predictions.parquet, cut to the samples asked for (a chunk is computed whole).

    Cells of an earlier start that cover fewer samples than this one are named and not shown beside the others.
    """
    chunks = -(-samples // context.spec.batch_size)
    in_last = samples - (chunks - 1) * context.spec.batch_size
    plan = read_json(context.out / "run.json")["cells"]
    parts = parts_of(context.out, plan, chunks)
    complete = complete_cells(plan, parts, chunks)

    def cut(part: Path) -> pa.Table:
        table = pq.read_table(part)
        if int(part.name[:6]) < chunks - 1:
            return table
        rows_per_cell = len(table) // len(records.notes_in(table.schema).get("cells", [None]))
        return table.filter(pa.array(np.arange(len(table)) % rows_per_cell < in_last))

    predictions = [prediction_part(context, number) for number in range(chunks)]
    records.concat(map(cut, predictions), context.out / "predictions.parquet", records.PREDICTIONS)
    whole = (table.filter(pc.is_in(table["cell_id"], pa.array(complete))) for table in map(cut, parts))
    records.concat(whole, context.out / "records.parquet", records.SCHEMA)


def parts_of(folder: Path, plan: dict[str, dict], chunks: int) -> list[Path]:
    """All parts of a run's first chunks, in the order of explainers in run.json, then chunks."""
    order = {key: position for position, key in enumerate(dict.fromkeys(cell["parts"] for cell in plan.values()))}
    parts = [part for key in order for part in (folder / "parts" / key).glob("*.parquet")]
    return sorted(
        (part for part in parts if int(part.name[:6]) < chunks), key=lambda part: (order[part.parent.name], part.name)
    )


def complete_cells(plan: dict[str, dict], parts: list[Path], chunks: int) -> list[str]:
    """The cells that have all chunks; of others a line on standard error says how to complete them."""
    found: Counter = Counter(cell for part in parts for cell in records.notes_of(part)["cells"])
    for cell_id in plan:
        if found[cell_id] < chunks:
            name = f"{plan[cell_id]['explainer_text']} by {plan[cell_id]['metric_text']}"
            complain(f"{name} was computed for fewer samples before and is not shown; name it again to complete it")
    return [cell_id for cell_id in plan if found[cell_id] == chunks]
