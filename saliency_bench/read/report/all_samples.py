"""Page of all samples of a run with filters: a small HTML file, and a folder with one picture per sample.

A picture contains the image and the map of every explainer side by side, drawn from the thumbnails that a run stores.
The page cuts each picture into tiles and adds samples while the user scrolls, so the page opens immediately for any
number of samples. The page works as a local file and loads nothing except the pictures.
"""

import json
from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from markupsafe import Markup
from PIL import Image

from saliency_bench.data.fingerprints import fingerprint
from saliency_bench.data.frames import AtHand
from saliency_bench.data.loading import load_dataset
from saliency_bench.errors import UserError, without_controls
from saliency_bench.read.finished_run import Run
from saliency_bench.read.manifest import read_manifest
from saliency_bench.read.parts import RunStore, thumbnails
from saliency_bench.read.records import PREDICTIONS, read_columns
from saliency_bench.read.report.templates import render, source
from saliency_bench.read.report.titles import metric_title
from saliency_bench.read.report.words import count
from saliency_bench.read.run_folder import samples_of
from saliency_bench.utils.files import write_text, write_with
from saliency_bench.utils.overlays import LEVELS, heat_map, overlay

LONGEST = 96  # pixels of a tile's longer side
BLOCK = 8  # pixels of a JPEG block; tiles of whole blocks do not affect each other
MOST = 5000  # largest number of samples with pictures
DIGITS = 3  # decimals of scores


def samples_place(page: Path) -> Path:
    """Return the path of the page that shows all samples of a report. Its folder of pictures has the same stem."""
    return page.with_name(f"{page.stem}-samples.html")


def write_samples(run: Run, page: Path, data: object = None) -> Path:
    """Write the page of all samples of a run next to its report, and return its path.

    Args:
        run: A single run, or merged runs (the thumbnails come from the first run).
        page: Path of the report.
        data: Dataset (as for `load_dataset`) whose images are shown under the maps. Defaults to the dataset of the run,
            if it is a folder that still exists.

    Raises:
        UserError: `data` cannot be loaded, or is not the dataset of the run.
    """
    place = samples_place(page)
    pictures = SamplePictures.of_run(run, data)
    folder = place.with_suffix("")
    for old in folder.glob("[0-9]*.jpg"):
        old.unlink()
    sizes = _write_pictures(run, pictures, folder)
    script = f"\n{source('samples.js')}"
    content = json.dumps(_content(run, pictures, sizes, folder.name), ensure_ascii=False, separators=(",", ":"))
    write_text(
        place,
        render(
            "samples.html.j2",
            styles=("report.css", "samples.css"),
            script=Markup(script),
            script_digest=b64encode(sha256(script.encode()).digest()).decode(),
            content=Markup(without_controls(content).replace("<", "\\u003c")),
            model=run.summary["model"],
            dataset=run.summary["dataset"],
            total=len(run.scores.ids),
            report=page.name,
            missing=_missing(run, pictures),
        ),
    )
    return place


@dataclass(frozen=True)
class SamplePictures:
    """Pictures and maps that can be drawn.

    Attributes:
        maps: {explainer id: {image id: levels of `heat_map` (h, w)}}.
        images: Dataset; None if it was not found.
        kept: {image id: image (H, W, 3)} of the samples whose image the run stored.
        geometry: Resizing and cropping of the classifier.
    """

    maps: dict[str, dict[str, np.ndarray]]
    images: AtHand | None
    kept: dict[str, np.ndarray]
    geometry: dict[str, Any]

    @classmethod
    def of_run(cls, run: Run, data: object) -> "SamplePictures":
        """Return the pictures of a run."""
        kept = dict(zip(map(str, run.examples.get("ids", [])), run.examples.get("images", []), strict=False))
        if run.identity is None:
            return cls({}, None, kept, {})
        manifest = read_manifest(run.folder)
        parts = RunStore(run.folder, run.identity).thumbnails.parts()
        parts = [part for part in parts if part.is_whole()]
        table = read_columns(run.folder / "predictions.parquet", ["image_id"], PREDICTIONS)
        ids = table["image_id"].to_pylist()
        shown = set(run.scores.ids[:MOST])
        position_of = {position: image_id for position, image_id in enumerate(ids) if image_id in shown}
        maps = {
            row.explainer_id: {
                position_of[position]: levels
                for position, levels in thumbnails(parts, row.explainer_id, position_of).items()
            }
            for row in run.table.rows
        }
        images = _dataset(manifest.spec.dataset if data is None else data, run, is_given=data is not None)
        return cls({key: of_rows for key, of_rows in maps.items() if of_rows}, images, kept, run.identity.geometry)

    def image(self, image_id: str) -> Image.Image | None:
        """Return an image as the classifier sees it; None if the image is not available."""
        if image_id in self.kept:
            return Image.fromarray(self.kept[image_id])
        return self.images.picture(image_id, self.geometry) if self.images else None


def _dataset(data: Any, run: Run, *, is_given: bool) -> AtHand | None:
    """Return the dataset of a run; None if the dataset is not a local folder.

    Raises:
        UserError: The given dataset cannot be loaded, or is not the dataset of the run.
    """
    assert run.identity is not None
    if not is_given and not (isinstance(data, str | Path) and Path(data).is_dir()):
        return None
    try:
        rows = load_dataset(data, run.identity.split)
    except UserError:
        if is_given:
            raise
        return None
    if fingerprint(rows) == run.identity.fingerprint:
        return AtHand(str(data), rows)
    if is_given:
        raise UserError(
            f"{data} does not contain the same samples as the dataset of {run.folder}; give the dataset of that run"
        )
    return None


def _write_pictures(run: Run, pictures: SamplePictures, folder: Path) -> dict[str, tuple[int, int]]:
    """Write one picture of tiles per sample, and return {image id: (width, height) of a tile}."""
    sizes: dict[str, tuple[int, int]] = {}
    shown = [row.explainer_id for row in run.table.rows if row.explainer_id in pictures.maps]
    for index, image_id in enumerate(run.scores.ids[:MOST]):
        levels = [pictures.maps[explainer_id].get(image_id) for explainer_id in shown]
        image = pictures.image(image_id)
        known = next((values for values in levels if values is not None), None)
        if image is None and known is None:
            continue
        size = _size(image.size if image is not None else known.shape[::-1])  # type: ignore[union-attr]
        small = None if image is None else image.convert("RGB").resize(size, Image.Resampling.BICUBIC)
        tiles = [small, *(_tile(values, small, size) for values in levels)]
        strip = Image.new("RGB", (size[0] * len(tiles), size[1]), (128, 128, 128))
        for number, tile in enumerate(tiles):
            if tile is not None:
                strip.paste(tile, (number * size[0], 0))
        sizes[image_id] = size
        _save(strip, folder / picture_name(index))
    return sizes


def _size(frame: tuple[int, ...]) -> tuple[int, int]:
    """Return the (width, height) of a tile for a frame (width, height), in whole blocks."""
    scale = LONGEST / max(frame)
    width, height = (max(BLOCK, round(side * scale / BLOCK) * BLOCK) for side in frame)
    return width, height


def picture_name(index: int) -> str:
    """Return the file name of a sample's picture.

    The name is the position in the run, because ids may contain any character.
    """
    return f"{index:05d}.jpg"


def _tile(levels: np.ndarray | None, image: Image.Image | None, size: tuple[int, int]) -> Image.Image | None:
    """Return a map drawn over its image, or only the map if there is no image; None if there is no map."""
    if levels is None:
        return None
    if image is not None:
        return overlay(np.asarray(image), levels / LEVELS)
    return heat_map(levels.astype(np.float32)).convert("RGB").resize(size, Image.Resampling.BILINEAR)


def _save(strip: Image.Image, path: Path) -> None:
    packed = BytesIO()
    strip.save(packed, "jpeg", quality=72, subsampling=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_with(path, lambda place: place.write_bytes(packed.getvalue()))


def _content(run: Run, pictures: SamplePictures, sizes: dict[str, tuple[int, int]], folder: str) -> dict[str, Any]:
    """Return the data for the page: explainers, metrics, classes, and a list for each sample.

    The list is [id, index of the label, index of the prediction, confidence, whether the prediction is correct, scores
    by explainer and metric, (width, height) of a tile or 0]. Scores are rounded; missing scores are null.
    """
    columns = [column for column in run.table.columns if not run.table.cells_of_column(column)[0][1].aggregate]
    cells = [[run.table.cell(row, column) for column in columns] for row in run.table.rows]
    about = samples_of(run.folder, pa.array(run.scores.ids, pa.string()), run.cells[0].cell_id)
    labels = sorted({str(facts[key]) for facts in about.values() for key in ("label", "prediction") if facts.get(key)})
    number_of = {label: number for number, label in enumerate(labels)}
    scores_of = {cell.cell_id: _rounded(run.scores.values[cell.cell_id]) for of_row in cells for cell in of_row if cell}
    samples = []
    for index, image_id in enumerate(run.scores.ids):
        facts = about.get(image_id, {})
        scores = [[scores_of[cell.cell_id][index] if cell else None for cell in of_row] for of_row in cells]
        confidence = facts.get("confidence")
        samples.append([
            image_id, number_of.get(str(facts.get("label"))), number_of.get(str(facts.get("prediction"))),
            None if confidence is None else round(confidence, DIGITS), facts.get("correct"), scores,
            sizes.get(image_id, 0),
        ])  # fmt: skip
    return {
        "folder": folder,
        "explainers": [[row.name, row.baseline, row.explainer_id in pictures.maps] for row in run.table.rows],
        "metrics": [[metric_title(column.name), column.name, column.higher_is_better] for column in columns],
        "labels": labels,
        "samples": samples,
    }


def _rounded(values: np.ndarray) -> list[float | None]:
    return [round(value, DIGITS) if np.isfinite(value) else None for value in values.tolist()]


def _missing(run: Run, pictures: SamplePictures) -> list[str]:
    """Return sentences about missing parts of the page and how to add them."""
    lines = []
    if len(run.scores.ids) > MOST:
        lines.append(f"Pictures are shown for the first {count(MOST)} samples.")
    if without := [row.name for row in run.table.rows if row.explainer_id not in pictures.maps]:
        lines.append(
            f"The run has no thumbnails of the maps of {', '.join(without)}; start the run again to create them."
        )
    if pictures.images is None:
        kept = f"Only the images of {count(len(pictures.kept))} samples are stored with the run"
        lines.append(f"{kept}; give the dataset with --data to see all images under the maps.")
    return lines
