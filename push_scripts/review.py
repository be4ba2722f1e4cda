"""Check the pull request of a submission to your leaderboard before you merge it.

example:
  saliency-bench review saliency-bench/results 7
  saliency-bench review saliency-bench/results 7 --comment

It checks out if its author is the submitter, it adds the files of submissions and nothing else, deletes and changes
nothing, and all numbers follow from the records. The exit code is 1 if it must not be merged. Values can be invented
all the same: `saliency-bench recompute` computes some of them again, and only then a row is ranked.
"""

import json
from argparse import ArgumentParser, Namespace

from saliency_bench.push_scripts import _shared

SECTION = "publish"


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("repo", metavar="NAMESPACE/results", help="the results repository")
    parser.add_argument("number", type=int, metavar="NUMBER", help="of the pull request")
    parser.add_argument("--comment", action="store_true", help="post the verdict on the pull request")
    _shared.output(parser)


def main(args: Namespace) -> int:
    from saliency_bench.leaderboard.review import comment, review

    verdict = review(args.repo, args.number)
    print(json.dumps(verdict.as_dict(), indent=2) if args.json else "\n".join(verdict.lines()), flush=True)
    if args.comment:
        comment(verdict)
    return 0 if verdict.fine else 1
