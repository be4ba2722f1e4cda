"""Tests of an owner's commands from photographs to a table.

`benchmarks/campaign.py` runs with a few small photographs.
"""

import importlib.util
import socket
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.thorough
HERE = Path(__file__).parents[2] / "benchmarks" / "campaign.py"
TURNED = {1: None, 3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}


@pytest.fixture(scope="module")
def campaign():
    spec = importlib.util.spec_from_file_location("campaign", HERE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.campaign


def photographs(folder, count):
    """Write photographs as a phone stores them, rotated by EXIF, with masks of their objects."""
    random = np.random.default_rng(0)
    for index in range(count):
        label, orientation = ("disc", "square")[index % 2], list(TURNED)[index // 2 % 4]
        y, x = np.mgrid[:90, :120] - np.array([40, 50 + index]).reshape(2, 1, 1)
        mask = x**2 + y**2 < 20**2 if label == "disc" else np.maximum(abs(x), abs(y)) < 18
        pixels = np.where(mask[..., None], (220, 60, 40), (60, 90, 120)) + random.integers(0, 30, (90, 120, 3))
        picture, exif = Image.fromarray(pixels.astype(np.uint8)), Image.Exif()
        exif[0x0112] = orientation
        if TURNED[orientation] is not None:
            picture = picture.transpose(TURNED[orientation])
        for path in (folder / "photos" / label, folder / "masks"):
            path.mkdir(parents=True, exist_ok=True)
        picture.save(folder / "photos" / label / f"IMG_{index:03d}.jpg", exif=exif)
        Image.fromarray(mask.astype(np.uint8) * 255).save(folder / "masks" / f"IMG_{index:03d}.png")


def test_campaign_excludes_careless_worker_and_bot(campaign, tmp_path):
    photographs(tmp_path, 12)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done = campaign(tmp_path / "photos", tmp_path / "masks", tmp_path / "work", people=8, honeypots=3, port=port)
    assert done["report"]["agreement"]["IoU"]["value"] > 0.7
    assert sorted(done["left out"].values()) == ["bot", "careless"]
    assert "gradient" in done["table"]
