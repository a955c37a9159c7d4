"""Which PyMC the extension needs."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

COMMAND = 'pip install "pymc>=6,<7"'


def check() -> None:
    """Refuse an environment without PyMC 6, the first that runs with PyTensor 3.

    Raises
    ------
    ImportError
        Says what is missing, and what to do.
    """
    try:
        found = metadata.version("pymc")
    except metadata.PackageNotFoundError:
        found = ""
    if int((found or "0").split(".")[0]) >= 6:
        return
    here = f"PyMC {found}" if found else "none is installed"
    remedy = COMMAND
    if sys.version_info < (3, 12):
        remedy = (
            f"make an environment of Python 3.12 or later (this is {platform.python_version()}), and {COMMAND} there"
        )
    raise ImportError(f"synkhronos.extensions.pymc needs PyMC 6 (here: {here}): {remedy}")
