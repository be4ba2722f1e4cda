"""Tests of the board page: rows, samples and pairs. All submitted strings are escaped."""

import csv
import io
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace
from urllib.parse import quote

import boards
import numpy as np
import pytest
from boards import METHODS, METRICS, SCENES, put, scores_of
from commands import said
from local_hub import FOUNDER
from refusals import refused
from submissions import IDS, vouch

from saliency_bench.board.source import source_at
from saliency_bench.board.view.archive import Archive
from saliency_bench.board.view.board_page import Page
from saliency_bench.board.view.compared import pairwise, samples_of
from saliency_bench.board.view.core import CoreCell, core_of_board, read_core
from saliency_bench.board.view.live import Live
from saliency_bench.board.view.standings import Standings
from saliency_bench.spaces.leaderboard import app

EVIL = "<script>alert(1)</script>"
METHOD = f"mine:note={EVIL}"  # names of methods are validated, but their options are free text
CORE = {
    "name": "a core",
    "datasets": [
        {"dataset": name, "fingerprint": fingerprint, "model": "net", "digest": digest,
         "families": ["alignment", "faithfulness"]}
        for name, fingerprint, digest in SCENES
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Write a board with two listed datasets, one of them recomputed, and an unknown dataset with hostile strings."""
    root = tmp_path_factory.mktemp("board")
    with pytest.MonkeyPatch.context() as patch:
        for number, scene in enumerate(SCENES):
            boards.know(root, scene)
            vouch(root, put(root, patch, scene, scores_of(METHODS, METRICS, number), note="a note"))
        put(root, patch, SCENES[0], scores_of(["mine@0123456789abcdef"], METRICS, 7), "bob")
        evil = scores_of([f"{METHOD}@0123456789abcdef", "random"], ["saliency_miou"], 8)
        put(root, patch, (EVIL, "e" * 64, "f" * 32), evil, "eve", model=EVIL, note=EVIL, command=EVIL,
            link="https://example.org/'onmouseover=alert(1)".replace("'", ""))  # fmt: skip
    (root / "core.yaml").write_text(json.dumps(CORE))
    return root


@pytest.fixture(scope="module")
def archive(root):
    return Archive.load(root)


@pytest.fixture(scope="module")
def page(archive, root):
    return Page(archive, read_core(root / "core.yaml"))


def key_of(archive, explainer, metric, dataset=SCENES[0][0]):
    wanted = explainer, metric, dataset
    return next(one.key for one in archive.rows if (one.explainer, one.metric, one.dataset) == wanted)


class Outline(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.said = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_data(self, data):
        self.said += [data.strip()] if data.strip() else []


def whole(found):
    return found["head"] + found["form"] + found["body"]


def test_page_rows_match_the_board(archive):
    assert len(archive.rows) == len(archive.board.rows) == 2 * 9 * 4 + 4 + 2
    for shown, row in archive.by_key.values():
        assert (shown.value, shown.low, shown.high, shown.n, shown.rank, shown.status) == (
            row.value, row.low, row.high, row.n, row.rank, row.status)  # fmt: skip
    assert len({one.key for one in archive.rows}) == len(archive.rows)
    one = archive.by_key[key_of(archive, "rise", "saliency_miou")][0]
    assert (one.passes, one.seconds, one.baseline) == (4000, pytest.approx(40), False)


def test_rows_show_their_numbers_and_lost_baselines(archive, page):
    one = archive.by_key[key_of(archive, "gradient", "saliency_miou")][0]
    assert "centre" in one.not_beaten
    assert not set(one.beats) & set(one.not_beaten)
    best = archive.by_key[key_of(archive, "gradcam", "saliency_miou")][0]
    assert (best.beats, best.not_beaten) == (("centre", "edges", "random"), ())
    assert all(not row.beats and not row.not_beaten for row in archive.rows if row.baseline)
    shown = Outline(page.show("metric=saliency_miou&dataset=saliency-bench/pet-xai&explainer=gradient")["body"]).said
    assert f"does not beat {', '.join(one.not_beaten)}" in shown
    place = shown.index("gradient")
    assert {f"{one.value:.3f}", f"[{one.low:.3f}, {one.high:.3f}]", "60"} <= set(shown[place:])


def test_comparisons_of_checked_scores_say_if_true(archive, page):
    one = archive.by_key[key_of(archive, "mine", "saliency_miou")][0]
    assert (one.status, one.beats, one.not_beaten) == ("checked", (), ())
    assert set(one.beats_if_true) | set(one.not_beaten_if_true) == {"centre", "edges", "random"}
    said = Outline(page.show("dataset=saliency-bench/pet-xai&metric=saliency_miou")["body"]).said
    assert any(text.startswith("if true: ") for text in said[said.index("mine") :])
    said = " ".join(" ".join(Outline(page.show(f"row={one.key}")["body"]).said).split())
    opened = said[: said.index("Reproduce")]
    for words, own in (("beats", one.beats_if_true), ("does not beat", one.not_beaten_if_true)):
        assert not own or f"{words} {', '.join(own)}" in opened
    assert "Baselines if true: " in opened
    read = list(csv.DictReader(io.StringIO(page.export("csv", "explainer=mine&metric=saliency_miou")["text"])))
    assert [(line["beats"], line["beats_if_true"]) for line in read if line["key"] == one.key] == [
        ("", "; ".join(one.beats_if_true))]  # fmt: skip


def test_first_page_is_the_matrix_of_official_rows(page, archive):
    """Test that the first page shows each official row of a dataset once. Other rows are folded and counted."""
    shown, _, rest = page.show("")["body"].partition("<details")
    own = [row for row in archive.rows if row.dataset == SCENES[0][0]]
    keys = re.findall(r"row=([0-9a-f]+)", shown)
    assert sorted(keys) == sorted(row.key for row in own if row.status == "run by the board")
    for row in own:
        cell = re.search(rf'href="\?row={row.key}".*?</td>', shown, re.DOTALL)
        assert (cell is None) == (row.explainer == "mine")
        if cell:
            assert f">{row.value:.3f}<" in cell[0]
            assert (" does not beat " in cell[0]) == bool(row.not_beaten)
            assert ('lb-good">best' in cell[0]) == row.best
    assert "Unverified: 4 rows" in rest
    assert '<span title="saliency_miou, higher is better">' in shown
    assert "Overlap (mIoU)" in Outline(shown).said
    assert {"task-all", "task-alignment", "task-faithfulness"} <= set(re.findall(r"task-\w+", shown))
    unrun = page.show(f"dataset={quote(EVIL)}")["body"]
    assert "has not run any of these explainers" in unrun
    assert "lb-run" not in unrun.partition("<p class")[2].partition("</table>")[0]
    assert "lb-matrix" not in page.show("as_list=yes")["body"]


QUERIES = ["", "tab=overall", "tab=plots", "tab=about", "sort=rank&columns=device.model", "OPEN", f"search={EVIL}",
           f"tab=plots&dataset={EVIL}", f"x={EVIL}&tab=plots"]  # fmt: skip


@pytest.mark.parametrize("query", QUERIES)
def test_submitted_texts_are_escaped(page, archive, query):
    if query == "OPEN":
        query = "row=" + next(one.key for one in archive.rows if one.dataset == EVIL)
    outline = Outline(html := whole(page.show(query)))
    assert "script" not in outline.tags
    assert "<script" not in html
    assert not [name for name, _ in outline.attributes if name.startswith("on")]
    assert not [value for name, value in outline.attributes if name == "href" and not re.match(r"[?#]|https://", value)]
    if query == "":
        assert METHOD in "".join(outline.said)


def test_address_keeps_only_valid_parts(page):
    assert page.show("metric=saliency_miou&row=gone&other=gone&dataset=gone&page=2")["query"] == "metric=saliency_miou"
    assert page.show(None)["query"] == page.show({"a": 1})["query"] == ""
    assert page.show("tab=about")["title"] == f"How we check – {page.archive.name}"


def test_open_row_shows_provenance_command_and_samples(page, archive):
    key = key_of(archive, "gradcam", "saliency_miou")
    said = " ".join(Outline(page.show(f"row={key}")["body"]).said)
    for words in ("saliency-bench run", "a note", "the board computed the scores of 8 of 60 samples", "Most disputed",
                  "beats centre, edges, random", "2 passes, 0.02 s per image on cpu", "accuracy 0.900"):  # fmt: skip
        assert words in said, words


def test_best_worst_and_most_disputed_samples_are_shown(archive):
    for metric, best in (("saliency_insertion", np.argmax), ("saliency_deletion", np.argmin)):
        scores = scores_of(METHODS, METRICS, 0)
        own = scores[f"gradcam {metric}"]
        found = samples_of(archive, key_of(archive, "gradcam", metric))
        assert found["best"][0].image_id == IDS[best(own)]
        assert found["worst"][0].value == pytest.approx((min if metric == "saliency_insertion" else max)(own))
        every = np.stack([scores[f"{name} {metric}"] for name in METHODS]
                         + [scores_of(["mine"], METRICS, 7)[f"mine {metric}"]])  # fmt: skip
        spread = every.max(axis=0) - every.min(axis=0)
        first = found["most disputed"][0]
        assert (first.image_id, first.high - first.low) == (IDS[np.argmax(spread)], pytest.approx(spread.max()))
        assert (first.label, first.prediction) == ("a", "b")


def test_two_rows_are_compared_on_common_samples(archive, page):
    keys = [key_of(archive, name, "saliency_deletion") for name in ("gradcam", "rise")]
    found = pairwise(archive, *(archive.by_key[key][1] for key in keys))
    one, other = (scores_of(METHODS, METRICS, 0)[f"{name} saliency_deletion"] for name in ("gradcam", "rise"))
    assert found.estimate.value == pytest.approx((one - other).mean())
    assert found.better == ((one < other).sum(), (one > other).sum(), (one == other).sum())
    assert found.dots == pytest.approx(np.stack([one, other], axis=1))
    assert found.furthest[0][0] == (IDS[np.argmax(other - one)], pytest.approx(one[np.argmax(other - one)]),
                                    pytest.approx(other[np.argmax(other - one)]))  # fmt: skip
    said = " ".join(Outline(page.show(f"row={keys[0]}&other={keys[1]}")["body"]).said)
    assert f"{found.better[0]} samples favour gradcam" in said
    elsewhere = key_of(archive, "gradcam", "saliency_deletion", SCENES[1][0])
    assert "are not comparable" in " ".join(Outline(page.show(f"row={keys[0]}&other={elsewhere}")["body"]).said)


def test_overall_table_uses_only_the_core(page, archive, root):
    table = page.standings.table("saliency_miou")
    assert table.core == [name for name, _, _ in SCENES]
    best = table.rows[0]
    assert best.name in ("gradcam", "rise", "occlusion")
    own = [scores_of(METHODS, METRICS, number) for number in (0, 1)]
    gains = [(one[f"{best.name} saliency_miou"] - one["random saliency_miou"]).mean() for one in own]
    assert best.value == pytest.approx(np.mean(gains))
    mine = next(one for one in table.rows if one.name.startswith("mine ("))
    assert (mine.rank, mine.value, mine.unranked) == (
        None, None, f"no scores on {SCENES[1][0]}; not run by the board on {SCENES[0][0]}")  # fmt: skip
    said = " ".join(Outline(page.show("tab=overall")["body"]).said)
    assert re.search(r"gradcam \d of 4 metrics", said)
    for core in (read_core(app.CORE), None):  # nothing of the default core is published yet
        empty = Page(archive, core)
        assert "Overall" not in Outline(empty.show("")["head"]).said
        assert "This board has no core" in " ".join(Outline(empty.show("tab=overall")["body"]).said)
    partly = read_core(root / "core.yaml").model_copy(update={"datasets": [
        CoreCell(**CORE["datasets"][0]), *read_core(app.CORE).datasets[1:2]]})  # fmt: skip
    said = Outline(Page(archive, partly).show("tab=overall")["body"]).said
    assert any(text.startswith("Not published yet: dataset saliency-bench/object-xai") for text in said)


def test_rows_with_other_settings_are_not_in_the_core(archive, root):
    core = read_core(root / "core.yaml")
    other = {key: (replace(shown, asks="seed 1"), row) for key, (shown, row) in archive.by_key.items()}
    found = [Standings(SimpleNamespace(by_key=by_key), core).metrics for by_key in (archive.by_key, other)]
    assert found == [sorted(METRICS), []]


def test_given_core_precedes_the_board_and_the_default(root, tmp_path, monkeypatch):
    """Test which core is used: the given core, the core of the board, or the default.

    The test board has its own core. A core that is added to a board is used from the next reload.
    """
    others = [read_core(root / "core.yaml").model_copy(update={"name": name}) for name in ("given", "usual")]
    assert Live(root, others[0], default=others[1]).page.core == others[0]
    assert Live(root, default=others[1]).page.core == read_core(root / "core.yaml")
    shutil.copytree(root, bare := tmp_path / "bare")
    (bare / "core.yaml").unlink()
    assert Live(bare).page.core is None
    live = Live(bare, default=others[1])
    assert live.page.core == others[1]
    shutil.copy(root / "core.yaml", bare)
    monkeypatch.setattr("saliency_bench.board.view.live.commit_of", lambda _: "a newer commit")
    live.refresh()
    assert live.page.core == read_core(root / "core.yaml")


@pytest.mark.parametrize(("text", "words"), [
    ("[" * 50_000, ".* is nested more than 100 levels deep"), ("name: [", ".* cannot be read"),
    ("name: x\ndatasets: &a [*a]", ".* has the alias .a; write out the value instead"),
    ("name: x\ndatasets: []", "datasets: List should have at least 1 item"), ("a text", ".* valid dictionary"),
    ("name: x\ndatasets: [3]", "datasets.0: Input should be"),
    (json.dumps(CORE).replace("d" * 32, "a"), "datasets.1.digest: String should match"),
])  # fmt: skip
def test_invalid_core_is_refused_by_file_and_field(tmp_path, text, words):
    (tmp_path / "core.yaml").write_text(text)
    refused(f"^core.yaml of the board is invalid: {words}", core_of_board, source_at(tmp_path))
    refused(rf"core\.yaml:? ?{words}", read_core, tmp_path / "core.yaml")


def test_exports_contain_all_selected_rows(page):
    found = page.export("csv", "metric=saliency_miou&number=3")
    assert (found["name"], found["text"].count("\n")) == ("leaderboard.csv", 1 + 2 * 9 + 1 + 2)
    assert page.export("tex", "", "http://here/")["text"].startswith("% \\usepackage{booktabs}\n% http://here/\n")
    assert "author = {{bob}}" in page.export("bib", "", 7)["text"]
    for kind in ("exe", None, ["csv"]):
        refused("use one of csv, tex, bib", page.export, kind, "")


@pytest.mark.slow
def test_board_is_reread_when_its_repository_changes(here, monkeypatch, root):
    monkeypatch.setenv("HF_TOKEN", FOUNDER.token)
    api = here.api()
    refused("the Hub has no repository saliency-bench/results", Live, "saliency-bench/results")
    api.create_repo("saliency-bench/results", repo_type="dataset")
    live = Live("saliency-bench/results", every=0)
    assert "This board has no results yet" in live.page.show("")["body"]
    api.upload_folder(repo_id="saliency-bench/results", folder_path=root, repo_type="dataset")
    live.refresh()
    assert len(live.page.archive.rows) == 78
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", live.page.archive.updated)
    before = live.page
    live.refresh()
    assert live.page is before
    here.fault("GET /api/datasets/saliency-bench/results", status=500)
    live.refresh()
    assert live.page is before


def test_leaderboard_command_prints_rows_as_json(root, archive, capsys):
    assert json.loads(said(capsys, ["leaderboard", "--results", str(root), "--json"])) == archive.board.cells
