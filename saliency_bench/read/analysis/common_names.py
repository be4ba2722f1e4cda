"""Match the explainers and metrics of several runs, and assign common names."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from saliency_bench.read.cell import CellKey, with_version

if TYPE_CHECKING:
    from saliency_bench.read.finished_run import Run


@dataclass(frozen=True)
class Method:
    """Name, options as JSON, and version of an explainer or metric."""

    text: str
    options: str
    version: str

    @property
    def without_seed(self) -> "Method":
        """Return the method without its `seed` option."""
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


class CommonNames:
    """Common names of the explainers, or of the metrics, of several runs.

    Methods are the same if name, options and version are equal. The default of a `seed` option is the seed of the run,
    so methods that differ only in this option are also the same, unless one run has both.

    Attributes:
        texts: {method: name}.
    """

    def __init__(self, runs: Sequence["Run"], method_of: Callable[[CellKey], Method]):
        self._method_of = method_of
        by_run = [{method: method.without_seed for method in map(method_of, run.cells)} for run in runs]
        ambiguous = {method for seedless in by_run for method, uses in Counter(seedless.values()).items() if uses > 1}
        self._same = {
            exact: exact if seedless in ambiguous else seedless
            for methods in by_run
            for exact, seedless in methods.items()
        }
        self.texts = _texts(self._same)

    def key(self, cell: CellKey) -> Method:
        """Return the key that a cell's explainer or metric has in all runs."""
        return self._same[self._method_of(cell)]

    def text(self, cell: CellKey) -> str:
        """Return the name of a cell's explainer or metric."""
        return self.texts[self.key(cell)]


def names_of(runs: Sequence["Run"]) -> tuple[CommonNames, CommonNames]:
    """Return (common names of the explainers, common names of the metrics) of several runs."""
    return CommonNames(runs, explainer_of), CommonNames(runs, metric_of)


def _texts(methods: dict[Method, Method]) -> dict[Method, str]:
    """Return {method: name}. The name is the text that all runs use, with the version if two methods share the text."""
    written: dict[Method, set[str]] = {}
    for exact, common in methods.items():
        written.setdefault(common, set()).add(exact.text)
    texts = {common: next(iter(seen)) if len(seen) == 1 else common.text for common, seen in written.items()}
    uses = Counter(texts.values())
    return {method: text if uses[text] == 1 else with_version(text, method.version) for method, text in texts.items()}
