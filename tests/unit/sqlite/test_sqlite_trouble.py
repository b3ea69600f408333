"""Where a database cannot be, and what errors say."""

from __future__ import annotations

import errno
import os
import sqlite3

import pytest

from millpond._sqlite import Database, DiskFull, translate
from millpond._sqlite._process import describe, parse_stat
from millpond._sqlite._trouble import check_place, file_system_type, is_network, translate_os_error
from millpond.errors import EngineError, EngineUnavailable

MOUNTS = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
24 22 0:22 / /proc rw,nosuid - proc proc rw
30 22 0:40 / /home rw,relatime shared:3 - nfs4 server:/home rw,vers=4.2
31 30 254:1 / /home/local rw - ext4 /dev/vdb rw
32 22 0:41 / /mnt/my\040share rw - cifs //nas/share rw
33 22 0:42 / /srv rw - ext4 /dev/vdc rw
34 22 0:43 / /srv rw master:7 propagate_from:2 - fuse.sshfs user@host:/ rw
35 22 0:44 / /homely rw - tmpfs tmpfs rw
not a mount line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/pools.db", "ext4"),
        ("/home/ann/pools.db", "nfs4"),
        ("/home/local/pools.db", "ext4"),
        ("/homely/pools.db", "tmpfs"),
        ("/mnt/my share/pools.db", "cifs"),
        ("/srv/pools.db", "fuse.sshfs"),
        ("/home", "nfs4"),
    ],
)
def test_the_deepest_and_last_mount_tells_the_file_system(path, kind):
    assert file_system_type(path, MOUNTS) == kind


def test_without_mounts_nothing_is_known():
    assert file_system_type("/x", "") is None


@pytest.mark.parametrize(
    "kind",
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "glusterfs",
        "fuse.sshfs",
        "lustre",
        "vboxsf",
        "virtiofs",
        "fuse.s3fs",
    ],
)
def test_network_file_systems_are_known(kind):
    assert is_network(kind)


@pytest.mark.parametrize(
    "kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "f2fs", "fuseblk", "fuse.mergerfs", "apfs"]
)
def test_local_file_systems_are_not_refused(kind):
    assert not is_network(kind)


def test_a_network_file_system_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr("millpond._sqlite._trouble.file_system_type", lambda path, mountinfo: "nfs4")
    with pytest.raises(
        EngineError, match=r"p\.db' *: it is on a network or shared file system \(nfs4\).*use a local disk"
    ):
        Database(tmp_path / "p.db")
    assert os.listdir(tmp_path) == []


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(EngineError, match="its folder '.*/no/such' does not exist; create it"):
        Database(tmp_path / "no" / "such" / "p.db")


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match="its folder '.*/file' is not a folder"):
        Database(tmp_path / "file" / "p.db")


def test_a_folder_is_no_database(tmp_path):
    with pytest.raises(EngineError, match="it is a folder; give the path of a file"):
        Database(tmp_path)


def test_a_device_is_no_database():
    with pytest.raises(EngineError, match="not a regular file"):
        Database("/dev/null")


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_a_database_of_many_processes_needs_a_file(path):
    with pytest.raises(ValueError, match="needs a file"):
        Database(path)


def test_a_real_read_only_place_is_refused():
    """Root may write anywhere but where the kernel has no files to write, such as in /proc."""
    with pytest.raises(EngineError, match=r"cannot (open|write to) '/proc/sys/kernel/p\.db'"):
        Database("/proc/sys/kernel/p.db")


def test_a_folder_that_permits_no_writing_is_refused(tmp_path, monkeypatch):
    """Simulated: the suite may run as root, who is permitted everything."""
    monkeypatch.setattr(os, "access", lambda path, mode: os.path.basename(str(path)) != tmp_path.name)
    with pytest.raises(EngineError, match="read-only for this user.*make the folder writable"):
        Database(tmp_path / "p.db")


def test_a_file_that_permits_no_writing_is_refused(tmp_path, monkeypatch):
    Database(tmp_path / "p.db").close()
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("p.db"))
    with pytest.raises(EngineError, match="read-only for this user"):
        check_place(str(tmp_path / "p.db"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root is permitted everything")
def test_permission_bits_are_respected(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(EngineError, match="read-only for this user"):
        Database(tmp_path / "p.db")


def real_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("words of SQLite")
    error.sqlite_errorcode = code
    error.sqlite_errorname = "SQLITE_NAME"
    return error


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (sqlite3.SQLITE_BUSY, EngineUnavailable, "locked by another program"),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, EngineUnavailable, "locked by another program"),
        (sqlite3.SQLITE_FULL, DiskFull, "no space left"),
        (sqlite3.SQLITE_READONLY, EngineError, "read-only"),
        (sqlite3.SQLITE_CANTOPEN, EngineError, "check that the folder exists"),
        (sqlite3.SQLITE_NOTADB, EngineError, "not a SQLite database"),
        (sqlite3.SQLITE_CORRUPT, EngineError, "damaged"),
        (sqlite3.SQLITE_IOERR_WRITE, EngineUnavailable, "check the disk"),
        (sqlite3.SQLITE_ERROR, EngineError, "words of SQLite"),
    ],
)
def test_each_code_of_sqlite_has_its_words_and_names_the_file(code, kind, words):
    error = translate(real_error(code), "/x/p.db")
    assert type(error) is kind
    assert words in str(error) and "'/x/p.db'" in str(error)


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (errno.EROFS, EngineError, "read-only"),
        (errno.ENOSPC, DiskFull, "no space left"),
        (errno.ENOENT, EngineError, "does not exist"),
        (errno.ENOLCK, EngineError, "has no locks"),
        (errno.EMFILE, EngineUnavailable, "too many open files"),
        (errno.EIO, EngineError, "Input/output error"),
    ],
)
def test_each_code_of_the_system_has_its_words_and_names_the_file(code, kind, words):
    error = translate_os_error(OSError(code, os.strerror(code), "/x/p.db-gate"), "/x/p.db")
    assert type(error) is kind
    assert words in str(error) and "/x/p.db" in str(error)


def test_a_process_may_have_brackets_and_blanks_in_its_name():
    text = b"42 (a) b (c) T 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 3 0 987654 1 2 3"
    stat = parse_stat(text)
    assert (stat.name, stat.state, stat.threads, stat.start) == ("a) b (c", "T", 3, 987654)


def test_only_a_zombie_without_threads_is_remains():
    stat = parse_stat(b"42 (x) Z 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 1")
    assert stat.is_remains
    assert not stat._replace(threads=2).is_remains
    assert not stat._replace(state="T").is_remains


def test_a_process_is_described_for_a_person():
    assert describe(os.getpid()).startswith(f"process {os.getpid()} (")
    assert describe(2**22 + 1) == f"process {2**22 + 1}"
