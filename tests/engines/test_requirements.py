"""Messages of imports of libraries that are missing or do not run on this Python, in separate processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from synkhronos.engines import requirements

ROOT = Path(__file__).parents[2]

#: Program that hides the installed libraries, and optionally pretends to be another Python version.
BEFORE = """
import importlib.machinery, importlib.metadata, importlib.util, sys
find = importlib.machinery.PathFinder.find_spec
hidden = ("theano", "pytensor", "lasagne")
importlib.machinery.PathFinder.find_spec = lambda name, *more: None if name in hidden else find(name, *more)
version = importlib.metadata.version
def version_of(name):
    if name in hidden:
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)
importlib.metadata.version = version_of
sys.version_info = {version} + ("final", 0)
import synkhronos as synk
"""


def run(tmp_path, text, *options, version=(3, 11, 7), status=0):
    """Run a program in an environment without any engine; return the last line of its output or error."""
    (tmp_path / "sitecustomize.py").write_text(BEFORE.format(version=version))
    (tmp_path / "prog.py").write_text(text)
    done = subprocess.run(
        [sys.executable, *options, "prog.py"],
        cwd=str(tmp_path),
        env=dict(os.environ, PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)])),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        timeout=60,
    )
    assert done.returncode == status, done.stderr
    return (done.stderr if status else done.stdout).splitlines()[-1]


OF_THEANO = 'pip install "theano==1.0.5" "numpy<1.24" "scipy<1.11" "setuptools<81"'


@pytest.mark.parametrize("options", [(), ("-m", "synkhronos")], ids=["python", "synkhronos"])
@pytest.mark.parametrize(
    "program, version, said",
    [
        ("import theano", (3, 11, 7), "Theano is not installed in this environment: " + OF_THEANO),
        ("import theano.tensor as T", (3, 9, 18), f"Theano is not installed in this environment: {OF_THEANO}"),
        ("import theano.tensor as T", (3, 13, 0), "Theano runs on Python 3.8 to 3.11 (here: 3.13.0): use one of"),
        ("import lasagne", (3, 13, 0), "Lasagne, which needs Theano, runs on Python 3.8 to 3.11 (here: 3.13.0): use"),
        ("import lasagne", (3, 11, 7), "not installed in this environment: pip install lasagne " + OF_THEANO[12:]),
        (
            "import pytensor",
            (3, 13, 0),
            'PyTensor is not installed in this environment: pip install "pytensor>=3.0,<4"',
        ),
        ("import pytensor", (3, 8, 18), "PyTensor runs on Python 3.11 to 3.14 (here: 3.8.18): use one of these"),
        ("import synkhronos.extensions.updates", (3, 13, 0), "or port the program to PyTensor (docs/pytensor.rst)"),
    ],
)
def test_import_of_what_is_missing(tmp_path, options, program, version, said):
    line = run(tmp_path, program, *options, version=version, status=1)
    assert line.startswith("ModuleNotFoundError: ")
    assert (said if version > (3, 11) else said.replace("1.24", "1.22")) in line


@pytest.mark.skipif(
    sys.version_info < (3, 9), reason="libraries use types.GenericAlias where Python claims 3.9 or later"
)
@pytest.mark.parametrize(
    "version, said",
    [
        ((3, 11, 7), f'{OF_THEANO} (Theano), or pip install "pytensor>=3.0,<4" (PyTensor)'),
        ((3, 13, 0), 'pip install "pytensor>=3.0,<4" (PyTensor)'),
        ((3, 15, 0), "install Python 3.11 to 3.14 for PyTensor, or 3.8 to 3.11 for Theano"),
    ],
)
@pytest.mark.parametrize("folder", [False, True], ids=["", "folder"])
def test_function_without_an_engine(tmp_path, version, said, folder):
    """`function` reports that engines are missing; a folder with an engine's name does not count as the engine."""
    if folder:
        (tmp_path / "theano").mkdir()
    line = run(tmp_path, "import synkhronos as synk; synk.fork(2); synk.function([], [])", version=version, status=1)
    assert line == f"ModuleNotFoundError: functions need Theano or PyTensor, and neither is installed here: {said}"


def test_without_numpy_it_is_the_library_that_is_missing(tmp_path):
    hide = "import synkhronos\nhidden = ('theano', 'numpy')\nimport sitecustomize; sitecustomize.hidden = hidden\n"
    assert run(tmp_path, hide + "import theano", status=1).startswith("ModuleNotFoundError: Theano is not installed in")


def test_what_is_only_looked_for_imports_nothing(tmp_path):
    text = "import sys, importlib.util\nimportlib.util.find_spec('theano'), importlib.util.find_spec('pytensor')\n"
    assert run(tmp_path, text + "print('numpy' in sys.modules)") == "False"


def test_what_is_only_looked_for_is_not_refused(tmp_path):
    """`find_spec` still returns None for missing packages, and an import's error contains the package's name."""
    program = """
from importlib.util import find_spec
try:
    import theano
except ModuleNotFoundError as error:
    print([find_spec(name) for name in hidden], error.name)
"""
    assert run(tmp_path, "hidden = 'theano', 'pytensor', 'lasagne'" + program) == "[None, None, None] theano"


@pytest.mark.parametrize("version, refused", [((3, 12, 1), True), ((3, 11, 7), False)])
def test_theano_that_is_installed_on_a_python_on_which_it_fails(tmp_path, version, refused):
    (tmp_path / "theano").mkdir()
    (tmp_path / "theano" / "__init__.py").write_text("raise AttributeError('in the middle')")
    for name, release in (("numpy", "1.23.5"), ("theano", "1.0.5")):
        (tmp_path / f"{name}-{release}.dist-info").mkdir()
        (tmp_path / f"{name}-{release}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {release}\n")
    text = f"import sys; sys.version_info = {version} + ('final', 0)\nimport synkhronos, importlib.util\n"
    text += "print(importlib.util.find_spec('theano') is not None, file=sys.stderr)\nimport theano"
    (tmp_path / "prog.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "prog.py"],
        cwd=str(tmp_path),
        env=dict(os.environ, PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)])),
        stderr=subprocess.PIPE,
        universal_newlines=True,
    )
    first, *_, last = done.stderr.splitlines()
    expected = "ImportError: Theano runs on Python 3.8 to 3.11 (here: 3.12.1)" if refused else "AttributeError: in the"
    assert first == "True" and last.startswith(expected)


def test_no_command_has_a_name_that_is_not_on_the_index():
    """No command installs ``synkhronos``, which is not on the index: anyone might register the name."""
    sources = {path: path.read_text() for path in (ROOT / "synkhronos").rglob("*.py")}
    commands = {path: re.findall(r"pip3? install[^\n]*", text) for path, text in sources.items()}
    assert {path: found for path, found in commands.items() if "synkhronos" in "".join(found)} == {}
    assert sum(map(len, commands.values())) > 9
    assert all("synkhronos" not in library.command for library in requirements.LIBRARIES.values())


def test_commands_install_what_the_extras_do():
    """Versions in commands equal those in the extras; both exist, because users have no pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text()
    extras = {name: text.split(f"\n{name} = [", 1)[1].split("]\n", 1)[0] for name in ("theano", "pytensor")}
    wanted = {name: set(re.findall(r"'([^';]+);", extra)) for name, extra in extras.items()}
    old = {"numpy<1.22", "numpy<1.24"}
    for name, packages in wanted.items():
        given = set(re.findall(r'"([^"]+)"', requirements.LIBRARIES[name].packages.replace("{old_numpy}", "1.24")))
        assert given | old == packages | old and given & old == ({"numpy<1.24"} if name == "theano" else set())
    assert old <= wanted["theano"] and not old & wanted["pytensor"]
