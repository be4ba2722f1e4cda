"""The rows of a dataset as chunks of samples in the prepared frame."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from time import perf_counter

import datasets
import pyarrow as pa

from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.classifiers.preparation import SampleError
from saliency_bench.errors import UserError
from saliency_bench.types import Chunk

PREPARED = ("image", "mask", "label", "image_id")  # columns that `prepare` reads


def readable(rows: datasets.Dataset) -> datasets.Dataset:
    """The columns that a run reads, with pictures as they are stored: other columns may hold further pictures."""
    rows = rows.select_columns([*(name for name in PREPARED if name in rows.features), *scalar_columns(rows.features)])
    for column in {"image", "mask"} & set(rows.column_names):
        rows = rows.cast_column(column, datasets.Image(decode=False))
    return rows


def read_chunk(rows: datasets.Dataset, classifier: Classifier, start: int, stop: int, strict: bool) -> Chunk:
    """The samples from `start` to before `stop` of rows as `readable` gives them.

    Raises: UserError for one that cannot be read, if strict.
    """
    columns, scalars = rows[start:stop], scalar_columns(rows.features)
    samples = [{name: columns[name][index] for name in columns} for index in range(len(columns["image"]))]
    for index, sample in enumerate(samples):
        sample["image_id"] = str(sample.get("image_id", start + index))
        if sample["label"] is None or sample["label"] < 0:
            raise UserError(f"image {sample['image_id']} has no label; leave it out of the dataset")
    about = [{"image_id": sample["image_id"], "label": sample["label"]} | _scalars(sample, scalars, rows.features)
             for sample in samples]  # fmt: skip
    given = [{name: sample[name] for name in PREPARED if name in sample} for sample in samples]
    try:
        return Chunk(about, classifier.prepare(given), {})
    except SampleError:
        if strict:
            raise
    faults = _faults(classifier, given)
    readable = [sample for index, sample in enumerate(given) if index not in faults]
    return Chunk(about, classifier.prepare(readable) if readable else None, faults)


def _faults(classifier: Classifier, samples: list[dict]) -> dict[int, str]:
    """{index: why this sample cannot be prepared}, one by one."""
    faults = {}
    for index, sample in enumerate(samples):
        try:
            classifier.prepare([sample])
        except SampleError as error:
            faults[index] = error.reason
    return faults


def scalar_columns(features: datasets.Features) -> dict[str, pa.DataType]:
    """{column: its type in the predictions} of a dataset: `group`, and whatever holds one number or text per sample.

    A class label becomes its name, a group text.
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


def _is_scalar(kind: pa.DataType) -> bool:
    return (
        pa.types.is_string(kind) or pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    )


def _scalars(sample: dict, scalars: dict[str, pa.DataType], features: datasets.Features) -> dict:
    values: dict[str, object] = {"group": None}
    for name, kind in scalars.items():
        feature, value = features[name], sample[name]
        if isinstance(feature, datasets.ClassLabel) and value is not None:
            value = feature.int2str(value)
        values[name] = str(value) if value is not None and pa.types.is_string(kind) else value
    return values


def ahead(
    read: Callable[[int], Chunk], numbers: list[int], waited: Callable[[float], None]
) -> Iterator[tuple[int, Chunk]]:
    """The chunks in order, each read by a thread while the one before is worked on; `waited` gets the seconds lost."""
    with ThreadPoolExecutor(max_workers=1) as reader:
        coming = deque(reader.submit(read, number) for number in numbers[:1])
        for number, following in zip_longest(numbers, numbers[1:]):
            start = perf_counter()
            chunk = coming.popleft().result()
            waited(perf_counter() - start)
            if following is not None:
                coming.append(reader.submit(read, following))
            yield number, chunk
