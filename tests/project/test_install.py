"""What `make install` says where something of the system is missing, and when it does its work anew."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "install.py"


@pytest.fixture
def install(tmp_path):
    """The script as a module that works in a folder of its own."""
    spec = importlib.util.spec_from_file_location("install", str(SCRIPT))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ROOT = str(tmp_path)
    module.VENV = str(tmp_path / ".venv")
    module.LOG, module.STAMP = str(tmp_path / ".venv/install.log"), str(tmp_path / ".venv/installed")
    (tmp_path / "tools").mkdir()
    (tmp_path / "synkhronos" / "kernels").mkdir(parents=True)
    for name in module.SOURCES:
        shutil.copy(str(ROOT / name), str(tmp_path / name))
    return module


def said(capsys):
    """Return what was said on stderr, which must be one sentence and no traceback."""
    text = capsys.readouterr().err
    assert text.startswith("make install: ") and text.count("\n") == 1
    return text


@pytest.mark.parametrize(
    "version, expected",
    [((2, 7), False), ((3, 6, 15), False), ((3, 7), False), ((3, 8), True), ((3, 11, 9), True), ((3, 12), False)],
)
def test_supported(install, version, expected):
    assert install.supported(version) == expected


@pytest.mark.parametrize("version, word", [((3, 6, 15), "too old"), ((3, 12, 1), "too new"), ((3, 13, 0), "too new")])
def test_python_that_is_not_supported(install, monkeypatch, capsys, version, word):
    monkeypatch.setattr(sys, "version_info", version)
    assert install.main([]) == 1
    text = said(capsys)
    assert install.dotted(version) in text and word in text and "apt-get install python3.11" in text


def test_another_python_is_taken(install, monkeypatch, tmp_path):
    fake_python(tmp_path / "bin/python3.10", "3 12 1")  # lies, as the shims of version managers may
    fake_python(tmp_path / "bin/python3.9", "3 9 18", f"touch {tmp_path / 'called'}; exit 7")
    fake_python(tmp_path / "bin/python3.11", "", "exit 127")
    fake_python(tmp_path / "bin/python3.8", "3 8 18")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    assert install.another_python() == str(tmp_path / "bin/python3.9")
    assert install.main(["--or-another"]) == 7
    assert (tmp_path / "called").exists()


def fake_python(path, version, otherwise="exit 0"):
    """Write an interpreter that tells its version when asked by `-c`, and else runs a line of shell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ask = f'echo "{version}"; exit 0' if version else "exit 127"
    path.write_text(f'#!/bin/sh\nif [ "$1" = -c ]; then {ask}; fi\n{otherwise}\n')
    path.chmod(0o755)


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_python_without_venv(install, monkeypatch, capsys, module):
    monkeypatch.setitem(sys.modules, module, None)
    assert install.main([]) == 1
    assert "apt-get install python{}.{}-venv".format(*sys.version_info) in said(capsys)


def test_no_compiler(install, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install.main([]) == 1
    assert "apt-get install g++" in said(capsys)


def test_no_headers(install, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(install.shutil, "which", lambda name: "/usr/bin/" + name)
    monkeypatch.setattr(install.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert install.main([]) == 1
    assert "apt-get install python{}.{}-dev".format(*sys.version_info) in said(capsys)


def test_pip_that_fails(install, monkeypatch, capsys, tmp_path):
    (tmp_path / ".venv").mkdir()
    command = [sys.executable, "-c", "print('ERROR: no such package'); print('WARNING: x'); raise SystemExit(1)"]
    monkeypatch.setattr(install, "check_system", lambda version: None)
    monkeypatch.setattr(install, "install", lambda version: install.run(command, "pip could not do it"))
    assert install.main([]) == 1
    text = capsys.readouterr().err
    assert text.startswith("make install: pip could not do it") and text.endswith(":\n  ERROR: no such package\n")
    assert "WARNING: x" in (tmp_path / ".venv/install.log").read_text()


@pytest.fixture
def counted(install, monkeypatch, tmp_path):
    """The script with a .venv of this Python, and an installation that is only counted."""
    monkeypatch.setattr(install, "check_system", lambda version: None)
    monkeypatch.setattr(install, "run", lambda command, problem: runs.append(command))
    runs = install.runs = []
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    return install


def test_second_run_does_nothing(counted, monkeypatch):
    assert counted.main([]) == 0 and len(counted.runs) == 2
    assert counted.main([]) == 0 and len(counted.runs) == 2
    monkeypatch.setattr(counted, "check_system", lambda version: pytest.fail("looked at the system"))
    assert counted.main(["--or-another"]) == 0 and len(counted.runs) == 2


@pytest.mark.parametrize("name", ["setup.py", "pyproject.toml", "tools/install.py", "synkhronos/kernels/_kernels.c"])
def test_changed_requirements_are_installed(counted, tmp_path, name):
    assert counted.main([]) == 0
    (tmp_path / name).write_text("# another")
    assert counted.main([]) == 0 and len(counted.runs) == 4


def test_other_python_makes_another_venv(counted, monkeypatch, tmp_path):
    assert counted.main([]) == 0
    fake_python(tmp_path / "python", "3 8 1")
    (tmp_path / ".venv/bin/python").unlink()
    (tmp_path / ".venv/bin/python").symlink_to(tmp_path / "python")
    (tmp_path / ".venv/left over").write_text("")
    del counted.runs[:]
    assert counted.main([]) == 0
    assert counted.runs[0][1:3] == ["-m", "venv"] and not (tmp_path / ".venv/left over").exists()


def test_venv_keeps_its_python(counted, tmp_path):
    """Without PYTHON=, a .venv made with another Python than python3 is kept and brought up to date by its own."""
    fake_python(tmp_path / "python", "3 9 18", f'echo "$@" >> {tmp_path / "called"}')
    (tmp_path / ".venv/bin/python").unlink()
    (tmp_path / ".venv/bin/python").symlink_to(tmp_path / "python")
    assert counted.main(["--or-another"]) == 0
    assert (tmp_path / "called").read_text().splitlines() == ["-m pip --version", str(SCRIPT)]


def test_make_without_python():
    make = shutil.which("make")
    if not make:
        pytest.skip("make is not installed")
    done = subprocess.run(
        [make, "install", "PYTHON=no-such-python"],
        cwd=str(ROOT),
        env={key: value for key, value in os.environ.items() if not key.startswith("MAKE")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
    )
    assert done.returncode != 0
    assert done.stderr.splitlines()[0].startswith("no-such-python was not found: install Python 3.8 to 3.11")
