"""A seeded part of `benchmarks/statistics.py`: what intervals and tests promise, with the slack of few simulations."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "statistics.py"


@pytest.fixture(scope="module")
def simulation():
    spec = importlib.util.spec_from_file_location("simulated_statistics", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("size", [1, 6])
@pytest.mark.parametrize("law", ["0/1 at .02", "0/1 at .5", "0/1 at .98", "IoU (beta)", "zero-inflated"])
def test_means_of_bounded_scores_are_covered(simulation, law, size):
    covered = [simulation.coverage(law, clusters, size, times=200) for clusters in (20, 100)]
    assert min(covered) >= 0.93 - 2.5 * (0.93 * 0.07 / 200) ** 0.5


@pytest.mark.sample(2)
@pytest.mark.parametrize(("explainers", "times"), [(5, 150), (23, 60), (40, 30)])
@pytest.mark.parametrize("settings", [{"size": 6}, {"missing": 0.1}], ids=["clusters", "missing"])
def test_few_false_findings(simulation, explainers, times, settings):
    often = times // 3 if "missing" in settings and explainers > 5 else times
    rate = simulation.false_findings("zero-inflated", explainers, 50, often, flips=199, **settings)
    assert rate <= 0.07 + 2.5 * (0.07 * 0.93 / often) ** 0.5


def test_forty_explainers_are_told_apart(simulation):
    assert simulation.pairs_found(40, 500, 3, "every") == (780, 780)
    assert simulation.pairs_found(40, 500, 4.5, "neighbours")[0] > 770


@pytest.mark.slow
def test_it_stands_in_nobody_s_way():
    """It lies beside scripts that import the standard library's module of the same name."""
    lines = (
        "import sys",
        f"sys.path.insert(0, {str(SCRIPT.parent)!r})",
        "import statistics",
        "print(statistics.median([2]))",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"
