"""`python -m synkhronos PROGRAM` has the same output, errors and exit status as `python PROGRAM`.

Modules: `synkhronos.__main__`.
"""

import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import synkhronos

pytestmark = pytest.mark.slow

ROOT = str(Path(__file__).parents[2])

# Each program is run as prog.py with two arguments, in a folder that contains FILES.
PROGRAMS = {
    "argv": "import sys; print(sys.argv, sys.path)",
    "names": '"""The doc."""\nprint(list(globals()), __name__, __file__, __doc__, __spec__, __package__, __cached__)',
    "builtins": "print(type(__builtins__), type(__loader__), __loader__.name, __loader__.path, __annotations__)",
    "main_module": "import sys; m = sys.modules['__main__']; print(vars(m) is globals(), m)",
    "pickle": """
        import pickle
        class Thing: pass
        def function(): return 1
        print(pickle.loads(pickle.dumps(Thing)) is Thing, pickle.loads(pickle.dumps(function))())""",
    "atexit": """
        import atexit
        class Thing:
            def __del__(self): print("deleted", len(data))
        data = [1, 2, 3]
        thing = Thing()
        atexit.register(lambda: print("at exit", thing is not None, data, function()))
        def function(): return sum(data)""",
    "thread_at_exit": """
        import threading, time
        data = [1]
        def late():
            while threading.main_thread().is_alive():
                time.sleep(0.001)
            print(data, threading.main_thread().is_alive())
        threading.Thread(target=late).start()""",
    "exit_0": "import sys; sys.exit(0)",
    "exit_3": "import sys; sys.exit(3)",
    "exit_none": "import sys; sys.exit()",
    "exit_text": "import sys; sys.exit('the reason')",
    "exit_object": "raise SystemExit([1, 2])",
    "exit_builtin": "exit(4)",
    "os_exit": "import os; os._exit(5)",
    "exit_in_atexit": "import atexit, sys; atexit.register(lambda: print('ran')); sys.exit(6)",
    "exception": """
        def f(): return 1 / 0
        f()""",
    "chained": """
        def f():
            try:
                {}["a"]
            except KeyError as error:
                raise ValueError("second") from error
        try:
            f()
        except ValueError:
            raise RuntimeError("third")""",
    "exception_in_import": "import broken",
    "syntax_error": "x = (1,\ny = 2\n",
    "indentation_error": "if True:\nprint(1)\n",
    "encoding": "# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))",
    "future": "from __future__ import annotations\nx: Nonexistent = 1\nprint(__annotations__)",
    "no_future": "x: Nonexistent = 1",
    "excepthook": """
        import sys, traceback
        def hook(kind, value, tb):
            print("hook", kind.__name__, value, [f.name for f in traceback.extract_tb(tb)], sys.excepthook is hook)
            print(sys.last_type.__name__, sys.last_value is value, sys.last_traceback is tb)
        sys.excepthook = hook
        raise ValueError("mine")""",
    "keyboard_interrupt": "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(10)",
    "killed": "import os, signal; print(1, flush=True); os.kill(os.getpid(), signal.SIGTERM)",
    "sibling": "import sibling; print(sibling.value, sibling.__file__)",
    "stdin": "import sys; print(sys.stdin.read())",
    "stderr_order": "import sys\nprint('a', flush=True); print('b', file=sys.stderr, flush=True); print('c')",
    "getsource": """
        import inspect
        def f(): return 1
        print(inspect.getsource(f))""",
    "spawned_child": """
        import multiprocessing, os, sys
        def f(x): return x + 1, __name__, sys.argv
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(f, [1]))""",
    "warning": "import warnings; warnings.warn('careful'); warnings.warn('old', DeprecationWarning)",
    "frames": "import sys; print(sys._getframe().f_code.co_filename, sys._getframe().f_code.co_name)",
    # The program must still be able to set what NumPy reads on import.
    "untouched_modules": "import sys; print('numpy' in sys.modules, 'theano' in sys.modules)",
}
FILES = {
    "sibling.py": "value = 5",
    "broken.py": "def f(): raise OSError('broken')\nf()",
    "package/__init__.py": "import sys; print('package', sys.argv)",
    "package/other.py": "value = 7",
    "package/module.py": """from .other import value
import sys
print(value, sys.argv, sys.path[0], __name__, __package__, __spec__, __file__, list(globals()))
if sys.argv[1:] == ["fail"]:
    from . import missing
""",
    "package/__main__.py": "import sys; print('main of package', sys.argv); raise SystemExit(9)",
    "folder/__main__.py": """import sys, beside
print(sys.argv, sys.path[0], __file__, __spec__, __package__)
1 / beside.zero
""",
    "folder/beside.py": "zero = 0",
    "empty/readme": "",
    "unreadable.py": "print(1)",
}
COMMANDS = {
    "module": ["-m", "package.module", "a"],
    "failing_module": ["-m", "package.module", "fail"],
    "package": ["-m", "package", "a", "b"],
    "top_level_module": ["-m", "sibling"],
    "standard_module": ["-m", "json.tool", "--help"],
    "no_such_module": ["-m", "package.missing"],
    "no_such_package": ["-m", "missing.module"],
    "not_a_package": ["-m", "sibling.module"],
    "broken_module": ["-m", "broken"],
    "no_such_file": ["missing.py"],
    "relative_path": ["./folder/../sibling.py"],
    "link": ["folder/link.py"],
    "folder": ["folder", "a"],
    "folder_slash": ["folder/", "a"],
    "zip": ["folder.zip", "a"],
    "folder_without_main": ["empty"],
    "compiled": ["compiled.pyc", "a"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with FILES, a zip file, a link and a compiled program."""
    folder = tmp_path_factory.mktemp("programs")
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    with zipfile.ZipFile(str(folder / "folder.zip"), "w") as archive:
        archive.write(str(folder / "folder/__main__.py"), "__main__.py")
        archive.write(str(folder / "folder/beside.py"), "beside.py")
    (folder / "folder/link.py").symlink_to("../sibling.py")
    code = "import py_compile; py_compile.compile('sibling.py', 'compiled.pyc')"
    subprocess.run([sys.executable, "-c", code], cwd=str(folder), check=True)
    return folder


def run(folder, prefix, command, options=()):
    """Run a Python command line in the folder; return (stdout, stderr, status) without addresses of objects."""
    environment = dict(os.environ, PYTHONPATH=ROOT, PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run(
        [sys.executable, *options, *prefix, *command],
        cwd=str(folder),
        env=environment,
        input=b"from stdin",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    out, err = (re.sub(r"0x[0-9a-f]+", "0x", text.decode()) for text in (done.stdout, done.stderr))
    return out, err, done.returncode


def dedent(text):
    return re.sub(r"(?m)^        ", "", text)


def same_as_python(folder, command, options=()):
    """Run a command line with and without synkhronos, compare the results, and return them."""
    plain = run(folder, [], command, options)
    ours = run(folder, ["-m", "synkhronos"], command, options)
    assert ours == plain
    return plain


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_runs_as_under_python(folder, name):
    (folder / "prog.py").write_bytes(dedent(PROGRAMS[name]).encode("latin-1"))
    out, err, status = same_as_python(folder, ["prog.py", "one", "--two"])
    assert out or err or status or name.startswith("exit_"), "the program shows nothing, so nothing was compared"


@pytest.mark.parametrize("name", COMMANDS)
def test_command_line_runs_as_under_python(folder, name):
    out, err, status = same_as_python(folder, COMMANDS[name])
    assert out or err or status or name in ("top_level_module", "relative_path", "link", "compiled")


@pytest.mark.parametrize("option", ["-O", "-Werror", "-I"])
def test_options_of_python_hold(folder, option):
    (folder / "prog.py").write_text("import sys\nprint(sys.path, sys.flags, __debug__)")
    if option == "-I":  # ignores PYTHONPATH, so the library must be installed
        program = f"import sys; sys.path.append({ROOT!r}); from synkhronos.cli.run import main; main(['prog.py'])"
        ours = run(folder, ["-c", program], [], ["-I"])[0]
        assert ours.replace(f", {ROOT!r}", "") == run(folder, [], ["prog.py"], ["-I"])[0]
    else:
        same_as_python(folder, ["prog.py"], [option])


@pytest.mark.skipif(not os.getuid(), reason="root may read everything")
def test_unreadable_file(folder):
    (folder / "unreadable.py").chmod(0)
    assert same_as_python(folder, ["unreadable.py"])[2] == 2


def test_traceback_shows_the_program_only(folder):
    (folder / "prog.py").write_text("1 / 0")
    out, err, status = run(folder, ["-m", "synkhronos"], ["prog.py"])
    assert re.findall(r'File "(.*?)", line', err) == [str(folder / "prog.py")] or sys.version_info < (3, 9)
    assert "ZeroDivisionError" in err and "runner.py" not in err and status == 1


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help(folder, option):
    out, err, status = run(folder, ["-m", "synkhronos"], [option])
    assert out.startswith("usage: python -m synkhronos [--check] [--profile FOLDER] PROGRAM.py") and not err
    assert status == 0 and all(name in out for name in ("doctor", "predict", "--version", "-m PACKAGE.MODULE"))


def test_version(folder):
    out, err, status = run(folder, ["-m", "synkhronos"], ["--version"])
    assert (out, err, status) == (f"synkhronos {synkhronos.__version__}\n", "", 0)


@pytest.mark.parametrize(
    "arguments, named",
    [
        ([], "expected a program or one of the commands doctor, predict"),
        (["-m"], "-m: expected PACKAGE.MODULE"),
        (["-c", "1"], "-c"),
        (["--chek", "sibling.py"], "--chek"),
        (["--check", "--profil=x", "sibling.py"], "--profil=x"),
        (["--profile"], "--profile"),
        (["--profile", "-m", "sibling"], "--profile"),
        (["--profile", "", "sibling.py"], "--profile: expected a folder, got ''"),
        (["--profile", "sibling.py", "sibling.py"], "'sibling.py', which is a file"),
        (["doctr"], "there is no file 'doctr' here, and no command of that name (commands: doctor, predict)"),
        (["--check", "doctor"], "doctor: --check and --profile are for programs"),
        (["--profile", "x", "predict", "y"], "predict: --check and --profile are for programs"),
        (["doctor", "now", "please"], "doctor: expected no arguments, got now please"),
    ],
)
def test_what_is_wrong_with_a_command_line_is_named(folder, arguments, named):
    out, err, status = run(folder, ["-m", "synkhronos"], arguments)
    assert status == 2 and not out and err.startswith("usage: python -m synkhronos")
    assert named in err.splitlines()[-1] and "Traceback" not in err


@pytest.mark.parametrize("prefix", [[], ["--check"], ["--profile", "made"]])
def test_arguments_after_the_program_are_its_own(folder, prefix):
    arguments = ["--check", "-h", "--version", "-m", "x", "--", "--profile", "-1"]
    (folder / "prog.py").write_text("import sys; print(sys.argv[1:])")
    out, err, status = run(folder, ["-m", "synkhronos"], [*prefix, "prog.py", *arguments])
    assert (out, status) == (f"{arguments}\n", 0), err
    (folder / "argv_of_module.py").write_text("import sys; print(sys.argv[1:])")
    assert run(folder, ["-m", "synkhronos"], [*prefix, "-m", "argv_of_module", *arguments])[0] == out


def in_deleted_folder(folder, *command):
    """Run a Python command line in a folder that is deleted before Python starts."""
    gone = folder / "gone"
    gone.mkdir()
    shell = 'rmdir "$PWD" && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", shell, "sh", sys.executable, *command],
        cwd=str(gone),
        env=dict(os.environ, PYTHONPATH=ROOT),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        timeout=60,
    )
    return done.stdout, re.sub("0x[0-9a-f]+", "0x", done.stderr), done.returncode


def test_program_in_a_deleted_folder(folder):
    (folder / "prog.py").write_text("import sys, synkhronos as synk; print(sys.argv, sys.path[0], synk.fork(2))")
    program = str(folder / "prog.py")
    plain = in_deleted_folder(folder, program, "a")
    assert plain[0] and in_deleted_folder(folder, "-m", "synkhronos", program, "a") == plain


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["prog.py"], "can't open file 'prog.py': [Errno 2] No such file or directory"),
        (["--profile", "x", "prog.py"], "--profile: expected a writable folder"),
    ],
)
def test_relative_paths_in_a_deleted_folder_are_named(folder, arguments, said):
    out, err, status = in_deleted_folder(folder, "-m", "synkhronos", *arguments)
    assert said in err and status == 2 and "Traceback" not in err


@pytest.mark.theano
@pytest.mark.parametrize("first", ["theano", "lasagne"])
def test_program_that_imports_theano_first(folder, first):
    if not importlib.util.find_spec(first):
        pytest.skip(f"{first} is not installed")
    (folder / "prog.py").write_text(f"import {first}\nimport theano.tensor as T\nprint((T.scalar() + 1).type)")
    out, err, status = run(folder, ["-m", "synkhronos"], ["prog.py"])
    assert (out, status) == ("TensorType(float64, scalar)\n", 0), err


@pytest.mark.pytensor
def test_program_of_pytensor_does_not_import_theano(folder):
    program = (
        "import sys, pytensor.tensor as pt, synkhronos\nprint((pt.dscalar() + 1).type.dtype, 'theano' in sys.modules)"
    )
    (folder / "prog.py").write_text(program)
    out, err, status = run(folder, ["-m", "synkhronos"], ["prog.py"])
    assert (out, status) == ("float64 False\n", 0), err


@pytest.mark.parametrize(
    "environ, hosts",
    [({}, False), ({"PMI_RANK": "1", "PMI_SIZE": "3"}, True), ({"PMI_RANK": "0", "PMI_SIZE": "1"}, False)],
)
def test_doctor_under_mpirun_is_that_of_hosts(monkeypatch, environ, hosts):
    from synkhronos.cli import doctor, run
    from synkhronos.cli.hosts import report

    monkeypatch.setattr(run.os, "environ", environ)
    monkeypatch.setattr(doctor, "main", lambda: 5)
    monkeypatch.setattr(report, "main", lambda place: 10 + place.process)
    assert run.main(["doctor"]) == (11 if hosts else 5)
