"""What PyMC's samplers and optimizers make of likelihoods over all ranks."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from refusals import reports

from synkhronos.errors import WorkerDied

pm = pytest.importorskip("pymc", reason='PyMC is not installed: pip install ".[pymc]"')

from pymc_models import KINDS, WEIGHTS, InCall  # noqa: E402

from synkhronos.extensions.pymc import data_parallel  # noqa: E402

pytestmark = [
    pytest.mark.pytensor,
    pytest.mark.usefixtures("nothing_compiled"),
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::Warning"),  # PyMC's own are many, and change with its versions
]

SAMPLING = dict(
    draws=10, tune=10, chains=2, cores=1, random_seed=3, progressbar=False, compute_convergence_checks=False
)


def test_nuts_draws_the_same_chain(make_world):
    make_world("threads", 2)
    with KINDS["linear"]() as plain:
        expected = pm.sample(**SAMPLING).posterior
    with data_parallel(plain):
        found = pm.sample(**SAMPLING).posterior
    for name in ("beta", "sigma"):
        assert np.ptp(expected[name].values) > 0.01
        np.testing.assert_allclose(found[name].values, expected[name].values, rtol=1e-6)


def test_find_map(make_world):
    make_world("threads", 2)
    expected = pm.find_MAP(model=KINDS["logistic"](), jitter=False, progressbar=False, return_inferencedata=False)
    found = pm.find_MAP(
        model=data_parallel(KINDS["logistic"]()), jitter=False, progressbar=False, return_inferencedata=False
    )
    np.testing.assert_allclose(found["beta"], expected["beta"], rtol=1e-6)


def test_fit(make_world):
    make_world("threads", 2)
    expected = pm.fit(30, model=KINDS["logistic"](), random_seed=1, progressbar=False)
    found = pm.fit(30, model=data_parallel(KINDS["logistic"]()), random_seed=1, progressbar=False)
    np.testing.assert_allclose(found.hist, expected.hist, rtol=1e-9)


def test_fit_of_several_draws_a_step(make_world):
    make_world("threads", 2)
    expected = pm.fit(5, model=KINDS["logistic"](), random_seed=1, progressbar=False, obj_n_mc=2)
    found = pm.fit(5, model=data_parallel(KINDS["logistic"]()), random_seed=1, progressbar=False, obj_n_mc=2)
    np.testing.assert_allclose(found.hist, expected.hist, rtol=1e-9)


@pytest.mark.thorough
def test_fit_in_batches(make_world):
    make_world("threads", 2)
    parallel = data_parallel(KINDS["linear"](), batch=20)
    fitted = pm.fit(1500, model=parallel, random_seed=1, progressbar=False, obj_optimizer=pm.adam(learning_rate=0.05))
    means = dict(
        zip(("beta", "sigma"), [fitted.sample(500, random_seed=1).posterior[name] for name in ("beta", "sigma")])
    )
    np.testing.assert_allclose(means["beta"].mean(("chain", "draw")), WEIGHTS, atol=0.5)


#: What calls a likelihood again and again.
LONG = {
    "NUTS": lambda model: pm.sample(model=model, **{**SAMPLING, "draws": 100_000}),
    "NUTS by name": lambda model: pm.sample(model=model, nuts_sampler="pymc", **{**SAMPLING, "draws": 100_000}),
    "Metropolis": lambda model: pm.sample(
        model=model, step=pm.Metropolis(model=model), **{**SAMPLING, "draws": 100_000}
    ),
    "slices": lambda model: pm.sample(model=model, step=pm.Slice(model=model), **{**SAMPLING, "draws": 100_000}),
    "SMC": lambda model: pm.sample_smc(100_000, model=model, chains=1, cores=1, progressbar=False),
    "ADVI": lambda model: pm.fit(1_000_000, model=model, progressbar=False),
    "MAP": lambda model: pm.find_MAP(model=model, jitter=False, progressbar=False, gtol=0, ftol=0),
}


@pytest.mark.parametrize("sampler", LONG)
def test_a_death_ends_every_sampler(make_world, sampler):
    world = make_world("fork", 2)
    model = data_parallel(KINDS["logistic"]())
    with InCall(model, 6, lambda: os.kill(world.session.launcher.pid(1), signal.SIGKILL)), pytest.raises(WorkerDied):
        LONG[sampler](model)


def test_second_derivatives_are_refused(make_world):
    make_world("threads", 2)
    parallel = data_parallel(KINDS["logistic"]())
    with reports(NotImplementedError, "second"):
        parallel.d2logp()


@pytest.mark.thorough
def test_example_of_the_page(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs" / "examples"))
    from pymc_rows import main

    sampled, serial, best, means = main(rows=300, draws=30)
    np.testing.assert_allclose(sampled, serial, atol=0.1)
    np.testing.assert_allclose(best, serial, atol=0.2)
    np.testing.assert_allclose(means, serial, atol=0.5)
