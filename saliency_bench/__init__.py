"""saliency-bench: measure whether a saliency map of an image classifier can be trusted.

Names below are loaded when first used, so that `import saliency_bench` costs nothing and imports no torch.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"

if not (Path(__file__).parent / "explainers").is_dir():
    # In a checkout the plugin folders lie beside the core; a wheel has them inside.
    __path__.append(str(Path(__file__).parents[1]))

_HOMES = {
    "load_dataset": "data.loading",
    "torch_dataset": "data.minibatches",
    "load_classifier": "classifiers.loading",
    "load_explainer": "bound_explainer",
    "load_metric": "bound_metric",
    "explainer": "declarations",
    "metric": "declarations",
    "list_datasets": "data.names",
    "list_explainers": "bound_explainer",
    "list_metrics": "bound_metric",
    "build": "data.building",
    "train": "engine.training",
    "run": "engine.run",
    "choose": "engine.choosing.choose",
    "Choice": "engine.choosing.choose",
    "Run": "engine.finished",
    "load_run": "engine.finished",
    "explain": "map_sources.explanation",
    "report": "reports.page",
    "analyse": "reports.analyses",
    "check": "analysis.frames",
    "power": "analysis.frames",
    "draw": "panels",
    "seed_study": "reports.seed_study",
    "template": "leaderboard.template",
    "submit": "leaderboard.submit",
    "load_results": "leaderboard.opening",
    "load_maps": "results.run_folder",
    "UserError": "errors",
    "Explainer": "bound_explainer",
    "Metric": "bound_metric",
    "Classifier": "classifiers.classifier",
    "Averaged": "types",
    "Images": "types",
    "Maps": "types",
    "Masks": "types",
    "Scores": "types",
    "Target": "types",
    "RunSettings": "settings",
    "suite": "engine.suites.suite",
    "list_suites": "engine.suites.schema",
}
__all__ = [
    "Averaged",
    "Choice",
    "Classifier",
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
    from saliency_bench import targets
    from saliency_bench.analysis.frames import check, power
    from saliency_bench.bound_explainer import Explainer, list_explainers, load_explainer
    from saliency_bench.bound_metric import Metric, list_metrics, load_metric
    from saliency_bench.classifiers.classifier import Classifier
    from saliency_bench.classifiers.loading import load_classifier
    from saliency_bench.data.building import build
    from saliency_bench.data.loading import load_dataset
    from saliency_bench.data.minibatches import torch_dataset
    from saliency_bench.data.names import list_datasets
    from saliency_bench.declarations import explainer, metric
    from saliency_bench.engine.choosing.choose import Choice, choose
    from saliency_bench.engine.finished import Run, load_run
    from saliency_bench.engine.run import run
    from saliency_bench.engine.suites.schema import list_suites
    from saliency_bench.engine.suites.suite import suite
    from saliency_bench.engine.training import train
    from saliency_bench.errors import UserError
    from saliency_bench.leaderboard.opening import load_results
    from saliency_bench.leaderboard.submit import submit
    from saliency_bench.leaderboard.template import template
    from saliency_bench.map_sources.explanation import explain
    from saliency_bench.panels import draw
    from saliency_bench.reports.analyses import analyse
    from saliency_bench.reports.page import report
    from saliency_bench.reports.seed_study import seed_study
    from saliency_bench.results.run_folder import load_maps
    from saliency_bench.settings import RunSettings
    from saliency_bench.types import Averaged, Images, Maps, Masks, Scores, Target

else:  # to type checkers, which would otherwise believe that there is every name

    def __getattr__(name: str) -> Any:
        if name == "targets":
            return import_module("saliency_bench.targets")
        if name not in _HOMES:
            raise AttributeError(f"module 'saliency_bench' has no attribute '{name}'")
        return getattr(import_module(f"saliency_bench.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
