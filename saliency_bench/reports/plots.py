"""The plots of analyses, as SVG: equal findings give equal bytes."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from saliency_bench.analysis.tables import Findings
from saliency_bench.errors import UserError
from saliency_bench.results.run_folder import RunData, load_maps
from saliency_bench.utils.files import write_with
from saliency_bench.utils.overlays import LEVELS, heat_map, scaled

WIDTH, ROW = 8.0, 0.32  # inches
MOST = 12  # pictures of a gallery
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "saliency-bench",
}


def plot(findings: Findings, runs: Sequence[RunData], path: Path) -> None:
    """Draw what an analysis found into an SVG file."""
    with rc_context(STYLE):
        figure = DRAWN[findings.what](findings, runs)

        def save(temporary: Path) -> None:
            figure.savefig(temporary, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})

        write_with(path, save)


def _correlations(findings: Findings, runs: Sequence[RunData]) -> Figure:
    rows = [
        (_label(row, ("explainer", "metric", "other"), runs), [_ends(row, "spearman"), _ends(row, "pearson")])
        for row in findings.data["samples"]
    ]
    return _whiskers(rows, ("Spearman", "Pearson"), "correlation over samples")


def _agreements(findings: Findings, runs: Sequence[RunData]) -> Figure:
    rows = [
        (_label(row, ("metric", "other"), runs), [_ends(row, "spearman"), _ends(row, "kendall", "kendall tau-b")])
        for row in findings.data["pairs"]
    ]
    return _whiskers(rows, ("Spearman", "Kendall tau-b"), "agreement on the order of explainers")


def _ends(row: dict, name: str, value: str = "", ends: tuple[str, str] | None = None) -> tuple[float, float, float]:
    """(value, low, high), NaN where there is none."""
    low_name, high_name = ends or (f"{name} low", f"{name} high")
    found = (row[value or name], row[low_name], row[high_name])
    one, low, high = (np.nan if number is None else number for number in found)
    return one, low, high


def _label(row: dict, names: Iterable[str], runs: Sequence[RunData]) -> str:
    """What a row is about; with dataset and model where there are several runs."""
    parts = [str(row[name]).replace("saliency_", "") for name in names]
    return ", ".join([*([row["dataset"], row["model"].rpartition("/")[2]] if len(runs) > 1 else []), *parts])


def _whiskers(
    rows: Sequence[tuple[str, Sequence[tuple[float, float, float]]]], names: Sequence[str], title: str
) -> Figure:
    """A row per label, with a dot and a whisker per name."""
    figure = Figure(figsize=(WIDTH, 1 + ROW * max(len(rows), 1)))
    axes = figure.add_subplot()
    for number, name in enumerate(names):
        places = np.arange(len(rows)) + 0.2 * number
        value, low, high = np.array([ends[number] for _, ends in rows]).reshape(-1, 3).T
        axes.errorbar(value, places, xerr=[value - low, high - value], fmt="o", markersize=3, label=name)
    axes.set_yticks(np.arange(len(rows)), [label for label, _ in rows])
    axes.axvline(0, color="0.7", linewidth=0.8)
    axes.set(xlim=(-1.05, 1.05), ylim=(len(rows) - 0.3, -0.5), xlabel=title)
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(names))
    return figure


def _ranks(findings: Findings, runs: Sequence[RunData]) -> Figure:
    """A line per explainer through its ranks in all settings."""
    families: dict[tuple, dict[str, list[dict]]] = {}
    for row in findings.data["settings"]:
        key = row["dataset"], row["model"], row["metric"]
        families.setdefault(key, {}).setdefault(row["explainer"], []).append(row)
    figure, panels = _panels(len(families))
    for axes, ((_, _, metric), explainers) in zip(panels, families.items(), strict=True):
        for name, rows in explainers.items():
            axes.plot([row["setting"].replace("saliency_", "") for row in rows], [row["rank"] for row in rows], "o-",
                      markersize=3, label=name)  # fmt: skip
        axes.invert_yaxis()
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.tick_params(axis="x", rotation=30)
        axes.set(title=metric, ylabel="rank by mean")
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _sweeps(findings: Findings, runs: Sequence[RunData]) -> Figure:
    families: dict[tuple, dict[str, list[dict]]] = {}
    for row in findings.data["points"]:
        key = row["dataset"], row["model"], row["metric"], row["option"]
        families.setdefault(key, {}).setdefault(row["explainer"], []).append(row)
    figure, panels = _panels(len(families))
    for axes, ((_, _, metric, option), explainers) in zip(panels, families.items(), strict=True):
        for name, rows in explainers.items():
            numbers = [np.array([np.nan if row[key] is None else row[key] for row in rows], float)
                       for key in ("value", "low", "high")]  # fmt: skip
            value, low, high = numbers
            at = [row["at"] for row in rows]
            axes.errorbar(_axis_of(at), value, yerr=[value - low, high - value], fmt="o-", markersize=3, label=name)
        axes.set(title=metric, xlabel=option, ylabel="mean and 95 % interval")
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _similarities(findings: Findings, runs: Sequence[RunData]) -> Figure:
    """A line per explainer through the layers, from the logits down, and the bound."""
    families: dict[tuple, dict[str, list[dict]]] = {}
    for row in findings.data["layers"]:
        families.setdefault((row["dataset"], row["model"], row["metric"]), {}).setdefault(row["explainer"], []).append(
            row
        )
    figure, panels = _panels(len(families))
    for axes, ((_, _, metric), explainers) in zip(panels, families.items(), strict=True):
        for name, rows in explainers.items():
            value, low, high = np.array([_ends(row, "similarity", "", ("low", "high")) for row in rows]).T
            axes.errorbar([row["down to"] for row in rows], value, yerr=[value - low, high - value], fmt="o-",
                          markersize=3, label=name)  # fmt: skip
        axes.axhline(findings.data["bound"], color="0.5", linewidth=0.8, linestyle="--")
        axes.tick_params(axis="x", rotation=30)
        axes.set(title=metric, xlabel="new weights, down to", ylabel="similarity and 95 % interval")
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _exposures(findings: Findings, runs: Sequence[RunData]) -> Figure:
    """Per metric the agreement with people at each exposure."""
    families: dict[tuple, list[dict]] = {}
    for row in findings.data["exposures"]:
        families.setdefault((row["dataset"], row["model"], row["metric"]), []).append(row)
    figure, panels = _panels(len(families))
    for axes, ((_, _, metric), rows) in zip(panels, families.items(), strict=True):
        for name, key, column in (("Spearman", "spearman", ""), ("Kendall tau-b", "kendall", "kendall tau-b")):
            value, low, high = np.array([_ends(row, key, column) for row in rows]).T
            at = [100 * row["exposure"] for row in rows]
            axes.errorbar(at, value, yerr=[value - low, high - value], fmt="o-", markersize=3, label=name)
        axes.set(title=metric, xlabel="exposure, % of the pixels", ylabel="agreement with people", ylim=(-1.05, 1.05))
        axes.axhline(0, color="0.7", linewidth=0.8)
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _people_by_exposure(findings: Findings, runs: Sequence[RunData]) -> Figure:
    """The accuracy of people by exposure, a line per explainer, and how hard the images and how able the people are."""
    figure, (curves, images, people) = _panels(3)
    families: dict[str, list[dict]] = {}
    for row in findings.data["accuracies"]:
        families.setdefault(row["explainer"], []).append(row)
    for name, rows in families.items():
        value, low, high = np.array([_ends(row, "accuracy", "", ("low", "high")) for row in rows]).T
        at = [100 * row["exposure"] for row in rows]
        curves.errorbar(at, value, yerr=[value - low, high - value], fmt="o-", markersize=3, label=name)
    curves.set(xlabel="exposure, % of the pixels", ylabel="accuracy of people and 95 % interval", ylim=(0, 1.02))
    curves.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    for axes, key in ((images, "images"), (people, "people")):
        means = [100 * row["mean exposure"] for row in findings.data[key] if row["mean exposure"] is not None]
        axes.hist(means, bins=np.arange(0, 105, 5).tolist())
        axes.set(xlabel="mean exposure of right answers, % of the pixels", ylabel=key, xlim=(0, 100))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _ratings(findings: Findings, runs: Sequence[RunData]) -> Figure:
    """Mean ratings of explainers, a dot per question."""
    questions = list(findings.data["questions"])
    explainers = dict.fromkeys(row["explainer"] for row in findings.data["ratings"])
    found = {(row["explainer"], row["question"]): _ends(row, "mean", "", ("low", "high"))
             for row in findings.data["ratings"]}  # fmt: skip
    rows = [(name, [found[name, question] for question in questions]) for name in explainers]
    return _whiskers(rows, questions, f"mean rating, 1 to {len(findings.data['scale'])}, and 95 % interval")


def _axis_of(at: list) -> list:
    """Numbers where all are numbers, else categories."""
    return at if all(isinstance(one, int | float) for one in at) else [str(one) for one in at]


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH * 0.7, 3.2 * count), layout="constrained")
    return figure, [figure.add_subplot(count, 1, index + 1) for index in range(count)]


def _gallery(findings: Findings, runs: Sequence[RunData]) -> Figure:
    """The first samples of which the run has kept a picture or a map: picture, and map over it."""
    samples = findings.data["samples"]
    tiles = [(row, *pictures) for row in samples if (pictures := _pictures(row, runs)) is not None][:MOST]
    columns = 4
    lines = max(1, -(-len(tiles) // columns))
    figure = Figure(figsize=(WIDTH, 2.6 * lines), layout="constrained")
    if not tiles:
        text = "No pictures: start the run again with --keep-maps." if samples else "No sample found."
        figure.text(0.05, 0.5, text)
    elif notes := _about_tiles(len(samples), [image for _, image, _ in tiles]):
        figure.suptitle(notes, fontsize=7)
    for number, (row, image, heat) in enumerate(tiles):
        axes = figure.add_subplot(lines, columns, number + 1)
        axes.set_axis_off()
        if image is not None:
            axes.imshow(image)
        axes.imshow(heat, alpha=0.6 if image is not None else 1.0, extent=_extent(image, heat))
        axes.set_title(
            f"{row['sample'][:24]}\n{row['prediction']} {row['confidence']:.2f}, {row['explainer'][:20]}\n"
            f"pointing {row['pointing game']:.2f}, insertion {row['insertion']:.2f}",
            fontsize=6,
        )
    return figure


def _about_tiles(found: int, images: Sequence[np.ndarray | None]) -> str:
    """What a gallery leaves out, and why some tiles are maps alone."""
    of = f"{len(images)} of the {found} found" if len(images) < found else ""
    lacking = any(image is None for image in images)
    alone = "tiles without a photograph: a run keeps those of its examples only" if lacking else ""
    return "; ".join(filter(None, [of, alone]))


def _extent(image: np.ndarray | None, heat: np.ndarray) -> tuple[float, float, float, float]:
    height, width = (heat if image is None else image).shape[:2]
    return -0.5, width - 0.5, height - 0.5, -0.5


def _pictures(row: dict, runs: Sequence[RunData]) -> tuple[np.ndarray | None, np.ndarray] | None:
    """(picture or None, coloured map) of a sample, from the examples of its run or from the maps it has kept."""
    for run in runs:
        if (run.summary["dataset"]["id"], run.summary["model"]["id"]) != (row["dataset"], row["model"]):
            continue
        ids = [str(one) for one in run.examples.get("ids", [])]
        explainer = next(one.explainer_id for one in run.rows if one.name == row["explainer"])
        image = run.examples["images"][ids.index(row["sample"])] if row["sample"] in ids else None
        if image is not None and f"maps/{explainer}" in run.examples:
            return image, _coloured(run.examples[f"maps/{explainer}"][ids.index(row["sample"])])
        for folder in run.all_folders:
            try:
                values = load_maps(folder)[row["explainer"]][row["sample"]]
            except (UserError, KeyError):
                continue
            return image, _coloured(LEVELS * scaled(values))
    return None


def _coloured(levels: np.ndarray) -> np.ndarray:
    """Uint8 (h, w, 3) of a map in the levels of `heat_map`."""
    return np.asarray(heat_map(levels).convert("RGB"))


DRAWN = {
    "correlation": _correlations,
    "rank": _agreements,
    "sensitivity": _ranks,
    "sweep": _sweeps,
    "clever-hans": _gallery,
    "randomisation": _similarities,
    "agreement": _exposures,
    "peekaboom": _people_by_exposure,
    "assess": _ratings,
}
