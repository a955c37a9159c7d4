"""Input that `data_parallel` refuses."""

import numpy as np
import pytest
from refusals import refuses, reports

from synkhronos.errors import StateError

pm = pytest.importorskip("pymc", reason='PyMC is not installed: pip install ".[pymc]"')

import pymc.dims as pmd  # noqa: E402
import pytensor  # noqa: E402
import pytensor.sparse as sparse  # noqa: E402
import pytensor.tensor as pt  # noqa: E402
import scipy.sparse  # noqa: E402
from pymc_models import BINARY, FEW_ELEMENTS, KINDS, REAL, N, X, evaluate, log_density, marks, of_rows  # noqa: E402

from synkhronos.extensions.pymc import data_parallel  # noqa: E402

pytestmark = marks()


def in_model(*args, **kwargs):
    """Call data_parallel in the context of a model with a parameter ``beta``."""
    with pm.Model():
        beta = pm.Normal("beta", 0, 1, shape=3)
        kwargs.setdefault("params", [beta])
        return data_parallel(*args, **kwargs)


def test_refused_data():
    with refuses(ValueError, "data[1]", "as many rows as data[0] (53)", "52"):
        in_model(log_density, [X, BINARY[:-1]])
    with refuses(TypeError, "data[1]", "numbers", "dtype <U1"):
        in_model(log_density, [X, np.array(["a"] * N)])
    with refuses(TypeError, "data[0]", "numbers", "dtype object"):
        in_model(log_density, [X.astype(object), BINARY])
    with refuses(ValueError, "data[1]", "rows", "a number"):
        in_model(log_density, [X, 3.0])
    with refuses(ValueError, "data[0]", "rows", "(0, 3)"):
        in_model(log_density, [X[:0], BINARY[:0]])
    with refuses(ValueError, "data", "one"):
        in_model(log_density, [])
    with refuses(TypeError, "data", "a list of arrays", "ndarray"):
        in_model(log_density, X)


def test_refused_arguments():
    with refuses(TypeError, "params[0]", "a variable", "1"):
        in_model(log_density, [X, BINARY], params=[1])
    with refuses(TypeError, "params", "list"):
        in_model(log_density, [X, BINARY], params=3)
    with refuses(TypeError, "model_or_logp", "pm.Model", "3"):
        data_parallel(3)
    with refuses(TypeError, "model_or_logp", "returns", "None"):
        in_model(lambda X, beta: None, [X])
    with refuses(TypeError, "batch", "an int", "0.5"):
        in_model(log_density, [X, BINARY], batch=0.5)
    for batch in (0, N + 1):
        with refuses(ValueError, "batch", "an int from 1 to 53 (number of rows)", str(batch)):
            in_model(log_density, [X, BINARY], batch=batch)
    with reports(StateError, "data_parallel", "pm.Model"):
        data_parallel(log_density, [X, BINARY])
    with refuses(TypeError, "likelihood", "a log-probability", "random"):
        in_model(lambda X, beta: pm.Normal.dist(X @ beta), [X])
    with pm.Model():
        mu = pm.Normal("mu")
        with refuses(TypeError, "likelihood", "a log-probability", "random", "function"):
            data_parallel(lambda y: pm.logp(3 * pm.Normal.dist(mu), y), [REAL])
        with refuses(TypeError, "data[0]", "numbers", "a variable (y)", "get_value()"):
            data_parallel(lambda y: y * mu, [pm.Data("y", REAL)])


@pytest.mark.parametrize(
    "dist",
    [
        lambda y, mu: pm.Truncated.dist(pm.Normal.dist(mu), lower=-9.0, shape=y.shape),
        lambda y, mu: pm.Truncated.dist(pm.Normal.dist(mu * y), upper=9.0),
        lambda y, mu: pm.TruncatedNormal.dist(mu, 1, lower=-9.0, shape=y.shape),
    ],
    ids=["shape", "rows", "truncated_normal"],
)
def test_open_bounds_that_have_no_gradient(dist):
    with pm.Model():
        mu = pm.Normal("mu")
        with refuses(ValueError, "likelihood", "gradient", "open bound", "observed=y"):
            data_parallel(lambda y, mu: pm.logp(dist(y, mu), y), [REAL], [mu])
    with pm.Model() as plain:
        y, mu = pytensor.shared(REAL), pm.Normal("mu")
        pm.Potential("likelihood", pm.logp(dist(y, mu), y).sum())
    assert np.isnan(evaluate(plain, [{"mu": 0.5}])[0][1])  # PyMC's own result, with the same function


def gaussian_process(X, y, beta):
    covariance = pm.gp.cov.ExpQuad(3, pt.exp(beta[0]))(X) + pt.eye(X.shape[0])
    return pm.logp(pm.MvNormal.dist(pt.zeros(X.shape[0]), covariance), y)


#: Functions that combine rows, with words of the refusal.
MIXED = {
    "a mean of all rows": (lambda X, y, beta: log_density(X, y, beta) - (X @ beta).mean(), "mean needs the whole"),
    "a sum": (lambda X, y, beta: log_density(X, y, beta).sum(), "a single number"),
    "sums up to a row": (lambda X, y, beta: log_density(X, y, beta).cumsum(), "along the axis of the rows"),
    "rows before": (lambda X, y, beta: y[1:] - beta[0] * y[:-1], "along the axis of the rows"),
    "all with all": (lambda X, y, beta: pt.dot(X, X.T) @ pt.ones_like(y), "each row with all others"),
    "rows along another axis": (lambda X, y, beta: (X * beta).T, "along axis 1"),
    "their number": (lambda X, y, beta: log_density(X, y, beta) - pt.log(y.shape[0]), "how many rows the rank has"),
    "their positions": (lambda X, y, beta: y * beta[0] * pt.arange(y.shape[0]), "rows"),
    "standardized data": (lambda X, y, beta: ((X - X.mean(0)) @ beta) * y, "needs the whole"),
    "no rows": (lambda X, y, beta: beta, "the same for all rows"),
    "a Gaussian process": (gaussian_process, "a single number"),
}


@pytest.mark.parametrize("case", MIXED)
def test_likelihoods_that_mix_rows_are_refused(case):
    logp, got = MIXED[case]
    with refuses(TypeError, "likelihood", "row", got, "PyMC"):
        in_model(logp, [X, BINARY])


def test_models_that_mix_rows_are_refused():
    with pm.Model() as of_time:
        pm.AR("y", pm.Normal("rho"), sigma=1.0, init_dist=pm.Normal.dist(0, 1), observed=REAL)
    with refuses(TypeError, "y", "row"):
        data_parallel(of_time)
    with pm.Model() as process:
        covariance = pm.gp.cov.ExpQuad(3, pm.HalfNormal("scale"))
        pm.gp.Marginal(cov_func=covariance).marginal_likelihood("y", X, REAL, sigma=1.0)
    with refuses(TypeError, "y", "row"):
        data_parallel(process)


def test_refused_models():
    with refuses(ValueError, "data", "pm.Data", "'Z'"):
        data_parallel(KINDS["linear"](), ["X", "Z"])
    with refuses(TypeError, "data", "list", hint="model"):
        data_parallel(KINDS["linear"](), [X])
    with refuses(TypeError, "params", "a model"):
        data_parallel(KINDS["linear"](), params=[])
    with pm.Model() as nothing_observed:
        pm.Normal("a")
    with refuses(ValueError, "model", "observed"):
        data_parallel(nothing_observed)
    with pm.Model() as in_batches:
        rows, values = pm.Minibatch(X, REAL, batch_size=10)
        pm.Normal("y", rows @ pm.Normal("beta", shape=3), observed=values, total_size=N)
    with refuses(ValueError, "model", hint="pass batch= to data_parallel"):
        data_parallel(in_batches)
    missing = REAL.copy()
    missing[3] = np.nan
    with pm.Model() as with_missing:
        pm.Normal("y", pm.Normal("a"), observed=np.ma.masked_invalid(missing))
    with refuses(ValueError, "model", "missing", "y_observed", "impute"):
        data_parallel(with_missing)
    with pm.Model() as simulated:
        pm.Simulator("y", lambda rng, a, size: rng.normal(a, size=size), pm.Normal("a"), observed=REAL)
    with refuses(TypeError, "y", "row", "pm.Simulator", "plain PyMC"):
        data_parallel(simulated)
    with pm.Model() as chained:
        first = pm.Normal("first", pm.Normal("a"), observed=REAL)
        pm.Normal("second", first, observed=REAL)
    with refuses(TypeError, "second", "free", "first"):
        data_parallel(chained)


def test_rows_that_are_not_the_first_named_axis():
    coords = {"row": range(N), "feature": range(3)}
    with pm.Model(coords=coords) as rows_last:
        mu = pmd.Normal("mu", dims="feature")
        pmd.Normal("y", mu, 1, observed=of_rows(X, "feature"), dims=("feature", "row"))
    with refuses(ValueError, "data of y", "first axis is feature", "row, feature", "first"):
        data_parallel(rows_last)
    with pm.Model(coords=coords) as data_transposed:
        data = pmd.Data("X", X.T, dims=("feature", "row"))
        pmd.Normal("y", data.dot(pmd.Normal("beta", dims="feature")), 1, observed=of_rows(REAL))
    with refuses(ValueError, "X", "first axis is row", "feature, row", "first"):
        data_parallel(data_transposed, ["X"])
    with pm.Model(coords=coords) as centred:
        data = pmd.Data("X", X, dims=("row", "feature"))
        beta = pmd.Normal("beta", dims="feature")
        pmd.Normal("y", (data - data.mean("row")).dot(beta), 1, observed=of_rows(REAL))
    with refuses(TypeError, "y", "row", "X"):
        data_parallel(centred)


def test_lengths_in_the_model_are_no_lengths_of_a_batch():
    with refuses(ValueError, "batch", "53", "10", "pm.Data"):
        data_parallel(KINDS["repeated"](), batch=10)
    data_parallel(KINDS["logistic"](), batch=10)


SPARSE_TERMS = {
    "transposed": lambda beta: sparse.dot(sparse.as_sparse_variable(FEW_ELEMENTS.T.tocsr()).T, beta),
    "twice as large": lambda beta: sparse.dot(sparse.as_sparse_variable(FEW_ELEMENTS) * 2, beta),
    "without rows": lambda beta: X @ sparse.dot(scipy.sparse.csr_matrix(np.eye(3)), beta),
}


@pytest.mark.parametrize("term", SPARSE_TERMS)
def test_sparse_matrices_in_other_operations(term):
    with pm.Model() as model:
        pm.Normal("y", SPARSE_TERMS[term](pm.Normal("beta", shape=3)), 1, observed=REAL)
    with refuses(TypeError, "y", "product", "sparse", "toarray"):
        data_parallel(model)


def test_a_sparse_matrix_with_one_long_row():
    matrix = scipy.sparse.lil_matrix((N, 500))
    matrix[0] = np.ones(500)
    with pm.Model() as model:
        pm.Normal("y", sparse.dot(matrix.tocsr(), pm.Normal("beta", shape=500)), 1, observed=REAL)
    with refuses(ValueError, "data of y", "10 times", "500 elements", "dense"):
        data_parallel(model)


def test_a_sparse_matrix_in_a_function():
    with refuses(TypeError, "data[0]", "numbers", "sparse", "toarray"):
        in_model(log_density, [FEW_ELEMENTS, BINARY])
    with refuses(TypeError, "likelihood", "dense", "sparse", "toarray"):
        in_model(lambda y, beta: pm.logp(pm.Normal.dist(sparse.dot(FEW_ELEMENTS, beta)), y), [REAL])


def test_initial_values():
    """Initial values are copied from the plain model; an expression as an initial value is refused."""
    plain = KINDS["started_elsewhere"]()
    parallel = data_parallel(plain)
    for model in (plain, parallel):
        point = model.initial_point()
        np.testing.assert_array_equal(point["beta"], [0.5, -0.5, 0.1])
        np.testing.assert_allclose(point["sigma_log__"], np.log(2.0))
    with pm.Model() as model:
        a = pm.Normal("a")
        pm.Normal("b", initval=a + 1)
        pm.Normal("y", a + X[:, 0], 1, observed=REAL)
    with refuses(TypeError, "initval", got="for b", hint="value"):
        data_parallel(model)
    assert [value for value in model.rvs_to_initial_values.values() if value is not None]
