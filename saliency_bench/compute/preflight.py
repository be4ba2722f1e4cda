"""Check settings that are strings (names, files and folders) before anything is loaded.

A setting that passes these checks may still have wrong content, such as a class that the model does not have. The code
that reads the content reports such errors.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from saliency_bench import options, registry, user_files
from saliency_bench.compute.classifiers import own_networks
from saliency_bench.compute.classifiers.prompts import read_prompts
from saliency_bench.compute.classifiers.sources import check_name
from saliency_bench.data.dataset_names import list_datasets, short_name, unknown_dataset
from saliency_bench.errors import UserError, one_line, unknown
from saliency_bench.hub.repo_names import could_be_on_the_hub, hub_name
from saliency_bench.read import MANIFEST, has_parts
from saliency_bench.read.public_names import public_label
from saliency_bench.spec import MAP_FORMS, PREDICTED_BY, TARGETS, PythonObject, about, flag
from saliency_bench.utils.files import near_folders, parse_json, read_bytes
from saliency_bench.utils.storage import check_output_file

OTHER = ("other_model", "other_label")
DRAWINGS = ("maps", "insertion", "classes", "models", "object")
PICTURE_FORMS = (".pdf", ".svg", ".png", ".jpg", ".jpeg", ".webp")
DRAWN_FIRST = 2  # number of samples that `draw` shows by default
KINDS = {"explainers": "metrics", "metrics": "explainers"}  # {type of a name: type that it may be confused with}


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise UserError for the first setting that is certainly wrong. Python objects are not checked."""
    for kind in KINDS:
        check_items(kind, settings.get(kind))
    check_maps([entry for entry in settings.get("maps") or () if isinstance(entry, str)])
    for name, check in (("dataset", check_dataset), ("model", check_model), ("other_model", check_model),
                        ("target", check_target), ("device", check_device)):  # fmt: skip
        if settings.get(name) == "":
            raise UserError(f"{flag(name)} is empty; use {about(name)}")
        if isinstance(value := settings.get(name), str | Path):
            check(str(value))
    for name in ("label_map", "groups"):
        if isinstance(value := settings.get(name), str | Path):
            check_table(name, str(value))
    if settings.get("prompts") is not None and not isinstance(settings["prompts"], PythonObject):
        read_prompts(settings["prompts"])
    check_other(settings)


def check_other(settings: Mapping[str, Any]) -> None:
    """Raise UserError if only one of the other model and its label column is given."""
    given = [name for name in OTHER if settings.get(name) is not None]
    if len(given) == 1:
        (missing,) = set(OTHER) - set(given)
        raise UserError(f"{flag(given[0])} also needs {flag(missing)}: {about(missing)}")


def check_items(kind: str, given: Any) -> None:
    """Check the names of explainers or metrics and the names of their options. Option values are checked later."""
    items = [given] if isinstance(given, str) else given if isinstance(given, Iterable) else []
    for text in items if not isinstance(items, Mapping) else []:
        if isinstance(text, str):
            _check_item(kind, text)


def check_maps(entries: Iterable[str]) -> None:
    """Check each setting NAME=PATH for precomputed maps."""
    names = []
    for entry in entries:
        name, equals, path = entry.partition("=")
        if not (equals and path):
            raise UserError(f"'{entry}' does not name a folder of maps; write NAME=FOLDER")
        check_method_name(name)
        place = Path(path).expanduser()
        if place.exists() and not (place.is_dir() or place.is_file()):
            raise UserError(f"{path} is not a regular file or folder of maps")
        if not place.exists():
            near = " or ".join(near_folders(place))
            fix = f"did you mean {near}?" if near else f"use {MAP_FORMS}"
            raise UserError(f"there are no maps at {path}; {fix}")
        if name in names:
            raise UserError(f"two sets of maps are called {name}; use a different name for each")
        names.append(name)


def check_method_name(name: str) -> None:
    """Raise UserError if precomputed maps cannot have this name."""
    if not public_label(name):
        raise UserError(f"'{name}' cannot be the name of a method; use up to 100 letters, digits, '.', '_' and '-'")
    if name in registry.names("explainers"):
        raise UserError(
            f"{name} is the name of an explainer in saliency-bench; choose a different name for your method"
        )


def _check_item(kind: str, text: str) -> None:
    if user_files.is_in_file(text):
        return user_files.check(text)
    name, singular = text.partition(":")[0].strip(), _a(registry.KINDS[kind])
    if "," in name:
        spaced = " ".join(filter(None, text.replace(",", " ").split()))
        raise UserError(f"'{text}' is not {singular}; separate names with spaces: --{kind} {spaced}")
    if name in registry.names(kind):
        _, chosen = options.parse(text)
        if (known := registry.option_names(kind, name)) is not None:
            options.check_names(name, chosen, known)
    elif name in registry.names(other := KINDS[kind]):
        raise UserError(f"{name} is {_a(registry.KINDS[other])}, not {singular}; use it with --{other}")
    else:
        registry.check_readable(kind, name)
        raise registry.unknown_item(kind, name)


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def check_dataset(name: str) -> None:
    """Raise UserError if a string cannot be the name of a dataset."""
    path, given = Path(name).expanduser(), hub_name(name)
    if given.forced or path.is_dir() or (text := short_name(given.name)) in list_datasets():
        return
    if path.suffix.lower() == ".parquet" and not path.is_file():
        raise UserError(f"there is no file {name}; check the path")
    if path.suffix.lower() == ".parquet":
        return
    if path.is_file():
        raise UserError(f"the dataset {name} is a file; use the folder of a dataset, or a Parquet file")
    if not could_be_on_the_hub(text):
        near = " or ".join(near_folders(path))
        fix = f"did you mean {near}?" if near else "check the path"
        raise UserError(f"the dataset folder {name} does not exist; {fix}")
    if text in registry.names("hub_builders"):
        raise UserError(
            f"{text} builds a dataset from your own data; first run `saliency-bench build {text} --images DIR --out "
            "NEW`, then use --dataset NEW"
        )
    if "/" not in text:
        registry.check_readable("hub_builders", text)
        raise unknown_dataset(text)


def check_model(name: str) -> None:
    """Raise UserError if a string cannot be the name of a model."""
    if own_networks.is_own(name):
        own_networks.check(name)
        return
    if not name.startswith("torchvision:"):
        check_name(name)
        return
    from torchvision import models  # imports torch

    if (wanted := name.partition(":")[2]) not in (known := models.list_models(module=models)):
        raise unknown("torchvision model", wanted, known)


def check_start(name: str) -> None:
    """Raise UserError if training cannot start from this name, because it is neither a model nor a config.json."""
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file() and not any(folder.glob("*.safetensors")):
        raise UserError(
            f"{name} contains a config.json but no weights (*.safetensors); to start from random weights, use "
            f"{folder / 'config.json'}"
        )
    if not name.endswith(".json"):
        check_model(name)
    elif not Path(name).expanduser().is_file():
        raise UserError(f"there is no file {name}; use a config.json, a Hub id or the folder of a checkpoint")


def check_target(text: str) -> None:
    """Raise UserError if a string is not a valid target."""
    if text in TARGETS or Path(text).is_file():
        return
    if text.startswith(PREDICTED_BY):
        name = text.removeprefix(PREDICTED_BY)
        if not name:
            raise UserError(
                f"{text} names no model; write {PREDICTED_BY}MODEL, where MODEL is a model or the folder of a run"
            )
        if (Path(name).expanduser() / MANIFEST).is_file():
            return None
        own_networks.refuse_own(name, own_networks.RUN_FIRST)
        return check_model(name)
    if Path(text).is_dir() or "/" in text or Path(text).suffix:
        raise UserError(f"there is no target file {text}; use {', '.join(TARGETS)} or a CSV file")
    raise unknown("target", text, (*TARGETS, f"{PREDICTED_BY}MODEL"))


def check_device(text: str) -> None:
    """Check that the device string is well-formed. Torch checks later whether the device exists."""
    if not re.fullmatch(r"(cpu|cuda|mps)(:\d+)?", text):
        raise UserError(f"unknown device '{text}'; use cpu, cuda or cuda:N")


def check_table(name: str, text: str) -> None:
    """Raise UserError unless `text` names a readable file with a label map or groups, or a bundled label map."""
    path, option = Path(text).expanduser(), flag(name)
    if not path.is_file():
        from saliency_bench.compute.targets.known_maps import known_maps  # imports torch

        known = known_maps() if name == "label_map" else []
        hint = f"; known: {', '.join(known)}" if known else ""
        if text not in known:
            raise UserError(f"{option} {text} is not a file{hint}")
        return
    try:
        content = read_bytes(path).decode("utf-8-sig")
        if path.suffix.lower() != ".csv":
            parse_json(content, unique=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{option} {text} cannot be read: {one_line(error)}") from error


def check_writable(out: Path) -> None:
    """Raise UserError unless the folder or file `out` can be written. No files are left behind."""
    existing = next(path for path in (out, *out.absolute().parents) if path.exists() or path.is_symlink())
    if existing != out and not existing.is_dir():
        raise UserError(f"cannot write to {out}: {existing} is not a folder; choose a different --out")
    folder = existing if existing.is_dir() else existing.parent
    try:
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "no permission")
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror or error}; choose a different --out") from error


def check_empty(out: Path) -> None:
    """Raise UserError unless the folder is new or empty, and writable."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not empty; choose a different --out")
    check_writable(out)


def check_run_folder(out: Path) -> None:
    """Raise UserError unless `out` is new or the folder of a run, with a run.json or part files.

    A run that was killed right after its start leaves only files whose names begin with a dot. Such folders are
    accepted.
    """
    foreign = out.exists() and (not out.is_dir() or any(not path.name.startswith(".") for path in out.iterdir()))
    if foreign and not (out / MANIFEST).exists() and not has_parts(out):
        raise UserError(f"{out} exists and is not a run of saliency-bench; choose a different --out")
    check_writable(out)


def check_drawing(runs: Sequence[Path], drawing: str, explainers: Sequence[str] | None, out: Path | None) -> None:
    """Raise UserError for invalid arguments of `draw`, before anything is loaded."""
    if drawing not in DRAWINGS:
        raise unknown("picture", drawing, DRAWINGS)
    if out is not None and out.suffix.lower() not in PICTURE_FORMS:
        raise UserError(f"--out {out} must end in {', '.join(PICTURE_FORMS[:-1])} or {PICTURE_FORMS[-1]}")
    for run in runs:
        if not (run / "run.json").is_file():
            raise UserError(f"{run} is not the folder of a run (no run.json); use the --out of a run")
    if out is not None:
        check_output_file(out)
    check_items("explainers", explainers)
