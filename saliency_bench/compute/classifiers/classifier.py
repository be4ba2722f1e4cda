"""Wrap a network as a classifier of prepared images. Only `Classifier.prepare` resizes images."""

import copy
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from hashlib import blake2b
from inspect import signature
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import _get_current_dispatch_mode

from saliency_bench.compute.classifiers.content import Place, changed
from saliency_bench.compute.classifiers.networks import (
    UNSTABLE,
    Select,
    grey,
    hasher_of_networks,
    keeps_gradients,
    logits_in,
    structure_of,
)
from saliency_bench.compute.classifiers.preparation import prepared_batch
from saliency_bench.compute.classifiers.prompts import Prompts
from saliency_bench.data.geometry import Frame, Geometry
from saliency_bench.errors import UserError, one_line, unknown
from saliency_bench.target_weights import ACTIVATIONS, BINARY, two_classes
from saliency_bench.types import Batch, Images
from saliency_bench.utils.devices import arithmetic
from saliency_bench.utils.mask_values import words_of
from saliency_bench.utils.messages import complain
from saliency_bench.utils.seeds import seed_of, uniform
from saliency_bench.utils.source_code import code_hash
from saliency_bench.utils.untouched import callers_device, untouched

ONE_LOGIT = "returns a single logit, and the softmax of a single logit is always 1; use activation=sigmoid"
LONGEST_LINE = 110  # characters per line when a classifier is printed
TRIED = ((224, 224), (32, 32), (28, 28), (64, 64))  # image sizes to try if the network does not state one
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS = ("fp32", "tf32", *DTYPES)
# Texts of the RuntimeErrors with which torch rejects a size. transformers, timm and torchvision raise other types.
NO_SIZE = (
    "input size", "input dimension", "size is too small", "shapes cannot be multiplied",
    "must match the size of tensor",  # raised by position embeddings
    "can't divide axis",  # raised by einops
)  # fmt: skip
TOKENS = "Expected tensor for argument #1 'indices'"  # raised by an embedding that receives pixels

# {place or name of a buffer: reference to its object}. The id of an object is not reused while the object exists.
Written = dict[Place | str, Callable[[], object]]
# {network: values that a pass changes}. The classifiers of a network share them: only its first pass fills a cache.
_written_before: WeakKeyDictionary[nn.Module, Written] = WeakKeyDictionary()


def check_finite(model: nn.Module, name: str) -> None:
    """Raise UserError if weights or batch norm statistics are not finite. The message names the first one."""
    statistics = ((key, value) for key, value in model.named_buffers() if key.endswith(("running_mean", "running_var")))
    for key, value in chain(model.named_parameters(), statistics):
        if is_lazy(value) or value.device.type == "meta":
            continue
        if not bool(value.detach().isfinite().all()):
            raise UserError(f"{name} has NaN or infinite weights ({key}); use a checkpoint without such weights")


def _has_weights(model: nn.Module) -> bool:
    """Return whether all weights exist. Lazy layers create their weights in the first forward pass."""
    tensors = chain(model.parameters(), model.buffers())
    return not any(is_lazy(value) or value.device.type == "meta" for value in tensors)


class RefusedImagesError(UserError):
    """The network raised an error for these images because of their size or content; it may accept other images."""


class Classifier(nn.Module):
    """A network that maps images, Float (B, 3, H, W) in [0, 1], to logits (B, K), K >= 2.

    A network with a single logit z and a sigmoid is treated as a network with two classes and the logits [-z, z]
    (`target_weights.two_classes`). If the only class name is "square", the classes are "not square" and "square".

    Attributes:
        id: Name that the classifier was loaded from, or "module:TYPE" for a model object.
        repo: Repository on the Hub, if it was loaded from there.
        revision: Commit of the repository, or the name of torchvision's weights.
        labels: Class names, or None.
        prompts: Prompts of a vision-language model: templates or {label: texts}. None for other models.
        geometry: How `prepare` resizes images.
        frame: Function that resizes one picture.
        activation: "softmax" or "sigmoid", which turns logits into probabilities (`target_weights.probabilities`);
            "binary" once a pass has shown that the network has a single logit.
        assumed: Whether softmax was assumed because neither the model nor the caller defined the activation.
        channels: 3, or 1 for a network that takes grey images; RGB images are then converted to grey.
        logits: Function that extracts the logits from the network's output, or None.
        layer: Name of the layer that Grad-CAM reads; None for the last feature map before any pooling.
        precision: "fp32"; "tf32" (float32 with 10-bit products, GPU only); or "bf16" or "fp16" (the network runs under
            autocast). Logits are always float32.
        channels_last: Whether the network runs in channels-last memory layout.
        compiled: Whether the faster copy of the network (`fast_forward`) is compiled.
        passes: Number of images passed through the network.
        halved: Number of times that memory ran out during a pass, while a faster copy was made, or while pictures were
            classified from crops (`windows`). A pass is then repeated with half the batch size.
    """

    mean: Tensor
    std: Tensor
    activation: str
    __constants__ = ("labels", "prompts", "geometry", "frame", "activation", "channels", "logits", "layer", "precision",
                     "channels_last", "compiled")  # fmt: skip

    def __init__(
        self,
        model: nn.Module,
        *,
        id: str,
        geometry: Geometry,
        frame: Frame,
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
        labels: Sequence[str] | None = None,
        layer: str | None = None,
        repo: str | None = None,
        revision: str | None = None,
        activation: str | None = None,
        channels: int = 3,
        logits: Select | None = None,
        prompts: Prompts | None = None,
    ):
        super().__init__()
        self.model = model
        self.id, self.repo, self.revision = id, repo, revision
        self.geometry, self.frame = geometry, frame
        self.labels = None if labels is None else list(labels)
        self._is_named_by_one = self.labels is not None and len(self.labels) == 1
        if self.labels is not None and self._is_named_by_one:
            name = self.labels[0]
            self.labels = [name, "LABEL_1"] if name == "LABEL_0" else [f"not {name}", name]
        self.prompts = prompts
        self.layer = layer
        self.channels = channels
        self.logits = logits
        # Used in place of the hash of an unhashable value; constant for the lifetime of this classifier.
        self._token = secrets.token_hex(8)
        self._written: Written | None = None  # see `_written_by_a_pass`
        self._has_complained = False
        self.activate(activation or _known_activation(model))
        self.precision = "fp32"
        self.channels_last = _is_channels_last(model)
        self.compiled = False
        self.passes = self.halved = 0
        self._gives_logits = False  # True once a pass has shown logits
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(1, 3, 1, 1))
        if layer is not None:
            self.module_named(layer)

    def forward(self, images: Images) -> Tensor:
        """Return the logits (B, K) of prepared images, in float32. This method normalises the images."""
        logits = logits_in(self._output(self.normalised(images)), self.logits, self.id)
        if logits.shape[1] == 1:
            if self.activation == "softmax":
                raise UserError(f"{self.id} {ONE_LOGIT}")
            self.activation = BINARY
        self.passes += len(images)
        if not self._gives_logits and not self.training:
            self._check_labels(logits.shape[1])
            self._refuse_probabilities(images, logits)
        logits = (two_classes(logits) if logits.shape[1] == 1 else logits).float()
        # A view of a parameter requires gradients even when they are switched off, and the next call may overwrite a
        # view of a buffer.
        return logits if torch.is_grad_enabled() else logits.detach().clone()

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Keep `passes` and `halved` unchanged while images pass through the network inside the context."""
        counts = self.passes, self.halved
        try:
            yield
        finally:
            self.passes, self.halved = counts

    def normalised(self, images: Images) -> Tensor:
        """Convert prepared images to the network's input: normalised, and grey if the network takes one channel."""
        mean, std = self.mean[:, : self.channels], self.std[:, : self.channels]
        normalised = ((grey(images) if self.channels == 1 else images) - mean) / std
        layout = torch.channels_last if self.channels_last else torch.preserve_format
        return normalised.to(self.dtype, memory_format=layout)

    def _check_labels(self, classes: int) -> None:
        """Raise UserError unless there is one class name per logit. Names may be outdated if the head was replaced."""
        if self.labels is None:
            return
        if classes == 1 and len(self.labels) != 2:
            raise UserError(
                f"{self.id} returns one logit but has {len(self.labels)} class names "
                f"({', '.join(self.labels[:2])} ...); call load_classifier(model, labels=[...]) with one name (of the "
                "class for positive logits) or two names (of the classes for negative and for positive logits)"
            )
        if classes > 1 and (self._is_named_by_one or len(self.labels) != classes):
            names = self.labels[1:] if self._is_named_by_one else self.labels
            raise UserError(
                f"{self.id} returns {classes} logits but has {len(names)} class names "
                f"({', '.join(names[:2])} ...); call load_classifier(model, labels=[...]) with one name per logit"
            )

    def _refuse_probabilities(self, images: Images, logits: Tensor) -> None:
        """Raise UserError if the network returns probabilities. Once it has returned logits, it is not checked again.

        Logits may sum to 1 by chance, so an output that looks like probabilities is compared with the output for noise.
        """
        if _get_current_dispatch_mode() is not None:  # `fast_forward` records the operations of this pass
            return
        *_, last = self.model.modules()
        if isinstance(last, nn.Sigmoid) and bool(((logits >= 0) & (logits <= 1)).all()):
            raise UserError(
                f"{self.id} ends in a sigmoid, and a softmax or a second sigmoid would be applied to its output; pass "
                'the network without its sigmoid, and set activation="sigmoid"'
            )
        tolerance = 1e-5 if logits.dtype in (torch.float32, torch.float64) else 1e-2
        if _are_probabilities(logits, tolerance):
            self._gives_logits = True
            noise = torch.from_numpy(uniform(seed_of("probabilities"), 8 * images[0].numel()))
            noise = noise.view(8, *images.shape[1:]) * torch.linspace(0, 1, 8).view(-1, 1, 1, 1)  # starting with black
            with torch.no_grad(), self.uncounted():
                others = self(noise.to(images))[:, -logits.shape[1] :]
            self._gives_logits = False
            rows = torch.cat([logits, others])
            # A network whose output is the same for all pictures is not treated as a softmax.
            if _are_probabilities(rows, tolerance) and bool((rows != rows[:1]).any()):
                raise UserError(
                    f"{self.id} returns probabilities (rows that sum to 1), so a softmax would be applied twice; pass "
                    "the network without its last softmax, so that it returns logits"
                )
        # A masked-out class has a logit of -infinity.
        self._gives_logits = not bool(logits.isnan().any()) and bool(logits.isfinite().any(dim=1).all())

    def _output(self, normalised: Tensor) -> Any:
        """Return the output of the network. Errors that the user can fix become a UserError that names the fix."""
        try:
            with self._own_arithmetic():
                return self.model(normalised)
        except UserError:
            raise
        except (AssertionError, ValueError, RuntimeError) as error:
            if channels := re.search(r"expected input.* to have (\d+) channels, but got (\d+)", str(error)):
                raise UserError(f"{self.id} {_other_channels(int(channels[1]), int(channels[2]))}") from error
            if "Inference tensors cannot" in str(error):
                raise UserError(
                    f"{self.id} contains a tensor created inside torch.inference_mode(), so its gradients cannot be "
                    "computed; build the network outside inference mode"
                ) from error
            if "numpy() on Tensor that requires grad" in str(error):
                raise UserError(
                    f"{self.id} uses NumPy in its forward pass, so it has no gradients; use an explainer that only "
                    "needs the outputs, such as rise"
                ) from error
            if TOKENS in str(error):
                raise UserError(
                    f"{self.id} takes token ids instead of images, as ImageGPT does; use a classifier that takes images"
                ) from error
            if isinstance(error, RuntimeError) and not any(words in str(error) for words in NO_SIZE):
                raise
            if "spatial_shapes" in signature(self.model.forward).parameters:
                raise UserError(
                    f"{self.id} takes images that are already cut into patches (spatial_shapes), not (B, 3, H, W); "
                    "wrap it in a torch module whose forward cuts images into patches and returns logits"
                ) from error
            height, width = normalised.shape[2:]
            reason = str(error).partition("\n")[0]
            raise RefusedImagesError(
                f"{self.id} does not accept images of {height} x {width} ({reason}); prepare the images with "
                "classifier.prepare; if the model is a torch module, load it with load_classifier(model, size=(H, W))"
            ) from error
        except (TypeError, KeyError, AttributeError, IndexError) as error:
            if self._gives_logits:
                raise
            raise UserError(
                f"{self.id} cannot be called with a tensor of images (B, 3, H, W) ({type(error).__name__}: {error}); "
                "wrap it in a torch module whose forward takes such a tensor and returns logits (B, K)"
            ) from error

    @contextmanager
    def _own_arithmetic(self) -> Iterator[None]:
        """Use this classifier's precision, and the network's default dtype and device, inside the context."""
        kind, dtype = self.device.type, torch.get_default_dtype()
        with ExitStack() as inside:
            inside.enter_context(arithmetic(self.precision == "tf32"))
            if self.precision in DTYPES:
                inside.enter_context(torch.autocast(kind, dtype=DTYPES[self.precision]))
            elif torch.is_autocast_enabled(kind):  # by the caller
                inside.enter_context(torch.autocast(kind, enabled=False))
            if callers_device() is not None:
                inside.enter_context(torch.device(self.device))
            if self.dtype == torch.float64:
                inside.callback(torch.set_default_dtype, dtype)
                torch.set_default_dtype(torch.float64)
            yield

    def activate(self, activation: str | None) -> None:
        """Set the activation. None sets softmax and `assumed`. An unknown activation raises UserError."""
        if activation not in (None, *ACTIVATIONS, BINARY):
            raise unknown("activation", str(activation), ACTIVATIONS)
        self.activation, self.assumed = activation or "softmax", activation is None

    def computing(
        self, precision: str | None, channels_last: bool | None, compiled: bool | None = None
    ) -> "Classifier":
        """Set precision, memory layout and compilation, and return this classifier. None keeps the current setting.

        Raises:
            UserError: The precision is unknown, or is tf32 or fp16 without a GPU.
        """
        precision = precision or self.precision
        if precision not in PRECISIONS:
            raise unknown("precision", precision, PRECISIONS)
        if precision in ("tf32", "fp16") and self.device.type != "cuda":
            raise UserError(f"precision {precision} needs a GPU; use bf16 or fp32 on the CPU")
        self.precision = precision
        self.compiled = self.compiled if compiled is None else compiled
        if channels_last is not None and channels_last != self.channels_last:
            self.channels_last = channels_last
            self.model.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        return self

    def taking_normalised(self) -> "Classifier":
        """Return a classifier that has the same weights but takes normalised images.

        Gradients then refer to these inputs.
        """
        other = copy.copy(self)
        # torch's own copies share these dicts.
        other._modules, other._buffers = dict(self._modules), dict(self._buffers)
        other.mean, other.std = torch.zeros_like(self.mean), torch.ones_like(self.std)
        other.passes = other.halved = 0
        return other

    def variant(
        self,
        layer: str | None = None,
        precision: str | None = None,
        channels_last: bool | None = None,
        device: torch.device | None = None,
        activation: str | None = None,
        compiled: bool | None = None,
    ) -> "Classifier":
        """Return a classifier with the same weights and different settings. None keeps the current setting.

        This classifier is not changed. The new classifier shares the weights, or copies them if layout or device
        differs. If no setting differs, this classifier itself is returned.

        Raises:
            UserError: The layer is unknown, or the precision is invalid (see `computing`).
        """
        moved = device is not None and device != self.place
        copied = moved or channels_last not in (None, self.channels_last)
        same = layer in (None, self.layer) and precision in (None, self.precision) and compiled in (None, self.compiled)
        if not copied and same and (activation is None or (activation == self.activation and not self.assumed)):
            return self
        other = copy.copy(self)
        # torch's own copies share these dicts.
        other._modules, other._buffers = dict(self._modules), dict(self._buffers)
        other.passes = other.halved = 0
        if copied:
            other.model = copy.deepcopy(self.model)
            other.logits = copy.deepcopy(self.logits)  # a module moves with the device
        if layer is not None:
            other.module_named(layer)
            other.layer = layer
        if activation is not None:
            other.activate(activation)
        return (other.to(device) if moved else other).computing(precision, channels_last, compiled)

    def __repr__(self) -> str:
        """Describe the classifier in a few lines; `print(classifier.model)` shows the layers."""
        names = ", ".join(self.labels[:3]) + ", ..." * (len(self.labels) > 3) if self.labels else ""
        classes = f"{len(self.labels):,} classes: {names}" if self.labels else "class names unknown"
        activation = self.activation + " (assumed)" * self.assumed
        lines = [
            f"Classifier {self.id}, {f'digest {self.digest[:8]}' if _has_weights(self.model) else 'no weights yet'}",
            classes,
            *([f"prompts: {', '.join(map(str, self.prompts))}"] if self.prompts else []),
            f"images: {self.geometry}" + ", in grey" * (self.channels == 1),
            f"normalised by mean {self._values(self.mean)} and std {self._values(self.std)}",
            f"CAM layer: {self.layer or 'the last feature map before any pooling'}",
            f"activation: {activation}; {self.arithmetic} on {self.place}; "
            "the network is available as the attribute .model",
        ]
        return "\n  ".join(one_line(line, LONGEST_LINE) for line in lines)

    def _values(self, statistic: Tensor) -> str:
        """Return one number if all channels have the same mean or std, else one number per channel."""
        numbers = [f"{value:.4g}" for value in statistic.flatten().tolist()[: self.channels]]
        return numbers[0] if len(set(numbers)) == 1 else f"({', '.join(numbers)})"

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights. A checkpoint saved in half precision computes in half precision."""
        return next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)

    @property
    def arithmetic(self) -> str:
        """Describe how logits are computed: precision, dtype of the weights if different, layout, and compilation."""
        names = {torch.float32: "fp32"} | {value: key for key, value in DTYPES.items()}
        weights = names.get(self.dtype, str(self.dtype).removeprefix("torch."))
        parts = [self.precision] if weights == "fp32" else [f"{weights} weights"]
        if weights not in ("fp32", self.precision) and self.precision != "fp32":
            parts.append(f"{self.precision} operations")
        return ", ".join(parts + ["channels last"] * self.channels_last + ["compiled"] * self.compiled)

    @property
    def device(self) -> torch.device:
        """Device that images must be on."""
        return self.mean.device

    @property
    def place(self) -> torch.device:
        """Device of the network's weights."""
        tensors = chain(self.model.parameters(), self.model.buffers())
        return next((tensor.device for tensor in tensors), self.mean.device)

    @property
    def digest(self) -> str:
        """Hash of the current weights, normalisation, structure (`structure_of`) and code of `logits`.

        The hash ignores values that a forward pass changes, such as a counter or cached features.

        Raises:
            UserError: A layer has no weights yet.
        """
        return self.hashes()[0]

    def hashes(self) -> tuple[str, dict[str, str]]:
        """Return (`digest`, {part: hash}). The hashes of the parts show where two classifiers differ."""
        if not _has_weights(self.model):
            raise UserError(
                f"{self.id} has layers without weights (lazy layers, or weights on the meta device); load the weights, "
                "or first pass a picture through the network: network(torch.rand(1, 3, HEIGHT, WIDTH))"
            )
        whole = blake2b(digest_size=16)
        parts: dict[str, Any] = {}
        for part, content in self._contents():
            whole.update(content)
            parts.setdefault(part, blake2b(digest_size=8)).update(content)
        return whole.hexdigest(), {part: hasher.hexdigest() for part, hasher in parts.items()}

    def _contents(self) -> Iterator[tuple[str, bytes | memoryview]]:
        """Yield (name of a part of this classifier, bytes to hash for this part), in a fixed order."""
        is_graph = isinstance(self.model, torch.fx.GraphModule)  # copies of a graph module have renamed classes
        kind = torch.fx.GraphModule if is_graph else type(self.model)
        yield "classes or code", kind.__name__.encode()
        written = self._written_by_a_pass()
        places = {place for place, holder in written.items() if not isinstance(place, str) and holder() is not None}
        structure = structure_of(self.model, hasher_of_networks(places))
        self._complain_of_unstable(structure)
        for name, content in sorted(structure.items()):
            part = "classes or code" if name.endswith(" class") else "settings"
            yield part, f"{name} {self._token if content.startswith(UNSTABLE) else content}\n".encode()
        if self.logits is not None:
            version = code_hash(self.logits)
            yield "function logits=", (self._token if version.unhashable else version.version).encode()
        for name, value in sorted(self._saved(nn.Module.named_parameters, nn.Module.named_buffers)):
            if name not in written:
                part = "normalisation" if name in ("mean", "std") else "weights"
                yield part, f"{name} {value.dtype} {tuple(value.shape)}".encode()
                yield part, _bytes(value)

    def _saved(self, *named: Callable[..., Iterable[tuple[str, Tensor]]]) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, tensor) of parameters, buffers or both, as the default `state_dict` does."""
        for path, module in self.named_modules(remove_duplicate=False):
            unsaved = {f"{path}.{name}" for name in getattr(module, "_non_persistent_buffers_set", ())}
            for tensors in named:
                of_module = tensors(module, path, recurse=False, remove_duplicate=False)
                yield from ((name, value) for name, value in of_module if name not in unsaved)

    def _written_by_a_pass(self) -> Written:
        """Return the values (`Place`) and buffers that a forward pass changes. The result is cached."""
        if self._written is None:
            first, second = hasher_of_networks(), hasher_of_networks()
            structure_of(self.model, first)
            before = {name: blake2b(_bytes(value)).digest() for name, value in self._saved(nn.Module.named_buffers)}
            loaded = set(sys.modules)
            self._try_a_pass()
            structure_of(self.model, second)
            # Modules that `forward` imports are new after the pass, but the pass did not write their content.
            imported = {id(vars(sys.modules[name])) for name in sys.modules.keys() - loaded}
            self._written = _written_before.setdefault(self.model, {})
            for place in changed(first, second):
                if place[0] not in imported:
                    hasher = second if place in second.places else first
                    self._written[place] = _reference(hasher.holder_of(place))
            for name, value in self._saved(nn.Module.named_buffers):
                if before.get(name) != blake2b(_bytes(value)).digest():
                    self._written[name] = _reference(self.model)
        return self._written

    def _try_a_pass(self) -> None:
        """Run a forward pass, and a backward pass if the network stores gradients. Errors are ignored.

        Each call uses a different picture, so that features stored by an earlier call change.
        """
        before, noise = self._gives_logits, torch.Generator().manual_seed(secrets.randbits(32))
        with untouched(self), self.uncounted():
            for height, width in [self.geometry.frame] if self.geometry.frame else TRIED:
                images = torch.rand(1, 3, height, width, generator=noise).to(self.device)
                if keeps_gradients(self.model):
                    with suppress(Exception):  # a network may raise any exception for an unsupported size
                        logits = self(images.requires_grad_())
                        torch.autograd.grad(logits.sum(), images, allow_unused=True)
                with suppress(Exception), torch.no_grad():  # last, so that stored tensors belong to no graph
                    self(images)
                    break
        self._gives_logits = before

    def _complain_of_unstable(self, structure: Mapping[str, str]) -> None:
        """Warn once if results cannot be reused because a value has a different hash in each process."""
        unstable = sorted(name for name, content in structure.items() if content.startswith(UNSTABLE))
        if unstable and not self._has_complained:
            reason = structure[unstable[0]].removeprefix(UNSTABLE)
            complain(
                f"{self.id}: {one_line(unstable[0].strip(), 100)} cannot be hashed ({one_line(reason, 100)}), so a "
                "later run cannot reuse or extend these results"
            )
            self._has_complained = True

    def prepare(self, rows: Any, columns: Sequence[str] = (), mask_values: Any = None) -> Batch:
        """Apply EXIF orientation and the classifier's preprocessing to rows, and return them as a Batch.

        Args:
            rows: Dicts with `image` and, if available, `mask`, `label` and `image_id`; or a slice of a dataset (a dict
                of lists).
            columns: Names of additional columns. Pictures in these columns are preprocessed like the images.
            mask_values: Pixel values that mark the object in a mask, as one or several choices: a value (1), a value
                and all values above it ("128+"), a colour ("#ff0000"), "nonzero" or "alpha". By default a mask must
                contain 0 and one other value. Any other mask is left out, and the batch's `left_out` contains the
                reason.

        Raises:
            UserError: An image or mask cannot be read, or a mask differs in size from its image. The message names the
                image.
        """
        foreground = " ".join(words_of(mask_values))
        return prepared_batch(rows, self.frame, self.geometry, self.id, self.device, columns, foreground)

    def module_named(self, name: str) -> nn.Module:
        """Return a layer of the model by its dotted name, as in `model.named_modules()`."""
        layers = dict(self.model.named_modules())
        if not name or name not in layers:
            raise unknown(f"layer of {self.id}", name, filter(None, layers))
        return layers[name]


def _bytes(value: Tensor) -> memoryview:
    return value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data


def _reference(holder: object) -> Callable[[], object]:
    """Return a weak reference to an object, or a strong reference for types without weak references, such as list."""
    try:
        return ref(holder)
    except TypeError:
        return lambda: holder


def _known_activation(model: nn.Module) -> str | None:
    """Return the activation in the config of a `transformers` model, or None for other networks."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "problem_type"):
        return None
    return "sigmoid" if config.problem_type == "multi_label_classification" else "softmax"


def _other_channels(taken: int, got: int) -> str:
    """Return the error message about a wrong number of channels. The caller puts the classifier's name in front."""
    if got > 3 >= taken > 1:
        return (
            "takes images with channels last, (B, H, W, 3), but these are (B, 3, H, W); wrap it in a module whose "
            "forward calls it with images.permute(0, 2, 3, 1)"
        )
    return (
        f"takes images with {taken} channels, but these have 3 (RGB); wrap it in a module that converts the images "
        "first (to one channel with images.mean(1, keepdim=True))"
    )


def _are_probabilities(logits: Tensor, tolerance: float) -> bool:
    sums = logits.detach().double().sum(dim=1)
    return bool((logits >= 0).all()) and bool(((sums - 1).abs() <= tolerance).all())


def _is_channels_last(model: nn.Module) -> bool:
    """Return whether any convolution weight is in channels-last layout and not also in the default layout."""
    weights = [m.weight for m in model.modules() if isinstance(m, nn.Conv2d) and not is_lazy(m.weight)]
    return any(w.is_contiguous(memory_format=torch.channels_last) and not w.is_contiguous() for w in weights)
