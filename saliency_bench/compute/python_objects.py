"""Use Python objects as settings of a run: describe an object in a spec, and look it up again.

A function, a network or a dict cannot be written to a file. The spec stores the type, name and content hash of the
object (`PythonObject`). The objects themselves are passed along with the spec.
"""

import ast
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from os import PathLike
from typing import Any

import datasets
import torch
from torch import nn

from saliency_bench import registry
from saliency_bench.bound_explainer import Explainer, as_explainer
from saliency_bench.bound_metric import Metric, as_metric, is_direction_declared
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.loading import load_classifier
from saliency_bench.compute.classifiers.model_objects import is_pipeline
from saliency_bench.compute.classifiers.own_networks import is_own
from saliency_bench.compute.classifiers.prompts import read_prompts
from saliency_bench.compute.maps.composing import Composed
from saliency_bench.compute.maps.map_files import digest_of, in_memory
from saliency_bench.compute.precomputed import PrecomputedMaps, refuse
from saliency_bench.compute.preflight import check_items, check_maps, check_method_name
from saliency_bench.compute.targets.class_groups import ClassGroups
from saliency_bench.data.loading import find, fingerprint
from saliency_bench.data.untrusted_reports import check_columns
from saliency_bench.errors import UserError, one_line
from saliency_bench.spec import ARRAYS, IN_FILE, PythonObject, RunSpec, check_names, variable
from saliency_bench.target_weights import asked_activation
from saliency_bench.user_files import is_in_file
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.messages import complain
from saliency_bench.utils.source_code import code_hash, file_of, name_of

Objects = Mapping[PythonObject, object]
LITERAL = 1000  # characters; longer dicts are not shown in full


def describe(settings: Mapping[str, object]) -> tuple[RunSpec, dict[PythonObject, object]]:
    """Return the spec of a run, and the Python objects among its settings.

    Explainers, metrics, dataset, model, label map and groups may be Python objects. Explainers and metrics given by
    name are not loaded; only their names and options are read.

    Raises:
        UserError: A setting, name or option is not allowed.
    """
    check_names(settings)
    objects: dict[PythonObject, object] = {}
    plain = dict(settings)
    for name, resolve in (("explainers", as_explainer), ("metrics", as_metric)):
        if name in plain:
            check_items(name, plain[name])
            plain[name] = entries_of(name, plain[name], resolve, objects)
    if "maps" in plain:
        metrics: Any = plain.get("metrics", ())
        plain["maps"] = _maps(plain["maps"], [as_metric(object_of(entry, objects)) for entry in metrics], objects)
        plain |= {} if "explainers" in plain or not plain["maps"] else {"explainers": []}
    for name in ("label_map", "groups"):
        if name in plain:
            plain[name] = _table(name, plain[name], objects)
    if plain.get("prompts") is not None:
        plain["prompts"] = _prompts(plain["prompts"], plain.get("model"), objects)
    if isinstance(device := plain.get("device"), torch.device):
        plain["device"] = str(device)
    dataset = plain.get("dataset")
    rows = dataset
    if isinstance(dataset, datasets.Dataset | datasets.DatasetDict):  # all splits are stored, for retraining
        rows, plain["split"] = find(dataset).load_usual(str(plain.get("split", "test")))
    if isinstance(rows, datasets.Dataset):
        check_columns(rows)
        digest = fingerprint(rows)
        about = f"dataset: a datasets.Dataset of {len(rows)} rows, fingerprint {digest}"
        plain["dataset"] = _noted(objects, dataset, "dataset", "in-memory", digest, "dataset", about)
    elif "dataset" in plain and not isinstance(dataset, str | PathLike | PythonObject):
        find(dataset)  # raises an error that describes the problem
    for name in ("model", "other_model"):
        model = plain.get(name)
        if isinstance(model, nn.Module) or is_pipeline(model):
            plain[name] = _module(name, model, objects)
        elif isinstance(model, str | PathLike) and is_own(text := os.fspath(model)):
            classifier = load_classifier(text)
            plain[name] = _noted(objects, classifier, IN_FILE, text, classifier.digest, repr(text))
    return RunSpec.read(plain), objects


def entries_of(setting: str, given: Any, resolve: Callable[[Any], Explainer | Metric], objects: dict) -> Any:
    """Return explainers or metrics in the form that a spec stores.

    An item is stored by name if the name loads the same item, and otherwise as an object.

    Args:
        setting: "explainers" or "metrics".
        given: Names, functions, or loaded explainers or metrics.
        resolve: Function that loads one explainer or metric.
        objects: Dict that receives the Python objects.

    Raises:
        UserError: An item cannot be loaded, or two items have the same name, options and code.
    """
    if isinstance(given, Mapping):
        raise UserError(
            f"{setting} must be a list; write options after a name, as in rise:masks=1000, instead of a dict"
        )
    listed = [given] if isinstance(given, str) or callable(given) else given
    if not isinstance(listed, Iterable):
        return given  # the spec rejects invalid items
    pairs = [(item, resolve(item)) for item in listed]
    if len({resolved.identity for _, resolved in pairs}) < len({resolved for _, resolved in pairs}):
        raise UserError(f"two {setting} have the same name, options and code; rename one of them")
    return [_entry(item, resolved, resolve, objects) for item, resolved in pairs]


def _entry(
    item: object, resolved: Explainer | Metric, resolve: Callable[[Any], Explainer | Metric], objects: dict
) -> str | PythonObject:
    """Return one explainer or metric in the form that a spec stores.

    A function in a file also becomes an object, so that reading another person's spec never imports a file.
    """
    if not isinstance(item, str):
        return _name(resolved, resolve, objects)
    if not is_in_file(item):
        return item
    _name_assumed_direction(resolved)
    return _noted(objects, resolved, IN_FILE, item, hash_of(resolved.identity), repr(item))


def _noted(objects: dict, given: object, kind: str, name: str, digest: str, code: str, about: str = "") -> PythonObject:
    """Store an object in `objects` under its description in a spec, and return the description."""
    written = PythonObject(kind=kind, name=name, digest=digest, code=code, about=about)
    objects[written] = given
    return written


def _maps(given: Any, metrics: Sequence[Metric], objects: dict) -> tuple[str | PythonObject, ...]:
    """Return precomputed maps in the form that a spec stores: NAME=PATH or, for arrays, a Python object."""
    if not isinstance(given, Mapping):
        listed = [given] if isinstance(given, str) else () if given is None else given
        if not isinstance(listed, list | tuple) or not all(isinstance(entry, str) for entry in listed):
            raise UserError("maps must be a dict {name: folder, file or array}")
        check_maps(listed)
        given = dict(entry.split("=", 1) for entry in listed)
    return tuple(_maps_entry(name, source, metrics, objects) for name, source in given.items())


def _maps_entry(name: str, source: object, metrics: Sequence[Metric], objects: dict) -> str | PythonObject:
    check_method_name(str(name))
    refuse(metrics, name)
    if isinstance(source, str | PathLike):
        check_maps([entry := f"{name}={os.fspath(source)}"])
        return entry
    arrays = in_memory(name, source)
    digest, code = digest_of(arrays), variable(f"{name} maps")
    about = f"{code}: {'a dict' if isinstance(arrays, dict) else 'an array'} of {len(arrays)} maps, hash {digest}"
    return _noted(objects, arrays, ARRAYS, name, digest, code, about)


def _name(item: Explainer | Metric, resolve: Callable[[Any], Explainer | Metric], objects: dict) -> str | PythonObject:
    with suppress(UserError):  # there is no explainer of this name, or no such option
        if resolve(str(item)) == item:
            return str(item)
    named = "metric" if isinstance(item, Metric) else "explainer"
    kind = named if registry.is_named(item.version) else "function"
    kind = "maps" if isinstance(item.function, PrecomputedMaps) else kind
    _name_assumed_direction(item)
    return _noted(objects, item, kind, str(item), hash_of(item.identity), *_written(item))


def _name_assumed_direction(item: Explainer | Metric) -> None:
    """Print a warning about a metric whose direction (higher is better) is only assumed."""
    if isinstance(item, Metric) and not is_direction_declared(item):
        complain(
            f"metric {item} does not declare which direction is better, so higher is assumed to be better; declare it "
            "with @sb.metric(higher_is_better=..., range=(low, high))"
        )


def _written(item: Explainer | Metric) -> tuple[str, str]:
    """Return (Python code that creates an explainer or metric, description of the variables in this code)."""
    function = item.function
    if isinstance(function, Composed):
        within = function.explainer
        code, about = _written(within) if not registry.is_named(within.version) else (repr(str(within)), "")
        options = "".join(f", {key}={value!r}" for key, value in function.parameters)
        return f"composing.{item.name.partition('(')[0]}({code}{options})", about
    if registry.is_named(item.version) or isinstance(function, PrecomputedMaps):
        made = "precomputed maps, scored by `saliency-bench submit`" if isinstance(function, PrecomputedMaps) else (
            "the metric" if isinstance(item, Metric) else "the explainer")  # fmt: skip
        return (code := variable(item.name)), f"{code}: {made} {one_line(item)}, version {item.version}"
    inner = function.func if isinstance(function, partial) else function
    name, file = name_of(inner), file_of(inner)
    description = f"function {name}" if hasattr(inner, "__name__") else f"an object of the class {name}"
    if isinstance(function, partial):
        bound = [*map(repr, function.args), *(f"{key}={value!r}" for key, value in function.keywords.items())]
        description = f"partial({name}, {', '.join(bound)}), {description}"
    file = f"of {file}" if file else "that has no source file"
    unhashable = code_hash(function).unhashable
    if unhashable:
        source = f"{file}, which cannot be hashed ({unhashable}), so every run recomputes its cells"
        complain(f"{item.name} cannot be hashed ({unhashable}), so every run recomputes its cells")
    else:
        source = f"{file}, code hash {item.version}"
    code = name if function is inner and name == item.name and name.isidentifier() and inspect.isroutine(inner) else ""
    code = code or variable(item.name)
    return code, one_line(f"{code}: {description} {source}")


def name_changed(items: Iterable[Explainer | Metric]) -> None:
    """Print a warning about each Python function or object whose hashed state has changed.

    A later run treats the changed object as a different explainer, and results may depend on the order of batches.
    """
    for item in items:
        inner = item
        while isinstance(inner.function, Composed):
            inner = inner.function.explainer
        if registry.is_named(inner.version) or isinstance(inner.function, PrecomputedMaps):
            continue
        now = code_hash(inner.function)
        if not now.unhashable and now.version != inner.version:
            complain(
                f"the state of {item} changed during the run, so an interrupted or extended run may differ from an "
                f"uninterrupted run; compute each {'score' if isinstance(item, Metric) else 'map'} from arguments only"
            )


def _table(name: str, given: object, objects: dict[PythonObject, object]) -> object:
    """Return a label map, groups or prompts in the form that a spec stores."""
    if isinstance(given, ClassGroups):
        about = f"{name}: groups of classes {given.name}, hash {given.identity}"
        return _noted(objects, given, "groups", given.name, given.identity, name, about)
    if isinstance(given, Mapping):
        content = {str(key): value for key, value in given.items()}
        digest, code = hash_of(content), _literal(given)
        about = "" if code else f"{name}: a dict of {len(given)} entries, hash {digest}"
        return _noted(objects, given, "dict", name, digest, code or name, about)
    return given


def _prompts(given: object, model: object, objects: dict[PythonObject, object]) -> object:
    """Return prompts in the form that a spec stores: templates as strings, {label: texts} as a table.

    The content of a file is stored in the same form.

    Raises:
        UserError: The prompts cannot be read, or the model is an object, which must be loaded with its prompts.
    """
    if isinstance(given, PythonObject):
        return given
    if not isinstance(model, str | PathLike | PythonObject | None):
        raise UserError(
            "prompts need a model that is given by name; for a model object, use load_classifier(model, prompts=, "
            "labels=)"
        )
    prompts = read_prompts(given)
    if isinstance(given, Mapping):
        return _table("prompts", given, objects)
    return prompts if isinstance(prompts, list) else given


def _literal(given: Mapping) -> str:
    """Return the Python literal for a dict, or "" if there is no such literal or it is too long to show."""
    text = repr(given)
    with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        if len(text) <= LITERAL and ast.literal_eval(text) == given:
            return text
    return ""


def _module(setting: str, model: Any, objects: dict[PythonObject, object]) -> PythonObject:
    """Return a model in the form that a spec stores.

    Args:
        setting: Name of the setting, also used as the variable name if no call can load the model again.
        model: The object.
        objects: Dict that receives the object.
    """
    kind = "classifier" if isinstance(model, Classifier) else "module"
    classifier = load_classifier(model)
    code, made = setting, f"a {type(getattr(model, 'model', model)).__name__}"
    if isinstance(model, Classifier):
        settings = _settings(classifier)
        if classifier.id.startswith("module:"):
            mean, std = (value.flatten().tolist() for value in (classifier.mean, classifier.std))
            labels = "" if classifier.labels is None else f", labels={classifier.labels}"
            made = f"load_classifier of {made}, mean={mean}, std={std}, {classifier.geometry}{settings}{labels}"
        else:
            name = f"{classifier.repo}@{classifier.revision}" if classifier.repo else classifier.id
            code, made = f"sb.load_classifier({name!r}{settings})", "loaded"
            if len(code) > LITERAL:  # the texts of many classes
                code, made = setting, f"load_classifier of {name}, prompts={classifier.prompts}"
    about = one_line(f"{setting}: digest {classifier.digest}, {made}", LITERAL)
    return _noted(objects, classifier, kind, classifier.id, classifier.digest, code, about)


def _settings(classifier: Classifier) -> str:
    """Return the settings that a classifier was loaded with, as Python code for the arguments of `load_classifier`."""
    precision = None if classifier.precision == "fp32" else classifier.precision
    given: dict[str, Any] = {
        "layer": classifier.layer,
        "precision": precision,
        "channels_last": classifier.channels_last or None,
    }
    given["compile"] = classifier.compiled or None
    given["activation"] = None if classifier.assumed else asked_activation(classifier.activation)
    given["prompts"] = classifier.prompts
    given["labels"] = classifier.labels if isinstance(classifier.prompts, list) else None
    logits = "" if (take := classifier.logits) is None else f", logits={getattr(take, '__name__', type(take).__name__)}"
    return "".join(f", {key}={value!r}" for key, value in given.items() if value is not None) + logits


@contextmanager
def modes_kept(settings: Mapping[str, object]) -> Iterator[None]:
    """Restore the training mode of modules in the settings when the context ends."""
    given = [getattr(value, "model", None) if is_pipeline(value) else value for value in settings.values()]
    modules = [module for value in given if isinstance(value, nn.Module) for module in value.modules()]
    modes = [(module, module.training) for module in modules]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def object_of(entry: str | PythonObject | None, objects: Objects) -> Any:
    """Return the object that a spec describes. A plain name is returned unchanged.

    Raises:
        UserError: The object is missing.
    """
    if not isinstance(entry, PythonObject):
        return entry
    if entry not in objects:
        raise UserError(
            f"{entry} is a Python object, which is not stored in files; pass the object to saliency_bench.run again"
        )
    return objects[entry]
