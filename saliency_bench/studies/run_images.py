"""The images and stored maps of a finished run, which studies access by image id.

The frame of an image is the image after the run's resizing and cropping. Frames are computed without loading a network.
Their pixel values may differ from those in the run by rounding errors. Maps are the stored maps of the run
(`load_maps`).
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from os.path import abspath
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, Image
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.errors import EntryNotFoundError
from PIL import Image as Pillow
from pydantic import ValidationError

from saliency_bench.data.fingerprints import fingerprint
from saliency_bench.data.frames import GEOMETRY, framed
from saliency_bench.data.geometry import Geometry
from saliency_bench.data.loading import find, with_classes
from saliency_bench.errors import UserError, one_line, unknown
from saliency_bench.hub.client import default_api, no_bars, token_of
from saliency_bench.hub.failures import refuse
from saliency_bench.hub.repo_names import FORCED, could_be_on_the_hub, hub_name
from saliency_bench.read.cell import field_line
from saliency_bench.read.finished_run import load_maps
from saliency_bench.read.identity import Identity
from saliency_bench.read.manifest import MANIFEST, read_manifest
from saliency_bench.read.records import PREDICTIONS, read_columns
from saliency_bench.studies.human_masks import RunMasks
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.messages import complain
from saliency_bench.utils.pictures import open_rgb

AT_ONCE = 64  # number of images cached in memory
HUMAN = "human mask"  # name of the dataset's masks, which are used like the maps of an explainer
OF_A_RUN = ["run.json", "summary.json", "predictions.parquet", "maps/*"]  # files of a run that are read


def unit_of(image: str, explainer: str | None) -> str:
    """Return the unit that stands for an image and an explainer, with control characters escaped."""
    return json.dumps([image, explainer])


def pair_of(unit: str) -> tuple[str, str | None]:
    """Split a unit into (image id, explainer)."""
    image, explainer = json.loads(unit)
    return image, explainer


@dataclass(frozen=True)
class RunImages:
    """Images with a label, and with a map from each explainer.

    Attributes:
        run: Hash of the dataset, the model and the explainers, which identifies the study.
        dataset: Fingerprint of the dataset.
        ids: Ids of the images in the order of the run.
        labels: {id: name of the class}.
        groups: {id: cluster, or None for an image without a cluster}.
        classes: Names of all classes.
        frames: {id: image, uint8 (H, W, 3)}.
        maps: {explainer: {id: map (H, W)}}.
        explained: {id: class that the maps explain}. Images whose explained class is not in the dataset are
            missing.
        masks: {id: the dataset's mask, bool (H, W)}, if requested.
    """

    run: str
    dataset: str
    ids: list[str]
    labels: Mapping[str, str]
    groups: Mapping[str, str | None]
    classes: list[str]
    frames: Callable[[str], np.ndarray]
    maps: Mapping[str, Mapping[str, np.ndarray]]
    explained: Mapping[str, str] = field(default_factory=dict)
    masks: Mapping[str, np.ndarray] | None = None
    reading: Lock = field(default_factory=Lock, repr=False)  # map files are read by one thread at a time

    def frame(self, image_id: str) -> np.ndarray:
        """Return an image after the run's resizing and cropping, uint8 (H, W, 3).

        Raises:
            UnreadableError: The image cannot be read.
        """
        with self.reading:
            return self.frames(image_id)

    def map(self, image_id: str, explainer: str) -> np.ndarray:
        """Return a map, float32 (H, W), which has the same size as the frame.

        For the explainer `HUMAN`, return the mask.

        Raises:
            UserError: The map does not exist or has the wrong size.
        """
        frame = self.frame(image_id)
        with self.reading:
            if explainer == HUMAN and self.masks is not None:
                values = self.masks[image_id].astype(np.float32)
            else:
                values = self.maps[explainer][image_id]
        if values.shape != frame.shape[:2]:
            raise UserError(
                f"the map of {image_id} from {explainer} has shape {values.shape}, but the resized and cropped image "
                f"has shape {frame.shape[:2]}"
            )
        return values


def run_folder(run: str) -> tuple[Path, str]:
    """Return (folder of a run, name of the run). If `run` is `hub:OWNER/NAME`, download it from that repository.

    Raises:
        UserError: The repository does not exist, cannot be reached, or contains no run.
    """
    if not run.startswith(FORCED):
        return Path(run), Path(abspath(run)).name
    name, revision, _ = hub_name(run)
    if not could_be_on_the_hub(name) or "/" not in name:
        raise UserError(f"'{run}' is not a repository; use hub:OWNER/NAME")
    api = default_api()
    try:
        with no_bars():
            given: dict[str, Any] = {"repo_type": "dataset", "revision": revision}
            api.hf_hub_download(name, "summary.json", **given)
            folder = api.snapshot_download(name, allow_patterns=OF_A_RUN, **given)
    except EntryNotFoundError as error:
        raise UserError(
            f"{name} does not contain a finished run (no summary.json); upload the output folder (--out) of a run to it"
        ) from error
    except Exception as error:
        refuse(error, name, token_of(api))
    if not (Path(folder) / "summary.json").is_file():
        raise UserError(
            f"{name} does not contain a finished run (no summary.json); upload the output folder (--out) of a run to it"
        )
    return Path(folder), name.rpartition("/")[2]


def run_images(
    run: str | Path, explainers: Sequence[str] = (), dataset: str | None = None, *, with_masks: bool = False
) -> RunImages:
    """Load the images and stored maps of a run.

    Args:
        run: Folder of the run, or `hub:OWNER/NAME`.
        explainers: Names of explainers in the run, or () for all.
        dataset: Location of the dataset, if it has moved since the run.
        with_masks: Whether to include the masks of the dataset.

    Raises:
        UserError: The run has no stored maps, an explainer is not part of the run, the dataset is not that of the run,
            or masks are requested but the dataset has none.
    """
    folder = Path(run)
    maps = load_maps(folder)
    for name in explainers:
        if name not in maps:
            raise unknown("explainer with kept maps", name, maps)
    chosen = {name: maps[name] for name in explainers or maps}
    if with_masks and HUMAN in chosen:
        raise UserError(
            f"an explainer of this run is called {HUMAN}, but this name is reserved for the masks; choose different "
            "explainers with --explainers"
        )
    manifest = read_manifest(folder)
    identity = manifest.identity
    if dataset is None:
        _check_named(folder, manifest.spec.dataset)
    rows = _rows(dataset or manifest.spec.dataset, identity.split, identity.fingerprint, identity.label_column)
    classes = list(rows.features["label"].names)
    known = list(map(str, rows["image_id"] if "image_id" in rows.features else range(len(rows))))
    positions = {image_id: position for position, image_id in enumerate(known)}
    numbers = dict(zip(known, rows["label"], strict=True))
    groups = dict(zip(known, rows["group"], strict=True)) if "group" in rows.features else {}
    ids = [
        image for image in next(iter(chosen.values())) if all(image in of_explainer for of_explainer in chosen.values())
    ]
    ids = [image for image in ids if (numbers[image] if numbers[image] is not None else -1) >= 0]
    if not ids:
        raise UserError(
            f"{folder} has no labelled image with stored maps of all of these explainers: {', '.join(chosen)}"
        )
    labels = {image: classes[numbers[image]] for image in ids}
    pictures = rows.select_columns(["image"]).cast_column("image", Image(decode=False))
    geometry = _geometry(folder, identity.geometry)
    return RunImages(
        run=hash_of(identity.model_dump(mode="json"), sorted(chosen)),
        dataset=identity.fingerprint,
        ids=ids,
        labels=labels,
        groups={image: None if groups.get(image) is None else str(groups[image]) for image in ids},
        classes=classes,
        frames=lru_cache(AT_ONCE)(lambda image_id: _frame(pictures[positions[image_id]]["image"], geometry)),
        maps=chosen,
        explained=_explained(folder, identity, labels, classes),
        masks=RunMasks(rows, {image: positions[image] for image in ids}, geometry, identity.mask_values)
        if with_masks
        else None,
    )


def _explained(folder: Path, identity: Identity, labels: dict[str, str], classes: list[str]) -> dict[str, str]:
    """Return {image id: explained class} if the maps explain the label or the predicted class, else {}."""
    if identity.target == "label":
        return labels
    if identity.target != "predicted":
        return {}
    names = {number: classes[index] for index, members in enumerate(identity.labels) for number in members}
    table = read_columns(folder / "predictions.parquet", ["image_id", "prediction"], PREDICTIONS).to_pydict()
    predicted = dict(zip(table["image_id"], table["prediction"], strict=True))
    return {image: names[predicted[image]] for image in labels if predicted.get(image) in names}


def _frame(stored: Any, geometry: Geometry) -> np.ndarray:
    picture = open_rgb(stored)
    ways = Pillow.Resampling.__members__
    try:
        return np.asarray(framed(picture, geometry, ways.get(geometry.resample.upper(), Pillow.Resampling.BILINEAR)))
    except ValueError as error:
        raise UserError(
            f"an image of the run cannot be displayed: {error}; repeat the run with smaller images"
        ) from error


def _check_named(folder: Path, dataset: Any) -> None:
    """Print the name of the dataset, because run.json alone determines which dataset is loaded.

    Raises:
        UserError: The run is from the Hub and refers to a local file or folder.
    """
    if not isinstance(dataset, str):
        return
    place = os.path.expanduser(dataset)  # the same expansion as in `find`
    is_here = os.path.exists(place)
    if is_here and folder.absolute().is_relative_to(Path(HF_HUB_CACHE).absolute()):
        raise UserError(
            f"{folder / MANIFEST} is from the Hub and refers to {one_line(dataset)} on this machine; set --dataset to "
            "confirm that its images may be displayed"
        )
    complain(f"the images are from {one_line(abspath(place) if is_here else dataset)}, the dataset in run.json")


def _rows(dataset: Any, split: str, expected: str, label: str) -> Dataset:
    """Load the dataset of a run.

    Raises:
        UserError: The dataset is missing, or the folder contains a different dataset.
    """
    if not isinstance(dataset, str):
        raise UserError(f"the dataset of this run was {dataset}; set --dataset to the folder or name of this dataset")
    try:
        rows_there = find(dataset).load_usual(split)[0]
    except UserError as error:
        raise UserError(f"the dataset of this run cannot be loaded: {error}; if it has moved, set --dataset") from error
    if fingerprint(rows_there) != expected:
        raise UserError(f"{dataset} is not the dataset of the run; set --dataset to the dataset that the run used")
    rows = with_classes(rows_there.with_format(None))
    if label != "label":
        rows = rows.remove_columns([name for name in ["label"] if name in rows.features]).rename_column(label, "label")
    if not isinstance(rows.features.get("label"), ClassLabel):
        raise UserError(f'{dataset} has no column "{label}" with class names for people to choose from')
    return rows


def _geometry(folder: Path, stored: dict[str, Any]) -> Geometry:
    """Return the geometry that the run used to prepare its images. Raise UserError if it is invalid."""
    try:
        geometry = GEOMETRY.validate_python(stored)
        framed(Pillow.new("L", (1, 1)), geometry)
    except ValueError as error:
        why = field_line(error) if isinstance(error, ValidationError) else one_line(error)
        raise UserError(f"{folder / MANIFEST} has no usable geometry ({why}); restore the file") from error
    return geometry
