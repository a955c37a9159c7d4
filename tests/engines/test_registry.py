"""Engines are found by name, in this process and in others.

Modules: `before_import`.
"""

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import refuses

from synkhronos import engines
from synkhronos.engines import requirements

ROOT = Path(__file__).parents[2]


def run(program, *args):
    """Run a Python program in a separate process, and return its output."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    done = subprocess.run(
        [sys.executable, *args] if program is None else [sys.executable, "-c", program, *args],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_engine_pickles_by_reference(language):
    assert pickle.loads(pickle.dumps(language.engine)) is language.engine


@pytest.mark.slow
def test_a_process_that_has_not_imported_the_engine_finds_it(numpy_master):
    data = pickle.dumps(numpy_master.engine)
    assert len(data) < 200
    program = (
        "import pickle, sys; from synkhronos import engines; assert 'numpy' not in engines.KNOWN\n"
        "engine = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "print(engine is engines.get('numpy'), engine is sys.modules['synkhronos.testing.numpy_engine'].ENGINE)"
    )
    assert run(program, data.hex()).split() == ["True", "True"]


def test_an_unknown_engine_is_refused():
    with refuses(ValueError, "engine", expected="one of numpy, pytensor, theano", got="'jax'"):
        engines.get("jax")


@pytest.mark.slow
@pytest.mark.parametrize("name", engines.LIBRARIES)
def test_the_default_is_the_library_that_the_program_has_imported(name):
    if not engines.is_installed(name):
        pytest.skip(f"{name} is not installed")
    program = f"import {name}; from synkhronos import engines; print(engines.default().name)"
    assert run(program).split() == [name]


@pytest.mark.slow
def test_without_an_import_the_default_is_what_is_installed():
    installed = [name for name in engines.LIBRARIES if engines.is_installed(name)]
    program = (
        "import sys; from synkhronos import engines\n"
        "installed = [name for name in engines.LIBRARIES if engines.is_installed(name)]\n"
        "print(any(name in sys.modules for name in engines.LIBRARIES))\n"
        "print(engines.default().name if installed else 'none')"
    )
    assert run(program).split() == ["False", (installed or ["none"])[0]]


@pytest.mark.parametrize("name", engines.LIBRARIES)
def test_a_library_that_is_not_installed_is_refused(name):
    if engines.is_installed(name):
        pytest.skip(f"{name} is installed")
    with refuses(ValueError, "engine", expected="installed", got=name, hint=requirements.LIBRARIES[name].refusal()):
        engines.get(name)


@pytest.mark.parametrize("name, n_tests", [("theano", 6), ("pytensor", 4)])
def test_the_table_of_repairs_names_tests_that_exist(name, n_tests):
    folder = ROOT / "synkhronos" / "engines" / name
    named = set(re.findall(r"\btest_\w+", (folder / "pickling_repairs.py").read_text()))
    text = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    assert len(named) >= n_tests and [name for name in named if f"def {name}(" not in text] == []


REPLACED = """
import sys
import numpy as np, theano, theano.tensor as T
import synkhronos as synk

if __name__ == "__main__":
    {replacement}
    assert synk.fork({n}) == {n}
    x, w = T.dvector("x"), theano.shared(np.zeros(()), "w")
    f = theano.function([x], x.mean(), updates=[(w, w + x.sum())], mode="FAST_COMPILE")
    assert type(f) is synk.Function
    assert f([1.0, 2.0, 6.0]) == 3
    synk.all_reduce(w, op="sum")
    print(w.get_value(), f([1.0, 3.0, 5.0, 7.0], num_slices=2), f.copy()([4.0, 8.0]))
    synk.close()
"""


@pytest.mark.thorough("compile")
@pytest.mark.theano
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    "replacement",
    ["theano.function = synk.function", "theano.function = theano.compile.function = synk.function"],
    ids=["theano", "compile"],
)
def test_programs_may_put_our_function_in_the_place_of_theanos(n, replacement, tmp_path):
    """Programs may switch to data parallelism by one line at the top that replaces ``theano.function``."""
    script = tmp_path / "program.py"
    script.write_text(REPLACED.format(n=n, replacement=replacement))
    assert run(None, str(script)).split() == ["9.0", "4.0", "6.0"]


@pytest.mark.parametrize("name", engines.LIBRARIES)
def test_a_folder_of_that_name_is_no_library(tmp_path, monkeypatch, name):
    """A folder with an engine's name, such as a compile directory, does not count as the engine."""
    is_installed = engines.is_installed(name)
    (tmp_path / name).mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path] if is_installed else [str(tmp_path)])
    assert engines.is_installed(name) == is_installed
