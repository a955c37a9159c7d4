"""`synkhronos.ops.all_reduce` as programs call it: its arguments, results and refusals."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses
from worlds import ENGINES

import synkhronos as synk
from synkhronos.errors import ArgumentTypeError, ArgumentValueError

ROOT = Path(__file__).parents[2]
X = np.array([[1.0, 2.0], [3.0, 5.0]])


@pytest.fixture(params=ENGINES)
def words(request, words_of):
    return words_of(request.param)


def compiled(words, inputs, outputs):
    """Return a function compiled by the engine alone, without ranks."""
    engine = synk.engines.find(inputs)
    kwargs = {} if engine.name == "numpy" else {"mode": words.mode}
    return engine.compile(inputs, outputs, [], None, **kwargs)


def test_one_variable_gives_one_and_a_list_gives_a_list(words):
    x, y = words.variable("x", 2), words.variable("y", 1, "float32")
    one = synk.ops.all_reduce(x)
    assert one.type == x.type
    for several in ([x, y], (x, y)):
        results = synk.ops.all_reduce(several, op="sum")
        assert type(results) is list and [result.type for result in results] == [x.type, y.type]
    (alone,) = synk.ops.all_reduce([x])
    f = compiled(words, [x], [one, alone, synk.ops.all_reduce(x * 2, "max")])
    for result, truth in zip(f(X), (X, X, X * 2)):
        np.testing.assert_array_equal(result, truth)


@pytest.mark.parametrize("op", ["avg", "sum", "min", "max", "c_avg", "c_sum", "c_min", "c_max"])
def test_ops(words, op):
    x = words.variable("x", 2)
    (ops,) = synk.engines.find([x]).collectives(_snapshot(words, [x], [synk.ops.all_reduce(x, op)]), {x: 0})[:1]
    assert [str(one) for one in ops] == [op]


def _snapshot(words, inputs, outputs):
    engine = synk.engines.find(inputs)
    return engine.snapshot(inputs, outputs, [], None, **({} if engine.name == "numpy" else {"mode": words.mode}))


@pytest.mark.parametrize("op", ["prod", "gather", None, "c_prod", "mean", ""])
def test_other_ops_are_refused(words, op):
    with refuses(ArgumentValueError, argument="op", expected="'avg', 'sum', 'min', 'max'", got=str(op)):
        synk.ops.all_reduce(words.variable("x"), op)


def test_ops_that_are_not_strings_are_refused(words):
    with refuses(ArgumentTypeError, argument="op", got="3 of type int"):
        synk.ops.all_reduce(words.variable("x"), 3)


@pytest.mark.parametrize("nothing", [[], ()])
def test_nothing_is_refused(nothing):
    with refuses(ArgumentValueError, argument="x", expected="one", got="none"):
        synk.ops.all_reduce(nothing)


@pytest.mark.parametrize("thing", [X, 1.5, "x", None, [X, 2.0], {}])
def test_what_is_no_variable_is_refused(thing):
    with refuses(ArgumentTypeError, argument="x", expected="a variable", hint="synkhronos.all_reduce"):
        synk.ops.all_reduce(thing)


def test_values_among_variables_are_refused(words):
    x = words.variable("x")
    for value in (X, 1.0, words.In(x)):
        with refuses(ArgumentTypeError, argument="x[1]", expected="dense", hint="leave"):
            synk.ops.all_reduce([x, value])


@pytest.mark.parametrize("dtype", ["int32", "bool", "uint8"])
def test_integers_with_avg_are_refused(words, dtype):
    i = words.variable("i", 1, dtype)
    with refuses(ArgumentTypeError, argument="i", expected="floating-point", got=dtype, hint="'sum', 'min' or 'max'"):
        synk.ops.all_reduce(i)
    assert synk.ops.all_reduce(i, "sum").type == i.type


@pytest.mark.parametrize("name", ENGINES[1:])
def test_sparse_variables_are_refused(name):
    pytest.importorskip("scipy")
    from library import L

    for variable in (L.sparse.csr_matrix("s"), L.generic("g")):
        with refuses(ArgumentTypeError, argument=variable.name, expected="dense", got=str(variable.type)):
            synk.ops.all_reduce(variable, "sum")


@pytest.mark.parametrize("name", ENGINES[1:])
def test_shared_variables_and_constants(words_of, name):
    from library import L, T

    w, c = L.shared(X, "w"), T.constant(X)
    f = L.function([], synk.ops.all_reduce([w, c]), mode=words_of(name).mode)
    for result in f():
        np.testing.assert_array_equal(result, X)


def test_the_module_is_there_without_an_import_of_its_own():
    program = (
        "import sys, synkhronos as synk\n"
        "assert 'ops' in dir(synk) and 'ops' in synk.__all__\n"
        "print(synk.ops.__name__, synk.ops.all_reduce.__name__, 'theano' in sys.modules)\n"
        "try:\n    synk.ops.all_reduce([1])\nexcept TypeError:\n    print('theano' in sys.modules)"
    )
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    done = subprocess.check_output([sys.executable, "-c", program], env=environment, universal_newlines=True)
    assert done.split() == ["synkhronos.ops", "all_reduce", "False", "False"]
