"""The wheel holds every subpackage, and importing the package is cheap."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_wheel_holds_every_module(tmp_path):
    # A copy is built, so that no build folder of earlier days can contribute what is missing.
    source = tmp_path / "source"
    source.mkdir()
    modules = sorted(path.relative_to(ROOT) for path in (ROOT / "synkhronos").rglob("*.py"))
    for name in ["setup.py", "pyproject.toml", "synkhronos/kernels/_kernels.c"] + modules:
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
        assert [name for name in archive.namelist() if name.startswith("synkhronos/kernels/_kernels.")]  # compiled
    assert inside == {str(name) for name in modules}
    assert "synkhronos/engines/__init__.py" in inside


def test_every_folder_of_modules_is_a_package():
    folders = {path.parent for path in (ROOT / "synkhronos").rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_import_loads_no_engine():
    program = "import sys, synkhronos; print([name for name in ('theano', 'lasagne', 'pygpu', 'pytensor', 'pymc') if name in sys.modules])"
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    assert subprocess.check_output([sys.executable, "-c", program], env=environment) == b"[]\n"
