"""The JSON API of the page: it tells and does what the commands do, with a reason and a name."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import threading
import types
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from millpond import Job, KeyedPool, LeaseLost, ResourcePool
from millpond.web import _app, _live, app
from waiting import HANG, until
from web_server import Client, page, served

ODD = "../%2e%2e/ü\u202e'\"<script>alert(1)</script>"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/pools.db"


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with page(url) as found:
        yield found


@pytest.fixture
def tenants(url: str) -> Iterator[KeyedPool]:
    with KeyedPool("tenants", url, slots=16) as pool:

        @pool.job
        async def sync(job: Job, secret: str = "") -> None:
            raise RuntimeError("no")

        @pool.job(max_attempts=9, backoff=600)
        async def later(job: Job) -> None:
            raise RuntimeError("not yet")

        pool.statistics()
        yield pool


@pytest.fixture
def gpus(url: str) -> Iterator[ResourcePool]:
    with ResourcePool("gpus", url, holder="ann") as pool:
        for name in ("gpu-0", "gpu-1"):
            pool.add(name, labels={"model": "a100"})
        yield pool


def rows(client: Client, word: str, **given: str) -> list[dict[str, object]]:
    answer = client.get(f"api/{word}?{urllib.parse.urlencode(given)}")
    assert answer.status == 200, answer.body
    found: list[dict[str, object]] = answer.json["rows"]
    return found


# --- looking ----------------------------------------------------------------------------------------------------------


def test_a_place_without_pools_is_empty_and_is_not_made_by_looking(client: Client, tmp_path: Path):
    assert rows(client, "pools") == [] and rows(client, "audit") == []
    assert client.get("readyz").status == 200 and not (tmp_path / "pools.db").exists()


def test_the_overview_tells_no_workers_and_a_pause_aloud(client: Client, tenants: KeyedPool, gpus: ResourcePool):
    declared = tenants.declare_job("sync")
    declared.dispatch("k")
    tenants.admin.pause(reason="migration", by="ben")
    with gpus.acquire(name="gpu-0", reason="train"):
        keyed, lent = rows(client, "pools")
    assert (keyed["pool"], keyed["kind"], keyed["workers"], keyed["jobs"]) == ("tenants", "keyed", 0, 1)
    paused = keyed["paused"]
    assert isinstance(paused, dict) and (paused["by"], paused["reason"]) == ("ben", "migration")
    assert (lent["pool"], lent["held"], lent["free_units"]) == ("gpus", 1, 1)


def test_why_a_key_is_here_and_why_it_moved(client: Client, tenants: KeyedPool):
    found = client.get("api/key?pool=tenants&key=k").json
    assert "belongs to nobody" in found["because"] and found["rows"] == []
    with tenants.worker():
        until(lambda: all(slot.owner for slot in tenants.slots()))
        found = client.get("api/key?pool=tenants&key=k").json
        (worker,) = rows(client, "workers", pool="tenants")
        assert found["slot"]["owner"] == worker["id"] and "because nobody had it" in found["because"]
        slot = client.get(f"api/slots?pool=tenants&number={found['slot']['number']}").json
        assert slot["because"] == found["because"]
    assert len(rows(client, "slots", pool="tenants")) == 16


def test_jobs_and_dead_letters_come_in_pages_the_newest_dead_first(client: Client, tenants: KeyedPool):
    sync, later = tenants.declare_job("sync"), tenants.declare_job("later")
    with tenants.worker():
        for number in range(5):
            sync.dispatch(f"k{number}", "hunter2")
        later.dispatch("slow")
        until(lambda: tenants.statistics().dead == 5 and [*tenants.jobs(state="retry")])
    dead = client.get("api/dead?pool=tenants&limit=3").json
    numbers = [one["number"] for one in dead["rows"]]
    rest = client.get(f"api/dead?pool=tenants&limit=3&after={dead['next']}").json
    numbers += [one["number"] for one in rest["rows"]]
    assert numbers == sorted(numbers, reverse=True) and len(set(numbers)) == 5 and rest["next"] == ""
    assert "RuntimeError: no" in dead["rows"][0]["reason"]
    (job,) = rows(client, "jobs", pool="tenants", state="retry")
    assert (job["key"], job["name"], job["attempts"]) == ("slow", "later", 1)
    keys = client.get("api/keys?pool=tenants&limit=1").json
    assert [one["key"] for one in keys["rows"]] == ["slow"]


def test_arguments_are_shown_only_where_that_was_asked_for(client: Client, tenants: KeyedPool, url: str):
    tenants.declare_job("sync").dispatch("k", "hunter2")
    tenants.declare_job("sync").dispatch("nan", float("nan"))
    everything = b"".join(
        client.get(f"api/{word}").body
        for word in ("jobs?pool=tenants", "key?pool=tenants&key=k", "keys?pool=tenants", "pools", "audit")
    )
    assert b"hunter2" not in everything
    with page(url, show_payloads=True) as open_page:
        assert {str(one["arguments"]) for one in rows(open_page, "jobs", pool="tenants")} == {
            "{'': ['hunter2']}",
            "{'': ['nan']}",
        }


def test_resources_with_holders_waiters_why_not_granted_and_history(client: Client, gpus: ResourcePool, url: str):
    with ResourcePool("gpus", url, holder="ben") as other, gpus.acquire(name="gpu-0", reason="train v7") as grant:
        waiter = threading.Thread(target=lambda: other.acquire(name="gpu-0", reason="eval").release())
        waiter.start()
        until(gpus.waiters)
        (held,) = [one for one in rows(client, "ls", pool="gpus") if one["name"] == "gpu-0"]
        (waits,) = rows(client, "waiters", pool="gpus")
        shown = client.get("api/show?pool=gpus&resource=gpu-0").json
        (holder,) = rows(client, "who", pool="gpus")
        grant.release()
        waiter.join()
    assert [one["who"].partition(" ")[0] for one in held["held_by"]] == ["ann"]  # type: ignore[attr-defined]
    assert "gpu-0 is held by ann" in str(waits["why"]) and str(waits["who"]).startswith("ben")
    assert "held by ann" in shown["stands"] and [one["event"] for one in shown["history"]][-1] == "added"
    assert len(shown["waiters"]) == 1 and holder["reason"] == "train v7"
    page_of = client.get("api/ls?pool=gpus&limit=1").json
    assert (page_of["total"], page_of["next"]) == (2, "1")
    assert [one["name"] for one in rows(client, "ls", pool="gpus", find="GPU-1")] == ["gpu-1"]


def test_names_may_be_anything(client: Client, url: str):
    with KeyedPool("a/b ü", url, slots=16) as odd, ResourcePool(ODD, url) as lent:
        odd.declare_job("sync").dispatch(ODD)
        lent.add(ODD)
        (key,) = rows(client, "keys", pool="a/b ü")
        assert key["key"] == ODD and rows(client, "ls", pool=ODD)[0]["name"] == ODD
        done = client.post("api/cordon", {"pool": ODD, "resource": ODD, "reason": ODD, "by": ODD})
        assert done.status == 200 and lent.resources()[0].state == "cordoned"
        (act,) = [one for one in rows(client, "audit") if one["event"] == "cordoned"]
        assert act["reason"] == ODD and str(act["by"]).startswith("../%2e%2e/ü")


QUESTIONS = [
    ("api/keys", 400),
    ("api/keys?pool=nothing", 404),
    ("api/keys?pool=tenants&limit=0", 200),
    ("api/keys?pool=tenants&limit=1001", 400),
    ("api/keys?pool=tenants&limit=-1", 400),
    ("api/keys?pool=tenants&limit=%D9%A3", 400),
    ("api/keys?pool=tenants&after=nonsense", 400),
    ("api/keys?pool=tenants&pool=gpus", 400),
    ("api/keys?pool=tenants&colour=blue", 400),
    ("api/jobs?pool=tenants&state=odd", 400),
    ("api/slots?pool=tenants&number=16", 400),
    ("api/show?pool=gpus&resource=none", 404),
    ("api/ls?pool=tenants", 404),
    ("api/key?pool=tenants&key=" + "x" * 20_000, 400),
    ("api/live?kind=odd", 400),
    ("api/nothing", 404),
    ("nothing", 404),
]


def test_bad_questions_get_a_clear_answer(client: Client, tenants: KeyedPool, gpus: ResourcePool):
    for path, status in QUESTIONS:
        answer = client.get(path)
        assert answer.status == status and (status == 200 or answer.json["error"]), (path, answer.body)


# --- acting -----------------------------------------------------------------------------------------------------------


def test_an_act_needs_a_reason_and_is_kept_with_who_and_why(client: Client, tenants: KeyedPool, gpus: ResourcePool):
    refused = client.post("api/pause", {"pool": "tenants"})
    assert refused.status == 400 and "reason" in refused.json["error"] and not tenants.statistics().is_paused
    assert client.post("api/pause", {"pool": "tenants", "reason": "migration", "by": "ann"}).status == 200
    assert client.post("api/pause", {"pool": "gpus", "reason": "power", "by": "ben"}).status == 200
    assert tenants.statistics().is_paused and gpus.statistics().paused == "power"
    audit = {one["pool"]: one for one in rows(client, "audit") if one["event"] in ("pause", "configured")}
    assert audit["tenants"]["by"] == "ann (web, from 127.0.0.1)" and audit["tenants"]["reason"] == "migration"
    assert audit["gpus"]["by"] == "ben (web, from 127.0.0.1)" and audit["gpus"]["reason"] == "power"
    for pool in ("tenants", "gpus"):
        assert client.post("api/resume", {"pool": pool, "reason": "over"}).status == 200
    assert not tenants.statistics().is_paused and not gpus.statistics().paused


def test_a_trial_says_what_would_be_done_and_does_nothing(client: Client, gpus: ResourcePool):
    with gpus.acquire(name="gpu-0") as grant:
        told = client.post("api/steal", {"pool": "gpus", "resource": "gpu-0", "dry_run": True}).json
        assert "held by ann" in told["would"] and gpus.holders()[0].token == grant.token


def test_steal_release_and_reserve(client: Client, gpus: ResourcePool):
    grant = gpus.acquire(name="gpu-0")
    stale = client.post("api/release", {"pool": "gpus", "resource": "gpu-0", "token": 1, "reason": "x"})
    assert stale.status == 404 and gpus.holders()
    body = {
        "pool": "gpus",
        "resource": "gpu-0",
        "token": str(grant.token),
        "holder": "zoe",
        "reason": "demo",
        "by": "zoe",
    }
    assert client.post("api/steal", body).status == 200
    (holder,) = gpus.holders()
    assert (holder.id, holder.kind) == ("zoe", "person") and holder.token > grant.token
    with pytest.raises(LeaseLost):
        grant.check()
    nobody = client.post("api/steal", {"pool": "gpus", "resource": "gpu-0", "reason": "mine"})
    assert nobody.status == 400 and "for whom" in nobody.json["error"]
    again = client.post("api/steal", body)
    assert again.status == 404, "the token that was seen does not count any more"
    done = client.post("api/release", {"pool": "gpus", "resource": "gpu-0", "reason": "done"})
    assert done.status == 200 and not gpus.holders()
    reserved = client.post("api/reserve", {"pool": "gpus", "resource": "gpu-1", "reason": "repair", "by": "ann"})
    assert [one.id for one in gpus.holders()] == ["ann"]
    withdrawn = {"pool": "gpus", "request": reserved.json["result"], "reason": "no"}
    assert client.post("api/withdraw", withdrawn).status == 200 and not gpus.holders()


def test_cordon_quarantine_drain_remove_and_add(client: Client, gpus: ResourcePool):
    def state() -> str:
        return gpus.resources()[0].state

    for verb, expected in (
        ("cordon", "cordoned"),
        ("uncordon", "active"),
        ("quarantine", "quarantined"),
        ("drain", "quarantined"),  # it stays so until it is active again
        ("uncordon", "active"),
        ("drain", "cordoned"),
    ):
        assert client.post(f"api/{verb}", {"pool": "gpus", "resource": "gpu-0", "reason": "r"}).status == 200
        assert state() == expected
    with gpus.acquire(name="gpu-1"):
        assert client.post("api/drain", {"pool": "gpus", "resource": "gpu-1", "reason": "r"}).status == 200
        assert gpus.resources()[1].state == "draining"
    assert client.post("api/remove", {"pool": "gpus", "resource": "gpu-0", "reason": "r"}).status == 200
    body = {"pool": "gpus", "resources": ["gpu-7"], "labels": {"model": "h100"}, "reason": "new", "by": "ann"}
    assert client.post("api/add", body).status == 200
    assert {one.name: dict(one.labels) for one in gpus.resources()}["gpu-7"] == {"model": "h100"}
    assert any(one["reason"] == "new" and "ann" in str(one["by"]) for one in rows(client, "audit"))


def test_jobs_are_dispatched_cancelled_retried_replayed_discarded_and_purged(client: Client, tenants: KeyedPool):
    def act(verb: str, **body: object) -> object:
        answer = client.post(f"api/{verb}", {"pool": "tenants", "reason": "r", "by": "ann", **body})
        assert answer.status == 200, answer.body
        return answer.json["result"]

    first = act("dispatch", job="sync", key="k", named={"secret": "x"}, id="one")
    assert first == "one" and act("dispatch", job="sync", key="k") != "one"
    assert act("cancel", ids=["one"], key="k") == 1 and act("purge", key="k") == 1
    with tenants.worker():
        act("dispatch", job="sync", key="a")
        act("dispatch", job="sync", key="b")
        act("dispatch", job="later", key="c")
        until(lambda: tenants.statistics().dead == 2 and [*tenants.jobs(state="retry")])
        wrong = client.post("api/dispatch", {"pool": "tenants", "job": "odd", "key": "k", "reason": "r"})
        assert wrong.status == 400 and "they know later, sync" in wrong.json["error"]
        assert act("retry", key="c") == 1
        until(lambda: [one.attempts for one in tenants.jobs(state="retry")] == [2])
    letter = tenants.admin.dead_letters("a")[0]
    assert act("replay", ids=[letter.number]) == 1 and act("discard", key="b") == 1 and act("discard", all=True) == 0
    assert client.post("api/replay", {"pool": "tenants", "ids": ["none"], "reason": "r"}).status == 404
    assert client.post("api/replay", {"pool": "tenants", "reason": "r"}).status == 400
    told = {str(one["what"]) for one in rows(client, "events", pool="tenants")}
    assert told >= {"dispatch", "cancel", "purge", "retry", "replay", "discard"}


def test_settings_are_shown_and_changed(client: Client, tenants: KeyedPool, gpus: ResourcePool):
    assert client.get("api/settings?pool=tenants").json["max_jobs"] is None
    assert client.post("api/configure", {"pool": "tenants", "changes": {"max_jobs": 5}, "reason": "r"}).status == 200
    assert client.post("api/configure", {"pool": "gpus", "changes": {"patience": 5}, "reason": "r"}).status == 200
    assert client.get("api/settings?pool=tenants").json["max_jobs"] == 5
    assert client.get("api/settings?pool=gpus").json["patience"] == 5
    for changes in ({}, {"odd": 1}, {"by": "x"}, {"max_jobs": "many"}):
        assert client.post("api/configure", {"pool": "tenants", "changes": changes, "reason": "r"}).status == 400


BODIES: list[object] = [
    [],
    None,
    "text",
    {"pool": 5},
    {"pool": "gpus", "resource": ["gpu-0"]},
    {"pool": "gpus", "resource": "gpu-0", "token": True},
    {"pool": "gpus", "resource": "gpu-0", "token": 1.5},
    {"pool": "gpus", "resource": "gpu-0", "dry_run": "yes"},
    {"pool": "gpus", "resource": "gpu-0", "reason": {"a": 1}},
    {"pool": "gpus", "resource": "gpu-0", "reason": "r", "by": 5},
    {"pool": "gpus", "resource": "gpu-0", "reason": "r", "odd": 5},
    {"pool": "gpus", "resource": "gpu-0", "reason": "\ud800"},
    {"pool": "gpus", "resource": "gpu-0", "reason": "x" * 5000},
]


def test_bad_bodies_are_refused_and_change_nothing(client: Client, gpus: ResourcePool):
    with gpus.acquire(name="gpu-0") as grant:
        for body in BODIES:
            answer = client.post("api/release", body)
            assert answer.status == 400 and answer.json["error"], body
            assert [one.token for one in gpus.holders()] == [grant.token], body


def test_nothing_can_be_done_on_a_page_that_is_read_only(url: str, gpus: ResourcePool):
    with page(url, read_only=True) as client:
        refused = client.post("api/cordon", {"pool": "gpus", "resource": "gpu-0", "reason": "r"})
        assert refused.status == 403 and gpus.resources()[0].state == "active"
        assert client.get("api/place").json["read_only"] is True


# --- live, mounted, twice ---------------------------------------------------------------------------------------------


def first_events(client: Client, path: str, wanted: int) -> dict[str, object]:
    """Read a stream until it has told so many kinds of news."""
    import http.client

    line = http.client.HTTPConnection("127.0.0.1", client.port, timeout=60)
    line.request("GET", f"{client.prefix}/{path}")
    response = line.getresponse()
    assert response.status == 200 and response.headers["content-type"].startswith("text/event-stream")
    found: dict[str, object] = {}
    name = ""
    while len(found) < wanted:
        text = response.readline().decode().strip()
        if text.startswith("event: "):
            name = text[7:]
        elif text.startswith("data: "):
            found[name] = json.loads(text[6:])
    response.close()
    line.close()
    return found


def test_the_stream_tells_the_pool_its_slots_and_what_runs(client: Client, tenants: KeyedPool):
    with tenants.worker():
        until(lambda: all(slot.owner for slot in tenants.slots()))
        told = first_events(client, "api/live?pool=tenants&kind=keyed", 3)
    slots, pool = told["slots"], told["pool"]
    assert isinstance(slots, dict) and isinstance(pool, dict)
    assert len(slots["slots"]) == 16 and len(slots["owners"]) == 2 and len(pool["workers"]) == 1
    assert "gone" in first_events(client, "api/live?pool=nothing", 2)


def test_two_pages_of_a_place_tell_the_same(url: str, tenants: KeyedPool, gpus: ResourcePool):
    tenants.declare_job("sync").dispatch("k")
    with page(url) as one, page(url) as other:
        one.post("api/pause", {"pool": "tenants", "key": "k", "reason": "r"})
        for path in ("api/keys?pool=tenants", "api/slots?pool=tenants", "api/audit", "api/paused?pool=tenants"):
            first, second = one.get(path).json["rows"], other.get(path).json["rows"]
            for row in (*first, *second):
                row.pop("oldest_age", None)
            assert first == second and first


def test_the_page_can_be_mounted_anywhere(url: str, gpus: ResourcePool):
    outer = Starlette(routes=[Mount("/a/pools", app=app(url, token="t" * 20))])
    with served(outer, "/a/pools") as client:
        shell = client.get("")
        assert shell.status == 200 and b'src="static/main.js"' in shell.body
        assert client.get("static/main.js").status == 200 and client.get("api/pools").status == 401
        login = client.post("api/login", {"token": "t" * 20})
        cookie = login.headers["set-cookie"]
        assert "Path=/a/pools/;" in cookie and "HttpOnly" in cookie and "SameSite=strict" in cookie
        assert client.get("api/pools", cookie=cookie.partition(";")[0]).json["rows"][0]["pool"] == "gpus"


def test_an_app_of_yours_says_who_acts(url: str, gpus: ResourcePool):
    def user(request: object) -> str | None:
        return getattr(request, "headers", {}).get("x-user")

    with page(url, user=user) as client:
        body = {"pool": "gpus", "resource": "gpu-0", "reason": "r", "by": "mallory"}
        assert client.post("api/cordon", body).status == 403 and gpus.resources()[0].state == "active"
        assert client.post("api/cordon", body, x_user="ann").status == 200
        (act,) = [one for one in rows_of(client.get("api/audit", x_user="ann")) if one["event"] == "cordoned"]
        assert act["by"] == "ann (web)"
    with pytest.raises(ValueError, match="not both"):
        app(url, user=user, token="t" * 20)


def rows_of(answer: object) -> list[dict[str, object]]:
    found: list[dict[str, object]] = getattr(answer, "json")["rows"]  # noqa: B009
    return found


def test_a_stream_of_a_mounted_page_ends_so_that_its_server_can(
    url: str, gpus: ResourcePool, monkeypatch: pytest.MonkeyPatch
):
    """Nobody tells a mounted app that the server ends; and a server waits for what is open."""
    monkeypatch.setattr(_live, "ALONE", 0.2)
    outer = Starlette(routes=[Mount("/pools", app=app(url))])
    with served(outer, "/pools") as client:
        answer = client.get("api/live")  # read to its end
    assert answer.status == 200 and answer.body.startswith(b"event: pools")


def test_threads_that_hang_keep_their_places(url: str, gpus: ResourcePool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_app, "ANSWERING", 0.05)
    monkeypatch.setattr(_app, "THREADS", 3)
    go_on = threading.Event()
    at_once: list[int] = []
    running = itertools.count(1)

    def hang() -> None:
        at_once.append(next(running))
        go_on.wait(HANG)

    async def ask() -> list[Any]:
        return await asyncio.gather(*(_app._ask(hang) for _ in range(12)), return_exceptions=True)

    async def scene() -> None:
        assert all(isinstance(one, TimeoutError) for one in await ask())
        assert all(isinstance(one, TimeoutError) for one in await ask())
        assert len(at_once) == 3, "three hang, and nobody else gets a thread"
        go_on.set()
        monkeypatch.setattr(_app, "ANSWERING", HANG)
        assert await _app._ask(lambda: "answer") == "answer"

    asyncio.run(scene())


def test_acts_stay_in_the_audit_log_however_much_happens(client: Client, gpus: ResourcePool):
    held = gpus.acquire(name="gpu-0")
    told = client.post("api/reserve", {"pool": "gpus", "resource": "gpu-0", "reason": "demo", "by": "zoe"})
    assert told.status == 200 and "when" in told.json["done"] and "gives it back" in told.json["done"]
    body = {"pool": "gpus", "resource": "gpu-0", "reason": "broken", "by": "ann", "token": held.token}
    assert client.post("api/release", body).status == 200
    assert client.post("api/cordon", {"pool": "gpus", "resource": "gpu-1", "reason": "dust", "by": "ann"}).status == 200
    gpus.add("gpu-9")
    for _ in range(1100):
        gpus.acquire(name="gpu-9").release()
    rows = [(one["event"], str(one["by"]).partition(" ")[0]) for one in rows_of(client.get("api/audit"))]
    assert rows == [("cordoned", "ann"), ("revoked", "ann"), ("reserved", "zoe")]
    assert rows_of(client.get("api/audit"))[2]["resources"] == ["gpu-0"]


def test_metrics_come_from_their_extra_or_say_what_to_install(
    client: Client, url: str, monkeypatch: pytest.MonkeyPatch
):
    module = types.ModuleType("millpond.metrics")
    monkeypatch.setitem(sys.modules, "millpond.metrics", None)
    missing = client.get("metrics")
    assert missing.status == 404 and b"millpond[metrics]" in missing.body

    class Place:
        def __init__(self, at: str) -> None:
            self.at = at

        def render(self) -> tuple[bytes, str]:
            return f"# {self.at == url}\n".encode(), "text/plain; version=1.0.0"

        def close(self) -> None:
            pass

    module.Place = Place  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "millpond.metrics", module)
    found = client.get("metrics")
    assert (found.status, found.body) == (200, b"# True\n") and found.headers["content-type"].startswith("text/plain")
    assert client.get("healthz").body == b"ok\n"


def test_a_store_that_was_deleted_is_away_and_another_in_its_place_is_seen(
    client: Client, url: str, tmp_path: Path, gpus: ResourcePool
):
    assert rows(client, "pools")
    assert b'millpond_up{kind="resources",pool="gpus"} 1.0' in client.get("metrics").body
    (tmp_path / "pools.db").rename(tmp_path / "moved.db")

    def away() -> bool:
        answer = client.get("api/pools")
        return answer.status == 503 and "is gone" in answer.json["error"] and client.get("readyz").status == 503

    until(away)
    assert client.get("healthz").status == 200
    told = client.get("metrics")
    assert told.status == 200 and b'millpond_up{kind="resources",pool=""} 0.0' in told.body
    assert not (tmp_path / "pools.db").exists() and client.get("readyz").status == 503, "looking makes no file"
    with KeyedPool("anew", url, slots=16) as pool:
        pool.statistics()
        until(lambda: [one["pool"] for one in client.get("api/pools").json.get("rows", [])] == ["anew"])
