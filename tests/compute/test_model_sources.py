"""Test sources of a model (a folder or a commit on the Hub), and the errors for other names."""

import json
import shutil
import time
from pathlib import Path

import pytest
import timm
from refusals import refused
from transformers import AutoModelForImageClassification, TimmWrapperConfig, TimmWrapperForImageClassification

from saliency_bench import load_classifier
from saliency_bench.compute.classifiers.sources import _suggestions, source_of

REPO = "founder/tiny"


@pytest.fixture
def online(here, resnet, monkeypatch, tmp_path):
    """Return a local Hub that has a model with two commits. The cache and the working directory are empty."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    api = here.api()
    api.create_repo(REPO)
    api.upload_folder(repo_id=REPO, folder_path=resnet)
    api.upload_file(repo_id=REPO, path_in_repo="README.md", path_or_fileobj=b"# tiny")
    return api


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """Use an empty cache and a Hub address that does not respond."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_hub_model_records_repository_and_commit(online, resnet):
    second, first = (commit.commit_id for commit in online.list_repo_commits(REPO)[:2])
    newest = load_classifier(REPO, device="cpu")
    assert (newest.id, newest.repo, newest.revision) == (REPO, REPO, second)
    older = load_classifier(REPO, revision=first, device="cpu")
    assert (older.repo, older.revision) == (REPO, first)
    assert load_classifier(f"{REPO}@{first}", device="cpu").revision == first
    assert newest.digest == older.digest == load_classifier(resnet, device="cpu").digest
    local = load_classifier(resnet, device="cpu")
    assert (local.repo, local.revision) == (None, None)
    shutil.copytree(resnet, "tiny")  # a folder is never matched by the last part of an id
    assert load_classifier(REPO, device="cpu").repo == REPO


def test_hub_model_loads_from_cache_when_hub_is_down(online, monkeypatch):
    commit = load_classifier(REPO, device="cpu").revision
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert load_classifier(REPO, device="cpu").revision == commit
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert load_classifier(REPO, device="cpu").revision == commit
    assert load_classifier(REPO, revision=commit, device="cpu").revision == commit


def test_hub_model_object_uses_cached_processor(online, tmp_path):
    by_name = load_classifier(REPO, device="cpu")
    model = AutoModelForImageClassification.from_pretrained(REPO)
    by_object = load_classifier(model)
    for name in ("digest", "geometry", "labels"):
        assert getattr(by_object, name) == getattr(by_name, name), name
    assert by_object.repo is None  # its weights may differ
    # if snapshots have different processors, the processor is unknown
    (snapshot,) = (tmp_path / "cache" / "hub").glob("models--*/snapshots/*")
    other = shutil.copytree(snapshot, snapshot.with_name("0" * 40))
    file = other / "preprocessor_config.json"
    content = json.loads(file.read_text())
    file.unlink()
    file.write_text(json.dumps(content | {"image_mean": [0.1, 0.1, 0.1]}))
    refused(rf"mean=.*{REPO}", load_classifier, model)


def test_folder_with_repository_name_is_used_and_reported(online, resnet, capsys):
    shutil.copytree(resnet, REPO)
    by_folder = load_classifier(REPO, device="cpu")
    assert (by_folder.repo, by_folder.revision) == (None, None)
    line = (
        f"the model {REPO} is loaded from the folder {Path(REPO).resolve()}; to load it from the Hub, write hub:{REPO}"
    )
    assert capsys.readouterr().err == f"saliency-bench: {line}\n"
    by_hub = load_classifier(f"hub:{REPO}", device="cpu")
    assert (by_hub.id, by_hub.repo) == (REPO, REPO)
    assert len(by_hub.revision) == 40
    assert capsys.readouterr().err == ""


def test_folder_rejects_revision_and_needs_config(resnet, tmp_path):
    for name in (resnet, "torchvision:resnet18"):
        refused("revision", load_classifier, name, revision="main")
    refused(r"no config\.json", load_classifier, tmp_path)


def test_unknown_repositories_and_revisions_are_rejected(online, resnet):
    refused(r"'founder/tinny'.*not found on the Hub", load_classifier, "founder/tinny")
    refused(r"no revision 'v9' of founder/tiny", load_classifier, REPO, revision="v9")
    refused(r"did you mean google/vit-base-patch16-224\?", load_classifier, "google/vit-base-patch16-244")
    assert "did you mean" not in refused(".", load_classifier, "microsoft/resnet-34")
    shutil.copytree(resnet, "models/resnet-18-pet")
    refused(r"not found on the Hub; did you mean models/resnet-18-pet\?", load_classifier, "model/resnet-18-pet")


@pytest.mark.parametrize(("name", "offline_mode", "words"), [
    ("microsoft/resnet-18", False, "the Hub cannot be reached"),
    ("hub:microsoft/resnet-18", False, "the Hub cannot be reached"),
    ("microsoft/resnet-18", True, "not in the cache.*HF_HUB_OFFLINE is set"),
])  # fmt: skip
def test_unreachable_hub_is_reported_quickly(offline, name, offline_mode, words, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline_mode)
    start = time.perf_counter()
    assert "did you mean" not in refused(words, load_classifier, name)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("name", ["./models/x", "../models/x", "/no/such/x", "models/x/y", "~/no/such/x", "a b/c"])
def test_missing_path_is_reported_without_asking_the_hub(offline, name):
    start = time.perf_counter()
    line = refused("there is no folder", load_classifier, name)
    assert time.perf_counter() - start < 1
    assert name in line


def test_missing_model_error_lists_checkpoints_of_folder(offline, resnet):
    shutil.copytree(resnet, "models/first")
    shutil.copytree(resnet, "microsoft/resnet-18")
    for name, text in (("models/zzz", r"not a local folder \(models contains first\).*cannot be reached"),
                       ("models/firsts", r"did you mean models/first\? \(the Hub cannot be reached\)")):  # fmt: skip
        refused(f"'{name}' is .*{text}", load_classifier, name)
    # A local folder may have the name of a repository on the Hub, which is suggested once.
    assert _suggestions("microsoft/resnet-19").count("microsoft/resnet-18") == 1
    refused(r"no folder './models/firsts'; did you mean models/first\?", load_classifier, "./models/firsts")


@pytest.mark.parametrize(("name", "near"), [
    ("models/resnt-18-pet", "models/resnet-18-pet"),
    ("./models/resnet-18-pets", "models/resnet-18-pet"),
    ("model/resnet-18-pet", "models/resnet-18-pet"),
    ("./model/resnet18-pet", "models/resnet-18-pet"),
    ("resnet-19", "resnet-18"),
    ("models/runs/first/Tiny", "models/runs/first/tiny"),
    ("models/resnet-50", None),
    ("models/empyt", None),  # a folder without a checkpoint
])  # fmt: skip
def test_misspelled_path_suggests_nearest_checkpoint(offline, resnet, name, near):
    for folder in ("models/resnet-18-pet", "models/runs/first/tiny", "resnet-18"):
        shutil.copytree(resnet, folder)
    Path("models/empty").mkdir()
    line = refused(".", load_classifier, name)
    assert f"did you mean {near}?" in line if near else "did you mean" not in line


def test_hub_repository_in_timm_layout_is_loaded(online, tmp_path):
    """Repositories of timm on the Hub contain a config.json of timm and no processor file."""
    pretrained = timm.create_model("resnet10t", num_classes=4).pretrained_cfg
    kept = {key: pretrained[key] for key in ("input_size", "mean", "std", "crop_pct", "interpolation")}
    config = TimmWrapperConfig(architecture="resnet10t", num_labels=4, pretrained_cfg=kept)
    TimmWrapperForImageClassification(config).save_pretrained(tmp_path / "timm")
    file = tmp_path / "timm" / "config.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({"architecture": "resnet10t", "num_classes": 4, "num_features": 512,
                                "pretrained_cfg": content["pretrained_cfg"] | {"num_classes": 4}}))  # fmt: skip
    online.create_repo("founder/timm")
    online.upload_folder(repo_id="founder/timm", folder_path=tmp_path / "timm")
    classifier = load_classifier("founder/timm", device="cpu")
    assert classifier.revision == online.repo_info("founder/timm").sha
    assert classifier.mean.flatten().tolist() == pytest.approx(list(kept["mean"]))
    assert str(classifier.geometry).endswith("centre crop 176 x 176")


def test_home_folder_is_expanded(resnet, monkeypatch):
    monkeypatch.setenv("HOME", str(Path(resnet).parent))
    assert source_of(f"~/{Path(resnet).name}").folder == Path(resnet)
