"""C modules that one process compiles and another one loads, in separate processes."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("theano")

pytestmark = pytest.mark.thorough

ROOT = str(Path(__file__).parents[3])

#: Program that forks before it compiles. The child prints its function's result, the number of listed modules that it
#: had imported before, and the number of modules that it compiled itself.
PROGRAM = """
    import os, pickle, sys
    import synkhronos
    import numpy as np, theano, theano.tensor as T
    from theano.gof import cmodule
    from synkhronos.engines.theano.engine import ENGINE
    from synkhronos.engines.theano import modules

    if not theano.config.cxx:
        sys.exit("no compiler")
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(writer)
        with os.fdopen(reader, "rb") as file:
            files, data = pickle.load(file)
        for each in files:
            ENGINE.preload(each)
        imported = sum(".".join(each.split("/")[-2:])[:-3] in sys.modules for each in files)
        (f,) = ENGINE.loads(data, {{}}, None)
        print(f(2.0, 3).tolist(), imported, cmodule._module_cache.stats[2], flush=True)
        os._exit(0)
    os.close(reader)
    files = []
    ENGINE.watch_modules(files.append)
    x, n = T.dscalar("x"), T.lscalar("n")
    f = theano.function([x, n], T.alloc(x, n, 1, 1), mode=theano.Mode("c", None))
    assert files and set(files) == set(cmodule._module_cache.module_from_name)
    again = []
    ENGINE.watch_modules(again.append)
    assert set(again) == set(files)
    ENGINE.watch_modules(None)
    theano.function([x, n], T.alloc(x, n, 1, 1, 1), mode=theano.Mode("c", None))
    assert set(again) == set(files) < set(cmodule._module_cache.module_from_name)
    {then}
    with os.fdopen(writer, "wb") as file:
        pickle.dump((files, ENGINE.dumps([f], {{}}, {{}}, {{}})), file)
    os.wait()
"""


def run(tmp_path, then):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM).format(then=then)],
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
    value, imported, compiled = done.stdout.rsplit(" ", 2)
    assert value == "[[[2.0]], [[2.0]], [[2.0]]]"
    return int(imported), int(compiled)


def test_what_the_cache_does_not_give_is_loaded(tmp_path):
    assert run(tmp_path, "assert modules.unshared(); files = []") == (0, 0)


def test_what_is_told_is_loaded_before_it_is_needed(tmp_path):
    imported, compiled = run(tmp_path, "")
    assert imported > 0 and compiled == 0


@pytest.mark.parametrize(
    "then",
    [
        pytest.param("[os.remove(file) for file in modules.unshared().values()]", id="deleted"),
        pytest.param("modules.unshared = dict", id="not told"),
    ],
)
def test_what_cannot_be_loaded_is_compiled(tmp_path, then):
    imported, compiled = run(tmp_path, then + "; files = []")
    assert imported == 0 and compiled > 0
