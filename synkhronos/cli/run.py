"""Run any program as ``python`` itself would, but prepare Theano before its first line.

A program that imports Theano before Synkhronos fails on Python 3.11. Under ``python -m synkhronos program.py`` it
runs unchanged: its arguments, its ``__main__`` module, its exit status and its tracebacks are those of plain Python.
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
Run a program unchanged with Theano prepared (Python 3.11 and Lasagne 0.1 need that before Theano is imported),
report what the library can use on this machine and what is missing, or predict what more ranks would give a program
that was profiled ('./doctor' and './predict' are programs of that name)."""

CHECK_HELP = """\
compare the first calls of every function with the serial one, as fork(check=True) does; what differs is a
warning of the log, and a line at the end says how many were compared"""

PROFILE_HELP = """\
record what every rank does, as fork(profile=FOLDER) does; report.txt, report.html, timeline.json (for Perfetto)
and profile.json are written there when a session ends. The folder must not have a profile yet"""

#: What the first argument may name instead of a program.
COMMANDS = ("doctor", "predict")


def parser() -> ArgumentParser:
    """Return the parser of the options in front of a program."""
    made = ArgumentParser(prog="python -m synkhronos", usage=USAGE, description=DESCRIPTION, allow_abbrev=False)
    made.add_argument("--version", action="version", version=f"synkhronos {__version__}")
    made.add_argument("--check", action="store_true", help=CHECK_HELP)
    made.add_argument("--profile", metavar="FOLDER", help=PROFILE_HELP)
    return made


def main(arguments: List[str]) -> int:
    """Do what the command line asks for.

    Parameters
    ----------
    arguments : list of str
        What follows ``python -m synkhronos``.

    Returns
    -------
    int
        The exit status, unless the program chooses it by `SystemExit`, or the parser does.
    """
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
        os.environ["SYNK_CHECK"] = "1"  # not through the library's own modules, which import NumPy
        atexit.register(_tell_what_was_checked, os.getpid())
    if program[0] == "-m":
        sys.argv = ["-m", *program[2:]]  # as Python has it until the module is found
        _show_only_the_program(_run_as_main, program[1], True)
    else:
        sys.argv = program
        _show_only_the_program(_run_path, program[0])
    return 0


def _divided(arguments: List[str]) -> Tuple[List[str], List[str]]:
    """Return our options, and the program with its own arguments, ``-m`` included."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-") and arguments[at] != "-m":
        at += 2 if arguments[at] == "--profile" else 1
    return arguments[:at], arguments[at:]


def _fault_of(given: Namespace, program: List[str]) -> str:
    """Return what is wrong with a command line, before the program has begun; "" if nothing is."""
    if not program:
        return "a program is missing, or one of the commands " + ", ".join(COMMANDS)
    name, *rest = program
    if name in COMMANDS and (given.check or given.profile is not None):
        return f"{name}: --check and --profile are for programs ('./{name}' is a program of that name)"
    if name == "doctor" and rest:
        return f"doctor: expected no arguments, got {' '.join(rest)}"
    if name == "-m" and not rest:
        return "-m: expected PACKAGE.MODULE"
    if name not in ("-m", *COMMANDS) and not os.path.splitext(name)[1] and os.sep not in name:
        if not os.path.lexists(name):
            return f"there is no file {name!r} here, and no command of that name (commands: {', '.join(COMMANDS)})"
    return "" if given.profile is None else _fault_of_folder(given.profile)


def _run_command(name: str, *arguments: str) -> int:
    """Run a command; imported only here, since a program that is run starts with as few modules as possible."""
    if name == "predict":
        from synkhronos.cli import predict

        return predict.main(arguments)
    from synkhronos.cli import doctor
    from synkhronos.launchers.hosts.environment import place

    mine = place(os.environ)
    if mine is not None:
        from synkhronos.cli.hosts import report

        return report.main(mine)
    return doctor.main()


def _fault_of_folder(folder: str) -> str:
    """Return why a profile cannot be written there; "" if it can."""
    if not folder:
        return "--profile: expected a folder, got ''"
    from synkhronos.profiling.folder import Claim  # no NumPy, which the program may want to set up first

    try:
        Claim(folder, "--profile").give_up()
    except ValueError as error:
        return str(error)
    return ""


def _tell_what_was_checked(pid: int) -> None:
    """Print a line about all comparisons of this process; not in others that the program has forked."""
    if os.getpid() != pid:
        return
    program, checks = (sys.modules.get(f"synkhronos.{name}") for name in ("program.program", "functions.checks"))
    line = "no function of synkhronos was called after fork"
    if program is not None and checks is not None and program.PROGRAM.checked:
        line = checks.summary(program.PROGRAM.checked)
    print(f"synkhronos: {line}", file=sys.stderr)


def _run_path(program: str) -> None:
    """Run a script, or a folder or zip file with a ``__main__`` module."""
    # Python shows scripts their absolute path since 3.9, and joins it without tidying it.
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

    Python itself calls this very function of `runpy` for them. Its public counterparts differ: they run the code in
    a module of their own and remove it afterwards, with all objects that threads and atexit handlers still need.
    """
    _fresh_main(None)
    runpy._run_module_as_main(module, set_argv)  # type: ignore[attr-defined]


def _fresh_main(loader: Any) -> Dict[str, Any]:
    """Replace our module ``__main__`` by a new one and return its names, in Python's order."""
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    names = vars(module)
    names.update(__loader__=loader, __annotations__={}, __builtins__=builtins)
    return names


def _path_is_safe() -> bool:
    """Return whether Python was told (``-I``, ``-P``) not to put the program's folder on ``sys.path``."""
    return bool(sys.flags.isolated or getattr(sys.flags, "safe_path", False))


def _set_first_path(folder: str) -> None:
    """Put a folder in front of ``sys.path``, instead of the one that ``python -m synkhronos`` has put there."""
    sys.path[: 0 if _path_is_safe() else 1] = [folder]


def _show_only_the_program(run: Callable[..., None], *arguments: Any) -> None:
    """Call a function; if it raises, let Python report the error without the frames of this module.

    The exception goes on to the interpreter, which alone can turn a KeyboardInterrupt into the exit status that
    shells expect; until then ``sys.excepthook`` is one that drops the outer frames.
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
