"""Random commands for a resource pool, as plain numbers, so that a failing run can be cut down to its core.

A script is a list of moves; a move is a few numbers that mean a command in whatever state the pool is then ("release
the third grant"). So any part of a script is a script again: `shrink` drops moves as long as the failure stays.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, TypeVar

from msgspec.structs import replace

from millpond.resources._rules import commands
from millpond.resources._rules.records import ALL, AWAY, HELD, OFFERED, Holder, Settings, Want
from millpond.resources._rules.state import State
from millpond.resources._rules.step import Outcome
from millpond_conformance._model import Judge

Move: TypeAlias = tuple[int, int, int, int, int]
"""`(verb, what, how, more, time)`: each is taken modulo the choices there are."""
T = TypeVar("T")

MOST: Final = 1 << 16
START: Final = 1000
NAMES: Final = ("r0", "r1", "r2", "r3", "r4")
LABELS: Final[tuple[dict[str, str], ...]] = ({"k": "x"}, {"k": "y"}, {"k": "x", "f": ""}, {}, {"k": "y", "f": ""})
SESSIONS: Final = ("s1", "s2", "s3", "")
GROUPS: Final = ("", "", "g", "h")
WANTS: Final[tuple[tuple[Want, ...], ...]] = (
    (Want("*"),),
    (Want("k=x"),),
    (Want("k=y"),),
    (Want("k=x | *"),),
    (Want("@r0"),),
    (Want("@r1"),),
    (Want("f"),),
    (Want("!f"),),
    (Want("k in (x y)"),),
    (Want("k=z"),),
    (Want("*", 2),),
    (Want("k=x", 2),),
    (Want("*", 3),),
    (Want("*", 1, 2),),
    (Want("@r0", 1, ALL),),
    (Want("@r0", 1, 2),),
    (Want("@r1", 1, ALL),),
    (Want("*", 1, ALL),),
    (Want("k=x", 1, 3),),
    (Want("k=x"), Want("k=y")),
    (Want("*"), Want("k=x"), Want("f")),
    (Want("k=x", 2), Want("*", 1, 2)),
    (Want("k=y", 1, ALL), Want("*")),
)
PLACEMENTS: Final = ("first", "lru", "mru", "random", "pack", "spread")
TIMES: Final = (0, 0, 0, 1, 1, 5, 40, 100, 160, 320)
SETTINGS: Final = (
    Settings(claim=100, patience=150, retention=300),
    Settings(claim=100, patience=0, retention=300, delay=60),
    Settings(claim=30, patience=10_000, retention=100, ageing=50),
    Settings(claim=100, patience=60, retention=300, delay=200, ageing=20),
)


class Script:
    """Turns moves into commands, one after the other, on a pool under a judge."""

    def __init__(self, judge: Judge | None = None) -> None:
        self.judge = judge or Judge()
        self.now = START
        self.numbers: dict[str, int] = {}
        self.made = 0
        self.last: commands.Command = commands.Tick()
        self.theme = 0  # what half of the requests are about, so that lines grow

    @property
    def state(self) -> State:
        """The pool."""
        return self.judge.state

    def play(self, move: Move) -> Outcome:
        """Make one move."""
        verb, what, how, more, time = move
        self.now += TIMES[time % len(TIMES)]
        command = _VERBS[verb % len(_VERBS)](self, what, how, more)
        self.last = command
        if time // 64 % 16 == 0:
            self.judge.reload()
        return self.judge.step(command, self.now, twice=time // 1024 % 8 == 0)

    # --- each verb ---------------------------------------------------------------------------------------------------

    def acquire(self, what: int, how: int, more: int) -> commands.Command:
        session = SESSIONS[how % len(SESSIONS)]
        self.made += 1
        chosen = how // 4 % 4 == 0
        number = self.numbers.get(session, 0) + 1 if how // 16 % 8 else 0
        if how // 128 % 16 == 0:
            number = max(0, number - 2)  # an old one
        self.numbers[session] = max(number, self.numbers.get(session, 0))
        return commands.Acquire(
            f"c{how // 32 % 4}" if chosen else f"a{self.made}",
            session,
            number,
            Holder(id=session),
            WANTS[(what if what // 4096 % 2 else self.theme + what % 2) % len(WANTS)],
            priority=(0, 0, 0, 1, 2)[what // 32 % 5],
            group=GROUPS[what // 160 % 4],
            lease=(0, 0, 120)[what // 640 % 3],
            placement=PLACEMENTS[more % 6],
            rank=((), ("r2", "r0"))[more // 6 % 2],
            refused=((), (), (), ("r1",))[more // 12 % 4],
            picky=more // 48 % 4 == 0,
            sure=more // 192 % 8 == 0,
            chosen=chosen,
            patient=more // 1536 % 3 == 0,
            wait=more // 4608 % 8 != 0,
            timeout=(0, 0, 100, 250)[how // 2048 % 4],
            seen=(0, 0, 0, self.now + 7)[how // 8192 % 4],
        )

    def claim(self, what: int, how: int, more: int) -> commands.Command:
        ids = [one.id for one in self.state.requests.values() if one.state in (OFFERED, AWAY)] or ["nothing"]
        one = _choose(ids, what)
        known = self.state.requests.get(one)
        session = SESSIONS[more % 4] if how % 8 == 0 or known is None else known.session
        mine = (
            tuple(name for name in ids if name in self.state.index.sessions.get(session, ()))
            if how % 3 == 0
            else (one,)
        )
        return commands.Claim(session, mine)

    def decline(self, what: int, how: int, more: int) -> commands.Command:
        offers = [one for one in self.state.requests.values() if one.state == OFFERED]
        if not offers:
            return commands.Decline("s1", "nothing", self.state.token)
        one = _choose(offers, what)
        return commands.Decline(one.session, one.id, one.token - (how % 8 == 0))

    def withdraw(self, what: int, how: int, more: int) -> commands.Command:
        one = _choose(sorted(self.state.requests) or ["c0"], what)
        known = self.state.requests.get(one)
        session = known.session if known is not None and how % 4 else SESSIONS[how // 4 % 4]
        return commands.Withdraw(session, one, by="op" if more % 5 == 0 else "", reason="why")

    def release(self, what: int, how: int, more: int) -> commands.Command:
        token = self._token(what, how)
        session = self._session(token) if more % 4 else SESSIONS[more // 4 % 4]
        resource = _choose(NAMES, more) if how // 16 % 8 == 0 else ""
        return commands.Release(session, token, resource, by="op" if how // 128 % 6 == 0 else "")

    def renew(self, what: int, how: int, more: int) -> commands.Command:
        token = self._token(what, how)
        return commands.Renew(self._session(token), token)

    def pass_on(self, what: int, how: int, more: int) -> commands.Command:
        token = self._token(what, how)
        return commands.Pass(self._session(token) if more % 8 else SESSIONS[more // 8 % 4], token)

    def adopt(self, what: int, how: int, more: int) -> commands.Command:
        session = SESSIONS[more % 4]
        passed = [one.token for one in self.state.requests.values() if one.passed]
        return commands.Adopt(
            session,
            _choose(passed, what) if passed and how % 2 else self._token(what, how),
            Holder(id=session),
            ("transferred", "stolen", "kept")[more // 4 % 3],
            lease=(0, 120)[more // 16 % 2],
            seen=(0, self.now + 9)[more // 32 % 2],
        )

    def suspect(self, what: int, how: int, more: int) -> commands.Command:
        return commands.Suspect("s1", self._token(what, how), ("", "silent")[more % 2])

    def bury(self, what: int, how: int, more: int) -> commands.Command:
        return commands.Bury(SESSIONS[what % 4])

    def add(self, what: int, how: int, more: int) -> commands.Command:
        return commands.Add(NAMES[what % 5], LABELS[how % 5], (1, 1, 1, 2, 3)[more % 5])

    def remove(self, what: int, how: int, more: int) -> commands.Command:
        return commands.Remove(NAMES[what % 5])

    def relabel(self, what: int, how: int, more: int) -> commands.Command:
        return commands.Relabel(NAMES[what % 5], LABELS[how % 5])

    def resize(self, what: int, how: int, more: int) -> commands.Command:
        return commands.Resize(NAMES[what % 5], (1, 2, 3, 4)[how % 4])

    def mark(self, what: int, how: int, more: int) -> commands.Command:
        state = ("active", "active", "active", "cordoned", "draining", "quarantined")[how % 6]
        return commands.Mark(NAMES[what % 5], state)

    def configure(self, what: int, how: int, more: int) -> commands.Command:
        self.theme = more
        paused = "" if self.state.settings.paused or how % 3 else "a pause"
        return commands.Configure(replace(SETTINGS[what % len(SETTINGS)], paused=paused))

    def set_group(self, what: int, how: int, more: int) -> commands.Command:
        return commands.SetGroup(("g", "h", "")[what % 3], (1, 2, 5)[how % 3], (0, 1, 2, 4)[more % 4])

    def tick(self, what: int, how: int, more: int) -> commands.Command:
        return commands.Tick()

    def again(self, what: int, how: int, more: int) -> commands.Command:
        return self.last

    def _token(self, what: int, how: int) -> int:
        if how % 6 == 0:
            return _choose(list(self.state.past) or [1], what)
        return _choose(list(self.state.index.tokens) or [1], what)

    def _session(self, token: int) -> str:
        known = self.state.index.tokens.get(token)
        if known is not None:
            return self.state.requests[known].session
        past = self.state.past.get(token)
        return past.session if past is not None else "s1"

    # --- the end -----------------------------------------------------------------------------------------------------

    def run_dry(self) -> None:
        """Give everything back again and again: in the end nobody waits who could be served."""
        step, state = self.judge.step, self.state
        step(commands.Configure(Settings(claim=100, patience=150, retention=300)), self.now)
        for name in ("g", "h"):
            step(commands.SetGroup(name, 1, 0), self.now)
        for name, resource in list(state.resources.items()):
            if resource.state != "active":
                step(commands.Mark(name, "active"), self.now)
        for _ in range(3 * len(state.requests) + 3):
            self.now += 60
            step(commands.Tick(), self.now)
            for one in list(state.requests.values()):
                known = state.requests.get(one.id)
                if known is not None and known.state in (OFFERED, AWAY):
                    step(commands.Claim(known.session, (known.id,)), self.now)
            for token in sorted(
                token for token, known in state.index.tokens.items() if state.requests[known].state == HELD
            ):
                if token in state.index.tokens:
                    step(commands.Release("", token), self.now)
        left = [one for one in state.requests.values() if not one.patient]
        assert not left, f"nobody holds anything, and still {left} are not served"


_VERBS: Final[tuple[Callable[[Script, int, int, int], commands.Command], ...]] = (
    *[Script.acquire] * 15,
    *[Script.release] * 9,
    *[Script.claim] * 6,
    *[Script.decline] * 3,
    *[Script.withdraw] * 3,
    *[Script.renew] * 2,
    *[Script.pass_on] * 2,
    *[Script.adopt] * 2,
    *[Script.bury] * 2,
    *[Script.add] * 4,
    *[Script.remove] * 2,
    *[Script.relabel] * 2,
    *[Script.resize] * 2,
    *[Script.mark] * 4,
    *[Script.configure] * 2,
    *[Script.set_group] * 2,
    *[Script.tick] * 2,
    Script.suspect,
    Script.again,
)


def _choose(options: Sequence[T], number: int) -> T:
    return options[number % len(options)]


def random_moves(seed: int, length: int) -> list[Move]:
    """Return a script. Its first moves add resources and choose settings."""
    dice = random.Random(seed)

    def number() -> int:
        return dice.randrange(MOST)

    first = [(_VERBS.index(Script.add), slot, number(), number(), 4) for slot in range(dice.randrange(1, 5))]
    first.append((_VERBS.index(Script.configure), number(), 1, number(), 4))
    return [*first, *((number(), number(), number(), number(), number()) for _ in range(length))]


def run(moves: Sequence[Move]) -> Script:
    """Play a script to its end, and then until nobody waits."""
    script = Script()
    for move in moves:
        script.play(move)
    script.run_dry()
    return script


def failure(moves: Sequence[Move]) -> str | None:
    """Return what goes wrong in a script, if anything does."""
    try:
        run(moves)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def shrink(moves: Sequence[Move]) -> list[Move]:
    """Drop moves of a failing script as long as it fails."""
    best = list(moves)
    size = len(best) // 2
    while size:
        at = 0
        while at < len(best):
            shorter = best[:at] + best[at + size :]
            if failure(shorter) is not None:
                best = shorter
            else:
                at += size
        size //= 2
    return best


def tell(moves: Sequence[Move]) -> str:
    """Return the commands of a script, as they were played, one per line."""
    script = Script()
    lines = []
    try:
        for move in moves:
            script.play(move)
            lines.append(f"{script.now}: {script.last}")
        lines.append("... and everything is given back")
        script.run_dry()
    except Exception as error:
        lines.append(f"{script.now}: {script.last}")
        lines.append(f"-> {type(error).__name__}: {error}")
    return "\n".join(lines)


def search(seeds: Sequence[int], length: int) -> None:
    """Play one script per seed; a failing one is told at its shortest, with its seed."""
    for seed in seeds:
        moves = random_moves(seed, length)
        if failure(moves) is not None:
            raise AssertionError(f"seed {seed}, {length} moves; at its shortest:\n{tell(shrink(moves))}")
