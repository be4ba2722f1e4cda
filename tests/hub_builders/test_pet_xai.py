"""Tests of Oxford-IIIT Pet in its raw layout: an irregular entry becomes a sample or is left out with a reason."""

import numpy as np
import pytest
from built_samples import built_by, columns, reasons
from PIL import Image
from refusals import refused

from saliency_bench.hub_builders import pet_xai
from saliency_bench.utils.pictures import Picture

SIZE = (24, 16)  # width, height
XML = "<annotation><object><name>cat</name><bndbox>{}</bndbox></object></annotation>"
BOX = XML.format("<xmin>2</xmin><ymin>3</ymin><xmax>12</xmax><ymax>11</ymax>")
BOMB = '<!DOCTYPE a [<!ENTITY b "bb">]>' + XML.format("<xmin>&b;</xmin>")


def trimap(size=SIZE, foreground=True) -> np.ndarray:
    values = np.full((size[1], size[0]), 2, np.uint8)
    values[3:12, 3:12] = 3
    values[5:10, 5:10] = 1 if foreground else 3
    return values


@pytest.fixture
def source(tmp_path):
    """Write a small source that contains each irregularity once."""
    root = tmp_path / "pets"
    for part in ("images", "annotations/trimaps", "annotations/xmls"):
        (root / part).mkdir(parents=True)
    colour = Image.effect_noise(SIZE, 60).convert("RGB")
    names = {f"Abyssinian_{n}": 1 for n in range(1, 8)} | {"beagle_1": 5} | {f"pug_{n}": 26 for n in (1, 2, 3, 9)}
    for name in [*names, "boxer_1"]:
        colour.save(root / f"images/{name}.jpg", "JPEG")
        Image.fromarray(trimap()).save(root / f"annotations/trimaps/{name}.png")
    colour.convert("P").save(root / "images/Abyssinian_2.jpg", "GIF")
    colour.convert("RGBA").save(root / "images/Abyssinian_3.jpg", "PNG")
    colour.convert("CMYK").save(root / "images/Abyssinian_4.jpg", "JPEG")
    exif = Image.Exif()
    exif[0x0112] = 6
    colour.rotate(90, expand=True).save(root / "images/Abyssinian_5.jpg", "JPEG", exif=exif)
    Image.fromarray(trimap(foreground=False)).save(root / "annotations/trimaps/Abyssinian_6.png")
    Image.fromarray(trimap((10, 14))).save(root / "annotations/trimaps/Abyssinian_7.png")
    (root / "annotations/trimaps/beagle_1.png").unlink()
    (root / "annotations/trimaps/pug_3.png").write_bytes(b"no png")
    whole = (root / "images/pug_1.jpg").read_bytes()
    (root / "images/pug_1.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "images/pug_2.jpg").write_text("<html>404</html>")
    (root / "images/pug_9.jpg").unlink()
    (root / "images/Abyssinian_101.mat").write_bytes(b"MATLAB")
    (root / "images/._Abyssinian_1.jpg").write_bytes(b"\0\5\26\7")
    (root / "images/stray.jpg").write_bytes(whole)
    rows = "".join(f"{name} {number} 1 1\n" for name, number in names.items())
    (root / "annotations/list.txt").write_text("#Image CLASS-ID SPECIES BREED ID\n" + rows)
    (root / "annotations/trainval.txt").write_text("Abyssinian_1 1 1 1\n")
    (root / "annotations/test.txt").write_text("Abyssinian_2 1 1 1\n")
    (root / "annotations/xmls/Abyssinian_1.xml").write_text(BOX)
    (root / "annotations/xmls/Abyssinian_2.xml").write_text(BOMB)
    (root / "annotations/xmls/Abyssinian_3.xml").write_text(XML.format("<xmin>?</xmin>"))
    (root / "annotations/xmls/Abyssinian_4.xml").write_text("<annotation>")
    return root


@pytest.fixture
def built(source):
    return built_by(pet_xai, source)


def test_breeds_are_37_in_alphabetical_order():
    assert (len(pet_xai.BREEDS), sorted(pet_xai.BREEDS, key=str.lower)) == (37, pet_xai.BREEDS)
    assert sum(breed[0].isupper() for breed in pet_xai.BREEDS) == 12  # cats


def test_left_out_images_and_masks_have_reasons(built):
    samples, log = built
    left_out = reasons(log)
    assert list(samples) == sorted(samples)
    assert set(samples) == {f"Abyssinian_{n}" for n in range(1, 8)} | {"beagle_1", "boxer_1", "pug_3"}
    assert left_out.pop(("pug_1", "image")).startswith("damaged image")
    assert left_out == {
        ("._Abyssinian_1.jpg", "image"): "the file name has no image extension",
        ("Abyssinian_101.mat", "image"): "the file name has no image extension",
        (
            "stray",
            "image",
        ): "unknown breed: the image is not in annotations/list.txt, and its name does not begin with a breed",
        ("pug_2", "image"): "not an image",
        ("pug_9", "image"): "the image is listed in annotations/list.txt, but missing from images/",
        ("Abyssinian_6", "mask"): "the trimap has no foreground",
        ("Abyssinian_7", "mask"): "the trimap and the image differ in size",
        ("beagle_1", "mask"): "no trimap",
        ("boxer_1", "mask"): "the image is not in annotations/list.txt",
        ("pug_3", "mask"): "trimap: not an image",
    }
    without = {name for name, sample in samples.items() if sample["mask"] is None}
    assert without == {"Abyssinian_6", "Abyssinian_7", "beagle_1", "boxer_1", "pug_3"}


def test_unusual_images_become_png_and_jpegs_keep_their_bytes(built, source):
    samples, _ = built
    assert samples["Abyssinian_1"]["image"].data == (source / "images/Abyssinian_1.jpg").read_bytes()
    for name in ("Abyssinian_2", "Abyssinian_3", "Abyssinian_4", "Abyssinian_5"):
        picture = samples[name]["image"]
        assert isinstance(picture, Picture)
        assert picture.suffix == ".png"
        assert (picture.width, picture.height) == SIZE  # for Abyssinian_5: upright again
        assert samples[name]["mask"].shape == (SIZE[1], SIZE[0])


def test_columns_match_list_and_head_boxes(built):
    samples, log = built
    rows = columns(samples, "label", "species", "source_split", "head_box")
    assert rows["Abyssinian_1"] == ("Abyssinian", "cat", "trainval", [2, 3, 12, 11])
    assert samples["Abyssinian_2"]["source_split"] == "test"
    assert rows["boxer_1"][:3] == ("boxer", "dog", None)
    assert [samples[f"Abyssinian_{n}"]["head_box"] for n in (2, 3, 4, 5)] == [None] * 4
    assert [remark["id"] for remark in log.remarks] == [f"Abyssinian_{n}" for n in (2, 3, 4, 5)]
    assert "entities" in log.remarks[0]["text"]


def test_border_option_adds_the_border_to_the_mask(source):
    for border, expected in ((False, trimap() == 1), (True, trimap() != 2)):
        assert (built_by(pet_xai, source, border=border)[0]["Abyssinian_1"]["mask"] == expected).all()


def test_list_label_overrides_file_name_and_is_reported(source):
    text = (source / "annotations/list.txt").read_text()
    (source / "annotations/list.txt").write_text(text.replace("Abyssinian_1 1", "Abyssinian_1 6"))
    samples, log = built_by(pet_xai, source)
    assert samples["Abyssinian_1"]["label"] == "Bengal"
    text = "annotations/list.txt lists Bengal, but the file name contains Abyssinian"
    assert log.remarks[0] == {"id": "Abyssinian_1", "text": text}


@pytest.mark.parametrize("row", ["Abyssinian_1", "Abyssinian_1 0 1 1", "Abyssinian_1 38 1 1", "Abyssinian_1 x 1 1"])
def test_invalid_list_row_error_names_its_line(source, row):
    (source / "annotations/list.txt").write_text(f"# head\n{row}\n")
    refused(r"list\.txt line 2", built_by, pet_xai, source)
