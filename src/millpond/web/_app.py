"""The page and its API as an ASGI app: alone behind `millpond web`, or mounted in an app of yours."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

try:
    import anyio
    import anyio.to_thread
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import FileResponse, PlainTextResponse, Response
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles
except ImportError as error:
    raise ImportError('the page needs starlette and uvicorn: pip install "millpond[web]"') from error

import millpond
from millpond import errors
from millpond.web._acts import NOBODY, Acts
from millpond.web._guard import COOKIE, Guard, User, checked_host
from millpond.web._live import MOST, Streams
from millpond.web._looks import Looks, Query
from millpond.web._pools import FRESH, OpenPools
from millpond.web._tokens import LIFE, Failures, Tokens

T = TypeVar("T")
Answering = Callable[[Request], Awaitable[Any]]
STATIC = Path(__file__).parent / "static"
LARGEST = 64 * 1024
"""Bytes of what an act is given."""
SENDING = 10.0
"""Seconds in which that must have come."""
ANSWERING = 15.0
"""Seconds in which the store must have answered."""
THREADS = 16
NAME = 80
SAFE_INTEGER = 2**53
logger = logging.getLogger("millpond.web")

STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (errors.NotFound, 404),
    (errors.EngineError, 503),
    (errors.PoolError, 409),
    (ImportError, 503),
    (TimeoutError, 503),
    (ValueError, 400),
    (TypeError, 400),
    (OverflowError, 400),
    (OSError, 503),
)


def app(
    url: str,
    *,
    token: str | None = None,
    read_only: bool = False,
    show_payloads: bool = False,
    hosts: Sequence[str] = (),
    user: User | None = None,
) -> Starlette:
    """Return the page for the pools at a URL, as an ASGI app: `app.mount("/pools", millpond.web.app(url))`.

    It answers this machine only, until you say who else may see it: with `token`, whoever has that; with `user`, a
    function of the request, whoever it returns a name for, which is then kept with all they do. `hosts` are names by
    which it may be asked for, beside `localhost`. `read_only` lets nobody act. The arguments of jobs are not shown
    unless you say `show_payloads`.
    """
    return _Page(OpenPools(url), token, read_only, show_payloads, hosts, user).asgi


class _Page:
    def __init__(
        self,
        pools: OpenPools,
        token: str | None,
        read_only: bool,
        show_payloads: bool,
        hosts: Sequence[str],
        user: User | None,
    ) -> None:
        if token is not None and user is not None:
            raise ValueError("token= or user=, not both: who comes by a token has no name")
        if isinstance(hosts, str):
            raise TypeError(f"hosts is a list of names, not the text {hosts!r}")
        if user is not None and not callable(user):
            raise TypeError(f"user is a function that takes a request and returns a name, not {user!r}")
        self._pools = pools
        self._looks = Looks(pools, show_payloads=show_payloads)
        self._acts = Acts(pools)
        self._tokens = None if token is None else Tokens(token)
        self._failures = Failures()
        self._streams = Streams(encoded)
        self._metrics_of: Any = None
        self._is_read_only = read_only
        self._shows_payloads = show_payloads
        names = [checked_host(one) for one in hosts]
        guard = Middleware(Guard, tokens=self._tokens, hosts=names, user=user, failures=self._failures)
        self.asgi = Starlette(routes=self._routes(), middleware=[guard], lifespan=self._lifespan)
        self.asgi.state.is_ending = self._streams.is_ending
        self.asgi.add_exception_handler(HTTPException, _told)

    def _routes(self) -> list[Route | Mount]:
        gets = {
            "/": self._index,
            "/api/place": self._place,
            "/api/live": self._live,
            **{f"/api/{word}": self._look(word) for word in self._looks.table},
            "/metrics": self._metrics,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
        }
        posts = {
            "/api/login": self._login,
            "/api/logout": self._logout,
            **{f"/api/{verb}": self._act(verb) for verb in self._acts.table},
        }
        return [
            Mount("/static", StaticFiles(directory=STATIC), name="static"),
            *(Route(path, _answering(answer)) for path, answer in gets.items()),
            *(Route(path, _answering(answer), methods=["POST"]) for path, answer in posts.items()),
        ]

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._streams.ends_with_server = True
        try:
            yield
        finally:
            self._streams.is_ending.set()
            await anyio.to_thread.run_sync(self._close)

    def _close(self) -> None:
        self._pools.close()
        if self._metrics_of is not None:
            self._metrics_of.close()

    # --- the page ------------------------------------------------------------------------------------------------

    async def _index(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    async def _place(self, request: Request) -> Response:
        return _json(
            {
                "url": self._pools.shown,
                "version": millpond.__version__,
                "read_only": self._is_read_only,
                "show_payloads": self._shows_payloads,
                "has_token": self._tokens is not None,
                "user": request.scope.get("millpond.user"),
            }
        )

    async def _login(self, request: Request) -> Response:
        given = await _body(request)
        token = given.get("token") if isinstance(given, dict) else None
        if self._tokens is None:
            return _json({"error": "this page has no token"}, 400)
        address = request.client.host if request.client else ""
        if wait := self._failures.wait(address):  # others guessed while this one was sent
            return _json({"error": f"too many wrong tokens: try again in {wait:.0f} s"}, 429)
        if not isinstance(token, str) or not self._tokens.is_right(token):
            self._failures.note(address)
            logger.warning("a wrong token", extra={"millpond": {"address": address}})
            return _json({"error": "this is not the token"}, 401)
        self._failures.forget(address)
        response = _json({"done": "logged in"})
        self._set_cookie(request, response, self._tokens.session(), LIFE)
        return response

    async def _logout(self, request: Request) -> Response:
        if self._tokens is not None:
            self._tokens.end(request.cookies.get(COOKIE, ""))
        response = _json({"done": "logged out"})
        self._set_cookie(request, response, "", 0)
        return response

    def _set_cookie(self, request: Request, response: Response, value: str, life: int) -> None:
        response.set_cookie(
            COOKIE,
            value,
            max_age=life,
            path=f"{request.scope.get('root_path', '')}/",
            secure="https" in (request.url.scheme, request.headers.get("origin", "").partition(":")[0]),
            httponly=True,
            samesite="strict",
        )

    # --- the API -------------------------------------------------------------------------------------------------

    def _look(self, word: str) -> Answering:
        async def look(request: Request) -> Response:
            given = _parameters(request)
            return _json(await _ask(lambda: self._looks.answer(word, given)))

        return look

    def _act(self, verb: str) -> Answering:
        async def act(request: Request) -> Response:
            if self._is_read_only:
                return _json({"error": "this page is read-only: nothing can be done here"}, 403)
            given = await _body(request)
            by = _person(request, given)
            logger.info("an act", extra={"millpond": {"verb": verb, "by": by}})
            return _json(await _ask(lambda: self._acts.act(verb, given, by)))

        return act

    async def _live(self, request: Request) -> Any:
        query = Query(_parameters(request), ("pool", "kind"))
        name, kind = query.maybe("pool"), query.maybe("kind")
        if kind not in (None, "keyed", "resources"):
            raise ValueError(f"kind is 'keyed' or 'resources', not {kind[:40]!r}")
        if self._streams.count >= MOST:
            return _json({"error": f"there are {MOST} streams already: ask again, or close some tabs"}, 503)

        def look() -> dict[str, Any]:
            parts: dict[str, Any] = {"pools": self._looks.overview()}
            if name is None:
                return parts
            try:
                is_keyed = self._pools.kind(name, kind) == "keyed"
                state = self._looks.keyed_state(name) if is_keyed else self._looks.resources_state(name)
            except errors.NotFound as error:
                return {**parts, "gone": {"error": str(error)}}
            if is_keyed:
                state = dict(state)
                parts["slots"] = {"owners": state.pop("owners"), "slots": state.pop("slots")}
            return {**parts, "pool": state}

        return self._streams.response(request, _ask, look)

    # --- for machines --------------------------------------------------------------------------------------------

    async def _healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, request: Request) -> Response:
        try:
            await _ask(lambda: self._pools.names(FRESH))
        except Exception:
            logger.warning("not ready", exc_info=True)
            return PlainTextResponse("the store does not answer\n", 503)
        return PlainTextResponse("ok\n")

    async def _metrics(self, request: Request) -> Response:
        if self._metrics_of is None:
            try:
                self._metrics_of = importlib.import_module("millpond.metrics").Place(self._pools.url)
            except ImportError:
                return PlainTextResponse('metrics need an extra: pip install "millpond[metrics]"\n', 404)
        body, kind = await _ask(self._metrics_of.render)
        return Response(body, headers={"content-type": kind, "cache-control": "no-store"})


_places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


async def _ask(question: Callable[[], T]) -> T:
    """Ask something that blocks, in a thread; who has waited long enough is told, whatever the thread does.

    The threads are this page's own: when the store hangs, an app that it is mounted in has all of its threads. One that
    hangs keeps its place, so there are never many more than places.
    """
    loop = asyncio.get_running_loop()
    places = _places.setdefault(loop, asyncio.Semaphore(THREADS))
    taken: list[bool] = []
    has_begun = threading.Event()

    def give_back() -> None:
        if taken:
            taken.clear()
            places.release()

    def ask() -> T:
        has_begun.set()
        try:
            return question()
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is over
                loop.call_soon_threadsafe(give_back)

    try:
        async with asyncio.timeout(ANSWERING):
            await places.acquire()
            taken.append(True)
            try:
                one = anyio.CapacityLimiter(1)  # it has its place already
                return await anyio.to_thread.run_sync(ask, abandon_on_cancel=True, limiter=one)
            finally:
                if not has_begun.is_set():
                    give_back()
    except TimeoutError as error:
        if str(error):
            raise
        raise TimeoutError(
            f"the store has not answered in {ANSWERING:.0f} s; a look at all jobs of a large pool takes long"
        ) from None


def _parameters(request: Request) -> dict[str, str]:
    items = request.query_params.multi_items()
    found = dict(items)
    if len(found) < len(items):
        raise ValueError("each parameter may be given once")
    return found


async def _body(request: Request) -> Any:
    """Return what was sent, if it is JSON, not too large and not too slow."""
    text = request.headers.get("content-length", "0")
    if not text.isdigit() or int(text[:12]) > LARGEST:
        raise HTTPException(413, f"at most {LARGEST} bytes")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(SENDING):
            async for part in request.stream():
                size += len(part)
                if size > LARGEST:
                    raise HTTPException(413, f"at most {LARGEST} bytes")
                parts.append(part)
    except TimeoutError:
        raise HTTPException(408, f"that did not come in {SENDING:.0f} s") from None
    try:
        return json.loads(b"".join(parts) or b"null", parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise HTTPException(400, "that is not JSON") from None


def _refuse_constant(text: str) -> Any:
    raise ValueError(text)


def _person(request: Request, given: Any) -> str:
    """Return who acts: whom another program knows, or whom they say they are and where they sit."""
    known = request.scope.get("millpond.user")
    if known:
        return f"{_one_line(known)} (web)"
    said = given.get("by") if isinstance(given, dict) else None
    if said is not None and not isinstance(said, str):
        raise ValueError("by is text: your name")
    address = request.client.host if request.client else "this machine"
    return f"{_one_line(said or '') or NOBODY} (web, from {address})"


def _one_line(text: str) -> str:
    plain = "".join(one if one.isprintable() else " " for one in text)
    return plain.encode(errors="replace").decode()[:NAME].strip()


def _answering(answer: Answering) -> Answering:
    """Return what answers in words when something goes wrong, from behind the guard."""

    async def answering(request: Request) -> Any:
        try:
            return await answer(request)
        except Exception as error:
            return _told(request, error)

    return answering


def _told(request: Request, error: Exception) -> Response:
    """Answer with what went wrong, in words; what nobody has thought of is for the log."""
    if isinstance(error, HTTPException):
        return _json({"error": error.detail}, error.status_code, dict(error.headers or {}))
    for kind, status in STATUSES:
        if isinstance(error, kind):
            return _json({"error": str(error) or kind.__name__}, status)
    if not isinstance(error, ClientDisconnect):
        logger.error("a request failed", exc_info=error, extra={"millpond": {"path": request.url.path}})
    return _json({"error": f"this went wrong: {type(error).__name__}; the log of the page says where"}, 500)


def _json(data: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    more = {"cache-control": "no-store", **(headers or {})}
    return Response(encoded(data), status, more, "application/json")


def encoded(data: Any) -> bytes:
    """Return JSON that every program reads: of numbers, those that JavaScript has; lone surrogates escaped."""
    return json.dumps(_portable(data), default=str, separators=(",", ":")).encode()


def _portable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _portable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_portable(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= SAFE_INTEGER:
        return str(value)
    return value
