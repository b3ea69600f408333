"""The page in a real browser: what people see when workers die, resources are stolen, and things go away."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from millpond import KeyedPool, ResourcePool
from millpond.testing._redis import RedisServer, find_redis_server, redis_server
from millpond.web import _looks
from waiting import HANG, until
from web_server import page

WORKER = Path(__file__).with_name("web_worker.py")
PATIENCE = HANG * 1000
expect.set_options(timeout=PATIENCE)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/pools.db"


@contextmanager
def server(url: str, *options: str, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `millpond web` in a process of its own; return it and its address."""
    command = [sys.executable, "-m", "millpond", "web", "--url", url, "--port", str(port), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        match = re.search(r"http://\S+", process.stdout.readline())
        assert match
        yield process, match[0]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def workers(url: str, count: int) -> Iterator[dict[int, subprocess.Popen[bytes]]]:
    with ExitStack() as ends:
        found = {}
        for _ in range(count):
            process = subprocess.Popen([sys.executable, str(WORKER), url])
            ends.callback(process.wait)
            ends.callback(process.kill)
            found[process.pid] = process
        yield found


def tenants(url: str) -> KeyedPool:
    pool = KeyedPool("tenants", url, slots=256, lease=3.0)
    pool.statistics()
    return pool


def share(tab: Page) -> list[int]:
    """Return how many slots each lane has."""
    return [int(lane.get_attribute("data-slots") or 0) for lane in tab.locator(".lane").all()]


def test_a_killed_workers_keys_move_and_the_page_says_how(tab: Page, url: str):
    with tenants(url) as pool, workers(url, 3) as running, page(url) as client:
        until(lambda: len({slot.owner for slot in pool.slots()} - {""}) == 3)
        sync = pool.declare_job("sync")
        tab.goto(f"{client.base}#/keyed/tenants")
        expect(tab.locator(".lane:not(.gone)")).to_have_count(3)
        for number in range(24):
            sync.dispatch(f"tenant-{number}", seconds=3600)
        until(lambda: pool.statistics().keys_running == 24)
        victim = pool.jobs(state="running")[0].worker
        lane = tab.locator(f'.lane[data-worker="{victim}"]')
        expect(lane.locator(".load")).not_to_contain_text("runs 0")
        label = next(one.label for one in pool.workers() if one.id == victim)
        running[int(label.rpartition(":")[2])].kill()
        told = tab.locator(f'.moves li.died[data-worker="{victim}"]')
        expect(told).to_contain_text("0 lost")
        expect(told).to_contain_text(
            re.compile(r"\d+ slots? moved to .* in .* from its last sign of life .* [1-9]\d* re-run")
        )
        expect(lane).to_have_class(re.compile("gone"))
        expect(lane).to_have_attribute("data-slots", "0")
        assert sum(share(tab)) == 256
        moved = next(one for one in pool.keys(limit=100) if one.why == "died")
        tab.goto(f"{client.base}#/keyed/tenants/key/{moved.key}")
        expect(tab.locator(".answer")).to_contain_text("the worker that had it died; before, it was " + victim)
        tab.goto(f"{client.base}#/keyed/tenants/stream")
        expect(tab.locator(".stream canvas")).to_have_attribute("data-boxes", re.compile(r"^[1-9]"))


def test_a_gpu_is_stolen_with_a_reason(tab: Page, url: str):
    with ResourcePool("gpus", url, holder="ann") as pool, page(url) as client:
        pool.add("gpu-0", labels={"model": "a100"})
        grant = pool.acquire(name="gpu-0", reason="<img src=x onerror=alert(1)>")
        tab.goto(client.base)
        tab.locator('.card[data-pool="gpus"]').click()
        row = tab.locator('tr[data-resource="gpu-0"]')
        expect(row).to_contain_text("<img src=x onerror=alert(1)>")
        row.get_by_role("button", name="Steal").click()
        dialog = tab.locator("dialog.act")
        expect(dialog).to_contain_text("held by ann")
        expect(dialog.get_by_role("button", name="Steal")).to_be_disabled()
        dialog.locator("textarea").fill("the demo is <b>now</b>")
        dialog.locator("input[name=by]").fill("zoe")
        dialog.get_by_role("button", name="Steal").click()
        expect(row).to_contain_text("zoe")
        (holder,) = pool.holders()
        assert (holder.id, holder.token > grant.token) == ("zoe", True)
        tab.keyboard.press("a")
        expect(tab.locator("tbody tr").first).to_contain_text("the demo is <b>now</b>")
        expect(tab.locator("tbody tr").first).to_contain_text("zoe (web, from 127.0.0.1)")
        tab.goto(f"{client.base}#/resources/gpus/resource/gpu-0")
        expect(tab.get_by_text("kept", exact=True)).to_be_visible()


def test_dead_letters_are_read_replayed_and_discarded(tab: Page, url: str):
    with tenants(url) as pool, page(url) as client:
        with workers(url, 1):
            for number in range(3):
                pool.declare_job("bill").dispatch(f"tenant-{number}", "visa 4242")
            until(lambda: pool.statistics().dead == 3)
        tab.goto(f"{client.base}#/keyed/tenants/dead")
        expect(tab.locator("tbody tr")).to_have_count(3)
        expect(tab.locator("tbody tr").first).to_contain_text("no such <b>card</b> of tenant-")
        assert "4242" not in tab.content()
        tab.locator("tbody summary").first.click()
        expect(tab.locator("tbody pre").first).to_contain_text("in bill")
        tab.locator("tbody tr").first.get_by_role("button", name="Replay").click()
        tab.locator("dialog textarea").fill("the card is valid again")
        tab.locator("dialog input[name=by]").fill("ann")
        tab.locator("dialog").get_by_role("button", name="Replay").click()
        expect(tab.locator("tbody tr")).to_have_count(2)
        tab.get_by_role("button", name="Discard all").click()
        expect(tab.locator("dialog input[name=by]")).to_have_value("ann")
        tab.locator("dialog textarea").fill("tests")
        tab.keyboard.press("Control+Enter")
        tab.locator("dialog").get_by_role("button", name="Discard all").click()
        expect(tab.get_by_text("No dead letters")).to_be_visible()
        assert [one.what for one in pool.admin.history()][-2:] == ["replay", "discard"]


def test_what_was_chosen_stays_chosen_when_newer_letters_push_it_off_the_page(
    tab: Page, url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(_looks, "PAGE", 3)
    with tenants(url) as pool, page(url) as client, workers(url, 1):
        bill = pool.declare_job("bill")
        first = bill.dispatch("first")
        until(lambda: pool.statistics().dead == 1)
        tab.goto(f"{client.base}#/keyed/tenants/dead")
        tab.locator("tbody input[type=checkbox]").check()
        expect(tab.get_by_role("button", name="Discard 1 chosen")).to_be_visible()
        for number in range(4):
            bill.dispatch(f"later-{number}")
        until(lambda: pool.statistics().dead == 5)
        expect(tab.locator("tbody")).not_to_contain_text("first")
        tab.get_by_role("button", name="Discard 1 chosen").click()
        tab.locator("dialog textarea").fill("tests")
        tab.locator("dialog input[name=by]").fill("ann")
        tab.locator("dialog").get_by_role("button", name="Discard 1 chosen").click()
        expect(tab.get_by_role("button", name="Discard all")).to_be_visible()
        assert pool.statistics().dead == 4 and first.id not in {one.id for one in pool.admin.dead_letters()}


def test_a_dialog_tells_of_its_own_act_only(tab: Page, url: str):
    """An answer that comes late is about the dialog before."""
    with ResourcePool("gpus", url) as pool, page(url) as client:
        pool.add("gpu-4")
        pool.add("gpu-5")
        held_back: list[Route] = []
        tab.route("**/api/cordon", lambda route: held_back.append(route))
        tab.goto(f"{client.base}#/resources/gpus")
        tab.locator('tr[data-resource="gpu-4"]').get_by_role("button", name="Cordon").click()
        expect(tab.locator("dialog.act")).to_be_visible()
        until(lambda: tab.wait_for_timeout(20) or held_back)
        tab.keyboard.press("Escape")
        tab.locator('tr[data-resource="gpu-5"]').get_by_role("button", name="Quarantine").click()
        expect(tab.locator("dialog.act")).to_contain_text("This will quarantine gpus/gpu-5")
        with tab.expect_response("**/api/cordon"):
            held_back[0].continue_()
        expect(tab.locator("dialog.act")).to_contain_text("This will quarantine gpus/gpu-5")
        expect(tab.locator("dialog.act")).not_to_contain_text("cordon gpus/gpu-4")


def test_pages_of_keys_are_turned_by_mouse_and_keyboard(tab: Page, url: str):
    with tenants(url) as pool, page(url) as client:
        sync = pool.declare_job("sync")
        sync.dispatch_many([(f"k{number:04}",) for number in range(120)])
        tab.goto(f"{client.base}#/keyed/tenants/keys")
        expect(tab.locator("tbody tr")).to_have_count(50)
        expect(tab.locator("tbody tr").first).to_contain_text("k0000")
        tab.get_by_role("button", name="Next").click()
        expect(tab.locator("tbody tr").first).to_contain_text("k0050")
        tab.keyboard.press("]")
        expect(tab.locator("tbody tr")).to_have_count(20)
        tab.keyboard.press("[")
        expect(tab.locator("tbody tr").first).to_contain_text("k0050")
        tab.keyboard.press("/")
        tab.keyboard.type("../odd %2F key")
        tab.keyboard.press("Enter")
        expect(tab.locator(".answer")).to_contain_text("belongs to nobody")
        expect(tab.locator("h2.name")).to_have_text("../odd %2F key")


def test_no_workers_and_a_pause_are_loud(tab: Page, url: str):
    with tenants(url) as pool, page(url) as client:
        tab.goto(client.base)
        card = tab.locator('.card[data-pool="tenants"]')
        expect(card).to_contain_text("NO WORKERS")
        card.click()
        tab.get_by_role("button", name="Pause pool").click()
        tab.locator("dialog textarea").fill("migration")
        tab.locator("dialog input[name=by]").fill("ben")
        tab.locator("dialog").get_by_role("button", name="Pause pool").click()
        expect(tab.locator(".alarm.warn")).to_contain_text("PAUSED")
        expect(tab.locator(".alarm.warn")).to_contain_text("migration — ben")
        assert pool.statistics().is_paused


def test_light_dark_help_tabs_and_a_phones_width(browser: Browser, tab: Page, url: str):
    def background(page: Page) -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    with tenants(url), page(url) as client:
        tab.goto(f"{client.base}#/keyed/tenants")
        expect(tab.locator(".status.live")).to_be_visible()
        light = background(tab)
        tab.keyboard.press("t")
        expect(tab.locator("body")).not_to_have_css("background-color", light)
        dark = background(tab)
        tab.reload()
        expect(tab.locator(".status.live")).to_be_visible()  # before that nobody hears a key
        assert background(tab) == dark, "the choice is remembered"
        tab.emulate_media(color_scheme="dark")
        tab.keyboard.press("t")
        expect(tab.locator("body")).to_have_css("background-color", light)
        tab.keyboard.press("?")
        expect(tab.locator("dialog.help")).to_be_visible()
        tab.keyboard.press("Escape")
        expect(tab.locator("dialog.help")).to_have_count(0)
        tab.keyboard.press("4")
        expect(tab.locator(".tabs a.on")).to_have_text("Jobs")
        expect(tab.get_by_text("No jobs")).to_be_visible()
        context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme="dark")
        phone = context.new_page()
        for where in ("", "#/keyed/tenants", "#/keyed/tenants/stream", "#/keyed/tenants/jobs", "#/audit"):
            phone.goto(f"{client.base}{where}")
            expect(phone.locator(".status.live")).to_be_visible()
            assert phone.evaluate("document.documentElement.scrollWidth") <= 360, where
        assert background(phone) == dark, "as the system has it"
        context.close()


def test_a_phone_shows_no_wider_page_before_it_has_measured_itself(browser: Browser, url: str):
    context = browser.new_context(viewport={"width": 360, "height": 740})
    context.add_init_script("window.ResizeObserver = class { observe() {} disconnect() {} };")
    phone = context.new_page()
    with tenants(url), page(url) as client:
        for where, drawn in (("", ".stage canvas"), ("/stream", ".stream canvas")):
            phone.goto(f"{client.base}#/keyed/tenants{where}")
            expect(phone.locator(drawn)).to_be_visible()
            assert phone.evaluate("document.documentElement.scrollWidth") <= 360, where
            inside = phone.evaluate(f"document.querySelector('{drawn}').getBoundingClientRect().right")
            assert 200 <= inside <= 360, where
    context.close()


def test_the_page_comes_back_after_its_server_went_away(tab: Page, url: str):
    with ResourcePool("gpus", url) as pool:
        pool.add("gpu-0")
        with server(url) as (process, address):
            tab.goto(address)
            expect(tab.locator(".status.live")).to_be_visible()
            port = int(address.rstrip("/").rpartition(":")[2])
        expect(tab.locator(".banner")).to_contain_text("Not connected")
        expect(tab.locator('.card[data-pool="gpus"]')).to_be_visible()
        pool.add("gpu-1")
        with server(url, port=port):
            expect(tab.locator(".status.live")).to_be_visible()
            expect(tab.locator(".banner")).to_have_count(0)
            expect(tab.locator('.card[data-pool="gpus"]')).to_contain_text("of 2 free")


def test_the_page_says_that_the_store_is_away_and_comes_back(tab: Page):
    if find_redis_server() is None:
        problem = "no redis-server here: a store that goes away is not tested in a browser"
        pytest.fail(problem) if os.environ.get("CI") else pytest.skip(problem)
    with redis_server() as redis, page(redis.url) as client:
        with tenants(redis.url):
            tab.goto(f"{client.base}#/keyed/tenants")
            expect(tab.locator(".status.live")).to_be_visible()
        away_and_back(tab, redis)


def away_and_back(tab: Page, redis: RedisServer) -> None:
    redis.kill()
    expect(tab.locator(".banner")).to_contain_text("The store is away")
    expect(tab.locator("h1")).to_have_text("tenants")
    redis.restart()
    expect(tab.locator(".banner")).to_have_count(0)
    expect(tab.locator(".empty").first).to_be_visible()


def test_without_the_token_there_is_a_door_and_with_it_the_page(tab: Page, url: str, tmp_path: Path):
    file = tmp_path / "token"
    file.write_text("correct-horse-battery\n")
    file.chmod(0o600)
    with ResourcePool("gpus", url) as pool:
        pool.add("gpu-0")
        with server(url, "--token-file", str(file)) as (process, address):
            tab.goto(address)
            tab.locator("input[name=token]").fill("wrong-horse-battery")
            tab.keyboard.press("Enter")
            expect(tab.locator(".problem")).to_contain_text("not the token")
            assert "gpus" not in tab.content()
            tab.locator("input[name=token]").fill("correct-horse-battery")
            tab.keyboard.press("Enter")
            expect(tab.locator('.card[data-pool="gpus"]')).to_be_visible()
            assert "correct-horse" not in tab.url
            tab.reload()
            expect(tab.locator('.card[data-pool="gpus"]')).to_be_visible()
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANG) in (0, -signal.SIGTERM)


def test_a_page_that_is_read_only_has_no_buttons_that_act(tab: Page, url: str):
    with ResourcePool("gpus", url) as pool, page(url, read_only=True) as client:
        pool.add("gpu-0")
        tab.goto(f"{client.base}#/resources/gpus")
        expect(tab.locator('tr[data-resource="gpu-0"]')).to_be_visible()
        expect(tab.get_by_text("read-only")).to_be_visible()
        expect(tab.get_by_role("button", name="Cordon")).to_have_count(0)


def test_nothing_is_asked_of_anybody_else(tab: Page, url: str):
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    with tenants(url), page(url) as client:
        for where in ("#/", "#/keyed/tenants", "#/keyed/tenants/stream", "#/nowhere"):
            tab.goto(f"{client.base}{where}")
            expect(tab.locator("main")).to_be_visible()
        expect(tab.get_by_text("There is no such view")).to_be_visible()
        assert asked and all(one.startswith(client.base) for one in asked)
