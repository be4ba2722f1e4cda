"""Test part files: intact files of the run are used, all other files are ignored, and each part is written once."""

import json
import os
import random
import shutil
from datetime import timedelta
from hashlib import sha256
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import saliency_bench as sb
from saliency_bench.compute import writing
from saliency_bench.compute.loaded import identity_of
from saliency_bench.compute.loading.load import load
from saliency_bench.compute.predictions import GROUP, StoredPredictions
from saliency_bench.compute.python_objects import describe
from saliency_bench.compute.work import BatchResult
from saliency_bench.read import parts, records
from saliency_bench.read.parts import PartFolder, PartNote, RunStore, StoredResult, in_order

CELLS = ["a" * 16, "b" * 16]
WHOLE = (0, 1, 2, 3)  # offsets of the samples of a batch
SIZE = 4  # samples of a batch
RESULTS = ("records.parquet", "predictions.parquet")


def table(samples, number=0, per_sample=2):
    rows = [
        {"position": int(sample), "target": f"class {sample % 3}", "part": f"part {part}" if part else None,
         "value": None if sample % 5 == 0 else (sample + part / 10 + number) / 7,
         "reason": "no mask" if sample % 5 == 0 else None}
        for sample in samples for part in range(per_sample)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=records.STORED)


def about(**changes):
    return {"passes": {"explain": 4}, "halved": 0, "faults": 0, "raised": False} | changes


@pytest.fixture
def folder(tmp_path):
    return PartFolder(tmp_path / "scores", "run")


def result(number, group="explainer", cells=CELLS, positions=None, **changes):
    inside = range(SIZE) if positions is None else positions
    samples = [number * SIZE + place for place in inside]
    rows = {cell: table(samples, CELLS.index(cell) if cell in CELLS else 0) for cell in cells}
    return StoredResult(group, samples, rows, about(**changes))


def content(folder, group="explainer"):
    read = [part.read(group) for part in folder.parts()]
    cells = sorted({cell for rows in read for cell in rows})
    return {cell: in_order([rows[cell] for rows in read if cell in rows]).to_pylist() for cell in cells}


def test_part_file_returns_results_of_many_batches(folder):
    many = [result(number, group) for number in range(3, 20) for group in ("one", "two")]
    path = folder.write([*many, result(5, "one", ["c" * 16], [0, 3], faults=1)])
    (part,) = folder.parts()
    assert (part.path, part.path.name[:10], part.is_whole()) == (path, "000000012-", True)
    assert {name: list(cells) for name, cells in part.groups.items()} == {"one": [*CELLS, "c" * 16], "two": CELLS}
    assert part.entries == [
        PartNote("one", tuple(CELLS), tuple(range(12, 80, SIZE)), WHOLE, about()),
        PartNote("one", ("c" * 16,), (20,), (0, 3), about(faults=1)),
        PartNote("two", tuple(CELLS), tuple(range(12, 80, SIZE)), WHOLE, about()),
    ]
    for group in ("one", "two"):
        for number, cell in enumerate(CELLS):
            assert part.read(group)[cell].to_pylist() == table(range(12, 80), number).to_pylist()
    assert part.read("another") == {}
    stored = parts.stored_samples([part], [*CELLS, "c" * 16], 84)
    assert np.flatnonzero(stored[CELLS[0]]).tolist() == list(range(12, 80))
    assert np.flatnonzero(stored["c" * 16]).tolist() == [20, 23]


@given(st.permutations(range(6)), st.integers(1, 6), st.lists(st.integers(0, 5), max_size=3))
def test_rows_do_not_depend_on_part_file_layout(tmp_path_factory, order, at_once, twice):
    folder = PartFolder(tmp_path_factory.mktemp("parts") / "scores", "run")
    for first in range(0, 6, at_once):
        folder.write([result(number) for number in order[first : first + at_once]])
    for number in twice:
        folder.write([result(number, positions=[1, 3])])
    expected = {cell: table(range(24), number).to_pylist() for number, cell in enumerate(CELLS)}
    assert content(folder) == expected


@pytest.mark.parametrize(("first", "second"), [([3], [3]), ([2, 3], [3, 4]), ([3], [2, 3])])
def test_first_result_of_a_sample_is_kept(first, second):
    rows = table(first).to_pylist() + table(set(second) - set(first), 1).to_pylist()
    expected = sorted(rows, key=lambda row: row["position"])
    assert in_order([table(first), table(second, 1)]).to_pylist() == expected


def test_predictions_are_read_across_files(folder):

    def predicted(number):
        samples = range(number * SIZE, (number + 1) * SIZE)
        rows = pa.table({"position": samples, "logit": [float(one) for one in samples]})
        return StoredResult(GROUP, samples, {GROUP: rows}, {"unreadable": [1] if number == 3 else []})

    folder.write([predicted(number) for number in (0, 2, 3)])
    folder.write([predicted(number) for number in (1, 5)])
    predictions = StoredPredictions(folder.parts(), 6 * SIZE)
    assert np.flatnonzero(~predictions.is_stored).tolist() == [16, 17, 18, 19]
    assert np.flatnonzero(~predictions.is_readable).tolist() == [13]
    assert len(predictions.parts) == 2
    for batch in (range(4), range(3, 9), range(15, 21), range(1, 24)):
        expected = [float(sample) for sample in batch if sample not in range(16, 20)]
        assert predictions.table(batch).to_pydict() == {"logit": expected}
        assert predictions.table(batch, ["logit"]).to_pydict() == {"logit": expected}


def test_part_with_inconsistent_metadata_is_ignored(folder):
    """The file is rejected even if its name matches, because a rewritten file can be renamed."""
    path = folder.write([result(0)])
    pq.write_table(pq.read_table(path), path, row_group_size=1)
    path.rename(path.with_name(f"{path.name[:10]}{sha256(path.read_bytes()).hexdigest()[:16]}.parquet"))
    assert folder.parts() == []


def test_flipped_bits_are_detected(folder, capsys):
    """Flip bits in the first and last 40 bytes and in random other bytes."""
    path = folder.write([result(number) for number in range(9)])
    expected, whole, dice = content(folder), path.read_bytes(), random.Random(0)
    edges = [*range(40), *range(len(whole) - 40, len(whole))]
    for place in [*edges, *dice.choices(range(len(whole)), k=120)]:
        spoiled = bytearray(whole)
        spoiled[place] ^= 1 << dice.randrange(8)
        path.write_bytes(spoiled)
        folder.check()
        assert f"{path} is damaged and is recomputed" in capsys.readouterr().err
        assert not path.exists()
    path.write_bytes(whole)
    folder.check()
    assert capsys.readouterr().err == ""
    assert content(folder) == expected


def copied(name):
    return lambda path: shutil.copy(path, path.with_name(name.format(path.stem[-16:])))


def rewritten(**changes):
    """Return a function that changes the metadata of a file and renames the file to match its bytes."""

    def change(path):
        whole = pq.read_table(path)
        notes = json.loads(whole.schema.metadata[parts.NOTES]) | changes
        pq.write_table(whole.replace_schema_metadata({parts.NOTES: json.dumps(notes)}), path)
        return path.rename(path.with_name(f"000000-{parts.sha256_of(path)[:16]}.parquet"))

    return change


def empty_folder(path):
    (other := path.with_name(f"000001-{'0' * 16}.parquet")).mkdir()
    return other


def link(path):
    (other := path.with_name(f"000002-{'0' * 16}.parquet")).symlink_to(path)
    return other


STRAYS = ["000000-{} (1).parquet", "._000000-{}.parquet", "000000-{}.parquet.bak", "000000-ABCDEF0123456789.parquet"]
OTHERS = {name: copied(name) for name in STRAYS} | {
    "a folder": empty_folder, "a link": link,
    "start": lambda path: path.rename(path.with_name("000000005" + path.name[9:])),
    "of another folder": rewritten(folder="maps"), "of another run": rewritten(run="another"),
    "format": rewritten(format=0), "notes": rewritten(entries="none"),
}  # fmt: skip


@pytest.mark.parametrize("other", OTHERS)
def test_only_intact_files_with_exact_names_are_used(folder, other, capsys):
    path = folder.write([result(0)])
    stray = OTHERS[other](path)
    assert [part.path for part in folder.check()] == [path] * path.exists()
    assert f"ignored files that do not belong to this run: {stray.name!r}" in capsys.readouterr().err
    assert stray.exists()


def test_files_with_entries_to_redo_are_deleted(folder):
    folder.write([result(number) for number in range(8)])
    folder.write([result(8, raised=True)])
    (kept, _) = folder.parts()
    assert [part.path for part in folder.check(lambda entry: entry.about["raised"])] == [kept.path]
    assert list(folder.path.iterdir()) == [kept.path]


def test_row_groups_have_equal_size_for_any_input_chunks(tmp_path):
    schema = pa.schema([("number", pa.int64()), ("text", pa.string())])
    whole = pa.table({"number": range(25), "text": [f"{number % 4}" for number in range(25)]}, schema=schema)
    for name, sizes in (("one", [25]), ("many", [1] * 25), ("uneven", [0, 7, 3, 10, 1, 4])):
        edges = np.cumsum([0, *sizes])
        pieces = (whole.slice(start, size) for start, size in zip(edges, sizes, strict=False))
        records.concat(pieces, tmp_path / name, schema, 10)
    found = pq.ParquetFile(tmp_path / "one")
    assert [found.metadata.row_group(one).num_rows for one in range(3)] == [10, 10, 5]
    assert found.read().to_pylist() == whole.to_pylist()
    assert len({(tmp_path / name).read_bytes() for name in ("one", "many", "uneven")}) == 1


# Runs

EXPLAINERS, METRICS = ["centre", "random", "gradient"], ["saliency_miou", "saliency_pointing_game"]


def go(out, shapes, resnet, **changes):
    settings = {"explainers": EXPLAINERS, "metrics": METRICS, "batch_size": 2, "limit": 21, "out": out}
    return sb.run(dataset=str(shapes), model=str(resnet), device="cpu", progress=False, **settings | changes)


def bytes_of(out):
    return [(out / name).read_bytes() for name in RESULTS]


@pytest.fixture(scope="module")
def undisturbed(shapes, resnet, tmp_path_factory):
    return go(tmp_path_factory.mktemp("runs") / "run", shapes, resnet).folder


def all_files(out):
    return [path for name in ("scores", "thumbnails", "predictions") for path in (out / name).iterdir()]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def writer(shapes, resnet, tmp_path, monkeypatch):
    settings = {"explainers": ["random"], "metrics": METRICS[:1], "batch_size": 2, "limit": 4, "out": tmp_path / "run"}
    data, model, _ = load(*describe({"dataset": str(shapes), "model": str(resnet), "device": "cpu", **settings}), "cpu")
    monkeypatch.setattr(writing, "perf_counter", Clock())
    with writing.Writer(RunStore(tmp_path / "run", identity_of(data, model))) as writer:
        yield writer


def test_results_are_written_every_30_seconds(writer):
    """A kill then costs little."""
    folder = writer.store.scores
    for number in range(45):
        writing.perf_counter.now += 1
        writer.add(folder, result(number))
    writer.wait()
    assert [part.entries[0].starts for part in folder.parts()] == [tuple(range(0, 30 * SIZE, SIZE))]
    writer.write()
    writer.wait()
    starts = tuple(range(0, 45 * SIZE, SIZE))
    assert [part.entries[0].starts for part in folder.parts()] == [starts[:30], starts[30:]]


def test_results_to_recompute_have_a_file_per_explainer(writer):
    for number, (group, changes) in enumerate(product("ab", [{}, {"faults": 1}, {"raised": True}])):
        stored = result(number, group, **changes)
        writer.add_batch(BatchResult(group, stored.positions, stored.tables, stored.about))
    writer.write()
    writer.wait()
    groups = [sorted(entry.group for entry in part.entries) for part in writer.store.scores.parts()]
    assert sorted(groups) == [["a"], ["a"], ["a", "b"], ["b"], ["b"]]


def test_month_of_work_needs_few_hundred_files(writer):
    """Files contain increasing amounts of work, but never more than 2 % of all work so far."""
    folder = writer.store.scores
    done = 0.0
    while done < timedelta(days=30).total_seconds():
        writer._waiting = {(folder, ""): []}
        writer._files += 1
        done += writer.seconds
        assert writer.seconds <= max(writing.SECONDS, 0.021 * done)
    assert writer._files < 450
    writer._waiting = {}


def test_results_are_written_when_they_grow_large(writer, monkeypatch):
    folder = writer.store.scores
    monkeypatch.setattr(writing, "BYTES", 3 * result(0).nbytes)
    for number in range(10):
        writer.add(folder, result(number))
    writer.wait()
    assert len(folder.parts()) == 2


def test_stray_files_are_reported_once_and_change_nothing(undisturbed, shapes, resnet, tmp_path, capsys):
    """Strays are copies, notes, and the folder of an explainer that an earlier version of the package wrote."""
    out = tmp_path / "run"
    shutil.copytree(undisturbed, out)
    (part,) = (out / "scores").iterdir()
    strays = [part.with_stem(f"{part.stem} (1)"), part.with_name(f"._{part.name}"), out / "predictions/copy.parquet"]
    for stray in strays:
        shutil.copy(part, stray)
    (out / "scores" / ("f" * 16)).mkdir()
    capsys.readouterr()
    go(out, shapes, resnet)
    shown = capsys.readouterr().err
    assert all(shown.count(repr(path.name)) == 1 for path in (*strays, out / ("f" * 16)))
    assert all(path.exists() for path in strays)
    assert bytes_of(out) == bytes_of(undisturbed)


def test_damaged_thumbnails_are_left_out(undisturbed, shapes, resnet, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(undisturbed, out)
    (path,) = (out / "thumbnails").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    (out / "examples.npz").unlink()
    go(out, shapes, resnet)
    with np.load(out / "examples.npz") as examples:
        assert set(examples) == {"ids", "kinds", "images", "masks"}


def moody(classifier, images, target):
    if os.environ.get("MOOD") and images.mean() > 0.5:
        raise RuntimeError("not now")
    return images.mean(dim=1)


def test_failed_explainer_is_retried(shapes, resnet, tmp_path, monkeypatch):
    expected = go(tmp_path / "well", shapes, resnet, explainers=[moody, "random"]).folder
    monkeypatch.setenv("MOOD", "bad")
    ill = go(tmp_path / "run", shapes, resnet, explainers=[moody, "random"])
    assert 0 < sum(ill.summary["faults"].values()) < 21 * len(METRICS)
    kept = set(all_files(ill.folder))
    go(tmp_path / "run", shapes, resnet, explainers=["random"])
    assert set(all_files(ill.folder)) == kept  # a start without this explainer leaves its results alone
    monkeypatch.undo()
    well = go(tmp_path / "run", shapes, resnet, explainers=[moody, "random"])
    assert well.summary["faults"] == {}
    assert bytes_of(well.folder) == bytes_of(expected)
    assert {cell["forward_passes"]["explain"] for cell in well.summary["cells"]} == {0}


def test_records_match_literal_row_by_row_reading(undisturbed, shapes, resnet):
    assert [len(list((undisturbed / name).iterdir())) for name in ("scores", "thumbnails", "predictions")] == [1, 1, 1]
    predictions = pq.read_table(undisturbed / "predictions.parquet").to_pylist()
    plan = json.loads((undisturbed / "run.json").read_text())["cells"]
    rows = []
    for path in (undisturbed / "scores").iterdir():
        stored = pq.read_table(path)
        groups = json.loads(stored.schema.metadata[parts.NOTES])["groups"]
        cells = [(group, cell) for group, of_group in groups.items() for cell, n in of_group.items() for _ in range(n)]
        for place, (cell, row) in enumerate(zip(cells, stored.to_pylist(), strict=True)):
            rows.append((cell, row["position"], place, row))
    rows = [row for row in sorted(rows, key=lambda row: row[:3]) if row[1] < 21]
    found = pq.read_table(undisturbed / "records.parquet").to_pylist()
    assert len(found) == len(rows) == 21 * len(EXPLAINERS) * len(METRICS)
    for ((explainer_id, cell), position, _, row), record in zip(rows, found, strict=True):
        sample = predictions[position]
        assert record["cell_id"] == cell
        assert plan[cell]["explainer_id"] == explainer_id
        assert (record["explainer"], record["metric"]) == (plan[cell]["explainer"], plan[cell]["metric"])
        assert json.loads(record["explainer_options"]) == plan[cell]["explainer_options"]
        assert (record["image_id"], record["group"]) == (sample["image_id"], sample["group"])
        assert [record[name] for name in ("target", "part", "value", "reason")] == [
            row[name] for name in ("target", "part", "value", "reason")
        ]
