"""The types shared by all layers. Shapes: B samples, K classes, H x W pixels of the prepared frame.

Images   Float (B, 3, H, W) in [0, 1]: the frame that the classifier sees, before normalisation
Target   Float (B, K) or (1, K): weights over the logits (see `targets`)
Maps     Float (B, H, W): finite, signed, higher = more evidence for the target
Masks    Bool  (B, H, W): the ground truth in the prepared frame
Scores   Float (B,): one number per sample, NaN where undefined
On       quantity to which a target's weights apply
OnWeighted  like On, plus "weighted": the weighted contrast of Wang and Wang (2022), see `explainers/_contrast.py`
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
    """Maps of an explainer that averages random draws, with the maps of two halves of the draws.

    The reliability of the maps is estimated from the two halves (`maps.reliability`).

    Attributes:
        maps: (B, H, W), the maps of all draws.
        even: (B, H, W), the maps of only the even-numbered draws, up to a constant factor.
        odd: (B, H, W), the maps of only the odd-numbered draws, up to a constant factor.
        draws: number of draws, or Int (B,) with the number of draws of each map.
    """

    maps: Maps
    even: Maps
    odd: Maps
    draws: int | Tensor


@dataclass(frozen=True)
class Column:
    """A further column of a dataset.

    Attributes:
        values: prepared pictures, Float (B, 3, H, W), or a list of other values.
        lacking: why a sample has no value (its picture is then black), or None if it has one.
    """

    values: Tensor | list
    lacking: list[str | None]

    def part(self, kept: Sequence[int]) -> "Column":
        """Return a copy of the column with only these samples."""
        values = self.values[kept] if isinstance(self.values, Tensor) else [self.values[index] for index in kept]
        return Column(values, [self.lacking[index] for index in kept])


@dataclass(frozen=True)
class Batch:
    """Samples in the prepared frame.

    Attributes:
        images: Float (B, 3, H, W).
        masks: Bool (B, H, W); all False if `left_out` has a reason.
        labels: Int (B,); -1 for a row without label.
        ids: the image ids.
        left_out: why a sample has no usable mask ("no mask", "empty mask", "mask emptied by the crop", or an unclear
            object), else None.
        columns: further columns of the dataset, by name.
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
        """Return the batch with only these samples."""
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
    """Samples of a run that could be read; every attribute has one entry per sample, in the same order.

    Attributes:
        positions: their places in the run, ascending.
        rows: {image_id, label, group and every scalar column of the dataset} of each sample; once the network has
            predicted them, rows of `records.PREDICTIONS`.
        batch: the samples, prepared.
        rows_of_other: the other model's predictions; None without another model or before it has predicted.
    """

    positions: list[int]
    rows: list[dict]
    batch: Batch
    rows_of_other: list[dict] | None = None

    def __len__(self) -> int:
        return len(self.positions)

    def at(self, positions: Collection[int]) -> "Samples | None":
        """Return the samples at these positions of the run; None if there are none."""
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
