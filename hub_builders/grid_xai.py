"""Grids of images from different classes of a dataset. A classifier recognises each image with high confidence.

    saliency-bench build grid-xai --from shapes --model models/net --out grids

Source: the folder of a built dataset. The classifier `--model` selects images of this dataset. The mask is the cell of
the target class, so that `saliency_energy` with this mask is the grid pointing game, GridPG (Boehle et al., 2021; Rao
et al., 2022). If a map explains only the target class, all its energy is inside this cell. The score at chance level is
1 / cells^2, which is 1/4 by default.
"""

from collections.abc import Iterator
from pathlib import Path

from saliency_bench.data.jobs import BuildLog
from saliency_bench.errors import UserError
from saliency_bench.hub_builders._source import needed
from saliency_bench.utils.seeds import seed_of

VERSION = "1"
OWN_DATA = "from"
DERIVED = True
SECTION = "made from a built dataset and a classifier"
USAGE = "--from shapes --model models/net"
ALSO_CALLED = ("gridpg", "grid pointing game")
TITLE = "Grid-XAI"
ANNOTATORS = ("machine-generated",)
SOURCES = ("original",)
LICENSE = "unknown"
REDISTRIBUTE = False
PAPER_COUNTS: dict = {}
SPLIT = "test"
CITATION = """@inproceedings{boehle2021convolutional,
  title = {Convolutional Dynamic Alignment Networks for Interpretable Classifications},
  author = {B\\"ohle, Moritz and Fritz, Mario and Schiele, Bernt},
  booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  year = {2021}
}
@inproceedings{rao2022towards,
  title = {Towards Better Understanding Attribution Methods},
  author = {Rao, Sukrut and B\\"ohle, Moritz and Schiele, Bernt},
  booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  year = {2022}
}"""
RULE = """A sample is a grid of `cells` x `cells` prepared images of the split. The classifier classifies each of these
images correctly with a probability of `confidence` or more, and each `group` contributes at most one image. All images
of a grid have different classes, and no image is in two grids. The classes with the most unused images are chosen
first. Positions and targets are drawn with the seed. `label` is the class of the target, and the mask is the target's
cell. `labels_of_cells` and `images_of_cells` list the cells row by row. A cell has the size of the classifier's input
images. In a run, the classifier's `prepare` resizes the whole grid to the input size. If `prepare` crops, it removes
the same fraction of each cell. The digest of the classifier is part of every `image_id` and thus of the fingerprint.
`chosen_by` names the classifier, and reports on other classifiers mention it."""


def features(classes: dict[str, list[str]]) -> dict:
    """Return the features (table columns) of the grid dataset, with the source dataset's class names."""
    from datasets import ClassLabel, Value

    texts = ("labels_of_cells", "images_of_cells", "chosen_by", "chosen_by_digest")
    return {"label": ClassLabel(names=classes["label"]), **{name: Value("string") for name in texts}}


def check(*, model: str, cells: int, confidence: float, count: int, **others: object) -> None:
    """Raise UserError for invalid options."""
    if not model:
        raise UserError("grid-xai needs the classifier that selects the images; pass --model M (a folder or a Hub id)")
    if cells < 2 or count < 1 or not 0 <= confidence <= 1:
        raise UserError(
            f"grid-xai: cells must be at least 2, count at least 1 and confidence from 0 to 1; got {cells}, {count}, "
            f"{confidence}"
        )


def samples(
    source: Path | None,
    log: BuildLog,
    *,
    model: str = "",
    split: str = "test",
    cells: int = 2,
    confidence: float = 0.99,
    count: int = 500,
    label_map: str = "",
    seed: int = 0,
) -> Iterator[dict]:
    """Yield the grids in order.

    Args:
        source: folder of the built dataset.
        log: build log, which records what is left out and why.
        model: classifier that selects the images, as a folder or Hub id.
        split: split of the dataset.
        cells: number of cells per row and column.
        confidence: minimum probability of the correct class.
        count: maximum number of grids.
        label_map: JSON file {class of the dataset: class of the model}, if these differ (default: match them by name).
        seed: seed for drawing grids, positions and targets.
    """
    from saliency_bench.compute.classifiers.loading import load_classifier
    from saliency_bench.data.loading import load_dataset
    from saliency_bench.hub_builders._grids import confident, grids_of, joined
    from saliency_bench.read.public_names import public_name

    folder = needed(source, "grid-xai", "a built dataset, --from DIR")
    rows = load_dataset(str(folder), split=split)
    if not hasattr(rows.features.get("label"), "names"):
        raise UserError(
            f"{folder} has no labels, but grid-xai combines images of different classes; use a dataset with labels"
        )
    classifier, names = load_classifier(model), rows.features["label"].names
    log.classes = {"label": list(names)}
    chosen = confident(rows, classifier, names, label_map or None, confidence)
    grids = grids_of(chosen, cells**2, count, seed)
    if not grids:
        raise UserError(
            f"a grid needs images of {cells**2} classes, but {model} correctly classifies images of {len(chosen)} "
            f"classes with a probability of {confidence:g} or more; lower --confidence or --cells, or use a better "
            "model"
        )
    log.expected, digest = len(grids), classifier.digest
    chooser = {"chosen_by": public_name(classifier.id, classifier.repo is None), "chosen_by_digest": digest}
    for number, grid in enumerate(grids):
        of_grid = [rows[index] for index in grid]
        target = seed_of(seed, number, "target") % len(grid)
        image, mask = joined(classifier.prepare(of_grid).images, target)
        yield {
            "image_id": f"{digest[:8]}-{number:05d}",
            "image": image,
            "label": names[of_grid[target]["label"]],
            "mask": mask,
            "labels_of_cells": ", ".join(names[row["label"]] for row in of_grid),
            "images_of_cells": ", ".join(
                str(row.get("image_id", index)) for row, index in zip(of_grid, grid, strict=True)
            ),
            **chooser,
        }
