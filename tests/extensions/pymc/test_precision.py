"""Every kind of model is as precise over all ranks as it is in plain PyMC, near its initial point and far from it."""

import numpy as np
import pytest

pm = pytest.importorskip("pymc", reason='PyMC is not installed: pip install ".[pymc]"')
multiprecision = pytest.importorskip("multiprecision", reason="mpmath is not installed: make install-test")

from pymc_models import KINDS, evaluate, marks, points_of  # noqa: E402

from synkhronos.extensions.pymc import data_parallel  # noqa: E402

pytestmark = marks(timeout=600)

#: Relative error of a float64 whose last digits are wrong; sums in another order may differ by this much.
ROUNDING = 2e-15

#: Kinds whose exact values take minutes to compute at extreme points: exponentials of exponentials.
UNKNOWN = {"item_response", "complementary_log_log"}


def far_points(plain):
    """Return points at growing distances from the initial one, and points with all elements at 800 or -800."""
    initial = plain.initial_point()
    points = [point for scale in (4.0, 12.0, 100.0) for point in points_of(plain, 1, scale)]
    for limit in (800.0, -800.0):
        is_float = {name: np.asarray(value).dtype.kind == "f" for name, value in initial.items()}
        points.append(
            {name: np.full(np.shape(value), limit) if is_float[name] else value for name, value in initial.items()}
        )
    return points


def errors(found, truth):
    """Return the relative errors of a value, and of a gradient relative to its largest element."""
    (value, gradient), (true_value, true_gradient) = found, truth
    scale = max(abs(true_gradient).max(), np.finfo(float).tiny)
    return np.array([abs(value - true_value) / max(abs(true_value), 1), abs(gradient - true_gradient).max() / scale])


@pytest.mark.thorough(
    but=(
        "^(logistic|linear|covariances|mixture|bounded_parameters|weights_of_a_simplex|started_elsewhere|weibull_of_an_array"
        "|hurdle|a_class_without_parameters|categories_of_one_simplex|named_axes|sparse_matrix)$"
    )
)
@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_as_good_as_the_plain_model(make_world, name):
    make_world("threads", 2)
    plain = KINDS[name]()
    near, far = points_of(plain, 10), far_points(plain)
    expected = evaluate(plain, near + far)
    found = evaluate(data_parallel(plain), near + far)
    for one, truth in zip(found[: len(near)], expected):
        assert (errors(one, truth) < 1e-10).all() or not np.isfinite(truth[0])
    logp, n_decided = plain.logp(), 0
    for point, one, of_plain in zip(far, found[len(near) :], expected[len(near) :]):
        if not all(np.isfinite(each).all() for each in of_plain):
            continue
        assert all(np.isfinite(each).all() for each in one), point
        truth = [np.nan, np.nan]
        if name not in UNKNOWN:
            truth = multiprecision.value_and_gradient(logp, point, plain.value_vars, plain.continuous_value_vars)
        if np.isnan(truth[0]):  # undecided even with hundreds of digits
            assert (errors(one, of_plain) < 1e-10).all(), point
        else:
            n_decided += 1
            assert (errors(one, truth) <= 10 * np.maximum(errors(of_plain, truth), ROUNDING)).all(), point
    assert n_decided or name in UNKNOWN | {"ordered", "correlations"}


def test_numbers_of_more_digits():
    x, y = pm.math.pt.dscalar("x"), pm.math.pt.dvector("y")
    graph = pm.math.pt.log1p(-1 / (1 + pm.math.pt.exp(-x))) + (y**2).sum()  # in float64, log(0) if x exceeds 37
    value, gradient = multiprecision.value_and_gradient(
        graph, {"x": np.array(50.0), "y": np.array([1.0, 2.0])}, [x, y], [x, y]
    )
    np.testing.assert_allclose(value, -50 + 5, rtol=1e-15)
    np.testing.assert_allclose(gradient, [-1, 2, 4], rtol=1e-15)
