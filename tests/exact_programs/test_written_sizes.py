"""Programs that contain the batch size as a number, with ``rows=``, compared with the library alone."""

import numpy as np
import pytest
from library import IS_THEANO, NAME, L, T
from refusals import refuses
from worlds import needs_lasagne

import synkhronos as synk

pytestmark = [getattr(pytest.mark, NAME), *([needs_lasagne] if IS_THEANO else []), pytest.mark.timeout(600)]
if IS_THEANO:
    pytest.importorskip("lasagne")

import written  # noqa: E402
from corpus import Program, weights  # noqa: E402
from trainers import lasagne  # noqa: E402

STEPS = 6


def batches(program):
    """Yield batches of the program's size, with rows from anywhere in the data."""
    random = np.random.RandomState(0)
    for _ in range(STEPS):
        chosen = random.permutation(len(program.data[0]))[: written.SIZE]
        yield [array[chosen] for array in program.data]


def built(program):
    lasagne.random.set_rng(np.random.RandomState(0))
    return program()


def compare(program, mode, **options):
    """Train a program on ranks and by the library alone; compare the results."""
    one, other = built(program), built(program)
    f = synk.function(one.inputs, one.outputs, updates=one.updates, exact=True, rows=written.SIZE, mode=mode, **options)
    g = L.function(other.inputs, other.outputs, updates=other.updates, mode=mode)
    for ours, plain in zip(batches(one), batches(other)):
        for got, want in zip(f(*ours), g(*plain)):
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)
    for param, same in zip(one.params, other.params):
        for value in synk.gather(param, nd_up=1):
            np.testing.assert_allclose(value, same.get_value(), rtol=1e-8, atol=1e-10)
    with refuses(ValueError, "rows", got=str(written.SIZE - 1)):
        f(*[array[:-1] for array in ours])


@pytest.mark.long("attention|lstm|gru")
@pytest.mark.parametrize("program", written.PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_programs(make_world, program, n):
    make_world("threads", n, 0, engine=NAME)
    compare(program, L.quick)


@pytest.mark.thorough
def test_as_processes_with_all_optimizations(make_world):
    make_world("fork", 3, 1, engine=NAME)
    compare(written.logistic_sgd, L.full)


def convolutional(old):
    """The tutorials' convolutional network, by either of Theano's two operations, with explicit shapes."""
    random = np.random.RandomState(77)
    x, y, size = T.dmatrix("x"), T.ivector("y"), written.SIZE
    params = [weights(random, 3, 1, 3, 3), weights(random, 4, 3, 2, 2), weights(random, 16, 5)]
    conv, shape = (T.nnet.conv.conv2d, "image_shape") if old else (T.nnet.conv2d, "input_shape")
    hidden = conv(x.reshape((size, 1, 8, 8)), params[0], filter_shape=(3, 1, 3, 3), **{shape: (size, 1, 8, 8)})
    hidden = T.tanh(L.module.tensor.signal.pool.pool_2d(hidden, (2, 2), ignore_border=True))
    hidden = T.tanh(conv(hidden, params[1], filter_shape=(4, 3, 2, 2), **{shape: (size, 3, 3, 3)}))
    p = T.nnet.softmax(T.dot(hidden.flatten(2), params[2]))
    cost = -T.mean(T.log(p)[T.arange(size), y])
    data = [random.randn(33, 64), random.randint(0, 5, 33).astype("int32")]
    return Program([x, y], [cost], params, written.descent(cost, params), data)


@pytest.mark.long
@pytest.mark.skipif(not IS_THEANO, reason="PyTensor has none of these operations")
@pytest.mark.filterwarnings("ignore:.*conv2d is deprecated")
@pytest.mark.parametrize("old", [False, True], ids=["of 2016", "of 2012"])
def test_convolutions(make_world, old):
    make_world("threads", 3, 1, engine=NAME)
    compare(lambda: convolutional(old), L.with_compiler)
