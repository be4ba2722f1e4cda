"""Several explanations of one picture side by side, each with its words below."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.explaining.explanation import Explanation, explain

SIDE = 224  # pixels of a panel's longer side, at least
MARGIN, SIZE, LINE = 10, 14, 20  # pixels: around panels, of letters, from line to line


def explain_many(
    picture: str | Path, classifier: Classifier, explainers: Sequence[str], target: str | None = None
) -> tuple[list[Explanation], Image.Image]:
    """(an explanation by each explainer, or by one that fits the network if none is named; the strip of them).

    The strip begins with the picture as the network sees it. Raises: UserError of `explain`.
    """
    seen = [explain(picture, classifier, name, target=target) for name in (*explainers, *[None] * (not explainers))]
    return seen, strip([(seen[0].picture, [Path(picture).name, "as the network sees it"]), *map(_panel, seen)])


def _panel(seen: Explanation) -> tuple[Image.Image, list[str]]:
    lines = [seen.explainer, f"{seen.prediction} ({seen.probability:.1%})"]
    return seen.overlay, lines + [f"map of {seen.target}"] * (seen.target != seen.prediction)


def strip(panels: Sequence[tuple[Image.Image, Sequence[str]]]) -> Image.Image:
    """Pictures of one size side by side, enlarged to at least `SIDE`, with lines of text below each."""
    factor = max(1, -(-SIDE // max(panels[0][0].size)))
    width, height = (factor * side for side in panels[0][0].size)
    cell = max(width, SIDE)  # of a tall picture: room for the words
    lines = max(len(text) for _, text in panels)
    size = (MARGIN + len(panels) * (cell + MARGIN), 2 * MARGIN + height + LINE * lines + MARGIN)
    canvas = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(canvas)
    for number, (picture, text) in enumerate(panels):
        left = MARGIN + number * (cell + MARGIN)
        canvas.paste(picture.convert("RGB").resize((width, height), Image.Resampling.BICUBIC), (left, MARGIN))
        for row, line in enumerate(text):
            place = (left, 2 * MARGIN + height + row * LINE)
            pen.text(place, _fitted(line, cell), fill="black", font=_font(bold=row == 0))
    return canvas


def _fitted(line: str, width: int) -> str:
    """As much of a line as fits, in letters of either weight."""
    line = " ".join(line.split())
    shown = line
    while _font(bold=True).getlength(shown) > width:
        line = line[:-1]
        shown = f"{line.rstrip()}..."
    return shown


@cache
def _font(*, bold: bool) -> Any:
    """DejaVu, which matplotlib brings along: it has Latin, Greek, Cyrillic and Arabic letters."""
    from matplotlib import get_data_path

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(get_data_path()) / "fonts" / "ttf" / name), SIZE)
