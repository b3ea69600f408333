"""What users install: both distributions are built, offline, and looked into; one is used where no extra is installed.

The wheels are built from the unpacked sdists, so that a file which an sdist lacks is missed here. The clean environment
has the wheel of `millpond` and its hard dependencies, linked from the environment of the tests, and nothing else.
"""

from __future__ import annotations

import configparser
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import millpond
from waiting import HANG

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
MOST = 1_000_000
"""Bytes of the wheel of `millpond`. What makes it larger should be worth it to everybody who installs it."""

USES = {
    "postgres": "millpond.ResourcePool('p', 'postgresql://127.0.0.1:1/db')",
    "temporal": "millpond.ResourcePool('p', 'temporal://127.0.0.1:1/default')",
    "web": "importlib.import_module('millpond.web').app",
    "metrics": "importlib.import_module('millpond.metrics').Collector",
    "otel": "importlib.import_module('millpond.otel')",
    "pickle": "pool.submit(lambda: None).result(60)",
}
"""For each extra, a use of what it brings. That of `pytest` is found by pytest itself; pools on Redis are slower without
theirs, of which `millpond doctor` tells."""


class Built:
    """The sdist and the wheel of one distribution."""

    def __init__(self, project: Path, folder: Path) -> None:
        self.sdist = _build("sdist", project, folder)
        with tarfile.open(self.sdist) as archive:
            archive.extractall(folder, filter="data")
        self.wheel = _build("wheel", folder / self.sdist.name.removesuffix(".tar.gz"), folder)
        with zipfile.ZipFile(self.wheel) as archive:
            self.files = {name: archive.read(name) for name in archive.namelist()}
        (self.info,) = {name.partition("/")[0] for name in self.files if ".dist-info/" in name}

    @property
    def metadata(self) -> Message:
        return message_from_bytes(self.files[f"{self.info}/METADATA"])

    @property
    def package(self) -> set[str]:
        return {name for name in self.files if not name.startswith(f"{self.info}/")}


def _build(target: str, project: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(ROOT, tmp_path_factory.mktemp("millpond"))


@pytest.fixture(scope="module")
def suites(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(ROOT / "conformance", tmp_path_factory.mktemp("conformance"))


def _sources(folder: Path) -> set[str]:
    """Return the files of a package as it lies in the repository."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.parent.name != "__pycache__")
    return {str(file.relative_to(folder)) for file in files}


def test_the_wheel_holds_the_package_and_nothing_else(ours: Built):
    assert ours.package == _sources(ROOT / "src")
    held = {Path(name).suffix or Path(name).name for name in ours.package}
    assert {".py", ".lua", ".sql", ".html", ".js", ".css", ".svg", ".LICENSE"} <= held
    assert "millpond/py.typed" in ours.package


def test_the_wheel_of_the_suites_holds_them_and_nothing_else(suites: Built):
    assert suites.package == _sources(ROOT / "conformance" / "src")
    assert "millpond_conformance/py.typed" in suites.package


def test_the_wheel_is_small(ours: Built):
    assert ours.wheel.stat().st_size < MOST


def test_both_have_one_version_and_the_suites_want_no_other(ours: Built, suites: Built):
    assert ours.metadata["Version"] == suites.metadata["Version"] == millpond.__version__
    assert suites.metadata.get_all("Requires-Dist") == [f"millpond=={millpond.__version__}"]


def test_every_licence_is_in_the_wheel(ours: Built, suites: Built):
    vendor = sorted((ROOT / "src/millpond/web/static/vendor").glob("*.LICENSE"))
    names = ["LICENSE", "THIRD_PARTY.md", *(str(each.relative_to(ROOT)) for each in vendor)]
    assert ours.metadata.get_all("License-File") == names and len(vendor) == 3
    for built, wanted in ((ours, names), (suites, ["LICENSE"])):
        for name in wanted:
            assert built.files[f"{built.info}/licenses/{name}"] == (ROOT / name).read_bytes()


def test_what_others_made_is_in_the_wheel_as_it_was(ours: Built):
    sums = {hashlib.sha256(content).hexdigest() for content in ours.files.values()}
    told = [
        line.split("|")[-2].strip(" `") for line in (ROOT / "THIRD_PARTY.md").read_text().splitlines() if ".js`" in line
    ]
    assert told and set(told) <= sums


def test_the_command_and_the_plugin_of_pytest_are_declared(ours: Built):
    points = configparser.ConfigParser()
    points.read_string(ours.files[f"{ours.info}/entry_points.txt"].decode())
    assert dict(points["console_scripts"]) == {"millpond": "millpond.cli:main"}
    assert dict(points["pytest11"]) == {"millpond": "millpond.pytest_plugin"}


def test_no_extra_is_empty_and_all_has_every_one_that_programs_use():
    assert all(EXTRAS.values())
    (everything,) = map(Requirement, EXTRAS["all"])
    assert everything.extras == EXTRAS.keys() - {"all", "pytest"} == USES.keys() | {"redis"}


def _needed(name: str, seen: set[str]) -> set[str]:
    """Return a distribution and all that it needs here without any extra."""
    if name not in seen:
        seen.add(name)
        for line in importlib.metadata.requires(name) or []:
            wanted = Requirement(line)
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                _needed(wanted.name, seen)
    return seen


@pytest.fixture(scope="module")
def clean(ours: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment with the wheel and its hard dependencies; return its Python."""
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=HANG)
    (packages,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(ours.wheel) as archive:
        archive.extractall(packages)
    dependencies: set[str] = set()
    for line in ours.metadata.get_all("Requires-Dist") or []:
        if "extra ==" not in line:
            _needed(Requirement(line).name, dependencies)
    for name in dependencies:
        found = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            (packages / top).symlink_to(Path(str(found.locate_file(top))))
    return folder / "bin" / "python"


def _run(python: Path, *arguments: str, folder: Path) -> str:
    environment = {"XDG_STATE_HOME": str(folder), "HOME": str(folder), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [python, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=HANG
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_any_extra_pools_and_the_command_work(clean: Path, tmp_path: Path):
    code = """
import millpond, sys
with millpond.ThreadPool(1) as threads, millpond.ResourcePool("p", "sqlite:///pools.db") as things:
    things.add("one")
    with things.acquire(timeout=60) as grant:
        print(threads.submit(str.upper, grant.resource).result(60))
jobs = millpond.KeyedPool("p", "sqlite:///jobs.db")
print(jobs.statistics().jobs, millpond.__file__.startswith(sys.prefix))
jobs.close()
"""
    assert _run(clean, "-c", code, folder=tmp_path).split() == ["ONE", "0", "True"]
    assert millpond.__version__ in _run(clean, "-m", "millpond", "--version", folder=tmp_path)
    assert 'pip install "millpond[redis]"' in _run(clean, "-m", "millpond", "doctor", folder=tmp_path)


def test_without_an_extra_its_use_says_what_to_install(clean: Path, tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(f"""
import importlib, json, millpond
if __name__ == "__main__":
    told = {{}}
    with millpond.ProcessPool(1) as pool:
        for extra, use in {USES!r}.items():
            try:
                eval(use, globals())
            except Exception as error:
                told[extra] = str(error)
    print(json.dumps(told))
""")
    told = json.loads(_run(clean, str(program), folder=tmp_path))
    wrong = {extra: told.get(extra) for extra in USES if f'pip install "millpond[{extra}]"' not in told.get(extra, "")}
    assert wrong == {}


@pytest.fixture
def consumer(tmp_path: Path) -> Path:
    """Return a user's program in a folder of its own, where no setting of this repository is found."""
    return Path(shutil.copy(ROOT / "tests" / "typing" / "consumer" / "shop.py", tmp_path))


def test_a_users_program_runs_on_the_installed_package(clean: Path, consumer: Path):
    told = _run(clean, str(consumer), folder=consumer.parent).splitlines()[-1]
    assert told == "10.0 42 ['ann paid 30 EUR', '2', 'ValueError', 'bob'] {'gpu-0': 2}"


def test_a_users_program_is_accepted_by_mypy(clean: Path, consumer: Path):
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        f"--python-executable={clean}",
        consumer.name,
    ]
    done = subprocess.run(command, cwd=consumer.parent, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_users_program_is_accepted_by_pyright(clean: Path, consumer: Path):
    settings = {
        "typeCheckingMode": "strict",
        "enableTypeIgnoreComments": False,  # those of mypy
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (consumer.parent / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--pythonpath", str(clean), consumer.name]
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}  # that there is a newer one, which it asks npm
    done = subprocess.run(command, cwd=consumer.parent, env=environment, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_suites_find_the_installed_package(clean: Path, suites: Built, tmp_path: Path):
    with zipfile.ZipFile(suites.wheel) as archive:
        archive.extractall(tmp_path)
    code = """
import millpond_conformance as suites
from millpond.resources.engines.memory import MemoryEngine
suites.ENGINE_CHECKS[0](suites.Bench(lambda: MemoryEngine("memory:package"), url="memory:package"))
print(len(suites.STORE_CHECKS) > 50)
"""
    assert _run(clean, "-c", code, folder=tmp_path).strip() == "True"
