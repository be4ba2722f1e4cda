"""Tests of launching a namespace: dry runs change nothing, refusals come before uploads, and failed launches resume."""

import json
import re
import shutil
import sys
from io import BytesIO
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from huggingface_hub import HfApi
from local_hub import FOUNDER, READER, VISITOR
from PIL import Image
from refusals import refused

import saliency_bench as sb
from saliency_bench import cli
from saliency_bench.board.submit import board_publication
from saliency_bench.board.view.core import FILE, Core, CoreCell, core_as_yaml, read_core
from saliency_bench.errors import UserError
from saliency_bench.hub import patience
from saliency_bench.hub.client import rights, shown_endpoint
from saliency_bench.hub.patience import patiently
from saliency_bench.hub.upload import publish
from saliency_bench.hub.upload_plan import Publication
from saliency_bench.publishing.datasets import dataset_publication
from saliency_bench.publishing.models import model_publication
from saliency_bench.push_scripts import _all, _first_rows, _native, _stranger
from saliency_bench.push_scripts.launch import STEPS

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # child processes import from this folder as well

from children import Children
from kill_loops.first_day import launch

OWNER = "saliency-bench"
REPO = f"{OWNER}/results"
ONLY = ["--only", "pet-xai", "resnet-18-pet-xai", "saliency_miou"]
ROWS = ["--explainers", "random", "gradcam", "--metrics", "saliency_miou", "--device", "cpu"]
SMALL = ["--license", "mit", *ONLY, *ROWS]


@pytest.fixture(scope="module")
def built(pets, model, tmp_path_factory):
    root = tmp_path_factory.mktemp("first day") / "built"
    shutil.copytree(pets, root / "pet-xai")
    shutil.copytree(model, root / "models" / model.name)
    return root


@pytest.fixture
def line(here, built, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", FOUNDER.token)
    return lambda *words, data=built: cli.main(["launch", "saliency-bench", "--data", str(data), *map(str, words)])


@pytest.fixture
def slept(monkeypatch):
    seconds = []
    monkeypatch.setattr(patience.time, "sleep", seconds.append)
    return seconds


# The plan


def test_dry_run_lists_everything_and_changes_nothing(line, here, built, capsys, monkeypatch):
    before = sorted(built.rglob("*"))
    assert line(*SMALL, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "account: founder may write to it\n" in shown
    for kind, name, licence in (
        ("dataset", "pet-xai", "cc-by-sa-4.0"), ("model", "resnet-18-pet-xai", "mit"),
        ("space", "saliency_miou", "apache-2.0"), ("dataset", "results", "cc-by-4.0"),
    ):  # fmt: skip
        found = re.search(rf"^{kind} +saliency-bench/{name}: new, (\d+) of \1 files, [\d.]+ kB, licence: {licence}$",
                          shown, re.MULTILINE)  # fmt: skip
        assert found, (name, shown)
    assert re.search(r"^in all: 4 repositories, 4 of them new, [\d.]+ kB to send$", shown, re.MULTILINE)
    assert (
        "rows for pet-xai with resnet-18-pet-xai: random, gradcam on saliency_miou for 13 samples; run still" in shown
    )
    assert all(title in shown for title in STEPS)
    assert shown.endswith("dry run: nothing was sent\n")
    assert here.store.repos == {}
    assert {each.method for each in here.asked} <= {"GET", "HEAD"}
    assert sorted(built.rglob("*")) == before
    monkeypatch.delenv("HF_TOKEN")
    assert line(*SMALL, "--limit", "5", "--dry-run", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert {one["repo"] for one in told["repositories"]} == {
        f"saliency-bench/{name}" for name in (*ONLY[1:], "results")
    }
    assert told["dry_run"] is True


def test_user_datasets_are_left_out_by_name(line, built, tmp_path, capsys):
    for number in range(3):
        folder = tmp_path / "pictures" / "test" / f"class{number}"
        folder.mkdir(parents=True)
        Image.new("RGB", (16, 16), (99 * number, 0, 0)).save(folder / "a.png")
    data = tmp_path / "my built"
    shutil.copytree(built / "pet-xai", data / "pet-xai")
    sb.build("folder", data / "mine", images=str(tmp_path / "pictures"), progress=False)
    capsys.readouterr()
    assert line("--only", "pet-xai", "--dry-run", "--json", data=data) == 0
    shown = capsys.readouterr()
    assert shown.err == (
        f"saliency-bench: left out: {data}/mine contains your own dataset, which has no name on the Hub yet; run "
        f"`saliency-bench push dataset '{data}/mine' --name NAME --namespace saliency-bench`\n"
    )
    assert [item["repo"] for item in json.loads(shown.out)["repositories"]] == [f"{OWNER}/pet-xai", REPO]
    shutil.rmtree(data / "pet-xai")
    assert cli.main(["push", "all", "--namespace", OWNER, str(data)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == shown.err.strip()
    assert lines[1].startswith(f"saliency-bench: error: {data} contains no built dataset")


def test_unreadable_files_are_named_and_others_published(line, built, tmp_path, capsys):
    data = tmp_path / "built"
    shutil.copytree(built, data)
    named = []
    for number, content in enumerate(("{", "[]", '{"dataset": "pet-xai"}', '{"dataset": {"a": 1}, "settings": 3}')):
        files = (f"another{number}/build_report.json", f"models/another{number}/training_log.json",
                 f"runs/a{number}/summary.json")  # fmt: skip
        for broken in (data / file for file in files):
            broken.parent.mkdir(parents=True)
            broken.write_text(content)
            named += [str(broken.parent)] * ("summary" not in broken.name)
    capsys.readouterr()
    assert line(*SMALL, "--dry-run", "--json", data=data) == 0
    shown = capsys.readouterr()
    lines = [each for each in shown.err.splitlines() if "left out: " in each]
    assert [sum(folder in each for each in lines) for folder in named] == [1] * len(named) == [1] * len(lines)
    assert {each["repo"] for each in json.loads(shown.out)["repositories"]} == {
        f"{OWNER}/{name}" for name in (*ONLY[1:], "results")
    }


def test_existing_repository_lists_files_to_overwrite(line, here, capsys):
    publish(board_publication("saliency-bench"), api=here.api())
    here.api().upload_file(
        path_or_fileobj=b"---\nlicense: mit\n---\n", path_in_repo="README.md", repo_id=REPO, repo_type="dataset"
    )
    assert line(*SMALL, "--limit", "5", "--dry-run") == 0
    shown = capsys.readouterr().out
    assert f"{REPO}: exists, 2 of 5 files" in shown  # core.yaml is new
    assert "    changed: README.md\n" in shown
    assert "for 5 samples of 13, so these rows have no rank" in shown


@pytest.mark.slow
def test_launch_errors_precede_every_upload(line, here, capsys, monkeypatch, tmp_path):
    def refusal(*words, **more):
        assert line(*words, **more) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    assert "--pace -1 is negative" in refusal("--pace", "-1")
    assert "did you mean pet-xai?" in refusal("--only", "pet-xia")
    assert "did you mean gradcam or" in refusal("--explainers", "gradcan")
    here.fault("GET /api/datasets", times=9, status=503)
    assert "503" in refusal(*SMALL, "--dry-run")  # a plan does not retry
    here.heal()
    assert "resnet-18-pet-xai has no licence; set the licence of its weights" in refusal(*ONLY)
    assert "contains no built dataset" in refusal(data=tmp_path)
    for user, words in ((VISITOR, "visitor may not write to saliency-bench/"), (READER, "only has read access")):
        monkeypatch.setenv("HF_TOKEN", user.token)
        assert words in refusal(*SMALL)
    monkeypatch.delenv("HF_TOKEN")
    assert "not logged in" in refusal(*SMALL)
    assert here.store.repos == {}
    monkeypatch.setenv("HF_TOKEN", FOUNDER.token)
    others = Publication("space", "saliency-bench/saliency_miou", {"game.py": b"x"}, None)
    publish(others, api=here.api())
    assert "saliency-bench/saliency_miou contains unrelated work (game.py)" in refusal(*SMALL)
    assert set(here.store.repos) == {("spaces", "saliency-bench/saliency_miou")}


def test_all_metrics_and_apps_are_published_by_default():
    names = []
    assert list(_all.metrics("x", names.append)) == list(_all.apps("x", names.append)) == []
    assert set(names) >= {*sb.list_metrics(), "leaderboard"}
    assert "annotate" not in names  # the page of a study


# The core


def test_board_core_joins_published_and_earlier_cells(built, tmp_path):
    (pair,) = _first_rows.pairs(built)
    report = json.loads((built / "pet-xai/build_report.json").read_text())
    assert pair.digest == sb.load_classifier(str(built / "models/resnet-18-pet-xai")).digest
    core = _first_rows.core([pair], "me")
    assert core.datasets == [CoreCell(
        dataset="me/pet-xai", fingerprint=report["splits"]["test"]["fingerprint"], model="me/resnet-18-pet-xai",
        digest=pair.digest, families=["alignment", "faithfulness", "sensitivity"])]  # fmt: skip
    (tmp_path / FILE).write_bytes(core_as_yaml(core))
    assert read_core(tmp_path / FILE) == core
    old = core.datasets[0].model_copy(update={"digest": "0" * 32})
    other = old.model_copy(update={"dataset": "me/other"})
    again = _first_rows.core([pair], "me", Core(name="ours", datasets=[other, old]))
    assert (again.name, again.datasets) == ("ours", [other, core.datasets[0]])
    assert _first_rows.core([], "me") is None


def test_model_of_other_images_is_not_paired(built, tmp_path):
    shutil.copytree(built, root := tmp_path / "built")
    log = root / "models/resnet-18-pet-xai/training_log.json"
    log.write_text(log.read_text().replace(json.loads(log.read_text())["settings"]["images"], "0" * 32))
    assert _first_rows.pairs(root) == []


def test_model_card_uses_the_run_with_equal_weights(built, tmp_path):
    network, digest = built / "models/resnet-18-pet-xai", _first_rows.pairs(built)[0].digest
    for name, about in {
        "a": {"id": "folder:resnet-18-pet-xai", "digest": "0" * 32},
        "b": {"id": "x", "digest": digest},
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps({"model": about}))
    assert _all._run_on(network, tmp_path) == tmp_path / "b"
    assert _all._run_on(network, tmp_path / "a") is None


def test_busy_hub_does_not_drop_dataset_from_card(here, built, tmp_path, slept):
    publish(dataset_publication(built / "pet-xai", "saliency-bench", tmp_path), api=here.api())

    def card():
        model = model_publication(built / "models/resnet-18-pet-xai", "saliency-bench", api=here.api())
        return model.files["README.md"].decode()

    assert "trained on\n[saliency-bench/pet-xai]" in card()
    here.fault("GET /api/datasets", status=503)
    refused("503", card)
    here.fault("HEAD .*build_report.json", times=9, status=503)
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    refused(r"build_report\.json of saliency-bench/pet-xai could not be downloaded", card)
    here.heal()
    assert "trained on\n[saliency-bench/pet-xai]" in card()


# Retries


@pytest.mark.parametrize(("order", "waits"), [
    ({"status": 429, "headers": {"Retry-After": "7"}}, 7),
    ({"status": 429, "headers": {"RateLimit": '"api";r=0;t=55'}}, 55),
    ({"status": 503}, patience.PAUSES[0]), ({"lost": True}, patience.PAUSES[0]),
])  # fmt: skip
def test_busy_hub_is_retried(hub, slept, order, waits):
    hub.fault("GET /api/whoami", **order)
    said = []
    assert patiently(lambda: hub.api().whoami()["name"], "x/y", hub.api(), said.append) == "founder"
    assert (slept, len(said)) == ([waits], 1)
    assert said[0].endswith(f"; trying again in {waits} s")


def test_permanent_hub_errors_are_not_retried(hub, slept):
    hub.fault("GET /api/whoami", times=99, status=503)
    refused(r"503 .*run the same command again", patiently, hub.api().whoami, "x/y", hub.api())
    assert slept == list(patience.PAUSES)
    hub.heal()
    hub.fault("GET /api/whoami", status=429, headers={"Retry-After": "86400"})
    refused(r"429.*86400 s; nothing is lost", patiently, hub.api().whoami, "x/y", hub.api())

    hub.fault("GET /api/whoami", status=403)
    refused("403", patiently, hub.api().whoami, "x/y", hub.api())

    def wrong():
        raise UserError("it is wrong")

    refused(r"^it is wrong$", patiently, wrong, "x/y", hub.api())
    with pytest.raises(ZeroDivisionError):
        patiently(lambda: 1 / 0, "x/y", hub.api())
    assert slept == list(patience.PAUSES)


def test_hub_identity_is_requested_once(hub):
    api = hub.api()
    assert {rights(api, f"saliency-bench/{name}").may for name in "abc"} == {True}
    assert len(hub.lines("whoami")) == 1


def test_password_in_hub_address_is_hidden():
    assert shown_endpoint(HfApi(endpoint="http://me:secret@hub.example:8080/at")) == "http://hub.example:8080/at"


# Other users and requests


def test_stranger_process_gets_no_token_or_cache(monkeypatch, tmp_path):
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_CACHE", "DATASETS_VERBOSITY", "HF_ENDPOINT"):
        monkeypatch.setenv(name, f"{name} of mine")
    seen = _stranger._environment(tmp_path)
    assert seen["HF_ENDPOINT"] == "HF_ENDPOINT of mine"
    assert not any("of mine" in text for name, text in seen.items() if name != "HF_ENDPOINT")
    assert seen["HF_HOME"].startswith(str(tmp_path))


def test_hub_requests_name_each_dataset():
    text = _native.requests("me", ["pet-xai", "food-101"])
    assert "packages/tasks/src/eval.ts" in text
    assert text.count("--namespace me --eval-yaml") == 2
    assert text.count("- https://huggingface.co/datasets/me/") == 2


# The rehearsal

FAULTS = ("repos/create", "preupload", "POST .*/commit/", "PUT", "/merge", "GET /api/datasets", "GET .*resolve")
# The last request that is answered before a child is killed: (part of the request, count).
KILLS = (("repos/create", 2), ("results/commit", 2), ("/merge", 1), ("results/commit", 1))


CHANGING = ("command", "peak_memory", "provenance", "ran", "seconds", "submitted")  # of result.json


def seen(hub):
    """Return the public content without data that differ between launches: commits, times, dates, chosen images."""
    return {
        (kind, name, re.sub(r"^status/\w+", "status/CONTENT", path)): _steady(path, content)
        for kind, name in hub.store.repos
        for path, content in hub.files(kind, name).items()
    }


def _steady(path, content):
    if path.endswith((".md", ".json")):
        content = re.sub(rb"[0-9a-f]{40}", b"COMMIT", content)
    if path.endswith("result.json"):
        return {key: value for key, value in json.loads(content).items() if key not in CHANGING}
    if path.startswith("status/"):
        cells = json.loads(content)["cells"]
        return {key: (cell["samples"], cell["by"]) for key, cell in cells.items()}
    if path == "board/rows.index":
        rows = json.loads(content)["rows"]
        return [(row["cell"]["explainer"], row["cell"]["value"], row["rank"], row["status"]) for row in rows]
    if path == "board/rows.parquet":
        return pq.read_table(
            BytesIO(content), columns=["explainer", "value", "rank", "status", "recomputed"]
        ).to_pylist()
    return content


@pytest.mark.thorough
def test_disturbed_launch_ends_like_undisturbed_one(tmp_path, built):
    from local_hub import LocalHub

    results, commits = [], []
    for name in ("undisturbed", "disturbed"):
        (place := tmp_path / name).mkdir()
        shutil.copytree(built, place / "built")
        children = Children(place / "caches")
        with LocalHub(place) as hub:
            argv = ["launch", "saliency-bench", "--data", str(place / "built"), "--pace", "0", *SMALL]
            settings = {"url": hub.url, "argv": argv, "log": str(place / "log"), "token": FOUNDER.token}
            for part, times in KILLS if name == "disturbed" else ():
                start = len(hub.asked)
                for match in FAULTS:
                    hub.fault(match, status=429, headers={"Retry-After": "1"})
                    hub.fault(match, status=503)

                def reached(start=start, part=part, times=times, hub=hub):
                    answered = [str(each) for each in hub.asked[start:]]
                    return sum(part in line and line.startswith("POST") for line in answered) >= times

                assert children.killed_at(reached, 0, launch, settings), (place / "log").read_text()
                hub.heal()
            children.to_the_end(launch, settings | {"stranger": name == "disturbed"})
            results.append(seen(hub))
            commits.append({key: len(repo.history("main")) for key, repo in hub.store.repos.items()
                            if key != ("datasets", REPO)})  # fmt: skip
            (pull,) = hub.repo("datasets", REPO).discussions
            assert pull.status == "merged"
            card = hub.files("models", "saliency-bench/resnet-18-pet-xai")["README.md"].decode()
            assert "license: mit" in card
            assert "saliency_miou of gradcam" in card
            core = yaml.safe_load(hub.files("datasets", REPO)[FILE])
    told = (tmp_path / "disturbed/log").read_text()
    assert results[0].keys() == results[1].keys()
    assert ([key for key in results[0] if results[0][key] != results[1][key]], commits[0]) == ([], commits[1])
    assert "trying again in" in told
    assert FOUNDER.token not in told
    assert core["datasets"][0]["dataset"] == "saliency-bench/pet-xai"
    assert "2 rows (2 run by the board); Overall has 2\n" in told
    for words in ('load_dataset("saliency-bench/pet-xai"): 13 samples of test', "37 classes",
                  'evaluate.load("saliency-bench/saliency_miou"): saliency_miou',
                  "submit: 2 cells are in saliency-bench/results",
                  "review: saliency-bench/results has no open pull request"):  # fmt: skip
        assert words in told
