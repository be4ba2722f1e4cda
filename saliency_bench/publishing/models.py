"""The publication of a trained classifier: safetensors, processor, class names, training log, and a card."""

import json
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, EvalResultEntry, HfApi, ModelCard, ModelCardData, eval_result_entries_to_yaml
from huggingface_hub.errors import HFValidationError

from saliency_bench import registry
from saliency_bench.data.card import template_file
from saliency_bench.data.hub_datasets import published_report
from saliency_bench.data.names import NAMESPACE, list_datasets
from saliency_bench.errors import UserError
from saliency_bench.hub import client, errors
from saliency_bench.hub.plan import Publication
from saliency_bench.publishing.datasets import ACCURACY
from saliency_bench.results.public_names import public_name
from saliency_bench.results.run_folder import RunData, read_run
from saliency_bench.results.summary import table
from saliency_bench.utils.files import read_json

NEEDED = {"config.json": "the class names", "training_log.json": "the training"}
KEPT = ("*.safetensors", "*.safetensors.index.json", "config.json", "preprocessor_config.json", "training_log.json")
EVALUATION = ".eval_results/saliency-bench.yaml"


def model_publication(
    folder: str | Path,
    namespace: str,
    name: str | None = None,
    license: str | None = None,
    results: str | Path | None = None,
    eval_results: bool = False,
    api: HfApi | None = None,
) -> Publication:
    """The files of a checkpoint that `saliency-bench train` wrote.

    license: of the weights, an identifier of the Hub. results: folder of a run on this model, for the card's table and
    model-index. eval_results: add the accuracy in the form that the Hub shows on the dataset's page.
    The card links the dataset on the Hub if it was loaded from there, or if one published in our namespace or in this
    one has the same fingerprint; any other dataset is only named.
    Raises: UserError for a folder that is not such a checkpoint, or a run on another model.
    """
    folder = Path(folder)
    files = _files(folder)
    log, config = read_json(folder / "training_log.json"), read_json(folder / "config.json")
    log = _public_log(log, namespace, api or client.default_api())
    run = _run(Path(results), folder) if results is not None else None
    repo = f"{namespace}/{name or folder.resolve().name}"
    card = _card(repo, log, config, license, run)
    content: dict[str, Path | bytes] = {
        **files,
        "training_log.json": (json.dumps(log, indent=2) + "\n").encode(),
        "README.md": (str(card).rstrip() + "\n").encode(),
    }
    if eval_results:
        content[EVALUATION] = _evaluation(log, folder)
    return Publication("model", repo, content, license, owned=("*.safetensors", "*.safetensors.index.json"))


def _files(folder: Path) -> dict[str, Path]:
    files = {path.name: path for pattern in KEPT for path in sorted(folder.glob(pattern))}
    if not any(name.endswith(".safetensors") for name in files):
        raise UserError(
            f"{folder} holds no weights as safetensors; make one with `saliency-bench train --out {folder}`"
        )
    for name, what in NEEDED.items():
        if name not in files:
            raise UserError(
                f"{folder} has no {name}, which describes {what}; publish a folder written by `saliency-bench train`"
            )
    return files


def _public_log(log: dict, namespace: str, api: HfApi) -> dict:
    """The training log without local folders, and with the repository of the dataset."""
    model, settings, dataset = log["model"], log["settings"], log["dataset"]
    repo = dataset["repo"] or _published(dataset["name"], settings["images"], namespace, api)
    return log | {
        "model": public_name(model) if model else model,
        "dataset": {"name": dataset["name"], "repo": repo},
        "settings": settings | {"dataset": repo or dataset["name"]},
    }


def _published(name: str, images: str, namespace: str, api: HfApi) -> str | None:
    """The repository of a published dataset with exactly these training images."""
    for repo in dict.fromkeys((f"{NAMESPACE}/{name}", f"{namespace}/{name}") if name in list_datasets() else ()):
        try:
            head = api.dataset_info(repo).sha  # a cached report may be older than the repository
        except HFValidationError:  # reported when publishing
            continue
        except Exception as error:
            if errors.status_of(error) is None and not errors.is_network_error(error):
                raise
            continue
        if published_report(repo, head, api).get("splits", {}).get("train", {}).get("fingerprint") == images:
            return repo
    return None


def _run(results: Path, folder: Path) -> RunData:
    from saliency_bench.classifiers.loading import load_classifier

    run = read_run(results)
    model = run.summary["model"]
    if model["digest"] != load_classifier(str(folder)).digest:
        raise UserError(f"the run {results} is on another model ({model['id']}) than {folder}")
    return run


def _card(repo: str, log: dict, config: dict, license: str | None, run: RunData | None) -> ModelCard:
    dataset, base = log["dataset"]["repo"], log["model"]
    data = ModelCardData(
        license=license,
        library_name="transformers",
        pipeline_tag="image-classification",
        tags=["saliency", "explainability", "saliency-bench"],
        datasets=[dataset] if dataset else None,
        base_model=base if base and base.count("/") == 1 else None,
        metrics=["accuracy"],
        model_name=repo.partition("/")[2],
        eval_results=_model_index(log, run, dataset),
    )
    return ModelCard.from_template(
        data,
        template_path=str(template_file("model.md.j2")),
        repo=repo,
        base=base,
        log=log,
        best=max(log["epochs"], key=lambda epoch: epoch["validation_accuracy"]),
        labels=[name for _, name in sorted(config["id2label"].items(), key=lambda item: int(item[0]))],
        architecture=(config.get("architectures") or ["?"])[0],
        summary=run.summary if run else None,
        table=table(run.cells, run.summary["dataset"]["used"]) if run else None,
    )


def _model_index(log: dict, run: RunData | None, dataset: str | None) -> list[EvalResult]:
    def result(split: str, kind: str, name: str, value: Any, **more: Any) -> EvalResult:
        return EvalResult(
            task_type="image-classification",
            dataset_type=dataset or "other",
            dataset_name=_title(log["dataset"]["name"]),
            dataset_split=split,
            metric_type=kind,
            metric_name=name,
            metric_value=value,
            **more,
        )

    entries = [result("test", ACCURACY, "accuracy", log["test_accuracy"])]
    if run is None:
        return entries
    for cell in run.cells:
        if cell.value is not None:
            name = f"{cell.metric_text} of {cell.explainer_text}"
            options = {"explainer": cell.explainer_text, "target": run.summary["target"]}
            entries.append(result(run.summary["dataset"]["split"], cell.metric, name, cell.value, metric_args=options))
    return entries


def _title(dataset: str) -> str:
    return registry.load("hub_builders", dataset).TITLE if dataset in list_datasets() else dataset


def _evaluation(log: dict, folder: Path) -> bytes:
    if log["dataset"]["repo"] is None:
        raise UserError(
            f"--eval-results needs a dataset of the Hub; {folder} was trained on a local {log['dataset']['name']}, and "
            "none with the same training images is published there; push the dataset first"
        )
    entry = EvalResultEntry(
        dataset_id=log["dataset"]["repo"],
        task_id=ACCURACY,
        value=log["test_accuracy"],
        source_url="https://huggingface.co/saliency-bench",
        source_name="saliency-bench",
        notes=f"split test, {log['settings']['size']} x {log['settings']['size']} pixels",
    )
    return yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False).encode()
