"""Who may use a database: its files are for their owner, unless the URL says otherwise.

The database is made with the permissions of the URL (`?mode=660`), whatever the umask, or for its owner only. The files
beside it get the permissions of the database, as SQLite's own do: whoever can lock a byte of `-gate`, if only for
reading, can hold up everybody. What exists keeps its permissions.

Links are not followed: in a folder that others may write to, a link planted under the name of a file of ours would make
us write to a file of its maker's choice. (The database's own path may contain links; it is the user who gives it.)
"""

from __future__ import annotations

import contextlib
import os

OWNER_ONLY = 0o600


def make_database(path: str, mode: int = OWNER_ONLY) -> None:
    """Make the file of a database, still empty, unless there is one."""
    with contextlib.suppress(FileExistsError):
        os.close(create(path, mode))


def create(path: str, mode: int) -> int:
    """Make a file with these permissions, whatever the umask, and open it; raise FileExistsError if it is there."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    os.fchmod(fd, mode)
    return fd


def mode_of(database: str) -> int:
    """Return the permissions of a database, for the files beside it."""
    try:
        return os.stat(database).st_mode & 0o666
    except OSError:
        return OWNER_ONLY


def make_folder(path: str, mode: int) -> int:
    """Make a folder for those who may use files of that mode, unless there is one; return its descriptor."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    os.fchmod(fd, mode | (mode & 0o444) >> 2)
    return fd
