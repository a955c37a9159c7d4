"""Variants of a function's graph: when they are compiled, sent and kept. Expected values come from NumPy."""

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from library import IS_THEANO, NAME, L, T, executed
from refusals import refuses
from worlds import FEWER_WORLDS, INSTALLED, Tables

import synkhronos as synk
from synkhronos.program.program import PROGRAM

pytestmark = [*FEWER_WORLDS, pytest.mark.slow]

of_the_library = getattr(pytest.mark, NAME)
ROWS = np.arange(7.0) + 1


@pytest.fixture(params=[("threads", 3), ("fork", 2)], ids=lambda param: "{}-{}".format(*param))
def two(request, make_world):
    """Return a world of threads, and then one of processes, for the engine under test."""
    return make_world(*request.param, engine=NAME)


@pytest.fixture
def graphs(words_of):
    """Return the vocabulary for programs of the engine under test."""
    return words_of(NAME)


@pytest.fixture
def compilations(monkeypatch):
    """Return a list of the names of functions that Theano compiles on the master, in order, without drafts."""
    pfunc = pytest.importorskip("theano.compile.pfunc")
    from synkhronos.engines.theano.operations import Draft

    names, original = [], pfunc.orig_function

    def counted(inputs, outputs, *args, name=None, **kwargs):
        given = outputs if isinstance(outputs, list) else [outputs]
        nodes = [getattr(one, "variable", one).owner for one in given]
        if not any(node is not None and isinstance(node.op, Draft) for node in nodes):
            names.append(name)
        return original(inputs, outputs, *args, name=name, **kwargs)

    monkeypatch.setattr(pfunc, "orig_function", counted)
    return names


# -- time of compilation -------------------------------------------------------------------------------------------


@pytest.mark.theano
def test_one_graph_at_function_and_others_when_a_call_needs_them(two, theano_words, compilations):
    x = theano_words.variable("x")
    s, w = two.shared(ROWS, "s"), two.shared(np.zeros(()), "w")
    del compilations[:]
    f = theano_words.function(
        [x], [(x.sum() + s.sum(), "sum"), (s, "gather")], updates=[(w, w + 1.0)], name="f", sliceable_shareds=[s]
    )
    assert compilations == ["f"]
    synk.distribute()
    f(ROWS)
    f(ROWS, batch=[0, 1, 2])
    f(ROWS, output_subset=[0])
    f.as_theano(ROWS)
    f(ROWS, num_slices=1, batch_s=None)
    with refuses(ValueError, "num_slices", "at least 1", "0"):
        f(ROWS, num_slices=0)
    with refuses(ValueError, "batch_s", got="index 7"):
        f(ROWS, batch_s=[7])
    assert compilations == ["f"]
    for _ in range(2):
        assert f(ROWS, batch_s=[0, 1])[0] == 28 + 3 * two.n
        assert compilations == ["f", "f (s as input)"]
        f(ROWS, batch_s=[slice(1, 3)] * two.n)
    for k in (2, 3, 2):
        for batch_s in ([0, 1], slice(0, 2)):
            assert f(ROWS[: 2 * two.n], output_subset=[0], batch_s=batch_s, num_slices=k)[0] == (
                ROWS[: 2 * two.n].sum() + 3 * two.n
            )
            assert compilations == ["f", "f (s as input)", "f (sliced, s as input)"]
    f(ROWS)
    synk.distribute()
    synk.close()
    two.session = PROGRAM.open(2, 1, launcher="threads")
    assert f(ROWS, batch_s=[0, 1])[0] == 34 and f(ROWS[:4], batch_s=[0, 1], num_slices=2)[0] == 16
    assert len(compilations) == 3  # distributed again, but not compiled again


@pytest.mark.theano
@pytest.mark.parametrize("exact", [False, True])
def test_a_function_with_collectives_has_no_serial_function_until_it_is_needed(two, theano_words, compilations, exact):
    x, w = theano_words.variable("x"), two.shared(np.zeros(()), "w")
    total = x.sum() if exact else synk.ops.all_reduce(x.sum(), "sum")
    del compilations[:]
    f = theano_words.function([x], total, updates=[(w, w + total)], name="f", exact=exact)
    assert f(ROWS) == ROWS.sum() and w.get_value() == ROWS.sum()
    assert compilations == ["f"]
    assert f.as_theano(ROWS) == ROWS.sum() and w.get_value() == 2 * ROWS.sum()
    assert compilations == ["f", "f"]


def test_variants_are_compiled_from_the_function_as_it_was(world, words):
    x, y = words.variable("x"), words.variable("y")
    w, v, s = world.shared(np.zeros(()), "w"), world.shared(np.zeros(()), "v"), world.shared(ROWS, "s")
    w.default_update = w + 1.0
    updates, givens, outputs = [(v, v + 10.0)], [(y, s)], [(words.sum(x), "sum"), (y + 0 * w, "gather")]
    f = words.function([x], outputs, updates=updates, givens=givens, sliceable_shareds=[s])
    g = words.function([x], outputs, updates=updates, givens=givens, sliceable_shareds=[s])
    w.default_update = w + 100.0
    updates[0] = (v, v + 1000.0)
    givens[0] = (y, s * 100)
    del outputs[:]
    total, rows = f(ROWS, batch_s=[1, 0])
    assert total == 28 and rows.tolist() == [2, 1] * world.n
    w.default_update = None
    total, rows = g(np.ones(2 * world.n), batch_s=[1, 0], num_slices=2)
    assert total == 2 * world.n and rows.tolist() == [2, 1] * world.n
    assert [float(value) for value in world.values(w)] == [2] * world.n
    assert [float(value) for value in world.values(v)] == [20] * world.n


def test_forked_again_with_other_ranks(make_world, words_of):
    for launcher, engine in [("threads", "numpy"), *(("fork", engine) for engine in INSTALLED)]:
        words = words_of(engine)
        x, w, s = words.variable("x"), words.shared(np.zeros(()), "w"), words.shared(ROWS, "s")
        f = words.function([x], (words.sum(x), "sum"), updates=[(w, w + words.mean(s))], sliceable_shareds=[s])
        for n, root in ((2, 0), (3, 1), (1, 0)):
            world = make_world(launcher, n, root, engine)
            before = float(w.get_value())
            assert f(ROWS[: 2 * n], batch_s=[0, 2], num_slices=2) == ROWS[: 2 * n].sum()
            assert f(ROWS, batch_s=[1, 3]) == 28 == f(ROWS)
            np.testing.assert_allclose([float(value) for value in world.values(w)], [before + 2 + 3 + 4] * n)


def test_what_a_dropped_function_had_goes_with_it(make_world, numpy_words):
    for launcher in ("threads", "fork"):
        world = make_world(launcher, 2)

        def held(world=world):
            gc.collect()
            world.session.run(Tables())  # this command sends the list of dropped objects
            return [entry[:2] for entry in world.session.run(Tables())]

        x = numpy_words.variable("x")
        w, s = numpy_words.shared(np.zeros(()), "w"), numpy_words.shared(ROWS, "s")
        f = synk.function([x], (numpy_words.sum(x * s[0]), "sum"), updates=[(w, w + 1)], sliceable_shareds=[s])
        f(ROWS)
        assert held() == [(1, 2)] * 2
        f(ROWS, batch_s=[0])
        f(ROWS[:4], output_subset=[], batch_s=[0, 1], num_slices=2)
        assert held() == [(3, 2)] * 2
        del f, w, s
        assert held() == [(0, 0)] * 2


# -- copies and pickles --------------------------------------------------------------------------------------------


@of_the_library
def test_copies(two, graphs):
    x, w, v = graphs.variable("x"), two.shared(np.zeros(()), "w"), two.shared(np.full((), 50.0), "v")
    s, t = two.shared(ROWS, "s"), two.shared(ROWS * 10, "t")
    f = graphs.function(
        [x],
        [(x.sum() + 0 * w, "sum"), (s + w, "gather")],
        updates=[(w, w + 1.0, "max")],
        name="f",
        sliceable_shareds=[s],
    )
    f(ROWS, batch_s=[0])
    same, still = f.copy(), f.copy(delete_updates=True)
    other = f.copy(swap={w: v, s: t}, name="other")
    for g, base in ((same, 0), (still, 0), (other, 0)):
        assert g.output_modes == ["sum", "gather"]
        for batch_s, k in (([0, 2], 1), ([0, 2], 2), (None, 7 if two.n > 1 else 2)):
            held, data = (v, ROWS * 10) if g is other else (w, ROWS)
            base = float(held.get_value())
            total, rows = g(ROWS, batch_s=batch_s, num_slices=k)
            truth = data[[0, 2]] if batch_s else data
            np.testing.assert_allclose(total, 28)
            np.testing.assert_allclose(rows, np.tile(truth + base, two.n))
            assert [float(value) for value in two.values(held)] == [base + (g is not still)] * two.n
    assert still.update_modes == [] and same.update_modes == other.update_modes == ["max"]


@of_the_library
def test_a_copy_without_updates_is_weighed_by_the_rows_of_shared_data(two, graphs):
    """A training function and its copy without updates weight ranks by their rows of unevenly scattered data."""
    s, w = two.shared(np.zeros(0), "s"), two.shared(np.zeros(()), "w")
    f = graphs.function([], graphs.mean(s), updates=[(w, w + 1.0)], sliceable_shareds=[s])
    synk.scatter(s, ROWS)
    for g in (f, f.copy(delete_updates=True)):
        assert g() == 4 == g(num_slices=2)
    assert [float(value) for value in two.values(w)] == [2] * two.n


@of_the_library
def test_pickled_functions(two, graphs):
    x, w, s = graphs.variable("x"), two.shared(np.zeros(()), "w"), two.shared(ROWS, "s")
    outputs, rows_of, mean_of = {"rows": (s, "gather"), "mean": x.mean()}, *(("rows", "mean") if IS_THEANO else (0, 1))
    f = graphs.function(
        [x], outputs if IS_THEANO else list(outputs.values()), updates=[(w, w + x.mean())], sliceable_shareds=[s]
    )
    f(np.ones(two.n), output_subset=[rows_of], batch_s=[0])
    for again in (pickle.loads(pickle.dumps(f)), copy.deepcopy(f)):
        (own,) = [shared for shared in again.get_shared() if shared.name == "w"]
        assert own is not w and own.get_value() == 1
        assert again(ROWS, output_subset=[rows_of], batch_s=[2, 0])[rows_of].tolist() == [3, 1] * two.n
        rows = np.arange(2.0 * two.n)
        result = again(rows, batch_s=[2, 0], num_slices=2)
        assert result[rows_of].tolist() == [3, 1] * two.n and result[mean_of] == rows.mean()
        np.testing.assert_allclose(
            two.values(own),
            1
            + 2 * np.array([part.mean() for part in np.array_split(rows, two.n)])
            - np.array([part.mean() for part in np.array_split(rows, two.n)])
            + np.array([part.mean() for part in np.array_split(ROWS, two.n)]),
        )
    assert [float(value) for value in two.values(w)] == [1] * two.n  # each rank has its own value


@of_the_library
def test_free_reaches_all_graphs(make_world, graphs):
    world = make_world("threads", 2, engine=NAME)
    x = graphs.variable("x")
    mode = L.Mode(L.VMLinker(use_cloop=False, allow_gc=False), None)
    f = graphs.function([x], ((x * 2).sum() + (x * 3).sum(), "sum"), mode=mode)
    assert f(ROWS, num_slices=2) == 140 == f(ROWS)
    contexts = [world.session.context] + list(world.session.launcher.contexts.values())
    compiled = [
        context.registry.functions[number].reference() for context in contexts for number in context.registry.functions
    ]
    assert len(compiled) == 4

    def kept():
        return [
            sum(
                isinstance(cell[0], np.ndarray) and variable.owner is not None
                for variable, cell in executed(each).storage_map.items()
            )
            for each in compiled
        ]

    assert min(kept()) > 0
    f.free()
    assert max(kept()) == 0 and f(ROWS, num_slices=2) == 140
    synk.close()
    f.free()
    assert max(kept()[:2]) == 0


# -- other features of Theano --------------------------------------------------------------------------------------


@of_the_library
def test_scan_and_ifelse(two, graphs):
    x, w, s = graphs.variable("x"), two.shared(np.full((), 2.0), "w"), two.shared(ROWS, "s")
    sums, _ = L.scan(
        lambda row, total: total * 1 + row * w,
        sequences=x,
        outputs_info=T.constant(np.zeros(())),
        mode=graphs.mode,
    )
    chosen = L.ifelse(T.gt(x[0], 3), s * 2, s - 1)
    f = graphs.function(
        [x], [(sums[-1], "sum"), (chosen, "gather")], updates=[(w, w + 0 * sums[-1], "max")], sliceable_shareds=[s]
    )
    for batch_s, k, rows in (([0, 1], 1, ROWS), ([0, 1], 2, ROWS), (None, 2, ROWS), ([2], 1, -ROWS)):
        total, picked = f(rows, batch_s=batch_s, num_slices=k)
        np.testing.assert_allclose(total, 2 * rows.sum())
        truth = []
        for part in np.array_split(rows, two.n):
            pieces = np.array_split(ROWS if batch_s is None else ROWS[batch_s], k)
            for piece, first in zip(pieces, np.array_split(part, k)):
                truth.append(piece * 2 if first[0] > 3 else piece - 1)
        np.testing.assert_allclose(picked, np.concatenate(truth))
    assert [float(value) for value in two.values(w)] == [2] * two.n


@of_the_library
def test_sparse_inputs_and_sparse_shared_variables(two, graphs):
    sparse = pytest.importorskip("scipy.sparse")

    x, a = graphs.variable("x", 2), L.sparse.csr_matrix("a")
    held = L.sparse.shared(sparse.csr_matrix(np.array([[0.0, 2.0], [3.0, 0.0]])), "held")
    w = two.shared(np.zeros(2), "w")
    dense = L.sparse.structured_dot(held, L.sparse.dot(a, x.T)).T
    f = graphs.function([x], [(dense, "gather"), dense.mean()], bcast_inputs=[a], updates=[(w, w + dense.mean(0))])
    X, A = np.arange(14.0).reshape(7, 2), sparse.csr_matrix(np.array([[1.0, 0.0], [1.0, 5.0]]))
    truth = X @ A.T.toarray() @ held.get_value().T.toarray()
    for k in (1, 2):
        results = f(X, A, num_slices=k)
        np.testing.assert_allclose(results[0], truth)
        np.testing.assert_allclose(results[1], truth.mean())
    np.testing.assert_allclose(two.values(w), [2 * part.mean(0) for part in np.array_split(truth, two.n)])
    g = graphs.function([x], (x.sum(), "sum"), updates=[(held, held * 2.0)])
    with refuses(ValueError, "num_slices", got="2 for a function that updates held, which is not a dense array"):
        g(X, num_slices=2)
    assert g(X) == X.sum() and held.get_value().sum() == 10


@pytest.mark.theano
def test_debug_mode_and_transfer(two, theano_words):
    theano, x = theano_words.theano, theano_words.variable("x")
    s, w = two.shared(ROWS, "s"), two.shared(np.zeros(()), "w")
    for mode in (
        theano.compile.DebugMode(check_c_code=False, optimizer="fast_compile", check_isfinite=False),
        theano_words.mode,
        theano.Mode("py", None),
    ):
        f = theano_words.function(
            [x],
            [(x.transfer("cpu") * 2, "gather"), s.transfer("cpu").mean()],
            mode=mode,
            updates=[(w, (w + x.mean()).transfer("cpu"))],
            sliceable_shareds=[s],
        )
        before = np.array(two.values(w))
        doubled, _ = f(ROWS[: 2 * two.n], batch_s=[0, 1], num_slices=2)
        np.testing.assert_array_equal(doubled, 2 * ROWS[: 2 * two.n])
        doubled, mean = f(ROWS[: 2 * two.n], batch_s=[0, 1])
        np.testing.assert_array_equal(doubled, 2 * ROWS[: 2 * two.n])
        assert mean == 1.5
        np.testing.assert_allclose(
            np.array(two.values(w)) - before, [2 * part.mean() for part in np.array_split(ROWS[: 2 * two.n], two.n)]
        )


@pytest.mark.thorough("fork")
@pytest.mark.theano
def test_the_profile_is_of_all_graphs_and_all_ranks(two, theano_words):
    theano, x, s = theano_words.theano, theano_words.variable("x"), two.shared(ROWS, "s")
    given = theano.compile.ProfileStats(atexit_print=False, message="given")
    for profile in (True, "name", given):
        f = theano_words.function([x], ((x * 2).sum() + 0 * s.sum(), "sum"), profile=profile, sliceable_shareds=[s])
        node = f.maker.fgraph.toposort()[0]
        assert f.profile.fct_callcount == 0 and f.as_theano(ROWS) == 56 and f.profile.fct_callcount == 1
        f(ROWS)
        f([1.0])
        assert f.profile.fct_callcount == 1 + two.n + 1 == f.profile.apply_callcount[node]
        assert f.profile.apply_time[node] >= f.compiled.profile.apply_time[node] > 0
        seconds = f.profile.fct_call_time
        f(ROWS, batch_s=[0])
        f(ROWS[: two.n * 2], batch_s=[0, 1], num_slices=2)
        assert f.profile.fct_callcount == 2 + two.n + two.n + 2 * two.n
        assert f.profile.apply_callcount[node] == two.n + 2  # calls of that graph
        assert sum(f.profile.op_callcount().values()) >= f.profile.fct_callcount
        assert f.profile.fct_call_time > seconds and f.profile.vm_call_time > 0
        shown = io.StringIO()
        f.profile.summary(file=shown)
        assert f"Time in {f.profile.fct_callcount} calls to Function.__call__" in shown.getvalue()
    assert given.fct_callcount == 6  # the master's own part
    if two.launcher == "threads":  # counts are added by the position of the node
        for number in two.session.context.registry.functions:
            here = two.session.context.registry.functions[number].reference()
            for context in two.session.launcher.contexts.values():
                there = context.registry.functions[number].reference()
                assert list(map(str, there.maker.fgraph.toposort())) == list(map(str, here.maker.fgraph.toposort()))
    session = two.session
    synk.close()
    assert session.closed and f.profile.fct_callcount == 6 and f.profile.message == "given"
    assert theano_words.function([x], x.sum()).profile is None


# -- memory --------------------------------------------------------------------------------------------------------

PEAK = """
    import sys
    import synkhronos as synk
    import numpy as np, theano, theano.tensor as T

    def peak():  # (ru_maxrss would include the parent's peak)
        with open("/proc/self/status") as status:
            return int([line for line in status if line.startswith("VmHWM")][0].split()[1])

    k = int(sys.argv[1])
    x = T.dmatrix("x")
    layer = x
    for i in range(3):
        layer = T.exp(T.dot(layer, np.full((64, 64), 1e-3)))
    w = theano.shared(np.ones(64), "w")
    loss = (layer * w).mean()
    synk.fork(2, use_gpu=False)
    mode = theano.Mode(theano.gof.vm.VM_Linker(use_cloop=True, c_thunks=False), "fast_run")
    f = synk.function([x], loss, updates=[(w, w - T.grad(loss, w))], mode=mode)
    f(np.ones((16, 64)), num_slices=k)
    X = synk.data(shape=(120000, 64), dtype="float64")
    X[:] = 0.5
    before = peak()
    result = f(X, num_slices=k)
    print(peak() - before, float(result), float(w.get_value()[0]))
"""


@pytest.mark.thorough
@pytest.mark.theano
def test_peak_memory_falls(tmp_path):
    """Slices lower the master's peak memory; its rows, and each layer of the graph, take 29 MiB."""
    pytest.importorskip("theano")
    (tmp_path / "program.py").write_text(textwrap.dedent(PEAK))
    peaks, results = [], []
    for k in ("1", "10"):
        done = subprocess.run(
            [sys.executable, "program.py", k],
            cwd=str(tmp_path),
            universal_newlines=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=100,
            env=dict(os.environ, PYTHONPATH=str(Path(__file__).parents[2])),
        )
        assert done.returncode == 0, done.stderr
        peak, *values = map(float, done.stdout.split())
        peaks.append(peak / 1024)
        results.append(values)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-12)
    assert peaks[0] > 2 * 29 and peaks[1] < 0.5 * 29, peaks  # (87 and 9 MiB were seen)
