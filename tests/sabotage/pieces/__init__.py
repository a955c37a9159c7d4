"""Pieces of the long campaign (tools/sabotage.py); `make test` runs a short form of each.

A piece is a module with ``run(scale, progress)``. It repeats its part of the campaign according to the scale, reports
its progress, and returns rows of the table in docs/reliability.md. Every fault raises an error.
"""
