"""Plans: what does not change from call to call travels once, and what changes is never taken for it."""

import numpy as np
import pytest

import synkhronos as synk
from synkhronos.functions.plan import MAX_PLANS
from synkhronos.program.program import PROGRAM


@pytest.fixture
def sent(make_world, monkeypatch):
    """A session of two ranks, and the sizes of the commands that were sent in it."""
    make_world("threads", 2)
    sizes = []
    send = PROGRAM.session.channel.send
    monkeypatch.setattr(
        PROGRAM.session.channel, "send", lambda number, payload: (sizes.append(len(payload)), send(number, payload))[1]
    )
    return sizes


def test_a_known_plan_is_a_pair_of_numbers(sent):
    theano = pytest.importorskip("theano")
    x = theano.tensor.dvector("x")
    f = synk.function([x], (x.sum(), "sum"))
    data = synk.data(np.arange(100.0))
    for begin in range(0, 60, 20):
        assert f(data, batch=slice(begin, begin + 20)) == np.arange(begin, begin + 20.0).sum()
    assert sent[-1] == sent[-2] < 100 < sent[-3]


def test_plans_are_replaced_and_sent_again(sent):
    theano = pytest.importorskip("theano")
    x = theano.tensor.dvector("x")
    f = synk.function([x], (x.sum(), "sum"))
    data = synk.data(np.arange(100.0))
    for n in list(range(1, MAX_PLANS + 4)) * 2:  # every length is another plan
        assert f(data, batch=n) == np.arange(float(n)).sum()
    data.set_value(np.ones(7))  # another handle under the same name
    assert f(data) == 7
    data[:] = 2
    assert f(data) == 14


def test_a_plan_counts_as_known_after_a_call_without_errors(sent):
    theano = pytest.importorskip("theano")
    x = theano.tensor.dvector("x")
    f = synk.function([x], (x[2], "max"))
    data = synk.data(np.arange(100.0))
    for _ in range(2):
        with pytest.raises(IndexError):
            f(data, batch=4)  # two rows for each rank
    assert sent[-1] == sent[-2] > 100
    assert f(data, batch=6) == 5


def test_values_that_are_no_arrays_are_not_kept(make_world):
    pytest.importorskip("theano")
    sparse = pytest.importorskip("scipy.sparse")
    make_world("fork", 2, engine="theano")
    from theano import sparse as theano_sparse

    s = theano_sparse.csr_matrix("s", "float64")
    f = synk.function([], theano_sparse.sp_sum(s), bcast_inputs=[s])
    for value in (1.0, 2.0):
        assert f(sparse.csr_matrix(np.full((2, 2), value))) == 4 * value
    assert not PROGRAM.session.context.plans
