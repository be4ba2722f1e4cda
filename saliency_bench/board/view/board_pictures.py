"""Pictures of a row's samples: the submitted maps, drawn over the images if the dataset is on this machine.

Maps and geometry are untrusted, so their sizes are checked before anything is drawn. Datasets are never downloaded to
draw pictures. Images are read from the folders that were specified when the server was started. If the owner of the
board lists the dataset, images are also read from the local Hub cache. In both cases, the fingerprint of the dataset
must match the row.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from datasets import Dataset

from saliency_bench.board.known import KnownDataset
from saliency_bench.data.fingerprints import fingerprint
from saliency_bench.data.frames import AtHand
from saliency_bench.data.hub_datasets import Commit, load_from_hub
from saliency_bench.data.loading import load_dataset
from saliency_bench.errors import UserError
from saliency_bench.notebook_views import png
from saliency_bench.read.identity import Identity
from saliency_bench.utils.overlays import LEVELS, heat_map, overlay, scaled

SIDE = 192  # longer side of a picture in pixels
MOST_VALUES = 4_000_000  # maximum number of pixels in a map that is drawn
LONGEST = 100  # maximum ratio of the sides of a map
SCALE = (
    "Each map is scaled separately. Brighter pixels are more important. If a map has negative values, red is above "
    "zero and "
    "blue is below zero."
)


class BoardPictures:
    """The datasets that are available on this machine, in the given folders or in the Hub cache."""

    def __init__(self, folders: Sequence[str | Path] = ()):
        self.folders = tuple(map(str, folders))
        self._cached: dict[tuple[str, str], AtHand | None] = {}

    def of_dataset(self, setting: Identity, listed: KnownDataset | None) -> AtHand | None:
        """Return the dataset of a row, or None if it is not on this machine.

        Args:
            setting: Settings of the row.
            listed: The entry for the dataset that the board's owner has published, or None.
        """
        key = setting.fingerprint, setting.split
        if key not in self._cached:
            self._cached[key] = self._find(*key, listed)
        return self._cached[key]

    def _find(self, wanted: str, split: str, listed: KnownDataset | None) -> AtHand | None:
        for folder in self.folders:
            rows = _loaded(folder, split)
            if rows is not None and fingerprint(rows) == wanted:
                return AtHand(f"the folder {Path(folder).name}", rows)
        if listed is not None and listed.repo and listed.revision:
            try:
                rows = load_from_hub(Commit(listed.repo, listed.revision, reached=False), split)
            except UserError:  # the dataset is not in the cache
                return None
            if fingerprint(rows) == wanted:
                return AtHand(f"{listed.repo} in the local Hub cache", rows)
        return None


@cache
def _loaded(folder: str, split: str) -> Dataset | None:
    """Load a split from a folder, or return None if it does not exist or cannot be read."""
    try:
        return load_dataset(Path(folder), split)
    except UserError:
        return None


@dataclass(frozen=True)
class Pictured:
    """Pictures of samples, with a caption.

    Attributes:
        shown: {image id: PNG as a data URI}.
        caption: Description of the pictures, or the reason why there are no pictures, or "" if no maps were submitted.
    """

    shown: dict[str, str]
    caption: str


def drawn(maps: Mapping[str, np.ndarray], setting: Identity, at_hand: AtHand | None) -> Pictured:
    """Draw maps over their images, or the maps alone if the images are not on this machine.

    Maps that are too large are skipped.

    Args:
        maps: {image id: map (H, W)}.
        setting: Settings of the row. The geometry determines how images are resized and cropped.
        at_hand: The dataset, or None if it is not on this machine.
    """
    shown, overlaid = {}, 0
    for image_id, values in maps.items():
        # A map of a million by one pixel would need too much memory, and no browser could display the picture.
        if not 0 < values.size <= MOST_VALUES or max(values.shape) > LONGEST * min(values.shape):
            continue
        picture = at_hand.picture(image_id, setting.geometry) if at_hand else None
        if picture is not None and (picture.height, picture.width) == values.shape:
            image, overlaid = overlay(np.asarray(picture), values), overlaid + 1
        else:
            image = heat_map((LEVELS * scaled(values)).astype(np.float32)).convert("RGB")
        image.thumbnail((SIDE, SIDE))
        shown[image_id] = f"data:image/png;base64,{b64encode(png(image)).decode()}"
    if not shown:
        return Pictured({}, "The submitted maps are too large to be drawn.")
    if overlaid and at_hand is not None:
        return Pictured(shown, f"Submitted maps over images from {at_hand.where}. {SCALE}")
    return Pictured(shown, f"Submitted maps only: the images are not on the machine that serves this page. {SCALE}")
