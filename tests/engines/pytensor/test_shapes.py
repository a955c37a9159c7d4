"""Shapes of variables, computed from those of their inputs, equal those of NumPy's arrays."""

import numpy as np
import pytest

pytestmark = pytest.mark.pytensor
pytensor = pytest.importorskip("pytensor")
pt = pytest.importorskip("pytensor.tensor")

from synkhronos.engines.graph.shapes import shapes_of  # noqa: E402
from synkhronos.engines.pytensor.engine import ENGINE  # noqa: E402

X = np.arange(12.0).reshape(4, 3) - 5


def test_of_many_operations():
    x, n = pt.dmatrix("x"), pt.iscalar("n")
    variables = [
        x.T,
        pt.exp(x).sum(axis=0),
        pt.join(1, x, x[:, :2]),
        pt.zeros((n, 2 * n)),
        x[x.sum(axis=1) > 0],
        x.mean(),
    ]
    found = pytensor.function([x, n], shapes_of(ENGINE.library, variables))(X, 3)
    assert [tuple(shape.tolist()) for shape in found] == [(3, 4), (3,), (4, 5), (3, 6), (2, 3), ()]


def test_nothing_large_is_computed():
    n = pt.lscalar("n")
    big = pt.zeros((n, n))
    found = pytensor.function([n], shapes_of(ENGINE.library, [pt.exp(big).T, pt.dot(big, big)]))(10**9)
    assert [tuple(shape.tolist()) for shape in found] == [(10**9, 10**9)] * 2
