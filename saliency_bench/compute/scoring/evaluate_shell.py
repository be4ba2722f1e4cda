"""Base classes for modules of the `evaluate` library. They read maps and masks, collect batches and average scores.

`evaluate` uses the first `evaluate.EvaluationModule` in a module's namespace as the metric, so the shared code is a
plain class, listed first among the base classes: `class SaliencyMiou(MapShell, evaluate.Metric)`. This file is copied
next to a metric's script when the script is installed or pushed, so it imports only evaluate, datasets, numpy and core
files that do the same.
"""

import inspect
import re
import sys
import warnings
from collections.abc import Callable, Collection
from typing import Any

import datasets
import evaluate
import numpy as np

from saliency_bench.declarations import MetricDeclaration, declaration_of
from saliency_bench.errors import UserError, unknown
from saliency_bench.maps import mean_of_parts, read_array, read_maps, read_pair
from saliency_bench.options import defaults, meanings, resolved, spelled

NO_CLASS = -1  # marks a sample without a class


class MapShell:
    """Base class that makes `function(maps, masks, *, option=default) -> (B,) or (B, P)` a module of evaluate.

    The function and its declaration define description, options, range and paper.
    """

    INPUTS = """predictions: saliency maps (B, H, W), higher = more salient.
    references: masks (B, H, W), 0 and 1."""
    LEFT_OUT = "an empty mask"  # reason for a NaN score
    function: Callable[..., np.ndarray]
    # Attributes of evaluate.EvaluationModule, the other base class of a metric.
    name: str
    info: evaluate.MetricInfo
    writer: Any
    num_process: int

    def __init_subclass__(cls) -> None:
        """Define `_compute` with a signature that lists all inputs and options, as evaluate requires."""
        super().__init_subclass__()
        if issubclass(cls, evaluate.EvaluationModule):

            def _compute(self: MapShell, **inputs: Any) -> dict[str, Any] | Exception:
                return self._result(**inputs)

            _compute.__signature__ = cls._signature()  # type: ignore[attr-defined]
            cls._compute = _compute  # type: ignore[attr-defined]

    @classmethod
    def _signature(cls) -> inspect.Signature:
        """Return the signature of `_compute`: self, the inputs, and the options with their defaults."""
        keywords = dict.fromkeys(re.findall(r"^ *(\w+):", cls.INPUTS, flags=re.MULTILINE)) | cls.keywords()
        return inspect.Signature(
            [
                inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
                *(
                    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
                    for name, default in (keywords | {"per_sample": False}).items()
                ),
            ]
        )

    @classmethod
    def keywords(cls) -> dict[str, Any]:
        """Return the arguments of `compute` that are not inputs of `add`, with their defaults."""
        return defaults(function) if (function := cls.computed()) else {}

    def scores(self, *inputs: Any, **options: Any) -> np.ndarray:
        """Return the scores (B,) for the inputs that `_inputs` returns."""
        return self.reduced(self.function(*inputs, **options), options)

    def reduced(self, values: np.ndarray, options: dict[str, Any]) -> np.ndarray:
        """Reduce parts (B, P) to scores (B,). Values of shape (B,) are already scores and are returned unchanged."""
        reduce = (declaration_of(self.function) or MetricDeclaration()).reduce or mean_of_parts
        return reduce(values, options) if np.ndim(values) == 2 else values

    @classmethod
    def declared(cls) -> Callable[..., np.ndarray] | None:
        """Return the declared function, or None if saliency_bench is not installed."""
        return cls.function

    @classmethod
    def computed(cls) -> Callable[..., np.ndarray] | None:
        """Return the function that defines the options of `compute`."""
        return cls.declared()

    def _info(self) -> evaluate.MetricInfo:
        function = self.declared()
        declaration = declaration_of(function) if function else None
        paper = declaration.paper if declaration else ""
        info = evaluate.MetricInfo(
            description=_about(function) if function else inspect.getdoc(self) or "",
            citation=paper,
            inputs_description=f"Args:\n    {self.INPUTS}\n{_describe(self.computed())}"
            + _example(type(self).__module__),
            features=self._features((224, 224)),  # replaced by the size of the first maps
            reference_urls=re.findall(r"https://[^\s}]+", paper)[:1],
        )
        # MetricInfo does not accept a format for arrays, and without one every pixel becomes a Python object.
        info.format = "numpy"
        return info

    def _features(self, size: tuple[int, ...]) -> datasets.Features:
        return datasets.Features(
            {"predictions": datasets.Array2D(size, "float32"), "references": datasets.Array2D(size, "bool")}
        )

    def _inputs(self, predictions: Any = None, references: Any = None) -> dict[str, np.ndarray]:
        """Return the checked inputs of `scores`, in the order of `_features`."""
        maps, masks = read_pair(predictions, references)
        return {"predictions": maps, "references": masks}

    def add_batch(self, **given: Any) -> None:
        """Add a batch of the inputs in `INPUTS`. All maps of one computation must have the same size."""
        inputs = self._inputs(**_known(self.name, given, self._names()))
        self._use_size(next(iter(inputs.values())).shape[-2:])
        super().add_batch(**inputs)  # type: ignore[misc]

    def add(self, **given: Any) -> None:
        """Add one sample: `prediction` and `reference`, or `image` and `reference`. Plural names are accepted too."""
        named = {f"{name.removesuffix('s')}s": value for name, value in given.items()}
        self.add_batch(**{name: [value] for name, value in named.items() if name != "references" or value is not None})

    def compute(self, **given: Any) -> dict[str, Any] | None:
        """Return the mean score of all samples that were added or are passed to this call.

        `per_sample=True` adds the list "scores".
        """
        passed = {name: value for name in self._names() if (value := given.pop(name, None)) is not None}
        inputs: dict[str, Any] = self._inputs(**passed) if passed else {}
        if "predictions" in passed and self.writer is None and self.num_process == 1:
            # No batch was added, so skip `evaluate`, which would write and read an Arrow table (1 to 2 ms per map).
            return self._averaged(**inputs, **given)
        result = super().compute(**inputs, **given)  # type: ignore[misc]
        if isinstance(result, Exception):
            raise result
        return result

    def _names(self) -> list[str]:
        """Return the names of the inputs that can be added."""
        return list(inspect.signature(self._inputs).parameters)

    def _result(self, **inputs: Any) -> dict[str, Any] | Exception:
        """Return the result, or an error for `compute` to raise. Raising the error here would leave a file open."""
        try:
            return self._averaged(**inputs)
        except Exception as error:
            return error

    def _averaged(self, *, per_sample: bool = False, **given: Any) -> dict[str, Any]:
        """Return the mean score for the inputs and, if `per_sample` is true, all scores."""
        name, inputs = self.name, [np.asarray(given.pop(feature)) for feature in self.info.features]
        options = self.read_options(given)
        if not isinstance(per_sample, bool):
            raise UserError(f"per_sample of {name} must be True or False; got {per_sample!r}")
        if len(inputs[0]) == 0:
            raise ValueError(f"{name}: there is no sample to score; add at least one")
        scores = self.scores(*inputs, **options)
        left_out = self.left_out(scores)
        if left_out.all():
            raise ValueError(f"{name}: all {len(scores)} samples are left out: {self.reason(options)}")
        if left_out.any():
            line = f"{name}: {left_out.sum()} of {len(scores)} samples left out: {self.reason(options)}"
            warnings.warn(line, stacklevel=_level_of_caller())
        result = {name: self.value(scores[~left_out], options)}
        return result | {"scores": scores.tolist()} if per_sample else result

    def reason(self, options: dict[str, Any]) -> str:
        """Return a short reason why samples are left out."""
        return self.LEFT_OUT

    def left_out(self, scores: np.ndarray) -> np.ndarray:
        """Return whether each sample is left out, Bool (B,)."""
        return np.isnan(scores).reshape(len(scores), -1).any(axis=1)

    def value(self, scores: np.ndarray, options: dict[str, Any]) -> float | list[float]:
        """Return the mean of the scores that are not left out."""
        return scores.mean(axis=0).tolist()

    def read_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return all options of the function.

        Raises:
            UserError: An option is unknown or has an invalid value.
        """
        return dict(resolved(self.name, self.function, _known(self.name, options, [*self.keywords(), "per_sample"])))

    def _use_size(self, size: tuple[int, ...]) -> None:
        """Use the size of the first maps for all maps.

        Raises:
            ValueError: Maps of a different size were added before.
        """
        features = self._features(size)
        if getattr(self, "writer", None) is not None and self.info.features != features:
            name, kind = next(iter(self.info.features.items()))
            before, name = "{} x {}".format(*kind.shape[-2:]), name.replace("predictions", "maps")
            raise ValueError(
                f"{name} of {size[0]} x {size[1]} were added after {name} of {before}; use one size per computation"
            )
        self.info.features = features


class SweepShell(MapShell):
    """Base class for metrics with a threshold. `sweep(maps, masks, thresholds, **options)` takes several thresholds."""

    sweep: Callable[..., np.ndarray]

    def read_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return all options of the function. `threshold` may be a list of thresholds."""
        thresholds = options.get("threshold")
        if not isinstance(thresholds, list | tuple):
            return super().read_options(options)
        others = {key: value for key, value in options.items() if key != "threshold"}
        return super().read_options(others) | {"threshold": thresholds}

    def scores(self, *inputs: Any, **options: Any) -> np.ndarray:
        """Return the scores: (B,) for one threshold or (B, T) for T thresholds."""
        if not isinstance(options["threshold"], list | tuple):
            return super().scores(*inputs, **options)
        return self.sweep(*inputs, options.pop("threshold"), **options)


class MapOnlyShell(MapShell):
    """Base class for metrics that use only the maps: `function(maps, **options)`, without references."""

    INPUTS = "predictions: saliency maps (B, H, W), higher = more salient."
    LEFT_OUT = "a score that is not a number"
    ALONE = "uses only the maps"

    def _features(self, size: tuple[int, ...]) -> datasets.Features:
        return datasets.Features({"predictions": datasets.Array2D(size, "float32")})

    def _inputs(self, predictions: Any = None, references: Any = None) -> dict[str, np.ndarray]:
        self._refuse(references)
        return {"predictions": read_maps(predictions)}

    def _refuse(self, references: Any) -> None:
        """Raise ValueError if there are references, because this metric does not use them."""
        if references is not None:
            raise ValueError(f"{self.name} {self.ALONE}; remove references=")


class _InstalledShell(MapShell):
    """Base class for metrics that run the classifier and therefore need saliency_bench to be installed."""

    @classmethod
    def declared(cls) -> Callable[..., np.ndarray] | None:
        """Return the declared function, or None if saliency_bench is not installed."""
        try:
            from saliency_bench.bound_metric import registered_metric

            return registered_metric(cls.__module__.rpartition(".")[2]).function
        except (ModuleNotFoundError, UserError):
            return None

    def read_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options unchanged, because `scores` reads them after loading the metric."""
        return options

    def _metric(self, options: dict[str, Any]) -> Any:
        from saliency_bench.bound_metric import registered_metric

        names = _options_of(self.name)
        return registered_metric(self.name, **{key: value for key, value in options.items() if key in names})


class ExplainerShell(_InstalledShell):
    """Base class for metrics that call the explainer. Their inputs are images instead of maps."""

    INPUTS = """images: (B, 3, H, W) in [0, 1], before the classifier's normalisation.
    classifier: a Hub id, a folder, "torchvision:resnet18", or a result of saliency_bench.load_classifier.
    explainer: a name ("gradcam", "rise:masks=1000") or a function (classifier, images, target) -> maps (B, H, W).
    references: the class (int) of each image, if the metric takes one. Default: the predicted class.
    target: weights (B, K) over the classes, instead of the references.
    groups: groups of classes, for metrics that compare groups.
    seeds: one seed per image; alternatively, pass image_ids and the seed of a run. Default: 0 to B-1.
    batch_size: images explained at once. Default: 16."""
    LEFT_OUT = "a flat map"

    @classmethod
    def keywords(cls) -> dict[str, Any]:
        """Return the arguments of `compute` that are not inputs of `add`, with their defaults."""
        if cls.declared() is None:
            return {}
        from saliency_bench.compute.scoring.samples import score_samples

        keywords = defaults(cls.scores) | defaults(score_samples) | super().keywords()
        return {name: default for name, default in keywords.items() if name != "parts"}

    def _features(self, size: tuple[int, ...]) -> datasets.Features:
        return datasets.Features(
            {"images": datasets.Array3D((3, *size), "float32"), "references": datasets.Value("int64")}
        )

    def _inputs(self, predictions: Any = None, references: Any = None, images: Any = None) -> dict[str, np.ndarray]:
        """Return images (B, 3, H, W), and the class of each image if the metric uses classes."""
        if predictions is not None or images is None:
            raise ValueError(
                f"{self.name} computes the maps itself; pass images=(B, 3, H, W) in [0, 1] instead of predictions"
            )
        pictures = read_array("images", images, "(B, 3, H, W)").astype(np.float32)
        if pictures.ndim != 4 or pictures.shape[1] != 3:
            raise ValueError(f"images must have shape (B, 3, H, W); got {pictures.shape}")
        return {"images": pictures, "references": _classes(references, len(pictures), "images")}

    def scores(
        self,
        images: np.ndarray,
        references: np.ndarray,
        /,
        *,
        classifier: Any = None,
        explainer: Any = None,
        target: Any = None,
        **options: Any,
    ) -> np.ndarray:
        """Compute the explainer's maps for the images and score them with the metric."""
        name = self.name
        try:
            from saliency_bench.compute.scoring.samples import score_samples
        except ModuleNotFoundError as error:
            raise ImportError(
                f"{name} needs saliency-bench to run the classifier and the explainer; run `pip install saliency-bench`"
            ) from error
        if classifier is None or explainer is None:
            raise ValueError(f"{name} needs classifier= and explainer=, each a name or your own object")
        options = _known(name, options, [*self.keywords(), "seeds", "per_sample"])
        metric, has_classes = self._metric(options), references != NO_CLASS
        if "labels" in metric.inputs and options.get("labels") is None:
            if not has_classes.all():
                raise ValueError(f"{name} needs references= (the correct class of each image)")
            options["labels"] = references
        elif target is None and has_classes.any():
            target = references
        parts = metric.aggregate is not None
        return score_samples(name, images, classifier, explainer, target=target, parts=parts, **options)

    def reason(self, options: dict[str, Any]) -> str:
        """Return the metric's own description of why samples are left out."""
        metric = self._metric(options)
        if "partners" in metric.inputs:
            return "no partners among the samples"
        declared = metric.declaration
        return " or ".join(dict.fromkeys(filter(None, (declared.undefined, declared.absent)))) or self.LEFT_OUT

    def left_out(self, scores: np.ndarray) -> np.ndarray:
        """Return whether each sample is left out, Bool (B,), because its score or every part of its score is NaN."""
        return np.isnan(scores).reshape(len(scores), -1).all(axis=1)

    def value(self, scores: np.ndarray, options: dict[str, Any]) -> float | list[float]:
        """Return the mean score or, if the metric defines an aggregate, the aggregate of the means of the parts."""
        metric = self._metric(options)
        if metric.aggregate is None:
            return super().value(scores, options)
        known = np.isfinite(scores)
        means = np.where(known, scores, 0).sum(axis=0) / np.where(known.any(axis=0), known.sum(axis=0), np.nan)
        return float(metric.aggregate(means[None], dict(metric.options))[0])


class CurveShell(_InstalledShell):
    """Base class for metrics that use perturbation curves. They need saliency_bench to be installed."""

    INPUTS = """predictions: saliency maps (B, H, W), higher = more salient.
    references: the class (int) of each image.
    images: (B, 3, H, W) in [0, 1], before the classifier's normalisation, in the order of the maps.
    classifier: a Hub id, a folder, "torchvision:resnet18", or a result of saliency_bench.load_classifier.
    target: weights (B, K) over the classes, instead of the references (which may then be None).
    seeds: one seed per image, used if removed pixels are replaced by noise (option reference="noise"); alternatively,
        pass image_ids and the seed of a run.
    groups: groups of classes, for metrics that compare groups.
    batch_size: images in one forward pass. Default: 16."""
    LEFT_OUT = "a score that is not a number"

    @classmethod
    def keywords(cls) -> dict[str, Any]:
        """Return the arguments of `compute` that are not inputs of `add`, with their defaults."""
        return defaults(cls.scores) | super().keywords()

    def _features(self, size: tuple[int, ...]) -> datasets.Features:
        return datasets.Features(
            {"predictions": datasets.Array2D(size, "float32"), "references": datasets.Value("int64")}
        )

    def _inputs(self, predictions: Any = None, references: Any = None) -> dict[str, np.ndarray]:
        """Return the maps and the class of each sample. If `target` is passed, samples need no class."""
        maps = read_maps(predictions)
        return {"predictions": maps, "references": _classes(references, len(maps), "maps")}

    def scores(
        self,
        maps: Any,
        references: Any,
        /,
        *,
        images: Any = None,
        classifier: Any = None,
        target: Any = None,
        seeds: Any = None,
        image_ids: Any = None,
        seed: int = 0,
        groups: Any = None,
        batch_size: int = 16,
        **options: Any,
    ) -> np.ndarray:
        """Score maps with the metric, using the given classifier."""
        name = self.name
        try:
            from saliency_bench.bound_metric import registered_metric
            from saliency_bench.compute.scoring.draws import Draws
            from saliency_bench.compute.scoring.perturbation import batched_curves, right_classes
            from saliency_bench.compute.scoring.samples import known_groups
        except ModuleNotFoundError as error:
            raise ImportError(
                f"{name} needs saliency-bench to run the classifier; run `pip install saliency-bench`"
            ) from error
        if images is None or classifier is None:
            raise ValueError(f"{name} needs images=(B, 3, H, W) in [0, 1] and classifier= (a name or a module)")
        options = _known(name, options, [*self.keywords(), "per_sample"])
        metric, unlabelled = registered_metric(name, **options), (references == NO_CLASS).any()
        if "labels" in metric.inputs and (target is not None or unlabelled):
            raise ValueError(f"{name} needs the correct class of each image; pass references= instead of target=")
        if target is None and unlabelled:
            raise ValueError(
                f"{name} needs references= (the class of each image) or target= (weights over the classes)"
            )
        scores: list[np.ndarray] = []
        given = references if target is None else target
        noise = Draws.given(len(maps), seeds, image_ids, seed).seeds("noise")
        for curves in batched_curves(classifier, images, given, maps, batch_size, noise):
            start = sum(map(len, scores))
            classes = references[start : start + len(curves.images)]
            inputs: dict[str, Any] = {"curves": curves}
            if "labels" in metric.inputs:
                inputs["labels"] = right_classes(classes, curves.target.shape[1])
            if "groups" in metric.inputs:
                inputs["groups"] = known_groups(metric, groups, curves.classifier, curves.target.shape[1])
            scores.append(metric(**inputs))
        return np.concatenate(scores)


class AreaShell(_InstalledShell):
    """Base class for metrics that train networks. The inputs are the accuracies of networks that a run has trained.

    The score is the area under the curve of accuracy against exposure, computed with the trapezoid rule and divided by
    the range of the exposures.
    """

    INPUTS = """predictions: the accuracies (N,) in [0, 1] of networks that `saliency-bench run` has trained.
    references: the exposure (N,) of each network (a share of pixels). Networks with the same exposure are averaged."""

    @classmethod
    def computed(cls) -> Callable[..., np.ndarray] | None:
        """Return the area function. It has no options, because the metric's options concern training only."""
        return cls.declared() and _area

    def _info(self) -> evaluate.MetricInfo:
        info = super()._info()
        info.format = None  # arrays would be read back in float32, but a run computes in float64
        return info

    def _features(self, size: tuple[int, ...]) -> datasets.Features:
        return datasets.Features({"predictions": datasets.Value("float64"), "references": datasets.Value("float64")})

    def _inputs(self, predictions: Any = None, references: Any = None) -> dict[str, np.ndarray]:
        """Return accuracies (N,) and their exposures (N,)."""
        if references is None:
            raise ValueError(
                f"{self.name} needs references: the exposure that belongs to each accuracy, a number from 0 to 1"
            )
        accuracies, exposures = (
            read_array(name, given, "(N,)").astype(np.float64)
            for name, given in (("predictions", predictions), ("references", references))
        )
        if accuracies.ndim != 1 or accuracies.shape != exposures.shape:
            raise ValueError(
                f"{self.name} needs one exposure for each accuracy; got {exposures.shape} for {accuracies.shape}"
            )
        for subject, values in (("an accuracy", accuracies), ("an exposure", exposures)):
            if len(outside := values[~((values >= 0) & (values <= 1))]):
                raise ValueError(f"{self.name}: {subject} must be a number from 0 to 1; got {outside[0]:g}")
        return {"predictions": accuracies, "references": exposures}

    def read_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return no options, because the metric's options concern training only."""
        return _known(self.name, options, [])

    def scores(self, accuracies: Any, exposures: Any, /, **options: Any) -> np.ndarray:
        """Return the area (1,)."""
        return np.atleast_1d(_area(np.asarray(accuracies, np.float64), np.asarray(exposures, np.float64)))


def _area(accuracies: np.ndarray, exposures: np.ndarray) -> np.ndarray:
    """Return the area under the accuracies (N,) at exposures (N,), divided by the range of the exposures.

    Returns:
        A number in [0, 1].

    Raises:
        ValueError: There is only one exposure.
    """
    widths, places = np.unique(exposures, return_inverse=True)
    if len(widths) < 2:
        raise ValueError(f"the area needs accuracies at two or more exposures; got {len(widths)}")
    means = np.bincount(places, accuracies) / np.bincount(places)
    return np.trapezoid(means, widths) / (widths[-1] - widths[0])


def _about(function: Callable[..., np.ndarray]) -> str:
    """Return the first line of the module docstring, followed by the function's docstring up to its arguments."""
    module = sys.modules[function.__module__].__doc__ or ""
    details = (inspect.getdoc(function) or "").partition("\nArgs:\n")[0]
    return f"{module.partition(chr(10))[0]}\n\n{details.strip()}"


def _example(module: str) -> str:
    """Return the example, which is the last section of a module's docstring."""
    _, heading, example = (sys.modules[module].__doc__ or "").partition("\n\nExample:\n")
    return heading + example.rstrip()


def _describe(function: Callable[..., np.ndarray] | None) -> str:
    """Describe a function's options and result as lines of a Google-style docstring."""
    lines = ['    per_sample: add the list "scores". Default: False.', "", "Returns:"]
    if function is None:
        unknown_here = "    The options of the metric are shown if saliency-bench is installed."
        return "\n".join([unknown_here, *lines, "    {name: the mean over samples}"])
    docstring = inspect.getdoc(function) or ""
    usual = defaults(function)
    texts = meanings(docstring)
    options = [f"    {key}: {texts.get(key, '')} Default: {spelled(value)}." for key, value in usual.items()]
    returned = re.search(r"Returns:\n(.*?)(?:\n\n|\Z)", docstring, flags=re.DOTALL)
    of_each = " ".join(returned.group(1).split()) if returned else ""
    return "\n".join([*options, *lines, f"    {{name: the mean over samples}}. Per sample: {of_each}"])


def _level_of_caller() -> int:
    """Return the `stacklevel` with which `warnings.warn` reports the caller of `compute`."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename in (__file__, evaluate.module.__file__):
        frame, level = frame.f_back, level + 1
    return level


def _options_of(name: str) -> list[str]:
    from saliency_bench.bound_metric import registered_metric

    return list(dict(registered_metric(name).options))


def _known(name: str, options: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return the options, or raise UserError if one is unknown."""
    for key in options:
        if key not in known:
            raise unknown(f"option of {name}", key, known)
    return options


def _classes(references: Any, count: int, noun: str) -> np.ndarray:
    """Return the class of each map or image, int64 (count,), or `NO_CLASS` if there are no references."""
    if references is None:
        return np.full(count, NO_CLASS)
    try:
        labels = np.asarray(references, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        labels = np.empty(0)
    if len(labels) != count or not np.isfinite(labels).all() or (labels != np.floor(labels)).any():
        raise ValueError(f"references must be one class (a whole number) for each of the {count} {noun}")
    return labels.astype(np.int64)
