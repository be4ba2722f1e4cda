"""Select images that a classifier recognises with high confidence, and combine them into grids."""

from collections import defaultdict

import numpy as np
import torch
from datasets import Dataset

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.targets.known_maps import resolved
from saliency_bench.compute.targets.label_maps import match
from saliency_bench.target_weights import probabilities, recognised
from saliency_bench.types import Images
from saliency_bench.utils.seeds import seed_of
from saliency_bench.utils.untouched import untouched

BATCH = 32


def confident(
    rows: Dataset, classifier: Classifier, names: list[str], label_map: str | None, confidence: float
) -> dict[int, list[int]]:
    """Return {class: positions of the images that are classified correctly with at least this probability}.

    Each group (such as all samples from one photograph) contributes only its first image that meets the condition.
    """
    positions: dict[int, list[int]] = defaultdict(list)
    groups = rows["group"] if "group" in rows.column_names else [None] * len(rows)
    taken = set()
    members = None
    for start in range(0, len(rows), BATCH):
        batch = classifier.prepare(rows[start : start + BATCH])
        with untouched(classifier), torch.inference_mode():
            p = probabilities(classifier(batch.images), classifier.activation).cpu().numpy()
        if members is None:
            known = resolved(label_map, names, classifier.labels, p.shape[1])
            members = match(names, classifier.labels, p.shape[1], known)
        for place, label in enumerate(batch.labels.tolist()):
            group = groups[start + place]
            if label < 0 or group in taken:
                continue
            right = np.isin(np.arange(p.shape[1]), members[label])
            sure = p[place, right].sum() if classifier.activation == "softmax" else p[place, right].max(initial=0)
            if sure >= confidence and recognised(p[place], right, classifier.activation):
                positions[label].append(start + place)
                if group is not None:
                    taken.add(group)
    return dict(positions)


def grids_of(chosen: dict[int, list[int]], size: int, count: int, seed: int) -> list[list[int]]:
    """Return the positions of the images in each grid.

    The images of a grid have different classes. Classes with the most unused images are chosen first.
    """
    left = {label: sorted(images, key=lambda index: seed_of(seed, "image", index)) for label, images in chosen.items()}
    grids: list[list[int]] = []
    while len(grids) < count:
        drawn = sorted(left, key=lambda label: (-len(left[label]), seed_of(seed, len(grids), "class", label)))[:size]
        if len(drawn) < size or not left[drawn[-1]]:
            break
        drawn.sort(key=lambda label: seed_of(seed, len(grids), "cell", label))
        grids.append([left[label].pop() for label in drawn])
    return grids


def joined(images: Images, target: int) -> tuple[np.ndarray, np.ndarray]:
    """Join n^2 images into a grid.

    Args:
        images: Images of shape (n^2, 3, h, w) in [0, 1].
        target: Index of the target's cell.

    Returns:
        The grid, uint8 (n h, n w, 3), and the mask of the target's cell, bool (n h, n w).
    """
    pixels = (images.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    side, (height, width) = round(len(pixels) ** 0.5), pixels.shape[1:3]
    grid = pixels.reshape(side, side, height, width, 3).swapaxes(1, 2).reshape(side * height, side * width, 3)
    mask, (row, column) = np.zeros(grid.shape[:2], bool), divmod(target, side)
    mask[row * height : (row + 1) * height, column * width : (column + 1) * width] = True
    return grid, mask
