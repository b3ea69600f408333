"""The client of Redis where the other side is not what it should be."""

from __future__ import annotations

import itertools
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond._redis import Address, Client, ServerError, _address, _parser
from millpond._redis._client import NotRedis
from millpond.errors import EngineUnavailable
from millpond.keyed.shared import connection
from waiting import HANG


@contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """Serve one answer to whatever is asked, or none; give the URL."""
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


@pytest.mark.parametrize(
    "option", ["ssl_cert_reqs=nonsense", "ssl_cert_reqs=", "ssl_check_hostname=perhaps", "ssl_cert_reqs=CERT_REQUIRED"]
)
def test_an_option_of_tls_that_is_not_understood_is_refused(option: str):
    with pytest.raises(ValueError, match=r"it must be one of .*(required, optional|true, yes)"):
        Address(f"rediss://h?{option}")


@pytest.mark.parametrize(
    ("option", "verifies"), [("", True), ("?ssl_cert_reqs=None", False), ("?ssl_cert_reqs=optional", True)]
)
def test_certificates_are_checked_unless_the_url_says_otherwise(option: str, verifies: bool):
    assert Address(f"rediss://h{option}").for_programs()["tls"]["verifies"] is verifies


@pytest.mark.parametrize("seconds", ["1e-7", "1e-300", "0.4e-6"])
def test_the_shortest_time_limit_is_not_taken_for_none(seconds: str):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        _address._limit(ours, float(seconds))
        with pytest.raises(BlockingIOError):
            ours.recv(1)


def test_a_time_limit_of_ages_can_be_told_to_the_kernel():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        _address._limit(ours, 1e300)
        theirs.send(b"x")
        assert ours.recv(1) == b"x"


ANSWERS = st.recursive(
    st.one_of(
        st.none(),
        st.integers(-(2**62), 2**62),
        st.binary(max_size=30),
        st.sampled_from(["OK", "PONG"]),
        st.builds(ServerError, st.sampled_from(["ERR wrong", "MOVED 1 h:1"])),
    ),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


def as_bytes(answer: object) -> bytes:
    match answer:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % answer
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(answer), answer)
        case str():
            return b"+%b\r\n" % answer.encode()
        case list():
            return b"*%d\r\n%b" % (len(answer), b"".join(map(as_bytes, answer)))
    return b"-%b\r\n" % str(answer).encode()


def as_read(answer: object) -> object:
    if isinstance(answer, list):
        return [as_read(one) for one in answer]
    return answer.encode() if isinstance(answer, str) else repr(answer) if isinstance(answer, ServerError) else answer


@given(st.lists(ANSWERS, max_size=4), st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_answers_are_read_whatever_the_pieces_in_which_they_come(answers: list[object], sizes: list[int]):
    data, found = b"".join(map(as_bytes, answers)), []
    reader = _parser.Reader(protocolError=NotRedis, replyError=ServerError)
    for size in itertools.cycle(sizes):
        while (answer := reader.gets()) is not False:
            found.append(answer)
        if not data:
            break
        reader.feed(data[:size])
        data = data[size:]

    def readable(answer: object) -> object:
        if isinstance(answer, list):
            return [readable(one) for one in answer]
        return repr(answer) if isinstance(answer, ServerError) else answer

    assert [readable(one) for one in found] == [as_read(one) for one in answers]


def test_a_large_answer_in_many_pieces_is_read_once():
    looks = 0

    class Data(bytearray):
        def find(self, *args: Any) -> int:
            nonlocal looks
            looks += 1
            return super().find(*args)

    reader = _parser.Reader(protocolError=NotRedis, replyError=ServerError)
    reader._data = Data()
    reader.feed(b"*1000\r\n")
    for _ in range(1000):
        assert reader.gets() is False
        reader.feed(b"$3\r\nabc\r\n")
    assert reader.gets() == [b"abc"] * 1000
    assert looks <= 3 * 1000


def test_what_is_no_answer_of_redis_is_refused():
    reader = _parser.Reader(protocolError=NotRedis, replyError=ServerError)
    reader.feed(b"HTTP/1.0 200\r\n")
    with pytest.raises(NotRedis, match="cannot begin with b'H'"):
        reader.gets()
