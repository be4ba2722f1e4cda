"""Choose the explainer to use for your network and images.

example:
  saliency-bench choose --dataset shapes-xai --model models/resnet-18-shapes \\
      --within 30m --out choices/shapes
  saliency-bench choose --dataset my-pictures --model models/mine \\
      --for faithfulness --out choices/mine

All explainers that support the network are candidates, with a few settings each. Candidates that are significantly
worse are dropped. The others are run on more images until one candidate is left, the remaining candidates are
equivalent, or the time is up. The output folder contains choice.html (the result with its evidence), choice.json, and
the run with all scores. If the dataset has no masks, only metrics that need no masks are used. The same command resumes
a stopped choice, and extends an earlier choice with more time, images or candidates.
"""

import json
from argparse import ArgumentParser, Namespace

from saliency_bench.push_scripts import _shared

SECTION = "measure"
KEPT = "complete batches", "{out}/run/scores/*.parquet"  # what is kept when the command is stopped
QUESTIONS = ("alignment", "faithfulness", "debugging", "stability")
SETTINGS = ("dataset", "model", "prompts", "out", "split", "target", "label_column", "label_map", "groups",
            "activation", "only", "mask_values", "limit", "batch_size", "seed", "precision", "channels_last",
            "compile", "device")  # fmt: skip


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--for", dest="for_", nargs="+", default=[], choices=QUESTIONS, metavar="QUESTION",
                        help=f"purpose of the maps: {', '.join(QUESTIONS)} "
                        "(default: faithfulness and, if there are masks, alignment)")  # fmt: skip
    parser.add_argument("--within", default="30m", metavar="TIME",
                        help="time limit, such as 90s, 30m or 2h, or none; costs are measured on this machine "
                             "(default: 30m)")  # fmt: skip
    parser.add_argument("--margin", type=float, default=0.02, metavar="X",
                        help="largest score difference that counts as negligible (default: 0.02)")  # fmt: skip
    parser.add_argument("--explainers", nargs="+", metavar="NAME",
                        help="candidates besides the baselines (default: all that support the network)")  # fmt: skip
    parser.add_argument("--metrics", nargs="+", metavar="NAME",
                        help="metrics on which the choice is based (default: the metrics for --for)")  # fmt: skip
    _shared.settings(parser, *SETTINGS, batch_size=8)
    _shared.output(parser)


def main(args: Namespace) -> None:
    """Choose an explainer and print the result."""
    from saliency_bench.recipes.choosing.choose import choose

    settings = _shared.given(args, "explainers", "metrics")
    choice = choose(
        for_=args.for_, within=args.within, margin=args.margin, explainers=args.explainers, metrics=args.metrics,
        progress=not args.json, **settings,
    )  # fmt: skip
    print(json.dumps(choice.content, indent=2) if args.json else choice)
