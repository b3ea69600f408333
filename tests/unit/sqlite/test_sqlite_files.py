"""Who may read, write and lock the files of a database, and that no link is followed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from millpond import KeyedPool, ResourcePool
from millpond._sqlite import Bell, Database, Gate, LiveFile
from millpond._sqlite._url import parse
from millpond.errors import EngineError
from millpond.resources.fences import FileFence


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    return {path.name: stat.filemode(path.stat().st_mode) for path in folder.iterdir()}


@pytest.mark.parametrize("pool", [ResourcePool, KeyedPool])
@pytest.mark.parametrize(
    ("query", "file", "directory"), [("", "-rw-------", "drwx------"), ("?mode=660", "-rw-rw----", "drwxrwx---")]
)
def test_all_files_are_for_the_owner_unless_the_url_says_otherwise(tmp_path, pool, query, file, directory):
    with pool("p", f"sqlite:///{tmp_path}/pools.db{query}") as made:
        made.statistics()
        seen = modes(tmp_path)
        assert {"pools.db", "pools.db-gate", "pools.db-live", "pools.db-bells", "pools.db-wal", "pools.db-shm"} == set(
            seen
        )
        assert seen.pop("pools.db-bells") == directory
        assert set(seen.values()) == {file}
        [bell] = (tmp_path / "pools.db-bells").iterdir()
        assert stat.filemode(bell.stat().st_mode)[1:] == file[1:]


def test_files_beside_a_database_that_is_there_get_its_permissions(tmp_path):
    (tmp_path / "pools.db").touch(0o640)
    with ResourcePool("p", f"sqlite:///{tmp_path}/pools.db?mode=660"):
        assert modes(tmp_path)["pools.db"] == modes(tmp_path)["pools.db-gate"] == "-rw-r-----"


@pytest.mark.parametrize("mode", ["", "777", "0o600", "060", "444", "6600"])
def test_other_permissions_are_refused(mode):
    with pytest.raises(ValueError, match="mode=600"):
        parse(f"sqlite:///pools.db?mode={mode}")


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("side", ["-gate", "-live"])
def test_a_planted_link_is_not_followed(tmp_path, side, exists):
    victim = tmp_path / "victim"
    if exists:
        victim.write_text("precious")
    os.symlink(victim, tmp_path / f"pools.db{side}")
    with pytest.raises(EngineError, match="is a symbolic link.*delete it"):
        ResourcePool("p", f"sqlite:///{tmp_path}/pools.db")
    assert not victim.exists() if not exists else victim.read_text() == "precious"


def test_a_planted_folder_of_bells_is_not_used(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "pools.db-bells")
    bell = Bell(tmp_path / "pools.db", 1)
    assert not bell.is_audible and not list((tmp_path / "elsewhere").iterdir())
    bell.close()


@pytest.mark.parametrize("side", [".fence", ".fence.new"])
def test_a_fence_follows_no_planted_link(tmp_path, side):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    os.symlink(victim, tmp_path / f"model.bin{side}")
    with pytest.raises(RuntimeError, match="symbolic link"):
        FileFence(tmp_path / "model.bin").write(b"new", 7)
    assert victim.read_text() == "precious"


def test_a_link_to_the_database_itself_is_the_users_choice(tmp_path):
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real" / "pools.db", tmp_path / "pools.db")
    with ResourcePool("p", f"sqlite:///{tmp_path}/pools.db"):
        assert (tmp_path / "real" / "pools.db-gate").exists()


def test_the_parts_alone_make_files_for_the_owner(tmp_path):
    gate, live = Gate(tmp_path / "a"), LiveFile(tmp_path / "a")
    database = Database(tmp_path / "b.db")
    assert {mode for name, mode in modes(tmp_path).items()} == {"-rw-------"}
    gate.close()
    live.close()
    database.close()
