"""Make a self-contained copy of a metric's folder.

The copy includes the files of saliency_bench that the `evaluate` module imports.

The copy can be stored in the cache of `evaluate` or pushed as a Space, and it can be loaded even if saliency_bench is
not installed. `evaluate` copies only files that the main script imports, so the main script imports every file of the
copy.
"""

import ast
import re
from importlib.util import find_spec
from pathlib import Path

from saliency_bench import registry
from saliency_bench.errors import UserError

OWN = "saliency_miou"  # a metric of this package; its folder is next to the folder of the Space
DECLARED = "Wrapper for `evaluate`. The metric itself is declared in score.py."  # docstring of a main script


def metric_files(name: str) -> dict[str, str]:
    """Return {file name: text} for a metric.

    Imports of the form `from saliency_bench.X import` become `from .X import`.

    Only imports at the top level of a file are rewritten. Imports inside a function of the main script work only if
    saliency_bench is installed.

    Raises:
        UserError: The metric is unknown, or has no module for evaluate.
    """
    known = registry.files("metrics")
    registry.check_readable("metrics", name)
    if name not in known:
        raise registry.unknown_item("metrics", name)
    if not has_module(name):
        raise UserError(
            f"metric {name} has no module for evaluate; write {name}.py next to its score.py, as `saliency-bench new "
            f"metric` does"
        )
    folder = known[name].parent
    texts = {
        path.name: path.read_text(encoding="utf-8")
        for path in sorted(folder.iterdir())
        if path.suffix in (".py", ".md", ".txt")
    }
    if "app.py" not in texts:  # all metrics, including those of plugins, use the same page
        app = registry.files("metrics")[OWN].parents[1] / "_app.py"
        texts["app.py"] = app.read_text(encoding="utf-8")
    needed = _needed(known[name])
    texts |= {path.name: _relative(path.read_text(encoding="utf-8")) for path in needed}
    siblings = sorted(path.stem for path in needed if path != known[name])
    # If saliency_bench is not installed, the main script cannot read the metric's declaration.
    main = texts[known[name].name].replace(DECLARED, registry.summary(registry.score_file("metrics", name)))
    return texts | {known[name].name: _importing(main, siblings)}


def has_module(name: str) -> bool:
    """Return whether a metric has a module for evaluate, which requires a folder NAME with NAME.py and score.py."""
    main = registry.files("metrics")[name]
    return main.stem == name and main.with_name("score.py").is_file()


def siblings_of(main: str) -> list[str]:
    """Return the names (without .py) of the files that the main script of a copy imports from its own folder."""
    return sorted({node.module for node in _imports(main) if node.level == 1 and node.module})


def _needed(main: Path) -> list[Path]:
    """Return the main script and all files of its folder and of the core that it imports, directly or indirectly."""
    files = [main]
    for path in files:  # the list grows during the loop
        for node in _imports(path.read_text(encoding="utf-8")):
            module = node.module or ""
            if node.level == 1:
                imported = path.parent / f"{module}.py"
            elif module.startswith("saliency_bench."):
                spec = find_spec(module)
                imported = Path(spec.origin if spec and spec.origin else module)
            else:
                continue
            if imported not in files:
                files.append(imported)
    return files


def _imports(text: str) -> list[ast.ImportFrom]:
    return [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom)]


def _relative(text: str) -> str:
    """Rewrite the imports in a script so that they refer to its own folder."""
    return re.sub(r"^from saliency_bench\.(?:\w+\.)*(\w+) import", r"from .\1 import", text, flags=re.MULTILINE)


def _importing(text: str, siblings: list[str]) -> str:
    """Insert an import of each sibling into a script, after the script's own imports.

    The import lines must not have comments, because evaluate's scanner treats a comment as the download URL of the
    file.
    """
    missing = [name for name in siblings if name not in siblings_of(text)]
    last = max(node.end_lineno or 0 for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom))
    lines = text.splitlines()
    lines[last:last] = [f"from .{name} import __name__ as _{name}" for name in missing]
    return "\n".join(lines) + "\n"
