"""Find regions with a network of the Segment Anything family (Kirillov et al., 2023), stored in two ONNX files.

The encoder is run once per image. Its input is float32 (1, 3, S, S): the image with its longest side scaled to S
pixels, normalised with ImageNet's mean and standard deviation times 255, and padded with zeros at the bottom and on the
right. The first output is the embedding. The decoder can have the following inputs. Their names are those in the export
script of Segment Anything:

    image_embeddings   the embedding; an input with any other name gets the encoder's output with that name
    point_coords       float32 (1, N + 1, 2), in pixels of the padded image; the last point is padding
    point_labels       float32 (1, N + 1), 1 for the region, 0 for the background, -1 for the padding point
    mask_input, has_mask_input   zeros
    orig_im_size       float32 (2,), height and width

The decoder returns masks (1, K, h, w), whose positive pixels belong to the region, and optionally `iou_predictions` (1,
K), which are used to select the best mask. If the masks do not have the same size as the image, they refer to the
padded image.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from saliency_bench.errors import UserError, one_line
from saliency_bench.registry import install_hint
from saliency_bench.studies.strokes import Stroke

MEAN = np.array([123.675, 116.28, 103.53], np.float32)
STD = np.array([58.395, 57.12, 57.375], np.float32)
PER_STROKE = 5  # maximum number of points, evenly spaced along a stroke
EMBEDDINGS_KEPT = 16  # number of cached embeddings, 4 MB each
PROMPTS = ("point_coords", "point_labels", "mask_input", "has_mask_input", "orig_im_size")


class SegmentAnything:
    """Finds a region from points, with an encoder network and a decoder network.

    Args:
        encoder: An ONNX file.
        decoder: An ONNX file.

    Raises:
        UserError: Onnxruntime is not installed, or a file contains no suitable network.
    """

    def __init__(self, encoder: str | Path, decoder: str | Path):
        self._encoder, self._decoder = _session(encoder), _session(decoder)
        inputs = self._encoder.get_inputs()
        shape = inputs[0].shape if len(inputs) == 1 else []
        if len(shape) != 4 or shape[1] != 3 or type(shape[2]) is not int or shape[2] != shape[3]:
            raise UserError(f"{encoder} is not an encoder; use a network whose only input is an image (1, 3, S, S)")
        self._side = shape[2]
        self._outputs = [output.name for output in self._encoder.get_outputs()]
        needed = {entry.name: entry for entry in self._decoder.get_inputs()}
        strange = sorted(set(needed) - {*PROMPTS, "image_embeddings", *self._outputs})
        if strange or "point_coords" not in needed:
            raise UserError(
                f"{decoder} needs the inputs {', '.join(needed)}; use a decoder from the export script of Segment "
                "Anything"
            )
        self._needed = needed
        self._embedding = lru_cache(EMBEDDINGS_KEPT)(self._embed)

    def __call__(self, file: Path, strokes: Sequence[Stroke]) -> np.ndarray:
        """Return the region, bool (H, W), that the strokes mark. It has the same size as the image."""
        (width, height), outputs = self._embedding(file)
        scale = self._side / max(width, height)
        points = [(x * scale, y * scale, int(stroke.add)) for stroke in strokes for x, y in _along(stroke)]
        points.append((0.0, 0.0, -1))
        mask_shape = [side if type(side) is int else 1 for side in getattr(self._needed.get("mask_input"), "shape", ())]
        sent = outputs | {
            "image_embeddings": outputs[self._outputs[0]],
            "point_coords": np.array([[point[:2] for point in points]], np.float32),
            "point_labels": np.array([[point[2] for point in points]], np.float32),
            "mask_input": np.zeros(mask_shape, np.float32),
            "has_mask_input": np.zeros(1, np.float32),
            "orig_im_size": np.array([height, width], np.float32),
        }
        names = [output.name for output in self._decoder.get_outputs()]
        given = {name: sent[name] for name in self._needed}
        try:
            made: dict[str, np.ndarray] = dict(zip(names, self._decoder.run(None, given), strict=True))
        except Exception as error:  # onnxruntime raises its own exception types
            raise UserError(f"the decoder failed ({one_line(error)})") from None
        masks = made["masks" if "masks" in made else names[0]][0]
        best = int(np.argmax(made["iou_predictions"][0])) if "iou_predictions" in made else 0
        return self._in_size(masks[best], width, height)

    def _embed(self, file: Path) -> tuple[tuple[int, int], dict[str, np.ndarray]]:
        """Run the encoder on an image. Return ((width, height) of the image, {name: output of the encoder})."""
        with Image.open(file) as opened:
            picture = opened.convert("RGB")
        scale = self._side / max(picture.size)
        small = picture.resize([max(1, round(side * scale)) for side in picture.size], Image.Resampling.BILINEAR)
        padded = np.zeros((1, 3, self._side, self._side), np.float32)
        values = (np.asarray(small, np.float32) - MEAN) / STD
        padded[0, :, : small.height, : small.width] = values.transpose(2, 0, 1)
        try:
            made = self._encoder.run(None, {self._encoder.get_inputs()[0].name: padded})
        except Exception as error:  # onnxruntime raises its own exception types
            raise UserError(f"the encoder failed ({one_line(error)})") from None
        return picture.size, dict(zip(self._outputs, made, strict=True))

    def _in_size(self, mask: np.ndarray, width: int, height: int) -> np.ndarray:
        """Resize a mask of logits to the size of the image and threshold it, bool (height, width)."""
        if mask.shape == (height, width):
            return mask > 0
        padded = Image.fromarray(np.asarray(mask, np.float32))
        part = padded.width * width / max(width, height), padded.height * height / max(width, height)
        shown = padded.resize((width, height), Image.Resampling.BILINEAR, box=(0, 0, *part))
        return np.asarray(shown) > 0


def _session(path: str | Path) -> Any:
    """Load a network so that it runs on the CPU.

    Raises:
        UserError: Onnxruntime is not installed, or the file contains no network.
    """
    if not Path(path).is_file():
        raise UserError(f"there is no file {path}; --segment requires two ONNX files, an encoder and a decoder")
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise UserError(f"--segment with files needs onnxruntime: {install_hint('onnx')}") from error
    try:
        return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises its own exception types
        raise UserError(f"{path} cannot be read as an ONNX network ({one_line(error)})") from None


def _along(stroke: Stroke) -> list[tuple[float, float]]:
    """Select up to `PER_STROKE` points of a stroke, including both ends."""
    places = np.linspace(0, len(stroke.points) - 1, min(PER_STROKE, len(stroke.points))).round().astype(int)
    return [stroke.points[place] for place in places]
