"""Analyse the scores of finished runs: correlations, sensitivity to settings, sweeps, rankings, Clever Hans.

example:
  saliency-bench analyse runs/first --what correlation
  saliency-bench analyse runs/first --what sensitivity --out analyses
  saliency-bench analyse runs/first --what clever-hans --confidence 0.95
  saliency-bench analyse runs/pets runs/shapes runs/voc --what correlation
  saliency-bench analyse runs/first --what randomisation --bound 0.5
  saliency-bench analyse runs/first --what agreement --answers answers.csv

The analyses are:

- correlation: correlations between all pairs of metrics, across samples (for each explainer) and, with three or more
  runs, across dataset means
- sensitivity: rank of each explainer under each setting of a metric in the runs
- sweep: scores of a metric for each value of one of its options
- rank: agreement between the metrics on the order of explainers
- clever-hans: samples that are recognised with high confidence from evidence outside the object
- randomisation: explainers whose maps do not depend on the weights, according to saliency_randomisation
- agreement: agreement between metrics and people on the order of explainers, at each exposure

Runs with the same settings are merged. --out is a folder for JSON, CSV, Markdown, LaTeX and a plot.
"""

import json
from argparse import ArgumentParser, Namespace

from saliency_bench.push_scripts import _shared

SECTION = "measure"
WHAT = ("correlation", "sensitivity", "clever-hans", "sweep", "rank", "randomisation", "agreement")
OPTIONS = ("confidence", "pointing_game", "insertion", "option", "bound", "answers")


def arguments(parser: ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run (its --out)")
    parser.add_argument("--what", required=True, choices=WHAT, metavar="WHAT", help=f"the analysis: {', '.join(WHAT)}")
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="folder for the JSON file, the tables and the plot (default: only print the results)",
    )
    parser.add_argument(
        "--option",
        metavar="NAME",
        help="for sweep: option of a metric (default: every option with more than one value in the runs)",
    )
    hans = parser.add_argument_group("for clever-hans")
    hans.add_argument(
        "--confidence",
        type=float,
        metavar="P",
        help="select samples with a confidence in the explained target above P (default: 0.9)",
    )
    hans.add_argument(
        "--pointing-game",
        type=float,
        metavar="X",
        help="select samples with a pointing game score below X (default: 0.5)",
    )
    hans.add_argument(
        "--insertion",
        type=float,
        metavar="X",
        help="select samples with an insertion score above X (default: the explainer's median)",
    )
    about = "for randomisation: similarity above which a map is considered unchanged (default: 0.5)"
    parser.add_argument("--bound", type=float, metavar="X", help=about)
    about = (
        "for agreement: CSV or Parquet file with the columns image_id, explainer, exposure, person, right and, "
        "optionally, dataset"
    )
    parser.add_argument("--answers", metavar="FILE", help=about)
    _shared.output(parser)


def main(args: Namespace) -> None:
    """Analyse finished runs."""
    from saliency_bench.read.report.analyses import analyse

    options = {name: value for name in OPTIONS if (value := getattr(args, name)) is not None}
    analysis = analyse(args.runs, args.what, **options)
    written = analysis.save(args.out) if args.out else []
    if args.json:
        print(json.dumps(analysis.data | {"files": [str(path) for path in written]}, indent=2))
        return
    same = ("dataset", "model") if len(analysis.runs) == 1 else ()
    for table in analysis.tables:
        _shared.show_rows(table.texts(without=same))
        print()
    for note in analysis.findings.notes:
        print(note)
    for path in written:
        print(f"written: {path}")
