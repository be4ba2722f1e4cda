"""Starlette application that serves the pages of a study. It handles authentication, JSON requests and one-line errors.

A person is identified by a key in the header `X-Key`, which the browser stores. The key is not in a cookie, so pages of
other sites cannot send it.
"""

import logging
import os
import socket
import sqlite3
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from saliency_bench.errors import UserError, one_line
from saliency_bench.spaces.pages.origins import OwnHosts, OwnOrigins
from saliency_bench.spaces.pages.requests import CONNECTIONS, Bodies, BusyError, Patience, SlowError, TimedProtocol
from saliency_bench.studies.introduction import Introduction
from saliency_bench.studies.owner_actions import act
from saliency_bench.studies.study import Person, Study
from saliency_bench.studies.sync import Sync
from saliency_bench.utils.pictures import UnreadableError

COMMON = Path(__file__).parent
MEDIA = {".css": "text/css", ".js": "text/javascript", ".html": "text/html"}
PICTURES = ("image", "picture", "map", "votes")  # methods that respond with an image
PATIENCE = 5.0  # seconds that a request waits for other writers of the store; pages repeat failed requests
LARGEST = 2**16  # default maximum size of a request in bytes, also used for unknown people
LARGEST_OF_ALL = 2**22  # the limit on the total size of all requests is at least this many bytes
FAILURES = (UserError, UnreadableError, SlowError, BusyError, SQLAlchemyError, sqlite3.Error, OSError)
SAFE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob: data:; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
Method = Callable[[Person, dict[str, Any]], Any]


def application(
    study: Study,
    folder: Path,
    get: dict[str, Method],
    post: dict[str, Method],
    largest: int = LARGEST,
    introduction: Introduction | None = None,
    owner: dict[str, Method] | None = None,
) -> Starlette:
    """Return the application that serves the pages of a study.

    Args:
        study: The study.
        folder: Folder with page.html and its files. The shared files of this package are served too.
        get: {name: method} for GET requests under /api/.
        post: {name: method} for POST requests under /api/.
        largest: Maximum size of a request in bytes.
        introduction: Consent form and instructions, which people see first.
        owner: {name: method} for the GET requests that the owner's page makes. If there are no methods, the owner has
            no page.
    """
    introduction = introduction or Introduction()
    introduction.keep(study)
    study.store.patience = PATIENCE
    files = {path.name: path for path in (*COMMON.iterdir(), *folder.iterdir()) if path.suffix in (".css", ".js")}

    def page(request: Request) -> Response:
        return FileResponse(folder / "page.html", media_type="text/html", headers=SAFE)

    def owner_page(request: Request) -> Response:
        return FileResponse(COMMON / "owner.html", media_type="text/html", headers=SAFE)

    def static(request: Request) -> Response:
        path = files.get(request.path_params["name"])
        if path is None:
            return refusal(404, "this file does not exist")
        return FileResponse(path, media_type=MEDIA[path.suffix], headers=SAFE | {"Cache-Control": "no-cache"})

    def about(request: Request) -> Response:
        return JSONResponse(introduction.shown(), headers=SAFE)

    def example(request: Request) -> Response:
        if (picture := introduction.pictures.get(request.path_params["name"])) is None:
            return refusal(404, "this image does not exist")
        return FileResponse(picture.path, media_type=picture.media, headers=SAFE | {"Cache-Control": "max-age=86400"})

    bodies, of_strangers = Bodies(largest, max(2 * largest, LARGEST_OF_ALL)), Bodies(LARGEST, LARGEST_OF_ALL)

    async def join(request: Request) -> Response:
        """Add a person who has given consent to the study, and return the person's key."""
        agreed = request.headers.get("x-consent", "")
        async with of_strangers.read(request) as sent:
            if not await run_in_threadpool(study.may_join, sent.get("request")):
                return refusal(403, "this study is by invitation; open the link that you received")
            if introduction.consent and agreed != introduction.consent.id:
                return ask_consent()  # no data is stored about people who do not agree
            person = await run_in_threadpool(_joined, study, sent)
        await run_in_threadpool(introduction.agree, study, person.name, agreed)
        return JSONResponse({"key": person.key}, headers=SAFE)

    routes = [Route("/", page), Route("/static/{name}", static), Route("/api/join", join, methods=["POST"])]
    routes += [Route("/api/about", about), Route("/about/{name}", example)]
    for name, method in (get | post).items():
        endpoint = _endpoint(study, _not_of_owner(method), bodies, introduction)
        routes.append(Route(f"/api/{name}", endpoint, methods=["POST" if name in post else "GET"]))
    if owner:
        routes.append(Route("/owner", owner_page))
        for name, method in (owner | {"act": partial(_act, study)}).items():
            endpoint = _endpoint(study, _of_owner(method), bodies, introduction)
            routes.append(Route(f"/api/{name}", endpoint, methods=["POST" if name == "act" else "GET"]))
    middleware = [Middleware(Patience), Middleware(OwnOrigins), Middleware(GZipTexts, minimum_size=2000)]
    return Starlette(routes=routes, middleware=middleware, exception_handlers=dict.fromkeys(FAILURES, _failed))


class GZipTexts(GZipMiddleware):
    """Middleware that compresses responses.

    Images are already compressed, so they are left unchanged (compressing 20 MB would take a second).
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        is_picture = scope["type"] == "http" and scope["path"].rpartition("/")[2] in PICTURES
        if is_picture:
            await self.app(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def _joined(study: Study, sent: dict[str, Any]) -> Person:
    person = study.join(sent.get("request"))
    study.keep_parameters(person.name, sent.get("parameters"))
    return person


def _act(study: Study, person: Person, sent: dict[str, Any]) -> dict[str, Any]:
    act(study, *(sent.get(name) for name in ("action", "request", "person", "reason")))
    return {}


def _of_owner(method: Method) -> Method:
    def checked(person: Person, sent: dict[str, Any]) -> Any:
        return (
            method(person, sent) if person.role == "owner" else refusal(403, "this page is for the owner of the study")
        )

    return checked


def _not_of_owner(method: Method) -> Method:
    """Wrap a method so that it rejects requests from the owner, who is not a participant."""

    def checked(person: Person, sent: dict[str, Any]) -> Any:
        if person.role == "owner":
            return refusal(403, "this page is for participants; the owner's page is /owner")
        return method(person, sent)

    return checked


def refusal(status: int, text: str) -> JSONResponse:
    """Return an error as a JSON response."""
    return JSONResponse({"error": text}, status, headers=SAFE)


def ask_consent() -> JSONResponse:
    """Return the error response that makes a page ask for consent."""
    return refusal(428, "agree to the conditions of the study first; reload the page to read them")


def _failed(request: Request, error: Exception) -> Response:
    """Return the response to a request that was rejected or failed."""
    if isinstance(error, UserError | UnreadableError):
        return refusal(400, str(error))
    if isinstance(error, SlowError):
        return refusal(408, "the request did not arrive in time; try again")
    if isinstance(error, BusyError):
        return refusal(503, "the server is receiving too much data at the moment; try again later")
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    logging.getLogger("uvicorn.error").error("%s: the store did not answer: %s", request.url.path, one_line(cause))
    return refusal(503, "the answers cannot be stored at the moment; try again later")


def _endpoint(study: Study, method: Method, bodies: Bodies, introduction: Introduction) -> Callable:
    """Return a request handler that runs a method in a thread. It serves only people who have joined."""

    async def endpoint(request: Request) -> Response:
        """Handle a request. Unknown people are rejected before the body is read."""
        person = await run_in_threadpool(study.person, request.headers.get("x-key", ""))
        if person is None:
            return refusal(401, "the study does not recognise this browser")
        if person.role == "annotator" and introduction.consent is not None:
            agreed = request.headers.get("x-consent", "")
            if not await run_in_threadpool(introduction.agree, study, person.name, agreed):
                return ask_consent()
        async with bodies.read(request) as sent:
            made = await run_in_threadpool(method, person, sent)
        if not isinstance(made, Response):
            return JSONResponse(made, headers=SAFE)
        if "etag" in made.headers and made.headers["etag"] == request.headers.get("if-none-match"):
            return Response(status_code=304, headers={name: made.headers[name] for name in ("etag", "cache-control")})
        return made

    return endpoint


def ending(lease_hours: float, finished: bool, completion: dict[str, str] | None) -> dict[str, Any]:
    """Return the page data for a person who has nothing left to do.

    Args:
        lease_hours: Number of hours after which images that other people have not finished are assigned again.
        finished: Whether the person has finished the study.
        completion: `code` and `url`, or one of the two, which people get when they have finished.
    """
    minutes = max(round(60 * lease_hours), 1)
    return {
        "lease": f"{minutes} minutes" if minutes != 1 else "a minute",
        "completion": completion if finished else None,
    }


def stopping(stop: dict[str, Any], lease_hours: float, completion: dict[str, str] | None) -> dict[str, Any]:
    """Return `stop`, the result of `owner_actions.stopped`, together with the page data from `ending`."""
    return stop | ending(lease_hours, stop["stopped"] == "closed" and stop["done"] > 0, completion)


def whole_number(text: object) -> int:
    """Parse a number in a query string.

    Raises:
        UserError: The value is not a whole number.
    """
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or len(text) > 9:
        raise UserError("the URL must contain whole numbers")
    return int(text)


def serve(app: Starlette, host: str, port: int, say: Callable[[str], object], sync: Sync | None = None) -> None:
    """Serve until Ctrl-C.

    Args:
        app: The application.
        host: Address to listen on.
        port: Port to listen on.
        say: Function that prints the URL of the page.
        sync: Object that copies the store to the Hub. The state of this copy is served at /sync.

    Raises:
        UserError: The port cannot be used.
    """
    import uvicorn

    app.add_middleware(OwnHosts, host=host)
    listening = listening_at(host, port)  # fails before the URL is printed
    if sync is not None:
        app.router.routes.append(Route("/sync", lambda request: PlainTextResponse(sync.status(), headers=SAFE)))
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=5, http=TimedProtocol,
                            limit_concurrency=CONNECTIONS)  # fmt: skip
    with sync or nullcontext():
        say(address(host, listening.getsockname()[1]))
        uvicorn.Server(config).run([listening])


def listening_at(host: str, port: int) -> socket.socket:
    """Open a socket that listens on a port.

    Raises:
        UserError: The port cannot be used.
    """
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"port {port} of {host} cannot be used ({reason}); choose a different port with --port"
        ) from None
    return listening


def address(host: str, port: int) -> str:
    """Return the URL at which a browser can open the page. On a Space, this is the Space's URL."""
    if space := os.environ.get("SPACE_HOST"):
        return f"https://{space}/"
    return f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}/"
