"""What can be wrong with a database file, in words for a person: what happened, where, and what to do.

SQLite and the operating system speak in codes. Every one that a user can meet has a sentence here; what the caller may
try again later is `EngineUnavailable`, the rest is `EngineError`.
"""

from __future__ import annotations

import errno
import os
import sqlite3

from millpond.errors import EngineError, EngineUnavailable

NETWORK_FILE_SYSTEMS = frozenset(
    {
        "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs", "gfs", "gfs2", "glusterfs", "gpfs",
        "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "smb2", "smb3", "smbfs",
        "vboxsf", "virtiofs", "vmhgfs",
    }
)  # fmt: skip
"""Types of `/proc/self/mountinfo` on which locks or shared memory do not reach everybody who sees the file."""

NETWORK_FUSE = frozenset(
    {
        "ceph", "cephfs", "davfs2", "fuse_dfs", "gcsfuse", "glusterfs", "goofys", "grpcfuse", "juicefs", "mfs",
        "mount_unionfs", "osxfs", "rclone", "s3fs", "seaweedfs", "smbnetfs", "sshfs", "vmhgfs-fuse",
    }
)  # fmt: skip
"""What stands behind "fuse." in the same place."""


def file_system_type(path: str, mountinfo: str) -> str | None:
    """Find the type of the file system that holds an absolute real path, in the text of `/proc/self/mountinfo`.

    The deepest mount point wins; of several on one folder the last, which covers the others.
    """
    best, best_type = -1, None
    for line in mountinfo.splitlines():
        before, found, after = line.partition(" - ")
        fields = before.split(" ")
        if not found or len(fields) < 5:
            continue
        point = _unescape(fields[4])
        if path == point or point == "/" or path.startswith(point + "/"):
            depth = 0 if point == "/" else point.count("/")
            if depth >= best:
                best, best_type = depth, after.split(" ")[0]
    return best_type


def _unescape(field: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, char)
    return field


def is_network(kind: str) -> bool:
    """Return whether a file system of that type may be shared with other machines, or hides their locks."""
    return kind in NETWORK_FILE_SYSTEMS or (kind.startswith("fuse.") and kind[5:] in NETWORK_FUSE)


def check_place(path: str) -> None:
    """Raise the `EngineError` that says why no database can be at that (real) path, if that can be seen beforehand."""
    folder = os.path.dirname(path)
    if os.path.isdir(path):
        raise EngineError(f"cannot open {path!r}: it is a folder; give the path of a file in it, such as 'pools.db'")
    if not os.path.isdir(folder):
        what = "is not a folder" if os.path.exists(folder) else "does not exist; create it first"
        raise EngineError(f"cannot open {path!r}: its folder {folder!r} {what}")
    if os.path.lexists(path) and not os.path.isfile(path):
        raise EngineError(f"cannot open {path!r}: it is not a regular file; give the path of a file of its own")
    if not os.access(folder, os.W_OK | os.X_OK) or (os.path.exists(path) and not os.access(path, os.R_OK | os.W_OK)):
        raise _read_only(path)
    try:
        with open("/proc/self/mountinfo", errors="surrogateescape") as file:
            kind = file_system_type(path, file.read())
    except OSError:
        return
    if kind is not None and is_network(kind):
        raise EngineError(
            f"cannot open {path!r}: it is on a network or shared file system ({kind}), where locks do not prove "
            "anything; use a local disk (in a container: a volume), or the redis engine for several machines"
        )


def _read_only(path: str) -> EngineError:
    return EngineError(
        f"cannot write to {path!r}: the file, its folder or the file system is read-only for this user; "
        "Millpond writes that file and others beside it ('-wal', '-gate', …), so make the folder writable"
    )


class DiskFull(EngineUnavailable):
    """There is no room to write: nothing was changed."""


def _full(path: str) -> EngineError:
    return DiskFull(f"no space left to write {path!r}: nothing was changed; free some disk space and try again")


def damaged(path: str, what: str) -> EngineError:
    """Return the error about a database of which something makes no sense."""
    return EngineError(
        f"{path!r} is damaged ({what}); stop all its users, keep a copy with its '-wal' file, and start "
        "with a new file or restore a backup"
    )


def translate(error: sqlite3.Error, path: str) -> EngineError:
    """Put an error of SQLite into words. It does not say whether a transaction was committed: its owner knows that."""
    extended = getattr(error, "sqlite_errorcode", None) or 0
    code, name = extended & 0xFF, getattr(error, "sqlite_errorname", None) or type(error).__name__
    match code:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return EngineUnavailable(
                f"{path!r} is locked by another program ({name}), perhaps a sqlite3 shell or a backup that has a "
                "transaction open; end it and try again"
            )
        case sqlite3.SQLITE_FULL:
            return _full(path)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return _read_only(path)
        case sqlite3.SQLITE_CANTOPEN:
            return EngineError(
                f"cannot open {path!r} ({error}); check that the folder exists, that this user may write to it, and "
                "that the process has not run out of open files"
            )
        case sqlite3.SQLITE_NOTADB:
            return EngineError(f"{path!r} is not a SQLite database ({error}); give Millpond a file of its own")
        case sqlite3.SQLITE_CORRUPT:
            return damaged(path, str(error))
        case sqlite3.SQLITE_IOERR:
            return EngineUnavailable(
                f"reading or writing {path!r} failed ({name}: {error}); check the disk and its free space, then try "
                "again"
            )
    return EngineError(f"SQLite could not work on {path!r}: {error} ({name})")


def translate_os_error(error: OSError, path: str) -> EngineError:
    """Put an error about a file beside the database into words."""
    match error.errno:
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return _read_only(path)
        case errno.ENOSPC | errno.EDQUOT:
            return _full(path)
        case errno.ENOENT | errno.ENOTDIR:
            folder = os.path.dirname(path)
            return EngineError(f"cannot open {path!r}: its folder {folder!r} does not exist; create it first")
        case errno.ENOLCK | errno.EOPNOTSUPP | errno.ENOSYS:
            return EngineError(f"the file system of {path!r} has no locks ({error.strerror}); use a local disk")
        case errno.ELOOP:
            return EngineError(
                f"cannot use {error.filename!r} beside {path!r}: it is a symbolic link, and those are not followed; "
                "find out who made it, and delete it"
            )
        case errno.EMFILE | errno.ENFILE:
            return EngineUnavailable(f"cannot open {path!r}: too many open files; raise `ulimit -n` or close some")
    return EngineError(f"cannot use {error.filename or path!r} beside {path!r}: {error.strerror}")
