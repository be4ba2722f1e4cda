"""Tests of users' images with COCO's JSON: outlines, boxes, file names and messages."""

import json
import shutil

import numpy as np
import pytest
from built_samples import as_shown, mask_in, read_back
from commands import said
from PIL import Image
from refusals import refused

import saliency_bench as sb
from saliency_bench.data.build_report import read_report
from saliency_bench.hub_builders._own import boxed

OUTLINE = [[4, 4, 20, 4, 20, 12, 4, 12]]


def source(folder, objects, images=("a.jpg",), size=(30, 20)):
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    for name in images:
        path = folder / "pictures" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((30, 20), 60).convert("RGB").save(path)
    known = {"width": size[0], "height": size[1]} if size else {}
    listed = [{"id": number, "file_name": name} | known for number, name in enumerate(images)]
    kinds = [{"id": 3, "name": "dog"}, {"id": 1, "name": "cat"}]
    numbered = [{"id": number, "image_id": 0, "category_id": 1} | one for number, one in enumerate(objects)]
    content = {"images": listed, "categories": kinds, "annotations": numbered}
    (folder / "my.json").write_text(json.dumps(content))
    return content


def built(folder, content=None, **options):
    """Build from the JSON file that `source` has written, or from other content."""
    if content is not None:
        (folder / "my.json").write_text(json.dumps(content))
    out = sb.build("coco-json", folder / "out", json=str(folder / "my.json"), images=folder / "pictures",
                   progress=False, overwrite=True, **options)  # fmt: skip
    return read_back(out)[:2]


def pixels(row):
    return None if row["mask"] is None else int((np.asarray(row["mask"]) > 0).sum())


def test_samples_per_class_need_no_stated_image_size(tmp_path):
    objects = [{"segmentation": OUTLINE}, {"segmentation": [[22, 4, 28, 4, 28, 8, 22, 8]]},
               {"segmentation": OUTLINE, "category_id": 3}]  # fmt: skip
    source(tmp_path, objects)
    rows, left_out = built(tmp_path)
    assert {name: pixels(row) for name, row in rows.items()} == {"a:cat": 128 + 24, "a:dog": 128}
    assert left_out == {}
    assert sb.load_dataset(tmp_path / "out").features["label"].names == ["cat", "dog"]
    assert set(built(tmp_path, classes="image")[0]) == {"a"}
    source(tmp_path, objects, size=None)
    assert pixels(built(tmp_path)[0]["a:dog"]) == 128
    source(tmp_path, objects, size=("40", "20"))
    assert built(tmp_path)[1]["a:dog", "mask"] == "the annotations and the image differ in size"


@pytest.mark.parametrize("instead", [{"segmentation": []}, {"keypoints": [5, 5, 2, 6, 6, 2], "num_keypoints": 2}])
def test_boxes_option_draws_objects_without_outline(tmp_path, instead):
    source(tmp_path, [{"bbox": [4, 4, 16, 8]} | instead])
    words = "has keypoints but no outline; pass --boxes" if "keypoints" in instead else "--boxes"
    assert words in built(tmp_path)[1]["a:cat", "mask"]
    rows, left_out = built(tmp_path, boxes=True)
    np.testing.assert_array_equal(mask_in(rows["a:cat"]), WHOLE)
    assert left_out == {}


def test_box_covers_expected_pixels():
    assert boxed([1, 2, 2, 1], 4, 5).nonzero()[0].tolist() == [2, 2]
    assert boxed([1, 2, 2, 1], 4, 5).nonzero()[1].tolist() == [1, 2]
    assert not boxed([1.6, 2, 0.8, 9], 4, 5).any()
    for wrong in ([1, 2, 3], [1, 2, 3, "4"], None, [1, 2, 3, float("nan")]):
        with pytest.raises(ValueError, match="four numbers"):
            boxed(wrong, 4, 5)


def test_images_match_by_path_suffix(tmp_path):
    content = source(tmp_path, [{"segmentation": OUTLINE}], ("deep/a.jpg", "b.jpg", "c/d.jpg", "e/d.jpg"))
    for place, name in enumerate(("a.jpg", "./b.JPG", "d.jpg", "nowhere.jpg")):
        content["images"][place]["file_name"] = name
    content["annotations"] = [{"id": n, "image_id": n, "category_id": 3, "segmentation": OUTLINE} for n in range(4)]
    rows, left_out = built(tmp_path, content)
    assert set(rows) == {"deep/a:dog", "b:dog"}
    assert left_out == {("d.jpg", "image"): "several images with this file_name",
                        ("nowhere.jpg", "image"): "no image with this file_name"}  # fmt: skip


def test_json_option_rejects_files_that_are_not_coco(tmp_path, capsys):
    source(tmp_path, [{"segmentation": OUTLINE}])
    line = ["build", "coco-json", "--json", tmp_path / "my.json", "--images", tmp_path / "pictures"]
    line = [str(word) for word in [*line, "--out", tmp_path / "out"]]
    assert "samples   1\n  masks     1\n" in said(capsys, line)
    (tmp_path / "my.json").write_text("{}")
    shown = said(capsys, [*line, "--overwrite"], 2)
    assert 'my.json has no list "categories"; export the annotations again as COCO JSON' in shown
    refused(r"--json nowhere\.json is not a file", sb.build, "coco-json", tmp_path / "other", tmp_path / "pictures",
            json="nowhere.json")  # fmt: skip


def ones(size, *boxes):
    """Return bool (H, W) with boxes (rows, columns) set to True."""
    mask = np.zeros(size, bool)
    for rows, columns in boxes:
        mask[slice(*rows), slice(*columns)] = True
    return mask


FLAT = OUTLINE[0]
WHOLE = ones((20, 30), ((4, 12), (4, 20)))


@pytest.mark.parametrize(("first", "second"), [
    ("3f2504e0-4f89-11d3-9a0c-0305e82c3301", 3), (7.0, 8.0), (0, "00"),
])  # fmt: skip
def test_ids_may_be_integers_floats_or_strings(tmp_path, first, second):
    content = source(tmp_path, [], ("a.jpg", "b.jpg"))
    content["images"][0]["id"], content["images"][1]["id"] = first, second
    content["categories"][0]["id"], content["categories"][1]["id"] = second, first  # dog, cat
    other = str(first) if isinstance(first, int) else int(first) if isinstance(first, float) else first
    content["annotations"] = [{"id": first, "image_id": other, "category_id": second, "segmentation": OUTLINE},
                              {"id": second, "image_id": second, "category_id": other,
                               "segmentation": OUTLINE}]  # fmt: skip
    rows, left_out = built(tmp_path, content)
    assert (set(rows), left_out) == ({"a:dog", "b:cat"}, {})


def test_invalid_ids_and_references_are_reported(tmp_path):
    content = source(tmp_path, [{"segmentation": OUTLINE}, {"segmentation": OUTLINE, "image_id": 5, "id": 7}])
    content["images"] += [{"id": odd, "file_name": "a.jpg"} for odd in (None, True, "", [1])]
    content["images"] += [{"id": 8, "file_name": "b.jpg"}, {"id": 9, "file_name": "x/c.heic"}]
    (tmp_path / "pictures/c.heic").write_bytes(b"x")
    content["annotations"] += [{"id": 9, "image_id": 8, "category_id": 99, "segmentation": OUTLINE}]
    (tmp_path / "pictures/b.jpg").write_bytes((tmp_path / "pictures/a.jpg").read_bytes())
    rows, left_out = built(tmp_path, content)
    assert set(rows) == {"a:cat"}
    assert "HEIC" in left_out.pop(("c.heic", "image"))  # reported once, as the file
    assert left_out == {("b.jpg", "image"): "no object of a listed category"}
    texts = [one["text"] for one in read_report(tmp_path / "out")["remarks"]]
    assert sum("without an id or a file_name" in text for text in texts) == 4
    assert "my.json: an object refers to image 5, which is not in the list of images" in texts


BAD = [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7], [0, 0, 900, 0, 5, 5], [0, 0, None, 0, 5, 5], None, {"counts": [1]}]


def test_invalid_outline_part_keeps_the_rest_of_the_mask(tmp_path):
    """Test an invalid part in an outline, in a separate object, and alone, each in another image."""
    pictures = [[[FLAT, bad]] for bad in BAD] + [[[FLAT], [bad]] for bad in BAD] + [[[bad]] for bad in BAD]
    objects = [{"image_id": at, "segmentation": shape} for at, shapes in enumerate(pictures) for shape in shapes]
    source(tmp_path, objects, [f"{at}.jpg" for at in range(len(pictures))])
    rows, left_out = built(tmp_path)
    remarks = {one["id"]: one["text"] for one in read_report(tmp_path / "out")["remarks"]}
    valid, alone = range(2 * len(BAD)), range(2 * len(BAD), len(pictures))
    for at in valid:
        np.testing.assert_array_equal(mask_in(rows[f"{at}:cat"]), WHOLE)
        assert remarks[f"{at}:cat"].startswith("1 part of its outlines cannot be drawn and is left out: ")
    assert left_out.keys() == {(f"{at}:cat", "mask") for at in alone}


@pytest.mark.parametrize(("given", "listing"), [
    ("", "result.json"), ("images", "annotations/instances_default.json"), ("images", "_annotations.coco.json"),
])  # fmt: skip
def test_annotations_are_found_from_root_or_image_folder(tmp_path, given, listing):
    content = source(tmp_path, [{"segmentation": OUTLINE}])
    content["images"][0]["file_name"] = "images/a.jpg"
    (tmp_path / "pictures").rename(tmp_path / "images")
    (tmp_path / listing).parent.mkdir(exist_ok=True)
    (tmp_path / listing).write_text(json.dumps(content))
    (tmp_path / "my.json").unlink()
    for options in ({}, {"json": str(tmp_path / listing)}):
        out = sb.build("coco-json", tmp_path / "out", tmp_path / given, progress=False, overwrite=True, **options)
        assert [row["image_id"] for row in sb.load_dataset(out)] == ["a:cat"]


@pytest.mark.parametrize(("listing", "beside"), [("_annotations.coco.json", ""), ("labels.json", "data")])
def test_splits_with_separate_annotations_are_merged(tmp_path, listing, beside):
    content = source(tmp_path, [{"segmentation": OUTLINE}])
    for number, split in enumerate(("train", "valid", "test")):
        folder = tmp_path / "in" / split
        (folder / beside).mkdir(parents=True)
        (tmp_path / "pictures/a.jpg").rename(folder / beside / "a.jpg")
        Image.effect_noise((30, 20), 60).convert("RGB").save(tmp_path / "pictures/a.jpg")
        content["categories"] = [{"id": number, "name": "cat"}, {"id": 7, "name": f"only {split}"}]
        content["annotations"][0]["category_id"] = number
        (folder / listing).write_text(json.dumps(content))
    (tmp_path / "in/README.txt").write_text("exported")
    out = sb.build("coco-json", tmp_path / "out", tmp_path / "in", progress=False)
    rows = {split: sb.load_dataset(out, split=split) for split in ("train", "validation", "test")}
    found = {split: [(row["image_id"].split("/")[0], row["label"], pixels(row)) for row in own]
             for split, own in rows.items()}  # fmt: skip
    assert found == {"train": [("train", 0, 128)], "validation": [("valid", 0, 128)], "test": [("test", 0, 128)]}
    assert rows["train"].features["label"].names == ["cat", "only test", "only train", "only valid"]
    assert [entry["id"] for entry in read_report(out)["left_out"]] == ["README.txt"]
    single = sb.build("coco-json", tmp_path / "single", tmp_path / "in/valid", progress=False)
    assert [row["image_id"] for row in sb.load_dataset(single)] == ["a:cat"]
    shutil.rmtree(tmp_path / "in/train")
    two = sb.build("coco-json", tmp_path / "two", tmp_path / "in", progress=False)
    (valid,), (test,) = (sb.load_dataset(two, split=split)["image_id"] for split in ("validation", "test"))
    assert [valid, test] == [f"{split}/{beside}/a:cat".replace("//", "/") for split in ("valid", "test")]


def test_split_folders_share_one_annotation_file(tmp_path):
    source(tmp_path, [{"segmentation": OUTLINE}], images=("val2017/a.jpg",))
    out = sb.build("coco-json", tmp_path / "out", tmp_path / "pictures", json=str(tmp_path / "my.json"), progress=False)
    assert len(sb.load_dataset(out, split="validation")) == 1


def test_unmatched_names_report_examples_of_both_sides(tmp_path):
    objects = [{"segmentation": OUTLINE}, {"segmentation": OUTLINE, "image_id": 1}]
    content = source(tmp_path, objects, ("a.jpg", "b.jpg"))
    content["images"][0]["file_name"] = "x/other.jpg"
    rows, left_out = built(tmp_path, content)
    assert set(rows) == {"b:cat"}
    assert left_out == {("x/other.jpg", "image"): "no image with this file_name",
                        ("a", "image"): "it is not in my.json"}  # fmt: skip
    texts = {one["text"] for one in read_report(tmp_path / "out")["remarks"]}
    assert "1 name has no image, such as x/other.jpg; the folder also contains a.jpg" in texts
    content["images"][1]["file_name"] = "x/another.jpg"
    words = r"the file lists x/other\.jpg .*, but the folder contains a\.jpg; pass the folder of the annotated images"
    refused(words, built, tmp_path, content)


# Portrait photographs: the file is 30 x 20, and the upright image is 20 wide and 30 high.

LOW = ((18, 28), (3, 15))  # rows and columns of the upright image: below the edge of the file
MIDDLE = ((5, 15), (3, 15))  # inside both
FAR = ((3, 15), (18, 28))  # of the file: right of the edge of the upright image


def corners(rows, columns):
    (top, low), (left, right) = rows, columns
    return [[left, top, right, top, right, low, left, low]]


def portraits(folder, cases):
    """Write photographs with one object each. cases: {name: (segmentation, EXIF orientation, stated size or None)}."""
    objects = [{"segmentation": shape, "image_id": number} for number, (shape, *_) in enumerate(cases.values())]
    content = source(folder, objects, [f"{name}.jpg" for name in cases], size=None)
    for entry, (_, orientation, size) in zip(content["images"], cases.values(), strict=True):
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.effect_noise((30, 20), 60).convert("RGB").save(folder / "pictures" / entry["file_name"], exif=exif)
        entry |= {"width": size[0], "height": size[1]} if size else {}
    return content


@pytest.mark.parametrize("asked", [{}, {"upright": True}, {"stored": True}])
def test_points_outside_a_frame_determine_the_orientation(tmp_path, asked):
    low, far = corners(*LOW), corners(*FAR)
    cases = {f"low {turn}": (low, turn, (30, 20)) for turn in (5, 6, 7, 8)}
    cases |= {f"far {turn}": (far, turn, (30, 20)) for turn in (5, 6, 7, 8)}
    rows, _ = built(tmp_path, portraits(tmp_path, cases), **asked)
    for turn in (5, 6, 7, 8):
        np.testing.assert_array_equal(mask_in(rows[f"low {turn}:cat"]), ones((30, 20), LOW))
        np.testing.assert_array_equal(mask_in(rows[f"far {turn}:cat"]), as_shown(ones((20, 30), FAR), turn))


def test_ambiguous_orientation_requires_an_option(tmp_path):
    cases = {f"{turn} {size}": (corners(*MIDDLE), turn, size) for turn in range(2, 9) for size in ((30, 20), None)}
    content = portraits(tmp_path, cases)
    plain, upright, stored = (built(tmp_path, content, **given) for given in ({}, {"upright": True}, {"stored": True}))
    for name, (_, turn, _) in cases.items():
        assert plain[0][f"{name}:cat"]["mask"] is None
        assert "choose one with --stored or --upright" in plain[1][f"{name}:cat", "mask"]
        shape = (30, 20) if turn >= 5 else (20, 30)
        np.testing.assert_array_equal(mask_in(upright[0][f"{name}:cat"]), ones(shape, MIDDLE))
        np.testing.assert_array_equal(mask_in(stored[0][f"{name}:cat"]), as_shown(ones((20, 30), MIDDLE), turn))
    words = "--upright and --stored cannot be combined; use only one of them"
    refused(words, built, tmp_path, upright=True, stored=True)


def test_size_or_rle_but_no_stray_point_sets_the_orientation(tmp_path):
    from pycocotools import mask as library

    (rows, columns), cases = MIDDLE, {"cvat": (corners(*MIDDLE), 6, (20, 30))}  # as CVAT writes the size
    for shape in ((20, 30), (30, 20)):
        packed = library.encode(np.asfortranarray(ones(shape, MIDDLE).astype(np.uint8)))
        cases[str(shape)] = {"size": list(shape), "counts": packed["counts"].decode()}, 6, (30, 20)
    cases["stray"] = [*corners(rows, columns), [0, 0, 5, 900, 5, 5]], 6, (30, 20)
    cases["rounded"] = corners((5, 20.5), columns), 6, (30, 20)  # not outside
    found, left_out = built(tmp_path, portraits(tmp_path, cases))
    upright, turned = ones((30, 20), MIDDLE), as_shown(ones((20, 30), MIDDLE), 6)
    for name, expected in {"cvat": upright, "(20, 30)": turned, "(30, 20)": upright}.items():
        np.testing.assert_array_equal(mask_in(found[f"{name}:cat"]), expected)
    for name in ("stray", "rounded"):
        assert "choose one with --stored or --upright" in left_out[f"{name}:cat", "mask"]


@pytest.mark.parametrize("orientation", [3, 6])
def test_label_studio_exports_of_rotated_images_are_read(tmp_path, orientation):
    """Test a converter that states the size of the file.

    It scales outlines to this size, but it writes boxes for the upright image.
    """
    converter = pytest.importorskip("label_studio_converter", reason="needs label-studio-converter")
    portraits(tmp_path, {"a": (OUTLINE, orientation, None)})
    (tmp_path / "upload/1").mkdir(parents=True)
    (tmp_path / "pictures/a.jpg").rename(tmp_path / "upload/1/ab12cd34-a.jpg")
    width, height = (20, 30) if orientation >= 5 else (30, 20)
    about = {"original_width": width, "original_height": height, "image_rotation": 0, "to_name": "image"}
    polygon = {"points": [[20, 20], [60, 20], [60, 80], [20, 80]], "polygonlabels": ["cat"]}
    box = {"x": 10, "y": 60, "width": 30, "height": 30, "rotation": 0, "rectanglelabels": ["dog"]}
    results = [about | {"from_name": "p", "type": "polygonlabels", "value": polygon},
               about | {"from_name": "r", "type": "rectanglelabels", "value": box}]  # fmt: skip
    task = {"id": 1, "data": {"image": "/data/upload/1/ab12cd34-a.jpg"}, "annotations": [{"id": 1, "result": results}]}
    task["annotations"][0]["completed_by"] = 1
    (tmp_path / "tasks.json").write_text(json.dumps([task]))
    tags = '<PolygonLabels name="p" toName="image"><Label value="cat"/></PolygonLabels>'
    tags += '<RectangleLabels name="r" toName="image"><Label value="dog"/></RectangleLabels>'
    project = converter.Converter(f'<View><Image name="image" value="$image"/>{tags}</View>', str(tmp_path),
                                  upload_dir=str(tmp_path / "upload"))  # fmt: skip
    project.convert_to_coco(str(tmp_path / "tasks.json"), str(tmp_path / "coco"), is_dir=False)
    project.convert_to_yolo(str(tmp_path / "tasks.json"), str(tmp_path / "yolo"), is_dir=False)
    cat = ones((height, width), ((height * 2 // 10, height * 8 // 10), (width * 2 // 10, width * 6 // 10)))
    dog = ones((height, width), ((height * 6 // 10, height * 9 // 10), (width // 10, width * 4 // 10)))
    for name, options in (("coco-json", {"boxes": True}), ("yolo", {})):
        folder = tmp_path / name.partition("-")[0]
        out = sb.build(name, tmp_path / f"of {name}", folder, progress=False, **options)
        rows = {row["image_id"]: mask_in(row) for row in sb.load_dataset(out)}
        np.testing.assert_array_equal(rows["ab12cd34-a:cat"], cat)
        np.testing.assert_array_equal(rows["ab12cd34-a:dog"], dog)
