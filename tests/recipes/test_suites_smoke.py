"""Tests of every suite at smoke size: each table has all rows and columns of the paper."""

import json

import pytest

from saliency_bench.recipes.suites.suite import suite
from saliency_bench.recipes.suites.suite_schema import find_suite, suite_files

# Cells that never have a number: explainers that all agree have no order.
UNDEFINED = {"p2-figure7": {"one of the two metrics is constant"}}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("smoke") / "out"


@pytest.mark.slow
@pytest.mark.sample(0, 1)
@pytest.mark.parametrize(
    "paper", sorted(suite_files(), key=lambda name: (name != "reference", name), reverse=True)
)  # the fastest first
def test_every_table_has_all_rows_and_columns(paper, out):
    done = suite(paper, out=out, smoke=True, compare=True, device="cpu", progress=False)
    assert done.failed == {}
    _, content, names = find_suite(paper)
    assert [*(table.name for table in done.tables), *done.pictures] == list(names)
    for table in done.tables:
        printed = sum(figure is not None for line in table.table.figures for figure in line)
        assert table.numbers["paper"].notna().sum() == printed, table.name
        reasons = set(table.numbers["missing"]) - {""}
        assert reasons <= UNDEFINED.get(table.name, set()), (table.name, reasons)
        rows = json.loads((done.folder / "tables" / f"{table.name}.json").read_text())["numbers"]
        assert len(rows) == len(table.numbers)
    assert done.page.is_file()
    assert content.paper.split(",")[0] in done.page.read_text()
