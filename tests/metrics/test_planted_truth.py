"""Test that every alignment metric ranks noise and the blurred, shifted and inverted masks of shapes-xai correctly."""

from itertools import pairwise
from pathlib import Path

import contracts
import numpy as np
import planted as script
import pytest

from saliency_bench import registry
from saliency_bench.bound_metric import load_metric

METRICS = [load_metric(name) for name in contracts.complete("metrics")]
ALIGNMENT = [metric.name for metric in METRICS if metric.inputs == ("maps", "masks")]


@pytest.fixture(scope="module")
def masks():
    shapes = registry.load("hub_builders", "shapes-xai")
    return np.stack([shapes.drawn(index, 64)["mask"] > 0 for index in range(96)])


@pytest.mark.parametrize("name", ALIGNMENT)
def test_the_planted_truth_is_ranked_rightly(masks, name):
    metric, maps = load_metric(name), script.planted(masks)
    scores = {kind: metric(maps[kind], masks).mean() for kind in script.ORDER}
    goodness = [score if metric.higher_is_better else -score for score in scores.values()]
    assert scores["mask"] == metric.range[metric.higher_is_better]
    for better, worse in pairwise(goodness[1:]):
        assert better > worse
    # A blurred mask has its maximum inside the mask, so the pointing game gives both maps the same score.
    assert goodness[0] > goodness[1] or name == "saliency_pointing_game"


def test_the_page_marks_what_is_out_of_order():
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    lines = {line.split()[1]: line for line in page.splitlines() if line.startswith("| saliency_")}
    assert {"saliency_miou", "saliency_deletion"} <= set(lines) <= {metric.name for metric in METRICS}
    for name, line in lines.items():
        means = [float(cell.strip("* ")) for cell in line.split("|")[2:-1]]
        assert script.row(load_metric(name), means) == line
        assert name not in ALIGNMENT or "**" not in line
