"""nutpie samples likelihoods over all ranks, and stops with the ranks' errors.

It compiles with Numba, so the tests share one compiled model. Failures are triggered in a counted call, not after a
delay.
"""

import os
import signal
import threading

import numpy as np
import pytest
from refusals import reports

import synkhronos as synk
from synkhronos.errors import StateError, WorkerDied, WorkerError, WorkerTimeout
from synkhronos.program.program import PROGRAM

pm = pytest.importorskip("pymc", reason='PyMC is not installed: pip install ".[pymc]"')
nutpie = pytest.importorskip("nutpie", reason="nutpie is not installed: make install-test")

import pytensor  # noqa: E402
from pymc_models import InCall, N, X, python_mode  # noqa: E402
from pytensor.graph.basic import Apply  # noqa: E402
from pytensor.graph.op import Op  # noqa: E402

from synkhronos.extensions.pymc import data_parallel, nutpie_sampling  # noqa: E402

pytestmark = [
    pytest.mark.pytensor,
    pytest.mark.timeout(200),  # the first test compiles
    pytest.mark.filterwarnings("ignore::Warning"),  # warnings of PyMC, nutpie and Numba
]

#: Number of draws so large that a sampler that does not stop outlasts the test's time limit.
ENDLESS = 10_000_000

MASTER = os.getpid()


class FailsIfNegative(Op):
    """An op that returns its input, or fails in processes of ranks if ``SYNK_TEST_FAILURE`` names an existing file."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        if os.getpid() != MASTER and os.path.exists(os.environ.get("SYNK_TEST_FAILURE", "")):
            raise ArithmeticError("that rank cannot")
        outputs[0][0] = inputs[0]

    def pullback(self, inputs, outputs, cotangents):
        return cotangents


def build():
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        data_parallel(lambda x: -((x @ FailsIfNegative()(beta)) ** 2), [X], name="y", mode=python_mode())
    return model


@pytest.fixture(scope="module")
def model():
    return build()


@pytest.fixture(scope="module")
def compiled(model):
    return nutpie.compile_pymc_model(model)


@pytest.fixture
def forked(request, monkeypatch, tmp_path):
    """Open a session of two processes and yield a path; rank 1 fails once a file exists there."""
    monkeypatch.setenv("SYNK_TEST_FAILURE", str(tmp_path / "failure"))
    is_late = getattr(request.node, "callspec", None) and request.node.callspec.params.get("trouble") == "late"
    synk.fork(2, timeout=3 if is_late else None)
    yield tmp_path / "failure"
    synk.close()


def kill(failure):
    os.kill(PROGRAM.session.launcher.pid(1), signal.SIGKILL)


def stop(failure):
    os.kill(PROGRAM.session.launcher.pid(1), signal.SIGSTOP)


#: Failures, and the resulting errors.
TROUBLES = {
    "killed": (kill, WorkerDied),
    "closed": (lambda failure: synk.close(), StateError),
    "late": (stop, WorkerTimeout),
    "exception": (lambda failure: failure.touch(), WorkerError),
}


def sample(compiled, chains=1, **kwargs):
    return nutpie.sample(compiled, draws=ENDLESS, tune=10, chains=chains, cores=chains, progress_bar=False, **kwargs)


def in_thread(function):
    """Call a function in another thread; return its result, or raise its error."""
    results = []

    def run():
        try:
            results.append(function())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


@pytest.mark.thorough(but="-1-later")
@pytest.mark.parametrize("number", [1, 300], ids=["at once", "later"])
@pytest.mark.parametrize("chains", [1, 2])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_sampling_ends_with_the_error(forked, model, compiled, trouble, chains, number):
    action, error = TROUBLES[trouble]
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with InCall(model, number, lambda: action(forked)), pytest.raises(error):
        sample(compiled, chains)
    assert handlers == [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.thorough("closed|exception")
@pytest.mark.parametrize("trouble", TROUBLES)
def test_in_another_thread(forked, model, compiled, trouble):
    action, error = TROUBLES[trouble]
    with InCall(model, 300, lambda: action(forked)), pytest.raises(error):
        in_thread(lambda: sample(compiled))


@pytest.mark.thorough("thread")
@pytest.mark.parametrize("in_main", [True, False], ids=["main", "thread"])
def test_pm_sample_as_it_is_called(forked, in_main):
    model = build()

    def draw():
        return pm.sample(model=model, draws=ENDLESS, tune=10, chains=1, progressbar=False)

    with InCall(model, 300, lambda: kill(forked)), pytest.raises(WorkerDied):
        draw() if in_main else in_thread(draw)


def test_a_sampler_in_the_background(forked, model, compiled):
    with InCall(model, 300, lambda: kill(forked)):
        sampler = sample(compiled, blocking=False)
        for _ in range(2):  # the second call raises, too
            with pytest.raises(WorkerDied):
                sampler.wait()
        with pytest.raises(WorkerDied):
            sampler.inspect()
        with pytest.raises(WorkerDied):
            sampler.abort()


def test_errors_of_calls_beside_a_sampler(forked, model, compiled, monkeypatch):
    likelihood = model.potentials[0].owner.op.likelihood
    function = likelihood.function

    def fails_here(*args, **kwargs):
        if threading.current_thread() is threading.main_thread():
            raise ArithmeticError("in a call of this thread")
        return function(*args, **kwargs)

    monkeypatch.setattr(likelihood, "function", fails_here)
    logp = model.compile_logp(mode=python_mode())
    sampler = sample(compiled, blocking=False)
    for _ in range(2):
        with pytest.raises(ArithmeticError):
            logp({"beta": np.zeros(3)})
    with pytest.raises(TimeoutError):  # sampling continues
        sampler.wait(timeout=0.3)
    sampler.cancel()


def test_a_wait_that_ends_before_the_draws(forked, compiled):
    sampler = sample(compiled, blocking=False)
    with pytest.raises(TimeoutError):
        sampler.wait(timeout=0.3)
    assert sampler.abort().posterior.sizes["chain"] == 1


def test_an_interrupt_returns_the_draws_until_then(forked, model, compiled):
    with InCall(model, 300, lambda: os.kill(os.getpid(), signal.SIGINT)):
        trace = sample(compiled)
    assert 0 < trace.posterior.sizes["draw"] < ENDLESS
    assert np.isfinite(model.compile_logp(mode=python_mode())({"beta": np.zeros(3)}))  # the session is still usable


def test_the_next_session_and_errors_of_before(forked, model, compiled):
    with InCall(model, 300, lambda: kill(forked)), pytest.raises(WorkerDied):
        sample(compiled)
    synk.fork(2)
    trace = nutpie.sample(compiled, draws=20, tune=20, chains=2, seed=1, progress_bar=False)
    assert trace.posterior.sizes["draw"] == 20


@pytest.mark.thorough
@pytest.mark.parametrize("chains", [1, 2])
def test_draws_are_those_of_the_plain_model(forked, compiled, chains):
    with pm.Model() as plain:
        beta = pm.Normal("beta", 0, 1, shape=3)
        pm.Potential("y", -((X @ beta) ** 2).sum())
    settings = dict(draws=30, tune=30, chains=chains, cores=chains, seed=3, progress_bar=False)
    expected = nutpie.sample(nutpie.compile_pymc_model(plain), **settings).posterior["beta"].values
    found = nutpie.sample(compiled, **settings).posterior["beta"].values
    assert np.ptp(expected) > 0.01 and len(X) == N
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_models_without_such_a_likelihood_are_not_watched():
    with pm.Model() as plain:
        pm.Normal("a")
    compiled = nutpie.compile_pymc_model(plain)
    sampler = nutpie.sample(compiled, draws=10, tune=10, chains=1, progress_bar=False, blocking=False)
    assert not isinstance(sampler._sampler, nutpie_sampling.WatchedSampler)
    sampler.wait()


def test_a_nutpie_that_is_not_known(monkeypatch):
    monkeypatch.delattr("nutpie.compile_pymc.CompiledPyMCModel")
    with reports(StateError, 'nuts_sampler="pymc"'):
        nutpie_sampling.watch()


def test_errors_of_linear_algebra_are_divergences(make_world):
    make_world("threads", 2)
    with pytensor.config.change_flags(mode=python_mode(), linker="py", cxx=""):
        model = build()
        likelihood = model.potentials[0].owner.op.likelihood

        def fails(*args, **kwargs):
            raise WorkerError("...", 1, {1: "Traceback:\n  ...\nnumpy.linalg.LinAlgError: Singular matrix\n"})

        likelihood.function = fails
        with pytest.raises(np.linalg.LinAlgError):  # as in plain PyMC, whose samplers continue
            model.compile_logp()({"beta": np.zeros(3)})
