"""Tests of `saliency-bench check`: it compares a run with bounds or an earlier run, and sets the exit code."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from commands import refusal, said
from refusals import refused
from scipy import stats
from scored_cells import run_in_memory
from test_reporting import _key, _result, make_run

import saliency_bench as sb
from saliency_bench.cli import main
from saliency_bench.read.analysis.requirements import CheckedRequirement, Requirement, check, find_cell
from saliency_bench.read.cell import CellResult, as_json
from saliency_bench.read.finished_run import load_run, read_run
from saliency_bench.read.statistics.clusters import Matched
from saliency_bench.read.statistics.intervals import p_with_failures
from saliency_bench.read.statistics.paired_test import FLIPS
from saliency_bench.read.summary import summarise
from saliency_bench.utils.files import read_json, write_json
from saliency_bench.utils.hashing import sha256_of

MIOU = {"gradcam": 0.55, "random": 0.22}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("check") / "run", methods=MIOU, pictures=False)


def shifted(folder, out, change):
    from test_reporting import _facts, part_of

    part_of(folder, out, tuple(MIOU))
    table = pq.read_table(out / "records.parquet").to_pydict()
    rows = zip(table["explainer"], table["metric"], table["value"], strict=True)
    table["value"] = [
        float(np.clip(value + change, 0, 1))
        if value is not None and (explainer, metric) == ("gradcam", "saliency_miou")
        else value
        for explainer, metric, value in rows
    ]
    pq.write_table(pq.read_table(out / "records.parquet").from_pydict(table, pq.read_schema(out / "records.parquet")),
                   out / "records.parquet")  # fmt: skip
    summarise(out, _facts(90, 0))
    return out


def ends(run, name="gradcam", metric="saliency_miou"):
    cell = find_cell(f"{name}:{metric}", read_run(run))
    return cell.low, cell.value, cell.high


@pytest.mark.parametrize(
    ("sign", "side", "verdict", "code"),
    [(">=", -1, "met", 0), (">=", 0, "undecided", 0), (">=", 1, "failed", 1),
     ("<=", -1, "failed", 1), ("<=", 0, "undecided", 0), ("<=", 1, "met", 0)],
)  # fmt: skip
def test_requirement_fails_if_the_interval_excludes_it(run, capsys, sign, side, verdict, code):
    low, value, high = ends(run)
    bound = (low - 1e-6, value, high + 1e-6)[side + 1]
    assert main(["check", str(run), "--require", f"gradcam:saliency_miou{sign}{bound!r}"]) == code
    (line,) = capsys.readouterr().out.splitlines()
    assert line.split()[0] == verdict
    assert f"{value:.3f} [{low:.3f}, {high:.3f}], n = 60" in line


def test_python_calls_match_the_commands(run, tmp_path, capsys):
    """Compare `sb.check`, `sb.power` and `sb.report` with the JSON and the files of the commands."""

    def shown(*words):
        main([*words, "--json"])
        return json.loads(capsys.readouterr().out)

    def plain(frame):
        return frame.astype(object).where(frame.notna(), None).to_dict("records")

    rules = ("gradcam:saliency_miou>=0.3", "random:saliency_miou>=0.5", "gradcam:saliency_miou>random")
    worse = shifted(run, tmp_path / "worse", -0.2)
    for against in (None, worse):
        words = ["check", str(run), "--require", rules[0], "--require", *rules[1:]]
        words += ["--against", str(against)] if against else []
        entries = shown(*words)["requirements"]
        frame = sb.check(load_run(run), *rules, against=against)
        assert plain(frame.drop(columns=["passed", "line"])) == entries
        assert main(words) == 1  # one of the requirements has failed
        assert capsys.readouterr().out.splitlines() == list(frame["line"])
        assert frame.equals(load_run(run).check(*rules, against=against))
    alone = shown("check", str(run), "--require", rules[1])
    expected = dict(zip(("low", "value", "high"), ends(run, "random"), strict=True))
    assert alone["requirements"][0].items() >= (expected | {"n": 60, "verdict": "failed", "against": None}).items()
    assert alone["passed"] is False
    line = ["power", "--run", str(run), "--difference", "0.02"]
    assert plain(sb.power(run, difference=0.02)) == shown(*line)["needed"]
    strict = sb.power(run, difference=0.02, power=0.95, single=True)
    assert plain(strict) == shown(*line, "--power", "0.95", "--single")["needed"] != shown(*line)["needed"]
    words = ("--spread", "0.2", "--difference", "0.05", "--cluster-size", "6", "--correlation", "0.3")
    assumed = sb.power(spread=0.2, difference=0.05, cluster_size=6, correlation=0.3)
    (needed,) = shown("power", *words)["needed"]
    assert {name: needed[name] for name in ("spread", "clusters", "images")} == {
        name: assumed[name].item() for name in ("spread", "clusters", "images")
    }
    shown("report", str(run), "--out", str(tmp_path / "a.html"))
    assert sb.report(load_run(run), tmp_path / "b.html").read_bytes() == (tmp_path / "a.html").read_bytes()
    for call in (
        lambda: sb.power(difference=0.1),
        lambda: sb.power(run, spread=1, difference=0.1),
        lambda: sb.check(run),
    ):
        refused(r"either a run or a spread|requirements as separate strings", call)


@pytest.mark.parametrize(
    ("change", "word", "code"), [(0.2, "better", 0), (-0.2, "worse", 1), (0.0, "no difference", 0)]
)
def test_explainer_that_became_worse_fails(run, tmp_path, capsys, change, word, code):
    now = shifted(run, tmp_path / "now", change)
    words = ["check", str(now), "--require", "gradcam:saliency_miou>=0.1", "--against", str(run)]
    assert main(words) == code
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("failed" if code else "met")
    assert word in line
    main([*words, "--json"])
    earlier = json.loads(capsys.readouterr().out)["requirements"][0]["against"]
    both = [read_run(folder) for folder in (run, now)]
    scores = [one.scores.values[find_cell("gradcam:saliency_miou", one).cell_id] for one in both]
    difference = (scores[1] - scores[0])[np.isfinite(scores[0])]
    assert (earlier["mean"], earlier["is_worse"]) == (pytest.approx(difference.mean()), bool(code))
    # All differences have one sign, so flips reach the sum only by chance; equal scores have no differences.
    assert earlier["p"] == (1.0 if change == 0 else pytest.approx(1 / (FLIPS + 1)))


def test_only_required_explainers_are_compared(run, tmp_path):
    """Test that only required explainers are tested: the p-value of one pair equals the p-value of a single test."""
    now = read_run(shifted(run, tmp_path / "now", 0.1))
    before = read_run(run)
    cell = find_cell("gradcam:saliency_miou", now)
    (alone,) = check(now, [Requirement.read("gradcam:saliency_miou>=0.1")] * 1, before)
    twice = check(now, [Requirement.read(f"gradcam:saliency_miou{text}") for text in (">=0.1", "<=0.9")], before)
    assert {one.pair.p for one in (alone, *twice)} == {alone.pair.p}
    known = np.isfinite(now.scores.values[cell.cell_id])
    scores = [of_run.scores.values[cell.cell_id][known] for of_run in (now, before)]
    differences = scores[0] - scores[1]
    flips = np.random.default_rng(0).choice([-1, 1], (20000, len(differences))) @ differences
    unseen = p_with_failures(Matched(scores, np.arange(len(differences)), (0.0, 1.0)), 0, 1)
    expected = max(np.mean(np.abs(flips) >= abs(differences.sum())), unseen[0], 2 * unseen[1])
    assert alone.pair.p == pytest.approx(expected, abs=0.02)


def test_explainer_versions_may_differ_but_metric_versions_not(run, tmp_path, capsys):
    """Test a function whose version changes with its code. Users run the command after they have changed the code."""
    for what, code in (("explainer_version", 0), ("metric_version", 2)):
        now = tmp_path / what
        shifted(run, now, 0.0)
        summary = read_json(now / "summary.json")
        for cell in summary["cells"]:
            cell[what] = "0123456789abcdef"
        write_json(now / "summary.json", summary)
        line = ["check", str(now), "--require", "gradcam:saliency_miou>=0.1", "--against", str(run)]
        assert main(line) == code
    assert "version 1 in" in capsys.readouterr().err


def test_names_with_options_refer_to_cells_of_the_run(run):
    data = read_run(run)
    base = find_cell("gradcam:saliency_miou", data)

    def cell(explainer, options, metric, chosen, number):
        about = {"explainer": explainer.partition(":")[0], "explainer_text": explainer, "explainer_options": options,
                 "explainer_id": f"{number:016x}", "metric": metric.partition(":")[0], "metric_text": metric,
                 "metric_options": chosen, "cell_id": f"{number + 100:016x}"}  # fmt: skip
        return CellResult(**(dict(base) | about))

    cells = [cell("rise:masks=100", {"masks": 100, "p": 0.5}, "saliency_miou:threshold=0.3", {"threshold": 0.3}, 1),
             cell("rise:masks=100", {"masks": 100, "p": 0.5}, "saliency_miou", {"threshold": 0.5}, 1),
             cell("rise", {"masks": 4000, "p": 0.5}, "saliency_miou", {"threshold": 0.5}, 2),
             cell("mine:at=a:b", {"at": "a:b"}, "saliency_miou", {"threshold": 0.5}, 3)]  # fmt: skip
    known = replace(data, summary={"cells": as_json(cells)})

    def named(names):
        found = find_cell(names, known)
        return found.explainer_text, found.metric_text

    assert named("rise:masks=100:saliency_miou:threshold=0.3") == ("rise:masks=100", "saliency_miou:threshold=0.3")
    assert named("rise:p=0.5,masks=100:saliency_miou") == ("rise:masks=100", "saliency_miou")
    assert named("rise:saliency_miou:threshold=0.5") == ("rise", "saliency_miou")
    assert named("rise:masks=4000:saliency_miou") == ("rise", "saliency_miou")
    assert named("mine:at=a:b:saliency_miou") == ("mine:at=a:b", "saliency_miou")
    for unknown in ("rise:masks=200:saliency_miou", "rise:saliency_miou:threshold=0.3", "mine:saliency_miou"):
        refused(r"unknown .*rise:saliency_miou|unknown .*mine", named, unknown)
    assert Requirement.read("rise:masks=100:saliency_miou:threshold=0.3>=0.2") == Requirement(
        "rise:masks=100:saliency_miou:threshold=0.3", True, 0.2
    )
    assert Requirement.read(" a:b:fill=x>=1 <= -2e-1 ") == Requirement("a:b:fill=x>=1", False, -0.2)


UNBOUNDED = {"range": (0.0, None)}, "is unbounded, so rare failures are not ruled out"


@pytest.mark.parametrize(("verdict", "rule", "update", "words", "shown"), [
    ("met", ">=0.01", {}, "no interval", False),
    ("met", ">=0.01", {"low": None, "high": None}, "no interval: all scores are equal", True),
    ("met", ">=0.001", {"n": 60, "clusters": 15}, "n = 60 in 15 clusters, few samples; with so few samples, no "
     "violation would be detected reliably", True),
    ("met", ">=0.1", *UNBOUNDED, False), ("met", "<=0.9", *UNBOUNDED, True), ("met", ">random", *UNBOUNDED, True),
    ("failed", ">=0.9", *UNBOUNDED, True), ("failed", "<=0.1", *UNBOUNDED, False),
])  # fmt: skip
def test_line_states_limits_of_the_scores(run, verdict, rule, update, words, shown):
    cell = find_cell("gradcam:saliency_miou", read_run(run)).model_copy(update=update)
    line = CheckedRequirement(Requirement.read(f"gradcam:saliency_miou{rule}"), cell, cell, 0.95).line("")
    assert line.startswith(verdict)
    assert (words in line) == shown


def at_their_bounds(seed, count, samples, between=(0.3, 0.7)):
    """Return a run of 0/1 scores with known true shares, and requirements whose bounds are these shares."""
    rng = np.random.default_rng(seed)
    shares = {f"method{number}": share for number, share in enumerate(rng.uniform(*between, count))}
    run = scored_run({name: (rng.random(samples) < share) * 1.0 for name, share in shares.items()}, samples)
    return run, [Requirement(f"{name}:saliency_miou", True, share) for name, share in shares.items()]


def scored_run(columns, samples):
    cells, values = [], {}
    for number, (name, scores) in enumerate(columns.items()):
        key = _key(name, "saliency_miou", number)
        values[key.cell_id] = np.asarray(scores, float)
        cells.append(_result(key, int(np.isfinite(scores).sum()), float(np.nanmean(scores)), 0.0, 1.0))
    ids = [f"i{number:04d}" for number in range(samples)]
    return run_in_memory(cells, ids, values, seed=0)


def test_many_true_requirements_keep_the_error_rate():
    """Test 20 true requirements at their bounds. Without correction, one of them fails in 40 % of the runs."""
    failed = [any(not one.passed for one in check(*at_their_bounds(seed, 20, 200))) for seed in range(120)]
    assert sum(failed) <= 120 * (0.05 + 2 * (0.05 * 0.95 / 120) ** 0.5)
    alone = [any(not check(run, [one])[0].passed for one in several)
             for run, several in (at_their_bounds(seed, 20, 200) for seed in range(40))]  # fmt: skip
    assert sum(alone) > 8


def test_rare_scores_keep_the_error_rate():
    """Test a true share of .98.

    In 8 % of the runs, at most 47 of 50 scores are 1, and the interval lies below the share.
    """
    failed = [not check(*at_their_bounds(seed, 1, 50, (0.98, 0.98)))[0].passed for seed in range(400)]
    assert sum(failed) <= 400 * (0.025 + 2 * (0.025 * 0.975 / 400) ** 0.5)


def test_holm_levels_match_the_method_by_hand():
    """Test Holm's method by hand.

    Three requirements are judged at 1 - .05 / 3. When one is decided, the other two are judged at 1 - .05 / 2.
    """
    run, _ = at_their_bounds(1, 3, 400)
    means = [cell.value for cell in run.cells]
    rules = [Requirement("method0:saliency_miou", True, means[0] - 0.2), *(
        Requirement(f"method{number}:saliency_miou", True, means[number]) for number in (1, 2))]  # fmt: skip
    first, second, third = check(run, rules)
    assert [round(one.level, 6) for one in (first, second, third)] == [round(1 - 0.05 / 3, 6), 0.975, 0.975]
    for one, level in ((first, 1 - 0.05 / 3), (second, 0.975)):
        hits = int(run.scores.values[one.cell.cell_id].sum())
        theirs = stats.binomtest(hits, 400).proportion_ci(level, "exact")
        assert one.interval.ends == pytest.approx((theirs.low, theirs.high))
    assert [one.verdict for one in (first, second, third)] == ["met", "undecided", "undecided"]
    assert "interval of 98.33 %" in first.line("")
    assert "the interval contains the bound, so these samples are too few to decide" in third.line("")
    (lone,) = check(run, [Requirement("method0:saliency_miou", True, means[0] + 0.02)])
    assert lone.level == 0.95
    # The bound is .02 above the mean and the end of the interval further away: n grows with the square of the ratio.
    assert lone.needed == math.ceil(400 * ((lone.interval.high - means[0]) / 0.02) ** 2)


@pytest.mark.parametrize(
    ("lead", "sign", "verdict"),
    [(0.1, ">", "met"), (0.0, ">", "undecided"), (-0.1, ">", "failed"), (-0.1, "<", "met")],
)
def test_comparison_of_explainers_matches_paired_t_test(lead, sign, verdict):
    rng = np.random.default_rng(3)
    first = rng.uniform(0.3, 0.7, 80)
    second = first - rng.normal(0, 0.2, 80)
    second += (first - second)[20:].mean() - lead
    second[:20] = np.nan
    (checked,) = check(scored_run({"gradcam": first, "random": second}, 80),
                       [Requirement.read(f"gradcam:saliency_miou{sign}random")])  # fmt: skip
    theirs = stats.ttest_1samp((first - second)[20:], 0).confidence_interval()
    assert (checked.verdict, checked.interval.value) == (verdict, pytest.approx(lead, abs=1e-9))
    assert checked.interval.ends == pytest.approx((theirs.low, theirs.high), abs=5e-3)
    assert f"{lead:+.3f} [" in checked.line("")
    assert "n = 60" in checked.line("")
    assert (checked.passes(), checked.passes(strict=True)) == ((verdict != "failed"), (verdict == "met"))


def test_met_requires_enough_samples_to_exclude_rare_failures():
    """Test 50 scores of .75 +- .01. They do not rule out that one score in twenty is 0."""
    narrow = np.random.default_rng(0).normal(0.75, 0.01, 50)
    run = scored_run({"gradcam": narrow, "random": narrow - 0.03}, 50)
    undecided, met = (check(run, [Requirement("gradcam:saliency_miou", True, bound)])[0] for bound in (0.74, 0.6))
    assert (undecided.verdict, met.verdict) == ("undecided", "met")
    assert "rare failures possible" in undecided.line("")
    (ahead,) = check(run, [Requirement.read("gradcam:saliency_miou>random")])
    assert ahead.verdict == "undecided"  # one failure in thirty would reverse a lead of .03
    equal = scored_run({"gradcam": narrow, "random": narrow}, 50)
    judged = check(equal, [Requirement.read(f"gradcam:saliency_miou{sign}random") for sign in "<>"])
    assert [one.verdict for one in judged] == ["undecided"] * 2
    assert all("undecided" in one.line("") for one in judged)


@pytest.mark.parametrize(
    ("law", "bound", "at_least", "requirements"),
    [("0/1", 0.6, True, 5), ("0/1", 0.9, False, 1), ("0/1", 0.96, True, 1), ("uniform", 0.6, False, 1)],
)
def test_smallest_violation_is_detected_with_eighty_percent(law, bound, at_least, requirements):
    def scores(rng, mean):
        """Draw 100 scores. `mean` is measured from the end of the range towards which the bound is violated."""
        drawn = (rng.random(100) < mean) * 1.0 if law == "0/1" else rng.uniform(mean - 0.3, mean + 0.3, 100)
        return drawn if at_least else 1 - drawn

    rng = np.random.default_rng(4)
    rules = [Requirement(f"method{number}:saliency_miou", at_least, bound if at_least else 1 - bound)
             for number in range(requirements)]  # fmt: skip

    def judged(mean):
        """Return the first requirement, checked. The others are at their bound, so Holm does not change the level."""
        means = {f"method{number}": bound if number else mean for number in range(requirements)}
        return check(scored_run({name: scores(rng, of_name) for name, of_name in means.items()}, 100), rules)[0]

    size = np.mean([judged(bound).smallest_violation for _ in range(40)])
    tail = 0.025 / requirements
    if law == "0/1":
        ends = [stats.beta.ppf(1 - tail, hits + 1, 100 - hits) for hits in range(100)]
        hits = max(number for number, end in enumerate(ends) if end < bound)
        # the share for which 80 % of the runs have at most `hits` hits
        mean = stats.beta.ppf(0.2, hits + 1, 100 - hits)
        expected = bound - mean
    else:
        expected = (stats.norm.ppf(1 - tail) + stats.norm.ppf(0.8)) * 0.06 / math.sqrt(12)
    assert size == pytest.approx(expected, rel=0.05 if law == "uniform" else 0.01)
    found = [judged(bound - size).verdict == "failed" for _ in range(60)]
    assert np.mean(found) == pytest.approx(0.8, abs=0.15)


def test_smallest_violation_of_perfect_scores_is_not_zero():
    run = scored_run({"gradcam": np.ones(100), "random": np.zeros(100)}, 100)
    for text in ("gradcam:saliency_miou>=0.9", "random:saliency_miou<=0.1"):
        (checked,) = check(run, [Requirement.read(text)])
        assert checked.smallest_violation == pytest.approx(0.1, abs=0.03)


def test_strict_check_fails_undecided_requirements(run, capsys):
    _, value, _ = ends(run)
    words = ["check", str(run), "--require", f"gradcam:saliency_miou>={value!r}"]
    assert (main(words), main([*words, "--strict"])) == (0, 1)
    lines = said(capsys, ["check", str(run), "--require", "gradcam:saliency_miou>random", "--strict"]).splitlines()
    assert [line.split()[0] for line in lines] == ["undecided", "undecided", "met"]
    assert all("would be detected with 80 % probability" in line for line in lines)
    main([*words, "--strict", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["strict"], found["passed"]) == (True, False)
    table = load_run(run).check(words[-1], "gradcam:saliency_miou>random", strict=True)
    assert table["passed"].tolist() == [False, True]
    assert load_run(run).check(words[-1])["passed"].all()


def test_edited_summary_is_rejected(run, tmp_path, capsys):
    edited = tmp_path / "edited"
    shutil.copytree(run, edited)
    summary = read_json(edited / "summary.json")
    cell = next(
        cell for cell in summary["cells"] if (cell["explainer"], cell["metric"]) == ("gradcam", "saliency_miou")
    )
    cell.update(value=0.9, low=0.89, high=0.91)
    write_json(edited / "summary.json", summary)
    for command in (["check", str(edited), "--require", "gradcam:saliency_miou>=0.8"], ["report", str(edited)],
                    ["analyse", str(edited), "--what", "rank"]):  # fmt: skip
        assert "summary.json has 0.9 for gradcam by saliency_miou" in said(capsys, command, 2)


@pytest.mark.parametrize("changed", ["summary.json", "records.parquet"])
def test_file_with_changed_hash_is_rejected(run, tmp_path, changed):
    edited = shutil.copytree(run, tmp_path / "edited")
    hashes = {path.name: sha256_of(path) for path in edited.iterdir() if path.is_file()}
    write_json(edited / "written.json", {"files": hashes})
    assert read_run(edited).cells == read_run(run).cells
    if changed == "summary.json":
        (edited / changed).write_text((run / changed).read_text() + "\n")
    else:
        pq.write_table(pq.read_table(run / changed), edited / changed, compression="none")
    refused(rf"{changed} has changed since the run wrote it; start the run again", read_run, edited)


@pytest.mark.parametrize(("line", "message"), [
    (["gradcam:saliency_miou>0.3"], "write >= before a number"),
    (["gradcam:saliency_miou>gradcam"], "both explainers are the same"),
    (["gradcam:saliency_miou>rando"], "did you mean"), (["gradcam>random"], "is not a requirement"),
    (["saliency_miou>=0.3"], "EXPLAINER:METRIC"), (["gradcam:saliency_miou>=many"], "'many'"),
    (["gradcam:saliency_miou>=nan"], "'nan'"),
    (["gradcam:saliency_miou>=30"], "from 0 to 1"),
    (["gradcan:saliency_miou>=0.3"], "did you mean gradcam:saliency_miou"),
    (["gradcam:saliency_miou>=0.3", "--against", "nowhere"], "nowhere"),
])  # fmt: skip
def test_invalid_requirements_are_rejected(run, capsys, line, message):
    assert message in refusal(capsys, ["check", run, "--require", *line])


def test_too_few_samples_for_an_interval_are_rejected(tmp_path, capsys):
    few = make_run(tmp_path / "few", samples=12, methods=MIOU, pictures=False)
    assert "8 independent samples" in said(capsys, ["check", str(few), "--require", "gradcam:saliency_miou>=0.9"], 2)


def test_runs_without_common_samples_are_rejected(run, tmp_path, capsys):
    ids = [f"other-{number}" for number in range(90)]
    other = make_run(tmp_path / "other", methods=MIOU, ids=ids, pictures=False)
    line = ["check", run, "--require", "gradcam:saliency_miou>=0.1", "--against", other]
    assert "no samples in common" in refusal(capsys, line)
