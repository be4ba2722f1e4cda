"""Publish a trained classifier with its weights (safetensors), processor, class names, training log and card."""

import json
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData
from huggingface_hub.errors import HFValidationError

from saliency_bench import registry
from saliency_bench.data.build_report import REPORT
from saliency_bench.data.card import template_file
from saliency_bench.data.dataset_names import NAMESPACE, list_datasets
from saliency_bench.data.hub_datasets import published_report
from saliency_bench.errors import UserError
from saliency_bench.hub import client, failures
from saliency_bench.hub.upload_plan import Publication
from saliency_bench.publishing.headline import ACCURACY, accuracy_entry, eval_results_yaml, score_entries
from saliency_bench.read.cell import Interval
from saliency_bench.read.finished_run import Run, read_run
from saliency_bench.read.public_names import public_name
from saliency_bench.read.statistics.intervals import wilson
from saliency_bench.read.summary import covered, table
from saliency_bench.utils.files import read_json
from saliency_bench.utils.messages import complain

NEEDED = {"config.json": "the class names", "training_log.json": "the training"}
KEPT = ("*.safetensors", "*.safetensors.index.json", "config.json", "preprocessor_config.json", "training_log.json")
EVALUATION = ".eval_results/saliency-bench.yaml"
Z = 1.96  # quantile of the normal distribution for 95 % intervals


def model_publication(
    folder: str | Path,
    namespace: str,
    name: str | None = None,
    license: str | None = None,
    results: str | Path | None = None,
    eval_results: bool = False,
    api: HfApi | None = None,
) -> Publication:
    """Return the files to publish for a checkpoint that `saliency-bench train` wrote.

    The card links to the dataset on the Hub if the dataset was loaded from there, or if a dataset with the same
    fingerprint exists in this project's namespace or in `namespace`. If not, the card contains only the name of the
    dataset.

    Args:
        folder: Folder of the checkpoint.
        namespace: Namespace on the Hub.
        name: Name of the repository. Defaults to the name of the folder.
        license: Licence of the weights, as one of the Hub's licence identifiers.
        results: Folder of a run on this model. Its scores are added to the card's table and model-index.
        eval_results: Whether to add the scores from `headline`, which the Hub shows on the page of the dataset.
        api: `HfApi` client.

    Raises:
        UserError: The folder is not a checkpoint of `saliency-bench train`, or the run used a different model.
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
        content[EVALUATION] = _evaluation(repo, log, folder, run, api or client.default_api())
    owned = ("*.safetensors", "*.safetensors.index.json")
    return Publication("model", repo, content, license, owned, mark=("training_log.json", ""))


def _files(folder: Path) -> dict[str, Path]:
    """Return the files that a checkpoint consists of.

    Raises:
        UserError: A required file is missing.
    """
    files = {path.name: path for pattern in KEPT for path in sorted(folder.glob(pattern))}
    if not any(name.endswith(".safetensors") for name in files):
        raise UserError(
            f"{folder} contains no safetensors file; train a model with `saliency-bench train --out {folder}`"
        )
    for name, content in NEEDED.items():
        if name not in files:
            raise UserError(
                f"{folder} has no {name}, which describes {content}; publish a folder written by `saliency-bench train`"
            )
    return files


def _public_log(log: dict, namespace: str, api: HfApi) -> dict:
    """Return the training log, with local paths replaced by the repository and commit of the dataset."""
    model, settings, dataset = log["model"], log["settings"], log["dataset"]
    base = log.get("base")
    repo, revision = dataset["repo"], dataset.get("revision")
    if repo is None:
        repo, revision = _published(dataset["name"], settings["images"], namespace, api)
    return log | {
        "model": (base and base["repo"]) or (public_name(model, local=True if base else None) if model else model),
        "dataset": {"name": dataset["name"], "repo": repo, "revision": revision},
        "settings": settings | {"dataset": repo or dataset["name"]},
    }


def _published(name: str, images: str, namespace: str, api: HfApi) -> tuple[str | None, str | None]:
    """Return (repository, commit) of a published dataset that has exactly these training images, or (None, None).

    Raises:
        UserError: The Hub is too busy to respond.
    """
    for repo in dict.fromkeys((f"{NAMESPACE}/{name}", f"{namespace}/{name}") if name in list_datasets() else ()):
        try:
            info = api.dataset_info(repo)
            head = info.sha  # a report in the cache may be older than the repository
            report = published_report(repo, head, api)
        except (
            HFValidationError,
            UserError,
        ):  # an invalid name is reported later, and an invalid report belongs to a different dataset
            continue
        except Exception as error:
            if failures.is_network_error(error):
                complain(f"the Hub cannot be reached, so the card may lack the link to the dataset {name}")
                return None, None
            if failures.status_of(error) is None:
                raise
            if failures.may_pass(error):
                failures.refuse(error, repo, client.token_of(api))
            continue
        if not report and REPORT in {file.rfilename for file in info.siblings or ()}:
            raise UserError(f"{REPORT} of {repo} could not be downloaded; try again") from ConnectionError(repo)
        if report.get("splits", {}).get("train", {}).get("fingerprint") == images:
            return repo, head
    return None, None


def _run(results: Path, folder: Path) -> Run:
    from saliency_bench.compute.classifiers.loading import load_classifier

    run = read_run(results)
    model = run.summary["model"]
    if model["digest"] != load_classifier(str(folder)).digest:
        raise UserError(f"the run {results} used the model {model['id']}, not {folder}; pass a run that used {folder}")
    return run


def _card(repo: str, log: dict, config: dict, license: str | None, run: Run | None) -> ModelCard:
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
        eval_results=_model_index(log, run),
    )
    return ModelCard.from_template(
        data,
        template_path=str(template_file("model.md.j2")),
        repo=repo,
        base=base,
        log=log,
        accuracy=_accuracy(log),
        best=max(log["epochs"], key=lambda epoch: epoch["validation_accuracy"]),
        labels=[name for _, name in sorted(config["id2label"].items(), key=lambda item: int(item[0]))],
        architecture=(config.get("architectures") or ["?"])[0],
        summary=run.summary if run else None,
        table=table(run.cells, covered(run.summary)) if run else None,
    )


def _model_index(log: dict, run: Run | None) -> list[EvalResult]:
    accuracy, trained = _accuracy(log), log["dataset"] | {"id": log["dataset"]["name"], "split": "test"}
    entries = [_entry(trained, ACCURACY, "accuracy", accuracy.value, _spread(accuracy))]
    for cell in run.cells if run else ():
        if cell.value is not None:
            assert run is not None
            name = f"{cell.metric_text} of {cell.explainer_text}"
            about = {"explainer": cell.explainer_text, "target": run.summary["target"]} | _spread(cell)
            entries.append(_entry(run.summary["dataset"], cell.metric, name, cell.value, about))
    return entries


def _entry(dataset: dict, kind: str, name: str, value: Any, about: dict) -> EvalResult:
    """Return a result for the model-index in a card.

    `dataset` contains the id and the split of the dataset. For a dataset from the Hub, it also contains the repository
    and the commit.
    """
    return EvalResult(
        task_type="image-classification",
        dataset_type=dataset.get("repo") or "other",
        dataset_name=_title(dataset["id"]),
        dataset_split=dataset["split"],
        dataset_revision=dataset.get("revision"),
        metric_type=kind,
        metric_name=name,
        metric_value=value,
        metric_args=about or None,
    )


def _accuracy(log: dict) -> Interval:
    """Return the accuracy on the test split with its Wilson interval.

    Older logs do not contain the number of images, so no interval can be computed for them.
    """
    value, n = log["test_accuracy"], log.get("test_samples", 0)
    low, high = wilson(value, n, Z) if n else (None, None)
    return Interval.model_construct(value=value, low=low, high=high, n=n)


def _spread(score: Interval) -> dict:
    """Return {"n": number of samples, "interval_95": [low, high]}. Unknown values are left out."""
    return ({"n": score.n} if score.n else {}) | ({"interval_95": list(score.ends)} if score.ends else {})


def _title(dataset: str) -> str:
    return registry.load("hub_builders", dataset).TITLE if dataset in list_datasets() else dataset


def _evaluation(repo: str, log: dict, folder: Path, run: Run | None, api: HfApi) -> bytes:
    """Return the content of the file with the scores that the Hub shows on the page of the dataset."""
    dataset = log["dataset"]
    if dataset["repo"] is None:
        raise UserError(
            f"--eval-results needs a dataset on the Hub, but {folder} was trained on a local copy of "
            f"{dataset['name']}, and "
            "no dataset with the same training images is published; push the dataset first"
        )
    entries = [accuracy_entry(repo, log, _accuracy(log))]
    if run is not None:
        published = published_report(dataset["repo"], dataset["revision"], api)
        scores, why = score_entries(run, dataset, published, repo.partition("/")[0])
        if why:
            complain(f"the scores of {run.folder} are not listed by --eval-results: {why}")
        entries += scores
    return eval_results_yaml(entries)
