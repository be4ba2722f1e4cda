"""Generate the documentation page about the metrics check from the check's counts."""

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
from saliency_bench.utils.messages import counted

# {question: kinds of damage that a metric must detect to answer the question}
QUESTIONS = {
    "Is the whole map at the position of the evidence?": ("shifted", "half wrong"),
    "Is the map sharp, or does it include the surroundings of the evidence?": ("blurred",),
    "Is the map complete, rather than a single peak?": ("peaked",),
    "Does the map have the right sign?": ("sign flipped",),
    "Does the map explain this class rather than the runner-up?": ("other class",),
    "Does the map show what the network uses, rather than the whole object?": ("whole object",),
    "Does the map depend on the network and the picture at all?": ("centre", "random"),
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
which the correct map is known: small convolutional networks with hand-written weights. For these networks, the
contribution of each pixel to each logit is known. These contributions are the *correct map*. A metric *detects* a type
of damage if the correct map has the better score significantly more often than the damaged map. A type of damage
*misleads* a metric if the damaged map has the better score significantly more often. The test is an exact sign test on
the pictures in which the two maps have different scores. Its level is 5 %, corrected by Holm's method for all
{comparisons:,} comparisons on this page. The [networks](#networks-and-interventions) and the [types of
damage](#damaged-maps) are described below. A metric that is not misled here may be misled by a different type of damage
or with a different network.

*Alignment* metrics compare a map with a mask of the object. None of the networks uses the whole object: the correct map
covers only a part of the mask or lies outside the mask. The choice of the mask can therefore mislead these metrics. As
a *control*, the colour network is also tested with a mask of the region that it uses.

The page lists metrics without the prefix `saliency_`; the [metric cards](metric_cards.md) describe them.

## Summary

{short}

![Fraction of pictures in which a metric scores the correct map higher than a damaged map]({picture})

The figure shows the percentage of pictures in which the correct map has the better score, over all networks on which
a metric was tested. A tie counts as half. In blue cells, the metric prefers the correct map. In brown cells, the metric
prefers the damaged map. In white cells, there is no preference.

## Which metric for which question

Each question corresponds to one or two types of damage. The second column lists the metrics that detect this damage
with every network on which they were tested. The third column lists the metrics that detect the damage with some
networks and are never misled by it. The last column lists the metrics that the damage misleads with at least one
network.

{questions}

## When alignment metrics are misled

{alignment}

## Which damage misleads which metrics, and why

For each metric, this list shows which [damaged maps](#damaged-maps) (in bold) mislead the metric, and for which damaged
maps there is no significant difference. The networks are in brackets. *Mostly ties* means that the two maps have equal
scores in more than half of the pictures. Every picture contains the evidence for the class that the network predicts,
and weaker evidence for a second class, the *rival*.

The explanations follow from the definitions of the metrics. Only two of them were tested experimentally: the control
shows the effect of the mask, and filling removed pixels with the grey of the scene instead of black shows the effect of
the fill colour.

{misled}

## Networks and interventions

{networks}

{flips}

`evidence()` in `saliency_bench.recipes.metrics_check.known_networks` computes the correct map. Networks that detect
colours use individual pixels, so removing a pixel removes only the evidence in that pixel. This favours metrics that
remove pixels. In a trained network, pixels interact, and there may be no single correct map. Networks that detect
textures (stripes) use neighbourhoods of 5 x 5 pixels, like trained networks, so removing scattered pixels creates new
textures. For each position of the filter, the contribution of a texture is known, but there is no unique way to divide
it among the 25 pixels; here, it is divided in proportion to the filter's weights. A blurred map differs from the
correct map mostly within these neighbourhoods, so the results for blurred maps are less conclusive for textures than
for colours.

## Damaged maps

{damages}

## All numbers

Each cell shows the detection rate, its 95 % interval (Wilson) and the number of ties. The detection rate is the
fraction of pictures in which the correct map has the better score. A tie counts as half. n is {n} pictures, or fewer if
a metric has no score for some pictures. According to the corrected sign test, the metric detects the damage if a cell
is **bold**, and the damage misleads the metric if a cell is *italic*. The interval may disagree with the sign test, for
two reasons: the interval is not corrected for multiple testing, and it is wider than necessary if many scores are tied.
The colour, position, context and control networks use the same pictures.

{tables}

## Not checked

{skipped}

Metrics use their default options, except for options that are part of a name, such as `insertion:reference=mean`.
Metrics that need groups of classes use two groups of two classes.

## How to reproduce this page

<!-- skip: next -->
```sh
saliency-bench suite metrics-check --out metrics-check
```

This command writes this page, and the counts on which it is based, to the folder `metrics-check`. The published counts
are in `benchmarks/metrics_check.csv`; a test checks that this page matches them.
"""
FEWEST = 16  # number of pictures below which the page warns that the results are inconclusive
# Why metrics are misled: (metrics, kinds of damage, reason). The page shows only reasons that the counts confirm.
REASONS = (
    (("average precision",), ("sign flipped", "other class"),
     "if the evidence is outside the object, a map that ranks the evidence last scores higher"),
    (("miou", "precision", "recall"), ("sign flipped",),
     "these metrics use the pixels above the midpoint of the map's range. In a flipped map, these are all pixels of "
     "the picture except for the evidence, so they include the object"),
    (("cauc",), ("peaked", "other class"),
     "the metric removes only the pixels above the midpoint of a map's range. If few pixels are removed, the area "
     "under the curve is small, whichever pixels they are. The metric therefore prefers maps with few pixels above the "
     "midpoint of their range. For the same reason, it prefers the correct map to a blurred map"),
    (("insertion", "kae", "roae", "confidence"), ("blurred",),
     "the texture network uses neighbourhoods of 5 x 5 pixels. If the evidence is cut out and placed on a black "
     "background or on a different picture, its outline forms edges, and edges are textures too. With a blurred map, "
     "some of the surroundings are kept as well, which avoids these edges"),
    (("ccs",), ("blurred",),
     "the metric uses a map that contrasts a second class with the predicted class, where both classes belong to the "
     "same group, and removes pixels in the order of this map. The score increases with the probability of the "
     "predicted class. If the rival class belongs to the other group, the correct map is constant outside the evidence "
     "for the predicted class, so the evidence for the rival class is removed in random order, together with all other "
     "pixels. A blurred map has a slope there, so the pixels farthest from the evidence for the predicted class are "
     "removed first, and these usually include the evidence for the rival class. Once this evidence is removed, the "
     "predicted class is more probable"),
    (("class sensitivity",), ("blurred",),
     "the metric computes the correlation between the maps of the most likely and the least likely class; lower is "
     "better. The two correct maps have opposite signs on the evidence for the predicted class, and the same sign on "
     "the evidence for the rival class. The evidence for the rival class is smaller, so blurring weakens it more, and "
     "the correlation falls"),
    (("consistency",), ("sign flipped",),
     "the metric scales maps to a sum of 1. This scaling makes flipped maps nearly constant and therefore similar"),
    (("max sensitivity",), ("blurred", "whole object", "centre", "random"),
     "the metric adds noise to the picture. The noise is itself evidence, so the correct map changes. Blurring "
     "averages out these changes, and a map that ignores the network may change less"),
    (("randomisation",), ("other class", "shifted", "blurred"),
     "the metric only checks how much a map changes when the weights are randomised, and a wrong map may change more"),
    (("mcs",), ("blurred",),
     "the metric scales a map to its own maximum, so the mean of the map over the object grows as the map spreads"),
)  # fmt: skip
ABOUT = {
    "Alignment": "These metrics compare a map with a mask and do not use the network. Except in the control, the "
    "evidence is a part of the mask or outside the mask, so a wrong map can agree with the mask just as well as the "
    "correct map, or better",
    "Faithfulness": "These metrics rank or select pixels according to the map, and measure how the output of the "
    "network changes when pixels are removed",
    "Contrast of classes": "These metrics remove pixels in the order given by a map that contrasts two classes, and "
    "measure the difference between the network's outputs for these two classes",
    "Sensitivity and sanity": "These metrics compare maps with each other, and never with the evidence that the "
    "network uses",
    "Object and scene models": "These metrics measure how much of a map lies on the object, but not where on the "
    "object it lies",
}


def page(counts: Sequence[Count], picture: str = "pictures/metrics-check.svg") -> str:
    """Generate the text of the page."""
    scored = judged([count for count in counts if count.metric != "intervention"])
    n = max(count.n for count in counts)
    smoke = f"**{n} pictures of each network are too few for conclusions.**\n\n" if n < FEWEST else ""
    return PAGE.format(smoke=smoke, short=short(scored), picture=picture, questions=questions(scored),
                       alignment=alignment(scored),
                       misled=misled(scored), networks=networks(), flips=flips(counts), damages=damages(), n=n,
                       comparisons=len(scored),
                       tables=tables(scored), skipped=skipped(scored))  # fmt: skip


def write_page(counts: Sequence[Count], folder: Path) -> Path:
    """Write the page and its figure to a folder. Return the path of the page."""
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    draw_figure(pooled(counts), folder / "pictures" / "metrics-check.svg")
    write_text(folder / "metrics_check.md", page(counts))
    return folder / "metrics_check.md"


def name_of(metric: str) -> str:
    """Return the name under which the page displays a metric."""
    return metric.removeprefix("saliency_").replace("_", " ")


def family_of(metric: str) -> str:
    """Return the family of a metric, based on its inputs."""
    inputs = load_metric(metric).inputs
    return next(family for family, is_in in FAMILIES.items() if is_in(inputs))


def metrics_of(counts: Iterable[Count]) -> list[str]:
    """Return the names of the metrics, grouped by family."""
    order = list(FAMILIES)
    return sorted(
        dict.fromkeys(count.metric for count in counts), key=lambda name: (order.index(family_of(name)), name)
    )


def pooled(counts: Iterable[Count]) -> list[tuple[str, list[Count | None]]]:
    """Return the rows of the figure: (name of a metric, its count for each kind of damage over all networks)."""
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
    """Join names with commas and "and"."""
    *first, last = list(names) or ["none"]
    return f"{', '.join(first)} and {last}" if first else last


def sorted_out(counts: Sequence[Count], wanted: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Group metrics according to whether they detect these kinds of damage.

    Returns:
        Three lists: metrics that detect all kinds with every network on which they were tested, other metrics that
        detect at least one kind with some network, and metrics that are misled at least once.
    """
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
    """Return the table that answers the page's questions."""
    lines = [
        "| question about the map | metrics that detect the damage with every network | metrics that detect it only "
        "with some networks | metrics that are misled with at least one network |",
        "|---|---|---|---|",
    ]
    for question, wanted in QUESTIONS.items():
        columns = (", ".join(names) or "–" for names in sorted_out(counts, wanted))
        lines.append(f"| {question} | {' | '.join(columns)} |")
    return "\n".join(lines)


def short(counts: Sequence[Count]) -> str:
    """Return the findings as a list of sentences."""
    every = [
        name for name in metrics_of(counts) if all(count.sees for count in counts if count.metric == name and count.n)
    ]
    never = [name for name in metrics_of(counts) if not any(count.misled for count in counts if count.metric == name)]
    count = len(metrics_of(counts))
    lines = [
        f"- {len(every)} of {count} metrics detect all types of damage with every network on which they were tested"
        + (f": {listed(map(with_one, every))}." if every else "."),
        f"- {len(never)} of {count} metrics are never misled on these networks: {listed(map(with_one, never))}.",
    ]
    if control := [count for count in counts if KINDS[count.kind].mask == "evidence"]:
        sees, _, wrong = sorted_out(control, list(DAMAGED))
        of_control = metrics_of(control)
        lines.append(
            f"- The results of alignment metrics depend on the mask. If the mask covers the whole object (or, for the "
            f"grid network, the cell that contains the evidence), {misled_by_object(counts)} of {len(of_control)} are "
            f"misled by at least one type of damage. In the control, where the mask covers exactly the evidence, "
            f"{f'{len(wrong)} of' if wrong else 'none of'} the {len(of_control)} "
            f"{'is' if len(wrong) < 2 else 'are'} misled, and {len(sees)} detect all types of damage"
            + (f" ({listed(sees)})." if sees else ".")
        )
    for damage in DAMAGED:
        wrong = sorted_out(counts, [damage])[2]
        if wrong:
            lines.append(f"- **{damage.capitalize()}** misleads {len(wrong)} of {count} metrics: {listed(wrong)}.")
    return "\n".join(lines)


def with_one(metric: str) -> str:
    """Return the name of a metric. If it was tested with only one network, a note is added."""
    return name_of(metric) + " (tested with one network)" * (metric in OF_PAIRS)


def misled_by_object(counts: Sequence[Count]) -> int:
    """Return the number of alignment metrics that are misled if the mask is not the evidence."""
    return len({count.metric for count in counts
                if count.misled and KINDS[count.kind].mask == "object"
                and family_of(count.metric) == "Alignment"})  # fmt: skip


def alignment(counts: Sequence[Count]) -> str:
    """Return the section that compares a map of the entire object with the correct map."""
    names = [name for name in metrics_of(counts) if family_of(name) == "Alignment"]
    shown = {(count.kind, count.metric): count for count in counts if count.damage == "whole object"}
    cells = {metric: count for (kind, metric), count in shown.items() if kind == "context"}
    lines = ["The context network bases its decision on stripes beside the object and ignores the object, so its "
             "correct map is outside the mask. The colour network uses a part of the object. The control is the colour "
             "network with a mask of this part. The table shows the fraction of pictures in which the correct map "
             "scores higher than a map of the whole object. The section [All numbers](#all-numbers) explains the "
             "format of the cells. Except in the control, the map of the whole object marks nearly the same pixels as "
             "the mask.", "",
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
        lines.append(f"In the control, {len(control)} of {len(names)} prefer the correct map: "
                     f"{listed(map(name_of, control))}. The control and the colour network have the same weights, "
                     "pictures and maps, so the difference is due to the mask.")  # fmt: skip
    by_network = [name_of(count.metric) for count in counts if count.kind == "context"
                  and count.damage == "whole object"
                  and family_of(count.metric) == "Faithfulness" and count.sees]  # fmt: skip
    lines.append(f"With the context network, these faithfulness metrics prefer the correct map: {listed(by_network)}.")
    return "\n".join(lines)


def misled(counts: Sequence[Count]) -> str:
    """Return a list of the kinds of damage that mislead each metric.

    For each kind, the list names the networks and the rates.
    """
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
                    f"no significant difference between the correct map and {by_damage(blind, True)}"
                ] * bool(blind)
                lines.append(f"- {name_of(name)}: {'; '.join(texts)}.")
        lines += because(counts, family)
        parts.append("\n\n".join(filter(None, [f"**{family}.** {reason}.", "\n".join(lines)])))
    return "\n\n".join(parts)


def because(counts: Sequence[Count], family: str) -> list[str]:
    """Return the reasons why metrics in a family are misled. Each reason names the metrics that it applies to."""
    lines = []
    for names, wanted, reason in REASONS:
        here = [name for name in metrics_of(counts) if name_of(name) in names and family_of(name) == family]
        wrong = [name_of(name) for name in here if any(count.misled for count in counts
                                                       if count.metric == name and count.damage in wanted)]  # fmt: skip
        by = [damage for damage in wanted
              if any(count.misled for count in counts if count.metric in here and count.damage == damage)]  # fmt: skip
        if wrong:
            lines.append(f"- Why {listed(wrong)} {'is' if len(wrong) == 1 else 'are'} misled by "
                         f"{either([f'**{damage}**' for damage in by])}: {reason}.")  # fmt: skip
    return lines + on_grey(counts) * (family == "Faithfulness")


def either(names: Sequence[str]) -> str:
    """Join names with commas and "or"."""
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def on_grey(counts: Sequence[Count]) -> list[str]:
    """Compare the blurred map's detection rates for grey and for black replacement values.

    Only metrics that are misled when pixels are replaced by black are listed.
    """
    lines = []
    for grey in ON_GREY:
        black = grey.partition(":")[0]
        rates = {(count.metric, count.kind): count for count in counts if count.damage == "blurred"}
        for kind in (
            count.kind for count in counts if count.metric == black and count.damage == "blurred" and count.misled
        ):
            if (grey, kind) in rates:
                lines.append(f"- Test of this explanation, with {name_of(black)} and the {kind} network: if removed "
                             "pixels are black, the correct map scores higher than the blurred map for "
                             f"{percent(rates[black, kind])} of the pictures; if removed pixels have the "
                             f"grey of the scene, it does so for {percent(rates[grey, kind])} of the pictures. "
                             "A tie counts as half.")  # fmt: skip
    return lines


def by_damage(cells: Sequence[Count], ties: bool = False) -> str:
    """List kinds of damage with the networks on which they occur. A note is added if most images are ties."""
    texts = []
    for damage in dict.fromkeys(count.damage for count in cells):
        here = [count for count in cells if count.damage == damage]
        equal = ties and all(2 * count.ties > count.n for count in here)
        texts.append(f"**{damage}** ({', '.join(count.kind for count in here)}{': mostly ties' if equal else ''})")
    return ", ".join(texts)


def networks() -> str:
    """Return the table that describes the networks."""
    lines = ["| network | bases its decision on | mask |", "|---|---|---|"]
    for name, kind in KINDS.items():
        on_object = "the cell with the patch" if kind.layout == "grid" else "the object"
        mask = "the patch" if kind.mask == "evidence" else on_object
        lines.append(f"| {name} | {kind.about} | {mask} |")
    return "\n".join(lines)


def flips(counts: Sequence[Count]) -> str:
    """Return the table of the interventions' results."""
    by_place = {(count.kind, count.damage): count for count in counts if count.metric == "intervention"}
    kinds = list(dict.fromkeys(kind for kind, _ in by_place))
    lines = [
        "This table shows in how many pictures an intervention changes the decision of the network. The numbers "
        "confirm that each network uses the evidence that the table above lists.",
        "",
        f"| change of the picture | {' | '.join(kinds)} |",
        "|---|" + "---|" * len(kinds),
    ]
    for change, about in FLIPS.items():
        shown = (by_place[kind, change] for kind in kinds)
        lines.append(f"| {about} | {' | '.join(f'{count.ahead} of {count.n}' for count in shown)} |")
    return "\n".join(lines)


def damages() -> str:
    """Return the list that describes the kinds of damage."""
    return "\n".join(f"- **{name}**: {about}" for name, about in DAMAGED.items())


def cell(count: Count) -> str:
    """Format a count as its rate, its interval and its ties."""
    if not count.n:
        return "–"
    low, high = count.interval
    text = f"{count.rate:.2f} [{low:.2f}, {high:.2f}]"
    text = f"**{text}**" if count.sees else f"*{text}*" if count.misled else text
    return text + (f", {counted(count.ties, 'tie')}" if count.ties else "")


def percent(count: Count) -> str:
    """Format a count as its rate and its interval, in percent."""
    low, high = count.interval
    return f"{100 * count.rate:.0f} % [{100 * low:.0f} %, {100 * high:.0f} %]"


def tables(counts: Sequence[Count]) -> str:
    """Return a table for each network. Each table contains all metrics and kinds of damage."""
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
    """Return the list of metrics that were not checked, and why."""
    lines = [f"- {name_of(name)} {why}." for name, why in NOT_CHECKED.items()]
    lines.append(f"- {listed(map(name_of, OF_PAIRS))} compare an object model with a scene model, so they were tested "
                 f"only with the {PAIRED} network as the object model and the context network as the scene "
                 "model.")  # fmt: skip
    return "\n".join(lines)
