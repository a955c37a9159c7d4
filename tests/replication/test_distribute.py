"""Functions and shared variables are replicated on the ranks, keep their values, and are freed when dropped.

Modules: `command`, `replicator`.
"""

import gc
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
from refusals import reports
from worlds import DEVICE, ENGINES, FEWER_WORLDS, INSTALLED, Tables

import synkhronos as synk
from synkhronos.runtime.command import Command

pytestmark = FEWER_WORLDS

ROOT = str(Path(__file__).parents[2])
ROWS = np.arange(6.0)


def run_program(tmp_path, text, *options, **environment):
    """Run a program in a new process; return its output."""
    (tmp_path / "program.py").write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, *options, "program.py"],
        cwd=str(tmp_path),
        universal_newlines=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=100,
        env=dict(os.environ, PYTHONPATH=ROOT, **environment),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def tables(world):
    gc.collect()
    world.session.run(Tables())  # this command sends the list of dropped objects
    return [entry[:2] for entry in world.session.run(Tables())]


# -- time of distribution ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", ["threads", "fork"])
def test_built_before_fork_after_fork_and_after_distribute(make_world, numpy_words, launcher):
    synk.close()
    x, w = numpy_words.variable("x"), numpy_words.shared(np.ones(()), "w")
    functions = [synk.function([x], (numpy_words.sum(x * w), "sum"))]
    make_world(launcher, 2)
    functions.append(synk.function([x], (numpy_words.sum(x * w * 2), "sum"), updates=[(w, w + 1)]))
    synk.distribute()
    functions.append(synk.function([x], (numpy_words.sum(x * w * 3), "sum")))
    assert [f(ROWS) for f in functions] == [15, 30, 90]
    synk.distribute()
    synk.distribute()
    assert [f(ROWS) for f in functions] == [30, 60, 135]


@pytest.mark.slow
def test_forked_again_with_the_masters_values(make_world, words_of):
    for launcher, engine in [("threads", "numpy"), *(("fork", engine) for engine in INSTALLED)]:
        words = words_of(engine)
        x, w = words.variable("x"), words.shared(np.zeros(()), "w")
        f = words.function([x], (x * 0 + w, "gather"), updates=[(w, w + 1)])
        data = synk.data(ROWS)
        for n, root in ((2, 0), (3, 1), (1, 0), (2, 1)):
            world = make_world(launcher, n, root, engine)
            before = float(w.get_value())
            assert f(data).tolist() == [before] * 6
            synk.distribute()
            world.set_values(w, [100.0 * rank for rank in range(n)])
            assert f(ROWS).tolist() == sum(([100.0 * rank] * (6 // n) for rank in range(n)), [])
            synk.close()
            assert w.get_value() == 100 * root + 1  # the master's own value is still usable
            assert f.as_theano(ROWS)[0] == 100 * root + 1
            w.set_value(np.array(float(n)))


# -- shared variables ----------------------------------------------------------------------------------------------


def test_values_of_ranks_survive_other_functions(world, words):
    x, w = words.variable("x"), world.shared(np.zeros(2), "w")
    world.set_values(w, [[rank, np.nan] for rank in range(world.n)])
    f = words.function([x], updates=[(w, w + 10)])
    synk.distribute()
    f(np.ones(world.n))
    g = words.function([x], (w, "gather"))
    expected = np.stack([[rank + 10, np.nan] for rank in range(world.n)])
    np.testing.assert_array_equal(g(np.ones(world.n)).reshape(-1, 2), expected)
    np.testing.assert_array_equal(np.stack(world.values(w)), expected)


def test_values_survive_a_function_that_is_built_again(world, words):
    """Values survive if the old function is collected before the new one is sent, as in a notebook."""
    x, w = words.variable("x"), words.shared(np.zeros(()), "w")
    f = words.function([x], updates=[(w, w + 1)])
    f(np.ones(world.n))
    world.set_values(w, np.arange(world.n) * 5.0)
    for _ in range(3):
        f = words.function([x], updates=[(w, w + 1)])
        gc.collect()
        synk.distribute()
        f(np.ones(world.n))
    assert [float(value) for value in world.values(w)] == [rank * 5.0 + 3 for rank in range(world.n)]


def doubled(array):
    return np.hstack([array, array])


def test_update_that_is_not_in_place_and_has_another_shape(world, words):
    x, w = words.variable("x"), world.shared(np.ones(2), "w")
    grown = words.apply(doubled, w) if world.engine_name == "numpy" else words.T.concatenate([w, w])
    grow = words.function([x], updates=[(w, grown * 2)])
    grow(np.ones(world.n))
    total = words.function([x], [(words.sum(w), "gather"), (w, "avg")])
    sums, average = total(np.ones(world.n))
    assert sums.tolist() == [8] * world.n and average.tolist() == [2] * 4
    grow(np.ones(world.n))
    sums, average = total(np.ones(world.n))
    assert sums.tolist() == [32] * world.n and average.tolist() == [4] * 8


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_matrix_product_into_itself(make_world, words_of, engine):
    from library import T

    words = words_of(engine)
    for launcher in ("threads", "fork"):
        world = make_world(launcher, 2, engine=engine)
        start = np.array([[1.0, 2.0], [0.5, -1.0]])
        W = words.shared(start.copy(), "W")
        x = words.variable("x")
        f = words.function([x], updates=[(W, T.dot(W, W))])
        synk.distribute()
        world.set_values(W, [start, -2 * start])
        f(np.ones(2))
        g = words.function([x], (W, "gather"), updates=[(W, T.dot(W, W))])
        f(np.ones(2))
        result = g(np.ones(2)).reshape(2, 2, 2)
        for value, first in zip(result, (start, -2 * start)):
            np.testing.assert_allclose(value, np.linalg.matrix_power(first, 4), rtol=1e-13)


def test_swap_updates(world, words):
    x = words.variable("x")
    a, b = world.shared(np.zeros(2), "a"), world.shared(np.ones(2), "b")
    world.set_values(a, [np.full(2, 10.0 + rank) for rank in range(world.n)])
    swap = words.function([x], updates=[(a, b), (b, a)])
    show = words.function([x], [(a, "gather"), (b, "gather")])
    rows, ones = np.ones(world.n), [1.0] * 2 * world.n
    tens = np.repeat(10.0 + np.arange(world.n), 2).tolist()
    for i in range(4):
        swap(rows)
        results = [value.tolist() for value in show(rows)]
        assert results == ([ones, tens] if i % 2 == 0 else [tens, ones])
        show = words.function([x], [(a, "gather"), (b, "gather")])  # distributed while the arrays are swapped


def test_borrowed_values(world, words):
    x, w = words.variable("x"), words.shared(np.zeros(3), "w")
    f = words.function([x], (w, "gather"), updates=[(w, w + 1)])
    mine = np.full(3, 5.0)
    w.set_value(mine, borrow=True)
    rows = np.ones(world.n)
    assert f(rows).tolist() == [5] * 3 * world.n
    w.set_value(np.full(3, 7.0), borrow=True)  # on the master only, as documented
    expected = np.full((world.n, 3), 6.0)
    expected[world.root] = 7
    np.testing.assert_array_equal(f(rows), expected.ravel())
    g = words.function([x], (w * 1, "gather"))
    np.testing.assert_array_equal(g(rows), expected.ravel() + 1)


def test_clones_share_their_storage_on_all_ranks(world, words):
    x, w = words.variable("x"), words.shared(np.zeros(()), "w")
    clone = w.clone()
    f = words.function([x], (x * 0 + clone, "gather"))
    g = words.function([x], updates=[(w, w + 1)])
    rows = np.ones(world.n)
    assert f(rows).tolist() == [0] * world.n
    g(rows)
    assert f(rows).tolist() == [1] * world.n
    del f
    gc.collect()
    g(rows)
    f = words.function([x], (x * 0 + clone, "gather"))
    assert f(rows).tolist() == [2] * world.n
    del g
    gc.collect()
    f(rows)
    g = words.function([x], updates=[(w, w + 1)])
    g(rows)
    assert f(rows).tolist() == [3] * world.n


def test_default_updates(world, words):
    x, w = words.variable("x"), words.shared(np.zeros(()), "w")
    w.default_update = w + 1
    f = words.function([x], (x * 0 + w, "gather"))
    assert f.get_shared() == [w]
    rows = np.ones(world.n)
    assert f(rows).tolist() == [0] * world.n and f(rows).tolist() == [1] * world.n
    g = words.function([x], (x * 0 + w, "gather"), no_default_updates=True)
    assert g(rows).tolist() == [2] * world.n and g(rows).tolist() == [2] * world.n


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_variables_that_are_no_arrays_are_replicated(make_world, words_of, engine):
    import scipy.sparse
    from library import T

    sparse, words = pytest.importorskip(f"{engine}.sparse"), words_of(engine)
    for launcher in ("threads", "fork"):
        make_world(launcher, 2, engine=engine)
        s = sparse.shared(scipy.sparse.csr_matrix(np.diag([1.0, 2.0])), "s")
        x = words.variable("x", 2)
        random = T.shared_randomstreams.RandomStreams(1)
        f = words.function([x], [(sparse.dot(x, s), "gather"), (random.uniform((2,)), "avg")])
        product, noise = f(np.ones((4, 2)))
        assert product.tolist() == [[1, 2]] * 4 and 0 < noise.min() < noise.max() < 1
        assert not np.array_equal(f(np.ones((4, 2)))[1], noise)


# -- dropped objects -----------------------------------------------------------------------------------------------


def test_dropped_functions_free_the_ranks_memory(world, words):
    x = words.variable("x")
    a, b = words.shared(np.zeros(()), "a"), words.shared(np.zeros(100000), "b")
    f = words.function([x], (words.sum(x * a), "sum"))
    before = tables(world)
    f(ROWS)
    assert tables(world) == [(functions + 1, shareds + 1) for functions, shareds in before]
    g = words.function([x], (words.sum(x * a) + words.sum(b), "sum"))
    g(ROWS)
    assert tables(world) == [(functions + 2, shareds + 2) for functions, shareds in before]
    used = [entry[2] for entry in world.session.run(Tables())]
    del g
    assert tables(world) == [(functions + 1, shareds + 2) for functions, shareds in before]  # the program still has b
    del b
    gc.collect()
    assert tables(world) == [(functions + 1, shareds + 1) for functions, shareds in before]
    freed = [old - entry[2] for old, entry in zip(used, world.session.run(Tables()))]
    is_common = world.session.context.transport.common.is_open  # b is in the root's memory alone
    assert all(n >= 800000 for rank, n in enumerate(freed) if is_common == (rank == world.root))
    assert f(ROWS) == 0
    del f, a
    gc.collect()
    assert tables(world) == before


def test_a_variable_without_functions_keeps_its_values(world, words):
    x, w, other = words.variable("x"), words.shared(np.zeros(()), "w"), words.shared(np.zeros(()), "other")
    keep = words.function([x], (words.sum(x * other), "sum"))

    def step():
        f = words.function([x], updates=[(w, w + words.sum(x))])
        f(ROWS**2)

    step()
    expected = [value.copy() for value in world.values(w)]
    assert len({float(value) for value in expected}) == world.n  # each rank has its own value
    gc.collect()
    keep(ROWS)  # this command sends the list of dropped objects
    np.testing.assert_array_equal(world.values(w), expected)
    np.testing.assert_array_equal(synk.gather(w), expected)
    read = words.function([], (w * 1, "sum"))
    np.testing.assert_allclose(read(), sum(expected))


def test_variables_of_clones_go_with_the_last_of_them(world, words):
    x, w = words.variable("x"), words.shared(np.zeros(()), "w")
    before = tables(world)
    f = words.function([x], (words.sum(x * w), "sum"))
    f(ROWS)
    g = words.function([x], (words.sum(x * w.clone()), "sum"))
    g(ROWS)
    assert tables(world) == [(functions + 2, shareds + 2) for functions, shareds in before]
    del f  # the clone still uses the storage
    del w
    gc.collect()
    assert tables(world) == [(functions + 1, shareds + 2) for functions, shareds in before]
    del g
    gc.collect()
    assert tables(world) == before


# -- objects that cannot be sent -----------------------------------------------------------------------------------


def test_a_function_that_cannot_travel(make_world, numpy_words):
    world = make_world("threads", 3)
    x, w = numpy_words.variable("x"), numpy_words.shared(np.ones(1000), "w")
    good = synk.function([x], (numpy_words.sum(x * numpy_words.sum(w)), "sum"), updates=[(w, w + 1)])
    bad = synk.function(
        [x],
        numpy_words.sum(
            numpy_words.apply(lambda a, b: a, x, threading.Lock(), dtype="float64", ndim=1) * numpy_words.sum(w)
        ),
        name="bad",
    )
    used = world.session.context.pool.used
    for _ in range(3):
        with reports(TypeError, "function 'bad'", "constant", "<unlocked"):
            bad(ROWS)
    assert tables(world) == [(0, 0)] * 3
    assert world.session.context.pool.used <= used + 8192 + 2 * 48000  # (w itself has moved there)
    with reports(TypeError, "function 'bad'"):
        synk.distribute()
    (of_rank,) = set(tables(world))  # distribute() has sent the valid function, and any that another test left alive
    assert of_rank[0] >= 1 and of_rank[1] >= 1
    assert good(ROWS) == 15000
    synk.all_reduce(w)
    assert bad.as_theano(ROWS) == 15.0 * 2000
    assert good(ROWS) == 30000
    del bad
    synk.distribute()


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_a_function_of_a_library_that_cannot_travel(make_world, words_of, engine):
    from library import L

    words = words_of(engine)
    make_world("fork", 2, engine=engine)
    x, w = words.variable("x"), words.shared(2.0, "w")
    good = words.function([x], ((x * w).sum(), "sum"))
    lock = threading.Lock()
    printed = L.Print("noisy", global_fn=lambda op, value: lock)(x * w)
    bad = words.function([x], printed.sum(), name="bad")
    with reports(TypeError, "function 'bad'", "operation", "Print{", "_thread.lock"):
        bad(ROWS)
    assert good(ROWS) == 30
    synk.all_reduce(w)
    assert bad.as_theano(ROWS) == 30 and good(ROWS) == 30


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_the_mode_travels(make_world, words_of, engine):
    from library import L, T

    words = words_of(engine)
    make_world("fork", 2, engine=engine)
    x = words.variable("x")
    f = words.function([x], (T.log(x), "gather"), mode=L.NanGuardMode(optimizer=None))
    assert f(np.ones(4)).tolist() == [0] * 4
    with reports(synk.WorkerError, "AssertionError", "NaN detected", rank=1):
        f([1.0, 1.0, 1.0, -1.0])
    assert f(np.ones(3)).tolist() == [0] * 3


class Picky:
    """A function that can be sent to two ranks, but loaded by one only."""

    received = 0

    def __call__(self, value):
        return value

    def __reduce__(self):
        return _receive, ()


def _receive():
    Picky.received += 1
    if Picky.received % 2 == 0:
        raise OSError("not here")
    return Picky()


def test_a_function_that_one_rank_cannot_load(make_world, numpy_words):
    world = make_world("threads", 3)
    x, w = numpy_words.variable("x"), numpy_words.shared(np.ones(100000), "w")
    picky = numpy_words.apply(Picky(), x, dtype="float64", ndim=1)
    bad = synk.function([x], (picky * numpy_words.sum(w), "avg"))
    for _ in range(2):
        with reports(synk.WorkerError, "OSError: not here", command="distribute"):
            bad(ROWS)
    assert tables(world) == [(0, 0)] * 3  # one rank had loaded the function
    gc.collect()  # frees the error's traceback
    assert all(entry[2] < 400000 for entry in world.session.run(Tables())[1:])
    good = synk.function([x], (numpy_words.sum(x) * numpy_words.sum(w), "sum"))
    assert good(ROWS) == 15 * 100000


# -- large constants -----------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ENGINES[1:])
def test_3000_chained_operations(make_world, words_of, engine):
    from library import IS_THEANO, L, T

    words = words_of(engine)
    make_world("fork", 2, engine=engine)
    x = words.variable("x")
    y = x
    for i in range(3000):
        y = y + 1 if i % 2 else T.tanh(y)
    mode = L.Mode(L.VMLinker(use_cloop=IS_THEANO, c_thunks=False), None)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20000)  # the library itself needs this limit to compile the graph
    try:
        f = words.function([x], (y, "gather"), mode=mode)
    finally:
        sys.setrecursionlimit(limit)
    truth = ROWS
    for i in range(3000):
        truth = truth + 1 if i % 2 else np.tanh(truth)
    np.testing.assert_allclose(f(ROWS), truth)
    assert sys.getrecursionlimit() == limit


class Constants(Command):
    """Return, for each large constant of this rank's functions, whether it is in the master's pool."""

    def __init__(self, pool):
        self.pool = pool

    def run(self, context):
        window = context.pools._mappings[self.pool]
        begin = np.ndarray((1,), np.uint8, window).__array_interface__["data"][0]
        return [
            0 <= constant.__array_interface__["data"][0] - begin < len(window)
            for engine, compiled in context.registry.functions.values()
            if engine is not None
            for constant in engine.constants(compiled)
            if constant.nbytes >= 1 << 16
        ]


@pytest.mark.parametrize("launcher", ["threads", "fork"])
@pytest.mark.parametrize("engine", ENGINES[1:])
def test_large_constants_are_shared_by_the_ranks(make_world, words_of, engine, launcher):
    from library import T

    words = words_of(engine)
    world = make_world(launcher, 3)
    if DEVICE:
        pytest.skip("constants lie on the devices")
    pool = world.session.pool
    values, x = np.random.RandomState(0).rand(300, 100), T.lvector("x")
    large, small = T.constant(values), T.constant(values[:5])
    gc.collect()
    used = pool.used
    f = words.function(
        [x],
        [
            (large[x].sum(), "sum"),
            (T.dot(small, large.T).sum(), "sum"),
            (T.set_subtensor(large[:2], x[0]).sum(), "sum"),
            (large, None),
        ],
    )
    g = words.function([x], (large[x].max(), "max"))
    rows = np.arange(0, 300, 7)  # 43 of them
    division = rows[:15], rows[15:29], rows[29:]
    for _ in range(2):
        np.testing.assert_allclose(f(rows)[0], values[rows].sum())
        np.testing.assert_allclose(f(rows)[1], 3 * np.dot(values[:5], values.T).sum())
        np.testing.assert_allclose(f(rows)[2], 3 * values[2:].sum() + 200 * sum(part[0] for part in division))
        result = f(rows)[3]
        np.testing.assert_array_equal(result, values)
        result[:] = -1  # the result belongs to the user
        np.testing.assert_allclose(g(rows), values[rows].max())
    of_ranks = world.session.run(Constants(pool.ident))
    for rank, found in enumerate(of_ranks):
        if rank != world.session.root:
            assert len(found) >= 2 and all(found)
    assert pool.used - used < 2.5 * values.nbytes  # one copy for both, and a transpose that Theano computes first
    del f
    synk.distribute()
    np.testing.assert_allclose(g(rows), values[rows].max())
    del g
    gc.collect()
    tables(world)
    assert pool.used - used < values.nbytes


@pytest.mark.thorough
@pytest.mark.theano
def test_hundreds_of_data_and_variables_with_few_descriptors(tmp_path):
    assert (
        run_program(
            tmp_path,
            """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        import numpy as np
        import synkhronos as synk
        from synkhronos.testing import numpy_engine as engine

        synk.fork(2)
        inputs = [engine.variable("x%d" % i, "float64", 1) for i in range(300)]
        shareds = [engine.shared(np.full(i % 7 + 1, 1.0), "w%d" % i) for i in range(300)]
        total = engine.sum(inputs[0])
        for x in inputs[1:]:
            total = total + engine.sum(x)
        f = synk.function(inputs, (total, "sum"), updates=[(w, w + i) for i, w in enumerate(shareds)])
        data = [synk.data(np.full(4, float(i))) for i in range(300)]
        print(float(f(*data)), float(f(*data, batch=[0, 1, 2])))
        synk.all_reduce(shareds)
        print(sum(float(w.get_value()[0]) for w in shareds))
        """,
        )
        == "179400.0 134550.0\n90000.0\n"
    )


# -- modules that the ranks must find ------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.theano
def test_operations_defined_in_main_after_fork(tmp_path):
    assert (
        run_program(
            tmp_path,
            """
        import numpy as np
        import synkhronos as synk
        import theano, theano.tensor as T

        synk.fork(2)
        FACTOR = 3

        def helper(value):
            return value * FACTOR

        class Times(theano.Op):
            __props__ = ()

            def make_node(self, x):
                return theano.Apply(self, [x], [x.type()])

            def perform(self, node, inputs, outputs):
                outputs[0][0] = helper(inputs[0])

        @theano.compile.ops.as_op(itypes=[T.dvector], otypes=[T.dvector])
        def plus(x):
            return x + FACTOR

        x = T.dvector("x")
        mode = theano.Mode(linker="py", optimizer=None)
        f = synk.function([x], (plus(Times()(x)), "gather"), mode=mode)
        print(f([1, 2, 3, 4]).tolist())
        """,
            "-m",
            "synkhronos",
        )
        == "[6.0, 9.0, 12.0, 15.0]\n"
    )


@pytest.mark.slow
def test_sys_path_and_working_directory_reach_the_ranks(tmp_path):
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "lately.py").write_text("import os\ndef here(x): return x * 0 + len(os.getcwd())\n")
    long = tmp_path / ("d" * 40)
    long.mkdir()
    out = run_program(
        tmp_path,
        """
        import os, sys
        import numpy as np
        import synkhronos as synk
        from synkhronos.testing import numpy_engine as engine

        synk.fork(2)
        x = engine.variable("x", "float64", 1)
        synk.function([x], (engine.sum(x), "sum"))([1.0, 2.0])
        sys.path.insert(0, os.path.abspath("late"))
        os.chdir("d" * 40)
        import lately
        f = synk.function([x], (engine.apply(lately.here, x), "gather"))
        print(f([1.0, 2.0]).tolist() == [float(len(os.getcwd()))] * 2)
        """,
    )
    assert out == "True\n"


def test_a_function_keeps_nothing_of_the_sessions_that_had_it(numpy_words):
    synk.close()
    x, w = numpy_words.variable("x"), numpy_words.shared(np.ones(()), "w")
    f = synk.function([x], (numpy_words.sum(x * w), "sum"))
    from synkhronos.program.program import PROGRAM

    def sessions(count):
        for _ in range(count):
            PROGRAM.open(2, 0, launcher="threads")
            assert f(ROWS) == 15
            synk.close()
        gc.collect()
        return len(gc.get_objects())

    before = sessions(5)
    assert sessions(40) - before < 40  # less than one object per session
