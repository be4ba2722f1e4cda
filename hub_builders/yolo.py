"""Your own images with YOLO labels: one text file per image, with boxes or outlines.

    saliency-bench build yolo --images PICTURES --labels LABELS --names data.yaml --out my-data

Source: a folder of images and, for each image, a text file with the same name and one line per object. A line is
`class cx cy w h` for the centre and size of a box, or `class x1 y1 x2 y2 x3 y3 ...` for the corners of an outline or of
a rotated box. All coordinates are fractions of width and height. Poses are not supported. Poses are recognised by
`kpt_shape` in `data.yaml`, or by lines that contain a box and points with a visibility of 0, 1 or 2.

The class names are `names` in `data.yaml`, or the lines of `classes.txt`. `--images` (or `--source`) is enough if the
folder contains `data.yaml` and either `images/` and `labels/`, or `train/images/` and `train/labels/`. Folders named
train, valid or val, and test become splits, even if a number follows (train2017).
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from saliency_bench.data.jobs import BuildLog, Job
from saliency_bench.errors import UserError, one_line
from saliency_bench.hub_builders import _coco, _examples, _multilabel, _own
from saliency_bench.hub_builders._source import base_with, files_below, needed, picture_of, text_of
from saliency_bench.utils.files import read_bytes
from saliency_bench.utils.pictures import Picture, UnreadableError, turned
from saliency_bench.utils.plain_yaml import parse_yaml

VERSION = "1"
OWN_DATA = "images"
USAGE = "--images raw --labels txt --names a.yaml"
ALSO_CALLED = ("ultralytics", "yolov5", "yolov8", "darknet")
TITLE = "Images with YOLO labels"
ANNOTATORS = ("found",)
SOURCES = ("original",)
LICENSE = _own.LICENSE
REDISTRIBUTE = False
PAPER_COUNTS: dict = {}
PRIVATE = ("labels", "names")
GROUP = _multilabel.GROUP
CITATION = _own.CITATION
EXAMPLE = {"stored": True}
RULE = f"""{_multilabel.RULE} The mask is the union of the class's boxes and outlines. Boxes and outlines refer to the
upright image, as is usual in YOLO. With `stored`, they refer to the image as stored, regardless of its EXIF
orientation."""

HOME = "the images (`--images DIR`) and their labels (`--labels DIR`, `--names data.yaml`)"
NAMES = ("data.yaml", "data.yml", "dataset.yaml", "obj.names", "classes.txt")  # CVAT writes obj.names for YOLO 1.1
NOTES = "notes.json"  # written by Label Studio next to classes.txt
YAML = (".yaml", ".yml")
LARGEST = 2**24  # maximum number of bytes of a label file and of the file of class names
SLACK = 0.01  # tolerance for rounded coordinates outside the image, as in Ultralytics


def check(*, labels: str, names: str, split: str, **others: object) -> None:
    """Raise UserError if an option is invalid or names a missing file."""
    _own.check_split("yolo", split)
    if labels:
        _own.given_path(labels, "labels", folder=True)
    if names:
        _own.given_path(names, "names")


def features(classes: dict[str, list[str]]) -> dict:
    """Return the columns of the dataset. Classes are ordered by number."""
    return _multilabel.features(classes["label"])


def samples(
    source: Path | None,
    log: BuildLog,
    *,
    labels: str = "",
    names: str = "",
    classes: str = "all",
    drop: tuple[str, ...] = (),
    split: str = "",
    stored: bool = False,
) -> Iterator[Job]:
    """Yield one job per image, ordered by name.

    Args:
        source: folder with the raw data.
        log: build log, which records what is left out and why.
        labels: folder of the label files (default: labels/ next to images/ in the source, else the folder of images).
        names: data.yaml, or a text file with one name per line (default: data.yaml or classes.txt in the source).
        classes: all for one sample per class of an image, or image for one sample per image.
        drop: leave out images that show one of these classes.
        split: train, validation or test for all images, or hash to split them in the ratio 70:15:15 (default: the split
            that the folder is named after, else test).
        stored: boxes and outlines refer to the image as stored, not to the upright image.
    """
    given = needed(source, "yolo", HOME)
    base = base_with(given, *NAMES[:-1], "labels")
    images = base / "images" if (base / "images").is_dir() else base
    beside = base / "labels" if images != base and (base / "labels").is_dir() else images
    folder = _own.given_path(labels, "labels", folder=True) if labels else beside
    path = _own.given_path(names, "names") if names else _names_file(base, folder)
    _refuse_poses(path, *(base / name for name in NAMES))
    known = names_in(path)
    log.classes = {"label": [known[number] for number in sorted(known)]}
    without = _multilabel.dropped("yolo", classes, drop, log.classes["label"])
    texts = files_below(folder, ".txt")
    pictures = _own.pictures_in(images, log, used={*texts, *(base / name for name in NAMES), path})
    if not pictures:
        raise _own.no_pictures(images, log)
    _own.leave_out_beside(given, images, [folder, path, *(base / name for name in (*NAMES, NOTES))], log)
    chosen, lacking = _labels(folder, texts, pictures, log)
    log.expected = len(chosen)
    for name, image_id in _own.ids_of(pictures).items():
        if name in lacking:
            log.leave_out(image_id, "image", lacking[name])
            continue
        part = None if split == "hash" else split or _own.split_of(name) or "test"
        yield Job(samples_of, image_id, images / name, folder / chosen[name], part, known, without, classes, stored)


def samples_of(
    log: BuildLog, name: str, path: Path, label: Path, split: str | None, known: dict[int, str], without: list[str],
    classes: str, stored: bool,
) -> list[dict]:  # fmt: skip
    """Return the samples of an image, or log the reason and return [] if the image is left out."""
    try:
        objects = objects_in(label)
    except UnreadableError as error:
        log.leave_out(name, "image", str(error))
        return []
    if lost := sorted(objects.keys() - known.keys()):
        log.remark(name, f"class {lost[0]} has no name and is skipped")
    by_class = {known[number]: shapes for number, shapes in sorted(objects.items()) if number in known}
    if hidden := [label for label in without if label in by_class]:
        log.leave_out(name, "image", f"it shows a class listed in `drop` ({hidden[0]})")
        return []
    if not by_class:
        log.leave_out(name, "image", "none of its objects has a named class" if objects else "no object")
        return []
    drawn = f"; its labels are assumed to be drawn on the {'image as stored' if stored else 'upright image'}"
    picture = picture_of(log, name, path, drawn, deep=True)
    if picture is None:
        return []
    masks = {label: partial(_mask, shapes, picture, stored) for label, shapes in by_class.items()}
    further = {"split": split} if split else {}
    return [sample | further for sample in _multilabel.samples_of(log, name, picture, masks, classes)]


def _names_file(*folders: Path) -> Path:
    """Return the first existing file that, judging by its name, lists the class names.

    Raises:
        UserError: There is no such file.
    """
    for path in (folder / name for folder in folders for name in NAMES):
        if path.is_file():
            return path
    raise UserError(f"{folders[0]} has no {' or '.join(NAMES)}; pass --names FILE with the names of the classes")


def names_in(path: Path) -> dict[int, str]:
    """Read the class names from a file and return {number: name}.

    Raises:
        UserError: The file is not a valid list of names.
    """
    if path.suffix.lower() in YAML:
        names: object = _content(path).get("names")
    elif path.stat().st_size > LARGEST:
        raise UserError(
            f"{path} has more than {LARGEST:,} bytes; pass a file that contains only the names of the classes"
        )
    else:
        names = [line.strip() for line in text_of(path).rstrip().splitlines()]
        if "" in names:
            raise UserError(f"{path} line {names.index('') + 1} is empty; each line must be the name of a class")
    if isinstance(names, list):
        names = {str(number): name for number, name in enumerate(names)}
    if not names or not isinstance(names, dict):
        raise UserError(f"{path} has no list `names`; add a line such as names: [first, second]")
    for number, name in names.items():
        if not (number.isascii() and number.isdecimal() and isinstance(name, str) and name):
            raise UserError(
                f"{path}: class {one_line(number, 50)} needs a number and a name; write each class in the form `0: "
                "name`"
            )
        if not name.isprintable():
            raise UserError(f"{path}: the name of class {number} contains unprintable characters; retype it")
    if len(set(names.values())) < len(names):
        raise UserError(f"{path} lists two classes with the same name; give each class a unique name")
    return {int(number): name for number, name in names.items()}


def _refuse_poses(*paths: Path) -> None:
    """Raise UserError if a file describes poses, because their points would be mistaken for an outline."""
    for path in paths:
        if path.suffix.lower() in YAML and path.is_file() and "kpt_shape" in _content(path):
            raise UserError(
                f"{path} describes poses (kpt_shape), whose points are not outlines; export boxes or outlines (detect, "
                "segment or obb)"
            )


def _content(path: Path) -> dict[str, object]:
    """Return the content of a YAML file with all values as strings, or {} if it is not a mapping.

    Raises:
        UserError: The file cannot be read.
    """
    if path.stat().st_size > LARGEST:
        raise UserError(
            f"{path} has more than {LARGEST:,} bytes; pass a file that contains only the names of the classes"
        )
    try:
        content = parse_yaml(text_of(path), texts=True)  # read all values as text, so that `no` remains a name
    except ValueError as error:
        raise UserError(f"{path} is not YAML ({one_line(error, 200)})") from error
    return content if isinstance(content, dict) else {}


def _labels(
    folder: Path, paths: list[Path], pictures: list[str], log: BuildLog
) -> tuple[dict[str, str], dict[str, str]]:
    """Return ({image: label file}, {image: why it has no label file}). Label files without an image are logged.

    Raises:
        UserError: The files cannot be matched.
    """
    texts = [path.relative_to(folder).as_posix() for path in paths if path.name != NAMES[-1]]
    if not texts:
        raise UserError(
            f"{folder} has no label files (.txt); pass the folder that contains them as --labels; if the images are in "
            "class folders, run `saliency-bench build folder` instead"
        )
    meant = {_beside(name): name for name in pictures}
    meant = meant if len(meant) == len(pictures) else {name: name for name in pictures}
    chosen, lacking, spare = _own.masks_for(list(meant), texts, "label")
    for text in spare:
        log.remark(text, "no image has the same name as this label file")
    return {meant[name]: text for name, text in chosen.items()}, {meant[name]: why for name, why in lacking.items()}


def _beside(name: str) -> str:
    """Replace the last folder `images` in an image's path with `labels`, where YOLO expects the label file."""
    before, separator, after = f"/{name}".rpartition("/images/")
    return f"{before}/labels/{after}".lstrip("/") if separator else name


def objects_in(path: Path) -> dict[int, list[list[str]]]:
    """Read a label file, and return {class number: [remaining words of a line, ...]}.

    Raises:
        UnreadableError: The file cannot be read.
    """
    try:
        lines = read_bytes(path, LARGEST).decode("utf-8-sig").splitlines()
    except (OSError, ValueError):
        raise UnreadableError(f"its labels, {path.name}, cannot be read as text") from None
    objects: dict[int, list[list[str]]] = {}
    for place, line in enumerate(lines, 1):
        if not (words := line.split()):
            continue
        number = words[0].removesuffix(".0")  # some programs write all numbers as floats
        if not (number.isascii() and number.isdecimal()):
            raise UnreadableError(f"line {place} of its labels does not begin with a class number")
        objects.setdefault(int(number), []).append(words[1:])
    return objects


def _mask(shapes: list[list[str]], picture: Picture, stored: bool) -> np.ndarray:
    """Draw the union of the objects on the upright image, bool (H, W).

    Raises:
        UnreadableError: The label file cannot be read.
    """
    frame = picture.stored if stored else (picture.height, picture.width)
    mask = np.any([shape_of(words, *frame) for words in shapes], axis=0)
    return turned(mask, picture.orientation) if stored else mask


def shape_of(words: list[str], height: int, width: int) -> np.ndarray:
    """Draw an outline or a box as a mask, bool (H, W). A pixel is inside a box if its centre is.

    Raises:
        UnreadableError: The line cannot be read.
    """
    try:
        values = [float(word) for word in words]
    except ValueError:
        raise UnreadableError("its labels have coordinates that are not numbers") from None
    if _is_pose(values):
        raise UnreadableError(
            "its labels are poses (a box, and keypoints with visibility flags), not boxes or outlines"
        )
    if not all(-SLACK <= value <= 1 + SLACK for value in values):
        raise UnreadableError("its label coordinates are not fractions (0 to 1) of the image's width and height")
    if len(values) == 4:
        x, y, across, down = values
        box = [(x - across / 2) * width, (y - down / 2) * height, across * width, down * height]
        return _own.boxed(box, height, width)
    if len(values) < 6 or len(values) % 2:
        raise UnreadableError(
            f"a line of its labels has {len(values)} coordinates; a box has 4, and an outline has 6, 8, 10 ..."
        )
    outline = [value * (height if place % 2 else width) for place, value in enumerate(values)]
    return _coco.mask_of([outline], height, width)


def _is_pose(values: list[float]) -> bool:
    """Return whether the numbers in a line are a box and points (x, y, visibility) rather than an outline.

    A box with two points has as many numbers as an outline with five corners. For such a line, the points must also be
    inside the box.
    """
    if len(values) < 10 or len(values) % 3 != 1 or not set(values[6::3]) <= {0, 1, 2}:
        return False
    x, y, across, down = values[:4]
    points = [point for point in zip(values[4::3], values[5::3], values[6::3], strict=True) if point[2]]
    near = all(abs(px - x) <= across / 2 + SLACK and abs(py - y) <= down / 2 + SLACK for px, py, _ in points)
    return len(values) > 10 or (bool(points) and near)


def example(folder: Path, count: int, side: int) -> None:
    """Write an example source in the raw layout: `count` samples with images of about `side` x `side` pixels."""
    _examples.text(folder / "classes.txt", "box\noutline\n")
    for index in range(count):
        mask = _examples.picture(folder / f"images/{index}.jpg", index + 40, side)
        rows, columns = (np.flatnonzero(mask.any(axis)) / side for axis in (1, 0))
        top, bottom, left, right = rows[0], rows[-1] + 1 / side, columns[0], columns[-1] + 1 / side
        box = ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
        outline = (left, box[1], box[0], top, right, box[1], box[0], bottom)
        lines = [" ".join([str(kind), *map(str, shape)]) for kind, shape in enumerate((box, outline))]
        _examples.text(folder / f"labels/{index}.txt", "\n".join(lines) + "\n")
