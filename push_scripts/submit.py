"""Submit a run, or maps of your own method, to the leaderboard.

example:
  saliency-bench submit runs/first --dry-run
  saliency-bench submit runs/first --note "seed 0, on a laptop"
  saliency-bench submit mine --name ours --with-maps --metrics saliency_miou

The command opens a pull request on NAMESPACE/results. A run is submitted unchanged. Maps are checked and scored first
(`saliency-bench template` explains their layout). Cells that are already on the leaderboard with the same values are
skipped. Values that contradict the leaderboard are shown and sent. --dry-run shows what would be sent and needs no
login. By submitting, you agree to publish the results under CC-BY-4.0.
"""

from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path

from saliency_bench.push_scripts import _results, _shared

SECTION = "publish"


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("what", metavar="RUN|MAPS", help="folder of a run, a suite, a completed "
                        "template, or maps")  # fmt: skip
    _shared.namespace(parser)
    parser.add_argument("--note", default="", help="short note for readers of the leaderboard")
    parser.add_argument("--link", default="", metavar="URL", help="https URL of the code or paper of your method")
    parser.add_argument("--private", action="store_true", help="make the repository private if it does not exist yet")
    parser.add_argument("--dry-run", action="store_true", help="show the plan and send nothing")
    parser.add_argument("--to", metavar="DIR", help="write to the board in this folder instead of the Hub; a new or "
                        "empty folder becomes a board")  # fmt: skip
    parser.add_argument("--by", metavar="NAME", help="name of the submitter, with --to (default: your login name)")
    maps = parser.add_argument_group("for maps")
    maps.add_argument("--name", help="name of your method")
    maps.add_argument(
        "--template", metavar="DIR", help="template from which the maps were made, if it is not in their folder"
    )
    _shared.setting(
        maps, "metrics", default=None, text="names of metrics (default: all that need only one map per image)"
    )
    maps.add_argument(
        "--with-maps",
        action="store_true",
        help="also publish the maps in half precision, so that anyone can score them; a board needs the maps if the "
        "method is your own or the masks are hidden",
    )
    maps.add_argument("--partial", action="store_true", help="leave out images without a map instead of stopping")
    _shared.setting(
        maps, "out", default=None, text="folder of the run that scores the maps (default: next to the maps)"
    )
    _shared.setting(maps, "batch_size", default=None, text="samples per batch (default: as in the template)")
    _shared.setting(maps, "device")
    _shared.output(parser)


def main(args: Namespace) -> None:
    """Submit a run or maps to the leaderboard, after showing the plan."""
    from saliency_bench.board.submit import is_suite, scored

    options = ("template", "metrics", "partial", "out", "batch_size", "device", "with_maps")
    given = {option: value for option in options if (value := getattr(args, option))}
    if not args.json:
        given["say"] = partial(print, flush=True)
    if is_suite(folder := Path(args.what)) and given.keys() <= {"say"}:
        _results.propose(args, folder)
        return
    _results.propose(args, scored(args.what, args.name, progress=not args.json, **given))
