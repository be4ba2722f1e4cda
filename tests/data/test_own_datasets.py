"""Tests of users' datasets in all common forms: they give equal numbers, or one line that names what is missing."""

import functools
import re

import datasets
import numpy as np
import PIL.ImageChops
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from commands import said
from PIL import Image
from refusals import refused
from torch import nn

import saliency_bench as sb
from saliency_bench import cli
from saliency_bench.compute.python_objects import describe
from saliency_bench.data import loading
from saliency_bench.data.loading import find
from saliency_bench.errors import UserError
from saliency_bench.read.manifest import read_manifest
from saliency_bench.utils import pictures

NAMES = ["dog", "cat", "cat", "dog", "dog", "cat"]


def drawing(index):
    return np.random.default_rng(index).integers(0, 255, (32, 32, 3), np.uint8)


def object_of(index):
    mask = np.zeros((32, 32), np.uint8)
    mask[4 + index : 20 + index, 6:24] = 255
    return Image.fromarray(mask)


@pytest.fixture(scope="module")
def rows():
    """Return six images with text labels and masks, but without ids."""
    images = [Image.fromarray(drawing(index)) for index in range(len(NAMES))]
    masks = [object_of(index) for index in range(len(NAMES))]
    return datasets.Dataset.from_dict({"image": images, "label": NAMES, "mask": masks})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    model = sb.load_classifier(network, mean=0, std=1, labels=["cat", "dog"])

    def runs(dataset, metrics=("saliency_miou", "saliency_insertion"), **settings):
        return sb.run(dataset=dataset, model=model, explainers=["centre"], metrics=list(metrics), progress=False,
                      out=tmp_path_factory.mktemp("runs") / "run", **settings)  # fmt: skip

    return runs


@pytest.fixture(scope="module")
def expected(rows, run):
    return run(rows)


def picture_folder(folder, rows, column="mask_file_name"):
    """Write an imagefolder of `datasets`: images, and a table with the names of their masks."""
    (folder / "masks").mkdir(parents=True)
    lines = [f"file_name,{column},label"]
    for index, row in enumerate(rows):
        row["image"].save(folder / f"{index}.png")
        row["mask"].save(folder / f"masks/{index}.png")
        lines.append(f"{index}.png,masks/{index}.png,{row['label']}")
    (folder / "metadata.csv").write_text("\n".join(lines))
    return folder


FORMS = {
    "classes": lambda rows, place: rows.class_encode_column("label"),
    "rows picked from others": lambda rows, place: datasets.concatenate_datasets([rows, rows]).select(range(6)),
    "a dict": lambda rows, place: datasets.DatasetDict(train=rows.select([0]), test=rows),
    "a Parquet file": lambda rows, place: (rows.to_parquet(place / "mine.parquet"), place / "mine.parquet")[1],
    "a folder of Parquet files": lambda rows, place: (rows.to_parquet(place / "test-0.parquet"), place)[1],
    "save_to_disk": lambda rows, place: (rows.save_to_disk(place), place)[1],
    "save_to_disk of a dict": lambda rows, place: (datasets.DatasetDict(test=rows).save_to_disk(place), place)[1],
    "pictures with metadata.csv": lambda rows, place: (picture_folder(place / "test", rows), place)[1],
    "with_format torch": lambda rows, place: rows.with_format("torch"),
    "with_format numpy": lambda rows, place: rows.with_format("numpy"),
    "with_format pandas": lambda rows, place: rows.with_format("pandas"),
    "with_format arrow": lambda rows, place: rows.with_format("arrow"),
    "a format of some columns": lambda rows, place: rows.with_format("numpy", columns=["label"]),
    "a transform": lambda rows, place: rows.with_transform(lambda batch: {"pixels": [0] * len(batch["image"])}),
    "a dict with a format": lambda rows, place: datasets.DatasetDict(test=rows).with_format("arrow"),
    "a format, then picked": lambda rows, place: rows.with_format("torch").select(range(6)),
    "by way of pandas": lambda rows, place: datasets.Dataset.from_pandas(rows.to_pandas()),
    "masks as arrays": lambda rows, place: with_masks(rows, [np.asarray(mask) for mask in rows["mask"]]),
    "masks as lists of bool": lambda rows, place: with_masks(
        rows, [(np.asarray(m) > 0).tolist() for m in rows["mask"]]),
    "masks as Array2D": lambda rows, place: with_masks(rows, list(map(np.asarray, rows["mask"])),
                                                       datasets.Array2D((32, 32), "uint8")),
    "masks as large lists": lambda rows, place: with_masks(rows, ones(rows), lists_of(datasets.LargeList)),
    "masks as lists of one length": lambda rows, place: with_masks(rows, ones(rows), lists_of(datasets.List, 32)),
    "masks as arrays of three axes": lambda rows, place: united(with_masks(rows, [[mask] for mask in ones(rows)]),
                                                                r"arrays .* a mask has two axes, \(H, W\); combine"),
    "masks of each object": lambda rows, place: united(
        with_masks(rows, [halves(mask) for mask in rows["mask"]], datasets.List(datasets.Image()))),
}  # fmt: skip


def with_masks(rows, masks, kind=None):
    """Replace the masks of the rows."""
    features = kind and datasets.Features({"image": datasets.Image(), "label": datasets.Value("string"), "mask": kind})
    held = {"image": rows["image"], "label": rows["label"], "mask": masks}
    return datasets.Dataset.from_dict(held, features=features)


def scores(run):
    """Return {(metric, image): score}, because the order of a run depends on the bytes of the images."""
    columns = [run.records()[name] for name in ("metric", "image_id", "value")]
    return {(metric, image): value for metric, image, value in zip(*columns, strict=True)}


def halves(mask):
    """Split objects into an upper and a lower half, each in a separate image."""
    inside, upper = np.asarray(mask), np.zeros((32, 32), np.uint8)
    upper[:12] = 255
    return [Image.fromarray(inside & upper), Image.fromarray(inside & ~upper)]


def ones(rows):
    """Return the masks as lists of 0 and 1."""
    return [(np.asarray(mask) > 0).astype(int).tolist() for mask in rows["mask"]]


def lists_of(kind, *length):
    return kind(kind(datasets.Value("int64"), *length), *length)


def united(rows, words="lists .* a sample has one image; combine"):
    """Merge several masks of a sample as the error message recommends."""
    with pytest.raises(UserError, match=f'the column "mask" contains {words}') as refused:
        find(rows).load("test"), describe({"dataset": rows})
    code = str(refused.value).partition("with dataset")[2].partition(", with axis=-1")[0]
    return eval(f"rows{code}", {"rows": rows, "functools": functools, "PIL": PIL, "numpy": np})


@pytest.mark.sample(3, 5)
@pytest.mark.parametrize("form", FORMS)
def test_every_dataset_form_gives_the_same_scores(form, rows, run, expected, tmp_path):
    found = run(FORMS[form](rows, tmp_path))
    assert scores(found) == scores(expected)
    assert [cell.n for cell in found.cells] == [6, 6]
    assert set(found.records()["image_id"]) == set("012345")
    if "pictures" not in form and "masks" not in form:
        assert found.summary["dataset"]["fingerprint"] == expected.summary["dataset"]["fingerprint"]


@pytest.mark.parametrize(
    ("mask", "words"),
    [([[0, 1], [None, 0]], "pixel must be a number of at most 32 bits"), ([[0, 1], [0]], "must have the same length"),
     ([[0, 2**40]] * 2, "Integer value 1099511627776 not in range"), ([0, 1], r"a mask has two axes, \(H, W\)")],
)  # fmt: skip
def test_invalid_mask_arrays_are_rejected(mask, words, rows, run):
    refused(f'the column "mask" contains arrays .*{words}', run, with_masks(rows, [mask] * 6))


def test_text_labels_become_classes(rows, tmp_path):
    assert sb.load_dataset(rows).features["label"].names == ["cat", "dog"]
    assert sb.load_dataset(rows)["label"] == [1, 0, 0, 1, 1, 0]
    only_dogs = datasets.DatasetDict(train=rows, test=rows.select([0, 3]))
    assert sb.load_dataset(only_dogs)["label"] == [1, 1]  # the classes of all splits are used
    with_none = datasets.Dataset.from_dict({"image": rows["image"], "label": [None, *NAMES[1:]]})
    assert sb.load_dataset(with_none.cast_column("image", datasets.Image()))["label"] == [None, 0, 0, 1, 1, 0]
    refused("unknown label in the dataset 'dog'", loading.with_classes, rows, ["cat", "cow"])


@pytest.mark.parametrize(
    ("asked", "there", "used"),
    [("validation", "val", "val"), ("validation", "valid", "valid"), ("val", "validation", "validation"),
     ("dev", "validation", "validation"), ("train", "Training", "Training"), ("test", "testing", "testing"),
     ("TEST", "test", "test")],
)  # fmt: skip
def test_split_aliases_are_resolved_and_reported(asked, there, used, rows, tmp_path, capsys):
    loading._complain_once.cache_clear()
    splits = datasets.DatasetDict({there: rows.select([0, 1]), "more": rows})
    splits.save_to_disk(tmp_path)
    for data, name in ((splits, "the dataset"), (tmp_path, tmp_path)):
        found, split = find(data).load_usual(asked)
        assert (len(found), split) == (2, used)
        assert f"{name} has no split {asked}, so its split {used} is used" in capsys.readouterr().err


def test_ambiguous_split_alias_is_rejected(rows):
    both = datasets.DatasetDict(val=rows, valid=rows)
    refused("unknown split of the dataset 'validation'", find(both).load_usual, "validation")
    refused("unknown split of the dataset 'test'", find(both).load_usual, "test")


def test_split_folders_are_not_classes(rows, tmp_path, capsys):
    for index, name in enumerate(("train/0.png", "train/1.png", "test/2.png")):
        path = tmp_path / "pictures" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        rows[index]["image"].save(path)
    loading._complain_once.cache_clear()
    assert sb.load_dataset(tmp_path / "pictures", "train").column_names == ["image"]
    assert "has no class folders: test, train are splits" in capsys.readouterr().err
    words = "no class folders in its splits test, train"
    refused(words, sb.build, "folder", tmp_path / "built", tmp_path / "pictures", progress=False)


def test_unwritable_cache_is_reported_and_replaced(rows, tmp_path, monkeypatch, capsys):
    rows.to_parquet(tmp_path / "mine.parquet")
    picture_folder(tmp_path / "pictures", rows)
    (tmp_path / "file").write_text("")
    for blocked, why in ((tmp_path / "file" / "deep", "Not a directory"), (tmp_path / "file", "File exists")):
        loading._complain_once.cache_clear()
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", blocked)
        for data in (tmp_path / "mine.parquet", tmp_path / "pictures"):
            assert list(map(np.array_equal, sb.load_dataset(data)["mask"], rows["mask"])) == [True] * 6
        assert capsys.readouterr().err.count(f"cannot write to the cache folder {blocked}: {why}") == 1


def test_dataset_dict_uses_the_requested_split(rows, run):
    held = datasets.DatasetDict(train=rows.select([0, 1]), test=rows)
    assert (run(held, split="train").cells[0].n, run(held).cells[0].n) == (2, 6)
    refused(r"pass dataset\['test'\]\.select", sb.load_dataset, held, "test[:2]")


def test_16_bit_images_run_and_arrays_are_rejected(rows, run, expected):
    """Test that a run reads the stored 16 bits and does not clip them."""
    deep = [drawing(index)[..., 0].astype(np.uint16) * 200 for index in range(len(NAMES))]
    content, numbers = rows.remove_columns("image").to_dict(), []
    for made, kind in ((Image.fromarray, {}), (Image.fromarray, {"mode": "L"}), (in_window, {})):
        held = datasets.Dataset.from_dict(content | {"image": list(map(made, deep))})
        numbers.append(run(held.cast_column("image", datasets.Image(**kind))).to_pandas()["value"].tolist())
    assert numbers[0] == numbers[1] == numbers[2]
    arrays = datasets.Dataset.from_dict(content | {"image": [drawing(index) for index in range(len(NAMES))]})
    refused(r"column \"image\" .* contains arrays; .*PIL.Image.fromarray", run, arrays)
    made = arrays.map(lambda row: {"image": Image.fromarray(np.asarray(row["image"], "uint8"))})
    made = made.cast_column("image", datasets.Image())
    assert run(made).to_pandas()["value"].tolist() == expected.to_pandas()["value"].tolist()


def in_window(values):
    """Return the images that `build folder` makes of 16 bits."""
    low, high = np.percentile(values, [1, 99])
    return Image.fromarray(np.round(255 * np.clip((values - low) / (high - low), 0, 1)).astype(np.uint8))


@pytest.mark.slow
def test_missing_columns_error_lists_available_columns(rows, run, capsys):
    run(rows)
    line = "the dataset has no column image_id (it has: image, label, mask): samples are identified by their positions"
    assert capsys.readouterr().err.count(line) == 1
    run(rows.add_column("image_id", list("abcdef")))
    assert "no column" not in capsys.readouterr().err
    kinds = rows.rename_column("label", "kind")
    refused(r'no column "label" \(it has: image, mask, kind\); .*--label-column', run,
            kinds.select_columns(["image", "mask", "kind"]))  # fmt: skip
    assert run(kinds, label_column="kind").cells[0].n == 6
    refused('no column "image" with images, only the columns picture, label, mask', run,
            rows.rename_column("image", "picture"))  # fmt: skip
    numbered = rows.remove_columns("label").add_column("label", [1, 0, 0, 1, 1, 0])
    refused(r"has the type int64 and no class names; add names with dataset\.cast_column", run, numbered)


def test_run_without_masks_skips_only_mask_metrics(rows, run, capsys):
    plain = rows.remove_columns("mask").add_column("image_id", list("abcdef"))
    found = run(plain)
    line = "the dataset has no column mask (it has: image, label, image_id): saliency_miou has no scores"
    assert capsys.readouterr().err.count(line) == 1
    without, insertion = found.cells
    assert (without.n, without.value, without.left_out) == (0, None, {"no mask": 6})
    assert (insertion.n, insertion.value is None) == (6, False)
    assert "- (no mask)" in str(found)
    assert "no mask" in (found.folder / "report.html").read_text()
    run(plain, metrics=["saliency_insertion"])
    assert capsys.readouterr().err == ""
    none = plain.add_column("mask", [None] * 6).cast_column("mask", datasets.Image())
    run(none)
    assert "the dataset has no masks: saliency_miou has no scores" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("form", ["bytes", "structs"])
def test_foreign_parquet_file_gives_the_same_scores(form, rows, run, expected, tmp_path):
    encoded = {column: [pictures.png(np.asarray(row[column])) for row in rows] for column in ("image", "mask")}
    if form == "structs":
        encoded = {name: [{"bytes": one, "path": None} for one in held] for name, held in encoded.items()}
        kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
        encoded = {name: pa.array(held, kind) for name, held in encoded.items()}
    pq.write_table(pa.table({**encoded, "label": NAMES}), tmp_path / "mine.parquet")
    assert scores(run(tmp_path / "mine.parquet")) == scores(expected)


def test_training_without_splits_error_suggests_a_hash_split(rows, resnet, tmp_path, capsys):
    for number in range(40):
        folder = tmp_path / "pictures" / NAMES[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(drawing(number)).save(folder / f"{number}.png")
    built = sb.build("folder", tmp_path / "built", tmp_path / "pictures", progress=False)
    again = r"build it again with `saliency-bench build folder \.\.\. --split hash --out NEW`"
    for data in (tmp_path / "pictures", built):
        line = ["train", "--dataset", str(data), "--model", str(resnet), "--out", str(tmp_path / "out")]
        assert re.search(f"has no split.*{again}", said(capsys, line, 2))
    words = r"no split validation, test, which training needs \(it has only train\).*train_test_split"
    held = datasets.DatasetDict(train=rows)
    refused(words, sb.train, dataset=held, model=resnet, out=tmp_path / "out", progress=False)
    split = sb.build("folder", tmp_path / "split", tmp_path / "pictures", split="hash", progress=False)
    every = datasets.DatasetDict({name: sb.load_dataset(split, name) for name in ("train", "validation", "test")})
    for name, data in (("path", split), ("memory", every)):
        assert sb.train(dataset=data, model=resnet, out=tmp_path / name, epochs=1, size=32, progress=False).is_dir()


def test_training_rejects_a_single_split(rows, resnet, tmp_path):
    rows.to_parquet(tmp_path / "mine.parquet")
    rows.save_to_disk(tmp_path / "saved")
    for single in (rows, tmp_path / "mine.parquet", tmp_path / "saved"):
        refused("is a single split, but training needs train, validation, test", sb.train, dataset=single, model=resnet,
                out=tmp_path / "out", epochs=1, size=32, progress=False)  # fmt: skip
        refused("needs the splits train and validation: .* is a single split", sb.run, dataset=single, model=resnet,
                explainers=["random"], metrics=["saliency_roar"], out=tmp_path / "run",
                label_map={"cat": "disc", "dog": "square"}, progress=False)  # fmt: skip


def trimaps(rows):
    """Write masks with 1 for the object, 2 for the background and 3 for a border, like the pets of Oxford."""
    values = []
    for row in rows:
        inside = np.asarray(row["mask"]) > 0
        border = inside & ~np.roll(inside, 1, 0)
        values.append(np.where(border, 3, np.where(inside, 1, 2)).astype(np.uint8))
    return values


def test_three_valued_masks_need_mask_values(rows, run, tmp_path, capsys):
    values = trimaps(rows)
    marked = [{**row, "mask": Image.fromarray(value)} for row, value in zip(rows, values, strict=True)]
    folder = picture_folder(tmp_path / "data" / "test", marked).parent
    reason = "more than two values; choose the object with --foreground (1, 2, 3; in Python mask_values=)"
    told = run(folder)
    miou, insertion = told.cells
    assert (miou.n, miou.left_out, insertion.n) == (0, {f"a mask with {reason}": 6}, 6)
    assert told.summary["faults"] == {f"a mask with {reason}": 6}
    assert reason in str(told)
    refused(r"image 0: a mask with more than two values", run, folder, strict=True)

    runs = []
    for mask_values, inside in ((1, [value == 1 for value in values]), ([3, "1"], [value != 2 for value in values])):
        chosen, plain = (run(folder, mask_values=mask_values),
                         run(with_masks(rows, [Image.fromarray(m) for m in inside])))  # fmt: skip
        assert scores(chosen) == scores(plain)
        assert chosen.summary["masks"]["mean_share"] == pytest.approx(np.mean(inside))
        assert chosen.cells[0].cell_id not in (miou.cell_id, plain.cells[0].cell_id)
        assert chosen.cells[1].cell_id == insertion.cell_id  # insertion needs no masks
        runs.append(chosen)
    pet, with_border = runs
    assert read_manifest(with_border.folder).identity.mask_values == "1 3"
    assert "mask_values=['3', '1']" in with_border.summary["command"]
    refused("foreground=reddish is not valid", run, folder, mask_values="reddish")

    (folder / "test" / "2.png").write_bytes(b"damaged")
    intact, damaged = scores(pet), scores(run(folder, mask_values=1))
    assert len(damaged) == len(intact)
    assert [value == intact[key] for key, value in damaged.items()].count(False) == 2  # one image and two metrics


def test_command_reports_ambiguous_masks(rows, resnet, tmp_path, capsys):
    named = with_masks(rows, [Image.fromarray(value) for value in trimaps(rows)]).remove_columns("label")
    named.to_parquet(tmp_path / "mine.parquet")
    line = ["run", "--dataset", tmp_path / "mine.parquet", "--model", resnet, "--explainers", "centre", "--metrics",
            "saliency_miou", "--target", "predicted", "--device", "cpu", "--out"]  # fmt: skip
    line = list(map(str, line))
    first = said(capsys, [*line, str(tmp_path / "first")], 2)
    assert "6 records were left out, for example: a mask with more than two values" in first
    assert cli.main([*line, str(tmp_path / "second"), "--foreground", "1", "3"]) == 0
    assert "--foreground 1 3" in (tmp_path / "second/report.html").read_text()
    third = said(capsys, [*line, str(tmp_path / "third"), "--foreground", "nothing"], 2)
    assert "(--foreground) foreground=nothing is not valid" in third
    line[2] = str(tmp_path / "her.parquet")
    assert "there is no file" in said(capsys, [*line, "out"], 2)
