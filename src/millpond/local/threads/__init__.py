"""`ThreadPool` and `SubPool`."""
