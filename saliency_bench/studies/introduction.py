"""Consent forms and instructions that people read before they begin: Markdown files, with images in the same folder.

Raw HTML is displayed as text, and images must be files in or below the folder of the Markdown file. The page can
therefore neither run scripts nor load content from other sites. An image with the title "good" or "bad" is shown as a
good or bad example:

    ![The whole cat, and nothing else](cat-good.png "good") ![With the sofa](cat-bad.png "bad")
"""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from saliency_bench.errors import UserError
from saliency_bench.studies.events import add_event, has_event
from saliency_bench.studies.shown_pictures import Shown, shown
from saliency_bench.studies.study import Study
from saliency_bench.utils.pictures import UnreadableError

LONGEST = 100_000  # maximum length of a Markdown file in characters
EXAMPLES = {"good": "✓ Good", "bad": "✗ Not like this"}  # {title of a picture: caption}


@dataclass(frozen=True)
class Text:
    """A consent form or instructions that the page displays.

    Attributes:
        id: SHA-256 of the Markdown and the images.
        markdown: Markdown source.
        html: HTML for display.
        pictures: {name of the served file: image}.
    """

    id: str
    markdown: str
    html: str
    pictures: dict[str, Shown]


@dataclass(frozen=True)
class Introduction:
    """The consent form and the instructions of a study.

    Attributes:
        consent: Text that people must agree to before they take part, or None.
        instructions: Text that replaces the page's default instructions, or None.
    """

    consent: Text | None = None
    instructions: Text | None = None

    @property
    def pictures(self) -> dict[str, Shown]:
        """Return {file name: image} for the images in either text."""
        texts = filter(None, (self.consent, self.instructions))
        return {name: picture for text in texts for name, picture in text.pictures.items()}

    def shown(self) -> dict[str, dict[str, str] | None]:
        """Return {name: id and HTML of the text, or None} for the page."""
        texts = {"consent": self.consent, "instructions": self.instructions}
        return {name: None if text is None else {"id": text.id, "html": text.html} for name, text in texts.items()}

    def keep(self, study: Study) -> None:
        """Store both texts to document what people read or agreed to, and when."""
        for name, text in (("consent", self.consent), ("instructions", self.instructions)):
            if text:
                add_event(study, "text", {"text": name, "id": text.id, "markdown": text.markdown}, request=text.id)

    def agree(self, study: Study, person: str, agreed: str) -> bool:
        """Return whether a person has agreed to the consent form. If `agreed` is the form's id, store the agreement."""
        if self.consent is None:
            return True
        if agreed == self.consent.id:
            add_event(study, "consent", {"id": agreed}, person=person, request=agreed)
            return True
        return has_event(study, "consent", person=person, request=self.consent.id)


def read_text(path: str | Path) -> Text:
    """Read a consent form or instructions from a Markdown file.

    Raises:
        UserError: The file, or an image that it contains, cannot be read.
    """
    path = Path(path)
    try:
        markdown = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as Markdown ({getattr(error, 'strerror', None) or error})") from None
    if not markdown.strip() or len(markdown) > LONGEST:
        raise UserError(f"{path} has {len(markdown):,} characters; the file must have 1 to {LONGEST:,} characters")
    reader = MarkdownIt("js-default", {"html": False})
    tokens = reader.parse(markdown)
    for token in _all(tokens):
        if token.type == "link_open":  # open links in a new tab, to keep the page of the study open
            token.attrs |= {"target": "_blank", "rel": "noopener noreferrer"}
    renderer = _Renderer(path)
    rendered = renderer.render(tokens, reader.options, {})
    digest = sha256("\0".join([markdown, *sorted(renderer.pictures)]).encode()).hexdigest()
    return Text(digest, markdown, rendered, renderer.pictures)


def _all(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _all(token.children or [])


class _Renderer(RendererHTML):
    def __init__(self, path: Path):
        super().__init__()
        self.path = path
        self.pictures: dict[str, Shown] = {}

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        token = tokens[idx]
        picture = self._read(str(token.attrs["src"]))
        self.pictures[picture.name] = picture
        kind = str(token.attrs.get("title", "")).strip().lower()
        words = [EXAMPLES[kind]] if kind in EXAMPLES else []
        caption = html.escape(": ".join(words + [token.content] * bool(token.content)))
        size = f'width="{picture.width}" height="{picture.height}"'
        return (
            f'<span class="example {kind if kind in EXAMPLES else ""}"><img src="about/{picture.name}" {size} '
            f'alt="{html.escape(token.content)}"><span>{caption}</span></span>'
        )

    def _read(self, source: str) -> Shown:
        """Load an image that the Markdown refers to.

        Raises:
            UserError: The reference does not point to an image in the folder of the Markdown file.
        """
        parts = urlsplit(source)
        folder = self.path.parent.resolve()
        file = (folder / unquote(parts.path)).resolve()
        if parts.scheme or parts.netloc or not file.is_relative_to(folder):
            raise UserError(f"{self.path} refers to {source}; put the picture next to the text, and use its file name")
        try:
            return shown(file.read_bytes())
        except (OSError, UnreadableError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"{self.path} refers to {source}, which is not a readable picture ({reason})") from None
