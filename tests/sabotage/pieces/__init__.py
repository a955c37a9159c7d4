"""The pieces of the long campaign (tools/sabotage.py), each of which `make test` runs in a short form.

A piece is a module with ``run(scale, progress)``. It does its part of the campaign, so many times the scale, says how far
it is, and returns rows of the table in docs/reliability.md. Whatever is wrong it raises.
"""
