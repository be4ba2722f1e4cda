"""What datasets, models and settings are called in public, without the folders of the machine they lie on."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saliency_bench.spec import PythonObject, RunSpec, hint

FOLDER = "folder:"
COMPOSING = ("absolute", "positive", "blurred", "smoothed", "over_layers")  # explainers of explainers, whose names nest
LONGEST_COMPOSED = 400  # characters
LAMBDA = "<lambda>"  # what Python calls a function without a name; pages escape it
LONGEST_OPTIONS = 1000


def public_name(name: str, local: bool | None = None) -> str:
    """What a dataset or model is called in public: of a folder of this machine "folder:" and its own name.

    local: whether it is one; None: if there is one, or it cannot be an id of the Hub.
    """
    if re.fullmatch(r"(torchvision|module|folder):.*", name):
        return name
    if local is None:
        local = Path(name).expanduser().exists() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name)
    return FOLDER + _last(name) if local else name


def recorded_name(name: str, content: str) -> str:
    """What records call a dataset or model: its public name; of a folder "folder:" and the start of its content's hash.

    Anyone may rename or copy a folder: records stay the same bytes. The summary beside them has name and hash.
    """
    return FOLDER + content[:16] if name.startswith(FOLDER) else name


def public_label(name: str) -> bool:
    """Whether this can be the name of a submitter, a metric or a method, also one of a Python function."""
    return re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", name) is not None


def refused_label(name: str, chosen: Mapping[str, Any]) -> str:
    """Why a board shows no method or metric of this name and these options; "".

    Letters of other alphabets look like those of "gradcam", and some signs look like nothing.
    """
    composed = rf"({'|'.join(COMPOSING)})\((?:[\w.:=+\-\"\[\]{{}}(),]|, )+\)"
    if (
        name != LAMBDA
        and not public_label(name)
        and (len(name) > LONGEST_COMPOSED or not re.fullmatch(composed, name, re.ASCII))
    ):
        return "cannot be the name of a method or metric: up to 100 ASCII letters, digits, '.', '_' and '-'"
    text = json.dumps(chosen, ensure_ascii=False)
    if len(text) > LONGEST_OPTIONS or not (text.isascii() and text.isprintable()):
        return f"has options that a board does not show: up to {LONGEST_OPTIONS:,} characters, all of them ASCII"
    return ""


def public_spec(spec: RunSpec, dataset: str, model: str) -> RunSpec:
    """The settings of a run without the folders of the machine it ran on; dataset, model: their names in public."""
    changed: dict[str, Any] = {"dataset": dataset, "model": model}
    for name, value in spec:
        if isinstance(value, PythonObject):
            folder = name == "model" and model.startswith(FOLDER)  # a loaded classifier, whose code names the folder
            changed[name] = value.model_copy(update={"name": model, "code": name} if folder else {})
            if name == "other_model" and (called := public_name(value.name)).startswith(FOLDER):
                changed[name] = value.model_copy(update={"name": called, "code": name})
        elif name == "maps":
            changed[name] = tuple(one if isinstance(one, PythonObject) else public_maps(one) for one in value)
        elif isinstance(value, str) and hint(name, "path") and name not in changed:
            changed[name] = _last(value) if "/" in value or "\\" in value or Path(value).exists() else value
    return spec.model_copy(update=changed)


def public_maps(entry: str) -> str:
    """NAME=PATH of precomputed maps, without the folders that they lie in."""
    name, _, path = entry.partition("=")
    return f"{name}={_last(path)}"


def _last(path: str) -> str:
    return Path(path).expanduser().resolve().name or "root"
