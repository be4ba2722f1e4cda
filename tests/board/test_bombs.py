"""Tests of submissions with small files that expand to gigabytes: they are refused without using much memory."""

import json
import resource

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from submissions import write

import saliency_bench as sb

SCORES = {"gradcam": np.linspace(0.1, 0.9, 60), "random": np.linspace(0.2, 0.3, 60)}
MEGABYTES = 300


def of_rows(folder, rows, name="dataset", values=None, **options):
    """Write many records that copy the first row, except for one column."""
    first = pq.read_table(folder / "records.parquet").slice(0, 1)
    columns = {key: first[key].take(pa.array(np.zeros(rows, int))) for key in first.schema.names}
    table = pa.table(columns if values is None else columns | {name: values})
    pq.write_table(table, folder / "records.parquet", **options)


def claim(folder, samples):
    content = json.loads((folder / "result.json").read_text())
    content["dataset"] |= {"samples": samples, "used": samples}
    (folder / "result.json").write_text(json.dumps(content))


def texts_by_their_differences(folder):
    """Write a page of a few kilobytes in which each string extends the previous string."""
    texts = pa.array(["x" * 100_000 + str(number) for number in range(120)])
    options = {"use_dictionary": False, "column_encoding": {"label": "DELTA_BYTE_ARRAY"}}
    of_rows(folder, 120, "label", texts, **options)


def many_rows(folder):
    of_rows(folder, 6_000_000)


def many_images(folder):
    claim(folder, 150_000)
    ids = pc.cast(pa.array(np.arange(300_000)), pa.string())
    of_rows(folder, 300_000, "image_id", pc.utf8_lpad(ids, 450, "0"), compression="zstd", row_group_size=100_000)


def gigabytes(folder):
    """Write two megabytes of Parquet that expand to four gigabytes."""
    claim(folder, 2_000_000)
    text = pa.array(["x" * 1900]).dictionary_encode().take(pa.array(np.zeros(2_000_000, int)))
    of_rows(folder, 2_000_000, "label", text, compression="zstd", store_schema=False)


def a_footer_that_lies(folder):
    path = folder / "records.parquet"
    path.write_bytes(path.read_bytes()[:-8] + (10**9).to_bytes(4, "little") + b"PAR1")


def deep(folder):
    (folder / "result.json").write_text("[" * 100_000 + "]" * 100_000)


def wide(folder):
    content = json.loads((folder / "result.json").read_text())
    content["provenance"]["more"] = [{} for _ in range(2_000_000)]
    (folder / "result.json").write_text(json.dumps(content, separators=(",", ":")))


def many_errors(folder):
    content = json.loads((folder / "result.json").read_text())
    content["provenance"] |= {f"a{number}": {} for number in range(200_000)}
    (folder / "result.json").write_text(json.dumps(content, separators=(",", ":")))


def empty_cells(folder):
    content = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(content | {"cells": [{}] * 2000}))


BOMBS = {texts_by_their_differences: "Not yet implemented", many_rows: "6,000,000 rows",
         many_images: "300,000 rows for 2 scores", gigabytes: "occurs twice in a cell",
         a_footer_that_lies: "footer", deep: "levels deep", wide: "values, more than the limit",
         empty_cells: "fields do not match", many_errors: "names, more than the limit"}  # fmt: skip


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000


@pytest.mark.slow
@pytest.mark.sample(0, 3)
@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb.__name__)
def test_bomb_is_refused_and_takes_little_memory(bomb, tmp_path):
    good, bad = tmp_path / "good", tmp_path / "bad"
    write(good, SCORES)
    assert len(sb.load_results(good).rows) == 2  # import everything before memory is measured
    bomb(write(bad, SCORES))
    before = peak()
    board = sb.load_results(bad)
    assert peak() - before < MEGABYTES
    (refused,) = board.refused
    assert BOMBS[bomb] in refused.line
    assert refused.line.isprintable()
    assert not board.rows
