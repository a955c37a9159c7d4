"""Benchmarks of programs on several hosts."""
