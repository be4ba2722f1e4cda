"""Tests that the documentation page of datasets lists every dataset and its samples."""

import pytest
from PIL import Image
from site_pages import site_page

from saliency_bench import registry


@pytest.mark.slow
def test_page_shows_every_dataset_and_its_samples(tmp_path):
    site_page("datasets").write(tmp_path)
    text = (tmp_path / "datasets.md").read_text(encoding="utf-8")
    for name in registry.names("hub_builders"):
        assert f"\n## {name}\n" in text
        if getattr(registry.load("hub_builders", name), "DERIVED", False):
            continue
        with Image.open(tmp_path / f"{name}.png") as picture:
            assert picture.height == 128
            assert len(picture.convert("RGB").getcolors(2**18)) > 20
