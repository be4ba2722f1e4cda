"""HTML tables and images with which notebooks display objects.

All text is escaped, because names may be untrusted.
"""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

LEAST = 224  # minimum of the shorter side of a picture in pixels
MOST = 512  # maximum of its longer side in pixels, unless the shorter side would be below `LEAST`
QUALITY = 88  # JPEG quality
SIDE = 224  # minimum of the longer side of a picture in a strip in pixels
MARGIN, SIZE, LINE = 10, 14, 20  # margin, font size and line height of a strip in pixels


def table(rows: Iterable[Sequence[object]], header: Sequence[object] = (), bold: Iterable[tuple[int, int]] = ()) -> str:
    """Return an HTML table.

    Args:
        rows: Texts of each row. The first text in a row is the row's name.
        header: Names of the columns.
        bold: Cells to print in bold, as (row, column).
    """
    marked = set(bold)
    head = "".join(f'<th scope="col" style="text-align:left">{_text(name)}</th>' for name in header)
    lines = [f"<thead><tr>{head}</tr></thead>"] if header else []
    lines.append("<tbody>")
    for number, (name, *cells) in enumerate(rows):
        shown = (
            f'<td style="text-align:left">{_strong(text) if (number, column) in marked else _text(text)}</td>'
            for column, text in enumerate(cells, start=1)
        )
        lines.append(f'<tr><th scope="row" style="text-align:left">{_text(name)}</th>{"".join(shown)}</tr>')
    return "\n".join(["<table>", *lines, "</tbody>", "</table>"])


def facts(title: str, about: Mapping[str, object]) -> str:
    """Return HTML with a title and a table of facts. Empty facts are left out."""
    return paragraph(title, strong=True) + table(item for item in about.items() if item[1] not in ("", None, ()))


def paragraph(text: object, *, strong: bool = False) -> str:
    """Return text as an HTML paragraph."""
    return f'<p style="margin:0.5em 0">{_strong(text) if strong else _text(text)}</p>'


def pictures(named: Mapping[str, Image.Image]) -> str:
    """Return HTML that shows images side by side, each above its name."""
    figures = (
        f'<figure style="display:inline-block;margin:0 0.5em 0.5em 0"><img alt="{_text(name)}" src="{_show(image)}">'
        f"<figcaption>{_text(name)}</figcaption></figure>"
        for name, image in named.items()
    )
    return f"<div>{''.join(figures)}</div>"


Panel = tuple[Image.Image, Sequence[str]]  # (picture, lines of text below it)


@dataclass(frozen=True)
class StripLayout:
    """Layout of a strip of panels, with positions in pixels from the top left.

    Attributes:
        size: Width and height of the strip.
        pictures: Enlarged images, as (image, left, top).
        lines: Lines of text as (text, left, top, whether the line is bold), shortened to the width of the panel.
    """

    size: tuple[int, int]
    pictures: list[tuple[Image.Image, int, int]]
    lines: list[tuple[str, int, int, bool]]


def layout(panels: Sequence[Panel]) -> StripLayout:
    """Lay out images of the same size side by side, with lines of text below each.

    The images are enlarged to at least `SIDE` pixels.
    """
    factor = max(1, -(-SIDE // max(panels[0][0].size)))
    width, height = (factor * side for side in panels[0][0].size)
    cell = max(width, SIDE)  # text below a narrow picture needs at least `SIDE` pixels
    most = max(len(text) for _, text in panels)
    pictures: list[tuple[Image.Image, int, int]] = []
    lines: list[tuple[str, int, int, bool]] = []
    for number, (picture, text) in enumerate(panels):
        left = MARGIN + number * (cell + MARGIN)
        large_picture = picture.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
        pictures.append((large_picture, left, MARGIN))
        lines += [(_fitted(line, cell), left, 2 * MARGIN + height + row * LINE, row == 0)
                  for row, line in enumerate(text)]  # fmt: skip
    size = (MARGIN + len(panels) * (cell + MARGIN), 2 * MARGIN + height + LINE * most + MARGIN)
    return StripLayout(size, pictures, lines)


def strip(panels: Sequence[Panel]) -> Image.Image:
    """Draw images of the same size side by side, as arranged by `layout`."""
    placed = layout(panels)
    canvas = Image.new("RGB", placed.size, "white")
    pen = ImageDraw.Draw(canvas)
    for picture, left, top in placed.pictures:
        canvas.paste(picture, (left, top))
    for text, left, top, bold in placed.lines:
        pen.text((left, top), text, fill="black", font=_font(bold=bold))
    return canvas


def stacked(strips: Sequence[Image.Image]) -> Image.Image:
    """Stack strips vertically in one image, which is as wide as the widest strip."""
    size = max(image.width for image in strips), sum(image.height for image in strips)
    canvas = Image.new("RGB", size, "white")
    top = 0
    for image in strips:
        canvas.paste(image, (0, top))
        top += image.height
    return canvas


def _fitted(line: str, width: int) -> str:
    """Shorten a line so that it fits into `width` pixels when printed in bold."""
    line = " ".join(line.split())
    shown = line
    while _font(bold=True).getlength(shown) > width:
        line = line[:-1]
        shown = f"{line.rstrip()}..."
    return shown


@cache
def _font(*, bold: bool) -> Any:
    """Load the font DejaVu Sans, which comes with matplotlib and supports Latin, Greek, Cyrillic and Arabic letters."""
    from matplotlib import get_data_path

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(get_data_path()) / "fonts" / "ttf" / name), SIZE)


def large(image: Image.Image) -> Image.Image:
    """Scale an image so that its size is between `LEAST` and `MOST` pixels.

    A small image is enlarged by an integer factor without smoothing, so each pixel becomes a square.
    """
    times = -(-LEAST // min(image.size))
    if times > 1:
        return image.resize((times * image.width, times * image.height), Image.Resampling.NEAREST)
    scale = max(min(1, MOST / max(image.size)), LEAST / min(image.size))
    size = round(scale * image.width), round(scale * image.height)
    return image if size == image.size else image.resize(size, Image.Resampling.LANCZOS)


def png(image: Image.Image) -> bytes:
    """Encode an image as PNG."""
    return _encoded(image, "png", optimize=True)


def data_uri(image: Image.Image, kind: str, **settings: Any) -> str:
    """Encode an image as a data URI."""
    return f"data:image/{kind};base64,{b64encode(_encoded(image, kind, **settings)).decode()}"


def _encoded(image: Image.Image, kind: str, **settings: Any) -> bytes:
    """Encode an image as the bytes of a file. `settings` are arguments for Pillow's `Image.save`."""
    buffer = BytesIO()
    image.save(buffer, format=kind, **settings)
    return buffer.getvalue()


def _show(image: Image.Image) -> str:
    return data_uri(large(image.convert("RGB")), "jpeg", quality=QUALITY)


def _text(text: object) -> str:
    return escape(str(text))


def _strong(text: object) -> str:
    return f"<strong>{_text(text)}</strong>"
