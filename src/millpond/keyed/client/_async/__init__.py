"""The asynchronous pool, written by hand. `tools/twins.py` generates `_sync` from it: edit here, then `make format`."""
