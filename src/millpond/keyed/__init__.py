"""Keyed pools: jobs that carry a key, on many workers and machines; one worker owns a key at a time."""
