"""Check datasets from untrusted sources: the files to read, the build report, and the rows.

`datasets` resolves the file patterns in a card's YAML anywhere on this machine, opens archives, and opens any path that
a row contains instead of an image. These checks prevent all three.
"""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Array3D, Array4D, Array5D, ClassLabel, Dataset, DatasetBuilder, Image, Value
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from pydantic import BaseModel, Field, JsonValue, StringConstraints

from saliency_bench import registry
from saliency_bench.data.builders import private
from saliency_bench.data.fingerprints import class_name
from saliency_bench.errors import UserError, one_line, unknown
from saliency_bench.options import defaults
from saliency_bench.utils.pictures import ENDINGS as PICTURES
from saliency_bench.utils.plain_yaml import parse_yaml

TABLES = (".parquet", ".arrow", ".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".txt")
READ = {*TABLES, *PICTURES}
CARDS = ("README.md", ".huggingface.yaml")
LARGEST_CARD = 5_000_000  # bytes
LONGEST_ID = 1000  # bytes
UNWRITABLE = ("Cc", "Cs", "Zl", "Zp")  # Unicode categories: control characters, surrogates, line and paragraph ends
UNITE = (
    "combine the masks of several objects, for example with dataset.map(lambda row: {'mask': functools.reduce("
    "PIL.ImageChops.lighter, [mask.convert('L') for mask in row['mask']])})"
)
FLATTEN = (
    "a mask has two axes, (H, W); combine the masks of several objects or channels, for example with "
    "dataset.map(lambda row: {'mask': numpy.max(row['mask'], axis=0)}), with axis=-1 for (H, W, C)"
)


Words = Annotated[str, StringConstraints(pattern=r"^[\w -]*$", max_length=200)]


class File(BaseModel):
    """A file of a split, with its path inside the dataset's folder."""

    path: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+/[A-Za-z0-9_-][A-Za-z0-9._-]*$")]
    bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class ReportedSplit(BaseModel):
    """The fields of a split that this package reads. The report may contain other fields."""

    num_examples: Annotated[int, Field(ge=0)]
    num_bytes: Annotated[int, Field(ge=0)]
    masks: Annotated[int, Field(ge=0)]
    fingerprint: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
    files: list[File]
    class_shares: dict[str, dict[str, float]]


class Report(BaseModel):
    """The fields of a report that this package reads. Fields may be missing, but existing ones are checked."""

    dataset: Annotated[str, StringConstraints(max_length=200)] = ""
    version: Annotated[str, StringConstraints(max_length=200)] = ""
    options: dict[str, bool | int | float | str | list[Words] | None] = {}
    license: str = ""
    title: Annotated[str, StringConstraints(max_length=200)] = ""
    redistribute_images: bool = False
    counts: dict[str, int | dict[str, int]] = {}
    paper_counts: dict[str, JsonValue] = {}
    splits: dict[Annotated[str, StringConstraints(pattern=r"^\w+$")], ReportedSplit] = {}
    left_out: list[dict[str, str]] = []
    remarks: list[dict[str, str]] = []
    near_duplicates: list[dict[str, JsonValue]] = []
    hidden_masks: Annotated[str, StringConstraints(max_length=200)] = ""


def check_names(files: Iterable[str], name: str) -> None:
    """Check that the files include a table or an image.

    Raises:
        UserError: The files include neither. The message lists existing files.
    """
    data_files = [file for file in files if file not in CARDS and not file.startswith(".")]
    if not any(PurePosixPath(file).suffix.lower() in READ for file in data_files):
        content = (
            f"it contains {', '.join(data_files[:3])}{', ...' if len(data_files) > 3 else ''}"
            if data_files
            else "it is empty"
        )
        raise UserError(f"{name} has neither tables ({', '.join(TABLES)}) nor readable images; {content}")


def check_files(builder: DatasetBuilder, name: str, root: str) -> None:
    """Check that `datasets` would read only tables and images of this dataset.

    Args:
        builder: Builder from `datasets` that would read the files.
        name: Name of the dataset.
        root: Folder, or URL of the repository's commit.

    Raises:
        UserError: The builder would read any other file. The message names the first such file.
    """
    for file in (file for files in (builder.config.data_files or {}).values() for file in files):
        if not (file.startswith(f"{root}/") if "://" in root else _inside(file, Path(root))):
            raise UserError(
                f"{name} refers to {file}, which is outside the folder of the dataset; remove this path from the "
                "dataset"
            )
        if PurePosixPath(file).suffix.lower() not in READ:
            raise UserError(
                f"{name} has its data in {PurePosixPath(file).name}, which is not read; use tables "
                f"({', '.join(TABLES)}) or images, not archives or other files"
            )


def check_cards(folder: Path, name: str) -> None:
    """Raise UserError if YAML that `datasets` reads in a folder cannot be parsed safely."""
    for path in (folder / card for card in CARDS):
        if not path.is_file():
            continue
        where = f"{path.name} of {name}"
        if path.stat().st_size > LARGEST_CARD:
            raise UserError(f"{where} has {path.stat().st_size:,} bytes; shorten it to at most {LARGEST_CARD:,} bytes")
        text = path.read_bytes().decode("utf-8", errors="replace")
        if (
            path.suffix == ".md"
        ):  # check exactly the text that `datasets` parses as YAML, so that nothing can bypass this check
            block = REGEX_YAML_BLOCK.search(text)
            text = block[2] if block else ""
        try:
            parse_yaml(text, aliases=False)
        except ValueError as error:
            raise UserError(f"the YAML in {where} cannot be read ({one_line(error)}); fix the file") from error


def check_rows(rows: Dataset, name: str, root: Path) -> None:
    """Check that the bytes of each image are stored in its row or in a file inside `root`.

    Raises:
        UserError: An image is stored elsewhere. The message names the first such image.
    """
    for column in rows.column_names:
        for chunk in rows.data.column(column).chunks:
            for path in _paths_without_bytes(chunk):
                if not _inside(path, root):
                    raise UserError(
                        f"{name}: a row refers to the file {path[:200]} as its {column}, but files outside {root} "
                        "are not opened; store the images in the rows, for example with save_to_disk"
                    )


def _paths_without_bytes(array: pa.Array) -> Iterator[str]:
    """Yield the paths of images and other media, at any depth, that `datasets` would open."""
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _paths_without_bytes(array.flatten())
    elif pa.types.is_struct(kind):
        names = {kind.field(index).name for index in range(kind.num_fields)}
        if names == {"bytes", "path"}:
            data, paths = pc.struct_field(array, "bytes"), pc.struct_field(array, "path")
            yield from paths.filter(pc.and_(pc.is_null(data), pc.is_valid(paths))).to_pylist()
            return
        for name in names:
            yield from _paths_without_bytes(pc.struct_field(array, name))


def check_samples(rows: Dataset) -> None:
    """Check a split's ids and labels, and check that its images exist. No image is opened.

    Raises:
        UserError: A sample is invalid. The message names the first invalid sample and the fix.
    """
    ids = _checked_ids(rows)
    _check_labels(rows, ids)
    check_columns(rows)
    for column in ("image", "mask"):
        if isinstance(rows.features.get(column), Image):
            _check_pictures(rows, column, ids)


def check_columns(rows: Dataset) -> None:
    """Raise UserError unless the `image` and `mask` columns contain images. A mask may be null."""
    for column in {"image", "mask"} & set(rows.features):
        kind = rows.features[column]
        is_null = pa.types.is_null(getattr(kind, "pa_type", None) or pa.binary())
        if isinstance(kind, Image) or (is_null and column == "mask"):
            continue
        if column == "mask" and _is_array(kind):
            raise UserError(f'the column "mask" contains arrays ({kind}), but {FLATTEN}')
        if hasattr(kind, "feature"):
            raise UserError(f'the column "{column}" contains lists ({kind}), but a sample has one image; {UNITE}')
        raise UserError(f'the column "{column}" contains {kind}, not images; cast it to datasets.Image(), or rename it')


def _is_array(kind: object) -> bool:
    if isinstance(kind, Array3D | Array4D | Array5D):
        return True
    inner = kind
    while hasattr(inner, "feature"):
        inner = inner.feature
    return inner is not kind and isinstance(inner, Value) and inner.dtype.startswith(("bool", "int", "uint", "float"))


def _checked_ids(rows: Dataset) -> list[str]:
    """Return the ids of the images. They must be valid and unique, because they identify records and random draws."""
    if "image_id" not in rows.features:
        return [str(position) for position in range(len(rows))]
    kind = getattr(rows.features["image_id"], "pa_type", None)
    if kind is None or not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind)):
        raise UserError(f'the column "image_id" contains {rows.features["image_id"]}; use strings or integers')
    try:
        ids = list(rows["image_id"])
    except UnicodeDecodeError as error:
        raise UserError(
            f'the column "image_id" contains bytes that are not UTF-8 ({one_line(error, 100)}); encode the ids as UTF-8'
        ) from error
    for position, image_id in enumerate(ids):
        if image_id is None or str(image_id).strip() == "":
            raise UserError(f"the sample at position {position} (from 0) has no image_id; add a unique id")
        if any(unicodedata.category(sign) in UNWRITABLE for sign in str(image_id)):
            name = one_line(ascii(image_id), 100)
            raise UserError(f"the image id {name} contains a line break or another control character; rename it")
        if len(str(image_id).encode()) > LONGEST_ID:
            name = one_line(image_id, 60)
            raise UserError(f"the image id {name} has more than {LONGEST_ID} bytes; use a shorter id")
    twice, times = Counter(map(str, ids)).most_common(1)[0]
    if times > 1:
        raise UserError(f"the image id {one_line(twice, 100)} occurs {times} times; every sample needs a unique id")
    return [str(image_id) for image_id in ids]


def _check_labels(rows: Dataset, ids: list[str]) -> None:
    """Raise UserError unless each `label` is null, negative (no label) or a class, and `labels` are lists of classes.

    `labels` may contain names or numbers of classes.
    """
    kind = rows.features.get("label")
    if kind is None:
        return
    if not isinstance(kind, ClassLabel):
        if not pa.types.is_integer(type_held := getattr(kind, "pa_type", None) or pa.binary()) and not pa.types.is_null(
            type_held
        ):
            fix = "dataset.class_encode_column('label')" if pa.types.is_string(type_held) else "whole numbers"
            raise UserError(f'the column "label" contains {type_held}, not classes; convert it to {fix}')
        return
    for image_id, label in zip(ids, rows["label"], strict=True):
        class_name(kind, label, image_id)
    for image_id, labels in zip(ids, rows["labels"] if "labels" in rows.features else (), strict=False):
        for label in labels if isinstance(labels, list) else [] if labels is None else [labels]:
            known = isinstance(labels, list) and (
                label in kind.names if isinstance(label, str) else _is_class(kind, label)
            )
            if not known:
                raise UserError(
                    f'"labels" of image {one_line(image_id, 100)} contains {one_line(label, 100)}, which is not one of '
                    f"the dataset's {kind.num_classes} classes; use a list of class names or class numbers"
                )


def _is_class(kind: ClassLabel, label: object) -> bool:
    return isinstance(label, int) and not isinstance(label, bool) and 0 <= label < kind.num_classes


def _check_pictures(rows: Dataset, column: str, ids: list[str]) -> None:
    """Raise UserError if an image is missing (a mask may be null) or refers to a missing file."""
    stored = [_absence(chunk, column) for chunk in rows.data.column(column).chunks]
    absent = dict(enumerate(chain.from_iterable(stored)))
    order = range(len(rows)) if rows._indices is None else rows._indices.column(0).to_pylist()
    for image_id, place in zip(ids, order, strict=True):
        if reason := absent[place]:
            raise UserError(f"image {one_line(image_id, 100)}: {reason}; add the file, or remove the sample")


def _absence(array: pa.Array, column: str) -> list[str]:
    """Return, for each row of a column of images, why its image is missing, or "". No file is opened."""
    missing = pc.is_null(pc.struct_field(array, "bytes")).to_pylist()
    paths = pc.struct_field(array, "path").filter(pa.array(missing)).to_pylist()
    named = iter(paths)
    reasons = [next(named) if is_missing else "" for is_missing in missing]
    none = "it has no image" if column == "image" else ""
    return [
        none if path is None else "" if path == "" or os.path.isfile(path) else f"its {column} {path} does not exist"
        for path in reasons
    ]


def _inside(path: str, root: Path) -> bool:
    """Return whether a path is inside a folder after resolving all links."""
    try:
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))
    except (OSError, ValueError):  # the path contains a null byte or a loop of links
        return False


def complete(build_report: dict[str, Any], where: str) -> dict[str, Any]:
    """Check that no field of a build report is missing, and return the report. `where` names it in messages.

    Raises:
        UserError: A field is missing. The message names it.
    """
    if missing := [
        name for name in Report.model_fields if name not in build_report and name not in ("title", "hidden_masks")
    ]:
        raise UserError(f"the build report of {where} has no {missing[0]}; build or download the dataset again")
    return build_report


def options_of(build_report: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the builder options in a downloaded report.

    A string must be a plain word or the builder's default, so that a report cannot set a path or a URL. Options that
    concern only one machine (a token, a server) are rejected.

    Raises:
        UserError: An option is rejected. The message names it.
    """
    builder = registry.load("hub_builders", build_report["dataset"])
    known = {key: value for key, value in defaults(builder.samples).items() if key not in private(builder)} | {
        "seed": 0
    }
    for name, value in build_report["options"].items():
        if name not in known:
            raise unknown(f"option of {build_report['dataset']} in the build report of {where}:", name, known)
        if isinstance(value, str) and value != known[name] and not re.fullmatch(r"[\w -]*", value):
            raise UserError(
                f"the build report of {where} sets {name} to {one_line(value, 100)}, which is not accepted from a "
                "downloaded file; build the dataset from its source instead"
            )
    return build_report["options"]
