"""Sessions on JAX's devices: start, end, refusals. Run by test_mesh.py."""

from types import SimpleNamespace

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from refusals import refuses, reports

import synkhronos as synk
from synkhronos.mesh import devices as of_jax
from synkhronos.mesh import mesh as of_mesh
from synkhronos.program.program import PROGRAM

N = jax.local_device_count()


@pytest.fixture(autouse=True)
def closed():
    yield
    synk.close()


def test_all_devices_and_some():
    assert synk.fork(devices="jax") == N == synk.size()
    synk.close()
    with synk.fork(2, devices="jax") as n:
        assert n == 2 and synk.is_forked()
    assert not synk.is_forked()
    chosen = jax.local_devices()[-1:0:-1]
    assert synk.fork(devices=chosen) == N - 1
    w = pytensor.shared(np.ones(2), "w")
    f = synk.function([], updates=[(w, w + 1)], exact=True)
    f()
    entries = PROGRAM.session.context.registry.shareds.values()
    assert [entry.cell[0].devices() for entry in entries if entry.reference() is w] == [{chosen[0]}]


def test_functions_and_variables_pass_from_session_to_session():
    x, w = pt.dvector("x"), pytensor.shared(0.0, "w")
    f = synk.function([x], x.mean(), updates=[(w, w + x.sum())], exact=True)
    for k, n in enumerate((2, 1, N)):
        with synk.fork(n, devices="jax"):
            assert f(np.arange(6.0)) == 2.5
            np.testing.assert_array_equal(synk.gather(w), [15.0 * (k + 1)] * n)
    assert w.get_value() == 45


def test_arguments_of_fork():
    with refuses(ValueError, argument="n_ranks", expected=str(N), got=str(N + 1), hint="JAX_NUM_CPU_DEVICES"):
        synk.fork(N + 1, devices="jax")
    with refuses(ValueError, argument="heal", got="1"):
        synk.fork(devices="jax", heal=1)
    with refuses(ValueError, argument="use_gpu", got="True"):
        synk.fork(devices="jax", use_gpu=True)
    with refuses(ValueError, argument="shard_updates", got="True"):
        synk.fork(devices="jax", shard_updates=True)
    with refuses(ValueError, argument="master_rank", got=str(N)):
        synk.fork(devices="jax", master_rank=N)
    with refuses(ValueError, argument="devices[1]", got="again"):
        synk.fork(devices=[jax.local_devices()[0]] * 2)
    with refuses(TypeError, argument="devices[1]", got="'cpu'"):
        synk.fork(devices=[jax.local_devices()[0], "cpu"])
    with refuses(ValueError, argument="n_ranks", got="1"):
        synk.fork(1, devices=jax.local_devices()[:2])
    assert not synk.is_forked()


def test_a_hundred_forced_devices(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=100")
    with refuses(ValueError, argument="n_ranks", got="100", hint="n_ranks"):
        synk.fork(devices="jax")
    with synk.fork(2, devices="jax") as n:
        assert n == 2


def test_no_processes_after_jax_began():
    with synk.fork(2, devices="jax"):
        pass
    with reports(synk.StateError, "JAX", "fork"):
        synk.fork(2, use_gpu=False)
    assert synk.fork(1, use_gpu=False) == 1  # no process is forked


def test_a_missing_library(monkeypatch):
    monkeypatch.setattr(of_jax.importlib.util, "find_spec", lambda name: None)
    with reports(synk.SynkhronosError, "jax"):
        synk.fork(devices="jax")


def test_functions_of_another_engine():
    from synkhronos.testing import numpy_engine

    v = numpy_engine.variable("v", "float64", 1)
    before = synk.function([v], numpy_engine.mean(v))
    synk.fork(2, devices="jax")
    for build_or_call in (lambda: synk.function([v], numpy_engine.mean(v)), lambda: before([1.0, 2.0])):
        with refuses(TypeError, expected="PyTensor", got="numpy"):
            build_or_call()


class Opaque(pytensor.graph.op.Op):
    """An operation without a conversion for JAX."""

    __props__ = ()

    def make_node(self, x):
        return pytensor.graph.basic.Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0].copy()


def test_operations_that_jax_lacks():
    v = pt.dvector("v")
    before = synk.function([v], (Opaque()(v).sum(), "sum"), name="before", mode="FAST_COMPILE")
    synk.fork(2, devices="jax")
    with refuses(ValueError, argument="function late", got="Opaque"):
        synk.function([v], (Opaque()(v).sum(), "sum"), name="late", mode="FAST_COMPILE")
    with refuses(ValueError, argument="function before", got="Opaque"):
        before(np.ones(4))


def test_lengths_that_depend_on_values():
    v = pt.dvector("v")
    synk.fork(2, devices="jax")
    for wanted, lacking in ((pt.unique(v), "Unique"), ((v > 0).nonzero()[0], "Nonzero")):
        with refuses(ValueError, argument="function f", got=lacking):
            synk.function([v], (wanted, None), name="f", mode="FAST_COMPILE")


def test_types_that_jax_lacks():
    sparse = pytensor.sparse.csr_matrix("s")
    synk.fork(2, devices="jax")
    with refuses(TypeError, argument="function f", expected="dense", got="s of type"):
        synk.function([], (sparse, None), [sparse], name="f")


def test_ranges_up_to_lengths_that_are_not_constant():
    v, i = pt.dvector("v"), pt.lscalar("i")
    synk.fork(2, devices="jax")
    with refuses(ValueError, argument="function f", expected="operations", got="ARange"):
        synk.function([v], (pt.arange(i).sum() + v.sum(), "sum"), [i], name="f", mode="FAST_COMPILE")


def test_collectives_in_loops_with_uneven_rows():
    x = pt.dvector("x")
    loop = pytensor.scan(
        lambda h: synk.ops.all_reduce(h * x.sum(), "sum"), None, [pt.constant(np.array(1.0))], n_steps=2
    )[0]
    f = synk.function([x], (loop[-1], None), name="f", mode="FAST_COMPILE")
    synk.fork(2, devices="jax")
    with refuses(ValueError, argument="the arguments", expected="evenly"):
        f(np.ones(5))


def test_devices_of_two_platforms_and_several_processes(monkeypatch):
    device = type("Device", (), {"platform": "cpu"})
    with refuses(ValueError, argument="devices[1]", expected="one platform", got="gpu"):
        of_jax._checked(SimpleNamespace(Device=device), [device(), type("Gpu", (device,), {"platform": "gpu"})()], None)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with refuses(ValueError, argument="devices", got="2 processes"):
        of_jax.choose("jax", 2)


def test_several_hosts():
    with refuses(ValueError, argument="devices", expected="several hosts", got="JAX's devices"):
        of_jax.launcher_of("jax", 2, None, 0, True, 0)


def test_variables_and_functions_of_theano():
    """Theano and PyTensor are never installed together: another engine of that name is refused in the same way."""

    class Theano:
        name = "theano"

    synk.fork(2, devices="jax")
    with refuses(TypeError, argument="engine", expected="PyTensor", got="theano"):
        PROGRAM.session.launcher.engine(Theano())


def test_distributions_that_jax_lacks():
    rng = pytensor.shared(np.random.default_rng(0), "rng")
    number = pt.random.hypergeometric(5, 6, 3, rng=rng)
    synk.fork(2, devices="jax")
    with refuses(ValueError, argument="function f", got="hypergeometric"):
        synk.function([], (number, None), name="f")


def test_shapes_that_depend_on_values():
    v, i, w = pt.dvector("v"), pt.lscalar("i"), pytensor.shared(0.0, "w")
    f = synk.function([v, i], (v[:i].sum(), "sum"), updates=[(w, w + 1)], name="f")
    synk.fork(2, devices="jax")
    with refuses(ValueError, argument="function f", expected="shapes", got="static"):
        f(np.ones(4), 1)
    np.testing.assert_array_equal(synk.gather(w), [0.0, 0.0])


def test_errors_of_the_graph_change_nothing():
    x, y, w = pt.dmatrix("x"), pt.dvector("y"), pytensor.shared(np.zeros(3), "w")
    f = synk.function([x, y], ((x @ y).sum(), "sum"), updates=[(w, w + x.sum(0))], exact=False, name="f")
    synk.fork(2, devices="jax")
    with reports(TypeError, "incompatible shapes") as caught:
        f(np.ones((4, 2)), np.ones(4))  # a rank's x has 2 columns, and its y has 2 rows, but w has 3 elements
    assert any("Add" in note and "function f" in note for note in caught.value.__notes__)
    np.testing.assert_array_equal(synk.gather(w), np.zeros((2, 3)))


def test_memory_that_runs_out(monkeypatch):
    from synkhronos.mesh.program import MeshProgram

    def fail(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes\nmore")

    x = pt.dvector("x")
    f = synk.function([x], x.sum(), name="f")
    synk.fork(2, devices="jax")
    assert f(np.ones(4)) == 4
    monkeypatch.setattr(MeshProgram, "together", fail)
    with reports(MemoryError, "rank 0", "function f", "num_slices=2"):
        f(np.ones(4))
    monkeypatch.undo()
    assert f(np.ones(4)) == 4


def test_32_bits():
    x, w = pt.dvector("x"), pytensor.shared(0.0, "w")
    f = synk.function([x], x.mean(), updates=[(w, w + x.sum())], exact=True)
    synk.fork(devices="jax")
    for enabled in (True, False, True):
        with jax.enable_x64(enabled):
            if enabled:
                assert f(np.arange(6.0)) == 2.5
            else:
                with reports(synk.StateError, "32 bits", "jax_enable_x64"):
                    f(np.arange(6.0))
    assert w.get_value() == 30


def test_one_compilation_for_all_ranks():
    from synkhronos.engines.pytensor.jax_graph import JaxGraph

    traced, evaluate = [], JaxGraph.evaluate
    x, w = pt.dvector("x"), pytensor.shared(0.0, "w")
    f = synk.function([x], x.mean(), updates=[(w, w + x.sum())], exact=True)
    synk.fork(devices="jax")
    try:
        JaxGraph.evaluate = lambda *args: traced.append(1) or evaluate(*args)
        for _ in range(5):
            f(np.arange(2.0 * N))
    finally:
        JaxGraph.evaluate = evaluate
    assert len(traced) == 1


def test_arrays_that_never_change_are_put_once(monkeypatch):
    from synkhronos.mesh.mesh import JaxMesh

    x, table = pt.dvector("x"), pytensor.shared(np.arange(1000.0), "table")
    f = synk.function([x], (x * table.sum()).sum())
    synk.fork(2, devices="jax")
    given = np.ones(4)
    assert f(given) == 4 * 499500
    seen, spread = [], JaxMesh.spread
    monkeypatch.setattr(JaxMesh, "spread", lambda *args: seen.append(spread(*args)) or seen[-1])
    assert f(given) == 4 * 499500
    assert [one.size for one in seen] == [4]


def test_rows_are_copied_once(monkeypatch):
    """JAX uses the library's copy of an array, which the program cannot change, if the ranks' parts are aligned."""
    copies, joined = [], of_mesh._joined
    monkeypatch.setattr(of_mesh, "_joined", lambda of_ranks: copies.append(joined(of_ranks)) or copies[-1])
    mesh = of_mesh.JaxMesh(jax.local_devices())
    for given in (np.arange(1001.0)[1:], np.arange(6, dtype="int8").reshape(2, 3).T, np.float32(2)):
        whole = mesh.spread([given + rank for rank in range(N)])
        np.testing.assert_array_equal(whole, np.concatenate([np.atleast_1d(given + rank) for rank in range(N)]))
        aligned = [rank for rank in range(N) if rank * given.nbytes % of_mesh.ALIGNMENT == 0]
        assert aligned == list(range(N)) or given.nbytes < of_mesh.ALIGNMENT
        found = [whole.addressable_data(rank).unsafe_buffer_pointer() for rank in aligned]
        assert found == [copies[-1].ctypes.data + rank * given.nbytes for rank in aligned]
