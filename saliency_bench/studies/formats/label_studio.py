"""Label Studio: `tasks.json` with brush masks, which its import and `label_studio_sdk.converter.brush` read.

A brush mask is the picture (H, W, 4) of bytes, the mask in all four channels (0 or 255), as run lengths in a stream of
bits: the number of bytes (32 bits), the size of a word less 1 (5), four sizes of a length less 1 (4 each); then, until
all bytes are there, either 1, the choice of a size (2), the length less 1 (as many bits as chosen), and one byte that
is repeated; or 0, choice, length less 1, and so many bytes.

An annotation without a result may be one that nobody has drawn; where it says that there is no region, `no_region`
beside it holds the height and width of the image.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from saliency_bench.errors import UserError, one_line
from saliency_bench.studies.formats.regions import Drawn, Region, check_size, file_in, masks_of
from saliency_bench.utils.files import parse_json, read_bytes

SIZES = (3, 4, 8, 16)  # bits of a length
CHANNELS = 4
LARGEST = 2**30  # bytes


def check(drawn: Sequence[Drawn]) -> None:
    """Accept everything: every name can be written."""


def write(out: Path, drawn: Sequence[Drawn]) -> None:
    """Write tasks.json and the configuration of a project."""
    tasks: dict[str, dict[str, Any]] = {}
    for entry in drawn:
        task = tasks.setdefault(
            entry.image_id, {"data": {"image": entry.image_id, "label": entry.label}, "annotations": []}
        )
        empty = {} if entry.mask.any() else {"no_region": list(entry.mask.shape)}
        task["annotations"].append({"completed_by": {"email": entry.person}, "result": _result(entry)} | empty)
    (out / "tasks.json").write_text(json.dumps(list(tasks.values())), encoding="utf-8")
    (out / "labelling_config.xml").write_text(_config(drawn), encoding="utf-8")


def _result(entry: Drawn) -> list[dict[str, Any]]:
    """Return a mask as results of an annotation."""
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


def _config(drawn: Sequence[Drawn]) -> str:
    """Return the configuration of a project with these labels."""
    from xml.sax.saxutils import quoteattr

    labels = "".join(f"    <Label value={quoteattr(label)}/>\n" for label in sorted({entry.label for entry in drawn}))
    brush = f'  <BrushLabels name="tag" toName="image">\n{labels}  </BrushLabels>\n'
    return f'<View>\n  <Image name="image" value="$image"/>\n{brush}</View>\n'


def encode(mask: np.ndarray) -> np.ndarray:
    """Return uint8 (n,), the run lengths of a bool mask (H, W)."""
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
    bits += "0" * (8 - len(bits) % 8)  # a whole byte where none would be needed, as their converter does
    return np.packbits(np.frombuffer(bits.encode(), np.uint8) - ord("0"))


def decode(stream: Iterable[int], height: int, width: int) -> np.ndarray:
    """Return bool (H, W): where the last channel, which is what is shown, is not 0.

    Raises:
        UserError: The stream is of another size.
    """
    broken = UserError("a brush mask is damaged, or of another size than its image; export the annotations again")
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


def read(path: Path, person: str) -> dict[str, np.ndarray]:
    """Return {image: mask} of an export as JSON; of several regions of an image, all together."""
    path = file_in(path, "tasks.json")
    try:
        tasks = parse_json(read_bytes(path, LARGEST))
        return masks_of(_named([region for task in tasks for region in _regions(task)]), person, path)
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} cannot be read as Label Studio's JSON ({one_line(error)}); export it again") from None


def _regions(task: Any) -> Iterator[Region]:
    """Yield the regions of a task."""
    name = str(task["data"]["image"])
    for annotation in task["annotations"]:
        person = _person(annotation)
        if annotation.get("no_region"):
            yield Region(person, name, partial(np.zeros, check_size(*annotation["no_region"]), bool))
        for result in annotation["result"]:
            if result.get("type") == "brushlabels":
                size = check_size(result["original_height"], result["original_width"])
                yield Region(person, name, partial(decode, result["value"]["rle"], *size))


def _person(annotation: dict[str, Any]) -> str:
    """Return a pseudonym of ours, or the account of Label Studio as its address or number; "" without one."""
    account = annotation.get("completed_by")
    if isinstance(account, dict):
        account = account.get("email") or account.get("id")
    return "" if account is None else str(account)


def _named(regions: list[Region]) -> list[Region]:
    """Return regions of nobody named, where a single account of Label Studio drew all: --person says who it is.

    Of several accounts, an address is what is before its @, where that is one person's, as --person has no @.
    """
    people = {region.person for region in regions}
    if len(people) == 1 and all("@" in region or region.isdecimal() for region in people):
        return [replace(region, person="") for region in regions]
    short = Counter(region.partition("@")[0] for region in people)
    names = {
        region: start if short[start := region.partition("@")[0]] == 1 else region.replace("@", ".")
        for region in people
    }
    return [replace(region, person=names[region.person]) for region in regions]
