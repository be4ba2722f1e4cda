"""Python objects in the place of names: what a spec says of them, and which object it meant.

A function, a network or a dict cannot be written to a file. The spec holds its kind, name and a hash of its content
(`PythonObject`); the object itself is carried beside the spec.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.classifiers.loading import load_classifier
from saliency_bench.engine.precomputed import PrecomputedMaps
from saliency_bench.errors import UserError
from saliency_bench.explainer import Explainer, as_explainer
from saliency_bench.metric import Metric, as_metric
from saliency_bench.spec import PythonObject, RunSpec, check_names
from saliency_bench.targets.class_groups import ClassGroups
from saliency_bench.utils.hashing import hash_of

Objects = Mapping[PythonObject, object]


def describe(settings: Mapping[str, object]) -> tuple[RunSpec, dict[PythonObject, object]]:
    """(the spec of the settings of a run, the Python objects among them).

    Explainers, metrics, model, label map and groups may be Python objects. Of explainers and metrics nothing but their
    names and options is loaded. Raises: UserError for a setting, name or option that is not allowed.
    """
    check_names(settings)
    objects: dict[PythonObject, object] = {}
    plain = dict(settings)
    for name, resolve in (("explainers", as_explainer), ("metrics", as_metric)):
        if name in plain:
            plain[name] = _names(name, plain[name], resolve, objects)
    for name in ("label_map", "groups"):
        if name in plain:
            plain[name] = _table(name, plain[name], objects)
    if isinstance(device := plain.get("device"), torch.device):
        plain["device"] = str(device)
    if isinstance(model := plain.get("model"), nn.Module):
        plain["model"] = _module(model, objects)
    return RunSpec.read(plain), objects


def _names(setting: str, given: Any, resolve: Callable[[Any], Explainer | Metric], objects: dict) -> object:
    """Explainers or metrics as a spec holds them: by name where a name gives the same, else as a Python object."""
    if isinstance(given, Mapping):
        raise UserError(f"{setting} must be a list; options follow a name as in rise:masks=1000, not as a dict")
    listed = [given] if isinstance(given, str) or callable(given) else given
    if not isinstance(listed, Iterable):
        return given  # for the spec to refuse
    pairs = [(item, resolve(item)) for item in listed]
    if len({resolved.identity for _, resolved in pairs}) < len({resolved for _, resolved in pairs}):
        raise UserError(f"two {setting} have the same name, options and code; give one of them another name")
    return [item if isinstance(item, str) else _name(resolved, resolve, objects) for item, resolved in pairs]


def _name(item: Explainer | Metric, resolve: Callable[[Any], Explainer | Metric], objects: dict) -> str | PythonObject:
    with suppress(UserError):  # no such name, or no such option of it
        if resolve(str(item)) == item:
            return str(item)
    kind = "metric" if isinstance(item, Metric) else "explainer" if isinstance(item.version, int) else "function"
    kind = "maps" if isinstance(item.function, PrecomputedMaps) else kind
    written = PythonObject(kind=kind, name=str(item), digest=hash_of(item.identity))
    objects[written] = item
    return written


def _table(name: str, given: object, objects: dict[PythonObject, object]) -> object:
    if isinstance(given, ClassGroups):
        written = PythonObject(kind="groups", name=given.name, digest=given.identity)
    elif isinstance(given, Mapping):
        content = {str(key): value for key, value in given.items()}
        written = PythonObject(kind="dict", name=name, digest=hash_of(content))
    else:
        return given
    objects[written] = given
    return written


def _module(model: nn.Module, objects: dict[PythonObject, object]) -> PythonObject:
    kind = "classifier" if isinstance(model, Classifier) else "module"
    # Where it is now: a run moves it to its own device later.
    device = next((p.device for p in model.parameters() if p.device.type == "cuda"), "cpu")
    classifier = load_classifier(model, device=device)
    written = PythonObject(kind=kind, name=classifier.id, digest=classifier.digest)
    objects[written] = classifier
    return written


def object_of(entry: str | PythonObject | None, objects: Objects) -> Any:
    """The object that a spec mentions, or the name it holds. Raises: UserError for an object that is not there."""
    if not isinstance(entry, PythonObject):
        return entry
    if entry not in objects:
        raise UserError(f"{entry} was a Python object, which no file holds; give it to saliency_bench.run again")
    return objects[entry]
