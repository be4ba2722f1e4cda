"""What our modules for the library `evaluate` share: reading maps and masks, adding batches, averaging the scores.

`evaluate` takes the first `evaluate.EvaluationModule` in a module's namespace for the metric, so what is shared is a
plain class to put in front: `class SaliencyMiou(MapShell, evaluate.Metric)`. This file is copied beside a metric's
script when that is installed or pushed, so it imports only evaluate, datasets, numpy and core files that do the same.
"""

import warnings
from collections.abc import Callable
from typing import Any

import datasets
import evaluate
import numpy as np

from saliency_bench.errors import UserError, unknown
from saliency_bench.maps import read_array, read_maps, read_pair
from saliency_bench.options import defaults, resolved

NO_CLASS = -1  # in place of a class that was not given


class MapShell:
    """Turns `scores(maps, masks, *, option=default) -> (B,) or (B, T)` of a subclass into a module of evaluate.

    Options are what the annotations of `scores` allow. The subclass's docstring becomes the description (its first
    paragraph) and the inputs' description (the rest).
    """

    CITATION = ""
    URL = ""
    LEFT_OUT = "an empty mask"  # why a score is NaN
    scores: Callable[..., np.ndarray]

    def read(self, predictions: Any, references: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return checked maps (B, H, W) and references (B, ...) of whatever was passed."""
        return read_pair(predictions, references)

    def reference_feature(self, size: tuple[int, int]) -> Any:
        """Return the type of a reference."""
        return datasets.Array2D(size, "bool")

    def _info(self) -> evaluate.MetricInfo:
        """Return what `evaluate` shows of the metric."""
        description, _, inputs = (self.__doc__ or "").partition("\n\n")
        info = evaluate.MetricInfo(
            description=description,
            citation=self.CITATION,
            inputs_description=inputs,
            features=self._features((224, 224)),  # replaced by the size of what comes
            reference_urls=[self.URL],
        )
        # MetricInfo refuses a format for arrays, and without one every pixel becomes a Python object.
        info.format = "numpy"
        return info

    def _features(self, size: tuple[int, int]) -> datasets.Features:
        """Return the types of what is added."""
        features = {"predictions": datasets.Array2D(size, "float32"), "references": self.reference_feature(size)}
        return datasets.Features(features)

    def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None:
        """Add a batch of maps (B, H, W) with their references; all of one computation have one size."""
        maps, read = self.read(predictions, references)
        self._use_size(maps.shape[1:])
        super().add_batch(predictions=maps, references=read, **kwargs)  # type: ignore[misc]

    def add(self, *, prediction: Any = None, reference: Any = None, **kwargs: Any) -> None:
        """Add one map (H, W) with its reference."""
        self.add_batch(predictions=[prediction], references=[reference], **kwargs)

    def compute(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> dict[str, Any] | None:
        """Return the mean score of all that was added and of what is passed here.

        `per_sample=True` adds the list "scores".
        """
        result = super().compute(predictions=predictions, references=references, **kwargs)  # type: ignore[misc]
        if isinstance(result, Exception):
            raise result
        return result

    def _compute(self, **inputs: Any) -> dict[str, Any] | Exception:
        # evaluate closes its files only after a normal return: an error travels as a value, and the module goes on.
        """Return the result, or the error that `compute` raises: `evaluate` keeps a file open where this raises."""
        try:
            return self._averaged(**inputs)
        except Exception as error:
            return error

    def _averaged(
        self, *, predictions: Any, references: Any, per_sample: bool = False, **options: Any
    ) -> dict[str, Any]:
        """Return the mean score, and on request all scores."""
        name = self.name  # type: ignore[attr-defined]
        options = self.read_options(options)
        if not isinstance(per_sample, bool):
            raise UserError(f"per_sample of {name} is True or False; got {per_sample!r}")
        if len(predictions) == 0:
            raise ValueError(f"{name}: there is no sample to score")
        scores = self.scores(np.asarray(predictions), np.asarray(references), **options)
        left_out = self.left_out(scores)
        if left_out.all():
            raise ValueError(
                f"{name}: every one of the {len(scores)} samples has {self.LEFT_OUT}; there is nothing to score"
            )
        if left_out.any():
            line = f"{name}: {left_out.sum()} of {len(scores)} samples left out, for {self.LEFT_OUT}"
            warnings.warn(line, stacklevel=5)  # the caller of `compute`
        result = {name: self.value(scores[~left_out], options)}
        return result | {"scores": scores.tolist()} if per_sample else result

    def left_out(self, scores: np.ndarray) -> np.ndarray:
        """Return Bool (B,), the samples that do not count."""
        return np.isnan(scores).reshape(len(scores), -1).any(axis=1)

    def value(self, scores: np.ndarray, options: dict[str, Any]) -> float | list[float]:
        """Return the mean of the scores of the others."""
        return scores.mean(axis=0).tolist()

    def read_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return all options of `scores`.

        Raises:
            UserError: One is unknown, or has a value that it does not take.
        """
        known = [*defaults(self.scores), "per_sample"]
        return dict(resolved(self.name, self.scores, _known(self.name, options, known)))  # type: ignore[attr-defined]

    def _use_size(self, size: tuple[int, ...]) -> None:
        """Take the size of the first maps for all.

        Raises:
            ValueError: Others of another size were added.
        """
        features = self._features((size[0], size[1]))
        info = self.info  # type: ignore[attr-defined]
        if getattr(self, "writer", None) is not None and info.features != features:
            name, kind = next(iter(info.features.items()))
            before, name = "{} x {}".format(*kind.shape[-2:]), name.replace("predictions", "maps")
            raise ValueError(
                f"{name} of {size[0]} x {size[1]} follow {name} of {before}; one computation takes one size"
            )
        info.features = features


class MapOnlyShell(MapShell):
    """The same for metrics that look at the maps alone: `scores(maps, None, **options)`, and no references."""

    LEFT_OUT = "a score that is not a number"
    ALONE = "looks at the maps alone"

    def _features(self, size: tuple[int, int]) -> datasets.Features:
        """Return the types of what is added."""
        return datasets.Features({"predictions": datasets.Array2D(size, "float32")})

    def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None:
        """Add a batch of maps (B, H, W); all of one computation have one size."""
        self._refuse(references)
        maps = read_maps(predictions)
        self._use_size(maps.shape[1:])
        super(MapShell, self).add_batch(predictions=maps, **kwargs)  # type: ignore[misc]

    def add(self, *, prediction: Any = None, **kwargs: Any) -> None:
        """Add one map (H, W)."""
        self.add_batch(predictions=[prediction], **kwargs)

    def compute(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> dict[str, Any] | None:
        """Return the mean score of all that was added and of what is passed here.

        `per_sample=True` adds the list "scores".
        """
        self._refuse(references)
        return super().compute(predictions=predictions, **kwargs)

    def _refuse(self, references: Any) -> None:
        """Raise ValueError for references, which nothing is compared with."""
        if references is not None:
            name = self.name  # type: ignore[attr-defined]
            raise ValueError(f"{name} {self.ALONE}; leave out references")

    def _averaged(self, *, predictions: Any, **options: Any) -> dict[str, Any]:
        """Return the mean score, and on request all scores."""
        return super()._averaged(predictions=predictions, references=None, **options)


class ExplainerShell(MapShell):
    """A module of evaluate for a metric that asks the explainer itself: images come in, and no maps.

    compute(images=(B, 3, H, W) in [0, 1], classifier=, explainer=) and, where the metric knows them, references (the
    class of each image; None: the predicted one), target, groups, seeds or image_ids and seed of a run, batch_size and
    the metric's own options.
    """

    def _features(self, size: tuple[int, int]) -> datasets.Features:
        """Return the types of what is added."""
        return datasets.Features(
            {"images": datasets.Array3D((3, *size), "float32"), "references": datasets.Value("int64")}
        )

    def add_batch(self, *, images: Any = None, references: Any = None, predictions: Any = None, **kwargs: Any) -> None:
        """Add a batch of images (B, 3, H, W), with the class of each if the metric takes one."""
        name = self.name  # type: ignore[attr-defined]
        if predictions is not None or images is None:
            raise ValueError(f"{name} makes the maps itself: give images=(B, 3, H, W) in [0, 1], and no predictions")
        pictures = read_array("images", images, "(B, 3, H, W)").astype(np.float32)
        if pictures.ndim != 4 or pictures.shape[1] != 3:
            raise ValueError(f"images have shape (B, 3, H, W); these have {pictures.shape}")
        labels = _classes(references, len(pictures), "images")
        self._use_size(pictures.shape[2:])
        super(MapShell, self).add_batch(images=pictures, references=labels, **kwargs)  # type: ignore[misc]

    def compute(
        self, *, images: Any = None, references: Any = None, predictions: Any = None, **kwargs: Any
    ) -> dict[str, Any] | None:
        """Return the mean score of all that was added and of what is passed here.

        `per_sample=True` adds the list "scores".
        """
        if predictions is not None:
            self.add_batch(predictions=predictions)  # says what to give instead
        return super().compute(images=images, references=references, **kwargs)

    def add(self, *, image: Any = None, reference: Any = None, **kwargs: Any) -> None:
        """Add one image (3, H, W), with its class if the metric takes one."""
        images, references = (None if value is None else [value] for value in (image, reference))
        self.add_batch(images=images, references=references, **kwargs)

    def _averaged(self, *, images: Any = None, **options: Any) -> dict[str, Any]:
        """Return the mean score, and on request all scores."""
        return super()._averaged(predictions=images, **options)

    def read_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options as they are: `scores` reads them, where the metric is loaded."""
        return options

    def scores(
        self,
        images: np.ndarray,
        references: np.ndarray,
        *,
        classifier: Any = None,
        explainer: Any = None,
        target: Any = None,
        **options: Any,
    ) -> np.ndarray:
        """Return the scores of images by the metric, the classifier and the explainer."""
        name = self.name  # type: ignore[attr-defined]
        try:
            from saliency_bench.scoring.samples import score_parts, score_samples
        except ModuleNotFoundError as error:
            raise ImportError(f"{name} runs classifier and explainer: pip install saliency-bench") from error
        if classifier is None or explainer is None:
            raise ValueError(f"{name} needs classifier= and explainer=, each a name or an object of yours")
        known = [*defaults(self.scores), *defaults(score_samples), *_options_of(name), "seeds", "per_sample"]
        options = _known(name, options, known)
        metric, has_classes = self._metric(options), references != NO_CLASS
        if "labels" in metric.needs and options.get("labels") is None:
            if not has_classes.all():
                raise ValueError(f"{name} needs references, the class of each image")
            options["labels"] = references
        elif target is None and has_classes.any():
            target = references
        if metric.aggregate is not None:
            return score_parts(name, images, classifier, explainer, target=target, **options)
        return score_samples(name, images, classifier, explainer, target=target, **options)

    def left_out(self, scores: np.ndarray) -> np.ndarray:
        """Return the samples that do not count; of the parts of samples, those with none."""
        return np.isnan(scores).reshape(len(scores), -1).all(axis=1)

    def value(self, scores: np.ndarray, options: dict[str, Any]) -> float | list[float]:
        """Return the mean; of the parts of a metric with an aggregate, that of their means."""
        metric = self._metric(options)
        if metric.aggregate is None:
            return super().value(scores, options)
        known = np.isfinite(scores)
        means = np.where(known, scores, 0).sum(axis=0) / np.where(known.any(axis=0), known.sum(axis=0), np.nan)
        return float(metric.aggregate(means[None], dict(metric.options))[0])

    def _metric(self, options: dict[str, Any]) -> Any:
        """Return the metric with those of the options that are its own."""
        from saliency_bench.metric import load_metric

        name = self.name  # type: ignore[attr-defined]
        names = _options_of(name)
        return load_metric(name, **{key: value for key, value in options.items() if key in names})


class CurveShell(MapShell):
    """The same for metrics of perturbation curves, which are computed where saliency_bench is installed.

    compute(predictions=maps, images=(B, 3, H, W) in [0, 1], classifier=), references (the class of each image) or
    target; seeds, or image_ids and seed of a run, for the reference "noise"; batch_size and the metric's own options.
    """

    LEFT_OUT = "a score that is not a number"

    def read(self, predictions: Any, references: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return maps and the class of each; with a target of their own, samples need no class."""
        maps = read_maps(predictions)
        return maps, _classes(references, len(maps), "maps")

    def reference_feature(self, size: tuple[int, int]) -> Any:
        """Return the type of a class."""
        return datasets.Value("int64")

    def read_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options as they are: `scores` reads them, where the metric is loaded."""
        return options

    def scores(
        self,
        maps: Any,
        references: Any,
        *,
        images: Any = None,
        classifier: Any = None,
        target: Any = None,
        seeds: Any = None,
        image_ids: Any = None,
        seed: int = 0,
        batch_size: int = 16,
        **options: Any,
    ) -> np.ndarray:
        """Return the scores of maps by the metric and the classifier."""
        name = self.name  # type: ignore[attr-defined]
        try:
            from saliency_bench.metric import load_metric
            from saliency_bench.scoring.draws import Draws
            from saliency_bench.scoring.perturbation import batched_curves, right_classes
        except ModuleNotFoundError as error:
            raise ImportError(f"{name} runs the classifier: pip install saliency-bench") from error
        if images is None or classifier is None:
            raise ValueError(f"{name} needs images=(B, 3, H, W) in [0, 1] and classifier=, a name or a module")
        options = _known(name, options, [*defaults(self.scores), *_options_of(name), "per_sample"])
        metric, unlabelled = load_metric(name, **options), (references == NO_CLASS).any()
        if "labels" in metric.needs and (target is not None or unlabelled):
            raise ValueError(f"{name} compares with references, the class of each image; give them, and no target")
        if target is None and unlabelled:
            raise ValueError(f"{name} needs references, the class of each image, or target=, weights over the classes")
        scores: list[np.ndarray] = []
        given = references if target is None else target
        noise = Draws.given(len(maps), seeds, image_ids, seed).seeds("noise")
        for curves in batched_curves(classifier, images, given, maps, batch_size, noise):
            start = sum(map(len, scores))
            classes = references[start : start + len(curves.images)]
            labels = [right_classes(classes, curves.target.shape[1])] if "labels" in metric.needs else []
            scores.append(metric(curves, *labels))
        return np.concatenate(scores)


class AreaShell(MapShell):
    """A module of evaluate for a metric that trains networks, which a run does: their accuracies come in.

    compute(predictions=accuracies, references=exposures): the area under the accuracy over the exposure by the
    trapezoid rule, divided by the width of the exposures; accuracies at one exposure, as of several trainings, are
    averaged first.
    """

    def _info(self) -> evaluate.MetricInfo:
        """Return what `evaluate` shows of the metric."""
        info = super()._info()
        info.format = None  # as arrays the numbers would come back in float32, and a run computes in float64
        return info

    def read(self, predictions: Any, references: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return checked accuracies and their exposures."""
        name = self.name  # type: ignore[attr-defined]
        if references is None:
            raise ValueError(f"{name} needs references, the exposure of each accuracy, a share from 0 to 1")
        accuracies, exposures = (
            read_array(name, given, "(N,)").astype(np.float64)
            for name, given in (("predictions", predictions), ("references", references))
        )
        if accuracies.ndim != 1 or accuracies.shape != exposures.shape:
            raise ValueError(
                f"{name} needs one exposure for each accuracy; got {exposures.shape} for {accuracies.shape}"
            )
        for name, values in (("an accuracy", accuracies), ("an exposure", exposures)):
            if len(outside := values[~((values >= 0) & (values <= 1))]):
                raise ValueError(f"{name}: {name} is a share from 0 to 1; got {outside[0]:g}")
        return accuracies, exposures

    def _features(self, size: tuple[int, int]) -> datasets.Features:
        """Return the types of what is added."""
        return datasets.Features({"predictions": datasets.Value("float64"), "references": datasets.Value("float64")})

    def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None:
        """Add accuracies (N,) with their exposures (N,)."""
        accuracies, exposures = self.read(predictions, references)
        super(MapShell, self).add_batch(predictions=accuracies, references=exposures, **kwargs)  # type: ignore[misc]

    def _averaged(self, *, predictions: Any, references: Any, **options: Any) -> dict[str, Any]:
        """Return the area."""
        name = self.name  # type: ignore[attr-defined]
        _known(name, options, [])
        exposures, places = np.unique(np.asarray(references, np.float64), return_inverse=True)
        if len(exposures) < 2:
            raise ValueError(f"{name} needs accuracies at two exposures or more; got {len(exposures)}")
        means = np.bincount(places, np.asarray(predictions, np.float64)) / np.bincount(places)
        return {name: float(np.trapezoid(means, exposures) / (exposures[-1] - exposures[0]))}


def _options_of(name: str) -> list[str]:
    """Return the names of a metric's options."""
    from saliency_bench.metric import load_metric

    return list(dict(load_metric(name).options))


def _known(name: str, options: dict[str, Any], known: list[str]) -> dict[str, Any]:
    """Return the options among those that are known; raise UserError for others."""
    for key in options:
        if key not in known:
            raise unknown(f"option of {name}", key, known)
    return options


def _classes(references: Any, count: int, noun: str) -> np.ndarray:
    """Return int64 (count,), a whole number for each of the maps or images, `NO_CLASS` where there are none."""
    if references is None:
        return np.full(count, NO_CLASS)
    try:
        labels = np.asarray(references, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        labels = np.empty(0)
    if len(labels) != count or not np.isfinite(labels).all() or (labels != np.floor(labels)).any():
        raise ValueError(f"references must be one class (a whole number) for each of the {count} {noun}")
    return labels.astype(np.int64)
