"""Grids: images of different classes of a dataset side by side, each of which a classifier names confidently.

    saliency-bench build grid-xai --from shapes --model models/net --out grids

Source: the folder of a built dataset; the classifier `--model` chooses among its images. The mask is the cell of the
class that is asked about, so that `saliency_energy` on it is the grid pointing game, GridPG (Boehle et al., 2021; Rao
et al., 2022): a map that shows why this class and no other lies in its cell. Chance is 1 / cells^2, 1/4 by default.
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
SECTION = "made of a dataset that is built, and a classifier"
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
RULE = """Images of the split, as the classifier sees them, that it names rightly with a probability of `confidence` or
more, one of each `group`, in grids of `cells` x `cells`, all of different classes and no image in two grids; the
classes with the most images left come first. Place and target are drawn by the seed. `label` is the target's class, the
mask its cell, `labels_of_cells` and `images_of_cells` say row by row what is where. A cell has the size of the
classifier's images: in a run its `prepare` scales the grid into the frame, and the cells with it, and a frame that
crops cuts off as much of each cell. The digest of the classifier is in every `image_id`, and so in the fingerprint;
`chosen_by` names it, and reports of other classifiers say so."""


def features(classes: dict[str, list[str]]) -> dict:
    """Return the columns; the classes are those of the dataset."""
    from datasets import ClassLabel, Value

    texts = ("labels_of_cells", "images_of_cells", "chosen_by", "chosen_by_digest")
    return {"label": ClassLabel(names=classes["label"]), **{name: Value("string") for name in texts}}


def check(*, model: str, cells: int, confidence: float, count: int, **others: object) -> None:
    """Raise UserError for options that cannot be."""
    if not model:
        raise UserError("grid-xai needs the classifier that chooses its images: --model M (a folder or a Hub id)")
    if cells < 2 or count < 1 or not 0 <= confidence <= 1:
        raise UserError(
            f"grid-xai needs cells >= 2, count >= 1 and a confidence from 0 to 1; got {cells}, {count} and {confidence}"
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
        source: the folder of the raw source.
        log: gets what is left out, and why.
        model: the classifier that chooses the images, a folder or Hub id.
        split: of the dataset.
        cells: in a row and in a column.
        confidence: least probability of the right class.
        count: how many grids at most.
        label_map: JSON file {dataset class: model class}, where their classes differ (default: by name).
        seed: of grids, places and targets.
    """
    from saliency_bench.compute.classifiers.loading import load_classifier
    from saliency_bench.data.loading import load_dataset
    from saliency_bench.hub_builders._grids import confident, grids_of, joined
    from saliency_bench.read.public_names import public_name

    folder = needed(source, "grid-xai", "a built dataset, --from DIR")
    rows = load_dataset(str(folder), split=split)
    if not hasattr(rows.features.get("label"), "names"):
        raise UserError(f"{folder} has no labels; grid-xai puts images of different classes together")
    classifier, names = load_classifier(model), rows.features["label"].names
    log.classes = {"label": list(names)}
    chosen = confident(rows, classifier, names, label_map or None, confidence)
    grids = grids_of(chosen, cells**2, count, seed)
    if not grids:
        raise UserError(
            f"{model} names images of {len(chosen)} classes rightly with a probability of {confidence:g} or more, and "
            f"a grid has {cells**2} classes; lower --confidence or --cells, or take a better model"
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
