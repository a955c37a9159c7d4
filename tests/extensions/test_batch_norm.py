"""Batch normalization over the rows of all ranks, compared with loops in NumPy and with serial networks."""

import importlib
import sys

import numpy as np
import pytest
from refusals import refuses, reports
from worlds import needs_lasagne

import synkhronos as synk

theano = pytest.importorskip("theano")
lasagne = pytest.importorskip("lasagne")
T, layers = theano.tensor, lasagne.layers

from synkhronos.extensions.batch_norm import BatchNormLayer, batch_norm  # noqa: E402 (it needs Lasagne)

pytestmark = [pytest.mark.theano, needs_lasagne]

#: Mode without the C compiler.
MODE = "FAST_COMPILE"


@pytest.fixture(autouse=True)
def double_precision(monkeypatch):
    monkeypatch.setattr(theano.config, "floatX", "float64")


# -- one layer against NumPy -------------------------------------------------------------------------------------------


def normalized(x, axes, gamma, beta, epsilon):
    """Compute the paper's algorithm 1 by loops, channel by channel."""
    y, means, inv_stds = np.empty_like(x), [], []
    channel_axes = [axis for axis in range(x.ndim) if axis not in axes]
    for i, channel in enumerate(np.ndindex(*(x.shape[axis] for axis in channel_axes))):
        index = [slice(None)] * x.ndim
        for axis, number in zip(channel_axes, channel):
            index[axis] = number
        values = x[tuple(index)]
        mean = values.sum() / values.size
        variance = ((values - mean) ** 2).sum() / values.size
        inv_std = 1 / np.sqrt(variance + epsilon)
        y[tuple(index)] = gamma.flat[i] * (values - mean) * inv_std + beta.flat[i]
        means.append(mean)
        inv_stds.append(inv_std)
    return y, np.array(means).reshape(gamma.shape), np.array(inv_stds).reshape(gamma.shape)


#: Shape, axes as passed and as interpreted, shape of the parameters.
SHAPES = pytest.mark.parametrize(
    "shape, axes, averaged, parameter_shape",
    [
        ((6, 3, 4, 5), "auto", (0, 2, 3), (3,)),
        ((7, 4), "auto", (0,), (4,)),
        ((7, 4, 2), 0, (0,), (4, 2)),
        ((5, 3, 2), (0, 1), (0, 1), (2,)),
    ],
)


class Case:
    """A layer, its input, and NumPy's results for training and inference."""

    def __init__(self, shape, axes, averaged, parameter_shape):
        random = np.random.RandomState(0)
        self.x, self.gamma, self.beta = (random.normal(1, 2, s) for s in (shape, parameter_shape, parameter_shape))
        incoming = layers.InputLayer((None,) + shape[1:])
        self.layer = BatchNormLayer(incoming, axes, epsilon=0.01, alpha=0.25, gamma=self.gamma, beta=self.beta)
        self.input = T.TensorType("float64", [False] * len(shape))()
        self.averaged = averaged
        self.pattern = [1 if axis in averaged else shape[axis] for axis in range(len(shape))]
        self.mean, self.inv_std = np.zeros(parameter_shape), np.ones(parameter_shape)

    def trained(self, x):
        """Return the output for training, and update the expected averages."""
        y, mean, inv_std = normalized(x, self.averaged, self.gamma, self.beta, 0.01)
        self.mean = 0.75 * self.mean + 0.25 * mean
        self.inv_std = 0.75 * self.inv_std + 0.25 * inv_std
        return y

    def used(self, x):
        """Return the output by the running averages."""
        mean, inv_std, gamma, beta = (
            array.reshape(self.pattern) for array in (self.mean, self.inv_std, self.gamma, self.beta)
        )
        return (x - mean) * inv_std * gamma + beta


@SHAPES
def test_it_is_that_of_the_paper(shape, axes, averaged, parameter_shape):
    case = Case(shape, axes, averaged, parameter_shape)
    train = theano.function([case.input], case.layer.get_output_for(case.input), mode=MODE)
    use = theano.function([case.input], case.layer.get_output_for(case.input, deterministic=True), mode=MODE)
    x = case.x
    for _ in range(3):
        x = x * 1.5 + 1
        np.testing.assert_allclose(train(x), case.trained(x), rtol=1e-9, atol=1e-12)
    for _ in range(2):  # inference changes nothing
        np.testing.assert_allclose(use(x), case.used(x), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(case.layer.mean.get_value(), case.mean, rtol=1e-9)
    np.testing.assert_allclose(case.layer.inv_std.get_value(), case.inv_std, rtol=1e-9)


@SHAPES
def test_it_is_that_of_the_paper_on_ranks(make_world, shape, axes, averaged, parameter_shape):
    """Normalization is right if rows are divided unevenly, or if ranks have no rows."""
    case = Case(shape, axes, averaged, parameter_shape)
    make_world("threads", 3, 1, engine="theano")
    train = synk.function([case.input], (case.layer.get_output_for(case.input), "gather"), mode=MODE)
    use_output = case.layer.get_output_for(case.input, deterministic=True)
    use = synk.function([case.input], (use_output, "gather"), mode=MODE)
    for n in (len(case.x), 4, 2, 1):
        x = case.x[:n] * 1.5 + n
        np.testing.assert_allclose(train(x), case.trained(x), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(use(x), case.used(x), rtol=1e-9, atol=1e-12)
    for rank in range(3):
        np.testing.assert_allclose(synk.get_value(rank, case.layer.mean), case.mean, rtol=1e-9)
        np.testing.assert_allclose(synk.get_value(rank, case.layer.inv_std), case.inv_std, rtol=1e-9)


@pytest.mark.parametrize("use_averages", [False, True])
@pytest.mark.parametrize("update_averages", [False, True])
def test_use_and_update_of_averages_are_decided_apart(use_averages, update_averages):
    layer = BatchNormLayer(layers.InputLayer((None, 2)), epsilon=0, alpha=0.5, beta=None, gamma=None)
    assert len(layer.get_params()) == 2
    rows = T.dmatrix()
    output = layer.get_output_for(
        rows, batch_norm_use_averages=use_averages, batch_norm_update_averages=update_averages
    )
    x = np.array([[1.0, 10.0], [3.0, 50.0]])
    expected = x if use_averages else [[-1, -1], [1, 1]]  # the initial averages are 0 and 1
    np.testing.assert_allclose(theano.function([rows], output, mode=MODE)(x), expected, rtol=1e-9)
    np.testing.assert_allclose(layer.mean.get_value(), [1, 15] if update_averages else [0, 0], rtol=1e-9)


def test_parameters_and_their_tags():
    layer = BatchNormLayer(layers.InputLayer((None, 2)), name="norm")
    assert [param.name for param in layer.get_params()] == ["norm.beta", "norm.gamma", "norm.mean", "norm.inv_std"]
    assert layer.get_params(trainable=True) == [layer.beta, layer.gamma]
    assert layer.get_params(regularizable=True) == [layer.gamma]
    assert [param.get_value().tolist() for param in layer.get_params()] == [[0, 0], [1, 1], [0, 0], [1, 1]]


def test_a_mean_that_is_large_beside_the_deviations(make_world):
    """Variances beside large means are precise: in float32, a mean of squares would leave no digits for them."""
    make_world("threads", 3, 0, engine="theano")
    theano.config.floatX = "float32"
    x = (3000 + np.random.RandomState(0).randn(30, 2)).astype("float32")
    layer, rows = BatchNormLayer(layers.InputLayer((None, 2)), alpha=1), T.fmatrix()
    f = synk.function([rows], (layer.get_output_for(rows), "gather"), mode=MODE)
    got = f(x)
    expected, _, inv_std = normalized(x.astype("float64"), (0,), np.ones(2), np.zeros(2), 1e-4)
    assert got.dtype == "float32"
    np.testing.assert_allclose(layer.inv_std.get_value(), inv_std, rtol=1e-4)  # a naive variance would give 0.5
    np.testing.assert_allclose(got, expected, atol=1e-3)


def test_a_channel_that_does_not_vary(make_world):
    """A constant channel's variance is not below -epsilon, although means of 3 and 2 numbers differ by rounding."""
    make_world("threads", 3, 0, engine="theano")
    layer, rows = BatchNormLayer(layers.InputLayer((None, 1)), epsilon=1e-13, beta=np.array([5.0])), T.dmatrix()
    output = layer.get_output_for(rows)
    gradient = synk.ops.all_reduce(theano.grad(output.sum(), layer.gamma))
    f = synk.function([rows], [(output, "gather"), (gradient, None)], mode=MODE)
    for value in 100 * np.random.RandomState(0).rand(20):
        got, gradient = f(np.full((7, 1), value))
        np.testing.assert_allclose(got, 5, atol=1e-6)
        np.testing.assert_allclose(gradient, 0, atol=1e-6)


# -- networks against the serial program -------------------------------------------------------------------------------


def dense_network(images):
    network = layers.InputLayer((None, 2, 4, 4), images)
    network = batch_norm(layers.DenseLayer(network, 5, nonlinearity=T.tanh))
    return layers.DenseLayer(BatchNormLayer(network), 3, nonlinearity=lasagne.nonlinearities.softmax)


def convolutional_network(images, convolution=layers.NINLayer, *size):
    """Return a network with 1x1 convolutions by default: Theano has no Python code for others."""
    network = layers.InputLayer((None, 2, 4, 4), images)
    network = batch_norm(convolution(network, 3, *size, nonlinearity=T.tanh))
    network = BatchNormLayer(network, axes=(0, 3))
    return layers.DenseLayer(network, 3, nonlinearity=lasagne.nonlinearities.softmax)


def compiled_network(images):
    return convolutional_network(images, layers.Conv2DLayer, 3)


class Program:
    """A network for training, with the same initial values in both programs."""

    def __init__(self, build):
        lasagne.random.set_rng(np.random.RandomState(1))
        self.inputs = [T.dtensor4("images"), T.lvector("labels")]
        self.network = build(self.inputs[0])
        prediction = layers.get_output(self.network)
        self.loss = lasagne.objectives.categorical_crossentropy(prediction, self.inputs[1]).mean()
        self.params = layers.get_all_params(self.network, trainable=True)
        self.averages = layers.get_all_params(self.network, trainable=False)
        self.grads = synk.ops.all_reduce(theano.grad(self.loss, self.params))


def rows(n, seed=0):
    random = np.random.RandomState(seed)
    return random.randn(n, 2, 4, 4) + np.arange(n).reshape(-1, 1, 1, 1) % 5, random.randint(0, 3, n)


def compare(ours, serial):
    """Compare all parameters and averages, on all ranks."""
    for shared, other in zip(layers.get_all_params(ours.network), layers.get_all_params(serial.network)):
        for value in synk.gather(shared, nd_up=1):
            np.testing.assert_allclose(value, other.get_value(), rtol=1e-8, atol=1e-10)


NETWORKS = pytest.mark.parametrize("build", [dense_network, convolutional_network])


@pytest.mark.thorough(but="dense.*adam")
@pytest.mark.parametrize("how", [("threads", 1, 0), ("threads", 3, 1), ("fork", 2, 0)], ids="{0[0]}-{0[1]}".format)
@pytest.mark.parametrize("rule, rate", [("momentum", 0.1), ("adam", 0.01)])
@NETWORKS
def test_training_is_the_serial_programs(make_world, how, rule, rate, build):
    """Lasagne's rules give serial results on batches that divide unevenly or leave ranks without rows."""
    make_world(*how, engine="theano")
    ours, serial = Program(build), Program(build)
    f, g = (
        function(
            program.inputs,
            program.loss,
            updates=getattr(lasagne.updates, rule)(program.grads, program.params, learning_rate=rate),
            mode=MODE,
        )
        for function, program in ((synk.function, ours), (theano.function, serial))
    )
    before = [average.get_value() for average in serial.averages]
    for i, n in enumerate([8, 7, 2, 5]):
        np.testing.assert_allclose(f(*rows(n, i)), g(*rows(n, i)), rtol=1e-9)
        compare(ours, serial)
    assert all((average.get_value() != old).all() for average, old in zip(serial.averages, before))


@pytest.mark.thorough("convolutional")
@NETWORKS
def test_gradients_over_shards_of_1_3_and_7_rows(make_world, build):
    """Gradients are right if every rank takes rows from shared variables, and finally one takes none."""
    make_world("threads", 3, 0, engine="theano")
    X, Y = rows(24)
    images, labels = theano.shared(X[:1], "X"), theano.shared(Y[:1], "Y")
    ours, serial = Program(build), Program(build)
    f = synk.function(
        [],
        [ours.loss] + [(gradient, None) for gradient in ours.grads],
        givens=list(zip(ours.inputs, [images, labels])),
        sliceable_shareds=[images, labels],
        mode=MODE,
    )
    g = theano.function(serial.inputs, [serial.loss] + theano.grad(serial.loss, serial.params), mode=MODE)
    synk.scatter(images, X)
    synk.scatter(labels, Y)
    for batch in ([[2], [0, 5, 1], list(range(7))], [[4], [], [0, 1, 3]]):
        chosen = [8 * rank + row for rank, mine in enumerate(batch) for row in mine]
        for got, want in zip(f(batch_s=batch), g(X[chosen], Y[chosen])):
            np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-12)
        for ours_, other in zip(ours.averages, serial.averages):
            for value in synk.gather(ours_, nd_up=1):
                np.testing.assert_allclose(value, other.get_value(), rtol=1e-9)


@pytest.mark.parametrize("n", [1, 3])
def test_gradients_are_those_of_finite_differences(make_world, n):
    """Finite differences of a loss written in NumPy equal the gradients."""
    make_world("threads", n, 0, engine="theano")
    random = np.random.RandomState(3)
    x, w, gamma, beta = random.randn(11, 3), random.randn(3, 2), random.rand(2) + 0.5, random.randn(2)

    def loss_of(values):
        w, gamma, beta = values
        return (np.tanh(normalized(x.dot(w), (0,), gamma, beta, 1e-2)[0]) ** 3).mean()

    def difference(i, j, step=1e-5):
        moved = []
        for sign in (1, -1):
            values = [w.copy(), gamma.copy(), beta.copy()]
            values[i].flat[j] += sign * step
            moved.append(loss_of(values))
        return (moved[0] - moved[1]) / (2 * step)

    rows = T.dmatrix()
    dense = layers.DenseLayer(layers.InputLayer((None, 3), rows), 2, W=w, b=None, nonlinearity=None)
    layer = BatchNormLayer(dense, epsilon=1e-2, gamma=gamma, beta=beta)
    loss = (T.tanh(layers.get_output(layer)) ** 3).mean()
    grads = synk.ops.all_reduce(theano.grad(loss, [dense.W, layer.gamma, layer.beta]))
    f = synk.function([rows], [loss] + [(gradient, None) for gradient in grads], mode=MODE)
    loss, *grads = f(x)
    np.testing.assert_allclose(loss, loss_of([w, gamma, beta]), rtol=1e-10)
    for i, gradient in enumerate(grads):
        expected = [difference(i, j) for j in range(gradient.size)]
        np.testing.assert_allclose(gradient.ravel(), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize(
    "build, mode",
    [(compiled_network, ("c|py", "fast_compile")), (convolutional_network, ("py", "fast_run"))],
    ids=["in C", "optimized"],
)
def test_other_ways_to_compile(make_world, build, mode):
    """Modes and linkers give the same results; a layer costs one collective in each direction."""
    make_world("fork", 2, 0, engine="theano")
    ours, serial = Program(build), Program(build)
    f, g = (
        function(p.inputs, p.loss, updates=lasagne.updates.sgd(p.grads, p.params, 0.1), mode=theano.Mode(*mode))
        for function, p in ((synk.function, ours), (theano.function, serial))
    )
    collectives = [node for node in g.maker.fgraph.apply_nodes if "AllReduce" in str(node.op)]
    assert len(collectives) == 2 * 2 + 1  # two for each of two layers, and one for the gradients
    for i, n in enumerate([7, 1, 6]):
        np.testing.assert_allclose(f(*rows(n, i)), g(*rows(n, i)), rtol=1e-9)
    compare(ours, serial)


def test_slices_are_refused(make_world):
    make_world("threads", 2, 0, engine="theano")
    program = Program(dense_network)
    f = synk.function(program.inputs, program.loss, mode=MODE)
    with refuses(ValueError, argument="num_slices", expected="output (mean) is not linear", got="2"):
        f(*rows(8), num_slices=2)
    with refuses(ValueError, argument="num_slices", expected="inv_std is not linear", got="2"):
        f(*rows(8), num_slices=2, output_subset=[])
    prediction = layers.get_output(program.network, deterministic=True)
    use = synk.function(program.inputs[:1], (prediction, "gather"), mode=MODE)
    serial = theano.function(program.inputs[:1], prediction, mode=MODE)
    np.testing.assert_allclose(use(rows(8)[0], num_slices=2), serial(rows(8)[0]), rtol=1e-12)


# -- batch_norm --------------------------------------------------------------------------------------------------------


def test_it_goes_between_a_layer_and_its_nonlinearity():
    weights = np.array([[1.0, -2.0], [0.5, 1.0]])
    dense = layers.DenseLayer(layers.InputLayer((None, 2)), 2, W=weights, b=lasagne.init.Constant(7), name="dense")
    network = batch_norm(dense, epsilon=0.01)
    found = layers.get_all_layers(network)
    assert [type(layer) for layer in found[1:]] == [layers.DenseLayer, BatchNormLayer, layers.NonlinearityLayer]
    assert dense.b is None and len(dense.params) == 1
    assert [layer.name for layer in found[1:]] == ["dense", "dense_bn", "dense_bn_nonlin"]
    x = np.random.RandomState(0).normal(size=(6, 2))
    rows = T.dmatrix()
    expected, _, _ = normalized(x.dot(weights), (0,), np.ones(2), np.zeros(2), 0.01)
    got = theano.function([rows], layers.get_output(network, rows), mode=MODE)(x)
    np.testing.assert_allclose(got, np.maximum(expected, 0), rtol=1e-9, atol=1e-12)


def test_a_layer_without_bias_and_nonlinearity():
    pool = layers.MaxPool2DLayer(layers.InputLayer((None, 2, 4, 4)), 2)
    network = batch_norm(pool, name="norm")
    assert type(network) is BatchNormLayer and network.input_layer is pool and network.name == "norm"


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given, error, fields",
    [
        (dict(axes="all"), TypeError, dict(argument="axes", expected='"auto", an int', got="'all'")),
        (dict(axes=(0, 1.0)), TypeError, dict(argument="axes", got="(0, 1.0)")),
        (dict(axes=True), TypeError, dict(argument="axes", got="True")),
        (dict(axes=1), ValueError, dict(argument="axes", expected="0", got="1")),
        (dict(axes=()), ValueError, dict(argument="axes", got="()")),
        (dict(axes=(0, -1)), ValueError, dict(argument="axes", got="(0, -1)")),
        (dict(axes=(0, 2)), ValueError, dict(argument="axes", expected="axes below 2", got="(0, 2)")),
        (dict(axes=(0, 0)), ValueError, dict(argument="axes", expected="distinct", got="(0, 0)")),
        (dict(epsilon=-1e-4), ValueError, dict(argument="epsilon", expected="0 or more", got="-0.0001")),
        (dict(epsilon="small"), TypeError, dict(argument="epsilon", got="small")),
        (dict(epsilon=float("nan")), ValueError, dict(argument="epsilon", got="nan")),
        (dict(alpha=0), ValueError, dict(argument="alpha", expected="1", got="0")),
        (dict(alpha=1.5), ValueError, dict(argument="alpha", got="1.5")),
        (dict(alpha=None), TypeError, dict(argument="alpha", got="None")),
        (dict(incoming=(5, None)), ValueError, dict(argument="incoming", expected="axis 1", got="(5, None)")),
    ],
)
def test_bad_arguments(given, error, fields):
    with refuses(error, **fields):
        BatchNormLayer(**{"incoming": (None, 2), **given})


def test_a_refusal_leaves_the_layer_as_it_was():
    dense = layers.DenseLayer((None, 3), 2)
    with refuses(ValueError, argument="alpha"):
        batch_norm(dense, alpha=2)
    assert dense.nonlinearity is lasagne.nonlinearities.rectify and dense.b in dense.params
    with refuses(TypeError, argument="layer", expected="Lasagne", got="3 of type int"):
        batch_norm(3)


def test_without_lasagne_the_import_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "lasagne", None)
    monkeypatch.delitem(sys.modules, "synkhronos.extensions.batch_norm")
    with reports(ImportError, "Lasagne", "pip", "lasagne 'setuptools<81'"):
        importlib.import_module("synkhronos.extensions.batch_norm")
