"""Your own pictures with COCO's JSON: outlines, boxes, names of files, and what is said otherwise."""

import json

import numpy as np
import pytest
from PIL import Image

import saliency_bench as sb
from saliency_bench.cli import main
from saliency_bench.data.build_report import read_report
from saliency_bench.errors import UserError
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


def built(folder, **options):
    out = sb.build("coco-json", folder / "out", json=str(folder / "my.json"), images=folder / "pictures",
                   progress=False, overwrite=True, **options)  # fmt: skip
    report = read_report(out)
    rows = {row["image_id"]: row for row in sb.load_dataset(out)}
    return rows, {(one["id"], one["what"]): one["reason"] for one in report["left_out"]}


def pixels(row):
    return None if row["mask"] is None else int((np.asarray(row["mask"]) > 0).sum())


def test_a_sample_for_each_class_and_where_the_size_is_not_written(tmp_path):
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
    source(tmp_path, objects, size=(40, 20))
    _, left_out = built(tmp_path)
    assert left_out["a:dog", "mask"] == "annotations of another size than its image"


@pytest.mark.parametrize("outline", [[], None])
def test_boxes_for_objects_without_an_outline(tmp_path, outline):
    source(tmp_path, [{"segmentation": outline, "bbox": [4, 4, 16, 8]}])
    rows, left_out = built(tmp_path)
    assert "--boxes" in left_out["a:cat", "mask"]
    rows, left_out = built(tmp_path, boxes=True)
    assert (pixels(rows["a:cat"]), left_out) == (128, {})


def test_pixels_of_a_box():
    assert boxed([1, 2, 2, 1], 4, 5).nonzero()[0].tolist() == [2, 2]
    assert boxed([1, 2, 2, 1], 4, 5).nonzero()[1].tolist() == [1, 2]
    assert not boxed([1.6, 2, 0.8, 9], 4, 5).any()
    for wrong in ([1, 2, 3], [1, 2, 3, "4"], None, [1, 2, 3, float("nan")]):
        with pytest.raises(ValueError, match="four numbers"):
            boxed(wrong, 4, 5)


def test_pictures_are_found_by_the_end_of_their_path(tmp_path):
    content = source(tmp_path, [{"segmentation": OUTLINE}], ("deep/a.jpg", "b.jpg", "c/d.jpg", "e/d.jpg"))
    for place, name in enumerate(("a.jpg", "./b.JPG", "d.jpg", "nowhere.jpg")):
        content["images"][place]["file_name"] = name
    content["annotations"] = [{"id": n, "image_id": n, "category_id": 3, "segmentation": OUTLINE} for n in range(4)]
    (tmp_path / "my.json").write_text(json.dumps(content))
    rows, left_out = built(tmp_path)
    assert set(rows) == {"deep/a:dog", "b:dog"}
    assert left_out == {
        ("d.jpg", "image"): "several pictures of this file_name",
        ("nowhere.jpg", "image"): "no picture of this file_name",
    }


def test_what_is_no_coco_is_one_line_and_json_is_the_file_of_annotations(tmp_path, capsys):
    source(tmp_path, [{"segmentation": OUTLINE}])
    line = ["build", "coco-json", "--json", tmp_path / "my.json", "--images", tmp_path / "pictures"]
    line = [str(word) for word in [*line, "--out", tmp_path / "out"]]
    assert main(line) == 0
    assert "masks     1" in capsys.readouterr().out
    (tmp_path / "my.json").write_text("{}")
    assert main([*line, "--overwrite"]) == 2
    assert 'my.json has no list "categories"; export the annotations again as COCO JSON' in capsys.readouterr().err
    with pytest.raises(UserError, match=r"--json nowhere\.json is not a file"):
        sb.build("coco-json", tmp_path / "other", tmp_path / "pictures", json="nowhere.json")
