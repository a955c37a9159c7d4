"""Messages of imports of PyTensor that cannot succeed, in separate processes with fake packages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = str(Path(__file__).parents[3])
#: Program that imports packages; simulated packages precede the installed ones.
PROGRAM = """
import sys
sys.version_info = (3, 11, 7, "final", 0)  # supported by both libraries
import synkhronos
for name in {names}:
    try:
        __import__(name)
    except ImportError as error:
        print(name, "refused:", error)
    else:
        print(name, "imported")
"""


def imports(folder, names, **versions):
    """Return the output of a program that imports packages of these versions."""
    for name, version in versions.items():
        information = folder / f"{name}-{version}.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"__version__ = {version!r}")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(names=names)],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join([str(folder), ROOT])),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_numpy_1(tmp_path):
    (found,) = imports(tmp_path, ["pytensor"], numpy="1.26.4", pytensor="3.0.7")
    assert found.startswith(
        "pytensor refused: PyTensor 3.0.7 does not run with NumPy 1 (here: 1.26.4), which Theano needs"
    )
    assert "make install ENGINE=pytensor" in found and 'pip install "numpy>=2"' in found


@pytest.mark.parametrize("versions", [dict(numpy="2.1.0", pytensor="3.0.7"), dict(numpy="1.26.4", pytensor="2.18.1")])
def test_what_suits(tmp_path, versions):
    assert imports(tmp_path, ["pytensor"], **versions) == ["pytensor imported"]


@pytest.mark.parametrize("names", [["theano", "pytensor"], ["pytensor", "theano"]])
@pytest.mark.parametrize("numpy, refused", [("1.23.5", "pytensor"), ("2.1.0", "theano")])
def test_a_program_of_both(tmp_path, names, numpy, refused):
    found = imports(tmp_path, names, numpy=numpy, theano="1.0.5", pytensor="3.0.7")
    for name, line in zip(names, found):
        if name != refused:
            assert line == f"{name} imported"
        else:
            assert line.startswith(f"{name} refused: ") and "separate environments" in line
