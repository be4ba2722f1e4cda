"""Types that all layers share.

In shapes, B is the number of samples, K the number of classes, and H x W the size of the prepared frame, which is
the image after the classifier's resizing and cropping.

Images   Float (B, 3, H, W) in [0, 1]: the classifier's input before normalisation (the prepared frame)
Target   Float (B, K) or (1, K): weights over the logits (see `targets`)
Maps     Float (B, H, W): finite, signed, higher = more evidence for the target
Masks    Bool  (B, H, W): the ground truth in the prepared frame
Scores   Float (B,): one number per sample, NaN where undefined
On       quantity to which a target's weights apply: "logit" or "probability"
OnWeighted  same as On, or "weighted": the weighted contrast of Wang and Wang (2022) in `explainers/_contrast.py`
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from torch import Tensor

Images = Tensor
Target = Tensor
Maps = Tensor
Masks = Tensor
Scores = np.ndarray
On = Literal["logit", "probability"]
OnWeighted = Literal["logit", "probability", "weighted"]


class Averaged(NamedTuple):
    """Maps of an explainer that averages random draws, with separate maps for two halves of the draws.

    The reliability of the maps is estimated from the two halves (`maps.reliability`).

    Attributes:
        maps: Maps averaged over all draws, of shape (B, H, W).
        even: Maps averaged over the even-numbered draws, up to a constant factor, of shape (B, H, W).
        odd: Maps averaged over the odd-numbered draws, up to a constant factor, of shape (B, H, W).
        draws: Number of draws for every map, or one number per map, int (B,).
    """

    maps: Maps
    even: Maps
    odd: Maps
    draws: int | Tensor


@dataclass(frozen=True)
class Column:
    """An additional column of a dataset.

    Attributes:
        values: Preprocessed images, float (B, 3, H, W), or a list of other values.
        lacking: For each sample, the reason why the value is missing, or None. A missing image is replaced by a black
            image.
    """

    values: Tensor | list
    lacking: list[str | None]

    def part(self, kept: Sequence[int]) -> "Column":
        """Return a copy of the column that contains only these samples."""
        values = self.values[kept] if isinstance(self.values, Tensor) else [self.values[index] for index in kept]
        return Column(values, [self.lacking[index] for index in kept])


@dataclass(frozen=True)
class Batch:
    """A batch of preprocessed samples.

    Attributes:
        images: Images, float (B, 3, H, W).
        masks: Masks, bool (B, H, W); all False if `left_out` has a reason.
        labels: Labels, int (B,); -1 for a row without a label.
        ids: Image ids.
        left_out: For each sample, the reason for an unusable mask ("no mask", "empty mask", "mask emptied by the crop",
            or an unclear object), or None.
        columns: Additional columns of the dataset, by name.
    """

    images: Images
    masks: Masks
    labels: Tensor
    ids: list[str]
    left_out: list[str | None]
    columns: dict[str, Column] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, kept: Sequence[int]) -> "Batch":
        """Return a batch that contains only these samples."""
        return Batch(
            self.images[kept],
            self.masks[kept],
            self.labels[kept],
            [self.ids[index] for index in kept],
            [self.left_out[index] for index in kept],
            {name: column.part(kept) for name, column in self.columns.items()},
        )


@dataclass(frozen=True)
class Samples:
    """The readable samples of a run. All attributes have one entry per sample, in the same order.

    Attributes:
        positions: Positions of the samples in the run, ascending.
        rows: Dicts with image_id, label, group and every scalar column of the dataset; after prediction, rows of
            `records.PREDICTIONS`.
        batch: The preprocessed samples.
        rows_of_other: Predictions of the run's other model, or None if there is no other model or it has not predicted
            yet.
    """

    positions: list[int]
    rows: list[dict]
    batch: Batch
    rows_of_other: list[dict] | None = None

    def __len__(self) -> int:
        return len(self.positions)

    def at(self, positions: Collection[int]) -> "Samples | None":
        """Return the samples at these positions in the run, or None if there are none."""
        wanted = set(positions)
        kept = [index for index, position in enumerate(self.positions) if position in wanted]
        if len(kept) == len(self):
            return self
        others = self.rows_of_other
        if not kept:
            return None
        return Samples(
            [self.positions[index] for index in kept],
            [self.rows[index] for index in kept],
            self.batch.part(kept),
            None if others is None else [others[index] for index in kept],
        )
