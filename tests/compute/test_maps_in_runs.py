"""Test precomputed maps of a run (`sb.run(maps={"mine": ...})` and `run --maps`), and maps that a run stores."""

import os
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from commands import said
from PIL import Image
from refusals import refused
from run_order import in_run_order

import saliency_bench as sb
from saliency_bench.board.submission import of_run
from saliency_bench.cli import main
from saliency_bench.compute.maps import map_files
from saliency_bench.compute.maps.map_files import read_maps_of
from saliency_bench.compute.precomputed import explainer_of
from saliency_bench.compute.scoring.inputs import MetricInputs
from saliency_bench.errors import UserError
from saliency_bench.read.stored_maps import SCHEMA, StoredMaps, packed, table_of

COUNT = 6


@pytest.fixture(scope="module")
def dataset(shapes):
    return sb.load_dataset(shapes)


@pytest.fixture(scope="module")
def maps(dataset):
    return np.random.default_rng(0).normal(size=(len(dataset), 32, 32)).astype(np.float32)


@pytest.fixture(scope="module")
def by_id(dataset, maps):
    return dict(zip(dataset["image_id"], maps, strict=True))


@pytest.fixture
def run(shapes, resnet, tmp_path):
    def run(maps, *, name="run", **changes):
        settings = {"dataset": str(shapes), "model": str(resnet), "metrics": ["saliency_miou"], "limit": COUNT,
                    "batch_size": 4, "device": "cpu", "progress": False, "out": tmp_path / name}  # fmt: skip
        return sb.run(**settings | changes, maps=maps)

    return run


def folder_of(path, by_id, write=lambda path, values: np.save(f"{path}.npy", values)):
    path.mkdir()
    for image_id, values in by_id.items():
        write(path / image_id, values)
    return path


def grey(path, values):
    Image.fromarray(values).save(f"{path}.png")


def test_every_map_format_gives_the_same_version(by_id, maps, tmp_path):
    ids = list(by_id)
    np.save(tmp_path / "maps.npy", maps)
    np.savez(tmp_path / "maps.npz", maps)
    torch.save(torch.from_numpy(maps), tmp_path / "maps.pt")
    forms = {
        "array": maps, "tensor": torch.from_numpy(maps), "list": list(maps), "dict": by_id,
        "folder": folder_of(tmp_path / "a", by_id), "npy": tmp_path / "maps.npy", "packed": tmp_path / "maps.npz",
        "npz": folder_of(tmp_path / "b", by_id, lambda path, values: np.savez_compressed(f"{path}.npz", values)),
        "pt": folder_of(tmp_path / "c", by_id, lambda path, values: torch.save(torch.from_numpy(values), f"{path}.pt")),
        "tensors": tmp_path / "maps.pt",
    }  # fmt: skip
    tables = {"rows": pa.list_(pa.list_(pa.float32())), "flat": pa.list_(pa.float64()),
              "fixed": pa.list_(pa.float32(), 32 * 32)}  # fmt: skip
    for name, kind in tables.items():
        rows = [values.tolist() if name == "rows" else values.ravel().tolist() for values in maps]
        table = pa.table({"image_id": ids, "map": pa.array(rows, kind)})
        forms[name] = tmp_path / f"{name}.parquet"
        pq.write_table(table.take(list(range(len(ids)))[::-1]), forms[name])  # in any order
    files, versions = {image_id: f"{image_id}.npy" for image_id in ids}, {}
    for form, given in forms.items():
        source = given if isinstance(given, Path) else map_files.in_memory("mine", given)
        versions[form] = explainer_of("mine", source, files, (32, 32), 0, files).version
    assert len(set(versions.values())) == 1, versions


ONE = {"a": "a.npy"}


def test_maps_are_read_from_any_dense_tensor(tmp_path):
    values = torch.arange(12.0).reshape(2, 2, 3)
    kinds = {
        "of a batch": values[1], "of a graph": (values[1] * values.requires_grad_())[1], "whole": values[1].int(),
        "brain": values[1].bfloat16(), "half": values[1].half(), "double": values[1].double(), "bool": values[1] > 7,
        "unsigned": values[1].to(torch.uint32), "turned": values.permute(1, 2, 0)[..., 1],
        "one row": values[0, :1].expand(2, 3),
        "of a module": torch.nn.Parameter(values[1]), "every other": torch.arange(24.0).reshape(4, 6)[::2, ::2],
    }  # fmt: skip
    for name, tensor in kinds.items():
        (tmp_path / name).mkdir()
        torch.save(tensor, tmp_path / name / "a.pt")
        ((_, found),) = read_maps_of(tmp_path / name, "mine", ONE, (2, 3))
        assert found.dtype == np.float32
        assert np.array_equal(found, tensor.detach().float().numpy())


class Opened:
    def __reduce__(self):
        return os.mkdir, ("opened",)


class OfAKind(torch.Tensor):
    pass


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("content", "words"), [
    (lambda: Opened(), "(it contains posix.mkdir, not one dense tensor of numbers)"),
    (lambda: np.zeros((2, 3)), "it contains numpy"),
    (lambda: {"map": torch.zeros(2, 3)}, "(it contains a dict, not one tensor); save only the maps"),
    (lambda: torch.zeros(2, 3).to_sparse(), "_rebuild_sparse_tensor, not one dense tensor"),
    (lambda: torch.zeros(2, 3).as_subclass(OfAKind), "_rebuild_from_type_v2, not one dense tensor"),
    (lambda: torch.zeros(2, 3, device="meta"), "_rebuild_meta_tensor_no_storage, not one dense tensor"),
    (lambda: torch.quantize_per_tensor(torch.zeros(2, 3), 0.1, 0, torch.qint8), "_rebuild_qtensor, not one dense"),
    (lambda: torch.zeros(2, 3, dtype=torch.complex64), "torch.ComplexFloatStorage, not one dense tensor"),
    (lambda: torch.zeros(2, 3, dtype=torch.complex64).conj().imag, "save maps.resolve_neg().clone()"),
    (lambda: torch.zeros(2, 3, dtype=torch.float8_e4m3fn), "torch.float8_e4m3fn, not one dense tensor"),
    (lambda: torch.zeros(1, 2, 3), "is 1 x 2 x 3, but the prepared images are 2 x 3"),
    (lambda: torch.zeros(1).expand(400_000, 400_000), "is 400000 x 400000, but the prepared images are 2 x 3"),
    (lambda: torch.full((2, 3), torch.nan), "the map contains NaN"),
    (lambda: torch.zeros(2**18 + 1), "but the limit is 1,048,576"),
    *((lambda content=content: content, "is not a zip archive, the format of torch.save")
      for content in (b"", b"PK\x03\x04", b"cos\nsystem\n(S'touch opened'\ntR.")),
])  # fmt: skip
def test_torch_files_with_other_content_are_rejected(content, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "maps").mkdir()
    made, path = content(), tmp_path / "maps" / "a.pt"
    path.write_bytes(made) if isinstance(made, bytes) else torch.save(made, path)
    check_refused(tmp_path, words)


def check_refused(folder, words):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(map_files, "LARGEST_TENSOR", 2**20)
        caught = refused(re.escape(words), dict, read_maps_of(folder / "maps", "mine", ONE, (2, 3)))
    assert "a.pt" in caught
    assert not (folder / "opened").exists()


def repacked(path, change, kind=zipfile.ZIP_STORED, again=()):
    torch.save(torch.zeros(2, 3), path)
    with zipfile.ZipFile(path) as packed:
        members = {name: packed.read(name) for name in packed.namelist()}
    with zipfile.ZipFile(path, "w", kind) as packed:
        for name, content in members.items():
            packed.writestr(name, change(name, content))
            if name.rpartition("/")[2] in again:
                packed.writestr(name, content)


def of_pickle(change):
    return lambda name, content: change(content) if name.endswith("data.pkl") else content


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(("change", "options", "words"), [
    (lambda name, content: content + bytes(2**21) * name.endswith("/0"), {"kind": zipfile.ZIP_DEFLATED},
     "unpack to more than 1,048,576 bytes"),
    (lambda name, content: content, {"again": ("data.pkl",)}, "2 members named 'a/data.pkl'"),
    (lambda name, content: content, {"again": ("0",)}, "2 members named 'a/data/0'"),
    (lambda name, content: content[: 5 if name.endswith("/0") else None], {}, "smaller than its description states"),
    (lambda name, content: b"big" if name.endswith("byteorder") else content, {}, "not little-endian"),
    (of_pickle(lambda content: content + bytes(10**6)), {}, "description has more than 100,000 bytes"),
    (of_pickle(lambda content: b""), {}, "description cannot be read"),
    (of_pickle(lambda content: content[:40]), {}, "description cannot be read"),
    (of_pickle(lambda content: content.replace(b"K\x02K\x03", b"K\xffK\xff", 1)), {}, "smaller than its"),
    (of_pickle(lambda content: content.replace(b"K\x02", b"J\xff\xff\xff\xff", 1)), {}, "header is damaged"),
    (of_pickle(lambda _: b"\x80\x02c__builtin__\nbytearray\nJ\xff\xff\xff\x7f\x85R."), {}, "__builtin__.bytearray"),
    (of_pickle(lambda _: b"\x80\x02Nr\xff\xff\xff\x7f."), {}, "it contains a NoneType"),  # a large memo index
    (of_pickle(lambda _: b"\x80\x02" + b"(" * 90_000 + b"t" * 90_000 + b"."), {}, "more than 100,000 bytes"),
    (of_pickle(lambda _: b"\x80\x02" + b"(" * 40_000 + b"t" * 40_000 + b"."), {}, "it contains a tuple"),
])  # fmt: skip
def test_malformed_torch_archives_are_rejected(change, options, words, tmp_path):
    (tmp_path / "maps").mkdir()
    repacked(tmp_path / "maps" / "a.pt", change, **options)
    check_refused(tmp_path, words)


def test_id_with_slash_is_read_from_subfolder(tmp_path):
    """`build folder` creates ids with a slash."""
    for name in ("cat/1", "dog/1"):
        (tmp_path / name).parent.mkdir()
        np.save(tmp_path / f"{name}.npy", np.full((2, 3), len(name) + ord(name[0])))
    (tmp_path / ".hidden").mkdir()
    np.save(tmp_path / ".hidden" / "x.npy", np.zeros((2, 3)))
    files = {"cat/1": "cat%2F1.npy", "dog/1": "dog%2F1.npy"}
    found = dict(read_maps_of(tmp_path, "mine", files, (2, 3)))
    assert {name: values[0, 0] for name, values in found.items()} == {"cat/1": 104, "dog/1": 105}
    np.save(tmp_path / "cat" / "9.npy", np.zeros((2, 3)))
    refused(r"the name of .*9\.npy is not the id of a known image", dict, read_maps_of(tmp_path, "mine", files, (2, 3)))


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_grey_images_are_read_as_maps(kind, tmp_path):
    values = np.array([[0, 1, 2], [100, 200, np.iinfo(kind).max]], kind)
    ((_, found),) = read_maps_of(folder_of(tmp_path / "grey", {"a": values}, grey), "mine", ONE, (2, 3))
    assert found.dtype == np.float32
    assert np.array_equal(found, values)


def test_run_with_maps_and_explainers_can_be_extended(run, maps):
    first = run({"mine": maps}, limit=3)
    both = run({"mine": maps, "other": -maps}, explainers=["random"], limit=COUNT)
    assert {cell.explainer for cell in both.cells} == {"mine", "other", "random"}
    assert both.cells[0].cell_id == first.cells[0].cell_id
    assert {cell.n for cell in both.cells} == {both.cells[0].n} != {first.cells[0].n}
    assert "Precomputed maps." in both.report.read_text()
    again = run({"mine": maps, "other": -maps}, explainers=["random"], limit=COUNT)
    assert again.summary == both.summary


@pytest.mark.slow
def test_maps_are_required_only_for_used_images(run, dataset, by_id):
    used = in_run_order(dataset)["image_id"][:COUNT]
    run({"mine": {image_id: by_id[image_id] for image_id in used}})
    fewer = {image_id: by_id[image_id] for image_id in used[1:]}
    with pytest.raises(
        UserError, match=rf"maps mine has no map for image {used[0]} \(maps for 1 of 6 images are missing\).*--limit"
    ):
        run({"mine": fewer}, name="other")
    done = run({"mine": fewer}, only=["masked"], name="masked")
    assert done.cells[0].left_out == {"no map was handed in": 1}


@pytest.mark.slow
def test_command_line_accepts_map_folders(run, shapes, resnet, by_id, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder_of(tmp_path / "my maps", by_id)
    common = ["run", "--dataset", str(shapes), "--model", str(resnet), "--metrics", "saliency_miou", "--limit", "6",
              "--batch-size", "4", "--device", "cpu"]  # fmt: skip
    assert main([*common, "--maps", "mine=my maps", "--out", "cli"]) == 0
    assert capsys.readouterr().out.splitlines()[2].startswith("mine ")
    done = run({"mine": "my maps"})
    assert "--maps 'mine=my maps'" in done.summary["command"]
    assert "--explainers" not in done.summary["command"]
    assert of_run(done.folder, "ada").result.cells[0].explainer == "mine"
    full = run({"mine": tmp_path / "my maps"}, name="full", explainers=["centre"])
    assert "--explainers centre" in full.summary["command"]
    assert f"--maps 'mine={tmp_path / 'my maps'}'" in full.summary["command"]
    assert str(tmp_path) not in of_run(full.folder, "ada").result.command


def test_recorded_call_has_placeholder_for_arrays(run, maps, by_id, tmp_path):
    first = run({"mine": maps}, name="both")
    done = run({"theirs": folder_of(tmp_path / "maps", by_id)}, name="both")
    assert {cell.value for cell in done.cells} == {
        first.cells[0].value
    }  # the maps of an array are in the order of rows
    command = done.summary["command"]
    assert "maps={'mine': my_mine_maps, 'theirs': " in command
    assert f"# my_mine_maps: an array of {len(maps)} maps, hash " in command


@pytest.mark.parametrize(("given", "words"), [
    (lambda maps: maps[:-1], r"mine: there are [\d,]+ maps for [\d,]+ samples; .*order of the split, or .*image id"),
    (lambda maps: maps[:, :16], "mine is 16 x 32, but the prepared images are 32 x 32"),
    (lambda maps: maps[0], r"an array \(N, H, W\); got shape \(32, 32\)"),
    (lambda maps: np.where(maps > 3, np.nan, maps), "maps mine, image .* NaN or infinite"),
    (lambda maps: maps.astype(complex), "maps mine: .*real numbers"),
    (lambda maps: None, "maps mine.*got NoneType"),
    (lambda maps: {"nobody": maps[0]}, "maps mine, image nobody: the dataset has no image with this id"),
    (lambda maps: {}, "maps mine contains no map"),
])  # fmt: skip
def test_invalid_map_arrays_are_rejected(given, words, run, maps, tmp_path):
    refused(words, run, {"mine": given(maps)})
    assert not (tmp_path / "run").exists()


COLOUR = np.zeros((2, 3, 3), np.uint8)


@pytest.mark.parametrize(("write", "words"), [
    (lambda path: grey(path, COLOUR), "picture in colour"),
    (lambda path: grey(path, COLOUR[:1, :, 0]), "1 x 3, but"),
    (lambda path: path.with_suffix(".png").write_text("no picture"), "is not a PNG file"),
    (lambda path: np.savez(f"{path}.npz", a=np.ones((2, 3)), b=np.ones((2, 3))), "contains 2 arrays"),
    (lambda path: path.with_suffix(".npz").write_text("PK"), "is not an .npz file"),
    (lambda path: np.savez_compressed(f"{path}.npz", np.zeros(10**7)), "is not an .npz file"),  # unpacks to 80 MB
    (lambda path: np.savez(f"{path}.npz", np.array([{}], object)), "npz"),
    (lambda path: os.mkfifo(f"{path}.npy"), "is not a regular file"),
    (lambda path: os.mkfifo(f"{path}.png"), "is not a regular file"),
    (lambda path: (np.save(f"{path}.npy", COLOUR[..., 0]), grey(path, COLOUR[..., 0])), "occurs twice"),
    (lambda path: np.save(f"{path}x.npy", COLOUR[..., 0]), "ax.npy is not the id of a known image.*such as a.npy"),
])  # fmt: skip
def test_invalid_map_files_are_rejected(write, words, tmp_path):
    (tmp_path / "maps").mkdir()
    write(tmp_path / "maps" / "a")
    refused(words, explainer_of, "mine", tmp_path / "maps", ONE, (2, 3), 0)


def test_special_files_of_maps_are_rejected(run, tmp_path):
    os.mkfifo(tmp_path / "maps.parquet")
    for path in (tmp_path / "maps.parquet", "/dev/zero"):
        refused("is not a regular file", run, {"mine": path})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("entries", "words"), [
    (["nowhere"], "does not name a folder of maps; write NAME=FOLDER"),
    (["mine=nowhere"], "there are no maps at nowhere; use a folder of .npy, .npz, .pt or grey .png files, or one .npy"),
    (["two words=."], "cannot be the name"),
    (["gradcam=."], "gradcam is the name of an explainer"),
    (["mine=.", "mine=."], "two sets of maps are called mine"),
])  # fmt: skip
def test_invalid_maps_arguments_are_rejected_before_loading(entries, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = said(capsys, ["run", "--model", "m/m", "--out", "run", "--maps", *entries], code=2)
    assert words in shown
    assert shown.count("\n") == 1


def test_maps_need_name_and_metric_without_further_maps(run, maps, shapes, resnet, tmp_path):
    refused("saliency_max_sensitivity needs more maps", run, {"mine": maps}, metrics=["saliency_max_sensitivity"])
    refused(
        "a template cannot store the setting maps",
        sb.template,
        str(shapes),
        str(resnet),
        tmp_path / "t",
        maps={"mine": maps},
    )
    for given in (maps, [maps], 5):
        refused(r"maps must be a dict \{name: folder, file or array\}", run, given)


# Maps that a run stores. They equal the explainer's maps. `test_disturbances.py` also compares stored maps.

SETTINGS = {"explainers": ["gradient", "random"], "metrics": ["saliency_miou"], "batch_size": 4, "limit": 22}


def go(out, shapes, resnet, **changes):
    settings = SETTINGS | {"keep_maps": True} | changes
    return sb.run(dataset=str(shapes), model=str(resnet), device="cpu", progress=False, out=out, **settings)


def maps_of(out):
    """Return {explainer: {image id: bytes of the map}}."""
    return {name: {one: values.tobytes() for one, values in maps.items()} for name, maps in sb.load_maps(out).items()}


@pytest.fixture(scope="module")
def done(shapes, resnet, tmp_path_factory):
    return go(tmp_path_factory.mktemp("kept") / "run", shapes, resnet)


def test_stored_maps_match_explainer_within_float16(done, shapes, resnet):
    kept, classifier = sb.load_maps(done), sb.load_classifier(str(resnet), device="cpu")
    assert list(kept) == ["gradient", "random"]
    rows = in_run_order(sb.load_dataset(str(shapes)))
    assert list(kept["gradient"]) == rows["image_id"][:22], "without samples of the last chunk that exceed the limit"
    for start in range(0, 22, 4):  # the batches of the run
        batch = classifier.prepare(rows[start : start + 4])
        target = sb.targets.one_hot(batch.labels, len(classifier.labels))
        maps = sb.load_explainer("gradient")(classifier, batch.images, target).numpy()
        for image_id, own in zip(batch.ids[: 22 - start], maps, strict=False):
            stored = kept["gradient"][image_id]
            assert stored.dtype == np.float32
            np.testing.assert_allclose(stored, own, rtol=2**-11, atol=2**-24 * np.abs(own).max())
    assert np.asarray(kept["random"]).shape == (22, 32, 32)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30, 0.0])
def test_stored_maps_keep_digits_at_any_scale(tmp_path, size):
    maps = [size * np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32), None, np.zeros((3, 5), np.float32)]
    pq.write_table(table_of([4, 5, 6], ["d", "e", "f"], maps), tmp_path / "000001-0.parquet")
    stored = StoredMaps(tmp_path)
    assert list(stored) == ["d", "f"]
    np.testing.assert_allclose(stored["d"], maps[0], rtol=2**-11, atol=2**-24 * size)
    np.testing.assert_array_equal(stored["f"], maps[2])
    assert np.abs(maps[0]).max() / packed(maps[0])[1] < 1 <= 2 * max(np.abs(maps[0]).max() / packed(maps[0])[1], 0.5)
    with pytest.raises(KeyError):
        stored["e"]


def test_keep_maps_can_be_added_without_rescoring(shapes, resnet, done, tmp_path, monkeypatch):
    first = go(tmp_path / "run", shapes, resnet, keep_maps=False)
    refused("--keep-maps", sb.load_maps, first)
    before = (first.folder / "records.parquet").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(MetricInputs, "score", lambda *_: pytest.fail("scored again"))
        again = go(tmp_path / "run", shapes, resnet)
    assert maps_of(again.folder) == maps_of(done.folder)
    assert (again.folder / "records.parquet").read_bytes() == before
    assert not again.complete
    assert go(tmp_path / "run", shapes, resnet).complete
    assert [cell.cell_id for cell in again.cells] == [cell.cell_id for cell in first.cells]


def test_invalid_maps_are_not_stored_and_run_is_complete(shapes, resnet, tmp_path):
    def torn(classifier, images, target):
        maps = images.mean(dim=1)
        maps[0, 0, 0] = float("nan")
        return maps

    first = go(tmp_path / "run", shapes, resnet, explainers=[torn])
    assert len(sb.load_maps(first)["torn"]) == 22 - 6
    assert go(tmp_path / "run", shapes, resnet, explainers=[torn]).complete


def test_stored_maps_get_the_same_scores_again(done, shapes, resnet, tmp_path):
    """Pass the maps as a folder and as loaded arrays."""
    folder = done.folder / "maps" / done.cells[0].explainer_id
    line = f"run --dataset {shapes} --model {resnet} --maps mine={folder} --metrics saliency_miou --device cpu"
    line += f" --batch-size 4 --limit 22 --out {tmp_path / 'file'}"
    assert main(line.split()) == 0
    own = go(tmp_path / "own", shapes, resnet, explainers=[], maps={"mine": sb.load_maps(done)["gradient"]})
    values = [cell.value for run in (tmp_path / "file", tmp_path / "own") for cell in sb.load_run(run).cells]
    assert values == pytest.approx([done.cells[0].value] * 2, abs=2e-3)
    assert values[0] == values[1]
    assert list(sb.load_maps(own)) == ["mine"]


def test_unknown_stored_maps_suggest_nearest_name(done, tmp_path):
    assert "--keep-maps" in done.summary["command"]
    refused("'gradient2'; did you mean gradient", sb.load_maps(done).__getitem__, "gradient2")
    refused("not the folder of a finished run", sb.load_maps, tmp_path)


def test_damaged_map_file_is_reported_and_rebuilt(done, shapes, resnet, tmp_path):
    folder = shutil.copytree(done.folder, tmp_path / "run")
    path = next(folder.glob("maps/*/*.parquet"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    refused(f"{path.name} is damaged; start the run again", lambda: [
        np.asarray(maps) for maps in sb.load_maps(folder).values()])  # fmt: skip
    path.write_bytes(bytes(content[:-100]) + bytes(100))
    go(folder, shapes, resnet)
    assert maps_of(folder) == maps_of(done.folder)


def column(name, *values):
    """Return a function that damages a file of maps by replacing the values of one column."""
    kind = None if isinstance(values[0], str) else SCHEMA.field(name).type

    def spoil(path):
        table = pq.read_table(path)
        array = pa.array([values[0]] * len(table), kind)
        pq.write_table(table.set_column(SCHEMA.get_field_index(name), name, array), path)

    return spoil


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def gigabytes(path):
    """Write a file of a few kilobytes that expands to more numbers than the reader accepts."""
    rows = pa.ListArray.from_arrays([0, 3 * 10**6], pa.array(np.zeros(3 * 10**6, np.float16)))
    maps = pa.ListArray.from_arrays([0, 1], rows)
    pq.write_table(pq.read_table(path).slice(0, 1).set_column(3, "map", maps), path, compression="zstd")


def long_ids(path):
    """Write a file of a few kilobytes that expands to a gigabyte of text."""
    texts = pa.DictionaryArray.from_arrays(np.zeros(10**6, np.int32), ["x" * 1000])
    others = {name: pa.nulls(10**6, SCHEMA.field(name).type) for name in ("position", "scale", "map")}
    pq.write_table(pa.table(others | {"image_id": texts}), path, compression="zstd", store_schema=False)


@pytest.mark.parametrize(("spoil", "words"), [
    (column("map", [[1, 2, 3], [1, 2]]), "is not an array"), (column("map", []), "is not an array"),
    (column("map", "text"), "column map is not"),
    (column("scale", "text"), "column scale is not"), (pipe, "not a regular file"),
    (gigabytes, "more than the limit"), (long_ids, "its strings take up"),
])  # fmt: skip
def test_malformed_stored_maps_are_rejected(tmp_path, monkeypatch, spoil, words):
    monkeypatch.setattr("saliency_bench.read.records.MOST_NUMBERS", 3 * 10**6)
    pq.write_table(table_of([0, 1], ["a", "b"], [np.ones((2, 3), np.float32)] * 2), tmp_path / "0.parquet")
    spoil(tmp_path / "0.parquet")
    refused(words, np.asarray, StoredMaps(tmp_path))
