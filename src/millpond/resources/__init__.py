"""Resource pools: who may use which of the things that are few."""
