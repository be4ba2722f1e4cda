"""Tests of the papers' datasets for training and evaluation: VOC, COCO, ImageNet, Food-101 and OpenImages animals."""

import json
import pickle
import shutil
from collections import Counter

import datasets
import numpy as np
import pytest
from built_samples import built_by
from PIL import Image
from refusals import refused

import saliency_bench as sb
from saliency_bench import build
from saliency_bench.data.annotations import joined, split_off
from saliency_bench.data.build_report import read_report
from saliency_bench.hub_builders import (
    _coco,
    _examples,
    coco_val,
    food_101,
    imagenet_groups,
    imagenet_val,
    openimages_animals,
    voc_val,
)


def splits_of(samples):
    found: dict = {}
    for name, sample in samples.items():
        found.setdefault(sample["split"], set()).add(name)
    return found


@pytest.fixture
def voc(tmp_path):
    """Write three images for evaluation; the first shows a person and, with fewer pixels, a cat."""
    _examples.write("voc-val", tmp_path, 3, 48)
    values = np.zeros((48, 48), np.uint8)
    values[:11], values[20:30], values[11] = 15, 8, 255
    Image.fromarray(values).save(tmp_path / "VOCdevkit/VOC2012/SegmentationClass/2007_000001.png")
    return tmp_path, values


def test_voc_yields_one_sample_per_class_of_an_image(voc):
    source, values = voc
    samples, _ = built_by(voc_val, source, parts="test")
    assert sorted(samples) == ["2007_000001:cat", "2007_000001:person", "2007_000003:boat", "2007_000005:bus"]
    assert (samples["2007_000001:cat"]["mask"] == (values == 8)).all()
    assert samples["2007_000001:cat"]["labels"] == samples["2007_000001:person"]["labels"] == ["cat", "person"]


def test_voc_yields_one_sample_per_image_and_drops_classes(voc):
    source, values = voc
    samples, _ = built_by(voc_val, source, parts="test", classes="image")
    assert sorted(samples) == ["2007_000001", "2007_000003", "2007_000005"]
    assert samples["2007_000001"]["label"] == "person"
    assert (samples["2007_000001"]["mask"] == (values == 15)).all()
    kept, log = built_by(voc_val, source, parts="test", drop=("cow", "person"))
    assert sorted(kept) == ["2007_000003:boat", "2007_000005:bus"]
    assert log.left_out == [
        {"id": "2007_000001", "what": "image", "reason": "it shows a class listed in `drop` (person)"}
    ]
    refused(r"pottedplants.*pottedplant", built_by, voc_val, source, drop=("pottedplants",))
    refused(r"classes=one .*image", built_by, voc_val, source, classes="one")


def test_voc_trains_on_its_training_list(tmp_path):
    samples, _ = built_by(voc_val, _examples.write("voc-val", tmp_path, 40, 32))
    splits = splits_of(samples)
    names = set((tmp_path / "VOCdevkit/VOC2012/ImageSets/Segmentation/val.txt").read_text().split())
    assert {samples[name]["group"] for name in splits["test"]} == names
    assert 1 <= len(splits["validation"]) < len(splits["train"])
    refused(r"parts=both.*test", built_by, voc_val, tmp_path, parts="both")


def test_voc_2007_builds_masks_from_boxes(tmp_path):
    source = _examples.write("voc-val detection", tmp_path, 4, 48)
    root = source / "VOCdevkit/VOC2007"
    objects = [("cat", 3, 4, 10, 8), ("person", 20, 20, 40, 40), ("cat", 30, 1, 48, 2), ("unicorn", 1, 1, 2, 2)]
    boxes = [f"<object><name>{n}</name><bndbox>{_examples.boxed(box)}</bndbox></object>" for n, *box in objects]
    (root / "Annotations/000001.xml").write_text(f"<annotation>{''.join(boxes)}</annotation>")
    samples, log = built_by(voc_val, source, year=2007, lists="detection")
    assert {samples[name]["group"] for name in splits_of(samples)["test"]} == {"000001", "000003", "000005", "000007"}
    expected = np.zeros((48, 48), bool)
    expected[3:8, 2:10] = expected[0:2, 29:48] = True
    assert (samples["000001:cat"]["mask"] == expected).all()
    assert samples["000001:cat"]["labels"] == ["cat", "person"]
    (remark,) = log.remarks
    assert remark["text"] == "object 'unicorn' is not one of the 20 classes and is left out"
    for folder in (root, source):
        refused(r"VOC2007 is not VOC2012", built_by, voc_val, folder)
    refused(r"year must be 2012 or 2007", built_by, voc_val, source, year=2010)
    for name in ("train", "val"):  # only the archive of the test images
        (root / f"ImageSets/Main/{name}.txt").unlink()
    for number in range(0, 8, 2):
        (root / f"Annotations/00000{number}.xml").unlink()
    samples, log = built_by(voc_val, source, year=2007, lists="detection")
    assert set(splits_of(samples)) == {"test"}
    assert "the list contains no training images" in log.remarks[0]["text"]


def test_coco_merges_objects_of_a_class(tmp_path):
    _examples.write("coco-val", tmp_path, 4, 48)
    samples, log = built_by(coco_val, tmp_path, parts="test")
    assert (len(samples), samples["000000000001:dog"]["labels"]) == (8, ["person", "dog"])
    assert {sample["group"] for sample in samples.values()} == {f"{n:012d}" for n in range(1, 5)}
    assert (samples["000000000001:dog"]["mask"] == _examples.drawn(16, 48)["mask"]).all()
    assert log.left_out == log.remarks == []
    outlines = [[[0, 0, 9, 0, 9, 9, 0, 9]], [[20, 20, 29, 20, 29, 29, 20, 29]]]
    whole = _coco.shown_mask(outlines, (48, 48), samples["000000000001:dog"]["image"])
    assert whole.sum() == 2 * 81


def test_coco_samples_training_images_if_available(tmp_path):
    _examples.write("coco-val", tmp_path, 4, 32)
    samples, log = built_by(coco_val, tmp_path, classes="image", train_images=3)
    splits = splits_of(samples)
    assert splits.pop("test") == {f"{n:012d}" for n in range(1, 5)}
    trained = set().union(*splits.values())
    assert len(trained) == 3
    assert {samples[name]["source_split"] for name in trained} == {"train2017"}
    assert [remark["text"] for remark in log.remarks] == ["1 other training images were not selected"]
    shutil.rmtree(tmp_path / "train2017")
    samples, log = built_by(coco_val, tmp_path)
    assert set(splits_of(samples)) == {"test"}
    assert "the source has no training images" in log.remarks[0]["text"]


def test_coco_builds_from_2014_images(tmp_path):
    _coco.example(tmp_path, 3, 32, "val2014")
    samples, _ = built_by(coco_val, tmp_path, year=2014, classes="image")
    assert {sample["source_split"] for sample in samples.values()} == {"val2014"}
    refused("val2017", built_by, coco_val, tmp_path)
    kept, log = built_by(coco_val, tmp_path, year=2014, drop=["Person"])
    assert not kept
    assert len(log.left_out) == 3


def test_food_101_samples_ten_test_images_of_thirty_classes(tmp_path):
    _examples.write("food-101", tmp_path, 1, 32)
    folder, more = tmp_path / "food-101", [f"pizza/{n}" for n in range(30)]
    for name in more:
        (folder / f"images/{name}.jpg").write_bytes((folder / "images/pizza/1023.jpg").read_bytes())
    with (folder / "meta/test.txt").open("a") as file:
        file.write("\n".join(more) + "\n")
    assert len(food_101.CLASSES) == len(set(food_101.CLASSES)) == 30
    samples, _ = built_by(food_101, tmp_path)
    labels = [sample["label"] for sample in samples.values()]
    assert (labels.count("pizza"), len(labels)) == (10 + 1, 39 + 30)
    splits = splits_of(samples)
    assert len(splits["test"]) == 39
    assert len(splits["train"] | splits["validation"]) == 30
    assert set(samples) != set(built_by(food_101, tmp_path, seed=1)[0])
    (folder / "meta/test.txt").write_text("pizza/1\n")
    refused(r"\bapple_pie\b", built_by, food_101, tmp_path)


def test_imagenet_masks_are_boxes_and_duplicate_names_get_ids(tmp_path):
    _examples.write("imagenet-val", tmp_path / "a", 4, 48)
    table = tmp_path / "a/LOC_val_solution.csv"
    lines = table.read_text().splitlines()
    lines[1] += "n01440764 1 2 4 4 n01443537 39 39 44 44"  # the first class again, and a different class
    table.write_text("\n".join(lines))
    samples, log = built_by(imagenet_val, tmp_path / "a", parts="test")
    names = log.classes["label"]
    assert names[2:] == ["crane (n02012849)", "crane (n03126707)"]
    assert [sample["label"] for sample in samples.values()] == names
    drawn = _examples.drawn(80, 48)["mask"]
    expected = np.outer(drawn.any(1), drawn.any(0))  # the drawn shape has no gaps
    expected[1:4, 0:4] = True
    np.testing.assert_array_equal(samples["ILSVRC2012_val_00000001"]["mask"], expected)
    assert log.left_out == []


@pytest.mark.parametrize("to", ["val", "ILSVRC2012_img_val", ""])
def test_imagenet_devkit_layout_matches_kaggle_layout(tmp_path, to):
    """Test that the layout of image-net.org gives the same samples as Kaggle's layout."""
    kaggle, other = built_by(imagenet_val, _examples.write("imagenet-val", tmp_path / "a", 6, 48))
    _examples.write("imagenet-val devkit", tmp_path / "b", 6, 48)
    (tmp_path / "b" / to).mkdir(exist_ok=True)
    for path in (tmp_path / "b").glob("*.JPEG"):
        path.rename(tmp_path / "b" / to / path.name)
    for path in (tmp_path / "b/val").glob("*.xml"):  # an object of a different class
        box = "<object><name>n00000001</name><bndbox>" + _examples.boxed((1, 1, 48, 48)) + "</bndbox></object>"
        path.write_text(path.read_text().replace("</annotation>", f"{box}</annotation>"))
    samples, log = built_by(imagenet_val, tmp_path / "b")
    assert log.left_out == log.remarks == []
    assert log.classes == other.classes
    assert [sample["wnid"] for sample in samples.values()] == [sample["wnid"] for sample in kaggle.values()]
    for name, sample in samples.items():
        assert (sample["label"], sample["split"]) == (kaggle[name]["label"], kaggle[name]["split"])
        if sample["split"] == "test":
            assert (sample["mask"] == kaggle[name]["mask"]).all()


def test_imagenet_samples_training_images_if_available(tmp_path):
    _examples.write("imagenet-val", tmp_path, 12, 32)
    samples, _ = built_by(imagenet_val, tmp_path, train_per_class=2)
    splits = splits_of(samples)
    assert len(splits.pop("test")) == 12
    trained = [samples[name] for name in set().union(*splits.values())]
    assert set(Counter(sample["label"] for sample in trained).values()) == {2}
    assert {sample["source_split"] for sample in trained} == {"train"}


def test_imagenet_groups_publish_without_images_and_rejoin(tmp_path, monkeypatch):
    """Publish the triplets without images, and join them with the images by file name."""
    monkeypatch.setenv("SALIENCY_BENCH_CACHE", str(tmp_path / "cache"))
    source, samples = tmp_path / "source", {}
    for builder, example in ((imagenet_groups, "imagenet-val devkit"), (imagenet_val, "imagenet-val")):
        shutil.rmtree(source, ignore_errors=True)
        samples[builder] = built_by(builder, _examples.write(example, source, 4, 32))[0]
    triplets = samples[imagenet_groups]
    tench, goldfish = sorted(triplets)[:2]
    assert [triplets[name]["class_group"] for name in sorted(triplets)] == [
        "teleost fish", "teleost fish", "wading bird", "crane + lighter + hard disc + sunglass + pick"
    ]  # fmt: skip
    assert triplets[tench]["group_wnids"] == triplets[goldfish]["group_wnids"]
    assert {"n01440764", "n01443537", "n02640242"} < set(triplets[tench]["group_wnids"])  # with the sturgeon
    for name, triplet in triplets.items():
        assert triplet["wnid"] in triplet["group_wnids"]
        assert samples[imagenet_val][name]["class_group"] == triplet["class_group"]
    folder = build("imagenet-groups", tmp_path / "built", source, progress=False)
    published = split_off(folder, read_report(folder), tmp_path / "published")
    notes = datasets.load_dataset("parquet", data_dir=str(tmp_path / "published"), split="test")
    assert "image" not in notes.column_names
    assert notes.sort("image_id")["class_group"] == [triplets[name]["class_group"] for name in sorted(triplets)]
    whole = sb.load_dataset(str(joined(notes, published, "test", source)), split="test")
    assert whole.features["image"] == datasets.Image()
    groups = {name: triplet["class_group"] for name, triplet in triplets.items()}
    assert dict(zip(whole["image_id"], whole["class_group"], strict=True)) == groups


def test_invalid_imagenet_devkit_is_rejected(tmp_path):
    _examples.write("imagenet-val devkit", tmp_path, 4, 48)
    folder = tmp_path / "ILSVRC2012_devkit_t12/data"
    (folder / "ILSVRC2012_validation_ground_truth.txt").write_text("1\n5\n")
    refused(r"ground_truth\.txt line 2: '5'.*meta\.mat", built_by, imagenet_val, tmp_path)
    (folder / "ILSVRC2012_validation_ground_truth.txt").write_text("1\n2\n")
    samples, log = built_by(imagenet_val, tmp_path, parts="test")
    assert len(samples) == 2
    assert [entry["id"][-1] for entry in log.left_out if entry["what"] == "image"] == ["3", "4"]
    (folder / "meta.mat").write_bytes(pickle.dumps({"synsets": []}))
    refused(r"meta\.mat.*devkit", built_by, imagenet_val, tmp_path)
    (folder / "meta.mat").unlink()
    refused(r"LOC_synset_mapping\.txt.*synset_words\.txt.*meta\.mat", built_by, imagenet_val, tmp_path)


def test_imagenet_reads_class_from_file_name(tmp_path):
    """Read the names of val_images.tar.gz on the Hub."""
    _examples.write("imagenet-val devkit", tmp_path, 4, 48)
    name = "ILSVRC2012_val_00000001"
    (tmp_path / f"{name}.JPEG").rename(tmp_path / f"{name}_n03126707.JPEG")
    assert built_by(imagenet_val, tmp_path)[0][f"{name}_n03126707"]["label"] == "crane (n03126707)"


def test_imagenet_folders_use_bundled_class_names(tmp_path):
    wnids = [f"n{n:08d}" for n in range(1000)]
    for wnid in wnids:
        (tmp_path / "val" / wnid).mkdir(parents=True)
    Image.effect_noise((20, 20), 60).convert("RGB").save(tmp_path / "val/n00000001/a.JPEG")
    samples, log = built_by(imagenet_val, tmp_path)
    assert samples["a"]["label"] == "goldfish"
    assert log.classes["label"][134] == "crane (n00000134)"
    (tmp_path / "val/n00000999").rmdir()
    refused(r"LOC_synset_mapping\.txt", built_by, imagenet_val, tmp_path)


def test_openimages_keeps_images_of_one_animal_category(tmp_path):
    _examples.write("openimages-animals", tmp_path, 6, 48)
    with (tmp_path / "validation-annotations-bbox.csv").open("a") as file:
        file.write("0000000000000000,x,/m/cat,1,0,0.5,0,0.5\n0000000000000002,x,/m/owl,1,7,0.5,0,0.5\n")
    samples, log = built_by(openimages_animals, tmp_path)
    labels = {name[-1]: sample["label"] for name, sample in samples.items()}
    assert labels == {"1": "Cat", "2": "Owl", "3": "Cat", "4": "Owl", "5": "Cat"}
    assert log.left_out == [{"id": "0" * 16, "what": "image", "reason": "animals of several categories"}]
    assert "does not define a box by four numbers" in log.remarks[0]["text"]
    assert {sample["label"] for sample in built_by(openimages_animals, tmp_path, kinds=1)[0].values()} == {"Cat"}
    (tmp_path / "validation-images-with-rotation.csv").unlink()
    splits = splits_of(built_by(openimages_animals, tmp_path, per_class=1)[0])
    assert [len(splits.pop("test")), sum(map(len, splits.values()))] == [2, 3]
    assert len(built_by(openimages_animals, tmp_path, per_class=1, parts="test")[0]) == 2
    box = openimages_animals.union([(0.25, 0.5, 0.75, 1.0)], samples["0" * 15 + "1"]["image"])
    expected = np.zeros((48, 48), bool)
    expected[24:, 12:36] = True
    assert (box == expected).all()


def test_openimages_of_a_photographer_share_a_split(tmp_path):
    _examples.write("openimages-animals", tmp_path, 40, 48)
    listing = tmp_path / "validation-images-with-rotation.csv"
    address = "https://www.flickr.com/people/"
    # Columns of the source; some addresses are empty, and the last image is in no list.
    header = "ImageID,Subset,OriginalURL,OriginalLandingURL,License,AuthorProfileURL,Author,Title,OriginalSize"
    rows = [f'{n:016x},validation,u,l,c,{address}{n // 4}/,"N, N.",t,1' for n in range(38)]
    rows.append(f"{38:016x},validation,u,l,c,,N.N.,t,1")
    listing.write_text("\n".join([header, *rows]) + "\n")
    samples, log = built_by(openimages_animals, tmp_path, per_class=4)
    assert not log.remarks
    expected = {f"{n:016x}": f"{address}{n // 4}/" if n < 38 else None for n in range(40)}
    assert {name: sample["group"] for name, sample in samples.items()} == {name: expected[name] for name in samples}
    parts: dict = {}
    for sample in samples.values():
        parts.setdefault(sample["group"] or sample["image_id"], set()).add(sample["split"])
    assert all(len(splits) == 1 for splits in parts.values())
    assert {name: len(names) for name, names in splits_of(samples).items()}["test"] == 8
    tested = {name for name, sample in samples.items() if sample["split"] == "test"}
    assert tested == set(built_by(openimages_animals, tmp_path, per_class=4, parts="test")[0])
    taken = {expected[name] for name in tested} - {None}
    assert set(samples) == tested | {name for name in expected if expected[name] not in taken}
    listing.unlink()
    samples, log = built_by(openimages_animals, tmp_path, per_class=4)
    assert {sample["group"] for sample in samples.values()} == {None}
    assert tested == {name for name, sample in samples.items() if sample["split"] == "test"}
    assert len(samples) == 40
    assert "validation-images-with-rotation.csv" in log.remarks[0]["id"]


def test_built_voc_has_all_splits_and_labels(tmp_path):
    source = _examples.write("voc-val", tmp_path / "in", 30, 32)
    folder = build("voc-val", tmp_path / "out", source=source, progress=False)
    rows = datasets.load_dataset(str(folder))
    assert list(rows) == ["train", "validation", "test"]
    assert rows["test"].features["labels"].feature.names == rows["test"].features["label"].names
    assert rows["test"][0]["labels"] == [rows["test"][0]["label"]]
    assert (
        "15 % of the training images, selected by a hash of the seed, form the split `validation`"
        in (folder / "README.md").read_text()
    )
    folder = build("voc-val", tmp_path / "only", source=source, progress=False, parts="test", drop="cat,dog")
    assert list(datasets.load_dataset(str(folder))) == ["test"]
    assert json.loads((folder / "build_report.json").read_text())["options"]["drop"] == ["cat", "dog"]
    assert "Every sample is in the split `test`" in (folder / "README.md").read_text()
    assert len(sb.load_dataset(folder)) == len(rows["test"]) - 6  # a tenth of the images shows a cat, a tenth a dog
