"""Who may ask: a token, sessions that are made of it, and patience that ends with those who guess.

A session is a signed date, so a page that is started anew, and a second one with the same token, take it as well; who
changes the token ends all sessions. One that was logged out is remembered here, as long as this page runs. Nothing is
compared in a time that tells how much of it was right.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import time
from collections import OrderedDict

from millpond._clock import elapsed

SHORTEST = 16
LIFE = 12 * 3600
"""Seconds for which a browser need not be told the token again."""
TRIES = 5
"""Wrong tokens of an address that cost nothing."""
LONGEST_WAIT = 60.0
ADDRESSES = 4096
SESSIONS = 4096
"""Those that were logged out and are remembered."""


class Tokens:
    """The token of a page."""

    def __init__(self, token: str) -> None:
        if not isinstance(token, str):
            raise TypeError(f"a token is text, not {type(token).__name__}")
        if len(token) < SHORTEST or not token.isprintable() or not token.isascii() or " " in token:
            raise ValueError(
                f"a token has at least {SHORTEST} printable ASCII characters and no blanks: make one with "
                '`python -c "import secrets; print(secrets.token_urlsafe(24))"`'
            )
        self._digest = hashlib.sha256(token.encode()).digest()
        self._key = hashlib.sha256(b"a session of millpond web\0" + token.encode()).digest()
        self._ended: OrderedDict[str, None] = OrderedDict()  # the last sessions that were logged out

    def is_right(self, given: str) -> bool:
        """Return whether that is the token."""
        return hmac.compare_digest(hashlib.sha256(given.encode(errors="replace")).digest(), self._digest)

    def session(self) -> str:
        """Return a new session."""
        text = f"{int(time.time()) + LIFE}.{secrets.token_urlsafe(9)}"
        return f"{text}.{self._sign(text)}"

    def is_session(self, given: str) -> bool:
        """Return whether that is a session of this token that has not ended."""
        text, _, signature = given.rpartition(".")
        if not hmac.compare_digest(self._sign(text).encode(), signature.encode(errors="replace")):
            return False
        return int(text.partition(".")[0]) > time.time() and given not in self._ended

    def end(self, session: str) -> None:
        """End a session: it counts no more."""
        if self.is_session(session):
            self._ended[session] = None
            if len(self._ended) > SESSIONS:
                self._ended.popitem(last=False)

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode(errors="replace"), hashlib.sha256).hexdigest()


class Failures:
    """Those who gave wrong tokens, by address; of IPv6, by network."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def wait(self, address: str) -> float:
        """Return for how many seconds nobody of this address is listened to."""
        _, until = self._known.get(_network(address), (0, 0.0))
        return max(0.0, until - elapsed())

    def note(self, address: str) -> None:
        """Take note of a wrong token."""
        network = _network(address)
        count, until = self._known.pop(network, (0, 0.0))
        if elapsed() > until + 2 * LONGEST_WAIT:
            count = 0
        count += 1
        pause = 0.0 if count < TRIES else min(LONGEST_WAIT, 2.0 ** (count - TRIES))
        self._known[network] = (count, elapsed() + pause)
        if len(self._known) > ADDRESSES:
            self._known.popitem(last=False)

    def forget(self, address: str) -> None:
        """Take note of the right token."""
        self._known.pop(_network(address), None)


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 6:
        mapped = found.ipv4_mapped
        return str(mapped) if mapped else str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
