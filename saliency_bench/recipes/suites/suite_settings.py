"""List all settings of a suite next to the paper's statements about them.

The rows are derived from the suite: there is one for every dataset, model, explainer and metric, with all options,
including defaults. The paper's statements are read from `decisions` in the YAML file. If there is no statement on a
setting, its row says that the paper does not mention the setting.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from saliency_bench.bound_explainer import as_explainer
from saliency_bench.bound_metric import as_metric
from saliency_bench.read.analysis.tables import Table as Printed
from saliency_bench.recipes.suites.suite_jobs import metrics_of
from saliency_bench.recipes.suites.suite_schema import Suite
from saliency_bench.spec import RunSpec

HEADER = ("item", "the paper", "this suite")
SILENT = "not mentioned"


def settings_table(name: str, suite: Suite, tables: Iterable[str]) -> Printed:
    """Return the list of settings that these tables of a suite depend on."""
    runs = {run for table in tables if suite.items[table].needs_runs for run in suite.items[table].runs}
    rows = [_row(suite, *entry) for entry in _entries(suite, runs)]
    rows += [("", entry.paper, entry.run) for entry in suite.decisions if not entry.about]
    return Printed(HEADER, list(rows), f"{name}.settings")


def _row(suite: Suite, name: str, resolved: str, note: str) -> tuple[str, str, str]:
    """Return one row of the list, with the resolved options of `name` and the decisions about it."""
    entries = [entry for entry in suite.decisions if name in entry.about]
    paper = " ".join(entry.paper for entry in entries) or SILENT
    texts = (resolved, *(entry.run for entry in entries), note)
    return name, paper, ". ".join(text.rstrip(".") for text in texts if text)


def _entries(suite: Suite, runs: set[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (name, resolved settings, note) for each dataset, model, explainer and metric of these runs."""
    chosen = [suite.runs[run] for run in suite.runs if run in runs]
    for dataset in dict.fromkeys(name for run in chosen for name in run.datasets):
        entry = suite.datasets[dataset]
        targets = dict.fromkeys(
            str((entry.settings | run.settings).get("target", RunSpec.model_fields["target"].default))
            for run in chosen
            if dataset in run.datasets
        )
        yield dataset, f"{entry.build}; maps explain: {', '.join(targets)}", ""
    for model in dict.fromkeys(name for run in chosen for name in run.models):
        recipe = suite.models[model].train
        trained = "used unchanged" if recipe is None else f"trained: {_pairs(recipe.model_dump())}"
        yield model, f"{suite.models[model].name}, {trained}", ""
    explainers = (text for run in chosen for text in run.explainers)
    for name, several in _options_by_name(as_explainer(text) for text in explainers).items():
        yield name, _pairs(several), ""
    metrics = [as_metric(text) for run in sorted(runs) for text in metrics_of(suite, suite.items, run)]
    for name, several in _options_by_name(metrics).items():
        metric = next(metric for metric in metrics if metric.name == name)
        left_out = f"left out: {metric.declaration.undefined}" if metric.declaration.undefined else ""
        yield name, _pairs(several), ". ".join(filter(None, (metric.declaration.note, left_out)))


def _options_by_name(items: Iterable[Any]) -> dict[str, dict[str, list]]:
    """Return {name: {option: list of its values}} for explainers or metrics."""
    by_name: dict[str, dict[str, list]] = {}
    for item in items:
        values = by_name.setdefault(item.name, {})
        for option, value in dict(item.options).items():
            values[option] = [*values.get(option, []), *([] if value in values.get(option, []) else [value])]
    return by_name


def _pairs(settings: dict[str, Any]) -> str:
    """Format settings as text. If a setting has several values, they are joined by "or"."""
    return ", ".join(
        f"{name}={' or '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in settings.items()
    )
