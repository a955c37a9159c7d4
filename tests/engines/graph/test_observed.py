"""Changes that a program makes to shared variables, in any way, are reported to the observer of their storage.

Modules: `synkhronos.engines.observer`.
"""

import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
from library import NAME, L, T

import synkhronos  # noqa: F401, prepares the import of Theano
from synkhronos.engines.observer import ValueObserver, observe, observer_of

pytestmark = getattr(pytest.mark, NAME)
ENGINE = L.engine


class Seen(ValueObserver):
    """Observer that records the events reported to it."""

    def __init__(self, storage):
        self.told = []
        observe(storage, self)

    def lent(self):
        self.told.append("lent")

    def written(self):
        self.told.append("written")

    def updated(self):
        self.told.append("updated")

    def since(self):
        told, self.told = self.told, []
        return told


@pytest.fixture
def w():
    return L.shared(np.zeros(3), "w")


@pytest.fixture
def seen(w):
    return Seen(ENGINE.storage(w))


def test_reads_and_writes(w, seen):
    for act, told in (
        (lambda: w.get_value(), []),
        (lambda: w.get_value(borrow=True), ["lent"]),
        (lambda: w.get_value(True, True), ["lent"]),
        (lambda: w.set_value(np.ones(3)), ["written"]),
        (lambda: w.set_value(np.ones(3), True), ["written"]),
        (lambda: w.set_value(new_value=np.ones(3), borrow=True), ["written"]),
        (lambda: w.set_value(w.get_value(borrow=True), borrow=True), ["lent", "written"]),
        (lambda: w.clone().set_value(np.ones(3)), ["written"]),
        (lambda: w.container.value, ["lent"]),
        (lambda: w.container.data, ["lent"]),
        (lambda: setattr(w.container, "value", np.ones(3)), ["written"]),
        (lambda: setattr(w.container, "data", np.ones(3)), ["written"]),
        (lambda: w.zero(), ["lent", "written"]),
        (lambda: w.zero(borrow=True), ["lent"]),
        (lambda: ENGINE.put(w, np.ones(3)), []),
    ):
        act()
        assert seen.since() == told
    with pytest.raises((TypeError, ValueError)):
        w.set_value("no array")
    assert seen.since() == []


@pytest.mark.parametrize("mode", ["slow", "quick"])
def test_functions(mode, w, seen):
    x, n = T.dscalar("x"), T.dscalar("n")
    other = L.shared(0.0)
    f = L.function([x], w.sum() * x, updates=[(other, other + x)], mode=getattr(L, mode))
    g = L.function([n], w * n, updates=[(w, w + n)], mode=getattr(L, mode))
    lending = L.function([], [L.Out(w, borrow=True), w + 1], mode=getattr(L, mode))
    f(1.0)
    assert seen.since() == []
    g(2.0)
    assert set(seen.since()) == {"updated"}
    if NAME == "theano":  # Theano's functions can be indexed
        g[n] = 1.0
        assert seen.since() == []
        g[w] = np.ones(3)
        assert seen.since() == ["written"]
    lending()
    assert seen.since() == ["lent"]


def test_a_function_that_fails_may_have_updated(w, seen):
    x = T.dvector("x")
    f = L.function([x], updates=[(w, w + x)], mode=L.quick)
    with pytest.raises(ValueError):
        f(np.ones(5))
    assert "updated" in seen.since()


def test_what_ranks_call_is_not_reported(w, seen):
    x = T.dscalar("x")
    f = ENGINE.compile([x], w.sum() * x, [(w, w + x)], None, mode=L.quick)
    assert ENGINE.call(f, [1.0])[0] == 0 and seen.since() == []
    assert ENGINE.call(f, [1.0])[0] == 3 and seen.since() == []
    f(1.0)  # called by the program
    assert set(seen.since()) == {"updated"}
    again = pickle.loads(pickle.dumps(f.input_storage[1]))
    assert type(again) is type(w.container) and again.value.tolist() == w.get_value().tolist()


def test_threads_do_not_hide_each_other(w, seen):
    """A value that one thread sets is reported, even while another thread is calling a function."""
    go, done = threading.Event(), threading.Event()

    @L.as_op(itypes=[T.dvector], otypes=[T.dvector])
    def waiting(x):
        go.set()
        assert done.wait(10)
        return x + 1

    f = ENGINE.compile([], [], [(w, waiting(w))], None, mode=L.slow)
    thread = threading.Thread(target=lambda: ENGINE.call(f, []))
    thread.start()
    assert go.wait(10)
    w.set_value(np.full(3, 2.0))
    assert seen.since() == ["written"]
    done.set()
    thread.join()
    assert seen.since() == []


def test_an_observer_that_stands_in_for_get_and_set(w):
    class Doubled(ValueObserver):
        stands_in = True

        def get(self, get, borrow):
            return get() * 2, borrow

        def put(self, put, value, borrow):
            put(value / 2 if not borrow else value)

    observer = Doubled()
    observe(ENGINE.storage(w), observer)
    w.set_value(np.full(3, 6.0))
    assert w.container.storage[0].tolist() == [3.0] * 3
    value, borrow = w.get_value()
    assert value.tolist() == [6.0] * 3 and not borrow and w.get_value(borrow=True)[1]
    w.set_value(new_value=np.ones(3), borrow=True)
    assert w.container.storage[0].tolist() == [1.0] * 3
    del observer
    assert observer_of(ENGINE.storage(w)) is None and w.get_value().tolist() == [1.0] * 3


def test_an_observer_goes_with_whoever_holds_it(w, seen):
    assert observer_of(ENGINE.storage(w)) is seen
    other = Seen(ENGINE.storage(w))
    w.set_value(np.ones(3))
    assert other.since() == ["written"] and seen.since() == []


PROGRAM = """
import numpy as np
import synkhronos.engines.theano.import_fixes  # as the tests import it
import {name} as library
{tensor}
w = library.shared(np.zeros(3), "w")
f = library.function([], updates=[(w, w + 1)], mode={mode})
f()
import synkhronos as synk
from synkhronos.engines import get
from synkhronos.engines.observer import ValueObserver, observe
engine = get("{name}")
told = []
class Seen(ValueObserver):
    def updated(self):
        told.append("updated")
seen = Seen()
observe(engine.storage(w), seen)
f()
assert told and set(told) == {{"updated"}}, told
"""


def test_functions_that_were_built_before_the_import():
    mode = "'FAST_COMPILE'" if NAME == "theano" else "library.compile.mode.Mode(linker='py', optimizer=None)"
    program = PROGRAM.format(name=NAME, tensor="", mode=mode)
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr


def test_which_arrays_a_call_may_overwrite(w):
    """These are copied before the call, if other ranks use the same memory; an update may leave the old array as it is.

    The called function shows what happened to the old arrays.
    """
    x, v, m = T.dvector("x"), L.shared(np.zeros(3), "v"), L.shared(np.zeros((3, 3)), "m")

    @L.as_op(itypes=[T.dvector], otypes=[T.dvector])
    def opaque(x):
        return x + 1

    for updates, outputs, written in (
        ([(w, opaque(w))], [], []),
        ([(w, opaque(w)), (v, opaque(v) + x)], [], []),
        ([(w, w * 2 + x)], [], [w]),
        ([(m, T.set_subtensor(m[1], x))], [], [m]),
        ([(m, T.set_subtensor(m.T[1, :2], x[:2]).T), (w, opaque(v))], [], [m]),
        ([(w, v), (v, w)], [], [w, v]),
        ([(w, opaque(x))], [L.Out(v[1:], borrow=True)], [v]),
        ([(w, opaque(x))], [v[1:]], []),
    ):
        f = ENGINE.compile([x], outputs, updates, None, on_unused_input="ignore", mode=L.full)
        assert set(ENGINE.written(f)) == set(written), updates
        olds = {each: each.get_value(borrow=True) for each in (w, v, m)}
        for number, old in enumerate(olds.values()):
            old[...] = number + 1
        before = {each: old.copy() for each, old in olds.items()}
        ENGINE.call(f, [np.ones(3)])
        for each in olds:
            assert each in written or np.array_equal(olds[each], before[each]), updates
