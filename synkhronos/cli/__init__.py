"""The command line: ``python -m synkhronos program.py``, and ``doctor`` or ``predict`` in its place."""
