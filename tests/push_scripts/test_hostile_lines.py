"""Tests of hostile command lines: they end soon with one line and no partial files (see benchmarks/hostile.py)."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # child processes import from this folder as well

from hostile import typed
from hostile_lines import lines

from saliency_bench import registry


@pytest.mark.thorough
def test_hostile_command_lines_end_with_one_line(tmp_path):
    shown = []
    found = typed(60, tmp_path, shown=shown.append)
    assert shown == []
    assert found["exit code 2"] >= 30


def test_every_command_is_covered():
    commands = set(registry.names("push_scripts"))
    seen = [line[0] for line, _ in zip(lines(["file.txt"]), range(100), strict=False)]
    assert set(seen) >= commands
