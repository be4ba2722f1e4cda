"""Tests of the sample checks that need no decoded image and run before any computation."""

import datasets
import pyarrow as pa
import pytest
from refusals import refused

import saliency_bench as sb
from saliency_bench.data.untrusted_reports import check_samples


@pytest.fixture(scope="module")
def rows(shapes):
    dataset = sb.load_dataset(shapes).select(range(6))
    for column in ("image", "mask"):
        dataset = dataset.cast_column(column, datasets.Image(decode=False))
    return dataset.to_list(), dataset.features


def changed(rows, column, value, kind=None):
    """Return the samples with another value for the fourth sample."""
    listed, features = [dict(row) for row in rows[0]], datasets.Features(rows[1])
    listed[3][column] = value
    for name in ("image", "mask"):
        features[name] = datasets.Image()
    if kind is not None:
        features[column] = kind
        listed = [row | {column: value} for row in listed]
    storage = pa.Table.from_pylist(listed, schema=features.arrow_schema)
    return datasets.Dataset(storage)


CASES = {
    "null id": ("image_id", None, "position 3 .from 0. has no image_id"),
    "empty id": ("image_id", " ", "position 3"),
    "line break": ("image_id", "a\nb", r"'a\\nb' contains a line break"),
    "line separator": ("image_id", "a\u2028b", r"u2028.* contains a line break"),
    "nul": ("image_id", "a\0b", r"x00b' contains"),
    "long": ("image_id", "\u00e9" * 501, "more than 1000 bytes"),
    "twice": ("image_id", "shapes-%s", "occurs 2 times"),
    "class": ("label", 8, "label 8 of image .* not one of the dataset's 8 classes"),
    "image": ("image", None, "image .*: it has no image; add the file, or remove the sample"),
    "neither": ("image", {"bytes": None, "path": None}, "has no image"),
    "file": ("image", {"bytes": None, "path": "/nowhere/x.png"}, "its image /nowhere/x.png does not exist"),
    "mask file": ("mask", {"bytes": None, "path": "/nowhere/m.png"}, "its mask /nowhere/m.png does not exist"),
}  # fmt: skip


@pytest.mark.parametrize(("column", "value", "words"), CASES.values(), ids=CASES)
def test_invalid_samples_are_rejected_before_loading_the_model(column, value, words, rows, tmp_path, monkeypatch):
    value = rows[0][0]["image_id"] if value == "shapes-%s" else value
    dataset = changed(rows, column, value)
    monkeypatch.setattr("saliency_bench.compute.loading.load.load_with_texts", lambda *_, **__: pytest.fail("loaded"))
    monkeypatch.setattr("saliency_bench.compute.python_objects.fingerprint", lambda _: "0" * 32)
    refused(words, sb.run, dataset=dataset, model="any/model", explainers="random", metrics="saliency_miou",
            out=tmp_path / "run")  # fmt: skip
    assert not (tmp_path / "run").exists()
    order = [5, 4, 2, 1]
    if column != "image_id" or value is not rows[0][0]["image_id"]:
        check_samples(dataset.select(order))  # without the invalid sample


KINDS = {
    "ids of numbers": ("image_id", 0.5, datasets.Value("float64"), 'image_id" contains .*float64'),
    "text labels": ("label", "disc", datasets.Value("string"), "class_encode_column"),
    "fractions": ("label", 0.5, datasets.Value("float32"), 'label" contains float, not classes'),
    "mask of numbers": (
        "mask",
        [[0, 1]],
        datasets.List(datasets.List(datasets.Value("int64"))),
        'column "mask" contains',
    ),
    "mask of text": ("mask", "/etc/passwd", datasets.Value("string"), 'mask" contains .*not images'),
    "labels of text": ("labels", "disc", datasets.Value("string"), 'labels" of image .* contains disc'),
    "unknown name": ("labels", ["disc", "dis"], datasets.List(datasets.Value("string")), "contains dis, "),
    "unknown number": ("labels", [0, 8], datasets.List(datasets.Value("int64")), "contains 8, which"),
    "null in labels": ("labels", [None], datasets.List(datasets.Value("int64")), "contains None"),
}


@pytest.mark.parametrize(("column", "value", "kind", "words"), KINDS.values(), ids=KINDS)
def test_columns_of_wrong_type_are_rejected(column, value, kind, words, rows):
    refused(words, check_samples, changed(rows, column, value, kind))


def test_optional_values_may_be_missing(rows):
    for column, value in (("mask", None), ("label", None), ("label", -1), ("image_id", "ünï cödé/1 .png")):
        check_samples(changed(rows, column, value))
    check_samples(changed(rows, "labels", ["disc"], datasets.List(datasets.Value("string"))))
    check_samples(changed(rows, "labels", None, datasets.List(datasets.Value("int64"))))
    check_samples(changed(rows, "mask", None, datasets.Value("null")))
    check_samples(changed(rows, "label", 0, datasets.Value("int64")).remove_columns(["image_id"]))


def test_ids_that_are_not_utf8_are_rejected(rows):
    table = changed(rows, "image_id", "b").data.table
    ids = pa.array([b"a", b"b", b"c", b"\xff\xfe", b"e", b"f"])
    bad = pa.Array.from_buffers(pa.string(), 6, ids.buffers())
    place = table.schema.get_field_index("image_id")
    table = table.set_column(place, table.schema.field(place), bad)
    refused('image_id" contains bytes that are not UTF-8', check_samples, datasets.Dataset(table))


def test_target_file_with_unknown_images_is_rejected(shapes, resnet, tmp_path):
    ids = list(sb.load_dataset(shapes)["image_id"])
    (tmp_path / "targets.csv").write_text("image_id,target\n" + "".join(f"{one},disc\n" for one in [*ids, "shapes-x"]))
    refused(r"targets.csv .*shapes-x \(1 in all\)", sb.run, dataset=shapes, model=resnet, explainers="random",
            metrics="saliency_miou", device="cpu", target=str(tmp_path / "targets.csv"), out=tmp_path / "run",
            limit=4)  # fmt: skip
    assert not (tmp_path / "run").exists()
