"""Measure the strength of the tests: change random positions in the code, one at a time, and run the tests.

example:
  pytest -n 2 --cov --cov-context=test && python benchmarks/mutants.py --count 300
  python benchmarks/mutants.py --folders saliency_bench/board --count 60 --table board.csv

A mutant is the code with one changed operator, comparison, constant or condition, in a line that tests execute. The
tests that execute the line (according to `.coverage`) are run, most specific first, until one fails. A mutant that no
test detects survives and is printed. Mutants are drawn with a seed from the files in `--folders` of this checkout.
Coverage does not include tests that run the package in another process, so the true share of detected mutants is
higher. The exit code is 0.

With `--table`, all tests that execute a mutant are run, and each failing test is a row of the table; a surviving mutant
has one row without a test. `--again` repeats the mutants in such a table with other tests. Their coverage must be
measured first.
"""

import argparse
import ast
import csv
import os
import random
import shutil
import sys
import time
from collections import Counter
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from coverage import CoverageData

ROOT = Path(__file__).parents[1]
FOLDERS = ("saliency_bench/compute/scoring", "saliency_bench/read", "explainers", "metrics")
PLUGINS = ("explainers", "metrics", "hub_builders", "model_cards", "push_scripts", "spaces", "suites")
COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
OPERATORS = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}
MOST_TESTS = 150  # maximum number of tests per mutant
SECONDS = 300  # a mutant that does not end within this many seconds counts as detected
IMPORTED = ["torch", "datasets", "transformers", "evaluate", "pytest", "hypothesis", "scipy.stats"]


def mutations(source: str) -> list[tuple[int, int, int, str]]:
    """Yield (line, first column, last column, new text) of every possible change. Columns are counted in bytes."""
    places = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS and len(node.ops) == 1:
            places.append((node.left, node.comparators[0], COMPARISONS[type(node.ops[0])]))
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            places.append((node.left, node.right, OPERATORS[type(node.op)]))
        elif isinstance(node, ast.BoolOp) and len(node.values) == 2:
            places.append((*node.values, "or" if isinstance(node.op, ast.And) else "and"))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            places.append((node, node.operand, ""))
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            new = repr(not node.value) if type(node.value) is bool else repr(node.value + 1)
            places.append((node, None, new))
    changes = []
    for left, right, text in places:
        if right is None:
            begin, end = (left.lineno, left.col_offset), (left.end_lineno, left.end_col_offset)
        elif isinstance(left, ast.UnaryOp):
            begin, end = (left.lineno, left.col_offset), (right.lineno, right.col_offset)
        else:
            begin, end, text = (left.end_lineno, left.end_col_offset), (right.lineno, right.col_offset), f" {text} "
        if begin[0] == end[0]:
            changes.append((begin[0], begin[1], end[1], text))
    return changes


def mutated(source: str, change: tuple[int, int, int, str]) -> str | None:
    """Return the source with one change, or None if the change has no effect on the program."""
    number, begin, end, text = change
    lines = source.split("\n")
    line = lines[number - 1].encode()
    between = line[begin:end].decode()
    if "(" in between or ")" in between:
        kept = "".join(sign for sign in between if sign in "()")
        text = text + kept if kept.startswith("(") else kept + text
    lines[number - 1] = (line[:begin] + text.encode() + line[end:]).decode()
    new = "\n".join(lines)
    try:
        return new if ast.dump(ast.parse(new)) != ast.dump(ast.parse(source)) else None
    except SyntaxError:
        return None


def tests_of(database: Path) -> dict[tuple[str, int], list[str]]:
    """Return {(file, line): tests that execute it}. Tests that execute the fewest lines come first."""
    data = CoverageData(str(database))
    data.read()
    reached: dict[tuple[str, int], set[str]] = {}
    width: Counter[str] = Counter()
    for file in data.measured_files():
        name = Path(file).resolve().relative_to(ROOT).as_posix()
        for line, contexts in data.contexts_by_lineno(file).items():
            tests = {context.partition("|")[0] for context in contexts} - {""}
            width.update(tests)
            reached[name, line] = tests
    return {place: sorted(tests, key=lambda test: (width[test], test)) for place, tests in reached.items() if tests}


class Failures:
    """Pytest plugin that writes each failing test to a line of a file."""

    def __init__(self, file: Path):
        self.file = file

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed:
            with self.file.open("a", encoding="utf-8") as lines:
                lines.write(f"{report.nodeid}\n")


def run(tests: list[str], site: str, cache: str, code, failures: Path | None) -> None:
    """Run the tests with the package in `site`, in a forked process, and return whether they pass.

    If `failures` is set, run all tests even if one fails.
    """
    os.environ |= {"PYTHONPATH": site, "SALIENCY_BENCH_CACHE": cache, "OMP_NUM_THREADS": "1"}
    sys.path.insert(0, site)
    os.chdir(ROOT)
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    import pytest

    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov", "-m", "", "--rootdir", str(ROOT)]
    plugins = [Failures(failures)] if failures else []
    code.value = int(pytest.main([*options, *([] if failures else ["-x"]), *tests], plugins))


def noticed(context, tests: list[str], site: Path, failures: Path | None = None, seconds: int | None = SECONDS) -> bool:
    code = context.Value("i", 99)
    child = context.Process(target=run, args=(tests, str(site), str(site.parent / "cache"), code, failures))
    child.start()
    child.join(seconds)
    child.kill()
    child.join()
    return code.value != 0


def failed(failures: Path) -> set[str]:
    """Return the tests in a file written by `Failures`."""
    return set(failures.read_text(encoding="utf-8").splitlines()) if failures.exists() else set()


def drawn_before(table: Path) -> list[tuple[str, tuple[int, int, int, str]]]:
    """Return the mutants of a table, in the order of the table."""
    with table.open(newline="", encoding="utf-8") as rows:
        places = [(row[0], (int(row[1]), int(row[2]), int(row[3]), row[4])) for row in list(csv.reader(rows))[1:]]
    return list(dict.fromkeys(places))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, metavar="N", help="number of mutants (default: 300)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument(
        "--coverage", type=Path, default=ROOT / ".coverage", metavar="FILE", help="coverage data with contexts"
    )
    parser.add_argument("--folders", nargs="+", default=FOLDERS, metavar="FOLDER", help="folders of the code to change")
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="run all tests, and write the failing ones to a CSV file"
    )
    parser.add_argument("--again", type=Path, metavar="TABLE", help="use the mutants of a table")
    args = parser.parse_args()
    reached = tests_of(args.coverage)
    places = []
    for folder in args.folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name, source = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
            changes = [(name, change) for change in mutations(source) if mutated(source, change) is not None]
            places += [(name, change) for name, change in changes if (name, change[0]) in reached]
    drawn = random.Random(args.seed).sample(places, min(args.count, len(places)))
    drawn = drawn_before(args.again) if args.again else drawn
    if args.table:
        args.table.write_text("file,line,begin,end,new,test\n", encoding="utf-8")
    context = get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    survived = []
    with TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        shutil.copytree(ROOT / "saliency_bench", site / "saliency_bench")
        for plugins in PLUGINS:
            shutil.copytree(ROOT / plugins, site / "saliency_bench" / plugins)
        without = set()
        if args.table:  # leave out tests that fail even without a mutant
            every = sorted({test for tests in reached.values() for test in tests})
            noticed(context, every, site, Path(folder) / "without", None)
            without = failed(Path(folder) / "without")
            print(f"{len(without)} of {len(every)} tests fail without a mutant and are not used: {sorted(without)}")
        for number, (name, change) in enumerate(drawn, 1):
            file = site / (name if name.startswith("saliency_bench") else f"saliency_bench/{name}")
            source, start = file.read_text(encoding="utf-8"), time.monotonic()
            file.write_text(mutated(source, change), encoding="utf-8")
            tests, failures = reached.get((name, change[0]), []), Path(folder) / f"failures-{number}"
            if args.table:
                tests = [test for test in tests if test not in without]
                caught = bool(tests) and noticed(context, tests, site, failures)
                with args.table.open("a", newline="", encoding="utf-8") as rows:
                    csv.writer(rows).writerows([name, *change, test] for test in sorted(failed(failures)) or [""])
            else:
                caught = bool(tests) and noticed(context, tests[:MOST_TESTS], site)
            file.write_text(source, encoding="utf-8")
            if not caught:
                survived.append((name, change))
            line = source.split("\n")[change[0] - 1].strip()[:100]
            place = f"{name}:{change[0]}:{change[1]} -> {change[3].strip() or 'nothing'}"
            word, seconds = "noticed " if caught else "SURVIVED", time.monotonic() - start
            print(f"{number:4d} {word} {seconds:5.1f} s  {place}   {line}", flush=True)
    print(f"{len(drawn)} mutants of {len(places)}, {len(survived)} survived")
    return 0


if __name__ == "__main__":
    sys.exit(main())
