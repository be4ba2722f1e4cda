"""Render docs/reference.md: five questions, each answered with numbers from finished runs of the suite `reference`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import findings_data
import numpy as np
from findings import WITH_MASKS
from findings_page import against_baselines, interval, leaders, passes_of, short
from reference_figures import draw_agreement, draw_beaten, draw_costs, draw_orders

from saliency_bench.read.analysis.rankings import means_of, rank_correlations
from saliency_bench.read.analysis.verdict import listed
from saliency_bench.read.cell import CellResult, as_json, explainer_names
from saliency_bench.read.finished_run import Run
from saliency_bench.read.run_folder import CellScores, RunFiles
from saliency_bench.read.statistics.clusters import cluster_codes
from saliency_bench.read.statistics.intervals import Estimate
from saliency_bench.read.statistics.ranking import RANKED_FROM
from saliency_bench.read.statistics.reliability import LOW, read_reliability
from saliency_bench.recipes.suites.costs import Cost, cost_of_image, cost_of_map
from saliency_bench.recipes.suites.suite_jobs import metrics_of
from saliency_bench.recipes.suites.suite_schema import Suite, find_suite

FILE = Path(__file__).with_name("reference.parquet")
SETS = ("pets", "voc", "coco", "photos")
PHOTOGRAPHS = {"lite0": "Lite0", "lite1": "Lite1", "lite2": "Lite2"}
SHAPES = {"resnet-shapes": "ResNet, shapes", "vit-shapes": "ViT, shapes"}
CURVES = ("saliency_insertion", "saliency_deletion")
# Images per dataset in the larger study, and its assumed speed in images per second on one H100 (docs/speed.md, fp32,
# ResNet-18, 224 x 224 pixels): 16,000 passes of RISE take 1.938 s, 800 passes with gradients take 0.239 s.
LARGE = 1000
FORWARD, GRADIENT = 16_000 / 1.938, 800 / 0.239
SHOWN = 4  # number of pairs of metrics that are listed
LAYERS = 4  # stages of saliency_randomisation in the suite, each with a map; the metric declares no passes


Runs = Mapping[str, Sequence[Run]]


class Order(NamedTuple):
    """Correlation between two rankings of explainers.

    Attributes:
        subject: Description of the comparison.
        metric: Metric on which both rankings are based.
        rho: Spearman's rho with its interval.
        explainers: Number of explainers.
        same_best: Whether the same explainer is first in both rankings.
    """

    subject: str
    metric: str
    rho: Estimate
    explainers: int
    same_best: bool

    @property
    def above(self) -> bool:
        """Return whether the interval lies above 0."""
        return self.rho.low is not None and self.rho.low > 0

    @property
    def below(self) -> bool:
        """Return whether the interval lies below 0."""
        return self.rho.high is not None and self.rho.high < 0


def load(file: Path = FILE) -> findings_data.Findings:
    """Return the runs of the study, and the runs of the findings with names that do not occur in the study."""
    data = findings_data.load(file)
    return data._replace(runs=findings_data.load().runs | data.runs)


def pooled(runs: Mapping[str, Run]) -> Run:
    """Merge runs {name: run} on different images into one, with their common cells and statistics over all images."""
    keys = set.intersection(*({_key(cell) for cell in run.cells} for run in runs.values()))
    first = next(iter(runs.values()))
    cells = [cell for cell in first.cells if _key(cell) in keys]
    values = {cell.cell_id: np.concatenate([_scores(run, cell) for run in runs.values()]) for cell in cells}
    ids = [f"{name}/{image}" for name, run in runs.items() for image in run.scores.ids]
    groups = [group and f"{name}/{group}" for name, run in runs.items() for group in run.scores.groups]
    return findings_data.analysed(_changed(first, cells, CellScores(ids, groups, values)))


def _changed(run: Run, cells: Sequence[CellResult], scores: CellScores) -> Run:
    """Return a run with other cells and scores."""
    return replace(run, summary=run.summary | {"cells": as_json(cells)}, files=RunFiles(scores))


def _key(cell: CellResult) -> tuple[str, str]:
    return cell.explainer_text, cell.metric_text


def _scores(run: Run, like: CellResult) -> np.ndarray:
    """Return the scores in a run for the explainer and the metric of a cell."""
    return run.scores.values[next(cell.cell_id for cell in run.cells if _key(cell) == _key(like))]


def of_photographs(data: findings_data.Findings, kind: str = "") -> dict[str, Run]:
    """Return {network: merged runs on photographs}. `kind` is "-sampled" for the runs with all explainers."""
    found = {}
    for network in PHOTOGRAPHS:
        if runs := {name: run for name in SETS if (run := data.runs.get(f"{network}-{name}{kind}"))}:
            found[network] = pooled(runs)
    return found


def of_shapes(data: findings_data.Findings) -> dict[str, Run]:
    """Return {network: its run on shapes}."""
    return {name: run for name in SHAPES if (run := data.runs.get(f"{name}-shapes"))}


def all_runs(data: findings_data.Findings) -> tuple[Runs, Runs]:
    """Return {network: runs} on photographs and on shapes.

    If faithfulness was measured in a separate run, this run comes second.
    """
    photographs = {network: [run] for network, run in of_photographs(data).items()}
    for network, run in of_photographs(data, "-sampled").items():
        if network in photographs and not any(cell.metric in CURVES for cell in photographs[network][0].cells):
            photographs[network].append(run)
    return photographs, {network: [run] for network, run in of_shapes(data).items()}


def named(network: str) -> str:
    """Return the name of a network on the page."""
    return (PHOTOGRAPHS | SHAPES)[network]


# 1. Which explainers beat all baselines, and where?


def beaten(runs: Mapping[str, Sequence[Run]]) -> dict[str, dict[str, list[str]]]:
    """Return {network: {metric: explainers significantly better than every baseline}}.

    The metrics measure agreement with a mask, or faithfulness, and have enough images for a test. If several runs of a
    network have a metric, the first one is used.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for network, of_network in runs.items():
        found[network] = {}
        for run in of_network:
            comparisons = against_baselines(run)
            tested = {comparison.metric for comparison in comparisons if comparison.sign is not None}
            texts = {cell.metric: cell.metric_text for cell in run.cells if cell.metric in (*WITH_MASKS, *CURVES)}
            for metric, text in texts.items():
                if text in tested:
                    names = [name.partition(":")[0] for name in leaders(comparisons, text)]
                    found[network].setdefault(metric, names)
    return found


def question_beaten(photographs: Runs, shapes: Runs) -> list[str]:
    """Return sentences about the baselines. Both arguments are {network: runs}."""
    lines = []
    for about, runs in (
        ("On photographs", photographs),
        ("On shapes, where only the object determines the class", shapes),
    ):
        if not runs:
            continue
        found = beaten(runs)
        cases = [names for metrics in found.values() for names in metrics.values()]
        count = Counter(name for names in cases for name in names)
        sizes = [f"{named(network)} n = {size_of(of_network)}" for network, of_network in runs.items()]
        lines.append(
            f"- {about} ({'; '.join(sizes)}), at least one explainer is significantly better than `centre`, `edges` "
            f"and `random` in {sum(map(bool, cases))} of {len(cases)} cases."
        )
        for name, number in count.most_common():
            run_with = sum(len(found[network]) for network in runs if name in names_of(runs[network]))
            lines.append(f"  - {name}: {number} of {run_with}.")
        metrics = dict.fromkeys(metric for of_metrics in found.values() for metric in of_metrics)
        never = [short(metric) for metric in metrics if not any(of.get(metric) for of in found.values())]
        if never:
            named_metrics = listed(never, "or")
            lines.append(f"  - No explainer beats all three baselines with any network according to {named_metrics}.")
    return lines


def size_of(runs: Sequence[Run]) -> str:
    """Return the numbers of images in a network's runs as a string. The second run, if any, is for faithfulness."""
    sizes = [str(len(run.scores.ids)) for run in runs]
    return sizes[0] + (f", {sizes[1]} for faithfulness" if sizes[1:] else "")


# 2. Which metrics agree?


def agreements(run: Run) -> dict[tuple[str, str], Estimate]:
    """Return {(metric, other): Spearman's rho between the rankings of all explainers, including baselines}."""
    columns = {metric: [cell for cell in run.cells if cell.metric == metric]
               for metric in dict.fromkeys(cell.metric for cell in run.cells)}  # fmt: skip
    return {pair: order_of_runs(run, columns[pair[0]], run, columns[pair[1]]) for pair in combinations(columns, 2)}


def order_of_runs(
    run: Run, cells: Sequence[CellResult], other: Run, others: Sequence[CellResult]
) -> Estimate:  # fmt: skip
    """Return Spearman's rho between two rankings of the same explainers, with its interval.

    Each ranking comes from a list of cells; only explainers in both lists count. Equal image ids mean the same image.
    An image that occurs in only one run is used only for this run.
    """
    by_name = {cell.explainer: cell for cell in others}
    pairs = [(cell, by_name[cell.explainer]) for cell in cells if cell.explainer in by_name]
    ids = list(dict.fromkeys([*run.scores.ids, *other.scores.ids]))
    first = _table(run, [cell for cell, _ in pairs], ids)
    second = _table(other, [cell for _, cell in pairs], ids)
    groups: dict[str, str | None] = {}
    for scores in (other.scores, run.scores):
        groups |= zip(scores.ids, scores.groups, strict=True)
    codes = cluster_codes(ids, [groups[image] for image in ids])
    return rank_correlations(lambda weights: [means_of(first, weights), means_of(second, weights)], codes,
                             run.seed)[0]  # fmt: skip


def _table(run: Run, cells: Sequence[CellResult], ids: Sequence[str]) -> np.ndarray:
    """Return the scores (images, cells), where higher is better; NaN if the run does not contain the image."""
    table = np.full((len(ids), len(cells)), np.nan)
    places = [ids.index(image) for image in run.scores.ids]
    for column, cell in enumerate(cells):
        table[places, column] = run.scores.oriented(cell)
    return table


def kinds(pair: tuple[str, str]) -> str:
    """Return the types of the two metrics of a pair as a string."""
    return " and ".join(sorted("masks" if metric in WITH_MASKS else "faithfulness" if metric in CURVES else "behaviour"
                               for metric in pair))  # fmt: skip


def question_agree(runs: Mapping[str, Run]) -> list[str]:
    """Return sentences about the agreement of metrics. `runs` is {description: run}."""
    lines = []
    for about, run in runs.items():
        found = agreements(run)
        sure = {pair: rho for pair, rho in found.items() if rho.low is not None and not rho.low <= 0 <= rho.high}
        against = sum(rho.value < 0 for rho in sure.values())
        names = len({cell.explainer for cell in run.cells})
        lines.append(f"- {about} ({names} explainers and baselines, n = {len(run.scores.ids)}): for {len(sure)} of "
                     f"{len(found)} pairs of metrics, the interval excludes 0" + (f" ({against} of them are below 0)."
                     if against else "."))  # fmt: skip
        by_kind: dict[str, list[float]] = {}
        for pair, rho in found.items():
            if np.isfinite(rho.value):
                by_kind.setdefault(kinds(pair), []).append(rho.value)
        means = [f"{kind} {np.mean(values):.2f} ({len(values)})" for kind, values in sorted(by_kind.items())]
        lines.append("  - Mean correlation for each pair of types (with the number of pairs of metrics): "
                     f"{', '.join(means)}.")  # fmt: skip
        strongest = sorted(sure.items(), key=lambda of: -abs(of[1].value))[:SHOWN]
        lines += [f"  - {short(first)} and {short(other)}: {ends(rho)}." for (first, other), rho in strongest]
        lines += [f"  - {len(sure) - SHOWN} more pairs with weaker correlations."] if len(sure) > SHOWN else []
    return lines


def ends(rho: Estimate) -> str:
    """Return a correlation with its interval as a string."""
    return interval(rho.value, rho.low, rho.high)


# 3. Does the order on shapes predict the order on photographs? 5. What changes from network to network?


def orders(first: Run, other: Run, subject: str) -> list[Order]:
    """Return, for each mask-agreement metric, the correlation between the rankings of two runs.

    Baselines are excluded, because they ignore the network.
    """
    found = []
    for metric in WITH_MASKS:
        cells, others = ([cell for cell in run.cells if cell.metric == metric and not cell.baseline]
                         for run in (first, other))  # fmt: skip
        shared = {cell.explainer_text for cell in cells} & {cell.explainer_text for cell in others}
        cells, others = ([cell for cell in of if cell.explainer_text in shared] for of in (cells, others))
        if len(shared) >= 3:
            best = [max(of, key=lambda cell: cell.oriented).explainer for of in (cells, others)]
            rho = order_of_runs(first, cells, other, others)
            found.append(Order(subject, metric, rho, len(shared), best[0] == best[1]))
    return found


def from_shapes(photographs: Mapping[str, Run], shapes: Mapping[str, Run]) -> list[Order]:
    """Return the correlations between the ranking for the ResNet on shapes and that for each network on photographs."""
    if "resnet-shapes" not in shapes:
        return []
    return [
        order for network, run in photographs.items() for order in orders(shapes["resnet-shapes"], run, named(network))
    ]


def between_networks(data: findings_data.Findings) -> list[Order]:
    """Return how well the rankings for each pair of networks agree on the photographs that the two runs share."""
    found = []
    for first, other in combinations(PHOTOGRAPHS, 2):
        both: list[dict[str, Run]] = [{}, {}]
        for name in SETS:
            runs = [data.runs.get(f"{network}-{name}") for network in (first, other)]
            if all(runs):
                common = set(runs[0].scores.ids) & set(runs[1].scores.ids)
                for of, run in zip(both, runs, strict=True):
                    of[name] = only(run, common)
        if both[0]:
            found += orders(pooled(both[0]), pooled(both[1]), f"{named(first)}, {named(other)}")
    return found


def only(run: Run, images: set[str]) -> Run:
    """Return a run restricted to some of its images, sorted by id."""
    scores = run.scores
    places = [place for place, image in enumerate(scores.ids) if image in images]
    places.sort(key=lambda place: scores.ids[place])
    ids, groups = ([column[place] for place in places] for column in (scores.ids, scores.groups))
    values = {key: values[places] for key, values in scores.values.items()}
    return _changed(run, run.cells, CellScores(ids, groups, values))


def question_shapes(found: Sequence[Order], shapes: Mapping[str, Run]) -> list[str]:
    """Return sentences about the ranking on shapes."""
    if not found:
        return []
    values = [order.rho.value for order in found]
    sure, images = sum(order.above for order in found), len(shapes["resnet-shapes"].scores.ids)
    lines = [f"- Of {len(found)} comparisons (combinations of a metric and a network; {found[0].explainers} explainers "
             f"without baselines, {images} shapes), {sure} have an interval above 0 and "
             f"{sum(order.below for order in found)} have an interval below 0. Spearman's correlation is "
             f"{np.mean(values):.2f} on average, from {min(values):.2f} to {max(values):.2f}.",
             f"- The explainer with the highest mean on shapes also has the highest mean on photographs in "
             f"{sum(order.same_best for order in found)} of {len(found)} comparisons."]  # fmt: skip
    above: dict[str, list[bool]] = {}
    for order in found:
        above.setdefault(short(order.metric), []).append(order.above)
    for metric, of_networks in above.items():
        mean = np.mean([order.rho.value for order in found if short(order.metric) == metric])
        lines.append(
            f"  - {metric}: {mean:.2f} on average; the interval is above 0 for {sum(of_networks)} of "
            f"{len(of_networks)} networks."
        )
    carried = [metric for metric, of_networks in above.items() if all(of_networks)]
    about = (f"the rankings of these {found[0].explainers} explainers on shapes and on photographs are related for "
             "every network")  # fmt: skip
    rest = "According to the other metrics, the relation is undecided or reversed for at least one network."
    if not carried:
        return [*lines, f"- Therefore, there is no metric according to which {about}."]
    return [*lines, f"- Therefore, according to {listed(carried)}, {about}."
            + (f" {rest}" if len(carried) < len(above) else "")]  # fmt: skip


def question_networks(found: Sequence[Order], metrics: Mapping[str, Run]) -> list[str]:
    """Return sentences about the differences between networks and between metrics."""
    if not found:
        return []
    values = [order.rho.value for order in found]
    lines = [f"- Of {len(found)} comparisons (each of one metric and two networks on the same photographs; "
             f"{found[0].explainers} explainers without baselines), {sum(order.above for order in found)} have an "
             f"interval above 0. Spearman's correlation is {np.mean(values):.2f} on average ({min(values):.2f} to "
             f"{max(values):.2f}).",
             f"- The same explainer has the highest mean with both networks in {sum(o.same_best for o in found)} of "
             f"{len(found)} comparisons."]  # fmt: skip
    others = [order_between(run) for run in metrics.values()]
    if others:
        mean = float(np.mean(others))
        less = "lower" if mean < np.mean(values) else "not lower"
        lines.append(f"- For the same explainers and only one network, the correlation between the rankings according "
                     f"to two mask-agreement metrics is {less}: {mean:.2f} on average. This difference was "
                     "not tested.")  # fmt: skip
    return lines


def order_between(run: Run) -> float:
    """Return the mean of Spearman's rho over all pairs of mask-agreement metrics, without baselines."""
    cells = [cell for cell in run.cells if not cell.baseline and cell.metric in WITH_MASKS]
    values = [rho.value for rho in agreements(_changed(run, cells, run.scores)).values()]
    return float(np.nanmean(values))


# 4. How much do the explainers cost?


def question_costs(shapes: Mapping[str, Run], metric: str = "saliency_average_precision") -> list[str]:
    """Return sentences about passes and scores on shapes."""
    lines = []
    for network, run in shapes.items():
        cells = [cell for cell in run.cells if cell.metric == metric and cell.value is not None and not cell.baseline]
        passes, images = passes_of(run), len(run.scores.ids)
        best = max(cells, key=lambda cell: cell.oriented)
        text = (f"- {named(network)} (n = {images}): {best.explainer_text} has the highest mean {short(metric)} "
                f"({best.value:.3f}; forward passes per map: {passes[best.explainer_text]:.0f}).")  # fmt: skip
        if unbeaten := [cell for cell in cells if cell.unbeaten]:
            cheap = min(unbeaten, key=lambda cell: (passes[cell.explainer_text], -cell.oriented))
            text += (" Among the explainers that no other explainer significantly beats, "
                     f"{cheap.explainer_text} needs the fewest passes "
                     f"(mean {cheap.value:.3f}; forward passes per map: "
                     f"{passes[cheap.explainer_text]:.0f}).")  # fmt: skip
        lines.append(text)
        names = explainer_names(run.cells)
        known = {names[key]: about for key, about in read_reliability(run.summary).items() if key in names}
        low = [f"{name} ({about.median:.2f})" for name, about in known.items() if about.median < LOW]
        if known:
            lines.append(f"  - Of {len(known)} explainers with random draws, {len(low)} have a median "
                         f"[reliability](reliability.md) below {LOW}"
                         + (f": {', '.join(low)}." if low else "."))  # fmt: skip
    return lines


def plan(suite: Suite | None = None, images: int = LARGE) -> list[tuple[str, int, Cost, float]]:
    """Return (run, images x networks, cost, hours on one H100) for each run of the whole suite.

    Each dataset has `images` images, except Photos-XAI, which has four. A map of 64 x 64 pixels is assumed to cost as
    much as a map of 224 x 224 pixels.
    """
    suite = suite or find_suite("reference")[1]
    rows = []
    for name, run in suite.runs.items():
        metrics = metrics_of(suite, suite.tables, name)
        count = sum(4 if dataset == "photos" else images for dataset in run.datasets) * len(run.models)
        cost = cost_of_image([(explainer, metric) for explainer in run.explainers for metric in metrics])
        if any(metric.startswith("saliency_randomisation") for metric in metrics):
            cost = sum((of_map(text).times(LAYERS) for text in run.explainers), cost)
        cost = cost.times(count)
        rows.append((name, count, cost, (cost.forward / FORWARD + cost.gradient / GRADIENT) / 3600))
    return rows


@cache
def of_map(text: str) -> Cost:
    """Return the cost of a map of an explainer."""
    from saliency_bench.bound_explainer import as_explainer

    return cost_of_map(as_explainer(text))


def plan_table() -> str:
    """Return the plan of the larger study as a Markdown table."""
    lines = ["| run | images x networks | forward passes | passes with gradients | hours on one H100 |",
             "|---|---:|---:|---:|---:|"]  # fmt: skip
    rows = plan()
    lines += [f"| {name} | {count:,} | {cost.forward / 1e6:,.0f} M | {cost.gradient / 1e6:,.1f} M | {hours:,.1f} |"
              for name, count, cost, hours in rows]  # fmt: skip
    return "\n".join([*lines, f"| all | | | | {sum(hours for *_, hours in rows):,.1f} |"])


PAGE = """# Reference study: several networks, on photographs and on drawings

This page answers five questions about explainers and metrics, with several networks. [Findings](findings.md) examines
one network on photographs; this page compares three networks on photographs, and two networks on synthetic drawings in
which only the object determines the class (Shapes-XAI, called *shapes* below). The masks cover whole objects, but a
network may use only a part of an object, or its surroundings. The maps explain the predicted class; if the prediction
is wrong, a correct map does not necessarily highlight the object. Each result states its number of images (n). These
numbers are small; with more images, comparisons that are undecided here may be decided. All numbers, and the sentences
that contain them, are generated from the scores ([see below](#how-this-page-was-made)).

The networks tested on photographs are EfficientNet-Lite0 to Lite2 with ImageNet weights. A ResNet and a ViT were
trained on the shapes. The table shows the accuracy of each network on n images:

{networks}

## Which explainers beat all baselines, and where?

![Proportion of metrics for which each explainer beats all baselines, for each network](pictures/reference-beaten.svg)

Each cell shows two numbers, such as 4/8. The second is the number of metrics that were tested: all mask-agreement and
faithfulness metrics with at least {fewest} images. The first is the number of these metrics according to which the
explainer is significantly better than `centre`, `edges` and `random`. Empty cells were not computed. For each network,
the tests are corrected for multiple comparisons over explainers and metrics, but not over networks. Lite1 and Lite2
were evaluated on a subset of the photographs used for Lite0, so their results are not independent.

In the list below, a case is one metric with one network. For each explainer, the list shows the number of
cases in which it beats all three baselines, out of all cases in which it was tested.

{beaten}

## Which metrics agree?

![Correlations between the rankings of explainers for each pair of metrics, clustered](pictures/reference-metrics.svg)

The numbers below the diagonal are Spearman's correlations between the rankings of the explainers, including baselines,
according to two metrics. The rows are sorted so that metrics that agree are neighbours. Above the diagonal are the
intervals of these correlations. Several pairs of rankings are compatible with the images, and each interval spans the
correlations of all these pairs. Correlations are bold if the interval excludes 0. All intervals on this page show how
much each correlation may change with different images, but with the same explainers.

In the list below, metrics are of three types: *masks* (agreement with a mask), *faithfulness* (insertion and deletion)
and *behaviour* (dependence on weights and class, and sensitivity).

{agree}

## Does the ranking on shapes predict the ranking on photographs?

![Correlation between the rankings of explainers on shapes and on photographs](pictures/reference-shapes.svg)

The figure shows Spearman's correlation, with its interval, between the ranking for the ResNet on shapes and the ranking
for each network on photographs. A correlation of 1 means the same ranking, and 0 means no relation. The networks share
photographs, so the comparisons are not independent.

{shapes}

## How much do the explainers cost?

![Average precision on shapes and number of passes, for each explainer](pictures/reference-costs.svg)

The figure shows the average precision of each explainer on shapes, and in brackets its number of forward passes per
map. Explainers that use gradients also need backward passes. Baselines are grey and need no passes. An explainer that
no other explainer significantly beats is not necessarily the best: {images} images are too few to show small
differences.

{costs}

The table shows the cost of each run of the `reference` suite on one H100, with {large:,} images of each dataset and the
default options of all explainers:

{plan}

The table assumes that every network is as fast as ResNet-18 in fp32 on the page [Speed](speed.md):
{forward:,.0f} forward passes and {gradient:,.0f} passes with gradients per second, on images of 224 x 224 pixels.
It also assumes that Score-CAM uses 512 channels (EfficientNet-Lite has 1,280), and that the randomisation test needs
{layers} maps per image. The networks on shapes need much less time than the table shows, because their images have only
64 x 64 pixels. The hours include only the passes through the networks.

## How much do rankings differ between networks?

![Correlation between the rankings of explainers for each pair of networks](pictures/reference-networks.svg)

The figure shows Spearman's correlation, with its interval, between the rankings for two networks on the same
photographs. All three networks are EfficientNet-Lite; networks from different families may differ more.

{between}

## How this page was made

<!-- skip: next -->
```sh
python benchmarks/reference.py --sources raw --data data --work reference --limit {limit} --out docs/reference.md
```

The command uses at most {limit} photographs of each dataset for Lite1 and Lite2. To save time, explainers and metrics
use the small settings in `SMALL` (`benchmarks/reference.py`), which are far below the defaults. The scores of Lite0 are
from the runs of the page [Findings](findings.md). The scores of individual images are in
`benchmarks/reference.parquet`; a test generates this page again from these scores and checks that it is unchanged.

For the larger study, run the whole `reference` suite. The folder that you pass as `--data` contains built datasets and
checkpoints; those that it does not contain are loaded from the Hub:

```console
$ saliency-bench suite reference --data data --out reference --limit {large} --plan
$ python benchmarks/reference.py --data data --work reference --limit {large} --full --out docs/reference.md
```
"""


def accuracies(data: findings_data.Findings) -> str:
    """Return a Markdown table of the networks' accuracies on datasets with labels that are classes of the network."""
    lines = ["| network | dataset | accuracy | n |", "|---|---|---:|---:|"]
    for network in (*PHOTOGRAPHS, *SHAPES):
        for name in ("shapes",) if network in SHAPES else SETS:
            accuracy = data.runs[key].summary["model"]["accuracy"] if (key := f"{network}-{name}") in data.runs else {}
            if accuracy.get("value") is not None:
                model = named(network).partition(",")[0]
                lines.append(f"| {model} | {name} | {accuracy['value']:.2f} | {accuracy['n']} |")
    return "\n".join(lines) if lines[2:] else ""


def page(data: findings_data.Findings) -> str:
    """Return the text of the page."""
    photographs, shapes = of_photographs(data), of_shapes(data)
    return PAGE.format(
        networks=accuracies(data), fewest=RANKED_FROM, beaten="\n".join(question_beaten(*all_runs(data))),
        agree="\n".join(question_agree(compared(data))),
        shapes="\n".join(question_shapes(from_shapes(photographs, shapes), shapes)),
        costs="\n".join(question_costs(shapes)), images=data.sampled, plan=plan_table(),
        large=LARGE, forward=FORWARD, gradient=GRADIENT,
        layers=LAYERS, between="\n".join(question_networks(between_networks(data), photographs)), limit=data.images,
    )  # fmt: skip


def compared(data: findings_data.Findings) -> dict[str, Run]:
    """Return the runs on photographs and on shapes that have the most metrics, for the comparison of metrics."""
    sampled = of_photographs(data, "-sampled") or of_photographs(data)
    found = {f"Photographs, {named(name)}": run for name, run in list(sampled.items())[:1]}
    shapes = of_shapes(data)
    return found | ({"Shapes, ResNet": shapes["resnet-shapes"]} if "resnet-shapes" in shapes else {})


def write_figures(data: findings_data.Findings, folder: Path) -> None:
    """Write the five figures."""
    folder.mkdir(exist_ok=True)
    photographs, shapes = of_photographs(data), of_shapes(data)
    of_photos, of_drawings = all_runs(data)
    runs = dict(of_photos) | dict(of_drawings)
    explained = {named(network): names_of(of_network) for network, of_network in runs.items()}
    draw_beaten(
        {named(name): table for name, table in beaten(runs).items()}, explained, folder / "reference-beaten.svg"
    )
    draw_agreement({about: agreements(run) for about, run in compared(data).items()}, folder / "reference-metrics.svg")
    draw_orders(from_shapes(photographs, shapes), folder / "reference-shapes.svg")
    draw_orders(between_networks(data), folder / "reference-networks.svg")
    draw_costs({named(name): (run, passes_of(run)) for name, run in shapes.items()}, "saliency_average_precision",
               folder / "reference-costs.svg")  # fmt: skip


def names_of(runs: Sequence[Run]) -> list[str]:
    """Return the names of the explainers in the first run, leaving out baselines and options."""
    return list(dict.fromkeys(cell.explainer for cell in runs[0].cells if not cell.baseline))
