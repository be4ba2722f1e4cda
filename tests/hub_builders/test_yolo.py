"""Tests of users' images with YOLO labels: boxes, outlines, names, folders of labels, EXIF, and messages."""

import numpy as np
import pytest
from built_samples import mask_in, read_back
from PIL import Image
from refusals import refused

import saliency_bench as sb
from saliency_bench.hub_builders.yolo import names_in, objects_in, shape_of
from saliency_bench.utils.pictures import UnreadableError

BOX = "0.4 0.5 0.4 0.5"  # of 10 x 8 pixels: columns 2 to 5, rows 2 to 5
NAMES = "names: [no, cat]\n"


def text(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def picture(path, exif=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = {"exif": exif} if exif else {}
    Image.effect_noise((10, 8), 60).convert("RGB").save(path, **settings)


def built(folder, **options):
    return read_back(sb.build("yolo", folder / "out", folder / "in", progress=False, overwrite=True, **options))


def test_boxes_and_outlines_match_pixels_by_hand():
    expected = np.zeros((8, 10), bool)
    expected[2:6, 2:6] = True
    assert (shape_of(BOX.split(), 8, 10) == expected).all()
    assert (shape_of(["0.2", "0.25", "0.6", "0.25", "0.6", "0.75", "0.2", "0.75"], 8, 10) == expected).all()
    half = shape_of(["0", "0", "1", "0", "0", "1"], 10, 10)  # above the diagonal
    rows, columns = np.indices((10, 10)) + 0.5
    assert half[rows + columns < 9].all()
    assert not half[rows + columns > 11].any()
    assert shape_of(["0", "0", "0.4", "0.5"], 8, 10).sum() == 2 * 2  # a box that is cut by the border
    for words, message in (
        ("0.1 0.1 0.1", "3 coordinates; a box has 4"),
        ("0.4 0.5 0.4 0.5 0.9", "5 coordinates; a box has 4"),  # of a prediction: with its confidence
        ("4 4 3 3", r"not fractions \(0 to 1\)"),
        ("0.4 0.5 nan 0.5", r"not fractions \(0 to 1\)"),
        ("0.4 0.5 x 0.5", "not numbers"),
    ):
        with pytest.raises(UnreadableError, match=message):
            shape_of(words.split(), 8, 10)


LAYOUTS = {
    "folders": ("images/a.png", "labels/a.txt"), "splits": ("images/Val2017/a.png", "labels/Val2017/a.txt"),
    "beside": ("a.png", "a.txt"),
    "roboflow": ("valid/images/a.png", "valid/labels/a.txt"), "given": ("a.png", "../elsewhere/a.txt"),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_labels_are_found_in_every_layout(tmp_path, layout):
    at, labels = LAYOUTS[layout]
    picture(tmp_path / "in" / at)
    text(tmp_path / "in" / labels, f"1 {BOX}\n\n1.0 0.85 0.0625 0.1 0.125\n")
    text(tmp_path / "in/data.yaml", NAMES)
    given = {"labels": str(tmp_path / "elsewhere")} if layout == "given" else {}
    rows, left_out, _ = built(tmp_path, **given)
    ((name, row),) = rows.items()
    assert name.endswith("a:cat")
    assert mask_in(row)[2:6, 2:6].all()
    assert mask_in(row).sum() == 16 + 1
    assert left_out == {}
    assert row["split"] == ("validation" if layout in ("splits", "roboflow") else "test")


def test_class_names_are_read_from_yaml_and_text(tmp_path):
    text(tmp_path / "data.yaml", NAMES + "nc: 2\n")
    assert names_in(tmp_path / "data.yaml") == {0: "no", 1: "cat"}  # `no` is not a truth value here
    text(tmp_path / "data.yaml", "names:\n  7: dog\n  2: 1e3\n")
    assert names_in(tmp_path / "data.yaml") == {7: "dog", 2: "1e3"}
    text(tmp_path / "classes.txt", "dog\nblack cat\n\n")
    assert names_in(tmp_path / "classes.txt") == {0: "dog", 1: "black cat"}
    text(tmp_path / "classes.txt", "dog\n\nblack cat\n")  # if it were skipped, the cats would have another number
    refused("line 2 is empty; each line must be the name of a class", names_in, tmp_path / "classes.txt")
    for content, message in (
        ("train: a\n", "has no list `names`"),
        ("names: [a, a]\n", "lists two classes with the same name"),
        ("names: [a, [b]]\n", "class 1 needs a number and a name"),
        ("names: {x: a}\n", "class x needs a number and a name"),
        ("names: [", "is not YAML"),
        ("[" * 5000, "is not YAML"),
    ):
        text(tmp_path / "data.yaml", content)
        refused(message, names_in, tmp_path / "data.yaml")


def test_invalid_labels_are_reported_and_valid_ones_kept(tmp_path):
    contents = {"good": f"0 {BOX}\n1 {BOX}\n", "empty": "\n", "confidence": f"0 {BOX} 0.9\n1 {BOX}\n",
                "strange": f"9 {BOX}\n0 {BOX}\n", "words": f"cat {BOX}\n", "unknown": f"9 {BOX}\n"}  # fmt: skip
    for name, content in contents.items():
        picture(tmp_path / f"in/images/{name}.png")
        text(tmp_path / f"in/labels/{name}.txt", content)
    picture(tmp_path / "in/images/none.png")
    text(tmp_path / "in/labels/spare.txt", f"0 {BOX}\n")
    (tmp_path / "in/images/damaged.png").write_bytes(b"no picture")
    text(tmp_path / "in/labels/damaged.txt", f"0 {BOX}\n")
    text(tmp_path / "in/classes.txt", "dog\ncat\n")
    rows, left_out, report = built(tmp_path)
    assert set(rows) == {"good:dog", "good:cat", "confidence:dog", "confidence:cat", "strange:dog"}
    assert [name for name, row in rows.items() if row["mask"] is None] == ["confidence:dog"]
    assert left_out.pop(("damaged", "image"))
    assert left_out == {
        ("none", "image"): "no label file has its name",
        ("empty", "image"): "no object",
        (
            "confidence:dog",
            "mask",
        ): "a line of its labels has 5 coordinates; a box has 4, and an outline has 6, 8, 10 ...",
        ("unknown", "image"): "none of its objects has a named class",
        ("words", "image"): "line 1 of its labels does not begin with a class number",
    }
    remarks = {one["id"]: one["text"] for one in report["remarks"]}
    assert remarks["strange"] == "class 9 has no name and is skipped"
    assert remarks["spare.txt"] == "no image has the same name as this label file"
    assert sb.load_dataset(tmp_path / "out").features["label"].names == ["dog", "cat"]
    assert set(built(tmp_path, drop=("cat",))[0]) == {"strange:dog"}
    assert set(built(tmp_path, split="hash")[2]["splits"]) > {"train"}
    assert set(built(tmp_path, classes="image")[0]) == {"good", "confidence", "strange"}


@pytest.mark.parametrize("stored", [False, True])
def test_stored_option_places_labels_on_the_stored_file(tmp_path, stored):
    exif = Image.Exif()
    exif[0x0112] = 6  # the stored image of 10 x 8 is on its side; upright it is 8 x 10, rotated clockwise
    picture(tmp_path / "in/a.jpg", exif)
    text(tmp_path / "in/a.txt", "0 0.05 0.0625 0.1 0.125\n")  # one pixel of 10 x 8 in the top left corner
    text(tmp_path / "in/classes.txt", "dog\n")
    rows, _, report = built(tmp_path, stored=stored)
    mask = mask_in(rows["a:dog"])
    assert mask.shape == (10, 8)
    # in an upright image of 8 columns, 0.1 covers the centre of the first column; stored, the corner moves to the right
    assert np.argwhere(mask).tolist() == ([[0, 7]] if stored else [[0, 0]])
    assert f"drawn on the {'image as stored' if stored else 'upright image'}" in report["remarks"][0]["text"]


def test_missing_parts_error_names_the_option(tmp_path):
    picture(tmp_path / "in/a.png")
    refused("pass --names FILE", built, tmp_path)
    text(tmp_path / "in/classes.txt", "dog\n")
    refused(r"has no label files.*--labels", built, tmp_path)
    refused(r"--labels nowhere is not a folder", built, tmp_path, labels="nowhere")
    text(tmp_path / "none/a.txt", "0\n")
    (tmp_path / "in/a.png").unlink()
    refused("has no readable images", built, tmp_path, labels=str(tmp_path / "none"))
    picture(tmp_path / "in/train/cat/a.png")
    refused(r"has no label files .* run `saliency-bench build folder`", built, tmp_path)
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\0")
    with pytest.raises(UnreadableError, match="cannot be read as text"):
        objects_in(tmp_path / "binary.txt")


@pytest.mark.parametrize("names", ["", "classes.txt"])
def test_pose_datasets_are_rejected(tmp_path, names):
    picture(tmp_path / "in/images/a.png")
    text(tmp_path / "in/labels/a.txt", f"1 {BOX} 0.3 0.4 0.5 0.6\n")  # with two points, eight numbers like an outline
    text(tmp_path / "in/classes.txt", "no\ncat\n")
    given = {"names": str(tmp_path / "in" / names)} if names else {}
    for content in (f"{NAMES}kpt_shape: [17, 3]\n", '{"names": ["no", "cat"], "kpt_shape": [2, 2]}'):
        text(tmp_path / "in/data.yaml", content)
        refused(r"data\.yaml describes poses \(kpt_shape\), whose points are not outlines", built, tmp_path, **given)
    text(tmp_path / "in/data.yaml", f"{NAMES}# kpt_shape: [17, 3]\n")
    text(tmp_path / "in/labels/a.txt", f"1 {BOX}\n")
    assert mask_in(built(tmp_path, **given)[0]["a:cat"]).any()


@pytest.mark.parametrize("line", [
    "0.5 0.5 0.4 0.4 0.4 0.4 1 0.6 0.6 1", "0.5 0.5 0.4 0.4 0.4 0.4 2 0.6 0.6 0",
    "0.5 0.5 0.4 0.4 0.1 0.9 1 0 0 0 0.6 0.6 1 0 0 0",
    "outline 0.1 0.2 0.9 0.1 0.8 0.9 1 0.7 0.5 1", "outline 0 0 1 0 1 1 0 1 0 0", "outline 0 0 0.5 0 1 0 1 1 0 1",
])  # fmt: skip
def test_pose_lines_are_left_out_and_outlines_kept(tmp_path, line):
    picture(tmp_path / "in/images/a.png")
    text(tmp_path / "in/classes.txt", "no\ncat\n")
    text(tmp_path / "in/labels/a.txt", f"1 {line.removeprefix('outline ')}\n")
    rows, left_out, _ = built(tmp_path)
    if line.startswith("outline"):
        assert mask_in(rows["a:cat"]).any()
    else:
        assert "its labels are poses (a box, and keypoints with visibility flags)" in str(left_out)


def test_labels_of_label_studio_uploads_and_cvat_are_read(tmp_path):
    """Test Label Studio's export without images, and CVAT's YOLO 1.1."""
    picture(tmp_path / "in/obj_Train_data/a.png")
    text(tmp_path / "in/obj_Train_data/ab12cd34-a.txt", f"1 {BOX}\n")
    text(tmp_path / "in/obj.names", "no\ncat\n")
    text(tmp_path / "in/obj.data", "classes = 2\n")
    text(tmp_path / "in/train.txt", "data/obj_Train_data/a.png\n")
    rows, left_out, report = built(tmp_path)
    expected = np.zeros((8, 10), bool)
    expected[2:6, 2:6] = True
    np.testing.assert_array_equal(mask_in(rows["obj_Train_data/a:cat"]), expected)
    assert left_out == {("obj.data", "image"): "not an image (.data)"}
    assert [one["id"] for one in report["remarks"]] == ["train.txt"]
