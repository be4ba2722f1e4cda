"""Limits on requests: the size of a body, the total size of all bodies, and how long the server waits for slow clients.

A server keeps the bodies of requests and responses in memory. Therefore, it rejects unknown people before reading the
body, limits the total size of all bodies, and disconnects clients that stop sending or reading.
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

PART = 20.0  # seconds without sending or reading after which a client is disconnected
WHOLE = 120.0  # maximum seconds for a whole body
CONNECTIONS = 800  # maximum number of open connections; a process may have 1,024 open files by default


class BusyError(Exception):
    """Raised if too many bytes are currently being read. The client can try again later."""


class SlowError(Exception):
    """Raised if a client takes too long to send a request."""


class Bodies:
    """The bodies of the requests that are currently being read or answered.

    Attributes:
        largest: Maximum size of a body in bytes.
        most: Maximum total size of all bodies in bytes.
        bytes: Current total size of all bodies in bytes.
    """

    def __init__(self, largest: int, most: int):
        self.largest, self.most, self.bytes = largest, most, 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[dict[str, Any]]:
        """Yield the JSON object in a request's body, or the query parameters of a GET or HEAD request.

        The body counts towards `most` until the context ends.

        Raises:
            UserError: The body is not a JSON object or is too large.
            BusyError: The total size of all bodies is too large.
            SlowError: The body does not arrive in time.
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
        """Read the body of a request. Each part must arrive within `PART` seconds."""
        if int(request.headers.get("content-length", "0")) > self.largest:  # reject without reading
            raise UserError(f"the request has more than {self.largest:,} bytes")
        parts = aiter(request.stream())
        while True:
            async with asyncio.timeout(PART):
                part = await anext(parts, None)
            if part is None:
                return
            if len(body) + len(part) > self.largest:
                raise UserError(f"the request has more than {self.largest:,} bytes")
            if self.bytes + len(part) > self.most:
                raise BusyError
            self.bytes += len(part)
            body += part


def _parsed(body: bytearray) -> dict[str, Any]:
    try:
        sent = json.loads(body)
    except (ValueError, RecursionError):
        sent = None
    if not isinstance(sent, dict):
        raise UserError("the body is not a JSON object")
    return sent


class Patience:
    """Middleware that disconnects clients that do not read the response. Aborted uploads are logged in one line."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""

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


class TimedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """HTTP protocol that closes a connection if the request head takes too long, because uvicorn would wait forever."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the timer for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Start the timer if the head of a request is incomplete, and stop it otherwise."""
        super().data_received(data)
        self._wait()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        """Start the timer unless it is already running. If the head of a request is complete, stop it."""
        if not self._is_answering():
            self._timer = self._timer or self.loop.call_later(PART, self._end)
        elif self._timer is not None:  # uvicorn closes connections that are idle after a response
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        """Close a connection whose request head did not arrive in time."""
        self._timer = None
        if not self._is_answering() and not self.transport.is_closing():
            self.transport.close()
