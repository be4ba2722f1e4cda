"""Every suite at smoke size: each table with every row and column of the paper's."""

import json

import pytest

from saliency_bench.engine.suites.schema import find_suite, suite_files
from saliency_bench.engine.suites.suite import suite


@pytest.mark.slow
@pytest.mark.parametrize("paper", sorted(suite_files()))
def test_every_table_has_all_rows_and_columns(paper, tmp_path):
    done = suite(paper, out=tmp_path / "out", smoke=True, compare=True, device="cpu", progress=False)
    assert done.failed == {}
    _, found, tables = find_suite(paper)
    assert [laid.grid.name for laid in done.tables] == list(tables)
    for laid in done.tables:
        grid, table = laid.grid, laid.grid.table
        shown = [number for number in grid.numbers.values() if number.paper is not None]
        printed = sum(figure is not None for line in table.figures for figure in line)
        assert len(shown) == printed, grid.name
        reasons = {number.missing for number in grid.numbers.values() if number.value is None}
        assert "not run" not in reasons, grid.name
        assert any(number.value is not None for number in grid.numbers.values()), (grid.name, reasons)
        rows = json.loads((done.folder / "tables" / f"{grid.name}.json").read_text())["numbers"]
        assert len(rows) == len(grid.numbers)
    assert done.page.is_file()
    assert found.paper.split(",")[0] in done.page.read_text()
