"""Likelihoods in sessions, copies and other processes.

Modules: `likelihood`.
"""

import gc
import os
import pickle
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses, reports

import synkhronos as synk
from synkhronos.errors import StateError

pm = pytest.importorskip("pymc", reason='PyMC is not installed: pip install ".[pymc]"')

import cloudpickle  # noqa: E402
import pytensor  # noqa: E402
import pytensor.tensor as pt  # noqa: E402
from pymc_models import BINARY, KINDS, WEIGHTS, X, log_density, marks  # noqa: E402
from pytensor.graph.replace import vectorize_graph  # noqa: E402

from synkhronos.extensions.pymc import data_parallel  # noqa: E402

pytestmark = marks()


def test_value_and_gradient_are_one_call(make_world, monkeypatch):
    make_world("threads", 2)
    parallel = data_parallel(KINDS["logistic"]())
    function = parallel.logp_dlogp_function(ravel_inputs=True)
    calls = []
    call = synk.Function.__call__
    monkeypatch.setattr(synk.Function, "__call__", lambda *args, **kwargs: calls.append(1) or call(*args, **kwargs))
    function(np.zeros(3))
    assert len(calls) == 1


def test_a_session_after_another(make_world):
    parallel, plain = data_parallel(KINDS["logistic"]()), KINDS["logistic"]()
    function = parallel.logp_dlogp_function(ravel_inputs=True)
    expected = plain.logp_dlogp_function(ravel_inputs=True)(WEIGHTS)
    for n in (1, 3):
        make_world("threads", n)
        value, gradient = function(WEIGHTS)
        np.testing.assert_allclose(value, expected[0], rtol=1e-10)
        np.testing.assert_allclose(gradient, expected[1], rtol=1e-10)
        synk.close()
        with reports(StateError, "synkhronos.fork()"):
            function(WEIGHTS)


def test_data_go_with_the_model():
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        potential = data_parallel(log_density, [X, BINARY], [beta])
    data = weakref.ref(potential.owner.op.likelihood)
    del model, beta, potential
    gc.collect()
    assert data() is None


@pytest.mark.parametrize("whole", [False, True], ids=["function", "model"])
def test_data_go_with_the_compiled_function(make_world, whole):
    """A likelihood's data are freed with the function, although PyTensor's rewriters remember operations."""
    make_world("threads", 2)
    if whole:
        model = data_parallel(KINDS["logistic"]())
    else:
        with pm.Model() as model:
            data_parallel(log_density, [X, BINARY], [pm.Normal("beta", 0, 1, shape=3)])
    data = weakref.ref(model.potentials[0].owner.op.likelihood)
    function = model.logp_dlogp_function(ravel_inputs=True)
    expected = function(WEIGHTS)
    del model
    gc.collect()
    np.testing.assert_array_equal(function(WEIGHTS)[1], expected[1])
    del function
    gc.collect()
    assert data() is None


def test_data_stay_with_a_vectorized_graph(make_world):
    """A vectorized graph keeps a likelihood's data, although the operation is wrapped in another one."""
    make_world("threads", 2)
    wanted, points = [], np.stack([WEIGHTS, WEIGHTS / 2])
    for model in (KINDS["logistic"](), data_parallel(KINDS["logistic"]())):
        (parameter,) = model.value_vars
        several = pt.matrix("several")
        values = vectorize_graph(model.logp(), {parameter: several})
        del model, parameter
        gc.collect()
        wanted.append(pytensor.function([several], values)(points))
    np.testing.assert_allclose(wanted[1], wanted[0], rtol=1e-10)


def test_copies_are_itself():
    with pm.Model():
        beta = pm.Normal("beta", 0, 1, shape=3)
        likelihood = data_parallel(log_density, [X, BINARY], [beta]).owner.op.likelihood
    assert cloudpickle.loads(cloudpickle.dumps(likelihood)) is likelihood


CHAINS = """
import sys
import pymc as pm
import synkhronos as synk
from synkhronos.extensions.pymc import data_parallel

if __name__ == "__main__":
    with pm.Model() as model:
        a = pm.Normal("a")
        data_parallel(lambda y: pm.logp(pm.Normal.dist(a, 1), y), [[0.1, 0.2, 0.3]])
    synk.fork(2)
    with model:
        try:
            pm.sample(draws=5, tune=5, chains=2, cores=2, mp_ctx=sys.argv[1], progressbar=False)
        except Exception as error:
            print(error)
    print(float(model.compile_logp()({"a": 0.2})))  # the session is still usable
    synk.close()
"""


@pytest.mark.thorough("spawn")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_chains_in_processes_of_their_own(tmp_path, method):
    program = tmp_path / "program.py"
    program.write_text(CHAINS)
    environment = dict(os.environ, PYTENSOR_FLAGS="linker=py,cxx=", PYTHONPATH=str(Path(synk.__file__).parents[1]))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), method],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        timeout=250,
    )
    assert "pass cores=1 to pm.sample" in done.stdout, done.stdout
    expected = -0.5 * (0.2**2 + 2 * 0.1**2) - 2 * np.log(2 * np.pi)
    np.testing.assert_allclose(float(done.stdout.split()[-1]), expected, rtol=1e-10)


def test_fewer_rows_than_ranks(make_world):
    with pm.Model() as model:
        mu = pm.Normal("mu")
        data_parallel(lambda y: -((y - mu) ** 2), [[1.0, 2.0]])
    logp = model.compile_logp()
    make_world("threads", 3)
    with refuses(ValueError, "data of likelihood", "at least 3 rows", "2", "n_ranks=2 or less"):
        logp({"mu": 0.0})


def test_no_session():
    parallel = data_parallel(KINDS["logistic"]())
    with reports(StateError, "synkhronos.fork()"):
        parallel.compile_logp()({"beta": WEIGHTS})


# (Chains of pm.sample, tested above, also load pickles of a likelihood. Here, an unrelated program loads one.)
def test_a_pickle_elsewhere():
    from synkhronos.extensions.pymc.likelihood import Elsewhere, found_by

    elsewhere = found_by("of another process", "likelihood")
    assert isinstance(elsewhere, Elsewhere)
    with reports(StateError, "likelihood", "cores=1"):
        pickle.loads(pickle.dumps(elsewhere))([WEIGHTS])
