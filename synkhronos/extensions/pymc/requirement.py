"""The PyMC version that the extension requires."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

COMMAND = 'pip install "pymc>=6.3,<7"'


def check() -> None:
    """Raise an `ImportError` with instructions unless PyMC 6.3 or later is installed."""
    try:
        found = metadata.version("pymc")
    except metadata.PackageNotFoundError:
        found = ""
    if tuple(map(int, (found or "0.0").split(".")[:2])) >= (6, 3):
        return
    here = f"PyMC {found}" if found else "none is installed"
    remedy = COMMAND
    if sys.version_info < (3, 12):
        remedy = (
            f"create an environment with Python 3.12 or later (this is {platform.python_version()}), "
            f"and run there: {COMMAND}"
        )
    raise ImportError(f"synkhronos.extensions.pymc needs PyMC 6.3 or later (here: {here}): {remedy}")
