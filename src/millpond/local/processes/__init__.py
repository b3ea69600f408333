"""`ProcessPool`."""
