"""`run.json`, the manifest of a run's folder: its settings, the identity its cells share, and the cells."""

import json
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from saliency_bench.errors import UserError
from saliency_bench.results.cell import CellKey, field_line
from saliency_bench.results.identity import Identity
from saliency_bench.spec import RunSpec
from saliency_bench.utils.files import read_json, write_json

MANIFEST = "run.json"
FORMAT: Final = 2
NAMED = {"fingerprint": "dataset", "classifier": "model", "groups": "set of groups", "labels": "label map"}


class Manifest(BaseModel):
    """spec: of the latest start; earlier ones may have had other explainers, metrics and limits. cells: of all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[2] = FORMAT
    spec: RunSpec
    identity: Identity
    cells: dict[str, CellKey]

    def write(self, folder: Path) -> None:
        write_json(folder / MANIFEST, self.model_dump(mode="json"))

    def after(self, earlier: "Manifest | None") -> "Manifest":
        """This one with the cells of an earlier start.

        Raises: UserError if that was a run of something else, which is named.
        """
        if earlier is None:
            return self
        differing = [NAMED.get(name, name) for name, value in self.identity if getattr(earlier.identity, name) != value]
        differing = ["split"] * ("split" in differing) + differing  # another split always has another fingerprint
        differing += ["batch_size"] if earlier.spec.batch_size != self.spec.batch_size else []
        if differing:
            raise UserError(f"{self.spec.out} holds a run with another {differing[0]}; choose another --out")
        return self.model_copy(update={"cells": earlier.cells | self.cells})


def read_manifest(folder: Path) -> Manifest:
    """Raises: UserError for a folder whose run.json cannot be read or has another format."""
    path = folder / MANIFEST
    content = read_json(path)
    check_format(path, content, FORMAT, "choose another --out, or run it again into a new folder")
    try:
        return Manifest.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise UserError(f"{path}: {field_line(error)}; restore the file, or choose another --out") from error


def check_format(path: Path, content: object, expected: int, fix: str) -> None:
    """Raises: UserError for a file of another format than this version writes."""
    actual = content.get("format") if isinstance(content, dict) else None
    if actual != expected:
        had = "no format" if actual is None else f"format {actual}"
        raise UserError(f"{path} has {had}, this version reads {expected}; {fix}")
