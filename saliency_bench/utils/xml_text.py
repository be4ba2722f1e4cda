"""Read XML from strangers: no entities, which can unpack to gigabytes, and no deep nesting."""

from collections.abc import Iterator
from io import BytesIO
from typing import Any, BinaryIO

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import ParseError, iterparse

from saliency_bench.utils.files import DEEPEST

ERRORS = (ValueError, LookupError, ParseError)  # entities and nesting, an encoding without a decoder, the syntax


def parse_xml(content: bytes) -> Any:
    """Return the root element of XML. Raise one of `ERRORS` if it is unusable."""
    root = None
    for event, element in xml_events(BytesIO(content)):
        root = element if root is None and event == "start" else root
    return root


def xml_events(file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Yield ("start" or "end", element) while reading. Raise one of `ERRORS` if it is unusable."""
    depth = 0
    try:
        for event, element in iterparse(file, events=("start", "end")):
            depth += 1 if event == "start" else -1
            if depth > DEEPEST:
                raise ValueError(f"it nests more than {DEEPEST} levels deep")
            yield event, element
    except DefusedXmlException:
        raise ValueError("it declares entities") from None
