"""Dataset names: list known names, and resolve a name, a folder or a Hub id."""

from collections.abc import Iterable
from pathlib import Path

from saliency_bench import registry
from saliency_bench.errors import UserError, unknown
from saliency_bench.utils.files import near_folders

NAMESPACE = "saliency-bench"
SPLITS = ("train", "validation", "test")
# {name of a folder or file: name of the split}
SPLIT_OF = {"train": "train", "training": "train", "validation": "validation", "valid": "validation",
            "val": "validation", "dev": "validation", "test": "test", "testing": "test"}  # fmt: skip


def list_datasets() -> list[str]:
    """Return the names of the datasets that can be built and loaded, excluding the layouts of your own data."""
    return [name for name, path in registry.files("hub_builders").items() if not _is_layout(path)]


def _is_layout(path: Path) -> bool:
    """Return whether a builder is for your own data (`OWN_DATA`), without importing it."""
    return registry.constant(path, "OWN_DATA") is not None


def short_name(name: str | Path) -> str:
    """Remove this project's namespace from the name of a known dataset. Other names are returned unchanged."""
    text = str(name).removeprefix(f"{NAMESPACE}/")
    return text if text in list_datasets() else str(name)


def unknown_dataset(name: str) -> UserError:
    """Return the error for a name that is neither a dataset nor a folder. It suggests similar names."""
    error = unknown("dataset", name, [*list_datasets(), *near_folders(Path(name))], registry.aliases("hub_builders"))
    return error if str(error).endswith("?") else UserError(f"{error}; there is no folder with this name either")


def repo_of(name: str) -> str:
    """Return the repository on the Hub that a name refers to."""
    return name if "/" in name or "\\" in name else f"{NAMESPACE}/{name}"


def is_embedded(name: str) -> bool:
    """Return whether the package itself generates the dataset, so that no source is needed."""
    return name in list_datasets() and getattr(registry.load("hub_builders", name), "EMBEDDED", False)


def alternative_to(repo: str) -> str:
    """Return the last part of an error message, which explains how to get a dataset if the Hub cannot be used."""
    namespace, _, name = repo.partition("/")
    if namespace == NAMESPACE and name in list_datasets():
        return f"build it with `saliency-bench build {name} --source DIR --out DIR` and use that folder"
    known = f"; known names: {', '.join(list_datasets())}" if namespace == NAMESPACE else ""
    if near := near_folders(Path(repo)):
        return f"did you mean the folder {' or '.join(near)}?"
    return f"check the name, or use a folder{known}"


def same_split(split: str, known: Iterable[str]) -> str | None:
    """Return the known split that is a synonym of `split`, such as "val" for "validation". A slice is kept.

    Return None unless there is exactly one synonym.
    """
    whole, bracket, rest = split.partition("[")
    wanted = SPLIT_OF.get(whole.lower(), whole.lower())
    matching = [name for name in known if SPLIT_OF.get(name.lower(), name.lower()) == wanted]
    return matching[0] + bracket + rest if len(matching) == 1 else None
