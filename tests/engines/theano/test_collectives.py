"""Collectives inside Theano's functions, where PyTensor has no counterpart; see `tests.engines.graph`."""

import numpy as np
import pytest
from calls import record
from peer import prepare_theano

prepare_theano()
theano = pytest.importorskip("theano")
import theano.tensor as T  # noqa: E402
from theano.sandbox.rng_mrg import MRG_RandomStreams  # noqa: E402

import synkhronos as synk  # noqa: E402
from synkhronos.engines.base import CollectiveDependence  # noqa: E402
from synkhronos.engines.theano.engine import ENGINE  # noqa: E402

pytestmark = pytest.mark.theano
all_reduce = synk.ops.all_reduce
X = np.array([[1.0, 2.0], [3.0, 5.0], [-1.0, 0.5]])


def snapshot(inputs, outputs, updates=(), **kwargs):
    return ENGINE.snapshot(inputs, outputs, list(updates), None, mode=theano.Mode("py", "fast_run"), **kwargs)


@pytest.mark.thorough
def test_test_values_and_profiles():
    x, w = T.dmatrix("x"), theano.shared(np.ones(2), "w")
    x.tag.test_value = X
    with theano.change_flags(compute_test_value="raise"):
        y = all_reduce(x[0] * 2)
        np.testing.assert_array_equal(y.tag.test_value, X[0] * 2)
        loop, _ = theano.scan(lambda s, h: h + all_reduce(s), sequences=[x], outputs_info=[w])
        kept = snapshot([x], [y, loop[-1]], [(w, w + y)])
        f = ENGINE.variant(kept, False, [])
    assert record(ENGINE, f, X)[1].numbers == [0, 1, 1, 1]
    profiled = ENGINE.variant(snapshot([x], y, [(w, w + y)], profile=True), False, [])
    results, _ = record(ENGINE, profiled, X)
    np.testing.assert_allclose(results, [4 * X[0] + 1, 4 * X[0] + 2], 1e-13)
    assert profiled.profile.fct_callcount == 1


def test_random_states_of_mrg_are_returned():
    w = theano.shared(np.zeros(3), "w")
    drawn = MRG_RandomStreams(5).uniform((3,), dtype="float64")
    kept = snapshot([], drawn, [(w, all_reduce(drawn))])
    f = ENGINE.variant(kept, False, [])
    (one, new, after), _ = record(ENGINE, f)
    (again, _, _), _ = record(ENGINE, f)
    np.testing.assert_array_equal(one, again)
    np.testing.assert_allclose(new, 2 * one + 1, 1e-13)
    state = ENGINE.updated_in(kept)[1]
    assert after.shape == state.get_value().shape and not np.array_equal(after, state.get_value())


def test_affine_update_rules():
    lasagne = pytest.importorskip("lasagne")
    x, w = T.dmatrix("x"), theano.shared(np.ones(2), "w")
    (gradient,) = all_reduce(theano.grad(T.sqr(x * w).sum(axis=1).mean(), [w]))
    rules = lasagne.updates
    for rule, degree in (
        (rules.sgd, CollectiveDependence.AFFINE),
        (rules.momentum, CollectiveDependence.AFFINE),
        (rules.nesterov_momentum, CollectiveDependence.AFFINE),
        (rules.adagrad, CollectiveDependence.OTHER),
        (rules.adam, CollectiveDependence.OTHER),
    ):
        updates = rule([gradient], [w], 0.1)
        found = ENGINE.collectives(snapshot([x], [], updates.items()), {x: 0})
        changed = dict(zip(updates, found.updates))
        assert changed[w] == degree, rule
        assert any(found.replicated_updates)
    decayed = rules.sgd([gradient + 0.01 * w], [w], 0.1)
    assert ENGINE.collectives(snapshot([x], [], decayed.items()), {x: 0}).updates == [CollectiveDependence.AFFINE]
    constrained = rules.sgd(rules.total_norm_constraint([gradient], 1.0), [w], 0.1)
    assert ENGINE.collectives(snapshot([x], [], constrained.items()), {x: 0}).updates == [CollectiveDependence.OTHER]
