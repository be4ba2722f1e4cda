"""Measure the strength of the tests: change random positions in the code, one at a time, and run the tests.

example:
  pytest -n 2 --cov --cov-context=test && python benchmarks/mutants.py --count 300
  python benchmarks/mutants.py --folders saliency_bench/board --count 60 --table board.csv

A mutant is the code with one change, in a line that tests execute: another operator, comparison, number or condition,
an element of a tuple or a keyword argument that is removed, or a statement that is skipped. The tests that execute the
line (according to `.coverage`) are run, most specific first, until one fails. A mutant that no test detects survives
and is printed. Mutants are drawn with a seed from the files in `--folders` of this checkout. The exit code is 0
even if mutants survive. It is 2 if a file or folder is missing, or if no test in `.coverage` executes the folders.

Coverage does not include tests that run the package in another process, and it counts a shared fixture only for the
test that creates it. The true share of detected mutants is therefore higher.

With `--table`, all tests that execute a mutant are run, and each failing test is a row of the table; a surviving mutant
has one row without a test. `--again` repeats the mutants in such a table with other tests. Their coverage must be
measured first.
"""

import argparse
import ast
import csv
import itertools
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
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
CHECKS = ("encoding", "strict", "weights_only")  # arguments without an effect on valid data
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
MOST_TESTS = 150  # maximum number of tests per mutant
SECONDS = 300  # a mutant that does not end within this many seconds counts as detected
IMPORTED = ["torch", "datasets", "transformers", "evaluate", "pytest", "hypothesis", "scipy.stats"]


def _statements(tree: ast.Module) -> list[tuple[ast.stmt, list[ast.AST]]]:
    """Return each statement and the expressions that belong to it, but not to a statement inside it."""
    pairs = []
    for statement in ast.walk(tree):
        if isinstance(statement, ast.stmt):
            nodes = [child for child in ast.iter_child_nodes(statement) if not isinstance(child, ast.stmt)]
            for node in nodes:
                nodes += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]
            pairs.append((statement, nodes))
    return pairs


def _shortened(nodes: list[ast.AST], at: Callable[[ast.AST], tuple[int, int]]) -> list[tuple[int, int, str]]:
    """Return the changes that remove one of two or more nodes separated by commas."""
    ends = [at(node) for node in nodes]
    if len(ends) < 2:
        return []
    removed = [(begin, ends[index + 1][0], "") for index, (begin, _) in enumerate(ends[:-1])]
    return [*removed, (ends[-2][1], ends[-1][1], "")]


def _changes(node: ast.AST, at: Callable[[ast.AST], tuple[int, int]]) -> list[tuple[int, int, str]]:
    """Return the (begin, end, new text) of all changes of one expression. `at` returns the begin and end of a node."""
    changes = []
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS and len(node.ops) == 1:
        changes = [(at(node.left)[1], at(node.comparators[0])[0], f" {COMPARISONS[type(node.ops[0])]} ")]
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        changes = [(at(node.left)[1], at(node.right)[0], f" {OPERATORS[type(node.op)]} ")]
    elif isinstance(node, ast.BoolOp) and len(node.values) == 2:
        word = " or " if isinstance(node.op, ast.And) else " and "
        changes = [(at(node.values[0])[1], at(node.values[1])[0], word)]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        changes = [(at(node)[0], at(node.operand)[0], " ")]
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        changes = [(*at(node), repr(not node.value) if type(node.value) is bool else repr(node.value + 1))]
    elif isinstance(node, ast.Name) and node.id in NAMES:
        changes = [(*at(node), NAMES[node.id])]
    elif isinstance(node, (ast.Tuple, ast.List, ast.Set)) and not isinstance(getattr(node, "ctx", None), ast.Store):
        changes = _shortened(node.elts, at)
    elif isinstance(node, ast.Call) and node.keywords:
        removed = _shortened([*node.args, *node.keywords], at)[len(node.args) :]
        changes = [change for change, word in zip(removed, node.keywords, strict=False) if word.arg not in CHECKS]
    if isinstance(node, ast.IfExp):
        changes += [(*at(node.test), "True"), (*at(node.test), "False")]
    elif isinstance(node, ast.comprehension):
        changes += [(*at(test), "True") for test in node.ifs]
    return changes


def _skipped(statement: ast.stmt, at: Callable[[ast.AST], tuple[int, int]]) -> list[tuple[int, int, str]]:
    """Return the changes that skip a statement, or that make its condition always true or always false."""
    if isinstance(statement, ast.If):
        return [(*at(statement.test), "True"), (*at(statement.test), "False")]
    called = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    return [(*at(statement), "pass")] if called or isinstance(statement, ast.AugAssign) else []


def mutations(source: str) -> list[tuple[int, int, int, str]]:
    """Return (line of the statement, begin, end, new text) of every possible change. Offsets are counted in bytes."""
    starts = list(itertools.accumulate((len(line) + 1 for line in source.encode().split(b"\n")), initial=0))

    def at(node) -> tuple[int, int]:
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    changes = []
    for statement, nodes in _statements(ast.parse(source)):
        typed = [node.annotation for node in nodes if isinstance(node, ast.arg) and node.annotation]
        typed += [part for name in ("returns", "annotation") if (part := getattr(statement, name, None))]
        left_out = {id(child) for part in typed for child in ast.walk(part)}
        left_out |= {id(node.slice) for node in nodes if isinstance(node, ast.Subscript)}
        if not isinstance(statement, ast.Raise):
            found = [change for node in nodes if id(node) not in left_out for change in _changes(node, at)]
            changes += [(statement.lineno, *change) for change in [*found, *_skipped(statement, at)]]
    return changes


def mutated(source: str, change: tuple[int, int, int, str]) -> str | None:
    """Return the source with one change, or None if the change has no effect on the program."""
    _, begin, end, text = change
    data = source.encode()
    between = data[begin:end].decode()
    if text.startswith(" ") and ("(" in between or ")" in between):
        kept = "".join(sign for sign in between if sign in "()")
        text = text + kept if kept.startswith("(") else kept + text
    new = (data[:begin] + text.encode() + data[end:]).decode()
    try:
        return new if ast.dump(ast.parse(new)) != ast.dump(ast.parse(source)) else None
    except SyntaxError:
        return None


def _has_effect(name: str, change: tuple[int, int, int, str]) -> bool:
    return mutated((ROOT / name).read_text(encoding="utf-8"), change) is not None


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
    for path in (args.coverage, *(ROOT / folder for folder in args.folders)):
        if not path.exists():
            parser.error(f"{path} does not exist")
    reached = tests_of(args.coverage)
    places = []
    for folder in args.folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name, source = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
            changes = [(name, change) for change in mutations(source)]
            places += [(name, change) for name, change in changes if (name, change[0]) in reached]
    random.Random(args.seed).shuffle(places)
    drawn = list(itertools.islice((place for place in places if _has_effect(*place)), args.count))
    drawn = drawn_before(args.again) if args.again else drawn
    if not drawn:
        parser.error(f"{args.coverage} contains no test that executes code of {', '.join(args.folders)}")
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
            old = " ".join(source.encode()[change[1] : change[2]].decode().split())[:40]
            place = f"{name}:{change[0]} {old} -> {change[3].strip() or 'nothing'}"
            word, seconds = "detected" if caught else "SURVIVED", time.monotonic() - start
            print(f"{number:4d} {word} {seconds:5.1f} s  {place}   {line}", flush=True)
    print(f"{len(drawn)} mutants of {len(places)}, {len(survived)} survived")
    return 0


if __name__ == "__main__":
    sys.exit(main())
