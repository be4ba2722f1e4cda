"""Recompute scores of a submission to your leaderboard, so that its rows get a rank.

example:
  saliency-bench recompute saliency-bench/results DATASET/MODEL/SUBMITTER
  saliency-bench recompute ./results DATASET/MODEL/SUBMITTER --dataset ./pets
  saliency-bench recompute saliency-bench/results DATASET/MODEL/SUBMITTER \\
      --hidden YOUR-NAME/my-data-masks

The explainers of this package are run again on randomly drawn images, and all submitted maps are scored again. The
submission is rejected if a score differs by more than 1e-4. The outcome is written to `status/`, `datasets/` and
`models/` in the results folder or repository. Submissions may not change these three folders.
"""

import json
from argparse import ArgumentParser, Namespace

from saliency_bench.push_scripts import _shared

SECTION = "publish"
SETTINGS = ("prompts", "target", "groups", "label_map", "device")


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("results", metavar="RESULTS", help="folder of results, or NAMESPACE/results on the Hub")
    parser.add_argument("folder", metavar="FOLDER", help="folder of the submission: DATASET/MODEL/SUBMITTER")
    parser.add_argument("--samples", type=int, default=16, metavar="N", help="images per explainer (default: 16)")
    parser.add_argument("--dry-run", action="store_true", help="print the outcome and write nothing")
    parser.add_argument(
        "--dataset", metavar="NAME|DIR", help="location of the dataset, if it differs from the one in the submission"
    )
    parser.add_argument(
        "--model", metavar="NAME|DIR", help="location of the model, if it differs from the one in the submission"
    )
    parser.add_argument(
        "--hidden", metavar="OWNER/NAME|DIR",
        help="private repository of masks that `push dataset --hide-masks` created (default: the repository listed on "
        "the board)",
    )  # fmt: skip
    for name in SETTINGS:
        _shared.setting(parser, name, default=None)
    _shared.output(parser)


def main(args: Namespace) -> int:
    """Recompute a submission, print the outcome and return the exit code."""
    from saliency_bench.board.recompute import vouch

    given = {name: getattr(args, name) for name in ("dataset", "model", "hidden", *SETTINGS)}
    status, lines = vouch(
        args.results, args.folder, samples=args.samples, dry_run=args.dry_run, progress=not args.json, **given
    )
    print(json.dumps(status.model_dump(mode="json"), indent=2) if args.json else "\n".join(lines))
    return 1 if status.refused else 0
