"""A user's own dataset in every form that people have: the same numbers, or one line that says what is missing."""

import datasets
import numpy as np
import pytest
from PIL import Image
from torch import nn

import saliency_bench as sb
from saliency_bench import cli
from saliency_bench.data import loading
from saliency_bench.errors import UserError
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
    """Six pictures with labels that are text, masks, and no ids."""
    images = [Image.fromarray(drawing(index)) for index in range(len(NAMES))]
    masks = [object_of(index) for index in range(len(NAMES))]
    return datasets.Dataset.from_dict({"image": images, "label": NAMES, "mask": masks})


@pytest.fixture
def run(tmp_path):
    network = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    model = sb.load_classifier(network, mean=0, std=1, labels=["cat", "dog"])

    def runs(dataset, metrics=("saliency_miou", "saliency_insertion"), **settings):
        out = tmp_path / f"run-{len(list(tmp_path.glob('run-*')))}"
        return sb.run(dataset=dataset, model=model, explainers=["centre"], metrics=list(metrics), out=out,
                      progress=False, **settings)  # fmt: skip

    return runs


def picture_folder(folder, rows, column="mask_file_name"):
    """What `datasets` calls an imagefolder: pictures, and a table that names their masks."""
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
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_numbers(form, rows, run, tmp_path):
    (tmp_path / "data").mkdir()
    expected, found = run(rows), run(FORMS[form](rows, tmp_path / "data"))
    assert [cell.value for cell in found.cells] == [cell.value for cell in expected.cells]
    assert [cell.n for cell in found.cells] == [6, 6]
    assert set(found.records()["image_id"]) == set("012345")
    if "pictures" not in form:
        assert found.summary["dataset"]["fingerprint"] == expected.summary["dataset"]["fingerprint"]


def test_labels_that_are_text_become_classes(rows, tmp_path):
    assert sb.load_dataset(rows).features["label"].names == ["cat", "dog"]
    assert sb.load_dataset(rows)["label"] == [1, 0, 0, 1, 1, 0]
    only_dogs = datasets.DatasetDict(train=rows, test=rows.select([0, 3]))
    assert sb.load_dataset(only_dogs)["label"] == [1, 1]  # the classes are those of all splits
    with_none = datasets.Dataset.from_dict({"image": rows["image"], "label": [None, *NAMES[1:]]})
    assert sb.load_dataset(with_none.cast_column("image", datasets.Image()))["label"] == [None, 0, 0, 1, 1, 0]
    with pytest.raises(UserError, match="unknown label in the dataset 'dog'"):
        loading.with_classes(rows, ["cat", "cow"])


def test_a_split_called_train_stands_in_where_it_is_the_only_one(rows, run, tmp_path, capsys):
    loading._complain_once.cache_clear()
    found = run(datasets.DatasetDict(train=rows))
    assert "the dataset has no split test; its only split, train, is used" in capsys.readouterr().err
    assert found.summary["dataset"]["split"] == "train"
    found = run(picture_folder(tmp_path / "pictures", rows))
    assert "has no split test; its only split, train, is used" in capsys.readouterr().err
    assert set(found.records()["split"]) == {"train"}
    with pytest.raises(UserError, match="unknown split of the dataset 'tset'; did you mean test"):
        run(datasets.DatasetDict(train=rows, test=rows), split="tset")


def test_a_dict_is_that_split_and_no_other(rows, run):
    held = datasets.DatasetDict(train=rows.select([0, 1]), test=rows)
    assert run(held, split="train").cells[0].n == 2
    assert run(held).cells[0].n == 6
    with pytest.raises(UserError, match=r"give dataset\['test'\]\.select"):
        sb.load_dataset(held, "test[:2]")


def test_pictures_of_16_bits_run_and_arrays_say_how_they_become_pictures(rows, run):
    """A run reads what is stored, so that no decoding clips 16 bits."""
    deep = [drawing(index)[..., 0].astype(np.uint16) * 200 for index in range(len(NAMES))]
    content = rows.remove_columns("image").to_dict()
    numbers = [
        run(datasets.Dataset.from_dict(content | {"image": images}).cast_column("image", kind)).to_pandas()["value"]
        for images, kind in (
            ([Image.fromarray(values) for values in deep], datasets.Image()),
            ([Image.fromarray(values) for values in deep], datasets.Image(mode="L")),
            ([in_window(values) for values in deep], datasets.Image()),
        )
    ]
    assert numbers[0].tolist() == numbers[1].tolist() == numbers[2].tolist()
    arrays = datasets.Dataset.from_dict(content | {"image": [drawing(index) for index in range(len(NAMES))]})
    with pytest.raises(UserError, match=r"column image .* holds arrays; .*PIL.Image.fromarray"):
        run(arrays)
    made = arrays.map(lambda row: {"image": Image.fromarray(np.asarray(row["image"], "uint8"))})
    made = made.cast_column("image", datasets.Image())
    assert run(made).to_pandas()["value"].tolist() == run(rows).to_pandas()["value"].tolist()


def in_window(values):
    """Return what `build folder` makes of 16 bits."""
    low, high = np.percentile(values, [1, 99])
    return Image.fromarray(np.round(255 * np.clip((values - low) / (high - low), 0, 1)).astype(np.uint8))


@pytest.mark.slow
def test_columns_that_are_missing_are_named_with_those_there_are(rows, run, capsys):
    run(rows)
    line = "the dataset has no column image_id (it has: image, label, mask): samples are called by their positions"
    assert capsys.readouterr().err.count(line) == 1
    run(rows.add_column("image_id", list("abcdef")))
    assert "no column" not in capsys.readouterr().err
    with pytest.raises(UserError, match=r'no column "label" \(it has: image, mask, kind\); .*--label-column'):
        run(rows.rename_column("label", "kind").select_columns(["image", "mask", "kind"]))
    assert run(rows.rename_column("label", "kind"), label_column="kind").cells[0].n == 6
    with pytest.raises(UserError, match='no column "image" of images; it has: picture, label, mask'):
        run(rows.rename_column("image", "picture"))
    numbered = rows.remove_columns("label").add_column("label", [1, 0, 0, 1, 1, 0])
    with pytest.raises(UserError, match=r"holds int64 without names of classes; give them with dataset\.cast_column"):
        run(numbered)


def test_without_masks_the_other_metrics_run_and_a_line_says_why_there_is_no_number(rows, run, capsys):
    plain = rows.remove_columns("mask").add_column("image_id", list("abcdef"))
    found = run(plain)
    line = "the dataset has no column mask (it has: image, label, image_id): without masks saliency_miou shows -"
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
    assert "the dataset has no masks: without masks saliency_miou shows -" in capsys.readouterr().err


def test_the_command_line_takes_a_parquet_file_and_folders_of_pictures(rows, resnet, tmp_path, capsys):
    named = datasets.Dataset.from_dict({"image": rows["image"], "label": ["disc", "star"] * 3})
    named.cast_column("image", datasets.Image()).to_parquet(tmp_path / "mine.parquet")
    line = ["run", "--dataset", tmp_path / "mine.parquet", "--model", resnet, "--explainers", "centre",
            "--metrics", "saliency_insertion", "saliency_miou", "--target", "predicted",
            "--out", tmp_path / "out"]  # fmt: skip
    assert cli.main(list(map(str, line))) == 0
    shown = capsys.readouterr()
    assert "- (no mask)" in shown.out
    assert "without masks saliency_miou shows -" in shown.err
    assert cli.main([*map(str, line[:2]), str(tmp_path / "her.parquet"), *map(str, line[3:])]) == 2
    assert "there is no file" in capsys.readouterr().err


def test_a_parquet_file_opens_no_file_that_it_names(rows, tmp_path):
    rows[0]["image"].save(tmp_path / "secret.png")
    kind = datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})
    table = datasets.Dataset.from_dict({"image": [str(tmp_path / "secret.png")], "label": ["a"]}, features=kind)
    import pyarrow.parquet as pq

    pq.write_table(table.data.table, tmp_path / "mine.parquet")
    with pytest.raises(UserError, match="are not opened"):
        sb.load_dataset(tmp_path / "mine.parquet")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["bytes", "structs"])
def test_a_parquet_file_that_datasets_has_not_written(form, rows, run, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    encoded = {column: [pictures.png(np.asarray(row[column])) for row in rows] for column in ("image", "mask")}
    if form == "structs":
        encoded = {name: [{"bytes": one, "path": None} for one in held] for name, held in encoded.items()}
        kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
        encoded = {name: pa.array(held, kind) for name, held in encoded.items()}
    pq.write_table(pa.table({**encoded, "label": NAMES}), tmp_path / "mine.parquet")
    assert [cell.value for cell in run(tmp_path / "mine.parquet").cells] == [cell.value for cell in run(rows).cells]


def test_data_without_the_splits_of_a_training_say_what_makes_them(rows, resnet, tmp_path, capsys):
    for number in range(40):
        folder = tmp_path / "pictures" / NAMES[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(drawing(number)).save(folder / f"{number}.png")
    built = sb.build("folder", tmp_path / "built", tmp_path / "pictures", progress=False)
    again = "build it again with saliency-bench build folder ... --split hash --out NEW"
    for data in (tmp_path / "pictures", built):
        assert cli.main(["train", "--dataset", str(data), "--model", str(resnet), "--out", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert "has no split" in error
        assert again in error
    with pytest.raises(UserError, match=r"no split validation, test \(only train\).*train_test_split"):
        sb.train(dataset=datasets.DatasetDict(train=rows), model=resnet, out=tmp_path / "out", progress=False)
    split = sb.build("folder", tmp_path / "split", tmp_path / "pictures", split="hash", progress=False)
    every = datasets.DatasetDict({name: sb.load_dataset(split, name) for name in ("train", "validation", "test")})
    for name, data in (("path", split), ("memory", every)):
        assert sb.train(dataset=data, model=resnet, out=tmp_path / name, epochs=1, size=32, progress=False).is_dir()


def test_one_split_is_not_trained_and_tested_on(rows, resnet, tmp_path):
    rows.to_parquet(tmp_path / "mine.parquet")
    rows.save_to_disk(tmp_path / "saved")
    for single in (rows, tmp_path / "mine.parquet", tmp_path / "saved"):
        with pytest.raises(UserError, match="is one split, and training needs train, validation, test"):
            sb.train(dataset=single, model=resnet, out=tmp_path / "out", epochs=1, size=32, progress=False)
        with pytest.raises(UserError, match=r"needs the splits train and validation: .* is one split"):
            sb.run(dataset=single, model=resnet, explainers=["random"], metrics=["saliency_roar"], out=tmp_path / "run",
                   label_map={"cat": "disc", "dog": "square"}, progress=False)  # fmt: skip
