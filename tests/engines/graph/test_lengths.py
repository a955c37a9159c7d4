"""Lengths that are known from a graph, compared to those that the engine computes.

Modules: `equalities`.
"""

import numpy as np
import pytest
from library import NAME, L, T

from synkhronos.engines.graph.equalities import Equalities
from synkhronos.sharding import Product

pytestmark = getattr(pytest.mark, NAME)

X, Y = L.variable("float64", 2, "x"), L.variable("float64", 2, "y")
SHAPE = X.shape
LENGTHS = L.placing.lengths


def number_of(product, shape):
    """Return the value of a product of lengths of x."""
    number = product.number
    for (variable, axis), exponent in product.factors:
        assert variable is X
        number *= shape[axis] ** exponent
    return number


VECTORS = {
    "a shape": SHAPE,
    "joined": T.concatenate([SHAPE[:1], [3]]),
    "stacked": T.stack([SHAPE[1], SHAPE[0]]),
    "turned around": SHAPE[::-1],
    "chosen by a list": SHAPE[[1, 1, 0]],
    "set": T.set_subtensor(SHAPE[0], 7),
    "a slice set": T.set_subtensor(SHAPE[1:], 7),
    "set by a list": T.set_subtensor(SHAPE[[1]], [7]),
    "increased": T.inc_subtensor(SHAPE[:1], SHAPE[0]),
    "chosen by position": T.switch(T.eq(T.arange(2), 0), SHAPE, 9),
    "multiplied": SHAPE * SHAPE[0],
    "by numbers": SHAPE * np.array([2, 0]),
    "counted": T.arange(2, 8, 3),
    "filled": T.zeros((2,), "int64") + SHAPE[1],
    "cast": T.cast(SHAPE, "int32"),
}

NUMBERS = {
    "a product": T.prod(SHAPE),
    "a size": X.size,
    "an exact quotient": X.size // SHAPE[1],
    "a quotient of products": T.prod(SHAPE) * 6 // (SHAPE[1] * 3),
    "a real quotient": T.cast(X.size / SHAPE[0], "int64"),
    "a rounded one": T.cast(T.floor(X.size / SHAPE[0]), "int64"),
    "a difference": 3 * SHAPE[0] - SHAPE[0],
    "a choice": T.switch(T.lt(1, T.stack([SHAPE[0], 1]).shape[0]), SHAPE[0], 5),
    "an element at a computed position": SHAPE[T.constant(2) - T.constant(1)],
    "below zero": T.constant(1) - T.constant(3) + T.constant(2),
    "a number of elements": T.concatenate([SHAPE, SHAPE[:1]]).shape[0],
}


@pytest.mark.parametrize("shape", [(2, 3), (5, 1)])
@pytest.mark.parametrize("name", VECTORS)
def test_elements_of_a_vector(name, shape):
    found = LENGTHS.elements(VECTORS[name])
    value = L.function([X], VECTORS[name], mode=L.slow, on_unused_input="ignore")(np.zeros(shape))
    assert [number_of(one, shape) for one in found] == list(value)


@pytest.mark.parametrize("shape", [(2, 3), (5, 1)])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name, shape):
    found = LENGTHS.length(NUMBERS[name])
    value = L.function([X], NUMBERS[name], mode=L.slow, on_unused_input="ignore")(np.zeros(shape))
    assert number_of(found, shape) == value


@pytest.mark.parametrize("number", [X.size // 2, T.cast(X.size / 2, "int64"), SHAPE[0] + SHAPE[1], SHAPE[0] % 2])
def test_what_may_not_be_a_product_is_a_symbol(number):
    found = LENGTHS.length(number)
    assert len(found.factors) == 1 and found.number == 1
    (((variable, *_), _),) = [(one if isinstance(one, tuple) else (one,), by) for one, by in found.factors]
    assert variable.owner is not None


def test_vectors_that_are_no_shapes_are_not_read():
    assert LENGTHS.elements(T.arange(10**9)) is None
    assert LENGTHS.elements(T.zeros((10**9,), "int64")) is None
    assert LENGTHS.elements(T.as_tensor_variable(np.arange(10**4))) is None
    assert LENGTHS.elements(T.as_tensor_variable(np.ones(3))) is None


# -- equal lengths -----------------------------------------------------------------------------------------------------


def length(variable, axis):
    return LENGTHS.axis_length(variable, axis)


def equalities(*outputs):
    return Equalities(LENGTHS, L.io_toposort(L.inputs(list(outputs)), list(outputs)))


def test_arrays_that_are_combined_have_equal_lengths():
    z = L.variable("float64", 2, "z")
    same = equalities(X * Y, T.tanh(z) + Y)
    assert same(length(X, 0)) == same(length(Y, 0)) == same(length(z, 0)) != same(length(X, 1)) == same(length(z, 1))
    assert same(Product(2).times(length(X, 0)).times(length(z, 0))) == same(
        Product(2).times(length(Y, 0)).times(length(Y, 0))
    )


def test_what_is_repeated_is_not_equal():
    same = equalities(X * Y.sum(0, keepdims=True))
    assert same(length(X, 0)) != same(length(Y, 0)) and same(length(X, 1)) == same(length(Y, 1))


def test_products_and_joined_arrays():
    same = equalities(T.dot(X, Y))
    assert same(length(X, 1)) == same(length(Y, 0)) != same(length(Y, 1))
    same = equalities(T.concatenate([X, Y], axis=1))
    assert same(length(X, 0)) == same(length(Y, 0)) and same(length(X, 1)) != same(length(Y, 1))


def test_a_length_may_be_a_product():
    same = equalities(X.reshape((X.shape[0] * X.shape[1],)) + Y[0])
    assert same(length(Y, 1)) == same(length(X, 0).times(length(X, 1)))


def test_a_branch_that_may_not_be_computed_says_nothing():
    same = equalities(L.ifelse(X.sum() > 0, (X * Y).sum(), X.sum()))
    assert same(length(X, 0)) != same(length(Y, 0))
