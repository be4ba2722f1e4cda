"""Write the report of a finished run, or compare several runs.

example:
  saliency-bench report runs/first
  saliency-bench report runs/first --pairs
  saliency-bench report runs/first --samples
  saliency-bench report runs/resnet runs/vit --out comparison.html
  saliency-bench report runs/first --table table.tex --digits 2 \\
      --labels gradcam=Grad-CAM saliency_miou=mIoU
  saliency-bench report runs/seed-0 runs/seed-1 runs/seed-2 --seeds \\
      --table seeds.tex --figure seeds.pdf

The command writes a single HTML page and prints its tables. Runs with the same settings and the same network are
merged; ranks and comparisons then include all their explainers. Cells with contradictory scores are reported as
conflicts. Any other run is compared with the first run, sample by sample; the output of --json includes this
comparison. The command reads only folders written by `saliency-bench run`, so it needs no model, dataset or network
connection.

With --samples, a second page shows all samples of a run with their maps. The samples can be filtered. The images come
from --data or, by default, from the run's dataset if it is a folder on this machine.

--seeds compares runs on different networks, such as networks trained with different seeds. It prints the mean and the
spread across the networks, with intervals that account for the variation between images and between networks. --table
writes a table for a paper.
"""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from saliency_bench.push_scripts import _shared

SECTION = "measure"


def arguments(parser: ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run (its --out)")
    parser.add_argument("--out", metavar="FILE", help="page to write (default for one run: report.html in its folder)")
    parser.add_argument("--samples", action="store_true", help="also write a page of all samples next to the report")
    text = "dataset of the run, for the images of --samples (default: the run's dataset if it is a folder)"
    parser.add_argument("--data", metavar="DATASET", help=text)
    parser.add_argument("--pairs", action="store_true", help="also print the difference for every pair of explainers")
    text = "also print the scores of correctly and wrongly classified images"
    parser.add_argument("--by-correct", action="store_true", help=text)
    parser.add_argument(
        "--seeds",
        action="store_true",
        help="print one table over networks, with one run per network, and write no page",
    )
    parser.add_argument("--figure", metavar="FILE", help="with --seeds: figure to draw (.pdf, .svg, .png)")
    _shared.paper_table(parser)
    _shared.output(parser)


def main(args: Namespace) -> None:
    """Write the report and print its tables."""
    from saliency_bench.errors import UserError

    style = _shared.paper_style(args)
    if args.seeds:
        _seed_study(args, style)
        return
    if args.figure:
        raise UserError(
            "--figure needs --seeds; for a single run, remove --figure, because the page contains the plots"
        )
    _report(args, style)


def _seed_study(args: Namespace, style: dict[str, Any]) -> None:
    """Print the table of results across networks. Also write the table and its figure if requested."""
    from saliency_bench.errors import UserError
    from saliency_bench.read.report.plots import check_form
    from saliency_bench.read.report.seed_study import seed_study

    for flag in ("out", "pairs", "by_correct", "samples", "data"):
        if getattr(args, flag):
            raise UserError(f"--seeds writes no page and prints no pairs; remove --{flag.replace('_', '-')}")
    if args.figure:
        check_form(Path(args.figure), flag="--figure")
    study = seed_study(args.runs)
    _shared.write_paper_table(study, args.table, style)
    if args.figure:
        study.draw(args.figure, args.labels and style["labels"])
    if args.json:
        print(json.dumps(study.as_dict() | {"table": args.table, "figure": args.figure}, indent=2))
        return
    print(study)
    for kind, path in (("table", args.table), ("figure", args.figure)):
        if path:
            print(f"{kind}: {path}")


def _report(args: Namespace, style: dict[str, Any]) -> None:
    from saliency_bench.errors import UserError
    from saliency_bench.read.analysis.comparison import compare_runs, lines
    from saliency_bench.read.analysis.correctness import by_correctness
    from saliency_bench.read.analysis.pairs import explainer_pairs
    from saliency_bench.read.analysis.tables import dicts
    from saliency_bench.read.analysis.verdict import Verdict
    from saliency_bench.read.finished_run import read_run
    from saliency_bench.read.report.all_samples import samples_place
    from saliency_bench.read.report.report_page import distinct, page_path, write_page
    from saliency_bench.read.summary import covered

    names = [str(folder) for folder in distinct(args.runs)]
    path = page_path([Path(name) for name in names], Path(args.out) if args.out else None)
    runs = [read_run(Path(name)) for name in names]
    comparison = compare_runs(runs)
    if args.table and len(comparison.merged) > 1:
        raise UserError(
            "--table needs runs with the same settings and the same network; pass a single run, or use --seeds for a "
            "table over several networks"
        )
    page = write_page(runs, path, comparison, samples=args.samples, data=args.data)
    _shared.write_paper_table(comparison.merged[0], args.table, style)
    if args.json:
        content: dict[str, Any] = {
            "report": str(page),
            **({"samples": str(samples_place(page))} if args.samples else {}),
            "runs": dict(zip(names, (run.summary for run in runs), strict=True)),
        }
        content |= comparison.as_dict(names) if len(runs) > 1 else {}
        content |= {"table": args.table} if args.table else {}
        if args.pairs:
            content["pairs"] = [
                [pair.as_dict() for _, pairs in explainer_pairs(run) for pair in pairs] for run in comparison.merged
            ]
        if args.by_correct:
            tables = list(map(by_correctness, comparison.merged))
            content["by_correct"] = [dicts(table.header, table.rows) for table in tables]
        print(json.dumps(content, indent=2))
        return
    for run in comparison.merged:
        title = " + ".join(names[number - 1] for number in comparison.numbers(run))
        print(title)
        _shared.show_cells(run.cells, covered(run.summary))
        print()
        for sentence in Verdict(run.cells, run.contrasts).sentences():
            print(sentence)
        print()
        if args.pairs:
            _shared.show_pairs(run)
        if args.by_correct:
            _shared.show_rows(by_correctness(run).texts())
            print()
    for line in lines(comparison, names):
        print(line)
    if args.table:
        print(f"table: {args.table}")
    print(f"report: {page}")
    if args.samples:
        print(f"all samples: {samples_place(page)}")
