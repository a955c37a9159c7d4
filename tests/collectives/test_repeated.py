"""Commands of collectives are cached: nothing that a later call changes may come from an earlier command."""

import functools

import numpy as np
import pytest
import table
from refusals import refuses

import synkhronos as synk
from synkhronos.program.program import PROGRAM
from synkhronos.runtime.command import Command


@pytest.fixture(params=[("threads", 3, 1), ("fork", 2, 0)], ids="{0[0]}-{0[1]}".format)
def world(request, make_world):
    return make_world(*request.param)


def commands_of(variable):
    from synkhronos.collectives.arguments import checked

    return checked(variable).commands


def assert_divided(world, variable, rows):
    found = world.values(variable)
    np.testing.assert_array_equal(np.concatenate(found), rows)
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_scatter_of_data_that_changes(world):
    variable = world.shared(np.zeros((1, 2)), "x")
    data = synk.data(np.arange(24.0).reshape(12, 2), oversize=2)
    for _ in range(2):
        synk.scatter(variable, data)
        assert_divided(world, variable, np.arange(24.0).reshape(12, 2))
    assert len(commands_of(variable)) == 1
    data[...] = 5  # other values in the same place
    synk.scatter(variable, data)
    assert_divided(world, variable, np.full((12, 2), 5.0))
    for batch in (7, 8, 7):
        data[:8, 0] = np.arange(8)
        synk.scatter(variable, data, batch=batch)
        assert_divided(world, variable, np.array([[i, 5.0] for i in range(batch)]))
    data.set_length(20)  # in the same memory
    data[...] = np.arange(40.0).reshape(20, 2)
    synk.scatter(variable, data)
    assert_divided(world, variable, np.arange(40.0).reshape(20, 2))
    data.minibatch = True  # begins with the selected rows
    synk.scatter(variable, data, batch=4)
    assert_divided(world, variable, np.arange(8.0).reshape(4, 2))
    data.set_value(np.ones((3, 2)))
    synk.scatter(variable, data)
    assert_divided(world, variable, np.ones((3, 2)))
    with refuses(ValueError, "batch"):
        data.minibatch = False
        synk.scatter(variable, data, batch=99)


def test_other_data_in_memory_that_was_freed(world):
    variable = world.shared(np.zeros(1), "x")
    for i in range(4):
        data = synk.data(np.arange(6.0) + i)
        synk.scatter(variable, data)
        assert_divided(world, variable, np.arange(6.0) + i)
        synk.broadcast(variable, data)
        table.assert_same_bits(world.values(variable), np.arange(6.0) + i)
        del data
    data = synk.data(np.zeros((6, 2)))  # of another number of dimensions, perhaps in the same place
    with pytest.raises(TypeError):
        synk.scatter(variable, data)
    data = synk.data(np.zeros(3))
    synk.broadcast(variable, data)
    data.free_memory()
    with pytest.raises(synk.StateError):
        synk.broadcast(variable, data)


def test_forms_of_arguments(world):
    one, other = world.shareds([np.zeros(2), np.zeros(2)])
    data, ones = synk.data(np.arange(4.0)), synk.data(np.ones(4))
    synk.broadcast(one, data)
    synk.scatter([one], [data])
    synk.broadcast([one, other], [data, ones])
    table.assert_same_bits(world.values(other), np.ones(4))
    for call in (synk.broadcast, synk.scatter):
        call(one, data)
        with pytest.raises((TypeError, ValueError)):
            call(one, [data])
        with pytest.raises((TypeError, ValueError)):
            call([one, other], [data])
        with pytest.raises((TypeError, ValueError)):
            call([one], data)
    synk.broadcast([one, other], [ones, data])  # the other order
    table.assert_same_bits(world.values(one), np.ones(4))
    for axis in (1, -2, "0", [0]):
        with pytest.raises((TypeError, ValueError)):
            synk.scatter(one, data, axis=axis)


def test_options(world):
    n = PROGRAM.session.size
    variable = world.shared(np.zeros(2), "x")
    for scale in (1.0, 2.0):
        parts = [np.array([scale * rank, 7.0]) for rank in range(n)]
        world.set_values(variable, parts)
        np.testing.assert_array_equal(synk.gather(variable), np.stack(parts))
        np.testing.assert_array_equal(synk.gather(variable, nd_up=0), np.concatenate(parts))
        np.testing.assert_array_equal(synk.reduce(variable, "sum", in_place=False), np.sum(parts, axis=0))
        np.testing.assert_array_equal(synk.reduce(variable, "max", in_place=False), np.max(parts, axis=0))
        assert not synk.in_sync(variable)
        synk.broadcast(variable)
        assert synk.in_sync(variable)
        table.assert_same_bits(world.values(variable), parts[PROGRAM.session.root])


def test_the_cache_is_bounded(make_world):
    world = make_world("threads", 2)
    variable = world.shared(np.zeros(2), "x")
    data = synk.data(np.arange(200.0))
    for batch in range(2, 150):
        synk.scatter(variable, data, batch=batch)
        assert len(commands_of(variable)) <= 64
    assert_divided(world, variable, np.arange(149.0))


class Kept(Command):
    """Return whether a rank has the variable's value in its shared memory."""

    def __init__(self, number):
        self.number = number

    def run(self, context):
        entry = context.registry.shareds[self.number]
        return context.transport.keeps(entry.key, entry.cell[0])


@pytest.mark.parametrize(
    "collective, readable",
    [
        (synk.gather, [True, False, True]),
        (synk.in_sync, [True, False, True]),
        (functools.partial(synk.get_value, rank=2), [False, False, True]),
        (functools.partial(synk.get_value, rank=1), [False, False, False]),
        (synk.all_reduce, [True, True, True]),
    ],
)
def test_only_values_that_others_read_are_moved(make_world, collective, readable):
    world = make_world("fork", 3, 1)
    variable = world.shared(np.zeros(3), "x")
    update = synk.function([], updates=[(variable, variable + 1)])
    update()  # leaves a new array on every rank
    collective(variable)
    assert PROGRAM.session.run(Kept(world._number(variable))) == readable
    table.assert_same_bits(world.values(variable), np.ones(3))
