"""Tests of untrusted datasets: no local file is opened, no code is executed, and each error is one line."""

import io
import json
import pickle
import shutil
import tarfile
import zipfile

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from refusals import refused

import saliency_bench as sb
from saliency_bench.data.build_report import REPORT, read_report
from saliency_bench.data.loading import find
from saliency_bench.data.untrusted_reports import options_of
from saliency_bench.publishing.datasets import dataset_publication

FEATURES = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"]),
                              "mask": datasets.Image()})  # fmt: skip


def picture(side=8):
    buffer = io.BytesIO()
    Image.new("RGB", (side, side)).save(buffer, "png")
    return {"bytes": buffer.getvalue(), "path": None}


def write(folder, rows, name="test.parquet", features=FEATURES):
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows, schema=features.arrow_schema)
    pq.write_table(table, folder / name)
    return folder


def row(image=None, mask=None):
    return {"image": image or picture(), "label": 0, "mask": mask}


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret.png"
    Image.new("RGB", (8, 8), "red").save(path)
    return path


@pytest.mark.parametrize("column", ["image", "mask"])
def test_rows_referring_to_local_files_are_rejected(tmp_path, secret, column):
    inside = tmp_path / "set"
    aims = [str(secret), "../secret.png", f"file://{secret}", "/etc/passwd", "http://127.0.0.1:9/x.png", "a\0b"]
    for number, aim in enumerate(aims):
        folder = write(inside / str(number), [row(), row(**{column: {"bytes": None, "path": aim}})])
        for data in (folder, folder / "test.parquet"):
            refused(f"refers to the file .* as its {column}.*are not opened", sb.load_dataset, data)
    (inside / "own").mkdir()
    (inside / "own" / "link.png").symlink_to(secret)
    shutil.copy(secret, inside / "own" / "own.png")
    link = {"bytes": None, "path": str(inside / "own" / "link.png")}
    refused(r"link\.png", sb.load_dataset, write(inside / "own", [row(**{column: link})]))
    (inside / "own" / "link.png").unlink()
    own = {"bytes": None, "path": str(inside / "own" / "own.png")}
    for path in (inside / "own").glob("*.parquet"):
        path.unlink()
    rows = sb.load_dataset(write(inside / "own", [row(**{column: own})], "own-test.parquet"))
    assert rows[0][column].size == (8, 8)


def test_nested_images_referring_to_local_files_are_rejected(tmp_path, secret):
    features = datasets.Features({**FEATURES, "more": datasets.List({"deep": datasets.Image()})})
    bad = row() | {"more": [{"deep": picture()}, {"deep": {"bytes": None, "path": str(secret)}}]}
    folder = write(tmp_path / "set", [bad], features=features)
    refused(r"refers to the file .*secret\.png as its more", sb.load_dataset, folder)


def test_card_referring_to_outside_files_is_rejected(tmp_path, secret):
    pq.write_table(pa.Table.from_pylist([row()], schema=FEATURES.arrow_schema), tmp_path / "other.parquet")
    for number, pattern in enumerate(("../other.parquet", str(tmp_path / "other.parquet"), "sub/../../other.parquet")):
        folder = tmp_path / f"set{number}"
        (folder / "sub").mkdir(parents=True)
        text = f"---\nconfigs:\n- config_name: default\n  data_files:\n  - split: test\n    path: {pattern}\n---\n"
        (folder / "README.md").write_text(text)
        refused(r"refers to .*other\.parquet, which is outside", sb.load_dataset, folder)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "test.parquet").symlink_to(tmp_path / "other.parquet")
    refused("is outside", sb.load_dataset, tmp_path / "linked")


def test_hostile_yaml_is_rejected(tmp_path):
    folder, bomb = write(tmp_path / "set", [row()]), "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    cards = {
        r"the alias \*a0": f"---\n{bomb}---\n",
        r"it has the alias \*a0": f"---\na: 1\n---x: 2\n{bomb}---\n",  # not where the YAML ends
        "out of range|must be in": "---\nday: 2001-99-99\n---\n",
        "cannot be read": "---\na: [\n---\n",
        "at most": "---\n" + "#" * 6_000_000 + "\n---\n",
    }
    for match, text in cards.items():
        (folder / "README.md").write_text(text)
        refused(match, sb.load_dataset, folder)
    (folder / "README.md").unlink()
    (folder / ".huggingface.yaml").write_text(bomb)
    refused("the alias", sb.load_dataset, folder)
    (folder / ".huggingface.yaml").write_text("a: !!python/object/apply:os.system ['touch ran']\n")
    refused("could not determine a constructor", sb.load_dataset, folder)


def test_scripts_archives_and_pickles_are_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    class Runs:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    made = {}
    for kind in ("script", "zip", "tar", "pkl", "h5"):
        made[kind] = tmp_path / kind
        made[kind].mkdir()
    (made["script"] / "script.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with zipfile.ZipFile(made["zip"] / "test.zip", "w") as archive:
        archive.writestr("../../ran", "x")
        archive.writestr("test/a.png", picture()["bytes"])
    with tarfile.open(made["tar"] / "test.tar", "w") as archive:
        info = tarfile.TarInfo("../ran")
        archive.addfile(info, io.BytesIO())
    (made["pkl"] / "test.pkl").write_bytes(pickle.dumps(Runs()))
    (made["h5"] / "test.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    for folder in made.values():
        words = "script|contains no readable dataset|not archives or other files"
        assert len(refused(words, sb.load_dataset, folder)) < 700
    assert not (tmp_path / "ran").exists()


def repeated(path):
    """Write 50 pictures of 1 MB each. The file stores only one of them."""
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = pa.array([{"bytes": b"x" * 10**6, "path": None}] * 50, kind)
    pq.write_table(pa.table({"image": images}), path, compression="zstd")


def arrow(path, texts, rows=None, **options):
    table = pa.table({"image_id": texts})
    with pa.ipc.new_file(str(path), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, rows)


def outside(path):
    """Write strings, one of which ends far outside the file."""
    arrow(path, ["abc", "defg"])
    offsets = b"".join(number.to_bytes(4, "little") for number in (0, 3, 7))
    content = path.read_bytes()
    assert content.count(offsets) == 1
    path.write_bytes(content.replace(offsets, offsets[:8] + (2**30).to_bytes(4, "little")))


TABLES = {
    "repeated.parquet": (repeated, "its strings take up 50,000,000 bytes"),
    "deep.jsonl": (lambda path: path.write_text('{"a":' + "[" * 10**5 + "]" * 10**5 + "}"), "that read it crashed"),
    "packed.arrow": (lambda path: arrow(path, ["x" * 10**6] * 40, 5, compression="zstd"), "more than 33,554,432"),
    "outside.arrow": (outside, "outside.arrow of .* cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_oversized_and_corrupt_tables_are_rejected(name, tmp_path, monkeypatch):
    for module, sizes in {"data.untrusted_tables": {"MEMORY": 2**27, "MOST_BYTES": 2**25},
                          "utils.parquet_pages": {"LARGEST_ARRAYS": 2**24}}.items():  # fmt: skip
        for size, value in sizes.items():
            monkeypatch.setattr(f"saliency_bench.{module}.{size}", value)
    write, words = TABLES[name]
    write(tmp_path / name)
    refused(words, sb.load_dataset, tmp_path)


@pytest.mark.slow
def test_decompression_bomb_is_counted_as_an_unreadable_sample(tmp_path, resnet):
    Image.new("1", (30_000, 30_000)).save(tmp_path / "bomb.png")
    bomb = {"bytes": (tmp_path / "bomb.png").read_bytes(), "path": None}
    names = list(sb.load_classifier(resnet).labels)
    features = FEATURES | {"label": datasets.ClassLabel(names=names)}
    rows = [row(), row(image=bomb), row(mask=bomb)]
    folder = write(tmp_path / "set", rows, features=datasets.Features(features))
    run = sb.run(dataset=folder, model=resnet, explainers=["centre"], metrics=["saliency_miou"], progress=False,
                 out=tmp_path / "run")  # fmt: skip
    assert sum(run.summary["faults"].values()) == 2
    assert all("million pixels" in reason for reason in run.summary["faults"])


# Build reports


def report(**changes):
    file = {"path": "data/test-0.parquet", "bytes": 1, "sha256": "0" * 64}
    split = {"num_examples": 1, "num_bytes": 1, "masks": 0, "fingerprint": "0" * 32, "files": [file],
             "class_shares": {}}  # fmt: skip
    return {"dataset": "pet-xai", "splits": {"test": split | changes}}


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("[" * 100_000, "recursion|nested"),
        ('{"dataset": ' * 100_000, "recursion|nested"),
        ('{"dataset": {"a": 1}}', "dataset"),
        ('{"splits": []}', "splits"),
        ('{"splits": {"../x": {}}}', "splits"),
        ('{"options": {"source": ["/etc"]}}', "options"),
        (json.dumps(report(files=[{"path": "../../etc/passwd", "bytes": 1, "sha256": "0" * 64}])), "path"),
        (json.dumps(report(files=[{"path": "/etc/passwd", "bytes": 1, "sha256": "0" * 64}])), "path"),
        (json.dumps(report(fingerprint="../x")), "fingerprint"),
        (json.dumps(report(num_examples=-1)), "num_examples"),
        ("\xff\xfe", "read"),
        ("9" * 5000, "digits|build report"),
    ],
    ids=lambda value: value[:30],
)
def test_hostile_build_report_is_rejected(tmp_path, content, match):
    (tmp_path / REPORT).write_text(content, encoding="latin-1")
    assert len(refused(rf"build_report\.json.*({match})", read_report, tmp_path)) < 600
    refused(".", find, write(tmp_path, [row()]))


def test_downloaded_report_cannot_set_token_server_or_path():
    for name in ("token", "server", "answers"):
        refused(f"'{name}'", options_of, {"dataset": "action-xai", "options": {name: "HF_TOKEN"}}, "a/b")
    for name, value in (("model", "https://example.org/m"), ("split", "../test"), ("label_map", "/etc/passwd")):
        match = f"sets {name} to '?{value}'?, which is not accepted"
        refused(match, options_of, {"dataset": "grid-xai", "options": {name: value}}, "a/b")
    drop = {"drop": ["potted plant", "person"], "seed": 1}
    assert options_of({"dataset": "coco-val", "options": drop}, "a/b") == drop


def test_incomplete_build_report_is_not_published(shapes, tmp_path):
    folder = shutil.copytree(shapes, tmp_path / "shapes")
    whole = json.loads((folder / REPORT).read_text())
    for missing in ("license", "version", "options", "splits", "counts"):
        (folder / REPORT).write_text(json.dumps({key: value for key, value in whole.items() if key != missing}))
        refused(f"has no {missing}", dataset_publication, folder, "x", tmp_path)


def test_downloaded_report_options_are_validated(tmp_path, closed, source):
    """Test that a build from annotations does not pass addresses in the options of a report to our builder."""
    (tmp_path / "made").mkdir()
    folder = tmp_path / "notes"
    for path, content in dataset_publication(closed, "saliency-bench", tmp_path / "made").files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    whole = json.loads((folder / REPORT).read_text())
    for options, match in (
        ({"overwrite": True}, "overwrite"),
        ({"progress": False}, "progress"),
        ({"border": "/etc/passwd"}, "/etc/passwd"),
        ({"border": "http://example.org"}, "example.org"),
    ):
        (folder / REPORT).write_text(json.dumps(whole | {"options": whole["options"] | options}))
        refused(match, sb.load_dataset, folder, source=source)
    (folder / REPORT).write_text(json.dumps(whole | {"dataset": "../../x"}))
    refused("unknown dataset", sb.load_dataset, folder, source=source)
