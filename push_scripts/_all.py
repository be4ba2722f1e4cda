"""What `push all` publishes: built datasets, trained models, all metrics, the board's repository, its apps.

No page of a study: that belongs to whoever asks people, who publishes it by `push space`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from saliency_bench.errors import UserError
from saliency_bench.registry import distribution_of

Takes = Callable[[str], bool]  # whether the repository of this name, without its namespace, is published


def everything(name: str) -> bool:
    """Take every repository."""
    return True


def publications(root: Path, namespace: str, workspace: Path, license: str | None = None) -> Iterator:
    """Yield what is published, in the order in which it links each other: models name their datasets.

    Args:
        root: a folder with built datasets, trained models and runs on these, at any depth; scores of a run go into the
            card of its model.
        namespace: on the Hub.
        workspace: an empty folder for temporary files.
        license: of the models' weights.

    Raises:
        UserError: The folder holds none, or one that cannot be published.
    """
    from saliency_bench.leaderboard.submit import board_publication

    yield from datasets(root, namespace, workspace)
    yield from models(root, namespace, license)
    yield from metrics(namespace)
    yield board_publication(namespace)
    yield from apps(namespace)


def datasets(root: Path, namespace: str, workspace: Path, takes: Takes = everything) -> Iterator:
    """Yield the publications of the built datasets below a folder. Raise UserError if it holds none."""
    from saliency_bench.data.build_report import REPORT, read_report
    from saliency_bench.publishing.datasets import dataset_publication

    reports = sorted(root.rglob(REPORT))
    if not reports:
        raise UserError(f"{root} holds no built dataset; build some into it, as in: saliency-bench build pet-xai")
    for number, report in enumerate(reports):
        if not takes(read_report(report.parent)["dataset"]):
            continue
        (workspace / str(number)).mkdir()
        yield dataset_publication(report.parent, namespace, workspace / str(number))


def models(root: Path, namespace: str, license: str | None = None, takes: Takes = everything) -> Iterator:
    """Yield the publications of the trained models below a folder, with the scores of runs on them."""
    from saliency_bench.publishing.models import model_publication

    for log in sorted(root.rglob("training_log.json")):
        if takes(log.parent.name):
            yield model_publication(log.parent, namespace, license=license, results=_run_on(log.parent, root))


def metrics(namespace: str, takes: Takes = everything) -> Iterator:
    """Yield the publications of the metrics of this package, not of others."""
    from saliency_bench.bound_metric import list_metrics
    from saliency_bench.publishing.metrics import metric_publication

    for name in list_metrics():
        if not distribution_of("metrics", name) and takes(name):
            yield metric_publication(name, namespace)


def apps(namespace: str, takes: Takes = everything) -> Iterator:
    """Yield the publications of the apps, but for the pages of studies."""
    from saliency_bench.publishing.spaces import list_spaces, space_publication

    for name in filter(takes, list_spaces(studies=False)):
        yield space_publication(name, namespace)


def _run_on(model: Path, root: Path) -> Path | None:
    """Return the first finished run below `root` on the network in a folder, wherever the run had it from, or None."""
    from saliency_bench.classifiers.loading import load_classifier
    from saliency_bench.utils.files import read_json

    summaries = sorted(root.rglob("summary.json"))
    digest = load_classifier(str(model)).digest if summaries else None
    return next((path.parent for path in summaries if read_json(path).get("model", {}).get("digest") == digest), None)
