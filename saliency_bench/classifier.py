"""A classifier: images in the prepared frame in, logits out; and the only place where images are resized."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from hashlib import blake2b
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

from saliency_bench.errors import UserError, unknown
from saliency_bench.geometry import Frame, Geometry
from saliency_bench.types import Batch, Images

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Classifier(nn.Module):
    """images Float (B, 3, H, W) in [0, 1] -> logits (B, K), K >= 2.

    id, revision    where it came from
    digest          hash of its weights, normalisation and structure
    labels          class names, or None
    geometry        how `prepare` resizes
    layer           name of the layer Grad-CAM reads; None: the last convolutional block is looked for
    precision       "fp32", or "bf16" or "fp16": the network computes under autocast, logits are float32 all the same
    channels_last   whether the network computes in that memory layout
    passes          number of images it has been applied to
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
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(1, 3, 1, 1))
        if layer is not None:
            self.module_named(layer)

    def forward(self, images: Images) -> Tensor:
        normalised = (images - self.mean) / self.std
        if self.channels_last:
            normalised = normalised.contiguous(memory_format=torch.channels_last)
        with self._autocast():
            output = self.model(normalised)
        logits = getattr(output, "logits", output)
        if not isinstance(logits, Tensor) or logits.ndim != 2 or logits.shape[1] < 2:
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise UserError(
                f"{self.id} gives {shape} instead of logits (B, K) with K >= 2; "
                "single-logit and multi-label heads have no softmax over classes to explain"
            )
        self.passes += len(images)
        return logits.float()

    def _autocast(self) -> AbstractContextManager:
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=DTYPES[self.precision])

    def computing(self, precision: str | None, channels_last: bool | None) -> "Classifier":
        """This classifier, set to compute so; None leaves it as it is.

        Errors: UserError for an unknown precision, or fp16 without a GPU.
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
    def device(self) -> torch.device:
        return self.mean.device

    @cached_property
    def digest(self) -> str:
        hasher = blake2b(type(self.model).__name__.encode(), digest_size=16)
        if not hasattr(self.model, "config"):  # a plain module's structure is not in any config
            hasher.update(repr(self.model).encode())
        for name, value in sorted(self.state_dict().items()):
            hasher.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            hasher.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return hasher.hexdigest()

    def prepare(self, rows) -> Batch:
        """A Batch of rows: dicts with `image` and, where there are any, `mask`, `label`, `image_id`.

        Rows may also be a slice of a dataset (a dict of lists). EXIF orientation is applied.
        Errors: UserError naming the image that cannot be read or whose mask has another size.
        """
        rows = _as_rows(rows)
        ids = [str(row.get("image_id", position)) for position, row in enumerate(rows)]
        samples = [self._sample(row, id) for row, id in zip(rows, ids, strict=True)]
        frames, masks, left_out = zip(*samples, strict=True)
        if len({frame.shape for frame in frames}) > 1:
            raise UserError(f"{self.id} takes images as they are, but these differ in size; give load_classifier size=")
        labels = [-1 if row.get("label") is None else row["label"] for row in rows]
        return Batch(
            images=torch.stack(frames).to(self.device),
            masks=torch.from_numpy(np.stack(masks)),
            labels=torch.tensor(labels),
            ids=ids,
            left_out=list(left_out),
        )

    def _sample(self, row: Mapping, id: str) -> tuple[Tensor, np.ndarray, str | None]:
        image = open_picture(row["image"], f"image {id}").convert("RGB")
        frame = self.frame(image)
        if row.get("mask") is None:
            return frame, np.zeros(frame.shape[1:], dtype=bool), "no mask"
        mask = open_picture(row["mask"], f"the mask of image {id}").convert("L")
        if mask.size != image.size:
            raise UserError(
                f"the mask of image {id} is {mask.width} x {mask.height} but the image {image.width} x {image.height}; "
                "a mask has the size of its image"
            )
        if mask.point(lambda value: value >= 128).getbbox() is None:
            return frame, np.zeros(frame.shape[1:], dtype=bool), "empty mask"
        inside = self.geometry.mask(mask)
        return frame, inside, None if inside.any() else "mask emptied by the crop"

    def module_named(self, name: str) -> nn.Module:
        """A layer of the model by its dotted name, as `model.named_modules()` gives it."""
        layers = dict(self.model.named_modules())
        if not name or name not in layers:
            raise unknown(f"layer of {self.id}", name, filter(None, layers))
        return layers[name]

    def cam_layer(self, images: Images) -> str:
        """The name of the last convolutional block: the last module that gives (B, C, h, w) with h * w > 1.

        Pooling, dropout and identity do not count. Errors: UserError for a network whose last features are tokens.
        """
        if self.layer is not None:
            return self.layer
        found = last_feature_map(self, images[:1])
        if found is None:
            raise UserError(
                f"no convolutional block found in {self.id} (a transformer?); name a layer with layer=..., "
                "or use an explainer that only looks at outputs, say rise"
            )
        return found


def last_feature_map(classifier: Classifier, image: Images) -> str | None:
    """Name of the last, outermost module that gives a feature map, if no tokens (B, T, C) come after it."""
    found: str | None = None

    def watch(name: str):
        def hook(module: nn.Module, inputs, output) -> None:
            nonlocal found
            if not isinstance(output, Tensor) or type(module).__name__.startswith(_PASSIVE):
                return
            if output.ndim == 4 and output.shape[2] * output.shape[3] > 1:
                found = name
            elif output.ndim == 3:
                found = None

        return hook

    handles = [module.register_forward_hook(watch(name)) for name, module in classifier.model.named_modules() if name]
    try:
        with torch.no_grad():
            classifier(image)
        classifier.passes -= len(image)
    finally:
        for handle in handles:
            handle.remove()
    return found


_PASSIVE = (
    "AdaptiveAvgPool",
    "AdaptiveMaxPool",
    "AvgPool",
    "MaxPool",
    "Dropout",
    "DropPath",
    "Identity",
    "SelectAdaptive",
)


def open_picture(thing, what: str) -> Image.Image:
    """A picture, upright, of a PIL image, an array, a path, or what `datasets` gives undecoded: {bytes, path}.

    Errors: UserError that begins with `what`.
    """
    try:
        if isinstance(thing, Mapping):
            thing = BytesIO(thing["bytes"]) if thing.get("bytes") else thing["path"]
        if isinstance(thing, np.ndarray):
            thing = Image.fromarray(thing.astype(np.uint8) * 255 if thing.dtype == bool else thing)
        if not isinstance(thing, Image.Image):
            thing = Image.open(thing)
        thing.load()
        return ImageOps.exif_transpose(thing)
    except (OSError, SyntaxError, ValueError, TypeError, Image.DecompressionBombError) as error:
        raise UserError(f"{what} cannot be read as a picture ({error}); replace it or leave it out") from error


def _as_rows(rows) -> list[Mapping]:
    if isinstance(rows, Mapping) and isinstance(rows.get("image"), list | tuple):
        return [dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)]
    rows = [rows] if isinstance(rows, Mapping) else list(rows)
    if not rows:
        raise UserError("there are no rows to prepare")
    return rows


def load_classifier(
    model: str | Path | nn.Module,
    *,
    device: str | torch.device | None = None,
    revision: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    layer: str | None = None,
    labels: Sequence[str] | None = None,
    size: int | tuple[int, int] | None = None,
    precision: str | None = None,
    channels_last: bool | None = None,
) -> Classifier:
    """A classifier of a Hub id, a local folder, "torchvision:resnet18", or any nn.Module that gives logits.

    device: default "cuda" where there is one, else "cpu". revision: of a Hub id. layer: the one Grad-CAM reads.
    For an nn.Module: mean and std of its normalisation (default none: it gets images in [0, 1]), labels = class names,
    size = what `prepare` squashes images to (default: as they are).
    precision: "fp32" (default), "bf16", or on a GPU "fp16". channels_last: the memory layout.
    Weights are read as safetensors, or with `weights_only=True`; nothing downloaded is executed.

    Errors: UserError for a model that is not there (with the nearest names), a head that is not softmax over K >= 2
    classes, an image processor that masks could not follow.
    """
    from saliency_bench import checkpoints

    if isinstance(model, Classifier):
        classifier = model
    elif isinstance(model, nn.Module):
        classifier = checkpoints.plain(model, mean or (0.0,) * 3, std or (1.0,) * 3, layer, labels, size)
    elif not (mean is None and std is None and size is None and labels is None):
        raise UserError("mean, std, size and labels are for a plain nn.Module; a checkpoint brings its own")
    elif str(model).startswith("torchvision:"):
        classifier = checkpoints.torchvision(str(model).partition(":")[2], layer)
    else:
        classifier = checkpoints.transformers(str(model), revision, layer)
    classifier.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()
    return classifier.computing(precision, channels_last)
