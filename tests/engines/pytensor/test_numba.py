"""PyTensor's default linker, Numba: ranks compile before the first call, in order, and without messages.

Modules: `numba_operations`.
"""

import logging
import warnings

import numpy as np
import pytest
from calls import Recorder, record

from synkhronos.errors import WorkerDied
from synkhronos.reductions import ReduceOp

pytestmark = pytest.mark.pytensor
pytensor = pytest.importorskip("pytensor")
pt = pytest.importorskip("pytensor.tensor")
pytest.importorskip("numba")

from synkhronos.engines.pytensor import numba_operations  # noqa: E402
from synkhronos.engines.pytensor.engine import ENGINE  # noqa: E402

NUMBA = pytensor.compile.mode.get_mode("NUMBA")
X = np.array([[1.0, 2.0], [3.0, 5.0], [-1.0, 0.5]])


def all_reduce(x, op="avg"):
    return ENGINE.all_reduce([x], ReduceOp(op))[0]


def on_ranks(inputs, outputs, updates=()):
    return ENGINE.variant(ENGINE.snapshot(inputs, outputs, list(updates), None, mode=NUMBA), False, [])


def test_no_warnings_and_the_order_of_the_program():
    x, w = pt.matrix("x"), pytensor.shared(np.ones(2), "w")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        f = on_ranks([x], [all_reduce(x, "sum"), all_reduce(all_reduce(x[0], "max") * 3)], [(w, all_reduce(w, "min"))])
        results, recorder = record(ENGINE, f, X)
    assert recorder.numbers == [0, 1, 2, 3]
    for result, truth in zip(results, [2 * X + 1, 2 * (2 * X[0] + 2) * 3 + 3, [6, 6]]):
        np.testing.assert_allclose(result, truth, 1e-14)


@pytest.mark.parametrize(
    "error",
    [lambda: WorkerDied("rank 1 died", 1, pid=5, exitcode=-9, updated=["w"]), lambda: KeyboardInterrupt("^C")],
    ids=["WorkerDied", "KeyboardInterrupt"],
)
def test_errors_come_out_as_they_are(error):
    error, cause, x = error(), ValueError("cause"), pt.matrix("x")
    f = on_ranks([x], [all_reduce(x, "sum")])

    class Failing(Recorder):
        def all_reduce(self, number, op, arrays):
            raise error from cause

    with pytest.raises(type(error)) as caught:
        with Failing():
            ENGINE.call(f, [X])
    assert caught.value is error and error.__cause__ is cause
    np.testing.assert_allclose(record(ENGINE, f, X)[0][0], 2 * X + 1)


def test_warming_up_compiles_and_computes_nothing(caplog):
    w = pytensor.shared(np.random.default_rng(1), "state")
    after, drawn = pt.random.normal(size=(2,), rng=w, return_next_rng=True)
    f = ENGINE.compile([], [drawn], [(w, after)], None, mode=NUMBA)
    with caplog.at_level(logging.INFO, "synkhronos"):
        ENGINE.warm_up(f)
    (signature,) = f.vm.jit_fn.signatures
    np.testing.assert_array_equal(ENGINE.call(f, [])[0], np.random.default_rng(1).normal(size=2))
    assert f.vm.jit_fn.signatures == [signature]


def test_what_another_version_has_compiled_is_not_taken(monkeypatch):
    x = pt.matrix("x")
    node = all_reduce(x, "sum").owner
    before = numba_operations.funcify(node.op, node)[1]
    assert numba_operations.funcify(node.op, node)[1] == before
    monkeypatch.setattr(numba_operations, "SOURCE", "another")
    assert numba_operations.funcify(node.op, node)[1] != before


def test_the_same_sum_in_two_types():
    """Equal sums in two types are compiled separately; PyTensor 3.3 would use the same compiled code for both."""
    x, k = pt.matrix("x", dtype="float32"), pt.lvector("k")
    chosen = x[pt.arange(x.shape[0]), k]
    for dtype in ("float32", "float64", "float32"):
        f = pytensor.function([x, k], pt.sum(chosen, dtype=dtype, acc_dtype="float64"), mode=NUMBA)
        found = f(X.astype("float32"), np.array([1, 0, 1]))
        assert found.dtype == dtype and found == 5.5
