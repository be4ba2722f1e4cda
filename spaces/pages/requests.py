"""Bodies of requests within bounds: known people first, so many bytes at once, and nobody who dawdles.

A server holds the bodies that it reads and answers in memory. So whoever is unknown is refused before the body is read,
all bodies together have at most so many bytes, and a client that does not go on sending or reading is cut off.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from saliency_bench.errors import UserError

PART = 20.0  # seconds without a part of a request or answer, after which a client is cut off
WHOLE = 120.0  # seconds for a whole body
CONNECTIONS = 800  # at once; systems allow 1,024 files of a process by default


class BusyError(Exception):
    """Too many bytes are being read at this moment; the client may try again."""


class SlowError(Exception):
    """The client takes too long to send its request."""


class Bodies:
    """The bodies of requests that are being read or answered.

    Attributes:
        largest: bytes of one.
        most: bytes of all together.
    """

    def __init__(self, largest: int, most: int):
        self.largest, self.most, self.bytes = largest, most, 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[dict[str, Any]]:
        """Yield what came with a request, JSON of its body or the values of its address; it counts until the end.

        Raises:
            UserError: It is neither, or too long.
            BusyError: The bodies that are held have too many bytes.
            SlowError: It does not arrive in time.
        """
        if request.method in ("GET", "HEAD"):
            yield dict(request.query_params)
            return
        body = bytearray()
        try:
            try:
                async with asyncio.timeout(WHOLE):
                    await self._fill(body, request)
            except TimeoutError:
                raise SlowError from None
            yield _parsed(body)
        finally:
            self.bytes -= len(body)

    async def _fill(self, body: bytearray, request: Request) -> None:
        """Read a body, each part within its time."""
        if int(request.headers.get("content-length", "0")) > self.largest:  # refused without reading it
            raise UserError(f"more than {self.largest:,} bytes")
        parts = aiter(request.stream())
        while True:
            async with asyncio.timeout(PART):
                part = await anext(parts, None)
            if part is None:
                return
            if len(body) + len(part) > self.largest:
                raise UserError(f"more than {self.largest:,} bytes")
            if self.bytes + len(part) > self.most:
                raise BusyError
            self.bytes += len(part)
            body += part


def _parsed(body: bytearray) -> dict[str, Any]:
    """Return the JSON object of a body; raise UserError for anything else."""
    try:
        sent = json.loads(body)
    except (ValueError, RecursionError):
        sent = None
    if not isinstance(sent, dict):
        raise UserError("the body is not a JSON object")
    return sent


class Patience:
    """Middleware that ends the answer to a client who does not read it, and logs a cut-off upload in a line."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""

        async def send_in_time(message: Message) -> None:
            try:
                async with asyncio.timeout(PART):
                    await send(message)
            except TimeoutError:
                raise ClientDisconnect from None

        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            await self.app(scope, receive, send_in_time)
        except ClientDisconnect:  # the server then closes the connection
            log = logging.getLogger("uvicorn.error")
            log.warning("%s %s: the connection was cut off", scope["method"], ascii(scope["path"])[:100])


class Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """HTTP for which a connection has to send the head of each request in time; uvicorn waits for ever."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Begin to wait for the rest of a request, where its head is not complete."""
        super().data_received(data)
        self._wait()

    def _is_answering(self) -> bool:
        """Return whether a request is complete but for its body, and not answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        """Start the clock unless it runs; stop it once the head of a request is complete."""
        if not self._is_answering():
            self._timer = self._timer or self.loop.call_later(PART, self._end)
        elif self._timer is not None:  # uvicorn itself closes a connection that is idle after an answer
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        """Close a connection that has sent no request in time."""
        self._timer = None
        if not self._is_answering() and not self.transport.is_closing():
            self.transport.close()
