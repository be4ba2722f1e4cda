"""Count the lines of tests for each line of product."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = "saliency_bench", "explainers", "metrics", "hub_builders", "push_scripts", "spaces"


def counted():
    """Return (lines of tests, lines of product)."""
    return lines_of("tests"), lines_of(*PRODUCT)


def lines_of(*folders):
    files = (file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    return sum(file.read_bytes().count(b"\n") for file in files)


def sentence(tests, product):
    return f"{tests:,} lines of tests, {tests / product:.2f} for each of {product:,} lines of product"
