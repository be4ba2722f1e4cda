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
from saliency_bench.utils.overlays import heat_map

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


def _ends(row: dict, name: str, value: str = "") -> tuple[float, float, float]:
    """(value, low, high), NaN where there is none."""
    found = (row[value or name], row[f"{name} low"], row[f"{name} high"])
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


def _axis_of(at: list) -> list:
    """Numbers where all are numbers, else categories."""
    return at if all(isinstance(one, int | float) for one in at) else [str(one) for one in at]


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH * 0.7, 3.2 * count), layout="constrained")
    return figure, [figure.add_subplot(count, 1, index + 1) for index in range(count)]


def _gallery(findings: Findings, runs: Sequence[RunData]) -> Figure:
    """The first samples of which the run has kept a picture or a map: picture, and map over it."""
    tiles = [
        (row, *pictures)
        for row in findings.data["samples"]
        if (pictures := _pictures(row, runs)) is not None
    ][:MOST]  # fmt: skip
    columns = 4
    lines = max(1, -(-len(tiles) // columns))
    figure = Figure(figsize=(WIDTH, 2.6 * lines), layout="constrained")
    if not tiles:
        text = "No pictures: start the run again with --keep-maps." if findings.data["samples"] else "No sample found."
        figure.text(0.05, 0.5, text)
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
            return image, np.asarray(heat_map(run.examples[f"maps/{explainer}"][ids.index(row["sample"])]))
        try:
            values = load_maps(run)[row["explainer"]][row["sample"]]
        except (UserError, KeyError):
            continue
        span = float(np.ptp(values)) or 1.0
        return image, np.asarray(heat_map(np.round(255 * (values - values.min()) / span).astype(np.uint8)))
    return None


DRAWN = {
    "correlation": _correlations,
    "rank": _agreements,
    "sensitivity": _ranks,
    "sweep": _sweeps,
    "clever-hans": _gallery,
}
