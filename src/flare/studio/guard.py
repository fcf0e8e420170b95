"""Who may ask the studio, how much at once, and what a browser may do with the answer: before anything else looks.

A page of another site can make a browser send requests to this machine. It cannot read the answers, but must not be
able to change anything either, nor become "the same site" by a name that it points here (DNS rebinding). Hence: the
name that was asked for must be one of ours, a request that comes from a page must come from ours, and what changes
something has to be JSON, which a form of another site cannot send.
"""

from __future__ import annotations

import contextlib
import hmac
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flare.studio.answers import refusal
from flare.studio.settings import Studio, is_own_machine

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What a page of the studio may load and ask: from the studio, and from nobody else."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
_HOST = re.compile(r"(?P<name>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")  # host[:port], and nothing else
_ASKING = ("GET", "HEAD")
_CHANGING = ("POST", "PUT", "DELETE")


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, studio: Studio) -> None:
        self.app = app
        self.studio = studio

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what is not allowed, and hand on the rest, counted and with the headers that keep it safe."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # no web sockets here
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        sending = _with_headers(send, scope["path"])
        refused = self._refused(scope, headers)
        if refused is not None:
            status, message, field = refused
            await refusal(status, message, field)(scope, receive, sending)
            return
        await self._counted(scope, receive, sending)

    def _refused(self, scope: Scope, headers: Headers) -> tuple[int, str, str] | None:
        """Status, message and field of what is not allowed; None where all is well."""
        method, path = scope["method"], scope["path"]
        host = headers.get("host", "")
        if not self._is_ours(host):
            return 421, "this name is not the studio's; open it by the address that it printed", "Host"
        if method not in _ASKING + _CHANGING:
            return 405, f"{method:.20} is not answered here", ""
        if "\0" in path or ".." in path.split("/"):
            return 404, "there is nothing here", ""
        foreign = _foreign(headers, host)
        if foreign and (path.startswith("/api/") or method in _CHANGING):
            return 403, f"a page of another site asks this ({foreign}); only the studio's own pages may", "Origin"
        if method in _CHANGING and not headers.get("content-type", "").startswith("application/json"):
            return 415, "send JSON: Content-Type must be application/json", "Content-Type"
        if path.startswith("/api/") and not self._knows_token(headers):
            return 401, "this studio asks for its token: send it as 'Authorization: Bearer TOKEN'", "Authorization"
        length = headers.get("content-length", "0")
        limit = self.studio.limits.max_body_bytes
        if not length.isdecimal() or len(length) > 18 or int(length) > limit:
            return 413, f"a request may have at most {limit:,} bytes; send less at once", ""
        return None

    def _is_ours(self, host: str) -> bool:
        """Whether the name that was asked for is one of this machine, or of the address that was chosen. Where any
        name may reach it (0.0.0.0), the token tells who may."""
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = found["name"].strip("[]").lower()
        chosen = self.studio.host
        return is_own_machine(name) or name == chosen.strip("[]") or (self.studio.token is not None)

    def _knows_token(self, headers: Headers) -> bool:
        token = self.studio.token
        if token is None:
            return True
        given = headers.get("authorization", "").removeprefix("Bearer ")
        return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode("utf-8", "replace"))

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on, as long as its body stays within the limit."""
        limit, seen, started = self.studio.limits.max_body_bytes, 0, False

        async def counting() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise _TooLongError  # which whoever reads the body may take for a fault of his
            return message

        async def noting(message: Message) -> None:
            nonlocal started
            if started or seen <= limit:
                started = True
                await send(message)

        with contextlib.suppress(_TooLongError):
            await self.app(scope, counting, noting)
        if seen > limit and not started:
            said = f"a request may have at most {limit:,} bytes; send less at once"
            await refusal(413, said)(scope, receive, send)


class _TooLongError(Exception):
    """More came than may."""


def _foreign(headers: Mapping[str, str], host: str) -> str:
    """Where a request comes from, if that is a page of another site; "" otherwise. Programs say neither."""
    origin = headers.get("origin")
    if origin is not None and urlsplit_netloc(origin) != host.lower():
        return f"{origin:.80}"
    site = headers.get("sec-fetch-site", "same-origin")
    return "" if site in ("same-origin", "none") else f"{site:.20}"


def urlsplit_netloc(origin: str) -> str:
    """The host and port of an origin; "" where it is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _with_headers(send: Send, path: str) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-store" if path.startswith("/api/") else "no-cache")
        await send(message)

    return sending
