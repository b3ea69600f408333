"""The page against people who mean it no good: what they send is refused, and nothing of it is done or told."""

from __future__ import annotations

import asyncio
import hashlib
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from millpond import ResourcePool
from millpond.web import _serve as serving
from millpond.web import _tokens, app
from millpond.web._tokens import Failures, Tokens
from waiting import HANG, until
from web_server import Client, page

TOKEN = "correct-horse-battery"
BODY = {"pool": "gpus", "resource": "gpu-0", "reason": "because"}
STATIC = Path(serving.__file__).parent / "static"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/pools.db"


@pytest.fixture
def gpus(url: str) -> Iterator[ResourcePool]:
    with ResourcePool("gpus", url) as pool:
        pool.add("gpu-0")
        yield pool


@pytest.fixture
def client(url: str, gpus: ResourcePool) -> Iterator[Client]:
    with page(url) as found:
        yield found


@pytest.fixture
def closed(url: str, gpus: ResourcePool) -> Iterator[Client]:
    """A page that needs its token."""
    with page(url, token=TOKEN) as found:
        yield found


def is_untouched(gpus: ResourcePool) -> bool:
    return gpus.resources()[0].state == "active"


# --- other origins ----------------------------------------------------------------------------------------------------


ELSEWHERE: list[dict[str, str]] = [
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:1"},
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"},
    {"content_type": "text/plain"},
    {"content_type": "application/x-www-form-urlencoded"},
    {"content_type": "multipart/form-data; boundary=x"},
    {"content_type": ""},
]


def test_a_page_of_another_origin_can_do_nothing(client: Client, gpus: ResourcePool):
    for headers in ELSEWHERE:
        assert client.post("api/cordon", BODY, **headers).status in (403, 415) and is_untouched(gpus), headers
    assert client.post("api/cordon", BODY, origin=f"http://127.0.0.1:{client.port}").status == 200


def test_a_page_of_another_origin_is_told_nothing_but_may_link_here(client: Client):
    for headers in ({"origin": "http://evil.example"}, {"sec_fetch_site": "cross-site"}):
        assert client.get("api/pools", **headers).status == 403
        assert client.get("api/live", **headers).status == 403
    assert client.get("", sec_fetch_site="cross-site", sec_fetch_mode="navigate").status == 200
    assert client.get("", sec_fetch_site="cross-site", sec_fetch_mode="no-cors").status == 403
    asked = client.send("OPTIONS", "api/cordon", origin="http://evil.example", access_control_request_method="POST")
    assert asked.status == 403 and "access-control-allow-origin" not in asked.headers


def test_a_name_that_somebody_elses_dns_points_here_is_not_answered(client: Client, closed: Client):
    for host in ("evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", ""):
        for page_of in (client, closed):
            for path in ("", "api/pools", "static/main.js"):
                assert page_of.get(path, host=host).status in (400, 421), (host, path)
    assert client.get("api/pools", host="LOCALHOST.").status == 200
    assert client.get("api/pools", host="[::1]:8").status == 200
    assert client.get("api/pools", host="10.1.2.3").status == 421, "an address of another machine, and no token"


def test_names_that_are_allowed_are_answered(url: str):
    with page(url, hosts=["pools.example"]) as client:
        assert client.get("api/pools", host="pools.example:443").status == 200
    for wrong in ("*", "", "a/b", 5):
        with pytest.raises(ValueError, match="a host is a name"):
            app(url, hosts=[wrong])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        app(url, hosts="pools.example")


def test_whom_a_proxy_speaks_for_cannot_be_known_so_without_a_token_it_is_refused(
    client: Client, closed: Client, gpus: ResourcePool
):
    for header in ("x_forwarded_for", "forwarded", "x_real_ip", "via", "x_forwarded_host"):
        assert client.post("api/cordon", BODY, **{header: "203.0.113.9"}).status == 403, header
        assert client.get("api/pools", **{header: "203.0.113.9"}).status == 403, header
    assert is_untouched(gpus)
    bearer = f"Bearer {TOKEN}"
    assert closed.get("api/pools", x_forwarded_for="203.0.113.9", authorization=bearer).status == 200


def test_a_client_without_an_address_is_not_this_machine(url: str, gpus: ResourcePool):
    """Who comes by a Unix socket has none: a server in front listens for the whole world."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": "/api/pools",
        "headers": [(b"host", b"localhost")],
    }
    scope |= {"query_string": b"", "client": None, "server": None, "scheme": "http", "http_version": "1.1"}
    asyncio.run(app(url)(scope, receive, send))
    assert sent[0]["status"] == 403


def test_a_function_that_says_who_asks_may_be_a_coroutine_and_must_return_a_name(url: str, gpus: ResourcePool):
    async def nobody(request: Request) -> str | None:
        return None

    async def ann(request: Request) -> str | None:
        return "ann"

    for user, status in ((nobody, 403), (ann, 200), (lambda request: 42, 403), (lambda request: object(), 403)):
        with page(url, user=user) as client:
            assert client.get("api/pools").status == status
    with pytest.raises(TypeError, match="user is a function"):
        app(url, user="ann")  # type: ignore[arg-type]


def test_every_answer_carries_the_headers_that_keep_others_out(client: Client, closed: Client):
    answers = [client.get(path) for path in ("", "static/main.js", "api/pools", "nothing", "healthz", "api/keys")]
    for answer in [*answers, closed.get("api/pools"), client.get("api/pools", host="evil.example")]:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self'") and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "server" not in answer.headers or answer.headers["server"] != "millpond"
    assert client.get("api/pools").headers["cache-control"] == "no-store"


def test_the_page_asks_nobody_else_for_anything():
    """No address of another host in what the page is made of (but for links in licences and names of XML)."""
    for file in STATIC.rglob("*"):
        if file.suffix not in (".js", ".css", ".html", ".svg"):
            continue
        found = set(re.findall(r"https?://[\w.-]+", file.read_text()))
        assert found <= {"http://www.w3.org", *(["https://github.com"] if "vendor" in file.parts else [])}, (
            file,
            found,
        )
    shell = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*src=)|style=|onclick=|<style", shell), "inline code breaks the policy"
    code = "".join(file.read_text() for file in STATIC.glob("*.js"))
    assert not re.search(r"innerHTML|dangerouslySetInnerHTML|\beval\(|new Function|document\.write", code)


def test_what_was_made_by_others_is_as_it_was_and_has_its_licence():
    noted = (Path(__file__).parents[2] / "THIRD_PARTY.md").read_text()
    sums = dict(re.findall(r"^\| `([\w.-]+)` .*`([0-9a-f]{64})` \|$", noted, re.M))
    files = {file.name: file for file in (STATIC / "vendor").iterdir()}
    assert {name for name in files if not name.endswith(".LICENSE")} == set(sums)
    for name, expected in sums.items():
        assert hashlib.sha256(files[name].read_bytes()).hexdigest() == expected, name
    assert {"htm.LICENSE", "preact.LICENSE", "uplot.LICENSE"} <= set(files)


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_without_the_token_nothing_is_told_or_done(closed: Client, gpus: ResourcePool):
    for path in ("api/pools", "api/place", "api/live", "api/audit", "metrics", f"api/pools?token={TOKEN}"):
        answer = closed.get(path)
        assert answer.status == 401 and b"gpu" not in answer.body and "www-authenticate" in answer.headers
    assert closed.post("api/cordon", BODY).status == 401 and is_untouched(gpus)
    assert closed.get("").status == 200 and closed.get("healthz").status == 200 and closed.get("readyz").status == 200


def test_the_token_opens_the_api_and_a_session_the_page(closed: Client, gpus: ResourcePool):
    assert closed.get("api/pools", authorization=f"Bearer {TOKEN}").status == 200
    assert closed.get("api/pools", authorization=f"Basic {TOKEN}").status == 401
    answer = closed.post("api/login", {"token": TOKEN})
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and TOKEN not in cookie
    session = cookie.partition(";")[0]
    assert closed.get("api/pools", cookie=session).status == 200
    assert closed.post("api/cordon", BODY, cookie=session).status == 200
    assert closed.get("api/pools", cookie=session[:-1] + ("0" if session[-1] != "0" else "1")).status == 401
    assert "Max-Age=0" in closed.post("api/logout", {}, cookie=session).headers["set-cookie"]


def test_sessions_end_and_belong_to_their_token(monkeypatch: pytest.MonkeyPatch):
    tokens = Tokens(TOKEN)
    session = tokens.session()
    assert tokens.is_session(session) and Tokens(TOKEN).is_session(session), "a second page takes it as well"
    assert not Tokens("another-token-of-ours").is_session(session)
    for wrong in ("", ".", "..", "x", f"{session}x", session.replace(".", "", 1), "9" * 30 + "..", "é.é.é"):
        assert not tokens.is_session(wrong)
    later = time.time() + _tokens.LIFE + 1
    monkeypatch.setattr(time, "time", lambda: later)
    assert not tokens.is_session(session)


def test_a_session_that_was_logged_out_is_over(closed: Client):
    cookie = closed.post("api/login", {"token": TOKEN}).headers["set-cookie"].partition(";")[0]
    assert closed.get("api/pools", cookie=cookie).status == 200
    assert closed.post("api/logout", {}, cookie=cookie).status == 200
    assert closed.get("api/pools", cookie=cookie).status == 401


def test_guesses_that_were_sent_at_once_are_counted_before_they_are_judged(closed: Client):
    """Each head is let in before the first body comes: the limit holds all the same."""
    body = b'{"token": "wrong-wrong-wrong-wrong"}'
    head = (
        f"POST /api/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with ExitStack() as stack:
        lines = [stack.enter_context(socket.create_connection(("127.0.0.1", closed.port))) for _ in range(20)]
        for line in lines:
            line.settimeout(HANG)
            line.sendall(head.encode())
        assert closed.get("healthz").status == 200  # all heads were read before this one
        codes = []
        for line in lines:
            line.sendall(body)
            codes.append(line.recv(4096).split()[1])
    assert codes.count(b"401") <= _tokens.TRIES and codes.count(b"429") >= 10


@pytest.mark.parametrize(
    "token", ["", "short", "x" * 15, "with a blank in it", "ümlaut-ümlaut-ümlaut", "line\nline-line-line"]
)
def test_a_token_that_can_be_guessed_is_refused(url: str, token: str):
    with pytest.raises(ValueError, match="at least 16"):
        app(url, token=token)


def test_who_guesses_waits_also_with_the_right_token_and_others_do_not(closed: Client):
    for _ in range(_tokens.TRIES):
        assert closed.post("api/login", {"token": "wrong"}).status == 401
    refused = closed.post("api/login", {"token": TOKEN})
    assert refused.status == 429 and int(refused.headers["retry-after"]) >= 1
    assert closed.get("api/pools", authorization=f"Bearer {TOKEN}").status == 429
    session = f"millpond={Tokens(TOKEN).session()}"
    assert closed.get("api/pools", cookie=session).status == 200, "who is in stays in"
    assert closed.get("healthz").status == 200


def test_waiting_grows_ends_and_is_forgotten(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr(_tokens, "elapsed", lambda: now[0])
    failures = Failures()
    waits = []
    for _ in range(12):
        failures.note("192.0.2.7")
        waits.append(failures.wait("192.0.2.7"))
        now[0] += waits[-1]
    assert waits[:4] == [0, 0, 0, 0] and waits[4:] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert failures.wait("192.0.2.8") == 0
    failures.note("2001:db8::1")
    for number in range(4):
        failures.note(f"2001:db8::{number}")
    assert failures.wait("2001:db8::ffff") == 1, "one network of IPv6 is one"
    failures.forget("192.0.2.7")
    assert failures.wait("192.0.2.7") == 0
    for number in range(_tokens.ADDRESSES + 10):
        failures.note(f"x{number}")
    assert len(failures._known) == _tokens.ADDRESSES


def test_another_bind_than_this_machine_needs_a_token(url: str):
    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "millpond", "web", "--url", url, "--port", "0", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=HANG, env=environment)

    ResourcePool("gpus", url).close()
    with ResourcePool("gpus", url) as pool:
        pool.add("gpu-0")
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        refused = run("--host", host)
        assert refused.returncode == 1 and "token" in refused.stderr and not refused.stdout
    assert "at least 16" in run("--host", "0.0.0.0", MILLPOND_WEB_TOKEN="short").stderr


# --- what is sent -----------------------------------------------------------------------------------------------------


OUTSIDE = [
    "static/../_app.py",
    "static/%2e%2e/_app.py",
    "static/..%2f_app.py",
    "static/....//_app.py",
    "static//etc/passwd",
    "static/%2fetc%2fpasswd",
    "static/..\\_app.py",
    "static/\x00",
    "static/",
    "../etc/passwd",
    "api/../static/../_app.py",
    "static/%c0%ae%c0%ae/_app.py",
]


def test_no_file_but_those_of_the_page_is_given(client: Client):
    for path in OUTSIDE:
        with socket.create_connection(("127.0.0.1", client.port), HANG) as line:
            line.sendall(f"GET /{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode("latin-1"))
            answer = b"".join(iter(lambda line=line: line.recv(65536), b""))  # type: ignore[misc]
        assert re.match(rb"HTTP/1.1 (307|40\d)", answer), (path, answer[:200])
        assert b"starlette" not in answer and b"root:" not in answer, path


def test_bodies_that_are_too_large_or_no_json_are_refused(client: Client, gpus: ResourcePool):
    large = client.send("POST", "api/cordon", b'"' + b"x" * 70_000 + b'"', content_type="application/json")
    assert large.status == 413
    lies = client.send(
        "POST", "api/cordon", b"{}", content_type="application/json", content_length="99999999999999999999"
    )
    assert lies.status in (400, 413)
    for wrong in (b"", b"{", b"\xff", b"[" * 50_000, b'{"pool": NaN}', b'{"pool": 1e999}'):
        assert client.send("POST", "api/cordon", wrong, content_type="application/json").status == 400
    with socket.create_connection(("127.0.0.1", client.port), HANG) as line:  # in parts of which nobody says how many
        head = "POST /api/cordon HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        line.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        part = b"1000\r\n" + b"x" * 4096 + b"\r\n"
        try:
            for _ in range(100):
                line.sendall(part)
            line.sendall(b"0\r\n\r\n")
        except OSError:
            pass  # it has heard enough
        assert line.recv(100).startswith((b"HTTP/1.1 413", b""))
    assert is_untouched(gpus)


def test_a_head_without_end_is_refused(client: Client):
    with socket.create_connection(("127.0.0.1", client.port), HANG) as line:
        try:
            line.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000)
            answer = line.recv(100)
        except OSError:
            answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")


def test_two_hosts_and_methods_that_do_not_belong_are_refused(client: Client, gpus: ResourcePool):
    with socket.create_connection(("127.0.0.1", client.port), HANG) as line:
        line.sendall(b"GET /api/pools HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
        assert line.recv(100).startswith(b"HTTP/1.1 400")
    assert client.get("api/cordon?pool=gpus&resource=gpu-0&reason=r").status == 405 and is_untouched(gpus)
    assert client.send("DELETE", "api/cordon", b"{}", content_type="application/json").status == 405


def test_200_slow_clients_keep_nobody_out_and_are_let_go(url: str, gpus: ResourcePool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serving, "ASKING", 0.5)
    with page(url) as client, ExitStack() as open_lines:
        lines = []
        for number in range(200):
            line = open_lines.enter_context(socket.create_connection(("127.0.0.1", client.port), HANG))
            if number % 2:
                line.sendall(b"GET / HTTP/1.1\r\nHost: local")
            lines.append(line)
        assert client.get("api/pools").status == 200
        for line in lines:
            until(lambda line=line: line.recv(10) == b"")  # type: ignore[misc]
        assert client.get("api/pools").status == 200


def test_there_is_an_end_to_streams(url: str, gpus: ResourcePool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("millpond.web._app.MOST", 3)
    with page(url) as client, ExitStack() as open_lines:
        for _ in range(3):
            line = open_lines.enter_context(socket.create_connection(("127.0.0.1", client.port), HANG))
            line.sendall(b"GET /api/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert line.recv(20).startswith(b"HTTP/1.1 200")
        assert client.get("api/live").status == 503
        open_lines.close()
        until(lambda: streams_again(client))


def streams_again(client: Client) -> bool:
    with socket.create_connection(("127.0.0.1", client.port), HANG) as line:
        line.sendall(b"GET /api/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return line.recv(20).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_without_its_packages_the_page_says_what_to_install(url: str, package: str, tmp_path: Path):
    code = f"import sys; sys.modules[{package!r}] = None; from millpond.cli import main; main()"
    command = [sys.executable, "-c", code, "web"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, env={"XDG_STATE_HOME": str(tmp_path)})
    assert done.returncode == 1 and 'pip install "millpond[web]"' in done.stderr, done.stderr
