"""Tests of thousands of seeded hostile submissions: each is refused in one line, or changes nothing else on the board.

If a submission is accepted, its numbers follow from its records, and its names, directions and baselines come from the
package. Rows of other users do not change, and only the owner can make a row official. Small files that expand to
gigabytes are refused without using much memory.
"""

import copy
import json
import random
import re
import resource
import shutil
from dataclasses import replace
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import submissions
from refusals import refused
from submissions import IDS, know, vouch, write

import saliency_bench as sb
from saliency_bench.board import hidden
from saliency_bench.board.columns import columns_of
from saliency_bench.board.known import Known
from saliency_bench.board.published_maps import maps_in, write_maps
from saliency_bench.board.submission_schema import read_result
from saliency_bench.board.view.rows import shown
from saliency_bench.bound_explainer import load_explainer
from saliency_bench.bound_metric import load_metric
from saliency_bench.errors import UserError
from saliency_bench.read import records

DRAWS = np.random.default_rng(0)
PARTS = {name: DRAWS.random(60) for name in load_metric("saliency_consistency").parts(None)}
SCORES = {"gradcam": DRAWS.random(60), "random": DRAWS.random(60), "gradient saliency_consistency": PARTS}
OTHERS = {"gradcam": DRAWS.random(60), "gradient": DRAWS.random(60)}
VALUES = (None, True, False, 0, 1, -1, 5.0, -9.0, 0.99, 1e308, -1e308, 10**30, 2**63, "", "x", "\x1b[31mred",
          "\u202eevil", "a\nb", "<script>alert(1)</script>", "x" * 5000, "../../etc/passwd", "0" * 16, [], {}, [[]],
          {"a": {}}, [None] * 9, float("nan"), float("inf"), "gradcam", "best", {"value": 1.0})  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Return (board with an honest submission that is recomputed, hostile submission, {cell id: row} of the board)."""
    root = tmp_path_factory.mktemp("board")
    know(root)
    vouch(root, write(root, OTHERS))
    hostile = write(root / "aside", SCORES, "mallory")
    return root, hostile, {row.cell.cell_id: columns_of(row) for row in sb.load_results(root).rows}


def places(content, above=()):
    """Yield the path, as keys and indices, of every value in JSON data."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield (*above, key)
        yield from places(value, (*above, key))


def at(content, place):
    for key in place:
        content = content[key]
    return content


def mutated(folder, draw):
    """Change or remove a field of result.json, or repeat it under another name."""
    content = json.loads((folder / "result.json").read_text())
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        *above, last = draw.choice(list(places(content)))
        holder = at(content, above)
        kind = draw.random()
        if kind < 0.1:
            del holder[last]
        elif kind < 0.2 and isinstance(holder, dict):
            holder[draw.choice(("extra", "", "__class__", "\x07"))] = copy.deepcopy(holder[last])
        elif kind < 0.3 and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[last]))
        elif kind < 0.5 and isinstance(holder[last], int | float) and not isinstance(holder[last], bool):
            holder[last] *= draw.choice((1.001, 2, -1, 0, 1e9))
        else:
            holder[last] = copy.deepcopy(draw.choice(VALUES))
    (folder / "result.json").write_text(json.dumps(content))


def flipped(name):
    def flip(folder, draw):
        path = folder / name
        content = bytearray(path.read_bytes())
        near_the_end = draw.random() < 0.5  # Parquet has its footer there
        for _ in range(draw.choice((1, 2, 8, 64))):
            start = max(0, len(content) - 4000) if near_the_end else 0
            content[draw.randrange(start, len(content))] ^= 1 << draw.randrange(8)
        if draw.random() < 0.1:
            del content[draw.randrange(len(content)) :]
        path.write_bytes(content)

    flip.__name__ = f"flipped {name}"
    return flip


def rewritten(folder, draw):
    path = folder / "records.parquet"
    table = pq.read_table(path)
    kind = draw.randrange(6)
    name = draw.choice(records.SCHEMA.names)
    column = table[name].to_pylist()
    rows = draw.sample(range(len(column)), draw.choice((1, 2, 60, len(column))))
    if kind == 0:
        table = table.drop_columns([name])
    elif kind == 1:
        table = pa.Table.from_arrays([*table.columns, table[name]], names=[*table.schema.names, name])
    elif kind == 2:
        table = table.take(draw.sample(range(len(column)), len(column) - draw.choice((0, 1, 60))))
    elif kind == 3:
        table = pa.concat_tables([table, table.take(rows)])
    else:
        new = draw.choice(
            (0.99, -9.0, 5.0, None) if name == "value" else (None, "x", "\x1b[2J", "y" * 3000, "image 001")
        )
        for row in rows:
            column[row] = new
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name),
                                 pa.array(column, table.schema.field(name).type))  # fmt: skip
    pq.write_table(table, path, use_dictionary=draw.random() < 0.8, data_page_version=draw.choice(("1.0", "2.0")))


WAYS = (mutated, mutated, flipped("records.parquet"), flipped("result.json"), rewritten)


def hostile_board(world, root, seeds):
    """Copy the board and add one hostile submission for each seed, each in a separate folder."""
    board, hostile, _ = world
    shutil.copytree(board, root, ignore=shutil.ignore_patterns("aside"))
    group = hostile.parent.relative_to(board / "aside")
    for seed in seeds:
        folder = shutil.copytree(hostile, root / group / f"mallory-{seed}")
        draw = random.Random(seed)
        draw.choice(WAYS)(folder, draw)
        if (own := _belongs(folder)) and not (folder.parent / own).exists():
            folder.rename(folder.parent / own)


def _belongs(folder):
    """Return the name that the folder must have so that its content is read."""
    try:
        return read_result(folder / "result.json").folder.rpartition("/")[2]
    except UserError:
        return ""


def check(world, root, seeds):
    hostile_board(world, root := root / "board", seeds)
    known, board = world[2], sb.load_results(root)
    for one in board.refused:
        assert one.line.isprintable()
        assert str(root) not in one.line
        assert "ada" not in one.folder.rpartition("/")[2]
    seen = set()
    for row in board.rows:
        columns = columns_of(row)
        if row.submitters[0] == "ada":
            seen.add(row.cell.cell_id)
            own = known[row.cell.cell_id] | {name: columns[name] for name in ("conflict", "submitters")}
            assert (columns, row.submitters) == (own, ("ada",))
            continue
        assert row.status != "run by the board"
        assert (row.rank, row.best) == (None, False)
        _check_row(row, root)
    assert seen == set(known)
    return len(board.refused), len(board.rows) - len(seen)


def _check_row(row, root):
    """Check that the numbers of a row follow from its records, computed in another way."""
    cell = row.cell
    table = pq.read_table(root / row.folder / "records.parquet").to_pylist()
    scores = {one["image_id"]: one["value"] for one in table if one["cell_id"] == cell.cell_id and one["part"] is None}
    known = [value for value in scores.values() if value is not None]
    assert (cell.n, cell.value) == (len(known), pytest.approx(np.mean(known), abs=1e-9))
    assert set(scores) <= set(IDS)
    assert cell.low is None or cell.low <= cell.value <= cell.high
    if row.status == "checked":
        metric = load_metric(cell.metric, **cell.metric_options)
        assert set(scores) == set(IDS)
        assert (cell.higher_is_better, cell.metric_text) == (metric.higher_is_better, str(metric))
    if not row.own_method:
        own = load_explainer(cell.explainer, **cell.explainer_options)
        assert (cell.explainer_text, cell.baseline) == (str(own), own.baseline)
    accuracy = row.result.model.accuracy.value
    assert accuracy is None or 0 <= accuracy <= 1
    for text in (row.dataset, row.model, cell.explainer_text, cell.metric_text, *row.submitters):
        assert text.isprintable()
    assert row.dataset == "saliency-bench/pets"


def test_hostile_submissions_change_no_other_row(world, tmp_path):
    refused, _ = check(world, tmp_path, range(60))
    assert refused > 30


@pytest.mark.thorough
def test_thousands_of_hostile_submissions_change_no_row(world, tmp_path):
    for start in range(60, 2560, 250):
        refused, _ = check(world, tmp_path / str(start), range(start, start + 250))
        assert refused > 100


CLAIMS = {"status": '"run by the board"', "rank": "[1, 1]", "best": "true", "recomputed": '{"by": "explainer"}',
          "attempts": "[]", "score": '{"value": 1.0, "low": 1.0, "high": 1.0, "n": 60, "clusters": 60}'}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "words"), [
    *(('{"format"', f'{{"{name}": {value}, "format"', f"{name}: Extra inputs") for name, value in CLAIMS.items()),
    *(('"cell_id"', f'"{name}": {value}, "cell_id"', f"cells.0.{name}: Extra") for name, value in
      CLAIMS.items() if name != "rank"),
    ('"cells": [', '"cells": [], "cells": [', "the key 'cells' occurs 2 times in the same JSON object"),
    ('"value": ', '"value": 0.99, "value": ', "the key 'value' occurs 2 times in the same JSON object"),
    ('"seed": 0', '"seed": NaN', "seed: Input should be a valid integer"),
    ('"value": ', '"value": 1e999, "x": ', "value: Input should be a finite number"),
    ('"seed": 0', f'"seed": {"9" * 5000}', "cannot be read: Exceeds the limit"),
    ('"note": ""', f'"note": {"[" * 200}{"]" * 200}', "it is nested more than 100 levels deep"),
    ('"note": ""', '"note": "\\ud800"', "the text of note cannot be printed"),
    ('"submitter": "mallory"', '"submitter": "../ada"', "submitter: String should match pattern"),
])  # fmt: skip
def test_result_with_claims_beyond_scores_is_refused(old, new, words, world, tmp_path):
    text = json.dumps(json.loads((world[1] / "result.json").read_text()))
    assert old in text
    (tmp_path / "result.json").write_text(text.replace(old, new, 1))
    assert refused(re.escape(words), read_result, tmp_path / "result.json").isprintable()


@pytest.mark.parametrize(("rule", "true", "false"), [
    ("label", "label", "predicted"), ("label", "label", "label, run by the board"), ("predicted", "predicted", "label"),
    ("e" * 32, "mine.csv", "label"), ("e" * 32, "mine.csv", "predicted-by:resnet-50"),
    ("predicted-by " + "e" * 32, "predicted-by:net", "mine.csv"),
])  # fmt: skip
def test_target_description_must_match_the_setting(rule, true, false, tmp_path, monkeypatch):
    """Test the description of the targets above the rows. The rows of all users share this description."""
    monkeypatch.setattr(submissions, "SETTING", submissions.SETTING.model_copy(update={"target": rule}))
    for name, words in (("ada", true), ("mallory", false)):
        write(tmp_path, {"mine@1 saliency_precision": OTHERS["gradcam"]}, name, target=words)
    board = sb.load_results(tmp_path)
    assert [row.submitters for row in board.rows] == [("ada",)]
    (refused,) = board.refused
    assert refused.line.endswith(f"target is {false}, but setting.target is {rule.partition(' ')[0]}")
    (row,) = board.rows
    assert shown(row).asks == {
        "label": "", "predicted": "target predicted", "e" * 32: "target file eeeeeeee",
    }.get(rule, "target predicted-by:eeeeeeee")  # fmt: skip
    setting = row.result.setting.model_copy(update={"seed": 3, "split": "val", "layer": "a.b"})
    moved = replace(row, result=row.result.model_copy(update={"setting": setting}))
    assert shown(moved).asks.endswith("seed 3, layer a.b, split val")


def test_damaged_status_files_give_one_line(tmp_path):
    """Test damaged status files. Only the owner writes them, but a merge or an editor may damage them."""
    know(tmp_path)
    path = vouch(tmp_path, write(tmp_path, {"gradcam": SCORES["gradcam"]}))
    content = json.loads(path.read_text())
    attempt = {"submitter": "ada", "fingerprint": "f" * 64, "method": "m", "date": "2026-11-25", "maps": "0f"}
    content["attempts"] = [attempt]
    path.write_text(json.dumps(content))
    assert Known.read(tmp_path)[1] == []
    draw = random.Random(0)
    for _ in range(100):
        changed = copy.deepcopy(content)
        *above, last = draw.choice(list(places(changed)))
        at(changed, above)[last] = copy.deepcopy(draw.choice((*VALUES, "2026-13-99", "run by the board")))
        path.write_text(json.dumps(changed))
        known, problems = Known.read(tmp_path)
        assert all(line.isprintable() for line in problems)
        assert len(known.statuses) + len(problems) == 1
        assert hidden.refusal(hidden.attempts_of(known.statuses.values(), "eve", "f" * 64), date(2026, 11, 25)) is None
        hidden.refusal(hidden.attempts_of(known.statuses.values(), "ada", "f" * 64), date(2026, 11, 25))


def refusal(folder):
    """Return the reason why maps are refused; "" if they are accepted."""
    try:
        maps_in(folder)
    except UserError as error:
        return str(error)
    return ""


def test_maps_with_flipped_bits_are_refused_in_one_line(tmp_path):
    """Flip bits of the maps of a submission."""
    maps = {f"image {number}": DRAWS.random((8, 8)).astype(np.float32) for number in range(9)}
    (path,) = write_maps(tmp_path, "mine", maps.items())
    whole = path.read_bytes()
    read = maps_in(tmp_path)["mine"]
    assert all(np.abs(read[name] - maps[name]).max() < 5e-4 for name in maps)
    draw = random.Random(0)
    refused = 0
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(draw.choice((1, 4, 32))):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        line = refusal(tmp_path)
        assert line.isprintable()
        refused += bool(line)
    assert refused > 250


TWO = {"gradcam": np.linspace(0.1, 0.9, 60), "random": np.linspace(0.2, 0.3, 60)}
MEGABYTES = 300


def of_rows(folder, rows, name="dataset", values=None, **options):
    """Write many records that copy the first row, except for one column."""
    first = pq.read_table(folder / "records.parquet").slice(0, 1)
    columns = {key: first[key].take(pa.array(np.zeros(rows, int))) for key in first.schema.names}
    table = pa.table(columns if values is None else columns | {name: values})
    pq.write_table(table, folder / "records.parquet", **options)


def claim(folder, samples):
    content = json.loads((folder / "result.json").read_text())
    content["dataset"] |= {"samples": samples, "used": samples}
    (folder / "result.json").write_text(json.dumps(content))


def texts_by_their_differences(folder):
    """Write a page of a few kilobytes in which each string extends the previous string."""
    texts = pa.array(["x" * 100_000 + str(number) for number in range(120)])
    options = {"use_dictionary": False, "column_encoding": {"label": "DELTA_BYTE_ARRAY"}}
    of_rows(folder, 120, "label", texts, **options)


def many_rows(folder):
    of_rows(folder, 6_000_000)


def many_images(folder):
    claim(folder, 150_000)
    ids = pc.cast(pa.array(np.arange(300_000)), pa.string())
    of_rows(folder, 300_000, "image_id", pc.utf8_lpad(ids, 450, "0"), compression="zstd", row_group_size=100_000)


def gigabytes(folder):
    """Write two megabytes of Parquet that expand to four gigabytes."""
    claim(folder, 2_000_000)
    text = pa.array(["x" * 1900]).dictionary_encode().take(pa.array(np.zeros(2_000_000, int)))
    of_rows(folder, 2_000_000, "label", text, compression="zstd", store_schema=False)


def a_footer_that_lies(folder):
    path = folder / "records.parquet"
    path.write_bytes(path.read_bytes()[:-8] + (10**9).to_bytes(4, "little") + b"PAR1")


def deep(folder):
    (folder / "result.json").write_text("[" * 100_000 + "]" * 100_000)


def wide(folder):
    content = json.loads((folder / "result.json").read_text())
    content["provenance"]["more"] = [{} for _ in range(2_000_000)]
    (folder / "result.json").write_text(json.dumps(content, separators=(",", ":")))


def many_errors(folder):
    content = json.loads((folder / "result.json").read_text())
    content["provenance"] |= {f"a{number}": {} for number in range(200_000)}
    (folder / "result.json").write_text(json.dumps(content, separators=(",", ":")))


def empty_cells(folder):
    content = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(content | {"cells": [{}] * 2000}))


BOMBS = {texts_by_their_differences: "Not yet implemented", many_rows: "6,000,000 rows",
         many_images: "300,000 rows for 2 scores", gigabytes: "occurs twice in a cell",
         a_footer_that_lies: "footer", deep: "levels deep", wide: "values, more than the limit",
         empty_cells: "fields do not match", many_errors: "names, more than the limit"}  # fmt: skip


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000


@pytest.mark.sample(3, 0)
@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb.__name__)
def test_bomb_is_refused_and_takes_little_memory(bomb, tmp_path):
    good, bad = tmp_path / "good", tmp_path / "bad"
    write(good, TWO)
    assert len(sb.load_results(good).rows) == 2  # import everything before memory is measured
    bomb(write(bad, TWO))
    before = peak()
    board = sb.load_results(bad)
    assert peak() - before < MEGABYTES
    (refused,) = board.refused
    assert BOMBS[bomb] in refused.line
    assert refused.line.isprintable()
    assert not board.rows
