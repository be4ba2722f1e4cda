"""Tests of submissions to a Hub: pull requests, duplicates, conflicts, one-line refusals, and tokens."""

import json
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import said
from huggingface_hub import HfApi
from local_hub import FOUNDER, READER, VISITOR
from refusals import refused

import saliency_bench as sb
from saliency_bench.board.published_maps import PUBLISHED, write_maps
from saliency_bench.board.review import review
from saliency_bench.board.submission import of_run
from saliency_bench.board.submit import _rights, plan
from saliency_bench.cli import main
from saliency_bench.hub.client import Account
from saliency_bench.read import records
from saliency_bench.read.statistics.intervals import interval
from saliency_bench.utils.files import write_json

BOARD = "saliency-bench/results"


@pytest.fixture
def here(here, tmp_path, monkeypatch):
    """Make this process a client of the Hub. Return a function that logs a user in."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))

    def log_in(user):
        monkeypatch.setenv("HF_TOKEN", user.token) if user else monkeypatch.delenv("HF_TOKEN", raising=False)

    log_in(FOUNDER)
    return log_in


FIRST = {".gitattributes", "README.md", "schema.json", "board/rows.parquet", "columns/records.parquet"}


def merge(hub, *numbers, board=BOARD, user=FOUNDER):
    for number in numbers:
        hub.api(user).merge_pull_request(board, number, repo_type="dataset")


def other_run(run, tmp_path, shift=0.25, explainer="random"):
    """Copy the run and change the scores of one explainer, as a faulty machine would."""
    folder = tmp_path / "other"
    shutil.copytree(run, folder)
    rows = pq.read_table(folder / "records.parquet").to_pylist()
    for row in rows:
        row["value"] += shift * (row["explainer"] == explainer)
    records.write(folder / "records.parquet", pa.Table.from_pylist(rows, schema=records.SCHEMA), records.SCHEMA)
    summary = json.loads((folder / "summary.json").read_text())
    for cell in summary["cells"]:
        scores = [row["value"] for row in rows if row["cell_id"] == cell["cell_id"]]
        own = interval(pa.array(scores).to_numpy(), np.arange(len(scores)), (0.0, 1.0))
        cell["value"], cell["low"], cell["high"] = own[:3]
    write_json(folder / "summary.json", summary)
    (folder / "written.json").unlink()  # otherwise the changed summary would be refused because of its hash
    return folder


def test_run_becomes_a_pull_request_and_is_read_back(hub, here, run):
    done = sb.submit(run, note="on a ```laptop", link="https://example.org/mine")
    assert done.pull_request == f"{hub.url}/datasets/{BOARD}/discussions/1"
    assert set(hub.files("datasets", BOARD)) == FIRST  # only the card
    assert (sb.load_results(BOARD).cells, len(sb.load_results(BOARD, revision="refs/pr/1").cells)) == ([], 2)
    details = hub.api().get_discussion_details(BOARD, 1, repo_type="dataset")
    assert details.title == "2 cells: random, centre on shapes-xai with folder:tiny"
    text = next(event["data"]["latest"]["raw"] for event in hub.repo("datasets", BOARD).discussions[0].events
                if event["type"] == "comment")  # fmt: skip
    assert "Note:\n\n```text\non a '''laptop\n```" in text
    assert "Code or paper:\n\n```text\nhttps://example.org/mine\n```" in text
    assert "Command:\n\n```text\nsaliency-bench run " in text
    assert re.search(r"random +0\.\d{3} \[", text)
    merge(hub, 1)
    board = sb.load_results(BOARD)
    summary = json.loads((run / "summary.json").read_text())
    told = {row["explainer"]: row for row in board.cells}
    for cell in summary["cells"]:
        row = told[cell["explainer"]]
        assert [row[k] for k in ("value", "low", "high", "n")] == [cell[k] for k in ("value", "low", "high", "n")]
        assert (row["submitters"], row["conflict"]) == (["founder"], False)
    table = board.table()
    assert (len(table), table[0]["cell_id"]) == (2, board.cells[0]["cell_id"])
    (result,) = board.results.values()
    assert (result.note, result.link) == ("on a ```laptop", "https://example.org/mine")
    assert result.ran <= result.submitted
    assert all(row.seconds > 0 for row in board.rows)


def test_records_are_compact_and_written_unchanged(run, tmp_path):
    submission = of_run(run, "founder")
    plain = pq.read_table(run / "records.parquet")
    assert submission.records.nbytes < plain.nbytes / 2
    *_, path = submission.write(tmp_path)
    assert pq.read_schema(path).equals(plain.schema)
    assert pq.read_table(path).to_pylist() == plain.to_pylist()


@pytest.mark.slow
def test_known_or_pending_cells_are_not_sent_again(hub, here, run):
    first = sb.submit(run)
    again = sb.submit(run)
    assert (again.pending, len(hub.repo("datasets", BOARD).discussions)) == (first.pull_request, 1)
    merge(hub, 1)
    before = len(hub.asked)
    for user in (FOUNDER, VISITOR):
        here(user)
        last = sb.submit(run)
        assert (last.pull_request, last.new, len(last.known)) == (None, [], 2)
        told, *of_cells, end = last.lines()
        assert told == f"2 cells are already in {BOARD} with the same values, so they are not sent:"
        assert [re.sub(r"\d\.\d{3}", "x", line) for line in of_cells] == [
            f"  {name} by saliency_miou: x, n = 12" for name in ("random", "centre")
        ]
        assert end == "nothing to submit"
    assert not [line for line in hub.lines()[before:] if line.startswith(("POST", "PUT"))]


@pytest.mark.slow
def test_simultaneous_submissions_merge_in_any_order(hub, here, run, monkeypatch):
    """Test two simultaneous submissions. They change different files, so both can be merged in any order."""
    hub.api().create_repo(BOARD, repo_type="dataset")

    def go(user):
        api = HfApi(endpoint=hub.url, token=user.token)
        monkeypatch.setattr("saliency_bench.hub.client.default_api", lambda: api)
        return plan(run, namespace="saliency-bench")

    plans = [go(user) for user in (FOUNDER, VISITOR)]
    assert len({path for each in plans for path in each.files}) == 4  # result.json and records.parquet of each
    with ThreadPoolExecutor(2) as pool:
        urls = list(pool.map(lambda each: each.publish(), plans))
    assert len(set(urls)) == 2
    merge(hub, 2, 1)
    board = sb.load_results(BOARD)
    assert len(board.cells) == 2
    assert all(row["submitters"] == ["founder", "visitor"] for row in board.cells)
    assert board.conflicts == []


@pytest.mark.slow
def test_folder_names_do_not_separate_submitters(hub, here, run, shapes, resnet, tmp_path):
    sb.submit(run)
    copied = shutil.copytree(shapes, tmp_path / "my copy")
    other = sb.run(
        dataset=str(copied), model=str(resnet), explainers=["gradcam"], metrics=["saliency_miou"], limit=12,
        batch_size=8, out=tmp_path / "other", device="cpu", progress=False)  # fmt: skip
    here(VISITOR)
    sb.submit(other)
    merge(hub, 1, 2)
    board = sb.load_results(BOARD)
    assert {row["dataset"] for row in board.cells} == {"shapes-xai"}
    assert len({folder.rpartition("/")[0] for folder in board.results}) == 1
    assert {row["explainer"] for row in board.cells} == {"random", "centre", "gradcam"}
    commands = {result.command.split(" --dataset ")[1].split()[0] for result in board.results.values()}
    assert commands == {"shapes-xai"}


@pytest.mark.slow
def test_contradicting_values_are_shown_as_a_conflict(hub, here, run, tmp_path):
    sb.submit(run)
    merge(hub, 1)
    before = hub.files("datasets", BOARD)
    here(VISITOR)
    done = sb.submit(other_run(run, tmp_path))
    assert [cell.explainer for cell in done.new] == ["random"]
    assert [cell.explainer for cell in done.known] == ["centre"]
    (path,) = [path for path in hub.files("datasets", BOARD, "refs/pr/2") if path not in before and "result" in path]
    sent = json.loads(hub.files("datasets", BOARD, "refs/pr/2")[path])
    assert [cell["explainer"] for cell in sent["cells"]] == ["random"]  # only new cells
    (line,) = [line for line in done.lines() if line.startswith("conflict: random by saliency_miou")]
    assert "by founder (n = 12) and" in line
    assert "by visitor (n = 12)" in line
    merge(hub, 2)
    after = hub.files("datasets", BOARD)
    assert {path: after[path] for path in before} == before  # no file is overwritten
    board = sb.load_results(BOARD)
    rows = [row for row in board.cells if row["explainer"] == "random"]
    assert {tuple(row["submitters"]) for row in rows} == {("founder",), ("visitor",)}
    assert all(row["conflict"] for row in rows)
    assert abs(rows[0]["value"] - rows[1]["value"]) == pytest.approx(0.25)
    (conflict,) = board.conflicts
    assert (sorted(conflict.submitters), conflict.samples, conflict.common) == (["founder", "visitor"], 12, 12)
    assert "2 submissions, 1 conflict\n" in str(board)
    assert sb.submit(tmp_path / "other").new == []  # the conflict is recorded only once


def test_local_board_from_submission_to_recomputing(run, shapes, resnet, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = ["submit", str(run), "--to", "./board", "--by", "ada"]
    assert main([*line, "--dry-run"]) == 0
    assert not (tmp_path / "board").exists()
    told = said(capsys, line)
    assert "create the board board" in told
    assert "to show the board, run `saliency-bench leaderboard --results board`" in told
    files = {path: path.read_bytes() for path in tmp_path.rglob("board/**/*") if path.is_file()}
    assert "2 cells are already in board with the same values, so they are not sent" in said(capsys, line)
    assert {path: path.read_bytes() for path in tmp_path.rglob("board/**/*") if path.is_file()} == files
    assert main(["submit", str(other_run(run, tmp_path)), "--to", "board", "--by", "eve"]) == 0
    assert said(capsys, ["review", "board"]).count(": passes the check") == 2
    ada, eve = sorted(path.parent.relative_to("board").as_posix() for path in Path("board").glob("*/*/*/result.json"))
    # The run has 12 of the dataset's samples, fewer than `recompute` draws.
    settings = ["--dataset", str(shapes), "--model", str(resnet), "--device", "cpu"]
    assert "12 samples (explainer), largest difference 0" in said(capsys, ["recompute", "board", ada, *settings])
    assert (main(["recompute", "board", eve, *settings]), main(["review", "board"])) == (1, 1)
    assert f"{eve}: must not be ranked" in capsys.readouterr().out


@pytest.mark.parametrize(("line", "words"), [
    ("submit RUN --to full", "full is not a board, because it has no schema.json; specify a new folder with --to"),
    ("submit RUN --to board --by ../x", "submitter"),
    ("review full", "full contains no submissions; add one with `saliency-bench submit RUN --to full`"),
    ("review full 3", "is a folder, which has no pull requests; remove NUMBER"),
    ("leaderboard --results ./nothing --json", "./nothing does not exist; specify a folder of results"),
    ("leaderboard --results full", "full contains no results"),
    ("leaderboard --results full --core full/x.txt", "x.txt cannot be read: "),
    ("leaderboard", "arguments are required: --results"),
    ("leaderboard --results x --port -1", "--port -1 is not a port"),
    ("leaderboard --results x", "x does not exist; specify a folder of results, or NAMESPACE/results"),
    ("recompute x a/b/c", "x does not exist; specify a folder of results, or NAMESPACE/results"),
    ("review ./nothing", "./nothing does not exist; specify a folder of results"),
    ("review a/b 0", "0 is not the number of a pull request"),
])  # fmt: skip
def test_invalid_boards_give_one_line(here, run, tmp_path, monkeypatch, capsys, line, words):
    (tmp_path / "place/full").mkdir(parents=True)
    (tmp_path / "place/full/x.txt").write_text("name: [")
    monkeypatch.chdir(tmp_path / "place")
    error = said(capsys, [str(run) if word == "RUN" else word for word in line.split()], 2)
    assert words in error
    assert (error.count("\n"), sorted(path.name for path in Path().rglob("*"))) == (1, ["full", "x.txt"])


@pytest.mark.slow
def test_own_board_is_created_and_can_be_private(hub, here, run):
    here(VISITOR)
    done = sb.submit(run, namespace="visitor", private=True)
    assert done.create
    assert done.lines()[0] == "create the private dataset visitor/results"
    assert hub.repo("datasets", "visitor/results").private
    assert sb.submit(run, namespace="visitor").private
    here(FOUNDER)
    refused("visitor/results", sb.load_results, "visitor/results")
    sb.submit(run)
    refused("exists and is public; remove --private", sb.submit, run, private=True)


def test_dry_run_sends_nothing_and_needs_no_login(hub, here, run, capsys):
    here(None)
    shown = said(capsys, ["submit", str(run), "--dry-run"])
    assert "create the public dataset saliency-bench/results" in shown
    assert "licence: cc-by-4.0, to which you agree by submitting" in shown
    assert "  write access not checked: you are not logged in\n" in shown
    assert "records.parquet" in shown
    assert shown.endswith("dry run: nothing was sent\n")
    told = json.loads(said(capsys, ["push", "results", str(run), "--dry-run", "--json"]))
    cells = json.loads((run / "summary.json").read_text())["cells"]
    assert (told["dry_run"], told["pull_request"]) == (True, None)
    assert told["new"] == [
        {"cell_id": cell["cell_id"], "explainer": cell["explainer"], "metric": "saliency_miou", "value": cell["value"],
         "n": 12} for cell in cells]  # fmt: skip
    for cell in cells:
        assert f"  {cell['explainer']} by saliency_miou: {cell['value']:.3f}, n = 12\n" in shown
    assert told["license"] == "cc-by-4.0"
    assert not [line for line in hub.lines() if line.startswith(("POST", "PUT"))]


def one_line(capsys, run, *words):
    assert main(["submit", str(run), *words]) == 2
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert shown.err.startswith("saliency-bench: error: ")
    assert not any(user.token in shown.out + shown.err for user in (FOUNDER, VISITOR, READER))
    return shown.err


@pytest.mark.slow
def test_missing_rights_give_one_line(hub, here, run, capsys, monkeypatch):
    here(None)
    assert "not logged in: log in with `hf auth login`" in one_line(capsys, run)
    monkeypatch.setenv("HF_TOKEN", "hf_ThisIsNoToken0123456789")
    error = one_line(capsys, run)
    assert "401" in error
    assert "hf_ThisIsNoToken" not in error
    here(VISITOR)
    assert "does not exist, or is private; check --namespace (your namespaces: visitor)" in one_line(capsys, run)
    here(FOUNDER)
    sb.submit(run)
    here(READER)  # a read-only token
    refused = "reader may not submit to saliency-bench/results with this token, which only has read access"
    assert refused in one_line(capsys, run)
    assert f"  {refused}\n" in said(capsys, ["submit", str(run), "--dry-run"])
    here(FOUNDER)
    assert "'no/such' is not the name of a user" in one_line(capsys, run, "--namespace", "no/such")


@pytest.mark.sample(2)
@pytest.mark.parametrize(("match", "order", "words"), [
    ("GET /api/whoami-v2", {"status": 500, "message": f"you sent {FOUNDER.token}"}, "500 for saliency-bench/results"),
    ("GET /api/whoami-v2", {"status": 429, "headers": {"Retry-After": "77"}}, "wait 77 s"),
    ("GET /api/datasets/saliency-bench/results$", {"status": 503}, "503"),
    ("GET /api/datasets/saliency-bench/results$", {"status": 403}, "403"),
    ("commit/main", {"status": 409}, "409"), ("commit/main", {"status": 404}, "404"),
    ("commit/main", {"status": 429, "headers": {"Retry-After": "77"}}, "wait 77 s"),
    ("commit/main", {"status": 500, "message": f"all is lost: {FOUNDER.token}"}, "all is lost: ***"),
    ("GET /api/whoami-v2", {"lost": True}, "cannot be reached, or the connection broke"),
    ("commit/main", {"lost": True}, "cannot be reached, or the connection broke"),
])  # fmt: skip
def test_hub_errors_give_one_line(match, order, words, hub, here, run, capsys, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the client retries
    hub.api().create_repo(BOARD, repo_type="dataset")
    hub.api().upload_file(path_or_fileobj=b"# Board", path_in_repo="README.md", repo_id=BOARD, repo_type="dataset")
    hub.fault(match, times=100, **order)
    assert words in one_line(capsys, run)
    hub.heal()
    assert main(["submit", str(run)]) == 0  # no partial state prevents another attempt
    done = "this is already proposed: " if match.startswith("commit") and "lost" in order else "submitted: "
    assert done in capsys.readouterr().out


@pytest.mark.sample(2)
@pytest.mark.parametrize(("status", "words"), [(401, "401"), (404, "404"), (429, "wait 9 s"), (500, "500")])
def test_hub_errors_while_reading_give_one_line(status, words, hub, here, run, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    sb.submit(run)
    hub.fault("api/datasets/saliency-bench/results", status=status, times=100, headers={"Retry-After": "9"})
    refused(words, sb.load_results, BOARD)


def test_local_folder_is_not_mistaken_for_the_hub(hub, here, run, tmp_path, monkeypatch):
    of_run(run, "founder").write(tmp_path / "saliency-bench" / "results")
    monkeypatch.chdir(tmp_path)
    assert len(sb.submit(run).new) == 2
    assert len(sb.load_results(BOARD).cells) == 2  # the name could also be a folder, as for datasets and models


@pytest.mark.slow
def test_missing_card_of_a_board_is_added(hub, here, run):
    """Submit to a board whose creation was interrupted before the card was written."""
    hub.fault("commit/main", status=400)
    refused("400", sb.submit, run)
    assert set(hub.files("datasets", BOARD)) == {".gitattributes"}
    sb.submit(run)
    assert set(hub.files("datasets", BOARD)) == FIRST
    assert 'sb.load_results("saliency-bench/results")' in hub.files("datasets", BOARD)["README.md"].decode()
    assert hub.api().dataset_info(BOARD).card_data["license"] == "cc-by-4.0"
    schema = json.loads(hub.files("datasets", BOARD)["schema.json"])
    assert schema["properties"]["license"]["const"] == "cc-by-4.0"


def test_submit_without_network_gives_one_line(here, run, capsys, monkeypatch, hub):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert "the Hub cannot be reached" in one_line(capsys, run)
    refused("cannot be reached", sb.load_results, BOARD)
    for user in (FOUNDER, None):
        here(user)
        shown = said(capsys, ["submit", str(run), "--dry-run"])
        assert (
            "  the Hub cannot be reached, so the run was not compared with the board and your permissions were not "
            "checked\n" in shown
        )
        assert "random by saliency_miou: 0." in shown


@pytest.mark.thorough
def test_offline_mode_reads_the_cache_and_refuses_to_send(hub, here, run):
    sb.submit(run)
    merge(hub, 1)
    code = "import sys, saliency_bench as sb; print(sb.load_results('saliency-bench/results'))"
    line = "2 cells of 1 submission, 0 conflicts\n"
    assert hub.python(code, user=None, home="fresh").stdout == line
    code += f"; from saliency_bench.cli import main; sys.exit(main(['submit', {str(run)!r}]))"
    done = hub.python(code, home="fresh", HF_HUB_OFFLINE="1")
    assert (done.stdout, done.returncode) == (line, 2)
    assert "HF_HUB_OFFLINE is set" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_token_appears_in_no_output_or_file(hub, run, tmp_path):
    """Test all verbose output: --debug and the logs of libraries."""
    shutil.copytree(run, tmp_path / "run")
    hub.api().create_repo(BOARD, repo_type="dataset")
    hub.fault("commit/main", status=403)
    hub.fault("commit/main", status=400)
    code = """
import logging, sys, traceback
from saliency_bench.cli import main
logging.basicConfig(level=logging.DEBUG)
for attempt in range(3):
    try: main(["submit", sys.argv[1], "--debug"])
    except Exception: traceback.print_exc()
"""
    line = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = hub.run(line, HF_HUB_VERBOSITY="debug", HF_DEBUG="1")
    assert "UserError" in done.stderr
    assert "submitted: " in done.stdout
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 10
    assert FOUNDER.token not in done.stdout + done.stderr
    assert not [path for path in written if FOUNDER.token.encode() in path.read_bytes()]


def test_rights_follow_from_the_account():
    fine = Account("fine", {"fine": "admin", "team": "write"}, False, frozenset({"team"}))
    assert _rights(fine, "Fine/results", None).line.endswith(" Fine")
    assert _rights(fine, "other/results", None).line.endswith("check --namespace (your namespaces: team)")
    assert _rights(fine, "team/results", None).may


@pytest.mark.slow
def test_runs_of_a_suite_are_one_pull_request(here, hub, run, shapes, resnet, tmp_path, capsys):
    runs = tmp_path / "suite" / "runs"
    shutil.copytree(run, runs / "first")
    sb.run(
        dataset=str(shapes), model=str(resnet), explainers=["random"], metrics=["saliency_pointing_game"], limit=12,
        batch_size=8, out=runs / "second", device="cpu", progress=False)  # fmt: skip
    (runs / "third").mkdir()
    here(FOUNDER)
    line = ["push", "results", str(tmp_path / "suite")]
    assert main([*line, "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "third is not finished" in shown.err
    assert shown.out.count("pull request to the public dataset") == shown.out.count("licence: ") == 1
    assert "in the same pull request" in shown.out
    assert not hub.api(FOUNDER).repo_exists(BOARD, repo_type="dataset")
    assert said(capsys, line).count("/discussions/1\n") == 1
    verdict = review(BOARD, 1)
    assert verdict.fine
    assert sorted(len(submission.cells) for submission in verdict.submissions) == [1, 2]
    merge(hub, 1)
    assert (len(sb.load_results(BOARD).rows), said(capsys, line).count("nothing to submit")) == (3, 2)
    assert len(hub.repo("datasets", BOARD).discussions) == 1
    shutil.rmtree(runs)
    runs.mkdir()
    assert "contains no finished run; run the suite again" in said(capsys, line, 2)


@pytest.mark.parametrize(("name", "value", "words"), [
    ("submission.LARGEST", {"records.parquet": 100},
     r"records\.parquet has [0-9,]+ bytes, more than the limit of 100"),
    ("submission.MOST", 0, "request adds 1 submissions, more than the limit of 0; submit fewer runs at a time"),
    ("submit.MOST_ROWS", 3, r"records\.parquet of .*first has 24 rows, more than the limit of 3"),
])  # fmt: skip
def test_oversized_submission_is_not_sent(hub, here, run, monkeypatch, capsys, name, value, words):
    monkeypatch.setattr(f"saliency_bench.board.{name}", value)
    for more in ([], ["--dry-run"]):
        error = said(capsys, ["submit", str(run), *more], 2)
        assert re.search(words, error)
        assert error.count("\n") == 1
    assert not hub.store.repos


def test_too_many_map_files_are_not_sent(hub, here, run, tmp_path, monkeypatch):
    write_maps(tmp_path / "copy" / PUBLISHED, "random", [("a", np.ones((8, 8), np.float32))])
    shutil.copytree(run, tmp_path / "copy", dirs_exist_ok=True)
    monkeypatch.setattr("saliency_bench.board.submission.MOST_SHARDS", 0)
    refused("has 1 map files, more than the limit of 0", plan, tmp_path / "copy", with_maps=True)
