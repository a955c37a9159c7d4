"""Functions that JAX compiles, on ranks: they return NumPy arrays, and unsupported uses raise clear errors.

Each program runs in a separate process, since JAX cannot be forked once it runs. Expected values come from NumPy.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses

import synkhronos as synk

pytestmark = [pytest.mark.pytensor, pytest.mark.timeout(200)]
pytensor = pytest.importorskip("pytensor")
pt = pytest.importorskip("pytensor.tensor")
needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed: pip install jax")

HEAD = """
import numpy as np
import pytensor, pytensor.tensor as pt
import synkhronos as synk

def same(found, *expected):
    found = found if isinstance(found, list) else [found]
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert type(one) is np.ndarray, type(one)
        np.testing.assert_allclose(one, other, rtol=1e-12)

X = np.random.default_rng(0).normal(size=(11, 3))
Y = X.sum(1)
HALVES = [slice(0, 6), slice(6, 11)]
x, y, v = pt.dmatrix("x"), pt.dvector("y"), pt.dvector("v")
w = pytensor.shared(np.arange(3.0), "w")

if __name__ == "__main__":
"""

CALLS = """
    synk.fork({n}, use_gpu=False)
    f = synk.function([x], [x.sum(), x @ w, x.mean(0), x[:, 0].max()], mode="JAX")
    for slices in (1, 3):
        same(f(X, num_slices=slices), X.sum(), X @ np.arange(3.0), X.mean(0), X[:, 0].max())
    same(f(synk.data(X), batch=slice(2, 9)), X[2:9].sum(), X[2:9] @ np.arange(3.0), X[2:9].mean(0), X[2:9, 0].max())
    s = pytensor.shared(np.zeros((0, 3)), "s")
    g = synk.function([], s.sum(0), sliceable_shareds=[s], mode="JAX")
    synk.scatter(s, X)
    same(g(), X.sum(0))
    same(g(batch_s=[0, 1]), sum(part[:2].sum(0) for part in np.array_split(X, {n})))
"""

TRAINING = """
    synk.fork({n}, use_gpu=False)
    loss = ((x @ w - y) ** 2).mean()
    gradient = pytensor.grad(loss, w)
    train = synk.function([x, y], loss, updates=[(w, w - 0.1 * gradient)], mode="JAX")

    def after(w, X, Y):
        return w - 0.1 * 2 * X.T @ (X @ w - Y) / len(X)

    parts = [rows for rows in zip(np.array_split(X, {n}), np.array_split(Y, {n}))]
    expected = np.tile(np.arange(3.0), ({n}, 1))
    for slices in (1, 2):  # updates go through the collectives and are inputs of the next call
        same(train(X, Y, num_slices=slices), np.mean([(rows @ one - sums) ** 2
            for one, (X_r, Y_r) in zip(expected, parts) for rows, sums in zip(X_r, Y_r)]))
        expected = np.array([after(one, *part) for one, part in zip(expected, parts)])
        same(synk.gather(w, nd_up=1), expected)
        assert type(w.get_value(borrow=True)) is np.ndarray
        synk.all_reduce(w, op="avg")
        expected = np.tile(expected.mean(0), ({n}, 1))
        same(synk.gather(w, nd_up=1), expected)
    w.set_value(np.zeros(3))
    synk.broadcast(w)
    same(synk.gather(w, nd_up=1), np.zeros(({n}, 3)))
    train.steps(X, Y, batches=[slice(0, 11)] * 3)
    expected = np.zeros(({n}, 3))
    for _ in range(3):
        expected = np.array([after(one, *part) for one, part in zip(expected, parts)])
    same(synk.gather(w, nd_up=1), expected)
"""

VALUES = """
    import jax.numpy as jnp
    synk.fork(2, use_gpu=False)
    f = synk.function([v], v * 2, mode=pytensor.compile.mode.Mode("py", "fast_compile"))
    same(f(jnp.arange(5.0)), 2 * np.arange(5.0))
    same(f(synk.data(np.asarray(jnp.arange(5.0, dtype="float64")))), 2 * np.arange(5.0))
    w.set_value(jnp.ones(3))
    synk.broadcast(w)
    synk.set_value(1, w, jnp.zeros(3))
    same(synk.gather(w, nd_up=1), [[1, 1, 1], [0, 0, 0]])
    of_jax = pytensor.shared(jnp.ones(3), "of_jax")
    try:
        synk.broadcast(of_jax)
    except TypeError as error:
        assert "of_jax" in str(error) and "which is not a dense array" in str(error) and "shared(np.asarray(value))" in str(error), error
    else:
        raise AssertionError("not refused")
"""

FORKED_AFTER = """
    import jax.numpy as jnp
    synk.fork(2, use_gpu=False)
    f = synk.function([v], v * 2, mode="JAX", name="f")
    same(f(np.arange(5.0)), 2 * np.arange(5.0))
    float(jnp.ones(3).sum())  # from here on, JAX is running
    synk.close()
    synk.fork(2, use_gpu=False)  # the processes are forked by the keeper, in which JAX is not running
    same(f(np.arange(5.0)), 2 * np.arange(5.0))
    synk.close()
    synk.program.program.PROGRAM.shut_down()
    try:
        synk.fork(2, use_gpu=False)
    except synk.StateError as error:
        assert "JAX is running" in str(error) and "before the first use of JAX" in str(error), error
    else:
        raise AssertionError("not refused")
    synk.fork(1, use_gpu=False)
    same(f(np.arange(5.0)), 2 * np.arange(5.0))  # the single rank is this process
"""

RANDOM = """
    state = pytensor.shared(np.random.default_rng(0), "state")
    after, numbers = pt.random.normal(size=3, rng=state, return_next_rng=True)
    try:
        synk.function([v], [v, (numbers, None)], updates=[(state, after)], mode="JAX")
    except ValueError as error:
        assert "draws random numbers" in str(error), error
    else:
        raise AssertionError("not refused")
"""


@needs_jax
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("body", [CALLS, TRAINING], ids=["calls", "training"])
def test_programs(tmp_path, body, n):
    run(tmp_path, body.replace("{n}", str(n)))


@needs_jax
@pytest.mark.parametrize("body", [VALUES, FORKED_AFTER, RANDOM], ids=["values", "forked_after", "random"])
def test_what_meets_jax(tmp_path, body):
    run(tmp_path, body)


def run(folder, body):
    program = folder / "program.py"
    program.write_text(HEAD + body + "\n    synk.close()\n    print('done')\n")
    environment = dict(os.environ, PYTHONPATH=str(Path(synk.__file__).parents[1]), JAX_PLATFORMS="cpu")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        timeout=180,
    )
    assert done.returncode == 0 and done.stdout.split()[-1] == "done", done.stdout


# -- refusals when a function is built, with or without JAX installed --------------------------------------------------


def by_jax():
    """Return a mode with JAX's linker, which imports JAX only when it compiles."""
    from pytensor.link.jax.linker import JAXLinker

    return pytensor.compile.mode.Mode(JAXLinker(), "fast_compile")


@pytest.mark.parametrize("exact", [False, True])
def test_collectives_inside(exact):
    x, w = pt.dvector("x"), pytensor.shared(np.zeros(()), "w")
    mean = x.mean() if exact else synk.ops.all_reduce(x.mean())
    with refuses(ValueError, "mode", "in order", "JAX, which", "leave out"):
        synk.function([x], updates=[(w, mean)], exact=exact, mode=by_jax())
    with refuses(ValueError, "mode", "in order", "JAX, which", "leave out"):
        synk.function([x], mean if exact else (mean, "avg"), updates=[(w, mean)], exact=exact, mode=by_jax())
