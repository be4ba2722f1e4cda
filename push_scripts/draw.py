"""Draw how a metric uses the maps of selected samples of a run.

example:
  saliency-bench draw runs/first runs/second --what maps --out maps.png
  saliency-bench draw runs/first --what insertion --out insertion.pdf
  saliency-bench draw runs/first --what classes --samples cat-7 --out a.png
  saliency-bench draw runs/pairs --what models --explainers gradcam --out b.png

The drawings are:

- maps: image, mask and the map of each explainer, with the scores from the run
- insertion: the image while the top pixels of each map are inserted, with the probability of the class, and the score
  of saliency_insertion
- classes: maps of the most and of the least likely class, and the score of saliency_class_sensitivity
- models: maps of the run's model and of its other model, and the scores of saliency_mcr and saliency_mcs
- object: maps of the other model with and without the object (image_without_object), and the score of saliency_idr

If several runs are given, they are drawn one below the other. The dataset and model of a run are loaded again, and the
maps are recomputed.
"""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from saliency_bench.push_scripts import _shared

SECTION = "measure"


def arguments(parser: ArgumentParser) -> None:
    """Declare the options of the command."""
    from saliency_bench.compute.preflight import DRAWINGS, DRAWN_FIRST, PICTURE_FORMS

    parser.add_argument("runs", metavar="RUN", nargs="+", help="folders of runs (their --out)")
    parser.add_argument("--what", required=True, choices=DRAWINGS, metavar="WHAT", help=", ".join(DRAWINGS))
    about = f"ids of the samples (default: the first {DRAWN_FIRST} of the run)"
    parser.add_argument("--samples", nargs="+", metavar="ID", help=about)
    _shared.setting(parser, "explainers", default=None, text="explainers to draw (default: all explainers of the run)")
    parser.add_argument(
        "--out", required=True, metavar="FILE", help=f"image file to write ({', '.join(PICTURE_FORMS)})"
    )
    _shared.settings(parser, "device")
    _shared.output(parser)


def main(args: Namespace) -> None:
    """Draw the maps and print the scores of the samples."""
    from saliency_bench.compute.preflight import check_drawing

    out, runs = Path(args.out), [Path(run) for run in args.runs]
    check_drawing(runs, args.what, args.explainers, out)  # before torch is imported
    from saliency_bench.panels import draw

    options = {"samples": args.samples, "explainers": args.explainers, "device": args.device, "out": out}
    scores = draw(runs, args.what, **options).scores
    if args.json:
        print(json.dumps({"what": args.what, "out": args.out, "scores": scores}, indent=2))
        return
    header = list(dict.fromkeys(name for row in scores for name in row))
    rows = [["–" if row.get(name) is None else _text(row[name]) for name in header] for row in scores]
    _shared.show_rows([header, *rows])
    print(f"picture: {out}")


def _text(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
