"""Command line: ``python -m synkhronos program.py``, ``python -m synkhronos doctor`` and ``... predict``."""
