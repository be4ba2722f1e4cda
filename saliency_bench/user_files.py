"""Functions in the user's own files, given in place of a name: `./mine.py:my_method`, `./mine.py:my_method:sigma=3`.

The file can import files in its own folder, as if it were run with `python mine.py`. Only strings in the user's own
commands, calls and suites can refer to such files, never strings from result files or submissions.
"""

import ast
import re
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from saliency_bench import options
from saliency_bench.errors import UserError, described, no_exit, unknown

WRITTEN = re.compile(r"(?P<file>.+\.py)(?::(?P<function>[^:]*)(?::(?P<options>.*))?)?", re.DOTALL)


def is_in_file(text: str) -> bool:
    """Return whether a string has the form FILE.py or FILE.py:FUNCTION, and is therefore not a registered name."""
    return WRITTEN.fullmatch(text) is not None


def check(text: str) -> None:
    """Check that the file and the function that a string refers to exist. Nothing is imported.

    Raises:
        UserError: The file or the function does not exist.
    """
    path, name, _ = _parts(text)
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except OSError as error:
        why = f"{path} cannot be read ({error.strerror})"
        raise UserError(f"{why}; write your own function as FILE.py:FUNCTION") from error
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{path} cannot be imported: {described(error)}") from error
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    if not name:
        raise UserError(
            f"{path} is a file; name the function in it: {path}:{functions[0] if functions else 'FUNCTION'}"
        )
    # Assigned or imported names may be functions too.
    if name not in functions and not re.search(rf"\b{re.escape(name)}\b", ast.unparse(tree)):
        raise unknown("function", name, functions, owner=str(path))


def function_of(text: str) -> tuple[Callable[..., Any], dict[str, object]]:
    """Return (function, options) for a string such as "FILE.py:FUNCTION:option=value".

    Raises:
        UserError: The file cannot be imported or does not contain the function.
    """
    check(text)
    path, name, _ = _parts(text)
    function = getattr(_imported(path.resolve()), name, None)
    if not callable(function):
        raise UserError(f"{name} of {path} is not a function")
    return function, options_of(text)


def options_of(text: str) -> dict[str, object]:
    """Return the options in a string. Nothing is imported."""
    _, name, written = _parts(text)
    return options.parse(f"{name}:{written}")[1]


def without_options(text: str) -> str:
    """Remove the options from a string, so that only the file and the function remain."""
    match = WRITTEN.fullmatch(text)
    assert match is not None, text
    return f"{match['file']}:{match['function'] or ''}"


def _parts(text: str) -> tuple[Path, str, str]:
    """Split a string into (file, function, options). Missing parts are ""."""
    match = WRITTEN.fullmatch(text)
    assert match is not None, text
    return Path(match["file"]).expanduser(), (match["function"] or "").strip(), match["options"] or ""


def _imported(path: Path) -> ModuleType:
    """Import a file, unless it has already been imported, and return the module.

    Raises:
        UserError: The file raises an error, or a different module has the same name.
    """
    name = path.stem
    if (known := sys.modules.get(name)) is not None:
        if (file := getattr(known, "__file__", None)) is None or Path(file).resolve() != path:
            raise UserError(
                f"{path.name} has the same name as the module {name}, which is already imported; rename the file"
            )
        return known
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # for imports in the file, now or later
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # required for pickling and hashing of its functions
    try:
        with no_exit():
            spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"{path} cannot be imported: {described(error)}") from error
    return module
