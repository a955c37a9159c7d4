"""Values and gradients of likelihoods over all ranks equal PyMC's in one process.

Modules: `named_axes`, `observed`, `operation`, `parameter_checks`, `rows`, `sparse_rows`.
"""

import numpy as np
import pytest
import scipy.sparse

import synkhronos as synk

pm = pytest.importorskip("pymc", reason='PyMC is not installed: pip install ".[pymc]"')

import pymc.dims as pmd  # noqa: E402
import pytensor  # noqa: E402
import pytensor.sparse  # noqa: E402
import pytensor.tensor as pt  # noqa: E402
from pymc.model.fgraph import clone_model  # noqa: E402
from pymc_models import (  # noqa: E402
    BINARY,
    COUNTS,
    KINDS,
    REAL,
    WEIGHTS,
    N,
    X,
    assert_same,
    evaluate,
    log_density,
    of_rows,
    points_of,
)

from synkhronos.extensions.pymc import data_parallel  # noqa: E402

pytestmark = [
    pytest.mark.pytensor,
    pytest.mark.usefixtures("nothing_compiled"),
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::Warning"),  # PyMC's own warnings vary between versions
]


#: A test in test_precision.py covers every kind.
FEW = ("logistic", "linear", "hierarchical", "covariances", "mixture", "truncated_on_both_sides", "several_observed")


@pytest.mark.thorough("-[13]$")
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("name", FEW)
def test_value_and_gradient_are_those_of_the_plain_model(make_world, name, n):
    make_world("threads", n)
    plain = KINDS[name]()
    parallel = data_parallel(plain)
    assert not [each for each in parallel.observed_RVs if each.name != "few"]
    assert_same(parallel, plain)


@pytest.mark.thorough
@pytest.mark.timeout(600)  # compiles two graphs
def test_compiled_by_numba(make_world):
    pytest.importorskip("numba")
    make_world("fork", 2)
    with pytensor.config.change_flags(mode="NUMBA"):
        plain = KINDS["logistic"]()
        assert_same(data_parallel(plain), plain, 5)


def test_of_processes(make_world):
    make_world("fork", 2)
    plain = KINDS["linear"]()
    assert_same(data_parallel(plain), plain)


def test_a_point_has_its_elements_in_the_same_order():
    for name in FEW:
        plain = KINDS[name]()
        assert [each.name for each in data_parallel(plain).value_vars] == [each.name for each in plain.value_vars]


def test_of_a_function_with_its_parameters(make_world):
    make_world("threads", 2)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        potential = data_parallel(log_density, [X, BINARY], [beta], name="many")
    assert potential.name == "many" and model.potentials == [potential]
    assert_same(model, KINDS["logistic"]())


def test_of_a_function_that_uses_variables_of_the_model(make_world):
    make_world("threads", 2)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        data_parallel(lambda X, y: log_density(X, y, beta), [X, BINARY])
    assert_same(model, KINDS["logistic"]())


def test_of_parameters_that_are_expressions(make_world):
    make_world("threads", 2)
    with pm.Model() as model:
        raw = pm.Normal("raw", 0, 1, shape=3)
        data_parallel(log_density, (X, BINARY), (2 * raw + 1,))
    with pm.Model() as plain:
        raw = pm.Normal("raw", 0, 1, shape=3)
        pm.Bernoulli("y", logit_p=X @ (2 * raw + 1), observed=BINARY)
    assert_same(model, plain)


def test_of_a_function_with_named_axes(make_world):
    make_world("threads", 2)

    def logp(X, y, beta, sigma):
        return pm.logp(pmd.Normal.dist(of_rows(X, "feature").dot(beta), sigma), of_rows(y))

    with pm.Model(coords={"feature": range(3)}) as model:
        parameters = [pmd.Normal("beta", 0, 1, dims="feature"), pmd.HalfNormal("sigma", 1)]
        data_parallel(logp, [X, REAL], parameters)
    assert_same(model, KINDS["named_axes"](), 5)


def test_an_axis_of_another_name_may_be_as_long_as_the_rows(make_world):
    make_world("threads", 2)
    with pm.Model(coords={"row": range(N), "feature": range(N)}) as plain:
        weights = pmd.Data("K", X @ X.T, dims=("feature", "row"))
        pmd.Normal("y", weights.dot(pmd.Normal("beta", dims="feature")), 1, observed=of_rows(REAL))
    assert_same(data_parallel(plain), plain, 5)


def test_of_data_in_shared_memory_and_in_a_file(make_world, tmp_path):
    make_world("fork", 2)
    np.save(tmp_path / "X.npy", X)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        data_parallel(log_density, [tmp_path / "X.npy", synk.data(BINARY)], [beta])
    assert_same(model, KINDS["logistic"]())


def test_of_float32(make_world):
    make_world("threads", 2)
    few = X.astype("float32")
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        data_parallel(log_density, [few, BINARY.astype("int8")], [beta])
    with pm.Model() as plain:
        beta = pm.Normal("beta", 0, 1, shape=3)
        pm.Bernoulli("y", logit_p=few @ beta, observed=BINARY)
    assert_same(model, plain)


def test_probabilities_that_round_to_1(make_world):
    make_world("threads", 2)
    plain = KINDS["logistic"]()
    points = [{"beta": scale * WEIGHTS} for scale in (-300.0, -40.0, 40.0, 300.0)]
    for found, expected in zip(evaluate(data_parallel(plain), points), evaluate(plain, points)):
        assert np.isfinite(expected[1]).all()
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-10)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-10)


def test_parameters_out_of_range(make_world):
    make_world("threads", 2)
    with pm.Model() as model:
        sigma = pm.Normal("sigma", 0, 1)
        data_parallel(
            lambda x, y: pm.logp(pm.Normal.dist(0, pt.switch(x > 0, sigma, 1)), y), [np.arange(N) > N - 2, REAL]
        )
    logp = model.compile_logp()  # only the last row, which one rank has, is out of range
    assert logp({"sigma": -1.0}) == -np.inf and np.isfinite(logp({"sigma": 1.0}))


@pytest.mark.parametrize("check_bounds", [True, False])
def test_bounds_are_checked_as_by_the_plain_model(make_world, check_bounds):
    make_world("threads", 2)
    with pm.Model(check_bounds=check_bounds) as plain:
        pm.Laplace("y", 0, pm.Normal("b"), observed=REAL)
    points = [{"b": -2.0}, {"b": 2.0}]
    for found, expected in zip(evaluate(data_parallel(plain), points), evaluate(plain, points)):
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-10)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-10)


@pytest.mark.parametrize("form", ["model", "function", "with params"])
def test_of_a_covariance_far_out(make_world, form):
    make_world("threads", 2)
    plain = KINDS["covariances"]()
    with pm.Model() as parallel:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=3, eta=2.0, sd_dist=pm.Exponential.dist(1.0, shape=3))
        mu = pm.Normal("mu", 0, 1, shape=3)
        if form == "function":
            data_parallel(lambda x: pm.logp(pm.MvNormal.dist(mu, chol=chol), x), [X])
        elif form == "with params":
            data_parallel(lambda x, mu, chol: pm.logp(pm.MvNormal.dist(mu, chol=chol), x), [X], [mu, chol])
    if form == "model":
        parallel = data_parallel(plain)
    points = points_of(plain, 3) + points_of(plain, 3, 8.0)
    for found, expected in zip(evaluate(parallel, points), evaluate(plain, points)):
        assert np.isfinite(expected[1]).all()
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-10)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-10, atol=1e-10 * abs(expected[1]).max())


def test_a_parameter_without_a_gradient(make_world, caplog):
    make_world("threads", 2)
    plain = KINDS["change_point"]()
    with caplog.at_level("WARNING", "synkhronos"):
        assert_same(data_parallel(plain), plain, 3)
    assert not caplog.records


def test_models_made_of_a_parallel_one(make_world):
    make_world("threads", 2)
    plain = KINDS["linear"]()
    clone = clone_model(data_parallel(plain))
    (point,) = points_of(plain, 1)
    for name in ("beta", "sigma"):  # (PyMC may reorder the variables of a clone)
        found, expected = (
            model.compile_fn([model.logp(), model.dlogp([model[name]])], inputs=model.value_vars)(point)
            for model in (clone, plain)
        )
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-10)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-10)


def test_rows_of_some_data_only(make_world):
    make_world("threads", 2)
    plain = KINDS["several_observed"]()
    parallel = data_parallel(plain, ["many"])
    assert [each.name for each in parallel.observed_RVs] == ["few", "more"]  # in the plain model's order
    assert_same(parallel, plain, 5)
    by_data = data_parallel(KINDS["linear"](), ["X"])
    assert not by_data.observed_RVs and not {"values"} & set(by_data.named_vars)
    assert_same(by_data, KINDS["linear"](), 5)


def with_settings(parallel):
    """Return a model with data that a program may change, and one of its shared variables."""
    other = pytensor.shared(1.0, "other")
    with pm.Model() as model:
        mu = pm.Normal("mu")
        scale, weights = pm.Data("scale", 2.0), pm.Data("weights", [1.0, 2.0, 3.0])

        def logp(X, y):
            return pm.logp(pm.Normal.dist(mu * (X @ weights), scale * other), y)

        if parallel:
            data_parallel(logp, [X, REAL])
        else:
            pm.Normal("y", mu * (pm.Data("X", X) @ weights), scale * other, observed=REAL)
    return model, other


@pytest.mark.parametrize("form", ["model", "function"])
def test_values_of_pm_data_go_with_every_call(make_world, form):
    make_world("threads", 2)
    plain, other = with_settings(False)
    if form == "model":
        parallel, other_of_parallel = data_parallel(plain), other
    else:
        parallel, other_of_parallel = with_settings(True)
    found, expected = (model.compile_fn([model.logp(), model.dlogp()]) for model in (parallel, plain))
    before = expected({"mu": 0.3})[0]

    def assert_equal():
        for one, truth in zip(found({"mu": 0.3}), expected({"mu": 0.3})):
            np.testing.assert_allclose(one, truth, rtol=1e-10)

    assert_equal()
    for model in (plain, parallel):
        with model:
            pm.set_data({"scale": 3.0, "weights": [3.0, 1.0, 0.0]})
    assert_equal()
    for each in (other, other_of_parallel):
        each.set_value(2.0)
    assert_equal()
    assert abs(expected({"mu": 0.3})[0] - before) > 1


#: Log-probabilities that use the number of the given rows.
SIZED = {
    "normal": lambda y, mu: pm.logp(pm.Normal.dist(mu, shape=y.shape), y),
    "bounded": lambda y, mu: pm.logp(pm.Truncated.dist(pm.Normal.dist(mu), lower=-9.0, upper=9.0, shape=y.shape), y),
    "truncated": lambda y, mu: pm.logp(pm.Truncated.dist(pm.Normal.dist(mu), lower=-9.0), y),
    "censored": lambda y, mu: pm.logp(pm.Censored.dist(pm.Normal.dist(mu), lower=-9.0, upper=9.0, shape=y.shape), y),
    "mixture": lambda y, mu: pm.logp(pm.NormalMixture.dist([0.0, 1.0], [9.0, mu], 1.0, shape=y.shape), y),
    "transformed": lambda y, mu: pm.logp(3 * pm.Normal.dist(mu / 3, 1 / 3, shape=y.shape), y),
}


@pytest.mark.parametrize("case", SIZED)
def test_distributions_of_the_size_of_the_rows(make_world, case):
    make_world("threads", 2)
    with pm.Model() as model:
        data_parallel(SIZED[case], [REAL], [pm.Normal("mu")])
    y, mu = pt.dvector("y"), pt.dscalar("mu")
    plain = SIZED[case](y, mu).sum() + pm.logp(pm.Normal.dist(), mu)
    plain = pytensor.function([y, mu], [plain, pt.grad(plain, mu)])
    for point in (-0.5, 1.0):
        value, gradient = evaluate(model, [{"mu": point}])[0]
        expected, expected_gradient = plain(REAL, point)
        np.testing.assert_allclose(value, expected, rtol=1e-10)
        np.testing.assert_allclose(gradient, [expected_gradient], rtol=1e-10)
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("batch", [1, 7, N])
def test_a_batch_estimates_the_sum_over_all_rows(make_world, batch):
    make_world("threads", 2)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        y = np.arange(N) * 100.0
        data_parallel(lambda y: mu * y, [y], batch=batch)
    draw = model.compile_fn([model.potentiallogp, pt.grad(model.potentiallogp, model.value_vars[0])], random_seed=1)
    results = np.array([draw({"mu": 2.0}) for _ in range(30)])
    rows = results / (N / batch)
    np.testing.assert_allclose(rows % 100, 0, atol=1e-6)  # sums of whole rows
    np.testing.assert_allclose(results[:, 0], 2 * results[:, 1], rtol=1e-12)  # value and gradient use the same rows
    assert np.ptp(results) > 0
    error = abs(results[:, 1].mean() - y.sum())
    assert error < 5 * N * y.std() / np.sqrt(batch * 30)


# -- parameter checks, and lengths from dims ---------------------------------------------------------------------------

#: Parameter by component or row: negative for some rows if a is 0, and for all rows if a is -2.
SHIFTS = np.where(np.arange(N) == 1, -0.5, 1.0)


def of_a_mixture():
    components = [pm.Normal.dist(0, pm.Normal("a") + SHIFTS), pm.Normal.dist(0, 1)]
    pm.Mixture("y", w=[0.3, 0.7], comp_dists=components, observed=REAL)


def of_zeros():
    pm.ZeroInflatedPoisson("y", psi=0.5, mu=pm.Normal("a") + SHIFTS, observed=np.arange(N) % 3)


def without_components():
    pm.Normal("y", 0, pm.Normal("a") + SHIFTS, observed=REAL)


@pytest.mark.parametrize("build", [of_a_mixture, of_zeros, without_components])
def test_a_check_that_fails_for_one_rank_counts_for_all(make_world, build):
    """A failed parameter check counts for all rows, although only one rank has a row with a negative deviation."""
    make_world("threads", 3)
    with pm.Model() as plain:
        build()
    parallel = data_parallel(plain)
    points = [{"a": np.array(a)} for a in (0.0, 1.0, -2.0)]
    for (value, gradient), (expected, of_plain) in zip(evaluate(parallel, points), evaluate(plain, points)):
        np.testing.assert_allclose(value, expected, rtol=1e-10)
        np.testing.assert_allclose(gradient, of_plain, rtol=1e-10)


def a_level_of_each_row():
    pm.Normal("y", pm.Normal("a", dims="row"), pm.HalfNormal("s"), observed=REAL, dims="row")


def a_scaled_level_of_each_row():
    mean = pm.Normal("z", dims="row") * pm.HalfNormal("s")
    pm.Poisson("y", pt.exp(mean), observed=COUNTS, dims="row")


def several_levels_of_each_row():
    pm.Normal("y", pm.Normal("a", dims=("row", "feature")), 1, observed=X, dims=("row", "feature"))


def as_many_levels_as_data():
    data = pm.Data("X", X)
    pm.Normal("y", pm.Gamma("a", 1, 1, shape=data.shape[0]) + data[:, 0], 1, observed=REAL)


@pytest.mark.parametrize(
    "build",
    [a_level_of_each_row, a_scaled_level_of_each_row, several_levels_of_each_row, as_many_levels_as_data],
)
def test_parameters_whose_length_is_not_in_their_type(make_world, build):
    make_world("threads", 3)
    with pm.Model(coords={"row": range(N), "feature": range(3)}) as plain:
        build()
    assert_same(data_parallel(plain), plain, 5)


def test_sparse_rows_beside_an_infinite_parameter(make_world):
    """Padding of sparse rows adds 0, not 0 * inf."""
    make_world("threads", 3)
    matrix = scipy.sparse.csr_matrix(np.where((np.arange(N)[:, None] + [0, 1, 2]) % 4 == 1, X, 0) * [0, 1, 1])
    with pm.Model() as plain:
        beta, given = pm.Normal("beta", shape=3), pm.Data("matrix", matrix)
        pm.Normal("y", pytensor.sparse.dot(given, pt.log(pt.abs(beta))), 1, observed=REAL, shape=given.shape[0])
    points = [{"beta": np.array([0.0, 1.0, 2.0])}, {"beta": np.array([0.5, 1.0, 2.0])}]
    for (value, _), (expected, _) in zip(evaluate(data_parallel(plain), points), evaluate(plain, points)):
        assert np.isfinite(expected)
        np.testing.assert_allclose(value, expected, rtol=1e-10)


@pytest.mark.parametrize("n_points", [N, 7])
@pytest.mark.parametrize("ndim", [1, 2])
def test_interpolated_densities(make_world, n_points, ndim):
    """An interpolated density's points are not taken for rows, even if their numbers are equal."""
    make_world("threads", 3)
    points = np.linspace(-9, 9, n_points)

    def density(values, center):
        density = pm.Interpolated.dist(points, np.exp(-(points**2) / 8))
        return pm.logp(density, values - center).reshape((values.shape[0], -1)).sum(axis=1)

    rows = REAL if ndim == 1 else np.stack([REAL, REAL / 2], axis=1)
    with pm.Model() as parallel:
        data_parallel(density, [rows], [pm.Normal("center")])
    with pm.Model() as plain:
        pm.Potential("y", density(pt.as_tensor(rows), pm.Normal("center")))
    assert_same(parallel, plain)
    with pm.Model() as observed:
        pm.Normal("a")
        pm.Interpolated("y", points, np.exp(-(points**2) / 8), observed=rows)
    assert_same(data_parallel(observed), observed)
