"""Read the published Saliency-Bench release of gender-xai and environment-xai.

The release contains `image/<class>/*.jpg`, and `attention_label/*.csv` with the columns `img_idx` (file name) and
`attention` (a JSON array of 224 x 224 numbers in [0, 1], or 0 to 255). A cell counts as marked if its value is at least
0.5 (or 128). The array is scaled to the size of the stored image with nearest-neighbour interpolation. If EXIF rotates
the image, the array is rotated too.
"""

import csv
import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import numpy as np
from PIL import Image

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError
from saliency_bench.hub_builders import _examples
from saliency_bench.hub_builders._source import FIELD, base_of, entries, mask_or_none, picture_of, spread
from saliency_bench.utils.pictures import Picture, UnreadableError

SIDE = 224
HOME = "the Saliency-Bench release (Google Drive), with image/CLASS/*.jpg and attention_label/*.csv"
PARTS = ("image", "attention_label")
Location = tuple[Path, int, int]  # file, first byte, number of bytes


def root_in(source: Path) -> Path | None:
    """Return the folder of the release in a source, or None if the source does not contain the release."""
    root = base_of(source, *PARTS)
    return root if all((root / name).is_dir() for name in PARTS) else None


def jobs(root: Path, log: BuildLog, aliases: dict[str, str]) -> Iterator[Job]:
    """Yield one job per image, ordered by class folder and name.

    Args:
        root: Root folder of the release.
        log: Build log, which records what is left out.
        aliases: {name of the class folder in lower case: label}.
    """
    attention = attention_of(root / "attention_label", log)
    seen: set[str] = set()
    listed = []
    for folder in entries(root / "image"):
        if folder.is_dir() and folder.name.lower() not in aliases:
            for path in entries(folder):
                log.leave_out(path.stem, "image", f"its folder {folder.name} is not a class")
            continue
        for path in entries(folder):
            if path.suffix.lower() not in (".jpg", ".jpeg", ".png") or path.name.startswith("."):
                log.leave_out(path.name, "image", "the file name has no image extension")
            elif path.stem in seen:
                log.leave_out(
                    f"{folder.name}/{path.name}", "image", "another image has this name; the first one is used"
                )
            else:
                seen.add(path.stem)
                listed.append((path, aliases[folder.name.lower()]))
    for stem in sorted(set(attention) - seen):
        log.leave_out(stem, "mask", "there is no image for this attention label")
    log.expected = len(listed)
    for path, label in listed:
        yield Job(sample_of, path, label, attention.get(path.stem))


def attention_of(folder: Path, log: BuildLog) -> dict[str, Location]:
    """Return {image name without extension: location of the row}. Rows are large, so they are read on demand."""
    csv.field_size_limit(max(csv.field_size_limit(), FIELD))
    locations: dict[str, Location] = {}
    for path in entries(folder):
        if path.suffix.lower() != ".csv" or path.name.startswith("."):
            continue
        try:
            for name, location in _rows(path):
                stem = Path(name.replace("\\", "/")).stem
                if stem in locations:
                    log.remark(
                        stem, f"{path.name}: there is a second attention label for this image; the first one is used"
                    )
                locations.setdefault(stem, location)
        except (OSError, ValueError, csv.Error) as error:
            raise UserError(
                f"{path} cannot be read as a table with the columns img_idx and attention: {error}; download the "
                "source again and "
                f"unpack it: {HOME}"
            ) from error
    return locations


def _rows(path: Path) -> Iterator[tuple[str, Location]]:
    """Yield (image name, location of the row) for each row of a table."""
    with path.open("rb") as file:
        ends = [0]

        def texts() -> Iterator[str]:
            for line in file:
                ends.append(ends[-1] + len(line))
                yield line.decode("utf-8-sig" if len(ends) == 2 else "utf-8")

        reader = csv.reader(texts())
        columns = next(reader, [])
        if not {"img_idx", "attention"} <= set(columns):
            raise ValueError("the columns img_idx and attention are missing")
        start = ends[-1]
        for row in reader:
            if len(row) == len(columns):
                location = (path, start, ends[-1] - start)
                yield f"{row[columns.index('img_idx')]}", location
            start = ends[-1]
            del ends[:-1]


def sample_of(log: BuildLog, path: Path, label: str, location: Location | None) -> dict | None:
    """Return the sample of an image, or log the reason and return None if the image is left out."""
    picture = picture_of(log, path.stem, path)
    if picture is None:
        return None
    mask = mask_or_none(log, path.stem, lambda: marked(location, picture))
    return {"image_id": path.stem, "image": picture, "label": label, "mask": mask}


def marked(location: Location | None, picture: Picture) -> np.ndarray:
    """Return the pixels that annotators marked, bool (H, W)."""
    if location is None:
        raise UnreadableError("no attention label")
    path, start, count = location
    with path.open("rb") as file:
        header = next(csv.reader([file.readline().decode("utf-8-sig")]))
        file.seek(start)
        row = next(csv.reader(StringIO(file.read(count).decode(), newline="")))
    try:
        values = np.array(json.loads(row[header.index("attention")]), np.float64)
    except (ValueError, TypeError, RecursionError):
        raise UnreadableError("its attention label is not a JSON array of numbers") from None
    if values.size == SIDE * SIDE:
        values = values.reshape(SIDE, SIDE)
    if values.shape != (SIDE, SIDE) or not np.isfinite(values).all():
        raise UnreadableError(f"its attention label does not have {SIDE} x {SIDE} numbers")
    return spread(values / (255 if values.max() > 1 else 1) >= 0.5, picture)


def example(folder: Path, count: int, side: int, classes: tuple[str, str]) -> None:
    """Write an example source in the raw layout: `count` samples with images of about `side` x `side` pixels."""
    rows: dict[str, list[tuple[str, str]]] = {name: [] for name in classes}
    for index in range(count):
        name = classes[index % 2]
        mask = _examples.picture(folder / f"image/{name}/{index:04d}.jpg", index + 24, side)
        large = np.asarray(Image.fromarray(mask).resize((224, 224), Image.Resampling.NEAREST))
        rows[name].append((f"{index:04d}.jpg", json.dumps(large.astype(int).tolist(), separators=(",", ":"))))
    (folder / "attention_label").mkdir()
    for name, listed in rows.items():
        with (folder / f"attention_label/{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("img_idx", "attention"), *listed])
