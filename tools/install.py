"""Make .venv and install the library with all it needs into it; quick when that was done before.

Run by ``make install`` with whatever ``python3`` is, so this file keeps to the standard library and to what
Python 3.6 understands. If the system lacks something, one sentence says so, with the package to install.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig

OLDEST, NEWEST = (3, 8), (3, 11)
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
LOG = os.path.join(VENV, "install.log")
STAMP = os.path.join(VENV, "installed")
# What an installation depends on: when one of them changes, it is done again.
SOURCES = (
    "setup.py",
    "pyproject.toml",
    os.path.join("tools", "install.py"),
    os.path.join("synkhronos", "kernels", "_kernels.c"),
)
EXTRAS = "theano,demos,test,docs"
# Theano and Lasagne are old source packages. Build isolation would build them with the newest setuptools of the day,
# so it is switched off and one that they are known to work with is installed first. pip 21.3 is the first with
# editable installs of packages that have a pyproject.toml.
BUILD_TOOLS = ["pip>=21.3", "setuptools>=64,<81", "wheel"]


class Problem(Exception):
    """Something the user has to do first, as one sentence."""


def supported(version):
    """Return whether Theano 1.0.5 runs on this version of Python, a tuple of numbers."""
    return OLDEST <= tuple(version[:2]) <= NEWEST


def dotted(version):
    """Return the version as text: ``(3, 11)`` is "3.11"."""
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


def another_python():
    """Return the newest supported interpreter on PATH, or None."""
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        path = shutil.which(f"python3.{minor}")
        if path and supported(version_of(path) or (0, 0)):
            return path
    return None


def check_system(version):
    """Raise `Problem` for what of the system is missing, for an interpreter of this version that runs this file."""
    name = "python" + dotted(version[:2])
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        raise Problem(
            f"{name} cannot make virtual environments (venv or ensurepip is missing): install them, on "
            "Debian or Ubuntu by "
            f"'apt-get install {name}-venv'"
        ) from None
    if not shutil.which("g++"):
        raise Problem(
            "no C++ compiler (g++) was found, which Theano needs: install it, on Debian or Ubuntu by "
            "'apt-get install g++'"
        )
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        raise Problem(
            f"the C headers of {name} (Python.h) were not found, which Theano needs: install them, on Debian "
            "or Ubuntu by "
            f"'apt-get install {name}-dev'"
        )


def venv_python():
    """Return the interpreter of .venv."""
    return os.path.join(VENV, "bin", "python")


def has_pip():
    """Return whether pip works in .venv: it does not if making .venv was interrupted."""
    return (
        subprocess.call([venv_python(), "-m", "pip", "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        == 0
    )


def fingerprint(version):
    """Return a text that changes with all that an installation depends on: sources, place and version of Python."""
    digest = hashlib.sha256(repr((VENV, tuple(version))).encode())
    for name in SOURCES:
        with open(os.path.join(ROOT, name), "rb") as stream:
            digest.update(stream.read())
    return digest.hexdigest()


def installed():
    """Return the fingerprint of the last installation that was finished, or None."""
    try:
        with open(STAMP) as stream:
            return stream.read()
    except OSError:
        return None


def say(text):
    """Print what is done next, at once."""
    print(text)
    sys.stdout.flush()


def run(command, problem):
    """Run a command with its output in the log; raise `Problem` with what it complained about if it fails."""
    with open(LOG, "a") as log:
        log.write("$ {}\n".format(" ".join(command)))
        log.flush()
        begin = log.tell()
        status = subprocess.call(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    if status:
        with open(LOG, errors="replace") as log:
            log.seek(begin)
            lines = log.read().splitlines()
        errors = [line for line in lines if re.match(r"\s*(ERROR|error)\b", line)] or lines[-1:]
        raise Problem("{} (all of its output is in {}):\n  {}".format(problem, LOG, "\n  ".join(errors[:3])))


def install(version):
    """Make .venv if there is no working one of this version, and install into it."""
    python = venv_python()
    if version_of(python) != version or not has_pip():
        say(f"Making .venv with Python {dotted(version)}")
        if os.path.isdir(VENV):
            shutil.rmtree(VENV)
        os.makedirs(VENV)
        run([sys.executable, "-m", "venv", VENV], "the virtual environment could not be made")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    say("Installing pip and what it builds with")
    run(pip + BUILD_TOOLS, "pip could not install its build tools")
    say("Installing Theano, Lasagne and the rest: a few minutes the first time")
    run(pip + ["--no-build-isolation", "-e", f".[{EXTRAS}]"], "pip could not install what the library needs")
    with open(STAMP, "w") as stream:
        stream.write(fingerprint(version))


def main(arguments=None):
    """Install, or say what is missing; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--or-another",
        action="store_true",
        help="keep the Python of an existing .venv; if this Python is not supported take another one on PATH",
    )
    options = parser.parse_args(arguments)
    version = tuple(sys.version_info[:3])
    try:
        if options.or_another:
            present = version_of(venv_python())
            if present and installed() == fingerprint(present):
                return 0
            other = venv_python() if present and has_pip() else None if supported(version) else another_python()
            if other:
                return subprocess.call([other, os.path.abspath(__file__)])
        if not supported(version):
            raise Problem(
                "Python {} is too {}: Theano runs on Python {} to {}; install one of them, on Debian or Ubuntu by for "
                "example 'apt-get install python3.11 python3.11-venv python3.11-dev', and name it: "
                "'make install PYTHON=python3.11'".format(
                    dotted(version), "old" if version[:2] < OLDEST else "new", dotted(OLDEST), dotted(NEWEST)
                )
            )
        if version_of(venv_python()) == version and installed() == fingerprint(version):
            return 0
        check_system(version)
        install(version)
    except Problem as problem:
        sys.stderr.write(f"make install: {problem}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("make install: interrupted; the next run goes on from here\n")
        return 130
    print("Installed. Next: 'make demo', 'make quick', 'make test', or '.venv/bin/python -m synkhronos doctor'")
    return 0


if __name__ == "__main__":
    sys.exit(main())
