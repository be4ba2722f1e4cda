"""How objects look in a notebook: tables and pictures as HTML.

Every text is escaped, for names may come from strangers.
"""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from io import BytesIO

from PIL import Image

LEAST = 224  # pixels of the shorter side of a picture
MOST = 512  # pixels of its longer side, unless the shorter one would be too short
QUALITY = 88  # of JPEG


def table(rows: Iterable[Sequence[object]], header: Sequence[object] = (), bold: Iterable[tuple[int, int]] = ()) -> str:
    """Rows of texts under a header; the first cell of each is its name. bold: (row, column) of cells to set apart."""
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
    """A title, and what there is to say under it; empty facts are left out."""
    return paragraph(title, strong=True) + table(item for item in about.items() if item[1] not in ("", None, ()))


def paragraph(text: object, *, strong: bool = False) -> str:
    return f'<p style="margin:0.5em 0">{_strong(text) if strong else _text(text)}</p>'


def pictures(named: Mapping[str, Image.Image]) -> str:
    """Pictures beside each other, each over its name."""
    figures = (
        f'<figure style="display:inline-block;margin:0 0.5em 0.5em 0"><img alt="{_text(name)}" src="{_data(image)}">'
        f"<figcaption>{_text(name)}</figcaption></figure>"
        for name, image in named.items()
    )
    return f"<div>{''.join(figures)}</div>"


def strip(images: Sequence[Image.Image]) -> Image.Image:
    """Pictures of one size side by side, each large enough to be seen."""
    shown = [large(image.convert("RGB")) for image in images]
    width, height, gap = *shown[0].size, 8
    whole = Image.new("RGB", (len(shown) * (width + gap) - gap, height), "white")
    for number, image in enumerate(shown):
        whole.paste(image, (number * (width + gap), 0))
    return whole


def large(image: Image.Image) -> Image.Image:
    """Of at least `LEAST` pixels, small ones enlarged by a whole number, so that each pixel stays a square."""
    times = -(-LEAST // min(image.size))
    if times > 1:
        return image.resize((times * image.width, times * image.height), Image.Resampling.NEAREST)
    scale = max(min(1, MOST / max(image.size)), LEAST / min(image.size))
    size = round(scale * image.width), round(scale * image.height)
    return image if size == image.size else image.resize(size, Image.Resampling.LANCZOS)


def png(image: Image.Image) -> bytes:
    buffer = BytesIO()
    image.save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def _data(image: Image.Image) -> str:
    buffer = BytesIO()
    large(image.convert("RGB")).save(buffer, format="jpeg", quality=QUALITY)
    return f"data:image/jpeg;base64,{b64encode(buffer.getvalue()).decode()}"


def _text(text: object) -> str:
    return escape(str(text))


def _strong(text: object) -> str:
    return f"<strong>{_text(text)}</strong>"
