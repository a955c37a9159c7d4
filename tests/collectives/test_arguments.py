"""Behavior common to all collectives: which shared variables they accept, when, and whose memory they change.

Modules: `command`.
"""

import gc

import numpy as np
import pytest
import table
from refusals import refuses, reports
from worlds import Poke, Tables

import synkhronos as synk
from synkhronos.replication.replicator import replicator_of
from synkhronos.runtime.command import Command
from synkhronos.testing import numpy_engine as engine

#: Every collective, as a call with only the variables; passed values are like those of the variables.
CALLS = {
    "broadcast": synk.broadcast,
    "broadcast of values": lambda variables: synk.broadcast(variables, _values(variables)),
    "scatter": lambda variables: synk.scatter(variables, _values(variables)),
    "gather": synk.gather,
    "all_gather": synk.all_gather,
    "reduce": lambda variables: synk.reduce(variables, "sum"),
    "reduce not in place": lambda variables: synk.reduce(variables, "sum", in_place=False),
    "all_reduce": lambda variables: synk.all_reduce(variables, "sum"),
    "set_value": lambda variables: synk.set_value(0, variables, _values(variables)),
    "get_value": lambda variables: synk.get_value(0, variables),
    "get_lengths": synk.get_lengths,
    "get_shapes": synk.get_shapes,
    "in_sync": synk.in_sync,
}
#: Collectives that set values, which the ranks keep until a function uses the variable.
KEEPING = [CALLS[name] for name in ("broadcast", "broadcast of values", "scatter", "set_value")]
all_collectives = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def _values(variables):
    values = [np.zeros((4, 2)) for _ in variables] if isinstance(variables, (list, tuple)) else np.zeros((4, 2))
    return values


# -- bad input ---------------------------------------------------------------------------------------------------------


@all_collectives
def test_before_fork_and_after_close(make_world, call):
    synk.close()
    W = engine.shared(np.zeros((4, 2)), "W")
    function = synk.function([], [(W, None)])
    with reports(synk.StateError, "synkhronos.fork()"):
        call(W)
    make_world("threads", 2)
    call(W)
    synk.close()
    with reports(synk.StateError, "synkhronos.fork()"):
        call(W)
    make_world("threads", 3)
    call([W])
    del function


@all_collectives
def test_what_is_no_variable_of_the_ranks(three, refused, call):
    W, V = three.shareds([np.zeros((4, 2)), np.zeros((4, 2))], ["W", "V"])
    state = engine.shared({"a": 1}, "state")
    function = synk.function([], [(state, None)])
    alias = W.clone()
    users = synk.function([], [(alias, None)])
    for variables, error, argument, got in [
        ([], ValueError, "shared_vars", "empty"),
        ((), ValueError, "shared_vars", "empty"),
        (3, TypeError, "shared_vars", "3 of type int"),
        (None, TypeError, "shared_vars", "None of type NoneType"),
        ([W, "V"], TypeError, "shared_vars[1]", "'V' of type str"),
        (np.zeros((4, 2)), TypeError, "shared_vars", "of type ndarray"),
        ([W, engine.variable("x", "float64", 2)], TypeError, "shared_vars[1]", "x"),
        ([[W], [V]], TypeError, "shared_vars[0]", "of type list"),
        ({W: 1}, TypeError, "shared_vars", "of type dict"),
        ([W, state], TypeError, "shared_vars", "state of type dict, which is not a dense array"),
        (state, TypeError, "shared_vars", "state of type dict, which is not a dense array"),
        ([W, V, W], ValueError, "shared_vars", "W, which is listed twice"),
        ([W, alias], ValueError, "shared_vars", "W, which is listed twice (it shares the value of W)"),
    ]:
        refused(three, error, lambda variables=variables: call(variables), argument=argument, got=got)
    lonely = engine.shared(np.zeros((4, 2)), "lonely")
    if call in KEEPING:
        call(lonely)  # see below
    else:
        got = "lonely, which no such function uses"
        refused(three, ValueError, lambda: call(lonely), argument="shared_vars", got=got, hint="synkhronos.function")
    del function, users


def test_variables_without_a_name_are_named_by_position_and_type(make_world, refused):
    world = make_world("threads", 2)
    w, u, v = world.shareds([np.zeros(2), np.zeros(2), np.zeros((2, 2))], [None, None, None])
    lonely, integers = engine.shared(np.zeros((4, 2))), world.shared(np.zeros(2, int))
    refused(world, ValueError, lambda: synk.all_reduce([w, lonely]), got="shared_vars[1] (float64 matrix), which no")
    refused(world, ValueError, lambda: synk.all_reduce(lonely), got="shared_vars (float64 matrix), which no")
    twice = "shared_vars[2] (float64 vector), which is listed twice (it shares the value of shared_vars[1] (float64"
    refused(world, ValueError, lambda: synk.all_reduce([w, u, u]), got=twice)
    integers.name = None
    with refuses(TypeError, "shared_vars[1] (int64 vector)"):
        synk.all_reduce([w, integers])
    world.set_values(v, [np.zeros((2, 2)), np.zeros((3, 2))])
    with reports((ValueError, synk.WorkerError), "shared_vars[1] (float64 matrix)"):
        synk.all_reduce([w, v])  # another rank's error also names the variable


@pytest.mark.theano
@all_collectives
def test_sparse_and_random_variables_are_refused_by_name(make_world, refused, call):
    theano = pytest.importorskip("theano")
    import scipy.sparse
    from theano.sandbox.rng_mrg import MRG_RandomStreams
    from theano.tensor.shared_randomstreams import RandomStreams

    world = make_world("threads", 1, engine="theano")
    matrix = theano.shared(scipy.sparse.csr_matrix(np.eye(3)), name="matrix")
    state = theano.shared(np.random.RandomState(0), name="stream")
    function = synk.function([], [(matrix, None)], updates=[(state, state)], mode="FAST_COMPILE")
    assert RandomStreams  # registers the type of random states
    refused(world, TypeError, lambda: call(matrix), got="matrix of type csr_matrix, which is not a dense array")
    mrg = MRG_RandomStreams(1)
    numbers = mrg.uniform((2,), nstreams=4)
    mrg_state = mrg.state_updates[0][0]
    mrg_state.name = "mrg"
    another = synk.function([], (numbers, None), mode="FAST_COMPILE")
    if call not in (CALLS["get_value"], CALLS["set_value"]):  # for one rank; see calls/test_random_streams.py
        for given, name, kind in (([state], "stream", "RandomState"), (mrg_state, "mrg", "ndarray")):
            got = f"{name}, which is the state of a random stream ({kind})"
            refused(world, TypeError, lambda given=given: call(given), got=got, hint="get_value")
    del function, another


def test_no_engine_is_imported_to_refuse_what_is_no_variable(make_world, monkeypatch, refused):
    world = make_world()
    from synkhronos import engines

    monkeypatch.setattr(engines, "KNOWN", {"numpy": engines.KNOWN["numpy"]})
    refused(world, TypeError, lambda: synk.all_reduce(3), got="3 of type int")


# -- the functions that use the variables ------------------------------------------------------------------------------


def test_functions_of_the_variables_are_distributed_by_the_collective(three):
    W = engine.shared(np.arange(3.0), "W")
    function = synk.function([], [(W, None)])
    synk.all_reduce(W, "sum")
    table.assert_same_bits(three.values(W), np.arange(3.0) * 3)
    assert function in replicator_of(three.session)


def test_a_value_is_kept_for_the_first_function_that_uses_the_variable(world, words, caplog):
    caplog.set_level("INFO", "synkhronos")
    names = ["own", "given", "parts", "one"]
    own, given, parts, one = (words.shared(np.full(2, 1.0), name) for name in names)
    own.set_value(np.array([5.0, 6.0]))
    rows, last = np.arange(7.0), world.n - 1
    synk.broadcast(own)
    synk.broadcast(given, [3.0, 4.0])
    synk.scatter(parts, rows)
    synk.set_value(last, one, [8.0, 9.0])
    assert [name for name in names for r in caplog.records if r.getMessage().startswith(name + " is stored")] == names
    np.testing.assert_array_equal(synk.gather(own, nd_up=0), [5.0, 6.0] * world.n)
    caplog.clear()
    f = words.function([], [(each * 1, "gather") for each in (own, given, parts, one)])
    found = f()
    np.testing.assert_array_equal(found[0], [5.0, 6.0] * world.n)
    np.testing.assert_array_equal(found[1], [3.0, 4.0] * world.n)
    np.testing.assert_array_equal(found[2], rows)
    np.testing.assert_array_equal(found[3], [1.0] * 2 * last + [8.0, 9.0])
    synk.scatter(parts, rows * 2)  # as to any other variable, without a warning
    np.testing.assert_array_equal(f()[2], rows * 2)
    assert not [r.getMessage() for r in caplog.records if "is stored" in r.getMessage()]


def test_a_variable_that_no_function_uses_goes_when_it_is_dropped(three):
    w = engine.shared(np.zeros(2), "w")
    synk.broadcast(w)
    assert [entry[1] for entry in three.session.run(Tables())] == [1] * 3
    del w
    gc.collect()
    three.session.run(Tables())
    assert [entry[1] for entry in three.session.run(Tables())] == [0] * 3


@pytest.mark.parametrize("seed", [None, 5])
def test_the_state_of_a_random_stream_that_no_function_uses_yet(make_world, seed):
    make_world("threads", 2, seed=seed)
    stream, other = engine.random_stream(1), engine.random_stream(2)
    states = [np.random.RandomState(number) for number in (7, 8)]
    for rank in (0, 1):
        synk.set_value(rank, stream, states[rank])
    f = synk.function([], [(engine.uniform(stream, (3,)), "gather"), (engine.uniform(other, (3,)), "gather")])
    np.testing.assert_array_equal(f()[0], np.concatenate([state.random_sample(3) for state in states]))


def test_variable_whose_function_was_dropped(three, refused):
    W = engine.shared(np.arange(3.0), "W")
    function = synk.function([], [(W, None)])
    synk.all_reduce(W, "sum")
    del function
    gc.collect()
    synk.all_reduce(W, "sum")  # the program still has the variable, and so have the ranks
    another = synk.function([], [(W, None)])
    synk.all_reduce(W, "sum")
    table.assert_same_bits(three.values(W), np.arange(3.0) * 27)
    del another
    unused = engine.shared(np.arange(3.0), "V")
    refused(three, ValueError, lambda: synk.all_reduce(unused), got="V, which no", hint="synkhronos.function")


def test_variable_whose_function_is_dropped_while_a_collective_is_prepared(three, monkeypatch):
    """The collective works, although the garbage collector deletes the variable's function during its preparation."""
    from synkhronos.collectives import arguments as module

    W = engine.shared(np.arange(3.0), "W")
    functions = [synk.function([], [(W, None)])]
    synk.distribute()
    original = module.Variables.check_op

    def check_op(self, op, nccl):
        functions.clear()
        gc.collect()
        return original(self, op, nccl)

    monkeypatch.setattr(module.Variables, "check_op", check_op)
    synk.all_reduce(W, "sum")
    np.testing.assert_array_equal(W.get_value(), np.arange(3.0) * 3)


def test_variable_whose_function_gives_way_to_another(three):
    """Ranks keep their values if a second function uses the variable before the first one is deleted."""
    W = engine.shared(np.zeros(1), "W")
    function = synk.function([], [(W, None)])
    synk.scatter(W, np.arange(6.0))
    second = synk.function([], [(W, "gather")])
    del function
    gc.collect()
    np.testing.assert_array_equal(second()[0], np.arange(6.0))
    assert synk.get_lengths(W) == [2, 2, 2]


# -- owners of memory --------------------------------------------------------------------------------------------------


class Put(Command):
    """Replace the arrays in the variables' storage, on every rank, by a function's results for these arrays."""

    def __init__(self, numbers, function):
        self.numbers, self.function = numbers, function

    def run(self, context):
        shareds = context.entries(self.numbers)
        for (owner, variable), value in zip(
            shareds, self.function([owner.get(variable) for owner, variable in shareds], context.rank)
        ):
            owner.put(variable, value)


def put(world, variables, function):
    world.session.run(Put([world._number(variable) for variable in variables], function))


def swap(arrays, rank):
    return arrays[1], arrays[0]


def swap_transposed(arrays, rank):
    return arrays[1].T, arrays[0].T


def swap_views(arrays, rank):
    return arrays[1][:], arrays[0][:]


def share(arrays, rank):
    return arrays[0], arrays[0]


def fortran(arrays, rank):
    return [np.asfortranarray(array) for array in arrays]


def strided(arrays, rank):
    return [np.repeat(array, 2, axis=1)[:, ::2] for array in arrays]


def backwards(arrays, rank):
    return [array[::-1, ::-1] for array in arrays]


def read_only(arrays, rank):
    copies = [array.copy() for array in arrays]
    for copy in copies:
        copy.flags.writeable = False
    return copies


def part_of_larger(arrays, rank):
    return [np.concatenate([array, array])[: len(array)] for array in arrays]


STORED = [swap, swap_transposed, swap_views, share, fortran, strided, backwards, read_only, part_of_larger]


@pytest.mark.parametrize("both", [True, False], ids=["both in one call", "one after the other"])
@pytest.mark.parametrize("stored", STORED)
def test_whatever_array_a_function_left_in_the_storage(three, stored, both):
    """Collectives work with any array in the storage, for five rounds, because buffers alternate."""
    A, B = three.shareds([np.zeros((3, 3)), np.zeros((3, 3))], ["A", "B"])
    values = [[table.value("float64", (3, 3), rank, seed) for rank in range(3)] for seed in (0, 1)]
    three.set_values(A, values[0])
    three.set_values(B, values[1])
    for turn in range(5):
        put(three, [A, B], stored)
        with_numpy = [stored([values[0][rank], values[1][rank]], rank) for rank in range(3)]
        values = [[with_numpy[rank][i].copy() for rank in range(3)] for i in (0, 1)]
        for variable, of_ranks in zip((A, B), values):
            for got, want in zip(three.values(variable), of_ranks):
                table.assert_same_bits([got], want)
        op = ("max", "broadcast", "all_gather", "sum", "reduce")[turn]
        call = {
            "broadcast": synk.broadcast,
            "all_gather": synk.gather,
            "reduce": lambda variables: synk.reduce(variables, "min"),
        }.get(op, lambda variables, op=op: synk.all_reduce(variables, op))
        for variables in [[A, B]] if both else [[B], [A]]:
            call(variables)
        for i in (0, 1):
            if op == "broadcast":
                values[i] = [values[i][three.root]] * 3
            elif op == "reduce":
                values[i] = [
                    table.expected("min", values[i]) if rank == three.root else values[i][rank] for rank in range(3)
                ]
            elif op != "all_gather":
                values[i] = [table.expected(op, values[i])] * 3
        for variable, of_ranks in zip((A, B), values):
            for got, want in zip(three.values(variable), of_ranks):
                table.assert_same_bits([got], want)


@pytest.mark.theano
@pytest.mark.parametrize("transposed", [False, True])
def test_swap_of_a_theano_function(make_world, transposed):
    theano = pytest.importorskip("theano")
    world = make_world("fork", 2, 1, "theano")
    a, b = table.value("float64", (3, 3), 0), table.value("float64", (3, 3), 1)
    A, B = theano.shared(a, name="A"), theano.shared(b, name="B")
    turn = (lambda x: x.T) if transposed else (lambda x: x)
    step = synk.function([], updates=[(A, turn(B)), (B, turn(A))], mode="FAST_COMPILE")
    for _ in range(3):
        step()
        a, b = turn(b), turn(a)
        synk.all_reduce([A, B], "sum")
        a, b = a + a, b + b
        table.assert_same_bits(world.values(A), a)
        table.assert_same_bits(world.values(B), b)
        step()
        a, b = turn(b), turn(a)
        synk.broadcast([B])
        synk.broadcast([A])
        table.assert_same_bits(world.values(A), a)
        table.assert_same_bits(world.values(B), b)


@pytest.mark.theano
def test_update_of_a_theano_function_that_is_not_in_place(make_world):
    theano = pytest.importorskip("theano")
    world = make_world("fork", 2, 0, "theano")
    parts = [table.value("float32", (4, 4), rank) for rank in range(2)]
    W = theano.shared(parts[0], name="W")
    step = synk.function([], updates=[(W, theano.tensor.dot(W, W))], mode="FAST_COMPILE")
    synk.distribute()
    world.set_values(W, parts)
    for _ in range(3):
        step()
        parts = [np.dot(part, part) for part in parts]
        synk.all_reduce(W)
        values = world.values(W)
        table.assert_same_bits(values)
        np.testing.assert_allclose(values[0], (parts[0] + parts[1]) / 2, rtol=1e-5)
        parts = [values[0]] * 2


EVERY_CHANGE = [
    lambda W: synk.all_reduce(W, "sum"),
    synk.broadcast,
    lambda W: synk.reduce(W, "sum"),
    lambda W: synk.broadcast(W, np.full((3, 3), 7.0)),
    lambda W: synk.set_value(1, W, np.full((3, 3), 8.0)),
    lambda W: synk.scatter(W, np.full((9, 3), 9.0)),
    synk.gather,
]


@pytest.mark.parametrize(
    "view",
    [lambda w: w, lambda w: w[1], lambda w: w.T, lambda w: w[::-1]],
    ids=["whole", "row", "transposed", "reversed"],
)
def test_what_another_variable_borrowed_does_not_change(three, view):
    """An array that another variable shares or views, as after an update, does not change."""
    W, V = three.shareds([table.value("float64", (3, 3)), np.zeros((3, 3))], ["W", "V"])
    synk.broadcast(W)
    for change in EVERY_CHANGE * 2:
        V.storage[0] = view(W.storage[0])
        copy = np.array(V.storage[0])
        for _ in range(3):
            change(W)
            table.assert_same_bits([V.storage[0]], copy)


@pytest.mark.parametrize(
    "make",
    [np.array, np.asfortranarray, lambda array: np.repeat(array, 2, axis=1)[:, ::2]],
    ids=["C", "Fortran", "strided"],
)
def test_the_users_own_array_is_not_overwritten(three, make):
    W, V = three.shareds([np.zeros((3, 3)), np.zeros((3, 3))], ["W", "V"])
    for change in EVERY_CHANGE:
        own = make(table.value("float64", (3, 3)))
        W.set_value(own, borrow=True)
        V.set_value(own, borrow=True)  # one array in two variables
        change(W)
        change(V)
        change(V)
        table.assert_same_bits([own], table.value("float64", (3, 3)))
        W.set_value(own, borrow=True)
        table.assert_same_bits([synk.get_value(three.root, W)], own)


def test_one_array_in_two_variables(three):
    """Collectives on one of two variables that were made from the same array do not change the other."""
    array = table.value("float64", (3,))
    A, B = engine.shared(array, "A", borrow=True), engine.shared(array, "B", borrow=True)
    function = synk.function([], [(A, None), (B, None)])
    synk.all_reduce(A, "sum")
    table.assert_same_bits(three.values(A), table.expected("sum", [array] * 3))
    table.assert_same_bits(three.values(B), array)
    A.set_value(B.get_value(borrow=True), borrow=True)
    synk.all_reduce([A, B], "sum")
    synk.all_reduce([B], "sum")
    once = table.expected("sum", [array] * 3)
    table.assert_same_bits(three.values(B), table.expected("sum", [once] * 3))
    table.assert_same_bits(three.values(A), table.expected("sum", [once, array, once]))  # the master put B into A
    del function


def test_two_variables_of_one_storage(three):
    """Changes to a variable are visible in another one with the same storage, on all ranks."""
    W = engine.shared(np.zeros(2), "W")
    alias = W.clone()
    first = synk.function([], [(W, "gather")])
    second = synk.function([], [(alias, "gather")], updates=[(alias, alias + 1)])
    synk.scatter(W, np.arange(6.0))
    np.testing.assert_array_equal(second()[0], np.arange(6.0))
    synk.all_reduce(alias, "sum")
    np.testing.assert_array_equal(first()[0], [9, 12] * 3)
    synk.broadcast(W, np.ones(2))
    np.testing.assert_array_equal(second()[0], np.ones(6))


def test_shape_that_changes_between_calls(threads):
    W = threads.shared(np.zeros((1, 1), "float32"))
    for shape in [(3, 2), (1000, 70), (0, 2), (2, 0), (3, 2), (1, 1), (1000, 70), (999, 70)]:
        parts = [table.value("float32", shape, rank) for rank in range(threads.n)]
        threads.set_values(W, parts)
        synk.all_reduce(W, "sum")
        table.assert_same_bits(threads.values(W))
        table.assert_reduced("sum", threads.values(W)[0], table.expected("sum", parts))
        W.set_value(parts[-1][:1])
        synk.broadcast(W)
        table.assert_same_bits(threads.values(W), parts[-1][:1])


def test_memory_is_used_again(three):
    """Hundreds of calls need the same amount of memory as a few calls."""
    from synkhronos.program.program import PROGRAM

    W = three.shared(np.zeros((100, 100)))
    pools = [context.pool for context in three.session.launcher.contexts.values()] + [PROGRAM.pool]
    used = []
    for _ in range(30):
        for change in (
            lambda: synk.all_reduce(W),
            lambda: synk.broadcast(W, np.zeros((100, 100))),
            lambda: synk.scatter(W, np.zeros((300, 100))),
            lambda: synk.reduce(W),
            lambda: synk.reduce(W, in_place=False),
            lambda: synk.gather(W),
        ):
            change()
        used.append([pool.used for pool in pools])
    assert used[-1] == used[3]


def test_poke_is_what_it_says(three):
    """`Poke`, which tests above rely on, puts a new private array into the storage of every rank."""
    W = three.shared(np.zeros(2))
    before = W.get_value(borrow=True)
    three.session.run(Poke(three._number(W), [np.ones(2)] * 3))
    assert not np.shares_memory(W.get_value(borrow=True), before)
    table.assert_same_bits(three.values(W), np.ones(2))
