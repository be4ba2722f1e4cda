"""The fixed part of a board, over which scores are averaged: `core.yaml`, datasets each with one classifier.

name: what it is called. datasets: a list, of each

    dataset, split, fingerprint   its name, and what fixes it; null: not published yet, so nothing is averaged over it
    model, digest                 its classifier, and the digest of the weights; null likewise
    families                      of the metrics that it counts for
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field, ValidationError

from saliency_bench.errors import UserError, one_line
from saliency_bench.results.cell import Hash, StrictModel, Text, field_line
from saliency_bench.utils.files import read_bytes

LARGEST = 100_000  # bytes


class CoreCell(StrictModel):
    """A dataset with its classifier."""

    dataset: Text
    split: Text = "test"
    fingerprint: Hash | None
    model: Text
    digest: Hash | None
    families: Annotated[list[Literal["alignment", "faithfulness", "sensitivity"]], Field(min_length=1)]

    @property
    def fixed(self) -> bool:
        """Whether dataset and model are published, so that their digests are known."""
        return self.fingerprint is not None and self.digest is not None


class Core(StrictModel):
    """All of them."""

    name: Text
    datasets: Annotated[list[CoreCell], Field(min_length=1, max_length=50)]

    def of_family(self, family: str) -> list[CoreCell]:
        """Return those that count for the metrics of a family."""
        return [cell for cell in self.datasets if family in cell.families]


def read_core(path: str | Path) -> Core:
    """Return the content of a core file.

    Raises:
        UserError: Something is wrong with it; names file and field.
    """
    try:
        content = yaml.safe_load(read_bytes(Path(path), LARGEST))
        return Core.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{path}: {field_line(error)}") from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error


def not_fixed(cells: Sequence[CoreCell]) -> list[str]:
    """Return in words which of the cells have no published digest yet."""
    lines = []
    for cell in cells:
        missing = [kind for kind, value in (("dataset", cell.fingerprint), ("model", cell.digest)) if value is None]
        if missing:
            names = {"dataset": cell.dataset, "model": cell.model}
            lines.append(" and ".join(f"{kind} {names[kind]}" for kind in missing))
    return lines
