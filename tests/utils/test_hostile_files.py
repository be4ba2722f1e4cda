"""Tests of endless files, files that expand to gigabytes, and files of another type. All give a one-line error."""

import io
import json
import os
import shutil
import time
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from commands import refusal
from datasets import ClassLabel, Dataset, DatasetInfo, Features, Value
from datasets import Image as DatasetImage
from datasets.table import InMemoryTable
from refusals import refused
from test_reporting import change_summary, make_run

from saliency_bench.board.recorded import read_recorded
from saliency_bench.board.submission_schema import read_result
from saliency_bench.compute.claim import locked
from saliency_bench.compute.preflight import check_table
from saliency_bench.compute.targets.class_groups import load_groups
from saliency_bench.compute.targets.label_maps import match
from saliency_bench.compute.targets.rules import load_rule
from saliency_bench.data.fingerprints import fingerprint
from saliency_bench.data.loading import load_dataset
from saliency_bench.hub_builders import _source
from saliency_bench.read import records
from saliency_bench.read.finished_run import read_run
from saliency_bench.read.manifest import read_manifest
from saliency_bench.utils.files import load_arrays, parse_json
from saliency_bench.utils.pictures import LARGEST, UnreadableError, file_bytes
from saliency_bench.utils.plain_yaml import parse_yaml

NESTED = "[" * 100_000 + "]" * 100_000
HUGE = 8 * 10**9


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "run"
    return make_run(folder, samples=12, methods={"gradcam": 0.5, "random": 0.2}, side=8)


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def sparse(path):
    path.touch()
    os.truncate(path, HUGE)


def zero(path):
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def pipe(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def nested(path):
    path.write_text(NESTED)


HOSTILE = {pipe: "regular file", zero: "regular file", sparse: "bytes", nested: "levels deep"}


@pytest.mark.parametrize("spoil", HOSTILE, ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("name", ["run.json", "summary.json", "timings.json"])
def test_report_rejects_endless_and_nested_json(run, name, spoil, capsys):
    spoil(run / name)
    shown = refusal(capsys, ["report", run])
    assert "unexpected" not in shown
    assert name in shown
    if name == "run.json":
        refused(HOSTILE[spoil], read_manifest, run)


def device(path):
    path.unlink(missing_ok=True)
    path.symlink_to(os.devnull)


@pytest.mark.parametrize("spoil", [device, pipe], ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("name", ["records.parquet", "predictions.parquet", "examples.npz"])
def test_report_rejects_non_regular_files(run, name, spoil, capsys):
    spoil(run / name)
    assert f"{name} is damaged (it is not a regular file)" in refusal(capsys, ["report", run])


@pytest.mark.parametrize("spoil", [device, pipe], ids=lambda spoil: spoil.__name__)
def test_submission_rejects_non_regular_files(tmp_path, spoil):
    spoil(tmp_path / "result.json")
    spoil(tmp_path / "records.parquet")
    refused(r"result\.json cannot be read: it is not a regular file", read_result, tmp_path / "result.json")
    path = tmp_path / "records.parquet"
    refused(r"records\.parquet cannot be read: it is not a regular file", read_recorded, None, path)


def test_json_nesting_is_limited():
    deep = "[" * 90 + "]" * 90
    assert parse_json(deep) == json.loads(deep)
    for text in (f"[{'[' * 100}{']' * 100}]", '{"a":' * 300 + "1" + "}" * 300, NESTED):
        with pytest.raises(ValueError, match="levels"):
            parse_json(text)


def packed(path, shape, content, name="ids"):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open(f"{name}.npy", "w") as member:
        member.write(header.getvalue() + b"\0" * content)


def test_array_size_is_checked_before_unpacking(run, tmp_path):
    packed(path := tmp_path / "maps.npz", (10**12,), 1000)
    with pytest.raises(ValueError, match="smaller than its header"):
        load_arrays(path)
    packed(path, (10**6,), 10**6)
    with pytest.raises(ValueError, match="unpack to more than"):
        load_arrays(path, 10**5)
    assert load_arrays(path)["ids"].shape == (10**6,)
    packed(run / "examples.npz", (10**12,), 1000)
    refused(r"examples\.npz is damaged", read_run, run)


def varint(number, length=None):
    """Encode a whole number as Thrift does, in `length` bytes if given."""
    groups = [2 * number >> shift & 127 for shift in range(0, 7 * (length or -(-(2 * number).bit_length() // 7)), 7)]
    return bytes([group | 128 for group in groups[:-1]] + groups[-1:])


def text_bomb(path, table):
    pq.write_table(table.set_column(8, "image_id", pa.array(["x" * 10**6] * len(table))), path, use_dictionary=False)


def lying_bomb(path, table):
    """Write strings of 1 MB with a footer that claims 100 bytes."""
    text_bomb(path, table)
    column, content = pq.read_metadata(path).row_group(0).column(8), path.read_bytes()
    size = varint(column.total_uncompressed_size)
    at = content.rindex(size)
    path.write_bytes(content[:at] + varint(100, len(size)) + content[at + len(size) :])
    assert pq.read_metadata(path).row_group(0).column(8).total_uncompressed_size == 100


def many_of_one_text(path, table):
    """Write a dictionary of one string that all rows use."""
    pq.write_table(table.set_column(8, "image_id", pa.array(["x" * 10**5] * len(table))), path)


def prefixes(path, table):
    """Write strings that each repeat the previous string."""
    texts = pa.array(["x" * 10**5] * len(table))
    pq.write_table(table.set_column(8, "image_id", texts), path, use_dictionary=False,
                   column_encoding={"image_id": "DELTA_BYTE_ARRAY"})  # fmt: skip


def overlapping(path, table):
    """Write a footer in which a column has more bytes than the file."""
    pq.write_table(table.set_column(8, "image_id", pa.array(["x" * 1000] * len(table))), path, use_dictionary=False,
                   compression="none")  # fmt: skip
    column, content = pq.read_metadata(path).row_group(0).column(8), path.read_bytes()
    size = varint(column.total_compressed_size)
    path.write_bytes(content.replace(size + b"\x16" + size, size + b"\x16" + varint(10**6, len(size))))
    assert pq.read_metadata(path).row_group(0).column(8).total_compressed_size != column.total_compressed_size


BOMBS = {text_bomb: "unpacks to more than", lying_bomb: "unpacks to more than", many_of_one_text: "its strings take up",
         prefixes: "DELTA_BYTE_ARRAY", overlapping: "larger than the file"}  # fmt: skip


@pytest.mark.parametrize("bomb", [pytest.param(bomb, id=bomb.__name__) for bomb in BOMBS])
def test_parquet_text_size_is_checked_before_reading(run, monkeypatch, bomb):
    monkeypatch.setattr("saliency_bench.utils.parquet_pages.LARGEST_ARRAYS", 10**6)
    path = run / "records.parquet"
    bomb(path, pq.read_table(path))
    refused(rf"records\.parquet is damaged \(.*{BOMBS[bomb]}", read_run, run)
    refused(BOMBS[bomb], records.read_columns, path, ["image_id"], records.SCHEMA)
    refused(rf"records\.parquet of .*{BOMBS[bomb]}", load_dataset, path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("model", "id"), 10**30), (("model", "id"), None), (("model",), None), (("model", "accuracy"), [{}]),
        (("masks", "left_out"), {"a": "x"}), (("masks", "left_out"), 3), (("masks", "usable"), [{}]), (("masks",), 1),
        (("faults",), None), (("faults",), "x"), (("provenance",), None), (("provenance",), "x"),
        (("provenance", "libraries"), None),
        (("dataset",), [{}]), (("dataset", "samples"), None), (("dataset", "id"), {"a": "x"}), (("target",), [{}]),
        (("batch_size",), [{}]), (("batch_size",), 0), (("groups",), {"name": "x", "identity": {}}),
        (("only",), {"samples": "x"}), (("command",), None), (("halved_chunks",), None), (("precision",), {}),
    ],
)  # fmt: skip
def test_field_of_wrong_type_is_rejected_by_name(run, capsys, place, value):
    def change(summary):
        *above, last = place
        for key in above:
            summary = summary[key]
        summary[last] = value

    change_summary(run, change)
    assert "summary.json is damaged (" + ".".join(place) in refusal(capsys, ["report", run])


def test_timings_of_wrong_type_are_rejected(run, capsys):
    (run / "timings.json").write_text('{"explainers": 3}')
    assert "timings.json is damaged (explainers" in refusal(capsys, ["report", run])


@pytest.mark.parametrize("spoil", [pytest.param(spoil, id=spoil.__name__) for spoil in (sparse, nested)])
def test_oversized_class_tables_are_rejected(tmp_path, spoil):
    spoil(path := tmp_path / "table.json")
    for read in (
        lambda: load_groups(path, ["a", "b"], 2),
        lambda: match(["a"], ["a"], 1, str(path)),
        lambda: check_table("groups", str(path)),
        lambda: check_table("label_map", str(path)),
    ):
        refused(HOSTILE[spoil], read)


def test_target_file_and_its_errors_are_limited_in_size(tmp_path):
    sparse(path := tmp_path / "target.csv")
    refused("bytes", load_rule, str(path), ["a"], 1)
    path.unlink()
    path.write_text("image_id,target\nx," + "9" * 5000)
    assert len(refused("unknown class of the model '9{50}", load_rule, str(path), ["a"], 1)) < 400
    path.write_text('image_id,target\n"' + "a\n" * 60_000)
    assert len(refused("names no class for image aaa", load_rule, str(path), ["a"], 1)) < 400


def test_label_outside_classes_is_rejected():
    features = Features(image_id=Value("string"), label=ClassLabel(names=["a", "b"]), image=DatasetImage())
    table = pa.table({"image_id": ["x", "y"], "label": [0, 10**15], "image": [{"bytes": b"", "path": None}] * 2})
    rows = Dataset(InMemoryTable(table.cast(features.arrow_schema)), info=DatasetInfo(features=features))
    refused(r"label 1000000000000000 of image .* is not one of the dataset's 2 classes", fingerprint, rows)


def test_oversized_source_files_are_rejected(tmp_path):
    sparse(path := tmp_path / "part")
    with pytest.raises(UnreadableError, match=f"but the limit is {LARGEST:,}"):
        file_bytes(path)
    refused("bytes", _source.text_of, path)
    refused("bytes", _source.json_of, path, dict)
    for words in ("bytes", "levels deep"):
        for read in (_source.xml_of, lambda file: list(_source.events_of(file))):
            with pytest.raises(UnreadableError, match=words):
                read(path)
        path.unlink()
        path.write_text("<a>" * 300_000 + "</a>" * 300_000)
    path.write_text("<a><b>1</b><b>2</b></a>")
    assert [one.text for one in _source.xml_of(path)] == ["1", "2"]


def test_overlong_table_line_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(_source, "FIELD", 1000)
    (path := tmp_path / "table.csv").write_text("a,b\n" + "x" * 2000)
    refused("line has more than 1,000 characters", list, _source.table(path, "a"))


def test_lock_that_is_a_link_is_rejected(tmp_path):
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    refused(r"cannot be locked, because .*\.lock is a link or not a regular file", locked(tmp_path, "run").__enter__)
    assert not (tmp_path / "elsewhere").exists()


MERGES = "a0: &a0 {k: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12))
LAUGHS = "a0: &a0 [x, x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MERGES, "repeat more than"), (LAUGHS, "repeat more than"),
        ("a: &a [*a]", r"\*a does not refer to a complete value before"), ("a: *b", "alias"),
        (NESTED, "levels deep"), ("- " * 300 + "x", "levels deep"), ("{a: " * 300, "levels"),
        ("a: " + "9" * 6000, "digits|too large"), ("a: 0x" + "f" * 6000, "too large"),
        ("a: 1" + ":59" * 3000, "too large"), ("a: 1" + ":59" * 3000 + ".5", "OverflowError"),
        ("a: 2001-99-99", "month"), ("a: 2001-01-01 00:00:00 +99:99", "offset|timedelta|strictly"),
        ("a: !!timestamp x", "match its tag"), ("a: !!int ''", "match its tag"), ("a: !!bool x", "not match its tag"),
        ("a: !!binary 'a'", "base64"), ("? [a]\n: b", "unhashable"), ("a: 1\na: 2", "the key a appears twice"),
        ("a: !!python/object/apply:os.mkdir [x]", "constructor"), ("a: [", "expected|did not find"),
        ("\0", "not allowed|control"), ("--- a\n--- b", "document"), ("\ud800", "surrogates"),
    ],
)  # fmt: skip
def test_yaml_errors_are_one_line(text, words):
    for kind in (text, text.encode("utf-8", "surrogatepass")):
        start = time.monotonic()
        with pytest.raises(ValueError, match=words if kind is text else ".") as caught:
            parse_yaml(kind)
        assert time.monotonic() - start < 2
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 350


def test_yaml_allows_limited_aliases(monkeypatch):
    text = "a: &a {x: 1, y: no}\nb: {<<: *a, z: [*a, 0x10, 1:30, 2001-09-09, 1.5]}"
    parsed = parse_yaml(text)
    assert (parsed, parsed["b"]["z"][0]) == (yaml.safe_load(text), {"x": 1, "y": False})
    assert parse_yaml(text, texts=True)["a"]["y"] == "no"
    for mapping in (text, "a: &a 1\nb: *a"):
        with pytest.raises(ValueError, match=r"it has the alias \*a"):
            parse_yaml(mapping, aliases=False)
    monkeypatch.setattr("saliency_bench.utils.plain_yaml.MOST_NODES", 500)  # limits only repeated nodes
    keys = "\n".join(f"k{number}: {number}" for number in range(1000))
    assert len(parse_yaml(keys)) == 1000


def test_archive_with_duplicate_member_is_rejected(tmp_path):
    packed(path := tmp_path / "maps.npz", (6,), 6)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as file:
        file.writestr("ids.npy", b"")
    with pytest.raises(ValueError, match=r"2 members named 'ids\.npy'"):
        load_arrays(path)
