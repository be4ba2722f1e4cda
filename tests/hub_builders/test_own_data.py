"""Tests of users' images: matching masks to images, recognising the object in a mask, and messages."""

import json

import numpy as np
import pytest
from built_samples import read_back
from commands import said
from PIL import Image
from refusals import refused

import saliency_bench as sb
from saliency_bench.cli import main
from saliency_bench.data.build_report import read_report
from saliency_bench.studies.shown_pictures import shown
from saliency_bench.utils.pictures import AVIF, ENDINGS, FORMATS

BOX = np.zeros((20, 30), bool)
BOX[4:11, 6:20] = True


def picture(path, size=(30, 20)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.effect_noise(size, 60).convert("RGB").save(path)
    return path


def mask(path, values=BOX):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = values if isinstance(values, Image.Image) else Image.fromarray(values)
    image.save(path)


def built(tmp_path, **options):
    return read_back(sb.build("folder", tmp_path / "out", tmp_path / "images", progress=False, **options))[:2]


THREE = BOX * np.uint8(2) + np.eye(20, 30, dtype=np.uint8)


def test_16_bit_image_matches_the_study_page(tmp_path):
    values = np.linspace(30_000, 31_000, BOX.size).reshape(BOX.shape).astype(np.uint16)
    mask(tmp_path / "images/cat/1.png", values)
    mask(tmp_path / "masks/1.png")
    rows, left_out = built(tmp_path, masks=str(tmp_path / "masks"))
    assert left_out == {}
    seen = np.asarray(rows["cat/1"]["image"])
    assert (seen == np.asarray(Image.open(shown((tmp_path / "images/cat/1.png").read_bytes()).path))).all()
    assert (seen.min(), seen.max()) == (0, 255)
    (remark,) = read_report(tmp_path / "out")["remarks"]
    assert remark["text"].startswith("the image has more than 8 bits; its values from percentile 1 to 99")


REFUSED = {
    "more than two values; choose the object with --foreground (0, 1, 2": (THREE, ""),
    "empty mask": (BOX * np.uint8(255), "9"),
    "the sizes must be equal": (np.arange(81, dtype=np.uint8).reshape(9, 9), ""),  # as resized, with soft edges
}


@pytest.mark.parametrize("reason", REFUSED)
def test_unusable_mask_is_left_out_with_a_reason(tmp_path, reason):
    values, foreground = REFUSED[reason]
    picture(tmp_path / "images/cat/1.png")
    mask(tmp_path / "masks/1.png", values)
    rows, left_out = built(tmp_path, masks=str(tmp_path / "masks"), foreground=foreground)
    assert reason in left_out["cat/1", "mask"]
    assert rows["cat/1"]["mask"] is None


def test_unmatched_masks_error_names_the_expected_file(tmp_path):
    picture(tmp_path / "images/cat/1.jpg")
    mask(tmp_path / "masks/1_mask.png")
    words = r"the folder contains 1_mask\.png, but the mask of cat/1\.jpg must be named cat/1\.png or 1\.png"
    refused(words, built, tmp_path, masks=str(tmp_path / "masks"))


NONE = "no mask file has its name"
SEVERAL = "its mask file matches several images"
BLURRED = ("a JPEG mask with blurred values; save masks as PNG, or set a threshold, such as --foreground 128+ "
           "(in Python mask_values=)")  # fmt: skip


@pytest.mark.parametrize(("pictures", "masks", "used", "left_out"), [
    ("cat/1.png dog/1.png cat/2.jpg dog/3.jpg cat/4.jpg cat/5.jpg dog/5.jpg cat/6.jpg",
     "cat/1.png dog/1.png 2.png deep/er/3.png 4.png 4.gif 5.png 6.jpg nobody.png", "cat/1 dog/1 cat/2 dog/3",
     {"cat/4": "several mask files have its name", "cat/5": SEVERAL, "dog/5": SEVERAL, "cat/6": BLURRED,
      "nobody.png": "no image has the same name as this mask file"}),
    ("cat/1.png dog/1.png", "dog/1.png", "dog/1", {"cat/1": NONE}),  # the mask of another class
    ("cat/ka\u0308se.png", "käse.png", "cat/ka\u0308se", {}),  # accents have two spellings
])  # fmt: skip
def test_masks_match_images_by_name(tmp_path, pictures, masks, used, left_out):
    for name in pictures.split():
        picture(tmp_path / "images" / name)
    for name in masks.split():
        mask(tmp_path / "masks" / name)
    rows, reasons = built(tmp_path, masks=str(tmp_path / "masks"))
    assert {name for name, row in rows.items() if row["mask"]} == set(used.split())
    assert reasons == {(name, "mask"): reason for name, reason in left_out.items()}


def test_masks_inside_the_image_folder_are_not_a_class(tmp_path):
    picture(tmp_path / "images/cat/1.png")
    picture(tmp_path / "images/dog/1.png")
    mask(tmp_path / "images/masks/cat/1.png")
    rows, _ = built(tmp_path, masks=str(tmp_path / "images/masks"))
    assert set(rows) == {"cat/1", "dog/1"}
    refused("a separate folder", built, tmp_path, masks=str(tmp_path / "images"), overwrite=True)


def test_split_folders_become_splits_and_loose_images_left_out(tmp_path):
    for name in ("train/cat/1.jpg", "train/dog/2.jpg", "val/cat/3.jpg", "test/dog/4.jpg"):
        picture(tmp_path / "images" / name)
    rows, left_out = built(tmp_path)
    assert read_report(tmp_path / "out")["splits"].keys() == {"train", "validation", "test"}
    assert sb.load_dataset(tmp_path / "out", "validation")[0]["image_id"] == "val/cat/3"
    assert sb.load_dataset(tmp_path / "out").features["label"].names == ["cat", "dog"]
    picture(tmp_path / "images/5.jpg")
    rows, left_out = built(tmp_path, overwrite=True)
    assert left_out == {("5", "image"): "it is not in a class folder"}
    assert len(rows) == 4


def test_hash_option_splits_unsplit_images(tmp_path):
    for number in range(40):
        picture(tmp_path / f"images/cat/{number}.jpg")
    assert read_report(built_folder(tmp_path))["splits"].keys() == {"test"}
    splits = read_report(built_folder(tmp_path, split="hash"))["splits"]
    assert splits.keys() == {"train", "validation", "test"}
    assert splits["train"]["num_examples"] > 20
    assert read_report(built_folder(tmp_path, split="train"))["splits"].keys() == {"train"}


def built_folder(tmp_path, **options):
    return sb.build("folder", tmp_path / "out", tmp_path / "images", progress=False, overwrite=True, **options)


def test_table_provides_labels_splits_and_groups(tmp_path):
    for number in range(6):
        picture(tmp_path / f"images/{number}.jpg")
    (tmp_path / "images/7.heic").write_bytes(b"x")
    table = ("\ufeffFile Name,Class,split,group\n0.jpg,2,train,a\n./1.jpg,10,val,b\n2,2,,\n3.jpg,,,\n9.jpg,2,,\n"
             "2,10,,\n7.heic,2,,\n")  # fmt: skip
    (tmp_path / "labels.csv").write_text(table, encoding="utf-8")
    rows, left_out = built(tmp_path, labels=str(tmp_path / "labels.csv"))
    assert [rows[name]["group"] for name in "012"] == ["a", "b", None]
    report = read_report(tmp_path / "out")
    sizes = {split: part["num_examples"] for split, part in report["splits"].items()}
    assert sizes == {"train": 1, "validation": 1, "test": 1}
    assert sb.load_dataset(tmp_path / "out").features["label"].names == ["2", "10"]
    assert "HEIC" in left_out.pop(("7.heic", "image"))
    assert report["counts"]["found"] == 6 + 1 + 1  # images, the HEIC file, and a name without a file
    assert left_out == {("9.jpg", "image"): "no image matches this row of the table",
                        ("3", "image"): "its row in the table has no label",
                        ("4", "image"): "no valid row in labels.csv",
                        ("5", "image"): "no valid row in labels.csv"}  # fmt: skip
    assert report["remarks"] == [
        {"id": "2", "text": "labels.csv line 7: the image is listed twice; the first row is used"}
    ]


@pytest.mark.parametrize(("options", "words"), [
    ("picture;label\n0.jpg;a\n", r"no column 'image', only picture;label; separate the columns"),  # as --labels
    ("image,kind\n0.jpg,a\n", r"no column 'label', only image, kind"),
    ("image,label\n", "no row with a label"),
    ("image,label,split\n0.jpg,a,evening\n", "line 2: split 'evening' is unknown"),
    ({"masks": "nowhere"}, "--masks nowhere is not a folder"),
    ({"labels": "nowhere.csv"}, r"--labels nowhere\.csv is not a file"),
    ({"foreground": "reddish"}, "foreground=reddish is not valid; use a value from 0 to 65535"),
    ({"foreground": "70000"}, "foreground=70000 is not valid"),
    ({"split": "half"}, "split=half is unknown"),
    ({}, "no class folders, and there is no table of labels"),
    ({"license": "Creative Commons"}, "not a licence identifier; use one such as 'cc-by-4.0'"),
    ({"title": "two\nlines"}, "the name of a dataset must be one line"),
])  # fmt: skip
def test_invalid_sources_and_options_are_rejected(tmp_path, options, words):
    picture(tmp_path / "images/0.jpg")
    if isinstance(options, str):
        (tmp_path / "t.csv").write_text(options)
        options = {"labels": str(tmp_path / "t.csv")}
    refused(words, built, tmp_path, **options)


@pytest.mark.parametrize("names", [("JPEGImages/0.jpg", "SegmentationClass/0.png"), ("train/images/0.jpg",)])
def test_layout_folders_are_not_classes(tmp_path, names):
    for name in names:
        picture(tmp_path / "images" / name)
    refused(f"has a folder named {names[0].split('/')[-2]}, which is usually not a class", built, tmp_path)


def test_command_reports_masks_and_accepts_foreground(tmp_path, capsys):
    for name in ("cat/1.jpg", "dog/2.jpg"):
        picture(tmp_path / "images" / name)
    mask(tmp_path / "masks/1.png", THREE)
    folders = (tmp_path / name for name in ("images", "masks", "out"))
    line = "build folder --images {} --masks {} --out {}".format(*folders).split()
    told = said(capsys, line)
    assert "1 mask: a mask with more than two values; choose the object with --foreground" in told
    assert "1 mask: no mask file has its name" in told
    report = json.loads(said(capsys, [*line, "--foreground", "2", "--overwrite", "--json"]))
    assert report["counts"]["masks"] == 1
    assert report["options"] == {"foreground": "2", "seed": 0, "split": ""}  # no local path
    sb.build("folder", tmp_path / "other", images=tmp_path / "images", masks=str(tmp_path / "masks"), progress=False)


def test_user_dataset_is_named_after_its_folder(tmp_path, monkeypatch):
    from saliency_bench.data.loading import find

    picture(tmp_path / "images/cat/1.jpg")
    built(tmp_path)
    assert find(tmp_path / "out").name == "folder:out"
    assert "folder" not in sb.list_datasets()
    monkeypatch.chdir(tmp_path / "images")
    refused("unknown dataset 'folder'", sb.load_dataset, "folder")


def test_publishing_without_licence_requires_a_name(tmp_path):
    from saliency_bench.publishing.datasets import dataset_publication

    picture(tmp_path / "images/disc/1.png")
    built(tmp_path)
    assert "Licence: not stated." in (tmp_path / "out" / "README.md").read_text()
    assert "title" not in read_report(tmp_path / "out")
    refused("add --name NAME", dataset_publication, tmp_path / "out", "someone", tmp_path / "w")
    sent = dataset_publication(tmp_path / "out", "someone", tmp_path / "w", "cats", "cc-by-4.0")
    assert sent.repo == "someone/cats"


def test_name_and_licence_appear_in_card_report_and_page(tmp_path, resnet, capsys):
    for number in range(4):
        picture(tmp_path / f"images/{('disc', 'ring')[number % 2]}/{number}.png")
    words = ["--images", str(tmp_path / "images"), "--out", str(tmp_path / "out")]
    assert main(["build", "folder", *words, "--name", "Coins of <Rome>", "--license", "cc-by-4.0"]) == 0
    report, card = read_report(tmp_path / "out"), (tmp_path / "out" / "README.md").read_text()
    assert (report["title"], report["license"]) == ("Coins of <Rome>", "cc-by-4.0")
    for line in ("license: cc-by-4.0", "pretty_name: Coins of <Rome>", "# Coins of <Rome>", "Licence: `cc-by-4.0`."):
        assert line in card
    run = sb.run(dataset=tmp_path / "out", model=str(resnet), explainers=["centre"], metrics=["saliency_insertion"],
                 limit=2, device="cpu", progress=False, out=tmp_path / "run")  # fmt: skip
    assert "<em>Coins of &lt;Rome&gt;</em>" in run.report.read_text()


KINDS = {
    "1.jfif": "JPEG", "2.jpe": "JPEG", "3.JPG": "JPEG", "4.Jpeg": "JPEG", "5.jpg_large": "JPEG", "no_ending": "JPEG",
    "6.png": "PNG", "7.apng": "PNG", "8.webp": "WEBP", "9.tif": "TIFF", "10.bmp": "BMP", "11.gif": "GIF",
    "12.ppm": "PPM", "13.jp2": "JPEG2000", "14.pcx": "PCX", "15.sgi": "SGI", "16.qoi": "QOI",
    **({"17.avif": "AVIF"} if AVIF else {}),
}  # fmt: skip
NOT_READ = {
    "a.heic": "pillow-heif", "b.CR2": "rawpy", "c.mp4": "a video", "d.zip": "an archive; unpack it",
    "m.tar.gz": "an archive", "e.txt": "not an image (.txt)", "f.xml": "not an image (.xml)",
    "j.xyz": "not an image (.xyz)", "noise": "not an image (no file extension)", "g.svg": "a vector drawing",
    "h.tga": "an unsupported image format (.tga); convert the file to PNG", "i.jxl": "pillow-jxl-plugin",
    "k.jpg": "not an image", "l.png": "empty file",
}  # fmt: skip
HIDDEN = [".DS_Store", "Thumbs.db", "._1.jpg", "desktop.ini"]


def test_every_file_is_used_or_reported(tmp_path):
    folder = tmp_path / "images/cat"
    folder.mkdir(parents=True)
    noise = Image.effect_noise((30, 20), 60).convert("RGB")
    for name, kind in KINDS.items():
        noise.save(folder / name, format=kind)
    for name in [*NOT_READ, *HIDDEN]:
        (folder / name).write_bytes(b"" if name == "l.png" else b"\x01\x02 no picture")
    (folder / ".git").mkdir()
    noise.save(folder / ".git/1.jpg")
    rows, left_out = built(tmp_path)
    assert set(rows) == {f"cat/{name.partition('.')[0]}" for name in KINDS}
    named = {name.rpartition("/")[2]: why for (name, what), why in left_out.items()}
    by_stem = {name.partition(".")[0] if name in ("k.jpg", "l.png") else name: why for name, why in NOT_READ.items()}
    assert named.keys() == by_stem.keys()
    assert [name for name, why in by_stem.items() if why not in named[name]] == []
    (remark,) = [one for one in read_report(tmp_path / "out")["remarks"] if "hidden" in one["text"]]
    assert remark["text"].startswith("5 hidden files or folders are ignored")


def test_folder_without_images_error_lists_its_files(tmp_path):
    (tmp_path / "images/cat").mkdir(parents=True)
    for name in ("1.heic", "2.HEIC", "3.mp4"):
        (tmp_path / "images/cat" / name).write_bytes(b"\0\0\0\x18ftypheic")
    refused(r"has no readable images \(2 left out: a HEIC image.* pillow-heif", built, tmp_path)


def test_extensions_match_supported_pillow_formats(tmp_path):
    Image.init()
    formats = {ending: name for ending, name in Image.registered_extensions().items() if name in FORMATS}
    assert {*formats, ".mpo"} == set(ENDINGS)


def test_files_beside_the_image_folder_are_reported(tmp_path):
    picture(tmp_path / "in/images/1.png")
    mask(tmp_path / "in/masks/1.png")
    mask(tmp_path / "in/masks/deep/.DS_Store.png")
    (tmp_path / "in/masks/notes.docx").write_text("x")
    (tmp_path / "in/labels.csv").write_text("image,label\n1.png,cat\n")
    (tmp_path / "in/README.md").write_text("x")
    picture(tmp_path / "in/extra/2.png")
    folder = sb.build("folder", tmp_path / "in/out", tmp_path / "in", progress=False)
    first = (folder / "build_report.json").read_bytes()
    left_out = read_back(folder)[1]
    beside = "it is outside the folder of images"
    assert left_out == {("README.md", "image"): beside, ("extra/", "image"): beside,
                        ("notes.docx", "mask"): "not an image (.docx)"}  # fmt: skip
    sb.build("folder", folder, tmp_path / "in", progress=False, overwrite=True)
    assert (folder / "build_report.json").read_bytes() == first


@pytest.mark.parametrize("layout", ["yolo", "coco-json"])
def test_files_beside_annotated_images_are_reported(tmp_path, layout):
    picture(tmp_path / "in/deep/images/1.png")
    for other in ("in/more/2.png", "in/deep/loose.png"):
        picture(tmp_path / other)
    outline = {"id": 1, "image_id": 1, "category_id": 1, "segmentation": [[0, 0, 9, 0, 9, 9]]}
    content = {"images": [{"id": 1, "file_name": "1.png"}], "categories": [{"id": 1, "name": "a"}]}
    (tmp_path / "in/deep/labels").mkdir()
    files = {"yolo": {"classes.txt": "a", "labels/1.txt": "0 0.5 0.5 0.5 0.5", "notes.json": "{}"},
             "coco-json": {"annotations.json": json.dumps(content | {"annotations": [outline]})}}  # fmt: skip
    for name, text in files[layout].items():
        (tmp_path / "in/deep" / name).write_text(text)
    left_out = read_report(sb.build(layout, tmp_path / "out", tmp_path / "in", progress=False))["left_out"]
    named = {"deep/loose.png", "more/"} | ({"deep/labels/"} if layout == "coco-json" else set())
    assert {(one["id"], one["what"]) for one in left_out} == {(name, "image") for name in named}
