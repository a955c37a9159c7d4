"""If a rank fails in a collective, all ranks keep their values or all have the new ones, and the session continues."""

import numpy as np
import pytest
import table
from refusals import refuses

import synkhronos as synk
from synkhronos.transports.common import SPARES

pytestmark = pytest.mark.slow


class Boom(Exception):
    """Exception that the failing rank raises."""


VALUES = [table.value("float64", (3, 2), seed=5), table.value("float64", (40_000,), seed=6)]

#: Every collective, and whether it changes values.
COLLECTIVES = {
    "all_reduce": (lambda both: synk.all_reduce(both, "sum"), True),
    "reduce": (lambda both: synk.reduce(both, "sum"), True),
    "reduce not in place": (lambda both: synk.reduce(both, "sum", in_place=False), False),
    "broadcast": (synk.broadcast, True),
    "broadcast of values": (lambda both: synk.broadcast(both, VALUES), True),
    "scatter": (lambda both: synk.scatter(both, [synk.data(value) for value in VALUES], batch=[2, 0, 1]), True),
    "gather": (synk.gather, False),
    "all_gather": (synk.all_gather, True),
    "set_value": (lambda both: synk.set_value(0, both, VALUES), True),
    "get_value": (lambda both: synk.get_value(2, both), False),
    "in_sync": (synk.in_sync, False),
}
each_collective = pytest.mark.parametrize("name", COLLECTIVES)


def context_of(world, rank):
    return world.session.context if rank == world.root else world.session.launcher.contexts[rank]


class Trap:
    """Context that counts the calls of a method of one object, and raises before or right after one of them."""

    def __init__(self, owner, method, step=0, after=False, error=Boom):
        self.owner, self.method, self.step, self.after, self.error = owner, method, step, after, error
        self.calls = 0
        self.original = getattr(owner, method)

    def __enter__(self):
        setattr(self.owner, self.method, self)
        return self

    def __exit__(self, *error):
        delattr(self.owner, self.method)

    def __call__(self, *args, **kwargs):
        self.calls += 1
        mine = self.calls == self.step
        if mine and not self.after:
            raise self.error("the trap snapped")
        result = self.original(*args, **kwargs)
        if mine:
            raise self.error("the trap snapped")
        return result


class Case:
    """Two variables whose values differ between ranks: a small one, and a large one that all ranks reduce together."""

    def __init__(self, world):
        self.world = world
        self.both = world.shareds([np.zeros((1, 1)), np.zeros(1)], ["small", "large"])
        self.parts = [[table.value("float64", shape, rank) for rank in range(3)] for shape in ((3, 2), (40_000,))]
        self.reset()

    def reset(self):
        """Set all values; collectives will allocate new common memory, and so have the same number of barriers."""
        for variable, of_ranks in zip(self.both, self.parts):
            self.world.set_values(variable, of_ranks)
        for rank in range(3):
            context_of(self.world, rank).transport.common.forget({SPARES})

    def now(self):
        return [self.world.values(variable) for variable in self.both]

    def assert_is(self, state):
        for values, of_ranks in zip(self.now(), state):
            for got, want in zip(values, of_ranks):
                table.assert_same_bits([got], want)

    def assert_correct_calls_work(self):
        """Check the results of correct calls, twice, because buffers and notices alternate."""
        for _ in range(2):
            self.reset()
            synk.all_reduce(self.both, "sum")
            self.assert_is([[table.expected("sum", of_ranks)] * 3 for of_ranks in self.parts])
            table.assert_same_bits([synk.gather(self.both[0])], np.stack([table.expected("sum", self.parts[0])] * 3))


def assert_told(world, caught, rank, error=Boom):
    """Check that the master's exception is raised as it is, and another rank's as a WorkerError with its traceback."""
    if rank == world.root:
        assert type(caught.value) is error
    else:
        assert type(caught.value) is synk.WorkerError
        assert caught.value.rank == rank and error.__name__ in str(caught.value)
        assert "the trap snapped" in str(caught.value.__cause__)


@each_collective
def test_a_rank_raises_at_any_rendezvous(three, name):
    call, changes = COLLECTIVES[name]
    case = Case(three)
    counts = []
    for rank in range(3):
        case.reset()
        with Trap(context_of(three, rank).barrier, "wait") as trap:
            call(case.both)
        counts.append(trap.calls)
    assert len(set(counts)) == 1 and counts[0] >= 1  # all ranks have equally many barriers
    new = case.now()
    for step in range(1, counts[0] + 1):
        for rank in range(3):
            for after in (False, True):
                case.reset()
                with pytest.raises(Exception) as caught, Trap(context_of(three, rank).barrier, "wait", step, after):
                    call(case.both)
                assert_told(three, caught, rank)
                # After the last barrier, the collective is complete on all ranks, even on one that raises an error.
                done = changes and step == counts[0] and after
                case.assert_is(new if done else case.parts)
                case.assert_correct_calls_work()


@pytest.mark.parametrize("method", ["bind", "allocate", "_layout"])
@each_collective
def test_a_rank_raises_in_its_transport(three, name, method):
    """If a rank fails between barriers, all ranks keep their values, although others may have advanced further."""
    call, _ = COLLECTIVES[name]
    case = Case(three)
    for rank in range(3):
        with Trap(context_of(three, rank).transport, method) as trap:
            call(case.both)
        for step in range(1, trap.calls + 1):
            case.reset()
            with pytest.raises(Exception) as caught, Trap(context_of(three, rank).transport, method, step):
                call(case.both)
            assert_told(three, caught, rank)
            case.assert_is(case.parts)
        case.assert_correct_calls_work()


@each_collective
def test_a_rank_finds_no_memory(three, name):
    call, _ = COLLECTIVES[name]
    case = Case(three)
    snapped = 0
    for rank in range(3):
        context, step, found = context_of(three, rank), 0, False
        while not found:
            case.reset()
            context.transport.forget({("shared",)})  # all memory must be allocated again
            step += 1
            try:
                with Trap(context.pool, "allocate", step, error=synk.SharedMemoryError):
                    call(case.both)
                found = True
            except (synk.SharedMemoryError, synk.WorkerError) as error:
                assert "the trap snapped" in str(error)
                case.assert_is(case.parts)
                snapped += 1
        case.assert_correct_calls_work()
    assert snapped >= 2


@pytest.mark.parametrize("n, root", [(2, 0), (2, 1), (3, 2)])
def test_shapes_that_differ_many_times_over(make_world, n, root):
    """After errors that all ranks detect at the same point, the ranks are still in step."""
    world = make_world("threads", n, root)
    good, bad = world.shareds([np.zeros(2), np.zeros(2)], ["good", "bad"])
    for turn in range(4):
        parts = [np.zeros(1 + (rank == turn % n)) for rank in range(n)]
        world.set_values(bad, parts)
        world.set_values(good, [np.full(2, float(rank)) for rank in range(n)])
        for call in (synk.all_reduce, synk.reduce, lambda both: synk.reduce(both, "sum", in_place=False)):
            with refuses(ValueError, "bad", got=f"float64 (2,) on rank {turn % n}"):
                call([good, bad])
        for rank in range(n):
            table.assert_same_bits([world.values(bad)[rank]], parts[rank])
            table.assert_same_bits([world.values(good)[rank]], np.full(2, float(rank)))
        synk.all_reduce(good, "sum")
        table.assert_same_bits(world.values(good), np.full(2, float(sum(range(n)))))


def test_a_process_raises(make_world):
    """On real processes, a value of one rank that cannot be averaged causes an error and changes no value."""
    world = make_world("fork", 2)
    W, V = world.shareds([np.zeros(2), np.zeros(2)], ["W", "V"])
    world.set_values(V, [np.zeros(2), np.array([None, 1])])
    for _ in range(3):
        with pytest.raises(synk.WorkerError) as caught:
            synk.all_reduce([W, V])
        assert caught.value.rank == 1
        world.set_values(W, [np.ones(2), np.full(2, 3.0)])
        synk.all_reduce(W)
        table.assert_same_bits(world.values(W), np.full(2, 2.0))
        assert world.values(V)[1].tolist() == [None, 1]
