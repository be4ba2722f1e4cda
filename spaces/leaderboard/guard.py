"""Check the upload permission, size and origin of requests to the leaderboard before Gradio reads them.

Gradio keeps every upload until it stops, reads requests of any size, and prints a traceback for every malformed call.
`Guard` is an ASGI middleware that runs after Gradio's middleware, so it knows the signed-in account. The response to a
rejected request is a single line.
"""

import asyncio
import json
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from time import time

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from saliency_bench.board.view.received import MOST_PACKED
from saliency_bench.spaces.pages.origins import is_own_origin
from saliency_bench.spaces.pages.requests import PART

LARGEST = 1_000_000  # maximum size in bytes of a request that is not an upload
LARGEST_OF_ALL = 2**25  # maximum size in bytes of all such requests together, which are held in memory
LARGEST_UPLOAD = MOST_PACKED + 10_000  # maximum size in bytes of an upload: an archive plus the multipart encoding
# Last parts of request paths: uploads, calls by buttons, calls by the page's script, and all requests with data.
UPLOAD, CALL, SCRIPT = "/upload", "/queue/join", "/component_server"
SENDING = (UPLOAD, CALL, SCRIPT, "/reset", "/cancel")
READING = ("GET", "HEAD", "OPTIONS")
KEPT_FOR = 3600  # seconds after which an upload is deleted


class RefusedError(Exception):
    """Raised to reject a request.

    Args:
        status: Status code of the response.
        line: Text of the response.
    """

    def __init__(self, status: int, line: str):
        super().__init__(line)
        self.status = status


@dataclass
class Uploads:
    """Limits on the uploads in a folder.

    When a new upload starts, files older than `kept_for` seconds are deleted, including those of aborted uploads.

    Attributes:
        folder: Gradio's folder for uploads.
        total: Maximum total size of the uploads of all accounts, in bytes.
        each: Maximum number of bytes per account within `kept_for` seconds.
        often: Maximum number of uploads per account within `kept_for` seconds.
        kept_for: Seconds after which a file is deleted.
        clock: Function that returns the Unix time in seconds.
    """

    folder: Path
    total: int = 2_000_000_000
    each: int = 500_000_000
    often: int = 50
    kept_for: float = KEPT_FOR
    clock: Callable[[], float] = time
    _coming: int = 0  # bytes of requests that are being read
    _seen: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    @contextmanager
    def room(self, account: str, size: int) -> Iterator[None]:
        """Reserve space for a request of up to `size` bytes while it is read.

        Raise RefusedError if there is no space.
        """
        now = self.clock()
        with self._lock:
            stored = self.sweep()
            self._seen = {
                name: recent
                for name, times in self._seen.items()
                if (recent := deque(upload for upload in times if abs(upload[0] - now) < self.kept_for))
            }
            uploads = self._seen.get(account, deque())
            if len(uploads) >= self.often or sum(bytes_ for _, bytes_ in uploads) + size > self.each:
                raise RefusedError(429, f"{account} has uploaded too much in the last hour; try again later")
            if stored + self._coming + size > self.total:
                raise RefusedError(503, "the server is receiving too many uploads at the moment; try again later")
            self._seen.setdefault(account, uploads).append((now, size))
            self._coming += size
        try:
            yield
        finally:
            with self._lock:
                self._coming -= size

    def sweep(self) -> int:
        """Delete old files, and return the total size of the other files in bytes."""
        stored, now = 0, self.clock()
        for parent, folders, files in os.walk(self.folder, topdown=False):
            for name in files:
                path = Path(parent, name)
                try:
                    about = path.lstat()
                    if abs(about.st_mtime - now) > self.kept_for:  # abs, because the clock may have been set back
                        path.unlink()
                    else:
                        stored += about.st_size
                except OSError:  # deleted in the meantime
                    continue
            for name in folders:
                try:
                    Path(parent, name).rmdir()
                except OSError:  # not empty
                    continue
        return stored


class Guard:
    """Middleware that accepts only requests that the page would send.

    Args:
        app: App that handles all other requests.
        uploads: Limits on uploads, or None if uploads are not possible, as on a local machine.
        calls: {index of a function that a button calls: number of its arguments}.
        components: Ids of the components whose functions the page's script calls.
    """

    def __init__(
        self, app: ASGIApp, uploads: Uploads | None = None, calls: Mapping[int, int] | None = None,
        components: Collection[int] = (),
    ):  # fmt: skip
        self.app, self.uploads, self.calls, self.components = app, uploads, calls or {}, components
        self._bytes = 0  # total size of all requests in memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a request or pass it on."""
        if scope["type"] != "http" or scope["method"] in READING:
            try:
                await self.app(scope, receive, send)
            except RuntimeError as error:
                if not isinstance(error.__cause__, HTTPException):
                    raise
                # Gradio rejects a stream of an unknown page only after its start, with 5 kB of traceback per request.
                await send({"type": "http.response.body", "body": b""})
            return
        headers, path = Headers(scope=scope), scope["path"].rstrip("/")
        try:
            if not is_own_origin(headers):
                raise RefusedError(403, "pages of other sites may not send requests to this page")
            is_form = headers.get("content-type", "").lower().startswith("multipart/")
            if is_form or path.endswith(UPLOAD):
                await self._upload(scope, headers, receive, send)
            elif not path.endswith(SENDING):
                raise RefusedError(404, "this URL accepts no data")
            else:
                checks = {CALL: self._is_call, SCRIPT: self._is_script_call}
                is_valid = next((check for end, check in checks.items() if path.endswith(end)), None)
                # Gradio would print a traceback for a call with too few arguments or to a missing function.
                with self._reading(receive) as limited:
                    receive = await _checked(headers, limited, is_valid) if is_valid else limited
                    await _bounded(self.app, scope, headers, LARGEST, receive, send)
        except RefusedError as error:
            await PlainTextResponse(f"{error}\n", error.status)(scope, receive, send)

    @contextmanager
    def _reading(self, receive: Receive) -> Iterator[Receive]:
        """Yield a `receive` function that counts the bytes of all requests until their responses are sent.

        The function raises RefusedError if the total is too large, or if the client sends nothing for too long.
        """
        read, is_whole = 0, False

        async def limited() -> Message:
            nonlocal read, is_whole
            if is_whole:  # the next message is the end of the connection, which has no time limit
                return await receive()
            try:
                async with asyncio.timeout(PART):
                    message = await receive()
            except TimeoutError:
                raise RefusedError(408, "the request did not arrive in time; try again") from None
            size = len(message.get("body", b""))
            if self._bytes + size > LARGEST_OF_ALL:
                raise RefusedError(503, "the server is receiving too much data at the moment; try again later")
            read, self._bytes, is_whole = read + size, self._bytes + size, not message.get("more_body")
            return message

        try:
            yield limited
        finally:
            self._bytes -= read

    async def _upload(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        """Forward an upload from a signed-in account if it is within the limits."""
        if self.uploads is None:
            raise RefusedError(403, "this page accepts no uploads")
        if not scope["path"].rstrip("/").endswith(UPLOAD):
            raise RefusedError(415, "this URL accepts no files")
        account = account_of(scope)
        if account is None:
            raise RefusedError(403, "sign in first")
        stated = _stated(headers)
        size = LARGEST_UPLOAD if stated is None else _check_size(stated, LARGEST_UPLOAD)
        with self.uploads.room(account, size):
            await _bounded(self.app, scope, headers, size, receive, send)

    def _is_call(self, sent: dict) -> bool:
        """Return whether a request calls a button's function with the correct number of arguments."""
        return len(sent["data"]) == self.calls[sent["fn_index"]]

    def _is_script_call(self, sent: dict) -> bool:
        """Return whether a request calls a function that the page's script may call."""
        return sent["component_id"] in self.components


async def _checked(headers: Headers, receive: Receive, is_valid: Callable[[dict], bool]) -> Receive:
    """Read an entire request, and return a `receive` function that replays it.

    Raise RefusedError if the request is invalid.
    """
    _check_size(_stated(headers) or 0, LARGEST)
    messages, body = [await receive()], bytearray()
    while messages[-1]["type"] == "http.request":
        _check_size(len(body := body + messages[-1].get("body", b"")), LARGEST)
        if not messages[-1].get("more_body"):
            break
        messages.append(await receive())
    try:
        is_call = is_valid(json.loads(body))
    except (ValueError, RecursionError, TypeError, KeyError):
        is_call = False
    if not is_call:
        raise RefusedError(400, "the request does not call a function of this page")
    stored = iter(messages)

    async def again() -> Message:
        return next(stored, None) or await receive()

    return again


def account_of(scope: Scope) -> str | None:
    """Return the account that is signed in according to Gradio's signed cookie, or None."""
    signed = scope.get("session", {}).get("oauth_info") or {}
    if (signed.get("expires_at") or 0) < time():
        return None
    return (signed.get("userinfo") or {}).get("preferred_username")


def _stated(headers: Headers) -> int | None:
    """Return the Content-Length that a request states, or None. Raise RefusedError if it is not a number."""
    text = headers.get("content-length")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise RefusedError(400, "Content-Length is not a number")
    return int(text)


def _check_size(size: int, most: int) -> int:
    """Return a size. Raise RefusedError if the size is larger than `most`."""
    if size > most:
        raise RefusedError(413, f"the request has more than {most:,} bytes")
    return size


async def _bounded(app: ASGIApp, scope: Scope, headers: Headers, most: int, receive: Receive, send: Send) -> None:
    """Pass a request on to the app.

    Raise RefusedError if it has more than `most` bytes, regardless of its Content-Length.
    """
    _check_size(_stated(headers) or 0, most)
    read, is_started = 0, False

    async def counted() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        _check_size(read, most)
        return message

    async def answered(message: Message) -> None:
        """Send a response, unless it is the app's response to a truncated body."""
        nonlocal is_started
        if read <= most or is_started:
            is_started = True
            await send(message)

    try:
        await app(scope, counted, answered)
    except Exception:
        if read <= most or is_started:
            raise
    if not is_started:
        _check_size(read, most)
