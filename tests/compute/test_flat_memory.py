"""Test that peak memory does not grow with samples or cells; each run is a new process that prints its peak."""

import importlib.util
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Features, Image, Value
from PIL import Image as Picture

pytestmark = pytest.mark.slow

# Prints the peak resident memory in MiB. The network is a small convolution, because only memory is measured.
RUN = """
import json
import pathlib
import re
import sys

import torch

import saliency_bench as sb
from saliency_bench.read.statistics import intervals

intervals.INDICES_AT_ONCE = 2**16  # the bootstrap's block is of a fixed size; a large one would hide what grows
dataset, out, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
torch.manual_seed(0)
network = torch.nn.Sequential(
    torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 2)
)


def brightness(classifier, images, target):
    return images.mean(dim=1)


result = sb.run(
    dataset=dataset, model=sb.load_classifier(network, mean=0, std=1, device="cpu"),
    explainers=["random", brightness], out=out,
    device="cpu", progress=False, **settings,
)
assert all(cell["n"] == settings.get("limit", cell["n"]) for cell in result.summary["cells"])
assert len(result.summary["cells"]) == 2 * len(settings["metrics"])
# Not getrusage: that peak also counts the parent's memory, from before this process had a program of its own.
print(int(re.search(r"VmHWM:\\s*(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) / 1024)
"""
METRICS = ["saliency_miou", "saliency_pointing_game"]


def png(colour):
    """Return a picture of 32 pixels with a square of a colour, a few hundred bytes.

    `datasets` maps its files into memory, and pages that were read count as resident memory although the system can
    reclaim them. Small pictures keep this part small.
    """
    picture = Picture.new("RGB", (32, 32))
    picture.paste(colour, (8, 12, 20, 24))
    buffer = io.BytesIO()
    picture.save(buffer, "png")
    return {"bytes": buffer.getvalue(), "path": None}


def folder_of(samples, folder):
    """Write a dataset with this number of samples as Parquet, in row groups of a hundred."""
    kinds = {"image": Image(), "mask": Image(), "label": ClassLabel(names=["a", "b"]), "image_id": Value("string")}
    columns = {"image": [png("orange")] * samples, "mask": [png("white")] * samples,
               "label": [number % 2 for number in range(samples)],
               "image_id": [f"sample-{number:06d}" for number in range(samples)]}  # fmt: skip
    table = pa.Table.from_pydict(columns, schema=Features(kinds).arrow_schema)
    (folder / "data").mkdir(parents=True)
    pq.write_table(table, folder / "data" / "test-00000-of-00001.parquet", row_group_size=100)
    return folder


def peak(dataset, tmp_path, **settings):
    """Return the peak memory of a run over this dataset in MiB."""
    place = tmp_path / f"run-{len(list(tmp_path.glob('run-*')))}"
    caches = {"HF_DATASETS_CACHE": str(tmp_path / "caches"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    script = tmp_path / "measured.py"
    script.write_text(RUN)
    done = subprocess.run(
        [sys.executable, script, dataset, place, json.dumps(settings)],
        env=os.environ | caches, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return float(done.stdout.splitlines()[-1])


@pytest.mark.thorough
def test_peak_memory_does_not_grow_with_samples(tmp_path):
    few, many = (folder_of(samples, tmp_path / str(samples)) for samples in (2_000, 20_000))
    settings = {"metrics": METRICS, "batch_size": 100}
    peak(few, tmp_path, **settings, limit=1)  # load the libraries into the disk cache
    small, large = peak(few, tmp_path, **settings), peak(many, tmp_path, **settings)
    print(f"peak memory: {small:.0f} MiB for 2,000 samples, {large:.0f} MiB for 20,000: {large / small - 1:+.1%}")
    assert large <= 1.1 * small


@pytest.mark.thorough
def test_files_and_memory_of_a_generated_run(tmp_path):
    """Run `benchmarks/scale.py` on a small scale."""
    path = Path(__file__).parents[2] / "benchmarks" / "scale.py"
    spec = importlib.util.spec_from_file_location("scale", path)
    scale = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scale)
    few, many = (scale.generated(tmp_path / str(size), size, explainers=4, metrics=5) for size in (2e5, 4e5))
    parts = -(-scale.samples_of(4e5, 4, 5) // 8192)
    assert many["records"] == pytest.approx(4e5, rel=0.01)
    assert many["row groups"] == -(-many["records"] // 100_000)
    # Parts of scores and predictions, thumbnails of the example samples, and the files of the finished run.
    assert many["files"] <= 2 * parts + 1 + 10
    assert many["page MiB"] < 5
    for stage in ("merge", "summarise", "report", "start again"):
        assert many[stage]["peak"] <= 1.1 * few[stage]["peak"], stage
