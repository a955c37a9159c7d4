"""The wheel contains every subpackage, the metadata is correct, and importing the package is cheap."""

import email
import importlib.util
import os
import re
import runpy
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from refusals import reports

import synkhronos

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.mark.thorough
def test_wheel_holds_every_module(tmp_path):
    # The build uses a copy, so that no old build folder can supply missing files.
    source = tmp_path / "source"
    source.mkdir()
    modules = sorted(path.relative_to(ROOT) for path in (ROOT / "synkhronos").rglob("*.py"))
    others = ["setup.py", "pyproject.toml", "README.md", "synkhronos/py.typed"]
    others += [f"synkhronos/kernels/{name}.c" for name in ("_kernels", "_meeting")]
    for name in others + modules:
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps", "--no-index"]
    command = pip + ["--no-build-isolation", "-w", str(tmp_path), str(source)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    assert done.returncode == 0, done.stdout
    (wheel,) = tmp_path.glob("synkhronos-*.whl")
    with zipfile.ZipFile(str(wheel)) as archive:
        inside = {name for name in archive.namelist() if name.endswith(".py")}
        (kernels,) = [name for name in archive.namelist() if name.startswith("synkhronos/kernels/_kernels.")]
        assert "synkhronos/py.typed" in archive.namelist()
        (metadata,) = [archive.read(name) for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    assert inside == {str(name) for name in modules}
    assert "synkhronos/engines/__init__.py" in inside
    version = email.message_from_bytes(metadata)
    assert version["Version"] == synkhronos.__version__ and "MIT" in (version["License-Expression"], version["License"])
    # One wheel for Python 3.11 and later, except free-threaded builds; its name and that of the kernels show this.
    one_for_all = sys.version_info >= (3, 11) and not sysconfig.get_config_var("Py_GIL_DISABLED")
    assert ("cp311-abi3" in wheel.name, kernels.endswith("_kernels.abi3.so")) == (one_for_all, one_for_all)


def test_one_version_everywhere():
    """The code, CHANGES.md and CITATION.cff have the same version, and pyproject.toml reads it from the code."""
    changes = re.search(r"^## (\S+)", (ROOT / "CHANGES.md").read_text(), re.MULTILINE).group(1)
    cited = re.search(r"^version: (\S+)", (ROOT / "CITATION.cff").read_text(), re.MULTILINE).group(1)
    assert changes == cited == synkhronos.__version__
    assert 'version = { attr = "synkhronos.__version__" }' in (ROOT / "pyproject.toml").read_text()


@pytest.fixture(scope="module")
def packages():
    """Return tools/packages.py as a module."""
    spec = importlib.util.spec_from_file_location("packages", str(ROOT / "tools" / "packages.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_oldest_versions_are_the_lower_bounds(packages, tmp_path):
    with zipfile.ZipFile(str(tmp_path / "a.whl"), "w") as archive:
        archive.writestr(
            "a-1.dist-info/METADATA",
            "Name: a\nRequires-Dist: b>=1.2; python_version < '3.11'\nRequires-Dist: c>=3\n"
            "Requires-Dist: d>=4; extra == 'e'\n",
        )
    assert packages.oldest(tmp_path / "a.whl") == "b==1.2; python_version < '3.11'\nc==3\n"


def test_every_requirement_has_a_lower_bound():
    text = (ROOT / "pyproject.toml").read_text()
    (block,) = re.findall(r"^dependencies = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
    needed = re.findall(r"""["'](\w+)([^"']*)["'],""", re.sub(r'"3\.\d+"', "", block))
    assert {name for name, _ in needed} == {"numpy", "posix_ipc", "threadpoolctl", "cloudpickle"}
    assert [name for name, bound in needed if not bound.startswith(">=")] == []


def test_what_fails_is_said(packages, tmp_path):
    """Errors contain the output of a failed command or program."""
    assert packages.call(sys.executable, "-c", "import os; print(os.getcwd())", folder=tmp_path) == f"{tmp_path}\n"
    with reports(SystemExit, "ZeroDivisionError"):
        packages.call(sys.executable, "-c", "1 / 0", folder=tmp_path)
    (tmp_path / "program.py").write_text("")
    packages.program = lambda: ("print('5 ranks')", "2 ranks")
    with reports(SystemExit, "README", "2 ranks", "5 ranks"):
        packages.use(tmp_path, sys.executable)


def test_program_of_readme_is_found(packages):
    text, printed = runpy.run_path(packages.__file__)["program"]()
    assert "synk.fork(2)" in text and printed.startswith("2 ranks: [") and packages.ENGINE in text


def test_every_folder_of_modules_is_a_package():
    folders = {path.parent for path in (ROOT / "synkhronos").rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_import_loads_no_engine():
    program = "import sys, synkhronos; print([name for name in ('theano', 'lasagne', 'pygpu', 'pytensor', 'pymc') if name in sys.modules])"
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    assert subprocess.check_output([sys.executable, "-c", program], env=environment) == b"[]\n"
