"""Tests of the accuracy under a transform, against the run without a transform and a loop over images."""

from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refused
from torch import nn

import saliency_bench as sb
from saliency_bench.compute.loading.load import load
from saliency_bench.compute.python_objects import describe
from saliency_bench.compute.scoring.transforms import TRANSFORMS
from saliency_bench.recipes.suites.transformed_runs import accuracy_under

SIDE, CLASSES = 32, 8


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3 * 16, CLASSES)

    def forward(self, images):
        return self.linear(nn.functional.adaptive_avg_pool2d(images, 4).flatten(1))


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("transforms")
    data = sb.build("shapes-xai", folder / "shapes", size=SIDE, count=300, progress=False)
    model = sb.load_classifier(Linear(), mean=0, std=1, device="cpu")
    return {"dataset": str(data), "model": model, "explainers": ["random"], "metrics": ["saliency_own_region"],
            "out": str(folder / "run"), "device": "cpu", "batch_size": 7}  # fmt: skip


def literal(settings, change):
    """Return (acc@1, acc@5) of the test images, computed one by one."""
    rows, model = sb.load_dataset(settings["dataset"], split="test"), settings["model"]
    found = []
    for row in rows:
        picture = torch.from_numpy(np.array(row["image"])).permute(2, 0, 1) / 255
        with torch.no_grad():
            logits = model(change(picture)[None])[0].tolist()
        found.append(sum(logit > logits[row["label"]] for logit in logits))
    return np.mean([before < 1 for before in found]), np.mean([before < 5 for before in found])


def right(picture):
    """Shift images right by a fifth of 32 pixels, rounded to 6, and fill with black."""
    moved = torch.zeros_like(picture)
    moved[:, :, 6:] = picture[:, :, :-6]
    return moved


CHANGES = {"": lambda picture: picture, "flip_vertical": lambda picture: picture[:, range(SIDE - 1, -1, -1)],
           "right": right}  # fmt: skip


@pytest.mark.slow
def test_it_is_the_accuracy_of_changed_images(settings):
    data, model, _ = load(*describe(settings))
    values = set()
    for name, change in CHANGES.items():
        found, expected = accuracy_under(data, model, name), literal(settings, change)
        assert (found["accuracy"]["value"], found["top5"]["value"]) == pytest.approx(expected)
        values.add(expected)
    assert len(values) == len(CHANGES)  # the comparison can fail


def test_without_a_transform_it_is_what_the_summary_says(settings):
    limited = settings | {"limit": 20}
    data, model, _ = load(*describe(limited))
    before = accuracy_under(data, model)
    assert not Path(limited["out"]).exists()
    summary = sb.run(**limited, progress=False).summary["model"]
    assert before == {name: summary[name] for name in before}


def test_an_unknown_transform_is_named_with_the_nearest(settings):
    refused(r"flip-vertical.*flip_vertical", accuracy_under, *load(*describe(settings))[:2], "flip-vertical")
    assert len(TRANSFORMS) == 12
