"""What `push all` publishes: built datasets, trained models, all metrics, the board's repository, its apps.

No page of a study: that belongs to whoever asks people, who publishes it by `push space`.
"""

from collections.abc import Iterator
from pathlib import Path

from saliency_bench.errors import UserError
from saliency_bench.registry import distribution_of


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
    from saliency_bench.bound_metric import list_metrics
    from saliency_bench.data.build_report import REPORT
    from saliency_bench.leaderboard.submit import board_publication
    from saliency_bench.publishing.datasets import dataset_publication
    from saliency_bench.publishing.metrics import metric_publication
    from saliency_bench.publishing.models import model_publication
    from saliency_bench.publishing.spaces import list_spaces, space_publication

    datasets, models = (sorted(root.rglob(name)) for name in (REPORT, "training_log.json"))
    if not datasets:
        raise UserError(f"{root} holds no built dataset; build some into it, as in: saliency-bench build pet-xai")
    for number, report in enumerate(datasets):
        (workspace / str(number)).mkdir()
        yield dataset_publication(report.parent, namespace, workspace / str(number))
    for log in models:
        yield model_publication(log.parent, namespace, license=license, results=_run_on(log.parent, root))
    for name in list_metrics():
        if not distribution_of("metrics", name):  # not those of other packages
            yield metric_publication(name, namespace)
    yield board_publication(namespace)
    for name in list_spaces(studies=False):
        yield space_publication(name, namespace)


def _run_on(model: Path, root: Path) -> Path | None:
    """Return the first finished run below `root` on the model in a folder, or None."""
    from saliency_bench.utils.files import read_json

    for summary in sorted(root.rglob("summary.json")):
        name = read_json(summary).get("model", {}).get("id")
        if isinstance(name, str) and Path(name).expanduser().resolve() == model.resolve():
            return summary.parent
    return None
