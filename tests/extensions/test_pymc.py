"""Likelihoods over all ranks against PyMC's own on one, for value, gradient and what PyMC makes of them."""

import gc
import os
import pickle
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses

import synkhronos as synk
from synkhronos.errors import StateError

pm = pytest.importorskip("pymc", reason='PyMC is not installed: pip install ".[pymc]"')

import cloudpickle  # noqa: E402
import pytensor  # noqa: E402
import pytensor.tensor as pt  # noqa: E402
from pytensor.compile.mode import OPT_FAST_RUN, Mode  # noqa: E402

from synkhronos.extensions.pymc import data_parallel  # noqa: E402

pytestmark = [
    pytest.mark.pytensor,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::Warning"),  # PyMC's own are many, and change with its versions
]

RANDOM = np.random.default_rng(0)
N = 53
X = RANDOM.normal(size=(N, 3))
WEIGHTS = np.array([1.0, -2.0, 0.5])
BINARY = (RANDOM.random(N) < 1 / (1 + np.exp(-X @ WEIGHTS))).astype("int64")
REAL = X @ WEIGHTS + RANDOM.normal(size=N)
COUNTS = RANDOM.poisson(np.exp(0.3 * X[:, 0]))
GROUP = RANDOM.integers(0, 4, N)


@pytest.fixture(autouse=True)
def python_alone():
    """Nothing is compiled: Numba would take a minute for every function.

    Nor fused: in Python code, ``reciprocal`` inside of a fused operation has no more digits than float32 (PyTensor
    divides ``np.float32(1)`` by a Python float, which NumPy 2 takes for one of float32).
    """
    unfused = Mode(linker="py", optimizer=OPT_FAST_RUN.excluding("fusion"))
    with pytensor.config.change_flags(mode=unfused, linker="py", cxx=""):
        yield


# -- models ------------------------------------------------------------------------------------------------------------


def logistic():
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        pm.Bernoulli("y", logit_p=X @ beta, observed=BINARY)
    return model


def linear():
    with pm.Model(coords={"row": range(N)}) as model:
        data = pm.Data("X", X)
        sigma = pm.HalfNormal("sigma", 1)
        beta = pm.Normal("beta", 0, 1, shape=3)
        mu = pm.Deterministic("mu", data @ beta, dims="row")
        pm.Normal("y", mu, sigma, observed=pm.Data("values", REAL), dims="row")
    return model


def hierarchical():
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1)
        level = pm.Normal("level", 0, scale, shape=4)
        slope = pm.Normal("slope", 0, 1)
        pm.Poisson("counts", pt.exp(level[GROUP] + slope * X[:, 0]), observed=COUNTS)
    return model


def two_observed():
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
        pm.Normal("few", a + b, 1, observed=[0.1, -0.3])
        pm.StudentT("many", nu=4, mu=a, sigma=pt.exp(b), observed=REAL)
        pm.Bernoulli("more", logit_p=b * X[:, 1], observed=BINARY)
    return model


def matrices():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1, shape=3)
        sigma = pm.Exponential("sigma", 1, shape=3)
        pm.Normal("y", mu, sigma, observed=X)
    return model


def vectors():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1, shape=3)
        pm.MvNormal("y", mu, np.eye(3) + 0.2, observed=X)
    return model


def mixture():
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.ones(2))
        mu = pm.Normal("mu", [-1, 1], 1)
        pm.NormalMixture("y", w, mu, 1.0, observed=REAL)
    return model


def others():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        rate, chances = pt.exp(mu + X[:, 0]), pm.math.softmax(X * mu, axis=-1)
        pm.Censored("censored", pm.Normal.dist(mu), lower=None, upper=1.0, observed=np.minimum(REAL, 1))
        pm.ZeroInflatedPoisson("inflated", psi=0.5, mu=rate, observed=COUNTS)
        pm.Categorical("categorical", p=chances, observed=GROUP % 3)
        pm.Multinomial("multinomial", n=3, p=chances, observed=np.tile([1, 0, 2], (N, 1)))
        pm.OrderedLogistic("ordered", eta=X[:, 0] * mu, cutpoints=[-1.0, 1.0], observed=GROUP % 3)
        pm.NegativeBinomial("negative", mu=rate, alpha=1.0, observed=COUNTS)
        pm.CustomDist("custom", mu, logp=lambda value, mu: -((value - mu) ** 2), observed=REAL)
    return model


def truncated():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.TruncatedNormal("normal", mu * X[:, 0], 1.0, lower=-6.0, observed=REAL)
        pm.Truncated("one_sided", pm.Normal.dist(mu), upper=9.0, observed=REAL)
        pm.Truncated("student", pm.StudentT.dist(4, mu), lower=0.0, upper=9.0, observed=np.abs(REAL))
        pm.Truncated("gamma", pm.Gamma.dist(pt.exp(mu) * abs(X[:, 0]) + 1, 1), upper=20.0, observed=np.abs(REAL) + 0.1)
        pm.Truncated("counts", pm.Poisson.dist(pt.exp(mu)), lower=1, observed=COUNTS + 1)
    return model


def discrete():
    with pm.Model() as model:
        k = pm.Poisson("k", 2)
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu * k, 1, observed=REAL)
    return model


MODELS = [logistic, linear, hierarchical, two_observed, matrices, vectors, mixture, others, truncated, discrete]


def points_of(model, n):
    """Return points of a model, as dicts, around its initial one."""
    initial, random = model.initial_point(), np.random.default_rng(1)
    integers = {key for key, value in initial.items() if np.asarray(value).dtype.kind in "iu"}
    return [
        {
            key: value + (random.integers(0, 3) if key in integers else 0.7 * random.normal(size=np.shape(value)))
            for key, value in initial.items()
        }
        for _ in range(n)
    ]


def evaluate(model, points):
    """Return the log-probability of a model and its gradient at points."""
    function = model.compile_fn([model.logp(), model.dlogp()], inputs=model.value_vars)
    return [[np.array(each) for each in function(point)] for point in points]


def assert_same(parallel, plain, n=100, rtol=1e-10):
    points = points_of(plain, n)
    for (value, gradient), (expected, expected_gradient) in zip(evaluate(parallel, points), evaluate(plain, points)):
        np.testing.assert_allclose(value, expected, rtol=rtol)
        np.testing.assert_allclose(gradient, expected_gradient, rtol=rtol, atol=rtol * abs(expected_gradient).max())


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_value_and_gradient_are_those_of_the_plain_model(make_world, make, n):
    make_world("threads", n)
    plain = make()
    parallel = data_parallel(plain)
    assert not [each for each in parallel.observed_RVs if each.name != "few"]
    assert_same(parallel, plain)


def test_of_processes(make_world):
    make_world("fork", 2)
    plain = linear()
    assert_same(data_parallel(plain), plain)


def test_a_point_has_its_elements_in_the_same_order():
    for make in MODELS:
        plain = make()
        assert [each.name for each in data_parallel(plain).value_vars] == [each.name for each in plain.value_vars]


def log_density(X, y, beta):
    return pm.logp(pm.Bernoulli.dist(logit_p=X @ beta), y)


def test_of_a_function_with_its_parameters(make_world):
    make_world("threads", 2)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        potential = data_parallel(log_density, [X, BINARY], [beta], name="many")
    assert potential.name == "many" and model.potentials == [potential]
    assert_same(model, logistic())


def test_of_a_function_that_uses_variables_of_the_model(make_world):
    make_world("threads", 2)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        data_parallel(lambda X, y: log_density(X, y, beta), [X, BINARY])
    assert_same(model, logistic())


def test_of_parameters_that_are_expressions(make_world):
    make_world("threads", 2)
    with pm.Model() as model:
        raw = pm.Normal("raw", 0, 1, shape=3)
        data_parallel(log_density, (X, BINARY), (2 * raw + 1,))
    with pm.Model() as plain:
        raw = pm.Normal("raw", 0, 1, shape=3)
        pm.Bernoulli("y", logit_p=X @ (2 * raw + 1), observed=BINARY)
    assert_same(model, plain)


def test_of_data_in_shared_memory_and_in_a_file(make_world, tmp_path):
    make_world("fork", 2)
    np.save(tmp_path / "X.npy", X)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        data_parallel(log_density, [tmp_path / "X.npy", synk.data(BINARY)], [beta])
    assert_same(model, logistic())


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
    plain = logistic()
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
    logp = model.compile_logp()  # (out of range in the last row alone, which one rank has)
    assert logp({"sigma": -1.0}) == -np.inf and np.isfinite(logp({"sigma": 1.0}))


def test_rows_of_some_data_only(make_world):
    make_world("threads", 2)
    plain = two_observed()
    parallel = data_parallel(plain, ["many"])
    assert [each.name for each in parallel.observed_RVs] == ["few", "more"]  # (in the plain model's order)
    assert_same(parallel, plain, 5)
    by_data = data_parallel(linear(), ["X"])
    assert not by_data.observed_RVs and not {"values"} & set(by_data.named_vars)
    assert_same(by_data, linear(), 5)


def with_settings(parallel):
    """Return a model with values that a program may change, and what changes them."""
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


def test_value_and_gradient_are_one_call(make_world, monkeypatch):
    make_world("threads", 2)
    parallel = data_parallel(logistic())
    function = parallel.logp_dlogp_function(ravel_inputs=True)
    calls = []
    call = synk.Function.__call__
    monkeypatch.setattr(synk.Function, "__call__", lambda *args, **kwargs: calls.append(1) or call(*args, **kwargs))
    function(np.zeros(3))
    assert len(calls) == 1


def test_a_session_after_another(make_world):
    parallel, plain = data_parallel(logistic()), logistic()
    function = parallel.logp_dlogp_function(ravel_inputs=True)
    expected = plain.logp_dlogp_function(ravel_inputs=True)(WEIGHTS)
    for n in (1, 3):
        make_world("threads", n)
        value, gradient = function(WEIGHTS)
        np.testing.assert_allclose(value, expected[0], rtol=1e-10)
        np.testing.assert_allclose(gradient, expected[1], rtol=1e-10)
        synk.close()
        with pytest.raises(StateError, match="fork"):
            function(WEIGHTS)


def test_data_go_with_the_model():
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        potential = data_parallel(log_density, [X, BINARY], [beta])
    data = weakref.ref(potential.owner.op.likelihood)
    del model, beta, potential
    gc.collect()
    assert data() is None


# -- what PyMC does with it --------------------------------------------------------------------------------------------

SAMPLING = dict(
    draws=10, tune=10, chains=2, cores=1, random_seed=3, progressbar=False, compute_convergence_checks=False
)


def test_nuts_draws_the_same_chain(make_world):
    make_world("threads", 2)
    with linear() as plain:
        expected = pm.sample(**SAMPLING).posterior
    with data_parallel(plain):
        found = pm.sample(**SAMPLING).posterior
    for name in ("beta", "sigma"):
        assert np.ptp(expected[name].values) > 0.01
        np.testing.assert_allclose(found[name].values, expected[name].values, rtol=1e-6)


def test_find_map(make_world):
    make_world("threads", 2)
    expected = pm.find_MAP(model=logistic(), jitter=False, progressbar=False, return_inferencedata=False)
    found = pm.find_MAP(model=data_parallel(logistic()), jitter=False, progressbar=False, return_inferencedata=False)
    np.testing.assert_allclose(found["beta"], expected["beta"], rtol=1e-6)


def test_fit(make_world):
    make_world("threads", 2)
    expected = pm.fit(30, model=logistic(), random_seed=1, progressbar=False)
    found = pm.fit(30, model=data_parallel(logistic()), random_seed=1, progressbar=False)
    np.testing.assert_allclose(found.hist, expected.hist, rtol=1e-9)


def test_fit_of_several_draws_a_step(make_world):
    make_world("threads", 2)
    expected = pm.fit(5, model=logistic(), random_seed=1, progressbar=False, obj_n_mc=2)
    found = pm.fit(5, model=data_parallel(logistic()), random_seed=1, progressbar=False, obj_n_mc=2)
    np.testing.assert_allclose(found.hist, expected.hist, rtol=1e-9)


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
    np.testing.assert_allclose(rows % 100, 0, atol=1e-6)  # sums of so many rows
    np.testing.assert_allclose(results[:, 0], 2 * results[:, 1], rtol=1e-12)  # value and gradient are of the same rows
    assert np.ptp(results) > 0
    error = abs(results[:, 1].mean() - y.sum())
    assert error < 5 * N * y.std() / np.sqrt(batch * 30)


def test_fit_in_batches(make_world):
    make_world("threads", 2)
    parallel = data_parallel(linear(), batch=20)
    fitted = pm.fit(1500, model=parallel, random_seed=1, progressbar=False, obj_optimizer=pm.adam(learning_rate=0.05))
    means = dict(
        zip(("beta", "sigma"), [fitted.sample(500, random_seed=1).posterior[name] for name in ("beta", "sigma")])
    )
    np.testing.assert_allclose(means["beta"].mean(("chain", "draw")), WEIGHTS, atol=0.5)


def test_copies_are_itself():
    with pm.Model():
        beta = pm.Normal("beta", 0, 1, shape=3)
        likelihood = data_parallel(log_density, [X, BINARY], [beta]).owner.op.likelihood
    assert cloudpickle.loads(cloudpickle.dumps(likelihood)) is likelihood


def test_second_derivatives_are_refused(make_world):
    make_world("threads", 2)
    parallel = data_parallel(logistic())
    with pytest.raises(NotImplementedError, match="second derivatives"):
        parallel.d2logp()


CHAINS = """
import sys
import pymc as pm
import synkhronos as synk
from synkhronos.extensions.pymc import data_parallel

if __name__ == "__main__":
    with pm.Model() as model:
        a = pm.Normal("a")
        data_parallel(lambda y: pm.logp(pm.Normal.dist(a, 1), y), [[0.1, 0.2, 0.3]])
    synk.fork(2)
    with model:
        try:
            pm.sample(draws=5, tune=5, chains=2, cores=2, mp_ctx=sys.argv[1], progressbar=False)
        except Exception as error:
            print(error)
    print(float(model.compile_logp()({"a": 0.2})))  # the session goes on
    synk.close()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_chains_in_processes_of_their_own(tmp_path, method):
    program = tmp_path / "program.py"
    program.write_text(CHAINS)
    environment = dict(os.environ, PYTENSOR_FLAGS="linker=py,cxx=", PYTHONPATH=str(Path(synk.__file__).parents[1]))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), method],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        timeout=250,
    )
    assert "pass cores=1 to pm.sample" in done.stdout, done.stdout
    expected = -0.5 * (0.2**2 + 2 * 0.1**2) - 2 * np.log(2 * np.pi)
    np.testing.assert_allclose(float(done.stdout.split()[-1]), expected, rtol=1e-10)


def test_example_of_the_page(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs" / "examples"))
    from pymc_rows import main

    sampled, serial, best, means = main(rows=300, draws=30)
    np.testing.assert_allclose(sampled, serial, atol=0.1)
    np.testing.assert_allclose(best, serial, atol=0.2)
    np.testing.assert_allclose(means, serial, atol=0.5)


# -- bad input ---------------------------------------------------------------------------------------------------------


def in_model(*args, **kwargs):
    """Call data_parallel in the context of a model with a parameter ``beta``."""
    with pm.Model():
        beta = pm.Normal("beta", 0, 1, shape=3)
        kwargs.setdefault("params", [beta])
        return data_parallel(*args, **kwargs)


def test_refused_data():
    with refuses(ValueError, "data[1]", "53 rows, as data[0] has", "52"):
        in_model(log_density, [X, BINARY[:-1]])
    with refuses(TypeError, "data[1]", "an array of numbers", "dtype <U1"):
        in_model(log_density, [X, np.array(["a"] * N)])
    with refuses(TypeError, "data[0]", "an array of numbers", "dtype object"):
        in_model(log_density, [X.astype(object), BINARY])
    with refuses(ValueError, "data[1]", "an array with rows", "a number"):
        in_model(log_density, [X, 3.0])
    with refuses(ValueError, "data[0]", "an array with rows", "(0, 3)"):
        in_model(log_density, [X[:0], BINARY[:0]])
    with refuses(ValueError, "data", "at least one array"):
        in_model(log_density, [])
    with refuses(TypeError, "data", "a list of arrays", "ndarray"):
        in_model(log_density, X)


def test_refused_arguments():
    with refuses(TypeError, "params[0]", "a variable", "1"):
        in_model(log_density, [X, BINARY], params=[1])
    with refuses(TypeError, "params", "a list of variables"):
        in_model(log_density, [X, BINARY], params=3)
    with refuses(TypeError, "model_or_logp", "a pm.Model, or a function", "3"):
        data_parallel(3)
    with refuses(TypeError, "model_or_logp", "returns a variable", "None"):
        in_model(lambda X, beta: None, [X])
    with refuses(TypeError, "batch", "an int", "0.5"):
        in_model(log_density, [X, BINARY], batch=0.5)
    for batch in (0, N + 1):
        with refuses(ValueError, "batch", "from 1 to 53", str(batch)):
            in_model(log_density, [X, BINARY], batch=batch)
    with pytest.raises(StateError, match="with pm.Model"):
        data_parallel(log_density, [X, BINARY])
    with refuses(TypeError, "likelihood", "a log-probability", "draws random numbers"):
        in_model(lambda X, beta: pm.Normal.dist(X @ beta), [X])
    with pm.Model():
        mu = pm.Normal("mu")
        with refuses(TypeError, "likelihood", "a log-probability", "draws random numbers", "given to the function"):
            data_parallel(lambda y: pm.logp(3 * pm.Normal.dist(mu), y), [REAL])
        with refuses(TypeError, "data[0]", "an array of numbers", "a variable (y)", "get_value()"):
            data_parallel(lambda y: y * mu, [pm.Data("y", REAL)])


#: Log-probabilities with a size of the rows they are given.
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
        with refuses(ValueError, "likelihood", "with a gradient", "open bound", "observed=y"):
            data_parallel(lambda y, mu: pm.logp(dist(y, mu), y), [REAL], [mu])
    with pm.Model() as plain:
        y, mu = pytensor.shared(REAL), pm.Normal("mu")
        pm.Potential("likelihood", pm.logp(dist(y, mu), y).sum())
    assert np.isnan(evaluate(plain, [{"mu": 0.5}])[0][1])  # PyMC's own, with the same function


def gaussian_process(X, y, beta):
    covariance = pm.gp.cov.ExpQuad(3, pt.exp(beta[0]))(X) + pt.eye(X.shape[0])
    return pm.logp(pm.MvNormal.dist(pt.zeros(X.shape[0]), covariance), y)


#: What combines rows, and words of the refusal.
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
    "rows that were not given": (lambda X, y, beta: y * X[:, 0] * REAL, "all rows on every rank"),
    "a Gaussian process": (gaussian_process, "a single number"),
}


@pytest.mark.parametrize("case", MIXED)
def test_likelihoods_that_mix_rows_are_refused(case):
    logp, got = MIXED[case]
    with refuses(TypeError, "likelihood", "depends on that row alone", got, "leave it in plain PyMC"):
        in_model(logp, [X, BINARY])


def test_models_that_mix_rows_are_refused():
    with pm.Model() as of_time:
        pm.AR("y", pm.Normal("rho"), sigma=1.0, init_dist=pm.Normal.dist(0, 1), observed=REAL)
    with refuses(TypeError, "y", "depends on that row alone"):
        data_parallel(of_time)
    with pm.Model() as process:
        covariance = pm.gp.cov.ExpQuad(3, pm.HalfNormal("scale"))
        pm.gp.Marginal(cov_func=covariance).marginal_likelihood("y", X, REAL, sigma=1.0)
    with refuses(TypeError, "y", "depends on that row alone"):
        data_parallel(process)


def test_refused_models():
    with refuses(ValueError, "data", "names of pm.Data", "'Z'"):
        data_parallel(linear(), ["X", "Z"])
    with refuses(TypeError, "data", "a list of names", hint="a model has its data itself"):
        data_parallel(linear(), [X])
    with refuses(TypeError, "params", "nothing, because a model is given"):
        data_parallel(linear(), params=[])
    with pm.Model() as nothing_observed:
        pm.Normal("a")
    with refuses(ValueError, "model", "an observed variable with rows"):
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
    with refuses(ValueError, "model", "without missing ones", "y_observed", "fill them in"):
        data_parallel(with_missing)
    with pm.Model() as of_rows:
        pm.Normal("y", pm.Normal("a", shape=N), observed=REAL)
    with refuses(TypeError, "y", "depends on that row alone", "all rows on every rank"):
        data_parallel(of_rows)
    with pm.Model() as interpolated:
        pm.Interpolated("y", np.linspace(-9, 9, 20), np.ones(20), observed=REAL)
    with refuses(TypeError, "y", got="SplineWrapper of y has no rule"):
        data_parallel(interpolated)
    with pm.Model() as chained:
        first = pm.Normal("first", pm.Normal("a"), observed=REAL)
        pm.Normal("second", first, observed=REAL)
    with refuses(TypeError, "second", "to depend on free variables alone", "first"):
        data_parallel(chained)


def test_fewer_rows_than_ranks(make_world):
    with pm.Model() as model:
        mu = pm.Normal("mu")
        data_parallel(lambda y: -((y - mu) ** 2), [[1.0, 2.0]])
    logp = model.compile_logp()
    make_world("threads", 3)
    with refuses(ValueError, "data of likelihood", "at least 3 rows", "2", "at most 2 ranks"):
        logp({"mu": 0.0})


def test_no_session():
    parallel = data_parallel(logistic())
    with pytest.raises(StateError, match="fork"):
        parallel.compile_logp()({"beta": WEIGHTS})


# (Pickles of a likelihood are loaded by chains of pm.sample, above; here by a program that knows nothing of it.)
def test_a_pickle_elsewhere():
    from synkhronos.extensions.pymc.likelihood import Elsewhere, _find

    elsewhere = _find("of another process", "likelihood")
    assert isinstance(elsewhere, Elsewhere)
    with pytest.raises(StateError, match="pass cores=1"):
        pickle.loads(pickle.dumps(elsewhere))([WEIGHTS])
