"""A port that leads to a Redis server and does to the next conversation what a network may do."""

from __future__ import annotations

import contextlib
import socket
import threading

HOST = "127.0.0.1"


class Proxy:
    """Says what happens to the next script call: it is passed on, `lost` on its way, its `answer` is lost, it goes out
    `twice`, or nothing is heard of it (`silent`)."""

    def __init__(self, port: int) -> None:
        self.next = ""
        self.happened = threading.Event()
        self._port = port
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"redis://{HOST}:{self.port}/0"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True, name="proxy").start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((HOST, self._port))
                self._sockets += [client, server]
                threading.Thread(target=self._carry, args=(client, server), daemon=True, name="proxy-carry").start()

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        """One command at a time, as the store sends them."""
        back = threading.Thread(target=self._back, args=(server, client), daemon=True, name="proxy-back")
        mute = is_answering = False
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 20):
                what = ""
                if self.next and b"EVALSHA" in data:
                    what, self.next = self.next, ""
                if what == "lost":
                    break
                if what in ("answer", "twice", "silent"):
                    with socket.create_connection((HOST, self._port)) as aside:  # as if it came from here
                        aside.sendall(data)
                        first = aside.recv(1 << 20)
                    assert first
                    if what == "answer":
                        break
                    if what == "silent":
                        mute = True
                if mute:
                    self.happened.set()
                    continue
                server.sendall(data)
                if not is_answering:
                    is_answering = True
                    back.start()
        self.happened.set()
        for one in (client, server):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 20):
                client.sendall(data)

    def cut(self) -> None:
        """End all conversations."""
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.cut()
