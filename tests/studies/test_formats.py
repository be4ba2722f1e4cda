"""Masks written for annotation programs and read back: every pixel, and no damage taken for a mask."""

import json
from contextlib import suppress
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import dataset, import_masks
from pycocotools import mask as reference
from test_annotating import study_of

from saliency_bench.errors import UserError
from saliency_bench.studies.exporting import export, module_of
from saliency_bench.studies.formats import label_studio
from saliency_bench.studies.formats.regions import FORMATS
from saliency_bench.utils.pictures import values

SIZE = (60, 80)


def drawn(seed):
    return np.random.default_rng(seed).random(SIZE) > 0.7


@pytest.fixture
def annotated(tmp_path):
    """Three images: two people on the first, one on the second, nobody but "no region" on the third."""
    annotating = study_of(tmp_path, dataset(5))
    study = annotating.study
    for person, unit, mask in (("p-a", 0, 1), ("p-b", 0, 2), ("p-a", 1, 3)):
        study.record(person, f"image-{unit:03d}", f"{person} {unit}", {"kind": "mask"}, mask=drawn(mask))
    study.record("p-a", "image-002", "none", {"kind": "no_region"})
    study.record("p-a", "image-003", "skipped", {"kind": "skip", "reason": ""})
    return annotating


PLACES = {
    "png": ("masks/p-a", "consensus"),
    "coco": ("annotations.json", None),
    "label-studio": ("tasks.json", None),
    "cvat": ("p-a/annotations.xml", "consensus/annotations.xml"),
}


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_exported_is_read_back(annotated, tmp_path, format):
    assert export(annotated, tmp_path / "out", format) == 3
    read = module_of(format).read(tmp_path / "out" / PLACES[format][0], "p-a")
    if PLACES[format][1] is not None:
        agreed = module_of(format).read(tmp_path / "out" / PLACES[format][1], "p-a")
        np.testing.assert_array_equal(agreed["image-000"], drawn(1) | drawn(2), "half of two is one")
    np.testing.assert_array_equal(read["image-000"], drawn(1))
    np.testing.assert_array_equal(read["image-001"], drawn(3))
    assert not read["image-002"].any()
    assert "image-003" not in read


def test_png_folders_keep_the_votes(annotated, tmp_path):
    export(annotated, tmp_path / "out", "png")
    found = values(tmp_path / "out/votes/image-000.png")
    np.testing.assert_array_equal(found, drawn(1).astype(int) + drawn(2))
    assert not values(tmp_path / "out/consensus/image-002.png").any()


@pytest.mark.parametrize("format", FORMATS)
def test_pseudonyms_are_left_out_if_asked(annotated, tmp_path, format):
    export(annotated, tmp_path / "out", format, people=False)
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert "p-a" not in str(path.relative_to(tmp_path / "out"))
        assert b"p-a" not in path.read_bytes()
    with pytest.raises(UserError, match="exists"):
        export(annotated, tmp_path / "out", format)


@pytest.mark.parametrize("format", FORMATS)
def test_masks_from_elsewhere_become_answers_once(annotated, tmp_path, format):
    export(annotated, tmp_path / "out", format)
    (tmp_path / "other").mkdir()
    other = study_of(tmp_path / "other", dataset(2))
    for _ in range(2):
        count, strange = import_masks(other, tmp_path / "out" / PLACES[format][0], format, "p-a")
    assert count == 2
    assert strange == ["image-002"]
    stored = {one.unit: one.pixels for one in other.study.answers(last=False)}
    assert list(stored) == ["image-000", "image-001"]
    np.testing.assert_array_equal(stored["image-001"], drawn(3))


def test_a_mask_of_another_size_is_refused_and_nothing_stored(annotated, tmp_path):
    export(annotated, tmp_path / "out", "coco")
    (tmp_path / "other").mkdir()
    other = study_of(tmp_path / "other", dataset(2, size=(50, 80)))
    with pytest.raises(UserError, match="80 x 60 pixels, its image 80 x 50"):
        import_masks(other, tmp_path / "out/annotations.json", "coco", "p-a")
    assert other.study.answers() == []


def test_coco_is_what_pycocotools_reads(annotated, tmp_path):
    export(annotated, tmp_path / "out", "coco")
    content = json.loads((tmp_path / "out/annotations.json").read_text())
    one = content["annotations"][0]
    rle = reference.frPyObjects(one["segmentation"], *SIZE)
    np.testing.assert_array_equal(reference.decode(rle), drawn(1))
    assert one["area"] == reference.area(rle)
    assert one["bbox"] == reference.toBbox(rle).tolist()
    assert [one["person"] for one in content["annotations"]] == ["p-a", "p-b", "consensus", "p-a", "consensus"]


def test_compressed_runs_and_polygons_of_coco_are_read(tmp_path):
    mask = drawn(4)
    packed = reference.encode(np.asfortranarray(mask.astype(np.uint8)))
    packed["counts"] = packed["counts"].decode()
    corners = [10, 10, 30, 10, 30, 20, 10, 20]
    content = {
        "images": [{"id": one, "file_name": f"{one}.jpg", "height": 60, "width": 80} for one in (1, 2)],
        "annotations": [{"image_id": 1, "segmentation": packed}, {"image_id": 2, "segmentation": [corners]}],
    }
    (tmp_path / "a.json").write_text(json.dumps(content))
    read = module_of("coco").read(tmp_path / "a.json", "ada")
    np.testing.assert_array_equal(read["1.jpg"], mask)
    box = np.zeros(SIZE, bool)
    box[10:20, 10:30] = True
    np.testing.assert_array_equal(read["2.jpg"], box)


@pytest.mark.slow
@given(st.integers(1, 7), st.integers(1, 300), st.integers(0, 9), st.randoms())
def test_brush_masks_come_back(height, width, level, random):
    flat = [random.randint(0, 9) < level for _ in range(height * width)]
    mask = np.array(flat).reshape(height, width)
    np.testing.assert_array_equal(label_studio.decode(label_studio.encode(mask).tolist(), height, width), mask)


def test_a_brush_mask_by_hand():
    """2 pixels, the second marked: 8 bytes, 0 0 0 0 255 255 255 255; two runs of 4, of which 3 bits hold 4 - 1."""
    bits = f"{8:032b}" + "00111" + "0010" + "0011" + "0111" + "1111"
    bits += "1" + "00" + "011" + "00000000" + "1" + "00" + "011" + "11111111"
    bits += "0" * (8 - len(bits) % 8)
    wanted = [int(bits[at : at + 8], 2) for at in range(0, len(bits), 8)]
    assert label_studio.encode(np.array([[False, True]])).tolist() == wanted
    assert label_studio.decode(wanted, 1, 2).tolist() == [[False, True]]


def test_single_bytes_of_other_writers_are_read():
    """A stretch without repeats: 0, the choice, its length less 1, and each byte."""
    bits = f"{8:032b}" + "00111" + "0010" + "0011" + "0111" + "1111"
    bits += "0" + "00" + "111" + "".join(f"{byte:08b}" for byte in (9, 9, 9, 0, 1, 2, 3, 255))
    bits += "0" * (-len(bits) % 8)
    stream = [int(bits[at : at + 8], 2) for at in range(0, len(bits), 8)]
    assert label_studio.decode(stream, 1, 2).tolist() == [[False, True]]


@pytest.mark.parametrize("stream", [[], [1, 2, 3], [256] * 9, [0] * 40, ["a"] * 9, [[1]] * 9, None])
def test_a_damaged_brush_mask_is_refused(stream):
    with pytest.raises((UserError, TypeError), match=r"damaged|iterable"):
        label_studio.decode(stream, 2, 2)


@pytest.mark.parametrize("cut", [9, 12, 40])
def test_a_truncated_brush_mask_is_refused(cut):
    stream = label_studio.encode(drawn(1)).tolist()
    with pytest.raises(UserError, match="damaged"):
        label_studio.decode(stream[:cut], *SIZE)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"images": 3}', "<x>", "[[[[", '[{"data": 1}]', "<!DOCTYPE a []><a/>"]
)
def test_files_of_another_kind_are_refused_or_hold_nothing(tmp_path, format, text):
    path = tmp_path / "file"
    path.write_text(text)
    found = {}
    with suppress(UserError):
        found = module_of(format).read(path, "ada")
    assert found == {}


def test_runs_outside_of_the_image_are_refused(tmp_path):
    mask = '<mask label="a" left="70" top="0" width="20" height="1" rle="0, 20"/>'
    (tmp_path / "a.xml").write_text(f'<annotations><image name="a" height="60" width="80">{mask}</image></annotations>')
    with pytest.raises(UserError, match="outside"):
        module_of("cvat").read(tmp_path / "a.xml", "ada")


def test_an_image_id_that_is_a_path_stays_in_the_folder(tmp_path):
    rows = dataset(2)
    rows = rows.remove_columns("image_id").add_column("image_id", ["../../a", "b/c"])
    annotating = study_of(tmp_path, rows)
    for unit in ("../../a", "b/c"):
        annotating.study.record("p-a", unit, unit, {"kind": "mask"}, mask=drawn(1))
    export(annotating, tmp_path / "out", "png")
    names = sorted(path.name for path in (tmp_path / "out/masks/p-a").iterdir())
    assert names == [".._.._a.png", "b_c.png"]


@pytest.mark.slow
def test_label_studios_own_converter_reads_the_same_pixels_and_writes_the_same_bytes(annotated, tmp_path):
    brush = pytest.importorskip("label_studio_converter.brush", reason="needs label-studio-converter")
    export(annotated, tmp_path / "out", "label-studio")
    seen = {}
    for task in json.loads((tmp_path / "out/tasks.json").read_text()):
        for number, annotation in enumerate(task["annotations"]):
            for one in annotation["result"]:
                flat = brush.decode_rle(one["value"]["rle"])
                pixels = flat.reshape(one["original_height"], one["original_width"], 4)
                seen[task["data"]["image"], number] = pixels[:, :, 3] > 0
                assert brush.encode_rle(flat.tolist()) == one["value"]["rle"]
    np.testing.assert_array_equal(seen["image-000", 0], drawn(1))
    np.testing.assert_array_equal(seen["image-000", 1], drawn(2))
    np.testing.assert_array_equal(seen["image-001", 0], drawn(3))


@pytest.mark.slow
def test_cvats_sdk_reads_the_same_pixels_and_writes_the_same_runs(annotated, tmp_path):
    """An element becomes the points of a shape as CVAT's import does it: the runs, then the corners of the box."""
    masks = pytest.importorskip("cvat_sdk.masks", reason="needs cvat-sdk")
    export(annotated, tmp_path / "out", "cvat")
    for person, unit, number in (("p-a", "image-000", 1), ("p-b", "image-000", 2), ("p-a", "image-001", 3)):
        images = ElementTree.parse(tmp_path / f"out/{person}/annotations.xml").getroot().iter("image")
        (image,) = [one for one in images if one.get("name") == unit]
        (element,) = image.iter("mask")
        left, top, width, height = (int(element.get(name)) for name in ("left", "top", "width", "height"))
        points = [*map(int, element.get("rle").split(",")), left, top, left + width - 1, top + height - 1]
        size = {"image_width": int(image.get("width")), "image_height": int(image.get("height"))}
        np.testing.assert_array_equal(masks.decode_mask(points, **size), drawn(number))
        assert masks.encode_mask(drawn(number)) == points
