"""Outputs without an op equal the serial function's, or cause an error or a warning."""

import logging

import numpy as np
import pytest
from library import IS_THEANO, NAME, L, T
from refusals import refuses

import synkhronos as synk
from synkhronos.reductions import MISSING, ReduceOp

pytestmark = [getattr(pytest.mark, NAME), pytest.mark.thorough("threads-1")]

x, y, labels = T.dmatrix("x"), T.dvector("y"), T.ivector("labels")
W = L.shared(np.random.RandomState(3).randn(4, 2), "W")
count = L.shared(np.int64(3), "count")

#: By name: an output, and its op.
OUTPUTS = {
    "an output per row": (T.dot(x, W), "gather"),
    "a mean over rows": (x.mean(axis=0), "avg"),
    "a loss": (T.nnet.categorical_crossentropy(T.nnet.softmax(T.dot(x, W)), labels).mean(), "avg"),
    "a loss with a penalty": (T.sqr(T.dot(x, W)).mean() + 0.1 * T.sqr(W).sum(), "avg"),
    "its gradient": (T.grad(T.sqr(T.dot(x, W)).mean() + 0.1 * T.sqr(W).sum(), W), "avg"),
    "a sum over rows": (x.sum(axis=0), "sum"),
    "a sum's gradient": (T.grad(T.exp(T.dot(x, W)).sum(), W), "sum"),
    "a maximum": (x.max(), "max"),
    "a minimum of each column": (x.min(axis=0), "min"),
    "a product": (y.prod(), "prod"),
    "rows of a column": (x[:, 1], "gather"),
    "integers of rows": (T.argmax(x, axis=1), "gather"),
    "a count": (T.neq(T.argmax(x, axis=1), labels).sum(), "sum"),
    "the number of rows": (x.shape[0], "sum"),
    "an accuracy": (T.eq(T.argmax(x, axis=1), labels).mean(), "avg"),
    "bools of rows": (T.gt(y, 0), "gather"),
    "whether any": (T.any(T.gt(y, 1), axis=0), "max"),
    "a float of all ranks": (W.sum(), "avg"),
    "an integer of all ranks": (count * 2, None),
    "a column's length": (x.shape[1], None),
}


def data(n_rows, seed=0):
    random = np.random.RandomState(seed)
    return random.randn(n_rows, 4), random.randn(n_rows), random.randint(0, 2, n_rows).astype("int32")


def test_outputs_are_the_serial_functions(small_world):
    outputs = [output for output, _ in OUTPUTS.values()]
    options = dict(on_unused_input="ignore", mode=L.quick)
    f, g = synk.function([x, y, labels], outputs, **options), L.function([x, y, labels], outputs, **options)
    assert dict(zip(OUTPUTS, f.output_modes)) == {name: op for name, (_, op) in OUTPUTS.items()}
    for n_rows in (7, 6, 2, 1):
        for name, ours, serial in zip(OUTPUTS, f(*data(n_rows)), g(*data(n_rows))):
            assert (ours.dtype, ours.shape) == (serial.dtype, serial.shape), name
            np.testing.assert_allclose(ours, serial, rtol=1e-12, err_msg=name)
    k = 3
    for name, ours, serial in zip(
        OUTPUTS, f(*data(7), batch=[6, 0, 5, 3, 1]), g(*(one[[6, 0, 5, 3, 1]] for one in data(7)))
    ):
        np.testing.assert_allclose(ours, serial, rtol=1e-12, err_msg=name)
    for name, ours, serial in zip(OUTPUTS, f(*data(7), num_slices=k), g(*data(7))):
        np.testing.assert_allclose(ours, serial, rtol=1e-12, err_msg=name)


TYPES = ["bool", "int8", "int64", "uint8", "uint16", "uint32", "uint64", "float32"]


@pytest.mark.parametrize("exact", [False, True])
def test_the_smallest_of_all_types(small_world, exact):
    """Minima of all types are correct, also where the engine writes them as maxima: ``255 - max(255 - x)``."""
    random = np.random.RandomState(0)
    for dtype in TYPES:
        m = L.variable(dtype, 2, "m")
        values = (random.rand(7, 3) * 200).astype(dtype) if dtype != "bool" else random.rand(7, 3) > 0.3
        values = values - np.int64(90).astype(dtype) if dtype.startswith("int") else values
        outputs = [
            m.min(),
            m.min(axis=0),
            m.min(axis=1),
            T.min(m, axis=0, keepdims=True),
            T.argmin(m, axis=1),
            m.max(axis=0),
        ]
        if exact and dtype != "bool" and L.casts_wrap_around:
            outputs.append(m.max(axis=0) - m.min(axis=0))  # the difference needs the whole values of both
        f = synk.function([m], outputs, exact=exact, mode=L.quick)
        assert f.output_modes[:4] == ["min", "min", "gather", "min"]
        want = L.function([m], outputs, mode=L.quick)(values)
        calls = [f(values, num_slices=k) for k in (1, 2, 9)]
        for got in [*calls, [each[0] for each in f.steps(values, batches=[slice(0, 7), [0, 1]], num_slices=2)]]:
            for one, other in zip(got, want):
                np.testing.assert_array_equal(one, other)
                assert np.asarray(one).dtype == other.dtype


def test_what_all_slices_have_needs_no_op(small_world):
    """Integers that are equal in all slices need no op; a sum over a rank's rows does."""
    rows, n = T.lmatrix("rows"), T.lscalar("n")
    outputs = [count * n, rows.shape[1], (rows.max() - rows.min()) * n, rows.sum() // n]
    values = np.arange(14).reshape(7, 2)
    want = L.function([rows, n], outputs, mode=L.quick)(values, 2)
    f = synk.function([rows], outputs, [n], exact=True, mode=L.quick)
    plain = synk.function([rows], [*outputs[:2], (rows.sum(), None)], [n], mode=L.quick)
    assert f.output_modes == [None] * 4
    for k in (1, 2, 9):
        assert list(map(int, f(values, 2, num_slices=k))) == list(map(int, want))
        assert list(map(int, plain(values, 2, num_slices=k, output_subset=[0, 1]))) == list(map(int, want[:2]))
    for got in zip(*f.steps(values, 2, batches=[slice(0, 7)] * 2, num_slices=2)):
        assert list(map(int, got)) == list(map(int, want))
    with refuses(ValueError, "num_slices", "outputs[2] has op None", "2", "output_subset"):
        plain(values, 2, num_slices=2)


def test_outputs_of_steps(small_world):
    outputs = [OUTPUTS[name][0] for name in ("an output per row", "a sum over rows", "a count", "a loss")]
    options = dict(on_unused_input="ignore", mode=L.quick)
    f, g = synk.function([x, y, labels], outputs, **options), L.function([x, y, labels], outputs, **options)
    batches = [[0, 3, 5], [1, 2, 4, 6], [6]]
    results = f.steps(*data(7), batches=batches)
    for i, batch in enumerate(batches):
        for ours, serial in zip(results, g(*(one[batch] for one in data(7)))):
            np.testing.assert_allclose(ours[i], serial, rtol=1e-12)


def test_rows_of_sliceable_shared_variables(threads):
    s = L.shared(np.zeros((0, 2)), "s")
    f = synk.function([], [s * 2, s.sum(axis=0)], sliceable_shareds=[s], mode=L.quick)
    synk.scatter(s, np.arange(14.0).reshape(7, 2))
    rows, total = f()
    np.testing.assert_array_equal(rows, np.arange(14.0).reshape(7, 2) * 2)
    np.testing.assert_array_equal(total, np.arange(14.0).reshape(7, 2).sum(axis=0))


#: By name: an output, and words of the refusal.
UNKNOWN = {
    "a Gram matrix": (T.dot(x, x.T), "combines each row with all others"),
    "rows in order": (T.sort(x, axis=0), "works along the axis of the rows"),
    "the first rows": (x[:2], "works along the axis of the rows"),
    "rows in reverse": (x[::-1], "works along the axis of the rows"),
    "the inverse": (
        T.nlinalg.matrix_inverse(x),
        "has no rule" if IS_THEANO else "works along the axis of the rows",
    ),
    "an operation on a part": (T.exp(x.sum(axis=0)), "needs the whole"),
    "noise on weights": (W + T.shared_randomstreams.RandomStreams(1).normal((4, 2)), "differ from rank to rank"),
    "rows by rows of all": (y * T.constant(np.arange(7.0)), "all rows on every rank"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_arrays_of_which_nothing_is_known_are_refused(threads, name):
    output, why = UNKNOWN[name]
    with refuses(TypeError, "output", "an op", why, "gather"):
        synk.function([x, y], output, on_unused_input="ignore", mode=L.quick)
    synk.function([x, y], (output, None), on_unused_input="ignore", mode=L.quick)
    f = synk.function([x], x.sum(), mode=L.quick)
    assert f(np.ones((5, 4))) == 20


def test_a_float_of_which_nothing_is_known_is_averaged_with_a_warning(threads, caplog):
    with caplog.at_level(logging.WARNING, "synkhronos"):
        f = synk.function([x], T.log(x.sum()), name="f", mode=L.quick)
    (record,) = caplog.records
    assert "function f: output is averaged" in record.getMessage() and "needs the whole" in record.getMessage()
    assert f.output_modes == ["avg"]
    parts = [np.log(part.sum()) for part in np.array_split(np.arange(1.0, 21).reshape(5, 4), 3)]
    np.testing.assert_allclose(f(np.arange(1.0, 21).reshape(5, 4)), np.average(parts, weights=[2, 2, 1]))


def test_integers_of_which_nothing_is_known_are_refused(threads):
    with refuses(TypeError, "output", got="whole"):
        synk.function([labels], T.switch(labels.sum() > 3, 1, 0), mode=L.quick)


#: By name: an output with its op, and words of the warning; None if there is none.
GIVEN = {
    "the average of a sum": ((x.sum(), "avg"), "1/n of"),
    "the sum of an average": ((x.mean(), "sum"), "n times"),
    "the sum of what all have": ((W.sum(), "sum"), "n times"),
    "the product of what all have": ((W.sum(), "prod"), "n-th power"),
    "the average of a maximum": ((x.max(), "avg"), "'max'"),
    "the sum of rows of ranks": ((y, "sum"), "gather"),
    "the average of an average": ((x.mean(), "avg"), None),
    "the average of what all have": ((W.sum(), "avg"), None),
    "every rank's sum": ((x.sum(), "gather"), None),
    "the master's sum": ((x.sum(), None), None),
    "the sum of a sum": ((x.sum(), "c_sum"), None),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_given_op_counts_and_is_named_if_it_contradicts(threads, caplog, name):
    output, why = GIVEN[name]
    with caplog.at_level(logging.WARNING, "synkhronos"):
        f = synk.function([x, y], output, on_unused_input="ignore", mode=L.quick)
    assert f.output_modes == [output[1]]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (why is not None)
    assert why is None or why in messages[0]


def test_ops_that_are_not_avg_are_in_the_log(threads, caplog):
    with caplog.at_level(logging.INFO, "synkhronos"):
        synk.function([x], [x.sum(), x.mean(), x * 2], name="f", mode=L.quick)
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        "function f: outputs[0] has op 'sum'",
        "function f: outputs[2] has op 'gather'",
    ]


def test_an_engine_that_does_not_tell_keeps_avg(make_world, numpy_words, monkeypatch):
    make_world("threads", 2)
    monkeypatch.setattr(type(synk.engines.get("numpy")), "placed", lambda self, snapshot, shards: None)
    v = numpy_words.variable("v")
    f = numpy_words.function([v], numpy_words.sum(v))
    assert f.output_modes == ["avg"] and ReduceOp.for_output(MISSING, "float64", "output").name == "avg"
