"""The producer: it dispatches jobs, and needs no worker for that. See the package's docstring."""

from __future__ import annotations

import sys

from fibonacci.shared import fibonacci, pool


def main() -> None:
    numbers = [int(each) for each in sys.argv[1:]] or [42]
    with pool:
        receipts = [fibonacci.dispatch("key", n) for n in numbers]
        print(f"dispatched {len(receipts)}: they are in the store, whoever comes and goes", flush=True)
        patience = 60 if pool.workers() else 1  # when nobody is there, they wait in the store for whoever comes
        for n, receipt in zip(numbers, receipts, strict=True):
            try:
                print(f"fib({n})={receipt.result(timeout=patience)}", flush=True)
            except TimeoutError:
                print(f"fib({n}) is {receipt.status()}: start a worker", flush=True)
                break


if __name__ == "__main__":
    main()
