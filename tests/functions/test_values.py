"""What the program does to shared variables between calls counts on all ranks of an exact function.

Whichever way it takes: each is tried before calls in all forms, and the truth is the serial function of the engine,
whose variables the program changes in the same way. What functions that are not exact make of it is in
test_changes.py.
"""

import threading

import numpy as np
import pytest
from library import NAME, L, T, lacks

import synkhronos as synk

pytestmark = getattr(pytest.mark, NAME)

#: Small and large values: those that travel with the command, and those that are broadcast.
SIZES = {"scalar": (), "vector": (3,), "large": (7, 400)}


class Program:
    """A program with one shared variable that it changes, and one that its function updates.

    Its function is serial, or of all ranks.
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
    """Two steps; what the serial program returns is what it does."""
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
    """Check outputs, and the values of all ranks, which are the same bits."""
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
        if i % 4:  # and sometimes it does nothing
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
    """The array stays the same, so that nothing but the call itself shows it."""
    world = make_world("fork", 2, engine=NAME)
    x, w = T.dvector("x"), L.shared(np.zeros(5), "w")
    add = L.function([], updates=[(w, w + 1)], mode=compiled)  # before the function of all ranks
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
    with pytest.raises(ValueError, match="total: expected False, because on_step changes a shared variable"):
        f.steps(np.ones(3), n_steps=5, on_step=lambda i, output: rate.set_value(5.0), total=True)
    assert f.steps(np.ones(3), n_steps=1, on_step=lambda i, output: rate.set_value(6.0), total=True) == 15
    assert f(np.ones(3)) == 18
