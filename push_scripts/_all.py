"""List what `push all` publishes: built datasets, trained models, all metrics, the board and its apps.

The pages of studies are not included, because the organiser of a study publishes its page with `push space`.
"""

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from saliency_bench.errors import UserError
from saliency_bench.registry import distribution_of

Takes = Callable[[str], bool]  # function (name of a repository without its namespace) -> whether to publish it


def everything(name: str) -> bool:
    """Accept every repository name. This is the default filter."""
    return True


def publications(root: Path, namespace: str, workspace: Path, license: str | None = None) -> Iterator:
    """Yield all publications. Datasets come before the models that link to them.

    Args:
        root: Folder that contains, at any depth, built datasets, trained models and runs of these models. The scores of
            a run are added to the card of its model.
        namespace: Namespace on the Hub.
        workspace: Empty folder for temporary files.
        license: Licence of the models' weights.

    Raises:
        UserError: The folder contains no dataset, or a dataset that cannot be published.
    """
    from saliency_bench.board.submit import board_publication

    yield from datasets(root, namespace, workspace)
    yield from models(root, namespace, license)
    yield from metrics(namespace)
    yield board_publication(namespace)
    yield from apps(namespace)


def datasets(root: Path, namespace: str, workspace: Path, takes: Takes = everything) -> Iterator:
    """Yield a publication for each built dataset below a folder. Raise UserError if there are none."""
    from saliency_bench.publishing.datasets import dataset_publication

    named = built(root)
    if not named:
        line = f"saliency-bench build pet-xai --out {root / 'pet-xai'}"
        raise UserError(f"{root} contains no built dataset; build one there, for example with `{line}`")
    for number, (folder, report) in enumerate(named.items()):
        if not takes(report["dataset"]):
            continue
        (workspace / str(number)).mkdir()
        yield dataset_publication(folder, namespace, workspace / str(number))


def built(root: Path) -> dict[Path, dict[str, Any]]:
    """Return {folder: build report} for the publishable datasets below a folder."""
    from saliency_bench.publishing.own_data import is_own_data

    return {folder: report for folder, report in _reports(root)[0].items() if not is_own_data(report["dataset"])}


def _reports(root: Path) -> tuple[dict[Path, dict[str, Any]], list[str]]:
    """Return ({folder: build report} for all datasets below a folder, errors for unreadable reports)."""
    from saliency_bench.data.build_report import REPORT, read_report
    from saliency_bench.data.untrusted_reports import complete

    return _readable(root, REPORT, lambda file: complete(read_report(file.parent), str(file.parent)))


def trained(root: Path) -> dict[Path, dict[str, Any]]:
    """Return {folder: training log} for the publishable models below a folder."""
    return _logs(root)[0]


def _logs(root: Path) -> tuple[dict[Path, dict[str, Any]], list[str]]:
    """Return ({folder: training log} for all models below a folder, errors for unreadable logs)."""
    from saliency_bench.utils.files import read_json

    def read(file: Path) -> dict[str, Any]:
        log = read_json(file)
        if not isinstance(log, dict) or not isinstance(log.get("settings"), dict):
            raise UserError(f"{file} is not a training log; train the model again")
        return log

    return _readable(root, "training_log.json", read)


def _readable(root: Path, name: str, read: Callable[[Path], Any]) -> tuple[dict[Path, Any], list[str]]:
    """Return ({folder: content} for the files named `name` below `root`, errors for unreadable files)."""
    contents: dict[Path, Any] = {}
    problems = []
    for file in sorted(root.rglob(name)):
        try:
            contents[file.parent] = read(file)
        except UserError as error:
            problems.append(str(error))
    return contents, problems


def left_out(root: Path, namespace: str) -> list[str]:
    """Return a line for each folder below `root` that is left out.

    A folder is left out if it cannot be read, or if it contains the user's own dataset and the dataset has no name yet.
    """
    from saliency_bench.publishing.own_data import is_own_data

    reports, problems = _reports(root)
    unnamed = [
        f"{folder} contains your own dataset, which has no name on the Hub yet; run `saliency-bench push dataset "
        f"{shlex.quote(str(folder))} --name NAME --namespace {namespace}`"
        for folder, report in reports.items()
        if is_own_data(report["dataset"])
    ]
    return [f"left out: {line}" for line in unnamed + problems + _logs(root)[1]]


def models(root: Path, namespace: str, license: str | None = None, takes: Takes = everything) -> Iterator:
    """Yield a publication for each trained model below a folder, with the scores of its runs."""
    from saliency_bench.publishing.models import model_publication

    for folder in trained(root):
        if takes(folder.name):
            yield model_publication(folder, namespace, license=license, results=_run_on(folder, root))


def metrics(namespace: str, takes: Takes = everything) -> Iterator:
    """Yield a publication for each metric of this package, but not for metrics from other packages."""
    from saliency_bench.bound_metric import list_metrics
    from saliency_bench.publishing.metrics import metric_publication

    for name in list_metrics():
        if not distribution_of("metrics", name) and takes(name):
            yield metric_publication(name, namespace)


def apps(namespace: str, takes: Takes = everything) -> Iterator:
    """Yield a publication for each app, except for the pages of studies."""
    from saliency_bench.publishing.spaces import list_spaces, space_publication

    for name in filter(takes, list_spaces(studies=False)):
        yield space_publication(name, namespace)


def _run_on(model: Path, root: Path) -> Path | None:
    """Return the first finished run below `root` whose network has the same weights as the model, or None."""
    from saliency_bench.compute.classifiers.loading import load_classifier
    from saliency_bench.utils.files import read_json

    summaries = _readable(root, "summary.json", read_json)[0]
    digest = load_classifier(str(model)).digest if summaries else None
    return next((path for path, content in summaries.items() if _digest_of(content) == digest), None)


def _digest_of(summary: Any) -> Any:
    """Return the model hash from a run's summary, or None if it contains none."""
    model = summary.get("model") if isinstance(summary, dict) else None
    return model.get("digest") if isinstance(model, dict) else None
