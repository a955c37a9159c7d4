"""Benchmarks over several hosts."""
