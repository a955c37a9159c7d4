"""Models that contain their number of rows, as a length or as a constant: they equal the plain model or are refused.

Each rank replaces lengths by its own number of rows, but not plain constants, and counts positions from its first row.

Modules: `rows`.
"""

import numpy as np
import pytest

pm = pytest.importorskip("pymc", reason='PyMC is not installed: pip install ".[pymc]"')

import pytensor.tensor as pt  # noqa: E402
from pymc_models import REAL, N, X, assert_same, marks  # noqa: E402
from refusals import refuses  # noqa: E402

from synkhronos.extensions.pymc import data_parallel  # noqa: E402

pytestmark = marks()


def latent():
    return pm.Normal("z", shape=N)


#: Expressions for the mean of a row, by name.
MEANS = {
    "positions": lambda a: a * pt.arange(N),
    "positions by their number": lambda a: a * pt.arange(N) / N,
    "a number that is no length": lambda a: a * X[:, 0] * N + pt.zeros(N),
    "a divisor": lambda a: a * X[:, 0] / N + pt.ones(N) / N,
    "a walk": lambda a: a + pt.cumsum(latent()),
    "a sum of ones": lambda a: a * pt.cumsum(pt.ones(N)),
    "backwards": lambda a: a + latent()[::-1],
    "a mean by hand": lambda a: a + (lambda z: z - z.sum() / N)(latent()),
    "a mean of data by hand": lambda a: a * (X[:, 0] - X[:, 0].sum() / N) * pt.ones(N),
    "the row before": lambda a: (lambda z: z + a * pt.concatenate([pt.zeros(1), z[:-1]]))(latent()),
    "the first is fixed": lambda a: a + pt.set_subtensor(pt.zeros(N)[1:], pm.Normal("z", shape=N - 1)),
    "sorted": lambda a: a + pt.sort(latent()),
    "a softmax": lambda a: a * pm.math.softmax(latent()),
    "a grid": lambda a: a * pt.linspace(0, 1, N),
    "a matrix of rows by rows": lambda a: np.tril(np.ones((N, N))) @ latent() + a,
}


def model_of(mean):
    with pm.Model() as model:
        pm.Normal("y", mean(pm.Normal("a")), pm.HalfNormal("sigma"), observed=REAL)
    return model


@pytest.mark.thorough(but="^(positions|a walk|a divisor|the row before)$")
@pytest.mark.parametrize("name", MEANS)
def test_as_the_plain_model(make_world, name):
    make_world("threads", 3)
    plain = model_of(MEANS[name])
    assert_same(data_parallel(plain), plain, 5)


def test_what_moves_rows_is_refused():
    with refuses(TypeError, "y", "row"):
        data_parallel(model_of(lambda a: a + pt.roll(latent(), 1)))
