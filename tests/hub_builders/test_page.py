"""The page of samples is what its script writes, and names every dataset."""

from pathlib import Path

import pytest
from PIL import Image

from saliency_bench import registry
from saliency_bench.hub_builders import _page

FOLDER = Path(__file__).parents[2] / "hub_builders"


@pytest.mark.slow
def test_page_is_up_to_date_and_its_pictures_are_there():
    text, pictures = _page.page()
    assert text == (FOLDER / "README.md").read_text(), "run python -m saliency_bench.hub_builders._page"
    for name in registry.names("hub_builders"):
        assert f"\n## {name}\n" in text
        if getattr(registry.load("hub_builders", name), "DERIVED", False):
            continue
        picture = Image.open(FOLDER / f"_pictures/{name}.png")
        assert picture.size == pictures[name].size
        assert len(picture.convert("RGB").getcolors(2**18)) > 20
