"""Make the metrics available to `evaluate.load` by name.

example:
  saliency-bench install-metrics
  python -c "import evaluate; print(evaluate.load('saliency_miou').description)"

The command copies the modules to the cache of evaluate (HF_MODULES_CACHE, by default ~/.cache/huggingface/modules).
`evaluate.load` then finds them from any folder, even offline (HF_EVALUATE_OFFLINE=1). Run the command again after an
update of saliency-bench and after each edit of your own metric; otherwise `evaluate.load` silently uses the old copies.
"""

import argparse
import json
from dataclasses import asdict

from saliency_bench.publishing.install_metrics import install_metrics
from saliency_bench.push_scripts import _shared

SECTION = "extend"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    names = parser.add_argument("names", nargs="*", metavar="NAME", help="metrics to install (default: all)")
    _shared.completed_as(names, "metrics")
    _shared.output(parser, "print a list of {name, path, changed} instead of text")


def main(args: argparse.Namespace) -> None:
    """Install the metrics and print their names and folders."""
    done = install_metrics(args.names)
    if args.json:
        print(json.dumps([asdict(item) for item in done], indent=2))
        return
    for item in done:
        print(f"{'installed' if item.changed else 'unchanged'}  {item.name}  {item.path}")
    line = f"import evaluate; print(evaluate.load('{done[0].name}').description)"
    print(f'\nTry: HF_EVALUATE_OFFLINE=1 python -c "{line}"')
