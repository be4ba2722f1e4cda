"""Load the models of a run with its prompts, which are filled with the class names of the dataset."""

from typing import Any

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.loading import load_classifier
from saliency_bench.compute.classifiers.prompts import read_prompts
from saliency_bench.compute.classifiers.zero_shot import NoTextsError
from saliency_bench.compute.python_objects import Objects, object_of
from saliency_bench.errors import UserError
from saliency_bench.spec import RunSpec


def texts_for(spec: RunSpec, objects: Objects, names: list[str] | None) -> dict[str, Any]:
    """Return the arguments `prompts` and `labels` of `load_classifier` for a run, or {} if the run has no prompts.

    Templates are filled with the class names of the dataset, with underscores replaced by spaces.

    Raises:
        UserError: The prompts are templates, but the dataset has no class names.
    """
    if spec.prompts is None:
        return {}
    given = spec.prompts
    prompts = read_prompts(given if isinstance(given, tuple) else object_of(given, objects))
    if isinstance(prompts, dict):
        return {"prompts": prompts}
    if names is None:
        raise UserError(
            "the prompts are templates, but the dataset has no class names to fill them with; pass the texts of each "
            "class in a JSON file {class: [texts]}"
        )
    return {"prompts": prompts, "labels": [name.replace("_", " ") for name in names]}


def load_with_texts(model: Any, texts: dict[str, Any], is_required: bool, **settings: Any) -> Classifier:
    """Load a model of a run with its prompts.

    Args:
        model: Argument of `load_classifier`.
        texts: Result of `texts_for`.
        is_required: Whether to raise an error for a model that does not accept texts. If False, such a model is loaded
            without the texts.
        **settings: Further settings of `load_classifier`.

    Raises:
        UserError: The model cannot be loaded, or does not accept the required texts.
    """
    try:
        return load_classifier(model, **texts, **settings)
    except NoTextsError:
        if is_required:
            raise
        return load_classifier(model, **settings)
