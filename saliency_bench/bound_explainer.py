"""An explainer with its options bound: a declared function from (classifier, images, target) to saliency maps.

Declarations of explainers are in `declarations`. The function receives a target with one row per image (B, K), a
classifier in evaluation mode whose parameters require no gradients, and enabled autograd; images and target are copies.
The caller's settings of torch do not affect it (`utils/untouched.py`). It may change modes, gradients, autograd and the
working directory, and draw from global generators: all of these are restored afterwards. The contract of maps is
enforced here, in one place for all explainers; a run checks that the network still gives the same logits
(`compute/probe.py`). Without torch, declarations can be read, but nothing can be explained.
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

# {package: its adapter in `peers`}.
PEERS = {"captum": "captum", "pytorch_grad_cam": "grad_cam", "quantus": "quantus", "zennit": "zennit"}
# Options that came later count only where they are set, so that the identities of earlier results stay as they are.
LATER = (("reliability", None),)


@dataclass(frozen=True)
class MadeMaps:
    """The maps of a batch.

    Attributes:
        maps: Float (B, H, W).
        reliability: reliability of each map (`maps.reliability`); None if it averages no draws or it is undefined.
        draws: number of random draws that each map averages; None for maps that average none.
        cells: (height, width) of the small maps before enlargement; None for maps computed pixel by pixel.
    """

    maps: Maps
    reliability: list[float | None]
    draws: list[int] | None = None
    cells: tuple[int, int] | None = None


def real_numbers(returned: Any, name: str, images: Images) -> Tensor:
    """Return what the explainer `name` returned for images as a dense tensor of real numbers on their device.

    Raises:
        UserError: The explainer returned something else.
    """
    import torch

    if returned is None:
        raise UserError(f"{name} returned None instead of maps; end it with `return` and the maps")
    try:
        maps = torch.as_tensor(returned).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{name} returned {type(returned).__name__}, not maps (B, H, W): {one_line(error, 80)}"
        ) from error
    if maps.is_complex():
        raise UserError(f"{name} returned complex maps; return real ones, such as their absolute values")
    if maps.is_meta or maps.layout != torch.strided:
        kind = "maps without numbers (meta)" if maps.is_meta else "sparse maps"
        raise UserError(f"{name} returned {kind}; return a dense tensor (B, H, W)")
    return maps.to(images.device)


@dataclass(frozen=True)
class Explainer:
    """A function that makes saliency maps, with its options: explainer(classifier, images, target, seeds=None) -> maps.

    Attributes:
        name: name of the function.
        function: takes classifier, images and target, seeds and options by name; returns Float (B, H, W), or
            `types.Averaged` if it averages random draws.
        options: (name, value) of all options, sorted.
        version: declared version, or a hash of your own function.
        declaration: its declaration.
        about: first line of the docstring of your own function.
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
        """Return the maps of a batch, Float (B, H, W); see `made`."""
        return self.made(classifier, images, target, seeds=seeds).maps

    @handlers_end_work()
    def made(
        self, classifier: nn.Module, images: Images, target: Target, *, seeds: Sequence[int] | None = None
    ) -> MadeMaps:
        """Return the maps of a batch, with their reliability if they average random draws.

        Args:
            classifier: the network; its state is restored afterwards.
            images: Float (B, 3, H, W) in [0, 1].
            target: weights over the logits, (B, K) or (1, K).
            seeds: an integer per image, for random draws per sample; None means 0 to B-1.

        Raises:
            UserError: The images or the target are not usable, or the maps are not Float (B, H, W) and finite.
        """
        import torch

        from saliency_bench.types import Averaged
        from saliency_bench.utils.backward_hooks import refuse_changed_gradients
        from saliency_bench.utils.untouched import untouched

        with untouched(classifier), same_directory():
            images = _checked(images)
            seeds = list(range(len(images))) if seeds is None else list(seeds)
            if len(seeds) != len(images):
                raise UserError(f"{self.name} got {len(seeds)} seeds for {len(images)} images; give one per image")
            extra = {"seeds": seeds} if "seeds" in inspect.signature(self.function).parameters else {}
            with getattr(classifier, "uncounted", nullcontext)():
                refuse_changed_gradients(classifier, getattr(classifier, "id", "the network"), images)
            # Use copies, so that changes by the function have no effect outside. Copies made outside inference mode
            # support gradients.
            given = images.clone(memory_format=torch.contiguous_format).detach(), expand(target, images).clone()
            with no_exit(), noted_sizes() as sizes:
                returned = self.function(classifier, *given, **extra, **dict(self.options))
            averaged = returned if isinstance(returned, Averaged) else None
            maps = returned.maps if isinstance(returned, Averaged) else returned
            # Copy, because the function may continue writing to the returned tensor.
            maps = real_numbers(maps, self.name, images).to(torch.float32, copy=True)
            reliability, draws = _reliability(averaged, len(images)), _draws(averaged, len(images))
            made = MadeMaps(maps, reliability, draws, max(sizes, default=None))
        self._check(made, images)
        return made

    def seeded(self, seed: int) -> Explainer:
        """Return the explainer with the run's seed for draws shared by all samples (RISE's masks).

        An option `seed` that was set is kept.
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
        """Return whether the explainer ignores the network; tables show it separately."""
        return self.declaration.baseline

    @property
    def is_bundled(self) -> bool:
        """Return whether the explainer belongs to this package, not to another package or to your own code."""
        return str(getattr(self.function, "__module__", "")).startswith("saliency_bench.explainers.")

    @property
    def ignores_against(self) -> bool:
        """Return whether maps use the weighted contrast, against all classes that the target does not explain."""
        return self.is_bundled and dict(self.options).get("on") == "weighted"

    @cached_property
    def identity(self) -> tuple[str, str, int | str]:
        """(name, options as text, version): explainers of the same identity make the same maps."""
        return self.name, options.text(self.options), self.version


class NotFiniteError(UserError):
    """An explainer returned maps that are not finite.

    Attributes:
        made: the maps returned by the explainer.
        where: positions in the batch of maps that are not finite.
    """

    def __init__(self, message: str, made: MadeMaps, where: list[int]):
        super().__init__(message)
        self.made, self.where = made, where


def _reliability(averaged: Averaged | None, images: int) -> list[float | None]:
    """Return the reliability of each map; None if it averages no draws or its reliability is undefined.

    Raises:
        UserError: The shape of the halves' maps differs from the maps of all draws.
    """
    if averaged is None:
        return [None] * images
    import torch

    maps, *halves = (torch.as_tensor(half).detach().cpu().numpy() for half in averaged[:3])
    if any(half.shape != maps.shape for half in halves):
        shapes = f"{maps.shape}, {halves[0].shape} and {halves[1].shape}"
        raise UserError(f"the maps of all, even and odd draws have shapes {shapes}; return maps of one shape")
    return [value if isfinite(value) else None for value in reliability(*halves).tolist()]


def _draws(averaged: Averaged | None, images: int) -> list[int] | None:
    """Return the number of draws of each map; None for maps that average none.

    Raises:
        UserError: There is not one number for all maps, nor one for each.
    """
    if averaged is None:
        return None
    import torch

    draws = torch.as_tensor(averaged.draws)
    if draws.shape not in ((), (images,)):
        raise UserError(
            f"draws of {images} maps have shape {tuple(draws.shape)}; return one number, or one for each map"
        )
    return draws.expand(images).tolist()


def list_explainers() -> list[str]:
    """Return the names of explainers for `load_explainer` and `run`."""
    return registry.names("explainers")


def load_explainer(name: str | Callable[..., Maps], **chosen: object) -> Explainer:
    """Return an explainer with its options bound.

    Args:
        name: "gradcam", or with options as text "rise:masks=1000"; a function in a file, "./mine.py:my_method"; or your
            own function (classifier, images, target) -> maps.
        chosen: options by name.

    Raises:
        UserError: The explainer or an option is unknown.
    """
    if not isinstance(name, str):
        if chosen:
            raise UserError("options are for an explainer given by name; bind them with functools.partial")
        return as_explainer(name)
    return _in_file(name, chosen) if user_files.is_in_file(name) else registered_explainer(name, **chosen)


def registered_explainer(name: str, **chosen: object) -> Explainer:
    """Return the explainer that is registered under a name, with its options bound.

    Use this for names from others, such as a submission or the settings of a run: it imports no user file.

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
    """Return an explainer from a name, or from your own function (classifier, images, target) -> maps.

    A function in a file is written "./mine.py:my_method" (`user_files`).

    The version of your own function is a hash of its code and of everything that it uses outside libraries, so that
    edited code never mixes with old results (`utils.source_code`).
    """
    if isinstance(explainer, Explainer):
        return explainer
    if isinstance(explainer, str):
        return load_explainer(explainer)
    _refuse_peer(explainer)
    if not callable(explainer):
        raise UserError(f"an explainer is a name or a function (classifier, images, target) -> maps; got {explainer!r}")
    if isinstance(declaration := declaration_of(explainer), MetricDeclaration):
        raise UserError(f"{getattr(explainer, 'name', name_of(explainer))} is a metric; pass it with the metrics")
    check_call(name := name_of(explainer), explainer)
    bound = tuple(sorted(options.defaults(explainer).items()))
    if not isinstance(declaration, ExplainerDeclaration):
        declaration = ExplainerDeclaration()
    return Explainer(name, explainer, bound, code_hash(explainer).version, declaration, first_line(explainer))


def _refuse_peer(explainer: object) -> None:
    """Raise UserError for an object or function of another package that needs an adapter."""
    inner = explainer.func if isinstance(explainer, partial) else explainer
    kind = "a function" if inspect.isroutine(inner) else "a class" if isinstance(inner, type) else "an object"
    package = str(getattr(inner, "__module__", "")).partition(".")[0]
    if package in PEERS:
        adapter = f"saliency_bench.peers.{PEERS[package]}"
        name = getattr(inner, "__name__", type(inner).__name__)
        raise UserError(f"{name} is {kind} of {package}; convert it to an explainer with {adapter}(...)")


def _in_file(text: str, further: dict[str, object]) -> Explainer:
    """Return the explainer for a function in your own file, with the options in the text and further options."""
    function, written = user_files.function_of(text)
    explainer = as_explainer(function)
    if not (chosen := written | further):
        return explainer
    bound = options.resolved(explainer.name, function, chosen)
    options.check(explainer.declaration.check, bound)
    return replace(explainer, options=bound)


@contextmanager
def same_directory() -> Iterator[None]:
    """Restore the working directory afterwards, unless it was deleted; relative paths depend on it."""
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
    """Return whether a function, or the class of a callable object, belongs to this package."""
    inner = function.func if isinstance(function, partial) else function
    return str(getattr(inner, "__module__", "")).partition(".")[0] == "saliency_bench"


def _checked(images: Images) -> Images:
    """Return images as float32; raise UserError if they are not images in the prepared frame."""
    if images.ndim != 4 or images.shape[1] != 3 or len(images) == 0:
        raise UserError(f"images have shape (B, 3, H, W) with B of at least 1; these have {tuple(images.shape)}")
    # Perturbed images may slightly exceed [0, 1]; values from 0 to 255 mean another frame.
    if not images.is_floating_point() or not images.abs().max() < 10:
        raise UserError(
            "images must be floats in [0, 1], before the model's normalisation (classifier.prepare gives them)"
        )
    return images.float()
