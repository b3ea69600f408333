"""The program of a worker's heart outside its interpreter. Standard library only, and little of it: it runs by itself.

It watches one process. As long as that renews its lease itself, this does nothing. When the process computes and gives
no sign of life (a function that holds the GIL), its lease is renewed from here, for `stall` seconds at most. When the
process has ended, the store is told at once, so that nobody waits for the lease. A process that was stopped (SIGSTOP)
does not compute: its lease ends.

It reads marshalled lists from its standard input, each after four bytes of length: first what it has to know, then
`["join", worker, number]` for a new membership, `["beat"]` for a sign of life, `["leave"]` at the end. The time of its
last renewal, and the number of that membership, stand in a shared page, where the worker finds them when it comes to
itself.
"""

from __future__ import annotations

# `signal`, `socket` and `typing` would take 2 MB, in every worker
import _signal  # type: ignore[import-not-found]
import _socket
import marshal
import mmap
import os
import select
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
CALL = 5.0
"""Seconds for which an answer is waited for."""


def elapsed() -> float:
    return time.clock_gettime(CLOCK)


class Redis:
    """Just enough of a client to run two scripts."""

    def __init__(self, address: dict[str, Any]) -> None:
        self._first = self._address = address
        self._socket: Any = None
        self._rest = b""

    def run(self, sha: bytes, source: bytes, *args: bytes) -> Any:
        """Run a script, wherever the pool is now."""
        try:
            answer = self._run(sha, source, args)
        except OSError:  # the connection was an old one, or to a node that is gone: once more, where we began
            self.close()
            self._address = self._first
            answer = self._run(sha, source, args)
        if isinstance(answer, Exception):  # it may not be the primary any more
            self.close()
            self._address = self._first
        return answer

    def _run(self, sha: bytes, source: bytes, args: tuple[bytes, ...]) -> Any:
        for _ in range(5):
            answer = self._call(b"EVALSHA", sha, b"1", *args)
            if isinstance(answer, Exception) and str(answer).startswith("NOSCRIPT"):
                answer = self._call(b"EVAL", source, b"1", *args)
            if not isinstance(answer, Exception) or not str(answer).startswith(("MOVED ", "ASK ")):
                return answer
            host, _, port = str(answer).split()[-1].rpartition(":")
            self._address = {**self._address, "host": host or self._address["host"], "port": int(port), "path": None}
            self.close()
        return OSError("sent elsewhere too often")

    def _call(self, *args: bytes) -> Any:
        if self._socket is None:
            self._connect()
        return self._send(args)

    def _connect(self) -> None:
        address = self._address
        made = _secured(address) if address["tls"] is not None else _connected(address)
        self._socket, self._rest = made, b""
        if address["password"]:
            self._must(b"AUTH", *([address["username"]] if address["username"] else []), address["password"])
        if address["db"]:
            self._must(b"SELECT", b"%d" % address["db"])

    def _must(self, *args: bytes) -> None:
        answer = self._send(args)
        if isinstance(answer, Exception):
            self.close()
            raise OSError(str(answer))

    def _send(self, args: tuple[bytes, ...]) -> Any:
        self._socket.sendall(b"*%d\r\n" % len(args) + b"".join(b"$%d\r\n%s\r\n" % (len(each), each) for each in args))
        return self._answer()

    def _answer(self) -> Any:
        line = self._line()
        kind, value = line[:1], line[1:]
        if kind == b"-":
            return RuntimeError(value.decode(errors="replace"))
        if kind == b":":
            return int(value)
        if kind == b"$":
            return None if value == b"-1" else self._exactly(int(value) + 2)[:-2]
        if kind == b"*":
            return [self._answer() for _ in range(int(value))]
        return value

    def _line(self) -> bytes:
        while b"\r\n" not in self._rest:
            self._more()
        line, _, self._rest = self._rest.partition(b"\r\n")
        return line

    def _exactly(self, number: int) -> bytes:
        while len(self._rest) < number:
            self._more()
        found, self._rest = self._rest[:number], self._rest[number:]
        return found

    def _more(self) -> None:
        data = self._socket.recv(65536)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        self._rest += data

    def close(self) -> None:
        made, self._socket = self._socket, None
        if made is not None:
            made.close()


def _connected(address: dict[str, Any]) -> Any:
    """Return a plain socket that is connected, or raise OSError."""
    if address["path"]:
        made = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        made.settimeout(CALL)
        made.connect(address["path"])
        return made
    host = address["host"]
    host = host.encode() if host.isascii() else host  # else Python loads its tables of all characters
    failure: OSError | None = None
    for family, kind, number, _, where in _socket.getaddrinfo(host, address["port"], 0, _socket.SOCK_STREAM):
        made = _socket.socket(family, kind, number)
        made.settimeout(CALL)
        try:
            made.connect(where)
        except OSError as error:
            made.close()
            failure = error
        else:
            return made
    raise failure or OSError("the host has no address")


def _secured(address: dict[str, Any]) -> Any:
    """Return a socket with TLS that is connected, or raise OSError."""
    import socket  # noqa: PLC0415  (these two take half as much memory as everything else)
    import ssl  # noqa: PLC0415

    tls = address["tls"]
    context = ssl.create_default_context(cafile=tls["ca_file"], capath=tls["ca_path"])
    context.check_hostname = bool(tls["check_hostname"])
    if not tls["verifies"]:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls["cert_file"]:
        context.load_cert_chain(tls["cert_file"], tls["key_file"])
    made = socket.create_connection((address["host"], address["port"]), CALL)
    return context.wrap_socket(made, server_hostname=address["host"])


class Process:
    """The process that is watched, as the kernel sees it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._spent = -1
        try:
            self.descriptor: int | None = os.pidfd_open(pid)
        except (AttributeError, OSError):
            self.descriptor = None
        try:
            self._has_proc = os.readlink("/proc/self") == str(os.getpid())  # else it tells of other processes
        except OSError:
            self._has_proc = False

    def has_ended(self) -> bool:
        if self.descriptor is not None:
            return bool(select.select([self.descriptor], [], [], 0)[0])
        return os.getppid() != self.pid

    def computes(self) -> bool:
        """Return whether it has used a processor since this was asked last, and was not stopped."""
        if not self._has_proc:
            return False
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return False
        spent = int(fields[11]) + int(fields[12])
        was, self._spent = self._spent, spent
        return fields[0] not in (b"T", b"t", b"Z", b"X") and spent > was >= 0


class Heart:
    """Keeps up the membership of one worker."""

    def __init__(self, begin: dict[str, Any], page: mmap.mmap) -> None:
        self._redis = Redis(begin["address"])
        self._process = Process(begin["pid"])
        self._base: bytes = begin["base"]
        self._keep: tuple[bytes, bytes] = begin["keep"]
        self._gone: tuple[bytes, bytes] = begin["gone"]
        self._period: float = begin["lease"] / 6
        self._stall: float = begin["stall"]
        self._renews: bool = begin["renews"]
        self._worker = b""
        self._number = 0
        self._page = page
        self._sign = elapsed()
        self._inbox = b""
        self._has_left = False
        self._mouth: int | None = 0
        self._silent = 0

    def live(self) -> None:
        """Watch until the process has ended, or the worker has left."""
        if os.getppid() == 0:
            return  # the worker is in another pid namespace: we could not tell whether it lives
        while not self._has_left:
            sources = [each for each in (self._mouth, self._process.descriptor) if each is not None]
            patience = self._period if self._process.descriptor is not None else min(self._period, 0.2)
            if self._mouth is None:
                patience = min(patience, 0.5)
            ready, _, _ = select.select(sources, [], [], patience)
            if self._mouth in ready and not self._read():
                self._mouth = None  # its descriptors are closed a moment before a process has ended
            if self._process.has_ended():
                if self._hears_to_the_end():
                    self._tell_gone()
                return
            if self._mouth is None:
                self._silent += 1
                if self._silent > 2:
                    return  # the process lives, but is another program now: its lease ends
            elif elapsed() - self._sign > self._period * 2.5:
                self._renew()
            else:
                self._process.computes()  # from now on

    def _read(self) -> bool:
        """Take in what the worker says; False at the end."""
        data = os.read(0, 65536)
        self._inbox += data
        while len(self._inbox) >= 4 and len(self._inbox) >= 4 + struct.unpack("!I", self._inbox[:4])[0]:
            size = struct.unpack("!I", self._inbox[:4])[0]
            message = marshal.loads(self._inbox[4 : 4 + size])
            self._inbox = self._inbox[4 + size :]
            if message[0] == "leave":
                self._has_left = True
                return False
            if message[0] == "join":
                self._worker, self._number = message[1].encode(), message[2]
            self._sign = elapsed()
        return bool(data)

    def _hears_to_the_end(self) -> bool:
        """Take in what a worker that has ended said last; False when that was goodbye."""
        os.set_blocking(0, False)
        try:
            while self._mouth is not None and self._read():
                pass
        except BlockingIOError:  # a forked child has the other end, too
            pass
        return not self._has_left

    def _renew(self) -> None:
        """Renew for a process that computes, but not for ever."""
        if not self._process.computes() or not self._renews or not self._worker:
            return
        if elapsed() - self._sign > self._stall:
            return
        sent = elapsed()
        try:
            answer = self._redis.run(*self._keep, self._base, b"0", self._worker)
        except OSError:
            return
        if answer == [1]:
            self._page[:16] = struct.pack("dQ", sent, self._number)

    def _tell_gone(self) -> None:
        for pause in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2):
            try:
                answer = self._redis.run(*self._gone, self._base, b"0", self._worker)
            except OSError:
                answer = None
            if self._worker == b"" or isinstance(answer, list):
                return
            time.sleep(pause)


def main() -> None:
    for number in (1, 2, 15):  # it ends with the worker, whatever a terminal or a supervisor tells all of them
        _signal.signal(number, _signal.SIG_IGN)
    page = mmap.mmap(int(sys.argv[1]), 16)
    size = struct.unpack("!I", _read_exactly(4))[0]
    Heart(marshal.loads(_read_exactly(size)), page).live()


def _read_exactly(number: int) -> bytes:
    data = b""
    while len(data) < number:
        more = os.read(0, number - len(data))
        if not more:
            sys.exit(0)
        data += more
    return data


if __name__ == "__main__":
    main()
