"""Read the questions and the scale of an assessment from a YAML file."""

import re
from pathlib import Path
from typing import Any

from saliency_bench.errors import UserError, one_line
from saliency_bench.utils.files import read_bytes
from saliency_bench.utils.plain_yaml import parse_yaml

DEFAULT = Path(__file__).with_name("questions.yaml")
LARGEST = 2**16  # maximum size of a file in bytes
MOST_QUESTIONS, MOST_LEVELS, LONGEST = 6, 9, 200
CLASS = "{class}"
ABOUT = ("image_id", "explainer", "person", "place", "seconds", "created")  # columns of ratings that are not questions
TAKEN = (*ABOUT, "question", "rating")  # not allowed as ids of questions, because exports have columns with these names


def read_questions(path: str | Path | None = None) -> dict[str, Any]:
    """Read {"scale": [text, ...], "questions": {id: text}} from a file. The scale is sorted from worst to best.

    If `path` is None, the default questions are returned.

    Raises:
        UserError: The file does not contain 2 to 9 levels and 1 to 6 questions, one of these is not a string, or a
            question occurs twice.
    """
    path = DEFAULT if path is None else Path(path)
    try:
        content = parse_yaml(read_bytes(path, LARGEST))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as YAML: {one_line(error)}") from error
    if not isinstance(content, dict) or content.keys() != {"scale", "questions"}:
        raise UserError(f"{path} must contain only scale (a list) and questions (a mapping from ids to texts)")
    scale, questions = content["scale"], content["questions"]
    if not isinstance(scale, list) or not 2 <= len(scale) <= MOST_LEVELS or not all(map(_is_text, scale)):
        raise UserError(f"{path}: scale must be a list of 2 to {MOST_LEVELS} strings; put yes and no in quotes")
    if len(set(scale)) < len(scale):
        raise UserError(f"{path}: the levels of scale must all be different")
    if not isinstance(questions, dict) or not 1 <= len(questions) <= MOST_QUESTIONS:
        raise UserError(f"{path}: questions must contain 1 to {MOST_QUESTIONS} ids, each with a text")
    for name, text in questions.items():
        if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]{0,30}", name) or not _is_text(text):
            raise UserError(
                f"{path}: question {one_line(name, 40)} must have a text, and an id that consists of a-z, 0-9 and _"
            )
        if name in TAKEN:
            raise UserError(
                f"{path}: a question cannot be called {name}, because a column of the results has this name; rename it"
            )
    return {"scale": scale, "questions": questions}


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and len(value) <= LONGEST and value.isprintable()
