"""Public names of datasets, models and settings, which do not reveal local folders."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saliency_bench.spec import IN_FILE, PythonObject, RunSpec, hint

FOLDER = "folder:"
COMPOSING = ("absolute", "positive", "blurred", "smoothed", "over_layers")  # functions of explainers that can be nested
LONGEST_COMPOSED = 400  # characters
LAMBDA = "<lambda>"  # Python's name of an anonymous function; pages escape it
LONGEST_OPTIONS = 1000


def public_name(name: str, local: bool | None = None) -> str:
    """Return the public name of a dataset or model: for a local folder, "folder:" and the last part of its path.

    Args:
        name: Name as the user entered it.
        local: Whether the name is a local folder. By default, a name is local if its path exists or if it cannot be a
            Hub id.
    """
    if re.fullmatch(r"(torchvision|module|folder):.*", name):
        return name
    if local is None:
        local = Path(name).expanduser().exists() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name)
    return FOLDER + _last(name) if local else name


def recorded_name(name: str, content: str) -> str:
    """Return the name of a dataset or model in records: for a folder, "folder:" and the start of its content's hash.

    The records therefore do not change if a folder is renamed or copied. The summary contains both name and hash.
    """
    return FOLDER + content[:16] if name.startswith(FOLDER) else name


def public_label(name: str) -> bool:
    """Return whether a name is allowed for a submitter, metric, method or Python function."""
    return re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", name) is not None


def refused_label(name: str, chosen: Mapping[str, Any]) -> str:
    """Return the reason why a board rejects a method or metric with this name and these options, or "".

    Only ASCII is accepted, because letters of other alphabets can look like Latin letters, and some characters are
    invisible.
    """
    composed = rf"({'|'.join(COMPOSING)})\((?:[\w.:=+\-\"\[\]{{}}(),]|, )+\)"
    if (
        name != LAMBDA
        and not public_label(name)
        and (len(name) > LONGEST_COMPOSED or not re.fullmatch(composed, name, re.ASCII))
    ):
        return "cannot be the name of a method or metric: use up to 100 ASCII letters, digits, '.', '_' and '-'"
    text = json.dumps(chosen, ensure_ascii=False)
    if len(text) > LONGEST_OPTIONS or not (text.isascii() and text.isprintable()):
        return f"has options that a board does not accept: use up to {LONGEST_OPTIONS:,} characters, all of them ASCII"
    return ""


def public_spec(spec: RunSpec, dataset: str, model: str) -> RunSpec:
    """Return the settings of a run without local folders, with public names of dataset and model."""
    changed: dict[str, Any] = {"dataset": dataset, "model": model}
    for name, value in spec:
        if isinstance(value, PythonObject):
            folder = name == "model" and model.startswith(FOLDER)  # the code of a loaded classifier contains the folder
            changed[name] = value.model_copy(update={"name": model, "code": name} if folder else {})
            if name == "other_model" and (shown_name := public_name(value.name)).startswith(FOLDER):
                changed[name] = value.model_copy(update={"name": shown_name, "code": name})
        elif name in ("explainers", "metrics"):
            changed[name] = tuple(_without_folder(entry) for entry in value)
        elif name == "maps":
            changed[name] = tuple(entry if isinstance(entry, PythonObject) else public_maps(entry) for entry in value)
        elif name == "prompts" and value is not None:
            changed[name] = tuple(entry if "{}" in entry else _last(entry) for entry in value)
        elif isinstance(value, str) and hint(name, "path") and name not in changed:
            changed[name] = _last(value) if "/" in value or "\\" in value or Path(value).exists() else value
    return spec.model_copy(update=changed)


def _without_folder(entry: str | PythonObject) -> str | PythonObject:
    """Return an explainer or metric, reducing the path of a function in a file to the file name."""
    if isinstance(entry, str) or entry.kind != IN_FILE:
        return entry
    path, _, rest = entry.name.partition(".py:")
    name = f"{_last(path)}.py:{rest}"
    return entry.model_copy(update={"name": name, "code": repr(name)})


def public_maps(entry: str) -> str:
    """Return the entry NAME=PATH of precomputed maps, with only the last part of PATH."""
    name, _, path = entry.partition("=")
    return f"{name}={_last(path)}"


def _last(path: str) -> str:
    return Path(path).expanduser().resolve().name or "root"
