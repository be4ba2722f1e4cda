"""Facts that the owner of a board vouches for, stored in files that submissions must not change.

    datasets/FINGERPRINT.json   the ids and groups of all samples of a split: `KnownDataset`
    models/DIGEST.json          the name of a network: `KnownModel`
    status/CONTENT.json         the result of recomputing a submission, named after the hash of its files: `Status`

`saliency-bench recompute` writes these files. When a pull request is reviewed, they are read from the main branch.
"""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field, StringConstraints, ValidationError

from saliency_bench.board.submission_schema import RECORDS, RESULT, Day
from saliency_bench.errors import one_line
from saliency_bench.read.cell import Count, Hash, StrictModel, Text, field_line
from saliency_bench.utils.files import check_readable, read_bytes, write_json

DATASETS, MODELS, STATUS = "datasets", "models", "status"
FOLDERS = (DATASETS, MODELS, STATUS)
Kind = TypeVar("Kind", "KnownDataset", "KnownModel", "Status")


class KnownDataset(StrictModel):
    """The samples of a split.

    Attributes:
        samples: (id, group) of each sample. The group is null for a sample without a group.
        hidden: If the masks are hidden (`board/hidden.py`), the private repository that contains them, or `FOLDER`
            followed by the name of a local folder.
    """

    format: Literal[1] = 1
    id: Text
    title: Text | None = None
    repo: Text | None = None
    revision: Text | None = None
    split: Text
    fingerprint: Hash
    samples: list[tuple[str, str | None]]
    hidden: Text | None = None

    @property
    def name(self) -> str:
        """Name of the file that stores this object."""
        return self.fingerprint


class KnownModel(StrictModel):
    """A network's name and its repository on the Hub."""

    format: Literal[1] = 1
    id: Text
    repo: Text | None = None
    revision: Text | None = None
    digest: Hash

    @property
    def name(self) -> str:
        """Name of the file that stores this object."""
        return self.digest


Trust = Literal["run by the board", "scored by the board, hidden masks", "scored by the board", "checked", "claimed"]
RUN: Final = "run by the board"
HIDDEN: Final = "scored by the board, hidden masks"
SCORED: Final = "scored by the board"
CHECKED: Final = "checked"
CLAIMED: Final = "claimed"
STATUSES: Final[tuple[Trust, ...]] = (RUN, HIDDEN, SCORED, CHECKED, CLAIMED)


class HiddenScore(StrictModel):
    """A score that was computed with hidden masks and then rounded (`hidden.rounded`)."""

    value: float
    low: float | None
    high: float | None
    n: Count
    clusters: Count


class Attempt(StrictModel):
    """An attempt on the hidden track, in which a submitted method or some of the package's explainers were scored.

    Attributes:
        fingerprint: Fingerprint of the dataset.
        date: Date of the attempt, according to the clock of the owner's machine.
        maps: Sketch of the maps (`hidden.sketch_of`), or "" for explainers of the package.
    """

    submitter: Text
    fingerprint: Hash
    method: Text
    date: Day
    maps: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{0,2000}$")] = ""


class Recomputed(StrictModel):
    """A recomputed cell: number of samples, largest difference, and source (maps or the explainer).

    If the masks are hidden, the submission contains no scores, and `score` is the score computed by the board.
    """

    samples: Count
    largest: Annotated[float, Field(ge=0)]
    by: Literal["explainer", "maps"]
    score: HiddenScore | None = None


class Status(StrictModel):
    """The result of recomputing a submission.

    Attributes:
        content: Hash of the submission's files, from `content_of`.
        cells: {cell id: details of the recomputation} for confirmed scores.
        further: {cell id: reason why the cell was not recomputed}.
        refused: Reason why the entire submission is rejected, or null.
        suspicions: {method: warnings that the owner should check before trusting the maps}. A warning may say, for
            example, that the maps are nearly identical to the masks.
        attempts: Methods of the submission that were scored with hidden masks.
    """

    format: Literal[1] = 1
    content: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    folder: Text
    cells: dict[Hash, Recomputed] = Field(default_factory=dict)
    further: dict[Hash, Text] = Field(default_factory=dict)
    refused: Text | None = None
    suspicions: dict[Text, list[Text]] = Field(default_factory=dict)
    attempts: list[Attempt] = Field(default_factory=list)
    saliency_bench: Text
    date: Day
    device: Text

    @property
    def name(self) -> str:
        """Name of the file that stores this object."""
        return self.content


class Known:
    """Everything that the owner vouches for: datasets, models, and the statuses of submissions."""

    def __init__(self, datasets: Iterable[KnownDataset] = (), models: Iterable[KnownModel] = (),
                 statuses: Iterable[Status] = ()):  # fmt: skip
        self.datasets = {(item.fingerprint, item.split): item for item in datasets}
        self.models = {item.digest: item for item in models}
        self.statuses = {item.content: item for item in statuses}

    @classmethod
    def read(cls, root: Path) -> tuple["Known", list[str]]:
        """Read the files in a folder, and return (the facts, a message for each invalid file).

        Invalid files are skipped.
        """
        problems: list[str] = []
        return cls(
            _files(root / DATASETS, KnownDataset, problems),
            _files(root / MODELS, KnownModel, problems),
            _files(root / STATUS, Status, problems),
        ), problems

    def adding(self, datasets: Iterable[KnownDataset]) -> "Known":
        """Return a copy that also contains these datasets."""
        return Known([*self.datasets.values(), *datasets], self.models.values(), self.statuses.values())


def _files(folder: Path, kind: type[Kind], problems: list[str]) -> list[Kind]:
    """Read the files in a folder, and add a message to `problems` for each invalid file."""
    items: list[Kind] = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            item = kind.model_validate_json(read_bytes(path))
            if item.name != path.stem:
                raise ValueError(f"the content belongs in {item.name}")
            items.append(item)
        except ValidationError as error:
            problems.append(one_line(f"{folder.name}/{path.name}: {field_line(error)}"))
        except (OSError, ValueError) as error:
            problems.append(one_line(f"{folder.name}/{path.name} cannot be read: {error}"))
    return items


def write_known(root: Path, item: KnownDataset | KnownModel | Status) -> Path:
    """Write the file for a dataset, model or status below `root`, and return the file's path."""
    folder = {KnownDataset: DATASETS, KnownModel: MODELS, Status: STATUS}[type(item)]
    write_json(path := root / folder / f"{item.name}.json", item.model_dump(mode="json"))
    return path


def content_of(folder: Path) -> str:
    """Return the full hash (256 bits) of a submission's files. Its length makes collisions infeasible.

    Map files are not read, because the result contains their hashes.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file is not a regular file or is too large.
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
    """Load a dataset and return the samples of a split.

    Args:
        name: Name of the dataset for `load_dataset`, or a loaded dataset.
        split: Split of the dataset.

    Raises:
        UserError: The dataset cannot be loaded.
    """
    # These imports take half a second in every process. Displaying a board starts several processes that do not
    # need them.
    from saliency_bench.compute.reading import group_names
    from saliency_bench.data.fingerprints import fingerprint
    from saliency_bench.data.loading import find, sample_ids

    source = find(name)
    rows, split = source.load_usual(split)
    samples = list(zip(sample_ids(rows), group_names(rows), strict=True))
    return KnownDataset(
        id=source.name, title=source.title, repo=source.repo, revision=source.revision, split=split,
        fingerprint=fingerprint(rows), samples=samples,
    )  # fmt: skip
