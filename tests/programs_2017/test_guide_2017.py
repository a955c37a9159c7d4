"""The deep learning programs of the 2017 guide (gradients, all_reduce, step), compared with serial programs.

They were rewritten from the guide's description of ``train_mnist_cpu_data``, ``train_mnist_gpu_data`` and
``train_resnet``, smaller and with random images. As in the guide, Lasagne is imported before `fork`, with its flags.
"""

import pytest
from command_line import run_text

pytestmark = pytest.mark.theano

FLAGS = "device=cpu,force_device=True"

#: Common first lines of the programs; the serial program uses only Lasagne.
HEADER = """
import sys
import lasagne
import numpy as np
import theano
import theano.tensor as T
import synkhronos as synk
from lasagne.layers import DenseLayer, InputLayer, get_all_params, get_output
from synkhronos.extensions import train, updates

random = np.random.RandomState(0)
targets = T.ivector('targets')

def minibatches(n, size):
    order = random.permutation(n)
    return [order[i:i + size] for i in range(0, n, size)]

def mlp():
    lasagne.random.set_rng(np.random.RandomState(1))
    inputs = T.matrix('inputs')
    layer = DenseLayer(InputLayer((None, 12), inputs), 7, nonlinearity=lasagne.nonlinearities.tanh)
    return inputs, DenseLayer(layer, 4, nonlinearity=lasagne.nonlinearities.softmax)

def loss_of(network, deterministic=False):
    prediction = get_output(network, deterministic=deterministic)
    return lasagne.objectives.categorical_crossentropy(prediction, targets).mean()

def accuracy_of(network):
    best = T.argmax(get_output(network, deterministic=True), axis=1)
    return T.mean(T.eq(best, targets), dtype=theano.config.floatX)

def check(network, serial_network, tolerance=1e-9):
    for ours, theirs in zip(get_all_params(network), get_all_params(serial_network)):
        np.testing.assert_allclose(ours.get_value(), theirs.get_value(), rtol=tolerance, atol=tolerance)
        for rank in range(1, synk.size()):
            np.testing.assert_array_equal(synk.get_value(rank, ours), ours.get_value())
"""


@pytest.mark.thorough
@pytest.mark.long("3")
@pytest.mark.parametrize("n", [2, 3])
def test_mnist_with_the_data_on_the_host(tmp_path, n):
    """Training by Adam on shuffled lists of rows, and validation in slices, equal those of the serial program."""
    pytest.importorskip("lasagne")
    program = """
X, y = random.rand(90, 12), random.randint(0, 4, 90).astype('int32')
X_valid, y_valid = random.rand(31, 12), random.randint(0, 4, 31).astype('int32')
(inputs, network), (serial_inputs, serial_network) = mlp(), mlp()

assert synk.fork(int(sys.argv[1]), use_gpu=False) == int(sys.argv[1])
loss, params = loss_of(network), get_all_params(network, trainable=True)
grad_updates, param_updates, grad_shared = updates.adam(loss, params, learning_rate=0.01)
assert grad_shared.ndim == 1  # one vector for all layers, so one all_reduce suffices
grad_fn = synk.function([inputs, targets], loss, updates=grad_updates)
step_fn = synk.function([], updates=param_updates)
valid_fn = synk.function([inputs, targets], [loss_of(network, True), accuracy_of(network)])
synk.distribute()

serial_loss = loss_of(serial_network)
rule = lasagne.updates.adam(serial_loss, get_all_params(serial_network, trainable=True), learning_rate=0.01)
serial_fn = theano.function([serial_inputs, targets], serial_loss, updates=rule)
serial_valid_fn = theano.function(
    [serial_inputs, targets], [loss_of(serial_network, True), accuracy_of(serial_network)])

X_data, y_data = synk.data(X), synk.data(y)
for epoch in range(3):
    for rows in minibatches(90, 18):
        loss = grad_fn(X_data, y_data, batch=rows.tolist())
        synk.all_reduce(grad_shared, op='avg')
        step_fn()
        np.testing.assert_allclose(loss, serial_fn(X[rows], y[rows]), rtol=1e-9)
    expected = serial_valid_fn(X_valid, y_valid)
    for num_slices in (1, 4):
        np.testing.assert_allclose(valid_fn(X_valid, y_valid, num_slices=num_slices), expected, rtol=1e-9)
check(network, serial_network)
print('equal', synk.size())
"""
    assert run_text(tmp_path, HEADER + program, str(n), flags=FLAGS) == f"equal {n}\n"


@pytest.mark.thorough
def test_mnist_with_the_data_on_the_ranks(tmp_path):
    """Training on data in shared variables, with ``batch_s`` as lists per rank or one slice, equals serial training."""
    pytest.importorskip("lasagne")
    program = """
X, y = random.rand(41, 12), random.randint(0, 4, 41).astype('int32')
(inputs, network), (serial_inputs, serial_network) = mlp(), mlp()

synk.fork(2, use_gpu=False)
X_shared, y_shared = theano.shared(X[:0], 'X'), theano.shared(y[:0], 'y')
givens, rows_of = {inputs: X_shared, targets: y_shared}, [X_shared, y_shared]
train_fn = train.make_train_function(
    loss_of(network), get_all_params(network, trainable=True), [], [], updates.nesterov_momentum, 0.1,
    givens=givens, sliceable_shareds=rows_of)
valid_fn = synk.function([], [loss_of(network, True), accuracy_of(network)], givens=givens, sliceable_shareds=rows_of)
synk.distribute()
synk.scatter(rows_of, [X, y])
lengths = synk.get_lengths(X_shared)
assert lengths == [21, 20]

serial_loss = loss_of(serial_network)
rule = lasagne.updates.nesterov_momentum(serial_loss, get_all_params(serial_network, trainable=True), 0.1)
serial_fn = theano.function([serial_inputs, targets], serial_loss, updates=rule)
serial_valid_fn = theano.function(
    [serial_inputs, targets], [loss_of(serial_network, True), accuracy_of(serial_network)])

def step(batch_s, rows):
    np.testing.assert_allclose(train_fn(batch_s=batch_s), serial_fn(X[rows], y[rows]), rtol=1e-9)

for epoch in range(3):
    for first, second in zip(minibatches(21, 7), minibatches(20, 7)):
        step([first.tolist(), second.tolist()], np.concatenate([first, 21 + second]))
    step(slice(0, 20, 3), np.concatenate([np.arange(21)[0:20:3], 21 + np.arange(20)[0:20:3]]))
    for num_slices in (1, 3):
        np.testing.assert_allclose(valid_fn(num_slices=num_slices), serial_valid_fn(X, y), rtol=1e-9)
check(network, serial_network)
print('equal')
"""
    assert run_text(tmp_path, HEADER + program, flags=FLAGS) == "equal\n"


@pytest.mark.long
def test_a_residual_network(tmp_path):
    """Training with shortcuts around layers, momentum and batches that do not divide evenly equals serial training.

    All convolutions are 1 x 1, because others require C code, which takes long to compile.
    """
    pytest.importorskip("lasagne")
    program = """
from lasagne.layers import ElemwiseSumLayer, GlobalPoolLayer, NINLayer, NonlinearityLayer

def resnet():
    lasagne.random.set_rng(np.random.RandomState(1))
    inputs = T.tensor4('inputs')
    layer = NINLayer(InputLayer((None, 2, 5, 5), inputs), 6)
    for _ in range(2):
        block = NINLayer(NINLayer(layer, 3), 6, nonlinearity=None)
        layer = NonlinearityLayer(ElemwiseSumLayer([block, layer]))
    return inputs, DenseLayer(GlobalPoolLayer(layer), 4, nonlinearity=lasagne.nonlinearities.softmax)

X, y = random.rand(22, 2, 5, 5), random.randint(0, 4, 22).astype('int32')
(inputs, network), (serial_inputs, serial_network) = resnet(), resnet()

synk.fork(2, use_gpu=False)
train_fn = train.make_train_function(
    loss_of(network), get_all_params(network, trainable=True), inputs, targets, updates.momentum, 0.1)
synk.distribute()
serial_loss = loss_of(serial_network)
rule = lasagne.updates.momentum(serial_loss, get_all_params(serial_network, trainable=True), 0.1)
serial_fn = theano.function([serial_inputs, targets], serial_loss, updates=rule)
X_data, y_data = synk.data(X), synk.data(y)
for epoch in range(2):
    for rows in minibatches(22, 9):
        np.testing.assert_allclose(train_fn(X_data, y_data, batch=rows), serial_fn(X[rows], y[rows]), rtol=1e-8)
check(network, serial_network, 1e-8)
print('equal')
"""
    assert run_text(tmp_path, HEADER + program, flags=FLAGS) == "equal\n"


def test_data_of_other_processes(tmp_path):
    """A process that the program forks can write to a `Data` that was made before or after `fork`."""
    program = """
import os
import numpy as np
import theano.tensor as T
import synkhronos as synk

def write(data, value):
    pid = os.fork()
    if not pid:
        data[1:3] = value
        os._exit(0)
    assert os.waitpid(pid, 0) == (pid, 0)

before = synk.data(np.zeros((4, 2)), oversize=2)
write(before, 3.)
synk.fork(2, use_gpu=False)
x = T.matrix()
f = synk.function([x], (x, 'gather'))
expected = np.zeros((4, 2))
expected[1:3] = 3
assert np.array_equal(f(before), expected)
after = synk.data(expected)
for data in (before, after):
    write(data, 5.)
    expected[1:3] = 5
    assert np.array_equal(f(data), expected) and np.array_equal(data[:], expected)
before.set_length(7)
before[4:] = -1
assert np.array_equal(f(before), np.concatenate([expected, np.full((3, 2), -1.)]))
before.free_memory()
print('equal')
"""
    assert run_text(tmp_path, program, flags=FLAGS) == "equal\n"
