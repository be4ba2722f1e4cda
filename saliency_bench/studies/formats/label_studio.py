"""Label Studio format: `tasks.json` with brush masks.

Label Studio and `label_studio_sdk.converter.brush` can import it.

Exports in JSON and JSON-MIN format can be read. All region types that have an area are supported: brush, bitmask,
polygon, and (possibly rotated) rectangle and ellipse. Coordinates are percentages of the image's width and height,
after its EXIF rotation is applied. A rectangle is rotated around its upper left corner, an ellipse around its centre.

A brush mask is an image (H, W, 4) of bytes, with the mask in all four channels (0 or 255). It is stored as run lengths
in a stream of bits. The header contains the number of bytes (32 bits), the word size minus 1 (5 bits) and four length
sizes minus 1 (4 bits each). Blocks follow until all bytes are written. A block that starts with 1 contains the index of
a length size (2 bits), the length minus 1 (with that size) and one byte, which is repeated. A block that starts with 0
contains the index, the length minus 1 and a sequence of bytes of this length.

If an annotation has no result, this can mean that nobody has answered. For the answer "no region", the additional field
`no_region` contains the height and width of the image.
"""

import json
from base64 import b64decode
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from saliency_bench.errors import UserError, one_line
from saliency_bench.studies.formats.regions import PersonMask, PersonRegions, Region, check_size, file_in, masks_of
from saliency_bench.utils.files import parse_json, read_bytes
from saliency_bench.utils.outlines import box, ellipse, polygon
from saliency_bench.utils.pictures import ENDINGS, UnreadableError
from saliency_bench.utils.pictures import decode as decoded

SIZES = (3, 4, 8, 16)  # length sizes in bits
CHANNELS = 4
LARGEST = 2**30  # maximum size of a file in bytes
# {key in the value of a region: type of the region}; the first matching key determines the type.
KINDS = {
    "brush": ("rle",),
    "bitmask": ("imageDataURL",),
    "video": ("sequence",),
    "vector": ("vertices",),
    "ellipse": ("x", "y", "radiusX", "radiusY"),
    "polygon": ("points",),
    "rectangle": ("x", "y", "width", "height"),
    "keypoint": ("x", "y"),
}
WITHOUT_AREA = ("keypoint", "video")
# Results that are not regions: they describe the image, or a region that has a separate result.
NO_REGIONS = ("choices", "rating", "textarea", "number", "taxonomy", "datetime", "pairwise", "ranker", "relation")
BOOKKEEPING = ("id", "annotation_id", "annotator", "created_at", "updated_at", "lead_time", "agreement")  # in JSON-MIN


def check(drawn: Sequence[PersonMask]) -> None:
    """Accept all names, because Label Studio can store any name."""


def write(out: Path, drawn: Sequence[PersonMask]) -> None:
    """Write tasks.json and the configuration of a Label Studio project."""
    tasks: dict[str, dict[str, Any]] = {}
    for entry in drawn:
        task = tasks.setdefault(
            entry.image_id, {"data": {"image": entry.image_id, "label": entry.label}, "annotations": []}
        )
        empty = {} if entry.mask.any() else {"no_region": list(entry.mask.shape)}
        task["annotations"].append({"completed_by": {"email": entry.person}, "result": _result(entry)} | empty)
    (out / "tasks.json").write_text(json.dumps(list(tasks.values())), encoding="utf-8")
    (out / "labelling_config.xml").write_text(_config(drawn), encoding="utf-8")


def _result(entry: PersonMask) -> list[dict[str, Any]]:
    if not entry.mask.any():
        return []
    height, width = entry.mask.shape
    value = {"format": "rle", "rle": encode(entry.mask).tolist(), "brushlabels": [entry.label]}
    return [
        {
            "type": "brushlabels",
            "from_name": "tag",
            "to_name": "image",
            "original_width": width,
            "original_height": height,
            "image_rotation": 0,
            "value": value,
        }
    ]


def _config(drawn: Sequence[PersonMask]) -> str:
    from xml.sax.saxutils import quoteattr

    labels = "".join(f"    <Label value={quoteattr(label)}/>\n" for label in sorted({entry.label for entry in drawn}))
    brush = f'  <BrushLabels name="tag" toName="image">\n{labels}  </BrushLabels>\n'
    return f'<View>\n  <Image name="image" value="$image"/>\n{brush}</View>\n'


def encode(mask: np.ndarray) -> np.ndarray:
    """Encode a mask, bool (H, W), as run lengths, a stream of bytes uint8 (n,)."""
    flat = mask.ravel()
    starts = np.concatenate([[0], np.flatnonzero(flat[1:] != flat[:-1]) + 1, [flat.size]])
    parts = [f"{flat.size * CHANNELS:032b}{7:05b}" + "".join(f"{size - 1:04b}" for size in SIZES)]
    for start, end in pairwise(starts):
        byte = "11111111" if flat[start] else "00000000"
        left = int(end - start) * CHANNELS
        while left:
            length = min(left, 2**16)
            choice = next(index for index, size in enumerate(SIZES) if length <= 2**size)
            parts.append(f"1{choice:02b}{length - 1:0{SIZES[choice]}b}{byte}")
            left -= length
    bits = "".join(parts)
    bits += "0" * (8 - len(bits) % 8)  # adds a byte even if no padding is needed, like Label Studio's converter
    return np.packbits(np.frombuffer(bits.encode(), np.uint8) - ord("0"))


def decode(stream: Iterable[int], height: int, width: int) -> np.ndarray:
    """Decode run lengths into a mask, bool (H, W). Pixels are marked if the last (displayed) channel is not 0.

    Raises:
        UserError: The stream is damaged or has the wrong size.
    """
    broken = UserError(
        "a brush mask is damaged or does not have the same size as the image; export the annotations again"
    )
    packed = np.array(list(stream))
    if packed.ndim != 1 or packed.dtype.kind not in "iu" or len(packed) < 8 or packed.min() < 0 or packed.max() > 255:
        raise broken
    bits = "".join(map(str, np.unpackbits(packed.astype(np.uint8))))
    count, word = int(bits[:32], 2), int(bits[32:37], 2) + 1
    sizes = [int(bits[at : at + 4], 2) + 1 for at in range(37, 53, 4)]
    if count != height * width * CHANNELS or word != 8:
        raise broken
    values, at, done = np.zeros(count, np.uint8), 53, 0
    while done < count:
        if at + 3 > len(bits):
            raise broken
        repeated, size = bits[at] == "1", sizes[int(bits[at + 1 : at + 3], 2)]
        length = int(bits[at + 3 : at + 3 + size] or "0", 2) + 1
        at += 3 + size
        needed = 8 * (1 if repeated else length)
        if at + needed > len(bits) or done + length > count:
            raise broken
        read = [int(bits[place : place + 8], 2) for place in range(at, at + needed, 8)]
        values[done : done + length] = read
        at, done = at + needed, done + length
    return values.reshape(height, width, CHANNELS)[:, :, -1] > 0


def read(path: Path, person: str, selection: PersonRegions | None = None) -> dict[str, np.ndarray]:
    """Read {unit: mask} from an export in JSON or JSON-MIN format."""
    path = file_in(path, "tasks.json")
    try:
        content = parse_json(read_bytes(path, LARGEST))
        tasks = enumerate(content if isinstance(content, list) else [content])
        regions = _name([region for number, task in tasks for region in _regions(task, number)])
    except UserError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} cannot be read as a JSON export from Label Studio ({one_line(error)}); export the annotations "
            "again"
        ) from None
    return masks_of(regions, person, path, selection)


def _regions(task: Any, number: int) -> Iterator[Region]:
    if "result" in task and isinstance(task.get("task"), dict):  # cloud storage contains one file per annotation
        task = task["task"] | {"annotations": [task]}
    if "data" not in task and ("annotation_id" in task or "annotator" in task):
        task = _whole(task)
    images = _images(task)
    for _ in task.get("predictions") or []:
        yield Region("", images[0], why="prediction", is_region=False)
    annotations = task.get("annotations", task.get("completions"))
    for place, annotation in enumerate(annotations):
        person = _person(annotation)
        if annotation.get("was_cancelled") or annotation.get("skipped"):
            yield Region(person, images[0], why="cancelled annotation", is_region=False)
            for region in _of_annotation(annotation, person, images, ()):
                if region.is_region:
                    yield replace(region, mask=None, why="of a cancelled annotation")
            continue
        yield from _of_annotation(annotation, person, images, _rank(annotation, number, place))


def _whole(record: dict[str, Any]) -> dict[str, Any]:
    """Convert a JSON-MIN record (one per annotation) to a task."""
    results = [
        {"value": value, "original_width": value.get("original_width"), "original_height": value.get("original_height")}
        for values in record.values()
        for value in (values if isinstance(values, list) else [])
        if isinstance(value, dict)
    ]
    data = {name: value for name, value in record.items() if name not in BOOKKEEPING and isinstance(value, str)}
    about = {"completed_by": record.get("annotator"), "result": results}
    about |= {name: record.get(name) for name in ("created_at", "updated_at")}
    return {"data": data, "annotations": [about]}


def _images(task: dict[str, Any]) -> list[str]:
    """Return the names of a task's images, from the field `image` or the first field that looks like an image file."""
    data = task["data"]
    values = [data["image"]] if "image" in data else list(data.values())
    lists = [value if isinstance(value, list) else [value] for value in values]
    named = [list(map(str, names)) for names in lists if "image" in data or any(map(_is_picture, names))]
    if not named and task.get("file_upload"):
        named = [[str(task["file_upload"])]]
    if not named or not named[0]:
        raise UserError("a Label Studio task has no image in its data; export tasks with images")
    return named[0]


def _is_picture(name: Any) -> bool:
    return isinstance(name, str) and PurePosixPath(name.partition("?")[0] or name).suffix.lower() in ENDINGS


def _rank(annotation: dict[str, Any], number: int, place: int) -> tuple:
    """Return a key that sorts annotations. Ground truth ranks highest, then accepted annotations, then the latest."""
    reviews = annotation.get("reviews")
    accepted = any(isinstance(item, dict) and item.get("accepted") is True for item in reviews or [])
    time = str(annotation.get("updated_at") or annotation.get("created_at") or "")
    return annotation.get("ground_truth") is True, accepted, time, number, place


def _of_annotation(annotation: dict[str, Any], person: str, images: list[str], rank: tuple) -> Iterator[Region]:
    """Yield the regions in an annotation. Results with the same id form one region."""
    if annotation.get("no_region"):
        empty = partial(np.zeros, check_size(*annotation["no_region"]), bool)
        yield Region(person, images[0], empty, annotation=rank, is_region=False)
    groups: dict[Any, list[dict[str, Any]]] = {}
    for place, result in enumerate(annotation["result"]):
        groups.setdefault(str(result.get("id") or place), []).append(result)
    for results in groups.values():
        shapes = [result for result in results if _kind(result)]
        result = shapes[0] if shapes else results[0]
        name = images[result["item_index"]] if len(images) > 1 and "item_index" in result else images[0]
        kind = str(result.get("type") or "region")
        if not shapes:
            why = kind if kind in NO_REGIONS else f"of type {kind}, which has no area"
            yield Region(person, name, why=why, is_region=kind not in NO_REGIONS)
        elif _kind(result) in WITHOUT_AREA:
            yield Region(person, name, why=f"of type {_kind(result)}, which has no area")
        else:
            yield Region(person, name, partial(_mask, result), labels=_labels(results), annotation=rank)


def _kind(result: dict[str, Any]) -> str:
    value = result.get("value")
    if not isinstance(value, dict):
        return ""
    return next((kind for kind, names in KINDS.items() if all(name in value for name in names)), "")


def _labels(results: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return the labels of a region, which are in lists whose names end in "labels"."""
    values = [result["value"] for result in results if isinstance(result.get("value"), dict)]
    listed = [named for value in values for key, named in value.items() if key.endswith("labels")]
    return tuple(dict.fromkeys(str(label) for labels in listed if isinstance(labels, list) for label in labels))


def _mask(result: dict[str, Any]) -> np.ndarray:
    kind, value = _kind(result), result["value"]
    if kind not in ("brush", "bitmask", "polygon", "ellipse", "rectangle"):
        raise UserError(f"a region of type {kind} cannot be drawn; use brush, polygon, rectangle or ellipse")
    height, width = check_size(result.get("original_height"), result.get("original_width"))
    if result.get("image_rotation"):
        raise UserError(
            f"a {kind} was drawn on an image that is rotated by {result['image_rotation']} degrees in Label Studio, "
            "which is not supported; rotate the image back in Label Studio, and export again"
        )
    try:
        if kind == "brush":
            return decode(value["rle"], height, width)
        if kind == "bitmask":
            return _bitmask(value["imageDataURL"], height, width)
        if kind == "polygon":
            return polygon([(x / 100 * width, y / 100 * height) for x, y in value["points"]], height, width)
        angle = float(value.get("rotation") or 0)
        x, y = value["x"] / 100 * width, value["y"] / 100 * height
        if kind == "ellipse":
            radii = value["radiusX"] / 100 * width, value["radiusY"] / 100 * height
            return ellipse((x, y), radii, angle, height, width)
        across, down = value["width"] / 100 * width, value["height"] / 100 * height
        return polygon(box(x, y, across, down, angle, at=(x, y)), height, width)
    except UserError:
        raise
    except (ValueError, TypeError, UnreadableError) as error:
        raise UserError(f"a {kind} is damaged ({one_line(error)}); export the annotations again") from None


def _bitmask(address: str, height: int, width: int) -> np.ndarray:
    """Return the mask that a bitmask encodes: the pixels of a PNG that are not transparent."""
    alpha = np.asarray(decoded(b64decode(address.partition("base64,")[2])).convert("RGBA"))[..., 3] > 0
    if alpha.shape != (height, width):
        raise UserError("a bitmask does not have the same size as the image; export the annotations again")
    return alpha


def _person(annotation: dict[str, Any]) -> str:
    """Return the person who made an annotation.

    The result is the pseudonym in the file, or the e-mail address or number of the Label Studio account, or "".
    """
    account = annotation.get("completed_by")
    if isinstance(account, dict):
        account = account.get("email") or account.get("id")
    return "" if account is None else str(account)


def _name(regions: list[Region]) -> list[Region]:
    """If a single Label Studio account drew all regions, remove the person from them, so that --person sets the name.

    If there are several accounts, shorten each e-mail address to the part before the @ if this is unique, because
    --person does not allow @.
    """
    people = {region.person for region in regions if region.mask is not None}
    if len(people) == 1 and all("@" in region or region.isdecimal() for region in people):
        return [replace(region, person="" if region.person in people else region.person) for region in regions]
    short = Counter(region.partition("@")[0] for region in people)
    names = {
        region: start if short[start := region.partition("@")[0]] == 1 else region.replace("@", ".")
        for region in people
    }
    return [replace(region, person=names.get(region.person, region.person)) for region in regions]
