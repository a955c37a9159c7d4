"""Programs of docs/pytensor_programs.rst equal the serial programs or are refused, as its table states."""

import re
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses

import synkhronos as synk

pytestmark = [pytest.mark.pytensor, pytest.mark.filterwarnings("ignore:Numba will use object mode")]
pytensor = pytest.importorskip("pytensor")
pt = pytest.importorskip("pytensor.tensor")

from pytensor.scan.utils import until  # noqa: E402
from pytensor.tensor.optimize import minimize, root  # noqa: E402

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "pytensor_programs.rst").read_text()
EXAMPLES = DOCS / "examples"
PROGRAMS = re.findall(r"literalinclude:: examples/pytensor_programs.py\n +:pyobject: (\w+)", PAGE)


@pytest.fixture
def threads(make_world):
    return make_world("threads", 3, 1, engine="pytensor")


@pytest.fixture
def programs(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import pytensor_programs

    return pytensor_programs


def numbers(results):
    """Return all numbers of a result, which is an array or contains arrays."""
    arrays = results if isinstance(results, (list, tuple)) else [results]
    return np.concatenate([np.ravel(each) for each in arrays])


def equals_serial(program, rows):
    parallel, serial = program(*rows)
    for _ in range(2):
        expected = numbers(serial())
        assert np.isfinite(expected).all()
        np.testing.assert_allclose(numbers(parallel()), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(threads, programs, name):
    equals_serial(getattr(programs, name), programs.draw(23, 4))


@pytest.mark.parametrize("name", ["lbfgs", "scattered_rows", "k_means"])
def test_on_processes_too(make_world, programs, name):
    make_world("fork", 3, 0, engine="pytensor")
    equals_serial(getattr(programs, name), programs.draw(23, 4))


def test_the_page_has_all_programs(programs):
    assert [program.__name__ for program in programs.PROGRAMS] == PROGRAMS


def test_the_command_prints_times(programs, monkeypatch, capsys):
    monkeypatch.setattr(programs, "PROGRAMS", [programs.scores])
    programs.main(rows=20, columns=3)
    assert re.match(r"scores +serial +[\d.]+ s, 2 ranks", capsys.readouterr().out)


def test_results_equal_those_of_numpy(threads, programs):
    """Results of programs with a short closed form equal NumPy's."""
    X, y = programs.draw(23, 4)
    beta = np.full(4, 0.1)
    p = 1 / (1 + np.exp(-X @ beta))
    loglik, gradient, hessian = programs.likelihood(X, y)[0]()
    np.testing.assert_allclose(loglik, np.log(np.where(y == 1, p, 1 - p)).sum(), rtol=1e-9)
    np.testing.assert_allclose(gradient, X.T @ (y - p), rtol=1e-9)
    np.testing.assert_allclose(hessian, -(X.T * p * (1 - p)) @ X, rtol=1e-9)

    correlations = np.corrcoef(X, y, rowvar=False)[-1, :-1]
    np.testing.assert_allclose(programs.scattered_rows(X, y)[0](), correlations, rtol=1e-9)

    fitted = programs.irls(X, y)[0]()
    np.testing.assert_allclose(X.T @ (y - 1 / (1 + np.exp(-X @ fitted))), 0, atol=1e-9)

    centers = X[:3]
    for _ in range(10):
        nearest = ((X[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
        centers = np.array([X[nearest == i].mean(axis=0) for i in range(3)])
    np.testing.assert_allclose(programs.k_means(X, y)[0]()[1], centers, rtol=1e-9)


def squares(x, t, beta):
    return ((x @ beta - t) ** 2).sum()


def covariance(x):
    centered = x - x.mean(axis=0)
    return centered.T @ centered / (x.shape[0] - 1)


def log_of_squares(x, t, beta):
    """Return a function of a sum over rows; its derivatives need the complete sum."""
    return pt.log(squares(x, t, beta))


#: Other values that the page lists as supported without changes, except `bcast_inputs`.
SUPPORTED = {
    "jacobian": lambda x, t, beta: pt.jacobian(pytensor.grad(squares(x, t, beta), beta), beta),
    "hessian of a function of sums": lambda x, t, beta: pt.jacobian(
        pytensor.grad(log_of_squares(x, t, beta), beta), beta, vectorize=True
    ),
    "hessian, row by row": lambda x, t, beta: pt.stack(
        [pytensor.grad(pytensor.grad(log_of_squares(x, t, beta), beta)[i], beta) for i in range(4)]
    ),
    "hessian_vector_product": lambda x, t, beta: pytensor.gradient.hessian_vector_product(
        squares(x, t, beta), [beta], [beta + 1]
    )[0],
    "vectorize": lambda x, t, beta: pt.vectorize(lambda row, target: target * pt.tanh(row @ beta), "(k),()->()")(x, t),
    "variance": lambda x, t, beta: x.var(axis=0),
    "extremes": lambda x, t, beta: (x - x.min(axis=0)) / (x.max(axis=0) - x.min(axis=0)),
    "covariance": lambda x, t, beta: pt.cov(x, rowvar=False),
    "counts per group": lambda x, t, beta: pt.bincount(t.astype("int64"), minlength=3),
    "means per group": lambda x, t, beta: (
        pt.zeros(2)[t.astype("int64")].inc(x[:, 0]) / pt.zeros(2)[t.astype("int64")].inc(1.0)
    ),
    "cholesky": lambda x, t, beta: pt.linalg.cholesky(covariance(x)),
    "eigh": lambda x, t, beta: pt.linalg.eigh(covariance(x))[0],
    "least squares": lambda x, t, beta: pt.linalg.solve(x.T @ x, x.T @ t),
    "median of each row": lambda x, t, beta: pt.median(x, axis=1),
}


@pytest.mark.parametrize("name", SUPPORTED)
def test_what_is_supported(threads, programs, name):
    x, t, beta = pt.dmatrix("x"), pt.dvector("t"), pt.dvector("beta")
    output, (X, y), parameters = SUPPORTED[name](x, t, beta), programs.draw(23, 4), np.full(4, 0.1)
    f = synk.function([x, t], output, bcast_inputs=[beta], exact=True, on_unused_input="ignore")
    g = pytensor.function([x, t, beta], output, on_unused_input="ignore")
    np.testing.assert_allclose(f(X, y, parameters), g(X, y, parameters), rtol=1e-9, atol=1e-12)


#: Programs that the page lists as refused, with words of the reason.
REFUSED = {
    "parameters among inputs": (lambda x, t, beta: squares(x, t, beta), "bcast_inputs=[beta]"),
    "hessian of a function of sums": (
        lambda x, t, beta: pytensor.gradient.hessian(log_of_squares(x, t, beta), beta),
        "whole value",
    ),
    "jacobian of rows": (lambda x, t, beta: pt.jacobian(pt.tanh(x @ beta), beta), "positions of rows"),
    "loop over rows": (
        lambda x, t, beta: pytensor.scan(lambda row: row.sum(), x, return_updates=False),
        "how many rows",
    ),
    "loop until rows agree": (
        lambda x, t, beta: pytensor.scan(
            lambda v: (v * 2, until(pt.all(v > 9))), outputs_info=t, n_steps=9, return_updates=False
        ),
        "condition",
    ),
    "Newton steps in a loop": (
        lambda x, t, beta: pytensor.scan(
            lambda b: b - pt.linalg.inv(x.T @ x) @ pytensor.grad(squares(x, t, b), b),
            outputs_info=beta,
            n_steps=3,
            return_updates=False,
        )[-1],
        "whole value",
    ),
    "minimize": (lambda x, t, beta: minimize(squares(x, t, beta), beta)[0], "MinimizeOp"),
    "root": (lambda x, t, beta: root(pytensor.grad(squares(x, t, beta), beta), beta)[0], "RootOp"),
    "median": (lambda x, t, beta: pt.median(t), "sort"),
    "cumulative sum": (lambda x, t, beta: pt.log(pt.cumsum(t)).sum(), "cumsum"),
    "lags": (lambda x, t, beta: ((t[1:] - t[:-1]) ** 2).sum(), "along the axis of the rows"),
    "svd": (lambda x, t, beta: pt.linalg.svd(x, compute_uv=False), "along the axis of the rows"),
    "lstsq": (lambda x, t, beta: pt.linalg.lstsq(x, t, -1.0)[0], "Lstsq"),
    "unique": (lambda x, t, beta: pt.unique(t), "Unique"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(threads, name):
    build, reason = REFUSED[name]
    x, t, beta = pt.dmatrix("x"), pt.dvector("t"), pt.dvector("beta")
    parameters = [] if "bcast" in reason else [beta]
    inputs = [x, t] if parameters else [x, t, beta]
    options = dict(exact=True, on_unused_input="ignore")
    with refuses(TypeError, "output") as caught:
        synk.function(inputs, build(x, t, beta), bcast_inputs=parameters, **options)
    assert reason in str(caught.value)


def test_parameters_of_another_length_than_the_rows(threads):
    """A function whose parameters might have the batch's length can be built; its call's error names the remedy."""
    t, beta = pt.dvector("t"), pt.dvector("beta")
    f = synk.function([t, beta], t.sum() + (beta**2).sum(), exact=True)
    with refuses(ValueError, hint="bcast_inputs=[beta]"):
        f(np.ones(23), np.ones(4))
