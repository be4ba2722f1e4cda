"""Load the bundled label maps (`labels_NAME.json` next to this file), which users select by name.

`voc_to_imagenet`, `coco_to_imagenet` and `pets_to_imagenet` list the matching classes of ImageNet, if any, for each
class of PASCAL VOC or MS COCO or each breed of Oxford-IIIT Pet. `photos_to_imagenet` does the same for photos-xai.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from saliency_bench.compute.targets.class_groups import key_of, places_in
from saliency_bench.compute.targets.label_maps import is_unnamed
from saliency_bench.errors import UserError

HERE = Path(__file__).parent


def known_maps() -> list[str]:
    """Return the names of the bundled label maps."""
    return sorted(path.stem.removeprefix("labels_") for path in HERE.glob("labels_*.json"))


def resolved(given: Any, dataset: Sequence[str] | None, model: Sequence[str] | None, classes: int) -> Any:
    """Return the label map for `label_maps.match`: {dataset class: numbers of the model's classes} for a known name.

    Any other label map, including a file with a known name, is returned unchanged. A model without class names is
    assumed to have the classes in their usual order.

    Args:
        given: Label map given by the user.
        dataset: Class names of the dataset.
        model: Class names of the model.
        classes: Number of the model's classes.

    Raises:
        UserError: The classes of the dataset or model differ from the classes of the label map.
    """
    if not isinstance(given, str | Path) or str(given) not in known_maps() or Path(given).is_file():
        return given
    table = json.loads((HERE / f"labels_{given}.json").read_text(encoding="utf-8"))
    places = _places(str(given), table["model"], model, classes)
    by_key = {key_of(name): members for name, members in table["members"].items()}
    if others := [name for name in dataset or () if key_of(name) not in by_key]:
        raise UserError(
            f"the label map {given} covers only {', '.join(table['members'])}, but the dataset has {others[0]}; use "
            "--label-map FILE with your own label map"
        )
    return {name: [places[member] for member in by_key[key_of(name)]] for name in dataset or ()}


def fitting(dataset: Sequence[str] | None, model: Sequence[str] | None, classes: int) -> str:
    """Return the name of the label map for these classes of a dataset and a model, or "" if there is none."""
    for name in known_maps() if dataset else []:
        with suppress(UserError):
            resolved(name, dataset, model, classes)
            return name
    return ""


def _places(given: str, table: str, model: Sequence[str] | None, classes: int) -> list[int]:
    """Return, for each class of a table in `class_groups`, its index among the model's classes."""
    unnamed = model is None or is_unnamed(model)
    groups = json.loads((HERE / f"groups_{table}.json").read_text(encoding="utf-8"))
    places = list(range(classes)) if unnamed else places_in(model or (), groups)
    if len(places) != len(groups["classes"]):
        raise UserError(
            f"the label map {given} is for the {len(groups['classes'])} classes of {table}, but the model has "
            "different classes; use --label-map FILE with your own label map"
        )
    return places
