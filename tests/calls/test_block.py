"""`synkhronos.functions`: inside this block, a library's own calls of ``function`` build synkhronos functions.

Functions here, which imported the engine's ``function`` before the block, serve as the library, and so does pytensor-ml
(test_pytensor_ml.py). Expected values come from the same code outside a block, or from NumPy.

Modules: `synkhronos.calls.block`, `synkhronos.engines.graph.catching`.
"""

import inspect
import threading

import numpy as np
import pytest
from library import IS_THEANO, NAME, L, T
from refusals import refuses, reports

import synkhronos as synk

pytestmark = getattr(pytest.mark, NAME)

if IS_THEANO:
    import theano as engine
    from theano import function as early
elif NAME == "pytensor":
    engine = pytest.importorskip("pytensor")
    early = engine.function

FAST = dict(mode=L.quick)
X = np.random.RandomState(0).randn(7, 2)


class Fit:
    """Code of a library that imported ``function`` before the block and does not use synkhronos."""

    def __init__(self):
        self.q, self.x = T.dmatrix("q"), T.dmatrix("x")
        self.w = L.shared(np.array([1.0, -2.0]), "w")
        self.loss = T.sqr(T.tanh(T.dot(T.dot(self.x, self.q), self.w)) - 0.5).mean()

    def step(self):
        new = self.w - 0.1 * T.sgn(T.grad(self.loss, self.w)) * self.loss
        return early([self.q, self.x], self.loss, updates=[(self.w, new)], **FAST)

    def evaluate(self):
        return early([self.x], T.dot(self.x, self.w), FAST["mode"])


def is_ours(function):
    return isinstance(function, synk.Function)


def test_what_a_library_builds_is_ours(small_world):
    q = np.array([[1.0, 0.5], [-0.5, 2.0]])
    plain, fit = Fit(), Fit()
    serial = plain.step()
    with synk.functions(bcast_inputs=["q"]) as built:
        step, evaluate = fit.step(), fit.evaluate()
        count = (fit.w * 2).eval()
    assert built == [step, evaluate] and is_ours(step) and is_ours(evaluate) and not is_ours(serial)
    np.testing.assert_array_equal(count, [2, -4])
    for rows in (7, 2, 1):
        np.testing.assert_allclose(step(q, X[:rows]), serial(q, X[:rows]), rtol=1e-12)  # in the order of the library
        np.testing.assert_allclose(fit.w.get_value(), plain.w.get_value(), rtol=1e-12)
    np.testing.assert_allclose(evaluate(X), X.dot(fit.w.get_value()), rtol=1e-12)
    assert evaluate.output_modes == ["gather"] and step.exact and synk.in_sync(fit.w)


def test_a_variable_instead_of_its_name(threads):
    fit = Fit()
    with synk.functions(bcast_inputs=[fit.q]):
        step = fit.step()
    assert step.output_modes == ["avg"]
    step(np.eye(2), X)


def test_afterwards_nothing_has_changed(threads):
    code, signature = early.__code__, inspect.signature(early)
    with synk.functions():
        assert early.__code__ is not code
    assert early.__code__ is code and inspect.signature(early) == signature
    assert not is_ours(Fit().step())
    with pytest.raises(ZeroDivisionError), synk.functions(bcast_inputs=["nobody"]):
        raise ZeroDivisionError
    assert early.__code__ is code


def test_only_this_thread(threads):
    found = []
    with synk.functions() as built:
        other = threading.Thread(target=lambda: found.append(Fit().evaluate()))
        other.start()
        other.join()
        evaluate = Fit().evaluate()
    assert built == [evaluate] and not is_ours(found[0])


def test_blocks_in_blocks(threads):
    with synk.functions() as outer:
        first = Fit().evaluate()
        with synk.functions(exact=False, bcast_inputs=["x"]) as inner:
            second = Fit().evaluate()
        third = Fit().evaluate()
    assert outer == [first, third] and inner == [second]
    assert [one.exact for one in (first, second, third)] == [True, False, True]
    np.testing.assert_allclose(second(X), X.dot([1, -2]))  # every rank has all rows


def test_own_functions_are_built_as_ever(threads):
    x = T.dmatrix("x")
    with synk.functions() as built:
        f = synk.function([x], [(x.sum(), "sum")], **FAST)
        np.testing.assert_allclose(f(X), [X.sum()])  # also compiles for slices inside the block
        f(X, num_slices=2)
    assert not built and not f.exact


def test_a_number_of_rows(threads):
    """``rows=`` applies to functions that contain this number; other functions accept any number of rows."""

    def build():
        x = T.dmatrix("x")
        return early([x], [T.dot(x, np.ones(2)) * T.arange(7)], **FAST), early([x], [x.sum()], **FAST)

    positions, total = build()
    with synk.functions(rows=7):
        ours = build()
    np.testing.assert_allclose(ours[0](X), positions(X))
    np.testing.assert_allclose(ours[1](X[:5]), total(X[:5]))


def test_arguments_that_cannot_be(threads):
    for error, keywords, argument, expected, got in [
        (TypeError, dict(bcast_inputs="q"), "bcast_inputs", "list", "str"),
        (TypeError, dict(bcast_inputs=None), "bcast_inputs", "list", "NoneType"),
        (TypeError, dict(rows="many"), "rows", "int", "many"),
        (ValueError, dict(rows=0), "rows", "at least 1", "0"),
        (TypeError, dict(exact="yes"), "exact", "True", "yes"),
    ]:
        with refuses(error, argument, expected, got), synk.functions(**keywords):
            Fit().evaluate()
    with refuses(ValueError, "bcast_inputs[1]", got="'nobody'", hint="q, x"):
        with synk.functions(bcast_inputs=["q", "nobody"]):
            Fit().step()
    with reports(TypeError, "colour"), synk.functions():
        early([T.dmatrix("x")], [], colour=1)
    with reports(ValueError, "bcast_inputs", "q"), synk.functions():
        Fit().step()  # q has no rows
