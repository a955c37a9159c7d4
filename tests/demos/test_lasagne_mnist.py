"""The MNIST programs: models, minibatches, a comparison of the three programs, and resuming on other ranks."""

import re
import shutil
import sys

import numpy as np
import pytest
from command_line import DEMOS, run
from refusals import reports
from worlds import needs_lasagne

FOLDER = DEMOS / "lasagne_mnist"
SMALL = [
    "--model",
    "custom_mlp:1,16,0,0",
    "--rows",
    "302",
    "--batch-size",
    "50",
    "--floatX",
    "float64",
    "--no-progress",
]

# Compilation is slow if the cache is empty.
pytestmark = [pytest.mark.theano, needs_lasagne, pytest.mark.timeout(300)]


@pytest.fixture
def modules(monkeypatch):
    """Return a function that imports the demos' modules as the programs do; unload them afterwards."""
    for folder in (DEMOS, FOLDER):
        monkeypatch.syspath_prepend(str(folder))

    def load(name):
        monkeypatch.delitem(sys.modules, name, raising=False)
        return __import__(name)

    yield load
    for name in [name for name, module in sys.modules.items() if str(FOLDER) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


# -- models and minibatches --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model, n_layers, n_dropout, n_params",
    [
        ("mlp", 7, 3, 785 * 800 + 801 * 800 + 801 * 10),
        ("custom_mlp:3,20,0.2,0.5", 9, 4, 785 * 20 + 2 * 21 * 20 + 21 * 10),
        ("custom_mlp:1,5,0,0", 3, 0, 785 * 5 + 6 * 10),
        ("cnn", 10, 2, 26 * 32 + (25 * 32 + 1) * 32 + 513 * 256 + 257 * 10),
    ],
)
def test_models(modules, model, n_layers, n_dropout, n_params):
    lasagne, networks = pytest.importorskip("lasagne"), modules("networks")
    theano = pytest.importorskip("theano")
    network = networks.build_network(model, theano.tensor.matrix(), seed=3)
    kinds = [type(layer).__name__ for layer in lasagne.layers.get_all_layers(network)]
    assert len(kinds) == n_layers and kinds.count("DropoutLayer") == n_dropout
    assert lasagne.layers.count_params(network) == n_params
    assert networks.parse_model(model)[1] == (n_dropout > 0)
    again = networks.build_network(model, theano.tensor.matrix(), seed=3)
    for ours, theirs in zip(lasagne.layers.get_all_param_values(network), lasagne.layers.get_all_param_values(again)):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "model",
    [
        "",
        "vgg",
        "mlp:2",
        "cnn:1,2,3,4",
        "custom_mlp",
        "custom_mlp:2,800",
        "custom_mlp:0,8,0,0",
        "custom_mlp:1,0,0,0",
        "custom_mlp:1,8,1,0",
        "custom_mlp:1,8,0,-1",
        "custom_mlp:a,8,0,0",
    ],
)
def test_unknown_models_are_named(modules, model):
    with reports(ValueError, "model", "mlp", "cnn", "custom_mlp:", repr(model)):
        modules("networks").parse_model(model)


def test_minibatches_take_each_row_once(modules):
    minibatches = modules("minibatches")
    epochs = [list(minibatches.iter_minibatch_idxs(10, 4, 0, epoch)) for epoch in (0, 0, 1)]
    assert [len(batch) for batch in epochs[0]] == [4, 4, 2]
    for epoch in epochs:
        assert sorted(np.concatenate(epoch)) == list(range(10))
    assert (np.concatenate(epochs[0]) == np.concatenate(epochs[1])).all()
    assert (np.concatenate(epochs[0]) != np.concatenate(epochs[2])).any()


def test_minibatches_of_shards_are_those_of_the_whole(modules):
    minibatches = modules("minibatches")
    shards = np.array_split(np.arange(100, 111), 3)
    lengths = [len(shard) for shard in shards]
    taken = []
    for of_ranks, of_all in zip(
        minibatches.iter_shard_idxs(lengths, 5, 0, 2), minibatches.iter_shard_idxs_of_all(lengths, 5, 0, 2)
    ):
        assert len(of_ranks) == 3
        rows = np.concatenate([shard[idxs] for shard, idxs in zip(shards, of_ranks)])
        np.testing.assert_array_equal(rows, 100 + of_all)
        taken.extend(rows)
    assert sorted(taken) == list(range(100, 111))


# -- the programs ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_all_programs_compute_the_same(tmp_path):
    done = run(
        FOLDER / "run_all.py",
        *SMALL,
        "--epochs",
        "2",
        "--warm-up",
        "1",
        "--n-ranks",
        "3",
        "--plot",
        str(tmp_path / "plot.png"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in (
        "synkhronos, data in shared memory, n=3",
        "synkhronos, data on the devices, n=3",
        "plain Theano, 1 BLAS thread",
    ):
        assert re.search(rf"^{name} +[\d.]+ s +[\d.]+ +[\d.]+% +[\d.]+%$", done.stdout, re.MULTILINE)
    differences = re.findall(r"training losses differ .* by up to (\S+) of", done.stdout)
    assert len(differences) == 2 and all(float(difference) < 1e-9 for difference in differences)
    if pytest.importorskip("matplotlib"):
        assert (tmp_path / "plot.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.long
@pytest.mark.parametrize("program", ["train_mnist_cpu_data.py", "train_mnist_device_data.py"])
def test_a_wrong_parallel_program_is_found_out(tmp_path, program):
    wrong = tmp_path / "without_all_reduce.py"
    wrong.write_text(
        "import runpy, sys\n"
        "import synkhronos\n"
        "synkhronos.ops.all_reduce = lambda x, op='avg': x\n"
        f"sys.path.insert(0, {str(FOLDER)!r})\n"
        f"runpy.run_path({str(FOLDER / program)!r}, run_name='__main__')\n"
    )
    done = run(wrong, *SMALL, "--epochs", "1", "--n-ranks", "2", "--check")
    assert done.returncode == 1
    assert "results differ from the serial program's" in done.stderr


@pytest.mark.long
def test_cnn_learns_what_the_serial_one_does():
    """The network learns as much as the serial one: because of dropout, only accuracies are compared."""
    done = run(
        FOLDER / "train_mnist_device_data.py",
        "--model",
        "cnn",
        "--rows",
        "1000",
        "--batch-size",
        "50",
        "--epochs",
        "3",
        "--n-ranks",
        "2",
        "--no-progress",
        "--check",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    accuracies = [float(accuracy) for accuracy in re.findall(r"test accuracy ([\d.]+)%", done.stdout)]
    assert len(accuracies) == 2 and min(accuracies) > 80
    assert "test accuracy differs from the serial program's by" in done.stdout


def losses(output):
    return re.findall(r"training loss ([\d.]+)   validation loss ([\d.]+)", output)


@pytest.mark.long
def test_other_ranks_go_on_from_a_checkpoint(tmp_path):
    """Two epochs on two ranks, plus two on three ranks or in plain Theano, equal four of the serial program."""
    whole = run(FOLDER / "train_mnist_theano.py", *SMALL, "--epochs", "4")
    begun = run(
        FOLDER / "train_mnist_cpu_data.py",
        *SMALL,
        "--epochs",
        "2",
        "--n-ranks",
        "2",
        "--checkpoint",
        str(tmp_path / "begun.npz"),
    )
    assert begun.returncode == 0, begun.stderr
    for program, ranks in (("train_mnist_cpu_data.py", ["--n-ranks", "3"]), ("train_mnist_theano.py", [])):
        shutil.copy(str(tmp_path / "begun.npz"), str(tmp_path / "mnist.npz"))
        ended = run(FOLDER / program, *SMALL, "--epochs", "4", *ranks, "--checkpoint", str(tmp_path / "mnist.npz"))
        assert ended.returncode == 0, ended.stderr
        assert "after epoch 2" in ended.stdout
        assert len(losses(whole.stdout)) == 4
        assert losses(begun.stdout) + losses(ended.stdout) == losses(whole.stdout)


@pytest.mark.long
def test_the_same_ranks_go_on_from_a_checkpoint_to_the_bit(tmp_path):
    """A resumed run has the same bits even with dropout, because the checkpoint contains the random states."""

    def saved(name, epochs):
        arguments = [*SMALL[2:], "--model", "custom_mlp:1,16,0.2,0.5", "--n-ranks", "2", "--epochs", str(epochs)]
        path = str(tmp_path / name)
        done = run(FOLDER / "train_mnist_cpu_data.py", *arguments, "--checkpoint", path)
        assert done.returncode == 0, done.stderr
        with np.load(path) as file:
            return {key: file[key].tobytes() for key in file.files if key != "progress_recorder"}, done.stdout

    whole, _ = saved("whole.npz", 3)
    saved("begun.npz", 1)
    ended, output = saved("begun.npz", 3)
    assert ended == whole and "arr_8_of_1" in whole and "after epoch 1" in output
    table = output[output.index("epoch  seconds") :].splitlines()
    assert [line.split()[0] for line in table[1:4]] == ["1", "2", "3"]


@pytest.mark.thorough(but="run_all")
@pytest.mark.parametrize(
    "program", ["train_mnist_cpu_data.py", "train_mnist_device_data.py", "train_mnist_theano.py", "run_all.py"]
)
def test_help(program):
    done = run(FOLDER / program, "--help")
    assert done.returncode == 0 and "custom_mlp:DEPTH,WIDTH,DROP_INPUT,DROP_HIDDEN" in done.stdout


@pytest.mark.thorough
def test_unknown_model_is_a_sentence():
    done = run(FOLDER / "run_all.py", "--model", "vgg")
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("model: expected mlp, cnn or custom_mlp:")
