"""Tests of small variations of sources: a folder too high or too deep, the extension .JPG, or a byte order mark."""

import os
from itertools import cycle
from pathlib import Path

import contracts
import pytest
from refusals import refused

from saliency_bench import registry
from saliency_bench.data.jobs import BuildLog, samples_of
from saliency_bench.hub_builders import _examples, pet_xai, voc_val
from saliency_bench.hub_builders._source import base_of, base_with

EXAMPLES = contracts.examples()
LISTS = (".txt", ".csv")


def ids(name, source):
    builder, log = registry.load("hub_builders", name.partition(" ")[0]), BuildLog()
    found = samples_of(builder.samples(source, log, **_examples.options(name)), log)
    return [(sample["image_id"], sample["label"], sample.get("mask") is not None) for sample in found]


def copied(source, target, copy):
    """Copy the files of a source with a changed path for each."""
    for path in source.rglob("*"):
        if path.is_file():
            (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            copy(path, target / path.relative_to(source))
    return target


@pytest.mark.parametrize("name", EXAMPLES)
def test_source_one_folder_too_high_is_accepted(example, name):
    source, expected = example(name, 3, 32, ids)
    assert ids(name, source.parent) == expected


@pytest.mark.parametrize(("name", "folder"), [
    ("pet-xai", "images"), ("pet-xai", "annotations"), ("object-xai", "VOCdevkit/VOC2012/JPEGImages"),
    ("voc-val", "VOCdevkit/VOC2012"), ("voc-val", "VOCdevkit"),
    ("coco-val", "annotations"), ("security-xai", "JPEGImage"), ("food-101", "food-101/images"),
    ("gender-xai release", "attention_label"), ("cancer-xai", "Task07_Pancreas"),
])  # fmt: skip
def test_source_one_folder_too_deep_is_accepted(example, name, folder):
    source, expected = example(name, 3, 32, ids)
    assert ids(name, source / folder) == expected


@pytest.mark.parametrize("name", [name for name in EXAMPLES if not name.startswith("imagenet")])
def test_other_jpeg_extensions_are_accepted(example, tmp_path, name):
    source, expected = example(name, 3, 32, ids)
    endings = cycle([".JPG", ".jpeg", ".JPEG"])
    copied(source, tmp_path, lambda a, b: os.link(a, b.with_suffix(next(endings)) if b.suffix == ".jpg" else b))
    found = ids(name, tmp_path)
    assert found
    assert found == expected or name.startswith("ebam")  # scenes are chosen by file name


@pytest.mark.parametrize("name", EXAMPLES)
def test_lists_with_byte_order_mark_are_accepted(example, tmp_path, name):
    source, expected = example(name, 3, 32, ids)
    marks = dict.fromkeys((*LISTS, ".json"), b"\xef\xbb\xbf")
    copied(source, tmp_path, lambda a, b: b.write_bytes(marks.get(a.suffix, b"") + a.read_bytes()))
    assert ids(name, tmp_path) == expected


def test_several_copies_of_a_source_are_rejected(tmp_path):
    for name in ("a", "b"):
        _examples.write("pet-xai", tmp_path / name, 2, 32)
    refused(r"several copies of the data: .*/a, .*/b; pass one", lambda: list(pet_xai.samples(tmp_path, BuildLog())))
    assert list(pet_xai.samples(tmp_path / "a", BuildLog()))


def test_requested_voc_year_is_used(tmp_path):
    _examples.write("voc-val", tmp_path, 2, 32)
    _examples.write("voc-val detection", tmp_path, 2, 32)
    assert list(voc_val.samples(tmp_path / "VOCdevkit", BuildLog()))
    assert list(voc_val.samples(tmp_path, BuildLog(), year=2007, lists="detection"))


def test_unrelated_sibling_folder_is_not_the_source(tmp_path):
    _examples.write("pet-xai", tmp_path, 2, 32)
    (tmp_path / "other").mkdir()
    assert base_of(tmp_path / "other", "images", "annotations") == tmp_path / "other"
    assert base_of(tmp_path / "images", "images", "annotations") == tmp_path
    assert base_with(tmp_path / "other", "images") == Path(tmp_path / "other")
