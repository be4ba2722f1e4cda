"""The texts that a run compares pictures with: its prompts, filled with the classes of the dataset."""

from typing import Any

from saliency_bench.classifiers.prompts import read_prompts
from saliency_bench.engine.python_objects import Objects, object_of
from saliency_bench.errors import UserError
from saliency_bench.spec import RunSpec


def texts_for(spec: RunSpec, objects: Objects, names: list[str] | None) -> dict[str, Any]:
    """Return prompts and labels of a run as `load_classifier` takes them; empty where no prompts are given.

    Templates are filled with the names of the dataset's classes, where underscores become spaces.

    Raises:
        UserError: They are templates, and the dataset has no names of classes.
    """
    if spec.prompts is None:
        return {}
    given = spec.prompts
    prompts = read_prompts(given if isinstance(given, tuple) else object_of(given, objects))
    if isinstance(prompts, dict):
        return {"prompts": prompts}
    if names is None:
        raise UserError(
            "the prompts are templates, and the dataset has no names of classes to fill them with; give the texts of "
            "each class in a JSON file {class: [texts]}"
        )
    return {"prompts": prompts, "labels": [name.replace("_", " ") for name in names]}
