"""saliency-bench: measure whether a saliency map of an image classifier can be trusted.

Names below are loaded when first used, so that `import saliency_bench` costs nothing and imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_HOMES = {
    "load_dataset": "data",
    "load_classifier": "classifier",
    "load_explainer": "explainer",
    "load_metric": "metric",
    "list_datasets": "data",
    "list_explainers": "explainer",
    "list_metrics": "metric",
    "build": "building",
    "train": "training",
    "run": "running",
    "explain": "explaining",
    "report": "reporting",
    "template": "templating",
    "submit": "submitting",
    "load_results": "board",
}
__all__ = [
    "__version__",
    "build",
    "explain",
    "list_datasets",
    "list_explainers",
    "list_metrics",
    "load_classifier",
    "load_dataset",
    "load_explainer",
    "load_metric",
    "load_results",
    "report",
    "run",
    "submit",
    "targets",
    "template",
    "train",
]

if TYPE_CHECKING:
    from saliency_bench import targets
    from saliency_bench.board import load_results
    from saliency_bench.building import build
    from saliency_bench.classifier import load_classifier
    from saliency_bench.data import list_datasets, load_dataset
    from saliency_bench.explainer import list_explainers, load_explainer
    from saliency_bench.explaining import explain
    from saliency_bench.metric import list_metrics, load_metric
    from saliency_bench.reporting import report
    from saliency_bench.running import run
    from saliency_bench.submitting import submit
    from saliency_bench.templating import template
    from saliency_bench.training import train


def __getattr__(name: str):
    if name == "targets":
        return import_module("saliency_bench.targets")
    if name not in _HOMES:
        raise AttributeError(f"module 'saliency_bench' has no attribute '{name}'")
    return getattr(import_module(f"saliency_bench.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
