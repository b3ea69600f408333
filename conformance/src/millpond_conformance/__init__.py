"""The conformance suites of Millpond: what every engine and every store owes, for those who write one.

- `Bench`, `ENGINE_CHECKS` and `check_engine` are the suite of resource engines: plain functions, to be run by any test
  runner on any engine.
- `StoreBench`, `STORE_CHECKS` and `check_store` are that of stores of keyed pools.

Beside them are the models that judge each step and the scripts that play random commands, on which Millpond's own
tests stand (`_model`, `_script`, `_stage` for resource pools; `_keyed_model`, `_keyed_script` for keyed pools). The
suites look inside of Millpond, so each version belongs to the same version of `millpond`.
"""

from __future__ import annotations

from millpond_conformance._engines import ENGINE_CHECKS, Bench, check_engine
from millpond_conformance._stores import STORE_CHECKS, StoreBench, check_store

__all__ = ["ENGINE_CHECKS", "STORE_CHECKS", "Bench", "StoreBench", "check_engine", "check_store"]
