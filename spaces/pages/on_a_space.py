"""Serve a study on a Space. Environment variables define the command line.

STUDY_DATASET   annotate: the dataset; other studies: location of the run's dataset, if it has moved
STUDY_RUN       assess, peekaboom: OWNER/NAME of a dataset repository that contains the folder of a run
STUDY_REPO      OWNER/NAME of the private dataset repository for the answers
STUDY_STORE     instead of STUDY_REPO: the URL of a PostgreSQL database
STUDY_OPTIONS   additional options of the command, such as --annotators 5
"""

import os
import shlex
import sys
from collections.abc import Mapping

from saliency_bench.errors import UserError
from saliency_bench.utils.messages import show

PORT = "7860"  # port that Spaces use; other hosts can set the variable PORT


def main(kind: str) -> None:
    """Serve a study. If a variable is missing, exit with status 2 and a message that the Space displays."""
    from saliency_bench.cli import main as command

    try:
        line = command_line(kind, os.environ)
    except UserError as error:
        show(f"error: {error}")
        sys.exit(2)
    sys.exit(command(line))


def command_line(kind: str, variables: Mapping[str, str]) -> list[str]:
    """Return the arguments with which `saliency-bench` is called.

    Raises:
        UserError: A variable is missing or invalid.
    """
    given = {name: value.strip() for name, value in variables.items() if name.startswith("STUDY_") and value.strip()}
    if kind == "annotate":
        line = [kind, "--dataset", _needed(given, "STUDY_DATASET", "the dataset to annotate, as OWNER/NAME")]
    else:
        run = _needed(given, "STUDY_RUN", "a dataset repository with the folder of a run, as OWNER/NAME")
        line = [kind, "serve", f"hub:{run.removeprefix('hub:')}"]
        line += ["--dataset", given["STUDY_DATASET"]] if "STUDY_DATASET" in given else []
    if "STUDY_STORE" in given:
        line += ["--store", given["STUDY_STORE"]]
    else:
        answers = "a private dataset repository for the answers, as OWNER/NAME (a restart erases the disk of a Space)"
        line += ["--store", f"{kind}.db", "--sync", _needed(given, "STUDY_REPO", answers)]
    try:
        options = shlex.split(given.get("STUDY_OPTIONS", ""))
    except ValueError as error:
        raise UserError(f"STUDY_OPTIONS cannot be parsed as command-line options: {error}") from error
    return [*line, "--host", "0.0.0.0", "--port", variables.get("PORT", PORT), *options]


def _needed(given: Mapping[str, str], name: str, meaning: str) -> str:
    if name not in given:
        raise UserError(f"set the variable {name} in the settings of this Space: {meaning}")
    return given[name]
