"""Starlette application that serves the pages for drawing and reviewing masks.

The page is not a Gradio component, because a server-side image editor loses strokes whenever the server replaces the
image. On this page, the browser draws the mask, stores unsent answers, and keeps sending them until they are confirmed.
The store is the only state on the server.
"""

import gzip
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from PIL import Image
from starlette.applications import Starlette
from starlette.responses import FileResponse, Response

from saliency_bench.errors import UserError
from saliency_bench.spaces.pages import on_a_space
from saliency_bench.spaces.pages.serving import SAFE, application, ending, refusal, stopping, whole_number
from saliency_bench.studies.annotating import Annotating
from saliency_bench.studies.introduction import Introduction
from saliency_bench.studies.overview import AnnotationOverview
from saliency_bench.studies.owner_actions import excluded, stopped
from saliency_bench.studies.runs import runs_of
from saliency_bench.studies.strokes import Stroke, strokes_of
from saliency_bench.studies.study import Person
from saliency_bench.utils.pictures import png

LARGEST = 2**24  # maximum size of a request in bytes; requests can contain masks
STRENGTH, COLOUR = 0.75, (255, 64, 129)  # opacity and colour of pixels that everyone has marked
THUMBNAIL = 480  # longer side in pixels of an image on the owner's page
PIECES_KEPT = 256  # number of images whose superpixels are cached in memory, at most a few hundred KB each
Segmenter = Callable[[Path, Sequence[Stroke]], np.ndarray]  # (picture, strokes) -> region, bool (H, W)


def create_app(
    annotating: Annotating,
    *,
    assist: bool = False,
    segmenter: Segmenter | None = None,
    completion: dict[str, str] | None = None,
    introduction: Introduction | None = None,
) -> Starlette:
    """Return the application for a study.

    Args:
        annotating: The study.
        assist: Whether to offer superpixels that people can select with a click. This requires scikit-image.
        segmenter: Function that finds a region from strokes, or None.
        completion: Code or link that people get when they finish (see `serving.ending`).
        introduction: Consent form and instructions, which people see first.
    """
    pages = Pages(annotating, assist, segmenter, completion)
    get = {"state": pages.state, "again": pages.again, "image": pages.image, "superpixels": pages.superpixels,
           "others": pages.others}  # fmt: skip
    post = {"answer": pages.answer, "review": pages.review, "correct": pages.correct, "segment": pages.segment}
    return application(annotating.study, Path(__file__).parent, get, post, LARGEST, introduction, pages.for_owner())


class Pages:
    """Request handlers for the pages. Each method receives the person and the values in the request."""

    def __init__(
        self, annotating: Annotating, assist: bool, segmenter: Segmenter | None, completion: dict[str, str] | None
    ):
        self.annotating, self.study, self.assist = annotating, annotating.study, assist
        self.segmenter, self.completion = segmenter, completion
        self.pieces = lru_cache(PIECES_KEPT)(self._pieces)
        self.computing = Lock()  # compute superpixels for one image at a time, and only once

    def state(self, person: Person, sent: dict[str, Any]) -> dict[str, Any]:
        """Return the data for a person's page."""
        about = {"study": self.study.name, "person": person.name, "role": person.role, "assist": self.assist,
                 "segment": self.segmenter is not None}  # fmt: skip
        if person.role == "reviewer":
            return about | self.annotating.review_state(person.name)
        if stop := stopped(self.study, person.name):
            nothing = {"tasks": [], "latest": None, "practice": False}
            return about | nothing | stopping(stop, self.annotating.lease_hours, self.completion)
        state = self.annotating.state(person.name)
        finished = not state["tasks"] and state["done"] > 0
        return about | state | ending(self.annotating.lease_hours, finished, self.completion)

    def again(self, person: Person, sent: dict[str, Any]) -> dict[str, Any]:
        """Return the data for an image that the person has already annotated, so that the answer can be corrected."""
        return self.annotating.task_again(person.name, str(sent.get("unit")))

    def image(self, person: Person, sent: dict[str, Any]) -> Response:
        """Return the image that a question is about."""
        unit = str(sent.get("unit"))
        if not self.annotating.may_see(person, unit):
            return refusal(403, "this image is not assigned to you")
        shown = self.annotating.images.shown(unit)
        caching = {"Cache-Control": "private, max-age=86400", "ETag": f'"{shown.name}"'}
        return PictureFile(shown.path, media_type=shown.media, headers=SAFE | caching)

    def superpixels(self, person: Person, sent: dict[str, Any]) -> Response:
        """Return the superpixel index of each pixel, as gzipped little-endian uint16 (H, W)."""
        unit = str(sent.get("unit"))
        if not self.assist or not self.annotating.may_see(person, unit):
            return refusal(403, "you cannot select pieces of this image")
        with self.computing:
            numbers = self.pieces(unit)
        return Response(numbers, media_type="application/octet-stream", headers=SAFE | {"Content-Encoding": "gzip"})

    def _pieces(self, unit: str) -> bytes:
        from saliency_bench.studies.superpixels import superpixels

        numbers = superpixels(self.annotating.images.shown(unit).path)
        return gzip.compress(numbers.astype("<u2").tobytes(), compresslevel=1, mtime=0)

    def segment(self, person: Person, sent: dict[str, Any]) -> Any:
        """Find the region that strokes mark on an image. Return the region as run lengths."""
        unit = str(sent.get("unit"))
        if self.segmenter is None or not self.annotating.may_see(person, unit):
            return refusal(403, "you cannot mark regions on this image")
        strokes = strokes_of(sent.get("strokes"), *self.annotating.images.size(unit))
        with self.computing:
            region = self.segmenter(self.annotating.images.shown(unit).path, strokes)
        return {"runs": runs_of(region)}

    def answer(self, person: Person, sent: dict[str, Any]) -> dict[str, Any]:
        """Store an answer, and return the data of the next question."""
        if person.role != "annotator":
            raise UserError("reviewers cannot draw new masks, only corrections")
        stored = self.annotating.save(person.name, sent)
        feedback = self.annotating.feedback(stored)
        return {"revision": stored.revision, "feedback": feedback} | self.state(person, {})

    def review(self, person: Person, sent: dict[str, Any]) -> dict[str, Any]:
        """Store a review. Return the next mask to review."""
        if person.role != "reviewer":
            raise UserError("only a reviewer's link allows this")
        texts = [str(sent.get(name) or "") for name in ("verdict", "request", "comment")]
        self.study.review(sent.get("answer"), person.name, *texts)
        return self.state(person, {})

    def correct(self, person: Person, sent: dict[str, Any]) -> dict[str, Any]:
        """Store a reviewer's correction of a mask. Return the next mask to review."""
        if person.role != "reviewer":
            raise UserError("only a reviewer's link allows this")
        self.annotating.correct(person.name, sent)
        return self.state(person, {})

    def others(self, person: Person, sent: dict[str, Any]) -> Any:
        """Return the consensus of the other people who annotated an image under review."""
        if person.role != "reviewer":
            return refusal(403, "only a reviewer's link allows this")
        return self.annotating.others(whole_number(sent.get("answer")))

    def for_owner(self) -> dict[str, Any]:
        """Return the request handlers for the owner's page.

        This page shows the state of the study and the masks of an image.
        """
        overview = AnnotationOverview(self.annotating)
        return {"overview": lambda person, sent: overview(), "votes": self.votes}

    def votes(self, person: Person, sent: dict[str, Any]) -> Response:
        """Return a thumbnail with colours that show how many people have marked each pixel."""
        unit = str(sent.get("unit"))
        if unit not in self.annotating.images.positions:
            raise UserError("this image does not exist in the study")
        left_out = excluded(self.study)
        answers = [
            entry
            for entry in self.study.answers(unit=unit)
            if entry.person not in left_out and entry.payload["kind"] != "skip"
        ]
        with Image.open(self.annotating.images.shown(unit).path) as picture:
            small = picture.convert("RGB")
        marked = np.zeros(self.annotating.images.size(unit), np.float32)
        for entry in answers:
            marked += self.annotating.pixels(entry) / len(answers)
        small.thumbnail((THUMBNAIL, THUMBNAIL))
        shares = Image.fromarray((255 * STRENGTH * marked).astype(np.uint8)).resize(small.size)
        small.paste(Image.new("RGB", small.size, COLOUR), mask=shares)
        return Response(png(np.asarray(small)), media_type="image/png", headers=SAFE)


class PictureFile(FileResponse):
    """A file response that is sent in chunks of 1 MB.

    Chunks of 64 KB, each of which is read in a thread, would be so slow that 20 users would have to wait.
    """

    chunk_size = 2**20


def main() -> None:
    """Serve the study that the environment variables of the Space define."""
    on_a_space.main("annotate")
