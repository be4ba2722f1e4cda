"""Run `benchmarks/scale.py` on a small scale and check the number of files and memory, but not the time."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
HERE = Path(__file__).parents[2] / "benchmarks" / "scale.py"


@pytest.fixture(scope="module")
def scale():
    spec = importlib.util.spec_from_file_location("scale", HERE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.thorough
def test_files_and_memory_of_a_generated_run(scale, tmp_path):
    few, many = (scale.generated(tmp_path / str(size), size, explainers=4, metrics=5) for size in (2e5, 4e5))
    parts = -(-scale.samples_of(4e5, 4, 5) // 8192)
    assert many["records"] == pytest.approx(4e5, rel=0.01)
    assert many["row groups"] == -(-many["records"] // 100_000)
    # Parts of scores and predictions, thumbnails of the example samples, and the files of the finished run.
    assert many["files"] <= 2 * parts + 1 + 10
    assert many["page MiB"] < 5
    for stage in ("merge", "summarise", "report", "start again"):
        assert many[stage]["peak"] <= 1.1 * few[stage]["peak"], stage
