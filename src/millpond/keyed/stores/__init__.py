"""Where keyed pools live: `memory`, `sqlite`, `redis`. None imports another; each has `open(url, pool) -> Store`."""
