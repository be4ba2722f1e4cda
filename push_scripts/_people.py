"""Options and actions shared by the commands for human studies on the maps of a run."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saliency_bench.errors import UserError
from saliency_bench.push_scripts import _shared

if TYPE_CHECKING:
    from saliency_bench.studies.answer_store import Store
    from saliency_bench.studies.introduction import Introduction
    from saliency_bench.studies.study import Study
    from saliency_bench.studies.sync import Sync

WHAT = ("serve", "results", "export", "payments", "parameters", "erase")
SHOWN = 2  # number of printed tables; all tables are in --out
LINKS = {"--invite": True, "--owner": False, "--reviewer": False}  # {option that prints links: whether it has a value}


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments that the commands for human studies share."""
    parser.add_argument("what", choices=WHAT, metavar="WHAT", help=", ".join(WHAT))
    parser.add_argument("run", nargs="?", metavar="RUN",
                        help="for serve: folder of a run with --keep-maps, or hub:OWNER/NAME")  # fmt: skip
    store_arguments(parser)
    parser.add_argument(
        "--name", metavar="TEXT", help="name of the study (default: name of the run, or the only study in the store)"
    )
    parser.add_argument("--out", metavar="PATH", help="for results: folder for the tables; otherwise: file to write")
    page = parser.add_argument_group("serve")
    page.add_argument("--dataset", metavar="NAME", help="dataset of the run, if its location has changed")
    page_arguments(page)


def store_arguments(parser: ArgumentParser) -> None:
    """Add the options that select a store."""
    parser.add_argument("--store", required=True, metavar="FILE", help="file or URL of the store (created if missing)")
    parser.add_argument("--sync", metavar="OWNER/NAME",
                        help="private dataset repository on the Hub: its answers are added to the store first, and "
                        "while the page is served, the store is copied to this repository")  # fmt: skip


def page_arguments(group: Any) -> None:
    """Add the options that concern the page and that all studies share."""
    group.add_argument("--host", default="127.0.0.1", metavar="HOST",
                       help="address of the page; 0.0.0.0 makes it reachable from other machines (default: 127.0.0.1)",
                       )  # fmt: skip
    group.add_argument("--port", type=int, default=7860, metavar="N", help="port (default: 7860)")
    group.add_argument("--invite", type=int, default=0, metavar="N",
                       help="print links for N more people; afterwards, only invited people can join")  # fmt: skip
    group.add_argument("--lease", type=float, default=60, metavar="N",
                       help="minutes of inactivity after which a person's images are reassigned "
                       "(default: 60)")  # fmt: skip
    group.add_argument("--completion-url", metavar="URL", help="URL to which people are redirected when they finish")
    group.add_argument("--completion-code", metavar="TEXT", help="code that people see when they finish")
    group.add_argument("--owner", action="store_true", help="also print the link to the owner's page")
    group.add_argument("--consent", metavar="FILE", help="Markdown file with the text that people must agree to first")
    group.add_argument(
        "--instructions", metavar="FILE", help="Markdown file that replaces the instructions of the page"
    )
    group.add_argument(
        "--sync-every", type=float, default=5, metavar="N", help="minutes between copies to --sync (default: 5)"
    )


def result_arguments(parser: ArgumentParser) -> None:
    """Add the options of the subcommands `results` and `export`."""
    group = parser.add_argument_group("results, export")
    group.add_argument("--with-failed", action="store_true", help="include people who failed an attention check")
    group.add_argument("--exclude", nargs="+", default=(), metavar="NAME", help="people to leave out")
    group.add_argument("--without-people", action="store_true", help="drop the pseudonyms")


def _count(args: Namespace) -> dict[str, Any]:
    """Return those keyword arguments of `results` and `export` that select which answers count."""
    return {"people": not args.without_people, "with_failed": args.with_failed, "exclude": args.exclude}


def restored(args: Namespace, *, serving: bool = False) -> "Sync | None":
    """Add the rows stored in the --sync repository to the store.

    This function must be called before the store is opened.

    Args:
        args: Arguments of the command.
        serving: Whether the store will also be copied to the repository.
    """
    if args.sync is None:
        return None
    from saliency_bench.studies.sync import Sync

    sync = Sync(args.store, args.sync, args.sync_every, say=lambda line: args.json or print(line, flush=True))
    sync.restore(writing=serving)
    return sync


def run(args: Namespace, kind: str, serve: Callable[[Namespace], None]) -> None:
    """Run the subcommand that the arguments select.

    Args:
        args: Arguments of the command.
        kind: Type of the study, which is the name of a folder in `saliency_bench.studies`.
        serve: Function that serves the page.
    """
    if args.what == "serve" and not args.run:
        raise UserError("`serve` needs RUN, the folder of a run with --keep-maps")
    if args.what != "serve" and args.run:
        raise UserError(f"`{args.what}` reads only the store; remove {args.run}")
    actions: dict[str, Callable[[Namespace], None]] = {
        "serve": serve,
        "results": partial(results, kind),
        "export": partial(export, kind),
        "payments": partial(table, kind),
        "parameters": partial(table, kind),
        "erase": erase,
    }
    actions[args.what](args)


def lease_hours(args: Namespace) -> float:
    """Return the value of --lease in hours, after checking it and the other options for the page.

    Raises:
        UserError: --lease is not a positive number, or another option of the page is invalid.
    """
    if not 0 < args.lease <= 100_000:
        raise UserError(f"--lease must be a number of minutes above 0, not {args.lease:g}")
    if not 0 <= args.invite <= 10_000:
        raise UserError(f"--invite must be a number of people from 0 to 10,000, not {args.invite}")
    if args.completion_url and not args.completion_url.startswith(("https://", "http://")):
        raise UserError(f"--completion-url must begin with https://; got {args.completion_url}")
    return args.lease / 60


def check_address(args: Namespace) -> None:
    """Raise UserError if the page cannot be served at the requested address. Call this before anything is stored."""
    from saliency_bench.spaces.pages.serving import listening_at

    listening_at(args.host, args.port).close()


def existing_store(location: str, *, must_exist: bool) -> "Store | None":
    """Return the existing store at a location.

    Args:
        location: File or URL.
        must_exist: Whether to raise UserError if there is no store. If False, None is returned in this case.

    Raises:
        UserError: There is no store, or the location contains other data.
    """
    from saliency_bench.studies.answer_store import Store
    from saliency_bench.studies.database import NoStoreError

    try:
        return Store(location, create=False)
    except NoStoreError:
        if must_exist:
            raise
    return None


def introduction(args: Namespace) -> "Introduction":
    """Return the consent form and the instructions from --consent and --instructions.

    Raises:
        UserError: A file, or an image that the file contains, cannot be read.
    """
    from saliency_bench.studies.introduction import Introduction, read_text

    return Introduction(*(read_text(path) if path else None for path in (args.consent, args.instructions)))


def completion(args: Namespace) -> dict[str, str] | None:
    """Return the link and the code that people get when they finish, or None if neither is set."""
    given = {"url": args.completion_url, "code": args.completion_code}
    return {name: text for name, text in given.items() if text} or None


def serve(
    app: Any, args: Namespace, sync: "Sync | None", study: "Study", name: str = "page", reviewer: bool = False
) -> None:
    """Serve a page until the command is stopped.

    Args:
        app: Web application of the page.
        args: Arguments of the command.
        sync: Object that copies the store to the Hub, or None.
        study: Study to which people are invited.
        name: Label printed in front of the URL.
        reviewer: Whether to print the link for a new reviewer.
    """
    from saliency_bench.spaces.pages import serving

    def say(address: str) -> None:
        addresses = {name: address}
        if reviewer:
            addresses["review"] = f"{address}#key={study.join(role='reviewer').key}"
        if args.owner:
            addresses["owner"] = f"{address}owner#key={study.join(role='owner').key}"
        tokens = study.invite(args.invite)
        addresses |= {f"invite {number}": f"{address}#invite={token}" for number, token in enumerate(tokens, 1)}
        args.links = LINKS
        addresses |= {"sync": f"{address}sync"} if sync else {}
        if args.json:
            print(json.dumps(addresses), flush=True)
        elif not args.quiet:
            print("\n".join(f"{name}: {link}" for name, link in addresses.items()), flush=True)

    serving.serve(app, args.host, args.port, say, sync)


def results(kind: str, args: Namespace) -> None:
    """Print the tables and notes of a study, or all results as JSON. Also write all tables to --out."""
    from saliency_bench.read.report.analyses import Analysis

    module = import_module(f"saliency_bench.studies.{kind}.results")
    findings = module.results(_study(kind, args), **_count(args))
    if args.out:
        with suppress(OSError):  # if the folder cannot be created, `save` below reports the error
            Path(args.out).mkdir(0o700, parents=True)
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
    """Write the answers given in a study to --out."""
    if not args.out:
        raise UserError("`export` needs --out, a .csv or .parquet file")
    module, path = import_module(f"saliency_bench.studies.{kind}.results"), Path(args.out)
    study = _study(kind, args)
    count = module.export(study, path, **_count(args))
    if args.json:
        print(json.dumps({"file": str(path), "answers": count}))
    else:
        print(f"{count:,} answers written: {path}")


def table(kind: str, args: Namespace) -> None:
    """Write a study's table of payments or of link parameters to --out."""
    if not args.out:
        raise UserError(f"`{args.what}` needs --out, a .csv or .parquet file")
    study = _study(kind, args)
    module = import_module(f"saliency_bench.studies.{kind}.results")
    checks = (module.judged if kind == "peekaboom" else module.rated)(study).checks
    write_table(study, args.what, Path(args.out), checks, args)


def write_table(study: "Study", kind: str, path: Path, checks: dict[str, list[bool]], args: Namespace) -> None:
    """Write a study's table of payments or of link parameters.

    Args:
        study: Study of any protocol.
        kind: "payments" or "parameters".
        path: Path of the file.
        checks: {person: whether each attention check was passed}.
        args: Arguments of the command.
    """
    from saliency_bench.studies.payments import PAYMENTS, parameter_table, payment_rows
    from saliency_bench.studies.result_rows import write_rows

    header, rows = (PAYMENTS, payment_rows(study, checks)) if kind == "payments" else parameter_table(study)
    write_rows(path, header, rows)
    if args.json:
        print(json.dumps({"file": str(path), "people": len(rows)}))
    elif not args.quiet:
        print(f"{len(rows):,} people written: {path}")


def erase(args: Namespace) -> None:
    """Copy the store to --out, leaving out the people listed in --exclude."""
    from saliency_bench.studies.answer_rows import copy_without
    from saliency_bench.studies.answer_store import Store

    if not args.out or not args.exclude:
        raise UserError("`erase` needs --exclude NAME, and --out FILE for the copy of the store without these people")
    if Path(args.out).exists():
        raise UserError(f"{args.out} already exists; set --out to a new file")
    restored(args)
    store = Store(args.store, create=False)
    known = {name for study in store.all() for name in study.people()}
    known |= {answer.person for study in store.all() for answer in study.answers(masks=False)}
    if missing := set(args.exclude) - known:
        raise UserError(f"{args.store} has no person named {min(missing)}; check the name")
    count = copy_without(store, Store(args.out), set(args.exclude)).added
    if args.json:
        print(json.dumps({"file": args.out, "rows": count}))
    elif not args.quiet:
        print(
            f"{count:,} rows were written to {args.out}; use this store from now on, and delete {args.store}, its "
            "copies and its repository"
        )


def _study(kind: str, args: Namespace) -> "Study":
    from saliency_bench.studies.answer_store import Store

    restored(args)
    return Store(args.store, create=False).find(args.name, kind)
