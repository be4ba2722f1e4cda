"""Render the page on metrics from the counts of the check: tables, and sentences derived from them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from saliency_bench.bound_metric import load_metric
from saliency_bench.recipes.metrics_check.check import (
    FLIPS,
    NOT_CHECKED,
    OF_PAIRS,
    ON_GREY,
    PAIRED,
    Count,
    is_alignment,
    judged,
)
from saliency_bench.recipes.metrics_check.damaged_maps import DAMAGED
from saliency_bench.recipes.metrics_check.figure import draw_figure
from saliency_bench.recipes.metrics_check.known_networks import KINDS
from saliency_bench.utils.files import write_text

# {question: damages that a metric must detect to answer it}
QUESTIONS = {
    "Is the map on the evidence, neither shifted nor half wrong?": ("shifted", "half wrong"),
    "Is the map sharp, without the surroundings of the evidence?": ("blurred",),
    "Is the map complete, and not only its strongest pixel?": ("peaked",),
    "Does the map have the right sign?": ("sign flipped",),
    "Does the map explain this class and not the runner-up?": ("other class",),
    "Does the map show what the network uses, and not the whole object?": ("all object",),
    "Does the map depend on the network and the image at all?": ("centre", "random"),
}
FAMILIES = {
    "Alignment": is_alignment,
    "Faithfulness": lambda inputs: bool({"curves", "partners"} & set(inputs)),
    "Contrast of classes": lambda inputs: {"groups", "explain"} <= set(inputs),
    "Sensitivity and sanity": lambda inputs: "explain" in inputs and not {"groups", "other"} & set(inputs),
    "Object and scene models": lambda inputs: "other" in inputs,
}
PAGE = """# Which metric can be trusted for which question

{smoke}\
A metric should score a correct saliency map higher than a damaged map. This page tests every metric on networks for
which the correct map is known: small convolutional networks whose weights were set by hand, so that the contribution of
each pixel to each logit is known. These contributions are the *right map*. A metric *detects* a damage if the right map
scores higher significantly more often than the damaged map. A damage *misleads* a metric if the damaged map scores
higher significantly more often. The test is an exact sign test on the images in which the two maps do not tie,
corrected by Holm's method for all {comparisons:,} comparisons of this page, at 5 %. A metric that is not misled here
may be misled by another damage or another network.

Metrics of *alignment* compare a map with a mask of the object. No network on this page uses the whole object: the right
map covers a part of the mask or is outside the mask. Therefore, the choice of the mask may be what misleads these
metrics. In the *control*, the mask is the part that the network uses.

## Summary

{short}

![Share of images in which a metric scores the right map higher than a damaged map]({picture})

The figure shows the percentage of images in which the right map has the better score, over all networks that the metric
was tested with. A tie counts as half. Blue fields mean that the metric prefers the right map, brown fields that it
prefers the damaged map, and white fields that it has no preference.

## Metrics for each question

Each question corresponds to one or two damages. The second column lists the metrics that detect these damages with
every network they were tested on. The third column lists the metrics that detect the damages with some networks and are
never misled. The last column lists the metrics that are misled with at least one network.

{questions}

## Where alignment misleads

{alignment}

## Which damages mislead which metrics, and why

The reasons follow from the definitions of the metrics. Only two of them were tested by an experiment: the mask, by the
control, and the black fill of removed pixels, by the grey of the scene.

{misled}

## Networks and interventions

{networks}

{flips}

`evidence()` in `saliency_bench.recipes.metrics_check.known_networks` computes the right map. The colour networks use
single pixels, so removing a pixel removes only the evidence of this pixel. This favours metrics that remove pixels. In
a trained network, pixels interact, and there may be no single right map. The texture networks use neighbourhoods of 5 x
5 pixels, like trained networks, so removing scattered pixels creates new textures. The contribution of a texture is
known for each position of the filter. Distributing this contribution over the 25 pixels in proportion to the filter's
weights is a choice. A blurred map differs from the right map mostly within these neighbourhoods, so its results are
less conclusive for textures than for colours.

## Damaged maps

{damages}

## All numbers

Each cell contains the detection rate, its 95 % interval (Wilson) and the number of ties. The detection rate is the
share of images in which the right map has the better score; a tie counts as half. n is {n} images, or fewer if a metric
has no score for some images. **Bold** means that the metric detects the damage, and *italic* that the damage misleads
the metric, according to the corrected sign tests. The intervals are not corrected, and they are wider than necessary if
many images tie, so they may disagree with the tests. Colour, position, context and control use the same images.

{tables}

## Not checked

{skipped}

Metrics use their default options unless the name shows another one. Metrics that need groups of classes get two groups
of two classes.

## How this page was made

<!-- skip: next -->
```sh
saliency-bench suite metrics-check --out metrics-check
```

This command writes the counts in `benchmarks/metrics_check.csv`. A test checks that this page follows from this file.
"""
FEWEST = 16  # with fewer images, the page warns that the results are not conclusive
# Why metrics are misled: (metrics, damages, reason). The page shows a reason only if the counts show the effect.
REASONS = (
    (("average precision",), ("sign flipped", "other class"),
     "if the evidence is outside the object, a map that ranks the evidence last scores higher"),
    (("miou", "precision", "recall"), ("sign flipped",),
     "the region of a map contains the pixels above the middle of the map's range; for a flipped map, this is the "
     "whole image except the evidence, so it contains the object"),
    (("cauc",), ("peaked", "other class"),
     "the metric removes only pixels above half of a map's range; the area remains small if any few pixels are "
     "removed, so the metric prefers small regions, including the right map over a blurred map"),
    (("insertion", "kae", "roae", "confidence"), ("blurred",),
     "the texture network uses 5 x 5 pixels; evidence that is cut out and placed on black or on another image gets "
     "edges, which are also textures; a blurred map includes some of the surroundings and avoids these edges"),
    (("ccs",), ("blurred",),
     "the metric removes pixels in the order of a contrastive map of two classes of the same group; where neither "
     "class has evidence, the right map is constant and pixels are removed in random order; a blurred map removes "
     "pixels far from the evidence first, including the competing class, which is in neither term"),
    (("class sensitivity",), ("peaked", "blurred"),
     "the metric compares the maps of the most and the least likely class, and checks only whether they differ"),
    (("consistency",), ("sign flipped",),
     "the metric scales maps to a sum of 1, which makes flipped maps nearly constant and therefore similar"),
    (("max sensitivity",), ("blurred", "all object", "centre", "random"),
     "the noise is itself evidence, so the right map changes; a blurred map averages this change, and a map that "
     "ignores the network may change less"),
    (("randomisation",), ("other class", "shifted", "blurred"),
     "the metric only checks how much a map changes when the weights are randomised, and a wrong map may change more"),
    (("mcs",), ("blurred",),
     "the metric scales a map to its own maximum, so its mean over the object grows as the map spreads"),
)  # fmt: skip
ABOUT = {
    "Alignment": "These metrics compare a map with a mask and do not use the network. Except in the control, the "
    "evidence is a part of the mask or outside the mask, so a wrong map can agree with the mask as well as the right "
    "map or better",
    "Faithfulness": "These metrics rank or select pixels by the map, and measure how the output of the network changes "
    "when pixels are removed",
    "Contrast of classes": "These metrics remove pixels by a contrastive map of two classes, and measure the lead of "
    "one class over another",
    "Sensitivity and sanity": "These metrics compare maps with other maps, and never with the evidence of the network",
    "Object and scene models": "These metrics measure how much of a map is on the object, but not where on the object",
}


def page(counts: Sequence[Count], picture: str = "pictures/metrics-check.svg") -> str:
    """Return the text of the page."""
    scored = judged([count for count in counts if count.metric != "intervention"])
    n = max(count.n for count in counts)
    smoke = f"**{n} images of each network are too few for conclusions.**\n\n" if n < FEWEST else ""
    return PAGE.format(smoke=smoke, short=short(scored), picture=picture, questions=questions(scored),
                       alignment=alignment(scored),
                       misled=misled(scored), networks=networks(), flips=flips(counts), damages=damages(), n=n,
                       comparisons=len(scored),
                       tables=tables(scored), skipped=skipped(scored))  # fmt: skip


def write_page(counts: Sequence[Count], folder: Path) -> Path:
    """Write the page and its figure to a folder, and return the path of the page."""
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    draw_figure(pooled(counts), folder / "pictures" / "metrics-check.svg")
    write_text(folder / "metrics_check.md", page(counts))
    return folder / "metrics_check.md"


def name_of(metric: str) -> str:
    """Return the name of a metric on the page."""
    return metric.removeprefix("saliency_").replace("_", " ")


def family_of(metric: str) -> str:
    """Return the family of a metric, determined by its inputs."""
    inputs = load_metric(metric).inputs
    return next(family for family, is_in in FAMILIES.items() if is_in(inputs))


def metrics_of(counts: Iterable[Count]) -> list[str]:
    """Return the metrics, sorted by family."""
    order = list(FAMILIES)
    return sorted(
        dict.fromkeys(count.metric for count in counts), key=lambda name: (order.index(family_of(name)), name)
    )


def pooled(counts: Iterable[Count]) -> list[tuple[str, list[Count | None]]]:
    """Return the rows of the figure: (metric, for each damage the count over all networks)."""
    counts = [count for count in counts if count.metric != "intervention"]
    rows = []
    for metric in metrics_of(counts):
        cells: list[Count | None] = []
        for damage in DAMAGED:
            parts = [count for count in counts if (count.metric, count.damage) == (metric, damage)]
            sums = [sum(getattr(part, key) for part in parts) for key in ("ahead", "ties", "behind", "left_out")]
            cells.append(Count("all", metric, damage, *sums) if parts else None)
        rows.append((name_of(metric), cells))
    return rows


def listed(names: Iterable[str]) -> str:
    """Return names as a list in a sentence."""
    *first, last = list(names) or ["none"]
    return f"{', '.join(first)} and {last}" if first else last


def sorted_out(counts: Sequence[Count], wanted: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Return the metrics that detect all damages with all networks, that detect some, and that are misled."""
    sees, partly, wrong = [], [], []
    for metric in metrics_of(counts):
        cells = [count for count in counts if count.metric == metric and count.damage in wanted and count.n]
        if any(cell.misled for cell in cells):
            wrong.append(name_of(metric))
        elif cells and all(cell.sees for cell in cells):
            sees.append(name_of(metric))
        elif any(cell.sees for cell in cells):
            partly.append(name_of(metric))
    return sees, partly, wrong


def questions(counts: Sequence[Count]) -> str:
    """Return the table of questions."""
    lines = [
        "| question about the map | detected with every network | with some networks | misled with at least one |",
        "|---|---|---|---|",
    ]
    for question, wanted in QUESTIONS.items():
        columns = (", ".join(names) or "–" for names in sorted_out(counts, wanted))
        lines.append(f"| {question} | {' | '.join(columns)} |")
    return "\n".join(lines)


def short(counts: Sequence[Count]) -> str:
    """Return the sentences of the summary."""
    every = [
        name for name in metrics_of(counts) if all(count.sees for count in counts if count.metric == name and count.n)
    ]
    never = [name for name in metrics_of(counts) if not any(count.misled for count in counts if count.metric == name)]
    count = len(metrics_of(counts))
    lines = [
        f"- {len(every)} of {count} metrics detect every damage with every network they were tested on"
        + (f": {listed(map(with_one, every))}." if every else "."),
        f"- {len(never)} of {count} are misled by none of these damages: {listed(map(with_one, never))}.",
    ]
    if control := [count for count in counts if KINDS[count.kind].mask == "evidence"]:
        sees, _, wrong = sorted_out(control, list(DAMAGED))
        of_control = metrics_of(control)
        lines.append(
            f"- Metrics of alignment depend on the mask: with masks of the object or its cell, "
            f"{misled_by_object(counts)} of {len(of_control)} are misled by a damage; in the control, whose mask is "
            f"the evidence, {len(wrong)} of {len(of_control)} are, and {len(sees)} detect every damage"
            + (f" ({listed(sees)})." if sees else ".")
        )
    for damage in DAMAGED:
        wrong = sorted_out(counts, [damage])[2]
        if wrong:
            lines.append(f"- **{damage.capitalize()}** misleads {len(wrong)} of {count}: {listed(wrong)}.")
    return "\n".join(lines)


def with_one(metric: str) -> str:
    """Return the name of a metric, with a note if it was tested with one network only."""
    return name_of(metric) + " (tested with one network)" * (metric in OF_PAIRS)


def misled_by_object(counts: Sequence[Count]) -> int:
    """Return how many metrics of alignment are misled if the mask is not the evidence."""
    return len({count.metric for count in counts
                if count.misled and KINDS[count.kind].mask == "object"
                and family_of(count.metric) == "Alignment"})  # fmt: skip


def alignment(counts: Sequence[Count]) -> str:
    """Return the section on metrics that prefer a map of the object to the right map."""
    names = [name for name in metrics_of(counts) if family_of(name) == "Alignment"]
    shown = {(count.kind, count.metric): count for count in counts if count.damage == "all object"}
    cells = {metric: count for (kind, metric), count in shown.items() if kind == "context"}
    lines = ["The context network uses stripes next to the object and ignores the object, so its right map is outside "
             "the mask. The colour network uses a part of the object. The control is the colour network with a mask "
             "of this part. The table shows the share of images in which the right map scores higher than a map of "
             "the whole object. This map marks nearly the same pixels as the mask, except in the control:", "",
             "| metric | context | colour | control |", "|---|---|---|---|"]  # fmt: skip
    for name in names:
        if name in cells:
            texts = [cell(shown[kind, name]) if (kind, name) in shown else "–" for kind in ("colour", "control")]
            lines.append(f"| {name_of(name)} | {cell(cells[name])} | {' | '.join(texts)} |")
    wrong = [name_of(name) for name in names if name in cells and cells[name].misled]
    tied = [name_of(name) for name in names if name in cells and not cells[name].misled and not cells[name].sees]
    lines += [
        "",
        f"With the context network, {len(wrong)} of {len(names)} alignment metrics prefer the wrong map: "
        f"{listed(wrong)}.",
    ]
    if tied:
        lines.append(f"{listed(tied).capitalize()} have no preference.")
    if control := [name for name in names if ("control", name) in shown and shown["control", name].sees]:
        lines.append(f"In the control, {len(control)} of {len(names)} prefer the right map: "
                     f"{listed(map(name_of, control))}. The network, the images and the maps are the same as for "
                     "the colour network, so the difference is due to the mask.")  # fmt: skip
    by_network = [name_of(count.metric) for count in counts if count.kind == "context" and count.damage == "all object"
                  and family_of(count.metric) == "Faithfulness" and count.sees]  # fmt: skip
    lines.append(f"With the same network, these faithfulness metrics prefer the right map: {listed(by_network)}.")
    return "\n".join(lines)


def misled(counts: Sequence[Count]) -> str:
    """Return the damages that mislead each metric, grouped by family, with the networks."""
    parts = []
    for family, reason in ABOUT.items():
        lines = []
        for name in (name for name in metrics_of(counts) if family_of(name) == family):
            wrong = [count for count in counts if count.metric == name and count.misled]
            blind = [
                count for count in counts if count.metric == name and count.n and not count.misled and not count.sees
            ]
            if wrong or blind:
                texts = [f"misled by {by_damage(wrong)}"] * bool(wrong) + [
                    f"no significant preference for {by_damage(blind, True)}"
                ] * bool(blind)
                lines.append(f"- {name_of(name)}: {'; '.join(texts)}.")
        lines += because(counts, family)
        parts.append("\n\n".join(filter(None, [f"**{family}.** {reason}.", "\n".join(lines)])))
    return "\n\n".join(parts)


def because(counts: Sequence[Count], family: str) -> list[str]:
    """Return the reasons why metrics of a family are misled, each with the misled metrics."""
    lines = []
    for names, wanted, reason in REASONS:
        here = [name for name in metrics_of(counts) if name_of(name) in names and family_of(name) == family]
        wrong = [name_of(name) for name in here if any(count.misled for count in counts
                                                       if count.metric == name and count.damage in wanted)]  # fmt: skip
        by = [damage for damage in wanted
              if any(count.misled for count in counts if count.metric in here and count.damage == damage)]  # fmt: skip
        if wrong:
            lines.append(
                f"- Why {listed(wrong)} {'is' if len(wrong) == 1 else 'are'} misled by {either(by)}: {reason}."
            )
    return lines + on_grey(counts) * (family == "Faithfulness")


def either(names: Sequence[str]) -> str:
    """Return names as alternatives."""
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def on_grey(counts: Sequence[Count]) -> list[str]:
    """Return how often the blurred map is detected with grey instead of black, where black misleads a metric."""
    lines = []
    for grey in ON_GREY:
        black = grey.partition(":")[0]
        rates = {(count.metric, count.kind): count for count in counts if count.damage == "blurred"}
        for kind in (
            count.kind for count in counts if count.metric == black and count.damage == "blurred" and count.misled
        ):
            if (grey, kind) in rates:
                lines.append(f"- With the grey of the scene instead of black, {name_of(black)} scores the right map "
                             f"higher than the blurred map with a rate of {cell(rates[grey, kind])} for the {kind} "
                             f"network, instead of {cell(rates[black, kind])}.")  # fmt: skip
    return lines


def by_damage(cells: Sequence[Count], ties: bool = False) -> str:
    """Return damages with their networks, with a note if most images tie."""
    texts = []
    for damage in dict.fromkeys(count.damage for count in cells):
        here = [count for count in cells if count.damage == damage]
        equal = ties and all(2 * count.ties > count.n for count in here)
        texts.append(f"{damage} ({', '.join(count.kind for count in here)}{': most tie' if equal else ''})")
    return ", ".join(texts)


def networks() -> str:
    """Return the table of networks."""
    lines = ["| network | decides by | mask |", "|---|---|---|"]
    for name, kind in KINDS.items():
        mask = "the patch" if kind.mask == "evidence" else "its cell" if kind.layout == "grid" else "the object"
        lines.append(f"| {name} | {kind.about} | {mask} |")
    return "\n".join(lines)


def flips(counts: Sequence[Count]) -> str:
    """Return the table of interventions."""
    by_place = {(count.kind, count.damage): count for count in counts if count.metric == "intervention"}
    kinds = list(dict.fromkeys(kind for kind, _ in by_place))
    lines = [
        "The table shows in how many images an intervention changes the prediction of the network. It confirms where "
        "the evidence is:",
        "",
        f"| change of the image | {' | '.join(kinds)} |",
        "|---|" + "---|" * len(kinds),
    ]
    for change, about in FLIPS.items():
        shown = (by_place[kind, change] for kind in kinds)
        lines.append(f"| {about} | {' | '.join(f'{count.ahead} of {count.n}' for count in shown)} |")
    return "\n".join(lines)


def damages() -> str:
    """Return the list of damages."""
    return "\n".join(f"- **{name}**: {about}" for name, about in DAMAGED.items())


def cell(count: Count) -> str:
    """Return the rate, interval and ties of a count as text."""
    if not count.n:
        return "–"
    low, high = count.interval
    text = f"{count.rate:.2f} [{low:.2f}, {high:.2f}]"
    text = f"**{text}**" if count.sees else f"*{text}*" if count.misled else text
    return text + f", {count.ties} tie" * bool(count.ties)


def tables(counts: Sequence[Count]) -> str:
    """Return a table of all metrics and damages for each network."""
    parts = []
    for kind in dict.fromkeys(count.kind for count in counts):
        here = {(count.metric, count.damage): count for count in counts if count.kind == kind}
        lines = [f"### {kind.capitalize()}: {KINDS[kind].about}", "",
                 f"| metric | n | {' | '.join(DAMAGED)} |", "|---|---|" + "---|" * len(DAMAGED)]  # fmt: skip
        for name in metrics_of(here.values()):
            shown = [here.get((name, damage)) for damage in DAMAGED]
            size = max(count.n for count in shown if count)
            lines.append(
                f"| {name_of(name)} | {size} | {' | '.join(cell(count) if count else '–' for count in shown)} |"
            )
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def skipped(counts: Sequence[Count]) -> str:
    """Return the list of metrics that were not checked, with reasons."""
    lines = [f"- {name_of(name)} {why}." for name, why in NOT_CHECKED.items()]
    lines.append(f"- {listed(map(name_of, OF_PAIRS))} compare an object model with a scene model, so they were tested "
                 f"only with the {PAIRED} network as the object model and the context network as the scene "
                 "model.")  # fmt: skip
    return "\n".join(lines)
