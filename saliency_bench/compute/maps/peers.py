"""Use explainers from other packages unchanged. One call turns such an explainer into an explainer of this package.

    peers.captum(captum.attr.IntegratedGradients(model), n_steps=20)
    peers.grad_cam(GradCAMPlusPlus(model=model, target_layers=[model.layer4]))  # from pytorch_grad_cam
    peers.quantus(explain, method="Saliency")                                   # explain(model, inputs, targets)
    peers.zennit(Gradient(model, composite))

The object must use the network of the run: `sb.run(model=model)`. The object receives normalised images or, if it was
created with `load_classifier(model, ...)`, images in [0, 1]. Its output becomes one map per image: the sum over
channels, upsampled to the size of the image if it is smaller. The version of such an explainer is a hash of the
object's class, its settings and the version of its package. The network is not included, because it is already part of
a run's identity.
"""

import copy
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from inspect import Parameter, signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from saliency_bench.bound_explainer import Explainer, as_explainer, real_numbers
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.networks import logits_in
from saliency_bench.data.geometry import enlarge
from saliency_bench.errors import UserError, unknown
from saliency_bench.options import check_names
from saliency_bench.types import Images, Maps, Target

VERSION = 2
OF_CAPTUM = ("inputs", "target", "additional_forward_args")  # arguments of `attribute` that the run passes
# Attributes that are not settings and thus not part of the version: the network, its hooks, and the last outputs.
LEFT_OUT = re.compile(r"activations_and_grads|outputs|.*(hook|handle).*")


class PeerExplainer:
    """Wrapper that turns an object or function from another package into an explainer.

    Attributes:
        peer: The object or function.
        network: Network that the object was created with; None for a function, which receives the network.
        how: Function (peer, network, input, target, options) -> Float (B, H, W), (B, h, w) or (B, C, h, w).
        options: Options of the peer.
    """

    def __init__(
        self, package: str, peer: Any, network: Any, how: Callable[..., Any], options: dict[str, Any], settings: object
    ):
        self.peer, self.network, self.how, self.options = peer, network, how, options
        name = getattr(peer, "__name__", type(peer).__name__)
        self.__name__ = f"{package}.{name}"
        try:
            version = metadata.version(package.replace("pytorch_grad_cam", "grad-cam"))
        except metadata.PackageNotFoundError:
            version = "?"
        self.description = (VERSION, package, name, version, settings, sorted(options.items()))

    def __getstate__(self) -> tuple:
        """Return what to hash for the version: everything except the network."""
        return self.description

    def explainer(self) -> Explainer:
        """Return the explainer, including a description for reports."""
        _, package, name, version, *_ = self.description
        options = tuple(sorted(self.options.items()))
        return replace(as_explainer(self), options=options, about=f"{name} of {package} {version}.")

    def __call__(self, classifier: Classifier, images: Images, target: Target, **options: Any) -> Maps:
        """Return the maps of a batch. `options` are passed to the peer."""
        network = classifier if self.network is None else self.network
        if not any(network is module for module in classifier.modules()):
            raise UserError(
                f"{self.__name__} was created with a network other than {classifier.id}; create it with the model "
                "object of the run"
            )
        scored = _ScoredNetwork(network, classifier)
        given = images if network is classifier else classifier.normalised(images)
        returned = self.how(self.peer, scored, given.detach().requires_grad_(), target, options)
        maps = real_numbers(returned, self.__name__, images).to(images.dtype)
        size = images.shape[2:]
        is_channels_last = maps.ndim == 4 and maps.shape[1:3] == size != maps.shape[2:]
        if maps.ndim not in (3, 4) or not maps.numel() or is_channels_last:
            fix = "; the channels must follow the batch dimension" if is_channels_last else ""
            raise UserError(
                f"{self.__name__} returned maps of shape {tuple(maps.shape)}, not (B, H, W) or (B, C, H, W){fix}"
            )
        maps = maps.sum(dim=1) if maps.ndim == 4 else maps
        return maps if maps.shape[1:] == images.shape[2:] else enlarge(maps, images)


class _ScoredNetwork(nn.Module):
    """A peer's network that counts passes. It returns logits or, if a target is passed, one number per image."""

    def __init__(self, network: nn.Module, classifier: Classifier):
        super().__init__()
        self.network = network
        # Not registered as a submodule, because packages that iterate over submodules would visit all layers twice.
        self._classifier = (classifier,)

    @property
    def classifier(self) -> Classifier:
        """Return the classifier that the network belongs to."""
        return self._classifier[0]

    def forward(self, given: Tensor, target: Target | None = None) -> Tensor:
        """Return the logits (B, K) or, if a target is passed, their weighted sum (B,)."""
        if self.network is self.classifier:
            logits = self.classifier(given)
        else:
            logits = logits_in(self.network(given), self.classifier.logits, self.classifier.id)
            self.classifier.passes += len(given)
        return logits if target is None else (logits * target).sum(dim=1)


def captum(attribution: Any, **options: Any) -> Explainer:
    """Return an explainer for a captum attribution object.

    Args:
        attribution: For example `captum.attr.Saliency(model)` or `captum.attr.LayerGradCam(model, model.layer4)`.
        **options: Options of the object's `attribute` method, such as `n_steps=20`.

    Raises:
        UserError: The object has no `attribute` method, or the method does not accept these options.
    """
    if isinstance(attribution, type) or not callable(getattr(attribution, "attribute", None)):
        name = getattr(attribution, "__name__", type(attribution).__name__)
        raise UserError(f"{name} is not a captum attribution object; pass an object such as Saliency(network)")
    called = f"captum.{type(attribution).__name__}"
    _check_options(called, [nested.attribute for nested in _nested(attribution)], options, OF_CAPTUM)
    network = getattr(attribution, "model", None) or attribution.forward_func
    settings = _settings(attribution, network)
    return PeerExplainer("captum", attribution, network, _by_captum, options, settings).explainer()


def _nested(attribution: Any) -> Iterator[Any]:
    yield attribution
    for value in vars(attribution).values():
        if callable(getattr(value, "attribute", None)):
            yield from _nested(value)


def _by_captum(attribution: Any, scored: _ScoredNetwork, given: Tensor, target: Target, options: dict) -> Tensor:
    """Return the attributions of a batch for the weighted sum of logits that the target defines."""
    attributions = _retarget(attribution, scored).attribute(given, additional_forward_args=(target,), **options)
    return attributions[0] if isinstance(attributions, tuple) else attributions


def _retarget(attribution: Any, scored: nn.Module) -> Any:
    """Return a copy of an attribution, including nested attributions, that uses the network `scored`."""
    retargeted = copy.copy(attribution)
    for key, value in vars(attribution).items():
        if key in ("forward_func", "model"):  # attributions with hooks on modules have a model
            setattr(retargeted, key, scored)
        elif callable(getattr(value, "attribute", None)):
            setattr(retargeted, key, _retarget(value, scored))
    return retargeted


def grad_cam(cam: Any, **options: Any) -> Explainer:
    """Return an explainer for a CAM object from pytorch_grad_cam.

    Args:
        cam: For example `GradCAM(model=model, target_layers=[model.layer4])`.
        **options: Options for calling the object, such as `eigen_smooth=True`.

    Raises:
        UserError: The object is not a CAM, or does not accept these options when it is called.
    """
    if not hasattr(cam, "activations_and_grads"):
        name = getattr(cam, "__name__", type(cam).__name__)
        raise UserError(f"{name} is not a CAM object from pytorch_grad_cam: it has no activations_and_grads")
    _check_options(f"pytorch_grad_cam.{type(cam).__name__}", [cam.__call__], options, ("input_tensor", "targets"))
    settings = _settings(cam, cam.model)
    return PeerExplainer("pytorch_grad_cam", cam, cam.model, _by_grad_cam, options, settings).explainer()


def _by_grad_cam(cam: Any, scored: _ScoredNetwork, given: Tensor, target: Target, options: dict) -> Tensor:
    """Return the CAMs of a batch, each scaled to [0, 1] by the package."""
    targets = [lambda logits, weights=weights: (logits * weights).sum() for weights in target]
    network, cam.model = cam.model, scored
    cam.activations_and_grads.model = scored
    try:
        return torch.from_numpy(np.asarray(cam(input_tensor=given, targets=targets, **options)))
    finally:
        cam.model = cam.activations_and_grads.model = network
        cam.activations_and_grads.activations, cam.activations_and_grads.gradients = [], []


def quantus(explain: Callable[..., Any], **options: Any) -> Explainer:
    """Return an explainer for a function with the signature that Quantus uses.

    Args:
        explain: Function of model, inputs and targets (classes) that returns (B, H, W) or (B, C, H, W).
        **options: Options of the function, such as `method="Saliency"`.

    Raises:
        UserError: The object is not a function with this signature or does not accept these options, or Quantus has no
            method of this name.
    """
    if not callable(explain):
        method = explain if isinstance(explain, str) else "Saliency"
        raise UserError(
            f'peers.quantus takes a function and its options; write peers.quantus(quantus.explain, method="{method}")'
        )
    name = getattr(explain, "__name__", type(explain).__name__)
    try:
        signature(explain).bind("model", "inputs", "targets", **options)
    except (TypeError, ValueError) as error:
        raise UserError(f"quantus.{name} cannot be called as {name}(model, inputs, targets, ...): {error}") from error
    if explain is getattr(sys.modules.get("quantus"), "explain", None) and "xai_lib" not in options:
        from quantus.helpers.constants import AVAILABLE_XAI_METHODS_CAPTUM as METHODS

        if (method := options.get("method", METHODS[0])) not in METHODS:
            raise unknown("method", str(method), METHODS, owner=f"quantus.{name}")
    return PeerExplainer("quantus", explain, None, _by_quantus, options, explain).explainer()


def _by_quantus(explain: Callable, scored: _ScoredNetwork, given: Tensor, target: Target, options: dict) -> Any:
    """Return the function's output for the class of each target.

    Raises:
        UserError: A target is not a single class.
    """
    if not bool(((target == 1).sum(dim=1) == 1).all() and ((target != 0).sum(dim=1) == 1).all()):
        raise UserError("Quantus functions explain a single class; use target='label' or target='predicted'")
    return explain(scored, given.detach().cpu().numpy(), target.argmax(dim=1).cpu().numpy(), **options)


def zennit(attributor: Any, **options: Any) -> Explainer:
    """Return an explainer for a zennit attributor.

    Args:
        attributor: For example `zennit.attribution.Gradient(model, EpsilonPlusFlat())`, for a network that returns
            logits.
        **options: No options are allowed, because the attributor and its composite already have their options.

    Raises:
        UserError: The object is not an attributor, or there are options.
    """
    if not hasattr(attributor, "composite"):
        name = getattr(attributor, "__name__", type(attributor).__name__)
        raise UserError(f"{name} is not a zennit attributor: it has no composite")
    if options:
        raise UserError(
            f"zennit.{type(attributor).__name__} accepts no options when it is called; pass {', '.join(options)} to "
            "the attributor or its composite when you create them"
        )
    settings = type(attributor).__name__, attributor.composite
    return PeerExplainer("zennit", attributor, attributor.model, _by_zennit, {}, settings).explainer()


def _by_zennit(attributor: Any, scored: _ScoredNetwork, given: Tensor, target: Target, options: dict) -> Tensor:
    scored.classifier.passes += len(given)
    with attributor:
        return attributor(given, target)[1]


def _check_options(owner: str, functions: list[Callable], options: dict[str, Any], given: tuple[str, ...]) -> None:
    """Check the names of a peer's options before a run, because a peer may ignore them or reject them during the run.

    Args:
        owner: Name of the peer, for messages.
        functions: Functions that together accept all options.
        options: Options of the peer.
        given: Arguments that the run passes.

    Raises:
        UserError: An option is unknown, missing, or passed by the run.
    """
    parameters = {key: p for function in functions for key, p in signature(function).parameters.items()}
    named = [key for key, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for key in options:
        if key in given:
            raise UserError(f"{owner}: the run itself passes {key}; remove {key}=")
    check_names(owner, options, [key for key in named if key not in given])
    for key in named:
        if parameters[key].default is Parameter.empty and key not in (*given, *options):
            raise UserError(f"{owner} needs the option {key}; pass it after the object: {key}=...")


def _settings(peer: Any, network: Any) -> dict[str, Any]:
    """Return the settings of an object and of nested objects. Layers are replaced by their names in the network."""
    names = {module: name for name, module in network.named_modules()} if isinstance(network, nn.Module) else {}
    settings: dict[str, Any] = {"class": type(peer).__name__}
    for key, value in sorted(vars(peer).items()):
        items = value if isinstance(value, list | tuple) else [value]
        if all(isinstance(item, nn.Module) for item in items):
            settings[key] = [names.get(item, "") for item in items]
        elif callable(getattr(value, "attribute", None)):
            settings[key] = _settings(value, network)
        elif not LEFT_OUT.fullmatch(key):
            settings[key] = value
    return settings
