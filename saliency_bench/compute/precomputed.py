"""Check precomputed saliency maps, and wrap them as an explainer.

All maps are checked and copied before anything is scored, so that exactly the checked maps are scored.
`compute/maps/map_files.py` lists the accepted forms.
"""

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from urllib.parse import quote

import numpy as np
import torch

from saliency_bench.bound_explainer import Explainer
from saliency_bench.bound_metric import OF_PEOPLE, Metric, check_without_people
from saliency_bench.compute.maps.map_files import read_maps_of
from saliency_bench.compute.preflight import check_method_name
from saliency_bench.errors import UserError
from saliency_bench.score_notes import NO_MAP, PRECOMPUTED
from saliency_bench.spec import MAP_FORMS
from saliency_bench.types import Images, Maps, Target
from saliency_bench.utils.seeds import seed_of


class PrecomputedMaps:
    """Checked maps in the order of `ids`. An instance can be called like an explainer, and looks up the maps.

    Images are identified by their seeds, which are hashes of their ids. A map belongs to one image and one target, so a
    call for the same image with different pixels or a different target raises UserError.
    """

    not_finite = NO_MAP  # stored maps are finite, so NaN means that an image has no map

    def __init__(self, ids: Sequence[str], maps: np.ndarray, seed: int):
        self.ids, self.maps = ids, maps
        self.place = {seed_of(seed, image_id, "explain"): place for place, image_id in enumerate(ids)}
        self.seen: dict[int, bytes] = {}

    def items(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield (image id, map (H, W)) pairs."""
        return zip(self.ids, self.maps, strict=True)

    def __call__(self, classifier: object, images: Images, target: Target, *, seeds: Sequence[int]) -> Maps:
        """Look up the maps (B, H, W) of these images by seed. The map is NaN for an image without a map."""
        maps = np.full((len(images), *images.shape[2:]), np.nan, dtype=np.float32)
        for index, seed in enumerate(seeds):
            content = _content(images[index], target[index])
            if self.seen.setdefault(seed, content) != content:
                raise UserError(
                    "precomputed maps exist only for the unchanged images; use a metric that needs one map per image"
                )
            if (place := self.place.get(seed)) is not None:
                if self.maps.shape[1:] != maps.shape[1:]:
                    frame, given = (" x ".join(map(str, values.shape[1:])) for values in (maps, self.maps))
                    raise UserError(f"the prepared image is {frame}, but its precomputed map is {given}")
                maps[index] = self.maps[place]
        return torch.from_numpy(maps)


def explainer_of(
    name: str,
    source: Path | np.ndarray | Mapping[str, np.ndarray],
    files: Mapping[str, str],
    size: tuple[int, int],
    seed: int,
    needed: Collection[str] = (),
    fix: str = "add the missing maps",
    change: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Explainer:
    """Return an explainer called `name` that returns the maps in `source`.

    Its version is a hash of ids and values, so different maps are never mixed.

    Args:
        name: Name of the explainer.
        source: The maps, or a file or folder with maps.
        files: {image id: name of its .npy file, "" for none}, in the order of the dataset.
        size: (H, W) of the images after the classifier's preprocessing.
        seed: Seed of the run.
        needed: Images that must have a map.
        fix: Advice in the error for an image without a map.
        change: Function applied to each map (H, W) before it is stored.

    Raises:
        UserError: A map has a different size or is not finite, an image is unknown or occurs twice, or a needed map is
            missing. The message names the file.
    """
    check_method_name(name)
    where = source if isinstance(source, Path) else f"maps {name}"
    content = blake2b(digest_size=8)
    places: dict[str, int] = {}
    digests: dict[str, bytes] = {}
    with tempfile.TemporaryFile() as copy:
        for image_id, values in read_maps_of(source, name, files, size):
            if image_id in places:
                raise UserError(f"{where}: image {image_id} occurs twice")
            places[image_id] = len(places)
            values = values if change is None else change(values)
            digests[image_id] = blake2b(values.tobytes(), digest_size=16).digest()
            copy.write(values.tobytes())
        copy.flush()
        if not places:
            raise UserError(f"{where} contains no map; use {MAP_FORMS}")
        if missing := [image_id for image_id in needed if image_id not in places]:
            raise UserError(
                f"{where} has no map for image {missing[0]} (maps for {len(missing)} of {len(needed)} images are "
                f"missing); {fix}"
            )
        maps = np.memmap(copy, dtype=np.float32, mode="r", shape=(len(places), *size))
    for image_id in sorted(places):
        content.update(f"{len(image_id)} {image_id}".encode() + digests[image_id])
    return Explainer(name, PrecomputedMaps(list(places), maps, seed), (), f"{PRECOMPUTED}{content.hexdigest()}")


OF_TRAINING = "also needs maps of the training images"
FURTHER = "needs more maps of the same explainer"


def refuse(metrics: Sequence[Metric], name: str) -> None:
    """Raise UserError if a metric needs more than one map of each image. The message names the first such metric."""
    for metric in metrics:
        check_without_people(metric)
        if wants_more(metric):
            more = OF_TRAINING if metric.declaration.keeps else FURTHER
            raise UserError(
                f"{metric.name} {more}, but precomputed maps do not include these; leave the metric out, or benchmark "
                f"{name} as a function: sb.run(explainers=[{name}])"
            )


def wants_more(metric: Metric) -> bool:
    """Return whether a metric needs more than the explainer's map of each unchanged image."""
    return bool({"explain", "partners", "retrained", *OF_PEOPLE} & set(metric.inputs))


def file_of(image_id: str, position: int) -> str:
    """Return the file name of an image's map. It is the image's id, quoted so that the path cannot leave the folder."""
    return f"{quoted_id(image_id) or f'number-{position}'}.npy"


def quoted_id(image_id: str) -> str:
    """Quote an image's id so that, as a path, it cannot leave a folder. Return "" if it is too long for a file name."""
    quoted = quote(image_id, safe="")
    quoted = f"%2D{quoted[1:]}" if quoted.startswith("-") else quoted  # could be interpreted as an option or formula
    return quoted if len(quoted) <= 200 and not quoted.startswith(".") else ""


def _content(image: torch.Tensor, weights: torch.Tensor) -> bytes:
    parts = (tensor.detach().cpu().contiguous().numpy().tobytes() for tensor in (image, weights))
    return blake2b(b"".join(parts), digest_size=8).digest()
