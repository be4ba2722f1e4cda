"""Tests of COCO captions and persons in their raw layout, and of the published release."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from built_samples import built_by
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as reference

from saliency_bench.hub_builders import _coco, _release, gender_xai
from saliency_bench.utils.pictures import UnreadableError

REAL = Path(__file__).parents[3] / "shared" / "data" / "coco"
HEIGHT, WIDTH = 24, 32
BOX = [[4, 4, 16, 4, 16, 20, 4, 20]]
PERSON = {"category_id": 1, "iscrowd": 0, "area": 192.0, "segmentation": BOX}


def coco(root, images, split="train2017"):
    """Write COCO files from `images`: {id: (captions, annotations)}."""
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    (root / split).mkdir(exist_ok=True)
    listed = [{"id": key, "file_name": f"{key:012d}.jpg", "height": HEIGHT, "width": WIDTH} for key in images]
    objects = [one | {"image_id": key} for key, (_, found) in images.items() for one in found]
    captions = [{"image_id": key, "caption": text} for key, (texts, _) in images.items() for text in texts]
    common = {"images": listed, "categories": [{"id": 1, "name": "person"}, {"id": 18, "name": "dog"}]}
    (root / f"annotations/instances_{split}.json").write_text(json.dumps(common | {"annotations": objects}))
    (root / f"annotations/captions_{split}.json").write_text(json.dumps(common | {"annotations": captions}))
    for key in images:
        Image.effect_noise((WIDTH, HEIGHT), 70).convert("RGB").save(root / split / f"{key:012d}.jpg")
    return root


built = partial(built_by, gender_xai)


def test_gender_words_match_whole_words_in_any_case():
    captions = {"A man rides a horse": "man", "WOMAN'S hat on a shelf": "woman", "Two Men and a dog": "men",
                "a fireman, a snowman and a mannequin": "", "a man-made lake": "", "Humans, womanly, manly": "",
                "Women/men entrance": "women men", "a man.": "man"}  # fmt: skip
    for caption, words in captions.items():
        assert gender_xai.words_of([caption]) == set(words.split()), caption


def test_images_are_selected_by_captions_and_persons(tmp_path):
    images = {
        1: (["A man walks.", "someone walks"], [PERSON, {"category_id": 18, "area": 9.0}]),
        2: (["a woman", "A WOMAN sits"], [PERSON]),
        3: (["a man", "a woman"], [PERSON]),
        4: (["two men"], [PERSON]),
        5: (["a man"], [PERSON, PERSON]),
        6: (["a man"], [PERSON | {"iscrowd": 1}]),
        7: (["a man"], [PERSON | {"area": 15.0}]),
        8: (["a woman"], []),
        9: (["a dog"], [PERSON]),
        10: (["a man"], [PERSON | {"segmentation": [[1, 2, 3]]}]),
    }
    source = coco(tmp_path, images)
    samples, log = built(source, outline=True)
    assert {int(name): s["label"] for name, s in samples.items()} == {1: "man", 2: "woman", 10: "man"}
    assert [entry["reason"] for entry in log.left_out] == [
        "the captions mention a man and a woman", *["several people"] * 3, "the person is too small",
        "no person is annotated", "a polygon that is not a list of three or more points",
    ]  # fmt: skip
    assert samples["000000000001"]["mask"][5:20, 5:16].all()
    assert samples["000000000001"]["mask_source"] == "outline"
    assert "000000000007" in built(source, min_area=0.0)[0]


def test_drawn_masks_take_precedence_over_the_outline(tmp_path):
    source = coco(tmp_path, {n: (["a man"], [PERSON]) for n in (1, 2, 3)})
    votes = np.zeros((3, HEIGHT, WIDTH), np.uint8)
    votes[0, 2:8, 2:8] = votes[1, 4:10, 2:8] = votes[2, 6:12, 2:8] = 255
    for number, one in enumerate(votes):
        (source / f"masks/person-{number}").mkdir(parents=True)
        Image.fromarray(one).save(source / f"masks/person-{number}/000000000001.png")
    Image.fromarray(votes[0]).save(source / "masks/000000000002.png")
    (samples, log), (outlined, _) = built(source), built(source, outline=True)
    for found, last in ((samples, None), (outlined, "outline")):
        assert (found["000000000001"]["mask"] == ((votes > 0).sum(0) >= 2)).all()
        assert (found["000000000002"]["mask"] == (votes[0] > 0)).all()
        assert [sample["mask_source"] for sample in found.values()] == ["annotators", "annotators", last]
    assert samples["000000000003"]["mask"] is None
    assert log.left_out == [{"id": "000000000003", "what": "mask", "reason": "no mask was drawn"}]


def test_per_class_sampling_is_stable_when_an_image_is_added(tmp_path):
    images = {n: ([("a man", "a woman")[n % 2]], [PERSON]) for n in range(1, 61)}
    fewer = {key: value for key, value in images.items() if key != 7}
    more, log = built(coco(tmp_path / "a", images), per_class=10)
    less, _ = built(coco(tmp_path / "b", fewer), per_class=10)
    labels = [s["label"] for s in more.values()]
    assert (labels.count("man"), labels.count("woman")) == (10, 10)
    assert len(set(more) - set(less)) <= 1
    more_images = "20 other images of this class meet the conditions but were not selected"
    assert [remark["text"] for remark in log.remarks] == [more_images] * 2
    assert set(built(tmp_path / "a", per_class=10, seed=1)[0]) != set(more)


@given(st.lists(st.booleans(), min_size=12, max_size=400))
def test_plain_and_compressed_rle_decode_to_the_mask(pixels):
    mask = np.zeros((12, (len(pixels) + 11) // 12), bool)
    mask.T.flat[: len(pixels)] = pixels
    flat = mask.T.ravel()
    edges = np.flatnonzero(np.diff(np.r_[False, flat])).tolist()
    runs = np.diff([0, *edges, flat.size]).tolist()
    text = reference.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"].decode()
    assert _coco.decompressed(text) == runs
    for counts in (runs, text):
        assert (_coco.mask_of({"size": list(mask.shape), "counts": counts}, *mask.shape) == mask).all()


@pytest.mark.parametrize("wrong", [
    None, "text", [], [[]], [[1, 2, 3, 4, 5]], [[1, 2, 3, 4, 5, 1e12]], [[1, 2, 3, 4, 5, float("nan")]], [["a"] * 6],
    {}, {"size": [HEIGHT, WIDTH], "counts": [10]},
    {"size": [HEIGHT, WIDTH], "counts": [10, -1, HEIGHT * WIDTH - 9]},
    {"size": [HEIGHT, WIDTH], "counts": [HEIGHT * WIDTH + 1]},
    {"size": [HEIGHT, WIDTH], "counts": "oooooooooooo"},
    {"size": [HEIGHT, WIDTH], "counts": "\x00ä"},
    {"size": [WIDTH, HEIGHT], "counts": [HEIGHT * WIDTH]},
])  # fmt: skip
def test_invalid_segmentations_are_rejected(wrong):
    with pytest.raises(UnreadableError):
        _coco.mask_of(wrong, HEIGHT, WIDTH)


def release(root, rows, name="labels.csv"):
    (root / "attention_label").mkdir(parents=True)
    for folder, image in (("men", "a.jpg"), ("women", "b.jpg"), ("women", "c.jpg"), ("cats", "d.jpg")):
        (root / "image" / folder).mkdir(parents=True, exist_ok=True)
        Image.effect_noise((56, 112), 70).convert("RGB").save(root / "image" / folder / image)
    text = "img_idx,attention\n" + "".join(f'{name},"{content}"\n' for name, content in rows)
    (root / "attention_label" / name).write_text(text)
    return root


def test_published_release_is_read(tmp_path):
    attention = np.zeros((224, 224))
    attention[56:112, 112:168] = 1
    soft = json.dumps((attention * 0.4).tolist())
    source = release(tmp_path, [("a.jpg", json.dumps(attention.tolist())), ("b.jpg", soft), ("gone.jpg", "[]")])
    samples, log = built(source)
    assert {name: s["label"] for name, s in samples.items()} == {"a": "man", "b": "woman", "c": "woman"}
    expected = np.zeros((112, 56), bool)
    expected[28:56, 28:42] = True
    assert (samples["a"]["mask"] == expected).all()
    assert samples["a"]["mask_source"] == "annotators"
    assert {(entry["id"], entry["what"]): entry["reason"] for entry in log.left_out} == {
        ("d", "image"): "its folder cats is not a class",
        ("gone", "mask"): "there is no image for this attention label",
        ("b", "mask"): "empty mask",
        ("c", "mask"): "no attention label",
    }


@pytest.mark.parametrize("content", ["no json", "[1, 2]", "[[NaN]]", "[" * 5000])
def test_invalid_attention_label_is_reported(tmp_path, content):
    samples, log = built(release(tmp_path, [("a.jpg", content)]))
    assert samples["a"]["mask"] is None
    assert log.left_out[1]["reason"].startswith("its attention label ")


def test_multi_line_attention_rows_are_read(tmp_path):
    attention = np.zeros((224, 224), int)
    attention[:10] = 255
    broken = json.dumps(attention.tolist()).replace("], [", "],\r\n[")
    source = release(tmp_path, [("c.jpg", broken), ("b.jpg", broken), ("a.jpg", json.dumps(attention.tolist()))])
    samples, _ = built(source)
    assert all(samples[name]["mask"][:5].all() and not samples[name]["mask"][5:].any() for name in "abc")
    assert len(list(_release._rows(source / "attention_label/labels.csv"))) == 3


@pytest.mark.skipif(not REAL.is_dir(), reason="the real samples are not here")
def test_areas_of_real_masks_match_annotations():
    content = json.loads((REAL / "annotations/instances_train2017.json").read_text())
    sizes = {image["id"]: (image["height"], image["width"]) for image in content["images"]}
    crowds, apart = 0, 0
    for one in content["annotations"]:
        height, width = sizes[one["image_id"]]
        area = _coco.mask_of(one["segmentation"], height, width).sum()
        apart += abs(area - one["area"]) > 0.05 * one["area"] + 60
        crowds += one["iscrowd"]
    assert crowds == 8
    assert apart <= 0.01 * len(content["annotations"])  # overlapping parts count twice in the stated area
