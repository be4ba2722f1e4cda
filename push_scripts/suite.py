"""Reproduce the tables of a paper: train missing networks, compute missing runs, and write the tables.

example:
  saliency-bench suite p0-table2 --smoke --out smoke
  saliency-bench suite p0-table2 --data datasets --out suites --plan
  saliency-bench suite my.yaml --out suites --select dataset=pet-xai --limit 100
  saliency-bench suite metrics-check --smoke --out smoke

NAME is a paper's suite or one of its tables (`saliency-bench list suites`), or a YAML file of your own (--show prints
an example). --smoke makes the same tables in minutes, with synthetic images and small networks. If you run the command
again, it computes only the missing results. If a run fails, it is reported and the other runs continue.

`metrics-check` tests whether each metric scores the correct map above damaged maps, on networks whose evidence is
known. It accepts --out, --smoke, --limit (number of images per network) and --json.
"""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from saliency_bench.push_scripts import _shared

SECTION = "measure"
METRICS_CHECK = "metrics-check"
KEPT = "finished runs, networks and complete batches", "{out}/runs/*/scores/*.parquet"  # kept when interrupted


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="suite, table, FILE.yaml or FILE.yaml:TABLE")
    parser.add_argument(
        "--out", metavar="DIR", default="suites", help="output folder, shared by all tables (default: suites)"
    )
    parser.add_argument(
        "--data",
        metavar="DIR",
        default=".",
        help="folder that contains the built datasets, each in a folder with the dataset's name (default: .)",
    )
    parser.add_argument("--answers", nargs="+", metavar="FILE", default=[], action="extend",
                        help="people's answers, from `peekaboom export`")  # fmt: skip
    parser.add_argument("--select", nargs="+", metavar="AXIS=NAME", default=[], action="extend",
                        help="restrict the runs, as in dataset=pet-xai explainer=gradcam (axes: dataset, model, "
                        "explainer, metric)")  # fmt: skip
    _shared.settings(parser, "limit", "device")
    _shared.setting(parser, "batch_size", default=None, text="samples per batch of every run (default: 16)")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument(
        "--plan",
        action="store_true",
        help="only show which results exist, which are missing, and what the missing ones cost",
    )
    ways.add_argument("--train-only", action="store_true", help="only train the networks, in a single process")
    ways.add_argument("--show", action="store_true", help="print the YAML file")
    ways.add_argument("--schema", action="store_true", help="print the JSON schema of suite files, for editors")
    parser.add_argument("--smoke", action="store_true", help="use synthetic images, small networks and few steps")
    parser.add_argument(
        "--compare", action="store_true", help="also show the paper's numbers and the differences from them"
    )
    _shared.output(parser)


def main(args: Namespace) -> int:
    """Compute and print the tables of a suite, and return the exit code."""
    from saliency_bench.compute.preflight import check_writable
    from saliency_bench.errors import UserError
    from saliency_bench.recipes.suites.suite_schema import Suite, find_suite
    from saliency_bench.utils.messages import complain

    if args.schema:
        print(json.dumps(Suite.model_json_schema(), indent=2))
        return 0
    if args.name is None:
        raise UserError(
            "`suite` needs the name of a suite or table, or a YAML file; `saliency-bench list suites` shows all names"
        )
    if args.name == METRICS_CHECK:
        return _check_metrics(args)
    path, *_ = find_suite(args.name)  # before torch is imported
    if args.show:
        print(path.read_text(encoding="utf-8").replace("../docs/_static/", ""), end="")
        return 0
    check_writable(Path(args.out))
    from saliency_bench.recipes.suites.suite import planned, suite

    names = ("out", "data", "select", "limit", "batch_size", "device", "smoke", "answers")
    options = {name: getattr(args, name) for name in names}
    if args.plan:
        plan = planned(args.name, **options)
        print(json.dumps(plan.as_json(), indent=2) if args.json else plan)
        return 0
    result = suite(args.name, **options, compare=args.compare, train_only=args.train_only, progress=not args.json)
    if args.json:
        print(json.dumps(result.as_json(), indent=2))
        return 2 if result.failed else 0
    _print(result)
    empty = [table.name for table in result.tables if not table.has_numbers]
    if empty:
        complain(f"{', '.join(empty)} has no numbers; see the notes below the table")
    return 2 if result.failed or empty else 0


def _check_metrics(args: Namespace) -> int:
    """Check all metrics on networks with known evidence. Return the exit code."""
    from saliency_bench.compute.preflight import check_writable
    from saliency_bench.errors import UserError

    for name in ("plan", "train_only", "show", "compare", "select", "answers", "batch_size", "device"):
        if getattr(args, name):
            raise UserError(f"--{name.replace('_', '-')} does not apply to {METRICS_CHECK}; remove the option")
    check_writable(out := Path(args.out))
    from saliency_bench.recipes.metrics_check.check import IMAGES, SMOKE_IMAGES, SMOKE_KINDS, check_metrics
    from saliency_bench.recipes.metrics_check.known_networks import KINDS
    from saliency_bench.recipes.metrics_check.page import write_page

    images = min(args.limit or IMAGES, SMOKE_IMAGES if args.smoke else args.limit or IMAGES)
    kinds = SMOKE_KINDS if args.smoke else tuple(KINDS)
    counts = check_metrics(out, images, kinds=kinds, progress=not args.json)
    page = write_page(counts, out)
    if args.json:
        print(json.dumps([vars(count) for count in counts], indent=2))
    else:
        print(f"counts: {out / 'metrics_check.csv'}\npage: {page}")
    return 0


def _print(result) -> None:
    for table in result.tables:
        print(f"{table.name}: {table.table.title}")
        _shared.show_rows(table.printed.texts())
        for note in table.notes:
            print(note)
        print()
    for name in result.pictures:
        print(f"figure: {result.folder / 'images' / name}.pdf, .svg, .png")
    if result.tables:
        print(f"tables: {result.folder / 'tables'}")
        print(f"page: {result.page}")
