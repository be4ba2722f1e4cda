"""Inject network faults with an ASGI layer around the server."""

import asyncio
import re
from dataclasses import dataclass, field


@dataclass
class Fault:
    """Fault for the next `times` requests whose "METHOD /path" matches the regular expression `match`.

    Set exactly one of these attributes:

        status: respond with this status and `headers` before the server receives the request
        drop_after: close the connection after this number of bytes of the response body or (PUT, POST) request body
        lost: execute the request, then close the connection without a response
        delay: wait this number of seconds before the response
        lie: add this number to Content-Length; a negative number also truncates the body
    """

    match: str
    times: float = 1
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "fault to order"
    drop_after: int | None = None
    lost: bool = False
    delay: float | None = None
    lie: int | None = None
    seen: int = 0

    def wants(self, line: str) -> bool:
        return self.seen < self.times and re.search(self.match, line) is not None


class Faulty:
    """ASGI application that adds faults to another application."""

    def __init__(self, app):
        self.app, self.faults = app, []

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        line = f"{scope['method']} {scope['path']}"
        fault = next((each for each in self.faults if each.wants(line)), None)
        if fault is None:
            return await self.app(scope, receive, send)
        fault.seen += 1
        if fault.status is not None:
            return await _refuse(fault, receive, send)
        if fault.delay is not None:
            return await self.app(scope, receive, _slow(fault, send))
        if fault.lost:
            return await self.app(scope, receive, _dropping(send, 0))
        if fault.drop_after is not None and scope["method"] in ("PUT", "POST"):
            return await _cut_upload(fault.drop_after, receive, send)
        if fault.drop_after is not None:
            return await self.app(scope, receive, _dropping(send, fault.drop_after))
        return await self.app(scope, receive, _altered(fault, send, scope["method"] == "HEAD"))


async def _refuse(fault: Fault, receive, send) -> None:
    while (await receive()).get("more_body"):
        pass
    body = b'{"error": "%s"}' % fault.message.encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), "x-error-message": fault.message}
    pairs = [(name.lower().encode(), value.encode()) for name, value in (headers | fault.headers).items()]
    await send({"type": "http.response.start", "status": fault.status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


async def _cut_upload(after: int, receive, send) -> None:
    received = 0
    while received < after:
        message = await receive()
        received += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    _transport(send).abort()


def _dropping(send, after: int):
    left = after

    async def wrapped(message):
        nonlocal left
        if message["type"] == "http.response.start":
            if after:
                await send(message)
            return
        body = message.get("body", b"")
        if left > 0:
            await send({"type": "http.response.body", "body": body[:left], "more_body": True})
        left -= len(body)
        if left <= 0:
            _transport(send).close()

    return wrapped


def _slow(fault: Fault, send):
    async def wrapped(message):
        if message["type"] == "http.response.start":
            await asyncio.sleep(fault.delay or 0)
        await send(message)

    return wrapped


def _altered(fault: Fault, send, head: bool):
    """Send a response with a changed Content-Length."""
    lie, left = fault.lie or 0, 0

    async def wrapped(message):
        nonlocal left
        if message["type"] == "http.response.start":
            headers = dict(message["headers"])
            told = int(headers.get(b"content-length", b"0"))
            size = max(told + lie, 0)
            left = min(size, told)
            headers[b"content-length"] = str(size).encode()
            return await send({**message, "headers": list(headers.items())})
        body = message.get("body", b"")
        if left > 0:
            await send({"type": "http.response.body", "body": body[:left], "more_body": True})
        left -= len(body[:left])
        if not message.get("more_body"):
            if lie > 0 and not head:
                _transport(send).close()  # Content-Length promises more than the body contains
            else:
                await send({"type": "http.response.body", "body": b""})

    return wrapped


def _transport(send):
    """Return uvicorn's connection, because ASGI has no message to close a connection."""
    return send.__self__.transport
