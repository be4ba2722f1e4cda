"""Match the classes of a dataset to the classes of a model."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from saliency_bench.errors import UserError, one_line, unknown
from saliency_bench.utils.files import parse_json, read_bytes

DIGITS = 18  # maximum number of digits of a class number, because Python refuses to parse thousands of digits
Members = list[list[int]]  # matching model classes for each dataset class


def match(
    dataset: list[str],
    model: list[str] | None,
    classes: int,
    label_map: dict | str | Path | None,
    one_each: bool = True,
) -> Members:
    """Match classes by name, by number if the model has no class names, or by a label map.

    When names are compared, case is ignored, and underscores, dashes and repeated spaces count as one space.

    For a model with the classes "not square" and "square", such as a model with a single logit, all other classes match
    "not square".

    Args:
        dataset: Class names of the dataset.
        model: Class names of the model.
        classes: Number of the model's classes.
        label_map: {dataset class: model class or list of model classes}, or a JSON file with this content. The target
            of a dataset class with several model classes is the sum of their logits. A class that the model lacks is
            mapped to null or []. A class that the model has under the same name needs no entry if all names in the map
            are classes of the dataset.
        one_each: Whether each image has one class. If images may have several classes, another class does not imply
            "not square".

    Returns:
        The model's classes for each class of the dataset.

    Raises:
        UserError: The model lacks a class.
    """
    against = _against(model) if one_each else None
    if label_map is not None:
        return _mapped(dataset, model, classes, _read(label_map), against)
    if model is None or is_unnamed(model):
        if classes == len(dataset):
            return [[index] for index in range(classes)]
        raise _no_match(dataset, f"the model has {classes} classes without names")
    places = [[index for index, candidate in enumerate(model) if _plain(candidate) == _plain(name)] for name in dataset]
    if against is not None and [1 - against] in places:
        places = [indices or [against] for indices in places]
    if missing := [name for name, indices in zip(dataset, places, strict=True) if not indices]:
        raise _no_match(missing, f"the model has {', '.join(model[:4])}{' ...' * (len(model) > 4)}")
    if twice := [name for name, indices in zip(dataset, places, strict=True) if len(indices) > 1]:
        raise UserError(f"the model has several classes called {twice[0]}; use the class number in --label-map FILE")
    return places


def same_classes(first: list[str] | None, count: int, second: list[str] | None, classes: int, name: str) -> list[int]:
    """Match each class of the first model to a class of the second: by name, or by number if a model has no names.

    Args:
        first: Class names of the first model.
        count: Number of the first model's classes.
        second: Class names of the second model.
        classes: Number of the second model's classes.
        name: Name of the first model in messages.

    Raises:
        UserError: The second model lacks a class.
    """
    if first is None or second is None or is_unnamed(first) or is_unnamed(second):
        if count != classes:
            raise UserError(f"{name} has {count} classes and the model {classes}, and there are no class names to "
                            "match them by; use two models with the same classes")  # fmt: skip
        return list(range(count))
    places = {_plain(label): index for index, label in enumerate(second)}
    if missing := [label for label in first if _plain(label) not in places]:
        raise UserError(
            f"the model lacks {len(missing)} of the {count} classes of {name}, such as {missing[0]}; use two models "
            "with the same classes"
        )
    return [places[_plain(label)] for label in first]


def is_unnamed(labels: Sequence[str]) -> bool:
    """Return whether class names are LABEL_0, LABEL_1, ..., as in a checkpoint without names."""
    return all(name == f"LABEL_{index}" for index, name in enumerate(labels))


def _against(model: list[str] | None) -> int | None:
    """Return the class of a two-class model that is named "not" plus the other class's name, or None."""
    names = list(map(_plain, model or []))
    if len(names) != 2:
        return None
    return next((index for index in (0, 1) if names[index] == f"not {names[1 - index]}"), None)


def _mapped(dataset: list[str], model: list[str] | None, classes: int, label_map: dict, against: int | None) -> Members:
    """Apply a label map: return the model's classes for each class of the dataset. `against` comes from `_against`."""
    called = Counter(map(_plain, model or []))
    # A name that the dataset lacks may be the misspelled name of a class without an entry.
    fills = set(label_map) <= set(dataset)
    known = {name: name for name in dataset if fills and called[_plain(name)] == 1} | label_map
    if fills and against is not None:
        known = dict.fromkeys(dataset, against) | known
        if not any(index_of(member, model, classes) != against for name in known for member in _list(known[name])):
            raise UserError(
                f"the label map maps no class to {(model or [])[1 - against]}, which is class {1 - against} (class "
                f"{against} is {(model or [])[against]}); map at least one class to class {1 - against}"
            )
    if not set(dataset) & set(label_map) or set(dataset) - set(known):
        missing = [name for name in dataset if name not in known] or dataset
        raise UserError(
            f"the label map has no entry for {', '.join(missing[:3])}; add an entry for each class of the dataset"
        )
    named = {name: _list(known.get(name)) for name in dataset}
    if not any(named.values()):
        raise UserError(f"the label map names no class for {dataset[0]} or any other class; map at least one of them")
    members = [[index_of(member, model, classes) for member in named[name]] for name in dataset]
    for name, places in zip(dataset, members, strict=True):
        if len(places) > len(set(places)):  # the logit would count twice
            raise UserError(
                f"the label map maps {name} to class {Counter(places).most_common(1)[0][0]} more than once; list each "
                "class once"
            )
    return members


def index_of(member: str | int, model: list[str] | None, classes: int) -> int:
    """Return the number of a model's class, given its name or, if no class has this name, its number.

    If no class has exactly this name, `member` may be one of the names in a class name such as "sports car, sport car".
    """
    text = str(member).strip()
    named = [index for index, name in enumerate(model or []) if _plain(name) == _plain(text)] or [
        index for index, name in enumerate(model or []) if _plain(text) in map(_plain, name.split(","))
    ]
    if len(named) > 1:
        raise UserError(
            f"the model has several classes called {text}: {', '.join(map(str, named))}; use the class number"
        )
    if named:
        return named[0]
    if text.isdecimal() and len(text) <= DIGITS and int(text) < classes:
        return int(text)
    raise unknown("class of the model", one_line(text, 100), model or [f"0 to {classes - 1}"])


def _read(label_map: dict | str | Path) -> dict:
    if isinstance(label_map, dict):
        return label_map
    try:
        content = parse_json(read_bytes(Path(label_map)), unique=True)
    except (OSError, ValueError) as error:  # includes text that is not UTF-8
        raise UserError(f"the label map {label_map} cannot be read as JSON: {one_line(error)}") from error
    if not isinstance(content, dict):
        raise UserError(f"the label map {label_map} must be a JSON object {{dataset class: model class or a list}}")
    return content


def _no_match(names: list[str], why: str) -> UserError:
    """Return the error about classes of the dataset that the model does not have."""
    first = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
    return UserError(
        f"the model does not have the dataset's classes ({first}): {why}; "
        "use --label-map FILE, a JSON object {dataset class: model class}, or train a model on the dataset"
    )


def _plain(name: str) -> str:
    """Normalise a class name for matching: lower case, and one space for each run of spaces, dashes and underscores."""
    return " ".join(name.lower().replace("_", " ").replace("-", " ").split())


def _list(value: object) -> list:
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
