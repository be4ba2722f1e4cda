"""Submissions that are small as files and large in memory: each is refused, and little memory is taken."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from submissions import write

SCORES = {"gradcam": np.linspace(0.1, 0.9, 60), "random": np.linspace(0.2, 0.3, 60)}
MEGABYTES = 500
LOAD = f"""
import resource, sys
import saliency_bench as sb
good, bad = sys.argv[1:]
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000
assert len(sb.load_results(good).rows) == 2  # everything is imported
before = peak()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + {MEGABYTES} * 10**6,) * 2)
board = sb.load_results(bad)
print(peak() - before)
for one in board.refused:
    print(one.line)
assert not board.rows
"""


def of_rows(folder, columns, rows, **options):
    """Records of so many rows, all of them the first one's but for some columns."""
    first = pq.read_table(folder / "records.parquet").slice(0, 1)
    one = {name: pa.array(first[name].to_pylist() * rows, first[name].type) for name in first.schema.names}
    table = pa.table(one | {name: pa.array(values, first[name].type) for name, values in columns.items()})
    pq.write_table(table, folder / "records.parquet", **options)


def long_texts(folder):
    texts = ["x" * 10**6 + str(number) for number in range(120)]
    of_rows(folder, {"label": texts}, 120, compression="zstd", use_dictionary=False)


def texts_by_their_differences(folder):
    """A page of a few kilobytes, each text of which is the one before and a little more."""
    texts = ["x" * 100_000 + str(number) for number in range(120)]
    of_rows(folder, {"label": texts}, 120, use_dictionary=False, column_encoding={"label": "DELTA_BYTE_ARRAY"})


def many_rows(folder):
    of_rows(folder, {}, 6_000_000)


def many_row_groups(folder):
    claim(folder, 10_000)
    of_rows(folder, {}, 600, row_group_size=1)


def claim(folder, samples):
    content = json.loads((folder / "result.json").read_text())
    content["dataset"] |= {"samples": samples, "used": samples}
    (folder / "result.json").write_text(json.dumps(content))


def one_long_text(folder):
    claim(folder, 3000)
    of_rows(folder, {"label": ["x" * 10**6] * 5000}, 5000)


def many_images(folder):
    claim(folder, 150_000)
    texts = [f"{number:0450}" for number in range(300_000)]
    of_rows(folder, {"image_id": texts}, 300_000, compression="zstd", row_group_size=100_000)


def a_long_footer(folder):
    table = pq.read_table(folder / "records.parquet")
    pq.write_table(table.replace_schema_metadata({"x": "y" * 3_000_000}), folder / "records.parquet")


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


def many_cells(folder):
    content = json.loads((folder / "result.json").read_text())
    content["cells"] *= 3000
    (folder / "result.json").write_text(json.dumps(content))


BOMBS = {
    one_long_text: "text of more than 2,000 bytes", long_texts: "unpack to more than",
    texts_by_their_differences: "pages that are not as", many_rows: "6,000,000 rows", many_row_groups: "row groups",
    many_images: "letters", a_long_footer: "footer", a_footer_that_lies: "footer", deep: "levels deep",
    wide: "values, of which", many_cells: "cells", empty_cells: "fields do not fit",
    many_errors: "names, of which",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.sample(0, 3)
@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb.__name__)
def test_a_bomb_is_refused_and_takes_little_memory(bomb, tmp_path):
    good, bad = tmp_path / "good", tmp_path / "bad"
    write(good, SCORES)
    bomb(write(bad, SCORES))
    done = subprocess.run([sys.executable, "-c", LOAD, good, bad], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown, *lines = done.stdout.splitlines()
    assert int(grown) < MEGABYTES
    assert len(lines) == 1
    assert BOMBS[bomb] in lines[0]
