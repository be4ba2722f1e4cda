"""Tests of publishing datasets, metrics and models on a Hub: plans, unmodified clients, and one-line refusals."""

import json
import logging
import re
import shutil
import subprocess
import sys
import traceback
from dataclasses import replace
from hashlib import sha256
from importlib.metadata import version

import datasets
import numpy as np
import pytest
import yaml
from commands import said
from huggingface_hub import DatasetCard, HfApi, ModelCard, parse_eval_result_entries
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.lfs import UploadInfo
from local_hub import FOUNDER, READER, VISITOR, LocalHub, User
from PIL import Image
from refusals import refused
from scipy.stats import binomtest

import saliency_bench as sb
from saliency_bench import cli, registry
from saliency_bench.board.submit import board_publication
from saliency_bench.bound_metric import list_metrics
from saliency_bench.data.build_report import REPORT
from saliency_bench.data.card import card
from saliency_bench.data.loading import fingerprint
from saliency_bench.errors import UserError
from saliency_bench.hub.upload import publish
from saliency_bench.hub.upload_plan import Publication
from saliency_bench.hub_builders import pet_xai
from saliency_bench.publishing.datasets import dataset_publication
from saliency_bench.publishing.metrics import metric_publication
from saliency_bench.publishing.models import model_publication
from saliency_bench.publishing.package import wheel
from saliency_bench.publishing.spaces import space_publication
from saliency_bench.utils.stand_ins import COMPUTING

TOKENS = [user.token for user in (FOUNDER, VISITOR, READER)]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Disable xet, which the local Hub does not support, and pauses."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.fixture
def workspace(tmp_path):
    (tmp_path / "workspace").mkdir()
    return tmp_path / "workspace"


def upload(hub, repo, path, content):
    hub.api().upload_file(path_or_fileobj=content, path_in_repo=path, repo_id=repo, repo_type="dataset")


def small(**files):
    return Publication("dataset", "saliency-bench/small", {path: text.encode() for path, text in files.items()}, "mit")


# Content


def test_dataset_is_published_once_as_planned(hub, pets, workspace):
    said: list[str] = []
    publication = dataset_publication(pets, "saliency-bench", workspace)
    dry = publish(publication, api=hub.api(), dry_run=True, say=said.append)
    assert (dry.commit, hub.store.repos) == (None, {})
    assert said[0] == "dataset saliency-bench/pet-xai (new, public), licence: cc-by-sa-4.0"
    assert re.fullmatch(r"  6 files, [\d.]+ kB; to send: 6, [\d.]+ kB", said[1])
    done = publish(publication, api=hub.api())
    assert done.changed
    assert done.commit == hub.api().dataset_info("saliency-bench/pet-xai").sha
    there = hub.files("datasets", "saliency-bench/pet-xai")
    for path in pets.rglob("*.parquet"):
        assert there[path.relative_to(pets).as_posix()] == path.read_bytes()
    with pytest.raises(HfHubHTTPError, match="403"):  # as the public Hub
        hub.api(VISITOR).delete_file("README.md", "saliency-bench/pet-xai", repo_type="dataset")
    asked = len(hub.asked)
    again = publish(dataset_publication(pets, "saliency-bench", workspace), api=hub.api(VISITOR))
    assert (again.changed, again.commit) == (False, done.commit)
    assert str(again).startswith("nothing changed: http://127.0.0.1")
    assert {each.method for each in hub.asked[asked:]} == {"GET", "HEAD"}


def test_only_changed_files_are_sent_and_stale_ones_removed(hub):
    owned = Publication("dataset", "saliency-bench/x", {"a.txt": b"a", "data/1.parquet": b"1" * 99}, None, ("data/*",))
    publish(owned, api=hub.api())
    upload(hub, "saliency-bench/x", "hand.txt", b"mine")
    asked = len(hub.asked)
    less = Publication("dataset", "saliency-bench/x", {"a.txt": b"a", "b.txt": b"b"}, None, ("data/*",))
    plan = publish(less, api=hub.api()).plan
    assert plan.changes == {"a.txt": "unchanged", "b.txt": "new", "data/1.parquet": "removed"}
    assert set(hub.files("datasets", "saliency-bench/x")) == {".gitattributes", "a.txt", "b.txt", "hand.txt"}
    assert not [each for each in hub.asked[asked:] if each.method == "PUT"]


def test_private_repository_stays_private(hub):
    publish(small(a="1"), private=True, api=hub.api())
    assert hub.repo("datasets", "saliency-bench/small").private
    publish(small(a="2"), api=hub.api())  # without the unchanged file
    assert hub.repo("datasets", "saliency-bench/small").private
    hub.api().update_repo_settings("saliency-bench/small", private=False, repo_type="dataset")
    refused(r"saliency-bench/small.*public.*private", publish, small(a="3"), private=True, api=hub.api())
    assert hub.files("datasets", "saliency-bench/small")["a"] == b"2"


@pytest.mark.slow
def test_unrelated_repository_is_not_changed(hub, pets, model, shapes, workspace, tmp_path):
    """Test a repository with another dataset, model files or an empty report.

    Empty repositories and our own are filled.
    """
    ours = dataset_publication(pets, "founder", workspace, "x")
    others = {"contains unrelated work (model.safetensors)": {"model.safetensors": b"x"},
              "contains shapes-xai, not pet-xai": dataset_publication(shapes, "founder", workspace, "x").files,
              "contains something unreadable, not pet-xai": {REPORT: b"[" * 100_000},
              "contains None, not pet-xai": {REPORT: b"{}"}}  # fmt: skip
    for number, (words, files) in enumerate(others.items()):
        repo = f"founder/x{number}"
        publish(Publication("dataset", repo, files, None), api=hub.api())
        before = hub.files("datasets", repo)
        line = re.escape(f"the dataset {repo} {words}; choose a different --name")
        refused(line, publish, replace(ours, repo=repo), api=hub.api())
        assert hub.files("datasets", repo) == before
    publish(Publication("dataset", "founder/x", {"README.md": b"---\nlicense: mit\n---\n"}, None), api=hub.api())
    assert publish(ours, api=hub.api()).changed
    network = model_publication(model, "founder", "net", api=hub.api())
    publish(Publication("model", "founder/net", {"pytorch_model.bin": b"x"}, None), api=hub.api())
    refused(r"founder/net contains unrelated work \(pytorch_model\.bin\)", publish, network, api=hub.api())
    publish(Publication("space", "founder/saliency_miou", {"app.py": b"x"}, None), api=hub.api())
    metric = metric_publication("saliency_miou", "founder")
    refused(r"founder/saliency_miou contains unrelated work \(app\.py\)", publish, metric, api=hub.api())


def test_card_describes_single_split_and_many_classes(pets, shapes):
    """Test that the card does not describe a single split as split by hash, and does not list more than 50 classes."""
    builder, report = registry.load("hub_builders", "shapes-xai"), json.loads((shapes / REPORT).read_text())
    features = datasets.load_dataset(str(shapes), split="test").features
    single = card(builder, report | {"splits": {"test": report["splits"]["test"]}}, features)
    assert "Every sample is in the split `test`" in single
    assert "hash of the seed" not in single
    many = {f"class {number}": 0.02 for number in range(51)}
    for split in report["splits"].values():
        split["class_shares"]["label"] = many
    text = card(builder, report, features)
    assert "`label` has 51 classes" in text
    assert "class 1 |" not in text
    assert "| bricks |" in text
    counts = report["counts"] | {"masks": 0}
    bare = DatasetCard(card(builder, report | {"counts": counts}, features)).data
    assert (bare["task_categories"], bare["task_ids"]) == (["image-classification"],
                                                           ["multi-class-image-classification"])  # fmt: skip


def test_dataset_card_describes_the_build(hub, pets, workspace):
    publish(dataset_publication(pets, "visitor", workspace), api=hub.api(VISITOR))
    files = hub.files("datasets", "visitor/pet-xai")
    text = files["README.md"].decode()
    card = DatasetCard(text).data
    assert (card["license"], card["size_categories"], card["task_categories"]) == (
        "cc-by-sa-4.0", ["n<1K"], ["image-classification", "image-segmentation"])  # fmt: skip
    assert card["task_ids"] == ["multi-class-image-classification", "semantic-segmentation"]
    assert (card["annotations_creators"], card["source_datasets"]) == (
        ["expert-generated"], ["extended|other-oxford-iiit-pet"])  # fmt: skip
    assert "Explanations, 2023](https://arxiv.org/abs/2310.08537)" in text
    assert "hash of the seed" in text
    assert "parkhi2012cats" in card["citation"]
    assert {split["name"]: split["num_examples"] for split in card["dataset_info"]["splits"]}
    assert card["configs"][0]["config_name"] == "default"
    for part in ("## Source and licence", "## How samples are made", "## Samples", "## Splits", "## Known biases",
                 "Percentage of each `label`:", "## How to cite", 'load_dataset("visitor/pet-xai"'):  # fmt: skip
        assert part in text
    masks = [np.asarray(row["mask"]) > 0 for row in sb.load_dataset(pets)]
    area, centre = np.mean([mask.mean() for mask in masks]), np.mean([mask[12, 16] for mask in masks])
    assert f"the mask covers {area:.0%} of the image on average" in text
    assert f"contains the central pixel in {centre:.0%} of the samples" in text
    assert "eval.yaml" not in files  # the Hub may refuse unknown values
    asked = dataset_publication(pets, "visitor", workspace, evaluation=True).files
    assert yaml.safe_load(asked["eval.yaml"])["tasks"] == [
        {"id": task, "config": "default", "split": "test"} for task in ("accuracy", "gradcam-miou", "gradcam-insertion")
    ]
    (workspace / "samples.png").write_bytes(files["assets/samples.png"])
    sheet = np.asarray(Image.open(workspace / "samples.png"))
    rows = len(sb.load_dataset(pets)) > 3
    assert sheet.shape == ((2 if rows else 1) * 264 - 8, 784, 3)
    assert len(re.findall(r"\w+ \(\w+_\d+\)", text.split("Masks in red: ")[1].split("\n")[0])) >= 3


def test_metric_space_needs_no_package(hub):
    done = publish(metric_publication("saliency_miou", "visitor"), api=hub.api(VISITOR))
    files = hub.files("spaces", "visitor/saliency_miou")
    assert {"app.py", "requirements.txt", "README.md", "saliency_miou.py", "score.py", "maps.py"} < set(files)
    assert not [path for path, text in files.items() if path.endswith(".py") and b"\nfrom saliency_bench" in text]
    card = yaml.safe_load(files["README.md"].decode().split("---\n")[1])
    assert (card["sdk"], card["app_file"], card["license"]) == ("gradio", "app.py", "apache-2.0")
    assert card["python_version"] == "3.11"
    assert b'evaluate.load("visitor/saliency_miou")' in files["README.md"]
    assert hub.api().space_info("visitor/saliency_miou").sdk == "gradio"
    assert f"evaluate=={version('evaluate')}\n" in files["requirements.txt"].decode()
    assert not any(path.endswith(".whl") for path in files)  # evaluate is sufficient
    assert not publish(metric_publication("saliency_miou", "visitor"), api=hub.api(VISITOR)).changed
    assert done.plan.publication.license == "apache-2.0"
    refused(r"saliency_mio\b.*saliency_miou", metric_publication, "saliency_mio", "visitor")


def test_metric_space_pins_the_package_wheel_by_hash():
    """Test that nothing is installed by the name `saliency-bench`, which someone else could register."""
    files = metric_publication("saliency_road", "visitor").files
    (name,) = (path for path in files if path.endswith(".whl"))
    lines = files["requirements.txt"].decode().splitlines()
    address = f"https://huggingface.co/spaces/visitor/saliency_road/resolve/main/{name}"
    assert lines[-1] == f"saliency-bench @ {address}#sha256={sha256(files[name]).hexdigest()}"
    assert all("==" in line or "@" in line for line in lines[1:])
    assert f"torch=={version('torch').partition('+')[0]}+cpu" in lines
    assert wheel() == (name, files[name])  # the same bytes, so pushing again sends nothing


@pytest.mark.slow
@pytest.mark.wheel
def test_pip_installs_the_wheel_for_spaces(tmp_path):
    name, content = wheel()
    (tmp_path / name).write_bytes(content)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]
    subprocess.run([*command, tmp_path / "site", tmp_path / name], check=True)
    code = f"import sys; sys.path[:0] = [{str(tmp_path / 'site')!r}]; import saliency_bench as sb; print(sb.__file__)"
    code += "; print(*sb.list_metrics())"
    shown = subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path += {sys.path!r}; {code}"],
                           capture_output=True, text=True, cwd=tmp_path, check=True)  # fmt: skip
    place, metrics = shown.stdout.splitlines()
    assert place.startswith(str(tmp_path))
    assert metrics.split() == list_metrics()


@pytest.mark.slow
def test_app_space_contains_the_package(hub, tmp_path):
    publication = space_publication("leaderboard", "visitor")
    done = publish(publication, api=hub.api(VISITOR))
    files = hub.files("spaces", "visitor/leaderboard")
    card = yaml.safe_load(files["README.md"].decode().split("---\n")[1])
    assert (card["sdk"], card["app_file"], card["python_version"]) == ("gradio", "app.py", "3.11")
    assert not [path for path in files if path.endswith((".png", ".pyc", ".safetensors"))]
    needed = files["requirements.txt"].decode().splitlines()
    names = {re.split(r"[<>=\[]", line)[0] for line in needed}
    assert names >= {"gradio", "huggingface_hub"}
    assert not names & set(COMPUTING)
    assert not any("extra ==" in line for line in needed)
    assert all("==" in line for line in needed)
    assert not publish(publication, api=hub.api(VISITOR)).changed
    assert done.plan.publication.license == "apache-2.0"
    refused(r"leaderbord.*leaderboard", space_publication, "leaderbord", "visitor")
    for path, content in files.items():
        (tmp_path / "space" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "space" / path).write_bytes(content)
    shown = subprocess.run([sys.executable, "-c", BESIDE], cwd=tmp_path / "space", capture_output=True, text=True)
    assert shown.stdout.split() == [str(len(list_metrics())), "4"], shown.stderr


# Without the installed package.
BESIDE = """
import os, sys
sys.meta_path[:] = [one for one in sys.meta_path if "editable" not in str(one).lower()]
sys.path.insert(0, os.getcwd())
from saliency_bench import registry
from saliency_bench.board.view.core import read_core
from saliency_bench.spaces.leaderboard import app
assert app.__file__.startswith(os.getcwd()), app.__file__
print(len(registry.names("metrics")), len(read_core(app.CORE).datasets))
"""


@pytest.fixture(scope="module")
def scored(model, pets, tmp_path_factory):
    out = tmp_path_factory.mktemp("scored") / "run"
    return sb.run(dataset=str(pets), model=str(model), explainers=["gradcam", "centre"], out=out, progress=False,
                  metrics=["saliency_miou", "saliency_insertion", "saliency_miou:threshold=0.3"])  # fmt: skip


@pytest.mark.slow
def test_model_card_lists_its_results(hub, model, pets, scored, workspace, tmp_path):
    told = json.loads((model / "training_log.json").read_text()) | {"model": "/home/ada/config.json"}
    shutil.copytree(model, tmp_path / "anew")
    (tmp_path / "anew" / "training_log.json").write_text(json.dumps(told))
    anew = model_publication(tmp_path / "anew", "ada", api=hub.api()).files
    assert b"Initial weights: random. Adam" in anew["README.md"]
    assert b"/home/ada" not in anew["README.md"] + anew["training_log.json"]  # although the folder no longer exists
    publish(dataset_publication(pets, "saliency-bench", workspace), api=hub.api())
    options = {"license": "mit", "results": scored.folder, "eval_results": True, "api": hub.api()}
    publication = model_publication(model, "saliency-bench", **options)
    publish(publication, api=hub.api())
    files = hub.files("models", "saliency-bench/resnet-18-pet-xai")
    assert set(files) == {
        ".gitattributes", ".eval_results/saliency-bench.yaml", "README.md", "config.json", "model.safetensors",
        "preprocessor_config.json", "training_log.json"}  # fmt: skip
    text, log = files["README.md"].decode(), json.loads(files["training_log.json"])
    card = yaml.safe_load(text.split("---\n")[1])
    assert card["datasets"] == ["saliency-bench/pet-xai"]
    assert "gradcam" in text
    assert str(tmp_path.parent) not in "".join(content.decode("utf-8", "replace") for content in files.values())
    entry = yaml.safe_load(files[".eval_results/saliency-bench.yaml"])
    head = hub.api().dataset_info("saliency-bench/pet-xai").sha
    assert entry[0]["dataset"] == {"id": "saliency-bench/pet-xai", "task_id": "accuracy", "revision": head}
    assert entry[0]["source"]["url"] == "https://huggingface.co/saliency-bench/resnet-18-pet-xai"
    low, high = binomtest(round(log["test_accuracy"] * 13), 13).proportion_ci(method="wilson")
    assert entry[0]["notes"] == f"split test, 32 x 32 pixels, n = 13, 95 % interval {low:.4f} to {high:.4f}"
    index = ModelCard(text).data.eval_results  # as huggingface_hub reads the card
    assert {(each.metric_type, each.dataset_type, each.dataset_split) for each in index} == {
        ("accuracy", "saliency-bench/pet-xai", "test"), ("saliency_miou", "other", "test"),
        ("saliency_insertion", "other", "test")}  # fmt: skip
    by_name = {each.metric_name: each for each in index}
    assert by_name["accuracy"].metric_value == log["test_accuracy"]
    assert by_name["accuracy"].metric_args == {"n": 13, "interval_95": pytest.approx([low, high], abs=1e-4)}
    for cell in scored.summary["cells"]:
        listed = by_name[f"{cell['metric_text']} of {cell['explainer_text']}"]
        told = listed.metric_args
        assert (told["explainer"], listed.metric_value, told["n"], told.get("interval_95", [None, None])) == (
            cell["explainer_text"], cell["value"], cell["n"], [cell["low"], cell["high"]])  # fmt: skip
    assert entry[0]["value"] == log["test_accuracy"]
    assert not publish(publication, api=hub.api()).changed


@pytest.mark.slow
def test_gradcam_scores_are_listed_on_the_dataset_page(hub, model, pets, scored, workspace):
    publish(dataset_publication(pets, "saliency-bench", workspace, evaluation=True), api=hub.api())
    tasks = yaml.safe_load(hub.files("datasets", "saliency-bench/pet-xai")["eval.yaml"])["tasks"]
    files = model_publication(model, "visitor", results=scored.folder, eval_results=True, api=hub.api()).files
    entries = parse_eval_result_entries(yaml.safe_load(files[".eval_results/saliency-bench.yaml"]))
    assert [entry.task_id for entry in entries] == [task["id"] for task in tasks]
    cells = {cell.metric_text: cell for cell in scored.cells if cell.explainer_text == "gradcam"}
    head = hub.api().dataset_info("saliency-bench/pet-xai").sha
    for entry, metric in zip(entries[1:], ("saliency_miou", "saliency_insertion"), strict=True):
        cell = cells[metric]
        assert (entry.value, entry.dataset_id, entry.dataset_revision) == (cell.value, "saliency-bench/pet-xai", head)
        assert entry.source_url == "https://huggingface.co/datasets/visitor/results"
        assert entry.notes.startswith(f"gradcam by {metric}, split test, n = {cell.n}")
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", entry.date)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("changes", "why"), [
    ({"limit": 2}, "the run does not use the whole split"),
    ({"target": "predicted"}, "the run's target is 'predicted', not 'label'"),
    ({"explainers": ["centre"]}, "the run contains no score of gradcam on saliency_miou or saliency_insertion"),
    ({"split": "train"}, "the run uses the split train, not test"),
])  # fmt: skip
def test_run_that_does_not_fit_the_tasks_is_not_listed(changes, why, hub, model, pets, workspace, tmp_path, capsys):
    publish(dataset_publication(pets, "saliency-bench", workspace), api=hub.api())
    settings = {"explainers": ["gradcam"], "metrics": ["saliency_miou"], "out": tmp_path / "run", "progress": False}
    run = sb.run(dataset=str(pets), model=str(model), **settings | changes)
    files = model_publication(model, "visitor", results=run.folder, eval_results=True, api=hub.api()).files
    entries = yaml.safe_load(files[".eval_results/saliency-bench.yaml"])
    assert [entry["dataset"]["task_id"] for entry in entries] == ["accuracy"]
    assert f"are not listed by --eval-results: {why}" in capsys.readouterr().err


@pytest.mark.slow
def test_card_credits_only_the_dataset_of_the_training(hub, model, pets, workspace, tmp_path):
    """Test a build on this machine that differs from the dataset published under this name."""

    def card_of(folder=model, namespace="visitor"):
        found = model_publication(folder, namespace, api=hub.api(VISITOR)).files
        return found["README.md"].decode(), json.loads(found["training_log.json"])

    log = json.loads((model / "training_log.json").read_text())
    images = json.loads((pets / REPORT).read_text())["splits"]["train"]["fingerprint"]
    assert log["dataset"] == {"name": "pet-xai", "repo": None, "revision": None}
    assert log["settings"]["images"] == images
    text, told = card_of()
    assert f"trained on\na local copy of `pet-xai` (fingerprint of the training images: `{images}`)" in text
    assert "datasets:" not in text
    assert "saliency-bench/pet-xai" not in text
    assert (told["dataset"], told["settings"]["dataset"]) == (
        {"name": "pet-xai", "repo": None, "revision": None},
        "pet-xai",
    )
    with pytest.raises(UserError, match=r"--eval-results.*local copy of pet-xai.*push"):
        model_publication(model, "visitor", eval_results=True, api=hub.api())

    own = dataset_publication(pets, "visitor", workspace)
    publish(own, api=hub.api(VISITOR))
    assert "[visitor/pet-xai](https://huggingface.co/datasets/visitor/pet-xai)" in card_of()[0]
    other = json.loads(own.files[REPORT])
    other["splits"]["train"]["fingerprint"] = "0" * 32
    differs = own.files | {REPORT: json.dumps(other).encode()}
    publish(Publication("dataset", "saliency-bench/pet-xai", differs, None), api=hub.api())
    assert yaml.safe_load(card_of()[0].split("---\n")[1])["datasets"] == ["visitor/pet-xai"]
    assert "saliency-bench/pet-xai" not in card_of(namespace="someone")[0]
    refused("a b", lambda: publish(model_publication(model, "a b", api=hub.api()), api=hub.api()))

    shutil.copytree(model, tmp_path / "loaded")
    loaded = log | {"dataset": {"name": "pet-xai", "repo": "saliency-bench/pet-xai"}}
    (tmp_path / "loaded" / "training_log.json").write_text(json.dumps(loaded))
    assert yaml.safe_load(card_of(tmp_path / "loaded")[0].split("---\n")[1])["datasets"] == ["saliency-bench/pet-xai"]


# Refusals


def test_invalid_publications_are_rejected(pets, closed, model, workspace, tmp_path):
    changed = tmp_path / "changed"
    shutil.copytree(pets, changed)
    (changed / "data/test-00000-of-00001.parquet").write_bytes(b"x")
    shutil.copytree(model, tmp_path / "other")
    (tmp_path / "other" / "model.safetensors").unlink()
    mistakes = [
        (lambda: dataset_publication(tmp_path, "x", workspace), rf"{tmp_path}.*saliency-bench build"),
        (lambda: dataset_publication(changed, "x", workspace), "test-00000.*build_report.json"),
        (lambda: dataset_publication(pets, "x", workspace, with_images="mit"), "remove --with-images"),
        (lambda: dataset_publication(closed, "x", workspace, with_images="yes, I may"), "--with-images.*cc-by-4.0"),
        (lambda: dataset_publication(closed, "x", workspace, with_images="other"), "--with-images.*cc-by-4.0"),
        (lambda: model_publication(pets, "x"), "safetensors.*saliency-bench train"),
        (lambda: model_publication(tmp_path / "other", "x"), "safetensors.*saliency-bench train"),
        (lambda: model_publication(model, "x", results=pets), r"summary\.json"),
        (lambda: publish(Publication("dataset", "a/b/c", {}, None)), "'a/b/c'.*name"),
    ]
    for call, message in mistakes:
        refused(message, call)


@pytest.mark.slow
def test_hub_errors_are_one_line(hub):
    def ended(match, api=None, **fault):
        hub.heal()
        said: list[str] = []
        if fault:
            hub.fault("POST .*/commit/", times=9, **{"message": f"you sent {FOUNDER.token}"} | fault)
        with pytest.raises(UserError, match=match) as error:
            publish(small(a=str(fault)), api=api or hub.api(), say=said.append)
        assert "\n" not in str(error.value)
        shown = "".join([*said, *traceback.format_exception(error.value)])
        assert not any(token in shown for token in TOKENS)

    ended("401.*hf auth login.*HF_TOKEN", api=hub.api(User("stranger", "hf_nobodyknowsme")))
    ended("saliency-bench/small.*403.*--namespace", status=403)
    ended(r"404.*check the name", status=404)
    ended(r"conflict in saliency-bench/small \(409\): busy", status=409, message="busy")
    ended(r"429.*wait 900 s; nothing is lost", status=429, headers={"Retry-After": "900"})
    ended(r"returned status 500 for saliency-bench/small \(you sent \*\*\*\); nothing is lost", status=500)
    ended(r"status 400 for saliency-bench/small \(you sent \*\*\*\)", status=400)
    ended("connection broke; nothing is lost", drop_after=10)
    assert hub.files("datasets", "saliency-bench/small").keys() == {".gitattributes"}
    gone = HfApi(endpoint="http://127.0.0.1:9", token="hf_x")
    ended("cannot be reached", api=gone)
    offline = publish(small(a="1"), api=gone, dry_run=True)
    assert "not compared with the Hub" in offline.plan.lines()[0]
    assert (
        offline.plan.lines()[-1]
        == "  your permissions were not checked: the Hub cannot be reached, or the connection broke"
    )


GUEST = User("guest", "hf_GuEsTsSeCrEtToKeN0123456789abcdef", orgs=("saliency-bench",), reads=("saliency-bench",))
FINE = User("fine", "hf_FiNeSsEcReTtOkEn0123456789abcdefg", orgs=("saliency-bench",), scopes=("fine",))
MAY_NOT = {VISITOR: "belongs to saliency-bench", READER: "token.*read", GUEST: "only read access to saliency-bench",
           FINE: "fine-grained token.*saliency-bench"}  # fmt: skip


@pytest.mark.parametrize("user", MAY_NOT, ids=lambda user: user.name)
def test_missing_write_access_is_reported_before_upload(user, tmp_path):
    with LocalHub(tmp_path, users=(FOUNDER, *MAY_NOT)) as hub:
        dry = publish(small(a="1"), api=hub.api(user), dry_run=True)
        why = f"^{user.name} may not write to saliency-bench/small.*{MAY_NOT[user]}"
        assert re.search(why, dry.plan.lines()[-1].strip())
        assert dry.as_dict()["may_write"] is False
        refused(f"{why}.*; .*--namespace", publish, small(a="1"), api=hub.api(user))
        assert ({each.method for each in hub.asked}, hub.store.repos) == ({"GET"}, {})
        with pytest.raises(HfHubHTTPError, match="403"):  # the Hub would also have refused the push
            hub.api(user).create_repo("saliency-bench/small", repo_type="dataset")


def test_plan_states_write_access_if_known(hub, tmp_path):
    own = Publication("dataset", "visitor/small", {"a": b"1"}, "mit")
    assert publish(own, api=hub.api(VISITOR), dry_run=True).plan.lines()[-1] == "  visitor may write to it"
    with LocalHub(tmp_path, users=(FINE,)) as other:
        mine = Publication("dataset", "fine/small", {"a": b"1"}, "mit")
        assert publish(mine, api=other.api(FINE)).plan.as_dict()["may_write"] is True
    nobody = publish(own, api=HfApi(endpoint=hub.url, token=False), dry_run=True)
    assert nobody.plan.lines()[-1] == "  your permissions were not checked: you are not logged in"
    assert nobody.as_dict()["may_write"] is None
    hub.fault("whoami", status=500, times=9, message=f"you sent {VISITOR.token}")
    done = publish(own, api=hub.api(VISITOR))  # the Hub decides
    assert done.changed
    assert (
        done.plan.lines()[-1]
        == "  your permissions were not checked: the Hub returned status 500 for visitor/small (you sent ***)"
    )
    assert publish(own, api=hub.api(VISITOR)).plan.rights is None  # nothing is sent, so rights are not checked


def test_publishing_requires_a_login(monkeypatch, hub):
    monkeypatch.setattr("saliency_bench.hub.client.get_token", lambda: None)
    refused(r"hf auth login.*HF_TOKEN", publish, small(a="1"), api=HfApi(endpoint=hub.url))


# Temporary errors


@pytest.mark.slow
def test_temporary_hub_errors_are_retried(hub, monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    said: list[str] = []
    hub.fault("GET .*/datasets/saliency-bench/small$", status=500)
    hub.fault("POST .*/commit/", status=429, headers={"Retry-After": "3"})
    publish(small(a="1"), api=hub.api(), say=said.append)
    assert hub.files("datasets", "saliency-bench/small")["a"] == b"1"
    assert 3 in waits
    assert [line for line in said if "429" in line and "trying again in 3 s" in line]
    hub.heal()
    hub.fault("POST .*/commit/", lost=True)  # the commit was created, but the response was lost
    assert publish(small(a="2"), api=hub.api()).changed
    assert len(hub.repo("datasets", "saliency-bench/small").history("main")) == 3
    hub.fault("GET .*/datasets/saliency-bench/small", delay=0.3)
    assert publish(small(a="3"), api=hub.api()).changed


def test_files_are_resent_after_a_broken_connection(hub):
    content = {f"{index}.parquet": bytes([index]) * 300_000 for index in range(3)} | {"README.md": b"small"}
    hub.fault("PUT", drop_after=100_000)
    publish(Publication("dataset", "saliency-bench/large", content, None), api=hub.api())
    assert len([line for line in hub.lines("PUT") if line.endswith("200")]) == 3
    assert hub.files("datasets", "saliency-bench/large").items() >= content.items()


def test_file_is_hashed_at_most_twice(hub, tmp_path, monkeypatch):
    """Test that a file is hashed once for the comparison and once by huggingface_hub for the upload."""
    (tmp_path / "x.parquet").write_bytes(b"1" * 9)
    hashed: list[str] = []
    of_path = UploadInfo.from_path.__func__
    monkeypatch.setattr(
        UploadInfo, "from_path", classmethod(lambda cls, path: hashed.append(path) or of_path(cls, path))
    )
    publication = Publication("dataset", "saliency-bench/x", {"x.parquet": tmp_path / "x.parquet"}, None)
    publish(publication, api=hub.api())
    assert len(hashed) == 1
    publish(publication, api=hub.api())
    assert len(hashed) == 1


@pytest.mark.slow
def test_concurrent_commit_is_detected(hub):
    """Test that a commit names its parent.

    The Hub refuses the commit if the parent is outdated, and the files are compared again.
    """
    publish(small(a="1", b="1"), api=hub.api())
    api = hub.api()
    commit = api.create_commit

    def late(*args, **kwargs):
        api.create_commit = commit
        publish(small(a="2", b="1"), api=hub.api())
        return commit(*args, **kwargs)

    api.create_commit = late
    publish(small(a="1", b="2"), api=api)
    files = hub.files("datasets", "saliency-bench/small")
    assert (files["a"], files["b"]) == (b"1", b"2")
    assert len(hub.repo("datasets", "saliency-bench/small").history("main")) == 4


@pytest.mark.slow
def test_interrupted_upload_resumes_with_missing_files(hub):
    """Test a connection that always breaks during one of three large files. The next upload sends only this file."""
    content = {f"{index}.parquet": bytes([index]) * 300_000 for index in range(3)}
    publication = Publication("dataset", "saliency-bench/large", content, None)
    broken = hub.fault(f"PUT .*{sha256(content['1.parquet']).hexdigest()}", drop_after=100_000, times=99)
    refused(r"connection broke", publish, publication, api=hub.api())
    assert broken.seen > 3
    assert hub.files("datasets", "saliency-bench/large").keys() == {".gitattributes"}
    assert len(hub.lines("PUT")) == 2
    hub.heal()
    assert publish(publication, api=hub.api()).changed
    assert len(hub.lines("PUT")) == 3
    assert {path: hub.files("datasets", "saliency-bench/large")[path] for path in content} == content


# Images that may not be redistributed


@pytest.fixture
def annotations(closed, tmp_path):
    (tmp_path / "made").mkdir()
    out = tmp_path / "annotations-only"
    for path, content in dataset_publication(closed, "saliency-bench", tmp_path / "made").files.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    return out


def test_annotations_contain_no_image(annotations, closed, source):
    rows = datasets.load_dataset(str(annotations), "annotations", split="train")
    whole = datasets.load_dataset(str(closed), split="train")
    assert rows.column_names == [*(name for name in whole.column_names if name != "image"), "image_sha256"]
    assert rows["image_id"][:] == whole["image_id"][:]
    assert np.array_equal(np.asarray(rows[0]["mask"]), np.asarray(whole[0]["mask"]))
    by_id = dict(zip(rows["image_id"], rows["image_sha256"], strict=True))
    jpeg = next(name for name in by_id if name not in ("beagle_7", "boxer_9"))
    assert by_id[jpeg] == sha256((source / f"images/{jpeg}.jpg").read_bytes()).hexdigest()
    published = b"".join(path.read_bytes() for path in annotations.rglob("*") if path.is_file())
    assert not [path for path in (source / "images").iterdir() if path.read_bytes()[-200:] in published]
    text = (annotations / "README.md").read_text()
    assert "**The images must not be published**" in text
    assert 'source="FOLDER-OF-THE-SOURCE"' in text
    assert not (annotations / "assets").exists()
    refused(r"load_dataset\('.*', source=DIR\)", sb.load_dataset, annotations)


def test_annotations_rejoin_with_the_source(annotations, closed, source, monkeypatch):
    for split in ("train", "validation", "test"):
        joined, whole = sb.load_dataset(annotations, split, source=source), sb.load_dataset(closed, split)
        assert (joined.features, fingerprint(joined)) == (whole.features, fingerprint(whole))
    monkeypatch.setattr("saliency_bench.data.annotations.build", None)
    assert len(sb.load_dataset(annotations, source=source)) == len(sb.load_dataset(closed))  # it was stored
    monkeypatch.setattr(pet_xai, "VERSION", "other")
    refused(r"pet-xai.*version \d+ .*version is other", sb.load_dataset, annotations, source=source)


def test_other_source_is_rejected(annotations, source, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(source, other)
    ids = datasets.load_dataset(str(annotations), "annotations", split="test")["image_id"][:]
    (other / f"images/{ids[0]}.jpg").unlink()
    Image.new("RGB", (32, 24)).save(other / f"images/{ids[1]}.jpg")
    missing, differing = rf"1 of {len(ids)} images .*missing.*\({ids[0]}\)", rf"1 of {len(ids)} .*differ.*\({ids[1]}\)"
    refused(f"pet-xai, split test: {missing}.*{differing}", sb.load_dataset, annotations, source=other)
    shutil.copytree(source, tmp_path / "masks")
    Image.fromarray(np.ones((24, 32), np.uint8)).save(tmp_path / f"masks/annotations/trimaps/{ids[0]}.png")
    refused("split test: masks or labels", sb.load_dataset, annotations, source=tmp_path / "masks")
    refused("none does not exist", sb.load_dataset, annotations, source=tmp_path / "none")


def test_unknown_licence_has_name_and_link(closed, workspace, monkeypatch, tmp_path):
    monkeypatch.setattr(pet_xai, "TERMS", ("own-terms", "https://example.org/terms"), raising=False)
    folder = shutil.copytree(closed, tmp_path / "other")
    account = json.loads((folder / REPORT).read_text()) | {"license": "other"}
    (folder / REPORT).write_text(json.dumps(account))
    publication = dataset_publication(folder, "saliency-bench", workspace)
    text = publication.files["README.md"].decode()
    data = DatasetCard(text).data
    assert (data["license"], data["license_name"], data["license_link"]) == (
        "other", "own-terms", "https://example.org/terms")  # fmt: skip
    assert "Licence: [own-terms](https://example.org/terms)." in text
    assert publication.license == "other (own-terms)"


def test_annotations_are_published_once(hub, closed, tmp_path):
    for attempt in ("first", "second"):
        (tmp_path / attempt).mkdir()
        done = publish(dataset_publication(closed, "saliency-bench", tmp_path / attempt), api=hub.api())
        assert done.changed == (attempt == "first")


def test_source_and_revision_are_rejected_where_unused(pets, source):
    refused(r"shapes-xai.*source", sb.load_dataset, "shapes-xai", source=source)
    refused(r"images.*`source`", sb.load_dataset, pets, source=source)
    refused(r"`revision`", sb.load_dataset, pets, revision="main")


def test_images_are_published_under_the_given_licence(closed, workspace):
    publication = dataset_publication(closed, "saliency-bench", workspace, with_images="cc-by-4.0")
    text = publication.files["README.md"].decode()
    assert (DatasetCard(text).data["license"], publication.license) == ("cc-by-4.0", "cc-by-4.0")
    assert "The images are published under `cc-by-4.0` by the owner of this repository." in text
    assert "data/test-00000-of-00001.parquet" in publication.files
    assert list(workspace.iterdir()) == []


# The command


@pytest.fixture
def line(here, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", FOUNDER.token)
    return lambda *words: cli.main([str(word) for word in words])


@pytest.mark.slow
def test_push_command_publishes_and_reports(line, hub, pets, model, tmp_path, capsys):
    def shown(*words):
        return said(capsys, ["push", *map(str, words)])

    assert "dry run: nothing was sent" in shown("dataset", pets, "--dry-run")
    shutil.copytree(pets, tmp_path / "built" / "pet-xai")
    shutil.copytree(model, tmp_path / "built" / "models" / model.name)
    plans = json.loads(shown("all", tmp_path / "built", "--license", "apache-2.0", "--dry-run", "--json"))
    named = {one["repo"].partition("/")[2] for one in plans}
    assert named >= {"pet-xai", model.name, "results", "leaderboard", *sb.list_metrics()}
    for kind, item, place, name in (("metric", "saliency_miou", "space", "saliency_miou"),
                                    ("model", model, "model", model.name)):  # fmt: skip
        plan = shown(kind, item, "--dry-run")
        assert plan.startswith(f"{place} saliency-bench/{name} (new, public)")
        assert plan.endswith("dry run: nothing was sent\n")
    assert hub.store.repos == {}
    told = json.loads(shown("dataset", pets, "--name", "my-pets", "--eval-yaml", "--json"))
    assert (told["repo"], told["license"], told["private"], told["changed"]) == (
        "saliency-bench/my-pets", "cc-by-sa-4.0", False, True)  # fmt: skip
    size = len(hub.files("datasets", told["repo"])["eval.yaml"])
    assert {"path": "eval.yaml", "bytes": size, "change": "new"} in told["files"]
    assert "nothing changed: http" in shown("dataset", pets, "--name", "my-pets", "--eval-yaml")
    shown("metric", "saliency_pointing_game", "--private")
    assert hub.repo("spaces", "saliency-bench/saliency_pointing_game").private
    assert "licence: not stated" in shown("model", model)
    for words, message in (
        (("metric", "saliency_miou", "--with-images", "mit"),
         "--with-images is an option of `push dataset`, not of `push metric`"),
        (("dataset", pets, "--eval-results"), "--eval-results is an option of `push model`"),
        (("metric", "saliency_miou", "--name", "x"), "remove --name"),
        (("model", "nowhere"), "saliency-bench train --out nowhere"),
        (("results", model), "not the folder of a finished run (no summary.json)"),
        (("metric", "saliency_miou", "--namespace", "someone"), "founder may not write to someone/saliency_miou"),
    ):  # fmt: skip
        error = said(capsys, ["push", *map(str, words)], 2)
        assert message in error
        assert error.count("\n") == 1


@pytest.mark.slow
def test_token_never_appears_in_output_or_files(line, hub, pets, capsys, caplog, tmp_path):
    """Test printed text, logs, errors (with --debug) and files."""
    caplog.set_level("DEBUG")
    for words in (("--namespace", "someone"), (), ("--name", "other")):
        hub.fault("PUT", status=500)
        hub.fault("POST .*/commit/", drop_after=10, times=9 if "--name" in words else 1)
        try:
            line("push", "dataset", pets, *words, "--debug")
        except UserError as error:
            logging.getLogger("test").error("raised", exc_info=error)
        hub.heal()
    printed = capsys.readouterr()
    seen = printed.out + printed.err + caplog.text
    assert "nothing is lost" in seen
    assert "may not write to someone/pet-xai" in seen
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 5
    for token in TOKENS:
        assert token not in seen
        assert not [content for content in written if token.encode() in content]


# Documented commands


@pytest.mark.slow
def test_documented_loading_works_online_and_offline(hub, pets, model, workspace):
    """Test unmodified clients in separate processes, first with network and then without network."""
    publish(dataset_publication(pets, "saliency-bench", workspace), api=hub.api())
    publish(metric_publication("saliency_miou", "saliency-bench"), api=hub.api())
    publish(model_publication(model, "saliency-bench", api=hub.api()), api=hub.api())
    pinned = hub.api().dataset_info("saliency-bench/pet-xai").sha
    changed = hub.files("datasets", "saliency-bench/pet-xai")["README.md"] + b"\nmore\n"
    upload(hub, "saliency-bench/pet-xai", "README.md", changed)
    use = """
import datasets
import evaluate
import numpy as np
import saliency_bench as sb
from transformers import AutoModelForImageClassification, AutoImageProcessor
whole = datasets.load_dataset("saliency-bench/pet-xai")
rows = sb.load_dataset("saliency-bench/pet-xai")
assert rows.features == whole["test"].features and len(rows) == len(whole["test"])
metric = evaluate.load("saliency-bench/saliency_miou")
mask = np.asarray(rows[0]["mask"])[None] > 0
assert metric.compute(predictions=mask * 1.0, references=mask) == {"saliency_miou": 1.0}
classifier = sb.load_classifier("saliency-bench/resnet-18-pet-xai")
AutoModelForImageClassification.from_pretrained("saliency-bench/resnet-18-pet-xai")
AutoImageProcessor.from_pretrained("saliency-bench/resnet-18-pet-xai")
from saliency_bench.data.loading import fingerprint
print("fingerprint", fingerprint(rows), classifier.digest)
"""
    more = f"""
streamed = list(datasets.load_dataset("saliency-bench/pet-xai", split="test", streaming=True))
assert [row["image_id"] for row in streamed] == rows["image_id"][:]
old = datasets.load_dataset("saliency-bench/pet-xai", "default", split="test", revision={pinned!r})
assert fingerprint(old) == fingerprint(sb.load_dataset("pet-xai", revision={pinned!r})) == fingerprint(rows)
import os, sys
sys.stdout.flush()
os._exit(0)  # threads of pyarrow may abort a process that has streamed as it ends
"""
    online = hub.python(use + more, user=None)
    assert online.returncode == 0, online.stderr
    asked = len(hub.asked)
    nowhere = "http://127.0.0.1:9"  # evaluate ignores HF_HUB_OFFLINE: it sends a request and then uses its cache
    offline = hub.python(use, user=None, HF_HUB_OFFLINE="1", HF_ENDPOINT=nowhere)
    assert offline.returncode == 0, offline.stderr
    report = json.loads((pets / REPORT).read_text())
    told = f"fingerprint {report['splits']['test']['fingerprint']} {sb.load_classifier(model).digest}"
    assert told in online.stdout
    assert told in offline.stdout
    assert len(hub.asked) == asked


def test_republishing_a_board_keeps_its_table(hub):
    publish(board_publication("saliency-bench"), api=hub.api())
    upload(hub, "saliency-bench/results", "board/rows.parquet", b"rows")
    assert not publish(board_publication("saliency-bench"), api=hub.api()).changed
    assert hub.files("datasets", "saliency-bench/results")["board/rows.parquet"] == b"rows"
