"""Check with a probe image that the outputs of the network have not changed since the start of the run.

All scores of a run depend on one network. An explainer or metric may change the network by accident: a weight, a hook
that is not removed, a plain attribute that `forward` reads, or a function of torch. The change itself is hard to
detect, but its effect is not. One image is classified at the start, and again after each explainer has finished a
batch, and the logits are compared bit for bit. The gradient at this image is also compared, because backward hooks
change it, and so are the torch settings in `SETTINGS`. This comparison costs a forward and a backward pass of one image
per batch and explainer.

    probe = Probe(classifier, images)
    ...                                  # an explainer and its metrics
    if probe.differs():
        probe.restore("explainer mine")  # the scores of this batch are discarded
"""

import copy
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from typing import Any

import torch
from torch import Tensor

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.errors import UserError
from saliency_bench.types import Images
from saliency_bench.utils.backward_hooks import refuse_changed_gradients
from saliency_bench.utils.messages import complain
from saliency_bench.utils.seeds import seed_of, uniform
from saliency_bench.utils.untouched import reset_generators, untouched

# Some GPU kernels sum gradients in a varying order. A hook that was not removed changes gradients far more.
GRADIENT_TOLERANCE = 1e-3
UNSEEN = "if an explainer changes this network, the change is not detected and may affect other explainers' scores"
FIX = (
    "leave that explainer or metric out, or change its code to use copy.deepcopy(classifier) and to remove its own "
    "hooks"
)

# {name: (read, set)} of settings that change the maps of other explainers but not the outputs of the network.
SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default device": (torch.get_default_device, lambda device: torch.set_default_device(_device(device))),
    "deterministic mode": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "threads": (torch.get_num_threads, torch.set_num_threads),
}


class Probe:
    """Stores the outputs of a network for one image at the start of a run, and compares later outputs with them.

    Args:
        classifier: The network; `restore` resets it in place.
        images: Prepared images (B, 3, H, W). The first image with finite outputs is used.
    """

    def __init__(self, classifier: Classifier, images: Images):
        self.classifier = classifier
        # Half noise, because an all-black picture would hide a change in the network's input scale.
        noise = torch.from_numpy(uniform(seed_of("probe"), images[0].numel())).view_as(images[:1]).to(images)
        self.candidates = [*((image + noise) / 2 for image in images.split(1)), *images.split(1)]
        self.settings = {name: read() for name, (read, _) in SETTINGS.items()}
        self.copy: Classifier | None = None
        with suppress(Exception):  # the network may contain anything; without a copy, `restore` ends the run
            self.copy = copy.deepcopy(classifier)
        self.answers = self._first_answers()
        if self.answers is None:
            complain(f"{classifier.id} returns no finite logits for the first images: {UNSEEN}")
        elif not _agree(self.answers, self._answers()):
            self.answers = None
            complain(f"{classifier.id} returns different logits for the same image at each call: {UNSEEN}")

    def differs(self) -> bool:
        """Return whether the network's outputs or a setting of torch have changed since the start of the run."""
        if any(read() != self.settings[name] for name, (read, _) in SETTINGS.items()):
            return True
        if self.answers is None:
            return False
        try:
            return not _agree(self.answers, self._answers())
        except Exception:  # the changed network may raise an error
            return True

    def restore(self, blamed: str) -> None:
        """Restore the network and the settings of torch to their state at the start of the run.

        Args:
            blamed: Explainer that made the change, for messages.

        Raises:
            UserError: The outputs still differ, for example because torch itself was changed, or no copy could be made.
        """
        for name, (read, put) in SETTINGS.items():
            if read() != self.settings[name]:
                put(self.settings[name])
        if self.copy is None:
            raise UserError(f"{blamed} changed the network {self.classifier.id}, which cannot be copied; {FIX}")
        with self.classifier.uncounted():
            fresh = copy.deepcopy(self.copy)
            vars(self.classifier).clear()
            vars(self.classifier).update(vars(fresh))
        if self.differs():
            raise UserError(
                f"{blamed} changed the output of {self.classifier.id}, perhaps by changing torch itself; {FIX}"
            )

    def _first_answers(self) -> tuple[Tensor, Tensor] | None:
        """Return the outputs for the first image that has finite outputs, or None if there is no such image."""
        # A network that computes with numpy has no gradient.
        for image, has_gradient in product(self.candidates, (True, False)):
            self.image, self.has_gradient = image, has_gradient
            try:
                answers = self._answers()
            except Exception:  # networks may raise any exception for an image that they do not accept
                continue
            # A masked-out class has a logit of -infinity.
            if not answers[0].isnan().any() and bool(answers[0].isfinite().any()):
                return answers
        return None

    def _answers(self) -> tuple[Tensor, Tensor]:
        """Return (logits (1, K), gradient of the largest logit at the image). The gradient is 0 if there is none."""
        with (
            untouched(self.classifier),
            self.classifier.uncounted(),
            torch.set_grad_enabled(self.has_gradient),
        ):
            refuse_changed_gradients(self.classifier, self.classifier.id, self.image)
            reset_generators(self.classifier)
            image = self.image.clone().requires_grad_(self.has_gradient)
            logits = self.classifier(image)
            gradient = torch.zeros_like(image)
            if logits.requires_grad:
                (gradient,) = torch.autograd.grad(logits.amax(dim=1).sum(), image)
        return logits.detach(), gradient


def _agree(before: tuple[Tensor, Tensor], now: tuple[Tensor, Tensor]) -> bool:
    """Return whether logits are bit-identical and gradients agree up to the order of summation."""
    (logits, gradient), (logits_now, gradient_now) = before, now
    if logits.shape != logits_now.shape or not torch.equal(logits.nan_to_num(), logits_now.nan_to_num()):
        return False
    allowed = GRADIENT_TOLERANCE * gradient.nan_to_num().abs().max()
    return bool(((gradient - gradient_now).nan_to_num().abs() <= allowed).all())


def _device(device: torch.device) -> torch.device | None:
    """Return the argument of `set_default_device` that restores this device, or None for the CPU (torch's default)."""
    return None if device.type == "cpu" else device
