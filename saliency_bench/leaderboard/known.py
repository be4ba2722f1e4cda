"""What the owner of a board vouches for: files of the results repository that no submission may touch.

    datasets/FINGERPRINT.json   the ids and groups of all samples of a split: `KnownDataset`
    models/DIGEST.json          what a network is called: `KnownModel`
    status/CONTENT.json         what recomputing a submission found, by the hash of its files: `Status`

`saliency-bench recompute` writes them. Of a pull request the files of the main branch are read, never its own.
"""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, StringConstraints, ValidationError

from saliency_bench.data.fingerprints import fingerprint
from saliency_bench.data.loading import find
from saliency_bench.engine.reading import group_names, sample_ids
from saliency_bench.errors import one_line
from saliency_bench.leaderboard.schema import RECORDS, RESULT
from saliency_bench.results.cell import Count, Hash, StrictModel, Text, field_line
from saliency_bench.utils.files import check_readable, read_bytes, write_json

DATASETS, MODELS, STATUS = "datasets", "models", "status"
FOLDERS = (DATASETS, MODELS, STATUS)
Kind = TypeVar("Kind", "KnownDataset", "KnownModel", "Status")


class KnownDataset(StrictModel):
    """The samples of a split.

    Attributes:
        id: name of the dataset.
        title: its title.
        repo: where it was loaded from; null of a folder.
        revision: the commit.
        split: name of the split.
        fingerprint: hash of its content.
        samples: [id, group], null where a sample stands for itself.
    """

    format: Literal[1] = 1
    id: Text
    title: Text | None = None
    repo: Text | None = None
    revision: Text | None = None
    split: Text
    fingerprint: Hash
    samples: list[tuple[str, str | None]]

    @property
    def name(self) -> str:
        """The name of its file."""
        return self.fingerprint


class KnownModel(StrictModel):
    """What a network is called, and where it lies on the Hub."""

    format: Literal[1] = 1
    id: Text
    repo: Text | None = None
    revision: Text | None = None
    digest: Hash

    @property
    def name(self) -> str:
        """The name of its file."""
        return self.digest


class Recomputed(StrictModel):
    """A recomputed cell: on how many samples, the largest difference, and by what: "maps" or "explainer"."""

    samples: Count
    largest: Annotated[float, Field(ge=0)]
    by: Literal["explainer", "maps"]


class Status(StrictModel):
    """What recomputing a submission found.

    Attributes:
        folder: of the submission.
        content: `content_of` its files.
        cells: those whose scores were confirmed, by their ids.
        further: why others were not recomputed.
        refused: what is wrong with the submission as a whole; null if nothing is.
    """

    format: Literal[1] = 1
    content: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    folder: Text
    cells: dict[Hash, Recomputed] = Field(default_factory=dict)
    further: dict[Hash, Text] = Field(default_factory=dict)
    refused: Text | None = None
    saliency_bench: Text
    date: Text
    device: Text

    @property
    def name(self) -> str:
        """The name of its file."""
        return self.content


class Known:
    """All that is known of a board's datasets, models and submissions."""

    def __init__(self, datasets: Iterable[KnownDataset] = (), models: Iterable[KnownModel] = (),
                 statuses: Iterable[Status] = ()):  # fmt: skip
        self.datasets = {(entry.fingerprint, entry.split): entry for entry in datasets}
        self.models = {entry.digest: entry for entry in models}
        self.statuses = {entry.content: entry for entry in statuses}

    @classmethod
    def read(cls, root: Path) -> tuple["Known", list[str]]:
        """Return (what the files in a folder say, a line for each that cannot be read, which says nothing)."""
        wrong: list[str] = []
        return cls(
            _files(root / DATASETS, KnownDataset, wrong),
            _files(root / MODELS, KnownModel, wrong),
            _files(root / STATUS, Status, wrong),
        ), wrong

    def adding(self, datasets: Iterable[KnownDataset]) -> "Known":
        """Return what is known, with the samples of further datasets."""
        return Known([*self.datasets.values(), *datasets], self.models.values(), self.statuses.values())


def _files(folder: Path, kind: type[Kind], wrong: list[str]) -> list[Kind]:
    """Return what the files in a folder say."""
    entries: list[Kind] = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            entry = kind.model_validate_json(read_bytes(path))
            if entry.name != path.stem:
                raise ValueError(f"it is about {entry.name}")
            entries.append(entry)
        except ValidationError as error:
            wrong.append(one_line(f"{folder.name}/{path.name}: {field_line(error)}"))
        except (OSError, ValueError) as error:
            wrong.append(one_line(f"{folder.name}/{path.name} cannot be read: {error}"))
    return entries


def write_known(root: Path, entry: KnownDataset | KnownModel | Status) -> Path:
    """Write the file in `root` that says this, and return its path."""
    folder = {KnownDataset: DATASETS, KnownModel: MODELS, Status: STATUS}[type(entry)]
    write_json(path := root / folder / f"{entry.name}.json", entry.model_dump(mode="json"))
    return path


def content_of(folder: Path) -> str:
    """Return the hash of the files of a submission: all 256 bits, so that nobody can make two of the same hash.

    Raises:
        OSError: A file cannot be read.
        ValueError: Something is no regular file, or too large.
    """
    digest = sha256()
    for name in (RESULT, RECORDS):
        check_readable(folder / name, 2**30)
        with (folder / name).open("rb") as file:
            file_digest = sha256()
            while block := file.read(2**20):
                file_digest.update(block)
        digest.update(file_digest.digest())
    return digest.hexdigest()


def known_dataset(name: Any, split: str = "test") -> KnownDataset:
    """Return the samples of a split that `load_dataset` finds by this name, or of a loaded dataset.

    Raises:
        UserError: It cannot be loaded.
    """
    source = find(name)
    rows, split = source.load_usual(split)
    samples = list(zip(sample_ids(rows), group_names(rows), strict=True))
    return KnownDataset(
        id=source.name, title=source.title, repo=source.repo, revision=source.revision, split=split,
        fingerprint=fingerprint(rows), samples=samples,
    )  # fmt: skip
