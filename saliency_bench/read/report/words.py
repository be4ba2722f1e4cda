"""Text in a report, such as numbers, the verdict and the glossary, computed from the files of a run."""

from collections.abc import Iterable, Sequence
from math import isfinite
from pathlib import Path

from saliency_bench import __version__, registry
from saliency_bench.bound_metric import Metric, registered_metric
from saliency_bench.errors import UserError
from saliency_bench.read.accuracy import below_chance
from saliency_bench.read.analysis.cards import cards as cards_of
from saliency_bench.read.analysis.cards import worse_lines
from saliency_bench.read.analysis.pairs import ExplainerPair, explainer_pairs
from saliency_bench.read.analysis.verdict import NO_CHANCE, RANDOM, Against, Verdict, listed
from saliency_bench.read.cell import RARE, CellResult, Interval
from saliency_bench.read.cell_table import CellTable, MetricColumn
from saliency_bench.read.finished_run import Run
from saliency_bench.read.report.titles import metric_title
from saliency_bench.read.statistics.clusters import Matched
from saliency_bench.read.statistics.intervals import is_alike
from saliency_bench.read.statistics.ranking import Contrast
from saliency_bench.read.summary import covered, flat_maps, misfits, warnings
from saliency_bench.read.summary import notes as notes_of
from saliency_bench.score_notes import PRECOMPUTED

NONE = "–"
MINUS = "\N{MINUS SIGN}"
MOST_NAMES = 3  # explainers that are named on a card
MOST_PAIRS = 600  # largest number of pairs on a page; summary.json contains all
MARGIN = 0.05  # two explainers are alike if their difference is smaller than this share of the score's range
FUNCTION = "A Python function that was passed to this run."
UNKNOWN = "This name is unknown to the version of saliency-bench that wrote this page."
SOFTWARE = """@software{saliency_bench,
  title = {saliency-bench: whether a saliency map of an image classifier can be trusted},
  author = {{The saliency-bench contributors}},
  version = {VERSION},
  url = {https://huggingface.co/saliency-bench}
}"""


def number(value: float | None) -> str:
    """Return a number with three decimals, or as a power of ten if it is small."""
    if value is None or value != value:
        return NONE
    return (f"{value:.1e}" if 0 < abs(value) < 0.0005 else f"{value:.3f}").replace("-", MINUS)


def interval(result: Interval) -> str:
    """Return "[low, high]", or "" if there is no interval."""
    return f"[{number(result.low)}, {number(result.high)}]" if result.ends else ""


def signed(value: float | None) -> str:
    """Return a difference with its sign."""
    if value is None or value != value:
        return NONE
    return "0" if value == 0 else ("+" if value > 0 else MINUS) + number(abs(value))


def signed_interval(low: float | None, high: float | None) -> str:
    """Return the interval of a difference."""
    return "" if low is None or low != low else f"[{signed(low)}, {signed(high)}]"


def p_value(value: float | None) -> str:
    """Return a p-value."""
    return NONE if value is None else f"{value:.4f}" if value >= 0.0001 else "< 0.0001"


def percent(value: float | None) -> str:
    """Format a fraction as a percentage."""
    return NONE if value is None or value != value else f"{100 * value:.1f}\N{NO-BREAK SPACE}%"


def percent_interval(result: Interval) -> str:
    """Format the interval of a fraction as percentages."""
    if result.ends is None:
        return ""
    low, high = result.ends
    return f"[{100 * low:.1f}, {100 * high:.1f}]\N{NO-BREAK SPACE}%"


def count(value: int | None) -> str:
    """Return a whole number with thousands separators."""
    return NONE if value is None else f"{value:,}"


def seconds(value: float | None) -> str:
    """Return a duration in s, min or h."""
    if value is None:
        return NONE
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def memory(count: int | None, gpu: bool) -> str:
    """Return a number of bytes as "1.2 GB of the process" or "1.2 GB of the GPU"."""
    return NONE if count is None else f"{count / 1e9:.1f} GB of the {'GPU' if gpu else 'process'}"


def reasons(counted: dict[str, int]) -> str:
    """Return reasons with their counts as text."""
    return ", ".join(f"{count(times)} × {reason}" for reason, times in counted.items())


def quality(model: dict) -> list[str]:
    """Return notes on a classifier's accuracy: images that are not counted, top-5, and assumptions."""
    lines = []
    if without := model.get("no_class"):
        lines.append(f"images not counted, because their label is not a class of the model: {count(without)}")
    if five := model.get("top5"):
        lines.append(f"top-5 {percent(five['value'])}")
    if model.get("no_accuracy"):
        lines.append(f"not known: {model['no_accuracy']}")
    if model.get("activation_assumed"):
        lines.append("softmax assumed: neither the model nor the user defined the activation")
    if model.get("classes_by_position"):
        lines.append("the model has no class names; its classes are assumed to be in the order of the dataset")
    return lines


def other_model(model: dict | None) -> dict | None:
    """Return text about the other model of a run; None if there is no other model."""
    if model is None:
        return None
    accuracy = Interval.model_validate(model["accuracy"])
    return {
        "name": short(model["id"]) + origin(model),
        "label": model["label_column"],
        "kind": model["accuracy_kind"],
        "accuracy": accuracy,
        "quality": quality(model) + list(filter(None, [below_chance(model)])),
    }


def options(chosen: dict) -> str:
    """Return options as text."""
    return ", ".join(f"{key} = {value}" for key, value in chosen.items())


def short(identity: str) -> str:
    """Shorten a local path to its last part; return names and Hub ids unchanged."""
    identity = identity.removeprefix("module:").removeprefix("folder:")
    is_path = identity.count("/") > 1 or identity.startswith((".", "/", "~"))
    return Path(identity).name or identity if is_path else identity


def origin(loaded: dict) -> str:
    """Return ", from REPOSITORY, commit X" for the Hub, ", WEIGHTS" for a torchvision model, else ""."""
    repo, revision = loaded.get("repo"), loaded.get("revision")
    if repo:
        return f"{'' if repo == loaded['id'] else f', from {repo}'}, commit {revision}"
    return f", {revision}" if revision else ""


def cards(verdict: Verdict) -> list[dict]:
    """Return the card of each metric, with the best explainers or the reason why there are none."""
    return [
        vars(card)
        | {"name": card.metric, "names": first_names(verdict.names[cell.explainer_id] for cell in card.cells)}
        for card in cards_of(verdict)
    ]


def first_names(names: Iterable[str]) -> str:
    """Join names. If there are many, return only the first names and the number of others."""
    shown = list(names)
    if len(shown) > MOST_NAMES + 1:
        return f"{', '.join(shown[:MOST_NAMES])} and {len(shown) - MOST_NAMES} more"
    return listed(shown) if shown else ""


def alerts(verdict: Verdict) -> list[str]:
    """Return the warnings that are shown below the cards."""
    lines = warnings(list(verdict.cells.values()))
    if not any(verdict.names[key] == RANDOM for key in verdict.baselines):
        lines.append(NO_CHANCE)
    lines += filter(None, [verdict.too_few()])
    return [*lines, *worse_lines(verdict, metric_title)]


def against_baselines(run: Run) -> list[dict]:
    """Return a table for each baseline, with its name and the comparison of each explainer on each metric."""
    tables = []
    for table_comparisons in Verdict(run.cells, run.contrasts).against_baselines():
        rows: dict[str, dict[str, Against]] = {}
        for comparison in table_comparisons:
            rows.setdefault(comparison.name, {})[comparison.metric] = comparison
        table = [
            (name, [comparisons.get(column.name) for column in run.table.columns]) for name, comparisons in rows.items()
        ]
        tables.append({"name": table_comparisons[0].other, "rows": table})
    return tables


def alike(run: Run, pair: Against) -> str:
    """Return "alike within ±MARGIN" for a pair with a narrow interval and no significant difference, else "".

    The margin is the range of the scores times `MARGIN`; unbounded scores have no margin. If the true difference equals
    the margin, at most 2.5 % of pairs are called alike, for any distribution of the scores (`intervals.is_alike`).
    """
    contrast = pair.contrast
    limits = next(cell.limits for cell in run.cells if cell.cell_id in contrast.cells)
    margin = MARGIN * (limits[1] - limits[0])
    if pair.sign != 0 or contrast.low is None or not isfinite(margin) or contrast.cells[0] not in run.scores.values:
        return ""
    matched = Matched([run.scores.values[cell_id] for cell_id in contrast.cells], run.scores.codes(), limits)
    return f"alike within ±{margin:.3g}" if is_alike(matched, 0, 1, margin) else ""


def pairs(run: Run) -> list[tuple[MetricColumn, list[ExplainerPair]]]:
    """Return the pairs of explainers per metric; [] if there are too many for a page."""
    return [] if len(run.contrasts) > MOST_PAIRS else explainer_pairs(run)


def common(run: Run) -> list[str]:
    """Return lines that compare each explainer with the first explainer on their common samples.

    Only explainers with omitted samples are compared.
    """
    run_verdict, lines = Verdict(run.cells, run.contrasts), []
    for column in run.table.columns:
        first, *others = run.table.cells_of_column(column)
        for row, cell in others:
            if first[1].scored == cell.scored == 1:
                continue
            for comparison in run_verdict.against(row.explainer_id, first[0].explainer_id):
                if comparison.metric == column.name:
                    contrast = comparison.contrast
                    lines.append(
                        f"{column.name}: {comparison.name} minus {comparison.other} on their "
                        f"{count(contrast.n)} common samples: {difference(contrast)}, {comparison.word}"
                    )
    return lines


def difference(contrast: Contrast) -> str:
    """Return a difference with its interval."""
    ends = signed_interval(contrast.low, contrast.high)
    return f"{signed(contrast.difference)} {ends}".strip() + f" ({RARE})" * contrast.rare


def faults(summary: dict) -> str:
    """Return a phrase with the number of records that have no score because of a failure; "" if there are none."""
    total = sum(summary["faults"].values())
    if total == 0:
        return ""
    return f"{count(total)} {'record has' if total == 1 else 'records have'} no score because of failures"


def part_of(share: float, whole: float | None) -> str:
    """Return a duration followed by its share of the total."""
    return seconds(share) + (f", {percent(share / whole)}" if whole else "")


def class_groups(summary: dict) -> str:
    """Return the name and digest of the groups of classes. The digest distinguishes groups with the same name."""
    groups = summary.get("groups")
    return f"{groups['name']}, digest {groups['identity'][:8]}" if groups else "none"


def left_out(run: Run) -> list[str]:
    """Return lines that say how many samples each metric scored, and why the remaining samples have no score.

    Explainers are named only if these numbers differ between them. The number of valid scores with a remark is shown
    next to n; flat maps are not included.
    """
    lines = []
    used = covered(run.summary)
    for column in run.table.columns:
        groups: dict[tuple, list[str]] = {}
        for row, cell in run.table.cells_of_column(column):
            key = cell.n, cell.clusters, tuple(cell.left_out.items()), tuple(cell.marked.items())
            groups.setdefault(key, []).append(row.name)
        for (scored, clusters, without, marked), names in groups.items():
            explainers = f" of {listed(names)}" if len(groups) > 1 else ""
            missing = f"; left out: {reasons(dict(without))}" if without else ", none left out"
            if (computed := scored + sum(dict(without).values())) < used:  # other runs cover more samples
                missing += f"; computed on {count(computed)} of the {count(used)} samples"
                if run.summary["target"] == "label" and (unknown := run.summary["model"].get("no_class")):
                    missing += f" (samples with a label that is not a class of the model: {count(unknown)})"
            within = f" in {count(clusters)} groups" if clusters < scored else ""
            among = f" ({reasons(dict(marked))})" if marked else ""
            lines.append(f"{column.name}{explainers}: n = {count(scored)}{within}{among}{missing}")
    return lines


def notes(run: Run) -> list[str]:
    """Return sentences about the explainers that were left out, and remarks on the values of metrics."""
    return [f"{line}." for line in [*misfits(run.summary), *notes_of(run.cells)]]


def flat(cells: Sequence[CellResult]) -> list[str]:
    """Return the explainers with constant maps, each with the number of these maps."""
    return [f"{name} {count(maps)}" for name, maps in flat_maps(cells).items()]


def citations(run: Run) -> str:
    """Return BibTeX entries for the package, the dataset and the papers of the metrics."""
    entries = [SOFTWARE.replace("VERSION", __version__)]
    builder = registry.files("hub_builders").get(run.summary["dataset"]["id"])
    entries += [registry.constant(builder, "CITATION", "")] if builder else []
    papers: dict[str, list[str]] = {}
    for note in metric_notes(run.table):
        if note.get("citation", "").startswith("@"):  # BibTeX already
            entries.append(note["citation"])
        elif note["paper"]:
            papers.setdefault(note["paper"], []).append(note["name"].partition(":")[0].partition(" ")[0])
    for paper, metrics in papers.items():
        text, _, link = paper.partition(", http")
        reference = f",\n  url = {{http{link}}}" if link else ""
        entries.append(f"@misc{{{metrics[0]},\n  note = {{{text}}}{reference}\n}}")
    return "\n\n".join(entry.strip() for entry in dict.fromkeys(entries) if entry)


def metric_notes(table: CellTable) -> list[dict]:
    """Return the glossary entries of the metrics."""
    return [_metric_note(column, table.cells_of_column(column)[0][1]) for column in table.columns]


def _metric_note(column: MetricColumn, cell: CellResult) -> dict:
    low, high = (f"{bound:g}" for bound in cell.limits)
    limits = "unbounded" if cell.range == (None, None) else f"from {low} to {high}"
    note = {"name": column.name, "options": options(cell.metric_options), "direction": column.direction}
    if not registry.is_named(cell.metric_version):
        return note | {"about": cell.metric_about or FUNCTION, "range": limits, "paper": ""}
    metric = _metric(cell.metric)
    if metric is None:
        return note | {"about": UNKNOWN, "range": "", "paper": ""}
    return note | {
        "about": registry.summary(registry.score_file("metrics", cell.metric)),
        "range": limits,
        "paper": metric.declaration.paper_line,
        "citation": metric.declaration.paper,
    }


def _metric(name: str) -> Metric | None:
    """Return a metric of the package; None for an unknown name."""
    try:
        return registered_metric(name)
    except UserError:
        return None


def explainer_notes(table: CellTable) -> list[dict]:
    """Return the glossary entries of the explainers."""
    packaged = registry.files("explainers")
    first_cells = {row.name: table.cells_of_row(row)[0] for row in table.rows}
    return [
        {"name": name, "options": options(cell.explainer_options), "about": _explainer_about(cell, packaged)}
        for name, cell in first_cells.items()
    ]


def _explainer_about(cell: CellResult, packaged: dict[str, Path]) -> str:
    if str(cell.explainer_version).startswith(PRECOMPUTED):
        return "Precomputed maps."
    if not registry.is_named(cell.explainer_version):
        return cell.explainer_about or FUNCTION
    if cell.explainer not in packaged:
        return UNKNOWN
    return registry.summary(packaged[cell.explainer])
