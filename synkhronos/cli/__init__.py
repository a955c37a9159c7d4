"""The command line: ``python -m synkhronos program.py`` and ``python -m synkhronos doctor``."""
