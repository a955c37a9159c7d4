"""`sample_posterior_predictive` draws observed variables from the same distributions as plain PyMC.

Modules: `predictive`.
"""

import numpy as np
import pytest
from refusals import refuses

import synkhronos as synk

pm = pytest.importorskip("pymc", reason='PyMC is not installed: pip install ".[pymc]"')
xarray = pytest.importorskip("xarray")

import pytensor.tensor as pt  # noqa: E402
from pymc_models import KINDS, N, X, marks, python_mode  # noqa: E402

from synkhronos.extensions.pymc import data_parallel, sample_posterior_predictive  # noqa: E402

pytestmark = marks()


def posterior_of(**draws):
    """Return a sampling result with these parameter draws, of shape ``(n_chains, n_draws, ...)``."""
    variables = {
        name: (("chain", "draw", *(f"{name}_{i}" for i in range(each.ndim - 2))), each) for name, each in draws.items()
    }
    return xarray.DataTree.from_dict({"posterior": xarray.Dataset(variables)})


def drawn(model, n=4):
    """Return a posterior that consists of prior draws."""
    model.rvs_to_initial_values.update(dict.fromkeys(model.rvs_to_initial_values))  # PyMC rejects initial values
    prior = pm.sample_prior_predictive(n, model=model, random_seed=1)["prior"].to_dataset()
    return posterior_of(**{each.name: prior[each.name].values for each in model.free_RVs})


def draw(trace, model, **arguments):
    """Return a model's predictive draws."""
    group = "predictions" if arguments.get("predictions") else "posterior_predictive"
    sample_posterior_predictive(trace, model, progressbar=False, **arguments)
    return trace[group].to_dataset()


#: Kinds that are refused, and kinds that PyMC itself cannot draw.
REFUSED = ("counts_without_zero", "named_axes_in_another_order", "a_parameter_of_each_named_row")
NOT_DRAWN = ("custom", "sparse_data_by_columns", "correlations")

#: Kinds that run in `make test`.
FEW = (
    "hierarchical",
    "logit_normal",
    "mixture",
    "censored",
    "covariances",
    "custom_of_an_array",
    "hurdle",
    "ones_in_the_graph",
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] * (name not in FEW))
        for name in KINDS
        if name not in REFUSED + NOT_DRAWN
    ],
)
def test_draws_look_like_those_of_the_plain_model(make_world, name):
    make_world("threads", 3)
    model = KINDS[name]()
    trace = drawn(model)
    expected = pm.sample_posterior_predictive(trace, model=model, progressbar=False)["posterior_predictive"]
    found = draw(trace, model)
    assert set(found.data_vars) == set(expected.data_vars)
    for key, values in found.data_vars.items():
        assert (values.dims, values.shape, values.dtype) == (
            expected[key].dims,
            expected[key].shape,
            expected[key].dtype,
        )
        assert values.values.std() > 0


@pytest.mark.thorough("^(?!counts)")
@pytest.mark.parametrize("name", REFUSED)
def test_refused_kinds(make_world, name):
    make_world("threads", 2)
    model = KINDS[name]()
    with refuses(TypeError, "y", "alone", "combines", "leave y out of var_names"):
        draw(drawn(model), model)


@pytest.mark.parametrize("world", ["threads", "fork"])
def test_moments_of_every_row(make_world, world):
    """Means, deviations and correlations of 2,000 normal draws are within 5.5 standard errors of the right ones."""
    make_world(world, 3)
    n = 2000
    with pm.Model() as model:
        a = pm.Normal("a")
        pm.Normal("y", a * X[:, 0], np.exp(X[:, 1]), observed=np.zeros(N))
    trace = posterior_of(a=np.linspace(-1, 1, n)[None])
    values = draw(trace, model, random_seed=3, mode=python_mode())["y"].values[0]
    standard = (values - np.linspace(-1, 1, n)[:, None] * X[:, 0]) / np.exp(X[:, 1])
    assert abs(standard.mean(0)).max() < 4.5 / np.sqrt(n)
    assert abs(standard.std(0) - 1).max() < 4.5 / np.sqrt(2 * n)
    correlations = np.corrcoef(standard.T) - np.eye(N)  # ranks do not repeat each other's numbers
    assert abs(correlations).max() < 5.5 / np.sqrt(n)
    assert abs(np.mean(standard[1:] * standard[:-1])) < 4.5 / np.sqrt(n * N)


def test_seeds(make_world):
    make_world("threads", 3)
    model = KINDS["several_observed"]()
    trace = drawn(model)
    first, again, other = (draw(trace, model, random_seed=seed) for seed in (1, np.random.default_rng(1), 2))
    for name in first.data_vars:
        np.testing.assert_array_equal(first[name].values, again[name].values)
        assert not np.array_equal(first[name].values, other[name].values)
    assert not np.array_equal(draw(trace, model)["many"].values, draw(trace, model)["many"].values)


def test_predictions_of_new_rows(make_world, tmp_path):
    """Predictions for data of another length equal NumPy's means if deviations are close to 0."""
    make_world("threads", 3)
    with pm.Model(coords={"row": range(N)}) as model:
        x = pm.Data("x", X[:, 0], dims="row")
        a = pm.Normal("a")
        pm.Normal("y", a * x, 1e-12, observed=X[:, 1], dims="row")
    trace = posterior_of(a=np.array([[0.5, -2.0]]))
    new = np.linspace(0, 1, 7)
    pm.set_data({"x": new}, model=model, coords={"row": range(100, 107)})
    found = draw(trace, model, predictions=True, out=tmp_path / "y.npy")["y"]
    np.testing.assert_allclose(found.values, [[0.5 * new, -2 * new]], atol=1e-10)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), found.values)
    assert found.dims == ("chain", "draw", "row") and list(found["row"].values) == list(range(100, 107))
    assert "posterior_predictive" not in trace.children


def by_a_function():
    pm.CustomDist("y", pm.Normal("a"), logp=lambda value, mu: -((value - mu) ** 2), random=draws, observed=X[:, 0])


def draws(mu, rng=None, size=None):
    return rng.normal(mu, 1, size=size)


def by_a_simulator():
    pm.Simulator("y", lambda rng, a, size=None: rng.normal(a, size=N), pm.Normal("a"), observed=X[:, 0])


@pytest.mark.parametrize("build", [by_a_function, by_a_simulator])
def test_python_functions_are_refused(make_world, build):
    """Distributions by Python functions, which would take a rank's rows for all rows, are refused."""
    make_world("threads", 2)
    with pm.Model() as model:
        build()
    with refuses(TypeError, "y", "dist=", "Python", "var_names"):
        draw(posterior_of(a=np.zeros((1, 2))), model)


def test_draws_do_not_change_the_model(make_world):
    make_world("threads", 2)
    model = KINDS["linear"]()
    states = [rv.owner.inputs[0].get_value().bit_generator.state for rv in model.basic_RVs]
    draw(drawn(KINDS["linear"]()), model)
    assert states == [rv.owner.inputs[0].get_value().bit_generator.state for rv in model.basic_RVs]


def test_arguments_that_cannot_be(make_world, tmp_path):
    make_world("threads", 2)
    model = KINDS["linear"]()
    trace = drawn(model)
    with refuses(ValueError, "model", hint="sample_posterior_predictive(trace, model)"):
        draw(trace, data_parallel(model))
    with refuses(TypeError, "var_names", "list", "'y'", "['y']"):
        draw(trace, model, var_names="y")
    with refuses(ValueError, "var_names", "(y)", "'beta'", "pm.sample_posterior_predictive"):
        draw(trace, model, var_names=["beta"])
    with refuses(ValueError, "out", "y", "'z'"):
        draw(trace, model, out={"z": tmp_path / "z.npy"})
    with pm.Model() as with_a_number:
        a = pm.Normal("a")
        pm.Normal("total", a, observed=1.5)
        pm.Normal("y", a, observed=X[:, 1])
    with refuses(ValueError, "total", "rows", "without rows", "leave total out of var_names"):
        draw(drawn(with_a_number), with_a_number)
    draw(drawn(with_a_number), with_a_number, var_names=["y"])
    with pm.Model() as mixed:
        x = pm.Data("x", X[:, 0])
        pm.Normal("y", pm.Normal("a") * x - pt.mean(x), observed=X[:, 1])
    with refuses(TypeError, "y", "alone", "combines", "leave y out of var_names"):
        draw(drawn(mixed), mixed)
    assert "posterior_predictive" not in trace.children and synk.size() == 2
