"""Render docs/findings.md from the runs of `benchmarks/findings.py`: tables, and sentences derived from them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from findings_data import FILE, Findings, load, store
from findings_figures import draw

import saliency_bench as sb
from saliency_bench.read.analysis.power import of_run
from saliency_bench.read.analysis.verdict import Against, Verdict, listed
from saliency_bench.read.cell import CellResult, rank_text
from saliency_bench.read.finished_run import Run
from saliency_bench.score_notes import PEAKED

BASELINES = ("centre", "edges", "random")
CURVES = {"saliency_insertion": "↑", "saliency_deletion": "↓"}
# Difference that should be detected. Maps with a correlation above the second number hardly depend on the class.
DIFFERENCE, ALIKE = 0.05, 0.8
ATTENTION = "vit-pets"  # name of the run for the section on explainers that use attention
SUMMARIES = ("Best", "Not marked as best", "No explainer", "Too few")  # first words of sentences on all baselines
TITLES = {"pets": "Pets (Oxford-IIIT Pet)", "voc": "VOC 2012, the largest class of each photograph",
          "coco": "COCO 2017, the largest class of each photograph", "imagenet": "ImageNet"}  # fmt: skip
PAGE = """# Findings: a real network on photographs

This page shows the scores of explainers for EfficientNet-Lite0, with the ImageNet weights published by Google, on
photographs from four datasets. All maps explain the predicted class. One command computes all numbers on this page and
writes the sentences that depend on them ([see below](#how-this-page-was-made)). For a comparison of several networks,
see the [reference study](reference.md).

## Recommendations

{advice}

**How to read the figures and tables.** Each dot is the mean score over the photographs, and the line through it is the
95 % interval. Grey dots are baselines, which ignore the network; the dashed line marks the best baseline. Hollow dots
are means over only {sampled} photographs. In the tables, `#` is followed by the possible ranks according to a paired
test.

{sections}

## How this page was made

<!-- skip: next -->
```sh
python benchmarks/findings.py --data raw --work findings --images {images} --sampled {sampled} --out docs/findings.md
```

The command needs photographs from the original sources of the datasets, which are not part of this project;
`benchmarks/findings.py` describes where to store them. The scores of the individual photographs are in
`benchmarks/findings.parquet`. A test generates this page again from these scores with the current code and checks that
it is unchanged.

{settings}
"""
SETTINGS = """Some settings are smaller than the defaults: RISE uses 100 masks, LIME 100 samples, SmoothGrad and
GradientSHAP 8 samples, and integrated gradients 16 steps. Occlusion uses windows of 32 pixels. Score-CAM is omitted,
because it needs 1,280 passes per photograph."""
FAST_ONLY = """This page does not include explainers that need many passes (RISE, LIME, SmoothGrad, GradientSHAP,
integrated gradients, occlusion, Score-CAM) or faithfulness metrics, because their runs were not computed."""


def page(data: Findings) -> str:
    """Return the text of the page."""
    runs = {name: run for name, run in data.runs.items() if name != ATTENTION}
    of_masks = {name: runs[f"lite0-{name}"] for name in TITLES if f"lite0-{name}" in runs}
    of_all = {name: runs[f"lite0-{name}-sampled"] for name in TITLES if f"lite0-{name}-sampled" in runs}
    parts = [section(name, run) for name, run in of_masks.items()]
    parts += [curves(of_all), sanity(runs), data.readings]
    return PAGE.format(sections="\n\n".join(filter(None, parts)), advice=advice(runs, of_masks), images=data.images,
                       sampled=data.sampled, settings=SETTINGS if of_all else FAST_ONLY)  # fmt: skip


def figures(data: Findings, folder: Path) -> None:
    """Write the figures of the page: one per set of photographs, and one for the transformer."""
    sets = {name: [f"lite0-{name}", f"lite0-{name}-sampled"] for name in TITLES} | {ATTENTION: [ATTENTION]}
    for name, names in sets.items():
        if runs := [data.runs[run] for run in names if run in data.runs]:
            draw(runs, folder / f"{figure_of(name)}.svg", data.sampled)


def figure_of(name: str) -> str:
    """Return the name of the figure of a set or run."""
    return f"findings-{name}"


def picture(name: str, title: str) -> str:
    """Return the Markdown for the figure of a set or run."""
    return f"![{title}: scores and intervals of all explainers for each metric](pictures/{figure_of(name)}.svg)"


def advice(runs: dict[str, Run], of_masks: dict[str, Run]) -> str:
    """Return the recommendations, as sentences derived from the numbers."""
    return "\n".join(filter(None, [ahead(of_masks), small_regions(of_masks), more_images(of_masks), class_alike(runs)]))


def stored(work: Path, images: int, sampled: int, file: Path = FILE) -> Findings:
    """Write the numbers from the finished runs in a work folder to a file, and read them back."""
    folders = {folder.name: folder for folder in sorted(work.glob("lite*-*")) if finished(folder)}
    runs = {name: sb.load_run(folder) for name, folder in folders.items()}
    of_all = next((name for name in ("lite0-pets-sampled", "lite0-pets") if name in runs), None)
    text = readings(work, {"pets": runs[of_all]}) if of_all else ""
    if finished(work / ATTENTION):
        folders[ATTENTION] = work / ATTENTION
    store(file, folders, text, images, sampled)
    return load(file)


def finished(folder: Path) -> bool:
    return (folder / "summary.json").is_file()


def accuracy_of(run: Run) -> str:
    """Return the accuracy of a run as a clause, with its interval and number of photographs."""
    accuracy = run.summary["model"]["accuracy"]
    if accuracy["value"] is None:
        return "the accuracy is unknown"
    value = interval(accuracy["value"], accuracy["low"], accuracy["high"])
    return f"the accuracy is {value} on the {accuracy['n']} photographs that are labelled with an ImageNet class"


def section(name: str, run: Run) -> str:
    """Return the figure, the table and the notable results for one set of photographs."""
    n = max(cell.n for cell in run.cells)
    about = f"n = {n} photographs; {accuracy_of(run)}."
    return "\n\n".join([f"## {TITLES[name]}", about, picture(name, TITLES[name]), table(run.cells), remarks(run)])


def remarks(run: Run) -> str:
    """Return those sentences of the verdict that concern all baselines, as a Markdown list."""
    lines = Verdict(run.cells, run.contrasts).sentences()
    return "\n".join(f"- {line}" for line in lines if line.startswith(SUMMARIES))


def table(cells: Sequence[CellResult]) -> str:
    """Return a Markdown table with a row per explainer, sorted from best to worst on the first metric."""
    metrics = list(dict.fromkeys(cell.metric for cell in cells))
    arrows = {cell.metric: "↑" if cell.higher_is_better else "↓" for cell in cells}
    by_place = {(cell.explainer, cell.metric): cell for cell in cells}
    names = sorted(
        dict.fromkeys(cell.explainer for cell in cells), key=lambda name: -(by_place[name, metrics[0]].value or 0)
    )
    lines = ["| | " + " | ".join(f"{short(metric)} {arrows[metric]}" for metric in metrics) + " |",
             "|---|" + "---|" * len(metrics)]  # fmt: skip
    for name in names:
        shown = f"*{name}*" if name in BASELINES else name
        lines.append(f"| {shown} | " + " | ".join(cell_text(by_place[name, metric]) for metric in metrics) + " |")
    return "\n".join(lines)


def cell_text(cell: CellResult) -> str:
    ranks = f" #{rank_text(cell.rank)}" if cell.rank else ""
    return "–" if cell.value is None else f"{cell.value:.3f}{ranks}"


def interval(value: float, low: float | None, high: float | None) -> str:
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"


def short(metric: str) -> str:
    return metric.removeprefix("saliency_").replace("_", " ")


def ahead(runs: dict[str, Run]) -> str:
    """Return sentences about the explainers that are significantly better than every baseline in the paired tests."""
    by_metric: dict[str, dict[str, list[str]]] = {}
    starts: Counter[str] = Counter()
    peaked: dict[str, dict[str, None]] = {}  # {explainer: metrics} for explainers that lead only with peaked maps
    for name, run in runs.items():
        comparisons = against_baselines(run)
        for metric in dict.fromkeys(cell.metric for cell in run.cells):
            by_metric.setdefault(metric, {})[name] = names = leaders(comparisons, metric)
            small = {cell.explainer for cell in run.cells if cell.metric == metric and is_peaked(cell)}
            starts.update(set(names) - small)
            for leader in small & set(names):
                peaked.setdefault(leader, {})[short(metric)] = None
    leading = [(short(metric), name, names) for metric, of in by_metric.items() for name, names in of.items() if names]
    nowhere = [short(metric) for metric, of in by_metric.items() if not any(of.values())]
    if not by_metric:
        return ""
    count = sum(map(len, by_metric.values()))
    lines = ["- **Report `centre`, `edges` and `random` with your explainer.** These baselines ignore the network. In "
             f"{len(leading)} of {count} combinations of a metric and a dataset, at least one explainer beats all "
             "three:"]  # fmt: skip
    lines += [f"  - {metric} on {name}: {', '.join(names)}." for metric, name, names in leading]
    lines += [f"  - {', '.join(nowhere)}: no explainer on any dataset."] if nowhere else []
    if starts:
        best = [name for name, _ in sorted(starts.items(), key=lambda item: (-item[1], item[0]))]
        apart = [f"{name} on {listed(of)}" for name, of in sorted(peaked.items()) if name not in starts]
        rest = (f", apart from {listed(apart)}, where the score depends on less than 1 % of the pixels."
                if apart else ".")  # fmt: skip
        lines.append(f"- **Start with {' or '.join(best)}.** No other explainer beats all three baselines{rest}")
    return "\n".join(lines)


def is_peaked(cell: CellResult) -> bool:
    """Return whether, in most photographs, the score uses less than 1 % of the pixels of the map."""
    return cell.marked.get(PEAKED, 0) > cell.n / 2


def small_regions(runs: dict[str, Run]) -> str:
    """Return a sentence about explainers with scores that use less than 1 % of the pixels on every dataset."""
    peaked = {(cell.explainer, cell.metric) for run in runs.values() for cell in run.cells}
    for run in runs.values():
        peaked &= {(cell.explainer, cell.metric) for cell in run.cells if is_peaked(cell)}
    names, metrics = (sorted({pair[place] for pair in peaked}) for place in (0, 1))
    if not peaked:
        return ""
    return (f"- **Ignore the scores of {listed(names)} for {listed(map(short, metrics))}.** For most photographs of "
            "every dataset, less than 1 % of the pixels of their maps are above the midpoint of the map's range, and "
            "only these pixels affect these scores.")  # fmt: skip


def more_images(runs: dict[str, Run]) -> str:
    """Return sentences about how many photographs would show a difference between Grad-CAM and the centre spot."""
    counts: dict[str, list[int]] = {}
    for run in runs.values():
        for needed in of_run(run, DIFFERENCE, together=False) if len(run.scores.ids) >= 10 else ():
            if set(needed.explainers) == {"gradcam", "centre"} and needed.images is not None:
                counts.setdefault(short(needed.metric), []).append(needed.images)
    if not counts:
        return ""
    ranges = {metric: dict.fromkeys((min(images), max(images))) for metric, images in counts.items()}
    texts = [f"{metric} {' to '.join(f'{end:,}' for end in ends)}" for metric, ends in ranges.items()]
    return (f"- **Plan the number of photographs.** To detect a difference of {DIFFERENCE} between gradcam and "
            "`centre` in 80 % of cases, a test of only these two needs the following number of photographs, depending "
            f"on the metric and the dataset: {'; '.join(texts)}.")  # fmt: skip


def class_alike(runs: dict[str, Run]) -> str:
    """Return a sentence about the explainers with maps that hardly depend on the class."""
    cells = runs["lite0-sanity"].cells if "lite0-sanity" in runs else []
    alike = [cell for cell in cells if cell.metric == "saliency_class_sensitivity" and not cell.baseline
             and cell.value is not None and cell.value > ALIKE]  # fmt: skip
    if not alike:
        return ""
    names = listed(cell.explainer for cell in alike)
    values = listed(f"{cell.value:.3f} ({cell.explainer})" for cell in alike)
    return (f"- **Do not use {names} to explain why the network predicts one class and not another.** Their maps "
            "hardly depend on the class: the correlation between the maps of the most likely and the least likely "
            f"class is {values}, on {alike[0].n} photographs.")  # fmt: skip


def against_baselines(run: Run) -> list[Against]:
    """Return the comparisons of each explainer with each baseline on each metric."""
    comparisons_by_baseline = Verdict(run.cells, run.contrasts).against_baselines()
    return [comparison for comparisons in comparisons_by_baseline for comparison in comparisons]


def leaders(comparisons: Sequence[Against], metric: str) -> list[str]:
    """Return the explainers that are significantly better than each baseline on a metric."""
    signs: dict[str, set[int | None]] = {}
    for comparison in comparisons:
        if comparison.metric == metric:
            signs.setdefault(comparison.name, set()).add(comparison.sign)
    return [name for name, of_baselines in signs.items() if of_baselines == {1}]


def sanity(runs: dict[str, Run]) -> str:
    if "lite0-sanity" not in runs:
        return ""
    run = runs["lite0-sanity"]
    about = (
        "`randomisation` is the similarity between the map of the network and the map of the same network with random "
        "weights. `class sensitivity` is the correlation between the maps of the most likely and the least likely "
        f"class. Lower is better for both. The scores are means over {max(cell.n for cell in run.cells)} photographs."
    )
    return "\n\n".join(["## Do the maps depend on the network and on the class?", about, table(run.cells)])


def curves(runs: dict[str, Run]) -> str:
    """Return one table with the faithfulness scores on all datasets and the cost of the maps."""
    cells = {(name, cell.metric, cell.explainer_text): cell
             for name, run in runs.items() for cell in run.cells if cell.metric in CURVES}  # fmt: skip
    if not cells:
        return ""
    columns = list(dict.fromkeys(key[:2] for key in cells))
    passes = passes_of(next(iter(runs.values())))
    header = " | ".join(f"{name} {short(metric)} {CURVES[metric]}" for name, metric in columns)
    lines = [f"| | passes | {header} |",
             "|---|---|" + "---|" * len(columns)]  # fmt: skip
    for explainer, count in sorted(passes.items(), key=lambda item: item[1]):
        shown = f"*{explainer}*" if explainer in BASELINES else explainer
        texts = [cell_text(cells[*column, explainer]) for column in columns]
        lines.append(f"| {shown} | {count:.0f} | {' | '.join(texts)} |")
    n = max(cell.n for cell in cells.values())
    about = (f"The scores are means over {n} photographs of each dataset, which are too few to rank the explainers. "
             "`passes` is the number of forward passes per map.")  # fmt: skip
    pictures = [picture(name, TITLES[name]) for name in runs if name == "imagenet"]
    return "\n\n".join(["## Faithfulness and cost of maps", about, *pictures, "\n".join(lines)])


def passes_of(run: Run) -> dict[str, float]:
    """Return the number of forward passes per photograph for each explainer."""
    passes: dict[str, int] = {}
    for cell in run.cells:
        passes[cell.explainer_text] = max(passes.get(cell.explainer_text, 0), cell.forward_passes.explain)
    size = run.summary.get("batch_size", 8)
    shown = -(-run.summary["dataset"]["used"] // size) * size
    return {name: count / shown for name, count in passes.items()}


# Interpretations of mIoU differ in the rule that turns a map into a region, and in the mask of the comparison.
CLOSE = 0.01  # numbers with at most this difference count as equal
REPORTED = (0.1564, 0.1855)  # mIoU of six methods with ResNet-18 on Pet-XAI, table 2 of the Saliency-Bench paper
SIX = ("gradcam", "gradcam_plus_plus", "integrated_gradients", "input_x_gradient", "occlusion", "rise")


def regions(values: np.ndarray) -> dict[str, np.ndarray]:
    """Return {interpretation: region of a map (H, W)}."""
    absolute, positive = np.abs(values), np.clip(values, 0, None)
    found = {"> 0": values > 0}
    for name, kind in (("signed", values), ("absolute", absolute), ("positive part", positive)):
        scaled = (kind - kind.min()) / max(float(kind.max() - kind.min()), 1e-12)
        found |= {f"{name}, > {level}": scaled > level for level in (0.2, 0.5, 0.8)}
        found |= {f"{name}, > mean": scaled > scaled.mean(), f"{name}, > Otsu's threshold": scaled > otsu(scaled)}
        found |= {
            f"{name}, top {share} %": scaled >= np.quantile(scaled, 1 - share / 100) for share in (5, 10, 20, 30, 50)
        }
    return found


def otsu(scaled: np.ndarray) -> float:
    """Return the threshold with the largest between-class variance (Otsu, 1979) among 256 bins."""
    counts, edges = np.histogram(scaled, 256, (0, 1))
    middles = (edges[:-1] + edges[1:]) / 2
    below = np.cumsum(counts)
    sums = np.cumsum(counts * middles)
    above = below[-1] - below
    with np.errstate(divide="ignore", invalid="ignore"):
        between = below * above * (sums / below - (sums[-1] - sums) / above) ** 2
    return float(edges[1:][np.nanargmax(between)])


def iou(region: np.ndarray, mask: np.ndarray) -> float:
    return float((region & mask).sum() / max((region | mask).sum(), 1))


def overlaps(values: np.ndarray, mask: np.ndarray) -> Iterator[tuple[str, float]]:
    """Yield (interpretation, IoU of map and mask) of every region, also averaged with the IoU of the background."""
    for reading, region in regions(values).items():
        foreground = iou(region, mask)
        yield reading, foreground
        yield f"{reading}; mean with the background", (foreground + iou(~region, ~mask)) / 2


def soft_iou(values: np.ndarray, mask: np.ndarray) -> float:
    """Return the sum of the minima divided by the sum of the maxima, for a map in [0, 1] and a mask."""
    scaled = (values - values.min()) / max(np.ptp(values), 1e-12)
    return float(np.minimum(scaled, mask).sum() / np.maximum(scaled, mask).sum())


def readings_of(maps: dict, masks: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Return {interpretation: {explainer: mean IoU over the photographs}}."""
    sums: dict[str, dict[str, list[float]]] = {}
    for explainer, of_images in maps.items():
        for image_id, mask in masks.items():
            if image_id not in of_images:
                continue
            values = np.asarray(of_images[image_id], dtype=np.float64)
            scores = dict(overlaps(values, mask)) | {"soft: sum of minima / sum of maxima": soft_iou(values, mask)}
            for reading, score in scores.items():
                sums.setdefault(reading, {}).setdefault(explainer, []).append(score)
    return {reading: {name: float(np.mean(v)) for name, v in of.items()} for reading, of in sums.items()}


def readings(work: Path, runs: dict[str, Run]) -> str:
    """Return the section on the mIoU of Saliency-Bench, or "" if the maps of a method are missing."""
    if "pets" not in runs:
        return ""
    from findings import photographs_of

    maps = {name.partition(":")[0]: stored for name, stored in runs["pets"].maps().items()}
    if not set(SIX) <= set(maps):
        return ""
    masks = masks_of(work, photographs_of(work, work, "pets"), {row["image_id"] for row in runs["pets"].records()})
    values = readings_of(maps, masks)
    asked = [name for name in SIX if name in maps]
    low, high = REPORTED

    def distance(reading: str) -> float:
        return max(max(low - values[reading][name], values[reading][name] - high, 0) for name in asked)

    nearest = sorted(values, key=distance)
    names = [*asked, *(name for name in BASELINES if name in maps)]
    lines = ["| interpretation | " + " | ".join(names) + " | largest error |", "|---|" + "---|" * (len(names) + 1)]
    usual = "signed, > 0.5"
    for reading in [*nearest[:6], *([usual] if usual not in nearest[:6] else [])]:
        cells = " | ".join(f"{values[reading][name]:.3f}" for name in names)
        lines.append(f"| {reading} | {cells} | {distance(reading):.3f} |")
    off = distance(nearest[0])
    outcome = (
        f"With the interpretation `{nearest[0]}`, the values of all {len(asked)} methods are within {off:.3f} of "
        "this range."
        if off <= CLOSE
        else f"None of the {len(values)} interpretations puts the values of all {len(asked)} methods in this range. "
        f"Even with the closest one, `{nearest[0]}`, a method is up to {off:.3f} outside the range."
    )
    share = float(np.mean([mask.mean() for mask in masks.values()]))
    about = (
        f"For Pet-XAI and ResNet-18, the [Saliency-Bench paper](papers.md) reports mIoU values from {low} to {high} "
        f"for {len(SIX)} methods, but does not define how a map is converted to a region. The table shows the mIoU of "
        f"these {len(asked)} methods and of the baselines for several interpretations, on {len(masks)} pets, whose "
        f"masks cover {100 * share:.0f} % of the image on average. {outcome} `saliency_miou` uses `{usual}`, for which "
        f"`random` has an mIoU of {values[usual].get('random', float('nan')):.3f}."
    )
    return "\n\n".join(["## Can the mIoU of the Saliency-Bench paper be reproduced?", about, "\n".join(lines)])


def masks_of(work: Path, photographs, ids: set[str]) -> dict[str, np.ndarray]:
    """Return {image id: mask in the network's frame}."""
    classifier = sb.load_classifier(work / "lite0", device="cpu")
    rows = [row for row in photographs if row["image_id"] in ids]
    batch = classifier.prepare(rows)
    return {image_id: mask.numpy() for image_id, mask in zip(batch.ids, batch.masks, strict=True) if mask.any()}
