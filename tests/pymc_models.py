"""Kinds of PyMC models with divisible rows, each as small as possible.

A builder is called inside a new model; `KINDS` contains all builders by name.
"""

import numpy as np
import pymc as pm
import pymc.dims as pmd
import pytensor
import pytensor.sparse
import pytensor.tensor as pt
import pytest
import scipy.sparse
from pytensor.compile.mode import OPT_FAST_RUN, Mode


def marks(timeout=300):
    """Return the marks of a file whose tests compile nothing, with a time limit in seconds for each test."""
    # PyMC's own warnings vary between versions.
    ignoring = pytest.mark.filterwarnings("ignore::Warning")
    return [pytest.mark.pytensor, pytest.mark.usefixtures("nothing_compiled"), pytest.mark.timeout(timeout), ignoring]


RANDOM = np.random.default_rng(0)
N = 53
X = RANDOM.normal(size=(N, 3))
WEIGHTS = np.array([1.0, -2.0, 0.5])
BINARY = (RANDOM.random(N) < 1 / (1 + np.exp(-X @ WEIGHTS))).astype("int64")
REAL = X @ WEIGHTS + RANDOM.normal(size=N)
COUNTS = RANDOM.poisson(np.exp(0.3 * X[:, 0]))
GROUP = RANDOM.integers(0, 4, N)
POSITIVE = np.abs(REAL) + 0.1
SHARE = 1 / (1 + np.exp(-REAL))
ANGLE = 2 * np.arctan(REAL)
PLANE = REAL[:, None] * [1.0, 0.3] + RANDOM.normal(size=(N, 2))

KINDS = {}


def kind(build):
    """Add a model's builder to `KINDS`."""

    def make():
        with pm.Model(coords={"row": range(N), "feature": range(3), "group": range(4)}) as model:
            build()
        return model

    make.__name__ = build.__name__
    KINDS[build.__name__] = make
    return make


# -- generalized linear models -----------------------------------------------------------------------------------------


@kind
def logistic():
    beta = pm.Normal("beta", 0, 1, shape=3)
    pm.Bernoulli("y", logit_p=X @ beta, observed=BINARY)


@kind
def probit():
    beta = pm.Normal("beta", 0, 1, shape=3)
    pm.Bernoulli("y", p=pm.math.invprobit(X @ beta), observed=BINARY)


@kind
def complementary_log_log():
    beta = pm.Normal("beta", 0, 1, shape=3)
    pm.Bernoulli("y", p=1 - pt.exp(-pt.exp(X @ beta)), observed=BINARY)


@kind
def share_of_successes():
    pm.Bernoulli("y", p=pm.Beta("p", 2, 3), observed=BINARY)


@kind
def linear():
    data = pm.Data("X", X)
    sigma = pm.HalfNormal("sigma", 1)
    beta = pm.Normal("beta", 0, 1, shape=3)
    mu = pm.Deterministic("mu", data @ beta)
    pm.Normal("y", mu, sigma, observed=pm.Data("values", REAL))


@kind
def robust():
    nu, beta = pm.Gamma("nu", 2, 0.1), pm.Normal("beta", 0, 1, shape=3)
    pm.StudentT("y", nu=nu, mu=X @ beta, sigma=pm.HalfCauchy("sigma", 1), observed=REAL)


@kind
def hierarchical():
    scale = pm.HalfNormal("scale", 1)
    level = pm.Normal("level", 0, scale, shape=4)
    pm.Poisson("counts", pt.exp(level[GROUP] + pm.Normal("slope") * X[:, 0]), observed=COUNTS)


@kind
def not_centred():
    scale, raw = pm.HalfCauchy("scale", 1), pm.Normal("raw", shape=4)
    pm.Normal("y", pm.Normal("mu") + scale * raw[GROUP], pm.Exponential("sigma", 1), observed=REAL)


@kind
def effects_that_sum_to_zero():
    effect = pm.ZeroSumNormal("effect", sigma=pm.HalfNormal("scale", 1), shape=4)
    pm.Normal("y", pm.Normal("mu") + effect[GROUP], 1, observed=REAL)


@kind
def overdispersed_counts():
    mu, alpha = pt.exp(X @ pm.Normal("beta", shape=3)), pm.Gamma("alpha", 2, 1)
    pm.NegativeBinomial("y", mu=mu, alpha=alpha, observed=COUNTS)


@kind
def binomial():
    pm.Binomial("y", n=20, logit_p=X @ pm.Normal("beta", shape=3), observed=COUNTS)


@kind
def beta_binomial():
    pm.BetaBinomial("y", pm.HalfNormal("a"), pm.HalfNormal("b"), n=20, observed=COUNTS)


@kind
def shares():
    mu = pm.math.sigmoid(X @ pm.Normal("beta", shape=3))
    pm.Beta("y", mu=mu, nu=pm.Gamma("nu", 2, 0.1), observed=SHARE)


@kind
def gamma():
    pm.Gamma("y", alpha=pm.Exponential("a", 1), beta=pt.exp(X @ pm.Normal("beta", shape=3)), observed=POSITIVE)


@kind
def inverse_gamma():
    pm.InverseGamma("y", pm.Exponential("a", 1), pm.Exponential("b", 1), observed=POSITIVE)


@kind
def waiting_times():
    pm.Exponential("y", lam=pt.exp(X @ pm.Normal("beta", shape=3)), observed=POSITIVE)


@kind
def weibull():
    scale = pt.exp(pm.Data("X", X) @ pm.Normal("beta", shape=3))
    pm.Weibull("y", pm.Exponential("a", 1), scale, observed=pm.Data("values", POSITIVE))


@kind
def log_normal():
    pm.LogNormal("y", X @ pm.Normal("beta", shape=3), pm.HalfNormal("sigma"), observed=POSITIVE)


@kind
def wald():
    pm.Wald("y", mu=pm.LogNormal("m"), lam=pm.LogNormal("l"), observed=POSITIVE)


@kind
def pareto():
    pm.Pareto("y", alpha=pm.HalfNormal("a"), m=pm.Uniform("m", 0, 0.1), observed=POSITIVE)


@kind
def half_normal():
    pm.HalfNormal("y", pm.HalfNormal("sigma"), observed=POSITIVE)


@kind
def rice():
    pm.Rice("y", nu=pm.HalfNormal("nu"), sigma=pm.HalfNormal("sigma"), observed=POSITIVE)


@kind
def kumaraswamy():
    pm.Kumaraswamy("y", pm.HalfNormal("a"), pm.HalfNormal("b"), observed=SHARE)


@kind
def logit_normal():
    pm.LogitNormal("y", pm.Normal("mu"), pm.HalfNormal("sigma"), observed=SHARE)


@kind
def laplace():
    pm.Laplace("y", X @ pm.Normal("beta", shape=3), pm.HalfNormal("b"), observed=REAL)


@kind
def logistic_errors():
    pm.Logistic("y", X @ pm.Normal("beta", shape=3), pm.HalfNormal("s"), observed=REAL)


@kind
def cauchy():
    pm.Cauchy("y", X @ pm.Normal("beta", shape=3), pm.HalfNormal("s"), observed=REAL)


@kind
def gumbel():
    pm.Gumbel("y", pm.Normal("mu"), pm.HalfNormal("beta"), observed=REAL)


@kind
def moyal():
    pm.Moyal("y", pm.Normal("mu"), pm.HalfNormal("sigma"), observed=REAL)


@kind
def skewed():
    pm.SkewNormal("y", mu=pm.Normal("mu"), sigma=pm.HalfNormal("sigma"), alpha=pm.Normal("alpha"), observed=REAL)


@kind
def directions():
    pm.VonMises("y", pm.Normal("mu"), pm.HalfNormal("kappa"), observed=ANGLE)


@kind
def first_successes():
    pm.Geometric("y", pm.Beta("p", 1, 1), observed=COUNTS + 1)


@kind
def bounded_above():
    pm.Uniform("y", 0, pm.Pareto("top", 1, 20.0), observed=POSITIVE)


# -- many categories ---------------------------------------------------------------------------------------------------


@kind
def softmax():
    beta = pm.Normal("beta", shape=(3, 3))
    pm.Categorical("y", logit_p=X @ beta, observed=GROUP % 3)


@kind
def categories():
    pm.Categorical("y", p=pm.math.softmax(X * pm.Normal("mu"), axis=-1), observed=GROUP % 3)


@kind
def categories_of_one_simplex():
    pm.Categorical("y", p=pm.Dirichlet("p", np.ones(3)), observed=GROUP % 3)


@kind
def categories_of_one_vector():
    pm.Categorical("y", logit_p=pm.Normal("logits", shape=3), observed=GROUP % 3)


@kind
def multinomial():
    chances = pm.math.softmax(X * pm.Normal("mu"), axis=-1)
    pm.Multinomial("y", n=3, p=chances, observed=np.tile([1, 0, 2], (N, 1)))


@kind
def shares_of_groups():
    pm.DirichletMultinomial("y", n=3, a=pm.HalfNormal("a", shape=3), observed=np.tile([1, 0, 2], (N, 1)))


@kind
def ordered():
    cuts = pm.Normal(
        "cuts", [-1, 1], 1, transform=pm.distributions.transforms.ordered, initval=None, default_transform=None
    )
    pm.OrderedLogistic("y", eta=X @ pm.Normal("beta", shape=3), cutpoints=cuts, observed=GROUP % 3)


@kind
def ordered_probit():
    pm.OrderedProbit("y", eta=X[:, 0] * pm.Normal("mu"), cutpoints=[-1.0, 1.0], observed=GROUP % 3)


# -- several values per row --------------------------------------------------------------------------------------------


@kind
def matrices():
    pm.Normal("y", pm.Normal("mu", 0, 1, shape=3), pm.Exponential("sigma", 1, shape=3), observed=X)


@kind
def vectors():
    pm.MvNormal("y", pm.Normal("mu", 0, 1, shape=3), np.eye(3) + 0.2, observed=X)


@kind
def covariances():
    chol, _, _ = pm.LKJCholeskyCov("chol", n=3, eta=2.0, sd_dist=pm.Exponential.dist(1.0, shape=3))
    pm.MvNormal("y", pm.Normal("mu", 0, 1, shape=3), chol=chol, observed=X)


@kind
def correlations():
    corr = pm.LKJCorr("corr", n=2, eta=2.0)
    sd = pm.HalfNormal("sd", shape=2)
    pm.MvNormal("y", 0, cov=corr * sd[:, None] * sd[None, :], observed=PLANE)


@kind
def precisions():
    tau = pm.LogNormal("scale") * np.array([[2.0, 0.5, 0.1], [0.5, 1.0, 0.2], [0.1, 0.2, 1.0]])
    pm.MvNormal("y", pm.Normal("mu", shape=3), tau=tau, observed=X)


@kind
def heavy_vectors():
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=1.0, sd_dist=pm.HalfNormal.dist(1.0, shape=2))
    pm.MvStudentT("y", nu=pm.Gamma("nu", 2, 0.1), mu=np.zeros(2), chol=chol, observed=PLANE)


@kind
def varying_slopes():
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0, shape=2))
    effects = pm.MvNormal("effects", np.zeros(2), chol=chol, shape=(4, 2))
    pm.Normal("y", effects[GROUP, 0] + effects[GROUP, 1] * X[:, 0], pm.HalfNormal("sigma"), observed=REAL)


# -- mixtures, and rows with unknown values ----------------------------------------------------------------------------


@kind
def mixture():
    pm.NormalMixture("y", pm.Dirichlet("w", np.ones(2)), pm.Normal("mu", [-1, 1], 1), 1.0, observed=REAL)


@kind
def mixture_of_kinds():
    parts = [
        pm.Normal.dist(pm.Normal("mu"), 1),
        pm.StudentT.dist(nu=3, mu=pm.Normal("far"), sigma=pm.HalfNormal("sigma")),
    ]
    pm.Mixture("y", w=pm.Dirichlet("w", np.ones(2)), comp_dists=parts, observed=REAL)


@kind
def broken_sticks():
    weights = pm.StickBreakingWeights("w", alpha=pm.Gamma("a", 1, 1), K=2)
    pm.NormalMixture("y", weights, pm.Normal("mu", [-1, 0, 1], 1, shape=3), 1.0, observed=REAL)


@kind
def censored():
    dist = pm.Normal.dist(pm.Normal("mu"), pm.HalfNormal("sigma"))
    pm.Censored("y", dist, lower=None, upper=1.0, observed=np.minimum(REAL, 1))


@kind
def truncated():
    pm.TruncatedNormal("y", pm.Normal("mu") * X[:, 0], pm.HalfNormal("sigma"), lower=-6.0, observed=REAL)


@kind
def truncated_on_both_sides():
    pm.Truncated("y", pm.StudentT.dist(4, pm.Normal("mu")), lower=0.0, upper=9.0, observed=POSITIVE)


@kind
def counts_without_zero():
    pm.Truncated("y", pm.Poisson.dist(pt.exp(pm.Normal("mu"))), lower=1, observed=COUNTS + 1)


@kind
def many_zeros():
    pm.ZeroInflatedPoisson("y", psi=pm.Beta("psi", 1, 1), mu=pt.exp(pm.Normal("mu") + X[:, 0]), observed=COUNTS)


@kind
def many_zeros_of_binomial():
    pm.ZeroInflatedBinomial("y", psi=pm.Beta("psi", 1, 1), n=20, p=pm.Beta("p", 1, 1), observed=COUNTS)


@kind
def custom():
    def logp(value, mu, sigma):
        return -(((value - mu) / sigma) ** 2) - pt.log(sigma)

    pm.CustomDist("y", pm.Normal("mu"), pm.HalfNormal("sigma"), logp=logp, observed=REAL)


@kind
def custom_of_a_distribution():
    def dist(mu, sigma, size):
        return pt.exp(pm.Normal.dist(mu, sigma, size=size))

    pm.CustomDist("y", pm.Normal("mu"), pm.HalfNormal("sigma"), dist=dist, observed=pm.Data("values", POSITIVE))


# -- arrays written into the model, and lengths of arrays --------------------------------------------------------------


@kind
def started_elsewhere():
    beta = pm.Normal("beta", 0, 1, shape=3, initval=[0.5, -0.5, 0.1])
    pm.Normal("y", X @ beta, pm.HalfNormal("sigma", initval=2.0), observed=REAL)


@kind
def weibull_of_an_array():
    pm.Weibull("y", pm.HalfNormal("alpha"), np.exp(X[:, 0]), observed=POSITIVE)


@kind
def psi_of_each_row():
    psi = pm.math.sigmoid(pm.Normal("a") + X[:, 0])
    pm.ZeroInflatedPoisson("y", psi, pt.exp(pm.Normal("b") * X[:, 1]), observed=COUNTS)


@kind
def modified_gaussian_of_an_array():
    pm.ExGaussian("y", mu=pm.Normal("a") * X[:, 0], sigma=1, nu=2, observed=REAL)


@kind
def asymmetric_laplace():
    pm.AsymmetricLaplace("y", kappa=2, mu=pm.Normal("a") * X[:, 0], b=1, observed=REAL)


@kind
def custom_of_an_array():
    def dist(mu, size):
        return pm.Normal.dist(mu, 1, size=size) + 1

    pm.CustomDist("y", pm.Normal("a") * X[:, 0], dist=dist, observed=REAL)


@kind
def custom_of_data():
    def dist(mu, size):
        return pm.Normal.dist(mu, 1, size=size) + 1

    pm.CustomDist("y", pm.Normal("a") * pm.Data("x", X[:, 0]), dist=dist, observed=REAL)


@kind
def many_zeros_of_negative_binomial():
    psi, mu = pm.Beta("psi", 2, 2), pt.exp(pm.Normal("a") * X[:, 0])
    pm.ZeroInflatedNegativeBinomial("y", psi=psi, mu=mu, alpha=2.0, observed=COUNTS)


@kind
def hurdle():
    beta = pt.exp(pm.Normal("a") * X[:, 0])
    pm.HurdleGamma("y", psi=pm.Beta("psi", 2, 2), alpha=2, beta=beta, observed=POSITIVE * (COUNTS > 0))


@kind
def a_class_without_parameters():
    logits = pt.concatenate([pt.zeros((N, 1)), X @ pm.Normal("w", shape=(3, 3))], axis=1)
    pm.Categorical("y", logit_p=logits, observed=GROUP)


@kind
def a_padded_class():
    logits = pt.pad(X @ pm.Normal("w", shape=(3, 3)), ((0, 0), (1, 0)))
    pm.Categorical("y", logit_p=logits, observed=GROUP)


@kind
def ones_in_the_graph():
    pm.Normal("y", X @ pm.Normal("b", shape=3), pt.ones(N) * pm.HalfNormal("sigma"), observed=REAL)


@kind
def set_in_the_graph():
    mu = pt.set_subtensor(pt.zeros(N)[:], X @ pm.Normal("b", shape=3))
    pm.Normal("y", mu, pm.HalfNormal("sigma"), observed=REAL)


@kind
def features_by_rows():
    pm.Normal("y", pm.Normal("b", shape=3) @ X.T, pm.HalfNormal("sigma"), observed=REAL)


@kind
def repeated():
    pm.Normal("y", pt.repeat(pm.Normal("b"), N) * X[:, 0], pm.HalfNormal("sigma"), observed=REAL)


@kind
def a_parameter_of_each_row():
    pm.Normal("y", pm.Normal("a", shape=N), pm.HalfNormal("sigma"), observed=REAL)


@kind
def as_many_features_as_rows():
    pm.Normal("y", pt.dot(X @ X.T, pm.Normal("b", shape=N)), pm.HalfNormal("sigma"), observed=REAL)


# -- sparse matrices ---------------------------------------------------------------------------------------------------

FEW_ELEMENTS = scipy.sparse.csr_matrix(X * (abs(X) > 0.5))


@kind
def sparse_matrix():
    eta = pytensor.sparse.structured_dot(FEW_ELEMENTS, pm.Normal("beta", shape=(3, 1)))[:, 0]
    levels = pytensor.sparse.dot(scipy.sparse.csr_matrix(np.eye(4, 2)), pm.Normal("effect", shape=2))
    pm.Potential("bound", -(pytensor.sparse.dot(FEW_ELEMENTS, pm.Normal("far", shape=3)).sum() ** 2))
    pm.Bernoulli("y", logit_p=eta + pm.Normal("level", levels, shape=4)[GROUP], observed=BINARY)


@kind
def sparse_data_by_columns():
    data = pm.Data("X", FEW_ELEMENTS.tocsc())
    pm.Normal("y", pytensor.sparse.dot(data, pm.Normal("beta", shape=3)), pm.HalfNormal("sigma"), observed=REAL)


# -- named axes --------------------------------------------------------------------------------------------------------


def of_rows(values, *others):
    return pmd.as_xtensor(values, dims=("row", *others))


@kind
def named_axes():
    data, beta = pmd.Data("X", X, dims=("row", "feature")), pmd.Normal("beta", 0, 1, dims="feature")
    pmd.Normal("y", data.dot(beta), pmd.HalfNormal("sigma"), observed=of_rows(REAL), dims="row")


@kind
def named_axes_of_groups():
    level = pmd.Normal("level", 0, pmd.HalfNormal("scale"), dims="group")
    pmd.Poisson("y", pmd.math.exp(level.isel(group=of_rows(GROUP))), observed=of_rows(COUNTS))


@kind
def named_axes_without_data():
    pmd.Normal("y", pmd.Normal("mu", dims="feature"), pmd.HalfNormal("s"), observed=of_rows(X, "feature"))


@kind
def named_axes_of_categories():
    shares = pmd.Dirichlet("p", a=pmd.as_xtensor(np.ones(4), dims="group"), core_dims="group")
    pmd.Categorical("y", p=shares, core_dims="group", observed=of_rows(GROUP))


@kind
def named_axes_in_another_order():
    data = pmd.Data("X", X.T, dims=("feature", "row"))
    pmd.Normal("y", data.dot(pmd.Normal("beta", dims="feature")), 1, observed=of_rows(REAL), dims="row")


@kind
def a_parameter_of_each_named_row():
    pmd.Normal("y", pmd.Normal("a", dims="row"), pmd.HalfNormal("sigma"), observed=of_rows(REAL))


@kind
def named_axes_of_parameters():
    beta = pmd.Normal("beta", dims="feature")
    pm.Normal("y", of_rows(X, "feature").dot(beta).values, 1, observed=REAL)


# -- priors and curves -------------------------------------------------------------------------------------------------


@kind
def bounded_parameters():
    low = pm.Uniform("low", -2, 2)
    pm.Normal("y", pm.Uniform("mu", low, 5), pm.Uniform("sigma", 0.0, 10.0), observed=REAL)


@kind
def weights_of_a_simplex():
    pm.Normal("y", X @ pm.Dirichlet("w", np.ones(3)), pm.HalfNormal("sigma"), observed=REAL)


@kind
def horseshoe():
    beta = pm.Normal("raw", shape=3) * pm.HalfCauchy("local", 1, shape=3) * pm.HalfCauchy("all", 1)
    pm.Normal("y", X @ beta, pm.HalfNormal("sigma"), observed=REAL)


@kind
def spline():
    knots = np.linspace(-1.5, 1.5, 4)
    basis = np.exp(-0.5 * ((X[:, :1] - knots) / 0.7) ** 2)
    pm.Normal("y", basis @ pm.Normal("w", 0, pm.HalfNormal("tau"), shape=4), 1.0, observed=REAL)


@kind
def random_walk():
    walk = pm.GaussianRandomWalk("walk", sigma=pm.HalfNormal("step"), init_dist=pm.Normal.dist(0, 1), steps=3)
    pm.Poisson("y", pt.exp(walk[GROUP]), observed=COUNTS)


@kind
def item_response():
    person, item = RANDOM.integers(0, 5, N), GROUP
    skill, difficulty = pm.Normal("skill", shape=5), pm.Normal("difficulty", shape=4)
    slope = pm.LogNormal("slope", 0, 0.5, shape=4)
    pm.Bernoulli("y", logit_p=slope[item] * (skill[person] - difficulty[item]), observed=BINARY)


@kind
def paired_comparisons():
    first, second = GROUP, (GROUP + 1 + RANDOM.integers(0, 3, N)) % 4
    strength = pm.Normal("strength", shape=4)
    pm.Bernoulli("y", logit_p=strength[first] - strength[second], observed=BINARY)


@kind
def psychometric():
    lapse = pm.Beta("lapse", 1, 20)
    p = lapse / 2 + (1 - lapse) * pm.math.invprobit((X[:, 0] - pm.Normal("threshold")) / pm.HalfNormal("width"))
    pm.Bernoulli("y", p=p, observed=BINARY)


@kind
def saturation():
    dose = np.abs(X[:, 0]) + 0.1
    top, half, slope = pm.HalfNormal("top", 3), pm.LogNormal("half"), pm.LogNormal("slope")
    pm.Normal("y", top * dose**slope / (half**slope + dose**slope), pm.HalfNormal("sigma"), observed=REAL)


@kind
def change_point():
    time = np.linspace(0, 1, N)
    rate = pt.switch(time < pm.Uniform("when", 0, 1), pm.Exponential("before", 1), pm.Exponential("after", 1))
    pm.Poisson("y", rate, observed=COUNTS)


@kind
def cycle():
    time = np.linspace(0, 5, N)
    amplitude, phase = pm.HalfNormal("amplitude"), pm.Uniform("phase", -np.pi, np.pi)
    pm.Normal("y", amplitude * pt.sin(2 * np.pi * time + phase), pm.HalfNormal("sigma"), observed=REAL)


@kind
def discrete():
    k, mu = pm.Poisson("k", 2), pm.Normal("mu", 0, 1)
    pm.Normal("y", mu * k, 1, observed=REAL)


@kind
def several_observed():
    a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
    pm.Normal("few", a + b, 1, observed=[0.1, -0.3])
    pm.StudentT("many", nu=4, mu=a, sigma=pt.exp(b), observed=REAL)
    pm.Bernoulli("more", logit_p=b * X[:, 1], observed=BINARY)


# -- methods of evaluation ---------------------------------------------------------------------------------------------


def python_mode():
    """Return a mode without compilation for tests, because Numba would need a minute for every function.

    It does not fuse operations either: in Python code, a fused ``reciprocal`` has only float32's precision. (PyTensor
    divides ``np.float32(1)`` by a Python float, which NumPy 2 treats as float32.)
    """
    return Mode(linker="py", optimizer=OPT_FAST_RUN.excluding("fusion"))


def points_of(model, n, scale=0.7, seed=1):
    """Return points of a model, as dicts, around its initial point."""
    initial, random = model.initial_point(), np.random.default_rng(seed)
    integers = {key for key, value in initial.items() if np.asarray(value).dtype.kind in "iu"}
    return [
        {
            key: value + (random.integers(0, 3) if key in integers else scale * random.normal(size=np.shape(value)))
            for key, value in initial.items()
        }
        for _ in range(n)
    ]


def evaluate(model, points):
    """Return a model's log-probability and its gradient at points, or NaN where PyMC raises LinAlgError."""
    function = model.compile_fn([model.logp(), model.dlogp()], inputs=model.value_vars)

    def at(point):
        try:
            return [np.array(each) for each in function(point)]
        except np.linalg.LinAlgError:
            return [np.array(np.nan), np.array(np.nan)]

    return [at(point) for point in points]


def assert_same(parallel, plain, n=100, rtol=1e-10):
    """Check that two models have the same log-probability and gradient at points around the initial point."""
    points = points_of(plain, n)
    for (value, gradient), (expected, expected_gradient) in zip(evaluate(parallel, points), evaluate(plain, points)):
        np.testing.assert_allclose(value, expected, rtol=rtol)
        np.testing.assert_allclose(gradient, expected_gradient, rtol=rtol, atol=rtol * abs(expected_gradient).max())


def without_compiling():
    """Return a context that keeps PyTensor from compiling."""
    return pytensor.config.change_flags(mode=python_mode(), linker="py", cxx="")


def log_density(features, binary, beta):
    """Return the log-probability of the rows of `logistic`."""
    return pm.logp(pm.Bernoulli.dist(logit_p=features @ beta), binary)


class InCall:
    """Context that runs an action just before a call of a model's likelihood."""

    def __init__(self, model, number, action):
        self.likelihood = model.potentials[0].owner.op.likelihood
        self.function, self.left, self.action = self.likelihood.function, number, action

    def __enter__(self):
        self.likelihood.function = self

    def __exit__(self, *error):
        self.likelihood.function = self.function

    def __call__(self, *args, **kwargs):
        self.left -= 1
        if self.left == 0:
            self.action()
        return self.function(*args, **kwargs)
