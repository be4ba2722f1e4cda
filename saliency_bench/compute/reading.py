"""Read the rows of a dataset in batches, and apply the classifier's preprocessing to images and masks."""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from time import perf_counter
from typing import NamedTuple

import datasets
import pyarrow as pa

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.preparation import SampleError
from saliency_bench.data.fingerprints import content_of, picture_digest, stored_bytes
from saliency_bench.data.loading import FoundDataset, is_text, with_classes
from saliency_bench.errors import UserError, unknown
from saliency_bench.read import records
from saliency_bench.score_notes import is_expected
from saliency_bench.types import Batch, Samples

PREPARED = ("image", "mask", "label", "image_id")  # columns that `prepare` reads
OURS = ("image_id", "group", "label", "labels")  # columns of the predictions that come from the dataset
OWN_LABEL = "dataset_label"  # column with the dataset's own label, if a run uses another label column
ALL = "labels"  # column with all classes of an image that has several


def readable(rows: datasets.Dataset, further: Collection[str] = ()) -> datasets.Dataset:
    """Reduce rows to the columns that a run reads. Pictures keep their stored encoding.

    Args:
        rows: Rows of a split.
        further: Columns that metrics need.
    """
    scalars = scalar_columns(rows.features)
    pictures = [name for name in further if name not in scalars]
    kept = [name for name in (*PREPARED, ALL) if name in rows.features]
    rows = rows.select_columns([*kept, *scalars, *pictures])
    for column in {"image", "mask", *pictures} & set(rows.column_names):
        rows = rows.cast_column(column, datasets.Image(decode=False))
    return rows


@dataclass(frozen=True)
class SplitRows:
    """Rows of a split. Pictures are read on demand.

    Attributes:
        rows: Rows as `readable` returns them.
        ids: Ids of the images.
        digests: Digests of the pictures from which the fingerprint was computed (`fingerprints.picture_digest`); None
            if the fingerprint has not been computed yet.
        further: {column that metrics need: digests of its pictures, empty for a column without pictures}.
        mask_values: Pixel values that mark the object in a mask, as in `Classifier.prepare`.
    """

    rows: datasets.Dataset
    ids: list[str]
    digests: list[str] | None = None
    further: Mapping[str, list[str]] = field(default_factory=dict)
    mask_values: tuple[str, ...] | None = None

    def at(self, positions: Sequence[int]) -> list[dict]:
        """Return the rows at these positions.

        Raises:
            UserError: A picture has changed.
        """
        columns = self.rows[positions]
        samples = [{name: columns[name][index] for name in columns} for index in range(len(columns["image"]))]
        for position, sample in zip(positions, samples, strict=True):
            sample["image_id"] = self.ids[position]
            label = sample.get("label")
            sample["label"] = None if label is None or label < 0 else label
            if self.digests is not None:
                _check_unchanged(sample, ("image", "mask"), self.digests[position])
            for name, digests in self.further.items():
                if digests:
                    _check_unchanged(sample, (name,), digests[position])
        return samples


def _check_unchanged(sample: dict, columns: Sequence[str], digest: str) -> None:
    """Read the pictures of a row into memory, and check their digest. Only the checked bytes are used afterwards.

    Raises:
        UserError: A picture does not have this digest.
    """
    try:
        pictures = {name: stored_bytes(sample[name]) for name in columns if sample.get(name) is not None}
    except OSError:
        pictures = {}
    if picture_digest(*map(pictures.get, columns)) != digest:
        raise UserError(
            f"image {sample['image_id']} changed during the run, so the fingerprint of the dataset no longer matches; "
            "start again with a different --out"
        )
    for name, data in pictures.items():
        sample[name] = {"bytes": data, "path": None}


class ReadBatch(NamedTuple):
    """Batch of a run after reading: all rows, and the readable samples.

    Attributes:
        positions: Positions of the rows in the run.
        rows: {image_id, label, labels, group and every scalar column of the dataset} of each row.
        samples: The readable samples, or None.
        faults: {position in the run: why its row could not be read}.
    """

    positions: Sequence[int]
    rows: list[dict]
    samples: Samples | None
    faults: dict[int, str]

    def at(self, positions: Collection[int]) -> "ReadBatch":
        """Return a batch that contains only the rows at these positions of the run."""
        kept = [index for index, position in enumerate(self.positions) if position in positions]
        if len(kept) == len(self.rows):
            return self
        return ReadBatch(
            [self.positions[index] for index in kept],
            [self.rows[index] for index in kept],
            self.samples and self.samples.at(positions),
            {position: reason for position, reason in self.faults.items() if position in positions},
        )


def read_batch(data: SplitRows, classifier: Classifier, positions: Sequence[int], strict: bool) -> ReadBatch:
    """Read and prepare the samples at these positions.

    Raises:
        UserError: A sample cannot be read, and the run is strict.
    """
    features, part = data.rows.features, data.at(positions)
    scalars = scalar_columns(features)
    rows = [
        {"image_id": sample["image_id"], "label": sample["label"], "labels": classes_of(sample, features)}
        | _scalars(sample, scalars, features)
        for sample in part
    ]
    further = list(data.further)
    given = [
        {name: sample[name] for name in PREPARED if name in sample}
        | {name: row.get(name, sample[name]) for name in further}
        for sample, row in zip(part, rows, strict=True)
    ]
    try:
        batch = classifier.prepare(given, further, data.mask_values)
        _check_usable(batch, strict)
        return ReadBatch(positions, rows, Samples(list(positions), rows, batch), {})
    except SampleError:
        if strict:
            raise
    reasons = _faults(classifier, given)
    faults = {positions[index]: reason for index, reason in reasons.items()}
    kept = [index for index in range(len(rows)) if index not in reasons]
    if not kept:
        return ReadBatch(positions, rows, None, faults)
    batch = classifier.prepare([given[index] for index in kept], further, data.mask_values)
    samples = Samples([positions[index] for index in kept], [rows[index] for index in kept], batch)
    return ReadBatch(positions, rows, samples, faults)


def _check_usable(batch: Batch, strict: bool) -> None:
    """Raise UserError in a strict run if a mask or an entry of an additional column is unusable."""
    for reasons in (batch.left_out, *(column.lacking for column in batch.columns.values())) if strict else ():
        for image_id, reason in zip(batch.ids, reasons, strict=True):
            if reason is not None and not is_expected(reason):
                raise SampleError(image_id, reason)


def _faults(classifier: Classifier, samples: list[dict]) -> dict[int, str]:
    """Prepare the samples one by one, and return {index: reason} of those that cannot be prepared."""
    faults = {}
    for index, sample in enumerate(samples):
        try:
            classifier.prepare([sample])
        except SampleError as error:
            faults[index] = error.reason
    return faults


def scalar_columns(features: datasets.Features) -> dict[str, pa.DataType]:
    """Return {column: its type in the predictions} for columns with one number or string per sample.

    The first column is `group`. A class label is stored as the name of the class, and a group is stored as a string.
    """
    kinds: dict[str, pa.DataType] = {"group": pa.string()} if "group" in features else {}
    for name, feature in features.items():
        if name in PREPARED or name in kinds:
            continue
        if isinstance(feature, datasets.ClassLabel):
            kinds[name] = pa.string()
        elif isinstance(feature, datasets.Value) and _is_scalar(feature.pa_type):
            kinds[name] = feature.pa_type
    return kinds


def prediction_schema(features: datasets.Features) -> pa.Schema:
    """Return the schema of the predictions table: `records.PREDICTIONS` and the scalar columns of the dataset.

    If two columns would have the same name, the column of the dataset gets the prefix "dataset_".
    """
    scalars = scalar_columns(features)
    return pa.schema(
        [*records.PREDICTIONS, *((stored(name), kind) for name, kind in scalars.items() if name != "group")]
    )


def group_names(rows: datasets.Dataset) -> list[str | None]:
    """Return the group of each sample as a string, as in the predictions, or None for a sample without a group."""
    if "group" not in rows.features:
        return [None] * len(rows)
    kinds = {"group": pa.string()}
    return [_scalars({"group": group}, kinds, rows.features)["group"] for group in rows["group"]]


def labelled(rows: datasets.Dataset, column: str, names: list[str] | None = None) -> datasets.Dataset:
    """Return rows with this column as `label`. If a different column is called `label`, it is renamed `dataset_label`.

    Args:
        rows: Rows of a split.
        column: Column that contains the labels.
        names: Class names if `column` contains text. By default, they are the sorted values in the column.

    Raises:
        UserError: The column does not exist, or contains neither classes nor text.
    """
    if column == "label":
        return with_classes(rows, names)
    kind = rows.features.get(column)
    if kind is None:
        raise unknown("column", column, rows.column_names)
    if not isinstance(kind, datasets.ClassLabel):
        if not is_text(kind):
            raise UserError(f"--label-column {column}: the column contains neither class labels nor text")
        kind = datasets.ClassLabel(names=names or sorted({value for value in rows[column] if value is not None}))
    values = [kind.str2int(value) if isinstance(value, str) else value for value in rows[column]]
    rows = rows.remove_columns(ALL) if ALL in rows.column_names else rows  # classes of the original column
    rows = rows.rename_column("label", OWN_LABEL) if "label" in rows.column_names else rows
    return rows.add_column("label", pa.array(values, pa.int64()), feature=kind)


def check_further(rows: datasets.Dataset, columns: Collection[str]) -> None:
    """Raise UserError if a column contains neither pictures nor one number or string per sample."""
    scalars = scalar_columns(rows.features)
    for name in columns:
        if name not in scalars and not isinstance(rows.features[name], datasets.Image):
            raise UserError(
                f"the column {name} contains {rows.features[name]}; a metric can use pictures (datasets.Image()) and "
                "one "
                "number or text per sample"
            )


def relabelled(read: ReadBatch, column: str, names: list[str]) -> ReadBatch:
    """Return a batch whose labels are taken from this column. Classes are numbered as in `names`."""
    numbers = {name: number for number, name in enumerate(names)}

    def with_label(rows: list[dict]) -> list[dict]:
        return [row | {"label": numbers.get(row[column]), "labels": None} for row in rows]

    samples = read.samples
    return read._replace(
        rows=with_label(read.rows),
        samples=None if samples is None else replace(samples, rows=with_label(samples.rows)),
    )


@dataclass(frozen=True)
class TrainingRows:
    """Rows of a split that networks are trained on.

    Attributes:
        rows: The samples.
        content: Hash of the samples, as returned by `content_of`.
        digests: Digests of the samples' pictures, as returned by `content_of`.
    """

    rows: datasets.Dataset
    content: str
    digests: list[str]


def training_splits(dataset: FoundDataset, column: str, names: list[str] | None) -> dict[str, TrainingRows]:
    """Return {"train": rows, "validation": rows}. The label column and class names are those of the run.

    Raises:
        UserError: The dataset lacks one of these splits.
    """
    try:
        loaded = dataset.load_all(("train", "validation"))
        splits = {name: labelled(rows, column, names) for name, rows in loaded.items()}
    except UserError as error:
        raise UserError(f"retraining needs the splits train and validation: {error}") from error
    return {name: TrainingRows(rows, *content_of(rows)) for name, rows in splits.items()}


def label_names(rows: datasets.Dataset) -> list[str] | None:
    """Return the class names in the order of the labels, or None if the labels have no names."""
    kind = rows.features.get("label")
    return list(kind.names) if isinstance(kind, datasets.ClassLabel) else None


def classes_of(sample: Mapping, features: datasets.Features) -> list[int] | None:
    """Return the class numbers listed in an image's `labels` field, which stores names or numbers.

    Return None if there is no such field.
    """
    kind = features.get("label")
    if sample.get(ALL) is None or not isinstance(kind, datasets.ClassLabel):
        return None
    return sorted({kind.str2int(label) if isinstance(label, str) else label for label in sample[ALL]})


def stored(name: str) -> str:
    """Return the name under which the predictions table stores a column of the dataset."""
    return f"dataset_{name}" if name in records.PREDICTIONS.names and name not in OURS else name


@dataclass(frozen=True)
class Selection:
    """Conditions of `--only`. A sample is selected if it meets all of them.

    Attributes:
        correct: Whether the classifier must predict the sample correctly.
        masked: Whether the sample must have a usable mask.
        values: {column of the predictions: allowed values as strings}.
        names: Names of the labels.
        without: Labels for which the model has no class. A run that explains labels has no target for these labels.
    """

    correct: bool
    masked: bool
    values: dict[str, list[str]]
    names: list[str] | None
    without: frozenset[int] = frozenset()

    @property
    def columns(self) -> list[str]:
        """Return the columns of the predictions that `keeps` reads."""
        return list(dict.fromkeys(["label", "correct", "mask_share", *self.values]))

    def keeps(self, row: Mapping) -> bool:
        """Return whether a row of the predictions meets all conditions."""
        if row["label"] in self.without:
            return False
        if (self.correct and row["correct"] is not True) or (self.masked and row["mask_share"] is None):
            return False
        return all(self._text(row, column) in wanted for column, wanted in self.values.items())

    def _text(self, row: Mapping, column: str) -> str | None:
        """Return a row's value in a column as a string. For a label, return the name of the class."""
        named = column == "label" and row[column] is not None and self.names is not None
        return self.names[row[column]] if named and self.names else _text(row[column])


def selection_of(only: tuple[str, ...] | None, rows: datasets.Dataset, names: list[str] | None) -> Selection | None:
    """Parse the conditions of a run's `--only`. Return None if there are none.

    Raises:
        UserError: The dataset lacks a column, or no row has a value that a condition requires.
    """
    if only is None:
        return None
    values: dict[str, list[str]] = {}
    known = ["label"] * (names is not None) + list(scalar_columns(rows.features))
    for column, equals, value in (condition.partition("=") for condition in only):
        if not equals:
            continue
        if column not in known:
            raise unknown("column", column, known)
        kind = rows.features[column]
        named = isinstance(kind, datasets.ClassLabel)
        there = {entry for entry in rows[column] if entry is not None and not (named and entry < 0)}
        texts = {kind.names[entry] if named else str(_text(entry)) for entry in there}
        if value not in texts:
            raise unknown(f"value of {column}", value, texts)
        values.setdefault(stored(column), []).append(value)
    return Selection("correct" in only, "masked" in only, values, names)


def _text(value: object) -> str | None:
    """Return a value in the notation of `--only`, such as true or 2."""
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _is_scalar(kind: pa.DataType) -> bool:
    return (
        pa.types.is_string(kind) or pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    )


def _scalars(sample: dict, scalars: dict[str, pa.DataType], features: datasets.Features) -> dict:
    """Return the scalar columns of a sample. Class labels are replaced by class names."""
    values: dict[str, object] = {"group": None}
    for name, kind in scalars.items():
        feature, value = features[name], sample[name]
        if isinstance(feature, datasets.ClassLabel) and value is not None:
            value = feature.int2str(value)
        values[name] = str(value) if value is not None and pa.types.is_string(kind) else value
    return values


def ahead(
    read: Callable[[range], ReadBatch], batches: Sequence[range], waited: Callable[[float], None]
) -> Iterator[tuple[range, ReadBatch]]:
    """Yield (positions, batch) in order. A thread reads each batch while the caller processes the previous batch.

    Args:
        read: Function that reads the batch at these positions.
        batches: Positions of each batch.
        waited: Function that is called with the number of seconds that the caller waited for each batch.
    """
    with ThreadPoolExecutor(max_workers=1) as reader:
        coming = deque(reader.submit(read, positions) for positions in batches[:1])
        for positions, following in zip_longest(batches, batches[1:]):
            start = perf_counter()
            batch = coming.popleft().result()
            waited(perf_counter() - start)
            if following is not None:
                coming.append(reader.submit(read, following))
            yield positions, batch
