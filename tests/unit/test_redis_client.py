"""The client of Redis where the other side is not what it should be."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from millpond._redis import Address, Client, _address
from millpond.errors import EngineUnavailable
from millpond.keyed.shared import connection
from waiting import HANG


@contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """Be a server that gives one answer to whatever it is asked, or none; return its URL."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                if answer is not None:
                    connection.sendall(answer)
                over.wait(HANG)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"redis://127.0.0.1:{server.getsockname()[1]}"
        finally:
            over.set()
            thread.join()


def test_what_does_not_speak_as_redis_does_is_out_of_reach_and_no_fault_of_the_call():
    with answering(b"HTTP/1.0 503 Service Unavailable\r\n\r\n") as url, pytest.raises(EngineUnavailable):
        Client(Address(url)).command("PING")


def test_a_silent_server_is_given_up_in_a_thread_that_gets_signals():
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        with answering(None) as url:
            began = time.monotonic()
            with pytest.raises(EngineUnavailable, match="did not answer"):
                Client(Address(f"{url}?socket_timeout=0.5")).command("PING")
            assert time.monotonic() - began >= 0.5
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("url", ["redis://h?ssl_ca_certs=/ca.pem", "unix:///redis.sock?ssl_certfile=/c.pem"])
def test_options_of_tls_are_refused_where_there_is_none(url: str):
    with pytest.raises(ValueError, match="uses no TLS: write rediss://"):
        Address(url)


def test_keyed_pools_take_every_url_that_the_client_takes():
    assert _address._SCHEMES.keys() <= connection._STORES.keys()
