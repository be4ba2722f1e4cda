"""Prepare images for display in the same way as a classifier, but without loading the classifier.

Scores never use this module.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from datasets import Dataset
from datasets import Image as DatasetImage
from PIL import Image
from pydantic import TypeAdapter

from saliency_bench.data.geometry import Geometry
from saliency_bench.data.loading import sample_ids
from saliency_bench.utils.pictures import open_rgb

MOST_PIXELS = 16_000_000  # maximum number of pixels after resizing for the network
GEOMETRY = TypeAdapter(Geometry)


@dataclass(frozen=True)
class AtHand:
    """A local dataset with images that can be shown on a page.

    Attributes:
        where: Description of the dataset's location, for a caption.
    """

    where: str
    rows: Dataset

    @cached_property
    def places(self) -> dict[str, int]:
        """{image id: row number}."""
        return {image_id: index for index, image_id in enumerate(sample_ids(self.rows))}

    @cached_property
    def _stored(self) -> Dataset:
        return self.rows.cast_column("image", DatasetImage(decode=False))

    def picture(self, image_id: str, geometry: Mapping[str, Any]) -> Image.Image | None:
        """Return an image after resizing and cropping, or None if it cannot be read or prepared."""
        if (index := self.places.get(image_id)) is None:
            return None
        try:
            # The header is checked before decoding, because a few kilobytes may expand to gigabytes of pixels.
            picture = open_rgb(self._stored[index]["image"])
            return framed(picture, GEOMETRY.validate_python(geometry))
        except Exception:  # for a damaged image or an impossible geometry, the page shows the map without the image
            return None


def framed(image: Image.Image, geometry: Geometry, way: Image.Resampling = Image.Resampling.BILINEAR) -> Image.Image:
    """Resize and crop an image according to a geometry. Raise ValueError if the result would be too large."""
    height, width = geometry.resized(image.height, image.width)
    left, top, right, bottom = geometry.box(height, width)
    if not 0 < height * width <= MOST_PIXELS or not 0 < (right - left) * (bottom - top) <= MOST_PIXELS:
        raise ValueError("the frame is too large")
    return image.resize((width, height), way).crop((left, top, right, bottom))
