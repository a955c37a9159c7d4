"""Command line ``python -m synkhronos``: ``program.py`` runs a program; ``doctor`` and ``predict`` are commands."""
