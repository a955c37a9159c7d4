"""Benchmarks: us beside what a user would pick instead, in one run. `python -m benchmarks --help`."""
