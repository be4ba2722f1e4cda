"""Show the leaderboard for a folder or a repository of results in the browser.

example:
  saliency-bench leaderboard --results saliency-bench/results
  saliency-bench leaderboard --results ./my-results --core my-core.yaml

The page is served on this machine only, until you stop it with Ctrl-C. You can search, filter, sort and compare rows,
view their details, and export CSV, LaTeX and BibTeX. Submitted maps are drawn over their images if the dataset is in
one of the --data folders or in the local Hub cache. No data are sent to other machines.
"""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from saliency_bench.errors import UserError
from saliency_bench.push_scripts import _shared
from saliency_bench.utils.messages import counted

SECTION = "publish"


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--results", metavar="DIR_OR_REPO", required=True,
                        help="folder of submissions, or NAMESPACE/results on the Hub")  # fmt: skip
    parser.add_argument("--core", metavar="FILE", help="YAML file with the datasets and models over which scores are "
                        "averaged (default: core.yaml of the board, or else of the public board)")  # fmt: skip
    parser.add_argument("--data", metavar="DIR", nargs="+", default=[], help="local folders of datasets whose images "
                        "are shown under submitted maps")  # fmt: skip
    parser.add_argument(
        "--port", type=int, metavar="N", help="port of the page (default: the first free port from 7860)"
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    _shared.output(parser, "print the rows as JSON and show no page")


def main(args: Namespace) -> None:
    """Serve the page of a leaderboard, or print its rows as JSON."""
    from saliency_bench.board.opening import load_results
    from saliency_bench.board.view.core import read_core
    from saliency_bench.board.view.live import Live

    if args.port is not None and not 0 < args.port < 2**16:
        raise UserError(f"--port {args.port} is not a port; use a number from 1 to 65535")
    core = read_core(args.core) if args.core else None
    if args.json:
        print(json.dumps(load_results(args.results).cells, indent=2))
        return
    app = _app()
    for folder in args.data:
        if not Path(folder).expanduser().is_dir():
            raise UserError(f"--data {folder} is not a folder; check the path")
    data = [Path(folder).expanduser() for folder in args.data]
    live = Live(args.results, core, data=data, default=read_core(app.CORE))
    if not args.quiet:
        print(
            f"{live.page.archive.name}: {counted(len(live.page.archive.rows), 'row')}; press Ctrl-C to stop", flush=True
        )
    app.launch(live, server_name="127.0.0.1", server_port=args.port, inbrowser=not args.no_browser, quiet=args.quiet)


def _app():
    """Return the module of the page's app.

    Raises:
        UserError: Gradio is not installed. The message contains the command that installs it.
    """
    from saliency_bench.registry import install_hint

    try:
        from saliency_bench.spaces.leaderboard import app
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("saliency_bench"):
            raise
        raise UserError(f"the leaderboard needs the library {error.name}: {install_hint('spaces')}") from error
    return app
