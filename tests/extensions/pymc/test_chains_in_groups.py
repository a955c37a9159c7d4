"""Likelihoods in groups of ranks that work at once, as for nutpie's chains.

nutpie compiles with Numba, so the tests share one compiled model. Failures are triggered in a counted call, not after a
delay.

Modules: `choosing`.
"""

import logging
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from refusals import refuses, reports

import synkhronos as synk
from synkhronos.errors import StateError, WorkerDied, WorkerError
from synkhronos.program.program import PROGRAM

pm = pytest.importorskip("pymc", reason='PyMC is not installed: pip install ".[pymc]"')

from pymc_models import KINDS, REAL, InCall, X, assert_same, points_of, python_mode  # noqa: E402

from synkhronos.extensions.pymc import choosing, data_parallel  # noqa: E402

pytestmark = [
    pytest.mark.pytensor,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::Warning"),  # warnings of PyMC, nutpie and Numba
]

#: Number of draws so large that a sampler that does not stop outlasts the test's time limit.
ENDLESS = 10_000_000

MASTER = os.getpid()


@pytest.fixture(autouse=True)
def nothing_runs():
    synk.close()
    yield
    synk.close()


def likelihood_of(model):
    return model.potentials[0].owner.op.likelihood


def gradient_of(model):
    """Return a new function for the log-probability and its gradient, for one thread."""
    return model.compile_fn([model.logp(), model.dlogp()], inputs=model.value_vars)


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.thorough("several.*1$")
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", ["logistic", "linear", "hierarchical", "several_observed"])
def test_values_of_calls_at_once(kind, ranks):
    plain = KINDS[kind]()
    parallel, points = data_parallel(plain), points_of(plain, 60)
    choosing.start_groups(parallel, 2, ranks)
    functions, expected = [gradient_of(parallel) for _ in range(3)], gradient_of(plain)
    with ThreadPoolExecutor(len(functions)) as threads:
        results = list(threads.map(lambda f: [[np.array(each) for each in f(point)] for point in points], functions))
    for found in results:
        for point, (value, gradient) in zip(points, found):
            wanted, wanted_gradient = expected(point)
            np.testing.assert_allclose(value, wanted, rtol=1e-10)
            atol = 1e-10 * abs(wanted_gradient).max()
            np.testing.assert_allclose(gradient, wanted_gradient, rtol=1e-10, atol=atol)


@pytest.mark.usefixtures("nothing_compiled")
def test_new_values_of_undivided_data():
    with pm.Model() as plain:
        shift = pm.Data("shift", 0.0)
        pm.Normal("y", pm.Normal("mu") + shift, 1, observed=REAL)
    parallel = data_parallel(plain)
    choosing.start_groups(parallel, 2, 1)
    for model in (plain, parallel):
        with model:
            pm.set_data({"shift": 3.0})
    assert_same(parallel, plain, 5)


@pytest.mark.usefixtures("nothing_compiled")
def test_a_model_after_its_groups():
    plain = KINDS["logistic"]()
    parallel = data_parallel(plain)
    choosing.start_groups(parallel, 2, 2)
    assert_same(parallel, plain, 5)
    synk.close()
    with reports(StateError, "synkhronos.fork()"):
        assert_same(parallel, plain, 1)
    with synk.fork(2):
        assert_same(parallel, plain, 5)
    choosing.start_groups(parallel, 1, 1)
    assert_same(parallel, plain, 5)


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("error", [np.linalg.LinAlgError, ArithmeticError])
def test_exceptions_in_a_group(error, monkeypatch):
    """An error of linear algebra is a divergence, as in plain PyMC."""
    parallel = data_parallel(KINDS["logistic"]())

    def fails(*args, **kwargs):
        raise error("in a group")

    with monkeypatch.context() as patch:
        patch.setattr(likelihood_of(parallel), "function", fails)
        choosing.start_groups(parallel, 1, 1)
    with reports(WorkerError if error is ArithmeticError else error, "in a group"):
        parallel.compile_logp()({"beta": np.zeros(3)})


# -- choosing ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("seconds, pays", [([3e-3, 1e-3], True), ([1e-3, 1e-3], False)])
def test_the_faster_model(seconds, pays, monkeypatch, caplog):
    monkeypatch.setattr(choosing, "seconds_per_gradient", lambda model: seconds.pop(0))
    plain = KINDS["linear"]()
    with caplog.at_level(logging.INFO, "synkhronos"):
        chosen = data_parallel(plain, ranks=2, groups=2)
    assert (chosen is not plain) == pays == (PROGRAM.groups is not None)
    said = caplog.records[-1]
    assert said.levelno == (logging.INFO if pays else logging.WARNING)
    assert all(fact in said.getMessage() for fact in ("n_ranks=2", "2 groups"))
    assert_same(chosen, plain, 5)
    if pays:
        with reports(StateError, "synkhronos.close()"):
            data_parallel(plain, ranks=2, groups=2)


def test_numbers_that_cannot_be(make_world):
    plain = KINDS["linear"]()
    for settings in ({"groups": 2}, {"groups": 2, "ranks": 1, "batch": 10}, {"groups": 2.0, "ranks": 1}):
        with refuses(TypeError, "groups"):
            data_parallel(plain, **settings)
    with refuses(ValueError, "groups", "at least 1", "0"):
        data_parallel(plain, ranks=1, groups=0)
    with pm.Model(), refuses(TypeError, "groups", "function"):
        data_parallel(lambda y: y, [np.ones(3)], groups=2)
    make_world("threads", 2)
    with refuses(ValueError, "groups", "session", "2", "synkhronos.close()"):
        data_parallel(plain, ranks=2, groups=2)


# -- nutpie ------------------------------------------------------------------------------------------------------------


def logistic():
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        pm.Normal("y", X @ beta, 1, observed=REAL)
    return model


@pytest.fixture(scope="module")
def model():
    return data_parallel(logistic(), mode=python_mode())


@pytest.fixture(scope="module")
def nutpie():
    return pytest.importorskip("nutpie", reason="nutpie is not installed: make install-test")


@pytest.fixture(scope="module")
def sample(nutpie, model):
    """Return a function that samples two chains at once."""
    compiled = nutpie.compile_pymc_model(model)

    def run(compiled=compiled, draws=ENDLESS, tune=10):
        return nutpie.sample(compiled, draws=draws, tune=tune, chains=2, cores=2, seed=3, progress_bar=False)

    return run


def once(path):
    """Return whether this is the first call with this path in any process."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def in_a_group(model, path, action, ranks):
    """Start two groups; the first to reach its 30th call runs an action in its process, just before that call."""
    with InCall(model, 30, lambda: once(path) and action()):
        choosing.start_groups(model, 2, ranks)


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [1, 2])
def test_draws_are_those_of_the_plain_model(sample, nutpie, model, ranks):
    expected = sample(nutpie.compile_pymc_model(logistic()), 30, 30).posterior["beta"].values
    choosing.start_groups(model, 2, ranks)
    found = sample(draws=30, tune=30).posterior["beta"].values
    assert np.ptp(expected) > 0.01 and expected.shape == (2, 30, 3)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def fail():
    raise ArithmeticError("in a group")


def kill_rank():
    os.kill(PROGRAM.session.launcher.pid(1), signal.SIGKILL)


def kill_group():
    os.kill(os.getpid(), signal.SIGKILL)


#: Failures in a group, and the resulting errors.
TROUBLES = {"exception": (fail, WorkerError), "rank": (kill_rank, WorkerDied), "group": (kill_group, WorkerDied)}


@pytest.mark.thorough("exception|group")
@pytest.mark.parametrize("trouble", TROUBLES)
def test_sampling_ends_with_the_error_of_a_group(sample, model, tmp_path, trouble):
    """The other group remains usable."""
    action, error = TROUBLES[trouble]
    in_a_group(model, tmp_path / "reached", action, 2)
    with reports(error, "group"):
        sample()
    assert sample(draws=10).posterior.sizes["draw"] == 10


def test_a_healed_rank_does_not_end_the_sampling(sample, model, tmp_path, monkeypatch):
    monkeypatch.setenv("SYNK_HEAL", "1")
    in_a_group(model, tmp_path / "reached", kill_rank, 2)
    healed = sample(draws=30, tune=30).posterior["beta"].values
    assert (tmp_path / "reached").exists()
    np.testing.assert_array_equal(sample(draws=30, tune=30).posterior["beta"].values, healed)


def test_closed_while_groups_work(sample, model, tmp_path, monkeypatch):
    choosing.start_groups(model, 2, 1)
    groups, calls = likelihood_of(model).groups, []
    call = type(groups).__call__

    def counted(self, *args):
        calls.append(args)
        if len(calls) == 60:
            synk.close()
        return call(self, *args)

    monkeypatch.setattr(type(groups), "__call__", counted)
    with pytest.raises(StateError):
        sample()


def test_ctrl_c_returns_the_draws_until_then(sample, model, tmp_path):
    in_a_group(model, tmp_path / "reached", lambda: os.kill(MASTER, signal.SIGINT), 1)
    trace = sample()
    assert trace.posterior.sizes["draw"] < ENDLESS
    assert sample(draws=10).posterior.sizes["draw"] == 10
