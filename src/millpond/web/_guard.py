"""Who is answered at all, and the headers of every answer.

The rules, in this order:

1. One `Host`, and one that is ours: this machine's own names, an address, or what `hosts` allows. A name that somebody
   else's DNS points at us (rebinding) is not.
2. Without a token and without a `user` function, only this machine is answered, and nobody who comes by a proxy: whom
   that one speaks for cannot be known.
3. Nothing is done or told for a page of another origin: `Sec-Fetch-Site` and `Origin` say so, and what acts is JSON,
   which no other origin may send without being asked about it first.
4. With a token, everything but the page's own files needs it: as `Authorization: Bearer`, or in a session's cookie. It
   is never read from a URL. Who guesses waits.
5. `/healthz` and `/readyz` tell nothing, so they are answered to everybody.
"""

from __future__ import annotations

import inspect
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millpond.web._tokens import Failures, Tokens

COOKIE = "millpond"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
OPEN = ("/healthz", "/readyz")
FILES = ("/", "/static/")
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
PROXIED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
"""Headers by which a proxy says that it speaks for somebody else."""
User = Callable[[Request], str | Awaitable[str | None] | None]
"""Who asks, as another program knows it; nothing: nobody whom it knows. It may be a coroutine function."""
logger = logging.getLogger("millpond.web")


class Refusal(NamedTuple):
    """Why a request is not answered."""

    status: int
    error: str
    wait: float = 0.0


class Guard:
    """Stands before the routes."""

    def __init__(
        self, app: ASGIApp, *, tokens: Tokens | None, hosts: Sequence[str], user: User | None, failures: Failures
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._user = user
        self._failures = failures
        own = socket.gethostname().lower()
        self._hosts = {*LOOPBACK_NAMES, *hosts}
        if tokens is not None or user is not None:
            self._hosts.add(own)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse to."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no web sockets here
            await send({"type": "websocket.close", "code": 1008})
            return
        refusal = await self._refusal(Request(scope))
        guarded = _with_headers(send)
        if refusal is None:
            await self._app(scope, receive, guarded)
        else:
            await _refused(refusal)(scope, receive, guarded)

    async def _refusal(self, request: Request) -> Refusal | None:
        path = path_of(request.scope)
        if path in OPEN:
            return None
        found = self._by_host(request) or self._by_address(request) or _by_origin(request, path)
        if found is not None or self._is_file(path):
            return found
        if self._user is not None:
            return await self._by_name(request, self._user)
        return self._by_token(request, path)

    def _is_file(self, path: str) -> bool:
        return path == FILES[0] or path.startswith(FILES[1])

    def _by_host(self, request: Request) -> Refusal | None:
        given = request.headers.getlist("host")
        if len(given) != 1:
            return Refusal(400, "a request has one Host")
        name = _host_name(given[0])
        if name in self._hosts or (self._is_closed and _is_address(name)):
            return None
        return Refusal(
            421, f"this page does not answer to the name {name[:100]!r}: start it with --allow-host, or give hosts="
        )

    @property
    def _is_closed(self) -> bool:
        """Whether something other than this machine's walls keeps people out."""
        return self._tokens is not None or self._user is not None

    def _by_address(self, request: Request) -> Refusal | None:
        if self._is_closed:
            return None
        if request.client is None or any(name in request.headers for name in PROXIED):
            return Refusal(
                403,
                "this came by a proxy, and without a token this page answers this machine only: give token=, or user=",
            )
        try:
            is_near = ipaddress.ip_address(request.client.host).is_loopback
        except ValueError:
            is_near = False
        if is_near:
            return None
        return Refusal(403, "without a token, this page answers this machine only: give token=, or user=")

    async def _by_name(self, request: Request, user: User) -> Refusal | None:
        name: Any = user(request)
        if inspect.isawaitable(name):
            name = await name
        if name and not isinstance(name, str):
            logger.error("user= returned no text", extra={"millpond": {"type": type(name).__name__}})
        elif name:
            request.scope["millpond.user"] = str(name)
            return None
        return Refusal(403, "you may not see this page")

    def _by_token(self, request: Request, path: str) -> Refusal | None:
        if self._tokens is None:
            return None
        if self._tokens.is_session(request.cookies.get(COOKIE, "")):
            return None  # nobody guesses those, so who has one need not wait for those who guess
        address = request.client.host if request.client else ""
        wait = self._failures.wait(address)
        if wait:
            return Refusal(429, f"too many wrong tokens: try again in {wait:.0f} s", wait)
        if path == "/api/login":  # which looks at the token by itself
            return None
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            if self._tokens.is_right(given.strip()):
                return None
            self._failures.note(address)
            return Refusal(401, "this is not the token")
        return Refusal(401, "this page needs its token: send it as Authorization: Bearer, or log in")


def path_of(scope: Scope) -> str:
    """Return the path within this app, wherever it is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    inner = path[len(root) :] if root and (path == root or path.startswith(f"{root}/")) else path
    return inner or "/"


def _by_origin(request: Request, path: str) -> Refusal | None:
    """Refuse what a page of another origin made a browser send; a link to the page itself is welcome."""
    site = request.headers.get("sec-fetch-site", "none")
    is_link = request.method == "GET" and path == "/" and request.headers.get("sec-fetch-mode") == "navigate"
    if site not in ("same-origin", "none") and not is_link:
        return Refusal(403, "this was sent by a page of another origin")
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != request.headers["host"].lower():
        return Refusal(403, "this was sent by a page of another origin")
    if request.method in ("GET", "HEAD"):
        return None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return None if kind == "application/json" else Refusal(415, "send JSON: Content-Type: application/json")


def _host_name(text: str) -> str:
    """Return a host without its port."""
    text = text.strip().lower()
    if text.startswith("["):
        return text.partition("]")[0] + "]"
    return text.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def checked_host(name: object) -> str:
    """Return a name by which the page may be asked for, as it is compared."""
    if not isinstance(name, str) or not name or "*" in name or "/" in name:
        raise ValueError(f"a host is a name such as 'pools.example.org', not {name!r}")
    return _host_name(name)


def _refused(refusal: Refusal) -> Response:
    headers = {"cache-control": "no-store"}
    if refusal.wait:
        headers["retry-after"] = str(int(refusal.wait) + 1)
    if refusal.status == 401:
        headers["www-authenticate"] = 'Bearer realm="millpond"'
    return JSONResponse({"error": refusal.error}, refusal.status, headers)


def _with_headers(send: Send) -> Callable[[Message], Awaitable[Any]]:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = list(message.get("headers", []))
            known = {name for name, _ in given}
            given += [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in known]
            message = {**message, "headers": given}
        await send(message)

    return guarded
