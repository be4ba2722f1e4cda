"""Which requests come from a page of ours: pages of other sites, and names that others lead to this machine, do not.

A proxy in front of a server may pass another Host on than the browser sent; the environment variable SPACE_HOST, which
the Hub sets, then holds the public one (several with commas between). X-Forwarded-Host is not believed: scripts of
others can send it.
"""

import os
from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_own_origin(headers: Mapping[str, str]) -> bool:
    """Return whether a request states no origin, or that of the host it was sent to."""
    if (origin := headers.get("origin")) is None:
        return True
    return _netloc(origin) in {name.lower() for name in (headers.get("host", ""), *_public()) if name}


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server at this address."""
    try:
        return host.lower() == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class OwnOrigins:
    """Middleware that refuses what the pages of other sites send."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with 403 what a page of another site sends."""
        if scope["type"] == "http" and not is_own_origin(Headers(scope=scope)):
            refused = JSONResponse({"error": "the page of another site may not send anything here"}, 403)
            await refused(scope, receive, send)
        else:
            await self.app(scope, receive, send)


class OwnHosts:
    """Middleware of a server at `host`: on loopback, only names of this machine and public ones lead to it.

    Otherwise a page of another site reads everything, once the name of that site is made to lead here (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, host: str):
        self.app, self.is_checked = app, is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with 421 what was sent to another name."""
        if scope["type"] == "http" and self.is_checked and not _is_here(Headers(scope=scope).get("host", "")):
            refused = JSONResponse({"error": "this server is not known by this name"}, 421)
            await refused(scope, receive, send)
        else:
            await self.app(scope, receive, send)


def _is_here(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    return name in LOOPBACK or host.lower() in (address_of_host.lower() for address_of_host in _public())


def _public() -> list[str]:
    """Return the addresses under which this machine can be reached."""
    return [name.strip() for name in os.environ.get("SPACE_HOST", "").split(",") if name.strip()]


def _netloc(origin: str) -> str | None:
    """Return the host of an origin; None, which no host is, for what cannot be read."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None
