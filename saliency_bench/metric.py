"""A metric: a function that gives each sample a number, and what must be known about that number.

A metric is a folder `metrics/NAME/` with `score.py`, where

    def NAME(maps, masks, *, option=default) -> Scores

takes what it needs as positional parameters, out of NEEDS below, and module constants say the rest: `PAPER`,
`HIGHER_IS_BETTER`, `RANGE` (low, high) and `VERSION` (bumped whenever a number changes). `AGGREGATE` (scores ->
number, default the mean) is what the bootstrap resamples through; `KIND` is "sample" (default) or "dataset";
`check(**options)` may refuse values of options before anything is computed. A score is NaN where it is not defined;
`UNDEFINED` says in a few words when that is. A flat map for which it is NaN is reported as flat. `marked`, a function
of the same parameters -> bool (B,), tells for which samples a score stands but must be counted, `MARK` why.
Beside it, `NAME.py` is the shell for `evaluate` and `README.md` the card.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from saliency_bench import options, registry
from saliency_bench.errors import UserError
from saliency_bench.types import Scores

# What a metric may ask for, by the name of its parameter.
NEEDS = {
    "maps": "numpy (B, H, W)",
    "masks": "numpy bool (B, H, W), never empty",
    "curves": "perturbation.Curves of the batch and its maps",
    "classifier": "the classifier",
    "images": "torch (B, 3, H, W)",
    "target": "torch (B, K)",
    "logits": "torch (B, K), what the classifier says of the images",
    "groups": "class_groups.ClassGroups of the classifier's classes",
    "explain": "map_provider.MapProvider: explain(images, target, samples) -> numpy (b, H, W) of the same explainer",
    "seeds": "a whole number per sample, for what the metric draws at random",
}


@dataclass(frozen=True)
class Metric:
    name: str
    function: Callable[..., Scores]
    options: tuple[tuple[str, object], ...]
    needs: tuple[str, ...]
    paper: str
    higher_is_better: bool
    range: tuple[float, float]
    version: int
    aggregate: Callable[[np.ndarray], float] = np.mean
    kind: str = "sample"
    undefined: str = ""
    mark: str = ""
    marked: Callable[..., np.ndarray] | None = None

    def __call__(self, *inputs, **named) -> Scores:
        return self.function(*inputs, **named, **dict(self.options))

    def marks(self, **inputs) -> np.ndarray | None:
        """Bool (B,): the samples whose scores are to be counted for `mark`; None of a metric that marks nothing."""
        return None if self.marked is None else self.marked(**inputs, **dict(self.options))

    def __str__(self) -> str:
        return self.name + _differing(self)

    @property
    def identity(self) -> tuple[str, str, int]:
        return self.name, options.text(self.options), self.version


def _differing(metric: Metric) -> str:
    known = options.defaults(metric.function)
    differing = [f"{key}={value}" for key, value in metric.options if value != known[key]]
    return ":" + ",".join(differing) if differing else ""


def list_metrics() -> list[str]:
    return registry.names("metrics")


def load_metric(name: str, **chosen: object) -> Metric:
    """A metric by name, "saliency_miou", with its options bound, also as text: "saliency_miou:threshold=0.3".

    Raises: UserError for an unknown metric or option, with the nearest names.
    """
    name, written = options.parse(name)
    module = registry.load("metrics", name, part="score")
    function = getattr(module, name)
    needs = options.positional(function)
    if strange := set(needs) - set(NEEDS):
        raise UserError(f"metric {name} asks for {', '.join(strange)}; there are: {', '.join(NEEDS)}")
    bound = options.resolved(name, function, written | chosen)
    options.check(module, bound)
    return Metric(
        name=name,
        function=function,
        options=bound,
        needs=needs,
        paper=module.PAPER,
        higher_is_better=module.HIGHER_IS_BETTER,
        range=module.RANGE,
        version=module.VERSION,
        aggregate=getattr(module, "AGGREGATE", np.mean),
        kind=getattr(module, "KIND", "sample"),
        undefined=getattr(module, "UNDEFINED", ""),
        mark=getattr(module, "MARK", ""),
        marked=getattr(module, "marked", None),
    )
