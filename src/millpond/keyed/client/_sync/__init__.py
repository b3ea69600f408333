"""The synchronous pool, which `tools/twins.py` generates from `_async`: edit there, then `make format`."""
