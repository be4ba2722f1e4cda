"""Accept only requests from the server's own pages.

Requests from pages of other sites are rejected, and so are requests to other host names that resolve to this machine.

A proxy in front of a server may forward a different Host than the browser sent. The environment variable SPACE_HOST,
set by the Hub, then contains the public host (or several, separated by commas). X-Forwarded-Host is ignored, because
scripts of other sites can set it.
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
    """Return whether a request has no Origin header, or one that matches the host that it was sent to."""
    if (origin := headers.get("origin")) is None:
        return True
    return _netloc(origin) in {name.lower() for name in (headers.get("host", ""), *_public()) if name}


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    try:
        return host.lower() == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class OwnOrigins:
    """Middleware that rejects requests from pages of other sites."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to requests from pages of other sites with status 403."""
        if scope["type"] == "http" and not is_own_origin(Headers(scope=scope)):
            refused = JSONResponse({"error": "pages of other sites may not send requests to this page"}, 403)
            await refused(scope, receive, send)
        else:
            await self.app(scope, receive, send)


class OwnHosts:
    """Middleware for a server that listens at `host`.

    If `host` is a loopback address, only requests to the host names of this machine and to public host names are
    accepted. If other names were accepted, a page of another site could read all data by letting its name resolve to
    this machine (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, host: str):
        self.app, self.is_checked = app, is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to requests for other host names with status 421."""
        if scope["type"] == "http" and self.is_checked and not _is_here(Headers(scope=scope).get("host", "")):
            refused = JSONResponse({"error": "this server does not accept requests to this host name"}, 421)
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
    """Return the host names under which the public can reach this machine."""
    return [name.strip() for name in os.environ.get("SPACE_HOST", "").split(",") if name.strip()]


def _netloc(origin: str) -> str | None:
    """Return the host in an origin, or None if the origin is invalid."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None
