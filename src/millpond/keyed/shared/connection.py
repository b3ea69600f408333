"""A pool as both faces and the worker share it: its name, its store, what its jobs are."""

from __future__ import annotations

import base64
import contextlib
import importlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, TypeVar
from weakref import WeakSet

from millpond._clock import elapsed
from millpond._events import Observer, logger
from millpond._tracing import NOT_TRACED, Tracing, check_tracing
from millpond._urls import shown
from millpond.errors import EngineUnavailable, NotFound, PoolClosed
from millpond.keyed.rules.checks import check_text
from millpond.keyed.rules.envelope import Envelope, TracedEnvelope, encode
from millpond.keyed.rules.placement import Jump, Placement, Rendezvous, name_of, slot_of
from millpond.keyed.rules.records import Order, OrderOptions, Settings
from millpond.keyed.rules.settings import AGREED, FIXED, shown_setting
from millpond.keyed.shared.arguments import pack
from millpond.keyed.shared.definition import Definition
from millpond.keyed.stores.base import PoolGone, Store

T = TypeVar("T")
_tuple = tuple.__new__  # a NamedTuple in half the time

_STORES = {
    "memory": "millpond.keyed.stores.memory",
    "sqlite": "millpond.keyed.stores.sqlite",
    **dict.fromkeys(
        ("redis", "rediss", "redis+cluster", "rediss+cluster", "redis+unix"), "millpond.keyed.stores.redis"
    ),
    **dict.fromkeys(("valkey", "valkeys", "valkey+cluster", "valkeys+cluster"), "millpond.keyed.stores.redis"),
    **dict.fromkeys(("unix", "valkey+unix"), "millpond.keyed.stores.redis"),
}
_RESOURCES_ONLY = ("postgresql", "postgres", "temporal")
_LONGEST_KEY = 1024
_SPARE_IDS = 256
EMPTY: Mapping[str, Any] = MappingProxyType({})
_works: ContextVar[bool] = ContextVar("works", default=False)
"""Whether this is done by a worker of the pool, and not by the program that has closed it."""
PATIENCE = 2.0
"""Seconds for which a question is asked again when the store cannot be reached."""


class PoolConnection:
    """Where a pool lives, and what is known of it here. It is opened when it is first needed."""

    def __init__(
        self,
        name: str,
        url: str,
        wanted: Mapping[str, Any],
        placement: str | Placement | tuple[str, Placement] | None,
        observer: Observer | None,
        *,
        create: bool = True,
        tracing: Tracing | None = None,
    ) -> None:
        self.name = _name(name)
        self.tracing = check_tracing(tracing)
        self._may_create = create
        self.url = url
        self.observer = observer
        self.definitions: dict[str, Definition] = {}
        self.permanent: list[tuple[Definition, str, tuple[Any, ...]]] = []
        """Residents that every worker starts when it joins, each with its key and arguments: they are there always."""
        self._module = _module_of(url)
        self._wanted = {key: value for key, value in wanted.items() if value is not None}
        self.placement: Placement | None
        self.placement, self._wanted["placement"] = _placement(placement)
        if placement is None:
            del self._wanted["placement"]
        self._lock = threading.RLock()
        self._store: Store | None = None
        self._settings: Settings | None = None
        self._is_closed = False
        self._served: list[Store] = []
        """The store of each worker of this process."""
        self._told: set[str] = set()
        self.forked: list[Callable[[], None]] = []
        """What others do in a forked child, which shares nothing with its parent."""
        self._begin()
        _connections.add(self)

    def begin_anew(self) -> None:
        """Begin in a forked child: locks may be held by threads that are not here, and the store is the parent's."""
        self._lock = threading.RLock()
        self._store = None
        self._served = []
        self._begin()
        for step in self.forked:
            step()

    def _begin(self) -> None:
        self.producer = secrets.token_hex(6)
        """What stands for this process with those who settle its jobs."""
        self._spare_ids: list[str] = []

    # -- the store ----------------------------------------------------------------------------------------------------

    def open(self) -> tuple[Store, Settings]:
        """Return the store and what holds for the pool; open it if that has not been done in this process."""
        if self._is_closed and not (_works.get() and self._served):
            raise PoolClosed(f"pool {self.name!r} was closed here: open it again with `with pool:`")
        if self._store is not None and self._settings is not None:
            return self._store, self._settings
        with self._lock:
            if self._store is None:
                self._check_there()
                store: Store = importlib.import_module(self._module).open(self.url, self.name)
                try:
                    self._settings = self._agreed(store)
                except BaseException:
                    store.close()
                    raise
                self._store = store
            assert self._settings is not None
            return self._store, self._settings

    def reopen(self) -> tuple[Store, Settings]:
        """Make sure that the pool exists in the store: it may have lost its data."""
        store, _ = self.open()
        self._check_there()
        return store, self.agree(store)

    def _check_there(self) -> None:
        """Refuse to make a pool where that is not wanted."""
        if not self._may_create and not has(self.url, self.name):
            raise NotFound(f"there is no keyed pool {self.name!r} at {shown(self.url)} (any more)")

    def agree(self, store: Store, *, lenient: bool = False) -> Settings:
        """Make the pool in the store, or find it there; `lenient` takes it as it is, with a warning."""
        with self._lock:
            self._settings = self._agreed(store, lenient=lenient)
            return self._settings

    @contextlib.contextmanager
    def as_worker(self) -> Iterator[None]:
        """Allow what a worker does by itself to use the pool, also when it was closed here and the worker goes on."""
        token = _works.set(True)
        try:
            yield
        finally:
            _works.reset(token)

    def engage(self) -> tuple[Store, Settings, Placement]:
        """Open the store for a worker, which keeps it open until it is dismissed."""
        store, settings = self.open()
        if self.placement is None:
            raise ValueError(
                f"pool {self.name!r} was created with placement {settings.placement!r}: a worker needs that function"
            )
        with self._lock:
            self._served.append(store)
        return store, settings, self.placement

    def dismiss(self, store: Store) -> None:
        """Remove a worker; close the store with the last one, if the pool was closed here."""
        with self._lock:
            if store in self._served:  # not in a forked child
                self._served.remove(store)
            is_last = store not in self._served and (self._is_closed or self._store is not store)
            if is_last and self._store is store:
                self._store = None
        if is_last:
            store.close()

    def _agreed(self, store: Store, *, lenient: bool = False) -> Settings:
        """Create the pool as it is wanted here, or check that it is so."""
        found = store.open(Settings()._replace(**self._wanted)).settings
        for key, value in self._wanted.items():
            if getattr(found, key) != value:
                self._disagree(key, shown_setting(key, getattr(found, key)), shown_setting(key, value), lenient)
        if "placement" not in self._wanted:
            try:
                self.placement, _ = _placement(found.placement)
            except ValueError:
                self.placement = None  # only a worker needs it
        return found

    def _disagree(self, key: str, has: str, wants: str, lenient: bool) -> None:
        """Refuse what would break the pool; else say that what holds there holds here."""
        where = f"pool {self.name!r} at {shown(self.url)!r} has {key}={has}, not {wants}"
        if key in AGREED and not (lenient and key not in FIXED):
            remedy = "" if key in FIXED else ", change it by admin.configure while no worker is there"
            raise ValueError(f"{where}: leave it out to use the pool as it is{remedy}, or take another name")
        if key not in self._told:
            self._told.add(key)
            logger.warning("%s: that holds, change it by admin.configure(%s=%s)", where, key, wants)

    def want(self, changes: Mapping[str, Any]) -> None:
        """Take note that other settings are wanted from now on."""
        self._wanted.update({name: value for name, value in changes.items() if name in self._wanted})

    @property
    def is_closed(self) -> bool:
        """Whether the pool was closed here."""
        return self._is_closed

    def revive(self) -> None:
        """Allow a pool that was closed here to be opened again."""
        with self._lock:
            self._is_closed = False

    @contextlib.contextmanager
    def living_at(self, url: str) -> Iterator[None]:
        """Move a pool that is closed here to another URL for a while."""
        with self._lock:
            if self._store is not None:
                raise RuntimeError(f"pool {self.name!r} is in use here: end its workers first")
            before = self.url, self._module, dict(self._wanted)
            self.url, self._module, self._settings = url, _module_of(url), None
        try:
            yield
        finally:
            with self._lock:  # a handler that outlives its worker has the store to itself
                (self.url, self._module, self._wanted), self._settings, self._store = before, None, None

    @property
    def is_open(self) -> bool:
        """Whether the store is open here."""
        return self._store is not None and not self._is_closed

    @property
    def store(self) -> Store:
        """The store, opened."""
        return self.open()[0]

    @property
    def settings(self) -> Settings:
        """What holds for the whole pool."""
        return self.open()[1]

    def ask(self, question: Callable[[Store], T], *, once: bool = False) -> T:
        """Do something with the store; if it has lost the pool, make it anew first.

        When the store cannot be reached, perhaps since it was started anew, this is tried again for a moment; not with
        `once`, for what must not be done twice.
        """
        deadline = elapsed() + (0 if once else PATIENCE)
        is_gone = False
        while True:
            try:
                return question(self.reopen()[0] if is_gone else self.store)
            except PoolGone:
                is_gone = True
                if elapsed() > deadline + PATIENCE:
                    raise
            except EngineUnavailable:
                if elapsed() > deadline:
                    raise
                time.sleep(0.1)

    def close(self) -> None:
        """Close the store, now or when the last worker of this process does."""
        with self._lock:
            self._is_closed = True
            if self._store in self._served:
                return
            store, self._store = self._store, None
        if store is not None:
            store.close()

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def add(self, definition: Definition) -> None:
        """Take note of a job or resident."""
        self.check_free(definition.name)
        self.definitions[definition.name] = definition

    def check_free(self, name: str) -> None:
        """Refuse a name that is taken."""
        if name in self.definitions:
            raise ValueError(f"pool {self.name!r} has a job {name!r} already: give name= another one")

    def keep_standing(self, definition: Definition, key: str, args: tuple[Any, ...]) -> None:
        """Take note of a resident that is to be there as long as the pool has workers."""
        self.add(definition)
        self.permanent.append((definition, key, args))

    def handled(self) -> Iterable[str]:
        """Return the names of what can be run here."""
        return [each.name for each in self.definitions.values() if each.function is not None]

    def address(self, key: str, resident: str = "") -> tuple[int, str]:
        """Return the slot and the mailbox of a key, or of its resident of that name; refuse what is no key."""
        plain = self.checked_key(key)
        return slot_of(plain, self.settings.slots), f"r:{resident}:{plain}" if resident else f"j:{plain}"

    def checked_key(self, key: str) -> str:
        """Return a key as plain text; refuse what is none."""
        return check_text(key, "a key", _LONGEST_KEY)

    def new_id(self) -> str:
        """Return an id that no job has: letters and digits of 96 random bits, made many at a time."""
        try:
            return self._spare_ids.pop()
        except IndexError:
            text = base64.b64encode(secrets.token_bytes(12 * _SPARE_IDS), b"AZ").decode()
            self._spare_ids += [text[at : at + 16] for at in range(16, len(text), 16)]
            return text[:16]

    def order(
        self,
        definition: Definition,
        key: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: OrderOptions | None,
        trace: Mapping[str, str] | None = None,
    ) -> tuple[str, Order]:
        """Return the id and the order of a job; raise when its arguments do not fit or are too large."""
        settings = self.open()[1]
        payload = definition.shape.encode(args, kwargs)
        if len(payload) > settings.payload_limit:
            self._limited(payload, f"the arguments of job {definition.name!r}")
        plain = self.checked_key(key)
        job = options.id if options is not None and options.id else self.new_id()
        if options is not None:
            moment = options.at
            at = moment and self.ask(lambda store: store.time_at(moment))
            options = options._replace(id=job, name=definition.name, at=at)
        keep = definition.keep
        fields = (job, definition.name, self.producer if keep else "", keep, payload)
        body = encode(TracedEnvelope(*fields, trace) if trace else Envelope(*fields))
        return job, _tuple(Order, (slot_of(plain, settings.slots), f"j:{plain}", body, options))

    def sending(self, job: str, key: str | None = None) -> AbstractContextManager[Mapping[str, str] | None]:
        """Trace the dispatch of a job, if that is wanted; the value is what travels with it."""
        return NOT_TRACED if self.tracing is None else self.tracing.sending(self.name, job, key)

    def resident(self, definition: Definition, key: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Return the envelope of a resident."""
        self.address(key)
        what = f"the arguments of resident {definition.name!r}"
        return self.envelope(definition, args, kwargs, lambda payload: self._limited(payload, what))

    def envelope(
        self,
        definition: Definition,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] = EMPTY,
        checked: Callable[[bytes], bytes] = lambda payload: payload,
    ) -> bytes:
        """Return the envelope of a resident with these arguments: the same ones are always the same bytes."""
        payload = checked(definition.shape.encode(args, kwargs, always_the_same=True))
        return encode(Envelope(self.new_id(), definition.name, "", 0, payload))

    def message(self, value: Any) -> bytes:
        """Return a message as bytes."""
        return self._limited(pack(value), "the message")

    def _limited(self, payload: bytes, what: str) -> bytes:
        limit = self.settings.payload_limit
        if len(payload) > limit:
            raise ValueError(
                f"{what} takes {len(payload)} bytes, and pool {self.name!r} allows {limit}: store it elsewhere and "
                "send where it is, or create the pool with payload_limit="
            )
        return payload


_connections: WeakSet[PoolConnection] = WeakSet()


def _begin_anew() -> None:
    for connection in list(_connections):
        connection.begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name or not name.isprintable() or set(name) & set("{}") or len(name) > 200:
        raise ValueError(f"a pool's name is a printable text without braces, up to 200 characters, not {name!r}")
    return name


def has(url: str, name: str) -> bool:
    """Return whether a keyed pool of that name lives at a URL."""
    module: Any = importlib.import_module(_module_of(url))
    return bool(module.has(url, name)) if hasattr(module, "has") else name in module.pools(url)


def pools(url: str) -> list[str]:
    """Return the names of the keyed pools that live at a URL."""
    names: list[str] = importlib.import_module(_module_of(url)).pools(url)
    return names


def _module_of(url: str) -> str:
    if not isinstance(url, str):
        raise TypeError(f"a pool's URL must be a string such as 'redis://localhost', not {url!r}")
    connection = _STORES.get(url.partition(":")[0]) if ":" in url else None
    if connection is None:
        other = url.partition(":")[0] in _RESOURCES_ONLY
        why = "; PostgreSQL and Temporal are for resource pools only" if other else ""
        raise ValueError(
            f"no store for {shown(url)!r}: use 'memory:', 'sqlite:///path/to/file.db' or 'redis://host:port/0'{why}"
        )
    return connection


def _placement(wanted: Any) -> tuple[Placement, str]:
    if isinstance(wanted, tuple) and len(wanted) == 2 and callable(wanted[1]):
        name = check_text(wanted[0], "the name of a placement", 200)
        if name in ("rendezvous", "jump"):
            raise ValueError(f"a placement of your own cannot be called {name!r}: that is one of ours")
        return wanted[1], name
    if callable(wanted):
        return wanted, "jump" if isinstance(wanted, Jump) else name_of(wanted)
    if wanted in (None, "rendezvous"):
        return Rendezvous(), "rendezvous"
    if wanted == "jump":
        return Jump(), "jump"
    raise ValueError(
        f"placement is 'rendezvous', 'jump', a function of (members, slots) or a name and such a function, not "
        f"{wanted!r}; give what the pool was created with"
    )
