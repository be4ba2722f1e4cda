"""saliency-bench: measure whether a saliency map of an image classifier can be trusted.

The public names are imported on first use, so `import saliency_bench` is fast and does not import torch.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"

if not (Path(__file__).parent / "explainers").is_dir():
    # In a checkout the plugin folders are next to the core; in a wheel they are inside it.
    __path__.append(str(Path(__file__).parents[1]))

_HOMES = {
    "load_dataset": "data.loading",
    "torch_dataset": "compute.minibatches",
    "load_classifier": "compute.classifiers.loading",
    "load_explainer": "bound_explainer",
    "load_metric": "bound_metric",
    "explainer": "declarations",
    "metric": "declarations",
    "list_datasets": "data.dataset_names",
    "list_explainers": "bound_explainer",
    "list_metrics": "bound_metric",
    "build": "data.building",
    "train": "compute.training",
    "run": "compute.run",
    "choose": "recipes.choosing.choose",
    "Choice": "recipes.choosing.choose",
    "doctor": "recipes.doctor.doctor",
    "Diagnosis": "recipes.doctor.doctor",
    "Run": "read.finished_run",
    "load_run": "read.finished_run",
    "explain": "compute.maps.explanation",
    "report": "read.report.report_page",
    "analyse": "read.report.analyses",
    "check": "read.data_frames",
    "power": "read.data_frames",
    "draw": "panels",
    "seed_study": "read.report.seed_study",
    "template": "board.template",
    "submit": "board.submit",
    "load_results": "board.opening",
    "load_maps": "read.finished_run",
    "UserError": "errors",
    "Explainer": "bound_explainer",
    "Metric": "bound_metric",
    "Classifier": "compute.classifiers.classifier",
    "Averaged": "types",
    "Images": "types",
    "Maps": "types",
    "Masks": "types",
    "Scores": "types",
    "Target": "types",
    "RunSettings": "settings",
    "suite": "recipes.suites.suite",
    "list_suites": "recipes.suites.suite_schema",
}
__all__ = [
    "Averaged",
    "Choice",
    "Classifier",
    "Diagnosis",
    "Explainer",
    "Images",
    "Maps",
    "Masks",
    "Metric",
    "Run",
    "RunSettings",
    "Scores",
    "Target",
    "UserError",
    "__version__",
    "analyse",
    "build",
    "check",
    "choose",
    "doctor",
    "draw",
    "explain",
    "explainer",
    "list_datasets",
    "list_explainers",
    "list_metrics",
    "list_suites",
    "load_classifier",
    "load_dataset",
    "load_explainer",
    "load_maps",
    "load_metric",
    "load_results",
    "load_run",
    "metric",
    "power",
    "report",
    "run",
    "seed_study",
    "submit",
    "suite",
    "targets",
    "template",
    "torch_dataset",
    "train",
]

if TYPE_CHECKING:
    from saliency_bench.board.opening import load_results
    from saliency_bench.board.submit import submit
    from saliency_bench.board.template import template
    from saliency_bench.bound_explainer import Explainer, list_explainers, load_explainer
    from saliency_bench.bound_metric import Metric, list_metrics, load_metric
    from saliency_bench.compute import targets
    from saliency_bench.compute.classifiers.classifier import Classifier
    from saliency_bench.compute.classifiers.loading import load_classifier
    from saliency_bench.compute.maps.explanation import explain
    from saliency_bench.compute.minibatches import torch_dataset
    from saliency_bench.compute.run import run
    from saliency_bench.compute.training import train
    from saliency_bench.data.building import build
    from saliency_bench.data.dataset_names import list_datasets
    from saliency_bench.data.loading import load_dataset
    from saliency_bench.declarations import explainer, metric
    from saliency_bench.errors import UserError
    from saliency_bench.panels import draw
    from saliency_bench.read.data_frames import check, power
    from saliency_bench.read.finished_run import Run, load_maps, load_run
    from saliency_bench.read.report.analyses import analyse
    from saliency_bench.read.report.report_page import report
    from saliency_bench.read.report.seed_study import seed_study
    from saliency_bench.recipes.choosing.choose import Choice, choose
    from saliency_bench.recipes.doctor.doctor import Diagnosis, doctor
    from saliency_bench.recipes.suites.suite import suite
    from saliency_bench.recipes.suites.suite_schema import list_suites
    from saliency_bench.settings import RunSettings
    from saliency_bench.types import Averaged, Images, Maps, Masks, Scores, Target

else:  # hide this from type checkers, which would otherwise accept every name

    def __getattr__(name: str) -> Any:
        if name == "targets":
            return import_module("saliency_bench.compute.targets")
        if name not in _HOMES:
            raise AttributeError(f"module 'saliency_bench' has no attribute '{name}'")
        return getattr(import_module(f"saliency_bench.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
