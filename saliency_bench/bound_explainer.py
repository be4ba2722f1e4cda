"""Explainers with bound options: declared functions from (classifier, images, target) to saliency maps.

Declarations of explainers are in `declarations`. The function of an explainer receives a classifier in evaluation mode
whose parameters require no gradients, and a target with one row per image (B, K). Images and target are copies, and
autograd is enabled. The caller's torch settings do not affect the function (`utils/untouched.py`). The function may
change training modes, gradients, autograd settings and the working directory, and may draw from global random
generators. All of these are restored afterwards.

This module checks the maps of all explainers. A run also checks that the network still returns the same logits
(`compute/probe.py`). Declarations can be read without torch, but computing maps requires torch.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import isfinite
from typing import TYPE_CHECKING, Any

from saliency_bench import notebook_views, options, registry, user_files
from saliency_bench.declarations import ExplainerDeclaration, MetricDeclaration, check_call, declaration_of
from saliency_bench.errors import UserError, no_exit, one_line
from saliency_bench.maps import noted_sizes, reliability
from saliency_bench.target_weights import expand
from saliency_bench.utils.interrupts import handlers_end_work
from saliency_bench.utils.source_code import code_hash, first_line, name_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from saliency_bench.types import Averaged, Images, Maps, Target

# {package: name of its adapter in `peers`}.
PEERS = {"captum": "captum", "pytorch_grad_cam": "grad_cam", "quantus": "quantus", "zennit": "zennit"}
# Options that were added later are part of an identity only if they are set, so that earlier identities do not change.
LATER = (("reliability", None),)


@dataclass(frozen=True)
class MadeMaps:
    """The maps of a batch, with information on how they were made.

    Attributes:
        maps: Maps, float (B, H, W).
        reliability: Reliability of each map (`maps.reliability`), or None if it is undefined or nothing is drawn at
            random.
        draws: Number of random draws that each map averages, or None if nothing is drawn at random.
        cells: (height, width) of the small maps before upsampling, or None if the maps are computed pixel by pixel.
    """

    maps: Maps
    reliability: list[float | None]
    draws: list[int] | None = None
    cells: tuple[int, int] | None = None


def real_numbers(returned: Any, name: str, images: Images) -> Tensor:
    """Convert the result of the explainer `name` to a dense tensor of real numbers on the images' device.

    Raises:
        UserError: The result cannot be converted.
    """
    import torch

    if returned is None:
        raise UserError(f"{name} returned None instead of maps; add a `return` statement that returns the maps")
    try:
        maps = torch.as_tensor(returned).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{name} returned {type(returned).__name__}, not maps (B, H, W): {one_line(error, 80)}"
        ) from error
    if maps.is_complex():
        raise UserError(f"{name} returned complex maps; return real maps, such as their absolute values")
    if maps.is_meta or maps.layout != torch.strided:
        kind = "maps without numbers (meta)" if maps.is_meta else "sparse maps"
        raise UserError(f"{name} returned {kind}; return a dense tensor (B, H, W)")
    return maps.to(images.device)


@dataclass(frozen=True)
class Explainer:
    """Explainer with bound options: explainer(classifier, images, target, seeds=None) -> maps.

    Attributes:
        name: Name of the function.
        function: Function of classifier, images and target. Seeds and options are passed by name. It returns maps,
            float (B, H, W), or `types.Averaged` if it averages random draws.
        options: Pairs (name, value) for all options, sorted by name.
        version: Declared version, or a hash of a user's function.
        declaration: Declaration of the explainer.
        about: For a user's function, the first line of its docstring.
    """

    name: str
    function: Callable[..., Maps | Averaged]
    options: tuple[tuple[str, object], ...] = ()
    version: int | str = 1
    declaration: ExplainerDeclaration = field(default_factory=ExplainerDeclaration)
    about: str = ""

    def __hash__(self) -> int:  # an option may be a list
        return hash(self.identity)

    def __call__(
        self, classifier: nn.Module, images: Images, target: Target, *, seeds: Sequence[int] | None = None
    ) -> Maps:
        """Return the maps of a batch, float (B, H, W). The arguments are the same as for `made`."""
        return self.made(classifier, images, target, seeds=seeds).maps

    @handlers_end_work()
    def made(
        self, classifier: nn.Module, images: Images, target: Target, *, seeds: Sequence[int] | None = None
    ) -> MadeMaps:
        """Return the maps of a batch, with their reliability if they average random draws.

        Args:
            classifier: Network to explain. Its state is restored afterwards.
            images: Images in [0, 1], float (B, 3, H, W).
            target: Weights over the logits, of shape (B, K) or (1, K).
            seeds: One integer per image: the seed of its random draws. If None, the integers 0 to B - 1 are used.

        Raises:
            UserError: The images or the target are invalid, or the maps are not finite or not of shape (B, H, W).
        """
        import torch

        from saliency_bench.types import Averaged
        from saliency_bench.utils.backward_hooks import refuse_changed_gradients
        from saliency_bench.utils.untouched import untouched

        with untouched(classifier), same_directory():
            images = _checked(images)
            seeds = list(range(len(images))) if seeds is None else list(seeds)
            if len(seeds) != len(images):
                raise UserError(f"{self.name} got {len(seeds)} seeds for {len(images)} images; pass one per image")
            extra = {"seeds": seeds} if "seeds" in inspect.signature(self.function).parameters else {}
            with getattr(classifier, "uncounted", nullcontext)():
                refuse_changed_gradients(classifier, getattr(classifier, "id", "the network"), images)
            # Pass copies, so that changes by the function have no effect outside. Copies made outside of inference mode
            # support gradients.
            given = images.clone(memory_format=torch.contiguous_format).detach(), expand(target, images).clone()
            with no_exit(), noted_sizes() as sizes:
                returned = self.function(classifier, *given, **extra, **dict(self.options))
            averaged = returned if isinstance(returned, Averaged) else None
            maps = returned.maps if isinstance(returned, Averaged) else returned
            # Copy the result, because the function may later write to the returned tensor.
            maps = real_numbers(maps, self.name, images).to(torch.float32, copy=True)
            reliability, draws = _reliability(averaged, len(images)), _draws(averaged, len(images))
            made = MadeMaps(maps, reliability, draws, max(sizes, default=None))
        self._check(made, images)
        return made

    def seeded(self, seed: int) -> Explainer:
        """Return the explainer with the run's seed for draws that all samples share, such as RISE's masks.

        If the `seed` option already has a value, this value is kept.
        """
        given = dict(self.options)
        if given.get("seed", seed) is not None:
            return self
        return replace(self, options=tuple(sorted((given | {"seed": seed}).items())))

    def _check(self, made: MadeMaps, images: Images) -> None:
        """Raise UserError if the maps have the wrong shape or are not finite."""
        maps = made.maps
        shape = (len(images), *images.shape[2:])
        if maps.shape != shape:
            raise UserError(f"{self.name} returned maps of shape {tuple(maps.shape)}, not {shape}")
        finite = maps.isfinite().flatten(1).all(1)
        if not finite.all():
            where = (~finite).nonzero().flatten().tolist()
            raise NotFiniteError(
                f"{self.name} returned a map with NaN or infinite values for image {where[0]} of the batch", made, where
            )

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        return self.name + options.differing(self.options, options.defaults(self.function))

    def _repr_html_(self) -> str:
        is_packaged = registry.is_named(self.version) and self.name in list_explainers()
        return notebook_views.facts(
            str(self),
            {
                "": registry.summary(registry.score_file("explainers", self.name)) if is_packaged else self.about,
                "needs": self.declaration.needs,
                "options": options.listed(self.options),
                "version": self.version,
            },
        )

    @property
    def baseline(self) -> bool:
        """Return whether the explainer ignores the network. Tables show such baselines separately."""
        return self.declaration.baseline

    @property
    def is_bundled(self) -> bool:
        """Return whether the explainer is part of this package.

        Other explainers are user code or come from another package.
        """
        return str(getattr(self.function, "__module__", "")).startswith("saliency_bench.explainers.")

    @property
    def ignores_against(self) -> bool:
        """Return whether maps always contrast the target with all other classes. If so, `against` has no effect."""
        return self.is_bundled and dict(self.options).get("on") == "weighted"

    @cached_property
    def identity(self) -> tuple[str, str, int | str]:
        """The tuple (name, options as text, version). Explainers with the same identity compute the same maps."""
        return self.name, options.text(self.options), self.version


class NotFiniteError(UserError):
    """Error for an explainer that returned NaN or infinite values.

    Attributes:
        made: Maps returned by the explainer.
        where: Indices of these maps within the batch.
    """

    def __init__(self, message: str, made: MadeMaps, where: list[int]):
        super().__init__(message)
        self.made, self.where = made, where


def _reliability(averaged: Averaged | None, images: int) -> list[float | None]:
    """Return the reliability of each map, or None if it is undefined or nothing is drawn at random.

    Raises:
        UserError: The maps averaged over half of the draws differ in shape from the maps averaged over all draws.
    """
    if averaged is None:
        return [None] * images
    import torch

    maps, *halves = (torch.as_tensor(half).detach().cpu().numpy() for half in averaged[:3])
    if any(half.shape != maps.shape for half in halves):
        shapes = f"{maps.shape}, {halves[0].shape} and {halves[1].shape}"
        raise UserError(
            f"the maps of all draws, of the even draws and of the odd draws have shapes {shapes}; return maps of the "
            "same shape"
        )
    return [value if isfinite(value) else None for value in reliability(*halves).tolist()]


def _draws(averaged: Averaged | None, images: int) -> list[int] | None:
    """Return the number of draws that each map averages, or None for maps without random draws.

    Raises:
        UserError: The number of draws is neither a single number nor one number per map.
    """
    if averaged is None:
        return None
    import torch

    draws = torch.as_tensor(averaged.draws)
    if draws.shape not in ((), (images,)):
        raise UserError(
            f"`draws` has shape {tuple(draws.shape)} for {images} maps; return a single number or one number per map"
        )
    return draws.expand(images).tolist()


def list_explainers() -> list[str]:
    """Return the names of explainers that `load_explainer` and `run` accept."""
    return registry.names("explainers")


def load_explainer(name: str | Callable[..., Maps], **chosen: object) -> Explainer:
    """Return an explainer with bound options.

    Args:
        name: Name of an explainer, possibly with options ("gradcam", "rise:masks=1000"), a function in a file
            ("./mine.py:my_method"), or your own function (classifier, images, target) -> maps.
        chosen: Options, passed by name.

    Raises:
        UserError: The explainer or an option is unknown.
    """
    if not isinstance(name, str):
        if chosen:
            raise UserError(
                "options can only be set for an explainer passed by name; bind the options of a function with "
                "functools.partial"
            )
        return as_explainer(name)
    return _in_file(name, chosen) if user_files.is_in_file(name) else registered_explainer(name, **chosen)


def registered_explainer(name: str, **chosen: object) -> Explainer:
    """Return a registered explainer with bound options.

    Use this function for untrusted names, such as those in a submission or in a run's settings, because it does not
    import user files.

    Raises:
        UserError: The explainer or an option is unknown.
    """
    name, written = options.parse(name)
    function = registry.function_of("explainers", name)
    declaration = registry.declaration_of("explainers", name, function)
    bound = tuple(pair for pair in options.resolved(name, function, written | chosen) if pair not in LATER)
    options.check(declaration.check, bound)
    version = registry.version_of("explainers", name, declaration.version)
    return Explainer(name, function, bound, version, declaration)


def as_explainer(explainer: str | Explainer | Callable[..., Maps]) -> Explainer:
    """Return an explainer for a name, or for your own function (classifier, images, target) -> maps.

    A function in a file is written as "./mine.py:my_method" (`user_files`).

    The version of your own function is a hash of its code and of all code that it uses, except for libraries
    (`utils.source_code`). The results of edited code therefore never mix with old results.

    Raises:
        UserError: The argument is not an explainer.
    """
    if isinstance(explainer, Explainer):
        return explainer
    if isinstance(explainer, str):
        return load_explainer(explainer)
    _refuse_peer(explainer)
    if not callable(explainer):
        raise UserError(
            f"an explainer must be a name or a function (classifier, images, target) -> maps; got {explainer!r}"
        )
    if isinstance(declaration := declaration_of(explainer), MetricDeclaration):
        raise UserError(
            f"{getattr(explainer, 'name', name_of(explainer))} is a metric, not an explainer; pass it as a metric"
        )
    check_call(name := name_of(explainer), explainer)
    bound = tuple(sorted(options.defaults(explainer).items()))
    if not isinstance(declaration, ExplainerDeclaration):
        declaration = ExplainerDeclaration()
    return Explainer(name, explainer, bound, code_hash(explainer).version, declaration, first_line(explainer))


def _refuse_peer(explainer: object) -> None:
    """Raise UserError for an object or a function from a different package that needs an adapter."""
    inner = explainer.func if isinstance(explainer, partial) else explainer
    kind = "a function" if inspect.isroutine(inner) else "a class" if isinstance(inner, type) else "an object"
    package = str(getattr(inner, "__module__", "")).partition(".")[0]
    if package in PEERS:
        adapter = f"saliency_bench.peers.{PEERS[package]}"
        name = getattr(inner, "__name__", type(inner).__name__)
        raise UserError(f"{name} is {kind} from {package}; convert it to an explainer with {adapter}(...)")


def _in_file(text: str, further: dict[str, object]) -> Explainer:
    """Return the explainer for a function in a user's file, with the options in the text and in `further`."""
    function, written = user_files.function_of(text)
    explainer = as_explainer(function)
    if not (chosen := written | further):
        return explainer
    bound = options.resolved(explainer.name, function, chosen)
    options.check(explainer.declaration.check, bound)
    return replace(explainer, options=bound)


@contextmanager
def same_directory() -> Iterator[None]:
    """Restore the working directory on exit, because relative paths depend on it.

    If the original directory no longer exists, do not change the directory.
    """
    try:
        before = os.getcwd()
    except FileNotFoundError:
        before = None
    try:
        yield
    finally:
        if before is not None:
            with suppress(OSError):
                os.chdir(before)


def is_ours(function: Callable) -> bool:
    """Return whether a function, or the class of a callable object, is defined in this package."""
    inner = function.func if isinstance(function, partial) else function
    return str(getattr(inner, "__module__", "")).partition(".")[0] == "saliency_bench"


def _checked(images: Images) -> Images:
    """Convert the images to float32.

    Raises:
        UserError: The images do not have the shape (B, 3, H, W), or are not floats in about [0, 1].
    """
    if images.ndim != 4 or images.shape[1] != 3 or len(images) == 0:
        raise UserError(f"images must have shape (B, 3, H, W) with B >= 1; got {tuple(images.shape)}")
    # Perturbed images may slightly exceed [0, 1], but not reach values such as 255.
    if not images.is_floating_point() or not images.abs().max() < 10:
        raise UserError("images must be floats in [0, 1], before the model's normalisation; use classifier.prepare")
    return images.float()
