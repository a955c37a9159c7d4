"""Programs in separate processes, started by ``python -m synkhronos``."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEMOS = ROOT / "demos"


def run(program, *arguments, **environment):
    """Run a file; return the finished process."""
    environment = {**os.environ, **environment}
    environment.pop("SYNK_MNIST_DIR", None)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "synkhronos", str(program), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        env=environment,
        timeout=250,
    )


def run_text(folder, text, *arguments, mode="FAST_COMPILE", flags=""):
    """Run a Theano program; return its output. (FAST_COMPILE needs no C compiler.)"""
    (folder / "program.py").write_text(textwrap.dedent(text))
    flags = ",".join(filter(None, [os.environ.get("THEANO_FLAGS"), "mode=" + mode, flags]))
    done = subprocess.run(
        [sys.executable, "-m", "synkhronos", "program.py", *arguments],
        cwd=str(folder),
        universal_newlines=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=110,
        env=dict(os.environ, PYTHONPATH=str(ROOT), THEANO_FLAGS=flags),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
