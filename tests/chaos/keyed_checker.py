"""Reads the log of a storm (`keyed_log`) and says which promises of keyed pools it shows to be broken.

It knows nothing of the library: only what the words mean. All that it forgives, it forgives for a cause that stands in
the log: a worker that was killed, stood still, or was cut off from the store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

_FIELDS = {
    "S": 8,
    "E": 8,
    "M": 6,
    "R": 6,
    "W": 4,
    "D": 5,
    "A": 5,
    "N": 5,
    "+": 4,
    "-": 4,
    "K": 3,
    "P": 3,
    "C": 3,
    "T": 3,
    "X": 4,
}
_FIELDS |= {"O": 3, "U": 3, "G": 3, "I": 4}
SIGNAL_SLACK = 0.5
"""Seconds after a process woke in which what was about to begin when it was stopped may still do so."""
WAKING = 1.0
"""Seconds after a process woke in which others may take over from it before it has stopped."""
BLINK = 0.1
"""Seconds between two times of standing still that are none to do anything in."""
MARGIN = 0.2
"""The part of a lease for which a worker is silent before others may take over: who stood still for less has no excuse."""


@dataclass(slots=True, eq=False)
class Run:
    """A handler at work."""

    lane: str
    key: str
    number: int
    token: int
    pid: int
    attempt: int
    began: float
    ended: float = inf
    how: str = "open"

    def __str__(self) -> str:
        span = f"{self.began:.3f}-{self.ended:.3f}"
        return f"{self.lane}:{self.key} #{self.number} token {self.token} by {self.pid} at {span} ({self.how})"


@dataclass(slots=True)
class Process:
    """What befell a process. Spans are (from, to)."""

    killed: float = inf
    told: float = inf
    gone: float = inf
    """When it ended, however that was; one that was killed may have lived a little longer."""
    dead: float = inf
    """When it had ended for sure."""
    code: int | None = None
    stops: list[tuple[float, float]] = field(default_factory=list)
    """When it stood still for sure."""
    stills: list[tuple[float, float]] = field(default_factory=list)
    """When it may have stood still: those, and what it, or who stopped it, says of the moments before and after."""
    cuts: list[tuple[float, float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    """When it said that it lost its lease."""


class Checker:
    """`lease`: of the pool. `zombie`: seconds in which a worker that stood still past its lease must have stopped what it
    runs, on a busy machine too. `shared_fate`: a process that stands still may hold up the store for all (SQLite). `may_lose`: what was
    acknowledged in so many seconds before an outage of the store may be lost, and what was done then may be done again;
    handlers of before may then overlap with what follows, for a lease and `zombie`."""

    def __init__(
        self,
        lines: Iterable[str],
        *,
        lease: float,
        zombie: float = 5.0,
        shared_fate: bool = False,
        may_lose: float = 0.0,
    ) -> None:
        self.lease = lease
        self.zombie = zombie
        self.shared_fate = shared_fate
        self.may_lose = may_lose
        self.faults: list[str] = []
        self.runs: list[Run] = []
        self.processes: dict[int, Process] = defaultdict(Process)
        self.outages: list[tuple[float, float]] = []
        self.tried: dict[tuple[str, int], float] = {}
        """When each dispatch was begun."""
        self.acknowledged: dict[tuple[str, int], float] = {}
        self.wanted: dict[str, bool] = {}
        """Residents: whether they should run."""
        self.stopped: dict[str, list[float]] = defaultdict(list)
        self.notes: dict[str, dict[int, float]] = defaultdict(dict)
        self.heard: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self.confirmed: dict[tuple[int, str, int], list[tuple[float, int]]] = defaultdict(list)
        """When the store confirmed that so many jobs of a take have ended; of a worker, key and token."""
        self.forgotten = 0
        """Jobs that the store was allowed to lose, and lost."""
        self.heard_of: set[int] = set()
        """Processes that wrote a line themselves."""
        self.excused: set[Run] = set()
        """What overlapped with a newer owner, since its worker stood still past its lease."""
        self.end = 0.0
        self._read(lines)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read(self, lines: Iterable[str]) -> None:
        events = []
        for line in lines:
            words = line.split()
            if not words or _FIELDS.get(words[0]) != len(words):
                self.faults.append(f"a line that cannot be read: {line!r}")
                continue
            events.append((float(words[1]), words))
        events.sort(key=lambda event: event[0])
        running: dict[tuple[int, str, str, int], Run] = {}
        for moment, words in events:
            self.end = max(self.end, moment)
            if words[0] in "SEMWDA":
                self.heard_of.add(int(words[2]))
            if words[0] in "SEM":
                self._read_handler(moment, words, running)
            elif words[0] == "R":
                self.confirmed[int(words[2]), words[3], int(words[4])].append((moment, int(words[5])))
            elif words[0] == "W":
                if words[3] == "lost":
                    self.processes[int(words[2])].losses.append(moment)
            elif words[0] in "DAN+-":
                self._read_dispatch(moment, words)
            else:
                self._read_fate(moment, words[0], int(words[2]), words)
        for process in self.processes.values():
            process.stills = _merged(process.stills + process.stops)
        for run in running.values():
            run.ended = max(run.began, self.processes[run.pid].gone)
            run.how = "open" if run.ended == inf else "killed"
        for run in self.runs:
            if self.processes[run.pid].dead < run.began:
                self.faults.append(f"a process that is gone runs something: {run}")

    def _read_handler(self, moment: float, words: list[str], running: dict[tuple[int, str, str, int], Run]) -> None:
        pid = int(words[2])
        if words[0] == "M":
            self.heard[words[3]].append((moment, int(words[4])))
            return
        lane, key, number, token = words[3], words[4], int(words[5]), int(words[6])
        if words[0] == "S":
            run = Run(lane, key, number, token, pid, int(words[7]), moment)
            self.runs.append(run)
            if (pid, lane, key, token) in running:
                self.faults.append(f"two handlers of one take at the same time: {run}")
            running[pid, lane, key, token] = run
        else:
            ended = running.pop((pid, lane, key, token), None)
            if ended is None or ended.number != number:
                self.faults.append(f"an end without a start: {' '.join(words)}")
            else:
                ended.ended, ended.how = moment, words[7]

    def _read_dispatch(self, moment: float, words: list[str]) -> None:
        match words[0]:
            case "D":
                self.tried[words[3], int(words[4])] = moment
            case "A":
                self.acknowledged[words[3], int(words[4])] = moment
            case "N":
                self.notes[words[3]][int(words[4])] = moment
            case "+" | "-":
                self.wanted[words[3]] = words[0] == "+"
                if words[0] == "-":
                    self.stopped[words[3]].append(moment)

    def _read_fate(self, moment: float, what: str, pid: int, words: list[str]) -> None:
        process = self.processes[pid]
        match what:
            case "K":
                process.killed = process.gone = moment
                _close(process.stops, moment)
            case "G":
                process.dead = moment
            case "X":
                process.gone, process.dead, process.code = moment, moment, int(words[3])
            case "T":
                process.told = min(process.told, moment)
            case "P" if not process.stops or process.stops[-1][1] < inf:  # else it stands still already
                process.stops.append((moment, inf))
            case "C":
                _close(process.stops, moment)
            case "I":
                process.stills.append((float(words[3]), moment))
            case "O":
                (process.cuts if pid else self.outages).append((moment, inf))
            case "U":
                _close(process.cuts if pid else self.outages, moment)

    # -- judging ------------------------------------------------------------------------------------------------------

    def check(self, dead: Iterable[tuple[str, int]] = ()) -> list[str]:
        """Return the faults. `dead`: key and number of the jobs among the dead letters."""
        self._check_lost(set(dead))
        by_key: dict[tuple[str, str], list[Run]] = defaultdict(list)
        for run in sorted(self.runs, key=lambda run: run.began):
            by_key[run.lane, run.key].append(run)
        for (lane, _), runs in by_key.items():
            self._check_overlaps(runs)
            self._check_tokens(runs)
            if lane == "j":
                self._check_order(runs)
                self._check_repeats(runs)
        self._check_zombies()
        self._check_notes()
        return self.faults

    def _check_lost(self, dead: set[tuple[str, int]]) -> None:
        done = {(run.key, run.number) for run in self.runs if run.lane == "j" and run.how == "ok"}
        ran = {(run.key, run.number) for run in self.runs if run.lane == "j"}
        for key, number in sorted(ran - self.tried.keys()):
            self.faults.append(f"{key} #{number} ran and was never dispatched")
        for key, number in sorted(self.acknowledged.keys() - done - dead):
            if self._is_forgotten(self.acknowledged[key, number], self.tried.get((key, number))):
                self.forgotten += 1
            else:
                began = "began" if (key, number) in ran else "never began"
                self.faults.append(f"{key} #{number} was acknowledged and is lost ({began})")

    def _is_forgotten(self, moment: float, since: float | None = None) -> bool:
        """Return whether the store may have lost what happened then.

        A dispatch that was begun before an outage and returned after it (`since`, `moment`) may have taken effect before
        it: other jobs of its process went with it, and whoever sent them was held up by the outage.
        """
        since = moment if since is None else min(since, moment)
        return any(begin - self.may_lose <= moment and since <= end for begin, end in self.outages if self.may_lose)

    def _check_overlaps(self, runs: list[Run]) -> None:
        active: list[Run] = []
        for run in runs:
            active = [other for other in active if other.ended > run.began]
            for other in active:
                older, newer = (other, run) if other.token < run.token else (run, other)
                if older.token == newer.token:
                    self.faults.append(f"two at once under one token: {older} and {newer}")
                elif self._was_still(older, newer) or self._is_orphan(older, newer):
                    self.excused.add(older)
                else:
                    self.faults.append(f"overlap: {older} and {newer}")
            active.append(run)

    def _was_still(self, older: Run, newer: Run) -> bool:
        """Return whether the older one's worker stood still past its lease, and stopped it soon after it woke."""
        for begin, end in self.processes[older.pid].stills:
            is_past = min(newer.began, end) - begin >= MARGIN * self.lease and newer.began <= end + WAKING
            if is_past and older.began <= end + SIGNAL_SLACK and older.ended <= end + self.zombie:
                return True
        return False

    def _is_orphan(self, older: Run, newer: Run) -> bool:
        """Return whether the store has lost all knowledge of the older one."""
        if not self.may_lose:
            return False
        return any(
            older.began < over and older.ended <= over + self.lease + self.zombie < inf for _, over in self.outages
        )

    def _check_tokens(self, runs: list[Run]) -> None:
        highest: Run | None = None
        for run in runs:
            if highest is not None:
                if run.token < highest.token and not self._just_woke(run):
                    self.faults.append(f"an old token begins after a newer one: {run} after {highest}")
                if run.token == highest.token and run.pid != highest.pid:
                    self.faults.append(f"one token, two workers: {highest} and {run}")
            if highest is None or run.token > highest.token:
                highest = run

    def _just_woke(self, run: Run) -> bool:
        stills = self.processes[run.pid].stills
        return any(
            begin <= run.began <= end + SIGNAL_SLACK and end - begin >= MARGIN * self.lease for begin, end in stills
        )

    def _check_order(self, runs: list[Run]) -> None:
        """First completions are in the order of the numbers."""
        seen: set[int] = set()
        highest = 0
        for run in sorted((run for run in runs if run.how == "ok"), key=lambda run: run.ended):
            if run.number in seen:
                continue
            seen.add(run.number)
            if run.number < highest:
                self.faults.append(f"order: #{run.number} was first completed after #{highest}: {run}")
            highest = max(highest, run.number)

    def _check_repeats(self, runs: list[Run]) -> None:
        """A job runs again only where its worker was killed, stood still, was cut off, or was told to stop it."""
        latest: dict[int, Run] = {}
        for run in sorted(runs, key=lambda run: (run.token, run.began)):
            before = latest.get(run.number)
            if before is not None and not self._has_cause(before, run, self._known_by(before, runs)):
                self.faults.append(f"ran again for no cause: {run} after {before}")
            latest[run.number] = run

    def _known_by(self, run: Run, runs: list[Run]) -> float:
        """Return when the store knew for sure that a run had ended."""
        end = min(run.ended, self.end)
        if (
            not self.confirmed
        ):  # nobody wrote down what was confirmed: an end is reported at once, with others of its take
            return end + 2 * self.lease
        take = [one for one in runs if (one.pid, one.token) == (run.pid, run.token)]
        number = 1 + take.index(run)
        known = self.confirmed.get((run.pid, run.key, run.token), [])
        return next((moment for moment, done in known if done >= number), inf)

    def _has_cause(self, run: Run, again: Run, known: float) -> bool:
        process = self.processes[run.pid]
        end = min(run.ended, self.end)
        until = min(known, max(again.began, end))
        if process.killed <= until or self._is_forgotten(until, end):
            return True
        if run.how != "ok" and process.told <= end:
            return True
        spans = [*process.stills, *process.cuts, *self.outages, *((each, each) for each in process.losses)]
        if self.shared_fate:
            spans += [span for other in self.processes.values() for span in other.stills]
        return any(begin <= until and over + self.lease >= run.began for begin, over in spans)

    def _check_zombies(self) -> None:
        """See that who stood still past its lease stops what it runs: unless the store says that nobody took over."""
        for pid, process in self.processes.items():
            for begin, end in process.stops:
                if end == inf or end - begin <= 1.5 * self.lease:
                    continue
                has_said_so = any(end <= moment <= end + self.zombie for moment in process.losses)
                for run in self.runs:
                    is_old = run.pid == pid and run.began < begin and min(run.ended, self.end) > end + self.zombie
                    if is_old and (has_said_so or self._is_taken_over(run, end)):
                        self.faults.append(
                            f"a zombie: {run} after its worker woke at {end:.3f}, stopped at {begin:.3f}"
                        )

    def _is_taken_over(self, run: Run, moment: float) -> bool:
        return any(
            (other.lane, other.key) == (run.lane, run.key) and other.token > run.token and other.began <= moment
            for other in self.runs
        )

    def _check_notes(self) -> None:
        for key, numbers in self.notes.items():
            heard = [number for _, number in sorted(self.heard[key])]
            for number in sorted(numbers.keys() - set(heard)):
                was_stopped = any(0 <= moment - numbers[number] < 30 * self.lease for moment in self.stopped[key])
                if not was_stopped and not self._is_forgotten(numbers[number]):
                    self.faults.append(f"message {number} to resident {key} was acknowledged and never heard")
            highest = 0
            for number in dict.fromkeys(heard):
                if 0 < number < highest:
                    self.faults.append(f"message {number} to resident {key} was first heard after {highest}")
                highest = max(highest, number)

    def check_residents(self, alive: set[int], patience: float) -> list[str]:
        """See that what should run does so once, on a living worker, and for the last `patience` seconds nobody else did."""
        faults = []
        for key, is_wanted in self.wanted.items():
            here = [run for run in self.runs if run.lane == "r" and run.key == key and run.ended == inf]
            here = [run for run in here if run.pid in alive]
            if len(here) != is_wanted:
                faults.append(
                    f"resident {key} runs {len(here)} times and should {'once' if is_wanted else 'not'}: {here}"
                )
            late = [run for run in self.runs if run.lane == "r" and run.key == key and run.ended > self.end - patience]
            faults += [f"resident {key} runs without being wanted: {run}" for run in late if not is_wanted]
        self.faults += faults
        return faults

    # -- figures ------------------------------------------------------------------------------------------------------

    def failovers(self) -> list[float]:
        """Return the seconds from the end of each worker that was killed to the next start of each key that it ran."""
        times = []
        by_key: dict[tuple[str, str], list[Run]] = defaultdict(list)
        for run in sorted(self.runs, key=lambda run: run.token):
            by_key[run.lane, run.key].append(run)
        for run in self.runs:
            if run.how == "killed":
                after = [other.began for other in by_key[run.lane, run.key] if other.token > run.token]
                if after and after[0] > run.ended:  # else it stood still, and others had taken over
                    times.append(after[0] - run.ended)
        return sorted(times)

    def killed(self) -> int:
        """Return how many runs ended with their worker, which was killed."""
        return sum(run.how == "killed" for run in self.runs)

    def repeated(self) -> int:
        """Return how many jobs were completed more than once."""
        counts: dict[tuple[str, int], int] = defaultdict(int)
        for run in self.runs:
            counts[run.key, run.number] += run.lane == "j" and run.how == "ok"
        return sum(count > 1 for count in counts.values())

    def summary(self) -> str:
        fates = self.processes.values()
        kills, stops = sum(each.killed < inf for each in fates), sum(len(each.stops) for each in fates)
        interrupted = sum(run.how in ("killed", "stopped") for run in self.runs)
        losses = sum(len(each.losses) for each in fates)
        late = self.failovers()
        times = f"{late[len(late) // 2]:.2f} s median, {late[-1]:.2f} s at most" if late else "none"
        return (
            f"{kills} kills, {stops} stops, {len(self.outages)} outages, {losses} leases lost; {len(self.acknowledged)} jobs acknowledged, "
            f"{len(self.runs)} runs, {interrupted} interrupted, {self.repeated()} completed twice, "
            f"{self.forgotten} forgotten, "
            f"{len(self.excused)} overlapped with excuse; fail-over {times}; {len(self.faults)} faults"
        )


def _close(spans: list[tuple[float, float]], moment: float) -> None:
    if spans and spans[-1][1] == inf:
        spans[-1] = (spans[-1][0], moment)


def _merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Join spans with less than a blink between them."""
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1] + BLINK:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged
