"""PyMC's samplers and optimizers with likelihoods over all ranks.

Modules: `optimizing`.
"""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses, reports

from synkhronos.errors import WorkerDied

pm = pytest.importorskip("pymc", reason='PyMC is not installed: pip install ".[pymc]"')

from pymc_models import KINDS, REAL, WEIGHTS, InCall, X, marks  # noqa: E402

from synkhronos.extensions.pymc import data_parallel  # noqa: E402

pytestmark = marks()

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


#: Step methods for continuous variables, with their numbers of chains.
STEPS = {"Metropolis": 1, "DEMetropolis": 5, "DEMetropolisZ": 1, "Slice": 1, "HamiltonianMC": 1}


def assert_same_draws(plain, draw):
    """Check that a sampler with a seed draws the same values from a model and from its parallel model."""
    expected, found = (draw(model).posterior for model in (plain, data_parallel(plain)))
    for rv in plain.free_RVs:
        assert np.ptp(expected[rv.name].values) > 0
        np.testing.assert_allclose(found[rv.name].values, expected[rv.name].values, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", STEPS)
def test_step_methods_draw_the_same_chain(make_world, name):
    make_world("threads", 3)
    settings = {**SAMPLING, "chains": STEPS[name]}
    assert_same_draws(
        KINDS["logistic"](), lambda model: pm.sample(model=model, step=getattr(pm, name)(model=model), **settings)
    )


#: Priors of a discrete variable z, and the step methods for it; None: PyMC's choice.
OF_DISCRETE = {
    "binary": (lambda: pm.Bernoulli("z", 0.4, shape=2), None),
    "binary, Gibbs": (lambda: pm.Bernoulli("z", 0.4, shape=2), "BinaryGibbsMetropolis"),
    "categorical": (lambda: pm.Categorical("z", [0.3, 0.4, 0.3], shape=2), None),
    "categorical, Gibbs": (lambda: pm.Categorical("z", [0.3, 0.4, 0.3], shape=2), "CategoricalGibbsMetropolis"),
    "counts": (lambda: pm.Poisson("z", 2, shape=2), None),
}


@pytest.mark.parametrize("case", OF_DISCRETE)
def test_discrete_variables_beside_continuous_ones(make_world, case):
    prior, step = OF_DISCRETE[case]
    make_world("threads", 3)
    with pm.Model() as plain:
        mu = (1.0 * prior()).sum() * pm.Normal("mu")
        pm.Normal("y", mu * X[:, 0], 2, observed=REAL)

    def draw(model):
        steps = getattr(pm, step)([model["z"]], model=model) if step else None
        return pm.sample(model=model, step=steps, **{**SAMPLING, "draws": 20, "chains": 1})

    assert_same_draws(plain, draw)


@pytest.mark.parametrize("kernel", ["IMH", "MH"])
def test_smc_draws_the_same_particles(make_world, kernel):
    make_world("threads", 3)
    settings = dict(kernel=getattr(pm.smc, kernel), chains=1, cores=1, random_seed=1, progressbar=False)
    assert_same_draws(KINDS["logistic"](), lambda model: pm.sample_smc(10, model=model, **settings))


#: Methods of `pm.fit`, their settings, and what they compute.
FITS = {
    "advi": ({}, lambda fitted: fitted.hist),
    "fullrank_advi": ({}, lambda fitted: fitted.hist),
    "svgd": ({"inf_kwargs": {"n_particles": 5}}, lambda fitted: fitted.params[0].get_value()),
}


@pytest.mark.parametrize("method", FITS)
def test_methods_of_fit(make_world, method):
    make_world("threads", 3)
    settings, result = FITS[method]
    plain, results = KINDS["logistic"](), []
    for model in (plain, data_parallel(plain)):
        np.random.seed(1)  # SVGD draws the first particles from NumPy's global generator
        fitted = pm.fit(5, method=method, model=model, random_seed=1, progressbar=False, **settings)
        results.append(result(fitted))
    np.testing.assert_allclose(results[1], results[0], rtol=1e-9)


def test_population_in_processes_is_refused(make_world):
    make_world("threads", 2)
    model = data_parallel(KINDS["logistic"]())
    with refuses(ValueError, "cores", "1", "several", hint="cores=1"):
        pm.sample(model=model, step=pm.DEMetropolis(model=model), **{**SAMPLING, "chains": 4, "cores": 2})


#: Calls that compile a model for JAX, and the argument that each refusal names. (JAX need not be installed.)
JAX = {
    "numpyro": (lambda model: pm.sample(model=model, nuts_sampler="numpyro", **SAMPLING), "nuts_sampler"),
    "blackjax": (lambda model: pm.sample(model=model, nuts_sampler="blackjax", **SAMPLING), "nuts_sampler"),
    "sample": (lambda model: pm.sample(model=model, backend="jax", **SAMPLING), "backend"),
    "MAP": (lambda model: pm.find_MAP(model=model, backend="jax", jitter=False), "mode"),
    "fit": (lambda model: pm.fit(3, model=model, backend="jax"), "mode"),
    "function": (lambda model: model.compile_logp(mode="JAX"), "mode"),
}


@pytest.mark.parametrize("case", JAX)
def test_jax_is_refused(make_world, case):
    make_world("threads", 2)
    call, argument = JAX[case]
    with refuses(ValueError, argument, "ranks", hint="nutpie") as caught:
        call(data_parallel(KINDS["logistic"]()))
    assert "cannot run inside JAX" in str(caught.value)


@pytest.mark.parametrize("method", ["Newton-CG", "trust-ncg", "trust-exact"])
def test_find_map_with_second_derivatives_is_refused(make_world, method):
    """Missing second derivatives are reported; PyMC would catch the error and optimize without a gradient."""
    make_world("threads", 2)
    model = data_parallel(KINDS["logistic"]())
    with reports(NotImplementedError, "y", "second derivatives", "gradient"):
        pm.find_MAP(method, model=model, jitter=False, progressbar=False)
    assert not model.potentials[0].owner.op.likelihood.failures


@pytest.mark.parametrize("method", ["BFGS", "Newton-CG", "nelder-mead"])
def test_find_map_without_second_derivatives(make_world, method):
    make_world("threads", 2)
    plain = KINDS["logistic"]()
    settings = dict(jitter=False, progressbar=False, use_hess=False, use_hessp=False)
    expected, found = (pm.find_MAP(method, model=model, **settings)["beta"] for model in (plain, data_parallel(plain)))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


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


#: Functions that call a likelihood repeatedly.
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
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "docs" / "examples"))
    from pymc_rows import main

    sampled, serial, best, means = main(rows=300, draws=30)
    np.testing.assert_allclose(sampled, serial, atol=0.1)
    np.testing.assert_allclose(best, serial, atol=0.2)
    np.testing.assert_allclose(means, serial, atol=0.5)
