"""Rows of the next step that a rank copies while it waits: results are the serial program's, whatever was copied.

The ranks of these tests wait for each other at gates, so a test shows that rows were copied during a wait, without
measuring any time. Expected values come from NumPy and from the engine alone; all sums are exact.

Modules: `rows_ahead`.
"""

import threading

import numpy as np
import pytest
from gates import Gate, until
from library import NAME, L, T

import synkhronos as synk
from synkhronos import in_graph
from synkhronos.calls import rows_ahead
from synkhronos.calls.rows_ahead import RowsAhead, pays_off
from synkhronos.errors import WorkerError
from synkhronos.selection import Indices
from synkhronos.sync.control_block import ABORT_REQUESTED, ABORTED

with_engine = getattr(pytest.mark, NAME)

X = np.random.RandomState(0).randint(-9, 10, (40, 1500)).astype("f8")
Y = np.random.RandomState(1).randint(-9, 10, (40, 2, 2)).astype("f4")
#: Uneven batches, some with fewer rows than ranks, and slices among them. The large ones are copied ahead unpatched.
BATCHES = [np.random.RandomState(i).permutation(40)[:n] for i, n in enumerate([6, 7, 1, 5, 2, 6, 30, 36, 30, 40])]
BATCHES[4:4] = [slice(3, 10), slice(30, None, -2)]


@pytest.fixture(autouse=True)
def by_row(monkeypatch):
    """Copy all rows ahead, one by one; in processes that were started before, only those of large batches."""
    monkeypatch.setattr(rows_ahead, "MIN_BYTES", 0)
    monkeypatch.setattr(rows_ahead, "PIECE_BYTES", 1)


def copies_of(rows):
    """Return what `RowsAhead` copies for two arguments, with wrong rows in the buffers."""
    return {
        j: (Indices(np.array(rows)), array, np.full((len(rows), *array.shape[1:]), 99, array.dtype))
        for j, array in ((0, X), (2, Y))
    }


@pytest.mark.parametrize("n_pieces", [0, 1, 3, 5, 6, 20])
@pytest.mark.parametrize("nbytes", [1, 24000, 1 << 20])
def test_pieces_and_the_rest_are_all_rows(monkeypatch, n_pieces, nbytes):
    monkeypatch.setattr(rows_ahead, "PIECE_BYTES", nbytes)
    rows = [7, 0, 39, 7, 2]
    ahead = RowsAhead(copies_of(rows), 0)
    there = [ahead.copy_piece() for _ in range(n_pieces)]
    assert there == sorted(there, reverse=True) and (n_pieces < 20 or not there[-1])
    assert 0 in ahead and 1 not in ahead and 2 in ahead
    for j, array in ((2, Y), (0, X)):
        assert np.array_equal(ahead.take(j), array[rows])


def test_an_interrupted_piece_does_not_count(monkeypatch):
    ahead, take = RowsAhead(copies_of([5, 6, 7]), 0), Indices.take

    def interrupted(self, array, out=None):
        out[:] = 77
        raise KeyboardInterrupt

    assert ahead.copy_piece()
    monkeypatch.setattr(Indices, "take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ahead.copy_piece()
    monkeypatch.setattr(Indices, "take", take)
    assert np.array_equal(ahead.take(0), X[[5, 6, 7]]) and np.array_equal(ahead.take(2), Y[[5, 6, 7]])


def test_few_bytes_and_large_rows_are_not_copied_ahead(monkeypatch):
    monkeypatch.setattr(rows_ahead, "MIN_BYTES", 1000)
    x = X[:, :3].copy()  # 24 bytes in a row; Y has 16
    assert pays_off([x], 42) and not pays_off([x], 41)
    assert pays_off([x, Y], 25) and not pays_off([x, Y], 24)
    monkeypatch.setattr(rows_ahead, "MAX_ROW_BYTES", 23)
    assert not pays_off([x, Y], 100) and pays_off([Y], 100)
    assert not pays_off([], 100) and not pays_off([np.zeros((0, 3))], 0)


class Before(L.Op):
    """Op that returns its value; on one rank, it first calls `how` with the number of the step."""

    __props__ = ("rank", "how")

    def __init__(self, rank, how):
        self.rank, self.how = rank, how

    def make_node(self, count, value):
        return L.Apply(self, [count, value], [value.type()])

    def perform(self, node, inputs, outputs):
        call = in_graph.current()
        if call is not None and call.context.rank == self.rank:
            self.how(int(inputs[0]))
        outputs[0][0] = inputs[1].copy()


class Twins:
    """A program that adds up rows and counts its steps, on the ranks and in the engine alone; see `Before`."""

    def __init__(self, rank=None, how=None):
        (self.f, self.values), (self.g, self.others) = (
            self._build(make, rank, how) for make in (synk.function, L.function)
        )

    @staticmethod
    def _build(make, rank, how):
        x, y = T.dmatrix("x"), T.ftensor3("y")
        total, last, count = (
            L.shared(np.zeros(1500), "total"),
            L.shared(np.zeros((1, 1500)), "last"),
            L.shared(0, "count"),
        )
        rows = x.sum(0) if rank is None else Before(rank, how)(count, x.sum(0))
        found = synk.ops.all_reduce(rows, "sum")
        late = T.dot(x, found).sum() + y.sum()  # uses the rows after a collective
        outputs = [(late, "sum"), (x, "gather")] if make is synk.function else [late, x]
        updates = [(total, total + found), (last, synk.ops.all_reduce(x[:1], "max")), (count, count + 1)]
        options = {"exact": False} if make is synk.function else {}
        return make([x, y], outputs, updates=updates, mode=L.quick, **options), [total, count]

    def check(self, steps, batches):
        """Compare outputs of steps, and the variables on all ranks, with those of the engine alone."""
        sums, taken = steps
        for i, rows in enumerate(batches):
            of_both, of_x = self.g(X[rows], Y[rows])
            assert sums[i] == of_both and np.array_equal(taken[i], of_x)
        self.check_values()

    def check_values(self):
        for ours, other in zip(self.values, self.others):
            for value in np.atleast_1d(synk.gather(ours, nd_up=1)):
                assert np.array_equal(value, other.get_value())


HOW = [("threads", 1, 0), ("threads", 3, 1), ("fork", 2, 0)]


@with_engine
@pytest.mark.parametrize("how", HOW, ids="{0[0]}-{0[1]}".format)
def test_steps_are_the_serial_programs(make_world, how):
    make_world(*how, engine=NAME)
    twins = Twins()
    data = [synk.data(X), synk.data(Y)]
    twins.check(twins.f.steps(*data, batches=BATCHES), BATCHES)
    twins.check([[each] for each in twins.f(*data, batch=BATCHES[1])], BATCHES[1:2])
    twins.f.free()
    twins.check(twins.f.steps(*data, batches=BATCHES[::-1]), BATCHES[::-1])


@with_engine
@pytest.mark.parametrize("launcher, slow", [("threads", 0), ("threads", 1), ("fork", 1)])
def test_rows_are_copied_during_a_wait(make_world, monkeypatch, tmp_path, launcher, slow):
    """One rank computes step 0 until the other one, which waits for it, has copied all of its rows of step 1."""
    make_world(launcher, 2, 0, engine=NAME)
    gate, right, pieces = Gate(tmp_path / "copied"), RowsAhead.copy_piece, []

    def copy_piece(ahead):
        pieces.append(right(ahead))
        if not pieces[-1]:
            gate.open()
        return pieces[-1]

    monkeypatch.setattr(RowsAhead, "copy_piece", copy_piece)
    twins = Twins(slow, lambda step: gate.wait() if step == 0 else None)
    twins.check(twins.f.steps(synk.data(X), synk.data(Y), batches=BATCHES), BATCHES)
    assert sum(pieces) >= 2 * 3  # two arguments with at least three rows each


@with_engine
@pytest.mark.parametrize("first", [0, 1])
def test_large_steps_after_small_ones(make_world, monkeypatch, tmp_path, first):
    """Rows of a small step, which are not copied ahead, stay until it ends, although a large step follows."""
    make_world("threads", 2, 0, engine=NAME)
    monkeypatch.setattr(rows_ahead, "MIN_BYTES", 10 * X[0].nbytes)
    sizes = [6, 30, 6, 6, 30, 30, 6, 30, 6][first:]
    batches = [np.random.RandomState(i).permutation(40)[:n] for i, n in enumerate(sizes)]
    gates = {step: Gate(tmp_path / str(step)) for step, n in enumerate(sizes[1:]) if n == 30}
    right, closed = RowsAhead.copy_piece, list(gates.values())

    def copy_piece(ahead):
        found = right(ahead)
        if not found and threading.current_thread() is threading.main_thread():  # rank 0
            closed.pop(0).open()
        return found

    monkeypatch.setattr(RowsAhead, "copy_piece", copy_piece)
    twins = Twins(1, lambda step: gates[step].wait() if step in gates else None)
    twins.check(twins.f.steps(synk.data(X), synk.data(Y), batches=batches), batches)
    assert not closed


def check_after_failure(twins, data, made):
    """Compare the values after ``made`` steps, and the results of a call and of steps after them."""
    for rows in BATCHES[:made]:
        twins.g(X[rows], Y[rows])
    twins.check_values()
    twins.check([[each] for each in twins.f(*data, batch=BATCHES[made])], BATCHES[made : made + 1])
    twins.check(twins.f.steps(*data, batches=BATCHES), BATCHES)


@with_engine
@pytest.mark.parametrize("failing", [0, 1])
def test_an_abort_between_pieces(make_world, monkeypatch, tmp_path, failing):
    """The other rank copies no further piece, and no later step uses the rows that it has copied."""
    barrier = make_world("threads", 2, 0, engine=NAME).session.context.barrier
    gate, right, pieces, failed = Gate(tmp_path / "piece"), RowsAhead.copy_piece, [], []

    def fail(step):
        if step == 2 and not failed:
            failed.append(step)
            gate.until_reached()
            raise ArithmeticError

    def copy_piece(ahead):
        found = right(ahead)
        is_other = (threading.current_thread() is threading.main_thread()) == (failing == 1)
        if is_other and barrier.block.steps[1 - failing] == 2:
            pieces.append(found)
            gate.reach()
            until(lambda: barrier.command in (barrier.block.words[ABORT_REQUESTED], barrier.block.words[ABORTED]))
        return found

    monkeypatch.setattr(RowsAhead, "copy_piece", copy_piece)
    twins, data = Twins(failing, fail), [synk.data(X), synk.data(Y)]
    with pytest.raises(ArithmeticError if failing == 0 else WorkerError) as caught:
        twins.f.steps(*data, batches=BATCHES)
    assert pieces == [True]
    monkeypatch.setattr(RowsAhead, "copy_piece", right)
    check_after_failure(twins, data, caught.value.steps[0])


@with_engine
@pytest.mark.parametrize("launcher", ["threads", "fork"])
def test_an_interrupt_in_a_piece(make_world, monkeypatch, tmp_path, launcher):
    barrier = make_world(launcher, 2, 0, engine=NAME).session.context.barrier
    gate, right = Gate(tmp_path / "piece"), RowsAhead.copy_piece

    def copy_piece(ahead):
        if threading.current_thread() is threading.main_thread() and barrier.block.steps[0] == 2:
            ahead._copies[0][2][:] = 77
            gate.open()
            raise KeyboardInterrupt
        return right(ahead)

    monkeypatch.setattr(RowsAhead, "copy_piece", copy_piece)
    twins, data = Twins(1, lambda step: gate.wait() if step == 2 else None), [synk.data(X), synk.data(Y)]
    with pytest.raises(KeyboardInterrupt) as caught:
        twins.f.steps(*data, batches=BATCHES)
    assert barrier.meanwhile is None
    monkeypatch.setattr(RowsAhead, "copy_piece", right)
    check_after_failure(twins, data, caught.value.steps[0])


@with_engine
def test_rows_are_not_copied_ahead_of_on_step(make_world):
    """Steps that copy their rows use what `on_step` has written before, although it must not write into the data.

    Slices are views, which change even during a step.
    """
    make_world("fork", 2, 0, engine=NAME)
    twins, data = Twins(), [synk.data(X), synk.data(Y)]
    batches = [rows for rows in BATCHES if not isinstance(rows, slice)]

    def write(i, outputs):
        data[0][:] = data[0][:] + 1

    sums, taken = twins.f.steps(*data, batches=batches, on_step=write)
    for i, rows in enumerate(batches):
        of_both, of_x = twins.g(X[rows] + i, Y[rows])
        assert sums[i] == of_both and np.array_equal(taken[i], of_x)
    twins.check_values()
