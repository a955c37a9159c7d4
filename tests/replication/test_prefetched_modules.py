"""Programs work as usual whether or not their ranks can load compiled modules while the master compiles."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("theano")

pytestmark = pytest.mark.thorough

ROOT = str(Path(__file__).parents[2])

PROGRAM = """
    import os, signal, sys, time
    import synkhronos as synk
    import numpy as np, theano, theano.tensor as T
    from synkhronos.engines.theano.engine import TheanoEngine

    if not theano.config.cxx:
        sys.exit("no compiler")
    load = TheanoEngine.preload
    {before}
    synk.fork(2, use_gpu=False)
    x, w = T.dvector("x"), theano.shared(np.zeros(()), "w")
    f = synk.function([x], (x * 2).sum(), updates=[(w, w + x.mean())], exact=True)
    {between}
    assert float(f([1.0, 2.0, 6.0])) == 18 and float(w.get_value()) == 3
    {after}
    synk.close()
"""
NOTED = """
    def preload(self, file):
        load(self, file)
        print("loaded", flush=True)
        open("begun", "w").close()
    TheanoEngine.preload = preload
"""
FAILING = """
    def preload(self, file):
        print("tried", flush=True)
        open("begun", "w").close()
        raise MemoryError
    TheanoEngine.preload = preload
"""
SLOW = """
    def preload(self, file):
        open("begun", "w").close()
        time.sleep(1)
        load(self, file)
        print("slowly", flush=True)
    TheanoEngine.preload = preload
"""
DEADLY = """
    TheanoEngine.preload = lambda self, file: (open("begun", "w").close(), os.kill(os.getpid(), signal.SIGKILL))
"""
UNTIL_BEGUN = """
    while not os.path.exists("begun"):
        time.sleep(0.01)
"""
DEATH = (
    UNTIL_BEGUN
    + """
    try:
        f([1.0, 2.0])
    except synk.errors.WorkerDied as error:
        assert "SIGKILL" in str(error), error
        print("told")
        sys.exit()
"""
)
COMMANDS = (
    UNTIL_BEGUN
    + """
    for _ in range(10):
        synk.broadcast(w)
        time.sleep(0.02)
    g = synk.function([x], x.max())
"""
)


@pytest.mark.long(but="failing")
@pytest.mark.parametrize(
    "before, between, word",
    [
        pytest.param(NOTED, UNTIL_BEGUN, "loaded", id="in time"),
        pytest.param(FAILING, UNTIL_BEGUN, "tried", id="failing"),
        pytest.param(SLOW, COMMANDS, "slowly", id="commands meanwhile"),
        pytest.param(DEADLY, DEATH, "told", id="killed"),
    ],
)
def test_whatever_becomes_of_it(tmp_path, before, between, word):
    after = "assert float(g([1.0, 5.0])) == 5" if between is COMMANDS else ""
    text = PROGRAM.format(
        before=textwrap.indent(textwrap.dedent(before), "    ").strip(),
        between=textwrap.indent(textwrap.dedent(between), "    ").strip(),
        after=after,
    )
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        cwd=str(tmp_path),
        universal_newlines=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=100,
        env=dict(os.environ, PYTHONPATH=ROOT),
    )
    if "no compiler" in done.stderr:
        pytest.skip("Theano has no C++ compiler")
    assert done.returncode == 0, done.stderr
    assert word in done.stdout
