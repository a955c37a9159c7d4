"""`compute_log_likelihood` returns plain PyMC's values for every draw and row, in memory or in a file.

Modules: `pointwise`.
"""

import numpy as np
import pytest
from refusals import refuses

import synkhronos as synk

pm = pytest.importorskip("pymc", reason='PyMC is not installed: pip install ".[pymc]"')
xarray = pytest.importorskip("xarray")

from pymc_models import KINDS, REAL, N, marks, python_mode  # noqa: E402

from synkhronos.extensions.pymc import compute_log_likelihood, data_parallel  # noqa: E402

pytestmark = marks()

CHAINS, DRAWS = 2, 3


def drawn(model):
    """Return a posterior that consists of prior draws; the values do not matter."""
    random = np.random.default_rng(0)
    names = [each.name for each in model.free_RVs]
    prior = pm.sample_prior_predictive(CHAINS * DRAWS, model=model, var_names=names, random_seed=random)
    prior = prior["prior"].to_dataset()
    of_chains = {
        name: (
            ("chain", "draw", *prior[name].dims[2:]),
            prior[name].values.reshape(CHAINS, DRAWS, *prior[name].shape[2:]),
        )
        for name in names
    }
    posterior = xarray.Dataset(of_chains, coords={"chain": range(CHAINS), "draw": range(DRAWS)})
    return xarray.DataTree.from_dict({"posterior": posterior})


def plain_values(trace, model):
    model.rvs_to_initial_values.update(dict.fromkeys(model.rvs_to_initial_values))  # PyMC rejects initial values
    return pm.compute_log_likelihood(trace, model=model, extend_inferencedata=False, progressbar=False)


def assert_same(found, expected):
    assert set(found.data_vars) == set(expected.data_vars)
    for name in expected.data_vars:
        assert found[name].dims == expected[name].dims
        np.testing.assert_allclose(found[name].values, expected[name].values, rtol=1e-10, atol=1e-12)
        for dim in expected[name].dims:
            np.testing.assert_array_equal(found[name][dim].values, expected[name][dim].values)


#: Kinds of models that run in `make test`.
FEW = (
    "linear",
    "several_observed",
    "started_elsewhere",
    "covariances",
    "a_parameter_of_each_row",
    "logit_normal",
    "custom_of_data",
    "named_axes",
    "sparse_matrix",
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] * (name not in FEW))
        for name in KINDS
        # PyMC itself cannot compute these: it swaps two names, and a sparse pm.Data does not fit into its trace.
        if name not in ("correlations", "sparse_data_by_columns")
    ],
)
def test_values_are_those_of_the_plain_model(make_world, name):
    make_world("threads", 3)
    model = KINDS[name]()
    trace = drawn(model)
    assert compute_log_likelihood(trace, model, progressbar=False) is trace
    assert_same(trace["log_likelihood"].to_dataset(), plain_values(trace, model))


def test_on_processes_into_a_file(make_world, tmp_path):
    make_world("fork", 2)
    model = KINDS["linear"]()
    trace = drawn(model)
    with model:
        compute_log_likelihood(trace, out=tmp_path / "values.npy", progressbar=False, mode=python_mode())
    stored = np.load(tmp_path / "values.npy")
    np.testing.assert_allclose(stored, plain_values(trace, model)["y"].values, rtol=1e-10)
    np.testing.assert_array_equal(trace["log_likelihood"]["y"].values, stored)


def test_a_check_that_fails_for_some_draws_on_one_rank(make_world):
    """If a draw fails a component's check, the component has no probability for any row, as in the plain model."""
    make_world("threads", 3)
    shifts = np.where(np.arange(N) == 1, -0.5, 1.0)
    with pm.Model() as model:
        components = [pm.Normal.dist(0, pm.Normal("a") + shifts), pm.Normal.dist(0, 1)]
        pm.Mixture("y", w=[0.3, 0.7], comp_dists=components, observed=REAL)
    draws = xarray.Dataset({"a": (("chain", "draw"), np.array([[1.0, 0.0, 2.0, -2.0], [0.0, 0.0, 0.7, 1.0]]))})
    trace = xarray.DataTree.from_dict({"posterior": draws})
    compute_log_likelihood(trace, model, progressbar=False)
    expected = plain_values(trace, model)["y"].values
    np.testing.assert_allclose(trace["log_likelihood"]["y"].values, expected, rtol=1e-10)
    assert not np.allclose(expected[0, 0], expected[0, 1])


def test_names_of_dimensions(make_world):
    make_world("threads", 2)
    with pm.Model(coords={"person": [f"p{i}" for i in range(5)]}) as model:
        pm.Normal("y", pm.Normal("mu"), 1, observed=np.arange(5.0), dims="person")
    trace = drawn(model)
    compute_log_likelihood(trace, model, progressbar=False)
    assert trace["log_likelihood"]["y"].dims == ("chain", "draw", "person")
    assert_same(trace["log_likelihood"].to_dataset(), plain_values(trace, model))


def test_arguments_that_cannot_be(make_world, tmp_path):
    make_world("threads", 2)
    model = KINDS["linear"]()
    trace = drawn(model)
    with refuses(ValueError, "model", hint="compute_log_likelihood(trace, model)"):
        compute_log_likelihood(trace, data_parallel(model), progressbar=False)
    with refuses(ValueError, "out", "y", "'z'"):
        compute_log_likelihood(trace, model, out={"z": tmp_path / "z.npy"}, progressbar=False)
    empty = xarray.DataTree.from_dict({"posterior": trace["posterior"].to_dataset().isel(draw=slice(0))})
    for error, wrong, expected in [
        (TypeError, trace["posterior"].to_dataset(), "pm.sample"),
        (ValueError, drawn(KINDS["logistic"]()), "sigma"),
        (ValueError, empty, "one draw"),
    ]:
        with refuses(error, "idata", expected):
            compute_log_likelihood(wrong, model, progressbar=False)
    with refuses(ValueError, "data", "names", "'z'"):
        compute_log_likelihood(trace, model, ["z"], progressbar=False)
    assert "log_likelihood" not in trace.children and synk.size() == 2
