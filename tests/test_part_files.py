"""Part files: what is whole and belongs to the run is believed, whatever else lies there; few files become of many."""

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import saliency_bench as sb
from saliency_bench.engine import examples, store
from saliency_bench.errors import UserError
from saliency_bench.results import parts, records
from saliency_bench.results.parts import Entry, PartFolder, in_order, span_of

CELLS = ["a" * 16, "b" * 16]
RESULTS = ("records.parquet", "predictions.parquet")


def table(samples, number=0, per_sample=2):
    """Rows of these samples, the score and a part of it."""
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
    return PartFolder(tmp_path / "0123456789abcdef", "run", 4, 8)


def write(folder, numbers, cells=CELLS, positions=None, **changes):
    for number in numbers:
        inside = range(folder.size) if positions is None else positions
        samples = [number * folder.size + place for place in inside]
        rows = {cell: table(samples, cells.index(cell)) for cell in cells}
        folder.write(number, rows, positions, **about(**changes))


def content(folder, cells=CELLS):
    """{cell: its rows}, of all parts."""
    own = folder.parts()
    return {
        cell: in_order([part.read(cell) for part in own if cell in part.groups]).to_pylist()
        for cell in cells if any(cell in part.groups for part in own)
    }  # fmt: skip


def files(folder):
    return sorted(path.name for path in folder.path.iterdir())


def test_a_part_gives_back_what_was_written(folder):
    write(folder, [3])
    (part,) = folder.parts()
    assert (part.first, part.last, list(part.groups)) == (3, 3, CELLS)
    assert part.entries == [Entry((3,), tuple(CELLS), None, about())]
    for number, cell in enumerate(CELLS):
        assert part.read(cell).to_pylist() == table(range(12, 16), number).to_pylist()
        assert part.whole()[cell].to_pylist() == part.read(cell).to_pylist()


def test_few_files_become_of_many_and_hold_the_same(folder):
    write(folder, range(20))
    write(folder, [2, 5], [CELLS[0]], positions=[1])  # held twice, as after a crash at another moment
    write(folder, [2], ["c" * 16], positions=[0, 3], faults=1)
    before = content(folder, [*CELLS, "c" * 16])
    folder.compact()
    assert [name[:13] for name in files(folder)] == ["000000-000007", "000008-000015", "000016-000023"]
    assert content(folder, [*CELLS, "c" * 16]) == before
    found = parts.stored_samples(folder.parts(), [*CELLS, "c" * 16], 21, 4)
    assert found[CELLS[0]][:20].all()
    assert not found[CELLS[0]][20].any()
    assert np.argwhere(found["c" * 16]).tolist() == [[2, 0], [2, 3]]
    (wide, *_) = folder.parts()
    assert [entry.chunks for entry in wide.entries if entry.positions is None] == [tuple(range(8))]
    rows = pq.ParquetFile(wide.path)
    assert [rows.metadata.row_group(one).num_rows for one in range(rows.num_row_groups)] == [*wide.groups.values()]
    once = files(folder)
    folder.compact()
    assert files(folder) == once


def test_a_few_files_stay_as_they_are(folder):
    write(folder, range(parts.FEW))
    before = files(folder)
    folder.compact()
    assert files(folder) == before


def test_while_others_write_only_full_spans_are_compacted(folder):
    write(folder, range(15))
    folder.compact(full=True)
    assert [name[:13] for name in files(folder)][:1] == ["000000-000007"]
    assert len(files(folder)) == 1 + 7


def test_what_is_added_later_joins_the_file_of_its_span(folder):
    write(folder, range(8), CELLS[:1])
    folder.compact(full=True)
    write(folder, range(8), CELLS[1:])
    folder.compact(full=True)
    assert len(files(folder)) == 1
    assert set(content(folder)) == set(CELLS)


@pytest.mark.parametrize("moment", range(12))
def test_a_compaction_killed_at_any_moment_ends_with_the_same_bytes(folder, tmp_path, monkeypatch, moment):
    write(folder, range(11))
    undisturbed = PartFolder(tmp_path / "elsewhere" / folder.path.name, "run", 4, 8)
    shutil.copytree(folder.path, undisturbed.path)
    undisturbed.compact(full=True)
    calls, unlink = [], Path.unlink

    def killed(path, **options):
        if not path.name.endswith(".tmp"):
            calls.append(path)
            if len(calls) > moment:
                raise KeyboardInterrupt
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", killed)
    try:
        folder.compact(full=True)
    except KeyboardInterrupt:
        assert moment < 8
    monkeypatch.undo()
    before = content(folder)
    folder.check()
    folder.compact(full=True)
    assert content(folder) == before == content(undisturbed)
    assert files(folder) == files(undisturbed)


def test_every_flipped_bit_is_seen(folder, capsys):
    """Of a small file and a span: each byte of the small one's first and last 400, and others at random."""
    write(folder, range(9))
    folder.compact(full=True)
    expected = content(folder)
    dice = random.Random(0)
    for name in (files(folder)[0], files(folder)[-1]):
        path = folder.path / name
        whole = path.read_bytes()
        edges = [*range(min(40, len(whole))), *range(len(whole) - 40, len(whole))]
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


def test_damage_is_seen_before_a_file_is_compacted(folder, capsys):
    write(folder, range(8))
    path = folder.path / files(folder)[3]
    spoiled = bytearray(path.read_bytes())
    spoiled[20] ^= 4
    path.write_bytes(spoiled)
    folder.compact(full=True)
    assert f"{path} is damaged" in capsys.readouterr().err
    there = parts.stored_samples(folder.parts(), CELLS, 8, 4)[CELLS[0]]
    assert there.all(axis=1).tolist() == [number != 3 for number in range(8)]


STRAYS = ["000000-{} (1).parquet", "._000000-{}.parquet", "backup.parquet", "000000-{}.parquet.bak", "0-{}.parquet"]


@pytest.mark.parametrize("name", [*STRAYS, "000000-{}0.parquet", "000000-ABCDEF0123456789.parquet"])
def test_only_exact_names_count(folder, name):
    write(folder, [0])
    path = folder.path / files(folder)[0]
    other = folder.path / name.format(path.stem[-16:])
    shutil.copy(path, other)
    assert folder.strays() == [other.name]
    assert [part.path for part in folder.check()] == [path]
    assert other.exists()


def test_a_folder_or_link_with_an_exact_name_is_no_part(folder):
    write(folder, [0])
    (folder.path / f"000001-{'0' * 16}.parquet").mkdir()
    (folder.path / f"000002-{'0' * 16}.parquet").symlink_to(folder.path / files(folder)[0])
    assert len(folder.strays()) == 2
    assert len(folder.check()) == 1


def spoil_chunk(folder, path):
    return path.with_name("000005" + path.name[6:])


def spoil_span(folder, path):
    return path.with_name("000000-000007" + path.name[6:])


def spoil_folder(folder, path):
    return path.with_name(rewritten(path, folder="f" * 16))


def spoil_run(folder, path):
    return path.with_name(rewritten(path, run="another"))


def spoil_cells(folder, path):
    return path.with_name(rewritten(path, entries=[vars(Entry((0,), ("c" * 16,), None, about()))]))


def spoil_format(folder, path):
    return path.with_name(rewritten(path, format=0))


def spoil_notes(folder, path):
    return path.with_name(rewritten(path, entries="none"))


def rewritten(path, **changes):
    """The file with other notes, and the name that its bytes give it."""
    whole = pq.read_table(path)
    notes = json.loads(whole.schema.metadata[parts.NOTES]) | changes
    pq.write_table(whole.replace_schema_metadata({parts.NOTES: json.dumps(notes)}), path)
    return f"000000-{parts.sha256_of(path)[:16]}.parquet"


@pytest.mark.parametrize(
    "spoil", [spoil_chunk, spoil_span, spoil_folder, spoil_run, spoil_cells, spoil_format, spoil_notes]
)
def test_a_whole_file_of_something_else_is_named_and_not_believed(spoil, folder, capsys):
    write(folder, [0])
    path = folder.path / files(folder)[0]
    path.rename(other := spoil(folder, path))
    assert folder.check() == []
    assert f"ignored, as not of this run: {other.name!r}" in capsys.readouterr().err
    assert other.exists()


def test_entries_to_redo_are_dropped(folder):
    write(folder, range(8))
    write(folder, [8], raised=True)
    folder.compact(full=True)
    wide = folder.parts()[0]
    write(folder, [1], ["c" * 16], raised=True)
    folder.check(lambda entry: entry.about["raised"])
    assert [part.path for part in folder.parts()] == [wide.path]
    folder.check(lambda entry: "a" * 16 in entry.keys)
    assert folder.parts() == []


def test_a_span_loses_only_what_is_redone(folder):
    write(folder, range(7))
    write(folder, [7], raised=True)
    folder.compact(full=True)
    folder.check(lambda entry: entry.about["raised"])
    assert len(files(folder)) == 1
    there = parts.stored_samples(folder.parts(), CELLS, 8, 4)[CELLS[0]]
    assert there[:7].all()
    assert not there[7].any()
    assert [row["position"] for row in content(folder)[CELLS[0]]] == list(np.repeat(np.arange(28), 2))


@pytest.mark.parametrize(("batch_size", "expected"), [(1, 512), (16, 512), (64, 128), (4096, 2), (100_000, 2)])
def test_a_span_holds_so_many_chunks(batch_size, expected):
    assert span_of(batch_size) == expected


def test_row_groups_are_of_one_size_however_the_rows_come(tmp_path):
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


@pytest.fixture
def small(monkeypatch):
    """Spans of four chunks, and every file counts as many."""
    monkeypatch.setattr(parts, "SPAN", 4)
    for module in (parts, examples):
        monkeypatch.setattr(module, "FEW", 1)


@pytest.fixture(scope="module")
def undisturbed(shapes, resnet, tmp_path_factory):
    """With all files as they were written."""
    return go(tmp_path_factory.mktemp("runs") / "run", shapes, resnet).folder


def all_files(out):
    return [path for name in ("chunks", "thumbnails", "predictions") for path in (out / name).rglob("*.*")]


def test_records_are_sorted_by_cell_sample_and_part(undisturbed):
    rows = pq.read_table(undisturbed / "records.parquet").to_pylist()
    ids = pq.read_table(undisturbed / "predictions.parquet")["image_id"].to_pylist()
    order = {name: place for place, name in enumerate(ids)}
    assert [(row["cell_id"], order[row["image_id"]]) for row in rows] == sorted(
        (row["cell_id"], order[row["image_id"]]) for row in rows
    )
    assert len(rows) == 21 * len(EXPLAINERS) * len(METRICS)


def test_the_score_comes_before_its_parts(shapes, resnet, tmp_path):
    out = go(tmp_path / "run", shapes, resnet, explainers=["random"], metrics=["saliency_kae"], limit=3).folder
    rows = pq.read_table(out / "records.parquet").to_pylist()
    own = [row["part"] for row in rows]
    names = own[: len(own) // 3]
    assert names[0] is None
    assert len(names) > 1
    assert own == names * 3


def test_the_order_of_explainers_and_metrics_changes_nothing(undisturbed, shapes, resnet, tmp_path):
    other = go(tmp_path / "run", shapes, resnet, explainers=EXPLAINERS[::-1], metrics=METRICS[::-1])
    assert bytes_of(other.folder) == bytes_of(undisturbed)


def test_several_starts_over_compacted_files_change_nothing(undisturbed, shapes, resnet, tmp_path, small):
    """Metrics and explainers are added, the limit is widened, and so is the selection."""
    out = tmp_path / "run"
    go(out, shapes, resnet, explainers=["random"], metrics=METRICS[:1], limit=9, only=["correct"])
    go(out, shapes, resnet, explainers=["random"], metrics=METRICS[:1], limit=13)
    go(out, shapes, resnet, explainers=["random"], metrics=METRICS[1:], limit=21)
    go(out, shapes, resnet, explainers=["gradient"], limit=21, only=["masked"])
    go(out, shapes, resnet)
    assert bytes_of(out) == bytes_of(undisturbed)
    assert len(list(out.glob("chunks/*/*"))) == 3 * len(EXPLAINERS)  # 11 chunks in spans of four
    assert len(list(out.glob("thumbnails/*/*"))) == 3 * len(EXPLAINERS)
    assert len(list(out.glob("predictions/*"))) == 3
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (out, undisturbed)]
    by_id = [{cell["cell_id"]: cell["value"] for cell in one["cells"]} for one in summaries]
    assert by_id[0] == by_id[1]


def test_files_become_few_while_a_run_goes(shapes, resnet, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "SPAN", 4)
    monkeypatch.setattr(store.Behind, "put", lambda behind, piece: piece())  # so that files are there to be counted
    out, seen = tmp_path / "run", []

    def counting(classifier, images, target):
        if len(images) == 2:  # once, half of the first chunk comes again
            seen.append([len(list(out.glob(f"{name}/*/*"))) for name in ("chunks", "thumbnails")])
        return images.mean(dim=1)

    go(out, shapes, resnet, explainers=["random", counting], limit=22)
    assert len(seen) == 11
    assert seen[4] == [9, 9]  # before the fifth chunk of the second explainer
    assert seen[5] == [5, 5]  # a span of four chunks and one more chunk of each, and the sixth of the first


def test_compacted_thumbnails_are_the_same(undisturbed, shapes, resnet, tmp_path, small):
    other = go(tmp_path / "run", shapes, resnet).folder
    (explainer, *_) = (path.name for path in (undisturbed / "thumbnails").iterdir())
    for position in range(21):
        one, two = (examples._thumbnail(out / "thumbnails" / explainer, position, 2) for out in (undisturbed, other))
        assert (one == two).all()
    assert (other / "examples.npz").read_bytes() == (undisturbed / "examples.npz").read_bytes()


def test_passes_are_counted_in_compacted_files(undisturbed, shapes, resnet, tmp_path, small):
    other = go(tmp_path / "run", shapes, resnet)
    expected = json.loads((undisturbed / "summary.json").read_text())
    assert [cell["forward_passes"] for cell in other.summary["cells"]] == [
        cell["forward_passes"] for cell in expected["cells"]
    ]
    assert other.summary["cells"] == expected["cells"]


def test_a_start_with_nothing_to_do_reads_no_rows(shapes, resnet, tmp_path, small, monkeypatch):
    out = go(tmp_path / "run", shapes, resnet).folder
    before = bytes_of(out), {path: path.stat().st_mtime_ns for path in all_files(out)}
    for name in ("read", "whole"):
        monkeypatch.setattr(parts.Part, name, lambda *_: pytest.fail("rows were read"))
    go(out, shapes, resnet)
    assert (bytes_of(out), {path: path.stat().st_mtime_ns for path in all_files(out)}) == before


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", RESULTS)
def test_results_that_were_changed_are_merged_again(name, shapes, resnet, tmp_path):
    out = go(tmp_path / "run", shapes, resnet, explainers=["random"]).folder
    expected = bytes_of(out)
    (out / name).write_bytes(expected[RESULTS.index(name)][:-1] + b"x")
    go(out, shapes, resnet, explainers=["random"])
    assert bytes_of(out) == expected
    (out / "merged.json").write_text("{")
    go(out, shapes, resnet, explainers=["random"])
    assert bytes_of(out) == expected


def test_strays_are_named_once_and_change_nothing(undisturbed, shapes, resnet, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(undisturbed, out)
    (explainer, *_) = (out / "chunks").iterdir()
    (part, *_) = explainer.iterdir()
    strays = [
        explainer / f"{part.stem} (1).parquet", explainer / f"._{part.name}", explainer / "backup.parquet",
        out / "chunks" / "notes.txt", out / "predictions" / "copy.parquet",
        out / "thumbnails" / explainer.name / "x.npz",
    ]  # fmt: skip
    for stray in strays:
        shutil.copy(part, stray)
    shutil.copytree(explainer, out / "chunks" / ("f" * 16))
    shutil.copytree(explainer, out / "chunks" / "copy of it")
    capsys.readouterr()
    go(out, shapes, resnet)
    shown = capsys.readouterr().err
    assert all(shown.count(repr(path.name)) == 1 for path in (*strays, out / "copy of it", out / ("f" * 16)))
    assert all(path.exists() for path in strays)
    assert bytes_of(out) == bytes_of(undisturbed)


@pytest.mark.sample(1)
@pytest.mark.parametrize("compacted", [False, True])
def test_damaged_parts_are_recomputed(compacted, undisturbed, shapes, resnet, tmp_path, monkeypatch, capsys):
    if compacted:
        monkeypatch.setattr(parts, "SPAN", 4)
        monkeypatch.setattr(parts, "FEW", 1)
    out = go(tmp_path / "run", shapes, resnet).folder
    dice = random.Random(1)
    for path in dice.sample(sorted(path for path in all_files(out) if path.suffix == ".parquet"), 4):
        spoiled = bytearray(path.read_bytes())
        spoiled[dice.randrange(len(spoiled))] ^= 1 << dice.randrange(8)
        path.write_bytes(spoiled)
    capsys.readouterr()
    go(out, shapes, resnet)
    assert capsys.readouterr().err.count("is damaged and is recomputed") == 4
    assert bytes_of(out) == bytes_of(undisturbed)


@pytest.mark.slow
def test_damage_during_a_run_ends_it_and_the_next_start_mends_it(undisturbed, shapes, resnet, tmp_path, monkeypatch):
    from saliency_bench.engine import run as running

    compute = running._compute_chunks

    def damaging(*args):
        done = compute(*args)
        (path, *_) = sorted((tmp_path / "run" / "chunks").glob("*/*.parquet"))
        path.write_bytes(path.read_bytes()[:-1])
        return done

    monkeypatch.setattr(running, "_compute_chunks", damaging)
    with pytest.raises(UserError, match="was damaged or lost during the run; start it again"):
        go(tmp_path / "run", shapes, resnet)
    monkeypatch.undo()
    assert bytes_of(go(tmp_path / "run", shapes, resnet).folder) == bytes_of(undisturbed)


def moody(classifier, images, target):
    if os.environ.get("MOOD") and images.mean() > 0.5:
        raise RuntimeError("not now")
    return images.mean(dim=1)


@pytest.mark.slow
def test_an_explainer_that_raised_is_asked_again_also_in_compacted_files(shapes, resnet, tmp_path, small, monkeypatch):
    expected = go(tmp_path / "well", shapes, resnet, explainers=[moody, "random"]).folder
    monkeypatch.setenv("MOOD", "bad")
    ill = go(tmp_path / "run", shapes, resnet, explainers=[moody, "random"])
    assert 0 < sum(ill.summary["faults"].values()) < 21 * len(METRICS)
    monkeypatch.undo()
    monkeypatch.setattr(parts, "SPAN", 4)
    well = go(tmp_path / "run", shapes, resnet, explainers=[moody, "random"])
    assert well.summary["faults"] == {}
    assert bytes_of(well.folder) == bytes_of(expected)
    assert {cell["forward_passes"]["explain"] for cell in well.summary["cells"]} == {0}


def test_records_are_those_of_a_slow_second_writing(undisturbed, shapes, resnet):
    """Every file read row by row, its samples looked up by their place, sorted in Python."""
    predictions = pq.read_table(undisturbed / "predictions.parquet").to_pylist()
    plan = json.loads((undisturbed / "run.json").read_text())["cells"]
    rows = []
    for path in (undisturbed / "chunks").glob("*/*.parquet"):
        stored = pq.read_table(path)
        groups = json.loads(stored.schema.metadata[parts.NOTES])["groups"]
        cells = [cell for cell, count in groups for _ in range(count)]
        for place, (cell, row) in enumerate(zip(cells, stored.to_pylist(), strict=True)):
            rows.append((cell, row["position"], place, row))
    rows = [row for row in sorted(rows, key=lambda row: row[:3]) if row[1] < 21]
    found = pq.read_table(undisturbed / "records.parquet").to_pylist()
    assert len(found) == len(rows)
    for (cell, position, _, row), record in zip(rows, found, strict=True):
        sample = predictions[position]
        assert record["cell_id"] == cell
        assert (record["explainer"], record["metric"]) == (plan[cell]["explainer"], plan[cell]["metric"])
        assert json.loads(record["explainer_options"]) == plan[cell]["explainer_options"]
        assert (record["image_id"], record["group"]) == (sample["image_id"], sample["group"])
        assert [record[name] for name in ("target", "part", "value", "reason")] == [
            row[name] for name in ("target", "part", "value", "reason")
        ]
