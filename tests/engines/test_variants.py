"""Variants of a function's graph, and random states, on every engine; expected values come from NumPy."""

from __future__ import annotations

import numpy as np
import pytest

X = np.array([[1.0, 2.0], [3.0, 5.0], [-1.0, 0.5]])


def compile(language, inputs, outputs, updates=(), givens=None, **kwargs):
    return language.engine.compile(inputs, outputs, list(updates), givens, **dict(language.kwargs, **kwargs))


def snapshot(language, inputs, outputs, updates=(), givens=None, **kwargs):
    return language.engine.snapshot(inputs, outputs, list(updates), givens, **dict(language.kwargs, **kwargs))


def call(language, compiled, *args):
    return language.engine.call(compiled, args)


def equal(results, truths):
    assert len(results) == len(truths)
    for result, truth in zip(results, truths):
        np.testing.assert_array_equal(result, truth)


# -- the same function ---------------------------------------------------------------------------------------------


def test_a_variant_with_nothing_changed_does_what_the_function_does(language):
    x, w = language.variable("x", "float64", 2), language.shared(np.ones(2), "w")
    kept = snapshot(language, [x], [x * w, language.mean(x)], [(w, w * 3)])
    assert language.engine.updated_in(kept) == [w]
    f = language.engine.variant(kept, False, [])
    equal(call(language, f, X), [X, X.mean()])
    equal(call(language, f, X), [X * 3, X.mean()])
    np.testing.assert_array_equal(w.get_value(), [9, 9])


@pytest.mark.parametrize("form", ["dict", "single", "tuple", "none", "empty"])
def test_outputs_are_a_list_in_the_order_of_the_function(language, form):
    x, w = language.variable("x", "float64", 2), language.shared(np.ones(2), "w")
    double, total = x * 2, language.mean(x)
    outputs = {
        "dict": {"b": double, "a": total},
        "single": double,
        "tuple": [total, double],
        "none": None,
        "empty": [],
    }[form]
    truths = {"dict": [X.mean(), X * 2], "single": [X * 2], "tuple": [X.mean(), X * 2]}.get(form, [])
    kept = snapshot(language, [x], outputs, [(w, w + x[0])])
    equal(call(language, language.engine.variant(kept, False, []), X), truths)
    equal(call(language, language.engine.variant(kept, True, []), X), truths + [[3, 5]])


def test_inputs_keep_their_properties(language):
    x, y = language.variable("x", "float64", 2), language.variable("y", "float64")
    w = language.shared(X, "x")  # the same name as an input
    default = {"value": 2.0} if language.has_defaults else {}
    kept = snapshot(language, [language.In(x, mutable=True), language.In(y, name="why", **default)], x * y + w)
    for sliced in (False, True):
        f = language.engine.variant(kept, sliced, [w])
        inputs = language.engine.inputs(f)
        assert [given.name for given in inputs[:2]] == ["x", "why"]
        assert [given.mutable for given in inputs] == [True, False, False]
        assert [given.has_default for given in inputs] == [False, language.has_defaults, False]
        assert inputs[1].default == default.get("value") and len(inputs) == 3
        assert inputs[2].type == language.engine.shared_type(w)
        equal(call(language, f, X.copy(), 2.0, X * 10), [X * 12])


def test_later_changes_do_not_matter(language):
    x = language.variable("x", "float64", 2)
    w, v, u = (language.shared(np.ones(2), name) for name in "wvu")
    w.default_update = w * 2
    updates, givens, outputs = [(v, v + 1)], {u: x[0]}, [w + u]
    kept = snapshot(language, [x], outputs, updates, givens)
    w.default_update, v.default_update = w * 100, v * 100
    updates[0] = (v, v * 100)
    givens[u] = x[0] * 9
    outputs[0] = w * 100
    x.name, w.name = "later", "later too"
    names = [shared.name for shared in language.engine.updated_in(kept)]
    assert sorted(names) == ["later too", "v"]
    f = language.engine.variant(kept, True, [])
    assert language.engine.inputs(f)[0].name == "x"
    truths = [[2, 3]] + [{"later too": [2, 2], "v": [2, 2]}[name] for name in names]
    equal(call(language, f, X), truths)


def test_default_updates_that_were_declined(language):
    w = language.shared(np.ones(2), "w")
    w.default_update = w * 2
    kept = snapshot(language, [], w + 1, no_default_updates=True)
    assert language.engine.updated_in(kept) == []
    equal(call(language, language.engine.variant(kept, True, [])), [[2, 2]])


def test_plain_values_in_givens_become_one_variable(language):
    x, y = language.variable("x", "float64", 1), language.variable("y", "float64", 1)
    w = language.shared(np.ones(2), "w")
    for givens in ({y: np.array([1.0, 2.0]), x: w}, [(y, np.array([1.0, 2.0])), (x, w)]):
        pairs = language.engine.given_pairs(givens)
        (made,) = [new for old, new in pairs if old is y]
        assert language.engine.is_shared(made) and dict(pairs)[x] is w
        f = compile(language, [], x + y, givens=pairs)
        g = language.engine.variant(snapshot(language, [], x + y, givens=pairs), True, [])
        assert {id(shared) for shared in language.engine.shareds(f)} == {id(made), id(w)}
        assert {id(shared) for shared in language.engine.shareds(g)} == {id(made), id(w)}
        equal(call(language, g), [[2, 3]])
    assert language.engine.given_pairs(None) == []


# -- slices --------------------------------------------------------------------------------------------------------


def test_sliced_gives_new_values_and_applies_none(language):
    x = language.variable("x", "float64", 2)
    w, v = language.shared(np.ones(2), "w"), language.shared(np.zeros(2), "v")
    v.default_update = v + x[0]
    kept = snapshot(language, [x], language.mean(x) + 0 * v[0], [(w, w + v * 2)])
    assert [shared.name for shared in language.engine.updated_in(kept)] == ["w", "v"]
    f = language.engine.variant(kept, True, [])
    v.set_value(np.array([5.0, 6.0]))
    for _ in range(2):
        equal(call(language, f, X), [X.mean(), [11, 13], [6, 8]])
    np.testing.assert_array_equal(w.get_value(), [1, 1])
    np.testing.assert_array_equal(v.get_value(), [5, 6])


def test_sliced_outputs_belong_to_the_caller(language):
    """Changing an output does not change a shared variable, an argument, another output or the next call."""
    x = language.variable("x", "float64", 1)
    a, b, c, d, e = (language.shared(np.full(3, float(i)), name) for i, name in enumerate("abcde"))
    same = x * 2
    value, truths = np.array([1.0, 2.0, 4.0]), [np.full(3, float(i)) for i in range(5)]
    expected = [value * 2, value * 2, truths[0], truths[1], truths[0], value, truths[4], value * 2]
    kept = snapshot(language, [x], [same, same, a], [(a, b), (b, a), (c, x), (d, e), (e, same)])
    f = language.engine.variant(kept, True, [])
    first = call(language, f, value)
    equal(first, expected)
    arrays = first + call(language, f, value) + [value] + [language.engine.get(s) for s in (a, b, c, d, e)]
    for i, one in enumerate(arrays):
        for other in arrays[:i]:
            assert not np.shares_memory(one, other)
    for array in arrays[:16]:
        array[...] = -1
    equal(call(language, f, value), expected)


def test_sliced_function_with_nothing(language):
    f = language.engine.variant(snapshot(language, [], None), True, [])
    assert call(language, f) == []


def test_random_states_advance_from_slice_to_slice(language):
    state, drawn = language.stream(3)
    w = language.shared(np.zeros(3), "w")
    kept = snapshot(language, [], drawn, [(w, w + drawn)])
    assert language.engine.updated_in(kept) == [w, state]
    truth_of_one_call = call(language, compile(language, [], [drawn, drawn * 1]))  # the call advances the stream once
    f = language.engine.variant(kept, True, [])
    seen = [truth_of_one_call[0]]
    for _ in range(3):
        draw, new = call(language, f)
        np.testing.assert_array_equal(draw, new)
        seen.append(draw)
    assert len({tuple(draw) for draw in seen}) == 4
    np.testing.assert_array_equal(w.get_value(), np.zeros(3))
    g = language.engine.variant(kept, False, [])
    seen.append(call(language, g)[0])
    np.testing.assert_array_equal(w.get_value(), seen[-1])
    other, same = language.stream(3)
    plain = compile(language, [], same)
    equal([call(language, plain)[0] for _ in seen], seen)


# -- shared variables as inputs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sliced", [False, True])
def test_as_inputs_everywhere(language, sliced):
    x, y = language.variable("x", "float64", 2), language.variable("y", "float64", 2)
    s, w = language.shared(X, "s"), language.shared(np.ones(2), "w")
    w.default_update = w + s[0]
    kept = snapshot(language, [y], [x + y + w, s * 2, s], [(s, s * 10 + x)], givens={x: s * 3})
    assert {shared.name for shared in language.engine.updated_in(kept)} == {"s", "w"}
    f = language.engine.variant(kept, sliced, [s])
    rows = X[1:] + 100
    new = {"s": rows * 13, "w": 1 + rows[0]}
    truths = [rows * 3 + X[:2] + 1, rows * 2, rows]
    if sliced:
        truths += [new[shared.name] for shared in language.engine.updated_in(kept)]
        new = {"s": X, "w": np.ones(2)}
    results = call(language, f, X[:2], rows)
    equal(results, truths)
    for shared in (s, w):
        np.testing.assert_array_equal(shared.get_value(), new[shared.name])
    np.testing.assert_array_equal(rows, X[1:] + 100)
    assert not any(np.shares_memory(result, rows) for result in results)
    assert not np.shares_memory(language.engine.get(s), rows)


def test_several_as_inputs_in_the_order_given(language):
    a, b, c = (language.shared(np.zeros(2), name) for name in "abc")
    kept = snapshot(language, [], [a - b, c], [(a, b), (b, a)])
    f = language.engine.variant(kept, False, [b, c, a])
    equal(call(language, f, np.ones(2), np.full(2, 7.0), np.full(2, 5.0)), [[4, 4], [7, 7]])
    np.testing.assert_array_equal(a.get_value(), [1, 1])
    np.testing.assert_array_equal(b.get_value(), [5, 5])
    f = language.engine.variant(kept, False, [a])
    call(language, f, np.full(2, 9.0))
    np.testing.assert_array_equal(a.get_value(), [5, 5])  # b was not an argument
    np.testing.assert_array_equal(b.get_value(), [9, 9])


def test_as_input_that_is_not_used(language):
    x, s = language.variable("x", "float64", 2), language.shared(X, "s")
    f = language.engine.variant(snapshot(language, [x], x * 1, givens=[(s, x)]), True, [s])
    equal(call(language, f, X, X), [X])


def test_one_snapshot_serves_all_variants(language):
    x, s = language.variable("x", "float64", 2), language.shared(X, "s")
    kept = snapshot(language, [x], x + s, [(s, s * 2)])
    plain, sliced, both, rows = (
        language.engine.variant(kept, *how) for how in ((False, []), (True, []), (True, [s]), (False, [s]))
    )
    equal(call(language, both, X, X * 5), [X * 6, X * 10])
    equal(call(language, sliced, X), [X * 2, X * 2])
    equal(call(language, rows, X, X * 7), [X * 8])
    equal(call(language, plain, X), [X * 15])
    np.testing.assert_array_equal(s.get_value(), X * 28)


# -- transfer to other processes -----------------------------------------------------------------------------------


def test_variants_join_the_replicas(language, master):
    x, s, w = language.variable("x", "float64", 2), language.shared(X, "s"), language.shared(np.ones(2), "w")
    updates = [(w, w * 2)]
    kept = snapshot(language, [x], x + s * w, updates, name="step")
    f = master.send(compile(language, [x], x + s * w, updates))
    g = master.send(language.engine.variant(kept, True, [s]))
    h = master.send(language.engine.variant(kept, False, [s]))
    master.peer.call(f, [X])
    equal(master.peer.call(g, [X, X * 5]), [X * 11, [4, 4]])
    equal(master.peer.call(h, [X, X * 5]), [X * 11])
    equal(master.peer.call(f, [X]), [X * 5])
    equal([w.get_value()], [[1, 1]])  # nothing was called in this process
    assert master.peer.shareds(h) == [master.add(w)]


# -- random streams ------------------------------------------------------------------------------------------------


def draws(language, shared, drawn, state, times=4):
    """Return the numbers that plain calls draw from a state."""
    language.engine.put(shared, state)
    f = compile(language, [], drawn)
    return [tuple(call(language, f)[0]) for _ in range(times)]


def plain_draws(language, times):
    """Return the first numbers of the stream of seed 1."""
    _, drawn = language.stream(1)
    f = compile(language, [], drawn)
    return [tuple(call(language, f)[0]) for _ in range(times)]


def test_is_random(language):
    state, _ = language.stream(1)
    assert language.engine.is_random(state)
    replica = language.engine.build(language.engine.blueprint(state), language.engine.get(state))
    assert language.engine.is_random(replica)
    assert not language.engine.is_random(language.shared(np.ones((4, 6), "int32")))
    assert not language.engine.is_random(language.shared({"a": 1}))


def test_jumps_add_up(language):
    engine, (state, drawn) = language.engine, language.stream(1)
    value = engine.get(state)
    jumped = {jumps: engine.jumped(state, value, jumps) for jumps in (0, 1, 2, 5)}
    twice = engine.jumped(state, jumped[2], 3)
    seen = {jumps: draws(language, state, drawn, start) for jumps, start in jumped.items()}
    assert seen[0] == plain_draws(language, 4)
    assert draws(language, state, drawn, twice) == seen[5]
    assert len({draw for draws_ in seen.values() for draw in draws_}) == 16
    assert draws(language, state, drawn, value) == seen[0]  # the variable is unchanged


def test_jumps_and_draws_commute(language):
    engine, (state, drawn) = language.engine, language.stream(1)
    jumped = draws(language, state, drawn, engine.jumped(state, engine.get(state), 3), times=9)
    state, drawn = language.stream(1)
    drawn_before = draws(language, state, drawn, engine.get(state), times=5)
    assert drawn_before == plain_draws(language, 5) != jumped[:5]
    assert draws(language, state, drawn, engine.jumped(state, engine.get(state), 3)) == jumped[5:]


def test_reseeded_depends_on_seed_and_index_alone(language):
    engine, (state, drawn), (other, _) = language.engine, language.stream(1), language.stream(99)
    seen = {}
    for seed in (0, 1, 2**31, 2**40):
        for index in (0, 1, 7):
            one = draws(language, state, drawn, engine.reseeded(state, engine.get(state), seed, index))
            assert one == draws(language, state, drawn, engine.reseeded(other, engine.get(other), seed, index))
            seen[seed, index] = tuple(one)
    assert len(set(seen.values())) == len(seen)


def test_random_states_travel(language, master):
    state, drawn = language.stream(1)
    f = compile(language, [], drawn)
    number = master.send(f)
    equal(master.peer.call(number, []), call(language, f))
    master.peer.put(master.add(state), language.engine.jumped(state, language.engine.get(state), 2))
    there = tuple(master.peer.call(number, [])[0])
    assert [there] == draws(language, state, drawn, language.engine.jumped(state, language.engine.get(state), 2), 1)
