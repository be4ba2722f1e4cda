"""Check the pull request of a submission to your leaderboard before you merge it.

example:
  saliency-bench review saliency-bench/results 7
  saliency-bench review saliency-bench/results 7 --comment
  saliency-bench review saliency-bench/results 7 --comment --merge
  saliency-bench review saliency-bench/results --comment    # all open ones
  saliency-bench review ./board    # a local board; also writes its index

A pull request passes if its author is the submitter, it adds only submission files, it does not change or delete any
file, and all numbers agree with the records. The exit code is 1 if a pull request must not be merged. The check cannot
detect made-up records. A row gets a rank only after `saliency-bench recompute` has recomputed some of its records.
--merge merges exactly the reviewed commit.
"""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from saliency_bench.errors import UserError, one_line
from saliency_bench.push_scripts import _shared

SECTION = "publish"


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("repo", metavar="RESULTS", help="NAMESPACE/results on the Hub, or folder of a board")
    parser.add_argument("number", type=int, metavar="NUMBER", nargs="?", help="number of a pull request (default: all)")
    parser.add_argument("--comment", action="store_true", help="post the verdict unless it was already posted")
    parser.add_argument(
        "--merge", action="store_true", help="merge if the check passes and the pull request has not changed since"
    )
    _shared.output(parser)


def main(args: Namespace) -> int:
    """Check pull requests, print the verdicts and return the exit code."""
    if args.number is not None and args.number < 1:
        raise UserError(f"{args.number} is not the number of a pull request; use a number of at least 1")
    from saliency_bench.board.review import comment, merge, open_pulls, review
    from saliency_bench.board.source import source_at

    if isinstance(source_at(args.repo).location, Path):
        return _folder(args)
    numbers = open_pulls(args.repo) if args.number is None else [args.number]
    if not numbers and not args.json:
        print(f"{args.repo} has no open pull request")
    verdicts = []
    for number in numbers:
        verdicts.append(verdict := review(args.repo, number))
        if not args.json:
            print("\n".join(verdict.lines()), flush=True)
        if args.comment:
            comment(verdict)
        if args.merge and verdict.fine:
            merge(verdict)
            if not args.json:
                print(f"merged: pull request {number} of {args.repo}", flush=True)
    if args.json:
        shown = [verdict.as_dict() for verdict in verdicts]
        print(json.dumps(shown if args.number is None else shown[0], indent=2))
    return 0 if all(verdict.fine for verdict in verdicts) else 1


def _folder(args: Namespace) -> int:
    from saliency_bench.board.review import review_folder

    if args.number is not None or args.comment or args.merge:
        raise UserError(f"{args.repo} is a folder, which has no pull requests; remove NUMBER, --comment and --merge")
    reviewed = review_folder(Path(args.repo).expanduser())
    if args.json:
        print(json.dumps([{"folder": folder, "problems": problems} for folder, problems in reviewed], indent=2))
    for folder, problems in reviewed if not args.json else ():
        print(f"{folder}: {'must not be ranked' if problems else 'passes the check'}")
        print("".join(f"- {one_line(problem, 500)}\n" for problem in problems), end="")
    return 1 if any(problems for _, problems in reviewed) else 0
