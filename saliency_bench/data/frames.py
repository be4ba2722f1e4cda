"""Pictures of a dataset in a classifier's frame, made without the classifier: for pages, never for scores."""

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

MOST_PIXELS = 16_000_000  # of a picture after resizing for the network
GEOMETRY = TypeAdapter(Geometry)


@dataclass(frozen=True)
class AtHand:
    """A dataset on this machine.

    Attributes: where: its location in words, for a caption.
    """

    where: str
    rows: Dataset

    @cached_property
    def places(self) -> dict[str, int]:
        """The row of each image id."""
        return {image_id: index for index, image_id in enumerate(sample_ids(self.rows))}

    @cached_property
    def _stored(self) -> Dataset:
        return self.rows.cast_column("image", DatasetImage(decode=False))

    def picture(self, image_id: str, geometry: Mapping[str, Any]) -> Image.Image | None:
        """Return an image in the prepared frame, or None if it cannot be made."""
        if (index := self.places.get(image_id)) is None:
            return None
        try:
            # The header is checked before decoding: a few kilobytes may unpack to gigabytes of pixels.
            picture = open_rgb(self._stored[index]["image"])
            return framed(picture, GEOMETRY.validate_python(geometry))
        except Exception:  # a damaged picture, or an impossible geometry: the map is shown alone
            return None


def framed(image: Image.Image, geometry: Geometry, way: Image.Resampling = Image.Resampling.BILINEAR) -> Image.Image:
    """Return a picture in the frame of a geometry. Raise ValueError for a frame that is too large."""
    height, width = geometry.resized(image.height, image.width)
    left, top, right, bottom = geometry.box(height, width)
    if not 0 < height * width <= MOST_PIXELS or not 0 < (right - left) * (bottom - top) <= MOST_PIXELS:
        raise ValueError("the frame is too large")
    return image.resize((width, height), way).crop((left, top, right, bottom))
