"""What may be sent to the leaderboard, before Gradio reads any of it: who may upload, how much, and from which page.

Gradio itself stores every upload of anybody for as long as it runs, reads bodies of any size, and prints a traceback
for every call that does not fit. `Guard` is an ASGI middleware inside of Gradio's own ones, so that it knows who is
signed in; what it refuses is answered in one line.
"""

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
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from saliency_bench.leaderboard.view.received import MOST_PACKED
from saliency_bench.spaces.pages.origins import is_own_origin

LARGEST = 1_000_000  # bytes of a request that uploads nothing
LARGEST_UPLOAD = MOST_PACKED + 10_000  # bytes of one that does: an archive and what a browser puts around it
UPLOAD, CALL = "/upload", "/queue/join"  # how the paths of uploads and of calls end
ASKED = "/component_server"  # what the page's own script asks
SENDING = (UPLOAD, CALL, ASKED, "/reset", "/cancel")  # how the paths of all that the page sends end
READING = ("GET", "HEAD", "OPTIONS")
KEPT_FOR = 3600  # seconds that an upload is kept


class RefusedError(Exception):
    """status: of the answer; its line is the text of the exception."""

    def __init__(self, status: int, line: str):
        super().__init__(line)
        self.status = status


@dataclass
class Uploads:
    """The uploads of all accounts in a folder: bounds in bytes, and for each account on bytes and number in an hour.

    What is older than `kept_for` seconds is removed when something new comes, also what a broken upload left behind.
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
        """Room for a request of up to so many bytes, while it is read. Raises: RefusedError where there is none."""
        now = self.clock()
        with self._lock:
            stored = self.sweep()
            self._seen = {
                name: kept
                for name, times in self._seen.items()
                if (kept := deque(one for one in times if one[0] > now - self.kept_for))
            }
            own = self._seen.get(account, deque())
            if len(own) >= self.often or sum(bytes_ for _, bytes_ in own) + size > self.each:
                raise RefusedError(429, f"{account} has uploaded too much within an hour; come back later")
            if stored + self._coming + size > self.total:
                raise RefusedError(503, "too much is being uploaded at the moment; come back later")
            self._seen.setdefault(account, own).append((now, size))
            self._coming += size
        try:
            yield
        finally:
            with self._lock:
                self._coming -= size

    def sweep(self) -> int:
        """Remove what is old; the bytes that stay."""
        stored, now = 0, self.clock()
        for parent, folders, files in os.walk(self.folder, topdown=False):
            for name in files:
                path = Path(parent, name)
                try:
                    about = path.lstat()
                    if about.st_mtime < now - self.kept_for:
                        path.unlink()
                    else:
                        stored += about.st_size
                except OSError:  # gone in the meantime
                    continue
            for name in folders:
                try:
                    Path(parent, name).rmdir()
                except OSError:  # holds something
                    continue
        return stored


class Guard:
    """uploads: where they go, and how many may; None where nothing is uploaded, as on a laptop.

    calls: {number of a function that a button calls: how many arguments it takes}. components: the numbers of those
    whose functions the page's own script asks.
    """

    def __init__(
        self, app: ASGIApp, uploads: Uploads | None = None, calls: Mapping[int, int] | None = None,
        components: Collection[int] = (),
    ):  # fmt: skip
        self.app, self.uploads, self.calls, self.components = app, uploads, calls or {}, components

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in READING:
            await self.app(scope, receive, send)
            return
        headers, path = Headers(scope=scope), scope["path"].rstrip("/")
        try:
            if not is_own_origin(headers):
                raise RefusedError(403, "the page of another site may not send anything here")
            is_form = headers.get("content-type", "").lower().startswith("multipart/")
            if is_form or path.endswith(UPLOAD):
                await self._upload(scope, headers, receive, send)
            elif not path.endswith(SENDING):
                raise RefusedError(404, "nothing is taken here")
            else:
                checks = {CALL: self._is_call, ASKED: self._is_question}
                fits = next((check for end, check in checks.items() if path.endswith(end)), None)
                kept = await _checked(headers, receive, fits) if fits else receive
                await _bounded(self.app, scope, headers, LARGEST, kept, send)
        except RefusedError as error:
            await PlainTextResponse(f"{error}\n", error.status)(scope, receive, send)

    async def _upload(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        if self.uploads is None:
            raise RefusedError(403, "this page takes no uploads")
        if not scope["path"].rstrip("/").endswith(UPLOAD):
            raise RefusedError(415, "files are not taken here")
        account = account_of(scope)
        if account is None:
            raise RefusedError(403, "sign in first")
        stated = _stated(headers)
        size = LARGEST_UPLOAD if stated is None else _fitting(stated, LARGEST_UPLOAD)
        with self.uploads.room(account, size):
            await _bounded(self.app, scope, headers, size, receive, send)

    def _is_call(self, sent: dict) -> bool:
        return len(sent["data"]) == self.calls[sent["fn_index"]]

    def _is_question(self, sent: dict) -> bool:
        return sent["component_id"] in self.components


async def _checked(headers: Headers, receive: Receive, fits: Callable[[dict], bool]) -> Receive:
    """What is received again, once it is known to be JSON that fits. Raises: RefusedError."""
    _fitting(_stated(headers) or 0, LARGEST)
    messages, body = [await receive()], bytearray()
    while messages[-1]["type"] == "http.request":
        _fitting(len(body := body + messages[-1].get("body", b"")), LARGEST)
        if not messages[-1].get("more_body"):
            break
        messages.append(await receive())
    try:
        is_right = fits(json.loads(body))
    except (ValueError, RecursionError, TypeError, KeyError):
        is_right = False
    if not is_right:
        raise RefusedError(400, "this is not a call of a function of this page")
    left = iter(messages)

    async def again() -> Message:
        return next(left, None) or await receive()

    return again


def account_of(scope: Scope) -> str | None:
    """The account that is signed in, by the signed cookie of Gradio's sign-in; None if nobody is."""
    signed = scope.get("session", {}).get("oauth_info") or {}
    if (signed.get("expires_at") or 0) < time():
        return None
    return (signed.get("userinfo") or {}).get("preferred_username")


def _stated(headers: Headers) -> int | None:
    """Raises: RefusedError for a length that is no number."""
    text = headers.get("content-length")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise RefusedError(400, "Content-Length is not a number")
    return int(text)


def _fitting(size: int, most: int) -> int:
    if size > most:
        raise RefusedError(413, f"the request has more than {most:,} bytes")
    return size


async def _bounded(app: ASGIApp, scope: Scope, headers: Headers, most: int, receive: Receive, send: Send) -> None:
    """Pass a request on of which at most so many bytes are read, whatever it states. Raises: RefusedError."""
    _fitting(_stated(headers) or 0, most)
    read, is_started = 0, False

    async def counted() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        _fitting(read, most)
        return message

    async def answered(message: Message) -> None:
        """What the application says of a body that was cut off is not passed on."""
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
        _fitting(read, most)
