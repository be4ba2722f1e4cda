"""Reads the package's docstrings as Sphinx should show them: as the Google style that napoleon knows.

The source keeps `name: what it is` in running text and attributes in two columns, which a terminal shows well.
"""

import inspect
import re

from saliency_bench.spec import RunSpec

COLUMNS = re.compile(r"^([a-z_]+(?:, [a-z_]+)*) {2,}(\S.*)$")

GOOGLE = ("Args:", "Returns:", "Raises:", "Attributes:", "Example:", "Note:")


def google_style(app, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """The handler of `autodoc-process-docstring`: rewrites `lines` in place."""
    names = parameters(obj)
    paragraphs = [part.split("\n") for part in re.split(r"\n\s*\n", "\n".join(lines))]
    lines[:] = [line for part in paragraphs for line in [*rewritten(part, names), ""]]


def parameters(obj: object) -> set[str]:
    """The names of a callable's parameters, and of the settings of a run where it takes any."""
    try:
        signature = inspect.signature(obj) if callable(obj) else None
    except (TypeError, ValueError):
        return set()
    names = set(signature.parameters) if signature else set()
    return names | set(RunSpec.model_fields) if "settings" in names or "dataset" in names else names


def rewritten(paragraph: list[str], names: set[str]) -> list[str]:
    if any(COLUMNS.match(line.strip()) for line in paragraph):
        return attributes(paragraph)
    if paragraph[0].strip() in GOOGLE:
        return paragraph
    if all(line.startswith("    ") for line in paragraph):
        return [".. code-block:: python", "", *paragraph]
    text = "\n".join(line.strip() for line in paragraph).replace("|", "\\|")
    text = re.sub(r'"(\S+@\S+)"', r"`\1`", text)  # no address of a person
    text, _, raises = text.partition("Raises: ")
    known = "|".join(sorted(names, key=len, reverse=True)) or r"\b\B"
    # A parameter begins a line or a sentence; what begins a line after the last one's full stop is about all.
    first, *rest = re.split(rf"(?:^|(?<=\n)|(?<=[.;] ))((?:{known})(?:, (?:{known}))*): ", text)
    found = [first] if first.strip() else []
    if rest:
        rest[-1], *further = re.split(r"(?<=\.)\n(?=[A-Z`])", rest[-1], maxsplit=1)
        described = zip(rest[::2], rest[1::2], strict=True)
        found += ["", "Args:", *(f"    {key}: {one_line(value)}" for key, value in described), "", *further]
    if raises:
        kind, _, when = raises.partition(" for ")
        found += ["", "Raises:", f"    saliency_bench.errors.{kind.strip()}: for {one_line(when)}"]
    return "\n".join(found).split("\n")


def attributes(paragraph: list[str]) -> list[str]:
    found = ["Attributes:"]
    for line in paragraph:
        match = COLUMNS.match(line.strip())
        if match:
            found += [f"    {name}: {match[2]}" for name in match[1].split(", ")]
        else:
            found[-1] += " " + line.strip()
    return found


def one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(";")
