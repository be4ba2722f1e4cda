"""The types shared by all layers. Shapes: B samples, K classes, H x W pixels of the prepared frame.

Images   Float (B, 3, H, W) in [0, 1]: the frame that the classifier sees, before normalisation
Target   Float (B, K) or (1, K): weights over the logits (see `targets`)
Maps     Float (B, H, W): finite, signed, higher = more evidence for the target
Masks    Bool  (B, H, W): the ground truth in the prepared frame
Scores   Float (B,): one number per sample, NaN where undefined
On       quantity to which a target's weights apply
OnWeighted  like On, plus "weighted": the weighted contrast of Wang and Wang (2022), see `explainers/_contrast.py`
"""

from collections.abc import Sequence
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
        draws: number of draws.
    """

    maps: Maps
    even: Maps
    odd: Maps
    draws: int


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
class Chunk:
    """Consecutive samples of a run: readable samples as a Batch, and reasons for the others.

    Attributes:
        rows: {image_id, label, group and every scalar column of the dataset} of each sample.
        batch: the samples that could be read; None if there are none.
        faults: {position: why the sample there is left out}.
    """

    rows: list[dict]
    batch: Batch | None
    faults: dict[int, str]

    def part(self, positions: Sequence[int]) -> "Chunk":
        """Return the chunk with only the samples at these positions."""
        faults = {index: self.faults[position] for index, position in enumerate(positions) if position in self.faults}
        batch, readable = None, self.readable
        # The batch holds readable samples only, so its indices are not positions in the chunk.
        if self.batch is not None and (kept := [readable.index(p) for p in positions if p in readable]):
            batch = self.batch.part(kept)
        return Chunk([self.rows[position] for position in positions], batch, faults)

    def without(self, faults: dict[int, str]) -> "Chunk":
        """Return the chunk with further samples left out.

        Args:
            faults: {position: the reason}.
        """
        kept = [position for position in self.readable if position not in faults]
        return Chunk(self.rows, self.part(kept).batch if faults else self.batch, self.faults | faults)

    @property
    def readable(self) -> list[int]:
        """The positions of the samples of `batch`."""
        return [position for position in range(len(self.rows)) if position not in self.faults]
