"""A producer of a storm: it dispatches numbered jobs, one by one and many at once, and writes down what was acknowledged.

`python keyed_producer.py URL LOG OPTIONS` with options as JSON: `name` (its keys begin with it; no two producers that
live at the same time have the same), `keys`, `threads`, `rate` (jobs per second), `seed`, `pool` (as for KeyedPool).
It ends at SIGTERM. One that is started again under the same name counts on from what it finds in the log.
"""

from __future__ import annotations

import json
import logging
import random
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from keyed_log import Log

from millpond import KeyedPool
from millpond.errors import EngineUnavailable

POOL = "storm"
QUICK = -0.01
SLOW = 0.6
AHEAD = 2000
"""Jobs that may wait: where workers are slow, so are producers."""


class Producer:
    def __init__(self, url: str, path: Path, options: dict[str, Any]) -> None:
        self.pool = KeyedPool(POOL, url, **options.get("pool", {}))
        self.jobs = [self.pool.declare_job(name, keep_result=0) for name in ("flow", "call")]
        self.log = Log(path)
        self.options = options
        self.numbers: dict[str, int] = {}
        self.is_over = threading.Event()
        pattern = re.compile(rb"^D \S+ \d+ (%s-\S+) (\d+)$" % options["name"].encode(), re.MULTILINE)
        for key, number in pattern.findall(path.read_bytes()):
            self.numbers[key.decode()] = int(number)

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: self.is_over.set())
        count = self.options["threads"]
        threads = [threading.Thread(target=self.produce, args=(index,)) for index in range(count)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            self.is_over.wait(0.2)
            time.sleep(0.01)
        self.pool.close()

    def produce(self, thread: int) -> None:
        """Dispatch, in keys of this thread's own, so that their order is known."""
        chance = random.Random(f"{self.options['seed']}-{thread}")
        name, rate = self.options["name"], self.options["rate"] / self.options["threads"]
        keys = [f"{name}-{thread}-{index}" for index in range(self.options["keys"] // self.options["threads"])]
        slow = f"{name}-slow-{thread}"
        began, sent, looked = time.monotonic(), 0, 0
        while not self.is_over.is_set():
            dice = chance.random()
            count = chance.randint(10, 60) if dice < 0.1 else 1
            if dice > 1 - 1 / (1 + 4 * rate):
                self.dispatch(chance, [slow], SLOW)
            hot = keys[: max(1, len(keys) // 20)]
            self.dispatch(chance, [chance.choice(hot if chance.random() < 0.15 else keys) for _ in range(count)], QUICK)
            sent += count
            if sent > looked + AHEAD / 20:
                looked = sent
                while self.waiting() > AHEAD and not self.is_over.wait(0.02):
                    pass
            self.is_over.wait(max(0.0, began + sent / rate - time.monotonic()))

    def waiting(self) -> int:
        try:
            return self.pool.statistics().jobs
        except EngineUnavailable:
            return 0

    def dispatch(self, chance: random.Random, keys: list[str], seconds: float) -> None:
        calls = []
        for key in keys:
            self.numbers[key] = number = self.numbers.get(key, 0) + 1
            calls.append((key, number, seconds if chance.random() > 0.02 or seconds > 0 else 0.15))
        self.log.write_lines([self.log.line("D", key, number) for key, number, _ in calls])
        job = chance.choice(self.jobs)
        try:
            if len(calls) == 1:
                job.dispatch(*calls[0])
            else:
                job.dispatch_many(calls)
        except EngineUnavailable:
            return  # whether they are in is unknown
        self.log.write_lines([self.log.line("A", key, number) for key, number, _ in calls])


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR, format="%(asctime)s producer %(process)d %(name)s: %(message)s")
    Producer(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])).run()
