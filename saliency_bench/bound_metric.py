"""A metric: a function that gives each sample a score, and what must be known about that score.

A metric is a folder `metrics/NAME/` with `score.py`, where

    def NAME(maps, masks, *, option=default) -> Scores

takes what it needs as positional parameters, out of INPUTS below, and module constants say the rest: `PAPER`,
`HIGHER_IS_BETTER`, `RANGE` (low, high), of scores and of their parts, and `VERSION` (bumped whenever a number changes).
`RANGE` may be a function of {option: value}; or of {option: value} and `target.TargetRange` where it depends on the
target, as that of a probability: [0, 1] for one class, [-1, 1] for a contrast. The kind of interval follows from the
range; a score outside it is an error. `check(**options)` may refuse values of options before anything is computed. A
score is NaN where it is not defined; `UNDEFINED` says in a few words when that is. A flat map for which it is NaN is
reported as flat. `marked`, a function of the same parameters -> bool (B,), says for which samples a score stands but
must be counted, `MARK` why. `ALSO_CALLED` are further names, for suggestions.

A score may have named parts (exposures, transforms): the function then returns (B, P), and the module has

    def parts(options, classifier) -> names          P names; options is {name: value}
    def reduce(values, options) -> (B,)              the score of (B, P); default: the mean of the parts that are there
    ABSENT                                           why a part may be missing (NaN), in a few words

Where the score of a cell is not the mean of its samples' scores but a function of the means of the parts, such as a
harmonic mean, the module has in place of `reduce`

    def AGGREGATE(means, options) -> (D,)            of means (D, P) of the parts, over all samples or drawn ones

Each row of `means` stands by itself. A sample has no score then, only parts. Such cells have an interval but no rank.
`NOTE` says what must be known about it, in a few words. Where `aggregated(options) -> bool` beside it says no, it is
what `reduce` is.

A metric that asks for `columns` names them, further columns of the dataset, in `COLUMNS`: ("image_without_object",).
Where a sample has none of a column, or the dataset has no such column, it is left out.

A metric that asks for none of `maps`, `curves` and `target` asks for maps of its own question, and its cells are the
same whatever the run's target is. The module then has

    def question(options, probabilities, groups) -> per sample the targets that it asks about (`TargetTerms`)

of probabilities (B, K), NaN where there are none; the records hold them. () where it asks nothing of a sample.

A metric that asks for `partners`, other samples beside each sample, has

    def plan(options, predictions) -> {sample: [its partners]}

of `scoring.partners.Predictions` of all samples of the run, by their places there; it depends on nothing else. Samples
that it does not name take no part. The plan's hash is part of the id of the metric's cells.

A metric that asks for `retrained` is a retraining metric (`scoring.retraining`): its options are those of `Protocol`,
its parts `part_names`, and `KEEPS` says which pixels its pictures keep, "top" or "rest".

A metric that asks for `first_right` scores judgements of people. No run computes it, and none takes it
(`check_without_people`).

Where options turn the direction, `higher_is_better(options) -> bool` says it; `HIGHER_IS_BETTER` is that of the
defaults. Records hold the score and each of its parts. Beside `score.py`, `NAME.py` is the shell for `evaluate` and
`README.md` the card.

Your own function is a metric too, wherever a name of one may stand (`declare_metric`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter, signature
from math import inf, isnan
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from saliency_bench import displays, options, own_files, registry
from saliency_bench.errors import UserError, described, no_exit
from saliency_bench.maps import mean_of_parts, read_array
from saliency_bench.target_weights import PLAIN_CONTRAST, TargetRange, activation_of
from saliency_bench.types import Scores
from saliency_bench.utils.source_code import code_hash, first_line, name_of

# What a metric may ask for, by the name of its parameter.
INPUTS = {
    "maps": "numpy (B, H, W)",
    "masks": "numpy bool (B, H, W), never empty",
    "curves": "perturbation.Curves of the batch and its maps",
    "classifier": "the classifier",
    "images": "torch (B, 3, H, W)",
    "target": "torch (B, K)",
    "logits": "torch (B, K), what the classifier says of the images",
    "labels": "numpy bool (B, K), the classes that are right for each image, whatever the target is",
    "groups": "class_groups.ClassGroups of the classifier's classes",
    "explain": "map_provider.MapProvider: explain(images, target, samples, classifier=None) -> numpy (b, H, W)",
    "partners": "partners.Partners: other samples, which `plan` chose: their images and maps",
    "seeds": "a whole number per sample, for what the metric draws at random",
    "other": "scoring.inputs.Other: a second classifier, with its target, logits and right classes",
    "columns": "{column: torch (B, 3, H, W) of pictures, prepared as the images are, or a list of values}",
    "run_seed": "a whole number, for what the metric draws once for all samples",
    "retrained": "numpy int (B, P), the classes that networks give which were trained on changed pictures; -1: none",
    "first_right": "numpy (B,), of each judgement of a person the exposure of the first right answer; NaN: none",
}
OF_PEOPLE = frozenset({"first_right"})  # inputs that no run has anything for: a sample is a judgement
OF_TARGET = frozenset({"maps", "curves", "target"})  # inputs that depend on the run's target
# Inputs through which scores depend on the explainer.
OF_EXPLAINER = frozenset({"maps", "curves", "explain", "partners", "retrained"})

F = TypeVar("F", bound=Callable)
Range = tuple[float, float]
Scored = tuple[np.ndarray, np.ndarray | None, np.ndarray | None]
OWN_COLUMNS = {
    "image": "images",
    "mask": "masks",
    "label": "labels",
}  # of the dataset: the inputs they are
ROUNDING = 1e-5  # how far outside its range a score may be by its last digits, relative to the range's ends


@dataclass(frozen=True)
class Metric:
    """A metric with its options bound: the function, what it asks for, its direction, range and version."""

    name: str
    function: Callable[..., Scores]
    options: tuple[tuple[str, object], ...]
    inputs: tuple[str, ...]  # by name, of `INPUTS`
    paper: str
    higher_is_better: bool
    range: Range  # of a contrast of two classes by a softmax, where it depends on the target (`limits`)
    version: int | str  # text: a hash of the code of your own function
    undefined: str = ""
    mark: str = ""
    marked: Callable[..., np.ndarray] | None = None
    part_names: Callable[[dict[str, object], object], Sequence[str]] | None = None
    reduction: Callable[[np.ndarray, dict[str, object]], np.ndarray] | None = None
    absent: str = ""
    aggregate: Callable[[np.ndarray, dict[str, object]], np.ndarray] | None = None
    note: str = ""
    question: Callable[..., Sequence[tuple]] | None = None
    plan: Callable[..., Mapping[int, Sequence[int]]] | None = None
    target_range: Callable[[dict[str, object], TargetRange], Range] | None = None
    keeps: str = ""  # of a retraining metric
    about: str = ""  # of your own function: the first line of its docstring, and what it leaves open
    columns: tuple[str, ...] = ()  # of the dataset, that it asks for

    def __hash__(self) -> int:  # an option may be a list
        return hash(self.identity)

    def __call__(self, *inputs: object, **named: object) -> Scores:
        """Return float64 (B,), a score per sample, NaN where it is not defined, as everywhere with an aggregate."""
        return self.with_parts(*inputs, **named)[0]

    def with_parts(self, *inputs: object, **named: object) -> tuple[Scores, np.ndarray | None]:
        """Return (scores (B,), their parts (B, P) or None for a metric without), NaN where they are not defined."""
        with no_exit():
            values = _numbers(self.function(*inputs, **named, **dict(self.options)))
        limits = self._limits_of(dict(zip(self.inputs, inputs, strict=False)) | named)
        _check_range(values, limits)
        if self.part_names is None:
            return values, None
        if values.ndim != 2:
            raise ValueError(f"it returned {_shape(values)}; with parts a score is (B, P), a number for each part")
        if self.aggregate is not None:
            return np.full(len(values), np.nan), values
        with no_exit():
            scores = _numbers((self.reduction or mean_of_parts)(values, dict(self.options)))
        _check_range(scores, limits)
        return scores, values

    def checked(self, inputs: dict[str, Any], count: int, names: Sequence[str]) -> Scored:
        """Return (scores (B,), parts (B, P) or None, marks (B,) or None) of `count` samples, with parts of these names.

        Raises:
            ValueError: There is another number of them.
        """
        scores, parts = self.with_parts(**inputs)
        if parts is not None and parts.shape != (count, len(names)):
            raise ValueError(f"it returned {_shape(parts)}; there are {count} samples and {len(names)} parts")
        if scores.shape != (count,):
            giver = "it" if parts is None else "reduce"
            raise ValueError(f"{giver} returned {_shape(scores)}; give one score for each of {count} samples")
        marked = self.marks(**inputs)
        if marked is not None and np.shape(marked) != (count,):
            raise ValueError(f"marked returned {_shape(marked)}; give True or False for each of {count} samples")
        return scores, parts, marked

    def limits(self, target: TargetRange) -> Range:
        """Return (low, high) of the scores where targets have this range."""
        return self.range if self.target_range is None else self.target_range(dict(self.options), target)

    def _limits_of(self, inputs: dict[str, Any]) -> Range:
        """Return (low, high) of the scores of these inputs."""
        if self.target_range is None:
            return self.range
        if "curves" in inputs:
            return self.limits(TargetRange.of_weights(inputs["curves"].target, inputs["curves"].activation))
        weights = np.asarray(inputs["target"].cpu(), dtype=float)
        return self.limits(TargetRange.of_weights(weights, activation_of(inputs["classifier"])))

    def parts(self, classifier: object) -> tuple[str, ...]:
        """Return the names of the parts of a score; () for a metric without."""
        if self.part_names is None:
            return ()
        names = self._asked("parts", self.part_names, dict(self.options), classifier)
        if isinstance(names, str) or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
            raise UserError(f"{self}: parts must give different texts, the names of the parts; got {names!r}")
        return tuple(names)

    def questions(self, probabilities: np.ndarray, groups: object) -> Sequence[tuple] | None:
        """Return per sample the targets that it asks about.

        None of a metric that asks about the run's, or does not say.
        """
        if self.question is None:
            return None
        targets = self._asked("question", self.question, dict(self.options), probabilities, groups)
        if not isinstance(targets, Sequence) or len(targets) != len(probabilities):
            raise UserError(f"{self}: question must give the targets of each of {len(probabilities)} samples")
        return targets

    def planned(self, predictions: object) -> Mapping[int, Sequence[int]]:
        """Return {sample: its partners} of `scoring.partners.Predictions`; {} of a metric that asks for none."""
        return {} if self.plan is None else self._asked("plan", self.plan, dict(self.options), predictions)

    def _asked(self, name: str, function: Callable, *given: object) -> Any:
        """Return what a function of the metric's module gives.

        Raises:
            UserError: It raises.
        """
        try:
            with no_exit():
                return function(*given)
        except Exception as error:
            raise UserError(f"{self}: {name} raised {described(error)}") from error

    def marks(self, **inputs: object) -> np.ndarray | None:
        """Return Bool (B,), the samples whose scores are to be counted for `mark`.

        None of a metric that marks nothing.
        """
        with no_exit():
            return None if self.marked is None else self.marked(**inputs, **dict(self.options))

    @property
    def asks_of_target(self) -> bool:
        """Whether it asks about the run's target; if not, it asks a question of its own, whatever the target is."""
        return bool(OF_TARGET & set(self.inputs))

    def __str__(self) -> str:
        return self.name + options.differing(self.options, options.defaults(self.function))

    @property
    def facts(self) -> dict[str, str]:
        """Return {name: text} of direction, range, what it asks for, and paper."""
        ends = _span(self.range)
        if self.target_range is not None:
            ends = f"{_span(self.limits(TargetRange.of_classes(1, 0)))}, where a map explains one class; else {ends}"
        return {
            "direction": "higher is better" if self.higher_is_better else "lower is better",
            "range": ends,
            "asks for": ", ".join(self.inputs).replace("columns", f"columns ({', '.join(self.columns)})"),
            "paper": self.paper,
        }

    def _repr_html_(self) -> str:
        """Return what it is, for notebooks."""
        return displays.facts(
            str(self),
            {
                "": self.about
                or (registry.summary(registry.score_file("metrics", self.name)) if self.name in list_metrics() else ""),
                **self.facts,
                "options": options.listed(self.options),
                "version": self.version,
            },
        )

    @property
    def identity(self) -> tuple[str, str, int | str]:
        """What makes its scores: name, options and version."""
        return self.name, options.text(self.options), self.version


def _numbers(returned: object) -> np.ndarray:
    """Return float64 of whatever a metric returned.

    Raises:
        ValueError: These are no numbers.
    """
    try:
        values = read_array("scores", returned)
        if values.dtype.kind in "fiub":
            return values.astype(np.float64)
    except (ValueError, TypeError, RuntimeError):  # such as lists of several lengths
        pass
    raise ValueError(f"it returned no real numbers, but a {type(returned).__name__}")


def _shape(values: Any) -> str:
    """Return a shape as text."""
    return f"an array of shape {np.shape(values)}" if np.shape(values) else "a number"


def _check_range(values: np.ndarray, limits: Range) -> None:
    """Raise ValueError for a score outside the range, which intervals rely on."""
    if len(wrong := outside(values, limits)):
        low, high = limits
        raise ValueError(f"a score of {wrong[0]:.6g} is outside the range from {low:g} to {high:g}")


def _span(limits: Range) -> str:
    """Return a range as text."""
    low, high = limits
    if (low, high) == (-inf, inf):
        return "unbounded"
    return f"{low:g} or more" if high == inf else f"{low:g} to {high:g}"


def outside(values: np.ndarray, limits: Range) -> np.ndarray:
    """Return the finite values outside a range by more than rounding, flat."""
    low, high = limits
    slack = ROUNDING * max([1.0, *(abs(end) for end in limits if np.isfinite(end))])
    return values[np.isfinite(values) & ((values < low - slack) | (values > high + slack))]


def list_metrics() -> list[str]:
    """Return the names of the metrics that `load_metric` and `run` take."""
    return registry.names("metrics")


def load_metric(name: str | Callable[..., Scores], **chosen: object) -> Metric:
    """Return a metric by name, "saliency_miou", with its options bound, also as text: "saliency_miou:threshold=0.3".

    Args:
        name: of a metric; also your own function (`declare_metric`).
        **chosen: options.

    Raises:
        UserError: The metric or an option is unknown; has the nearest names.
    """
    if not isinstance(name, str):
        return _without_options(as_metric(name), chosen)
    name, written = options.parse(name)
    module = registry.load("metrics", name, part="score")
    function = getattr(module, name)
    inputs = options.positional(function)
    if strange := set(inputs) - set(INPUTS):
        raise UserError(f"metric {name} asks for {', '.join(strange)}; there are: {', '.join(INPUTS)}")
    if ("partners" in inputs) != hasattr(module, "plan"):
        raise UserError(
            f"metric {name}: a parameter partners and plan(options, predictions) go together; add the other"
        )
    bound = options.resolved(name, function, written | chosen)
    options.check(module, bound)
    of_target = _target_range(module)
    if of_target and "curves" not in inputs and not {"target", "classifier"} <= set(inputs):
        raise UserError(
            f"RANGE of metric {name} depends on the target: it must ask for curves, or target and classifier"
        )
    return Metric(
        name=name,
        function=function,
        options=bound,
        inputs=inputs,
        paper=module.PAPER,
        higher_is_better=_direction(module, dict(bound)),
        range=of_target(dict(bound), PLAIN_CONTRAST) if of_target else _range(module, dict(bound)),
        version=registry.version_of("metrics", name, module.VERSION),
        undefined=getattr(module, "UNDEFINED", ""),
        mark=getattr(module, "MARK", ""),
        marked=getattr(module, "marked", None),
        part_names=getattr(module, "parts", None),
        reduction=getattr(module, "reduce", getattr(module, "AGGREGATE", None)),
        absent=getattr(module, "ABSENT", ""),
        aggregate=_aggregate(module, dict(bound)),
        note=getattr(module, "NOTE", ""),
        question=getattr(module, "question", None),
        plan=getattr(module, "plan", None),
        keeps=getattr(module, "KEEPS", ""),
        target_range=of_target,
        columns=_columns(name, inputs, getattr(module, "COLUMNS", ()), "COLUMNS in its score.py"),
    )


def check_without_people(metric: Metric) -> None:
    """Raise UserError for a metric that is computed from the answers of people, which a run does not have."""
    if OF_PEOPLE & set(metric.inputs):
        raise UserError(
            f"{metric.name} is computed from the answers of people, of which a run has none; leave it out, and give "
            "them to `saliency-bench analyse RUN --what agreement --answers FILE` or to evaluate"
        )


def _columns(name: str, inputs: Sequence[str], named: Any, where: str) -> tuple[str, ...]:
    """Return the columns of the dataset that a metric names.

    Raises:
        UserError: It asks for columns and names none, or the reverse.
    """
    columns = (named,) if isinstance(named, str) else tuple(named)
    if bool(columns) != ("columns" in inputs):
        problem = f"names columns of the dataset ({', '.join(map(str, columns))}), but has no parameter columns"
        raise UserError(f"metric {name} {problem if columns else f'asks for columns; name them by {where}'}")
    for column in columns:
        if column in OWN_COLUMNS:
            raise UserError(f"metric {name} asks for the column {column}; give it the parameter {OWN_COLUMNS[column]}")
    return columns


def _without_options(metric: Metric, chosen: dict[str, object]) -> Metric:
    """Return a metric whose options are bound."""
    if chosen:
        raise UserError("options are for a metric given by name; bind them to the function with functools.partial")
    return metric


def _range(module: ModuleType, chosen: dict[str, object]) -> Range:
    """Return the range of a module's scores."""
    return module.RANGE(chosen) if callable(module.RANGE) else module.RANGE


def _target_range(module: ModuleType) -> Callable[[dict[str, object], TargetRange], Range] | None:
    """Return `RANGE` where it depends on the target."""
    return module.RANGE if callable(module.RANGE) and len(signature(module.RANGE).parameters) == 2 else None


def _aggregate(module: ModuleType, chosen: dict[str, object]) -> Callable[..., np.ndarray] | None:
    """Return `AGGREGATE`, unless these options leave it out."""
    when = getattr(module, "aggregated", None)
    return getattr(module, "AGGREGATE", None) if when is None or when(chosen) else None


def _direction(module: ModuleType, chosen: dict[str, object]) -> bool:
    """Return whether higher is better."""
    turned = getattr(module, "higher_is_better", None)
    return module.HIGHER_IS_BETTER if turned is None else turned(chosen)


def declare_metric(
    *, higher_is_better: bool, range: Range | None = None, columns: Sequence[str] = ()
) -> Callable[[F], F]:
    """Say of a metric function what its scores mean; the function stays as it is.

        @sb.declare_metric(higher_is_better=True, range=(0, 1))
        def top_pixel_inside(maps, masks):
            "Share of maps whose highest pixel lies inside the mask."
            top = maps.reshape(len(maps), -1).argmax(axis=1)
            return masks.reshape(len(masks), -1)[range(len(maps)), top]

        sb.run(..., metrics=["saliency_miou", top_pixel_inside])

    The function asks for what it needs by the names of its parameters (`INPUTS` above) and returns one number per
    sample, NaN where the score is not defined. Keyword-only parameters with defaults are its options. The first line of
    its docstring describes it in reports, and its version is a hash of its code. The same can be said by attributes:
    `top_pixel_inside.higher_is_better = True`.

    Args:
        higher_is_better: the direction.
        range: (low, high), which scores never leave; None: unbounded. The kind of interval follows from it.
        columns: further columns of the dataset, for a function with the parameter `columns`.
    """

    def declare(function: F) -> F:
        function.higher_is_better = higher_is_better  # type: ignore[attr-defined]
        if range is not None:
            function.range = range  # type: ignore[attr-defined]
        if columns:
            function.columns = columns  # type: ignore[attr-defined]
        return function

    return declare


def as_metric(given: str | Metric | Callable[..., Scores]) -> Metric:
    """Return a metric of a name, of your own function, or as it is.

    Raises:
        UserError: It is something else.
    """
    if isinstance(given, Metric):
        return given
    if isinstance(given, str):
        return _in_file(given) if own_files.is_in_file(given) else load_metric(given)
    if not callable(given) or isinstance(given, type):
        raise UserError(
            f"a metric is a name, a function such as f(maps, masks), or what load_metric gives; got {given!r}"
        )
    name = name_of(given)
    higher, limits = _declared(given, "higher_is_better"), _declared(given, "range")
    if higher not in (True, False, None):
        raise UserError(f"metric {name}: higher_is_better must be True or False; got {higher!r}")
    assumed = "It does not say which direction is better, so higher is assumed to be better." if higher is None else ""
    inputs = _inputs_of(name, given)
    chosen = ((key, value) for key, value in options.defaults(given).items() if key not in INPUTS)
    return Metric(
        name=name,
        function=given,
        options=tuple(sorted(chosen)),
        inputs=inputs,
        paper="",
        higher_is_better=higher is not False,
        range=(-inf, inf) if limits is None else _checked_range(name, limits),
        version=code_hash(given).version,
        about=" ".join(filter(None, (first_line(given) or "A Python function.", assumed))),
        columns=_columns(name, inputs, _declared(given, "columns") or (), "@sb.declare_metric(..., columns=[...])"),
    )


def _in_file(text: str) -> Metric:
    """Return the metric that a function of your own file is."""
    function, chosen = own_files.function_of(text)
    metric = as_metric(function)
    return replace(metric, options=options.resolved(metric.name, function, chosen)) if chosen else metric


def is_direction_declared(metric: Metric) -> bool:
    """Return whether it is known which direction is better, or assumed, of your own function."""
    return registry.is_named(metric.version) or _declared(metric.function, "higher_is_better") is not None


def _declared(function: Callable, attribute: str) -> Any:
    """Return an attribute of a function, or of what it is a `partial` of."""
    inner = function.func if isinstance(function, partial) else function
    return getattr(function, attribute, getattr(inner, attribute, None))


def _checked_range(name: str, given: Any) -> Range:
    """Return a range; raise UserError for anything else."""
    try:
        low, high = (float(end) for end in given)
        if low < high and not isnan(low) and not isnan(high):
            return low, high
    except (TypeError, ValueError):
        pass
    raise UserError(f"metric {name}: range must be two numbers (low, high), low below high; got {given!r}")


def _inputs_of(name: str, function: Callable) -> tuple[str, ...]:
    """Return what a function asks for by the names of its parameters; one with a default may have any name.

    Raises:
        UserError: Nothing is known for a parameter.
    """
    try:
        named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        parameters = [parameter for parameter in signature(function).parameters.values() if parameter.kind in named]
    except (TypeError, ValueError) as error:
        line = f"metric {name}: its parameters cannot be read; wrap it in a function f(maps, masks)"
        raise UserError(line) from error
    inputs = [
        parameter.name for parameter in parameters if parameter.default is Parameter.empty or parameter.name in INPUTS
    ]
    strange = [parameter for parameter in parameters if parameter.name in inputs and parameter.name not in INPUTS]
    if strange and strange[0].kind is Parameter.KEYWORD_ONLY:
        raise UserError(f"metric {name}: option {strange[0].name} needs a default; bind it with functools.partial")
    if strange or not inputs:
        names = ", ".join(parameter.name for parameter in strange) or "nothing"
        raise UserError(f"metric {name} asks for {names}; its parameters name what it needs: {', '.join(INPUTS)}")
    if "partners" in inputs:
        raise UserError(f"metric {name} asks for partners, which need a plan: make it a folder of metrics/")
    if not OF_EXPLAINER & set(inputs):
        raise UserError(f"metric {name} asks for {', '.join(inputs)} alone; it must look at maps, curves or explain")
    return tuple(inputs)
