"""What datasets, models and commands are called in public, without the folders of the machine they lie on."""

import re
import shlex
from pathlib import Path

from saliency_bench.spec import RunSpec, flag, hint

PATHS = tuple(flag(name) for name in RunSpec.model_fields if hint(name, "path"))  # may be a file or folder


def public_name(name: str, local: bool | None = None) -> str:
    """What a dataset or model is called in public: of a folder of this machine, its own name without the way to it.

    local: whether it is one; None: if there is one, or it cannot be an id of the Hub.
    """
    if re.fullmatch(r"(torchvision|module):.*", name):
        return name
    if local is None:
        local = Path(name).expanduser().exists() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name)
    return Path(name).expanduser().resolve().name if local else name


def public_label(name: str) -> bool:
    """Whether this can be the name of a submitter or of a method."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name) is not None


def public_command(command: str, named: dict[str, str]) -> str:
    """The command of a run without the folders of the machine it ran on. `named`: {option: what it names in public}."""
    if not command.startswith("saliency-bench "):
        return command
    words = shlex.split(command)
    for place, word in enumerate(words):
        if words[place - 1] in named:
            words[place] = named[words[place - 1]]
        elif words[place - 1] in PATHS or Path(word).is_absolute():
            words[place] = Path(word).name
    return shlex.join(words)
