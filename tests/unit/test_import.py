"""`import millpond` is light, lazy and complete."""

from __future__ import annotations

import subprocess
import sys

import pytest

import millpond
import millpond.local
import millpond.testing
import millpond_conformance
from waiting import HANG


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG, check=True)
    return done.stdout.strip()


def test_importing_millpond_loads_no_third_party_module_and_no_part():
    code = """
import sys
before = set(sys.modules)
import millpond
new = {name.split('.')[0] for name in set(sys.modules) - before}
print(sorted(new - set(sys.stdlib_module_names)), 'millpond.local' in sys.modules, 'asyncio' in sys.modules)
"""
    assert run(code) == "['millpond'] False False"


def test_a_thread_pool_needs_no_third_party_module_either():
    code = """
import sys
from millpond import ThreadPool
with ThreadPool(1) as pool:
    assert list(pool.map(abs, [-1])) == [1]
print(sorted({name.split('.')[0] for name in sys.modules} & {'rich', 'click', 'msgspec', 'cloudpickle'}))
"""
    assert run(code) == "[]"


def test_every_public_name_is_there():
    for module in (millpond, millpond.local):
        for name in module.__all__:
            assert getattr(module, name) is not None
        assert set(module.__all__) <= set(dir(module))


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(millpond, "ThreadPond")


@pytest.mark.parametrize("name", millpond_conformance.__all__)
def test_who_looks_for_a_conformance_suite_is_told_where_it_is(name):
    with pytest.raises(AttributeError, match="pip install millpond-conformance"):
        getattr(millpond.testing, name)
    assert name not in dir(millpond.testing)


@pytest.mark.parametrize("module", ["millpond", "millpond.keyed", "millpond.resources", "millpond.testing"])
def test_help_is_there_without_any_extra(module):
    extras = ("temporalio", "redis", "psycopg", "prometheus_client", "opentelemetry", "starlette", "pydantic")
    code = f"import sys; sys.modules.update(dict.fromkeys({extras!r})); import pydoc, {module}; "
    assert "NAME" in run(f"{code}print(pydoc.plain(pydoc.render_doc({module}))); dir({module})")


@pytest.mark.parametrize(
    "use",
    [
        "from millpond import ResourcePool; ResourcePool('gpus', 'temporal://host/ns')",
        "import millpond.resources.temporal",
        "from millpond.testing import hosted_pools",
    ],
)
def test_without_its_package_an_engine_says_what_to_install(use):
    code = f"import sys; sys.modules['temporalio'] = None; {use}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert 'pip install "millpond[temporal]"' in done.stderr
