"""Metrics with bound options: declared functions that score each sample. Each call checks the returned scores.

Declarations of metrics are in `declarations`. Each metric of the package has a folder `metrics/NAME/` with `score.py`,
the module `NAME.py` for `evaluate`, and the card `README.md`. A user's function can be used wherever a metric's name is
accepted.

An undefined score is NaN. If the score of a constant map is NaN, the map is reported as flat. Records contain the score
and each of its parts. A metric that has none of the inputs `maps`, `curves` and `target` chooses its own targets and
requests maps for them, so its cells do not depend on the run's target. A metric with the input `retrained` is a
retraining metric (`compute.scoring.retraining`). Its options are those of `RetrainingProtocol`, and its parts are named
by `part_names`. A metric with the input `first_right` scores people's judgements and cannot be used in a run
(`check_without_people`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from saliency_bench import notebook_views, options, registry, user_files
from saliency_bench.declarations import ExplainerDeclaration, MetricDeclaration, Range, declaration_of, inputs_of
from saliency_bench.errors import UserError, described, no_exit
from saliency_bench.maps import mean_of_parts, read_array
from saliency_bench.target_weights import PLAIN_CONTRAST, TargetRange, activation_of
from saliency_bench.utils.source_code import code_hash, first_line, name_of

OF_PEOPLE = frozenset({"first_right"})  # inputs that runs do not have, because a sample is a judgement
OF_TARGET = frozenset({"maps", "curves", "target"})  # inputs that depend on the run's target

Scored = tuple[np.ndarray, np.ndarray | None, np.ndarray | None]
ROUNDING = 1e-5  # tolerance for scores outside the range, relative to the ends of the range


@dataclass(frozen=True)
class Metric:
    """A metric with bound options. It consists of the function, its inputs and its declaration."""

    name: str
    function: Callable[..., np.ndarray]
    options: tuple[tuple[str, object], ...]
    inputs: tuple[str, ...]  # names from `INPUTS`
    declaration: MetricDeclaration
    version: int | str  # a string is a hash of the code of a user's function
    about: str = ""  # for a user's function: first line of its docstring, and assumptions

    def __hash__(self) -> int:  # an option may be a list
        return hash(self.identity)

    def __call__(self, *inputs: object, **named: object) -> np.ndarray:
        """Return a score per sample, float64 (B,). Undefined scores are NaN.

        For a metric with an aggregate, all scores are NaN.
        """
        return self.with_parts(*inputs, **named)[0]

    def with_parts(self, *inputs: object, **named: object) -> tuple[np.ndarray, np.ndarray | None]:
        """Return (scores (B,), parts (B, P) or None if the metric has no parts). Undefined values are NaN."""
        with no_exit():
            values = _numbers(self.function(*inputs, **named, **dict(self.options)))
        limits = self._limits_of(dict(zip(self.inputs, inputs, strict=False)) | named)
        _check_range(values, limits)
        if self.declaration.parts is None:
            return values, None
        if values.ndim != 2:
            raise ValueError(f"it returned {_shape(values)}; a metric with parts must return values of shape (B, P)")
        if self.aggregate is not None:
            return np.full(len(values), np.nan), values
        with no_exit():
            scores = _numbers(self.reduced(values))
        _check_range(scores, limits)
        return scores, values

    def checked(self, inputs: dict[str, Any], count: int, names: Sequence[str]) -> Scored:
        """Score samples, check the shapes, and return (scores (B,), parts (B, P) or None, marks (B,) or None).

        Args:
            inputs: Inputs of the metric by name.
            count: Number B of samples.
            names: Names of the parts.

        Raises:
            ValueError: The number of scores, parts or marks is wrong.
        """
        scores, parts = self.with_parts(**inputs)
        if parts is not None and parts.shape != (count, len(names)):
            raise ValueError(
                f"it returned {_shape(parts)} for {count} samples and {len(names)} parts; return an array of shape "
                f"{count, len(names)}"
            )
        if scores.shape != (count,):
            giver = "it" if parts is None else "`reduce`"
            raise ValueError(f"{giver} returned {_shape(scores)}; return one score for each of {count} samples")
        marked = self.marks(**inputs)
        if marked is not None and np.shape(marked) != (count,):
            raise ValueError(f"`marked` returned {_shape(marked)}; return True or False for each of {count} samples")
        return scores, parts, marked

    @property
    def higher_is_better(self) -> bool:
        """Return whether higher scores are better with the metric's options."""
        return self.declaration.direction(dict(self.options))

    @property
    def range(self) -> Range:
        """(low, high) of the scores. If it depends on the target, this is the range for a contrast of two classes."""
        return self.limits(PLAIN_CONTRAST)

    @property
    def aggregate(self) -> Callable[..., np.ndarray] | None:
        """Function (means (D, P), options) -> values (D,), or None if the metric has no aggregate with its options."""
        when = self.declaration.aggregate_if
        return self.declaration.aggregate if when is None or when(dict(self.options)) else None

    def reduced(self, values: np.ndarray) -> np.ndarray:
        """Reduce parts (B, P) to scores (B,)."""
        # An aggregate that is not used with these options reduces the parts of a single sample instead.
        reduction = self.declaration.reduce or self.declaration.aggregate
        return mean_of_parts(values) if reduction is None else reduction(values, dict(self.options))

    def limits(self, target: TargetRange) -> Range:
        """Return the lowest and highest possible score, given the range of the target."""
        return self.declaration.range_of(dict(self.options), target)

    def _limits_of(self, inputs: dict[str, Any]) -> Range:
        """Return (low, high) of the scores that are computed from these inputs."""
        if not self.declaration.asks_target_range:
            return self.range
        if "curves" in inputs:
            return self.limits(TargetRange.of_weights(inputs["curves"].target, inputs["curves"].activation))
        weights = np.asarray(inputs["target"].cpu(), dtype=float)
        return self.limits(TargetRange.of_weights(weights, activation_of(inputs["classifier"])))

    def parts(self, classifier: object) -> tuple[str, ...]:
        """Return the names of the parts of a score, or () if the score has no parts."""
        if self.declaration.parts is None:
            return ()
        names = self._asked("parts", self.declaration.parts, dict(self.options), classifier)
        if isinstance(names, str) or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
            raise UserError(
                f"{self}: the function `parts` must return the names of the parts as distinct strings; got {names!r}"
            )
        return tuple(names)

    def questions(self, probabilities: np.ndarray, groups: object) -> Sequence[tuple] | None:
        """Return the targets that the metric defines for each sample, or None if it uses the run's target."""
        if self.declaration.question is None:
            return None
        targets = self._asked("question", self.declaration.question, dict(self.options), probabilities, groups)
        if not isinstance(targets, Sequence) or len(targets) != len(probabilities):
            raise UserError(
                f"{self}: the function `question` must return targets for each of {len(probabilities)} samples"
            )
        return targets

    def planned(self, predictions: object) -> Mapping[int, Sequence[int]]:
        """Return {sample: its partners}, or {} for a metric that needs no partners.

        Args:
            predictions: The predictions, of type `compute.scoring.partners.Predictions`.
        """
        plan = self.declaration.plan
        return {} if plan is None else self._asked("plan", plan, dict(self.options), predictions)

    def _asked(self, name: str, function: Callable, *given: object) -> Any:
        """Call a declared function, such as `plan`, and return its result.

        Raises:
            UserError: The function raised an error.
        """
        try:
            with no_exit():
                return function(*given)
        except Exception as error:
            raise UserError(f"{self}: `{name}` raised {described(error)}") from error

    def marks(self, **inputs: object) -> np.ndarray | None:
        """Return whether each sample is counted for `mark`, bool (B,), or None for a metric without `mark`."""
        marked = self.declaration.marked
        with no_exit():
            return None if marked is None else marked(**inputs, **dict(self.options))

    @property
    def asks_of_target(self) -> bool:
        """Return whether the metric uses the run's target instead of defining its own targets."""
        return bool(OF_TARGET & set(self.inputs))

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        return self.name + options.differing(self.options, options.defaults(self.function))

    @property
    def facts(self) -> dict[str, str]:
        """Return {name: text} that describes the direction, range, inputs and paper."""
        ends = _span(self.range)
        if self.declaration.asks_target_range:
            ends = f"{_span(self.limits(TargetRange.of_classes(1, 0)))} if a map explains one class, else {ends}"
        return {
            "direction": "higher is better" if self.higher_is_better else "lower is better",
            "range": ends,
            "asks for": ", ".join(self.inputs).replace("columns", f"columns ({', '.join(self.declaration.columns)})"),
            "paper": self.declaration.paper_line,
        }

    def _repr_html_(self) -> str:
        return notebook_views.facts(
            str(self),
            {
                "": self.about
                or (registry.summary(registry.score_file("metrics", self.name)) if self.name in list_metrics() else ""),
                **self.facts,
                "options": options.listed(self.options),
                "version": self.version,
            },
        )

    @cached_property
    def identity(self) -> tuple[str, str, int | str]:
        """The tuple (name, options as text, version). Metrics with the same identity compute the same scores."""
        return self.name, options.text(self.options), self.version


def _numbers(returned: object) -> np.ndarray:
    """Convert the result of a metric to float64.

    Raises:
        ValueError: The result is not numeric.
    """
    try:
        values = read_array("scores", returned)
        if values.dtype.kind in "fiub":
            return values.astype(np.float64)
    except (ValueError, TypeError, RuntimeError):  # such as lists of different lengths
        pass
    raise ValueError(f"it returned {type(returned).__name__} instead of real numbers")


def _shape(values: Any) -> str:
    return f"an array of shape {np.shape(values)}" if np.shape(values) else "a number"


def _check_range(values: np.ndarray, limits: Range) -> None:
    """Raise ValueError for a score outside the range, because confidence intervals depend on the range."""
    if len(wrong := outside(values, limits)):
        low, high = limits
        raise ValueError(f"a score of {wrong[0]:.6g} is outside the range from {low:g} to {high:g}")


def _span(limits: Range) -> str:
    low, high = limits
    if (low, high) == (-inf, inf):
        return "unbounded"
    return f"{low:g} or more" if high == inf else f"{low:g} to {high:g}"


def outside(values: np.ndarray, limits: Range) -> np.ndarray:
    """Return a flat array of the finite values that are outside a range by more than rounding errors."""
    low, high = limits
    slack = ROUNDING * max([1.0, *(abs(end) for end in limits if np.isfinite(end))])
    return values[np.isfinite(values) & ((values < low - slack) | (values > high + slack))]


def list_metrics() -> list[str]:
    """Return the names of metrics that `load_metric` and `run` accept."""
    return registry.names("metrics")


def load_metric(name: str | Callable[..., np.ndarray], **chosen: object) -> Metric:
    """Return a metric with bound options.

    Args:
        name: Name of a metric, possibly with options ("saliency_miou", "saliency_miou:threshold=0.3"), a function in a
            file ("./mine.py:my_score"), or your own function (`declarations`).
        **chosen: Options, passed by name.

    Raises:
        UserError: The metric or an option is unknown. The message suggests the closest names.
    """
    if not isinstance(name, str):
        return _without_options(as_metric(name), chosen)
    return _in_file(name, chosen) if user_files.is_in_file(name) else registered_metric(name, **chosen)


def registered_metric(name: str, **chosen: object) -> Metric:
    """Return a registered metric with bound options.

    Use this function for untrusted names, such as those in a submission or in a run's settings, because it does not
    import user files.

    Raises:
        UserError: The metric or an option is unknown.
    """
    name, written = options.parse(name)
    function = registry.function_of("metrics", name, part="score")
    declaration = registry.declaration_of("metrics", name, function)
    bound = options.resolved(name, function, written | chosen)
    options.check(declaration.check, bound)
    version = registry.version_of("metrics", name, declaration.version)
    return Metric(name, function, bound, _needed(name, function, declaration, bound), declaration, version)


def _needed(
    name: str, function: Callable, declaration: MetricDeclaration, bound: tuple[tuple[str, object], ...]
) -> tuple[str, ...]:
    """Return the inputs that a metric needs when it has these options."""
    left_out = declaration.left_out(dict(bound)) if declaration.left_out else ()
    return tuple(needed for needed in inputs_of(name, function) if needed not in left_out)


def check_without_people(metric: Metric) -> None:
    """Raise UserError for a metric that is computed from people's answers, because a run has no such answers."""
    if OF_PEOPLE & set(metric.inputs):
        raise UserError(
            f"{metric.name} is computed from people's answers, which a run does not have; remove this metric from the "
            "run, and pass the answers to `saliency-bench analyse RUN --what agreement --answers FILE` or "
            "to the metric in the library `evaluate`"
        )


def _without_options(metric: Metric, chosen: dict[str, object]) -> Metric:
    if chosen:
        raise UserError(
            "options can only be set for a metric passed by name; bind the options of a function with functools.partial"
        )
    return metric


def as_metric(given: str | Metric | Callable[..., np.ndarray]) -> Metric:
    """Return a metric for a name, your own function, or a `Metric`.

    Raises:
        UserError: The argument is none of these.
    """
    if isinstance(given, Metric):
        return given
    if isinstance(given, str):
        return load_metric(given)
    if not callable(given) or isinstance(given, type):
        raise UserError(
            f"a metric must be a name, a function such as f(maps, masks), or a result of load_metric; got {given!r}"
        )
    name, declaration = name_of(given), declaration_of(given)
    if isinstance(declaration, ExplainerDeclaration):
        raise UserError(f"{getattr(given, 'name', name)} is an explainer, not a metric; pass it as an explainer")
    if not isinstance(declaration, MetricDeclaration):
        declaration = MetricDeclaration()
    declaration.check_function(name, given)
    if declaration.aggregate or declaration.keeps:  # results and retrained networks refer to the metric by name
        raise UserError(
            f"metric {name}: only a metric from a package can set `aggregate` or `keeps`; move the function to the "
            "metrics folder of a package"
        )
    assumed = (
        "It does not declare which direction is better, so higher is assumed to be better."
        if declaration.higher_is_better is None
        else ""
    )
    asked_for = inputs_of(name, given)
    chosen = {key: value for key, value in options.defaults(given).items() if key not in asked_for}
    bound = tuple(sorted(chosen.items()))
    return Metric(
        name=name,
        function=given,
        options=bound,
        inputs=_needed(name, given, declaration, bound),
        declaration=declaration,
        version=code_hash(given).version,
        about=" ".join(filter(None, (first_line(given) or "A Python function.", assumed))),
    )


def _in_file(text: str, further: dict[str, object]) -> Metric:
    """Return the metric for a function in a user's file, with the options in the text and in `further`."""
    function, written = user_files.function_of(text)
    metric = as_metric(function)
    if not (chosen := written | further):
        return metric
    bound = options.resolved(metric.name, function, chosen)
    options.check(metric.declaration.check, bound)
    return replace(metric, options=bound, inputs=_needed(metric.name, function, metric.declaration, bound))


def is_direction_declared(metric: Metric) -> bool:
    """Return whether the metric declares which direction is better. If it does not, higher is assumed to be better."""
    return metric.declaration.higher_is_better is not None
