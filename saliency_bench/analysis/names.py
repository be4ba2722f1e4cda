"""Explainers and metrics of several runs: which of them are the same, and their names."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from saliency_bench.results.cell import CellKey, with_version
from saliency_bench.results.run_folder import RunData


@dataclass(frozen=True)
class Method:
    """An explainer or a metric as a cell names it; options as JSON."""

    text: str
    options: str
    version: str

    @property
    def without_seed(self) -> "Method":
        """Return the method without its option `seed`."""
        name, _, options = self.text.partition(":")
        kept = ",".join(option for option in options.split(",") if not option.startswith("seed="))
        chosen = {option: value for option, value in json.loads(self.options).items() if option != "seed"}
        return replace(self, text=f"{name}:{kept}" if kept else name, options=json.dumps(chosen, sort_keys=True))


def explainer_of(cell: CellKey) -> Method:
    """Return the explainer of a cell."""
    options = json.dumps(cell.explainer_options, sort_keys=True)
    return Method(cell.explainer_text, options, str(cell.explainer_version))


def metric_of(cell: CellKey) -> Method:
    """Return the metric of a cell."""
    return Method(cell.metric_text, json.dumps(cell.metric_options, sort_keys=True), str(cell.metric_version))


@dataclass(frozen=True)
class Names:
    """What several runs call the same: methods of equal name, options and version.

    A seed follows the run's own, so methods that differ in nothing else are the same, unless one run has both.
    """

    explainers: dict[Method, Method]
    metrics: dict[Method, Method]
    explainer_texts: dict[Method, str]
    metric_texts: dict[Method, str]

    def explainer(self, cell: CellKey) -> Method:
        """Return what stands for the explainer of a cell in all runs."""
        return self.explainers[explainer_of(cell)]

    def metric(self, cell: CellKey) -> Method:
        """Return what stands for the metric of a cell in all runs."""
        return self.metrics[metric_of(cell)]

    def explainer_text(self, cell: CellKey) -> str:
        """Return the name of the explainer of a cell."""
        return self.explainer_texts[self.explainer(cell)]

    def metric_text(self, cell: CellKey) -> str:
        """Return the name of the metric of a cell."""
        return self.metric_texts[self.metric(cell)]


def names_of(runs: Sequence[RunData]) -> Names:
    """Return the common names of the explainers and metrics of several runs."""
    explainers, metrics = _same_methods(runs, explainer_of), _same_methods(runs, metric_of)
    return Names(explainers, metrics, _texts(explainers), _texts(metrics))


def _same_methods(runs: Sequence[RunData], method_of: Callable[[CellKey], Method]) -> dict[Method, Method]:
    """Return {method: what stands for it in all runs}."""
    by_run = [{method: method.without_seed for method in map(method_of, run.cells)} for run in runs]
    ambiguous = {method for seedless in by_run for method, uses in Counter(seedless.values()).items() if uses > 1}
    return {
        exact: exact if seedless in ambiguous else seedless for methods in by_run for exact, seedless in methods.items()
    }


def _texts(methods: dict[Method, Method]) -> dict[Method, str]:
    """Return a method's own text where all runs agree on it; with its version where two methods would share one."""
    written: dict[Method, set[str]] = {}
    for exact, common in methods.items():
        written.setdefault(common, set()).add(exact.text)
    texts = {common: next(iter(seen)) if len(seen) == 1 else common.text for common, seen in written.items()}
    uses = Counter(texts.values())
    return {method: text if uses[text] == 1 else with_version(text, method.version) for method, text in texts.items()}
