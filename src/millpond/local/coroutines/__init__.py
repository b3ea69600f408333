"""`AsyncPool`."""
