"""Tests of EXIF orientations: images and annotations of the stored file are rotated together, for every builder."""

import io
import json
import shutil

import contracts
import numpy as np
import pytest
from built_samples import as_shown, built_by
from PIL import Image, ImageOps

from saliency_bench import registry
from saliency_bench.data.jobs import BuildLog
from saliency_bench.hub_builders import _annotators, _examples
from saliency_bench.utils.pictures import read, turned, turned_box

ORIENTATIONS = range(9)  # 0 occurs in files and means upright
WIDTH, HEIGHT = 40, 24
PICTURES = (".jpg", ".JPEG")


def with_exif(path, orientation):
    """Insert an EXIF segment into a JPEG without changing other bytes."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = exif.tobytes()
    content = content if content.startswith(b"Exif\0\0") else b"Exif\0\0" + content
    segment = b"\xff\xe1" + (len(content) + 2).to_bytes(2, "big") + content
    data = path.read_bytes()
    assert data[:2] == b"\xff\xd8"
    path.unlink()
    path.write_bytes(data[:2] + segment + data[2:])


def iou(mask, other):
    return (mask & other).sum() / (mask | other).sum()


def pixels(picture):
    if isinstance(picture, np.ndarray):
        return picture
    return np.asarray(Image.open(io.BytesIO(picture.data)).convert("RGB"))


def test_invalid_orientation_and_unreadable_exif_mean_upright(tmp_path):
    Image.effect_noise((WIDTH, HEIGHT), 60).convert("RGB").save(tmp_path / "a.jpg")
    data, exif = (tmp_path / "a.jpg").read_bytes(), Image.Exif()
    exif[0x0112] = 9
    for content in (b"Exif\0\0II*\0", b"Exif\0\0no tiff at all", b"Exif\0\0MM\0*\xff\xff\xff\xff", exif.tobytes()):
        segment = b"\xff\xe1" + (len(content) + 2).to_bytes(2, "big") + content
        (tmp_path / "b.jpg").write_bytes(data[:2] + segment + data[2:])
        picture = read(tmp_path / "b.jpg")
        assert (picture.width, picture.height, picture.orientation) == (WIDTH, HEIGHT, 1)
        assert ImageOps.exif_transpose(Image.open(io.BytesIO(picture.data))).size == (WIDTH, HEIGHT)


WITHOUT_MASKS = ("food-101", "imagenet-groups")
EXAMPLES = [name for name in contracts.examples() if name.partition(" ")[0] not in ("disease-xai", "cancer-xai")]


def builder_of(name):
    return registry.load("hub_builders", name.partition(" ")[0])


def samples_in(name, source):
    return built_by(builder_of(name), source, **_examples.options(name))[0]


@pytest.mark.parametrize("orientation", [1, 4, 6])  # none, a mirror and a rotation; below, all for most builders
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "ebam-xai"])
def test_masks_of_every_builder_rotate_with_their_images(example, tmp_path, name, orientation):
    source, before = example(name, 3, 32, samples_in)
    shutil.copytree(source, tmp_path / "source")
    for path in (tmp_path / "source").rglob("*"):
        if path.suffix in PICTURES:
            with_exif(path, orientation)
    after, log = built_by(builder_of(name), tmp_path / "source", **_examples.options(name))
    assert after.keys() == before.keys()
    assert any(sample.get("mask") is not None for sample in before.values()) or name in WITHOUT_MASKS
    for key, sample in after.items():
        assert (pixels(sample["image"]) == as_shown(pixels(before[key]["image"]), orientation)).all()
        mask = before[key].get("mask")
        assert (sample.get("mask") is None) == (mask is None)
        if mask is not None:
            assert iou(sample["mask"], as_shown(mask, orientation) > 0) == 1
    told = {remark["id"] for remark in log.remarks if "turned upright" in remark["text"]}
    assert len(told) == (0 if orientation < 2 else len({id(s["image"]) for s in after.values()}))


def test_pasted_objects_are_upright(example, tmp_path):
    source, _ = example("ebam-xai", 3, 32, samples_in)
    shutil.copytree(source, tmp_path / "source")
    root, builder = tmp_path / "source", builder_of("ebam-xai")
    stored = builder.cutouts_of(root, 1, BuildLog())[0][0]
    picture, mask = builder.cut(stored)
    with_exif(stored.path, 6)
    turned_picture, turned_mask = builder.cut(stored)
    assert (turned_mask == turned(mask, 6)).all()
    assert (turned_picture == turned(picture, 6)).all()


def drawing(path, orientation):
    """Return an image that is not square, and the mask of its object in the stored file."""
    values, mask = np.full((HEIGHT, WIDTH, 3), 40, np.uint8), np.zeros((HEIGHT, WIDTH), bool)
    mask[3:11, 5:30] = True
    values[mask] = (220, 60, 30)
    Image.fromarray(values).save(path, quality=95)
    with_exif(path, orientation)
    return mask


def fits(sample):
    """Check that the mask covers the red pixels of the image, except for JPEG artefacts."""
    return iou(sample["mask"], pixels(sample["image"])[..., 0] > 130)


def put(path, content):
    """Write text, bytes, or an array as an image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, np.ndarray):
        Image.fromarray(np.ascontiguousarray(content, np.uint8)).save(path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def xml_of(size, *corners):
    box = "".join(f"<{k}>{v}</{k}>" for k, v in zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True))
    width, height = size
    return (
        f"<annotation><size><width>{width}</width><height>{height}</height></size>"
        f"<object><name>{{}}</name><bndbox>{box}</bndbox></object></annotation>"
    )


# For 2, 3 and 4 the sizes are equal, so annotations of the upright image and the stored file cannot be distinguished.
@pytest.mark.parametrize(("orientation", "drawn_on"), [
    *((orientation, "stored") for orientation in ORIENTATIONS), *((turn, "upright") for turn in (5, 6, 7, 8)),
    (1, "another"), (6, "another"),
])  # fmt: skip
def test_annotations_follow_the_orientation_of_their_size(tmp_path, orientation, drawn_on):
    """Test annotations in three sizes.

    Annotations with the size of the stored file are rotated. Annotations with the size of the upright image are not
    rotated. Annotations with another size are left out with a reason.
    """
    mask = drawing(tmp_path / "drawing.jpg", orientation)
    values, corners, size = mask * np.uint8(1), [6, 4, 30, 11], (WIDTH, HEIGHT)
    if drawn_on == "upright":
        values = as_shown(values, orientation)
        corners, size = turned_box(corners, orientation, HEIGHT, WIDTH), values.shape[::-1]
    if drawn_on == "another":
        values, size = values[::2, ::2], (WIDTH // 2, HEIGHT // 2)
    picture, boxes = (tmp_path / "drawing.jpg").read_bytes(), xml_of(size, *corners)
    left, top, right, bottom = corners[0] - 1, corners[1] - 1, corners[2], corners[3]
    outline = [left, top, right, top, right, bottom, left, bottom]
    content = {
        "images": [{"id": 1, "file_name": "000000000001.jpg", "width": size[0], "height": size[1]}],
        "categories": [{"id": 1, "name": "person"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "iscrowd": 0, "area": 200.0,
                         "segmentation": [outline]}],
    }  # fmt: skip
    captions = {"images": [], "annotations": [{"image_id": 1, "caption": "a man"}]}
    for path, written in {
        "pets/images/Bengal_1.jpg": picture, "pets/annotations/trimaps/Bengal_1.png": values,
        "pets/annotations/list.txt": "Bengal_1 6 1 1\n", "pets/annotations/xmls/Bengal_1.xml": boxes.format("cat"),
        "voc/JPEGImages/2007_000001.jpg": picture, "voc/SegmentationClass/2007_000001.png": values * 15,
        "voc/ImageSets/Segmentation/val.txt": "2007_000001\n", "boxes/JPEGImages/2007_000001.jpg": picture,
        "boxes/Annotations/2007_000001.xml": boxes.format("person"), "boxes/ImageSets/Main/val.txt": "2007_000001\n",
        "sixray/JPEGImage/P00001.jpg": picture, "sixray/Annotation/P00001.xml": boxes.format("Gun"),
        "sixray/ImageSet/10/train.csv": "name,Gun\nP00001,1\n", "coco/val2017/000000000001.jpg": picture,
        "coco/annotations/instances_val2017.json": json.dumps(content),
        "coco/annotations/captions_val2017.json": json.dumps(captions),
        "imagenet/val/n00000001/ILSVRC2012_val_00000001.JPEG": picture,
        "imagenet/LOC_synset_mapping.txt": "n00000001 thing\n",
        "imagenet/ILSVRC2012_bbox_val_v3/val/ILSVRC2012_val_00000001.xml": boxes.format("n00000001"),
    }.items():  # fmt: skip
        put(tmp_path / path, written)
    runs = {"pet-xai": "pets", "voc-val": "voc", "object-xai": "voc", "security-xai": "sixray", "coco-val": "coco",
            "imagenet-val": "imagenet"}  # fmt: skip
    found = {name: built_by(builder_of(name), tmp_path / folder) for name, folder in runs.items()}
    found["captions"] = built_by(builder_of("gender-xai"), tmp_path / "coco", min_area=0.0, outline=True)
    found["boxes"] = built_by(builder_of("voc-val"), tmp_path / "boxes", lists="detection")
    for name, (samples, log) in found.items():
        masked = [sample for sample in samples.values() if sample["mask"] is not None]
        if drawn_on == "another":
            assert not masked, name
            assert any("and the image differ in size" in entry["reason"] for entry in log.left_out), name
        else:
            assert [fits(sample) for sample in masked] == [1], name
    for samples, column in ((found["pet-xai"][0], "head_box"), (found["security-xai"][0], "objects")):
        sample = next(iter(samples.values()))
        if drawn_on == "another":
            assert not sample[column]
            continue
        left, top, right, bottom = map(int, sample[column] if column == "head_box" else sample[column][0]["box"])
        box = np.zeros_like(sample["mask"])
        box[top - 1 : bottom, left - 1 : right] = True
        assert (box == sample["mask"]).all()


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_mask_has_pixels_that_half_of_annotators_marked(tmp_path, count):
    drawing(tmp_path / "a.jpg", 1)
    picture = read(tmp_path / "a.jpg")
    masks = np.random.default_rng(count).random((count, picture.height, picture.width)) < 0.5
    paths = [tmp_path / f"{number}.png" for number in range(count)]
    for path, mask in zip(paths, masks, strict=True):
        put(path, mask * np.uint8(255))
    found = _annotators.consensus(_annotators.MaskFiles(tuple(paths)), picture)
    assert np.array_equal(found, masks.mean(axis=0) >= 0.5)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_annotator_masks_follow_the_orientation(tmp_path, orientation):
    mask = drawing(tmp_path / "a.jpg", orientation)
    put(tmp_path / "mask.png", mask * np.uint8(255))
    picture, marked = read(tmp_path / "a.jpg"), _annotators.MaskFiles((tmp_path / "mask.png",))
    assert fits({"image": picture, "mask": _annotators.consensus(marked, picture)}) == 1
    put(tmp_path / "mask.png", turned(mask, orientation or 1) * np.uint8(255))
    if orientation not in (2, 3, 4):
        assert fits({"image": picture, "mask": _annotators.consensus(marked, picture)}) == 1
