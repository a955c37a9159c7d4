"""Features of PyTensor alone: linkers, random generators, sending of functions. Expected values come from PyTensor.

Modules: `jit`, `pickling_repairs`, `repairs`.
"""

import copy
import pickle

import numpy as np
import pytest
from refusals import refuses

from synkhronos.errors import ArgumentTypeError

pytestmark = pytest.mark.pytensor
pytensor = pytest.importorskip("pytensor")
pt = pytest.importorskip("pytensor.tensor")

from pytensor.compile.mode import Mode  # noqa: E402
from pytensor.scalar.basic import add  # noqa: E402
from pytensor.tensor.elemwise import Elemwise  # noqa: E402

from synkhronos.engines import random_states  # noqa: E402
from synkhronos.engines.pytensor import jit  # noqa: E402
from synkhronos.engines.pytensor.engine import ENGINE  # noqa: E402

FAST = Mode("py", "fast_run")


@pytest.fixture
def master(pytensor_master):
    return pytensor_master


def compile(inputs, outputs, updates=(), givens=None, mode=FAST, **kwargs):
    return ENGINE.compile(inputs, outputs, list(updates), givens, mode=mode, **kwargs)


# -- functions ---------------------------------------------------------------------------------------------------------


def test_a_reduction_that_has_been_computed_travels(master):
    """A reduction can be sent after Python code has stored a function in its op, which other functions share."""
    w = pt.vector("w")
    gradient = pt.grad(pt.prod(w), w)
    f = compile([w], gradient)
    ENGINE.call(f, [np.zeros(3)])
    master.both(f, [np.array([2.0, 0.0, 3.0])])
    master.both(compile([w], [gradient, w + 1]), [np.array([2.0, 5.0, 3.0])])


def test_dicts_of_outputs_are_refused():
    x = pt.vector("x")
    with refuses(TypeError, "outputs", got="a dict", hint="dicts"):
        compile([x], {"a": x})


def test_trust_input_travels(master):
    x = pt.vector("x")
    f = compile([x], x + 1)
    ENGINE.set_trust_input(f, True)
    number = master.both(f, [np.ones(2)])
    assert ENGINE.trust_input(f) and master.peer.evaluate("trusts_input", number)


@pytest.mark.parametrize("delete_updates", [False, True])
def test_copies(delete_updates):
    x, w, v = pt.vector("x"), pytensor.shared(np.ones(2), "w"), pytensor.shared(np.full(2, 5.0), "v")
    keywords = dict(mode=Mode("py", None), name="f")  # in place, PyTensor would nevertheless update w and warn
    f = ENGINE.compile([x], x * w, [(w, w + x)], None, **keywords)
    snapshot = ENGINE.snapshot([x], x * w, [(w, w + x)], None, **keywords)
    copied, copied_snapshot = ENGINE.copy(f, snapshot, swap={w: v}, delete_updates=delete_updates)
    for compiled in (copied, ENGINE.variant(copied_snapshot, False, [])):
        v.set_value(np.full(2, 5.0))
        for step in range(2):
            truth = 5.0 if delete_updates else 5.0 + 2 * step
            np.testing.assert_array_equal(ENGINE.call(compiled, [np.full(2, 2.0)])[0], [2 * truth] * 2)
    np.testing.assert_array_equal(w.get_value(), [1, 1])
    with refuses(ArgumentTypeError, "swap"):
        ENGINE.copy(f, snapshot, swap={w: pytensor.shared(np.ones((2, 2)), "m")})


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("linker", ["py", "vm"])
def test_what_can_only_be_read_is_not_written_to(linker):
    value, w, x = np.ones(3), pytensor.shared(np.zeros(3), "w"), pt.vector("x")
    value.flags.writeable = False
    f = compile([x], x.sum(), [(w, w + x)], mode=Mode(linker, "fast_run"))
    ENGINE.put(w, value)
    for _ in range(2):
        ENGINE.call(f, [np.ones(3)])
    np.testing.assert_array_equal(value, np.ones(3))
    np.testing.assert_array_equal(w.get_value(), np.full(3, 3.0))


def arrays():
    """Return arrays with and without the memory layout that Numba expects."""
    whole = np.arange(24.0).reshape(4, 6)
    readonly = whole.copy()
    readonly.flags.writeable = False
    unaligned = np.zeros(whole.nbytes + 1, np.uint8)[1:].view("f8").reshape(4, 6)
    unaligned[:] = whole
    return [
        whole,
        whole.T,
        whole[::2],
        whole[:, 1:3],
        np.asfortranarray(whole),
        readonly,
        unaligned,
        whole[0:0],
        whole[1],
    ]


@pytest.mark.parametrize("i", range(9))
def test_arguments_are_laid_out(i):
    value = arrays()[i]
    found = jit.laid_out(value)
    assert found.flags.carray and found.dtype == value.dtype
    np.testing.assert_array_equal(found, value)
    assert (found is value) == value.flags.carray
    if value.flags.c_contiguous and value.flags.aligned and value.size:
        assert np.shares_memory(found, value)  # large files are not copied


def test_other_values_stay():
    for value in (None, 1.5, "x", np.random.default_rng(1)):
        assert jit.laid_out(value) is value


# -- random generators -------------------------------------------------------------------------------------------------


def test_generators_that_cannot_jump():
    state = pytensor.shared(np.random.Generator(np.random.SFC64(1)), "state")
    with refuses(ArgumentTypeError, "random state state", got="SFC64", hint="default_rng"):
        ENGINE.jumped(state, ENGINE.get(state), 1)
    assert ENGINE.jumped(state, ENGINE.get(state), 0).random() == np.random.Generator(np.random.SFC64(1)).random()


@pytest.mark.parametrize("kind", ["PCG64", "PCG64DXSM", "Philox", "MT19937"])
@pytest.mark.parametrize("jumps", [0, 1, 3])
def test_jumps_are_numpys(kind, jumps):
    bits = getattr(np.random, kind)(7)
    state = np.random.Generator(bits)
    truth = np.random.Generator(bits.jumped(jumps) if jumps else copy.deepcopy(bits)).random(5)
    jumped = random_states.jumped_generator(state, jumps)
    assert jumped.bit_generator is not bits
    np.testing.assert_array_equal(jumped.random(5), truth)
    np.testing.assert_array_equal(state.random(5), np.random.Generator(getattr(np.random, kind)(7)).random(5))


# -- transfer to other processes ---------------------------------------------------------------------------------------


def test_random_generators_travel(master):
    state = pytensor.shared(np.random.default_rng(3), "state")
    after, drawn = pt.random.normal(size=(2,), rng=state, return_next_rng=True)
    f = compile([], drawn, [(state, after)])
    number = master.send(f)
    truth = np.random.default_rng(3)
    for _ in range(2):
        expected = truth.normal(size=2)
        np.testing.assert_array_equal(master.peer.call(number, [])[0], expected)
        np.testing.assert_array_equal(ENGINE.call(f, [])[0], expected)
    assert pickle.loads(pickle.dumps(ENGINE.get(state))).random() == truth.random()


@pytest.mark.parametrize("part", ["real", "imag"])
def test_parts_of_complex_numbers_may_be_written_into(part):
    x, w = pt.dvector("x"), pytensor.shared(np.arange(3.0), "w")
    y = pt.tanh(getattr(w, part)) - x
    f = pytensor.function([x], y, mode=pytensor.compile.mode.Mode("py", "fast_run"))
    assert any(node.op.destroy_map for node in f.maker.fgraph.apply_nodes)
    for _ in range(2):
        np.testing.assert_array_equal(f(np.ones(3)), np.tanh(getattr(np.arange(3.0), part)) - 1)


def test_a_bool_is_inverted_in_a_fused_operation():
    mask, x = pt.vector("mask", dtype="bool"), pt.dvector("x")
    f = pytensor.function([mask, x], pt.sqr(~mask) + x * 2, mode=FAST)
    assert len(f.maker.fgraph.apply_nodes) == 1
    np.testing.assert_array_equal(f(np.array([True, False]), np.zeros(2)), [0, 1])


def test_read_only_windows_may_be_overwritten():
    """In-place ops accept read-only views, as in pytensor-ml with one row, and leave them unchanged."""
    x = pt.dvector("x")
    given = np.arange(3.0)
    given.flags.writeable = False
    outputs = [[None]]
    inplace = Elemwise(add, inplace_pattern={0: 0})
    inplace.perform(inplace.make_node(x, x), [given, np.ones(3)], outputs)
    np.testing.assert_array_equal(outputs[0][0], [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(given, np.arange(3.0))
