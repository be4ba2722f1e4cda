"""Score explainers with metrics on a dataset and a classifier.

example:
  saliency-bench run --dataset shapes-xai --model models/resnet-18-shapes \\
      --explainers gradcam rise:masks=1000 random \\
      --metrics saliency_miou saliency_pointing_game --limit 64 --out runs/first
  saliency-bench run --dataset shapes-xai --model models/resnet-18-shapes \\
      --maps mine=my-maps --out runs/mine

The output folder contains the scores of all samples (records.parquet), the table (summary.json) and report.html. The
same command resumes a stopped run. With more explainers or metrics, it computes only the missing scores. If --maps is
set and --explainers is not, no explainers are run.
"""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from saliency_bench.push_scripts import _shared
from saliency_bench.spec import RunSpec

SECTION = "measure"
KEPT = "complete batches", "{out}/scores/*.parquet"  # what is kept when the command is stopped
EXPLAINERS = ("integrated_gradients", "rise:masks=1000", "centre", "random")
METRICS = ("saliency_miou", "saliency_pointing_game", "saliency_insertion")


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    _shared.settings(parser, dataset="shapes-xai", explainers=EXPLAINERS, metrics=METRICS)
    _shared.output(parser)


def main(args: Namespace) -> int:
    """Run explainers and metrics, print the table and return the exit code."""
    from saliency_bench.compute.preflight import check_run_folder, check_settings

    if args.maps and args.explainers is EXPLAINERS:
        args.explainers = ()
    settings = _shared.given(args)
    check_settings(settings)  # before torch is imported
    RunSpec.read(settings)
    check_run_folder(Path(args.out))
    from saliency_bench.compute.python_objects import describe
    from saliency_bench.compute.run import start
    from saliency_bench.read.summary import covered

    result = start(*describe(settings), progress=not args.json)
    if not result.summary:  # another process of the same run prints the results
        return 0
    if args.json:
        print(json.dumps(result.summary, indent=2))
        return _faulty(result)
    if result.complete:
        print(f"nothing to do: {result.folder} already contains every requested score\n")
    _shared.show_cells(result.cells, covered(result.summary))
    print()
    print("\n".join(result.lines))
    return _faulty(result)


def _faulty(result) -> int:
    """Return 2 and print a line if any record of the complete run was left out. Otherwise, return 0."""
    faults = result.summary["faults"]
    if not faults:
        return 0
    from saliency_bench.utils.messages import complain, counted

    reason, total = next(iter(faults)), sum(faults.values())
    left_out = "was left out" if total == 1 else "were left out, for example"
    complain(f"error: {counted(total, 'record')} {left_out}: {reason}; see {result.folder / 'records.parquet'}")
    return 2
