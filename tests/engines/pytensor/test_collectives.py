"""Collectives in PyTensor's graphs that are refused, where Theano has no counterpart; see `tests.engines.graph`.

Modules: `hidden`.
"""

import pytest
from refusals import refuses

import synkhronos as synk
from synkhronos.errors import ArgumentValueError

pytestmark = pytest.mark.pytensor
pytensor = pytest.importorskip("pytensor")
pt = pytest.importorskip("pytensor.tensor")

from pytensor.compile.builders import OpFromGraph  # noqa: E402
from pytensor.compile.mode import Mode  # noqa: E402
from pytensor.graph.replace import vectorize_graph  # noqa: E402
from pytensor.tensor import optimize  # noqa: E402
from pytensor.tensor.blockwise import Blockwise  # noqa: E402

from synkhronos.engines.pytensor.engine import ENGINE  # noqa: E402

all_reduce = synk.ops.all_reduce
PYTHON = Mode("py", "fast_run")


def scan(*args, **kwargs):
    return pytensor.scan(*args, return_updates=False, **kwargs)


def snapshot(inputs, outputs, updates=(), mode=PYTHON, **kwargs):
    return ENGINE.snapshot(inputs, outputs, list(updates), None, mode=mode, on_unused_input="ignore", **kwargs)


def test_what_is_vectorized_or_minimized_is_refused():
    """Collectives in vectorized or minimized functions are refused, because ranks would not compute them together."""
    x, rows, v = pt.dvector("x"), pt.dmatrix("rows"), pt.dscalar("v")
    loss, shard = all_reduce(pt.sqr(x - v).mean()), ENGINE.shard(x * v, 0)
    loop = scan(lambda row: all_reduce(row * v), sequences=[x])
    inner = OpFromGraph([x, v], [loss])(x, v)
    for hidden, op, argument in (
        (vectorize_graph(loss, {x: rows}), "Blockwise{AllReduce{avg}", "all_reduce"),
        (vectorize_graph(shard * 2, {x: rows}), "Blockwise{TakeShare", "shard"),
        (Blockwise(inner.owner.op, signature="(n),()->()")(rows, v), "Blockwise", "all_reduce"),
        (optimize.minimize_scalar(loss, v)[0], "MinimizeScalarOp", "all_reduce"),
        (optimize.minimize_scalar(inner, v)[0], "MinimizeScalarOp", "all_reduce"),
        (optimize.minimize_scalar(loop.sum(), v)[0], "MinimizeScalarOp", "all_reduce"),
        (optimize.minimize_scalar(pt.sqr(shard).mean(), v)[0], "MinimizeScalarOp", "shard"),
        (optimize.root_scalar(loss - 1, v)[0], "RootScalarOp", "all_reduce"),
        (scan(lambda one: vectorize_graph(loss, {x: rows}).sum() + one, [x]), "Blockwise", "all_reduce"),
    ):
        with refuses(ArgumentValueError, argument, got=f"inside {op}"):
            snapshot([x, v, rows], hidden)
    best, _ = optimize.minimize_scalar(pt.sqr(all_reduce(x.mean()) - v), v)  # computed before the collective
    assert len(ENGINE.collectives(snapshot([x, v], [best, all_reduce(best)]), {x: 0}).ops) == 2


def test_linkers_that_may_reorder_are_refused():
    from pytensor.link.jax.linker import JAXLinker

    x, mode = pt.dmatrix("x"), Mode(JAXLinker(), "fast_compile")
    with refuses(ArgumentValueError, argument="mode", got="JAX", hint="leave out"):
        ENGINE.collectives(snapshot([x], all_reduce(x), mode=mode), {x: 0})
    assert ENGINE.collectives(snapshot([x], x * 2, mode=mode), {x: 0}) is None
