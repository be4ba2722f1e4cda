"""Generator of the page of datasets: six samples of each dataset, the mask rule, the counts and the licence.

The samples are built from the builders' synthetic examples (`_examples.py`). The page therefore contains no real data
and is reproducible.
"""

import tempfile
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from types import ModuleType

import numpy as np
from PIL import Image

from saliency_bench import registry
from saliency_bench.data.card import group_line
from saliency_bench.data.jobs import BuildLog, samples_of
from saliency_bench.hub_builders import _examples
from saliency_bench.utils.files import write_text, write_with
from saliency_bench.utils.pictures import Picture

SIDE, SAMPLES = 128, 6
EDGE = (255, 0, 200)
HEAD = """The pictures show samples that the builders create from small synthetic sources. The mask is outlined.

| dataset | classes | samples (paper) | masks (paper) | licence | images may be published |
| --- | --- | ---: | ---: | --- | --- |
"""


def page() -> tuple[str, dict[str, Image.Image]]:
    """Return (the text of the page, {dataset: picture})."""
    rows, parts, pictures = [], [], {}
    for name in registry.names("hub_builders"):
        builder = registry.load("hub_builders", name)
        rows.append(row(name, builder))
        if getattr(builder, "DERIVED", False):  # built from images that are already shown
            parts.append(section(name, builder))
            continue
        with tempfile.TemporaryDirectory() as folder:
            source = _examples.write(name, Path(folder), SAMPLES, 96) if name in _examples.names() else None
            samples = list(samples_of(builder.samples(source, BuildLog(), **_examples.options(name)), BuildLog()))
            pictures[name] = montage(samples)
        parts.append(section(name, builder, samples))
    return HEAD + "\n".join(rows) + "\n\n" + "\n".join(parts), pictures


def row(name: str, builder: ModuleType) -> str:
    paper = dict(builder.PAPER_COUNTS)
    paper = {"samples": paper["test"]} | paper if "test" in paper else paper  # only the test split is evaluated
    counts = [f"{paper[what]:,}" if what in paper else "" for what in ("samples", "masks")]
    title, allowed = f"[{name}](#{name})", "yes" if builder.REDISTRIBUTE else "no: masks and labels only"
    return f"| {title} | {classes(builder)} | {counts[0]} | {counts[1]} | {builder.LICENSE} | {allowed} |"


def classes(builder: ModuleType) -> str:
    try:
        names = builder.features()["label"].names
    except TypeError:  # the features depend on the source
        return "from the source"
    return f"{len(names)}" if len(names) > 3 else ", ".join(names)


def section(name: str, builder: ModuleType, samples: list[dict] | None = None) -> str:
    parts = [f"## {name}", (builder.__doc__ or "").partition("\n\n")[0].strip()]
    if samples is not None:
        shown = ", ".join(f"`{sample['label']}`" for sample in chosen(samples))
        parts += [f"![six samples]({name}.png)", f"Shown: {shown}."]
    return "\n\n".join([*parts, builder.RULE, group_line(builder)]) + "\n"


def chosen(samples: list[dict]) -> list[dict]:
    """Return six samples, taking classes in turn and samples with a mask first."""
    by_class: dict[str, list[dict]] = {}
    for sample in sorted(samples, key=lambda sample: sample.get("mask") is None):
        by_class.setdefault(sample["label"], []).append(sample)
    longest = max(map(len, by_class.values()))
    turns = (listed[index] for index in range(longest) for listed in by_class.values() if index < len(listed))
    return list(islice(turns, SAMPLES))


def montage(samples: list[dict]) -> Image.Image:
    canvas = Image.new("RGB", (SAMPLES * (SIDE + 4) - 4, SIDE), "white")
    for index, sample in enumerate(chosen(samples)):
        canvas.paste(tile(sample), (index * (SIDE + 4), 0))
    return canvas


def tile(sample: dict) -> Image.Image:
    image = sample["image"]
    picture = Image.open(BytesIO(image.data)) if isinstance(image, Picture) else Image.fromarray(image)
    pixels = np.array(picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC))
    if (mask := sample.get("mask")) is not None:
        inside = np.asarray(Image.fromarray(mask).resize((SIDE, SIDE), Image.Resampling.NEAREST))
        padded = np.pad(inside, 1)
        core = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
        pixels[inside & ~core] = EDGE
    return Image.fromarray(pixels)


def write(folder: Path) -> None:
    """Write `datasets.md` and its pictures into a folder."""
    text, pictures = page()
    for name, picture in pictures.items():
        small = picture.quantize(96, dither=Image.Dither.NONE)
        write_with(folder / f"{name}.png", partial(small.save, format="png", optimize=True))
    write_text(folder / "datasets.md", text)
