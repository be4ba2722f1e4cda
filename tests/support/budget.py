"""Count the lines of tests for each line of package code."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "saliency_bench", "explainers", "metrics", "hub_builders", "push_scripts", "spaces"


def counted():
    """Return (lines of tests, lines of package code)."""
    return lines_of("tests"), lines_of(*PACKAGE)


def most():
    """Return the limit that CONTRIBUTING.md states."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return float(re.search(r"more\s+than\s+(\d\.\d+)\s+lines\s+of\s+tests", text)[1])


def lines_of(*folders):
    files = (file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    return sum(file.read_bytes().count(b"\n") for file in files)


def sentence(tests, package):
    ratio = f"{tests / package:.3f} for each of {package:,} lines of package code"
    return f"{tests:,} lines of tests, {ratio}; {int(most() * package):,} are allowed"
