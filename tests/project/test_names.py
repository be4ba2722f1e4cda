"""Tests that identifiers are meaningful: words that fit any value are forbidden."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("saliency_bench", "explainers", "hub_builders", "metrics", "push_scripts", "spaces")
EMPTY = {"asked", "found", "held", "of", "one", "own", "some", "still", "told", "what"}
# `sb.analyse(runs, what=...)`, `sb.draw(runs, what=...)`, and `saliency_confidence:of=entropy`
PUBLIC = {
    "saliency_bench/read/analysis/tables.py what",
    "saliency_bench/panels.py what",
    "saliency_bench/read/report/analyses.py what",
    "metrics/saliency_confidence/score.py of",
}


def names_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of every variable, parameter, function, assigned attribute and keyword argument."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


@pytest.mark.slow
def test_files_use_no_meaningless_names():
    empty = []
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        place, names = path.relative_to(ROOT).as_posix(), names_in(ast.parse(path.read_text(encoding="utf-8")))
        empty += [f"{place}:{line} {name}" for line, name in names
                  if name in EMPTY and f"{place} {name}" not in PUBLIC]  # fmt: skip
    assert empty == []


def test_names_in_finds_every_kind_of_name():
    tree = ast.parse("def own(one):\n    self.found = what = [some for some in one]")
    assert {name for _, name in names_in(tree)} >= {"own", "one", "found", "what", "some"}
