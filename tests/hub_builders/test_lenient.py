"""Sources are accepted as people have them: a folder too high or too deep, .JPG, a byte order mark."""

import os
from pathlib import Path

import contracts
import pytest

from saliency_bench import registry
from saliency_bench.data.jobs import BuildLog, samples_of
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _examples, pet_xai, voc_val
from saliency_bench.hub_builders._source import base_of, base_with

EXAMPLES = contracts.examples()
LISTS = (".txt", ".csv")


def ids(name, source):
    builder, log = registry.load("hub_builders", name.partition(" ")[0]), BuildLog()
    found = samples_of(builder.samples(source, log, **_examples.options(name)), log)
    return [(sample["image_id"], sample["label"], sample.get("mask") is not None) for sample in found]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """{dataset: (a folder two levels above its example, the example, what it gives)}."""
    known: dict = {}

    def of(name):
        if name not in known:
            top = tmp_path_factory.mktemp("top")
            source = _examples.write(name, top / "downloads" / "source", 3, 32)
            known[name] = (top, source, ids(name, source))
        return known[name]

    return of


@pytest.mark.parametrize("name", EXAMPLES)
def test_one_folder_too_high(whole, name):
    _, source, expected = whole(name)
    assert ids(name, source.parent) == expected


@pytest.mark.parametrize(("name", "folder"), [
    ("pet-xai", "images"),
    ("pet-xai", "annotations"),
    ("object-xai", "VOCdevkit/VOC2012/JPEGImages"),
    ("voc-val", "VOCdevkit/VOC2012/ImageSets"),
    ("voc-val", "VOCdevkit/VOC2012"),
    ("voc-val", "VOCdevkit"),
    ("coco-val", "annotations"),
    ("security-xai", "JPEGImage"),
    ("food-101", "food-101/images"),
    ("gender-xai release", "attention_label"),
    ("cancer-xai", "Task07_Pancreas"),
])  # fmt: skip
def test_one_folder_too_deep(whole, name, folder):
    _, source, expected = whole(name)
    assert ids(name, source / folder) == expected


@pytest.mark.parametrize("ending", [".JPG", ".jpeg", ".JPEG"])
@pytest.mark.parametrize("name", [name for name in EXAMPLES if not name.startswith("imagenet")])
def test_jpegs_by_other_endings(whole, tmp_path, name, ending):
    _, source, expected = whole(name)
    for path in source.rglob("*"):
        if path.is_file():
            other = tmp_path / path.relative_to(source)
            other = other.with_suffix(ending) if path.suffix == ".jpg" else other
            other.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, other)
    found = ids(name, tmp_path)
    if not name.startswith("ebam"):  # its scenes are drawn by their file names
        assert found == expected
    assert found


@pytest.mark.parametrize("name", EXAMPLES)
def test_lists_that_begin_with_a_byte_order_mark(whole, tmp_path, name):
    _, source, expected = whole(name)
    for path in source.rglob("*"):
        if path.is_file():
            other = tmp_path / path.relative_to(source)
            other.parent.mkdir(parents=True, exist_ok=True)
            other.write_bytes(b"\xef\xbb\xbf" * (path.suffix in (*LISTS, ".json")) + path.read_bytes())
    assert ids(name, tmp_path) == expected


def test_two_copies_are_not_chosen_between(tmp_path):
    for name in ("a", "b"):
        _examples.write("pet-xai", tmp_path / name, 2, 32)
    with pytest.raises(UserError, match=r"several copies: .*/a, .*/b; give one"):
        list(pet_xai.samples(tmp_path, BuildLog()))
    assert list(pet_xai.samples(tmp_path / "a", BuildLog()))


def test_of_two_years_of_voc_the_one_asked_for_is_taken(tmp_path):
    _examples.write("voc-val", tmp_path, 2, 32)
    _examples.write("voc-val detection", tmp_path, 2, 32)
    assert list(voc_val.samples(tmp_path / "VOCdevkit", BuildLog()))
    assert list(voc_val.samples(tmp_path, BuildLog(), year=2007, lists="detection"))


def test_a_folder_that_only_happens_to_lie_beside_a_source_is_not_taken_for_it(tmp_path):
    _examples.write("pet-xai", tmp_path, 2, 32)
    (tmp_path / "other").mkdir()
    assert base_of(tmp_path / "other", "images", "annotations") == tmp_path / "other"
    assert base_of(tmp_path / "images", "images", "annotations") == tmp_path
    assert base_with(tmp_path / "other", "images") == Path(tmp_path / "other")
