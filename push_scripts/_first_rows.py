"""Create the first rows of a board: run baselines and a few explainers, and submit the scores as the board's owner."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi

from saliency_bench.errors import UserError
from saliency_bench.push_scripts._all import built, trained

EXPLAINERS = ("random", "centre", "edges", "gradcam", "integrated_gradients")
METRICS = ("saliency_miou", "saliency_pointing_game", "saliency_insertion", "saliency_deletion")
# Families of metrics that can be computed on a dataset of the core.
WITHOUT: list[Any] = ["faithfulness", "sensitivity"]
WITH_MASKS: list[Any] = ["alignment", *WITHOUT]
NOTE = "first rows, by the owner of the board"


@dataclass(frozen=True)
class DatasetModel:
    """A dataset of the board's core and its classifier, both built on this machine.

    Attributes:
        dataset: Folder of the dataset.
        report: Build report of the dataset.
        split: Split to score.
        model: Folder of the classifier.
        digest: Hash of the classifier's weights.
    """

    dataset: Path
    report: dict[str, Any]
    split: str
    model: Path
    digest: str

    @property
    def name(self) -> str:
        """Return the name of the dataset's repository."""
        return self.report["dataset"]

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the samples in the split."""
        return self.report["splits"][self.split]["fingerprint"]

    @property
    def has_masks(self) -> bool:
        """Return whether the split has masks."""
        return self.report["splits"][self.split]["masks"] > 0

    @property
    def has_images(self) -> bool:
        """Return whether the dataset's images are published."""
        return self.report["redistribute_images"]

    def published_as(self, namespace: str) -> str:
        """Return the location of the dataset: its repository, or its folder if its images are not published."""
        return f"hub:{namespace}/{self.name}" if self.has_images else str(self.dataset)

    def run_folder(self, root: Path) -> Path:
        """Return the folder below `root` for the run of this dataset and classifier.

        The folder's name depends on the samples and the weights.
        """
        return root / "first-rows" / f"{self.name}-{self.fingerprint[:8]}-{self.model.name}-{self.digest[:8]}"


def pairs(root: Path) -> list[DatasetModel]:
    """Return the datasets below a folder, each with a classifier trained on it (preferably resnet-18-DATASET)."""
    from saliency_bench.compute.classifiers.loading import load_classifier
    from saliency_bench.publishing.headline import shown_split

    logs, matched = trained(root), []
    for folder, report in built(root).items():
        images = report["splits"].get("train", {}).get("fingerprint")
        models = [path for path, log in logs.items() if images and log["settings"].get("images") == images]
        if models:
            model = min(models, key=lambda folder: (folder.name != f"resnet-18-{report['dataset']}", folder.name))
            digest = load_classifier(str(model)).digest
            matched.append(DatasetModel(folder, report, shown_split(report), model, digest))
    return matched


def splits(root: Path) -> dict[str, str]:
    """Return {dataset: split} for the datasets below a folder. The split identifies the dataset on a board."""
    from saliency_bench.publishing.headline import shown_split

    return {report["dataset"]: shown_split(report) for report in built(root).values()}


def core(pairs: Sequence[DatasetModel], namespace: str, before: Any = None) -> Any:
    """Return the core of a board: these datasets and the datasets of the previous core.

    Return None if there are no datasets.
    """
    from saliency_bench.board.view.core import Core, CoreCell

    cells = {cell.dataset: cell for cell in (before.datasets if before else ())}
    for pair in pairs:
        name = f"{namespace}/{pair.name}"
        cells[name] = CoreCell(
            dataset=name, split=pair.split, fingerprint=pair.fingerprint, model=f"{namespace}/{pair.model.name}",
            digest=pair.digest, families=WITH_MASKS if pair.has_masks else WITHOUT,
        )  # fmt: skip
    return Core(name=before.name if before else f"{namespace} core", datasets=list(cells.values())) if cells else None


def metrics_for(pair: DatasetModel, metrics: Sequence[str]) -> list[str]:
    """Return the `metrics` for which the dataset provides all inputs."""
    from saliency_bench.bound_metric import load_metric

    return [name for name in metrics if pair.has_masks or "masks" not in load_metric(name).inputs]


def scored(pair: DatasetModel, namespace: str, root: Path, settings: Mapping[str, Any]) -> Path:
    """Run explainers on a published dataset and classifier, and return the folder of the run.

    Args:
        pair: Dataset (loaded from its folder if its images are not published) and classifier.
        namespace: Namespace on the Hub.
        root: Parent folder of the runs.
        settings: Explainers, metrics, limit and device.
    """
    from saliency_bench.compute.run import run

    chosen = {**settings, "metrics": metrics_for(pair, settings["metrics"])}
    return run(
        dataset=pair.published_as(namespace), model=f"hub:{namespace}/{pair.model.name}", split=pair.split,
        out=pair.run_folder(root), progress=False, **chosen,
    ).folder  # fmt: skip


def let_in(run: Path, namespace: str, api: HfApi, say: Callable[[str], object]) -> None:
    """Submit, review and merge the cells of a run that are not on the board yet.

    Raises:
        UserError: The review rejects the submission.
    """
    from saliency_bench.board import review
    from saliency_bench.board.submit import plan

    proposed = plan(run, namespace=namespace, note=NOTE, api=api)
    if proposed.new:
        number = int(str(proposed.pending or proposed.publish()).rpartition("/")[2])
        verdict = review.review(proposed.repo, number, api)
        if not verdict.fine:
            raise UserError(f"pull request {number} of {proposed.repo} must not be merged: {verdict.problems[0]}")
        review.merge(verdict, api)
        say(f"merged: pull request {number} of {proposed.repo}")


def recompute(pair: DatasetModel, namespace: str, device: str | None, api: HfApi, say: Callable[[str], object]) -> None:
    """Recompute the owner's submissions for a pair, except those that already have a status.

    Raise UserError if one of them is rejected.
    """
    from saliency_bench.board.recompute import vouch
    from saliency_bench.hub.client import account

    repo = f"{namespace}/results"
    given = {"device": device} | ({} if pair.has_images else {"dataset": str(pair.dataset)})
    for folder in _not_recomputed(pair, repo, account(api).name, api):
        status, lines = vouch(repo, folder, api=api, progress=False, **given)  # type: ignore[arg-type]
        say(lines[0])
        if status.refused:
            raise UserError(f"{repo}: {lines[0]}")


def _not_recomputed(pair: DatasetModel, repo: str, owner: str, api: HfApi) -> list[str]:
    from saliency_bench.board.known import content_of
    from saliency_bench.board.source import BoardSource

    source = BoardSource(repo, api=api)
    statuses = source.known()[0].statuses
    root, folders = source.folders(f"*-{pair.fingerprint[:8]}/*-{pair.digest[:8]}")
    submitted = [folder for folder in folders if folder.rpartition("/")[2].rpartition("-")[0] == owner]
    return [folder for folder in submitted if content_of(root / folder) not in statuses]
