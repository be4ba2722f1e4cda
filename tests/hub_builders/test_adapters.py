"""The sets that are for evaluation only: VOC, COCO and ImageNet validation, Food-101, OpenImages animals."""

import pickle
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from saliency_bench import build
from saliency_bench.data.jobs import BuildLog, samples_of
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _examples, coco_val, food_101, imagenet_val, openimages_animals, voc_val

SHARED = Path(__file__).parents[3] / "shared" / "data"


def built(builder, source, **options):
    log = BuildLog()
    return {s["image_id"]: s for s in samples_of(builder.samples(source, log, **options), log)}, log


def test_voc_gives_one_sample_for_each_class_of_an_image(tmp_path):
    _examples.write("voc-val", tmp_path, 3, 48)
    path = tmp_path / "VOCdevkit/VOC2012/SegmentationClass/2007_000001.png"
    values = np.zeros((48, 48), np.uint8)
    values[:10], values[20:30], values[10] = 15, 8, 255
    Image.fromarray(values).save(path)
    samples, _ = built(voc_val, tmp_path)
    assert sorted(samples) == ["2007_000001:cat", "2007_000001:person", "2007_000003:boat", "2007_000005:bus"]
    assert (samples["2007_000001:cat"]["mask"] == (values == 8)).all()
    assert samples["2007_000001:cat"]["classes"] == ["cat", "person"]
    assert "2007_000001:person" not in built(voc_val, tmp_path, imagenet=True)[0]


def test_coco_unites_the_objects_of_a_class(tmp_path):
    _examples.write("coco-val", tmp_path, 4, 48)
    samples, log = built(coco_val, tmp_path)
    assert len(samples) == 8
    assert samples["000000000001:dog"]["classes"] == ["person", "dog"]
    assert (samples["000000000001:dog"]["mask"] == _examples.drawn(16, 48)["mask"]).all()
    assert log.left_out == log.remarks == []
    assert set(built(coco_val, tmp_path, imagenet=True)[0]) == {f"{n:012d}:dog" for n in range(1, 5)}
    whole = coco_val.union(
        [[[0, 0, 9, 0, 9, 9, 0, 9]], [[20, 20, 29, 20, 29, 29, 20, 29]]], samples["000000000001:dog"]["image"]
    )
    assert whole.sum() == 2 * 81


def test_food_has_thirty_classes_and_ten_pictures_of_each(tmp_path):
    _examples.write("food-101", tmp_path, 1, 32)
    folder = tmp_path / "food-101"
    more = [f"pizza/{n}" for n in range(30)]
    for name in more:
        (folder / f"images/{name}.jpg").write_bytes((folder / "images/pizza/1023.jpg").read_bytes())
    with (folder / "meta/test.txt").open("a") as file:
        file.write("\n".join(more) + "\n")
    assert len(food_101.CLASSES) == len(set(food_101.CLASSES)) == 30
    samples, _ = built(food_101, tmp_path)
    labels = [sample["label"] for sample in samples.values()]
    assert (labels.count("pizza"), len(labels)) == (10, 39)
    assert set(samples) != set(built(food_101, tmp_path, seed=1)[0])
    (folder / "meta/test.txt").write_text("pizza/1\n")
    with pytest.raises(UserError, match=r"\bapple_pie\b"):
        built(food_101, tmp_path)


def test_imagenet_boxes_and_names_that_come_twice(tmp_path):
    _examples.write("imagenet-val", tmp_path / "a", 4, 48)
    samples, log = built(imagenet_val, tmp_path / "a")
    names = log.classes["label"]
    assert names[2:] == ["crane (n02012849)", "crane (n03126707)"]
    assert [sample["label"] for sample in samples.values()] == names
    mask = _examples.drawn(80, 48)["mask"]
    found = samples["ILSVRC2012_val_00000001"]["mask"]
    assert (found.any(0) == mask.any(0)).all() or found[mask].all()
    assert log.left_out == []


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real samples are not here")
def test_imagenet_real_samples_with_the_class_in_their_names(tmp_path):
    (tmp_path / "val").symlink_to(SHARED / "imagenet-sample-images")
    for name in ("LOC_synset_mapping.txt", "imagenet_class_index.json"):
        (tmp_path / name).write_bytes((SHARED / "imagenet-hierarchy" / name).read_bytes())
        samples, log = built(imagenet_val, tmp_path)
        assert len(samples) == 60
        assert len(log.classes["label"]) == 1000
        assert sum(sample["image"].suffix == ".png" for sample in samples.values()) == 6  # 5 grey, 1 rotated
        assert len(log.left_out) == 60  # no boxes in this layout
        (tmp_path / name).unlink()


@pytest.mark.parametrize("to", ["val", "ILSVRC2012_img_val", ""])
def test_imagenet_as_image_net_org_packs_it(tmp_path, to):
    """The same samples as from Kaggle's layout, wherever the images lie."""
    kaggle, other = built(imagenet_val, _examples.write("imagenet-val", tmp_path / "a", 6, 48))
    _examples.write("imagenet-val devkit", tmp_path / "b", 6, 48)
    (tmp_path / "b" / to).mkdir(exist_ok=True)
    for path in (tmp_path / "b").glob("*.JPEG"):
        path.rename(tmp_path / "b" / to / path.name)
    samples, log = built(imagenet_val, tmp_path / "b")
    assert log.left_out == log.remarks == []
    assert log.classes == other.classes
    assert [sample["wnid"] for sample in samples.values()] == [sample["wnid"] for sample in kaggle.values()]
    for name, sample in samples.items():
        assert sample["label"] == kaggle[name]["label"]
        assert (sample["mask"] == kaggle[name]["mask"]).all()


def test_imagenet_devkit_that_cannot_be_right(tmp_path):
    _examples.write("imagenet-val devkit", tmp_path, 4, 48)
    folder = tmp_path / "ILSVRC2012_devkit_t12/data"
    (folder / "ILSVRC2012_validation_ground_truth.txt").write_text("1\n5\n")
    with pytest.raises(UserError, match=r"ground_truth\.txt line 2: '5'.*meta\.mat"):
        built(imagenet_val, tmp_path)
    (folder / "ILSVRC2012_validation_ground_truth.txt").write_text("1\n2\n")
    samples, log = built(imagenet_val, tmp_path)
    assert len(samples) == 2
    assert [entry["id"][-1] for entry in log.left_out if entry["what"] == "image"] == ["3", "4"]
    (folder / "meta.mat").write_bytes(pickle.dumps({"synsets": []}))
    with pytest.raises(UserError, match=r"meta\.mat.*devkit"):
        built(imagenet_val, tmp_path)
    (folder / "meta.mat").unlink()
    with pytest.raises(UserError, match=r"LOC_synset_mapping\.txt.*synset_words\.txt.*meta\.mat"):
        built(imagenet_val, tmp_path)


def test_imagenet_with_the_class_at_the_end_of_the_names(tmp_path):
    """val_images.tar.gz of the Hub."""
    _examples.write("imagenet-val devkit", tmp_path, 4, 48)
    (tmp_path / "ILSVRC2012_val_00000001.JPEG").rename(tmp_path / "ILSVRC2012_val_00000001_n03126707.JPEG")
    samples, _ = built(imagenet_val, tmp_path)
    assert samples["ILSVRC2012_val_00000001_n03126707"]["label"] == "crane (n03126707)"


def test_imagenet_folders_alone_get_the_names_of_the_package(tmp_path):
    wnids = [f"n{n:08d}" for n in range(1000)]
    for wnid in wnids:
        (tmp_path / "val" / wnid).mkdir(parents=True)
    Image.effect_noise((20, 20), 60).convert("RGB").save(tmp_path / "val/n00000001/a.JPEG")
    samples, log = built(imagenet_val, tmp_path)
    assert samples["a"]["label"] == "goldfish"
    assert log.classes["label"][134] == "crane (n00000134)"
    (tmp_path / "val/n00000999").rmdir()
    with pytest.raises(UserError, match=r"LOC_synset_mapping\.txt"):
        built(imagenet_val, tmp_path)


def test_openimages_one_kind_of_animal(tmp_path):
    _examples.write("openimages-animals", tmp_path, 6, 48)
    with (tmp_path / "validation-annotations-bbox.csv").open("a") as file:
        file.write("0000000000000000,x,/m/cat,1,0,0.5,0,0.5\n0000000000000002,x,/m/owl,1,7,0.5,0,0.5\n")
    samples, log = built(openimages_animals, tmp_path)
    assert {name[-1]: sample["label"] for name, sample in samples.items()} == {
        "1": "Cat", "2": "Owl", "3": "Cat", "4": "Owl", "5": "Cat"
    }  # fmt: skip
    assert log.left_out == [{"id": "0" * 16, "what": "image", "reason": "animals of several kinds"}]
    assert "no box of four shares" in log.remarks[0]["text"]
    assert {sample["label"] for sample in built(openimages_animals, tmp_path, kinds=1)[0].values()} == {"Cat"}
    assert len(built(openimages_animals, tmp_path, per_class=1)[0]) == 2
    box = openimages_animals.union([(0.25, 0.5, 0.75, 1.0)], samples["0" * 15 + "1"]["image"])
    expected = np.zeros((48, 48), bool)
    expected[24:, 12:36] = True
    assert (box == expected).all()


def test_evaluation_sets_are_one_split(tmp_path):
    folder = build(
        "voc-val", tmp_path / "out", source=_examples.write("voc-val", tmp_path / "in", 15, 32), progress=False
    )
    assert list(datasets.load_dataset(str(folder))) == ["test"]
