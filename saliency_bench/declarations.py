"""Decorators `@sb.explainer(...)` and `@sb.metric(...)`, which declare the properties of an explainer or metric.

    @sb.explainer(version=1, needs="gradients", passes=1)
    def my_method(classifier, images, target, *, option: float = 1.0): ...   # -> maps (B, H, W)

    @sb.metric(version=1, higher_is_better=True, range=(0, 1), paper="Authors, title, year, https://...")
    def my_score(maps, masks, *, option: float = 1.0): ...                   # -> scores (B,), or parts (B, P)

The decorator creates a declaration, checks it against the function and attaches it as `my_score.declaration`. The
function itself is not changed. If the declaration does not match the function, a `UserError` is raised when the
function is defined. Keyword-only parameters with defaults are options. The other parameters of a metric are its inputs,
with names from `INPUTS`.

This file is copied into published metrics, so the only module of the package that it imports is `errors`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from inspect import Parameter, signature
from math import inf, isnan
from typing import Any, Self, TypeVar

from saliency_bench.errors import UserError, unknown

# Inputs of metrics by the name of the parameter.
INPUTS = {
    "maps": "numpy (B, H, W)",
    "masks": "numpy bool (B, H, W), never empty",
    "curves": "perturbation.Curves of the batch and its maps",
    "classifier": "the classifier",
    "images": "torch (B, 3, H, W)",
    "target": "torch (B, K)",
    "logits": "torch (B, K), the classifier's logits for the images",
    "labels": "numpy bool (B, K), the correct classes of each image, regardless of the target",
    "groups": "class_groups.ClassGroups of the classifier's classes",
    "explain": "map_provider.MapProvider: explain(images, target, samples, classifier=None) -> numpy (b, H, W)",
    "partners": "partners.Partners: images and maps of other samples, which `plan` chose",
    "seeds": "one integer per sample: the seed of the metric's random draws",
    "other": "scoring.inputs.Other: a second classifier, with its target, logits and correct classes",
    "columns": "{column: torch (B, 3, H, W) of pictures, prepared like the images, or a list of values}",
    "run_seed": "an integer: the seed of random draws that all samples share",
    "retrained": "numpy int (B, P), the classes predicted by networks trained on changed images; -1 if there is no "
    "prediction",
    "first_right": "numpy (B,), the exposure at the first correct answer in each person's judgement; NaN if no answer "
    "is correct",
}
# Inputs that depend on the explainer or on people's answers. A metric needs at least one of them.
SCORED = frozenset({"maps", "curves", "explain", "partners", "retrained", "first_right"})
# {column of a dataset: name of the input that contains it}.
OWN_COLUMNS = {"image": "images", "mask": "masks", "label": "labels"}
NETWORK = ("outputs", "gradients", "activations", "attention", "nothing")
# Keywords grouped by the type of their values.
TEXTS = ("title", "needs", "paper", "undefined", "mark", "absent", "note", "keeps")
NAMES = ("also_called", "columns")
FUNCTIONS = ("check", "marked", "parts", "reduce", "aggregate", "aggregate_if", "question", "plan", "left_out")

F = TypeVar("F", bound=Callable[..., Any])
Options = dict[str, Any]
Range = tuple[float, float]


class _Declaration:
    """Base class of the two declarations. Declarations are used as decorators and accept only keyword arguments."""

    def __new__(cls, *positional: object, **keywords: object) -> Self:
        """Create a declaration after checking the names of its keywords.

        Raises:
            UserError: A keyword is unknown, or the decorator is written without parentheses.
        """
        if positional:
            raise UserError(
                f"{_decorator(cls)} accepts only keywords; write {_decorator(cls)}(version=1) above the function"
            )
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        for key in keywords:
            if key not in names:
                raise unknown("keyword", key, names, owner=_decorator(cls))
        return super().__new__(cls)

    def __call__(self, function: F) -> F:
        """Attach the declaration to a function, or to a class of callable objects, and return this function or class.

        Raises:
            UserError: The declaration does not match the function.
        """
        if not callable(function):
            raise UserError(f"{_decorator(type(self))}(...) must decorate a function; got {function!r}")
        self.check_function(getattr(function, "__name__", repr(function)), function)
        function.declaration = self  # type: ignore[attr-defined]
        return function

    def check_function(self, name: str, function: Callable[..., Any]) -> None:
        """Raise UserError if the declaration does not match the function."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class ExplainerDeclaration(_Declaration):
    """Properties of an explainer, declared by `@sb.explainer(...)`. All of them are optional for your own function.

    Attributes:
        version: Integer that must be increased whenever a map changes, so that old and new numbers never mix. For a
            function that is not registered (through a plugin folder or an entry point), a hash of its code is used
            instead. The version of an explainer from an entry point also includes a hash of its source code.
        needs: What the explainer needs from the network: "outputs", "gradients", "activations" or "attention".
            Several needs are joined, as in "activations or attention, gradients". For a baseline: "nothing".
        passes: Number of forward passes for one image (the maximum, if the number differs between images), or a
            function (options, height, width) -> number. If the number depends on other quantities, these are additional
            parameters with defaults, such as `channels=512`.
        targeted: Whether maps depend on the target.
        signed: Whether maps also contain evidence against the target, as negative values. If maps are signed only with
            a certain value of an option, this is {option: value} instead of True. The value must be a literal, because
            reports read it without importing the explainer.
        check: Function that is called with all options before anything is loaded. It raises UserError or ValueError for
            invalid options.
        also_called: Other names. If a user enters one of them, the error message suggests the registered name.
        elsewhere: Pairs (package, line of code). The line computes the same maps with that package. Options are in
            braces: `{steps}`. In the code, `x` is the normalised image, `label` is the class, `model` is a network that
            returns the logits of `x`, and `classifier` is a `Classifier` of this package. `choose` prints the code.
    """

    version: int | None = None
    needs: str = ""
    passes: int | Callable[..., int] | None = None
    targeted: bool = True
    signed: bool | Mapping[str, object] = False
    check: Callable[..., None] | None = None
    also_called: Sequence[str] = ()
    elsewhere: Sequence[tuple[str, str]] = ()

    @property
    def baseline(self) -> bool:
        """Return whether the explainer ignores the network. Tables show such baselines separately."""
        return self.needs == "nothing"

    def passes_of(self, options: Options, height: int, width: int) -> int:
        """Return the number of forward passes for one image of this size, or 0 if unknown."""
        return self.passes(options, height, width) if callable(self.passes) else self.passes or 0

    def check_function(self, name: str, function: Callable[..., Any]) -> None:
        """Raise UserError for invalid keywords of the declaration, or for invalid parameters of the function."""
        owner = f"explainer {name}"
        _check_common(owner, self)
        if type(self.targeted) is not bool:
            raise UserError(f"{owner}: `targeted` must be True or False; got {self.targeted!r}")
        if not (self.passes is None or callable(self.passes) or _is_count(self.passes)):
            raise UserError(
                f"{owner}: `passes` must be a whole number or a function of the options; got {self.passes!r}"
            )
        if isinstance(self.elsewhere, str) or not all(_is_texts(pair) and len(pair) == 2 for pair in self.elsewhere):
            raise UserError(
                f'{owner}: `elsewhere` must contain pairs of package and code, such as (("captum", "..."),)'
            )
        check_call(name, function, is_whole=False)
        if strange := set(re.split(", | or ", self.needs)) - {"", *NETWORK}:
            words = ", ".join(NETWORK)
            raise UserError(
                f"explainer {name}: `needs` contains the unknown word {', '.join(sorted(strange))}; use only {words}"
            )


@dataclass(frozen=True, kw_only=True)
class MetricDeclaration(_Declaration):
    """Properties of a metric and its scores, declared by `@sb.metric(...)`.

    Attributes:
        version: Integer that must be increased whenever a score changes. See `ExplainerDeclaration`.
        higher_is_better: Whether higher scores are better, or a function of {option: value} if this depends on options.
            By default, True is assumed, and tables report this assumption.
        title: Name that pages display, in a few well-known words, such as "Overlap (mIoU)". The title must be a
            literal, because pages read it without importing the metric. By default, the identifier is displayed.
        range: (low, high) of scores and their parts, or a function of {option: value} and optionally of the
            `target_weights.TargetRange`. It determines the type of interval. A score outside the range is an error.
        paper: Source of the metric: a BibTeX entry, or a line "authors, title, year, https://...".
        undefined: Short reason why a score is NaN.
        mark: Short description of a group of valid scores that are counted and reported. It requires `marked`.
        marked: Function of the metric's parameters -> bool (B,) that selects the samples for `mark`.
        parts: Function (options, classifier) -> names of P parts, for a metric that returns (B, P).
        absent: Short reason why a part may be NaN.
        reduce: Function (values (B, P), options) -> scores (B,). Default: the mean of the parts that are not NaN.
        aggregate: Function (means (D, P), options) -> values (D,), used instead of `reduce`. Each row contains the
            means of the parts over all samples, or over resampled samples. The value of a cell is computed from these
            means. Samples then have parts but no score, and the cell has an interval but no rank.
        aggregate_if: Function (options) -> whether to apply `aggregate` to means over samples. If not, `aggregate` is
            used like `reduce`.
        note: Short remark that applies to all scores of the metric.
        columns: Additional columns of the dataset that the metric needs. A sample without a value is left out.
        question: Function (options, probabilities (B, K), groups) -> targets per sample
            (`compute.targets.terms.TargetTerms`, or () for none), for a metric that does not use the run's target.
        plan: Function (options, predictions) -> {sample: [partners]}, for a metric with the input `partners`. The
            result must depend only on the arguments. Samples that are not in the result have no score.
        keeps: For a retraining metric, the pixels that are kept in the images: "top" or "rest".
        left_out: Function (options) -> names of inputs that have a default and are not needed with these options.
        passes: Maximum numbers per image, as a pair (images to classify, maps to request), or a function (options,
            height, width) that returns this pair.
        check: See `ExplainerDeclaration`.
        also_called: See `ExplainerDeclaration`.
    """

    version: int | None = None
    higher_is_better: bool | Callable[[Options], bool] | None = None
    title: str = ""
    range: Range | Callable[..., Range] = (-inf, inf)
    paper: str = ""
    undefined: str = ""
    mark: str = ""
    marked: Callable[..., Any] | None = None
    parts: Callable[[Options, Any], Sequence[str]] | None = None
    absent: str = ""
    reduce: Callable[..., Any] | None = None
    aggregate: Callable[..., Any] | None = None
    aggregate_if: Callable[[Options], bool] | None = None
    note: str = ""
    columns: Sequence[str] = ()
    question: Callable[..., Sequence[tuple]] | None = None
    plan: Callable[..., Mapping[int, Sequence[int]]] | None = None
    keeps: str = ""
    left_out: Callable[[Options], Sequence[str]] | None = None
    passes: tuple[int, int] | Callable[..., tuple[int, int]] | None = None
    check: Callable[..., None] | None = None
    also_called: Sequence[str] = ()

    def direction(self, options: Options) -> bool:
        """Return whether higher is better."""
        return self.higher_is_better(options) if callable(self.higher_is_better) else self.higher_is_better is not False

    @property
    def asks_target_range(self) -> bool:
        """Return whether the range depends on the target."""
        return callable(self.range) and len(signature(self.range).parameters) == 2

    def range_of(self, options: Options, target: object) -> Range:
        """Return (low, high) of the scores for targets that have this `target_weights.TargetRange`."""
        if not callable(self.range):
            low, high = self.range
            return float(low), float(high)
        return self.range(options, target) if self.asks_target_range else self.range(options)

    def passes_of(self, options: Options, height: int, width: int) -> tuple[int, int]:
        """Return the maximum numbers (images to classify, maps to request) for one image of this size."""
        return self.passes(options, height, width) if callable(self.passes) else self.passes or (0, 0)

    @property
    def paper_line(self) -> str:
        """Return the paper as one line."""
        return paper_line(self.paper)

    def check_function(self, name: str, function: Callable[..., Any]) -> None:
        """Raise UserError if the declaration contradicts itself or the function's parameters."""
        owner = f"metric {name}"
        _check_common(owner, self)
        if not (self.passes is None or callable(self.passes) or _is_pair(self.passes)):
            raise UserError(
                f"{owner}: `passes` must be (pictures, maps) or a function of the options; got {self.passes!r}"
            )
        _check_direction_and_range(owner, self)
        _check_parts(owner, self)
        inputs = inputs_of(name, function)
        if ("partners" in inputs) != (self.plan is not None):
            raise UserError(
                f"{owner}: the parameter `partners` and the keyword plan=function(options, predictions) require each "
                "other; use both or neither"
            )
        if self.asks_target_range and "curves" not in inputs and not {"target", "classifier"} <= set(inputs):
            raise UserError(f"{owner}: its range depends on the target, so it needs the parameter `curves`, or both "
                            "`target` and `classifier`")  # fmt: skip
        _check_columns(owner, self.columns, inputs)


def declaration_of(function: Callable[..., Any]) -> Any:
    """Return the declaration of a function, or None.

    For a `partial`, return the declaration of the wrapped function.
    """
    inner = function.func if isinstance(function, partial) else function
    return getattr(function, "declaration", getattr(inner, "declaration", None))


def check_call(name: str, explainer: Callable[..., Any], *, is_whole: bool = True) -> None:
    """Check that an explainer can be called with only classifier, images and target.

    Args:
        name: Name of the explainer.
        explainer: Function, or class of callable objects.
        is_whole: Whether no further parameters will be bound. False if `functools.partial` may bind some of them later.

    Raises:
        UserError: The explainer requires other arguments.
    """
    must = (
        f"explainer {name} must have the parameters (classifier, images, target), followed by options with defaults "
        f"after a *"
    )
    is_class = isinstance(explainer, type)
    given = *["self"] * is_class, "classifier", "images", "target"
    try:
        takes = signature(explainer.__call__ if isinstance(explainer, type) else explainer)
    except ValueError as error:
        raise UserError(
            f"{must}; its signature cannot be read, so wrap it in a function with these parameters"
        ) from error
    bind = takes.bind if is_whole else takes.bind_partial
    try:
        bind(*given, **{"seeds": []} if "seeds" in takes.parameters else {})
    except TypeError as error:
        is_metric = SCORED & set(takes.parameters)
        fix = "if it is a metric, pass it as a metric" if is_metric else error
        raise UserError(f"{must}; it takes {takes}: {fix}") from error


def inputs_of(name: str, function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the inputs of a metric, which are the names of its parameters that are not options.

    A parameter with a default is an option if it is keyword-only or if its name is not in `INPUTS`.

    Raises:
        UserError: A parameter is unknown, or the metric has no input that depends on the explainer.
    """
    try:
        described = function.__call__ if isinstance(function, type) else function
        parameters = [
            p for p in signature(described).parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        ]
    except (TypeError, ValueError) as error:
        raise UserError(f"metric {name}: its signature cannot be read; wrap it in a function f(maps, masks)") from error
    parameters = parameters[isinstance(function, type) :]  # without self
    options = [p for p in parameters if p.default is not p.empty and (p.kind is p.KEYWORD_ONLY or p.name not in INPUTS)]
    inputs = [p for p in parameters if p not in options]
    strange = [p for p in inputs if p.name not in INPUTS]
    if strange and strange[0].kind is Parameter.KEYWORD_ONLY:
        raise UserError(f"metric {name}: option {strange[0].name} needs a default; bind it with functools.partial")
    if strange or not inputs:
        unknown_names = f"the unknown inputs {', '.join(p.name for p in strange)}" if strange else "no inputs"
        raise UserError(
            f"metric {name} has {unknown_names}; name its parameters after these inputs: {', '.join(INPUTS)}"
        )
    named = tuple(p.name for p in inputs)
    if not SCORED & set(named):
        fix = "; if it is an explainer, pass it as an explainer" * (named == ("classifier", "images", "target"))
        raise UserError(f"metric {name} has only the inputs {', '.join(named)}; add `maps`, `curves` or `explain`{fix}")
    return named


def paper_line(paper: str) -> str:
    """Return "authors, title, year, URL" for a BibTeX entry. Any other string is returned unchanged.

    >>> paper_line("@misc{a, author={Ada, Eve and Bo, Al}, title={{T}wo}, year={2020}, url={https://x.org}}")
    'Ada and Bo, Two, 2020, https://x.org'
    """
    if not paper.lstrip().startswith("@"):
        return paper
    entries = re.findall(r"(\w+)\s*=\s*\{((?:[^{}]|\{[^{}]*\})*)\}", paper)
    known = {key.lower(): re.sub(r"[{}]", "", " ".join(text.split())) for key, text in entries}
    people = [person.split(",")[0] for person in known.get("author", "").split(" and ")]
    authors = f"{people[0]} et al." if len(people) > 2 else " and ".join(people)
    return ", ".join(filter(None, (authors, *(known.get(key, "") for key in ("title", "year", "url")))))


def _decorator(kind: type) -> str:
    return "@sb.explainer" if kind is ExplainerDeclaration else "@sb.metric"


def _check_common(owner: str, declared: ExplainerDeclaration | MetricDeclaration) -> None:
    """Raise UserError if a version, a string, a function or a list of names has the wrong type."""
    if declared.version is not None and (type(declared.version) is not int or declared.version < 1):
        raise UserError(f"{owner}: `version` must be a whole number of at least 1; got {declared.version!r}")
    for field in fields(declared):
        key, value = field.name, getattr(declared, field.name)
        if key in TEXTS and not isinstance(value, str):
            raise UserError(f"{owner}: `{key}` must be a string; got {value!r}")
        if key in FUNCTIONS and value is not None and not callable(value):
            raise UserError(f"{owner}: `{key}` must be a function; got {value!r}")
        if key in NAMES and isinstance(value, str):
            raise UserError(f'{owner}: `{key}` must be a list of names, not a string; write ("{value}",)')
        if key in NAMES and not _is_texts(value):
            raise UserError(f"{owner}: `{key}` must be a list of names; got {value!r}")


def _is_texts(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(text, str) for text in value)


def _is_count(value: object) -> bool:
    """Return whether a value is an integer of at least 0."""
    return type(value) is int and value >= 0


def _is_pair(value: object) -> bool:
    return isinstance(value, Sequence) and len(value) == 2 and all(map(_is_count, value))


def _check_direction_and_range(owner: str, declared: MetricDeclaration) -> None:
    higher = declared.higher_is_better
    if higher not in (True, False, None) and not callable(higher):
        raise UserError(
            f"{owner}: `higher_is_better` must be True or False, or a function of the options; got {higher!r}"
        )
    if callable(declared.range):
        return
    try:
        low, high = (float(end) for end in declared.range)
        if low < high and not isnan(low) and not isnan(high):
            return
    except (TypeError, ValueError):
        pass
    raise UserError(f"{owner}: `range` must be two numbers (low, high) with low < high; got {declared.range!r}")


def _check_parts(owner: str, declared: MetricDeclaration) -> None:
    """Raise UserError if a keyword lacks another keyword that it requires, or if two keywords exclude each other."""
    for key in ("reduce", "aggregate", "absent"):
        if getattr(declared, key) and declared.parts is None:
            raise UserError(f"{owner}: `{key}` requires `parts`; add parts=function(options, classifier) -> names")
    if declared.reduce and declared.aggregate:
        raise UserError(f"{owner}: `reduce` and `aggregate` cannot be combined; remove one of them")
    if declared.aggregate_if and not declared.aggregate:
        raise UserError(f"{owner}: `aggregate_if` requires `aggregate`; add `aggregate`")
    if bool(declared.mark) != (declared.marked is not None):
        raise UserError(
            f"{owner}: `mark` (a reason) and `marked` (a function that selects samples) require each other; use both "
            "or neither"
        )
    if declared.keeps not in ("", "top", "rest"):
        raise UserError(f"{owner}: `keeps` must be 'top' or 'rest'; got {declared.keeps!r}")


def _check_columns(owner: str, columns: Sequence[str], inputs: Sequence[str]) -> None:
    """Raise UserError if the declaration has the keyword `columns` but not the input `columns`, or vice versa."""
    if bool(columns) != ("columns" in inputs):
        named = f"declares columns of the dataset ({', '.join(map(str, columns))}), but has no parameter `columns`"
        undeclared = "has the parameter `columns`; declare the columns with @sb.metric(columns=[...])"
        raise UserError(f"{owner} {named if columns else undeclared}")
    for column in columns:
        if column in OWN_COLUMNS:
            raise UserError(f"{owner} declares the column {column}; use the parameter {OWN_COLUMNS[column]} instead")


explainer = ExplainerDeclaration
metric = MetricDeclaration
