"""Durations and people, as a person reads them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Return `4 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    whole = max(0, int(seconds))
    for size, name, rest_size, rest_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // rest_size
            return f"{whole // size} {name}" + (f" {rest} {rest_name}" if rest else "")
    return f"{whole} s"


def who(name: str, host: str, pid: int) -> str:
    """Return who that is: a name, and the process if there is one."""
    process = f"pid {pid} on {host}" if pid else ""
    if not name or name in (f"{host}:{pid}", str(pid)):
        return process or host
    return f"{name} ({process})" if process else name
