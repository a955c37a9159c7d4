"""PyMC models on a mesh of JAX's devices, compared with plain PyMC. Run by test_mesh.py."""

import warnings

import numpy as np
import pymc as pm
import pytest
from pymc.blocking import DictToArrayBijection
from pymc_models import KINDS
from refusals import reports

import synkhronos as synk
from synkhronos.extensions.pymc import compute_log_likelihood, data_parallel, sample_posterior_predictive

SHORT = dict(draws=6, tune=6, chains=1, cores=1, random_seed=3, progressbar=False, compute_convergence_checks=False)


@pytest.fixture
def n():
    with synk.fork(2, devices="jax") as n:
        yield n


def quietly(function, *args, **keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **keywords)


@pytest.mark.long(but="^(logistic|linear)$")
@pytest.mark.parametrize("kind", KINDS)
def test_value_and_gradient(n, kind):
    plain = quietly(KINDS[kind])
    parallel = quietly(data_parallel, plain)
    serial, ours = (model.logp_dlogp_function(ravel_inputs=True) for model in (plain, parallel))
    start = DictToArrayBijection.map(plain.initial_point()).data
    for function in (serial, ours):
        function.set_extra_values({})
    for point in (start, start + 0.1):
        for wanted, found in zip(serial(point), ours(point)):
            np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("sampler", ["pymc", pytest.param("nutpie", marks=pytest.mark.thorough)])
def test_samplers_draw_the_plain_chain(n, sampler):
    if sampler == "nutpie":
        pytest.importorskip("nutpie")
    plain = KINDS["logistic"]()
    parallel = data_parallel(plain)
    chains = [quietly(pm.sample, model=model, nuts_sampler=sampler, **SHORT) for model in (plain, parallel)]
    wanted, found = (chain.posterior["beta"].values for chain in chains)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    values = quietly(compute_log_likelihood, chains[1], plain).log_likelihood["y"].values
    expected = quietly(pm.compute_log_likelihood, chains[1], model=plain, progressbar=False)
    np.testing.assert_allclose(values, expected.log_likelihood["y"].values, rtol=1e-10)
    draws = quietly(sample_posterior_predictive, chains[1], plain).posterior_predictive["y"].values
    assert draws.shape == values.shape and set(np.unique(draws)) == {0, 1}


def test_find_map_and_fit(n):
    plain = KINDS["logistic"]()
    parallel = data_parallel(plain)
    wanted, found = (pm.find_MAP(model=model, progressbar=False)["beta"] for model in (plain, parallel))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    wanted, found = (
        pm.fit(5, model=model, random_seed=3, progressbar=False).params[0].get_value() for model in (plain, parallel)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-8)


def test_samplers_inside_jax_are_refused(n):
    parallel = data_parallel(KINDS["logistic"]())
    with reports(ValueError, "numpyro", "nutpie"):
        quietly(pm.sample, model=parallel, nuts_sampler="numpyro", **SHORT)
