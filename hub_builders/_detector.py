"""Detect objects in images with torchvision's pretrained Faster R-CNN, and store all detections in a file.

The file has one JSON object per line with the keys `what` (image) and `found` (ids of the COCO categories detected with
a confidence above the threshold). Images that are in the file are not processed again, so an interrupted pass can be
resumed, and a rebuild needs no detector.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from saliency_bench.errors import UserError, one_line
from saliency_bench.utils.progress import bar

CONFIDENCE = 0.5
REQUIREMENT = "torchvision's Faster R-CNN weights (160 MB, downloaded once) and, for all of COCO, a GPU or several days"
Look = Callable[[np.ndarray], list[int]]


def seen(
    file: Path, pictures: Iterable[tuple[str, Callable[[], np.ndarray | None]]], total: int
) -> dict[str, list[int]]:
    """Return {image name: ids of the COCO categories that are detected with a confidence above `CONFIDENCE`}.

    Unreadable images have no entry.

    Args:
        file: File of detections. Images that are in the file are not processed again.
        pictures: (name, function) for each image. The function returns the image as uint8 (H, W, 3), and is called only
            if the name is not in the file.
        total: Number of images.
    """
    known = _read(file)
    look: Look | None = None
    try:
        answers = file.open("a", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write the detections to {file}: {error.strerror}; make it writable") from error
    with answers as lines:
        for name, make in bar(pictures, desc="detecting objects", unit=" images", total=total, leave=False):
            if name in known or (picture := make()) is None:
                continue
            look = look or faster_rcnn()
            known[name] = look(picture)
            lines.write(json.dumps({"what": name, "found": known[name]}) + "\n")
    return known


def _read(file: Path) -> dict[str, list[int]]:
    known: dict[str, list[int]] = {}
    for line in file.read_bytes().splitlines() if file.is_file() else []:
        try:
            entry = json.loads(line)
            known[str(entry["what"])] = [int(category) for category in entry["found"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # the line of an interrupted pass is incomplete, so the image is processed again
    return known


def faster_rcnn() -> Look:
    """Load the detector, and return it as a function.

    Raises:
        UserError: The weights cannot be loaded.
    """
    import torch
    from torchvision.models import detection

    weights = detection.FasterRCNN_ResNet50_FPN_Weights.COCO_V1
    try:
        state = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except Exception as error:  # no connection, no disk space, or a wrong hash
        raise UserError(
            f"--detector needs {REQUIREMENT}: {one_line(error)}; pass --no-detector to build without it"
        ) from error
    model = detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=91)
    model.load_state_dict(state)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.eval().requires_grad_(False).to(device)

    def look(picture: np.ndarray) -> list[int]:
        image = torch.from_numpy(picture.copy()).permute(2, 0, 1).to(device).float() / 255
        output = model([image])[0]
        return sorted(set(output["labels"][output["scores"] > CONFIDENCE].tolist()))

    return look
