"""Conversion of the package's docstrings for Sphinx: indented paragraphs outside of sections become code blocks."""

import re

SECTIONS = ("Args:", "Returns:", "Raises:", "Attributes:", "Example:", "Note:", "Yields:")


def google_style(app, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Rewrite the docstring `lines` in place, as a handler of `autodoc-process-docstring`."""
    paragraphs = [part.split("\n") for part in re.split(r"\n\s*\n", "\n".join(lines))]
    shown, section = [], ""
    for paragraph in paragraphs:
        if not paragraph[0].startswith(" "):
            section = paragraph[0].strip()
        shown += [*rewritten(paragraph, section in SECTIONS), ""]
    lines[:] = shown


def rewritten(paragraph: list[str], in_section: bool) -> list[str]:
    if in_section:
        return paragraph
    if all(line.startswith("    ") for line in paragraph):
        return [".. code-block:: python", "", *paragraph]
    # Prevent mail links and reStructuredText substitutions.
    return [re.sub(r'"(\S+@\S+)"', r"`\1`", line).replace("|", "\\|") for line in paragraph]
