"""The page on which people draw masks, and the one on which masks are reviewed: a Starlette application.

It is a page of its own rather than a Gradio component: an image editor that lives on the server loses strokes whenever
the server replaces its image. Here the browser draws, keeps what it has not yet sent, and sends it until it is
confirmed; the server keeps nothing but the store.

A person is known by a key in the header `X-Key`, which the browser keeps; no cookie, so that no other page can send it.
"""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from saliency_bench.errors import UserError
from saliency_bench.studies.annotating import Annotating
from saliency_bench.studies.study import Person
from saliency_bench.utils.pictures import UnreadableError

HERE = Path(__file__).parent
STATIC = {
    "annotate.css": "text/css",
    **dict.fromkeys(("app.js", "canvas.js", "mask.js", "outbox.js"), "text/javascript"),
}
LARGEST = 2**24  # bytes of one request
SAFE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob: data:; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
PRIVATE = SAFE | {"Cache-Control": "no-store"}


def create_app(annotating: Annotating, *, assist: bool = False) -> Starlette:
    """The application of a study. assist: offer superpixels, which a click selects (needs scikit-image)."""
    pages = Pages(annotating, assist)
    routes = [
        Route("/", lambda request: FileResponse(HERE / "page.html", headers=SAFE | {"Cache-Control": "no-cache"})),
        Route("/static/{name}", _static),
        Route("/api/join", pages.join, methods=["POST"]),
        Route("/api/state", pages.answered(pages.state)),
        Route("/api/again", pages.answered(pages.again)),
        Route("/api/image", pages.answered(pages.image)),
        Route("/api/superpixels", pages.answered(pages.superpixels)),
        Route("/api/answer", pages.answered(pages.answer), methods=["POST"]),
        Route("/api/review", pages.answered(pages.review), methods=["POST"]),
    ]
    return Starlette(routes=routes, middleware=[Middleware(GZipMiddleware, minimum_size=2000)])


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        return _error(404, "no such file")
    return FileResponse(HERE / name, media_type=STATIC[name], headers=SAFE | {"Cache-Control": "no-cache"})


def _error(status: int, text: str) -> JSONResponse:
    return JSONResponse({"error": text}, status, headers=SAFE)


class Pages:
    """What the pages ask for. Each method gets the person whose key was sent, and the values that came with it."""

    def __init__(self, annotating: Annotating, assist: bool):
        self.annotating, self.study, self.assist = annotating, annotating.study, assist

    def answered(self, method: Callable[[Person, dict[str, Any]], Any]) -> Callable:
        """An endpoint: known people only, work in a thread, errors as JSON."""

        async def endpoint(request: Request) -> Response:
            try:
                sent = await _sent(request)
                person = await run_in_threadpool(self.study.person, request.headers.get("x-key", ""))
                if person is None:
                    return _error(401, "this browser is not known to the study")
                made = await run_in_threadpool(method, person, sent)
            except (UserError, UnreadableError) as error:
                return _error(400, str(error))
            except SQLAlchemyError:
                logging.getLogger("uvicorn.error").exception("the store did not answer")
                return _error(503, "the answers cannot be stored at the moment")
            return (
                made if isinstance(made, Response) else JSONResponse(made, headers=SAFE | {"Cache-Control": "no-store"})
            )

        return endpoint

    async def join(self, request: Request) -> Response:
        try:
            sent = await _sent(request)
            person = await run_in_threadpool(self.study.join, str(sent.get("request")))
        except UserError as error:
            return _error(400, str(error))
        return JSONResponse({"key": person.key}, headers=PRIVATE)

    def state(self, person: Person, sent: dict[str, Any]) -> dict[str, Any]:
        about = {"study": self.study.name, "person": person.name, "role": person.role, "assist": self.assist}
        reviewing = person.role == "reviewer"
        return about | (self.annotating.review_state() if reviewing else self.annotating.state(person.name))

    def again(self, person: Person, sent: dict[str, Any]) -> dict[str, Any]:
        return self.annotating.task_again(person.name, str(sent.get("unit")))

    def image(self, person: Person, sent: dict[str, Any]) -> Response:
        unit = str(sent.get("unit"))
        if not self.annotating.may_see(person, unit):
            return _error(403, "this image was not given to you")
        shown = self.annotating.images.shown(unit)
        return Response(
            shown.content, media_type=shown.media, headers=SAFE | {"Cache-Control": "private, max-age=86400"}
        )

    def superpixels(self, person: Person, sent: dict[str, Any]) -> Response:
        """uint16 little-endian (H, W): the number of each pixel's superpixel."""
        from saliency_bench.studies.superpixels import superpixels

        unit = str(sent.get("unit"))
        if not self.assist or not self.annotating.may_see(person, unit):
            return _error(403, "not offered")
        found = superpixels(self.annotating.images.shown(unit).content)
        return Response(found.astype("<u2").tobytes(), media_type="application/octet-stream", headers=SAFE)

    def answer(self, person: Person, sent: dict[str, Any]) -> dict[str, Any]:
        if person.role != "annotator":
            raise UserError("reviewers do not draw")
        stored = self.annotating.save(person.name, sent)
        return {"revision": stored.revision} | self.state(person, {})

    def review(self, person: Person, sent: dict[str, Any]) -> dict[str, Any]:
        if person.role != "reviewer":
            raise UserError("this link is not a reviewer's")
        answer = sent.get("answer")
        if not isinstance(answer, int):
            raise UserError("answer is the number of an answer")
        texts = [str(sent.get(name) or "") for name in ("verdict", "request", "comment")]
        self.study.review(answer, person.name, *texts)
        return self.state(person, {})


async def _sent(request: Request) -> dict[str, Any]:
    """What came with a request: JSON of its body, or the values of its address. Raises: UserError."""
    if request.method == "GET":
        return dict(request.query_params)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LARGEST:
            raise UserError(f"more than {LARGEST:,} bytes")
    try:
        sent = json.loads(body)
    except (ValueError, RecursionError):
        sent = None
    if not isinstance(sent, dict):
        raise UserError("the body is not a JSON object")
    return sent
