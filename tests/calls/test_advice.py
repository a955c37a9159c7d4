"""Errors that are caused by an input advise which argument of `function` to list it in."""

import logging

import numpy as np
import pytest
from library import NAME, L, T
from refusals import refuses

import synkhronos as synk
from synkhronos.calls.advice import MAX_TRIALS, advice
from synkhronos.sharding import Shard

pytestmark = getattr(pytest.mark, NAME)

X, Y, Z, idx = T.dmatrix("X"), T.dvector("y"), T.dmatrix("Z"), T.ivector("idx")
W, B = T.dvector("w"), T.dvector("b")
ALL, DATA = L.shared(np.ones((5, 3)), "all"), dict(on_unused_input="ignore", mode=L.quick)
LOSS = T.sqr(T.dot(X, W) - Y).mean()

#: By name: inputs, inputs that are sent whole, an output, and the advice.
REFUSED = {
    "weights": (
        [X, Y, W],
        [],
        T.dot(X, W) - Y,
        "if w does not have the batch's rows, list it separately: bcast_inputs=[w]",
    ),
    "their gradient": ([X, Y, W], [], T.grad(LOSS, W), "bcast_inputs=[w]"),
    "weights and biases": ([X, W, B], [], T.dot(X, W) * B.sum() ** 2 + X.dot(B), "bcast_inputs=[b, w]"),
    "a table": ([idx, Z], [], Z[idx], "bcast_inputs=[Z]"),
    "a row": ([X, W], [], X * W, "bcast_inputs=[w]"),
    "columns that are chosen": ([X, idx], [], X[:, idx], "bcast_inputs=[idx]"),
    "rows among what is whole": ([X], [Z], X * Z, "if Z has the batch's rows, list it in inputs, not in bcast_inputs"),
    "class labels among what is whole": ([X], [idx], X[T.arange(X.shape[0]), idx], "if idx has the batch's rows"),
}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_the_message_names_the_list_and_never_shares(name, exact):
    inputs, whole, output, text = REFUSED[name]
    with refuses(TypeError, "output", hint=text) as error:
        synk.function(inputs, output, whole, exact=exact, **DATA)
    assert "ops.shard" not in str(error.value)
    if exact:
        update = [(L.shared(np.zeros(()), "s"), output.sum() ** 2)]
        with refuses(ValueError, "the update of s", hint=text) as error:
            synk.function(inputs, None, whole, updates=update, exact=True, **DATA)
        assert "ops.shard" not in str(error.value)


@pytest.mark.parametrize("exact", [False, True])
def test_what_was_advised_builds(make_world, exact):
    make_world("threads", 2, engine=NAME)
    f = synk.function([X, Y], LOSS, [W], exact=exact, mode=L.quick)
    x, y, w = np.arange(15.0).reshape(5, 3), np.arange(5.0), np.arange(3.0)
    np.testing.assert_allclose(f(x, y, w), L.function([X, Y, W], LOSS, mode=L.quick)(x, y, w))


def test_a_warning_has_it_too(caplog):
    with caplog.at_level(logging.WARNING):
        synk.function([X, Y, W], LOSS, mode=L.quick)
    assert (
        "If w does not have the batch's rows, list it separately: bcast_inputs=[w]; or give the output" in caplog.text
    )


@pytest.mark.parametrize("exact", [False, True])
def test_no_advice_where_no_input_is_concerned(exact):
    with refuses(TypeError, "output", got="synkhronos.ops.shard", hint="(variable, op)") as error:
        synk.function([X, Y], X * ALL + Y.dimshuffle(0, "x"), exact=exact, **DATA)
    assert "bcast_inputs" not in str(error.value)
    with refuses(TypeError, "output", got="dot of X and", hint="(variable, op)") as error:
        synk.function([X], T.dot(X, X.T), exact=exact, **DATA)  # some input must be divided
    assert "bcast_inputs" not in str(error.value)


@pytest.mark.parametrize("exact", [False, True])
def test_states_of_the_batch(exact):
    """For updated variables with the batch's rows, the advice is `sharded` in the inputs, not `ops.shard`."""
    H, C = L.shared(np.zeros((5, 3)), "H"), L.shared(np.zeros((5, 3)), "C")
    state = T.tanh(X + H)
    updates = [(H, state)] if exact else [(H, state), (C, C + 1)]
    with refuses(
        (TypeError, ValueError), hint="if H has the batch's rows, add synkhronos.sharded(H) to inputs"
    ) as error:
        synk.function([X], state, updates=updates, exact=exact, **DATA)
    assert "ops.shard" not in str(error.value)
    both = [(H, state), (C, C * state)]
    with refuses((TypeError, ValueError), hint="add synkhronos.sharded(H), synkhronos.sharded(C) to inputs"):
        synk.function([X], state * C, updates=both, exact=exact, **DATA)
    synk.function([X, synk.sharded(H), synk.sharded(C)], state * C, updates=both, exact=exact, **DATA)


def test_lengths_that_differ_in_a_call(make_world):
    make_world("threads", 2, engine=NAME)
    f = synk.function([X, Y, W], [X.sum(axis=1), Y * 2, W * 2], mode=L.quick)
    args = np.ones((5, 3)), np.ones(5), np.ones(3)
    for call in (f, f.compare, lambda *some: f.steps(*some, n_steps=2), lambda *some: f(*some, num_slices=2)):
        with refuses(ValueError, "scattered inputs", "length", "3 of input 'w'", "bcast_inputs=[w]"):
            call(*args)
    g = synk.function([W, X, Y], [X.sum(axis=1), Y * 2, W * 2], mode=L.quick)
    with refuses(ValueError, "scattered inputs", hint="bcast_inputs=[w]"):  # not the two inputs of equal length
        g(np.ones(3), np.ones((5, 3)), synk.data(np.ones(5)))


def test_not_all_lists_are_tried():
    tried = []
    names = {i: str(i) for i in range(40)}
    found = advice(names, {i: Shard(0) for i in range(40)}, range(40, 90), lambda shards: tried.append(len(shards)))
    assert found is None and tried[:MAX_TRIALS] == [39] * MAX_TRIALS and len(tried) == 2 * MAX_TRIALS
