"""Lines of tests for each line of product."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = "saliency_bench", "explainers", "metrics", "hub_builders", "push_scripts", "spaces"


def lines_of(*folders):
    files = (file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    return sum(file.read_bytes().count(b"\n") for file in files)


def tests_per_line():
    return lines_of("tests") / lines_of(*PRODUCT)


def sentence():
    product, tests = lines_of(*PRODUCT), lines_of("tests")
    return f"{tests:,} lines of tests, {tests / product:.2f} for each of {product:,} lines of product"
