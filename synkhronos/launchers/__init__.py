"""How ranks come to life and end: as forked processes, or as threads for tests."""
