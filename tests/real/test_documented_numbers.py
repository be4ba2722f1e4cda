"""Tests that numbers for photographs in the documentation equal the golden file and the page of findings."""

import json
import re
from pathlib import Path

import pytest

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


def findings_of(title):
    """Return {(explainer, metric): value} of a table of docs/findings.md, as printed."""
    section = (ROOT / "docs/findings.md").read_text().partition(f"## {title}")[2].partition("\n## ")[0]
    head, _, *lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    metrics = [cell.strip(" ↑↓") for cell in head]
    return {(name.strip(" *"), metric): cell.split()[0] for name, *cells in lines
            for metric, cell in zip(metrics[1:], cells, strict=True)}  # fmt: skip


def test_the_table_of_pets_in_choosing_a_metric_is_that_of_findings():
    table = (ROOT / "docs/choosing_a_metric.md").read_text().partition("<!-- table of pets -->\n")[2]
    head, _, *lines = [line.strip("|").split("|") for line in table.partition("\n\n")[0].splitlines()]
    pets = findings_of("Pets (Oxford-IIIT Pet)\n")
    assert len(lines) == 5
    for name, *cells in lines:
        for metric, cell in zip(head[1:], cells, strict=True):
            assert cell.strip() == pets[name.strip(" *"), metric.strip().lower()], (name, metric)


@pytest.mark.parametrize("metric", ["miou", "pointing_game", "precision", "energy"])
def test_numbers_of_pets_on_cards_are_those_of_findings(metric):
    card = (ROOT / f"metrics/saliency_{metric}/README.md").read_text()
    part = card.partition("On 51 photographs of pets")[2].partition("<!-- baselines")[0]
    printed = {value for (_, name), value in findings_of("Pets (Oxford-IIIT Pet)\n").items()
               if name.replace(" ", "_") in (metric, "precision", "recall")}  # fmt: skip
    printed |= {value for (_, name), value in findings_of("COCO 2017, the largest").items() if name == metric}
    assert len(found := re.findall(r"\d\.\d{3}", part)) >= 4
    assert set(found) <= printed
