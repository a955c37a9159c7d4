"""Checkpoints of the demos: what is saved comes back, a kill leaves the old file, other ranks go on from it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

DEMOS = Path(__file__).resolve().parents[2] / "demos"

pytestmark = pytest.mark.theano
theano = pytest.importorskip("theano")
lasagne = pytest.importorskip("lasagne")


@pytest.fixture
def checkpoint(monkeypatch):
    monkeypatch.syspath_prepend(str(DEMOS))
    import checkpoint

    return checkpoint


def network(fill, width=3):
    layer = lasagne.layers.DenseLayer(lasagne.layers.InputLayer((None, 2)), width)
    for param in lasagne.layers.get_all_params(layer):
        param.set_value(np.full(param.get_value().shape, fill, param.dtype))
    return layer, [theano.shared(np.full((), fill), "steps"), theano.shared(np.full(4, fill), "velocity")]


def values(layer, state):
    return [value.tolist() for value in lasagne.layers.get_all_param_values(layer)] + [
        shared.get_value().tolist() for shared in state
    ]


def test_what_is_saved_comes_back(checkpoint, tmp_path):
    path = str(tmp_path / "model.npz")
    saved, loaded = network(2.5), network(0.0)
    checkpoint.save(path, *saved, epoch=3, losses=[0.5, 0.25])
    progress = checkpoint.load(path, *loaded)
    assert values(*loaded) == [[[2.5] * 3] * 2, [2.5] * 3, 2.5, [2.5] * 4]
    assert int(progress["epoch"]) == 3 and progress["losses"].tolist() == [0.5, 0.25]
    assert os.listdir(str(tmp_path)) == ["model.npz"]


def test_any_lasagne_program_can_use_the_model(checkpoint, tmp_path):
    """By the lines in the docstring of the module."""
    path = str(tmp_path / "model.npz")
    checkpoint.save(path, *network(2.5), epoch=3)
    lines = checkpoint.__doc__.split("::")[1].split("\n\n")[1].replace("model.npz", path)
    layer, state = network(0.0)
    exec(
        compile("\n".join(line[4:] for line in lines.splitlines()), "docstring", "exec"),
        {"np": np, "lasagne": lasagne, "network": layer},
    )
    assert values(layer, [])[1] == [2.5] * 3


@pytest.mark.parametrize(
    "width, n_state, message",
    [
        (4, 2, r"arr_0 has shape \(2, 3\), but W needs \(2, 4\): it is of another network"),
        (3, 1, "has 2 arrays state_..., but 1 are needed: it is of another network or update rule"),
    ],
)
def test_another_network_is_refused(checkpoint, tmp_path, width, n_state, message):
    path = str(tmp_path / "model.npz")
    checkpoint.save(path, *network(2.5))
    layer, state = network(0.0, width)
    with pytest.raises(ValueError, match=message) as raised:
        checkpoint.load(path, layer, state[:n_state])
    assert path in str(raised.value)
    assert set(np.ravel(values(layer, [])[0])) == {0.0}
    with pytest.raises(FileNotFoundError):
        checkpoint.load(str(tmp_path / "nothing.npz"), layer, state)


SAVER = """
import sys
sys.path.insert(0, {demos!r})
import numpy as np, theano, lasagne, checkpoint
layer = lasagne.layers.DenseLayer(lasagne.layers.InputLayer((None, 400)), 400)
state = [theano.shared(np.zeros(100000), "velocity")]
i = 0
while True:
    for shared in lasagne.layers.get_all_params(layer) + state:
        shared.set_value(np.full(shared.get_value().shape, i, shared.dtype))
    checkpoint.save({path!r}, layer, state, epoch=i)
    print(i, flush=True)
    i += 1
"""


def test_a_kill_while_saving_leaves_a_whole_file(tmp_path):
    """Killed at several moments, within a save and between two: the file is always that of one save."""
    path = str(tmp_path / "model.npz")
    program = tmp_path / "saver.py"
    program.write_text(SAVER.format(demos=str(DEMOS), path=path))
    interrupted, random = 0, np.random.RandomState(0)
    for attempt in range(40):
        if attempt >= 4 and interrupted:
            break
        saver = subprocess.Popen(
            [sys.executable, "-m", "synkhronos", str(program)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=str(Path(__file__).resolve().parents[2]),
        )
        try:
            for _ in range(3):
                last = int(saver.stdout.readline())
            time.sleep(random.uniform(0, 0.02))
        finally:
            os.kill(saver.pid, signal.SIGKILL)
            rest = saver.communicate()[0].split()
        last = int(rest[-1]) if rest else last
        interrupted += os.path.exists(path + ".new")
        with np.load(path) as file:
            arrays = dict(file)
        (epoch,) = {int(array.flat[0]) for array in arrays.values()}
        assert epoch in (last, last + 1) and all((array == epoch).all() for array in arrays.values())
        assert sorted(arrays) == ["arr_0", "arr_1", "progress_epoch", "state_0"]
    assert interrupted, "no kill came while a file was being written: the test shows nothing"
