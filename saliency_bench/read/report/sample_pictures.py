"""Example samples of a report: images as data URIs, the outline of the mask, the prediction and the scores.

Maps are small and drawn over one grey copy of the image, so that a page does not repeat the image for each explainer.
"""

import numpy as np
from PIL import Image

from saliency_bench.notebook_views import data_uri
from saliency_bench.read.cell_table import ExplainerRow
from saliency_bench.read.finished_run import Run
from saliency_bench.read.report.words import number
from saliency_bench.utils.overlays import heat_map

LONGEST = 256  # pixels of the longer side of an image, to keep pages small
STRIPS = ("best", "worst")  # groups whose first sample is shown before the plots
KINDS = {
    "best": "Samples on which the explainers score best on average.",
    "worst": "Samples on which the explainers score worst on average.",
    "first": "The first samples of the run.",
    "most disputed": "Samples on which the scores of the best and the worst explainer differ most.",
}


def sample_groups(run: Run) -> list[dict]:
    """Return [{kind, about, samples}] in the order of KINDS; [] for a run without examples."""
    kinds = [str(kind) for kind in run.examples.get("kinds", [])]
    ordered = [kind for kind in dict.fromkeys([*KINDS, *kinds]) if kind in kinds]
    return [
        {
            "kind": kind,
            "about": KINDS.get(kind, ""),
            "samples": [_sample(run, index) for index, kind_of_sample in enumerate(kinds) if kind_of_sample == kind],
        }
        for kind in ordered
    ]


def split_strips(groups: list[dict]) -> tuple[list[dict], list[dict]]:
    """Return (first sample of each group in STRIPS as [{kind, sample}], groups with the remaining samples)."""
    strips = [{"kind": group["kind"], "sample": group["samples"][0]} for group in groups if group["kind"] in STRIPS]
    others = [group | {"samples": group["samples"][1:]} if group["kind"] in STRIPS else group for group in groups]
    return strips, [group for group in others if group["samples"]]


def _sample(run: Run, index: int) -> dict:
    image_id = str(run.examples["ids"][index])
    image, mask = run.examples["images"][index], run.examples["masks"][index]
    height, width = image.shape[:2]
    return run.samples.get(image_id, {}) | {
        "id": image_id,
        "width": width,
        "height": height,
        "outline": outline(mask),
        "picture": picture(Image.fromarray(image)),
        "grey": picture(Image.fromarray(np.round(image.mean(axis=2)).astype(np.uint8))),
        "overlays": [
            {
                "name": row.name,
                "picture": data_uri(heat_map(maps[index]), "png"),
                "scores": _scores(run, row, image_id),
            }
            for row in run.table.rows
            if (maps := run.examples.get(f"maps/{row.explainer_id}")) is not None
        ],
    }


def _scores(run: Run, row: ExplainerRow, image_id: str) -> list[tuple[str, str]]:
    """Return [(metric, score)] for the metrics that score individual samples."""
    index = run.scores.position.get(image_id)
    return [
        (column.name, number(None if index is None else run.scores.values[cell.cell_id][index]))
        for column in run.table.columns
        if (cell := run.table.cell(row, column)) and not cell.aggregate
    ]


def picture(image: Image.Image) -> str:
    """Return an image of at most `LONGEST` pixels as a data URI. Small images are compressed less."""
    image = image.copy()
    image.thumbnail((LONGEST, LONGEST))
    # `optimize` is not used. It needs the whole file in one buffer, which Pillow makes too small for noise.
    return data_uri(image, "jpeg", quality=82 if max(image.size) > 128 else 92, subsampling=0)


def outline(mask: np.ndarray) -> str:
    """Return the border of a mask as an SVG path in pixels, with one stroke per straight segment."""
    padded = np.pad(mask.astype(bool), 1)
    level = padded[1:, 1:-1] != padded[:-1, 1:-1]  # (H + 1, W): border above pixel (y, x)
    upright = padded[1:-1, 1:] != padded[1:-1, :-1]  # (H, W + 1): border left of pixel (y, x)
    across = [f"M{start} {y}h{length}" for y, start, length in _runs(level)]
    down = [f"M{x} {start}v{length}" for x, start, length in _runs(upright.T)]
    return "".join(across + down)


def _runs(lines: np.ndarray) -> list[tuple[int, int, int]]:
    """Return [(row, start, length)] of the runs of True in each row."""
    edges = np.diff(np.pad(lines, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    line, start = np.nonzero(edges == 1)
    _, end = np.nonzero(edges == -1)
    return list(zip(line.tolist(), start.tolist(), (end - start).tolist(), strict=True))
