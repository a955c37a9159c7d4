"""Checkpoints of parameters, rules and random states, compared with uninterrupted training."""

import io
import json
import logging
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses

import synkhronos as synk
from synkhronos.errors import ArgumentValueError
from synkhronos.extensions import checkpoint, rules
from synkhronos.testing import numpy_engine as engine

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "model.npz")


class Training:
    """Training by noisy local steps and DiLoCo."""

    def __init__(self):
        self.w, self.noise = engine.shared(np.zeros(3), "w"), engine.random_stream(4)
        x = engine.variable("x", "float64", 1)
        drawn = engine.uniform(self.noise, (3,))
        self.step = synk.function([x], (drawn, None), updates=[(self.w, self.w + engine.mean(x) * drawn)], exact=False)
        synk.distribute()
        self.rule = rules.DiLoCo(self.step, [self.w], every=3)
        self.variables = [self.w, self.noise]

    def run(self, steps):
        for t in steps:
            self.step(np.arange(6.0) * t)
            self.rule()


@pytest.mark.parametrize("kind", [("threads", 3, 1), ("fork", 2, 0)], ids="{0[0]}-{0[1]}".format)
def test_a_training_goes_on_to_the_bit(make_world, path, kind):
    world = make_world(*kind)
    first = Training()
    first.run(range(1, 6))
    checkpoint.save(path, first.variables, first.rule, epoch=5, losses=[3.0, 2.0])
    first.run(range(6, 12))
    expected = [value.tobytes() for value in world.values(first.w)]

    world = make_world(*kind)
    second = Training()
    second.run(range(2))
    progress = checkpoint.load(path, second.variables, second.rule)
    assert progress["epoch"] == 5 and progress["losses"].tolist() == [3.0, 2.0]
    second.run(range(6, 12))
    assert [value.tobytes() for value in world.values(second.w)] == expected


class Model:
    """An exact function, whose variables the program may set."""

    def __init__(self):
        x, self.w = engine.variable("x", "float64", 1), engine.shared(np.zeros(3), "w")
        self.rate = engine.shared(np.float64(0.5), "rate")
        self.train = synk.function([x], updates=[(self.w, self.w + self.rate * engine.mean(x))], exact=True)
        self.variables = [self.w, self.rate]


WAYS = {
    "set_value": lambda variable, value: variable.set_value(value),
    "in place": lambda variable, value: np.copyto(variable.get_value(borrow=True), value),
}


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("way", WAYS)
def test_what_the_program_has_set_counts_when_it_is_loaded(make_world, path, n, way):
    """Values that the program had set before saving reach all ranks with an exact function's next call."""
    make_world("threads", 2, 1)
    first = Model()
    first.train(np.arange(4.0))
    WAYS[way](first.w, [1.0, 2.0, 3.0]), WAYS[way](first.rate, 2.0)
    checkpoint.save(path, first.variables)
    first.train(np.arange(4.0))
    first.train(np.arange(4.0))
    expected = first.w.get_value()
    world = make_world("threads", n, 1)
    second = Model()
    second.train(np.ones(4))
    for _ in range(2):
        checkpoint.load(path, second.variables)
        assert second.rate.get_value() == 2
        second.train(np.arange(4.0))
        second.train(np.arange(4.0))
        np.testing.assert_array_equal(world.values(second.w), [expected] * n)


def test_ranks_that_differ_do_so_again_though_the_program_has_set_one(make_world, path):
    """If a function is not exact, a value that the program has set counts on the master only."""
    world = make_world("threads", 2, 1)
    w = engine.shared(np.zeros(3), "w")
    f = synk.function([], (w, "gather"), exact=False)
    f()
    w.set_value([1.0, 2.0, 3.0])
    checkpoint.save(path, [w])
    synk.broadcast(w, np.ones(3))
    checkpoint.load(path, [w])
    assert f().tolist() == [0, 0, 0, 1, 2, 3] and world.values(w)[0].tolist() == [0, 0, 0]


def test_the_program_may_set_what_was_loaded(make_world, path):
    make_world("threads", 2)
    model = Model()
    model.train(np.ones(4))
    checkpoint.save(path, model.variables)
    checkpoint.load(path, model.variables)
    WAYS["in place"](model.rate, 8.0)
    model.train(np.ones(4))
    assert model.w.get_value().tolist() == [8.5] * 3


def test_another_number_of_ranks(make_world, path, caplog):
    world = make_world("threads", 3)
    first = Training()
    first.run(range(1, 5))
    of_ranks = world.values(first.w)
    checkpoint.save(path, first.variables, first.rule)
    centre = world.values(first.rule.centre[0])[0]
    world = make_world("threads", 2)
    second = Training()
    with caplog.at_level(logging.INFO, "synkhronos"):
        checkpoint.load(path, second.variables, second.rule)
    assert "is converted from n_ranks=3 to n_ranks=2" in caplog.text and "w" in caplog.text
    np.testing.assert_allclose(world.values(second.w), [np.mean(of_ranks, axis=0)] * 2)
    np.testing.assert_array_equal(world.values(second.rule.centre[0]), [centre] * 2)
    assert second.rule.n_steps == 4 and second.rule.n_exchanges == 1
    second.run(range(5, 8))


@pytest.mark.parametrize("n", [1, 3])
def test_random_states_of_another_number_of_ranks(make_world, path, n):
    """Rank r continues rank 0's sequence, r long jumps ahead, as in the saved session."""
    make_world("threads", 2)
    noise = engine.random_stream(4, "noise")
    draw = synk.function([], (engine.uniform(noise, (3,)), "gather"))
    draw()
    checkpoint.save(path, [noise])
    expected = np.reshape(draw(), (2, 3))
    make_world("threads", n)
    other = engine.random_stream(99, "noise")
    draw = synk.function([], (engine.uniform(other, (3,)), "gather"))
    draw()
    checkpoint.load(path, [other])
    drawn = np.reshape(draw(), (n, 3))
    np.testing.assert_array_equal(drawn[:2], expected[: min(n, 2)])
    assert len(np.unique(drawn)) == drawn.size


@pytest.mark.parametrize("saved_by", ["serial", "one rank"])
@pytest.mark.parametrize("n", [2, 3])
def test_random_states_of_one_rank(make_world, path, n, saved_by):
    """Rank 0 continues the saved sequence, and no other rank draws the same numbers."""
    synk.close()
    noise = engine.random_stream(4, "noise")
    if saved_by == "one rank":
        make_world("threads", 1)
        keep = synk.function([], (engine.uniform(noise, (3,)), "gather"))
        synk.distribute()
        assert keep
    checkpoint.save(path, [noise])
    make_world("threads", n)
    other = engine.random_stream(99, "noise")
    draw = synk.function([], (engine.uniform(other, (3,)), "gather"))
    draw()
    checkpoint.load(path, [other])
    drawn = np.reshape(draw(), (n, 3))
    np.testing.assert_array_equal(drawn[0], np.random.RandomState(4).uniform(size=3))
    assert len(np.unique(drawn)) == drawn.size


def test_random_states_that_are_the_same_stay_so(make_world, path):
    synk.close()
    noise = engine.random_stream(4, "noise")
    checkpoint.save(path, [noise])
    make_world("threads", 2)
    other = engine.random_stream(99, "noise")
    draw = synk.function([], (engine.uniform(other, (3,)), "gather"))
    draw()
    for rank in range(2):
        synk.set_value(rank, other, np.random.RandomState(7))
    checkpoint.load(path, [other])
    expected = np.random.RandomState(4).uniform(size=3)
    np.testing.assert_array_equal(np.reshape(draw(), (2, 3)), [expected] * 2)


def test_ranks_with_other_numbers_of_rows(make_world, path):
    world = make_world("threads", 2)
    v, w = engine.shared(np.zeros(2), "v"), engine.shared(np.zeros((1, 2)), "w")
    keep = synk.function([], [(v, None), (w, None)])
    synk.distribute()
    rows = np.arange(14.0).reshape(7, 2)
    synk.scatter(w, rows)
    parts = world.values(w)
    assert keep and sorted(map(len, parts)) == [3, 4]
    checkpoint.save(path, [v, w])
    world.set_values(w, [np.zeros((5, 2))] * 2)
    checkpoint.load(path, [v, w])
    for value, expected in zip(world.values(w), parts):
        np.testing.assert_array_equal(value, expected)

    world = make_world("threads", 3)
    v, w = engine.shared(np.ones(2), "v"), engine.shared(np.ones((1, 2)), "w")
    keep = synk.function([], [(v, None), (w, None)])
    synk.distribute()
    with refuses(ValueError, "w", "2 ranks", "3"):
        checkpoint.load(path, [v, w])
    assert keep and [value.tolist() for value in world.values(v)] == [[1.0, 1.0]] * 3


@pytest.mark.parametrize("kind", ["MT19937", "PCG64", "Philox", "SFC64"])
def test_states_of_generators(kind):
    """States of generators are saved as text, so a file from elsewhere cannot run code."""
    saved, other = (np.random.Generator(getattr(np.random, kind)(seed)) for seed in (3, 9))
    saved.random(5)
    saved.integers(10, dtype="int32")  # (half of a 64-bit word is kept for the next draw)
    array, before = checkpoint._as_array(saved), other.bit_generator.state["state"]
    restored = checkpoint._restored(other, str(array), "noise")
    np.testing.assert_equal(other.bit_generator.state["state"], before)
    np.testing.assert_array_equal(
        restored.integers(10, size=7, dtype="int32"), saved.integers(10, size=7, dtype="int32")
    )
    assert array.dtype.kind == "U"
    with refuses(ValueError, "noise", kind, "PCG64DXSM"):
        checkpoint._restored(np.random.Generator(np.random.PCG64DXSM(1)), str(array), "noise")


def test_a_serial_program(make_world, path):
    """A serial program is saved like one rank; sessions can load its files, and it can load theirs."""
    synk.close()
    w, noise = engine.shared(np.array([1.0, 2.0]), "w"), engine.random_stream(4, "noise")
    checkpoint.save(path, [w, noise], epoch=1)
    world = make_world("threads", 2)
    other, stream = engine.shared(np.zeros(2), "w"), engine.random_stream(5, "noise")
    keep = synk.function([], [(other, None), (engine.uniform(stream, (2,)), "gather")])
    synk.distribute()
    assert checkpoint.load(path, [other, stream])["epoch"] == 1 and keep
    assert [value.tolist() for value in world.values(other)] == [[1.0, 2.0]] * 2
    world.set_values(other, [np.array([3.0, 4.0]), np.array([5.0, 6.0])])
    checkpoint.save(path, [other, stream])
    synk.close()
    checkpoint.load(path, [w, noise])
    assert w.get_value().tolist() == [4.0, 5.0]


@pytest.mark.theano
def test_any_lasagne_program_can_use_the_model(path):
    """The lines in the docstring of `checkpoint` load a model into any Lasagne program."""
    lasagne = pytest.importorskip("lasagne")
    network = lasagne.layers.DenseLayer(lasagne.layers.InputLayer((None, 2)), 3)
    checkpoint.save(path, lasagne.layers.get_all_params(network), epoch=3)
    lines = checkpoint.__doc__.split("first variables in the list::")[1].replace("model.npz", path)
    other = lasagne.layers.DenseLayer(lasagne.layers.InputLayer((None, 2)), 3)
    program = "\n".join(line[4:] for line in lines.splitlines())
    exec(compile(program, "docstring", "exec"), {"np": np, "lasagne": lasagne, "network": other})
    for ours, theirs in zip(*map(lasagne.layers.get_all_param_values, (network, other))):
        np.testing.assert_array_equal(ours, theirs)


def test_parameters_are_plain_arrays(make_world, path):
    make_world("threads", 2)
    w, v = engine.shared(np.ones(3, "float32"), "w"), engine.shared(np.zeros((2, 2)), "v")
    keep = synk.function([], [(w, None), (v, None)])
    synk.distribute()
    checkpoint.save(path, [w, v])
    assert keep
    with np.load(path) as file:
        assert file["arr_0"].dtype == "float32" and file["arr_1"].shape == (2, 2)
        assert sorted(file.files) == ["arr_0", "arr_1", "n_ranks"]


@pytest.mark.parametrize(
    "of_file, argument, expected",
    [
        (lambda w, v: [w], "variables", "1"),
        (lambda w, v: [w, v, engine.shared(np.zeros(2), "u")], "variables", "3"),
        (lambda w, v: [w, engine.shared(np.zeros(3), "u")], "v", "float64 (3,)"),
        (lambda w, v: [w, engine.shared(np.zeros(2, "float32"), "u")], "v", "float32 (2,)"),
    ],
    ids=["fewer", "more", "shape", "dtype"],
)
def test_files_of_other_variables_change_nothing(make_world, path, of_file, argument, expected):
    world = make_world("threads", 2)
    w, v = engine.shared(np.ones(2), "w"), engine.shared(np.ones(2), "v")
    others = of_file(w, v)
    keep = synk.function([], [(each, None) for each in [w, v, *others] if each is not v] + [(v, None)])
    synk.distribute()
    checkpoint.save(path, others)
    for each in (w, v):
        world.set_values(each, [np.full(2, 5.0)] * 2)
    with refuses(ValueError, argument, expected):
        checkpoint.load(path, [w, v])
    assert [value.tolist() for each in (w, v) for value in world.values(each)] == [[5.0, 5.0]] * 4
    assert keep


def test_a_rule_that_was_not_saved(make_world, path):
    make_world("threads", 2)
    training = Training()
    checkpoint.save(path, training.variables)
    with pytest.raises(ValueError):
        checkpoint.load(path, training.variables, training.rule)
    with pytest.raises(FileNotFoundError):
        checkpoint.load(path + ".other", training.variables)


FOREIGN = {
    "empty": lambda whole: b"",
    "text": lambda whole: b"hello, world\n" * 100,
    "a pickle": lambda whole: pickle.dumps([1, 2, 3]),
    "one array": lambda whole: saved(lambda file: np.save(file, np.ones(3))),
    "other arrays": lambda whole: saved(lambda file: np.savez(file, a=np.ones(3))),
    "a number of ranks that is none": lambda whole: saved(lambda file: np.savez(file, n_ranks=np.ones(3), arr_0=1.0)),
    "no number of ranks": lambda whole: saved(lambda file: np.savez(file, n_ranks="two", arr_0=1.0)),
    "objects": lambda whole: saved(lambda file: np.savez(file, n_ranks=2, arr_0=np.array([None, {}]))),
    "text for a state": lambda whole: changed(whole, arr_1="no state"),
    "another state": lambda whole: changed(whole, arr_1=json.dumps({"bit_generator": "PCG64", "state": 3})),
    "a list for a state": lambda whole: changed(whole, arr_1="[1, 2]"),
    "counters that are none": lambda whole: changed(whole, counters="[1"),
    "other counters": lambda whole: changed(whole, counters='{"a": 1}'),
    "no counters": lambda whole: changed(whole, counters=None),
    "a variable of one rank": lambda whole: changed(whole, arr_0=None, arr_0_of_1=np.zeros(3)),
    "another dtype": lambda whole: changed(whole, arr_0="text"),
    "the beginning": lambda whole: whole[:20],
    "a half": lambda whole: whole[: len(whole) // 2],
    "all but the last byte": lambda whole: whole[:-1],
    "the end": lambda whole: whole[100:],
    "a rank that there is not": lambda whole: changed(whole, news_arr_0=7),
    "no rank": lambda whole: changed(whole, news_arr_0="none"),
    "other bytes in the middle": lambda whole: whole[:150] + bytes(100) + whole[250:],
}


def saved(write):
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def changed(whole, **arrays):
    with np.load(io.BytesIO(whole)) as file:
        found = {**file, **arrays}
    return saved(lambda file: np.savez(file, **{name: value for name, value in found.items() if value is not None}))


def test_files_that_save_has_not_written_are_refused(make_world, path):
    world = make_world("threads", 2)
    training = Training()
    training.run(range(4))
    synk.broadcast(training.w)
    synk.set_value(1, training.noise, synk.get_value(0, training.noise))
    checkpoint.save(path, training.variables, training.rule)
    whole = Path(path).read_bytes()
    training.run(range(4, 7))
    before, counters = [value.tolist() for value in world.values(training.w)], training.rule.counters
    for name, make in FOREIGN.items():
        Path(path).write_bytes(make(whole))
        with pytest.raises(ArgumentValueError) as error:
            checkpoint.load(path, training.variables, training.rule)
        assert "pickle" not in str(error.value) and path in str(error.value) or error.value.argument != "path", name
        assert [value.tolist() for value in world.values(training.w)] == before, name
        assert training.rule.counters == counters, name
    Path(path).write_bytes(whole)
    checkpoint.load(path, training.variables, training.rule)
    for cut in np.random.RandomState(0).randint(0, len(whole), 100):
        Path(path).write_bytes(whole[:cut])
        with refuses(ValueError, "path", "save"):
            checkpoint.load(path, training.variables, training.rule)


def test_nothing_is_left_of_a_file_that_cannot_be_written(path, tmp_path):
    """If writing fails, the old file remains; a limit on file sizes simulates a full disk."""
    w = engine.shared(np.ones(100_000), "w")
    checkpoint.save(path, [w], i=1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    w.set_value(np.zeros(100_000))
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
        with pytest.raises(OSError):
            checkpoint.save(path, [w], i=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(tmp_path) == ["model.npz"]
    assert checkpoint.load(path, [w]) == {"i": 1} and w.get_value().all()


def test_no_link_is_followed(path, tmp_path):
    """Files that someone else has put beside the checkpoint do not change."""
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "model.npz.new").symlink_to(tmp_path / "precious")
    w = engine.shared(np.ones(3), "w")
    checkpoint.save(path, [w], i=1)
    assert (tmp_path / "precious").read_text() == "precious" and checkpoint.load(path, [w]) == {"i": 1}
    assert sorted(os.listdir(tmp_path)) == ["model.npz", "model.npz.new", "precious"]
    assert os.stat(path).st_mode & 0o777 == os.stat(tmp_path / "precious").st_mode & 0o777


def test_two_writers_of_one_file(path, tmp_path):
    """While two processes write a file, readers find either one's, complete."""
    (tmp_path / "program.py").write_text(WRITER)
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    command = [sys.executable, str(tmp_path / "program.py"), path]
    writers = [subprocess.Popen([*command, str(i)], env=environment) for i in (1, 2)]
    w, seen = engine.shared(np.zeros(50_000), "w"), set()
    while any(writer.poll() is None for writer in writers):
        try:
            seen.add(float(checkpoint.load(path, [w])["i"]))
        except FileNotFoundError:  # no process has saved yet
            continue
        assert len(set(w.get_value().tolist())) == 1
    assert [writer.wait() for writer in writers] == [0, 0] and seen <= {1.0, 2.0}
    assert sorted(os.listdir(tmp_path)) == ["model.npz", "program.py"]


WRITER = """
import sys
import numpy as np
from synkhronos.extensions import checkpoint
from synkhronos.testing import numpy_engine as engine
i = float(sys.argv[2])
w = engine.shared(np.full(50_000, i), "w")
for _ in range(100):
    checkpoint.save(sys.argv[1], [w], i=i)
"""


def test_the_new_file_takes_the_place_of_the_old_one_in_one_step(make_world, path):
    """A program that has the old file open can read it to its end: nothing is overwritten."""
    make_world("threads", 2)
    w = engine.shared(np.ones(1000), "w")
    keep = synk.function([], [(w, None)])
    synk.distribute()
    checkpoint.save(path, [w], i=1)
    with open(path, "rb") as old:
        before = old.read(100)
        synk.broadcast(w, np.zeros(1000))
        checkpoint.save(path, [w], i=2)
        content = io.BytesIO(before + old.read())
    with np.load(content) as file:
        assert file["progress_i"] == 1 and file["arr_0"].tolist() == [1.0] * 1000 and keep
    assert checkpoint.load(path, [w])["i"] == 2 and os.listdir(os.path.dirname(path)) == ["model.npz"]


PROGRAM = """
import sys
import numpy as np
import synkhronos as synk
from synkhronos.extensions import checkpoint
from synkhronos.testing import numpy_engine as engine
synk.fork(2, use_gpu=False)
w = engine.shared(np.zeros(200_000), "w")
f = synk.function([], [(w, None)])
synk.distribute()
for i in range(1, 10_000):
    synk.broadcast(w, np.full(200_000, float(i)))
    checkpoint.save(sys.argv[1], [w], i=i)
    print(i, flush=True)
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_a_kill_leaves_a_whole_file(path, tmp_path):
    """After a kill, the file is that of the last completed save or of the next one; some kills interrupt saves."""
    (tmp_path / "program.py").write_text(PROGRAM)
    random, interrupted = np.random.RandomState(0), 0
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    for attempt in range(40):
        if attempt >= 6 and interrupted:
            break
        command = [sys.executable, str(tmp_path / "program.py"), path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            done = int(process.stdout.readline())
            time.sleep(random.uniform(0, 0.05))
            os.kill(process.pid, signal.SIGKILL)
            done = int((process.stdout.read().split() or [done])[-1])
        interrupted += len(list(tmp_path.glob("*.new"))) > interrupted  # every temporary file has its own name
        with np.load(path) as file:
            assert file["progress_i"] in (done, done + 1)
            assert (file["arr_0"] == file["progress_i"]).all()
    assert interrupted, "no kill came while a file was being written: the test shows nothing"
