"""Generator of the page of papers: every item of the suites with its command, runs, status and notes.

The page is generated from the suite files and the declarations of datasets and metrics, so it is always consistent with
them.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from saliency_bench import registry
from saliency_bench.bound_metric import as_metric, list_metrics, registered_metric
from saliency_bench.recipes.suites.suite_jobs import metrics_of
from saliency_bench.recipes.suites.suite_schema import PictureSpec, Suite, TableSpec, read_suite, suite_files
from saliency_bench.recipes.suites.suite_settings import settings_table
from saliency_bench.utils.files import write_text

ITEMS = ("item", "what", "command", "runs", "status", "why")
DATASETS = ("dataset", "build", "counts in the paper", "images may be published")
METRICS = ("metric", "version", "items")


def page() -> str:
    """Return the text of the page."""
    suites = {name: read_suite(path) for name, path in suite_files().items()}
    papers = {name: suite for name, suite in suites.items() if name != "reference"}  # "reference" has no paper
    return "\n".join(part for name, suite in papers.items() for part in section(name, suite))


def section(name: str, suite: Suite) -> Iterator[str]:
    """Yield the parts of the section of a paper."""
    title, _, address = suite.paper.partition(", http")
    yield f"## {name.upper()}: {title}\n"
    if address:
        yield f"<http{address}>\n"
    yield "### Items\n"
    yield grid(ITEMS, (item_row(suite, item) for item in suite.items))
    yield "### Datasets\n"
    yield grid(DATASETS, (dataset_row(suite, dataset) for dataset in suite.datasets))
    yield "### Metrics\n"
    yield grid(METRICS, metric_rows(suite))
    yield "### Settings, and what the paper says\n"
    table = settings_table(name, suite, suite.items)
    yield grid(table.header, table.rows)


def item_row(suite: Suite, name: str) -> tuple[str, ...]:
    """Return the row of a table or picture."""
    item = suite.items[name]
    notes = [note.note for note in getattr(item, "notes", ())]
    command = f"saliency-bench suite {name} --data datasets --out suites" + " --compare" * bool(figures(item))
    return f"`{name}`", item.title, f"`{command}`", runs_of(suite, name), status(suite, item), " ".join(notes)


def runs_of(suite: Suite, name: str) -> str:
    """Return the networks, datasets, explainers and metrics of an item as text."""
    item = suite.items[name]
    if not item.needs_runs:
        return "none: counts and words"
    texts = []
    for run in item.runs:
        entry = suite.runs[run]
        datasets = [each for each in entry.datasets if item.needs(dataset=each)]
        models = [each for each in entry.models if item.needs(model=each)]
        explainers = [each for each in entry.explainers if item.needs(explainer=each)]
        metrics = metrics_of(suite, [name], run)
        parts = [f"{', '.join(models)} on {', '.join(datasets)}", quoted(explainers), quoted(metrics)]
        settings = ", ".join(f"{key}={value}" for key, value in entry.settings.items())
        texts.append("; ".join(filter(None, (*parts, settings))))
    return "<br>".join(texts)


def status(suite: Suite, item: TableSpec | PictureSpec) -> str:
    """Return text about the numbers that can be compared with the paper, and whether people's answers are needed."""
    values = list(item.values.values())
    people = any(value.crowd or value.against == "crowd" for value in values)
    numbers = f"{figures(item)} published numbers" if figures(item) else "no published numbers"
    kind = "a picture; " if isinstance(item, PictureSpec) else ""
    return f"{kind}{numbers} to compare with" + "; needs people's answers (`--answers`)" * people


def figures(item: TableSpec | PictureSpec) -> int:
    """Return how many numbers of the paper a table contains."""
    return sum(figure is not None for row in getattr(item, "figures", ()) for figure in row)


def dataset_row(suite: Suite, name: str) -> tuple[str, ...]:
    """Return the row of a dataset with the declarations of its builder."""
    entry = suite.datasets[name]
    builder = registry.load("hub_builders", entry.name)
    counts = ", ".join(f"{what}: {count}" for what, count in builder.PAPER_COUNTS.items()) or "none"
    build = f"{entry.build} --source DIR --out datasets/{entry.folder or entry.name}"
    return f"`{name}`", f"`{build}`", counts, "yes" if builder.REDISTRIBUTE else "no: masks and labels only"


def metric_rows(suite: Suite) -> Iterator[tuple[str, ...]]:
    """Yield a row for each metric that the suite uses or that its paper defines."""
    items: dict[str, list[str]] = {}
    for name, item in suite.items.items():
        for run in item.runs if item.needs_runs else ():
            for text in metrics_of(suite, [name], run):
                items.setdefault(as_metric(text).name, []).append(name)
    title = suite.paper.partition(", http")[0].casefold()
    papers = {name for name in list_metrics() if title in paper_of(name)}
    for name in sorted({*items, *papers}):
        used = ", ".join(f"`{item}`" for item in dict.fromkeys(items.get(name, ())))
        yield f"`{name}`", str(registered_metric(name).declaration.version), used or "none: from people's answers only"


def paper_of(metric: str) -> str:
    """Return the paper that a metric declares, in lower case, on one line and without BibTeX's braces."""
    text = str(registered_metric(metric).declaration.paper).replace("{", "").replace("}", "")
    return " ".join(text.split()).casefold()


def quoted(texts: Iterable[str]) -> str:
    """Return texts in backticks, separated by commas."""
    return ", ".join(f"`{text}`" for text in texts)


def grid(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    lines = [tuple(header), ("---",) * len(tuple(header)), *rows]
    return (
        "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines) + "\n"
    )


def write(folder: Path) -> None:
    """Write `papers.md` into a folder."""
    write_text(folder / "papers.md", page())
