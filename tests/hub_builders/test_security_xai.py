"""Tests of SIXray: lists with -1 for absent, VOC-style XML, stored and rasterised boxes, and seeded clean images."""

from functools import partial

import numpy as np
import pytest
from built_samples import built_by, reasons
from PIL import Image
from refusals import refused

from saliency_bench.hub_builders import security_xai
from saliency_bench.hub_builders._source import rasterised
from saliency_bench.utils.pictures import UnreadableError

SIZE = (40, 30)
HEAD = "name,Gun,Knife,Wrench,Pliers,Scissors\n"


def xml(*objects):
    inside = "".join(
        f"<object><name>{name}</name><bndbox><xmin>{x}</xmin><ymin>{y}</ymin><xmax>{z}</xmax><ymax>{w}</ymax></bndbox>"
        "</object>"
        for name, x, y, z, w in objects
    )
    return f"<annotation><size><width>40</width><height>30</height></size>{inside}</annotation>"


@pytest.fixture
def source(tmp_path):
    for folder in ("JPEGImage", "Annotation", "ImageSet/10"):
        (tmp_path / folder).mkdir(parents=True)
    names = [f"P{n:05d}" for n in range(1, 6)] + [f"N{n:05d}" for n in range(1, 21)]
    for name in names:
        Image.effect_noise(SIZE, 70).convert("RGB").save(tmp_path / f"JPEGImage/{name}.jpg")
    (tmp_path / "Annotation/P00001.xml").write_text(xml(("Gun", 3, 4, 10, 8), ("Knife", 35, 20, 60, 28)))
    (tmp_path / "Annotation/P00002.xml").write_text(xml(("Hammer", 1, 1, 1, 1), ("Bomb", 1, 1, 9, 9)))
    (tmp_path / "Annotation/P00003.xml").write_text(xml())
    (tmp_path / "Annotation/P00005.xml").write_text(xml(("Gun", 50, 50, 60, 60)))
    (tmp_path / "Annotation/N00001.xml").write_text(xml(("Gun", 1, 1, 5, 5)))
    rows = ["P00001,1,1,-1,-1,-1", "P00002,-1,-1,-1,-1,1", "P00003,1,-1,-1,-1,-1", "P00004,1,-1,-1,-1,-1",
            "P00005,1,-1,-1,-1,-1", "P00006,1,-1,-1,-1,-1"]  # fmt: skip
    (tmp_path / "ImageSet/10/train.csv").write_text(HEAD + "\n".join(rows) + "\n")
    clean = "\n".join(f"{name},-1,-1,-1,-1,-1" for name in [*names[5:], "N09999"])
    (tmp_path / "ImageSet/10/test.csv").write_text(HEAD + clean + "\n")
    return tmp_path


built = partial(built_by, security_xai)


def test_boxes_become_objects_and_a_mask(source):
    samples, log = built(source)
    first, expected = samples["P00001"], np.zeros(SIZE[::-1], bool)
    expected[3:8, 2:10] = expected[19:28, 34:40] = True
    assert (first["mask"] == expected).all()
    assert first["objects"] == [{"name": "Gun", "box": [3, 4, 10, 8]}, {"name": "Knife", "box": [35, 20, 60, 28]}]
    assert (first["label"], first["source_split"]) == ("prohibited", "train")
    assert samples["P00002"]["mask"].sum() == 1
    assert [one["name"] for one in samples["P00002"]["objects"]] == ["Hammer"]
    why = "the list marks the image as clean, but the XML contains Gun"
    assert {("N00001", "image"): why} | reasons(log) == {
        ("P00003", "mask"): "no box", ("P00004", "mask"): "no XML", ("P00005", "mask"): "empty mask",
        ("P00006", "image"): "no such image file", ("N00001", "image"): why}  # fmt: skip
    assert {"id": "P00002", "text": "object 'Bomb' is not one of the 6 items and is left out"} in log.remarks


def test_clean_images_are_sampled_by_seed(source):
    def clean(**options):
        return sorted(name for name, sample in built(source, **options)[0].items() if sample["label"] == "clean")

    assert len(clean(seed=3)) in (4, 5)  # N00001 may be drawn and is then left out
    assert clean(seed=3) == clean(seed=3) != clean(seed=4)
    assert len(clean(balanced=False)) == 19
    assert all(sample["mask"] is None for sample in built(source)[0].values() if sample["label"] == "clean")


def test_labels_come_from_xml_without_lists(source):
    for path in (source / "ImageSet/10").iterdir():
        path.unlink()
    samples, log = built(source, balanced=False)
    labels = {name: sample["label"] for name, sample in samples.items()}
    assert labels["P00001"] == labels["N00001"] == "prohibited"
    assert labels["P00003"] == labels["N00002"] == "clean"
    assert reasons(log)["P00004", "image"] == "neither a list nor an XML file contains the image"


def first_counted(source, **files):
    for name, content in files.items():
        (source / f"Annotation/{name}.xml").write_text(content)
    samples, log = built(source)
    (remark,) = [entry["text"] for entry in log.remarks if entry["text"].startswith("box coordinates")]
    return samples, log, remark


def test_box_origin_is_inferred_from_all_boxes(source):
    """Test how boxes are counted: from 0 if a coordinate is 0, and from 1 if a box ends at the width."""
    samples, _, remark = first_counted(source, P00001=xml(("Gun", 3, 4, 10, 8), ("Knife", 5, 5, 40, 9)))
    assert remark.endswith(
        "are counted from 1: 0 boxes have the coordinate 0, and 1 boxes end at the width or height of their image"
    )
    assert np.argwhere(samples["P00001"]["mask"])[0].tolist() == [3, 2]
    boxes = {"P00001": (3, 4, 10, 8), "P00002": (0, 7, 9, 9), "P00005": (0, 0, 39, 29)}
    samples, _, remark = first_counted(source, **{name: xml(("Gun", *box)) for name, box in boxes.items()})
    assert "counted from 0: 2 boxes have the coordinate 0, and 0 boxes end" in remark
    assert samples["P00001"]["objects"] == [{"name": "Gun", "box": [4, 5, 11, 9]}]
    assert np.argwhere(samples["P00001"]["mask"])[[0, -1]].tolist() == [[4, 3], [8, 10]]
    assert samples["P00005"]["mask"].all()


@pytest.mark.parametrize("empty", ["<object/>", "<object><name>Gun</name><bndbox/></object>"])
def test_object_without_a_box_is_skipped_and_counted(source, empty):
    content = xml(("Gun", 3, 4, 10, 8)).replace("<object>", empty + "<object>", 1)
    samples, log, _ = first_counted(source, P00001=content)
    assert samples["P00001"]["objects"] == [{"name": "Gun", "box": [3, 4, 10, 8]}]
    assert samples["P00001"]["mask"].sum() == 40
    assert {"id": "P00001", "text": "skipped 1 object without a box"} in log.remarks
    broken = content.replace("<xmin>3<", "<xmin>three<")
    samples, log, _ = first_counted(source, P00001=broken)
    assert samples["P00001"]["mask"] is None


def test_invalid_list_entries_are_reported(source):
    rows = "../../secret,1,-1,-1,-1,-1\nP00001,1,-1,-1,-1,-1\nP00001.jpg,-1,-1,-1,-1,-1\n"
    (source / "ImageSet/10/train.csv").write_text(HEAD + rows)
    samples, log = built(source)
    assert samples["P00001"]["label"] == "prohibited"
    assert reasons(log)["../../secret", "image"] == "its name points outside the source folder"
    assert log.remarks[0]["text"] == "train.csv line 4: the image is listed twice; the first entry is used"
    for row, reason in (("2,-1,-1,-1,-1", "'2' is neither 1 nor -1"), (",,,,", "'' is neither 1 nor -1")):
        (source / "ImageSet/10/train.csv").write_text(f"{HEAD}P00001,{row}\n")
        assert reason in built(source)[1].left_out[0]["reason"]


@pytest.mark.parametrize("text", ["", "image,Gun\na,1\n", "name,Bomb\na,1\n", "name,Gun\n\xff\xfe"])
def test_malformed_list_is_rejected(source, text):
    (source / "ImageSet/10/train.csv").write_bytes(text.encode("latin-1"))
    refused(r"train\.csv", built, source)


def test_rasterised_box_includes_its_corners():
    for box in ([1, 1, 3, 2], [2, 2, 2, 2], [-5, 0, 3, 99]):
        mask = rasterised(box, 4, 6)
        for row in range(4):
            for column in range(6):
                assert mask[row, column] == (box[0] <= column + 1 <= box[2] and box[1] <= row + 1 <= box[3])
    for box in ([-5, 1, 0, 3], [1, -5, 3, 0], [7, 1, 9, 3], [1, 5, 3, 9], [3, 1, 2, 2]):
        with pytest.raises(UnreadableError, match="a box contains no pixel of the image"):
            rasterised(box, 4, 6)
