"""Errors of the extension for PyMC without a usable PyMC, in separate processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import synkhronos

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from importlib import metadata

def version(name, version_of=metadata.version):
    if name != "pymc":
        return version_of(name)
    if not {found!r}:
        raise metadata.PackageNotFoundError(name)
    return {found!r}

import numpy, synkhronos.extensions
metadata.version, sys.version_info = version, {python}
try:
    import synkhronos.extensions.pymc
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    "found, python, said",
    [
        ("", (3, 13, 0), 'needs PyMC 6.3 or later (here: none is installed): pip install "pymc>=6.3,<7"'),
        ("6.2.0", (3, 13, 0), 'needs PyMC 6.3 or later (here: PyMC 6.2.0): pip install "pymc>=6.3,<7"'),
        (
            "",
            (3, 11, 7),
            "needs PyMC 6.3 or later (here: none is installed): create an environment with Python 3.12 or later (this ",
        ),
    ],
)
def test_refused(found, python, said):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM.format(found=found, python=python)],
        env=dict(os.environ, PYTHONPATH=str(Path(synkhronos.__file__).parents[1])),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    assert done.stdout.startswith("synkhronos.extensions.pymc " + said), done.stdout
    assert done.stdout.rstrip().endswith('pip install "pymc>=6.3,<7"'), done.stdout
