"""The page on metrics, made of the counts of the check: tables, and sentences that follow from them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from saliency_bench.bound_metric import load_metric
from saliency_bench.recipes.metrics_check.check import FLIPS, NOT_CHECKED, OF_PAIRS, ON_GREY, PAIRED, Count
from saliency_bench.recipes.metrics_check.figure import draw_figure
from saliency_bench.recipes.metrics_check.maps import DAMAGED
from saliency_bench.recipes.metrics_check.networks import KINDS
from saliency_bench.utils.files import write_text

# Questions, and the damages that a metric must see to answer them.
QUESTIONS = {
    "Does it lie where the evidence is, neither shifted nor half elsewhere?": ("shifted", "half wrong"),
    "Is it sharp, without what merely surrounds the evidence?": ("blurred",),
    "Is it complete, more than its strongest pixel?": ("peaked",),
    "Has it the right sign?": ("sign flipped",),
    "Does it explain this class and not the runner-up?": ("other class",),
    "Does it show what the network uses and not the whole object?": ("all object",),
    "Does it look at the network and the picture at all?": ("centre", "random"),
}
FAMILIES = {
    "Alignment": lambda inputs: "masks" in inputs and "explain" not in inputs,
    "Faithfulness": lambda inputs: bool({"curves", "partners"} & set(inputs)),
    "Contrast of classes": lambda inputs: {"groups", "explain"} <= set(inputs),
    "Sensitivity and sanity": lambda inputs: "explain" in inputs and not {"groups", "other"} & set(inputs),
    "Object and scene models": lambda inputs: "other" in inputs,
}
PAGE = """# Which metric can be trusted for which question

{smoke}\
Every metric is asked the same thing where the answer is known: is the right map better than a damaged one? The networks
are convolutions whose weights were written down, not trained, so that what each part of a picture adds to each logit is
known: that is the right map. A metric *sees* a damage if it puts the right map ahead in significantly more than half
of the pictures (the 95 % interval lies above one half), and is *misled* by it if the damaged map is ahead in
significantly more than half.

## In short

{short}

![Share of pictures in which a metric puts the right map above a damaged one]({picture})

The share of pictures, in percent, over all networks, in which a metric puts the right map ahead; ties count half. Blue
is right, white cannot tell, brown prefers the damaged map.

## Which metric for which question

A metric stands in the second column if it sees the damages that belong to the question with every network that it was
tried with, in the third if with some and never misled, and in the last if a damaged map is ahead with at least one.

{questions}

## Where alignment misleads

{alignment}

## Which damages mislead which metrics, and why

{misled}

## Networks and interventions

{networks}

{flips}

The networks have no other parts: `evidence()` of `saliency_bench.recipes.metrics_check.networks` returns what each
pixel adds. Its colour networks look at single pixels, so that a removed pixel takes its own evidence away and nothing
else. Its texture networks look at 5 x 5 pixels, as trained networks look at surroundings: pixels removed here and there
make textures of their own. What a texture adds is known for each place of the filter; that the pixels under it share
this in proportion to its weights is a choice. So blur, which hardly leaves these surroundings, says less with textures
than with colours.

## Damaged maps

{damages}

## All numbers

The detection rate, its interval (Wilson, 95 %) and ties, per network. n is {n} pictures; where it is smaller, the
others have no score. **Bold**: the damage is seen. *Italic*: the metric is misled. Where many pictures tie, Wilson's
interval is wider than it needs to be.

{tables}

## Not checked

{skipped}

Options are the defaults unless a name says otherwise; groups of classes are two and two. Intervals are not adjusted for
their number.

## Made by

<!-- skip: next -->
```sh
saliency-bench suite metrics-check --out metrics-check
```

Its counts are in `benchmarks/metrics_check.csv`, from which a test makes this page.
"""
FEWEST = 16  # pictures, below which the page says that they show nothing
# Why metrics are misled, shown where they are: (metrics, damages, reason).
REASONS = (
    (("average precision",), ("sign flipped", "other class"),
     "where the evidence lies beside the object, a map that ranks it last is better"),
    (("miou", "precision", "recall"), ("sign flipped",),
     "the region of a map is what lies above the middle of its range, which of a flipped map is the whole picture but "
     "the evidence: it holds the object"),
    (("cauc",), ("peaked", "other class"),
     "only pixels above half of a map's range are removed, and removing few keeps the area small whatever they show"),
    (("insertion", "kae", "roae", "confidence"), ("blurred",),
     "the network reads 5 x 5 pixels, and evidence without its surroundings, next to black or to another picture, has "
     "edges that are textures too; a blurred map brings or takes the surroundings with it"),
    (("ccs",), ("blurred",),
     "it removes by the map of a class of the same group against this one; where neither has evidence that map is "
     "constant and pixels leave in random order, while of a blurred map what is far from the evidence leaves first, "
     "and with it the rival, which is in neither term"),
    (("class sensitivity",), ("peaked", "blurred"),
     "it compares the maps of the likeliest and the least likely class, and asks only whether they differ"),
    (("consistency",), ("sign flipped",),
     "maps are scaled to a sum of 1, by which a flipped map is nearly constant and differs little from another"),
    (("max sensitivity",), ("blurred", "all object", "centre", "random"),
     "noise changes what the network sees, so the right map has to change; a map that ignores the network need not"),
    (("randomisation",), ("other class", "shifted", "blurred"),
     "the map of another class, or the right one at another place, is lost with the weights as the right one is"),
    (("mcs",), ("blurred",), "a map is scaled to its own maximum, so its mean over the object grows as it spreads"),
)  # fmt: skip
WHY = {
    "Alignment": "It compares with a mask of the object and never asks the network. The evidence is a part of the "
    "object, or lies beside it, so a map that covers more of the mask is better by it",
    "Faithfulness": "It orders pixels or cuts regions by the map, and asks the network about pictures with parts "
    "removed",
    "Contrast of classes": "It removes pixels by a map of another target than the run's, and reads the lead of a class",
    "Sensitivity and sanity": "It compares maps with maps, and no map with what the network uses",
    "Object and scene models": "It asks how much of a map lies on the object, not where on it",
}


def page(counts: Sequence[Count], picture: str = "pictures/metrics-check.svg") -> str:
    """Return the text of the page."""
    scored = [count for count in counts if count.metric != "intervention"]
    n = max(count.n for count in counts)
    smoke = f"**{n} pictures of each network are too few to show anything.**\n\n" if n < FEWEST else ""
    return PAGE.format(smoke=smoke, short=short(scored), picture=picture, questions=questions(scored),
                       alignment=alignment(scored),
                       misled=misled(scored), networks=networks(), flips=flips(counts), damages=damages(), n=n,
                       tables=tables(scored), skipped=skipped(scored))  # fmt: skip


def write_page(counts: Sequence[Count], folder: Path) -> Path:
    """Write the page and its figure to a folder, and return the path of the page."""
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    draw_figure(pooled(counts), folder / "pictures" / "metrics-check.svg")
    write_text(folder / "metrics_check.md", page(counts))
    return folder / "metrics_check.md"


def name_of(metric: str) -> str:
    """Return the name of a metric in the page's words."""
    return metric.removeprefix("saliency_").replace("_", " ")


def family_of(metric: str) -> str:
    """Return the family of a metric, by what it asks for."""
    inputs = load_metric(metric).inputs
    return next(family for family, is_in in FAMILIES.items() if is_in(inputs))


def metrics_of(counts: Iterable[Count]) -> list[str]:
    """Return the metrics, family by family."""
    order = list(FAMILIES)
    return sorted(
        dict.fromkeys(count.metric for count in counts), key=lambda name: (order.index(family_of(name)), name)
    )


def pooled(counts: Iterable[Count]) -> list[tuple[str, list[Count | None]]]:
    """Return (name, a count over all networks for each damage) of every metric: the rows of the figure."""
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
    """Return metrics that see all these damages with every network, that see some, and that are misled by one."""
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
        "| is the map right in this? | seen with every network | with some | misled with at least one |",
        "|---|---|---|---|",
    ]
    for question, wanted in QUESTIONS.items():
        columns = (", ".join(names) or "–" for names in sorted_out(counts, wanted))
        lines.append(f"| {question} | {' | '.join(columns)} |")
    return "\n".join(lines)


def short(counts: Sequence[Count]) -> str:
    """Return the findings in sentences."""
    every = [
        name for name in metrics_of(counts) if all(count.sees for count in counts if count.metric == name and count.n)
    ]
    never = [name for name in metrics_of(counts) if not any(count.misled for count in counts if count.metric == name)]
    count = len(metrics_of(counts))
    lines = [
        f"- {len(every)} of {count} metrics see every damage with every network that they were tried with"
        + (f": {listed(map(name_of, every))}." if every else "; so none can be reported alone."),
        f"- {len(never)} of {count} are never misled: {listed(map(name_of, never))}.",
    ]
    for damage in DAMAGED:
        wrong = sorted_out(counts, [damage])[2]
        if wrong:
            lines.append(f"- **{damage.capitalize()}** misleads {len(wrong)} of {count}: {listed(wrong)}.")
    return "\n".join(lines)


def alignment(counts: Sequence[Count]) -> str:
    """Return where a map of the object beats the right map."""
    names = [name for name in metrics_of(counts) if family_of(name) == "Alignment"]
    cells = {count.metric: count for count in counts if count.kind == "context" and count.damage == "all object"}
    lines = ["The context network decides by stripes beside the object; its right map lies outside of the mask. The "
             "share of pictures in which it scores above a map of the whole object, which this network ignores, and "
             "the same with the colour network, which looks at a part of the object:", "",
             "| metric | context | colour |", "|---|---|---|"]  # fmt: skip
    colour = {count.metric: count for count in counts if count.kind == "colour" and count.damage == "all object"}
    for name in names:
        if name in cells:
            lines.append(f"| {name_of(name)} | {cell(cells[name])} | {cell(colour[name]) if name in colour else '–'} |")
    wrong = [name_of(name) for name in names if name in cells and cells[name].misled]
    tied = [name_of(name) for name in names if name in cells and not cells[name].misled and not cells[name].sees]
    lines += [
        "",
        f"With context, {len(wrong)} of {len(names)} alignment metrics prefer the wrong map: {listed(wrong)}.",
    ]
    if tied:
        lines.append(f"{listed(tied).capitalize()} cannot tell.")
    by_network = [name_of(count.metric) for count in counts if count.kind == "context" and count.damage == "all object"
                  and family_of(count.metric) == "Faithfulness" and count.sees]  # fmt: skip
    lines.append(f"Metrics of faithfulness that see it there: {listed(by_network)}.")
    return "\n".join(lines)


def misled(counts: Sequence[Count]) -> str:
    """Return, family by family, the damages that mislead a metric, with the networks and rates."""
    parts = []
    for family, reason in WHY.items():
        lines = []
        for name in (name for name in metrics_of(counts) if family_of(name) == family):
            wrong = [count for count in counts if count.metric == name and count.misled]
            blind = [
                count for count in counts if count.metric == name and count.n and not count.misled and not count.sees
            ]
            if wrong or blind:
                texts = [f"misled by {by_damage(wrong)}"] * bool(wrong) + [
                    f"cannot tell {by_damage(blind, True)}"
                ] * bool(blind)
                lines.append(f"- {name_of(name)}: {'; '.join(texts)}.")
        lines += because(counts, family)
        parts.append("\n\n".join(filter(None, [f"**{family}.** {reason}.", "\n".join(lines)])))
    return "\n\n".join(parts)


def because(counts: Sequence[Count], family: str) -> list[str]:
    """Return the reasons for which metrics of a family are misled, each with the metrics that are."""
    lines = []
    for names, wanted, reason in REASONS:
        here = [name for name in metrics_of(counts) if name_of(name) in names and family_of(name) == family]
        wrong = [name_of(name) for name in here if any(count.misled for count in counts
                                                       if count.metric == name and count.damage in wanted)]  # fmt: skip
        if wrong:
            lines.append(
                f"- Why {listed(wrong)} {'is' if len(wrong) == 1 else 'are'} misled by {either(wanted)}: {reason}."
            )
    return lines + on_grey(counts) * (family == "Faithfulness")


def either(names: Sequence[str]) -> str:
    """Return names as alternatives."""
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def on_grey(counts: Sequence[Count]) -> list[str]:
    """Return how often the blurred map is seen, onto black and onto the grey of the scene, where black misleads."""
    lines = []
    for grey in ON_GREY:
        black = grey.partition(":")[0]
        rates = {(count.metric, count.kind): count for count in counts if count.damage == "blurred"}
        for kind in (
            count.kind for count in counts if count.metric == black and count.damage == "blurred" and count.misled
        ):
            if (grey, kind) in rates:
                lines.append(f"- With the grey of the scene in place of black, {name_of(black)} puts the right map "
                             f"above the blurred one in {cell(rates[grey, kind])} of the pictures of {kind}, instead "
                             f"of {cell(rates[black, kind])}.")  # fmt: skip
    return lines


def by_damage(cells: Sequence[Count], ties: bool = False) -> str:
    """Return damages with their networks, and where most images tie, that they do."""
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
        lines.append(f"| {name} | {kind.about} | {'its cell' if kind.layout == 'grid' else 'the object'} |")
    return "\n".join(lines)


def flips(counts: Sequence[Count]) -> str:
    """Return the table of interventions."""
    by_place = {(count.kind, count.damage): count for count in counts if count.metric == "intervention"}
    kinds = list(dict.fromkeys(kind for kind, _ in by_place))
    lines = [
        "Decisions that flip:",
        "",
        f"| what is done to the picture | {' | '.join(kinds)} |",
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
    """Return rate, interval and ties of a count."""
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
    """Return the metrics that were not checked, and why."""
    lines = [f"- {name_of(name)} {why}." for name, why in NOT_CHECKED.items()]
    lines.append(f"- {listed(map(name_of, OF_PAIRS))} compare an object model with a scene model: only the {PAIRED} "
                 "network was paired with one, the context network.")  # fmt: skip
    return "\n".join(lines)
