"""Tests of the board: statuses, official ranks, names, and attacks, which must not change rows of other users."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import submissions
from refusals import refused
from submissions import DIGEST, IDS, know, submission, vouch, write

import saliency_bench as sb
from saliency_bench.board import board as board_module
from saliency_bench.board import checks, index, opening, submission_cache, submission_schema
from saliency_bench.board.hub_table import NO_RESULT, table_of
from saliency_bench.board.known import KnownModel, write_known
from saliency_bench.board.recorded import recorded
from saliency_bench.board.standing import places
from saliency_bench.board.submission_schema import read_result
from saliency_bench.board.view.live import Live
from saliency_bench.bound_explainer import as_explainer, list_explainers, load_explainer
from saliency_bench.bound_metric import list_metrics, load_metric
from saliency_bench.compute.maps.composing import absolute, blurred, over_layers, positive, smoothed
from saliency_bench.errors import UserError
from saliency_bench.read.public_names import COMPOSING, refused_label
from saliency_bench.read.statistics.intervals import interval
from saliency_bench.utils.storage import cache_folder

RANDOM = np.random.default_rng(0)
GOOD, BAD = 0.7 + 0.1 * RANDOM.random(60), 0.2 + 0.1 * RANDOM.random(60)


def rows_of(board):
    return {(row.cell.explainer_text, *row.submitters): row for row in board.rows}


def test_rows_of_unlisted_datasets_are_claimed(tmp_path):
    write(tmp_path, {"gradcam": GOOD, "random": BAD})
    board = sb.load_results(tmp_path)
    assert [row.status for row in board.rows] == ["claimed", "claimed"]
    assert all(row.why == "the board does not list the samples of this dataset" for row in board.rows)
    assert all((row.rank, row.rank_if_true, row.best) == (None, None, False) for row in board.rows)
    assert not board.refused


def test_only_rows_run_by_the_board_have_official_ranks(tmp_path):
    know(tmp_path)
    first = write(tmp_path, {"gradcam": GOOD, "random": BAD})
    write(tmp_path, {"gradient": GOOD + 0.1}, "bob")
    rows = rows_of(sb.load_results(tmp_path))
    assert {row.status for row in rows.values()} == {"checked"}
    assert {name: row.rank_if_true for (name, _), row in rows.items()} == {
        "gradient": None,
        "gradcam": (1, 1),
        "random": (2, 2),
    }  # fmt: skip; rows of other users do not count before the board has run them
    assert not any(row.rank or row.best for row in rows.values())
    vouch(tmp_path, first)
    rows = rows_of(sb.load_results(tmp_path))
    told = {name: (row.status, row.rank, row.rank_if_true, row.best) for (name, _), row in rows.items()}
    assert told == {"gradcam": ("run by the board", (1, 1), None, True),
                    "random": ("run by the board", (2, 2), None, False),
                    "gradient": ("checked", None, (1, 1), False)}  # fmt: skip
    assert rows["gradient", "bob"].unranked == "the board has not recomputed the scores"
    assert rows["gradcam", "ada"].recomputed.samples == 8
    low, high = interval(GOOD, np.arange(60), (0.0, 1.0))[1:3]
    row = rows["gradcam", "ada"]
    assert (row.value, row.low, row.high, row.n) == (pytest.approx(GOOD.mean()), pytest.approx(low),
                                                     pytest.approx(high), 60)  # fmt: skip
    assert (row.dataset, row.model, row.named) == ("saliency-bench/pets", "folder:net", {"dataset"})


def test_old_submissions_get_wider_intervals(tmp_path):
    folder = write(tmp_path, {"gradcam": GOOD, "random": BAD})
    content = json.loads((folder / "result.json").read_text())
    low, high = GOOD.mean() - 0.0074, GOOD.mean() + 0.0073
    for change in ({"low": low, "high": high, "rare": False}, {"value": 0.9}):
        content["cells"][0] |= change
        (folder / "result.json").write_text(json.dumps(content))
        board = sb.load_results(tmp_path)
        if "value" in change:
            assert board.refused  # all other numbers must still match
            return
        row = rows_of(board)["gradcam", "ada"]
        assert row.cell.rare
        assert (row.low, row.high) == pytest.approx(interval(GOOD, np.arange(60), (0.0, 1.0))[1:3])
        assert row.low < low


@pytest.mark.parametrize(("scores", "best"), [
    ({"gradcam": GOOD, "gradient": BAD, "random": BAD}, {"gradcam"}),
    ({"gradcam": GOOD, "gradient": BAD, "random": GOOD - 0.001 * RANDOM.normal(0, 1, 60)}, set()),
    ({"gradcam": GOOD, "gradient": BAD}, {"gradcam"}),  # marked as not compared with a baseline
])  # fmt: skip
def test_best_row_beats_every_baseline(tmp_path, scores, best):
    know(tmp_path)
    vouch(tmp_path, write(tmp_path, scores))
    rows = sb.load_results(tmp_path).rows
    assert {row.cell.explainer_text for row in rows if row.best} == best
    assert {row.cell.explainer_text for row in rows if row.rank and row.rank[0] == 1} >= {"gradcam"}


def test_records_in_another_order_are_compared_by_image(tmp_path):
    """The difference is 0.1 on every image, so it is significant only if scores are paired by image."""
    random = np.random.default_rng(1)
    scores = random.permutation([0.05, 0.85] * 30) + 0.01 * random.random(60)
    know(tmp_path)
    vouch(tmp_path, write(tmp_path, {"gradcam": scores, "random": scores}))
    better = scores + 0.1 + 0.001 * random.normal(0, 1, 60)
    vouch(tmp_path, write(tmp_path, {"gradient": better[::-1]}, "bob", ids=IDS[::-1]))
    rows = rows_of(sb.load_results(tmp_path))
    assert (rows["gradient", "bob"].rank, rows["gradcam", "ada"].rank) == ((1, 1), (2, 3))


def test_baseline_with_two_rows_must_be_beaten_twice(tmp_path):
    know(tmp_path)
    vouch(tmp_path, write(tmp_path, {"gradcam": GOOD, "random": BAD}))
    vouch(tmp_path, write(tmp_path, {"random": GOOD}, "bob"))
    row = rows_of(sb.load_results(tmp_path))["gradcam", "ada"]
    assert (row.beats, row.not_beaten) == ((), ("random",))


def test_maps_scored_by_the_board_have_no_official_rank(tmp_path):
    """Submit the masks as maps. They score 1, no matter who computes the score."""
    know(tmp_path)
    vouch(tmp_path, write(tmp_path, {"gradcam": GOOD, "random": BAD}))
    vouch(tmp_path, write(tmp_path, {"masks@1": np.ones(60)}, "mallory"), by="maps",
          suspicions={"masks": ["nearly the masks"], "other": ["x"]})  # fmt: skip
    rows = {row.cell.explainer: row for row in sb.load_results(tmp_path).rows}
    masks = rows["masks"]
    assert (masks.status, masks.rank, masks.best, masks.rank_if_true) == ("scored by the board", None, False, (1, 1))
    assert (masks.unranked, masks.suspicions) == (masks.why, ("nearly the masks",))
    assert (rows["gradcam"].rank, rows["gradcam"].best, rows["random"].rank) == ((1, 1), True, (2, 2))
    assert sb.load_results(tmp_path).table()["recomputed"][:] == [8, 8, 8]


def test_changed_submission_loses_its_status(tmp_path):
    know(tmp_path)
    folder = write(tmp_path, {"gradcam": GOOD, "random": BAD})
    vouch(tmp_path, folder)
    content = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(content | {"note": "another note"}))
    assert [row.status for row in sb.load_results(tmp_path).rows] == ["checked", "checked"]


def test_submission_rejected_by_the_owner_is_refused(tmp_path):
    know(tmp_path)
    vouch(tmp_path, write(tmp_path, {"gradcam": GOOD}), refused="gradcam scores 0.1 on image 001, not 0.9")
    board = sb.load_results(tmp_path)
    assert board.rows == []
    assert "rejected by the owner of the board: gradcam scores 0.1" in board.refused[0].line


def test_partial_submission_is_claimed_and_not_ranked(tmp_path):
    know(tmp_path)
    write(tmp_path, {"gradcam": GOOD[:55], "random": BAD[:55]}, ids=IDS[:55])
    rows = sb.load_results(tmp_path).rows
    assert {(row.status, row.why, row.rank_if_true) for row in rows} == {
        ("claimed", "the submission contains only 55 of 60 samples", None)
    }


@pytest.mark.parametrize("is_known", [True, False])
def test_copy_with_renamed_ids_replaces_no_row(tmp_path, is_known):
    if is_known:
        know(tmp_path)
    own = write(tmp_path, {"gradcam": BAD, "random": BAD})
    write(tmp_path, {"gradcam": np.full(60, 0.99)}, "mallory", ids=[f"renamed {one}" for one in IDS])
    rows = rows_of(board := sb.load_results(tmp_path))
    row = rows["gradcam", "ada"]
    assert (row.value, row.folder, row.conflict) == (pytest.approx(BAD.mean()), own.relative_to(tmp_path).as_posix(),
                                                     False)  # fmt: skip
    if is_known:
        assert "image_id renamed image 000 is not in saliency-bench/pets" in board.refused[0].line
        assert len(rows) == 2
    else:
        assert rows["gradcam", "mallory"].not_comparable == "the row shares no sample with any other row"
        assert len(rows) == 3


def test_copy_with_more_samples_replaces_no_row(tmp_path):
    write(tmp_path, {"gradcam": BAD[:30]}, ids=IDS[:30])
    both = np.concatenate([BAD[:30], np.full(30, 0.99)])
    write(tmp_path, {"gradcam": both}, "mallory")
    rows = rows_of(board := sb.load_results(tmp_path))
    assert (board.conflicts, rows["gradcam", "ada"].value) == ([], pytest.approx(BAD[:30].mean()))
    assert rows["gradcam", "mallory"].value == pytest.approx(both.mean())


def test_equal_submissions_share_one_row(tmp_path):
    know(tmp_path)
    shuffled = RANDOM.permutation(60)
    write(tmp_path, {"gradcam": GOOD})
    write(tmp_path, {"gradcam": GOOD[shuffled]}, "bob", ids=[IDS[place] for place in shuffled])
    (row,) = sb.load_results(tmp_path).rows
    assert row.submitters == ("ada", "bob")
    assert not row.conflict


def test_names_of_known_methods_come_from_the_package(tmp_path):
    know(tmp_path)
    texts = {"explainer_text": "grad-cam++ (ours)", "baseline": True, "metric_text": "accuracy", "note": "official"}
    lies = [cell.model_dump(mode="json") | texts for cell in submission({"gradcam": GOOD}).result.cells]
    submission({"gradcam": GOOD}, cells=lies).write(tmp_path)
    (row,) = sb.load_results(tmp_path).rows
    cell = row.cell
    assert (cell.explainer_text, cell.metric_text, cell.baseline, cell.note) == ("gradcam", "saliency_miou", False, "")


def test_hub_table_matches_board_and_keeps_types_when_empty(tmp_path):
    write(tmp_path, {"gradcam": GOOD, "random": BAD})
    board = sb.load_results(tmp_path)
    read, empty = (pq.read_table(pa.BufferReader(table_of(each))) for each in (board, None))
    assert read.to_pylist() == board.cells == list(board.table())
    assert read.schema.equals(empty.schema)
    assert empty["explainer"].to_pylist() == [NO_RESULT]


def test_submission_with_too_many_methods_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "MOST_METHODS", 3)
    scores = {f"own{number}@1": np.linspace(0, 1, 60) for number in range(4)}
    write(tmp_path, dict(list(scores.items())[:3]), "ada")
    write(tmp_path, scores, "mallory")
    monkeypatch.setattr(
        submission_cache, "bounded", lambda function, *args: function(*args)
    )  # in this module, where the limit is changed
    board = sb.load_results(tmp_path)
    assert {row.submitters for row in board.rows} == {("ada",)}
    (refused,) = board.refused
    assert "has 4 methods for saliency_miou, more than the limit of 3 per metric" in refused.line


def test_many_checked_rows_of_an_account_change_no_other_rank(tmp_path, monkeypatch):
    """Submit many rows from one account. The ranks of other rows do not depend on their number.

    Rows of accounts with few submissions are the first to get a provisional rank.
    """
    monkeypatch.setattr(board_module, "MOST_CHECKED", 21)
    draw = np.random.default_rng(3)
    know(tmp_path)
    vouch(tmp_path, write(tmp_path, {"gradcam": draw.normal(0.5, 0.1, 60).clip(0, 1), "random": BAD}))
    write(tmp_path, {"few@1": draw.normal(0.56, 0.1, 60).clip(0, 1)}, "bob")

    def ranks():
        rows = {row.cell.explainer: row for row in sb.load_results(tmp_path).rows}
        return rows, {name: (rows[name].rank, rows[name].rank_if_true) for name in ("gradcam", "random", "few")}

    _, before = ranks()
    assert before == {"gradcam": ((1, 1), None), "random": ((2, 2), None), "few": (None, (1, 1))}
    write(tmp_path, {f"many{number}@1": draw.uniform(0, 1, 60) for number in range(22)}, "mallory")
    rows, after = ranks()
    assert after == before
    left_out = [row for name, row in rows.items() if name.startswith("many") and row.rank_if_true is None]
    assert (len(left_out), {row.unranked for row in left_out}) == (2, {board_module.TOO_MANY})


def test_renamed_copy_names_the_original(tmp_path):
    """Submit copied maps under another file name and another method name.

    Their scores equal the scores of the original, apart from the differences that another machine may cause.
    """
    shuffled, flat = np.random.default_rng(0).permutation(60), np.array([np.nan] + [0.0] * 59)
    write(tmp_path, {"hers@1": GOOD, "gradcam": GOOD, "flat@1": flat}, "ada")
    copied = {"his@2": GOOD[shuffled] * (1 + 5e-6), "flat@2": flat[shuffled]}
    submission(copied, "mallory", [IDS[place] for place in shuffled]).write(tmp_path)
    write(tmp_path, {"near@1": GOOD - 1e-4}, "bob")
    rows = {(row.cell.explainer, row.submitters): row.same_as for row in sb.load_results(tmp_path).rows}
    assert rows["his", ("mallory",)] == ("gradcam by ada", "hers by ada")
    assert rows["hers", ("ada",)] == ("gradcam by ada", "his by mallory")
    assert not any(same for (name, _), same in rows.items() if name not in ("his", "hers"))


def cell_lie(**lie):
    def edit(content):
        content["cells"][0] |= lie

    return edit


def model_lie(**lie):
    def edit(content):
        content["model"] |= lie

    return edit


def accuracy(**lie):
    return model_lie(accuracy={"value": 0.5, "low": 0.4, "high": 0.6, "n": 60, "clusters": 60} | lie)


@pytest.mark.parametrize(("edit", "words"), [
    (cell_lie(value=0.99), "value of cell"), (cell_lie(low=-9.0), "low of cell"),
    (cell_lie(higher_is_better=False), "higher_is_better of cell"),
    (cell_lie(range=[0.0, 0.9]), "range of cell"), (cell_lie(n=61), "cells.0.n is 61"),
    (cell_lie(flat=3), "flat of cell"),
    (cell_lie(left_out={"it was hard": 3}), "left_out of cell"),
    (cell_lie(marked={"checked by the owner": 3}), "marked of cell"),
    (cell_lie(cell_id="0" * 16), "cell_id"), (cell_lie(rank=[1, 1], unranked=None), "rank of cell"),
    (accuracy(high=1.1), "accuracy.high is 1.1, but must be between 0 and 1"),
    (accuracy(low=-9.0), "accuracy.low is -9.0"),
    (lambda content: content["dataset"].update(used=10**30), "dataset.used"),
    (lambda content: content["dataset"].update(used=61, samples=61), "has 60 images, but dataset.used is 61"),
    (lambda content: content["dataset"].update(samples=10**30), "dataset.samples"),
    (lambda content: content["setting"].update(seed=10**30), "setting.seed"),
    (lambda content: content["dataset"].update(samples=59), "dataset.samples"),
    (lambda content: content["dataset"].update(samples=600), "dataset.samples must be 60"),
    (lambda content: content.update(note="\u202egood"), "the text of note cannot be printed"),
    (lambda content: content.update(note="\x1b[2J"), "the text of note cannot be printed"),
    (model_lie(id="net\u2066"), "the text of model.id cannot be printed"),
    (lambda content: content["provenance"].update(more=[[["\x07"]]]), "cannot be printed"),
    (lambda content: content.update(submitter="../ada"), "submitter"),
    (lambda content: content["setting"].update(precision="verified by Google"), "which is not a valid precision"),
    (lambda content: content.update(link="https://google.com@evil.example/"), "link: must be an https URL"),
    (lambda content: content.update(link="https://www.göögle.example/"), "link: must be an https URL"),
    (lambda content: content.update(link="javascript:alert(1)"), "link: must be an https URL"),
    (lambda content: content.update(ran="yesterday"), "ran: String should match"),
    (lambda content: content.update(ran="2099-19-39"), "ran: "),
])  # fmt: skip
def test_forged_result_refuses_only_its_submission(tmp_path, edit, words):
    know(tmp_path)
    folder = write(tmp_path, {"gradcam": GOOD, "gradient": GOOD}, "mallory")
    write(tmp_path, {"random": BAD})
    content = json.loads((folder / "result.json").read_text())
    edit(content)
    (folder / "result.json").write_text(json.dumps(content))
    assert_only_ada_is_accepted(tmp_path, words)


def assert_only_ada_is_accepted(root, words):
    board = sb.load_results(root)
    assert ([row.submitters for row in board.rows], len(board.table())) == ([("ada",)], 1)
    (refused,) = board.refused
    assert words in refused.line
    assert refused.line.isprintable()
    assert str(root) not in refused.line


def doubled(table):
    columns = [*table.columns, table["value"]]
    return pa.Table.from_arrays(columns, names=[*table.schema.names, "value"])


def replaced(table, name, values):
    return table.set_column(table.schema.get_field_index(name), table.schema.field(name), pa.array(values))


@pytest.mark.parametrize(("edit", "words"), [
    (doubled, 'column "value" occurs twice'),
    (lambda t: replaced(t, "group", ["one", *[None] * 119]), "has two groups"),
    (lambda t: replaced(t, "group", ["one", *[None] * 59] * 2), "group of image image 000 is None"),
    (lambda t: replaced(t, "reason", ["\x1b[31mred", *[None] * 119]), 'column "reason" contains a string that cannot'),
    (lambda t: replaced(t, "value", [None, *t["value"].to_pylist()[1:]]), "or null with a reason"),
    (lambda t: replaced(t, "explainer_options", ["{}"] * 60 + ['{"a": 1}'] * 60), "explainer_options of cell"),
    (lambda t: t.slice(0, 61), "has 61 rows, but must have 120: one row for each combination of an image (60)"),
    (lambda t: t.slice(0, 60), "but must have 120: one row for each combination of an image (60) and a score"),
])  # fmt: skip
def test_forged_records_refuse_only_their_submission(tmp_path, edit, words):
    know(tmp_path)
    folder = write(tmp_path, {"gradient": GOOD, "random": GOOD}, "mallory")
    write(tmp_path, {"random": BAD})
    pq.write_table(edit(pq.read_table(folder / "records.parquet")), folder / "records.parquet")
    assert_only_ada_is_accepted(tmp_path, words)


def test_samples_need_the_groups_of_the_dataset(tmp_path):
    """Test records without groups. Their samples would count as independent, so intervals would be too narrow."""
    know(tmp_path, groups=[f"scene {number // 2}" for number in range(60)])
    write(tmp_path, {"gradcam": GOOD, "random": BAD})
    (refused,) = sb.load_results(tmp_path).refused
    assert "the group of image image 000 is scene 0 in saliency-bench/pets, not None" in refused.line


def test_score_must_equal_mean_of_its_parts(tmp_path):
    parts = {name: RANDOM.random(60) for name in load_metric("saliency_consistency").parts(None)}
    folder = write(tmp_path, {"gradcam saliency_consistency": parts})
    assert not sb.load_results(tmp_path).refused
    table = pq.read_table(folder / "records.parquet")
    values, is_part = table["value"].to_numpy().copy(), table["part"].is_valid().to_numpy(zero_copy_only=False)
    first = np.flatnonzero(~is_part)[:2]
    values[first] = values[first] + [0.1, -0.1]  # the mean does not change
    pq.write_table(replaced(table, "value", values), folder / "records.parquet")
    assert "but the score derived from its parts is" in sb.load_results(tmp_path).refused[0].line


def test_parts_of_unknown_metric_must_be_inside_its_range(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "load_metric", lambda name: replace(load_metric(name), version="another"))
    parts = {"left": np.full(60, 0.25), "right": np.full(60, 0.75)}
    write(tmp_path / "inside", {"gradcam": parts})
    assert not sb.load_results(tmp_path / "inside").refused
    parts["left"][0], parts["right"][0] = -0.25, 1.25  # their mean is still 0.5
    write(tmp_path / "outside", {"gradcam": parts})
    (refused,) = sb.load_results(tmp_path / "outside").refused
    assert "part left of cell" in refused.line
    assert "outside its range from 0 to 1" in refused.line


def test_submission_in_another_folder_is_refused(tmp_path, capsys):
    folder = write(tmp_path, {"gradcam": GOOD})
    shutil.copytree(folder, folder.with_name("bob-0123"))
    board = sb.load_results(tmp_path)
    assert [row.submitters for row in board.rows] == [("ada",)]
    assert "its content belongs in the folder" in board.refused[0].line
    assert f"skipped: {board.refused[0].line}" in capsys.readouterr().err


def test_damaged_files_of_the_owner_are_ignored(tmp_path):
    write(tmp_path, {"gradcam": GOOD})
    know(tmp_path).write_text("{")
    board = sb.load_results(tmp_path)
    assert [row.status for row in board.rows] == ["claimed"]
    assert board.refused[0].line.startswith(f"datasets/{'f' * 64}.json: ")


def test_cache_removes_the_oldest_entry(tmp_path, monkeypatch):
    monkeypatch.setenv("SALIENCY_BENCH_CACHE", str(tmp_path / "cache"))
    write(tmp_path, {"gradcam": GOOD, "random": BAD})
    sb.load_results(tmp_path)
    (first,) = (cache_folder() / "board").glob("*.npz")
    os.utime(first, (1, 1))
    monkeypatch.setattr(submission_cache, "MOST_KEPT", first.stat().st_size + 100)
    write(tmp_path, {"gradcam": BAD, "random": GOOD}, "bob")
    assert len(sb.load_results(tmp_path).results) == 2
    (second,) = (cache_folder() / "board").glob("*.npz")
    assert second != first


def test_ranks_are_cached_until_a_row_changes(tmp_path, monkeypatch):
    know(tmp_path)
    draw = np.random.default_rng(0)
    scores = {"gradcam": draw.normal(0.7, 0.1, 60).clip(0, 1), "random": [np.nan, *draw.uniform(0, 0.5, 59)]}
    first = write(tmp_path, scores)
    before = sb.load_results(tmp_path)
    assert [(row.rank, row.rank_if_true) for row in before.rows] == [(None, (1, 1)), (None, (2, 2))]
    with monkeypatch.context() as patch:
        patch.setattr(submission_cache, "read_checked", None)  # not called again
        assert sb.load_results(tmp_path).rows == before.rows
    calls = []
    monkeypatch.setattr(submission_cache, "places", lambda *given: calls.append(1) or places(*given))
    assert (sb.load_results(tmp_path).cells, calls) == (before.cells, [])
    for kept in (cache_folder() / "board").glob("*.json"):
        kept.write_text('{"other": null}')
    assert (sb.load_results(tmp_path).cells, len(calls)) == (before.cells, 1)
    vouch(tmp_path, first)  # now these rows have official ranks
    assert [row.rank for row in sb.load_results(tmp_path).rows] == [(1, 1), (2, 2)]
    write(tmp_path, {"rise": draw.normal(0.8, 0.05, 60).clip(0, 1)}, "bob")
    assert [(row.cell.explainer, row.rank, row.rank_if_true) for row in sb.load_results(tmp_path).rows] == [
        ("gradcam", (1, 1), None), ("random", (2, 2), None), ("rise", None, (1, 1))]  # fmt: skip
    assert len(calls) == 3


@pytest.mark.parametrize(("content", "is_refused"), [
    ({"note": "two\nlines", "cells": [{"name": "plain", "n": 1.5, "none": None}]}, False),
    ({"note": "a line\nand \u202eanother"}, True), ({"note": "x\n" * 6000}, True),
    ({"note": {"deep": "two\nlines"}}, True), ({"cells": [[{"name": "two\nlines"}]]}, True),
    ({"cells": {"\x1b": 1}}, True),
    ({"cells": [dict.fromkeys(map(str, range(1001)), 0)]}, True),
    (dict.fromkeys(map(str, range(1000)), 0), False), (dict.fromkeys(map(str, range(1001)), 0), True),
    (["x" * 10_001], True),
])  # fmt: skip
def test_unprintable_or_long_texts_are_refused(content, is_refused):
    with (
        pytest.raises(ValueError, match=r"cannot be printed|has [\d,]+ (characters|names)")
        if is_refused
        else nullcontext()
    ):
        submission_schema.check_texts(content)


@pytest.mark.slow
def test_loading_a_board_does_not_import_datasets(tmp_path):
    know(tmp_path)
    write(tmp_path, {"gradcam": GOOD, "random": BAD})
    code = (
        "import sys, saliency_bench as sb; board = sb.load_results(sys.argv[1]); assert len(board.rows) == 2;"
        "assert not {'datasets', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)


def test_dictionary_with_a_repeated_string_is_refused():
    """Test a dictionary that contains a string twice. The two entries would count as two groups or as two images."""
    doubled = submission({"gradcam": GOOD})
    labels = pa.DictionaryArray.from_arrays(np.arange(60, dtype=np.int32) % 2, ["a", "a"])
    table = doubled.records.set_column(doubled.records.column_names.index("label"), "label", labels)
    with pytest.raises(UserError, match='the dictionary of column "label" contains null or a duplicate string'):
        recorded(doubled.result, table, Path("records.parquet"))


@pytest.fixture(scope="module")
def board_with_index(tmp_path_factory):
    """Write an indexed board with ranks, a conflict, a refused submission, groups, and names that the owner chose."""
    root = tmp_path_factory.mktemp("indexed")
    good = np.random.default_rng(1).normal(0.7, 0.1, 60).clip(0, 1)
    know(root)
    vouch(root, write(root, {"gradcam": good, "random": BAD, "gradient": GOOD * 0.8}))
    write(root,
          {"gradcam": good - 0.1, "mine@1": [np.nan, *GOOD[1:]], "gradcam saliency_pointing_game": np.ones(60)},
          "bob")  # fmt: skip
    vouch(root, write(root, {"mine@2": BAD}, "cy"), by="maps", suspicions={"mine": ["nearly the masks"]})
    (write(root, {"rise": GOOD}, "eve") / "records.parquet").unlink()
    write_known(root, KnownModel(id="saliency-bench/net", digest=DIGEST))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SALIENCY_BENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        index.write_index(root)
    return root


@pytest.fixture
def indexed(board_with_index, tmp_path):
    return shutil.copytree(board_with_index, tmp_path / "indexed")


def pages_of(folder):
    shown = Live(folder).page
    return [shown.show(query) for query in ("", "metric=saliency_miou", "tab=overall")]


def test_board_is_the_same_with_and_without_its_index(indexed, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(opening, "read_board", None)
        fast, pages = sb.load_results(indexed), pages_of(indexed)
    (indexed / index.INDEX).unlink()
    slow = sb.load_results(indexed)
    assert {row.status for row in slow.rows} == {"run by the board", "scored by the board", "checked"}
    assert (len(slow.conflicts), len(slow.refused), fast, pages) == (1, 1, slow, pages_of(indexed))


def _replace_in_index(before, after):
    def change(folder):
        path = folder / index.INDEX
        content = path.read_text()
        assert before in content
        path.write_text(content.replace(before, after, 1))

    return change


def _remove(pattern):
    return lambda folder: next(folder.glob(pattern)).unlink()


@pytest.mark.parametrize("change", [
    lambda folder: write(folder, {"occlusion": GOOD}, "dan"),  # one more submission
    lambda folder: shutil.rmtree(next(folder.glob("*/*/bob-*"))),
    _remove("*/*/bob-*/records.parquet"),
    lambda folder: next(folder.glob("*/*/bob-*/result.json")).write_text("{}"),
    _remove("status/*.json"), _remove("models/*.json"),
    lambda folder: next(folder.glob("status/*.json")).write_text("{}"),
    lambda folder: (folder / index.INDEX).write_text("{"),
    lambda folder: (folder / index.INDEX).write_bytes((folder / index.INDEX).read_bytes()[:-9]),
    _replace_in_index('"status":"checked"', '"status":"run by the board"'),  # forged by someone with write access
    _replace_in_index('"samples":8', '"samples":60'), _replace_in_index('"value":0.', '"value":0.9'),
    _replace_in_index('"folders":["', '"folders":["../'),
])  # fmt: skip
def test_outdated_or_forged_index_is_ignored(indexed, change):
    change(indexed)
    found = sb.load_results(indexed)
    (indexed / index.INDEX).unlink()
    assert found == sb.load_results(indexed)


def test_index_of_another_version_is_ignored(indexed, monkeypatch):
    reads = []
    monkeypatch.setattr(opening, "read_board", lambda *given: reads.append(given))
    monkeypatch.setattr(index, "code_hash", lambda: "another")
    with pytest.raises(AttributeError):
        sb.load_results(indexed)
    assert len(reads) == 1


def test_names_like_a_known_method_show_their_version(tmp_path):
    names = ["GradCAM", "grad-cam", "Grad_CAM.", "gradcams"]
    write(tmp_path, {f"{name}@0123456789abcdef": GOOD for name in names})
    rows = sb.load_results(tmp_path).rows
    assert all(row.own_method for row in rows)
    shown = {row.cell.explainer_text for row in rows}
    assert shown == {*(f"{name} (version 012345)" for name in names[:3]), "gradcams"}


@pytest.mark.parametrize(
    "name",
    ["gradcam\u00a0", "gradc\u0430m", "gradcam@2", "\u115f", "gra\u0301\u0301\u0301dcam", "\uff47radcam", "a" * 101, "",
     "gradcam(official)", "gradcam,rank1", "<b>",
     "absolute(gradc\u0430m)", f"absolute({'a' * 400})", "@ada", "-1"],
)  # fmt: skip
def test_lookalike_and_invisible_names_are_refused(tmp_path, name):
    path = write(tmp_path, {"mine@0123456789abcdef": GOOD, "gradcam": GOOD}) / "result.json"
    content = json.loads(path.read_text())
    content["cells"][0]["explainer"] = name
    path.write_text(json.dumps(content))
    assert refused(r"cells\.0\.explainer", read_result, path).isascii()
    content["cells"][0]["explainer"] = "mine"
    content["cells"][0]["metric"] = name
    path.write_text(json.dumps(content))
    refused(r"cells\.0\.metric", read_result, path)


@pytest.mark.parametrize("chosen", [{"note": "gradc\u0430m"}, {"\u115f": 1}, {"note": "x" * 1500}, {"note": "a\x7f"}])
def test_unreadable_options_are_refused(chosen):
    assert "options that a board does not accept" in refused_label("mine", chosen)


def test_names_of_honest_methods_are_accepted():
    def my_method(classifier, images, target):
        return images.mean(1)

    class Own:
        def __call__(self, classifier, images, target):
            return images.mean(1)

    nameless = lambda classifier, images, target: images.mean(1)  # noqa: E731
    methods = [my_method, nameless, partial(my_method), Own(), absolute(my_method),
               smoothed("gradient:reduction=sum", draws=3), positive(blurred("gradcam")),
               over_layers("gradcam", ["layer3", "layer4.1"])]  # fmt: skip
    for method in (*map(as_explainer, methods), *map(load_explainer, list_explainers())):
        assert refused_label(method.name, dict(method.options)) == ""
    assert {kind for method in methods for kind in re.findall(r"(\w+)\(", as_explainer(method).name)} == set(COMPOSING)
    for name in list_metrics():
        assert refused_label(name, dict(load_metric(name).options)) == ""
