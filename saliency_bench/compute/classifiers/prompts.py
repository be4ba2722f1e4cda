"""Read the prompts of a vision-language model: templates, or texts for each class."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from saliency_bench.errors import UserError, one_line
from saliency_bench.utils.files import parse_json, read_bytes

PLACE = "{}"  # placeholder of the class name in a template
Prompts = list[str] | dict[str, list[str]]  # templates, or {class: its texts}
FORMS = (
    'templates, such as "a photo of a {}", or {label: [texts]}, or a file that contains either (a text file with one '
    "template per line, or a JSON file)"
)
TEMPLATES_NEED_LABELS = (
    "the prompts are templates, but there are no class names; pass labels=[...], or pass the texts of each class "
    'as {"label": ["text", ...]} (on the command line, as a JSON file)'
)


def read_prompts(given: Any, labels: Any = None) -> Prompts:
    """Read prompts, and return templates or the texts of each class. No model is loaded.

    Args:
        given: A template or a list of templates, each with {} in place of the class name; {label: text or texts}, where
            {} is also replaced by the label; or the name of a file: a text file with one template per line, or JSON
            with a list of templates or {label: texts}.
        labels: Class names. If they are passed, `given` may also be a list of texts without {}, one per class.

    Raises:
        UserError: `given` has none of these forms, a string is empty, or a template has no {}.
    """
    if isinstance(given, Mapping):
        return _by_class(given)
    items = [given] if isinstance(given, str | PathLike) else list(given) if isinstance(given, Iterable) else None
    if items is None:
        raise UserError(f"prompts must be {FORMS}; got {one_line(repr(given), 80)}")
    if len(items) == 1 and isinstance(items[0], str | PathLike) and PLACE not in str(items[0]) and str(items[0]):
        return _read_file(Path(items[0]).expanduser())
    are_texts = len(items) > 1 and all(isinstance(item, str) and PLACE not in item for item in items)
    if labels is not None and are_texts:
        if len(names := _checked_labels(labels)) != len(items):
            raise UserError(
                f"there are {len(items)} prompts without {PLACE} but {len(names)} labels; pass one text per label, "
                f'or templates with {PLACE} where the class name goes, as in "a photo of a {PLACE}"'
            )
        return _by_class(dict(zip(names, items, strict=True)))
    return _templates(items, "prompts")


def texts_of(prompts: Prompts, labels: Sequence[str] | None) -> dict[str, list[str]]:
    """Return the texts of each label, in the order of the labels.

    Args:
        prompts: Result of `read_prompts`.
        labels: Class names; None to use the names in the prompts.

    Raises:
        UserError: There are no labels, two labels are equal, or the labels differ from the names in the prompts.
    """
    if labels is None and isinstance(prompts, list):
        raise UserError(TEMPLATES_NEED_LABELS)
    names = list(prompts) if labels is None else _checked_labels(labels)
    if isinstance(prompts, list):
        return {name: [template.replace(PLACE, name) for template in prompts] for name in names}
    alone = [(name, "labels", "prompts") for name in names if name not in prompts]
    alone += [(name, "prompts", "labels") for name in prompts if name not in names]
    for name, here, there in alone:
        raise UserError(f"'{name}' is in the {here} but not in the {there}; name the same classes in both")
    return {name: [text.replace(PLACE, name) for text in prompts[name]] for name in names}


def _checked_labels(labels: Any) -> list[str]:
    """Check that class names are distinct, non-empty strings, and return them; otherwise raise UserError."""
    names = list(labels) if isinstance(labels, Iterable) and not isinstance(labels, str) else [labels]
    if isinstance(labels, str) or not all(isinstance(name, str) for name in names):
        raise UserError(f"labels must be a list of class names; got {one_line(repr(labels), 80)}")
    if not names:
        raise UserError("labels is empty; pass the name of each class")
    if not all(name.strip() for name in names):
        raise UserError("a label is empty; pass the name of each class")
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise UserError(f"the label '{name}' occurs {count} times; name each class once")
    return [str(name) for name in names]


def _templates(items: Sequence[Any], where: str) -> list[str]:
    """Check that each template is a string with {}, and return the templates; otherwise raise UserError."""
    if not items:
        raise UserError(f"{where} is empty; pass {FORMS}")
    for item in items:
        if callable(item):
            raise UserError(
                f'{where} contains a function, but templates must be strings; for a function f, pass f("{PLACE}")'
            )
        if not isinstance(item, str) or PLACE not in item:
            raise UserError(
                f"{where} contains {one_line(repr(item), 80)}, which is not a template; write {PLACE} where the class "
                "name "
                'goes, as in "a photo of a {}"'
            )
    return [str(item) for item in items]


def _by_class(given: Mapping) -> dict[str, list[str]]:
    """Return the texts of each class, or raise UserError if a class has none."""
    if not given:
        raise UserError(f"prompts is empty; pass {FORMS}")
    texts = {label: [value] if isinstance(value, str) else value for label, value in given.items()}
    for label, of_label in texts.items():
        is_list = isinstance(of_label, Sequence) and all(isinstance(text, str) and text.strip() for text in of_label)
        if not is_list or not of_label:
            raise UserError(
                f"the prompts of {one_line(repr(label), 80)} must be a string or a list of strings; got "
                f"{one_line(repr(given[label]), 80)}"
            )
    return dict(zip(_checked_labels(list(texts)), map(list, texts.values()), strict=True))


def _read_file(path: Path) -> Prompts:
    """Return the prompts in a file, or raise UserError if the file is missing or contains no prompts."""
    if not path.is_file():
        raise UserError(
            f"'{path}' contains no {PLACE}, so it was taken for the name of a prompt file, but no such file exists; "
            f'in a template, write {PLACE} where the class name goes, as in "a photo of a {PLACE}"'
        )
    try:
        text = read_bytes(path).decode("utf-8-sig")
        content = parse_json(text, unique=True) if path.suffix.lower() == ".json" else None
    except (OSError, ValueError) as error:
        raise UserError(f"the prompts in {path} cannot be read: {one_line(error)}") from error
    if isinstance(content, dict):
        return _by_class(content)
    lines = content if isinstance(content, list) else [line.strip() for line in text.splitlines() if line.strip()]
    return _templates(lines, f"the file {path}")
