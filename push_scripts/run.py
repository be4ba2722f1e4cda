"""Score explainers by metrics on a dataset and a classifier; write records, summary and report.

example:
  saliency-bench run --dataset shapes-xai --model models/resnet-18-shapes --explainers gradcam rise:masks=1000 random \\
      --metrics saliency_miou saliency_pointing_game --limit 64 --out runs/first
"""

import json
from argparse import ArgumentParser, Namespace

from saliency_bench.push_scripts import _shared

EXPLAINERS = ("integrated_gradients", "rise:masks=1000", "centre", "random")
METRICS = ("saliency_miou", "saliency_pointing_game", "saliency_insertion")


def arguments(parser: ArgumentParser) -> None:
    _shared.settings(parser, dataset="shapes-xai", explainers=EXPLAINERS, metrics=METRICS)
    _shared.json(parser)


def main(args: Namespace) -> int:
    from saliency_bench.engine.python_objects import describe
    from saliency_bench.engine.run import start
    from saliency_bench.results.summary import LEGEND

    result = start(*describe(_shared.given(args)), progress=not args.json)
    if not result.summary:  # another process of the same run prints
        return 0
    if args.json:
        print(json.dumps(result.summary, indent=2))
        return _faulty(result)
    accuracy = result.summary["model"]["accuracy"]
    print(f"{result}\n")
    right = "accuracy unknown" if accuracy["value"] is None else f"accuracy {accuracy['value']:.1%}"
    print(f"{accuracy['n']} samples, {right}, {LEGEND}")
    print(f"report: {result.report}")
    return _faulty(result)


def _faulty(result) -> int:
    """2 if anything failed, with one line about it; the run is complete all the same."""
    faults = result.summary["faults"]
    if not faults:
        return 0
    from saliency_bench.utils.messages import complain

    reason = next(iter(faults))
    complain(
        f"error: {sum(faults.values())} records were left out, for example: {reason}; "
        f"all are in {result.folder / 'records.parquet'}"
    )
    return 2
