"""`data_parallel` with models that Bambi builds from formulas: value and gradient equal the plain model's."""

import numpy as np
import pytest

pytest.importorskip("pymc")
bambi = pytest.importorskip("bambi")
pandas = pytest.importorskip("pandas")

from pymc_models import assert_same  # noqa: E402

from synkhronos.extensions.pymc import data_parallel  # noqa: E402

pytestmark = [
    pytest.mark.pytensor,
    pytest.mark.usefixtures("nothing_compiled"),
    pytest.mark.filterwarnings("ignore::Warning"),  # PyMC's and Bambi's own warnings vary between versions
]

N = 61


def table():
    """Return a table with the columns of all formulas."""
    random = np.random.default_rng(0)
    x, z = random.normal(size=(2, N))
    y = 0.5 * x + random.normal(size=N)
    counts = random.poisson(np.exp(0.3 * x))
    tries = random.integers(3, 9, N)
    columns = dict(
        x=x,
        z=z,
        y=y,
        g=random.choice(list("abcde"), N),
        h=random.choice(list("uvw"), N),
        passed=(random.random(N) < 0.5).astype(int),
        counts=counts,
        few=counts * (random.random(N) < 0.6),
        tries=tries,
        hits=random.binomial(tries, 0.4),
        share=1 / (1 + np.exp(-y)),
        positive=np.abs(y) + 0.1,
        angle=2 * np.arctan(y),
        kind=random.choice(list("rst"), N),
        level=pandas.Categorical(random.choice([1, 2, 3], N), ordered=True),
        ending=random.choice(["none", "right"], N),
    )
    return pandas.DataFrame(columns)


def log_link(family):
    return {"family": family, "link": "log"}


#: Formulas, with additional arguments of `bambi.Model`. The first ten run in `make test`.
FORMULAS = [
    ("y ~ x*g + z", {}),
    ("y ~ x + (x|g) + (1|h)", {}),
    ("y ~ x + (x|g)", {"noncentered": False}),
    ("passed ~ x + (1|g)", {"family": "bernoulli"}),
    ("counts ~ x + g + offset(z)", {"family": "negativebinomial"}),
    ("p(hits, tries) ~ x", {"family": "binomial"}),
    ("kind ~ x", {"family": "categorical"}),
    ("level ~ x", {"family": "cumulative"}),
    ("few ~ x", {"family": "hurdle_poisson"}),
    ("censored(positive, ending) ~ x", log_link("weibull")),
    ("y ~ x", {"family": "t"}),
    ("y ~ x", {"family": "laplace"}),
    ("y ~ x", {"family": "asymmetriclaplace"}),
    ("y ~ poly(x, 2)", {}),
    ("y ~ bs(x, df=5)", {}),
    ("y ~ hsgp(x, m=5, c=1.5)", {}),
    ("counts ~ x", {"family": "poisson"}),
    ("few ~ x", {"family": "zero_inflated_poisson"}),
    ("few ~ x", {"family": "zero_inflated_negativebinomial"}),
    ("few ~ x", {"family": "hurdle_negativebinomial"}),
    ("positive ~ x", log_link("gamma")),
    ("positive ~ x", log_link("hurdle_gamma")),
    ("positive ~ x", log_link("wald")),
    ("positive ~ x", log_link("exponential")),
    ("share ~ x", {"family": "beta"}),
    ("p(hits, tries) ~ x", {"family": "beta_binomial"}),
    ("p(hits, tries) ~ x", {"family": "zero_inflated_binomial"}),
    ("level ~ x", {"family": "sratio"}),
    ("angle ~ x", {"family": "vonmises"}),
]


@pytest.mark.parametrize(
    "formula, arguments",
    [
        pytest.param(*each, id=f"{i}-{each[1].get('family', 'gaussian')}", marks=[pytest.mark.long] * (i >= 10))
        for i, each in enumerate(FORMULAS)
    ],
)
def test_formulas(make_world, formula, arguments):
    make_world("threads", 3)
    built = bambi.Model(formula, table(), **arguments)
    built.build()
    plain = built.backend.model
    assert_same(data_parallel(plain), plain, 10)
