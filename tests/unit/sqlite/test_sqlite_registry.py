"""One object per file and process: who waits for whom, who gets which, and what is left to a child."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from millpond._sqlite import Registry
from millpond._sqlite._url import Place
from waiting import HANG


class Thing:
    """What is open; it opens and ends when a test lets it."""

    def __init__(self, url: str, place: Place) -> None:
        self.path, self.synchronous = place.path, place.synchronous
        self.is_void = self.has_other_file = False
        self.ended = 0
        self.end: threading.Event | None = None

    def is_replaced(self) -> bool:
        return self.has_other_file

    def shut_down(self) -> None:
        self.is_void = True
        self.ended += 1
        if self.end is not None:
            self.end.wait(HANG)


@pytest.fixture
def things() -> Registry[Thing]:
    return Registry(Thing)


def url(tmp_path: Path, name: str = "a", query: str = "") -> str:
    return f"sqlite:///{tmp_path}/{name}.db{query}"


def test_all_share_one_until_the_last_has_given_it_back(things, tmp_path):
    first, second = things.open(url(tmp_path)), things.open(url(tmp_path))
    assert first is second
    things.give_back(first)
    assert not first.ended and things.open(url(tmp_path)) is first
    things.give_back(first)
    things.give_back(first)
    assert first.ended == 1
    assert things.open(url(tmp_path)) is not first
    things.give_back(first)  # once too often: nothing is ended twice
    assert first.ended == 1


def test_who_opens_a_file_that_was_replaced_gets_the_new_one(things, tmp_path):
    old = things.open(url(tmp_path))
    old.has_other_file = True
    new = things.open(url(tmp_path))
    assert new is not old and things.open(url(tmp_path)) is new
    things.give_back(old)
    assert old.ended == 1 and not new.ended


def test_one_file_is_used_in_one_way(things, tmp_path):
    first = things.open(url(tmp_path))
    with pytest.raises(ValueError, match="open in this process with synchronous=NORMAL: use the same URL"):
        things.open(url(tmp_path, query="?synchronous=FULL"))
    things.give_back(first)
    assert first.ended == 1
    assert things.open(url(tmp_path, query="?synchronous=FULL")).synchronous == "FULL"


def test_one_that_is_void_gets_a_successor_and_ends_with_its_own_last_user(things, tmp_path):
    old = things.open(url(tmp_path))
    old.is_void = True
    new = things.open(url(tmp_path))
    assert new is not old and things.open(url(tmp_path)) is new
    things.give_back(old)
    assert (old.ended, new.ended) == (1, 0) and things.open(url(tmp_path)) is new


def test_a_file_that_does_not_open_is_tried_again_by_the_next(tmp_path):
    errors = [OSError("not today")]

    def make(url: str, place: Place) -> Thing:
        if errors:
            raise errors.pop()
        return Thing(url, place)

    things = Registry(make)
    with pytest.raises(OSError, match="not today"):
        things.open(url(tmp_path))
    assert not things.open(url(tmp_path)).is_void


def test_a_file_that_takes_long_to_open_or_to_end_holds_up_no_other(tmp_path):
    begun, go_on = threading.Event(), threading.Event()

    def make(url: str, place: Place) -> Thing:
        if place.path.endswith("slow.db"):
            begun.set()
            assert go_on.wait(HANG)
        return Thing(url, place)

    things = Registry(make)
    found: list[Thing] = []
    opener = threading.Thread(target=lambda: found.extend(things.open(url(tmp_path, "slow")) for _ in range(2)))
    opener.start()
    assert begun.wait(HANG)
    quick = things.open(url(tmp_path))
    assert opener.is_alive()
    quick.end = threading.Event()
    ender = threading.Thread(target=things.give_back, args=(quick,))
    ender.start()
    go_on.set()
    opener.join(HANG)
    assert found[0] is found[1]  # two who open it together get one
    assert things.open(url(tmp_path)) is not quick and ender.is_alive()
    quick.end.set()
    ender.join(HANG)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_begins_with_none_and_leaves_those_of_the_parent_alone(things, tmp_path):
    thing = things.open(url(tmp_path))
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            things.give_back(thing)
            own = things.open(url(tmp_path))
            code = 0 if own is not thing and not thing.ended and things._past == [thing] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    things.give_back(thing)
    assert thing.ended == 1


def test_a_process_that_ends_shuts_all_of_them_down(things, tmp_path):
    made = [things.open(url(tmp_path, name)) for name in "ab"]
    things._shut_down_all()
    assert [thing.ended for thing in made] == [1, 1]
