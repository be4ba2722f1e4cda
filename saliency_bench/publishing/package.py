"""Bundle this package for Spaces: its files, a wheel, and its requirements, which are pinned to the installed versions.

While `saliency-bench` is not released on PyPI, anyone could register this name there and run code in every Space that
installs the package by name. A Space therefore installs this wheel from its own repository and checks its hash.
"""

import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha256
from importlib.metadata import Distribution, PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import saliency_bench
from saliency_bench import registry
from saliency_bench.errors import UserError
from saliency_bench.utils.stand_ins import COMPUTING

CORE = Path(saliency_bench.__file__).parent
NAME = "saliency-bench"
TEXTS = (".py", ".j2", ".css", ".html", ".js", ".json", ".md", ".txt", ".yaml", ".typed")
TORCH = ("torch", "torchvision")
CPU = "--extra-index-url https://download.pytorch.org/whl/cpu"  # a Space without a GPU needs no CUDA libraries
HUB = "https://huggingface.co"
WHEEL = b"Wheel-Version: 1.0\nGenerator: saliency-bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def package_files() -> dict[str, Path]:
    """Return {path below site-packages: file} for the package and its plugins, laid out as in an installation."""
    roots = {"saliency_bench": [CORE]}
    roots |= {f"saliency_bench/{kind}": registry.folders(kind) for kind in registry.KINDS}
    return {
        f"{place}/{path.relative_to(root).as_posix()}": path
        for place, folders in roots.items()
        for root in folders
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.suffix in TEXTS and "__pycache__" not in path.parts
    }


@cache
def wheel() -> tuple[str, bytes]:
    """Return the name and the content of the package's wheel. The same files always produce the same bytes.

    The wheel is not made by the tool `build`, because an installation contains neither the sources nor the tools that
    `build` needs.
    """
    release = saliency_bench.__version__
    about = f"saliency_bench-{release}.dist-info"
    files = {path: file.read_bytes() for path, file in package_files().items()}
    installed = _installed()
    files[f"{about}/METADATA"] = (installed.read_text("METADATA") or installed.read_text("PKG-INFO") or "").encode()
    files[f"{about}/WHEEL"] = WHEEL
    files[f"{about}/entry_points.txt"] = (installed.read_text("entry_points.txt") or "").encode()
    lines = [f"{path},sha256={_digest(content)},{len(content)}" for path, content in files.items()]
    files[f"{about}/RECORD"] = "\n".join([*lines, f"{about}/RECORD,,", ""]).encode()
    buffer = BytesIO()
    with ZipFile(buffer, "w", ZIP_DEFLATED) as packed:
        for path, content in files.items():
            packed.writestr(
                ZipInfo(path), content, ZIP_DEFLATED
            )  # the fixed default date (1980) makes the bytes reproducible
    return f"saliency_bench-{release}-py3-none-any.whl", buffer.getvalue()


def _digest(content: bytes) -> str:
    return urlsafe_b64encode(sha256(content).digest()).rstrip(b"=").decode()


def _installed() -> Distribution:
    """Return the metadata of the installed package. Raise UserError if it is not installed."""
    try:
        return Distribution.from_name(NAME)
    except PackageNotFoundError as error:
        raise UserError(f"{NAME} is not installed, so its requirements are unknown; run `pip install -e .`") from error


def with_wheel(requirements: str, repo: str) -> tuple[str, dict[str, bytes]]:
    """Return requirements that install this package from a Space, and the files that the Space must contain.

    Args:
        requirements: Requirements, one per line, which may include this package.
        repo: Id of the Space.
    """
    lines = requirements.splitlines()
    ours = [line for line in lines if re.fullmatch(rf"{NAME}(\[[\w,-]+\])?", line.strip())]
    if not ours:
        return pinned(lines), {}
    name, content = wheel()
    address = f"{HUB}/spaces/{repo}/resolve/main/{name}#sha256={sha256(content).hexdigest()}"
    needed = [line for line in lines if line not in ours] + plain_requirements()
    return pinned([*needed, *(f"{line.strip()} @ {address}" for line in ours)]), {name: content}


def plain_requirements(extras: Sequence[str] = ()) -> list[str]:
    """Return the requirements of this package and of these extras."""
    needed = _installed().requires or []
    wanted = [f'extra == "{name}"' for name in extras]
    return [line for line in needed if "extra ==" not in line] + [
        line.partition(";")[0].strip() for line in needed if any(marker in line for marker in wanted)
    ]


def read_requirements(extras: Sequence[str] = ()) -> list[str]:
    """Return the requirements of these extras and those for reading results without running networks."""
    named = {line: re.match(r"[\w.-]+", line) for line in plain_requirements(extras)}
    return [line for line, name in named.items() if name is None or name[0] not in COMPUTING]


def pinned(requirements: Iterable[str]) -> str:
    """Return requirements.txt with the installed versions and the CPU build of torch.

    The requirement of a library that is not installed keeps its version bounds.
    """
    lines = dict.fromkeys(map(_pinned, requirements))
    return "\n".join([*([CPU] if any(line.startswith(TORCH) for line in lines) else []), *lines]) + "\n"


def _pinned(requirement: str) -> str:
    """Pin a requirement to the installed version, as in "gradio[oauth]==6.31.0"."""
    match = re.match(r"[A-Za-z0-9._-]+(\[[\w,-]+\])?", requirement)
    if match is None or "@" in requirement:
        return requirement
    name = match[0].partition("[")[0]
    try:
        release = version(name).partition("+")[0]
    except PackageNotFoundError:
        return requirement
    return f"{match[0]}=={release}" + ("+cpu" if name in TORCH else "")
