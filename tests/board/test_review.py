"""Tests of the commands of a board's owner: reviewing pull requests, and recomputing submissions."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import said
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from local_hub import FOUNDER, VISITOR
from refusals import refused
from submissions import key_of, know, submission, write
from test_submitting import other_run
from transformers import ResNetForImageClassification

import saliency_bench as sb
from saliency_bench.board import recompute as recompute_module
from saliency_bench.board import review as review_module
from saliency_bench.board.checks import known_explainer, known_metric
from saliency_bench.board.index import INDEX, write_index
from saliency_bench.board.known import KnownDataset, KnownModel, known_dataset, write_known
from saliency_bench.board.published_maps import stated_names
from saliency_bench.board.recompute import MOST_PASSES, recompute, target_of, vouch
from saliency_bench.board.review import _other_maps, comment, merge, review
from saliency_bench.board.submission import of_run
from saliency_bench.board.submission_schema import Dataset, Model, Result
from saliency_bench.bound_explainer import load_explainer
from saliency_bench.cli import main
from saliency_bench.errors import UserError
from saliency_bench.read.records import by_part
from saliency_bench.read.run_folder import CellScores

BOARD = "saliency-bench/results"
SCORES = {"gradcam": np.linspace(0.1, 0.9, 60), "random": np.linspace(0.2, 0.3, 60)}


@pytest.fixture
def board(here, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", FOUNDER.token)
    here.api().create_repo(BOARD, repo_type="dataset")
    here.api().upload_file(path_or_fileobj=b"# Board", path_in_repo="README.md", repo_id=BOARD, repo_type="dataset")
    return here


def files(own):
    with TemporaryDirectory() as root:
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in own.write(Path(root))}


def propose(hub, content, *others, user=VISITOR):
    operations = [CommitOperationAdd(path, data) for path, data in content.items()]
    done = hub.api(user).create_commit(BOARD, [*operations, *others], repo_type="dataset", commit_message="mine",
                                       create_pr=True)  # fmt: skip
    return int(done.pr_num)


@pytest.mark.slow
def test_valid_submission_passes_review_and_is_merged_by_command(board, capsys, monkeypatch):
    own = submission(SCORES, "visitor")
    verdict = review(BOARD, number := propose(board, files(own)))
    assert (verdict.fine, verdict.problems, verdict.folders) == (True, [], [own.result.folder])
    comment(verdict)
    (text,) = [event["data"]["latest"]["raw"] for event in board.repo("datasets", BOARD).discussions[0].events
               if event["type"] == "comment"]  # fmt: skip
    by = f"pull request {number} of {BOARD} by visitor, commit {verdict.commit[:12]}"
    assert text.startswith(f"```text\n{by}: may be merged\n")
    assert "gradcam" in text
    assert said(capsys, ["review", BOARD, str(number), "--merge"]).endswith(f"merged: {by.partition(' by ')[0]}\n")
    with monkeypatch.context() as patch:
        patch.setattr("saliency_bench.board.opening.read_board", None)  # the index contains everything
        assert {row.submitters for row in sb.load_results(BOARD).rows} == {("visitor",)}
    table = pq.read_table(pa.BufferReader(board.files("datasets", BOARD)["board/rows.parquet"])).to_pylist()
    assert [(row["explainer"], row["status"], row["rank"]) for row in table] == [
        (name, "claimed", "the board does not list the samples of this dataset") for name in SCORES
    ]
    refused(f"number {number} of {BOARD} is merged, not open", review, BOARD, number)


@pytest.mark.slow
def test_open_pull_requests_get_one_comment_each(board, capsys):
    first = propose(board, files(submission(SCORES, "visitor")))
    second = propose(board, files(submission(SCORES, "founder")))
    for _ in range(2):
        assert main(["review", BOARD, "--comment", "--json"]) == 1
        told = json.loads(capsys.readouterr().out)
        assert [(one["number"], one["fine"]) for one in told] == [(first, True), (second, False)]
    for found in board.repo("datasets", BOARD).discussions:
        assert sum(event["type"] == "comment" for event in found.events) == 1
    board.api().merge_pull_request(BOARD, first, repo_type="dataset")
    board.api().change_discussion_status(BOARD, second, "closed", repo_type="dataset")
    assert said(capsys, ["review", BOARD]) == f"{BOARD} has no open pull request\n"


@pytest.mark.slow
def test_merge_refuses_commits_after_the_review(board, monkeypatch):
    number = propose(board, files(submission(SCORES, "visitor")))
    verdict = review(BOARD, number)
    reviewed = review_module._pulled(board.api(), BOARD, number)
    further = CommitOperationAdd("README.md", b"mine")
    board.api(VISITOR).create_commit(BOARD, [further], repo_type="dataset", commit_message="more",
                                     revision=f"refs/pr/{number}")  # fmt: skip
    refused("has changed since the review; review it again", merge, verdict)
    assert main(["review", BOARD, str(number), "--merge"]) == 1
    assert board.files("datasets", BOARD)["README.md"] == b"# Board"
    assert INDEX not in board.files("datasets", BOARD)
    monkeypatch.setattr(review_module, "_pulled", lambda *_: reviewed)  # it changes between the look and the merge
    refused(r"README\.md on main differs from the reviewed file", merge, verdict)


@pytest.mark.slow
def test_pull_request_with_a_merge_of_main_is_refused(board, monkeypatch):
    """Test a pull request that contains a merge of main. Git lists an older state of main before a newer one."""
    number = propose(board, files(submission(SCORES, "visitor")))
    board.api().upload_file(path_or_fileobj=b"x", path_in_repo="status/x.json", repo_id=BOARD, repo_type="dataset")
    verdict = review(BOARD, number)  # main may change after the pull request
    assert verdict.fine
    assert verdict.notes[0] == "on the main branch: status/x.json: Invalid JSON: expected value at line 1 column 1"
    assert [note[:24] for note in verdict.notes[1:]] == ["the board does not list "]
    main_now = board.api().list_repo_commits(BOARD, repo_type="dataset")[0].commit_id
    plain = HfApi.list_repo_commits

    def listed(api, repo, *, revision, **more):
        commits = plain(api, repo, revision=revision, **more)
        newer = [SimpleNamespace(commit_id=main_now)] if revision.startswith("refs/pr/") else []
        return [*commits[:2], *newer, *commits[2:]]

    monkeypatch.setattr(HfApi, "list_repo_commits", listed)
    refused("is not based on the main branch", review, BOARD, number)


@pytest.mark.slow
def test_deletion_behind_a_forged_history_is_refused(board):
    """Merge a pull request that deletes a submission. Its forged history starts before the submission existed."""
    repo = board.repo("datasets", BOARD)
    old = repo.refs["refs/heads/main"]
    others = files(submission(SCORES, "founder"))
    board.api().create_commit(BOARD, [CommitOperationAdd(path, data) for path, data in others.items()],
                              repo_type="dataset", commit_message="a submission")  # fmt: skip
    number = propose(board, files(submission(SCORES, "visitor")), *map(CommitOperationDelete, others))
    assert f"the pull request deletes {min(others)}" in review(BOARD, number).problems
    repo = board.repo("datasets", BOARD)
    forged = replace(repo.commits[repo.refs[f"refs/pr/{number}"]], parent=old)
    repo.commits[forged.id()] = forged
    repo.refs[f"refs/pr/{number}"] = forged.id()
    verdict = review(BOARD, number)
    assert verdict.fine  # the Hub reports only this
    refused(f"{min(others)} on main differs from the reviewed file", merge, verdict)


def test_pull_request_not_based_on_main_is_refused(board):
    number = propose(board, files(submission(SCORES, "visitor")))
    repo = board.repo("datasets", BOARD)
    pull = replace(repo.commits[repo.refs[f"refs/pr/{number}"]], parent=None)
    repo.commits[pull.id()] = pull
    repo.refs[f"refs/pr/{number}"] = pull.id()
    refused("is not based on the main branch", review, BOARD, number)


@pytest.mark.slow
def test_verdict_names_scores_that_are_on_the_board(board):
    own = {"mine@1": np.linspace(0.1, 0.9, 60), "random": SCORES["random"]}
    first = propose(board, files(submission(own, "visitor")))
    assert [note[:34] for note in review(BOARD, first).notes] == ["the board does not list the datase"]
    board.api().merge_pull_request(BOARD, first, repo_type="dataset")
    copied = {"theirs@2": own["mine@1"], "random": own["random"]}
    notes = review(BOARD, propose(board, files(submission(copied, "founder")), user=FOUNDER)).notes
    assert notes[1:] == ["1 of 2 cells are already on the board with the same scores, submitted by visitor",
                         "theirs has the same saliency_miou score as mine by visitor on every sample"]  # fmt: skip


def without_records(own):
    return {path: data for path, data in files(own).items() if not path.endswith("records.parquet")}


@pytest.mark.sample(2)
@pytest.mark.parametrize(("make", "others", "words"), [
    (lambda own: files(submission(SCORES, "founder")), (),
     "the author is visitor, but the submitter in result.json is founder"),
    (lambda own: files(own) | {"README.md": b"# Mine"}, (), "the pull request changes README.md"),
    (lambda own: files(own) | {"status/" + "0" * 64 + ".json": b"{}"}, (), "the pull request adds status/000"),
    (lambda own: files(own) | {"board/rows.index": b"{}"}, (), "the pull request adds board/rows.index, which is "
                                                               "not a file of"),
    (lambda own: files(own) | {f"{own.result.folder}/run.py": b"import os"}, (), "run.py, which is not a file of"),
    (files, (CommitOperationDelete("README.md"),), "the pull request deletes README.md"),
    (lambda own: {"notes.txt": b"hello"}, (), "the pull request adds no result.json"),
    (without_records, (), "the pull request adds no "),
    (lambda own: files(own) | without_records(submission({"random": [0.4] * 60}, "visitor")), (),
     "the pull request adds no "),
    (lambda own: files(own) | {f"{own.result.folder}/records.parquet": b"PAR1"}, (), "records.parquet cannot be"),
    (lambda own: files(own) | {f"{own.result.folder}/result.json": b"[" * 9_000_000}, (), "9,000,000 bytes, more"),
    (lambda own: files(own) | {f"{own.result.folder}/result.json": b"[]"}, (), "Input should be an object"),
])  # fmt: skip
def test_invalid_pull_requests_must_not_be_merged(make, others, words, board, capsys):
    number = propose(board, make(submission(SCORES, "visitor")), *others)
    assert main(["review", BOARD, str(number)]) == 1
    told = capsys.readouterr().out
    assert "must not be merged" in told
    assert words in told
    assert all(line.isprintable() for line in told.splitlines())


def test_pull_request_cannot_vouch_for_itself(board, tmp_path):
    """Test that samples lists, statuses and indices in a pull request are ignored."""
    folder = write(tmp_path, SCORES, "visitor")
    known = know(tmp_path)
    path = known.relative_to(tmp_path).as_posix()
    own = files(submission(SCORES, "visitor"))
    for name, content in own.items():
        (tmp_path / "pull" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pull" / name).write_bytes(content)
    write_index(tmp_path / "pull")
    forged = (tmp_path / "pull" / INDEX).read_text().replace('"rank_if_true":null', '"rank_if_true":[1,1]')
    number = propose(board, own | {path: known.read_bytes(), INDEX: forged.encode()})
    assert {row.rank_if_true for row in sb.load_results(BOARD, f"refs/pr/{number}").rows} == {None}
    assert {row.status for row in sb.load_results(BOARD, f"refs/pr/{number}").rows} == {"claimed"}
    assert {row.status for row in sb.load_results(tmp_path).rows} == {"checked"}
    assert folder.is_dir()


@pytest.fixture(scope="module")
def done(tmp_path_factory, shapes, resnet):
    return sb.run(
        dataset=str(shapes), model=str(resnet), explainers=["gradcam", "random"],
        metrics=["saliency_miou", "saliency_insertion:steps=8"], out=tmp_path_factory.mktemp("runs") / "run",
        device="cpu", progress=False,
    ).folder  # fmt: skip


@pytest.fixture
def given(shapes, resnet):
    return {"dataset": str(shapes), "model": str(resnet), "device": "cpu", "samples": 2, "progress": False}


def placed(root, own):
    """Write a submission to a board and return its folder."""
    return own.write(root)[0].parent.relative_to(root).as_posix()


def test_recomputed_submission_is_ranked_officially(done, given, shapes, resnet, tmp_path, capsys):
    folder = placed(tmp_path, of_run(done, "ada"))
    assert {row.status for row in sb.load_results(tmp_path).rows} == {"claimed"}
    rows = sb.load_results(tmp_path, known=[shapes]).rows  # with the reader's copy of the dataset
    assert {(row.status, row.accuracy_checked) for row in rows} == {("checked", False)}
    line = ["recompute", str(tmp_path), folder, "--dataset", str(shapes), "--model", str(resnet), "--samples", "4"]
    assert said(capsys, [*line, "--dry-run", "--quiet"]) == ""
    assert not (tmp_path / "status").exists()
    assert len(json.loads(said(capsys, [*line, "--json"]))["cells"]) == 4
    rows = sb.load_results(tmp_path).rows
    assert [(row.status, row.accuracy_checked) for row in rows] == [("run by the board", True)] * 4
    assert all(row.recomputed.samples == 4 and row.recomputed.largest < 1e-6 for row in rows)
    content = json.loads((tmp_path / folder / "result.json").read_text())
    content["model"]["accuracy_kind"] = "certified accuracy"
    (tmp_path / folder / "result.json").write_text(json.dumps(content))
    assert recompute(tmp_path, folder, **given)[0].refused.startswith("accuracy_kind of ")


@pytest.mark.parametrize(("name", "lie", "words"), [
    ("accuracy", {"value": 1.0}, r"accuracy of .*, not 1 \(n = "),
    ("top5", {"value": 1.0}, r"top5 of .*, not 1 \(n = "),
    ("accuracy", {"low": 0.0, "high": 1.0}, r"the interval for accuracy of .*, not \[0, 1\]"),
    ("accuracy_kind", "certified accuracy", "accuracy_kind of .* is accuracy, not certified accuracy"),
])  # fmt: skip
def test_forged_accuracy_is_refused(name, lie, words, done):
    content = of_run(done, "ada").result.model_dump(mode="json")
    content["model"][name] = content["model"][name] | lie if isinstance(lie, dict) else lie
    computed = json.loads((done / "summary.json").read_text())["model"]
    assert re.match(words, recompute_module._wrong_quality(Result.model_validate_json(json.dumps(content)), computed))


@pytest.mark.parametrize(("rule", "words", "taken"), [
    ("label", "label", "label"),
    ("contrast:second 0f3a", "contrast:second", "contrast:second"),
    ("predicted-by 0f3a", "predicted-by:google/vit-base-patch16-224", "predicted-by:google/vit-base-patch16-224"),
    ("predicted-by 0f3a", "predicted-by:torchvision:resnet18", "predicted-by:torchvision:resnet18"),
    ("predicted-by 0f3a", "predicted-by:folder:vit",
     "folder:vit .* not on the Hub; set --target predicted-by:MODEL"),
    ("predicted-by 0f3a", "predicted-by:..", "is not on the Hub"),  # a folder on the owner's machine
    ("predicted-by 0f3a", "classes.csv", "the file classes.csv; set --target to your copy"),
    ("0f3a", "predicted-by:google/vit-base-patch16-224", "set --target to your copy"),
])  # fmt: skip
def test_recompute_uses_the_target_of_the_submission(rule, words, taken):
    result = SimpleNamespace(setting=SimpleNamespace(target=rule), target=words)
    if taken.startswith(rule.partition(" ")[0]):
        assert target_of(result) == taken
    else:
        refused(taken, target_of, result)


@pytest.mark.parametrize(("kind", "stated", "loaded"), [
    (Dataset, {"id": "shapes-xai"}, "shapes-xai"),
    (Dataset, {"id": "ada/pets", "repo": "ada/pets", "revision": "abc"}, "hub:ada/pets@abc"),
    (Model, {"id": "torchvision:resnet18", "revision": "DEFAULT"}, "torchvision:resnet18"),
    (Model, {"id": "resnet", "repo": "ada/net"}, "hub:ada/net"),
    (Model, {"id": "folder:net"}, None),
    *((kind, {"id": path, "repo": repo}, None) for kind in (Dataset, Model)
      for path, repo in (("/etc", None), ("ada/pets", "~/pictures"), ("../private", None), ("a/b/c", None))),
    (Dataset, {"id": "pictures"}, None),
])  # fmt: skip
def test_submission_cannot_name_a_local_folder(kind, stated, loaded, tmp_path, monkeypatch):
    for name in ("pictures", "ada/pets", "ada/net"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    submitted = kind.model_construct(**{"repo": None, "revision": None} | stated)
    if loaded:
        assert recompute_module._named(None, submitted) == loaded
    else:
        refused(r"is not on the Hub; set --(dataset|model) to your copy", recompute_module._named, None, submitted)


def test_network_that_was_not_loaded_is_not_listed(tmp_path, monkeypatch):
    """Test the name that a submitter gives to arbitrary weights. No page shows it as if the owner had chosen it."""
    known = KnownDataset.model_validate_json(know(tmp_path).read_text())
    monkeypatch.setattr(recompute_module, "_dataset", lambda *_: known)
    monkeypatch.setattr(recompute_module, "find", lambda name: SimpleNamespace(hidden_masks=None))
    folder = write(tmp_path, {"mine@1": SCORES["random"]}, "mallory").relative_to(tmp_path).as_posix()
    status, _, model = recompute(tmp_path, folder, dataset="any", model="any", progress=False)
    assert (status.cells, model) == ({}, None)


@pytest.mark.slow
def test_targets_of_another_model_are_recomputed(given, shapes, resnet, tmp_path):
    other = shutil.copytree(resnet, tmp_path / "other")
    network = ResNetForImageClassification.from_pretrained(other)
    network.classifier[1].weight.data.neg_()
    network.save_pretrained(other)
    named = sb.run(
        dataset=str(shapes), model=str(resnet), explainers=["gradcam"], metrics=["saliency_insertion:steps=8"],
        target=f"predicted-by:{other}", out=tmp_path / "named", device="cpu", progress=False,
    ).folder  # fmt: skip
    folder = placed(tmp_path / "board", of_run(named, "ada"))
    refused("set --target predicted-by:MODEL", recompute, tmp_path / "board", folder, **given)
    status, *_ = recompute(tmp_path / "board", folder, target=f"predicted-by:{other}", **given)
    assert (status.refused, len(status.cells)) == (None, 1)
    refused("the target is not the same as in", recompute, tmp_path / "board", folder, target="predicted", **given)


def test_recompute_refuses_a_network_with_other_logits(done, given, tmp_path):
    """Recompute with a network that has the same digest but other logits for the fixed images."""
    submission = of_run(done, "ada")
    answers = submission.result.answers
    other = [[value and value + 1 for value in logits] for logits in answers.logits]
    result = submission.result.model_copy(update={"answers": answers.model_copy(update={"logits": other})})
    folder = placed(tmp_path, replace(submission, result=result))
    refused("was computed with a different model: .* set --model", recompute, tmp_path, folder, **given)


@pytest.mark.parametrize("shift", [0.001, 0.00001])
def test_different_score_refuses_the_submission(shift, done, given, shapes, tmp_path):
    folder = placed(tmp_path / "board", of_run(other_run(done, tmp_path, shift, "gradcam"), "mallory"))
    status, dataset, _ = recompute(tmp_path / "board", folder, **given)
    assert dataset == known_dataset(shapes)
    if shift > 1e-4:
        assert " of gradcam is " in status.refused
        write_known(tmp_path / "board", status)
        board = sb.load_results(tmp_path / "board")
        assert not board.rows
        assert "rejected by the owner" in board.refused[0].line
    else:
        assert (status.refused, len(status.cells)) == (None, 4)


def test_forged_part_of_an_aggregate_is_refused(given, tmp_path, monkeypatch):
    """Forge a part of an aggregate.

    The samples have no scores of their own, so the value is consistent with the parts.
    """
    settings = {name: value for name, value in given.items() if name != "samples"}
    metrics = ["saliency_correctness:k=2,pairings=2"]
    run = sb.run(explainers=["gradcam"], metrics=metrics, out=tmp_path / "run", **settings).folder
    folder = placed(tmp_path / "board", of_run(run, "mallory"))
    status, *_ = recompute(tmp_path / "board", folder, **settings)
    assert (status.refused, len(status.cells)) == (None, 1)
    forged = {"normal@1": np.ones, "inverse@1": np.zeros}

    def stated(*where):
        return {name: parts | {part: make(len(parts[part])) for part, make in forged.items()}
                for name, parts in by_part(*where).items()}  # fmt: skip

    monkeypatch.setattr(recompute_module, "by_part", stated)
    status, *_ = recompute(tmp_path / "board", folder, **settings)
    assert re.match(r"part (normal|inverse)@1 of saliency_correctness.* of gradcam is ", status.refused)


def test_unknown_submission_is_refused_before_loading(tmp_path):
    refused("has no submission a/b/c; specify the folder", vouch, str(tmp_path), "a/b/c")
    folder = write(tmp_path, SCORES).relative_to(tmp_path).as_posix()
    refused(f"unknown submission '{folder}x' of .*; did you mean {folder}", vouch, str(tmp_path), f"{folder}x")


@pytest.mark.slow
def test_later_submission_cannot_rename_listed_items(shapes, resnet, tmp_path):
    """Test that the dataset and the network are loaded by the names on the board, which only the owner can change."""
    root = tmp_path / "board"
    sb.load_dataset(shapes).to_parquet(tmp_path / "official.parquet")
    shutil.copytree(resnet, tmp_path / "sota")
    other = sb.run(dataset=str(tmp_path / "official.parquet"), model=str(tmp_path / "sota"), explainers=["random"],
                   metrics=["saliency_miou"], out=tmp_path / "run", device="cpu", progress=False)  # fmt: skip
    sent = of_run(other.folder, "mallory")
    assert (sent.result.dataset.id, sent.result.model.id) == ("folder:official.parquet", "folder:sota")
    folder = placed(root, sent)
    dataset = known_dataset(shapes).model_copy(update={"id": str(shapes)})
    model = KnownModel(id=str(resnet), digest=sent.result.model.digest)
    listed = [write_known(root, one) for one in (dataset, model)]
    before = [path.read_bytes() for path in listed]
    settings = {"device": "cpu", "samples": 2, "progress": False}
    status, lines = vouch(str(root), folder, **settings)
    assert (status.refused, len(status.cells)) == (None, 1)
    assert not any("is listed as" in line for line in lines)
    assert [path.read_bytes() for path in listed] == before
    (row,) = sb.load_results(root).rows
    assert (row.dataset, row.model, row.status) == (str(shapes), str(resnet), "run by the board")
    _, lines = vouch(str(root), folder, dataset=str(tmp_path / "official.parquet"), **settings)
    assert [line for line in lines if "listed" in line] == ["  the dataset is listed as folder:official.parquet"]
    (row,) = sb.load_results(root).rows
    assert (row.dataset, row.model) == ("folder:official.parquet", str(resnet))


def test_dataset_copy_with_other_groups_is_refused(done, shapes, resnet, tmp_path, monkeypatch):
    """Test a copy of a dataset with other groups. The fingerprint covers images, labels and masks, but not groups."""
    root = tmp_path / "board"
    folder, settings = placed(root, of_run(done, "ada")), {"model": str(resnet), "device": "cpu", "progress": False}
    with monkeypatch.context() as patch:
        patch.setattr(recompute_module, "_named", lambda listed, submitted: str(shapes))  # instead of a large dataset
        _, lines = vouch(str(root), folder, samples=2, **settings)
    fix = "use --dataset to list a different dataset"
    assert f"  the dataset is listed as shapes-xai, from the submission; {fix}" in lines
    before = {path: path.read_bytes() for path in root.rglob("*.json")}
    rows = sb.load_dataset(shapes)
    grouped = rows.remove_columns("group").add_column("group", [f"g{number // 3}" for number in range(len(rows))])
    (tmp_path / "grouped").mkdir()
    grouped.to_parquet(tmp_path / "grouped" / "test.parquet")
    with pytest.raises(UserError, match=r"groups of .* differ from the groups on the board"):
        vouch(str(root), folder, dataset=str(tmp_path / "grouped"), **settings)
    other = sb.run(dataset=str(tmp_path / "grouped"), explainers=["random"], metrics=["saliency_miou"],
                   out=tmp_path / "run", **settings)  # fmt: skip
    sent = placed(root, of_run(other.folder, "mallory"))
    refused(r"group of image .* is \S+ in", vouch, str(root), sent, dataset=str(tmp_path / "grouped"), **settings)
    assert {path: path.read_bytes() for path in before} == before
    board = sb.load_results(root)
    assert {row.submitters for row in board.rows} == {("ada",)}
    assert [one.folder for one in board.refused] == [sent]


def test_suspicious_maps_are_reported():
    """Test that `recompute` warns about maps that nearly equal the masks, and about one map for all images."""
    cells = [SimpleNamespace(cell_id=name, metric="saliency_miou", explainer=name) for name in ("masks", "maps")]
    values = {"masks": np.array([1, 0.99, 0.96, 0.2, np.nan]), "maps": np.array([1, 0.9, 0.3, 0.2, 0.1])}
    (line,) = recompute_module._like_masks(cells, CellScores([], [], values))
    assert line == ("masks", "the maps match the masks almost exactly for 75% of the images")
    some = np.random.default_rng(0).random((4, 8, 8)).astype(np.float32)
    maps = {"mine": dict(enumerate(some)), "prior": dict(enumerate([some[0]] * 3 + [some[1]]))}
    assert list(recompute_module._all_the_same(maps)) == [("prior", "75% of the images have exactly the same map")]


@pytest.mark.parametrize(("stated", "computed"), [(0.5, np.nan), (np.nan, 0.5)])
def test_missing_score_is_a_difference(stated, computed):
    own = submission({"gradcam": np.append(np.full(59, 0.5), stated)}).checked
    (cell,) = own.cells
    values = {cell.cell_id: np.append(np.full(59, 0.5), computed)}
    again = CellScores(own.recorded.ids, own.recorded.groups, values)
    line = recompute_module._compare(own, again, cell, "explainer", {}, {})
    assert line == f"saliency_miou of gradcam is {computed:g} on image image 059, not {stated:g}"


@pytest.mark.parametrize("metric", ["saliency_insertion:steps=1000000000", "saliency_single_deletion:grid=30000",
                                    "saliency_confidence:pairings=1000000000"])  # fmt: skip
def test_metric_with_too_many_passes_is_not_run(metric):
    """Test metrics with expensive options, which a submitter can choose for explainers and for submitted maps."""
    keys = {name: key_of(f"{name} {metric}") for name in ("random", "mine@1")}
    metrics = {name: known_metric(key) for name, key in keys.items()}
    assert recompute_module._passes(known_explainer(keys["random"]), metrics["random"]) > MOST_PASSES
    assert recompute_module._passes(None, metrics["mine@1"]) > MOST_PASSES
    usual = known_metric(key_of(f"random {metric.partition(':')[0]}"))
    assert 0 < recompute_module._passes(load_explainer("random"), usual) < MOST_PASSES


@pytest.mark.parametrize(("names", "limit", "kept", "why"), [
    (["rise:masks=1000000000", "random"], None, ["random"], "passes per image, more than the limit of 100,000"),
    # 226 passes each, and 1 pass
    ([f"{name} saliency_insertion" for name in ("gradcam", "gradient", "random")], 500, ["gradcam", "gradient"],
     "the submission needs more passes than the limit of 500"),
])  # fmt: skip
def test_cells_with_too_many_passes_are_not_run(names, limit, kept, why, monkeypatch):
    if limit:
        monkeypatch.setattr(recompute_module, "MOST_OF_SUBMISSION", limit)
    cells, further = submission(dict.fromkeys(names, SCORES["gradcam"])).checked, {}
    assert [cell.explainer for cell in recompute_module._ways(cells, {}, further)["explainer"]] == kept
    (line,) = further.values()
    assert line.endswith(why)


def test_map_files_must_match_the_result():
    """Compare files by their SHA-256 before the pull request is downloaded.

    The Hub knows the SHA-256 of large files.
    """
    result = submission(SCORES, maps=["a" * 64, "b" * 64]).result
    stored = {name: SimpleNamespace(lfs=SimpleNamespace(sha256=digest)) for name, digest in
              stated_names(result.maps).items()}  # fmt: skip
    paths = {f"{result.folder}/{name}": file for name, file in stored.items()}
    elsewhere = {"other/folder/of/maps-00000.npz": None, f"{result.folder}/records.parquet": None}
    assert _other_maps(result, paths | elsewhere) == []
    small = {path: SimpleNamespace(lfs=None) for path in paths}
    assert _other_maps(result, small) == []  # compared when they are read
    first, second = paths
    (line,) = _other_maps(result, paths | {first: paths[second]})
    assert line == f"{first} is not the file that result.json lists: its SHA-256 differs"
    (line,) = _other_maps(result, {first: paths[first]})
    assert line == f"the pull request adds no {second}, which result.json lists"
    more = f"{result.folder}/maps-00002.npz"
    (line,) = _other_maps(result, paths | {more: paths[first]})
    assert line == f"the pull request adds {more}, which result.json does not list"


def test_recompute_requires_write_access(board, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", VISITOR.token)
    refused("visitor may not write", vouch, BOARD, "a/b/c")


@pytest.mark.parametrize("words", [["leaderboard"], ["leaderboard", "--json"]])
def test_repository_without_results_gives_one_line(words, here, capsys):
    here.api().create_repo("saliency-bench/pets", repo_type="dataset")
    here.api().upload_file(repo_id="saliency-bench/pets", repo_type="dataset", path_in_repo="data/test.csv",
                           path_or_fileobj=b"image_id")  # fmt: skip
    assert main([*words, "--results", "saliency-bench/pets"]) == 2
    shown = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("No files matched")]
    assert shown == [
        "saliency-bench: error: saliency-bench/pets contains no results; specify a folder or repository with files "
        "DATASET/MODEL/SUBMITTER/result.json"
    ]


def test_recompute_refuses_another_dataset(done, resnet, tmp_path):
    folder = placed(tmp_path, of_run(done, "ada"))
    sb.build("shapes-xai", tmp_path / "other", size=32, count=60, progress=False)
    refused("is not the dataset of", recompute, tmp_path, folder, dataset=str(tmp_path / "other"), model=str(resnet))
    refused("set --model to your copy", recompute, tmp_path, folder, dataset=str(tmp_path / "other"))


@pytest.mark.slow
def test_submitted_maps_are_scored_by_the_board(board, given, shapes, resnet, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", VISITOR.token)
    sb.template(str(shapes), str(resnet), tmp_path / "mine", device="cpu", progress=False)
    ids = sb.load_dataset(shapes)["image_id"]
    (tmp_path / "mine" / "maps").mkdir()
    draw = np.random.default_rng(0)
    for image_id in ids:
        np.save(tmp_path / "mine" / "maps" / f"{image_id}.npy", draw.normal(size=(32, 32)).astype(np.float32))
    sent = sb.submit(tmp_path / "mine", name="mine", metrics=["saliency_miou"], device="cpu", progress=False,
                     with_maps=True)  # fmt: skip
    folder = sent.submission.result.folder
    assert f"{folder}/maps-00000.npz" in sent.files
    assert review(BOARD, 1).problems == []
    board.api().merge_pull_request(BOARD, 1, repo_type="dataset")
    monkeypatch.setenv("HF_TOKEN", FOUNDER.token)
    status, lines = vouch(BOARD, folder, **given)
    assert lines[-1].startswith("written: ")
    assert json.loads(board.files("datasets", BOARD)[f"status/{status.content}.json"])["refused"] is None
    ((_, again),) = status.cells.items()
    assert (again.samples, again.by, again.largest) == (len(ids), "maps", 0)
    (row,) = sb.load_results(BOARD).rows
    assert (row.status, row.own_method, row.submitters) == ("scored by the board", True, ("visitor",))
    with pytest.raises(UserError, match="remove with_maps: this option applies only to maps"):
        sb.submit(tmp_path / "mine" / f"scored-mine-{row.cell.explainer_version}", with_maps=True)
