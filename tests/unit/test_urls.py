"""No password of a URL comes out: not in an error, a repr or the log."""

from __future__ import annotations

import logging
import traceback

import pytest

from millpond import AsyncResourcePool, EngineError, KeyedPool, ResourcePool
from millpond._urls import shown
from millpond.resources.engines.log._postgres_url import read_postgres

SECRET = "s3cr3t"
URLS = [
    f"redis://user:{SECRET}@127.0.0.1:1/0",
    f"redis://:{SECRET}@127.0.0.1:1/0",
    f"redis://user:a@b/{SECRET}@127.0.0.1:1/0",
    f"redis://127.0.0.1:1/0?username=u&password={SECRET}",
    f"rediss://user:{SECRET}@127.0.0.1:1/0?bogus=1",
    f"redis://user:{SECRET}@[::1/0",
    f"redis://user:{SECRET}@127.0.0.1:99999/0",
    f"redis+cluster://user:{SECRET}@127.0.0.1:1",
    f"unix://user:{SECRET}@/nope.sock",
    f"temporal://user:{SECRET}@127.0.0.1:1/default",
    f"temporal://user:{SECRET}@127.0.0.1:x/default",
    f"temporal://127.0.0.1:1/default?api_key={SECRET}",
    f"temporal://127.0.0.1:1/default?tls=true&token={SECRET}",
    f"sqlite://user:{SECRET}@host/x.db",
    f"sqlite:///x.db?password={SECRET}",
    f"sqlite:///x.db?sslpassword={SECRET}",
    f"postgres://u:{SECRET}@h/db",
    f"postgresql://u@h/db?password={SECRET}&sslmode=require",
    f"postgresql://u:a/{SECRET}@127.0.0.1:1/db",
    f"postgresql://u:1/{SECRET}@127.0.0.1:1/db",
    f"postgresql://u:a@{SECRET}@127.0.0.1:1/db",
    f"postgresql://u:a?{SECRET}@127.0.0.1:1/db",
    f"postgresql://u:%{SECRET}@127.0.0.1:1/db",
    f"nonsense://u:{SECRET}@h",
]


@pytest.mark.parametrize("url", URLS, ids=lambda url: url.replace(SECRET, "x"))
@pytest.mark.parametrize("pool", [ResourcePool, AsyncResourcePool, KeyedPool])
def test_a_wrong_url_is_refused_without_its_secret(pool, url, caplog):
    caplog.set_level(logging.DEBUG)
    seen = ""
    try:
        made = pool("p", url)
        seen = repr(made) + str(made)
    except (ValueError, EngineError) as error:
        seen = "".join(traceback.format_exception_only(error)) + repr(error)
    assert seen
    assert SECRET not in seen + caplog.text


def test_what_is_no_secret_stays():
    for url in ("memory:", "sqlite:////a:b/x@y.db", "temporal://h:7233/ns?api_key_env=KEY", "redis://u@h/0"):
        assert shown(url) == url
    assert shown("redis://u:p@ss/w@h:6379/0?db=1") == "redis://u:***@h:6379/0?db=1"


@pytest.mark.parametrize("url", ["postgresql://ann@db/lab", "postgres://ann@db/lab", "temporal://host:7233/lab"])
def test_a_url_of_resource_pools_is_no_store_of_keyed_ones(url):
    with pytest.raises(ValueError, match="no store for .* are for resource pools only"):
        KeyedPool("p", url)


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("postgresql://u:p@h/db?machine=pod+7%2F1", ("postgresql://u:p@h/db", "h:5432/db", "pod+7/1")),
        (
            "postgresql://h/db?options=-c%20statement_timeout%3D3&machine=m&sslmode=require",
            ("postgresql://h/db?options=-c%20statement_timeout%3D3&sslmode=require", "h:5432/db", "m"),
        ),
        ("postgresql:///db?host=/run/pg", ("postgresql:///db?host=/run/pg", "/run/pg:5432/db", "")),
    ],
)
def test_a_url_of_postgresql_goes_to_libpq_as_it_is_written(url, seen):
    assert read_postgres(url) == seen
