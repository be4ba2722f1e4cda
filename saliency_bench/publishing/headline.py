"""Collect the scores of a model for the Hub's own leaderboards, one score per task in a dataset's `eval.yaml`.

The tasks are:

    accuracy             top-1
    gradcam-miou         saliency_miou of gradcam, for datasets with masks
    gradcam-insertion    saliency_insertion of gradcam

All scores are computed on the entire split, and the maps explain the dataset's labels. A model repository contains the
scores in `.eval_results/saliency-bench.yaml`; the records of all samples are in the results repository.
"""

from datetime import UTC, datetime

import yaml
from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

from saliency_bench.read.cell import Interval
from saliency_bench.read.finished_run import Run

ACCURACY = "accuracy"
EXPLAINER = "gradcam"  # the same explainer for all models, so that their scores can be compared
SCORES = {f"{EXPLAINER}-miou": "saliency_miou", f"{EXPLAINER}-insertion": "saliency_insertion"}
NEEDS_MASKS = ("saliency_miou",)


def shown_split(build_report: dict) -> str:
    """Return the name of the split that the scores refer to: "test", or the first split if there is no test split."""
    return "test" if "test" in build_report["splits"] else next(iter(build_report["splits"]))


def eval_yaml(build_report: dict, config: str) -> bytes:
    """Return the content of a dataset's eval.yaml.

    This file defines the tasks for which the Hub lists models on the dataset's page.
    """
    split = shown_split(build_report)
    has_masks = build_report["splits"][split]["masks"] > 0
    tasks = [ACCURACY, *(task for task, metric in SCORES.items() if has_masks or metric not in NEEDS_MASKS)]
    content = {
        "name": build_report["dataset"],
        "description": "Top-1 accuracy of image classifiers, and scores of their Grad-CAM maps by saliency-bench: "
        "mIoU with the masks, and insertion.",
        "evaluation_framework": "saliency-bench",
        "tasks": [{"id": task, "config": config, "split": split} for task in tasks],
    }
    return yaml.safe_dump(content, sort_keys=False).encode()


def eval_results_yaml(entries: list[EvalResultEntry]) -> bytes:
    """Return the content of a model's .eval_results/*.yaml file."""
    return yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False).encode()


def accuracy_entry(repo: str, log: dict, accuracy: Interval) -> EvalResultEntry:
    """Return the accuracy of a model as an entry for the Hub.

    Args:
        repo: Repository of the model.
        log: Content of training_log.json. Its dataset must be on the Hub.
        accuracy: Accuracy on the test split.
    """
    side = log["settings"]["size"]
    return EvalResultEntry(
        dataset_id=log["dataset"]["repo"],
        dataset_revision=log["dataset"]["revision"],
        task_id=ACCURACY,
        value=accuracy.value,
        source_url=f"https://huggingface.co/{repo}",
        source_name="training log",
        notes=", ".join([f"split test, {side} x {side} pixels", *_spread(accuracy)]),
    )


def score_entries(run: Run, dataset: dict, published: dict, namespace: str) -> tuple[list[EvalResultEntry], str]:
    """Return (scores of a run on a dataset from the Hub, "" or the reason why the scores cannot be listed).

    Args:
        run: Run of the model.
        dataset: Dictionary with the keys "repo" and "revision".
        published: Build report of the dataset.
        namespace: Namespace of the results repository that contains the records.
    """
    about, split = run.summary["dataset"], run.summary["dataset"]["split"]
    if published.get("splits", {}).get(split, {}).get("fingerprint") != about["fingerprint"]:
        return [], f"the run's samples differ from {dataset['repo']}"
    if split != (wanted := shown_split(published)):
        return [], f"the run uses the split {split}, not {wanted}"
    if about["used"] < about["samples"] or run.summary.get("only"):
        return [], "the run does not use the whole split"
    if run.summary["target"] != "label":
        return [], f"the run's target is '{run.summary['target']}', not 'label'"
    texts = {metric: task for task, metric in SCORES.items()}
    cells = [cell for cell in run.cells if cell.explainer_text == EXPLAINER and cell.metric_text in texts]
    started = run.timings.get("started")
    entries = [
        EvalResultEntry(
            dataset_id=dataset["repo"],
            dataset_revision=dataset["revision"],
            task_id=texts[cell.metric_text],
            value=cell.value,
            date=None if started is None else datetime.fromtimestamp(started, UTC).date().isoformat(),
            source_url=f"https://huggingface.co/datasets/{namespace}/results",
            source_name="records of all samples",
            notes=", ".join([f"{EXPLAINER} by {cell.metric_text}, split {split}", *_spread(cell)]),
        )
        for cell in cells
        if cell.value is not None
    ]
    return entries, "" if entries else f"the run contains no score of {EXPLAINER} on {' or '.join(texts)}"


def _spread(score: Interval) -> list[str]:
    known = [f"n = {score.n}"] if score.n else []
    return known + (["95 % interval {:.4f} to {:.4f}".format(*score.ends)] if score.ends else [])
