"""A metric: a function that gives each sample a score, and what must be known about that score.

A metric is a folder `metrics/NAME/` with `score.py`, where

    def NAME(maps, masks, *, option=default) -> Scores

takes what it needs as positional parameters, out of NEEDS below, and module constants say the rest: `PAPER`,
`HIGHER_IS_BETTER`, `RANGE` (low, high) and `VERSION` (bumped whenever a number changes). `check(**options)` may refuse
values of options before anything is computed. A score is NaN where it is not defined; `UNDEFINED` says in a few words
when that is. A flat map for which it is NaN is reported as flat. `marked`, a function of the same parameters -> bool
(B,), says for which samples a score stands but must be counted, `MARK` why.

A score may have named parts (exposures, transforms): the function then returns (B, P), and the module has

    def parts(options, classifier) -> names          P names; options is {name: value}
    def reduce(values, options) -> (B,)              the score of (B, P); default: the mean of the parts that are there
    ABSENT                                           why a part may be missing (NaN), in a few words

Records hold the score and each of its parts. Beside `score.py`, `NAME.py` is the shell for `evaluate` and `README.md`
the card.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from saliency_bench import options, registry
from saliency_bench.errors import UserError
from saliency_bench.maps import mean_of_parts
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
    undefined: str = ""
    mark: str = ""
    marked: Callable[..., np.ndarray] | None = None
    part_names: Callable[[dict[str, object], object], Sequence[str]] | None = None
    reduction: Callable[[np.ndarray, dict[str, object]], np.ndarray] | None = None
    absent: str = ""

    def __call__(self, *inputs: object, **named: object) -> Scores:
        """Float64 (B,): a score per sample, NaN where it is not defined."""
        return self.with_parts(*inputs, **named)[0]

    def with_parts(self, *inputs: object, **named: object) -> tuple[Scores, np.ndarray | None]:
        """(scores (B,), their parts (B, P) or None for a metric without), both NaN where they are not defined."""
        values = np.asarray(self.function(*inputs, **named, **dict(self.options)))
        if self.part_names is None:
            return values, None
        return (self.reduction or mean_of_parts)(values, dict(self.options)), values

    def parts(self, classifier: object) -> tuple[str, ...]:
        """The names of the parts of a score; () for a metric without."""
        return () if self.part_names is None else tuple(self.part_names(dict(self.options), classifier))

    def marks(self, **inputs: object) -> np.ndarray | None:
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
        undefined=getattr(module, "UNDEFINED", ""),
        mark=getattr(module, "MARK", ""),
        marked=getattr(module, "marked", None),
        part_names=getattr(module, "parts", None),
        reduction=getattr(module, "reduce", None),
        absent=getattr(module, "ABSENT", ""),
    )


def as_metric(given: str | Metric) -> Metric:
    """A metric of a name, or as it is. Raises: UserError for anything else."""
    if isinstance(given, str | Metric):
        return given if isinstance(given, Metric) else load_metric(given)
    raise UserError(f"a metric is a name or what load_metric gives; got {given!r}")
