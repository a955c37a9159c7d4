"""Run any program as plain ``python`` would, but prepare Theano before the program's first line.

A program that imports Theano before Synkhronos fails on Python 3.11. Under ``python -m synkhronos program.py`` it runs
unchanged, with the arguments, ``__main__`` module, exit status and tracebacks of plain Python.
"""

from __future__ import annotations

import atexit
import builtins
import io
import os
import pkgutil
import runpy
import sys
from argparse import ArgumentParser, Namespace
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from types import ModuleType, TracebackType
from typing import Any, Callable, Dict, List, Optional, Tuple, Type

from synkhronos import __version__, take_place
from synkhronos.engines.theano.import_fixes import prepare
from synkhronos.host.machine import working_directory

USAGE = """\
python -m synkhronos [--check] [--profile FOLDER] PROGRAM.py [ARGUMENT ...]
       python -m synkhronos [--check] [--profile FOLDER] -m PACKAGE.MODULE [ARGUMENT ...]
       python -m synkhronos doctor
       python -m synkhronos predict DIR [--help]
       python -m synkhronos --version"""

DESCRIPTION = """\
Run a program unchanged, after preparing Theano for Python 3.11 and Lasagne 0.1. 'doctor' reports which components
the library can use on this machine, and which are missing. 'predict' predicts the performance of a profiled program
on more ranks. To run a program with one of these names, write './doctor' or './predict'."""

CHECK_HELP = """\
compare the first calls to every function with the serial function, as fork(check=True) does; differences are
logged as warnings, and a line at the end counts the comparisons"""

PROFILE_HELP = """\
record what every rank does, as fork(profile=FOLDER) does; report.txt, report.html, timeline.json (for Perfetto)
and profile.json are written to FOLDER when a session ends. FOLDER must not contain a profile yet"""

COMMANDS = ("doctor", "predict")


def parser() -> ArgumentParser:
    """Return the parser for the options that precede the program."""
    made = ArgumentParser(prog="python -m synkhronos", usage=USAGE, description=DESCRIPTION, allow_abbrev=False)
    made.add_argument("--version", action="version", version=f"synkhronos {__version__}")
    made.add_argument("--check", action="store_true", help=CHECK_HELP)
    made.add_argument("--profile", metavar="FOLDER", help=PROFILE_HELP)
    return made


def main(arguments: List[str]) -> int:
    """Run ``python -m synkhronos`` with these arguments; return the exit status, or raise `SystemExit`."""
    options, program = _divided(arguments)
    known = parser()
    given = known.parse_args(options)
    fault = _fault_of(given, program)
    if fault:
        known.error(fault)
    if program[0] in COMMANDS:
        return _run_command(*program)
    prepare()
    take_place()
    if given.profile is not None:
        os.environ["SYNK_PROFILE"] = os.path.abspath(given.profile)
    if given.check:
        os.environ["SYNK_CHECK"] = "1"  # setting the option in the library would import NumPy
        atexit.register(_tell_what_was_checked, os.getpid())
    if program[0] == "-m":
        sys.argv = ["-m", *program[2:]]  # Python's own value until the module is found
        _show_only_the_program(_run_as_main, program[1], True)
    else:
        sys.argv = program
        _show_only_the_program(_run_path, program[0])
    return 0


def _divided(arguments: List[str]) -> Tuple[List[str], List[str]]:
    """Split arguments into Synkhronos options and the program with its arguments, including ``-m``."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-") and arguments[at] != "-m":
        at += 2 if arguments[at] == "--profile" else 1
    return arguments[:at], arguments[at:]


def _fault_of(given: Namespace, program: List[str]) -> str:
    """Return the error in the options or in the program's name; "" if there is none."""
    if not program:
        return "expected a program or one of the commands " + ", ".join(COMMANDS)
    name, *rest = program
    if name in COMMANDS and (given.check or given.profile is not None):
        return f"{name}: --check and --profile are for programs (run a program of that name as './{name}')"
    if name == "doctor" and rest:
        return f"doctor: expected no arguments, got {' '.join(rest)}"
    if name == "-m" and not rest:
        return "-m: expected PACKAGE.MODULE"
    if name not in ("-m", *COMMANDS) and not os.path.splitext(name)[1] and os.sep not in name:
        if not os.path.lexists(name):
            return f"there is no file {name!r} here, and no command of that name (commands: {', '.join(COMMANDS)})"
    return "" if given.profile is None else _fault_of_folder(given.profile)


def _run_command(name: str, *arguments: str) -> int:
    if name == "predict":
        from synkhronos.cli import predict

        return predict.main(arguments)
    from synkhronos.cli import doctor
    from synkhronos.cluster.environment import place

    mine = place(os.environ)
    if mine is not None:
        from synkhronos.cli.hosts import report

        return report.main(mine)
    return doctor.main()


def _fault_of_folder(folder: str) -> str:
    """Return the reason why a profile cannot be written to a folder; "" if it can."""
    if not folder:
        return "--profile: expected a folder, got ''"
    from synkhronos.profile.folder import Claim  # must not import NumPy: the program may configure it first

    try:
        Claim(folder, "--profile").give_up()
    except ValueError as error:
        return str(error)
    return ""


def _tell_what_was_checked(pid: int) -> None:
    """Print a summary of all comparisons, except in processes that the program has forked."""
    if os.getpid() != pid:
        return
    program, checks = (sys.modules.get(f"synkhronos.{name}") for name in ("program.program", "calls.first_calls"))
    line = "no synkhronos function was called after fork"
    if program is not None and checks is not None and program.PROGRAM.checked:
        line = checks.summary(program.PROGRAM.checked)
    print(f"synkhronos: {line}", file=sys.stderr)


def _run_path(program: str) -> None:
    # Since 3.9, Python makes a script's path absolute, but does not normalize it.
    path = os.path.join(working_directory(), program) if sys.version_info >= (3, 9) else program
    if pkgutil.get_importer(path) is not None:
        _set_first_path(path)
        _run_as_main("__main__", False)
        return
    try:
        with open(path, "rb") as stream:
            source = stream.read()
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: can't open file {path!r}: {reason}", file=sys.stderr)
        sys.exit(2)
    if not _path_is_safe():
        _set_first_path(os.path.dirname(os.path.realpath(path)))
    code = pkgutil.read_code(io.BytesIO(source))  # None if this is not a .pyc file
    loader = SourcelessFileLoader if code else SourceFileLoader
    names = _fresh_main(loader("__main__", path))
    names.update(__file__=path, __cached__=None)
    exec(code or compile(source, path, "exec", dont_inherit=True), names)


def _run_as_main(module: str, set_argv: bool) -> None:
    """Run a module by its name, as ``python -m`` and ``python folder`` do.

    Python itself calls ``runpy._run_module_as_main`` for both. The public functions of `runpy` use a temporary module,
    and clear its objects at the end, although threads and atexit handlers may still need them.
    """
    _fresh_main(None)
    runpy._run_module_as_main(module, set_argv)  # type: ignore[attr-defined]


def _fresh_main(loader: Any) -> Dict[str, Any]:
    """Replace the ``__main__`` module with a new module; return its namespace, with names in plain Python's order."""
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    names = vars(module)
    names.update(__loader__=loader, __annotations__={}, __builtins__=builtins)
    return names


def _path_is_safe() -> bool:
    """Return whether options (``-I``, ``-P``) keep the program's folder off ``sys.path``."""
    return bool(sys.flags.isolated or getattr(sys.flags, "safe_path", False))


def _set_first_path(folder: str) -> None:
    """Put a folder at the front of ``sys.path``, replacing the entry of ``python -m synkhronos`` if there is one."""
    sys.path[: 0 if _path_is_safe() else 1] = [folder]


def _show_only_the_program(run: Callable[..., None], *arguments: Any) -> None:
    """Call a function; if it raises, Python reports the error without the frames of this module.

    The exception must reach the interpreter, which turns a KeyboardInterrupt into the exit status that shells expect. A
    temporary ``sys.excepthook`` drops the outer frames.
    """
    try:
        run(*arguments)
    except SystemExit:
        raise
    except BaseException as error:
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
            traceback = traceback.tb_next
        hook_of_program = sys.excepthook

        def excepthook(kind: Type[BaseException], value: BaseException, _: Optional[TracebackType]) -> None:
            sys.excepthook = hook_of_program
            sys.last_traceback = traceback
            hook_of_program(kind, value.with_traceback(traceback), traceback)

        sys.excepthook = excepthook
        raise
