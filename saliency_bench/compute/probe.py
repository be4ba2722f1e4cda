"""A probe: does the network still answer as it did at the start of the run?

All scores of a run rest on one network. An explainer or metric may change it by accident: a weight, a hook that stays,
a plain attribute that `forward` reads, a function of torch. What was changed is hard to see, what follows from it is
not: one image is classified at the start, and again after each explainer has worked on a batch, and the answers are
compared bit for bit. Also compared are the gradient at this image, which hooks on backward passes change, and the
settings of torch below. It costs a forward and a backward pass of one image per batch and explainer.

    probe = Probe(classifier, images)
    ...                                  # an explainer and its metrics
    if probe.differs():
        probe.restore("explainer mine")  # and its scores are not believed
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
from saliency_bench.utils.untouched import untouched

# Gradients are summed in another order by some kernels of a GPU; a hook that was left changes far more.
GRADIENT_TOLERANCE = 1e-3
UNSEEN = "what explainers change in it is not seen, and may change the scores of others"
FIX = "work on copy.deepcopy(classifier), remove hooks and set functions back before returning, or leave it out"

# {name: (read, set)} of what changes numbers of others without changing the answers of the network.
SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default device": (torch.get_default_device, lambda device: torch.set_default_device(_device(device))),
    "deterministic mode": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "threads": (torch.get_num_threads, torch.set_num_threads),
}


class Probe:
    """The answers of a network to an image, to be compared with later ones.

    Args:
        classifier: the network, which `restore` sets back in place.
        images: (B, 3, H, W), prepared; the first that the network can answer is used.
    """

    def __init__(self, classifier: Classifier, images: Images):
        self.classifier = classifier
        # Half noise: a picture that is all black would look the same to a network that scales it.
        noise = torch.from_numpy(uniform(seed_of("probe"), images[0].numel())).view_as(images[:1]).to(images)
        self.candidates = [*((image + noise) / 2 for image in images.split(1)), *images.split(1)]
        self.settings = {name: read() for name, (read, _) in SETTINGS.items()}
        self.copy: Classifier | None = None
        with suppress(Exception):  # of whatever the network holds; without a copy, `restore` ends the run
            self.copy = copy.deepcopy(classifier)
        self.answers = self._first_answers()
        if self.answers is None:
            complain(f"{classifier.id} gives no finite answer to the first images: {UNSEEN}")
        elif not _agree(self.answers, self._answers()):
            self.answers = None
            complain(f"{classifier.id} answers differently each time it is given the same image: {UNSEEN}")

    def differs(self) -> bool:
        """Return whether the network answers otherwise than at the start, or a setting of torch is another one."""
        if any(read() != self.settings[name] for name, (read, _) in SETTINGS.items()):
            return True
        if self.answers is None:
            return False
        try:
            return not _agree(self.answers, self._answers())
        except Exception:  # what was changed may make it fail
            return True

    def restore(self, blamed: str) -> None:
        """Set the network and the settings of torch back to the start of the run.

        Args:
            blamed: who changed them, for messages.

        Raises:
            UserError: The answers are still others, as after a change of torch itself, or no copy could be made.
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
            raise UserError(f"{blamed} changed what {self.classifier.id} answers, as does a function of torch; {FIX}")

    def _first_answers(self) -> tuple[Tensor, Tensor] | None:
        """Return the answers to the first image that has finite ones; None if no image has."""
        # A network that computes with numpy has no gradient.
        for image, has_gradient in product(self.candidates, (True, False)):
            self.image, self.has_gradient = image, has_gradient
            try:
                answers = self._answers()
            except Exception:  # networks may raise anything for an image that they do not take
                continue
            # A masked-out class has a logit of -infinity.
            if not answers[0].isnan().any() and bool(answers[0].isfinite().any()):
                return answers
        return None

    def _answers(self) -> tuple[Tensor, Tensor]:
        """Return (logits (1, K), gradient of the largest logit at the image, or zeros without gradients)."""
        with (
            untouched(self.classifier),
            self.classifier.uncounted(),
            torch.set_grad_enabled(self.has_gradient),
        ):
            refuse_changed_gradients(self.classifier, self.classifier.id, self.image)
            torch.manual_seed(0)  # a network may draw; `untouched` sets the generators back
            image = self.image.clone().requires_grad_(self.has_gradient)
            logits = self.classifier(image)
            gradient = torch.zeros_like(image)
            if logits.requires_grad:
                (gradient,) = torch.autograd.grad(logits.amax(dim=1).sum(), image)
        return logits.detach(), gradient


def _agree(before: tuple[Tensor, Tensor], now: tuple[Tensor, Tensor]) -> bool:
    """Return whether logits are the same bits, and gradients the same numbers but for the order of sums."""
    (logits, gradient), (logits_now, gradient_now) = before, now
    if logits.shape != logits_now.shape or not torch.equal(logits.nan_to_num(), logits_now.nan_to_num()):
        return False
    allowed = GRADIENT_TOLERANCE * gradient.nan_to_num().abs().max()
    return bool(((gradient - gradient_now).nan_to_num().abs() <= allowed).all())


def _device(device: torch.device) -> torch.device | None:
    """Return what `set_default_device` takes for this default: None is torch's own, the CPU."""
    return None if device.type == "cpu" else device
