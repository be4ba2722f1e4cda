"""Compute how many images are needed to detect a difference between two explainers.

example:
  saliency-bench power --run runs/first --difference 0.02
  saliency-bench power --spread 0.2 --difference 0.02
  saliency-bench power --spread 0.2 --difference 0.05 \\
      --cluster-size 6 --correlation 0.3 --out power.svg

The command prints the number of images and clusters that the paired test of the reports needs to detect a difference in
80 % of cases. It uses the paired differences of a run (a small run is enough) or an assumed standard deviation
(--spread). As in a report, all pairs of explainers on a metric are tested together; --single tests only one pair. --out
draws the curve.
"""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from saliency_bench.push_scripts import _shared

SECTION = "measure"
SHOWN = 10  # number of pairs that are printed per metric; --json lists all


def arguments(parser: ArgumentParser) -> None:
    """Declare the options of the command."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--run", metavar="RUN", help="folder of a run (its --out)")
    source.add_argument("--spread", type=float, metavar="X",
                        help="standard deviation of the per-image differences between two explainers")  # fmt: skip
    parser.add_argument("--difference", type=float, required=True, metavar="X",
                        help="smallest difference that matters")  # fmt: skip
    parser.add_argument("--power", type=float, default=0.8, metavar="P",
                        help="probability of detecting this difference (default: 0.8)")  # fmt: skip
    parser.add_argument(
        "--single", action="store_true", help="test only one pair of explainers, not all pairs on a metric together"
    )
    parser.add_argument("--cluster-size", type=int, default=1, metavar="N",
                        help="with --spread: images per cluster, such as slices of a patient (default: 1)")  # fmt: skip
    parser.add_argument("--correlation", type=float, default=0.0, metavar="R",
                        help="with --spread: correlation of the differences within a cluster (default: 0)")  # fmt: skip
    parser.add_argument("--out", metavar="FILE", help="draw the curve (.pdf, .svg, .png)")
    _shared.output(parser)


def main(args: Namespace) -> None:
    """Compute how many images are needed to detect a difference between two explainers."""
    from saliency_bench.read.analysis import power
    from saliency_bench.read.finished_run import read_run

    if args.run:
        needed = power.of_run(read_run(Path(args.run)), args.difference, args.power, not args.single)
    else:
        needed = [power.assumed(args.spread, args.difference, args.power, args.cluster_size, args.correlation)]
    comparisons = {} if args.single or not args.run else _pairs(needed)
    curves = {item: power.curve(item, comparisons.get(item.metric, 1)) for item in _widest(needed)}
    if args.out:
        from saliency_bench.read.report.power_curve import write_curves

        named = [(_name(item), item, comparisons.get(item.metric, 1)) for item in curves]
        write_curves(Path(args.out), named, args.power)
    if args.json:
        content: dict[str, Any] = {"needed": [item.as_dict() for item in needed], "power": args.power}
        content["curves"] = [{"of": _name(item), "points": points} for item, points in curves.items()]
        print(json.dumps(content, indent=2))
        return
    for items in _by_metric(needed):
        print(_answer(items[0], len(items), args.power))
    print()
    for title, rows in _tables(needed):
        print(title)
        _shared.show_rows(rows)
        print()
    for item, points in curves.items():
        chances = ", ".join(f"{clusters:,}: {chance:.0%}" for clusters, chance in points)
        chances = chances or "too many clusters are needed"
        print(f"power to detect a difference of {item.difference:g} by number of clusters, {_name(item)}: {chances}")
    if args.out:
        print(f"curve: {args.out}")


def _by_metric(needed: Sequence[Any]) -> list[list[Any]]:
    """Return one list of pairs per metric. Each list is sorted by the number of required images, largest first."""
    return [[item for item in needed if item.metric == metric] for metric in dict.fromkeys(i.metric for i in needed)]


def _answer(item: Any, pairs: int, power: float) -> str:
    """Return a sentence that states how many images this pair of explainers requires on its metric."""
    where = f" on {item.metric}" if item.metric else ""
    which = "any two of these explainers" if pairs > 1 else "the two explainers"
    difference = f"a difference of {item.difference:g} between {which}{where} with a power of {power:.0%}"
    if item.images is None:
        return f"No realistic number of images is enough to detect {difference}."
    clusters = f" ({item.clusters:,} clusters)" if item.images != item.clusters else ""
    return f"{item.images:,} images{clusters} are enough to detect {difference}."


def _pairs(needed: Sequence[Any]) -> dict[str, int]:
    """Return {metric: number of pairs}."""
    metrics = [item.metric for item in needed]
    return {metric: metrics.count(metric) for metric in metrics}


def _widest(needed: Sequence[Any]) -> list[Any]:
    """For each metric, return the pair of explainers that requires the most images."""
    widest: dict[str, Any] = {}
    for item in needed:
        widest.setdefault(item.metric, item)
    return list(widest.values())


def _name(item: Any) -> str:
    return f"{item.metric}, {' and '.join(item.explainers)}" if item.metric else f"spread {item.spread:.3g}"


def _tables(needed: Sequence[Any]) -> list[tuple[str, list[list[str]]]]:
    """Return (title, table rows as text) for each metric."""
    header = ["explainers", "difference now", "spread", "clusters", "images", "clusters now"]
    tables = []
    for items in _by_metric(needed):
        rows = [[
            " and ".join(item.explainers) or "assumed",
            "-" if item.observed is None else f"{item.observed:+.3f}",
            f"{item.spread:.3f}",
            "too many" if item.clusters is None else f"{item.clusters:,}",
            "too many" if item.images is None else f"{item.images:,}",
            f"{item.seen:,}" if item.seen else "-",
        ] for item in items[:SHOWN]]  # fmt: skip
        more = f" (the {SHOWN} of {len(items)} pairs that need the most images)" if len(items) > SHOWN else ""
        metric = items[0].metric or "assumed spread"
        tables.append((f"{metric}: to detect a difference of {items[0].difference:g}{more}",
                       [header, *rows]))  # fmt: skip
    return tables
