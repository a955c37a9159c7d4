"""`synkhronos.ops.rule`: user-defined operations in exact functions."""

import numpy as np
import pytest
from library import NAME, L, T
from refusals import refuses

import synkhronos as synk

pytestmark = getattr(pytest.mark, NAME)


class OfArrays(L.Op):
    """An operation computed by a NumPy function; tests derive classes from it."""

    __props__ = ()
    function, gradient, type = None, None, None

    def make_node(self, *inputs):
        inputs = [T.as_tensor_variable(one) for one in inputs]
        return L.Apply(self, inputs, [self.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(type(self).function(*inputs))

    def grad(self, inputs, output_grads):
        return type(self).gradient(*inputs, *output_grads)

    def pullback(self, inputs, outputs, cotangents):  # (PyTensor's name of `grad`)
        return self.grad(inputs, cotangents)


def operation(name, function, type_, gradient=None):
    return type(
        name, (OfArrays,), dict(function=staticmethod(function), type=type_, gradient=staticmethod(gradient or T.grad))
    )


@pytest.fixture(autouse=True)
def table(monkeypatch):
    """Remove the rules that a test adds when it ends."""
    monkeypatch.setattr(L.placing, "rules", dict(L.placing.rules))
    monkeypatch.setattr(L.placing, "_added", set())


def rows(n):
    return np.random.RandomState(n).randn(n, 3)


def test_without_a_rule_it_is_refused(threads):
    x, w = T.dmatrix("x"), L.shared(np.ones(3), "w")
    sorted_rows = operation("Sorted", lambda x: np.sort(x, axis=1), T.dmatrix)
    with refuses(TypeError, "output", None, "rule"):
        synk.function([x], sorted_rows()(x))
    synk.ops.rule(sorted_rows, "n-->n-")
    np.testing.assert_array_equal(synk.function([x], sorted_rows()(x))(rows(5)), np.sort(rows(5), axis=1))
    with refuses(ValueError, "the update of w", None, "axis"):
        synk.function([x], updates=[(w, sorted_rows()(x.T).sum(axis=1))], exact=True)
    assert synk.function([], sorted_rows()(w.dimshuffle("x", 0)).sum()).as_theano() == 3  # all ranks have the value


@pytest.mark.thorough
def test_training_through_an_operation_and_its_gradient(threads):
    """The operation multiplies rows by weights, so that the gradient of the weights is reduced over the rows."""
    backward = operation("Backward", lambda x, g: x.T.dot(g), T.dvector)
    forward = operation("Forward", lambda x, w: x.dot(w), T.dvector, lambda x, w, g: [T.outer(g, w), backward()(x, g)])
    synk.ops.rule(forward, "nk,k->n", linear=[0, 1])
    synk.ops.rule(backward, "nk,n->k", linear=[0, 1])
    x = T.dmatrix("x")

    def build():
        w = L.shared(np.array([0.4, -1.0, 0.3]), "w")
        loss = T.sqr(forward()(x, w) - 1).mean()
        g = T.grad(loss, w)
        return w, loss, [(w, w - 0.1 * g / T.sqrt(T.sqr(g).sum()))]

    (w, loss, updates), (other, serial, plain) = build(), build()
    f, g = synk.function([x], loss, updates=updates, exact=True), L.function([x], serial, updates=plain)
    for n in (6, 7, 2, 1):
        np.testing.assert_allclose(f(rows(n)), g(rows(n)))
        for of_rank in synk.gather(w):
            np.testing.assert_allclose(of_rank, other.get_value(), rtol=1e-10)
    assert f.compare(rows(5))


def test_what_is_not_linear_needs_the_whole(threads):
    x = T.dmatrix("x")
    squares = operation("Squares", lambda v: v**2, T.dvector)
    largest = operation("Largest", lambda x: x.max(axis=0), T.dvector)
    spread = operation("Spread", lambda x: x.std(axis=0), T.dvector)
    synk.ops.rule(squares, "k->k")
    synk.ops.rule(largest, "nk->k", reduce="max")
    synk.ops.rule(spread, "nk->k", reduce=None)
    w = L.shared(np.zeros(3), "w")
    f = synk.function([x], largest()(x), updates=[(w, squares()(x.sum(axis=0)))], exact=True)
    np.testing.assert_allclose(f(rows(7)), rows(7).max(axis=0))
    np.testing.assert_allclose(synk.gather(w), [rows(7).sum(axis=0) ** 2] * 3)
    with refuses(TypeError, "output", None, "depends"):
        synk.function([x], spread()(x))


def test_axes_that_follow_from_the_node(threads):
    x = T.dmatrix("x")

    class Summed(OfArrays):
        __props__ = ("axis",)
        type = T.dvector

        def __init__(self, axis):
            self.axis = axis

        def perform(self, node, inputs, outputs):
            outputs[0][0] = inputs[0].sum(axis=self.axis)

    synk.ops.rule(Summed, lambda node: "nk->k" if node.op.axis == 0 else "nk->n", linear=[0])
    f = synk.function([x], [Summed(0)(x), Summed(1)(x)])
    assert f.output_modes == ["sum", "gather"]
    for found, expected in zip(f(rows(5)), [rows(5).sum(axis=0), rows(5).sum(axis=1)]):
        np.testing.assert_allclose(found, expected)


def test_subclasses_have_it_too(threads):
    x = T.dmatrix("x")
    base = operation("Base", lambda x: x + 1, T.dmatrix)
    synk.ops.rule(base, "ij->ij")
    derived = type("Derived", (base,), dict(function=staticmethod(lambda x: x + 2)))
    np.testing.assert_array_equal(synk.function([x], derived()(x))(rows(4)), rows(4) + 2)
    synk.ops.rule(derived, "n-->n-")  # the class's own rule


def test_what_cannot_be(threads):
    x, one = T.dmatrix("x"), operation("One", lambda x: x, T.dmatrix)
    with refuses(TypeError, "op", "Op", "One"):
        synk.ops.rule(one(), "ij->ij")
    with refuses(ValueError, "axes", "numpy.einsum", "'ij'"):
        synk.ops.rule(one, "ij")
    with refuses(ValueError, "axes", "letters", "'i1'"):
        synk.ops.rule(one, "i1->i1")
    with refuses(TypeError, "linear", "positions", "['x']"):
        synk.ops.rule(one, "ij->ij", linear=["x"])
    with refuses(ValueError, "reduce", "'prod'", "'avg'"):
        synk.ops.rule(one, "ij->i", reduce="avg")
    with refuses(ValueError, "op", "rule", "Softmax"):
        synk.ops.rule(type(T.nnet.softmax(x).owner.op), "ij->ij")
    synk.ops.rule(one, "i->i")
    with refuses(ValueError, "axes of the rule of One", "inputs with ndim=[2] and outputs with ndim=[2]", "'i->i'"):
        synk.function([x], one()(x))
    synk.ops.rule(one, "ij->ij")  # replaces the rule
    np.testing.assert_array_equal(synk.function([x], one()(x))(rows(4)), rows(4))
