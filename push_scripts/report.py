"""Write the page of a finished run, or of several side by side, and print their tables.

example:
  saliency-bench report runs/first
  saliency-bench report runs/resnet runs/vit --out comparison.html

For several runs, cells with the same id are shown once, or as a conflict where their scores differ; the first run is
compared with every other one, sample by sample, also in --json. Reads folders written by `saliency-bench run`; needs no
model, no dataset and no network.
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
    from saliency_bench.analysis.comparison import compare_runs, lines
    from saliency_bench.reports.page import page_path, write_page
    from saliency_bench.results.run_folder import read_run
    from saliency_bench.results.summary import table

    folders = [Path(folder) for folder in args.runs]
    path = page_path(folders, Path(args.out) if args.out else None)
    runs = [read_run(folder) for folder in folders]
    comparison = compare_runs(runs)
    page = write_page(runs, path, comparison)
    if args.json:
        told = {"report": str(page), "runs": dict(zip(args.runs, (run.as_json() for run in runs), strict=True))}
        print(json.dumps(told | (comparison.as_dict(args.runs) if len(runs) > 1 else {}), indent=2))
        return
    for folder, run in zip(args.runs, runs, strict=True):
        print(f"{folder}\n{table(run.cells, run.summary['dataset']['used'])}\n")
    for line in lines(comparison, args.runs):
        print(line)
    print(f"report: {page}")
