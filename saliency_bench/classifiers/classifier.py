"""A classifier: images in the prepared frame in, logits out. Its `prepare` is the only way images are resized."""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from hashlib import blake2b
from typing import Any, cast

import torch
from torch import Tensor, nn

from saliency_bench.classifiers.geometry import Frame, Geometry
from saliency_bench.classifiers.preparation import prepared_batch
from saliency_bench.errors import UserError, unknown
from saliency_bench.types import Batch, Images

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
# How torch rejects a size, by RuntimeError; transformers, timm and torchvision raise AssertionError and ValueError.
NO_SIZE = ("input size", "input dimension", "size is too small", "shapes cannot be multiplied")


class Classifier(nn.Module):
    """images Float (B, 3, H, W) in [0, 1] -> logits (B, K), K >= 2.

    id, revision    where it was loaded from
    digest          hash of its weights, normalisation and structure
    labels          class names, or None
    geometry        how `prepare` resizes
    layer           name of the layer Grad-CAM reads; None: the last convolutional block
    precision       "fp32", or "bf16" or "fp16": the network computes under autocast; logits are always float32
    channels_last   whether the network computes in this memory layout
    passes          number of images passed through the network
    """

    mean: Tensor
    std: Tensor

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
        revision: str | None = None,
    ):
        super().__init__()
        self.model = model
        self.id, self.revision = id, revision
        self.geometry, self.frame = geometry, frame
        self.labels = None if labels is None else list(labels)
        self.layer = layer
        self.precision = "fp32"
        self.channels_last = False
        self.passes = 0
        self._seen: dict[tuple, list[tuple[str, Tensor]]] = {}
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(1, 3, 1, 1))
        if layer is not None:
            self.module_named(layer)

    def forward(self, images: Images) -> Tensor:
        normalised = (images - self.mean) / self.std
        if self.channels_last:
            normalised = normalised.contiguous(memory_format=torch.channels_last)
        output = self._output(normalised.to(self.dtype))
        logits = getattr(output, "logits", output)
        if not isinstance(logits, Tensor) or logits.ndim != 2 or logits.shape[1] < 2:
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise UserError(
                f"{self.id} gives {shape} instead of logits (B, K) with K >= 2; "
                "single-logit and multi-label heads have no softmax over classes to explain"
            )
        self.passes += len(images)
        return logits.float()

    def _output(self, normalised: Tensor) -> Any:
        try:
            with self._autocast():
                return self.model(normalised)
        except UserError:
            raise
        except (AssertionError, ValueError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not any(words in str(error) for words in NO_SIZE):
                raise
            height, width = normalised.shape[2:]
            reason = str(error).partition("\n")[0]
            raise UserError(
                f"{self.id} does not accept images of {height} x {width} ({reason}); use classifier.prepare"
            ) from error

    def _autocast(self) -> AbstractContextManager:
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=DTYPES[self.precision])

    def computing(self, precision: str | None, channels_last: bool | None) -> "Classifier":
        """This classifier, set to this precision and memory layout; None keeps the current one.

        Raises: UserError for an unknown precision, or fp16 without a GPU.
        """
        precision = precision or self.precision
        channels_last = self.channels_last if channels_last is None else channels_last
        if precision not in ("fp32", *DTYPES):
            raise unknown("precision", precision, ("fp32", *DTYPES))
        if precision == "fp16" and self.device.type != "cuda":
            raise UserError("precision fp16 needs a GPU; use bf16 or fp32 on the CPU")
        self.precision, self.channels_last = precision, channels_last
        self.model.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        return self

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights: a checkpoint saved in half precision computes in it."""
        return next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)

    @property
    def device(self) -> torch.device:
        return self.mean.device

    @cached_property
    def digest(self) -> str:
        """A hash of weights, normalisation and structure, computed once."""
        hasher = blake2b(type(self.model).__name__.encode(), digest_size=16)
        hasher.update(_structure(self.model).encode())
        for name, value in sorted(self.state_dict().items()):
            hasher.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            hasher.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return hasher.hexdigest()

    def prepare(self, rows: Any) -> Batch:
        """A Batch of rows: dicts with `image` and, where available, `mask`, `label`, `image_id`.

        Rows may also be a slice of a dataset (a dict of lists). EXIF orientation is applied.
        Raises: UserError for an image that cannot be read, or whose mask has another size (the image is named).
        """
        return prepared_batch(rows, self.frame, self.geometry, self.id, self.device)

    def module_named(self, name: str) -> nn.Module:
        """A layer of the model by its dotted name, as `model.named_modules()` gives it."""
        layers = dict(self.model.named_modules())
        if not name or name not in layers:
            raise unknown(f"layer of {self.id}", name, filter(None, layers))
        return layers[name]


def _structure(model: nn.Module) -> str:
    """What the weights do not contain (activations, strides): the config if there is one, else the printed module."""
    if not hasattr(model, "config"):
        return repr(model)
    config = cast(Any, model.config).to_diff_dict()
    volatile = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype")
    return json.dumps({key: value for key, value in config.items() if key not in volatile}, sort_keys=True, default=str)
