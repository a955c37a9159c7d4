"""The program's changes to shared variables between calls take effect on all ranks of an exact function.

Each way to change a variable is tried before calls of all forms. Expected values come from the engine's serial
function, whose variables the program changes in the same way. For functions that are not exact, see test_changes.py.

Modules: `synkhronos.runtime.news`.
"""

import contextlib
import threading

import numpy as np
import pytest
from library import NAME, L, T
from refusals import refuses, reports

import synkhronos as synk
from synkhronos.calls import function as function_module
from synkhronos.calls.changes import SendValues
from synkhronos.program.program import PROGRAM

pytestmark = getattr(pytest.mark, NAME)

#: Small values travel with the command; large values are broadcast.
SIZES = {"scalar": (), "vector": (3,), "large": (7, 400)}


class Program:
    """A program with one shared variable that it changes, and one that its function updates.

    The function runs serially or on all ranks.
    """

    def __init__(self, shape, function, mode, **kwargs):
        def shared(value, name):
            return L.shared(value, name)

        self.x = T.dmatrix("x")
        self.start = np.linspace(1.0, 2.0, int(np.prod(shape))).reshape(shape)
        self.w = shared(self.start, "w")
        self.p = shared(np.zeros(2), "p")
        scale = self.w.sum()
        updates = [(self.p, self.p + scale * self.x.mean(0)), *kwargs.pop("updates", lambda program: [])(self)]
        self.f = function([self.x], [self.w * 1.0, (self.x * scale).sum()], updates=updates, mode=mode, **kwargs)
        self.kept = None
        self.serial = L.function([], updates=[(self.w, self.w * 1.5 + 1)], mode=mode)


def set_value(program, i):
    program.w.set_value(program.start * i)


def set_borrowed(program, i):
    value = np.asarray(program.start * i)
    program.w.set_value(value, borrow=True)
    value[...] += 1


def write_into_what_was_set(program, i):
    if program.kept is None:
        program.kept = np.array(program.start)
        program.w.set_value(program.kept, borrow=True)
    program.kept[...] += i


def set_what_is_there(program, i):
    value = program.w.get_value(borrow=True)
    value[...] *= i
    program.w.set_value(value, borrow=True)


def write_into_what_was_lent(program, i):
    program.w.get_value(borrow=True)[...] += i


def call_a_serial_function(program, i):
    program.serial()


def write_into_the_container(program, i):
    program.w.container.value = np.asarray(program.start + i)


def write_into_the_storage(program, i):
    program.w.container.storage[0] = np.asarray(program.start - i)


def set_zero(program, i):
    program.w.zero(borrow=bool(i % 2))


def set_a_clone(program, i):
    program.w.clone().set_value(program.start * -i)


def set_in_a_thread(program, i):
    thread = threading.Thread(target=program.w.set_value, args=(program.start + 3 * i,))
    thread.start()
    thread.join()


WAYS = [
    set_value,
    set_borrowed,
    write_into_what_was_set,
    set_what_is_there,
    write_into_what_was_lent,
    call_a_serial_function,
    write_into_the_container,
    write_into_the_storage,
    set_zero,
    set_a_clone,
    set_in_a_thread,
]


WORLDS = [("threads", 3, 1), ("fork", 2, 0)]


@pytest.fixture(params=WORLDS, ids="{0[0]}-{0[1]}".format)
def world(request, make_world):
    return make_world(*request.param, engine=NAME)


ROWS = np.arange(14.0).reshape(7, 2) / 7


def call(f, rows):
    return f(rows)


def steps(f, rows):
    """Make two steps with either kind of function; return the stacked outputs."""
    if isinstance(f, synk.Function):
        return f.steps(rows, batches=[slice(0, 4), slice(2, 7)])
    return [np.stack(outputs) for outputs in zip(f(rows[0:4]), f(rows[2:7]))]


def compare(f, rows):
    if not isinstance(f, synk.Function):
        return f(rows)
    found = f.compare(rows)
    assert found, found
    return found.results


def sliced(f, rows):
    return f(rows, num_slices=2) if isinstance(f, synk.Function) else f(rows)


FORMS = [call, steps, compare, sliced]


def assert_equal(ours, theirs, world, shareds, serial_shareds):
    """Check the outputs and the variables' values; all ranks' values must have the same bits."""
    for one, other in zip(ours, theirs):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    for shared, serial in zip(shareds, serial_shareds):
        expected = serial.get_value()
        np.testing.assert_allclose(shared.get_value(), expected, rtol=1e-12)
        for value in world.values(shared):
            assert value.tobytes() == world.values(shared)[world.root].tobytes()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_the_program_does_between_calls(world, way, size):
    ours = Program(SIZES[size], synk.function, L.quick, exact=True)
    theirs = Program(SIZES[size], L.function, L.quick)
    for i, form in enumerate([call, call, *FORMS, call]):
        if i:
            way(ours, i), way(theirs, i)
        found, expected = form(ours.f, ROWS), form(theirs.f, ROWS)
        assert_equal(found, expected, world, [ours.w, ours.p], [theirs.w, theirs.p])


def updating_itself(program):
    return [(program.w, program.w * 1.25 + program.x.mean())]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "way", [set_value, set_borrowed, call_a_serial_function, set_zero, set_a_clone], ids=lambda way: way.__name__
)
def test_of_a_variable_that_the_function_updates(world, way, size):
    ours = Program(SIZES[size], synk.function, L.quick, exact=True, updates=updating_itself)
    theirs = Program(SIZES[size], L.function, L.quick, updates=updating_itself)
    for i, form in enumerate([call, *FORMS, call]):
        if i % 4:  # in every fourth step, the program does nothing
            way(ours, i), way(theirs, i)
        found, expected = form(ours.f, ROWS), form(theirs.f, ROWS)
        assert_equal(found, expected, world, [ours.w, ours.p], [theirs.w, theirs.p])


# -- compiled: functions that write in place, even into arrays that are not writeable --------------------------------


@pytest.fixture
def compiled():
    if NAME == "theano":
        return "FAST_RUN"
    from pytensor.compile.mode import get_mode

    pytest.importorskip("numba")
    return get_mode("NUMBA")


@pytest.mark.thorough("large")
@pytest.mark.parametrize("size", ["scalar", "large"])
def test_compiled(make_world, compiled, size):
    world = make_world("fork", 2, engine=NAME)
    ours = Program(SIZES[size], synk.function, compiled, exact=True, updates=updating_itself)
    theirs = Program(SIZES[size], L.function, compiled, updates=updating_itself)
    ways = [set_value, call_a_serial_function, set_borrowed, call_a_serial_function, set_zero, write_into_the_storage]
    assert_equal(ours.f(ROWS), theirs.f(ROWS), world, [ours.w, ours.p], [theirs.w, theirs.p])
    for i, way in enumerate(ways):
        way(ours, i), way(theirs, i)
        for form in (call, steps):
            found, expected = form(ours.f, ROWS), form(theirs.f, ROWS)
            assert_equal(found, expected, world, [ours.w, ours.p], [theirs.w, theirs.p])


def test_compiled_functions_that_write_in_place(make_world, compiled):
    """A compiled function writes into the variable's array, so that only the call itself reveals the change."""
    world = make_world("fork", 2, engine=NAME)
    x, w = T.dvector("x"), L.shared(np.zeros(5), "w")
    add = L.function([], updates=[(w, w + 1)], mode=compiled)  # built before the ranks' function
    f = synk.function([x], x.sum() + w.sum(), exact=True, mode=compiled)
    assert f(np.ones(3)) == 3
    add()
    before = w.get_value(borrow=True)
    for i in range(3):
        add()
        assert f(np.ones(3)) == 3 + 5 * (i + 2)
    if NAME == "theano":
        assert w.get_value(borrow=True) is before
    assert [value.tolist() for value in world.values(w)] == [[4.0] * 5] * 2


# -- in the middle of steps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("updates", [True, False], ids=["updates", "no-updates"])
def test_what_on_step_changes_counts_from_the_next_step_on(world, updates, is_large):
    def model(function, **kwargs):
        x, rate = T.dvector("x"), L.shared(np.ones(400 if is_large else 1), "rate")
        p = L.shared(0.0, "p")
        more = [(p, p + (rate * x.mean()).mean())] if updates else []
        f = function([x], [(x.sum() * rate).sum(), x * rate.sum()], updates=more, mode=L.quick, **kwargs)
        return f, rate, p

    rows, batches = np.arange(8.0), [slice(i, i + 3) for i in range(5)]
    (f, rate, p), (g, serial_rate, serial_p) = model(synk.function, exact=True), model(L.function)
    expected = []
    for i, batch in enumerate(batches):
        expected.append(g(rows[batch]))
        if i in (0, 1, 3, 4):
            serial_rate.set_value(serial_rate.get_value() * (i + 2))
    seen = []

    def on_step(i, outputs):
        seen.append(i)
        if i in (0, 1, 3, 4):
            value = rate.get_value(borrow=True)
            if i == 3:
                value *= i + 2
            else:
                rate.set_value(value * (i + 2))

    found = f.steps(rows, batches=batches, on_step=on_step)
    assert seen == list(range(5))
    for one, other in zip(zip(*found), expected):
        for value, serial in zip(one, other):
            np.testing.assert_allclose(value, serial, rtol=1e-12)
    np.testing.assert_allclose(p.get_value(), serial_p.get_value())
    for one, other in zip(f(rows), g(rows)):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_on_step_changes_a_value_and_ends_the_steps(world):
    x, rate = T.dvector("x"), L.shared(1.0, "rate")
    f = synk.function([x], x.sum() * rate, exact=True, mode=L.quick)

    def on_step(i, output):
        rate.set_value(float(i + 2))
        return i < 1

    assert f.steps(np.ones(3), n_steps=5, on_step=on_step).tolist() == [3, 6]
    assert f(np.ones(3)) == 9
    with refuses(ValueError, "total", "on_step", "True"):
        f.steps(np.ones(3), n_steps=5, on_step=lambda i, output: rate.set_value(5.0), total=True)
    assert f.steps(np.ones(3), n_steps=1, on_step=lambda i, output: rate.set_value(6.0), total=True) == 15
    assert f(np.ones(3)) == 18


# -- intended differences --------------------------------------------------------------------------------------------


def test_what_ranks_update_from_their_own_rows_is_refused(world):
    """Exact functions refuse a variable that ranks updated from their own rows, but not one that all updated alike."""
    x, own, count, n = T.dvector("x"), L.shared(0.0, "own"), L.shared(0.0, "count"), T.dscalar("n")
    plain = synk.function(
        [x], x.sum(), updates=[(own, own + x.sum()), (count, count + n)], bcast_inputs=[n], exact=False
    )
    f = synk.function([x], x.sum() + own, exact=True, name="f", mode=L.quick)
    g = synk.function([x], x.sum() + count, exact=True, mode=L.quick)
    rows = np.arange(7.0)
    plain(rows, 2.0)
    for call_it in (f, f.compare, lambda x: f.steps(x, n_steps=2)):
        with refuses(ValueError, "shared variable own", "function f", "on rank"):
            call_it(rows)
    assert g(rows) == 23
    synk.all_reduce(own, op="sum")
    assert f(rows) == 42
    plain(rows[:0], 1.0), plain.steps(rows, 1.0, n_steps=2)
    with refuses(ValueError, "shared variable own"):
        f(rows)
    own.set_value(1.0)  # the program's value takes precedence again
    assert f(rows) == 22 and [value.tolist() for value in world.values(own)] == [1.0] * world.n
    own.set_value(2.0), synk.set_value((world.root + 1) % world.n, own, 3.0)
    with refuses(ValueError, "shared variable own", got="on rank") as caught:
        f(rows)
    assert caught.value.got[0] in "13"


def test_rows_that_are_scattered_and_changed_in_place_are_refused(world):
    x, w = T.dvector("x"), L.shared(np.zeros(2), "w")
    f = synk.function([x], x.sum() + w.sum(), exact=True, mode=L.quick)
    double = L.function([], updates=[(w, w * 2)], mode=L.quick)
    f(np.ones(3))
    synk.scatter(w, np.arange(2.0 * world.n))
    double()
    w.get_value(borrow=True)[...] += 1
    with refuses(ValueError, "shared variable w"):
        f(np.ones(3))


def test_a_function_that_is_not_exact_first(world, caplog):
    """Such a function warns, and other ranks use the old value; a later exact call sends them the new one."""
    x, w = T.dvector("x"), L.shared(np.zeros(2), "w")
    plain = synk.function([x], (x.sum() * 0 + w.sum(), "gather"), mode=L.quick, exact=False)
    f = synk.function([x], x.sum() * 0 + w.sum(), exact=True, mode=L.quick)
    rows = np.ones(world.n)
    plain(rows), f(rows)
    for i in (1.0, 2.0):
        w.set_value([i, i])
        assert plain(rows).tolist() == [2 * i if rank == world.root else 2 * i - 2 for rank in range(world.n)]
        assert "changed on the master alone" in caplog.text
        caplog.clear()
        assert f(rows) == 2 * i and plain(rows).tolist() == [2 * i] * world.n and not caplog.text
    synk.close()


# -- all or nothing --------------------------------------------------------------------------------------------------


def refusing_negatives(rows):
    if (rows < 0).any():
        raise ValueError("on purpose")
    return rows * 1.0


class Refusing(L.Op):
    """Op that refuses negative rows."""

    __props__ = ()

    def make_node(self, x):
        return L.Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = refusing_negatives(inputs[0])

    def infer_shape(self, *args):
        return args[-1]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bad", range(3))
def test_a_call_that_fails(world, size, bad):
    """If one rank fails, all ranks have the new value or all have the old one; the next call uses the new one."""
    with contextlib.suppress(ValueError):  # it already has the rule
        synk.ops.rule(Refusing, "n->n")
    x, w, n = T.dvector("x"), L.shared(np.ones(SIZES[size]), "w"), L.shared(0.0, "n")
    f = synk.function(
        [x], [Refusing()(x).sum() * w.sum()], updates=[(n, n + x.mean() * w.mean())], exact=True, mode=L.quick
    )
    rows, size = np.ones(world.n), w.get_value().size
    f(rows)
    for form in (f, lambda rows: f.steps(rows, n_steps=2)):
        w.set_value(w.get_value() * 3)
        bad_rows = rows.copy()
        bad_rows[min(bad, world.n - 1)] = -1
        with pytest.raises((TypeError, ValueError)):
            f(np.ones((2, 2)))  # fails before anything is sent
        with reports((ValueError, synk.WorkerError), "on purpose"):
            form(bad_rows)
        values = world.values(w)
        assert len({value.tobytes() for rank, value in enumerate(values) if rank != world.root}) == 1
        before = float(n.get_value())
        np.testing.assert_allclose(f(rows)[0], world.n * w.get_value().sum())
        assert len({value.tobytes() for value in world.values(w)}) == 1
        np.testing.assert_allclose(n.get_value(), before + w.get_value().mean())


# -- random states, and values that are not arrays -------------------------------------------------------------------


def test_a_random_stream_that_the_program_sets_begins_anew(world):
    """After the same state is set again, ranks draw the same numbers again, each from a separate part of the stream."""
    for stream in L.streams(5):
        x, (state,) = T.dvector("x"), L.states(stream)[:1] or [None]
        drawn = stream.uniform(x.shape)
        (state,) = L.states(stream)
        f = synk.function([x], [drawn, drawn.sum()], exact=True, mode=L.quick)
        start, rows = state.get_value(), np.ones(6)
        first = f(rows)[0]
        assert len(set(first.tolist())) == 6
        second = f(rows)[0]
        for borrow in (False, True):
            state.set_value(start, borrow=borrow)
            again = f(rows)[0]
            assert len(set(again.tolist())) == 6 and not np.array_equal(again, second)
            state.set_value(start, borrow=borrow)
            np.testing.assert_array_equal(f(rows)[0], again)
            start = state.get_value() if start is None else start


def test_a_value_that_is_no_array(make_world):
    """Changes to a sparse matrix take effect on all ranks."""
    make_world("fork", 2, engine=NAME)
    sparse = pytest.importorskip("scipy.sparse")
    dot, x = L.sparse.dot, T.dvector("x")
    w = L.shared(sparse.csr_matrix(np.eye(2)), "w")
    f = synk.function([x], x.sum() * dot(T.constant(np.ones((3, 2))), w).sum(), mode=L.quick, exact=True)
    assert f(np.ones(3)) == 18
    w.set_value(sparse.csr_matrix(2 * np.eye(2)))
    assert f(np.ones(3)) == 36 and f.steps(np.ones(3), n_steps=2).tolist() == [36, 36]
    w.get_value(borrow=True).data[...] = 3
    assert f(np.ones(3)) == 54


# -- other sessions and sequences ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("where", [("2 hosts", 4, 1), ("threads", 1, 0)], ids=["hosts", "alone"])
def test_all_ways_one_after_the_other(make_world, where, size):
    world = make_world(*where, engine=NAME)
    ours = Program(SIZES[size], synk.function, L.quick, exact=True)
    theirs = Program(SIZES[size], L.function, L.quick)
    for i, way in enumerate(WAYS):
        for form in (call, FORMS[i % 4]):
            found, expected = form(ours.f, ROWS), form(theirs.f, ROWS)
            assert_equal(found, expected, world, [ours.w, ours.p], [theirs.w, theirs.p])
            way(ours, i), way(theirs, i)


READERS = {
    "gather": lambda w, world: synk.gather(w, nd_up=1),
    "get_value": lambda w, world: synk.get_value((world.root + 1) % world.n, w),
    "in_sync": lambda w, world: synk.in_sync(w),
    "reduce": lambda w, world: synk.reduce(w, op="sum", in_place=False),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("size", SIZES)
def test_what_is_read_in_between_is_news_as_before(world, size, read):
    """Changes reach all ranks, even if a collective reads the variable before the next call."""
    ours = Program(SIZES[size], synk.function, L.quick, exact=True)
    theirs = Program(SIZES[size], L.function, L.quick)
    synk.distribute()
    for i, way in enumerate(WAYS, 1):
        for times in (1, 2):  # immediately, and after the value has been moved
            way(ours, i), way(theirs, i)
            for _ in range(times):
                read(ours.w, world)
        found, expected = call(ours.f, ROWS), call(theirs.f, ROWS)
        assert_equal(found, expected, world, [ours.w, ours.p], [theirs.w, theirs.p])


def test_two_sessions(make_world):
    """Changes between sessions take effect, too, as do changes to arrays borrowed in an earlier session."""
    ours = Program(SIZES["vector"], synk.function, L.quick, exact=True)
    theirs = Program(SIZES["vector"], L.function, L.quick)
    for i in range(3):
        world = make_world("threads", 3, 1, engine=NAME)
        for way in (write_into_what_was_set, write_into_what_was_lent, call_a_serial_function, set_value):
            if i or way is not call_a_serial_function:
                way(ours, i), way(theirs, i)
                assert_equal(ours.f(ROWS), theirs.f(ROWS), world, [ours.w, ours.p], [theirs.w, theirs.p])
        synk.close()
        ours.kept = theirs.kept = None
        set_borrowed(ours, i), set_borrowed(theirs, i)


def test_arrays_that_variables_were_made_of(make_world):
    """Changes to arrays passed to ``shared(value, borrow=True)`` take effect, even if two variables share an array."""
    world = make_world("fork", 2, engine=NAME)
    x, one, whole = T.dvector("x"), np.ones(3), np.zeros(6)
    a, b = (L.shared(one, name, borrow=True) for name in "ab")
    c = L.shared(whole[2:4], "c", borrow=True)
    f = synk.function([x], x.sum() + a.sum() + 10 * b.sum() + 100 * c.sum(), exact=True, mode=L.quick)
    assert f(np.ones(2)) == 35
    for i in range(1, 4):
        one[0] += 1
        whole[2] -= i
        assert f(np.ones(2)) == 2 + 11 * (3 + i) - 100 * i * (i + 1) / 2
        assert a.get_value(borrow=True) is one and c.get_value()[0] == whole[2]
    a.set_value(np.zeros(3))
    one[...] = 5
    assert f(np.ones(2)) == 2 + 10 * 15 - 600
    assert [value.tolist() for value in world.values(b)] == [[5.0] * 3] * 2


def test_what_is_only_read_is_not_compared_for_ever(make_world):
    session = make_world("threads", 2, engine=NAME).session
    x, w = T.dvector("x"), L.shared(np.ones(3), "w")
    f = synk.function([x], x.sum() + w.sum(), exact=True, mode=L.quick)
    f(np.ones(2))
    (entry,) = [entry for entry in session.context.registry.shareds.values() if entry.reference() is w]
    for read in (lambda: w.get_value(), lambda: w.get_value(borrow=True).sum(), lambda: w.container.value[0]):
        read()
        f(np.ones(2))
        assert entry.borrowed is None and entry.known is entry.cell[0]
    held = w.get_value(borrow=True)[1:]
    f(np.ones(2))
    assert entry.borrowed is not None
    held[...] = 7
    assert f(np.ones(2)) == 2 + 15
    del held
    f(np.ones(2))
    assert entry.borrowed is None and entry.known is entry.cell[0]
    w.set_value(np.zeros(3))
    assert f(np.ones(2)) == 2 and entry.borrowed is None


def test_steps_of_a_program_that_is_checked(world, monkeypatch):
    """With ``check=True``, the first steps are tried as calls and undone; the program's earlier changes are kept."""
    monkeypatch.setattr(PROGRAM, "check", True)
    ours = Program(SIZES["vector"], synk.function, L.quick, exact=True, updates=updating_itself)
    theirs = Program(SIZES["vector"], L.function, L.quick, updates=updating_itself)
    ours.f(ROWS), theirs.f(ROWS)
    for i in range(3):
        set_value(ours, i + 3), set_value(theirs, i + 3)
        found, expected = steps(ours.f, ROWS), steps(theirs.f, ROWS)
        assert_equal(found, expected, world, [ours.w, ours.p], [theirs.w, theirs.p])


@pytest.mark.parametrize("exact", [True, False])
def test_values_that_could_not_be_given_are_given_with_the_next_call(make_world, monkeypatch, exact):
    """Large values, random states and inputs' values that a failed call did not deliver are sent with the next call."""
    world = make_world("threads", 3, 1, engine=NAME)
    run, fails = SendValues.run, [True]

    def failing(command, context):
        if fails[0] and context.rank == 2:
            raise ValueError("on purpose")
        run(command, context)

    monkeypatch.setattr(SendValues, "run", failing)
    x, w = T.dvector("x"), L.shared(np.zeros(2000), "w")
    f = synk.function([x], x.sum() + w.sum(), exact=exact, mode=L.quick)
    if not exact:
        if NAME != "theano":
            pytest.skip("functions of PyTensor keep no values of inputs")
        total = T.dscalar("total")
        kept = L.In(total, value=0.0, update=total + 1)
        f = synk.function([x], x.sum() * 0 + total, bcast_inputs=[kept], exact=False, mode=L.quick)
    f(np.ones(3))
    if exact:
        w.set_value(np.ones(2000))
    else:
        f["total"] = 7.0
    for _ in range(2):
        with reports(synk.WorkerError, "on purpose"):
            f(np.ones(3))
    fails[0] = False
    assert f(np.ones(3)) == (2003 if exact else 7)
    if exact:
        assert [value.sum() for value in world.values(w)] == [2000] * 3


#: Ways to set a value so that nothing but the variable refers to it.
REPLACING = (
    set_value,
    set_borrowed,
    set_what_is_there,
    set_zero,
    set_a_clone,
    set_in_a_thread,
    write_into_the_container,
)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_new_small_values_that_nobody_else_holds_need_no_general_look(make_world, monkeypatch, way, size):
    """`FunctionVariables.news_of_few` handles them without the general check, which handles all other changes."""
    world, general = make_world("threads", 2, 0, engine=NAME), []
    right = function_module.changed
    monkeypatch.setattr(function_module, "changed", lambda *args: general.append(1) or right(*args))
    ours = Program(SIZES[size], synk.function, L.quick, exact=True)
    theirs = Program(SIZES[size], L.function, L.quick)
    ours.f(ROWS), theirs.f(ROWS)
    del general[:]
    way(ours, 2), way(theirs, 2)
    assert_equal(ours.f(ROWS), theirs.f(ROWS), world, [ours.w, ours.p], [theirs.w, theirs.p])
    assert bool(general) is not (size != "large" and way in REPLACING)
    assert_equal(ours.f(ROWS), theirs.f(ROWS), world, [ours.w, ours.p], [theirs.w, theirs.p])
