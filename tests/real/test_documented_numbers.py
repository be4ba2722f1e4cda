"""Numbers that the documentation prints for the photographs are those of the golden file."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
METRICS = ("saliency_miou", "saliency_energy", "saliency_average_precision")
COLUMNS = [(metric, photograph) for photograph in ("chelsea", "rocket") for metric in METRICS]


def test_the_table_of_choosing_a_metric_is_measured():
    golden = json.loads((ROOT / "tests/real/golden.json").read_text())
    page = (ROOT / "docs/choosing_a_metric.md").read_text()
    table = page.partition("<!-- table of photographs -->\n")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(table) == 5
    for line in table:
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        explainer = name.strip("*").partition(":")[0]
        assert cells == [f"{golden[f'{explainer} {metric}'][photograph]:.2f}" for metric, photograph in COLUMNS], name
