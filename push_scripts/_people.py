"""What the commands of studies over the maps of a run have in common."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from saliency_bench.errors import UserError
from saliency_bench.push_scripts import _shared

SHOWN = 2  # tables; further ones are in --out


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("what", choices=("serve", "results", "export"), metavar="WHAT", help="serve, results, export")
    parser.add_argument("run", nargs="?", metavar="RUN", help="of serve: folder of a run with --keep-maps")
    parser.add_argument("--store", required=True, metavar="FILE", help="file or URL of the store, made if missing")
    parser.add_argument("--name", metavar="TEXT", help="name of the study (default: that of the run, or the only one)")
    parser.add_argument("--out", metavar="PATH", help="folder for the tables of results; file of export")
    page = parser.add_argument_group("serve")
    page.add_argument("--dataset", metavar="NAME", help="dataset of the run, if it has moved")
    page.add_argument("--host", default="127.0.0.1", metavar="HOST",
                      help="address to serve at; 0.0.0.0 for other machines (default: 127.0.0.1)")  # fmt: skip
    page.add_argument("--port", type=int, default=7860, metavar="N", help="port (default: 7860)")


def run(args: Namespace, **actions: Callable[[Namespace], None]) -> None:
    if args.what == "serve" and not args.run:
        raise UserError("serve needs RUN, the folder of a run with --keep-maps")
    if args.what != "serve" and args.run:
        raise UserError(f"{args.what} reads the store alone; leave out {args.run}")
    actions[args.what](args)


def serve(app: Any, args: Namespace) -> None:
    from saliency_bench.spaces.pages import serving

    def say(address: str) -> None:
        print(json.dumps({"page": address}) if args.json else f"page: {address}", flush=True)

    serving.serve(app, args.host, args.port, say)


def found(args: Namespace, kind: str) -> Any:
    """The study that the arguments name."""
    from saliency_bench.studies.store import Store

    return Store(args.store, create=False).find(args.name, kind)


def show(findings: Any, args: Namespace) -> None:
    """Print the tables and notes of results, or all as JSON; write them to --out, in which long tables are."""
    from saliency_bench.reports.analyses import Analysis

    whole = Analysis(findings, [])
    written = whole.save(args.out) if args.out else []
    if args.json:
        print(json.dumps(whole.data | {"files": [str(path) for path in written]}, indent=2))
        return
    for table in findings.tables[:SHOWN]:
        _shared.show_rows(table.texts())
        print()
    for line in (*findings.notes, *(f"written: {path}" for path in written)):
        print(line)


def say_written(path: Path, count: int, args: Namespace) -> None:
    if args.json:
        print(json.dumps({"file": str(path), "answers": count}))
    else:
        print(f"{count:,} answers written: {path}")
