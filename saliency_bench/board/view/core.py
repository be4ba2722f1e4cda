"""The core of a board: the datasets and classifiers over which scores are averaged. `core.yaml` lists them.

`saliency-bench launch` writes this file to the board, where submissions cannot change it. The file contains the
name of the core (`name`) and a list (`datasets`), whose items have these entries:

    dataset, split, fingerprint   name and hash of the dataset; null if not published yet (the dataset is then excluded)
    model, digest                 name of the classifier and hash of its weights; null if not published yet
    families                      families of metrics that the dataset is used for
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field, ValidationError

from saliency_bench.board.source import BoardSource
from saliency_bench.errors import UserError, one_line
from saliency_bench.read.cell import Hash, StrictModel, Text, field_line
from saliency_bench.utils.bounded import bounded
from saliency_bench.utils.files import read_bytes
from saliency_bench.utils.plain_yaml import parse_yaml

FILE = "core.yaml"
LARGEST = 100_000  # maximum size in bytes


class CoreCell(StrictModel):
    """A dataset of the core, with its classifier."""

    dataset: Text
    split: Text = "test"
    fingerprint: Hash | None
    model: Text
    digest: Hash | None
    families: Annotated[list[Literal["alignment", "faithfulness", "sensitivity"]], Field(min_length=1)]

    @property
    def fixed(self) -> bool:
        """Return whether the hashes of both the dataset and the model are published."""
        return self.fingerprint is not None and self.digest is not None


class Core(StrictModel):
    """The content of `core.yaml`."""

    name: Text
    datasets: Annotated[list[CoreCell], Field(min_length=1, max_length=50)]

    def of_family(self, family: str) -> list[CoreCell]:
        """Return the datasets that are used for a metric family."""
        return [cell for cell in self.datasets if family in cell.families]


def read_core(path: str | Path) -> Core:
    """Read a core file. For an invalid file, a UserError names the file and the field."""
    try:
        content = parse_yaml(read_bytes(Path(path), LARGEST), aliases=False)
        return Core.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{path}: {field_line(error)}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error


def core_of_board(source: BoardSource) -> Core | None:
    """Return the core of a board, or None if the board has no core. Raise UserError if the core is invalid."""
    path = source.root([FILE]) / FILE
    if not path.exists():
        return None
    try:
        return Core.model_validate_json(bounded(core_as_json, str(path)))  # the board may be untrusted
    except UserError as error:
        raise UserError(f"{FILE} of the board is invalid: {str(error).removeprefix(f'{path}: ')}") from error


def core_as_json(path: str) -> bytes:
    """Return the content of a core file as JSON bytes."""
    return read_core(path).model_dump_json().encode()


def core_as_yaml(core: Core) -> bytes:
    """Return a core as the content of `core.yaml`."""
    head = (
        "# Datasets over which the page *Overall* averages scores, identified by the hashes of samples and weights.\n"
    )
    return (head + yaml.safe_dump(core.model_dump(mode="json"), sort_keys=False)).encode()


def not_fixed(cells: Sequence[CoreCell]) -> list[str]:
    """Return a message for each core entry with an unpublished dataset or model."""
    lines = []
    for cell in cells:
        missing = [kind for kind, value in (("dataset", cell.fingerprint), ("model", cell.digest)) if value is None]
        if missing:
            names = {"dataset": cell.dataset, "model": cell.model}
            lines.append(" and ".join(f"{kind} {names[kind]}" for kind in missing))
    return lines
