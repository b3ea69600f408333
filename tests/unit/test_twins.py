"""The synchronous twins that tools/twins.py makes."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from textwrap import dedent

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "twins.py"
spec = importlib.util.spec_from_file_location("twins", TOOL)
assert spec is not None and spec.loader is not None
twins = importlib.util.module_from_spec(spec)
sys.modules["twins"] = twins
spec.loader.exec_module(twins)
translate = twins.translate

needs_ruff = pytest.mark.skipif(
    not Path(sys.executable).with_name("ruff").exists() and shutil.which("ruff") is None, reason="ruff is not installed"
)


@pytest.mark.parametrize(
    ("source", "twin"),
    [
        ("async def f(): ...", "def f(): ..."),
        ("x = await f()", "x = f()"),
        ("async with a as b, c: ...", "with a as b, c: ..."),
        ("async for x in y: ...", "for x in y: ..."),
        ("z = [await x async for x in y if await x]", "z = [x for x in y if x]"),
        ("def __aenter__(self): ...", "def __enter__(self): ..."),
        ("p.__aexit__, p.__aiter__, p.__anext__", "p.__exit__, p.__iter__, p.__next__"),
        ("raise StopAsyncIteration from None", "raise StopIteration from None"),
        ("pool: AsyncResourcePool", "pool: ResourcePool"),
        ("from millpond.resources._async_grant import AsyncGrant", "from millpond.resources._grant import Grant"),
        ("from . import _async_pool as p", "from . import _pool as p"),
        ("from a.client._async.pool import AsyncPool", "from a.client._sync.pool import Pool"),
        ("x: AsyncIterator[AsyncGrant]", "x: Iterator[Grant]"),
        ("@contextlib.asynccontextmanager", "@contextlib.contextmanager"),
        ("with AsyncExitStack() as s: ...", "with ExitStack() as s: ..."),
    ],
)
def test_keywords_and_names_become_synchronous(source: str, twin: str):
    assert translate(source) == twin


@pytest.mark.parametrize(
    "source",
    [
        "asyncio.sleep(1)",
        "import asyncio",
        "Asynchronous = Async = asynchronous = awaited = is_async = 1",
        "x._async = x.async_pool = x._async_",
        "log('await the AsyncResourcePool, async with it')",
        'raise E("use `async with`, or await it")',
        "x = b'__aenter__ await'",
        "x = r'\\bawait async def'",
        "x = 'async', 'await'",
        "x = '''\n    await this\n    >>> await that\n'''",
        'f"await {x} async with {y!r:>{width}} AsyncGrant {{await z}}"',
        'f"\\N{EM DASH} await {x}"',
        'rf"\\N{x}{{await}}"',
    ],
)
def test_other_names_and_strings_stay(source: str):
    assert translate(source) == source


@pytest.mark.parametrize(
    ("source", "twin"),
    [
        ('__all__ = ["AsyncGrant", "Selector"]', '__all__ = ["Grant", "Selector"]'),
        ("x = cast('AsyncGrant', y)", "x = cast('Grant', y)"),
        ('homes = {"AsyncGrant": "millpond.resources._async_grant"}', 'homes = {"Grant": "millpond.resources._grant"}'),
    ],
)
def test_a_string_that_is_all_a_name_is_renamed(source: str, twin: str):
    assert translate(source) == twin


@pytest.mark.parametrize(
    ("source", "twin"),
    [
        ('f"await {await x} AsyncGrant"', 'f"await {x} AsyncGrant"'),
        ('f"{await x!r:>{await width}} await"', 'f"{x!r:>{width}} await"'),
        ('f"{(await x).y:%H:%M await}"', 'f"{x.y:%H:%M await}"'),
        ("""f"{await f(f'await {await g(1)} {x!s}')}" """, """f"{f(f'await {g(1)} {x!s}')}" """),
        ("""f"{d['AsyncGrant']} {e['await x']}" """, """f"{d['Grant']} {e['await x']}" """),
        ("""f"{await a != b} {'}!:' + await c}" """, """f"{a != b} {'}!:' + c}" """),
        ("""f"{ {1: await a}[1] } {[await b for x in y]}" """, """f"{ {1: a}[1] } {[b for x in y]}" """),
        ('rf"\\{await x}\\N{await y}"', 'rf"\\{x}\\N{y}"'),
        ('f"\\\\{await x}\\N{DASH}\\\\N{await y}"', 'f"\\\\{x}\\N{DASH}\\\\N{y}"'),
        ('f"{{{await x}}} {{await y}}"', 'f"{{{x}}} {{await y}}"'),
        ("f'''{\nawait x\n}\nawait {await y=}'''", "f'''{\nx\n}\nawait {y=}'''"),
        ('g(f"ä {await x}", "ö", await y)', 'g(f"ä {x}", "ö", y)'),
        ('f"{await x}" "await" f"{await y}"', 'f"{x}" "await" f"{y}"'),
    ],
)
def test_the_expressions_of_an_f_string_are_code(source: str, twin: str):
    assert translate(source) == twin


@pytest.mark.parametrize(
    ("source", "twin"),
    [
        ("x: AsyncGenerator[int, None]", "x: Generator[int, None, None]"),
        ("x: AsyncGenerator[dict[str, tuple[int, ...]], str]", "x: Generator[dict[str, tuple[int, ...]], str, None]"),
        ("x: AsyncGenerator[AsyncGrant]", "x: Generator[Grant, None, None]"),
        ("x: AsyncGenerator[\n    int,\n    None,\n]", "x: Generator[\n    int,\n    None,\n None]"),
        ("from typing import AsyncGenerator", "from typing import Generator"),
        ("x: Awaitable[AsyncGrant]", "x: Grant"),
        ("x: Callable[..., Awaitable[dict[str, int]]]", "x: Callable[..., dict[str, int]]"),
        ("x: Awaitable[Awaitable[int]]", "x: int"),
        ("x: None | Awaitable[\n    int\n]", "x: None | (\n    int\n)"),
    ],
)
def test_type_parameters_follow(source: str, twin: str):
    assert translate(source) == twin


@pytest.mark.parametrize(
    ("source", "twin"),
    [
        ("return (await x.y(1, z)[0]).token", "return x.y(1, z)[0].token"),
        ("x = (await y), 1", "x = y, 1"),
        ("f((await y))", "f(y)"),
        ("f(await y)", "f(y)"),
        ("f()(await y)", "f()(y)"),
        ("x = (await y + 1) * 2", "x = (y + 1) * 2"),
        ("x = (await y,)", "x = (y,)"),
        ("x = (await y for y in z)", "x = (y for y in z)"),
        ("x = (\n    await y\n)", "x = (\n    y\n)"),
        ("x = -(await y) ** 2", "x = -y ** 2"),
    ],
)
def test_parentheses_around_an_await_go_when_nothing_needs_them(source: str, twin: str):
    assert translate(source) == twin


def test_docstrings_change_their_names_and_their_code_but_not_their_prose():
    source = '''
        class AsyncResourcePool:
            """A pool; `async with pool` ends it, ``await pool.close()`` too.

            You may await it in prose, and async for a while. See AsyncGrant and `__aenter__`, and `await` itself.

                async with pool.acquire() as grant:
                    print(await grant.wait(), f"{await x}")

            >>> await pool.acquire()
            ```python
            async for grant in pool:
                await grant.release()
            ```
            """

            limit = 1
            """An attribute's docstring: `await pool.x`."""

            async def f(self):
                # a comment first
                "`await` me: `await x`"  # and one behind
                return """await this `await x`"""
    '''
    twin = '''
        class ResourcePool:
            """A pool; `with pool` ends it, ``pool.close()`` too.

            You may await it in prose, and async for a while. See Grant and `__enter__`, and `await` itself.

                with pool.acquire() as grant:
                    print(grant.wait(), f"{x}")

            >>> pool.acquire()
            ```python
            for grant in pool:
                grant.release()
            ```
            """

            limit = 1
            """An attribute's docstring: `pool.x`."""

            def f(self):
                # a comment first
                "`await` me: `x`"  # and one behind
                return """await this `await x`"""
    '''
    assert translate(dedent(source)) == dedent(twin)


def test_comments_change_their_names_and_their_code():
    source = (
        "x = 1  # AsyncGrant in _async_pool: await it with `await grant`, or `async with grant`\n# async for ever\n"
    )
    twin = "x = 1  # Grant in _pool: await it with `grant`, or `with grant`\n# async for ever\n"
    assert translate(source) == twin


def test_every_blank_line_and_every_space_stays():
    source = "\n\n# —\nasync  def f( a,b ) :  \n\n\n\tx = await  g()  ;y=2\n\n\n\n# end\n\n"
    assert translate(source) == "\n\n# —\ndef f( a,b ) :  \n\n\n\tx = g()  ;y=2\n\n\n\n# end\n\n"
    assert translate("") == ""
    assert translate("await x") == "x"
    assert translate("x = 'é'; y = 'ü', await z  # ß AsyncGrant") == "x = 'é'; y = 'ü', z  # ß Grant"
    assert translate("x = await \\\n    y\n") == "x = y\n"


def test_what_has_nothing_asynchronous_is_its_own_twin():
    source = Path(__file__).parents[2].joinpath("src/millpond/local/_sizing.py").read_text()
    assert translate(source) == source


def test_the_twin_of_a_twin_is_the_twin():
    source = Path(__file__).parents[2].joinpath("src/millpond/local/coroutines/_map.py").read_text()
    once = translate(source)
    assert once != source
    assert translate(once) == once
    compile(once, "twin", "exec")


SOURCE = '''\
"""A pool."""

from collections.abc import AsyncIterator, Awaitable, Iterator
from zlib import crc32

from millpond.resources._async_grant import AsyncGrant
from millpond.errors import PoolError

class AsyncPool:
    async def acquire(self, make: Awaitable[AsyncGrant], again: Iterator[int]) -> AsyncIterator[AsyncGrant]:
        if crc32(b"await") == 1: raise PoolError
        yield (await make.make_something_long(1234567890, "abcdefghijklmnopqrst", 1234567890)).a_name_to_read_here
'''
TWIN = '''\
# Generated from _async_pool.py by tools/twins.py: edit that file, then run `make format`.
"""A pool."""

from collections.abc import Iterator
from zlib import crc32

from millpond.errors import PoolError
from millpond.resources._grant import Grant


class Pool:
    def acquire(self, make: Grant, again: Iterator[int]) -> Iterator[Grant]:
        if crc32(b"await") == 1:
            raise PoolError
        yield make.make_something_long(1234567890, "abcdefghijklmnopqrst", 1234567890).a_name_to_read_here
'''
PAIRS = [("_async_absent.py", "_absent.py"), ("_async_pool.py", "_pool.py")]


@needs_ruff
def test_a_twin_is_written_tidy_and_then_passes_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "_async_pool.py").write_text(SOURCE)
    assert twins.main(["--check"], root=tmp_path, pairs=PAIRS) == 1
    assert "_pool.py is not the twin of _async_pool.py: run make format" in capsys.readouterr().err
    assert not (tmp_path / "_pool.py").exists()
    assert twins.main([], root=tmp_path, pairs=PAIRS) == 0
    assert capsys.readouterr().out == "wrote _pool.py\n"
    assert (tmp_path / "_pool.py").read_text() == TWIN
    assert twins.main(["--check"], root=tmp_path, pairs=PAIRS) == 0
    assert twins.main([], root=tmp_path, pairs=PAIRS) == 0
    assert capsys.readouterr().out == ""


@needs_ruff
def test_a_twin_that_was_edited_by_hand_fails_the_check_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "_async_pool.py").write_text(SOURCE)
    twins.main([], root=tmp_path, pairs=PAIRS)
    (tmp_path / "_pool.py").write_text(TWIN + "# mine\n")
    assert twins.main(["--check"], root=tmp_path, pairs=PAIRS) == 1
    assert "_pool.py is not the twin" in capsys.readouterr().err
    assert (tmp_path / "_pool.py").read_text() == TWIN + "# mine\n"


def test_an_unknown_argument_is_told(capsys: pytest.CaptureFixture[str]):
    assert twins.main(["--chekc"]) == 2
    assert "usage" in capsys.readouterr().err
