"""Tests of the recorded origin of a dataset and a model: the repository with the exact commit, or nothing."""

import json
import shutil

import datasets
import pytest
from huggingface_hub import DatasetCard, ModelCard
from local_hub import FOUNDER
from refusals import refused
from safetensors.torch import load_file, save_file

import saliency_bench as sb
from saliency_bench.board.hub_table import rewrite
from saliency_bench.board.submission import of_run
from saliency_bench.hub.upload import publish
from saliency_bench.publishing.datasets import dataset_publication
from saliency_bench.publishing.models import model_publication

DATA, NET = "founder/pets", "founder/net"
SETTINGS = {"explainers": ["centre", "random"], "metrics": ["saliency_miou"], "progress": False, "limit": 4}


@pytest.fixture
def commits(here, pets, model, tmp_path):
    """Return ({kind: first commit}, {kind: second commit}) of a dataset and a model repository."""
    (tmp_path / "work").mkdir()
    publish(dataset_publication(pets, "founder", tmp_path / "work", "pets"), api=here.api())
    publish(model_publication(model, "founder", "net", api=here.api()), api=here.api())
    first, changed = heads(here), shutil.copytree(model, tmp_path / "changed")
    weights = load_file(changed / "model.safetensors")
    name = next(name for name in weights if name.endswith("weight"))
    save_file(weights | {name: weights[name] * 2}, changed / "model.safetensors", {"format": "pt"})
    publish(model_publication(changed, "founder", "net", api=here.api()), api=here.api())
    text = here.files("datasets", DATA)["README.md"] + b"\nmore\n"
    here.api().upload_file(path_or_fileobj=text, path_in_repo="README.md", repo_id=DATA, repo_type="dataset")
    return first, heads(here)


def heads(hub):
    return {"dataset": hub.api().dataset_info(DATA).sha, "model": hub.api().model_info(NET).sha}


def told(run):
    """Return {file: {kind: (repo, revision)}}."""
    files = {name: json.loads((run.folder / name).read_text()) for name in ("run.json", "summary.json")}
    files["result.json"] = of_run(run.folder, "ada").result.model_dump(mode="json")
    return {name: {kind: (content[kind]["repo"], content[kind]["revision"]) for kind in ("dataset", "model")}
            for name, content in files.items()}  # fmt: skip


@pytest.mark.slow
def test_run_records_the_pinned_commits(commits, tmp_path):
    first, second = commits
    names = {"dataset": f"{DATA}@{first['dataset']}", "model": f"{NET}@{first['model']}"}
    pinned = sb.run(**names, out=tmp_path / "pinned", **SETTINGS)
    latest = sb.run(dataset=DATA, model=f"hub:{NET}", out=tmp_path / "latest", **SETTINGS)
    assert first["dataset"] != second["dataset"]
    for run, commit in ((pinned, first), (latest, second)):
        expected = {"dataset": (DATA, commit["dataset"]), "model": (NET, commit["model"])}
        assert told(run) == dict.fromkeys(("run.json", "summary.json", "result.json"), expected)
        result = of_run(run.folder, "ada").result
        assert (result.dataset.id, result.model.id) == (DATA, NET)
        assert f"--dataset {DATA}@{commit['dataset']} --model {NET}@{commit['model']} " in result.command
        page = (run.folder / "report.html").read_text()
        assert f"commit {commit['dataset']}" in page
        assert f"commit {commit['model']}" in page
    assert pinned.summary["model"]["digest"] != latest.summary["model"]["digest"]
    assert pinned.summary["dataset"]["fingerprint"] == latest.summary["dataset"]["fingerprint"]


@pytest.mark.slow
def test_local_folder_is_not_recorded_as_hub_repository(commits, pets, model, tmp_path, monkeypatch, capsys):
    """Test a local folder that has the name of an existing repository."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(pets, DATA)
    shutil.copytree(model, NET)
    run = sb.run(dataset=DATA, model=NET, out=tmp_path / "run", **SETTINGS)
    said = capsys.readouterr().err
    assert f"hub:{DATA}" in said
    assert f"hub:{NET}" in said
    nowhere = {"dataset": (None, None), "model": (None, None)}
    assert told(run) == dict.fromkeys(("run.json", "summary.json", "result.json"), nowhere)
    result = of_run(run.folder, "ada").result
    assert (result.dataset.id, result.model.id) == ("pet-xai", "folder:net")
    assert "founder" not in result.model_dump_json()


@pytest.mark.slow
def test_offline_model_loads_its_cached_commit(commits, here, tmp_path, monkeypatch):
    first, second = commits
    assert sb.load_classifier(NET).revision == second["model"]
    assert sb.load_classifier(NET, revision=first["model"]).revision == first["model"]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert sb.load_classifier(NET).revision == second["model"]
    assert sb.load_classifier(f"{NET}@{first['model']}").revision == first["model"]
    refused("HF_HUB_OFFLINE", sb.load_classifier, NET, revision="0" * 40)


@pytest.mark.slow
def test_model_card_states_data_and_base_commits(commits, here, pets, model, tmp_path):
    first, second = commits
    out = sb.train(dataset=f"{DATA}@{first['dataset']}", model=NET, out=tmp_path / "net2", epochs=1, size=32,
                   progress=False)  # fmt: skip
    log = json.loads((out / "training_log.json").read_text())
    assert log["dataset"] == {"name": DATA, "repo": DATA, "revision": first["dataset"]}
    assert log["base"] == {"repo": NET, "revision": second["model"]}
    run = sb.run(dataset=DATA, model=out, out=tmp_path / "run", **SETTINGS)
    files = model_publication(out, "founder", results=run.folder, api=here.api()).files
    card = ModelCard(files["README.md"].decode())
    assert (card.data.base_model, card.data.datasets) == (NET, [DATA])
    assert f"commit `{first['dataset']}`" in card.text
    assert f"commit `{second['model']}`" in card.text
    revisions = {each.dataset_split: each.dataset_revision for each in card.data.eval_results}
    assert revisions == {"test": first["dataset"]} or set(revisions) == {"test"}


@pytest.mark.slow
def test_results_load_as_tables_before_and_after_merging(here, pets, model, tmp_path, monkeypatch):
    """Read the configs of the card with `datasets` alone, as the viewer of the Hub does."""
    monkeypatch.setenv("HF_TOKEN", FOUNDER.token)
    run = sb.run(dataset=pets, model=model, out=tmp_path / "run", **SETTINGS)
    proposed = sb.submit(run, namespace="founder")
    configs = DatasetCard(here.files("datasets", "founder/results")["README.md"].decode()).data.configs
    assert [config["config_name"] for config in configs if config.get("default")] == ["board"]
    table = datasets.load_dataset("founder/results", "records", split="train")
    assert [row["cell_id"] for row in table] == [None]
    assert {"explainer", "metric", "value", "dataset", "model"} <= set(table.column_names)
    here.api().merge_pull_request("founder/results", 1, repo_type="dataset")
    rewrite("founder/results", here.api())  # like the commands of the owner
    cells = datasets.load_dataset("founder/results", "board", split="train")
    known = {cell["cell_id"]: (cell["value"], cell["n"], ["founder"]) for cell in run.summary["cells"]}
    assert {row["cell_id"]: (row["value"], row["n"], row["submitters"]) for row in cells} == known
    assert len(datasets.load_dataset("founder/results", "records", split="train")) == len(run.records()) + 1
    assert [row["cell_id"] for row in sb.load_results("founder/results").cells] == [row["cell_id"] for row in cells]
    assert proposed.pull_request.endswith("/discussions/1")
