"""Checks of the maps: the layer that CAM methods use, explainers that suit the network, and the quality of the maps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from saliency_bench.bound_explainer import Explainer
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.layers import cam_layer
from saliency_bench.compute.explain import explain
from saliency_bench.compute.misfits import COUNTS
from saliency_bench.compute.targets.rules import ordered_classes, stack
from saliency_bench.compute.targets.terms import TargetTerms
from saliency_bench.errors import UserError, one_line
from saliency_bench.read.statistics.reliability import KNOWN, LOW, Reliability
from saliency_bench.recipes.choosing.candidates import Candidate, candidates, costs
from saliency_bench.recipes.doctor.checks import Check, Mark, first_few
from saliency_bench.recipes.doctor.examine import Examined
from saliency_bench.types import Batch, Images, Maps, Target

IMAGES = 4  # number of explained images
SAME = 1e-6  # relative difference below which maps count as the same, or the pixels of a map as flat
FEWEST = 8  # minimum number of draws to estimate reliability


@dataclass
class Tried:
    """The result of trying an explainer on some images.

    Attributes:
        candidate: The explainer and its cost.
        seconds: Time in seconds per image, measured or estimated from the number of passes.
        images: Number of explained images; 0 if there was no time.
        draws: Number of draws that each map averages. `of_draws` is the default number.
        reliability: Median reliability of the maps with `draws` draws.
        problem: Description of the problem with the maps, or "".
        same_classes: Whether the maps for the runner-up class are the same, or None if this was not tried.
    """

    candidate: Candidate
    seconds: float
    images: int = 0
    draws: int | None = None
    of_draws: int | None = None
    reliability: Reliability | None = None
    problem: str = ""
    same_classes: bool | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a dict for JSON."""
        reliability = None if self.reliability is None else self.reliability.median
        return {
            "explainer": self.candidate.name, "seconds_per_image": self.seconds, "measured": self.images > 0,
            "passes": self.candidate.passes, "images": self.images, "draws": self.draws, "of_draws": self.of_draws,
            "reliability": reliability, "problem": self.problem, "same_for_another_class": self.same_classes,
        }  # fmt: skip


@dataclass(frozen=True)
class MapReport:
    """Report on the explainers: checks, suitable explainers, and the reasons why other explainers are unsuitable."""

    checks: list[Check] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    misfits: dict[str, str] = field(default_factory=dict)
    fitting: list[Candidate] = field(default_factory=list)


@dataclass(frozen=True)
class _Sample:
    """Images to explain, with one target for the predicted class and one for the second most probable class."""

    batch: Batch
    target: Target
    runner_up: Target

    def part(self, count: int) -> "_Sample":
        chosen = list(range(min(count, len(self.batch))))
        return _Sample(self.batch.part(chosen), self.target[chosen], self.runner_up[chosen])


def check_maps(examined: Examined, until: float) -> MapReport:
    """Explain a few images with every suitable explainer, cheapest first, until the time is up. Then check the maps."""
    sample = _sample(examined)
    if sample is None:
        reason = "no maps can be computed: none of the first images has both a target and finite logits"
        return MapReport([Check("explainers", "undecided", reason)])
    classifier, image = examined.model.classifier, sample.batch.images[:1]
    fitting, misfits = candidates(classifier, image, sample.target[:1])
    fitting = [item for item in fitting if item.name == item.explainer.name]  # default options only
    passes, _ = costs(fitting, [], max(image.shape[2:]))
    tried = [Tried(item, passes[item.name] * examined.seconds_per_pass) for item in fitting if not item.baseline]
    for item in sorted(tried, key=lambda item: item.seconds):
        _try(examined, sample, item, until)
    checks = [check_layer(classifier, image), _fits(fitting, misfits), _maps(tried), _other_class(tried)]
    return MapReport([*checks, *_reliability(tried)], tried, misfits, fitting)


def check_layer(classifier: Classifier, image: Images) -> Check:
    """Report the name and output shape of the layer that Grad-CAM uses."""
    try:
        name = cam_layer(classifier, image)
    except UserError as error:
        reason = one_line(error).partition(";")[0]
        return Check("layer", "ok", f"no layer for CAM methods: {reason}", values={"layer": ""})
    shape = _shape(classifier, classifier.module_named(name), image)
    return Check("layer", "ok", f"CAM methods use {name}; its output for an image is {' x '.join(map(str, shape))}",
                 values={"layer": name, "shape": shape})  # fmt: skip


def _shape(classifier: Classifier, module: nn.Module, image: Images) -> list[int]:
    shapes: list[list[int]] = []

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        shapes.append(list(output.shape[1:]) if isinstance(output, Tensor) else [])

    handle = module.register_forward_hook(note)
    try:
        with torch.no_grad(), classifier.uncounted():
            classifier(image)
    finally:
        handle.remove()
    return shapes[-1]


def _sample(examined: Examined) -> _Sample | None:
    """Select the first images that can be explained. Return None if there are none."""
    question, samples = examined.model.question, examined.first.samples
    if samples is None:
        return None
    chosen: list[int] = []
    terms, others = [], []
    for index, position in enumerate(samples.positions):
        row = examined.first_rows[position]
        if row["prediction"] is None or (question.selection is not None and not question.selection.keeps(row)):
            continue
        logits = np.asarray(row["logits"])
        if len(chosen) == IMAGES or not question.has_target(row):
            continue
        term = question.target_of(row, logits)
        chosen.append(index)
        terms.append(term)
        others.append(TargetTerms((next(k for k in ordered_classes(logits) if k not in term.plus),)))
    if not chosen:
        return None
    batch, classes = samples.batch.part(chosen), question.classes
    first, second = (stack(each, classes).to(batch.images.device) for each in (terms, others))
    return _Sample(batch, first, second)


def _try(examined: Examined, sample: _Sample, tried: Tried, until: float) -> None:
    """Explain the images and record the result. If time is short, use fewer images or draws."""
    left = until - perf_counter()
    network, spec = examined.model.classifier, examined.data.spec
    seed, strict = spec.seed, spec.strict
    explainer = tried.candidate.explainer
    images = len(sample.batch) if len(sample.batch) * tried.seconds <= left else 2
    if images * tried.seconds > left:
        explainer, share = _with_fewer_draws(explainer, left / (2 * images * tried.seconds))
        if not share:
            return
    sample = sample.part(images)
    start = perf_counter()
    try:
        made = explain(network, sample.batch, explainer, sample.target, seed, strict=strict)
    except UserError as error:
        tried.problem = one_line(error)
        return
    seconds = (perf_counter() - start) / len(sample.batch)
    whole = explainer == tried.candidate.explainer
    tried.images, tried.seconds = len(sample.batch), seconds if whole else tried.seconds
    tried.problem = _problem(sample.batch.images, made.maps, made.faults)
    known = [value for value in made.reliability if value is not None]
    if known and made.draws:
        draws = tried.draws = tried.of_draws = round(np.median(made.draws))
        if not whole:
            tried.of_draws = _draws_of(tried.candidate.explainer, draws)
        tried.reliability = Reliability(median=float(np.median(known)), n=len(known), draws=draws)
    targeted = explainer.declaration.targeted
    if made.maps is not None and not tried.problem and targeted and perf_counter() + images * seconds < until:
        again = explain(network, sample.batch, explainer, sample.runner_up, seed, strict=strict)
        tried.same_classes = again.maps is not None and _all_same(made.maps, again.maps)


def _with_fewer_draws(explainer: Explainer, share: float) -> tuple[Explainer, float]:
    """Return (explainer with fewer draws, share of the draws).

    If the number of draws is not an option of the explainer, the share is 0.
    """
    draws = {name: value for name, value in explainer.options if name in COUNTS and isinstance(value, int)}
    if "seeds" not in explainer.function.__code__.co_varnames or not draws:
        return explainer, 0.0
    fewer = {name: int(value * share) for name, value in draws.items()}
    if min(fewer.values()) < FEWEST:
        return explainer, 0.0
    return replace(explainer, options=tuple((n, fewer.get(n, value)) for n, value in explainer.options)), share


def _draws_of(explainer: Explainer, otherwise: int) -> int:
    return next((value for name, value in explainer.options if name in COUNTS and isinstance(value, int)), otherwise)


def _problem(images: Images, maps: Maps | None, faults: Mapping[int, str]) -> str:
    """Describe the problem with the maps, or return "" if there is none."""
    if faults:
        return f"{len(faults)} of {len(images)} maps: {next(iter(faults.values()))}"
    if maps is None:
        return "no maps"
    values = maps.flatten(1)
    flat = values.amax(1) - values.amin(1) <= SAME * values.abs().amax(1)
    if bool(flat.any()):
        return f"{int(flat.sum())} of {len(maps)} maps are flat"
    if len(maps) > 1 and not _all_same(images[1:], images[:1]) and _all_same(maps[1:], maps[:1]):
        return "the maps of different images are the same"
    return ""


def _all_same(first: Tensor, second: Tensor) -> bool:
    """Return whether the maps (or images) in two batches are equal up to rounding."""
    difference = (first - second).flatten(1).norm(dim=1)
    return bool((difference <= SAME * first.flatten(1).norm(dim=1)).all())


def _fits(fitting: Sequence[Candidate], misfits: Mapping[str, str]) -> Check:
    names = [item.name for item in fitting if not item.baseline]
    text = f"{len(names)} explainers support the network: {first_few(names, len(names))}"
    by_reason: dict[str, list[str]] = {}
    for name, reason in misfits.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, without in by_reason.items():
        text += f"; not {', '.join(without)}: {reason}"
    by_gradients = [item for item in fitting if item.explainer.declaration.needs not in ("outputs", "nothing")]
    values = {"fitting": names, "misfits": dict(misfits)}
    if not by_gradients:
        fix = "let gradients through: remove torch.no_grad and .detach() from forward"
        return Check("explainers", "look", text, fix, values)
    return Check("explainers", "ok", text, values=values)


def _maps(tried: Sequence[Tried]) -> Check:
    """Check that maps are finite, are not flat, and differ between images."""
    made = [item for item in tried if item.images]
    skipped = [item.candidate.name for item in tried if not item.images and not item.problem]
    values = {"explainers": [item.as_dict() for item in tried], "no_time": skipped}
    late = f"; no time for {first_few(skipped, len(skipped))}" if skipped else ""
    if not made:
        return Check("maps", "undecided", f"no map was computed{late}", "allow more time with --within", values)
    faulty = [item for item in tried if item.problem]
    if not faulty:
        text = f"the maps of {len(made)} explainers for {max(item.images for item in made)} images are finite"
        return Check("maps", "ok", f"{text}, are not flat, and differ between images{late}", values=values)
    listed = "; ".join(f"{item.candidate.name}: {item.problem}" for item in faulty[:4])
    mark: Mark = "wrong" if 2 * len(faulty) >= len(made) else "look"
    fix = "leave out these explainers, or look for saturated or detached parts of the network"
    return Check("maps", mark, listed + (f" and {len(faulty) - 4} more" if len(faulty) > 4 else "") + late, fix, values)


def _other_class(tried: Sequence[Tried]) -> Check:
    asked_for = [item for item in tried if item.same_classes is not None]
    same = [item.candidate.name for item in asked_for if item.same_classes]
    if not asked_for:
        return Check("maps of another class", "undecided", "no map of a different class was computed")
    if same:
        text = f"{first_few(same)}: the maps do not depend on the class"
        return Check("maps of another class", "look", text, "do not interpret these maps as evidence for a class")
    text = f"the maps of {len(asked_for)} explainers are different for the runner-up class"
    return Check("maps of another class", "ok", text)


def _reliability(tried: Sequence[Tried]) -> list[Check]:
    """Check the reliability of explainers that average random draws, at their default number of draws."""
    known = {item.candidate.name: _at_default(item) for item in tried if item.reliability is not None}
    if not known:
        return []
    values = {name: {"reliability": value, "estimated": estimated} for name, (value, estimated, _) in known.items()}
    text = ", ".join(f"{name} {words}" for name, (*_, words) in known.items())
    low = [name for name, (value, *_) in known.items() if value is not None and value < LOW]
    if low:
        more = ", ".join(_more_draws(item) for item in tried if item.candidate.name in low)
        return [Check("reliability", "look", text, f"increase the number of draws, for example {more}", values)]
    if any(value is None for value, *_ in known.values()):
        return [Check("reliability", "undecided", text, "allow more time with --within", values)]
    return [Check("reliability", "ok", text, values=values)]


def _at_default(tried: Tried) -> tuple[float | None, bool, str]:
    """Return (reliability at the default number of draws or None, whether it is estimated, description)."""
    assert tried.reliability is not None
    value, draws, wanted = tried.reliability.median, tried.draws or 1, tried.of_draws or 1
    if draws == wanted:
        return value, False, f"{value:.2f} ({wanted:,} draws)"
    if value < KNOWN:
        return None, True, f"unknown (only {draws:,} of {wanted:,} draws were made, too few for an estimate)"
    factor = wanted / draws  # Spearman and Brown
    value = factor * value / (1 + (factor - 1) * value)
    return value, True, f"{value:.2f} ({wanted:,} draws, estimated from {draws:,})"


def _more_draws(tried: Tried) -> str:
    """Return an explainer as text, with enough draws for reliable maps.

    If the number of draws that this needs is unknown, four times the default number is used.
    """
    assert tried.reliability is not None
    explainer, default = tried.candidate.explainer, tried.of_draws or tried.reliability.draws
    option = next((name for name, value in explainer.options if name in COUNTS and value == default), "draws")
    return f"{explainer.name}:{option}={tried.reliability.wanted or 4 * default}"
