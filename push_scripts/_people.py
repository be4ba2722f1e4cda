"""What the commands of studies over the maps of a run have in common."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saliency_bench.errors import UserError
from saliency_bench.push_scripts import _shared

if TYPE_CHECKING:
    from saliency_bench.studies.study import Study
    from saliency_bench.studies.sync import Sync

SHOWN = 2  # tables; further ones are in --out


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("what", choices=("serve", "results", "export"), metavar="WHAT", help="serve, results, export")
    parser.add_argument("run", nargs="?", metavar="RUN",
                        help="of serve: folder of a run with --keep-maps, or hub:OWNER/NAME")  # fmt: skip
    store_arguments(parser)
    parser.add_argument("--name", metavar="TEXT", help="name of the study (default: that of the run, or the only one)")
    parser.add_argument("--out", metavar="PATH", help="folder for the tables of results; file of export")
    page = parser.add_argument_group("serve")
    page.add_argument("--dataset", metavar="NAME", help="dataset of the run, if it has moved")
    page_arguments(page)


def store_arguments(parser: ArgumentParser) -> None:
    """Add the arguments that name a store."""
    parser.add_argument("--store", required=True, metavar="FILE", help="file or URL of the store, made if missing")
    parser.add_argument("--sync", metavar="OWNER/NAME",
                        help="private dataset repository on the Hub: adds its answers to the store first; the page "
                             "copies the store to it")  # fmt: skip


def page_arguments(group: Any) -> None:
    """Add the options of every page of a study."""
    group.add_argument("--host", default="127.0.0.1", metavar="HOST",
                       help="address to serve at; 0.0.0.0 for other machines (default: 127.0.0.1)")  # fmt: skip
    group.add_argument("--port", type=int, default=7860, metavar="N", help="port (default: 7860)")
    group.add_argument("--sync-every", type=float, default=5, metavar="N", help="minutes between copies (default: 5)")


def result_arguments(parser: ArgumentParser) -> None:
    """Add the options of results and export."""
    group = parser.add_argument_group("results, export")
    group.add_argument("--with-failed", action="store_true", help="count people who failed an attention check")
    group.add_argument("--exclude", nargs="+", default=(), metavar="NAME", help="people to leave out")
    group.add_argument("--without-people", action="store_true", help="drop the pseudonyms")


def _counted(args: Namespace) -> dict[str, Any]:
    """Return whose answers count, as keyword arguments of `results` and `export`."""
    return {"people": not args.without_people, "with_failed": args.with_failed, "exclude": args.exclude}


def restored(args: Namespace, *, serving: bool = False) -> "Sync | None":
    """Add to the store what the repository of --sync holds, before the store is opened.

    Args:
        args: of the command.
        serving: the store will be copied to it, too.
    """
    if args.sync is None:
        return None
    from saliency_bench.studies.sync import Sync

    sync = Sync(args.store, args.sync, args.sync_every, say=lambda line: args.json or print(line, flush=True))
    sync.restore(writing=serving)
    return sync


def run(args: Namespace, kind: str, serve: Callable[[Namespace], None]) -> None:
    """Do what the arguments say.

    Args:
        args: of the command.
        kind: of the study, a folder of `saliency_bench.studies`.
        serve: serves the page.
    """
    if args.what == "serve" and not args.run:
        raise UserError("serve needs RUN, the folder of a run with --keep-maps")
    if args.what != "serve" and args.run:
        raise UserError(f"{args.what} reads the store alone; leave out {args.run}")
    actions: dict[str, Callable[[Namespace], None]] = {
        "serve": serve,
        "results": partial(results, kind),
        "export": partial(export, kind),
    }
    actions[args.what](args)


def serve(app: Any, args: Namespace, sync: "Sync | None", links: Callable[[str], dict[str, str]] | None = None) -> None:
    """Serve until it is stopped.

    Args:
        app: the page.
        args: of the command.
        sync: keeps the store on the Hub.
        links: of an address, {name: link} to print; None: the page.
    """
    from saliency_bench.spaces.pages import serving

    def say(address: str) -> None:
        addresses = links(address) if links else {"page": address}
        addresses |= {"sync": f"{address}sync"} if sync else {}
        if args.json:
            print(json.dumps(addresses), flush=True)
        elif not args.quiet:
            print("\n".join(f"{name}: {link}" for name, link in addresses.items()), flush=True)

    serving.serve(app, args.host, args.port, say, sync)


def results(kind: str, args: Namespace) -> None:
    """Print the tables and notes of a study, or all as JSON; write them to --out, in which long tables are."""
    from saliency_bench.reports.analyses import Analysis

    module = import_module(f"saliency_bench.studies.{kind}.results")
    findings = module.results(_study(kind, args), **_counted(args))
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


def export(kind: str, args: Namespace) -> None:
    """Write the answers of a study into --out."""
    if not args.out:
        raise UserError("export needs --out, a .csv or .parquet file")
    module, path = import_module(f"saliency_bench.studies.{kind}.results"), Path(args.out)
    study = _study(kind, args)
    count = module.export(study, path, **_counted(args))
    if args.json:
        print(json.dumps({"file": str(path), "answers": count}))
    else:
        print(f"{count:,} answers written: {path}")


def _study(kind: str, args: Namespace) -> "Study":
    """Return the study that the arguments name."""
    from saliency_bench.studies.store import Store

    restored(args)
    return Store(args.store, create=False).find(args.name, kind)
