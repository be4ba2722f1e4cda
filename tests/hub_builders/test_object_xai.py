"""Tests of PASCAL VOC 2012 in its raw layout."""

from functools import partial

import numpy as np
import pytest
from built_samples import built_by, columns, reasons
from PIL import Image
from refusals import refused

from saliency_bench.hub_builders import object_xai

SIZE = (30, 20)  # width, height


def labelled(*classes) -> np.ndarray:
    values = np.zeros(SIZE[::-1], np.uint8)
    for place, index in enumerate(classes):
        values[4:12, 3 + 8 * place : 9 + 8 * place] = index
    values[3, 3:9] = 255
    return values


def save(values, path):
    image = Image.fromarray(values).convert("P")
    image.putpalette([(37 * n) % 256 for n in range(768)])
    image.paste(Image.fromarray(values))
    image.save(path)


MASKS = {"2007_000001": labelled(1), "2007_000002": labelled(20, 20), "2007_000003": labelled(8, 15),
         "2007_000004": labelled(), "2007_000005": labelled(21), "2007_000006": labelled(3)[:10]}  # fmt: skip


@pytest.fixture
def source(tmp_path):
    root = tmp_path / "VOCdevkit/VOC2012"
    for part in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (root / part).mkdir(parents=True)
    for name, values in MASKS.items():
        Image.effect_noise(SIZE, 50).convert("RGB").save(root / f"JPEGImages/{name}.jpg")
        save(values, root / f"SegmentationClass/{name}.png")
    Image.effect_noise(SIZE, 50).convert("RGB").save(root / "JPEGImages/2008_000007.jpg")
    (root / "ImageSets/Segmentation/train.txt").write_text("2007_000001\n2007_000003\n2007_000004\n2007_000003\n")
    (root / "ImageSets/Segmentation/val.txt").write_text("2007_000002\n../../../etc/passwd\n2008_000007\n2009_000009\n")
    return tmp_path


built = partial(built_by, object_xai)


def test_single_class_images_are_kept_and_others_reported(source):
    samples, log = built(source)
    expected = {"2007_000001": ("aeroplane", "train"), "2007_000002": ("tvmonitor", "val")}
    assert columns(samples, "label", "source_split") == expected
    assert (samples["2007_000001"]["mask"] == (MASKS["2007_000001"] == 1)).all()
    assert not samples["2007_000001"]["mask"][3].any()  # void
    assert {key: reason for (key, _), reason in reasons(log).items()} == {
        "../../../etc/passwd": "its name points outside the source folder",
        "2007_000003": "objects of several classes",
        "2007_000004": "the segmentation contains no object, only background and void",
        "2007_000005": "index 21 in the mask is not one of the 20 classes",
        "2007_000006": "the mask and the image differ in size",
        "2008_000007": "a segmentation list contains the image, but SegmentationClass/ does not",
        "2009_000009": "no such image file",
    }
    assert [remark["id"] for remark in log.remarks] == ["2007_000003"]


def test_augmented_segmentation_reads_png_and_matlab_files(source):
    from scipy.io import savemat

    root = source / "VOCdevkit/VOC2012"
    refused(r"SegmentationClassAug/.*Hariharan", built, source, segmentation="augmented")
    refused(r"original.*augmented", built, source, segmentation="both")
    folder = source / "benchmark_RELEASE/dataset/cls"
    folder.mkdir(parents=True)
    savemat(folder / "2008_000007.mat", {"GTcls": {"Segmentation": labelled(12) % 255, "CategoriesPresent": [12]}})
    savemat(folder / "2007_000001.mat", {"GTcls": {"Segmentation": labelled(2) % 255}})
    (folder / "2007_000005.mat").write_bytes(b"MATLAB 5.0 broken")
    samples, log = built(source, segmentation="augmented")
    assert samples["2008_000007"]["label"] == "dog"
    assert (samples["2008_000007"]["mask"] == (labelled(12) == 12)).all()
    assert samples["2007_000001"]["label"] == "aeroplane"  # VOC's segmentation has priority
    assert any("not a valid MATLAB file" in entry["reason"] for entry in log.left_out)
    (root / "SegmentationClassAug").mkdir()
    Image.fromarray(labelled(6)).save(root / "SegmentationClassAug/2008_000007.png")
    assert built(source, segmentation="augmented")[0]["2008_000007"]["label"] == "bus"
