"""Benchmarks of Synkhronos and of the alternatives that a user could choose; see `python -m benchmarks --help`."""
