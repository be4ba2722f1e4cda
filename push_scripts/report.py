"""Write the page of a finished run, or of several side by side, and print their tables.

example:
  saliency-bench report runs/first
  saliency-bench report runs/resnet runs/vit --out comparison.html

Reads the folders that `saliency-bench run` wrote; needs neither the model nor the dataset, and no network.
"""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from saliency_bench.push_scripts import _shared


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run (its --out)")
    parser.add_argument("--out", metavar="FILE", help="page to write (default, for one run: report.html in its folder)")
    _shared.json(parser)


def main(args: Namespace) -> None:
    from saliency_bench.reporting import report
    from saliency_bench.summary import read_json, table

    page = report(args.runs, args.out)
    summaries = {folder: read_json(Path(folder) / "summary.json") for folder in args.runs}
    if args.json:
        print(json.dumps({"report": str(page), "runs": summaries}, indent=2))
        return
    for folder, summary in summaries.items():
        print(f"{folder}\n{table(summary)}\n")
    print(f"report: {page}")
