"""`Function.compare`, ``fork(check=True)``, ``--check``: correct programs pass; both values of wrong ones are reported.

Expected values come from NumPy, or from the engine alone with separate variables.

Modules: `comparison`, `first_calls`, `rank_values`.
"""

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from library import IS_THEANO, NAME, L, T
from refusals import lacks, refuses, reports
from regression import by_signs, descent, regression, rows
from trainers import updates as rules
from twins import Twins

import synkhronos as synk
from synkhronos.calls.first_calls import summary
from synkhronos.program.program import PROGRAM, CheckedCall

pytestmark = getattr(pytest.mark, NAME)

ROOT = str(Path(__file__).parents[2])
FAST = dict(mode=L.quick)


def everywhere(shareds):
    """Return copies of the variables' values on all ranks."""
    return [synk.get_value(rank, list(shareds)) for rank in range(synk.size())]


def reasons(found):
    return {each.name: each.reason for each in found.differences}


# -- right programs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [by_signs, descent], ids=["signs", "descent"])
@pytest.mark.parametrize("num_slices", [1, 2])
def test_an_exact_function_agrees(small_world, rule, num_slices):
    twins = Twins(regression(rule), exact=True, **FAST)
    for i, n in enumerate([6, 7, 4, 5]):
        found = twins.f.compare(*rows(n, i), num_slices=num_slices)
        assert found and repr(found) == "agrees with the serial function", found
        np.testing.assert_allclose(found.results, twins.g(*rows(n, i)), rtol=1e-10)
        twins.compare()  # the state is that after one call


def test_adam_of_lasagne(small_world):
    twins = Twins(regression(lambda loss, params: rules.adam(loss, params, 0.01)), exact=True, **FAST)
    for i in range(3):
        assert twins.f.compare(*rows(7, i))
        twins.g(*rows(7, i))
    twins.compare()


def test_outputs_of_every_form(small_world):
    x, w = T.dmatrix("x"), L.shared(np.ones((3, 2)), "w")
    outputs = {
        "rows": T.dot(x, w),
        "mean": x.mean(),
        "sum": x.sum(axis=0),
        "largest": x.max(),
        "count": x.shape[0],
        "own": (x.sum(), None),  # the master's own value, as requested by the user
        "whole": w.sum(),
        "any": T.any(x > 2, axis=0),
    }
    f = synk.function([x], outputs if IS_THEANO else list(outputs.values()), **FAST)
    value = rows(7)[0]
    found = f.compare(value)
    assert found, found
    results = found.results if IS_THEANO else dict(zip(outputs, found.results))
    np.testing.assert_allclose(results["sum"], value.sum(axis=0))
    subset = ["mean", "count"]
    found = f.compare(
        value, batch=[5, 1, 1, 3], output_subset=subset if IS_THEANO else [list(outputs).index(key) for key in subset]
    )
    results = found.results if IS_THEANO else dict(zip(subset, found.results))
    assert found and results["count"] == 4 and set(results) == set(subset)
    single = synk.function([x], x.mean(), **FAST)
    assert single.compare(value, output_subset=[0]) and single.compare(x=value, batch=slice(1, 4))
    assert single.compare(value).results == pytest.approx(value.mean())
    nothing = synk.function([x], updates=[(w, w * 2)], on_unused_input="ignore", **FAST)
    assert nothing.compare(value).results == [] and (w.get_value() == 2).all()


def test_arguments_of_every_form(small_world):
    x, y, k = T.dvector("x"), L.In(T.dvector("y"), mutable=True), T.dscalar("k")
    whole = L.In(k, value=3.0) if IS_THEANO else k
    f = synk.function([x, y], [(x * y.variable * k).sum(), y.variable * 2], bcast_inputs=[whole], **FAST)
    a, b = np.arange(6.0), np.arange(1.0, 7.0)
    data = f.build_inputs(a, b, 2.0)
    for given in ([a, b] if IS_THEANO else [a, b, 3.0], [a, b, 5.0], list(data)):
        for batch in (None, 4, [0, 5, 2], slice(1, 6, 2)):
            assert f.compare(*given, batch=batch)
    assert (a == np.arange(6)).all() and (b == np.arange(1, 7)).all()


def test_float32_is_compared_as_such(threads):
    x, w = T.fmatrix("x"), L.shared(np.ones(4, "float32"), "w")
    loss = T.sqr(T.dot(x, w)).mean()
    f = synk.function(
        [x], [loss, T.cast(loss, "float64")], updates=[(w, w - np.float32(0.01) * T.grad(loss, w))], exact=True, **FAST
    )
    value = np.random.RandomState(0).randn(3001, 4).astype("float32")
    for _ in range(3):
        assert f.compare(value)


def test_rows_of_sliceable_variables(small_world):
    s, t = L.shared(np.zeros(0), "s"), L.shared(np.zeros(0), "t")
    f = synk.function([], [s.mean(), s * 2], updates=[(t, t + s)], sliceable_shareds=[s, t], **FAST)
    synk.distribute()
    values = np.arange(10.0) ** 2
    synk.scatter([s, t], [values, values])
    found = f.compare()
    assert found, found
    np.testing.assert_array_equal(found.results[1], values * 2)
    np.testing.assert_array_equal(synk.gather(t, nd_up=0), values * 2)
    g = synk.function([], [s.mean(), s * 2], sliceable_shareds=[s], **FAST)
    assert g.compare(batch_s=[0, 2]) and g.compare(batch_s=[[1]] * synk.size()) and g.compare(num_slices=2)


@pytest.mark.filterwarnings("ignore:invalid value")  # NumPy's warning about inf - inf
def test_nan_and_infinity_agree_with_themselves(threads):
    x = T.dvector("x")
    f = synk.function([x], [x * 1, x.sum(), (x * 1).max()], **FAST)
    assert f.compare([1.0, np.nan, np.inf, -np.inf, 0.0, 3.0])
    assert f.compare([1.0, np.inf, 2.0])


# -- wrong programs ----------------------------------------------------------------------------------------------------


def test_adam_that_is_not_exact(threads, told):
    def build(loss, params):
        return rules.adam(loss, params, 0.1)

    twins = Twins(regression(build), exact=False, **FAST)
    twins.g(*rows(7))
    found = twins.f.compare(*rows(7))
    assert not found
    by_name = {each.name: each for each in found.differences}
    w = by_name["w"]
    assert w.where.startswith("on rank ") and "exact=True" in w.reason and "own rows alone" in w.reason
    assert w.expected in twins.others[0].get_value() and w.value in synk.get_value(
        int(w.where.split()[2]), twins.params[0]
    )
    assert f"{w.value:.8g}" in str(w) and f"{w.expected:.8g}" in str(w)
    assert "t_prev" not in repr(found) and not [name for name in by_name if "scalar" in name]  # t_prev counts the steps


def test_what_an_all_reduce_after_the_call_makes_right_is_told_as_such(threads):
    twins = Twins(regression(descent), exact=False, **FAST)
    found = twins.f.compare(*rows(6))  # the same number of rows on all ranks
    assert set(reasons(found)) == {"w", "b"}
    assert all("the mean over the ranks agrees: call synk.all_reduce" in reason for reason in reasons(found).values())
    synk.all_reduce(twins.params)
    twins.g(*rows(6))
    twins.compare()
    again = twins.f.compare(*rows(6, 1))
    assert {each.where.split(" the ")[0][-5:] for each in again.differences} == {"after"}  # none before the call


def test_ops_that_make_something_else(threads):
    x = T.dvector("x")
    f = synk.function([x], [(x.sum(), "avg"), (x.max(), "sum"), (x, "sum"), (x.mean() ** 2, "avg")], **FAST)
    value = np.array([1.0, 2, 3, 4, 5, 60])
    found = f.compare(value)
    total, largest, summed, squares = found.differences
    assert (total.value, total.expected) == (
        25,
        75,
    ) and "op 'avg', but op 'sum' combines its parts" in str(total)
    assert (largest.value, largest.expected) == (66, 60) and "is 66, but 60 in the serial" in str(largest)
    assert (summed.value, summed.expected) == ((2,), (6,)) and "has shape (2,), but shape (6,)" in str(summed)
    assert squares.expected == value.mean() ** 2 and "it has op 'avg', but" in str(squares)
    assert [each.name[:10] for each in found.differences] == [f"outputs[{i}]" for i in range(4)]


def test_the_place_of_the_largest_difference(threads):
    x = T.dmatrix("x")
    f = synk.function([x], (x.max(axis=0), "avg"), **FAST)
    (found,) = f.compare([[0.0, 0, 0], [0, 3, 9], [0, 3, 0]]).differences
    assert (found.value, found.expected) == (3, 9) and " at index (2,) is 3, but 9 in the serial program" in str(found)


@pytest.mark.parametrize("again", [False, True])
def test_a_variable_that_is_set_on_the_master_alone(threads, again):
    x, w = T.dvector("x"), L.shared(2.0, "w")
    f, exact = [synk.function([x], (x * w).sum(), exact=exact, **FAST) for exact in (False, True)]
    f([1.0, 2, 3])
    if again:
        synk.gather(w)  # from here on, w has its own memory
    w.set_value(5.0)
    if again:
        synk.in_sync(w)
    found = f.compare([1.0, 2, 3])
    first, output = found.differences
    assert str(first).startswith(
        "w is 2 on rank 0 before the call, but 5 on the master: it was changed on the master alone"
    )
    assert "synk.broadcast(w)" in first.reason
    assert (output.value, output.expected) == (2 + 5 * 2 + 2 * 3, 30) and not lacks(output.reason, "w", "ranks")
    found = exact.compare([1.0, 2, 3])  # the exact function sends it to all ranks
    assert found and found.results == 30 and f.compare([1.0, 2, 3])


def test_a_variable_that_ranks_hold_differently(small_world):
    x, w, s = T.dvector("x"), L.shared(np.zeros(2), "w"), L.shared(np.zeros(2))
    f = synk.function([x], x.sum() + w.sum() + s.sum(), **FAST)
    f(np.ones(3))
    other = (small_world.root + 1) % small_world.n
    synk.set_value(other, w, [0.0, 7.0])
    synk.scatter(s, np.arange(small_world.n * 2.0 + 1))
    found = f.compare(np.ones(3))
    if small_world.n == 1:
        assert found
        return
    first, second, output = found.differences
    assert str(first).startswith(
        f"w at index (1,) is 7 on rank {other} before the call, but 0 on the master: scatter, set_value"
    )
    assert "shape" in str(second) and "f.get_shared()[1] (float64 vector) has shape" in str(second)
    assert "sliceable_shareds=[f.get_shared()[1]]" in str(second)
    assert output.name == "output"


def test_a_rule_without_a_reason_in_the_graph(threads):
    """A difference without a reason in the graph is reported: the op's values depend on the number of rows."""

    @L.as_op(itypes=[T.dvector], otypes=[T.dvector], infer_shape=lambda node, shapes: shapes)
    def odd(x):
        return x * len(x)

    x = T.dvector("x")
    f = synk.function([x], (odd(x), "gather"), **FAST)
    (found,) = f.compare(np.ones(6)).differences
    assert (found.value, found.expected) == (2, 6)


def test_other_engines_are_compared_too(make_world, numpy_words):
    make_world("threads", 2)
    x, w = numpy_words.variable("x"), numpy_words.shared(np.zeros(()), "w")
    f = synk.function([x], [(numpy_words.sum(x), "avg"), numpy_words.mean(x)], updates=[(w, w + numpy_words.max(x))])
    found = f.compare(np.array([1.0, 2, 3, 5]))
    output, update = found.differences
    assert (output.value, output.expected) == (5.5, 11) and "op 'sum' combines its parts" in output.reason
    assert (update.value, update.expected) == (2, 5) and "exact=True" in update.reason


# -- functions that are not compared -----------------------------------------------------------------------------------


def test_functions_with_random_draws_are_not_compared(small_world, told):
    x, w = T.dvector("x"), L.shared(np.zeros(2), "w")
    stream = T.shared_randomstreams.RandomStreams(3)
    f = synk.function([x], x * stream.uniform(x.shape) + w.sum(), **FAST)
    found = f.compare(np.ones(4))
    assert not found and not found.differences and "random" in found.not_compared
    assert repr(found).startswith("not compared: it draws random numbers") and len(found.results) == 4
    if small_world.n > 1:
        synk.set_value(small_world.n - 1 if small_world.root == 0 else 0, w, np.ones(2))
        assert [each.name for each in f.compare(np.ones(4)).differences] == ["w"]  # the difference is still reported


# -- nothing is disturbed ----------------------------------------------------------------------------------------------


def test_the_state_is_that_after_one_call(small_world):
    """If one of two equal programs compares and the other one calls, all values on all ranks have the same bits."""

    def build():
        x, y = T.dmatrix("x"), T.dmatrix("y")
        random = np.random.RandomState(5)
        w, b, n = L.shared(random.randn(3, 2), "w"), L.shared(np.zeros(2), "b"), L.shared(0, "n")
        loss = T.sqr(T.dot(x, w) + b - y).mean()
        updates = [(w, w - 0.1 * T.sgn(T.grad(loss, w))), (b, b - T.grad(loss, b)), (n, n + 1)]
        return synk.function([x, y], [loss, T.dot(x, w)], updates=updates, **FAST), [w, b, n]

    (f, ours), (g, theirs) = build(), build()
    for i in range(3):
        results, expected = f.compare(*rows(7, i)).results, g(*rows(7, i))
        for result, one in zip(results, expected):
            np.testing.assert_array_equal(result, one)
        for values, others in zip(everywhere(ours), everywhere(theirs)):
            for value, other in zip(values, others):
                np.testing.assert_array_equal(value, other)
        assert f.last_rows == g.last_rows


def test_what_the_master_holds_is_the_same_object(threads):
    x, w = T.dvector("x"), L.shared(np.zeros(2), "w")
    f = synk.function([x], x.sum() + w.sum(), **FAST)
    f([1.0]), synk.gather(w)
    before = w.get_value(borrow=True, return_internal_type=True)
    f.compare([1.0, 2.0])
    assert w.get_value(borrow=True, return_internal_type=True) is before


def test_wrong_arguments_are_refused_as_in_a_call(threads):
    x, w = T.dvector("x"), L.shared(0.0, "w")
    f = synk.function([x], [x.sum(), (x.sum(), None)], updates=[(w, w + 1)], **FAST)
    f([1.0, 2.0, 3.0])
    bad = [
        ((), {}),
        (([1.0], [2.0]), {}),
        ((["a"],), {}),
        (([1.0, 2.0],), dict(batch=[5])),
        (([1.0, 2.0],), dict(batch=1.5)),
        (([1.0, 2.0],), dict(batch_s=[0])),
        (([1.0, 2.0],), dict(num_slices=0)),
        (([1.0, 2.0, 3.0, 4.0],), dict(num_slices=2)),
        (([1.0, 2.0],), dict(output_subset=[2])),
        (([1.0, 2.0],), dict(timeout=-1)),
        (([1.0, 2.0],), dict(z=3)),
    ]
    for args, kwargs in bad:
        with pytest.raises((TypeError, ValueError)) as of_call:
            f(*args, **kwargs)
        with pytest.raises(type(of_call.value)) as caught:
            f.compare(*args, **kwargs)
        assert str(caught.value) == str(of_call.value)
        assert synk.gather(w, nd_up=1).tolist() == [1.0] * 3, kwargs
    synk.close()
    with pytest.raises(synk.StateError):
        f.compare([1.0])


def test_what_the_serial_function_raises(make_world, numpy_words, told):
    """If only the serial function fails (on more than 4 rows), `compare` raises its error, and checked calls warn."""
    make_world("threads", 2, check=True)
    x, w = numpy_words.variable("x"), numpy_words.shared(np.zeros(()), "w")
    y = numpy_words.apply(few, x, dtype="float64", ndim=1)
    f = synk.function([x], (y, "gather"), updates=[(w, w + 1)], name="few")
    with reports(ValueError, "too many rows") as caught:
        f.compare(np.ones(6))
    assert not lacks(" ".join(caught.value.__notes__), "serial")
    assert synk.gather(w, nd_up=1).tolist() == [0, 0] and f.last_rows is None
    assert f(np.ones(6)).tolist() == [1] * 6  # an impossible check does not stop the program
    (text,) = told()
    assert "few is not compared with the serial function: the serial function raised ValueError: too many rows" in text
    assert f(np.ones(6)).tolist() == [1] * 6 and told() == [] and synk.gather(w, nd_up=1).tolist() == [2, 2]


def few(array):
    if len(array) > 4:
        raise ValueError("too many rows")
    return array


# -- fork(check=True) --------------------------------------------------------------------------------------------------


@pytest.fixture
def checking(make_world):
    PROGRAM.checked.clear()
    yield make_world("threads", 3, 1, engine=NAME, check=True)
    PROGRAM.checked.clear()


def test_the_first_calls_are_compared(checking, told):
    x, w = T.dvector("x"), L.shared(0.0, "w")
    wrong = synk.function([x], x.sum(), updates=[(w, w + x.sum())], name="wrong", **FAST)
    right = synk.function([x], [x.sum(), x.mean()], name="right", **FAST)
    told()
    value = np.arange(6.0)
    for i in range(5):
        assert wrong(value) == 15 and right(value)[0] == 15
        texts = told()
        assert len(texts) == (1 if i == 0 else 0), texts
        if texts:
            assert texts[0].startswith(
                "function wrong differs from the serial function: w is 1 on rank 0 after the call, but 15 in"
            )
    assert synk.gather(w, nd_up=1).tolist() == [5.0, 25.0, 45.0]
    assert [each for each in PROGRAM.checked if each.name == "right"] == [CheckedCall("right", 0)] * 3
    assert [each.n_differences for each in PROGRAM.checked if each.name == "wrong"] == [1, 2, 2]  # before the call, too


def test_without_check_nothing_is_compared(threads, told):
    x, w = T.dvector("x"), L.shared(0.0, "w")
    f = synk.function([x], x.sum(), updates=[(w, w + x.sum())], **FAST)
    f(np.ones(3))
    assert not [text for text in told() if "differs" in text] and PROGRAM.checked == []


def test_random_functions_are_said_not_to_be_compared(checking, caplog):
    caplog.set_level(logging.INFO, "synkhronos")
    x, stream = T.dvector("x"), T.shared_randomstreams.RandomStreams(3)
    f = synk.function([x], x * stream.uniform(x.shape), name="noise", **FAST)
    f(np.ones(3)), f(np.ones(3)), f.steps(np.ones(3), n_steps=2)
    texts = [record.getMessage() for record in caplog.records if "compared" in record.getMessage()]
    assert texts == [
        "function noise is not compared with the serial function: it draws random numbers, and every rank draws its own numbers"
    ]


def test_the_summary_says_why_functions_are_not_compared(checking):
    x, stream = T.dvector("x"), T.shared_randomstreams.RandomStreams(3)
    noise = synk.function([x], x * stream.uniform(x.shape), name="noise", **FAST)
    total = synk.function([x], x.sum(), name="total", **FAST)
    for f in (noise, total, total):
        f(np.ones(3))
    assert summary(PROGRAM.checked) == (
        "2 calls to 1 function compared with the serial function: all agree; "
        "not compared: noise (it draws random numbers, and every rank draws its own numbers)"
    )


@pytest.mark.parametrize("exact", [False, True])
def test_first_steps_are_tried_out_and_put_back(checking, told, exact):
    params, ours = regression(by_signs)()
    others, plain = regression(by_signs)()
    f, g = synk.function(**ours, exact=exact, name="train", **FAST), L.function(**plain, **FAST)
    x, y = rows(20)
    batches = [list(range(7)), [8, 9, 7], [10, 11, 12, 13], [14, 15], [16]]
    found = f.steps(x, y, batches=batches)
    expected = [g(x[batch], y[batch]) for batch in batches]
    texts = told()
    if exact:
        assert texts == [] and [each.n_differences for each in PROGRAM.checked] == [0, 0, 0]
        np.testing.assert_allclose(found, expected, rtol=1e-10)
        for ours, other in zip(params, others):
            for value in synk.gather(ours, nd_up=1):
                np.testing.assert_allclose(value, other.get_value(), rtol=1e-10)
        return
    assert texts and all("function train differs" in text for text in texts)
    synk.close()
    PROGRAM.open(3, 1, launcher="threads")  # without check, the result is the same
    _, ours = regression(by_signs)()
    np.testing.assert_array_equal(synk.function(**ours, exact=exact, **FAST).steps(x, y, batches=batches), found)


def test_wrong_steps_are_refused_as_always(checking):
    x, w = T.dvector("x"), L.shared(0.0, "w")
    f = synk.function([x], x.sum(), updates=[(w, w + x.sum())], **FAST)
    with refuses(ValueError, argument="batches[1]"):
        f.steps(np.ones(4), batches=[[0, 1], [9]])
    assert synk.gather(w, nd_up=1).tolist() == [0, 0, 0]


def test_changed_on_the_master_alone_is_told_with_both_values(checking, told):
    x, w, v = T.dvector("x"), L.shared(1.0, "w"), L.shared(np.zeros((2, 2)), "v")
    f = synk.function([x], x * (w + v.sum()), name="scaled", **FAST)
    for _ in range(3):
        f(np.ones(3))
    told()
    w.set_value(7.0)
    v.set_value(np.array([[0.0, 0.5], [2.0, 0.0]]))
    np.testing.assert_array_equal(f(np.ones(3)), [1.0, 9.5, 1.0])
    (text,) = told()
    assert "w (7 on the master, 1 on rank 0)" in text and "v (2 on the master, 0 on rank 0, index (1, 0))" in text
    assert "were changed on the master alone" in text and "synk.broadcast([w, v])" in text
    f(np.ones(3))
    assert told() == []


@pytest.mark.parametrize("check", ["yes", 1, None])
def test_check_is_true_or_false(check):
    with refuses(TypeError, argument="check"):
        synk.fork(2, check=check)


# -- python -m synkhronos --check --------------------------------------------------------------------------------------

PROGRAM_TEXT = """
import sys
import {library} as library
from {library} import tensor as T
import synkhronos as synk
synk.fork(2)
x, w = T.dvector("x"), library.shared(0.0, "w")
f = synk.function([x], (x.sum(), {op!r}), name="total", mode="FAST_COMPILE")
print([float(f([1., 2., 6.])) for _ in range(4)], sys.argv[1:])
"""


def run(folder, op, *options):
    (folder / "program.py").write_text(PROGRAM_TEXT.format(library=NAME, op=op))
    command = [sys.executable, "-m", "synkhronos", *options, str(folder / "program.py"), "--check", "a"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr.strip().splitlines()


@pytest.mark.thorough
def test_the_command_line(tmp_path):
    out, lines = run(tmp_path, "sum", "--check")
    assert out == "[9.0, 9.0, 9.0, 9.0] ['--check', 'a']"
    assert lines == ["synkhronos: 3 calls to 1 function compared with the serial function: all agree"]
    out, lines = run(tmp_path, "max", "--check")
    assert out == "[6.0, 6.0, 6.0, 6.0] ['--check', 'a']"
    assert (
        "function total differs from the serial function: output is 6, but 9 in the serial program: it has op 'max', "
        in lines[-2]
    )
    assert lines[-1] == "synkhronos: 3 calls to 1 function compared with the serial function: total differs"
    assert run(tmp_path, "sum") == ("[9.0, 9.0, 9.0, 9.0] ['--check', 'a']", [])
