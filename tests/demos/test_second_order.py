"""Second-order demo: its method on NumPy problems, and its checks with right and wrong parallel programs."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import DEMOS, run
from worlds import needs_lasagne

# Compilation is slow if the cache is empty.
pytestmark = [pytest.mark.theano, needs_lasagne, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def demo():
    sys.path.insert(0, str(DEMOS))  # the demo imports mnist_data from this folder
    try:
        spec = importlib.util.spec_from_file_location("second_order", str(DEMOS / "second_order.py"))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(DEMOS))
    return module


def positive_definite(n, seed=0):
    M = np.random.RandomState(seed).randn(n, n)
    return M.dot(M.T) + np.eye(n)


# Conjugate gradients.


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_conjugate_gradients_solve(demo, start):
    A, b = positive_definite(8), np.arange(8.0)
    iterates = demo.conjugate_gradients(A.dot, b, np.full(8, start), 30, min_progress=1e-14)
    np.testing.assert_allclose(iterates[-1][1], np.linalg.solve(A, b), rtol=1e-6)
    for _, x, phi in iterates:
        assert phi == pytest.approx(x.dot(A).dot(x) / 2 - b.dot(x))
    phis = [phi for _, _, phi in iterates]
    assert np.all(np.diff(phis) <= 1e-12 * abs(phis[-1]))  # at the end, only rounding remains


def test_conjugate_gradients_use_one_product_for_each_iteration_and_one_before(demo):
    products = []
    A = positive_definite(50)
    iterates = demo.conjugate_gradients(
        lambda v: products.append(v) or A.dot(v), np.ones(50), np.zeros(50), 12, min_progress=0
    )
    assert len(products) == 13
    assert [i for i, _, _ in iterates] == [1, 2, 3, 4, 6, 8, 11, 12]


def test_conjugate_gradients_stop_where_little_is_gained(demo):
    A = np.diag(np.r_[np.ones(50), np.geomspace(1, 1e4, 50)])
    b = np.r_[np.ones(50), np.full(50, 1e-3)]  # the first iteration achieves nearly the whole decrease
    assert demo.conjugate_gradients(A.dot, b, np.zeros(100), 80)[-1][0] < 20
    assert demo.conjugate_gradients(A.dot, b, np.zeros(100), 80, min_progress=0)[-1][0] == 80


def test_conjugate_gradients_begin_at_the_solution(demo):
    A, x = positive_definite(5), np.arange(5.0)
    with np.errstate(all="raise"):
        ((n_iterations, found, _),) = demo.conjugate_gradients(A.dot, np.zeros(5), np.zeros(5), 9)
    assert n_iterations == 0 and not found.any()
    np.testing.assert_allclose(demo.conjugate_gradients(A.dot, A.dot(x), x, 9)[-1][1], x, atol=1e-12)


# Hessian-free optimization.


class Recorded:
    """Problem of NumPy functions of theta that records the calls."""

    def __init__(self, demo, loss, gradient, product):
        self.calls, self.theta = [], None
        self.problem = demo.Problem(
            self.set_params,
            lambda: self.calls.append("loss") or loss(self.theta),
            lambda: self.calls.append("gradient") or (loss(self.theta), gradient(self.theta)),
            lambda v: self.calls.append("product") or product(self.theta, v),
        )

    def set_params(self, theta):
        self.theta = np.array(theta)


@pytest.fixture
def float64(demo):
    before, demo.theano.config.floatX = demo.theano.config.floatX, "float64"
    yield
    demo.theano.config.floatX = before


def rosenbrock(demo):
    """Return the problem ``(1 - a)^2 + 100 (b - a^2)^2``: least squares of two residuals, so ``G = 2 J' J``."""

    def residuals(t):
        return np.array([1 - t[0], 10 * (t[1] - t[0] ** 2)])

    def J(t):
        return np.array([[-1, 0], [-20 * t[0], 10]])

    return Recorded(
        demo,
        lambda t: residuals(t).dot(residuals(t)),
        lambda t: 2 * J(t).T.dot(residuals(t)),
        lambda t, v: 2 * J(t).T.dot(J(t).dot(v)),
    )


def test_hessian_free_finds_the_minimum_of_rosenbrock(demo, float64):
    recorded = rosenbrock(demo)
    start = np.array([-1.2, 1.0])
    steps = list(demo.hessian_free(recorded.problem, start, 400, cg_iterations=5))
    np.testing.assert_allclose(steps[-1].theta, [1, 1], atol=1e-6)
    losses = [24.2] + [step.loss for step in steps]
    assert losses == sorted(losses, reverse=True)
    assert any(0 < step.rate < 1 for step in steps)  # some steps were shortened
    assert min(step.damping for step in steps) < 0.5 < max(step.damping for step in steps)
    for step in steps[:5]:
        recorded.set_params(step.theta)
        assert step.loss == recorded.problem.loss()


def test_every_call_is_a_pass(demo, float64):
    recorded = rosenbrock(demo)
    for step in demo.hessian_free(recorded.problem, np.array([-1.2, 1.0]), 60, cg_iterations=3):
        assert step.passes == len(recorded.calls)
    assert 45 < step.passes <= 60
    assert recorded.problem.counts == {kind: recorded.calls.count(kind) for kind in ("loss", "gradient", "product")}
    assert min(recorded.problem.counts.values()) > 2


def test_first_step_is_that_of_the_damped_newton_method(demo, float64):
    A, b = positive_definite(4), np.arange(1.0, 5)
    recorded = Recorded(demo, lambda t: t.dot(A).dot(t) / 2 - b.dot(t), lambda t: A.dot(t) - b, lambda t, v: A.dot(v))
    step = next(demo.hessian_free(recorded.problem, np.zeros(4), 100, damping=3.0))
    np.testing.assert_allclose(step.theta, np.linalg.solve(A + 3 * np.eye(4), b), rtol=1e-5)
    assert step.damping == 2  # the model is exact
    assert step.rate == 1


@pytest.mark.parametrize("value", [1.0, np.nan])
def test_where_nothing_is_better_no_step_is_made(demo, float64, value):
    recorded = Recorded(demo, lambda t: value if t.any() else 0.0, np.ones_like, lambda t, v: v)
    first = next(demo.hessian_free(recorded.problem, np.zeros(3), 100))
    assert first.rate == 0 and first.loss == 0 and not first.theta.any()
    assert first.damping == 1.5


# The dense matrix, and the functions on the ranks.


def test_dense_matrix_of_one_layer_is_the_hessian(demo):
    """With one layer, G equals the loss's second derivative, by differences: outputs are linear in the parameters."""
    random = np.random.RandomState(0)
    X, theta = random.rand(7, 3), random.randn(12)

    def gradient(theta):
        error = (1 / (1 + np.exp(-X.dot(theta[:9].reshape(3, 3)) - theta[9:])) - X) / 7
        return np.r_[X.T.dot(error).ravel(), error.sum(axis=0)]

    expected = [(gradient(theta + 1e-5 * e) - gradient(theta - 1e-5 * e)) / 2e-5 for e in np.eye(12)]
    np.testing.assert_allclose(demo.dense_gauss_newton(theta, (3, 3), X), expected, atol=1e-9)


CHECKS = """
import sys, warnings
sys.path.insert(0, {demos!r})
import synkhronos as synk
warnings.filterwarnings("ignore")
import mnist_data
import second_order as demo

X = mnist_data.load().X_train
scatter = synk.scatter

def check(what, n, steps=False):
    synk.fork(n, use_gpu=False)
    result = demo.Result([], {{}}, demo.check_product(), demo.check_steps(X, n_rows=50) if steps else 0.0)
    print("%s: %s %.1e %.1e" % (what, result.agree, result.product_error, result.steps_error))
    synk.close()

check("one rank", 1)
check("three ranks", 3, steps=True)
synk.scatter = lambda variable, values: scatter(variable, values[:-1])
check("a row lost", 3)
synk.scatter = scatter
demo.T.Rop, Rop = lambda f, wrt, at: Rop(f, wrt, at) * 1.000001, demo.T.Rop
check("a wrong derivative", 2)
"""


@pytest.mark.long
def test_checks_tell_right_from_wrong():
    done = subprocess.run(
        [sys.executable, "-c", CHECKS.format(demos=str(DEMOS))],
        cwd=str(Path(DEMOS).parent),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^(.*): (True|False) ", done.stdout, re.MULTILINE)
    assert found == [
        ("one rank", "True"),
        ("three ranks", "True"),
        ("a row lost", "False"),
        ("a wrong derivative", "False"),
    ], done.stdout


@pytest.mark.long
def test_the_whole_program(tmp_path):
    picture = tmp_path / "curves.png"
    done = run(
        DEMOS / "second_order.py",
        "--passes",
        "20",
        "--rows",
        "100",
        "--units",
        "784",
        "12",
        "784",
        "--n-ranks",
        "3",
        "--num-slices",
        "2",
        "--cg-iterations",
        "10",
        "--no-progress",
        "--plot",
        str(picture),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^(Hessian-free|SGD.*|Adam.*\)) +((?:\d+\.\d+ *){6})$", done.stdout, re.MULTILINE)
    assert [name.split(" (")[0] for name, _ in rows] == [
        "Hessian-free",
        "SGD, 100 rows per step",
        "Adam, 100 rows per step",
        "SGD, all rows in each step",
        "Adam, all rows in each step",
    ], done.stdout
    for _, numbers in rows:
        losses = [float(number) for number in numbers.split()[:-1]]
        assert losses[-1] < 500 < losses[0] + 300  # 784 log 2 = 543 at first
    if importlib.util.find_spec("matplotlib"):
        assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10000
    else:
        assert "python -m pip install matplotlib" in done.stdout


def test_missing_matplotlib_is_a_sentence(demo, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    demo.draw([demo.Curve("a", [(0, 1.0)], 0.0)], 1, str(tmp_path / "a.png"))
    assert "no plot, because matplotlib is not installed" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_help():
    done = run(DEMOS / "second_order.py", "--help")
    assert done.returncode == 0 and "--cg-iterations" in done.stdout
