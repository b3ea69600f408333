"""What a server says of itself, and what it must be for pools to live there."""

from __future__ import annotations

from typing import Any, Final, Protocol

from millpond._redis._address import Address
from millpond.errors import EngineError

OLDEST: Final = (6, 2)


class Caller(Protocol):
    """A connection, as far as this needs one."""

    def command(self, *args: str | bytes | int) -> Any:
        """Run a plain command."""


def read_info(connection: Caller) -> dict[str, str]:
    """Return what the server says of itself."""
    lines = (line.partition(b":") for line in connection.command("INFO").splitlines())
    return {name.decode(): value.decode(errors="replace").strip() for name, _, value in lines}


def check_server(connection: Caller, address: Address, pools: str, contents: str) -> None:
    """Refuse a server that is too old, read-only, or would throw keys away."""
    info = read_info(connection)
    where = f"redis at {address.name}"
    version = info.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
        raise EngineError(f"{where} is version {version}; {pools} pools need Redis 6.2 or newer, or Valkey")
    if info.get("role") == "slave" and info.get("slave_read_only", "1") == "1":
        raise EngineError(f"{where} is a read-only replica; give the URL of the primary")
    policy = info.get("maxmemory_policy", "noeviction")
    if int(info.get("maxmemory", "0")) and policy != "noeviction":
        raise EngineError(
            f"{where} deletes keys when its memory is full (maxmemory-policy {policy}), so {contents} could vanish; "
            "set maxmemory-policy noeviction, or give pools a server of their own"
        )
