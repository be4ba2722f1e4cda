"""Read untrusted XML. Entities, which can expand to gigabytes, and deep nesting are rejected."""

from collections.abc import Iterator
from io import BytesIO
from typing import Any, BinaryIO

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import ParseError, iterparse

from saliency_bench.utils.files import DEEPEST

ERRORS = (ValueError, LookupError, ParseError)  # entities or nesting, an unknown encoding, invalid syntax


def parse_xml(content: bytes) -> Any:
    """Parse XML and return the root element, or raise one of `ERRORS` if the XML is invalid or rejected."""
    root = None
    for event, element in xml_events(BytesIO(content)):
        root = element if root is None and event == "start" else root
    return root


def xml_events(file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Yield ("start" or "end", element) while reading XML. Invalid or rejected XML raises one of `ERRORS`."""
    depth = 0
    try:
        for event, element in iterparse(file, events=("start", "end")):
            depth += 1 if event == "start" else -1
            if depth > DEEPEST:
                raise ValueError(f"it is nested more than {DEEPEST} levels deep")
            yield event, element
    except DefusedXmlException:
        raise ValueError("it declares entities") from None
