"""Reductions of all number types: ranks combine values in the type that the serial function computes in.

Expected values come from the engine's own function of all rows.
"""

import itertools
import pickle

import numpy as np
import pytest
from library import NAME, L, T
from refusals import lacks, refuses, reports

import synkhronos as synk

pytestmark = [
    getattr(pytest.mark, NAME),
    pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning"),  # of float16, in serial and parallel
]

FAST = dict(mode=L.quick)
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]
DTYPES = ["bool", *INTEGERS, *FLOATS]
#: Rows of floats that would be lost if each rank's part were truncated or rounded to float32; the ranks' sums cancel.
TRUNCATED = np.array([[0.6, 1.5, -0.6], [0.6, 1.5, -0.6], [0.6, 1.5, -0.6], [0.6, 1.5, -0.6], [0.6, 1.5, -0.6]])
CANCELLED = {"float64": [1e9, 1.25, 1e-3, -1e9, 0.75], "float32": [1e7, 0.25, 0.125, -1e7, 0.375]}
CANCELLED["float16"] = [2000.0, 0.25, 0.125, -2000.0, 0.375]


@pytest.fixture(params=[1, 2, 3])
def world(request, make_world):
    return make_world("threads", request.param, request.param - 1, engine=NAME)


def rows(dtype, n_rows=5):
    """Return rows; if the type is an integer type, sums and products of a few rows overflow."""
    random = np.random.RandomState(3)
    if dtype == "bool":
        return np.array([[1, 1, 0], [1, 0, 0], [1, 0, 0], [1, 1, 0], [1, 0, 0]], bool)[:n_rows]
    if dtype in FLOATS:
        return random.uniform(0.2, 1.9, (n_rows, 3)).astype(dtype)
    limits = np.iinfo(dtype)
    found = random.randint(limits.max // 2, limits.max, (n_rows, 3), dtype=dtype)
    if dtype == "uint64":
        found //= 2**12  # Theano's Python code casts through int64
    found[1], found[:, 2] = 3, 2
    if limits.min < 0:
        found[2] = -found[2]
    return found


def reductions(dtype, exact=True):
    """Return all reductions of a matrix of this type along the first axis that the engine allows, by name."""
    x = L.variable(dtype, 2, "x")
    found = {}
    for name, result, acc in itertools.product(["sum", "prod"], [None, *DTYPES], [None, dtype, "float64"]):
        if acc == "float64" and dtype not in FLOATS and result not in FLOATS:
            continue  # casts of floats beyond an integer's range are undefined
        try:
            found[f"{name} {result} {acc}"] = getattr(T, name)(x, axis=0, dtype=result, acc_dtype=acc)
        except TypeError:
            pass  # the accumulator would lose precision
    found["any"], found["all"] = T.any(x, axis=0), T.all(x, axis=0)
    if dtype != "bool":
        found["max"] = x.max(axis=0)
    if dtype.startswith(("int", "float")):
        found["min"] = x.min(axis=0)
    product = T.dot(x.T, x)
    found["dot"], found["dot in float64"] = product, T.cast(product, "float64")
    found["max as float32"] = T.cast(T.any(x, axis=0) if dtype == "bool" else x.max(axis=0), "float32")
    if dtype in INTEGERS:
        found["mean of a sum"] = x.sum(axis=0, dtype=dtype) / x.shape[0]
        wider = "float64" if dtype == "uint64" else "int64"
        found["wider"] = T.cast(x.sum(axis=0, dtype=dtype) * np.array(2, dtype), wider)
        found["unsigned"] = T.cast(-T.cast(x.sum(axis=0, dtype=dtype), "uint8"), "float64")
    if dtype in INTEGERS and exact:  # otherwise, every rank would need the whole value in any type
        found["max as int8"] = T.cast(x.max(axis=0), "int8")
        found["less"] = T.cast(x.sum(axis=0, dtype=dtype) - T.cast(x.shape[1], dtype), wider)
    if dtype in FLOATS:
        found["mean truncated"] = x.mean(axis=0, dtype="int64")
        found["truncated"] = T.cast(x.sum(axis=0), "int32")
        found["truncated and added"] = T.cast(x.sum(axis=0), "int32") * 2 + 1
    return x, found


def verify(got, want, names, types=(), size=0):
    for name, value, expected in zip(names, got, want):
        expected = np.asarray(expected)
        assert value.dtype == expected.dtype, name
        if expected.dtype.kind == "f":
            types = [one for one in (*str(name).split(), *types, expected.dtype.name) if one in FLOATS]
            scale = max(np.finfo(one).eps for one in types)  # including accumulator types
            np.testing.assert_allclose(value, expected, rtol=4 * scale, atol=size * 1e-15, err_msg=str(name))
        else:
            np.testing.assert_array_equal(value, expected, err_msg=name)


def both(x, outputs, data, exact, **options):
    f = synk.function([x], list(outputs.values()), exact=exact, **FAST)
    with np.errstate(all="ignore"):
        want = L.function([x], list(outputs.values()), **FAST)(data)
        types = ["float32"] * (data.dtype in (np.float16, np.float32))
        verify(f(data, **options), want, outputs, types, abs(data).max())
    return f


@pytest.mark.parametrize("exact", [False, True], ids=["plain", "exact"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_reduction_is_the_serial_functions(threads, dtype, exact):
    if dtype in INTEGERS and not L.casts_wrap_around:
        pytest.skip("PyTensor 3.0 refuses such casts in Python code")
    x, outputs = reductions(dtype, exact)
    both(x, outputs, rows(dtype), exact)


@pytest.mark.parametrize("exact", [False, True], ids=["plain", "exact"])
def test_with_any_number_of_ranks(world, exact):
    for dtype in ("bool", "int32", "uint8", "float64"):
        x, outputs = reductions(dtype)
        names = ["sum None None", "sum int8 None", "prod int64 None", "dot in float64", "wider", "truncated and added"]
        both(x, {name: outputs[name] for name in names if name in outputs}, rows(dtype), exact)


@pytest.mark.parametrize("exact", [False, True], ids=["plain", "exact"])
@pytest.mark.skipif(not L.casts_wrap_around, reason="PyTensor 3.0 refuses such casts in Python code")
def test_floats_are_truncated_once(world, exact):
    x = T.dmatrix("x")
    outputs = [x.sum(axis=0, dtype="int64"), x.prod(axis=0, dtype="int32"), T.cast(x.sum(axis=0), "uint8")]
    f = synk.function([x], outputs, exact=exact, **FAST)
    got = f(abs(TRUNCATED))
    np.testing.assert_array_equal(got, [[3, 7, 3], [0, 7, 0], [3, 7, 3]])
    np.testing.assert_array_equal(f(TRUNCATED, output_subset=[0])[0], [3, 7, -3])


def rounded(x):
    """Return expressions that sum a vector of floats, whose parts may cancel, and round the result; by name."""
    narrow = {"float64": "float32", "float32": "float16", "float16": "float16"}[x.dtype]
    total = T.cast(x.sum(), narrow)
    return {
        "cast": total,
        "cast mean": T.cast(x.mean(), narrow),
        "sum": x.sum(dtype=narrow),
        "twice": 2 * total,
        "by rows": total / x.shape[0].astype(narrow),
        "of a column": T.cast(x.dimshuffle(0, "x").sum(axis=0), narrow).dimshuffle("x", 0),
        "of sums": T.cast(T.stack([x, 3 * x], axis=1).sum(axis=0), narrow).sum(),
        "difference": T.cast(x.sum(), narrow) - T.cast(2 * x.sum(), narrow),
    }


@pytest.mark.parametrize("exact", [False, True], ids=["plain", "exact"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_parts_are_rounded_once(world, dtype, exact):
    x = L.variable(dtype, 1, "x")
    outputs, data = rounded(x), np.array(CANCELLED[dtype], dtype)
    f = both(x, outputs, data, exact)
    expected = {"sum", "avg"} if not exact or world.n else set()
    assert set(f.output_modes) <= expected
    want = L.function([x], list(outputs.values()), **FAST)(data)
    if exact or dtype == "float64":
        verify(f(data, num_slices=2), want, outputs)
    steps = f.steps(data, n_steps=2)
    verify([step[1] for step in steps], want, outputs)
    assert [step.dtype for step in steps] == [value.dtype for value in want]
    if dtype == "float32" and not exact:
        return  # in single precision, the floats of each step have the function's type
    once = f.steps(data, batches=[slice(0, 3), slice(3, 5)], total=True, output_subset=[0, 2])
    verify(once, [want[0], want[2]], ["cast", "sum"])


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_of_exact_functions_are_put_together_in_the_type_of_their_accumulator(world, dtype):
    x, shared = L.variable(dtype, 1, "x"), L.shared(np.zeros((), dtype), "s")
    total, mean = x.sum(), x.mean()
    outputs = {"sum": total, "mean": mean, "square": T.sqr(mean), "double": 2 * total, "of rows": (x + total).max()}
    data = np.array(CANCELLED[dtype], dtype)
    both(x, outputs, data, True)
    f = synk.function([x], updates=[(shared, T.cast(shared * 0 + T.sqr(total) - mean, dtype))], exact=True, **FAST)
    expected = L.function([x], T.cast(shared * 0 + T.sqr(total) - mean, dtype), **FAST)(data)
    f(data)
    verify(synk.gather(shared, nd_up=1), [expected] * world.n, range(world.n), size=abs(data).max())
    f(data, num_slices=2)
    verify(synk.gather(shared, nd_up=1), [expected] * world.n, range(world.n), size=abs(data).max())


def test_what_is_not_rounded_is_computed_by_the_function_itself(threads):
    x, y = T.dvector("x"), T.fvector("y")
    f = synk.function([x, y], [x.sum(), x.mean(), y.mean(), T.gt(x, 0).mean()], **FAST)
    assert f.on_ranks is f.compiled
    g = synk.function([x], [x.sum(), T.cast(x.sum(), "float32")], **FAST)
    assert g.on_ranks is not g.compiled


def test_an_op_that_was_given_counts(threads):
    x = T.dvector("x")
    total = T.cast(x.sum(), "float32")
    f = synk.function([x], [(total, "sum"), (total, "max"), (total, "gather"), (x.sum(dtype="int64"), "sum")], **FAST)
    data = np.array(CANCELLED["float64"])
    got = f(data)
    parts = [data[:2].sum(), data[2:4].sum(), data[4:].sum()]  # (the root has no more rows than other ranks)
    assert got[0] == np.float32(data.sum())
    assert got[1] in [np.float32(part) for part in parts] or got[1].dtype == np.float32
    assert got[2].shape == (3,) and got[3].dtype == np.int64


def test_copies_and_pickles_of_a_function_round_once(threads):
    x = T.dvector("x")
    f = synk.function([x], [T.cast(x.sum(), "float32"), x.sum(dtype="int64")], **FAST)
    data = np.array(CANCELLED["float64"])
    want = L.function([x], [T.cast(x.sum(), "float32"), x.sum(dtype="int64")], **FAST)(data)
    for one in (f, f.copy(), pickle.loads(pickle.dumps(f))):
        verify(one(data), want, "ab")
        verify(one.as_theano(data), want, "ab")
    seen = []
    f.steps(data, n_steps=2, on_step=lambda i, outputs: seen.append(outputs[0].dtype))
    assert seen == [np.dtype("float32")] * 2
    assert f(data[:0])[0].dtype == np.float32
    assert f.compare(data)


def test_updates_of_a_plain_function_are_made_beside_rounded_outputs(threads):
    x, w = T.dvector("x"), L.shared(0.0, "w")
    f = synk.function([x], T.cast(x.sum(), "float32"), updates=[(w, w + x.sum())], exact=False, **FAST)
    data = np.array(CANCELLED["float64"])
    assert f(data) == np.float32(data.sum())
    np.testing.assert_allclose(synk.gather(w, nd_up=1).sum(), data.sum())


@pytest.mark.parametrize("exact", [False, True], ids=["plain", "exact"])
def test_whole_numbers_wrap_before_they_are_widened(world, exact):
    i = T.ivector("i")
    total = i.sum(dtype="int32")
    outputs = {
        "divided": total / i.shape[0],
        "widened": T.cast(total, "int64"),
        "squared": T.sqr(T.cast(total, "float64")),
        "negative": -T.cast(total, "int64"),
        "added": total + np.int64(1),
    }
    both(i, outputs, np.full(3, 10**9, "int32"), exact)


def test_counts_do_not_wrap(threads):
    """Counts do not overflow; ranks cast and divide their parts, so that functions need no collectives."""
    x, labels = T.dmatrix("x"), T.ivector("labels")
    hits = T.eq(T.argmax(x, axis=1), labels)
    counts = T.inc_subtensor(T.zeros((3,), "int64")[labels], 1)
    outputs = [hits.mean(), hits.sum() / labels.shape[0], 100 * hits.sum() / labels.shape[0]]
    outputs += [T.cast(hits.sum(), "float32"), labels.mean(), counts / labels.shape[0], x.size / 2]
    f = synk.function([x, labels], outputs, **FAST)
    assert f._variants.collectives is None
    data = np.random.RandomState(0).randn(7, 3), np.array([0, 1, 2, 0, 1, 1, 2], "int32")
    verify(f(*data), L.function([x, labels], outputs, **FAST)(*data), range(len(outputs)))


def test_bools_in_a_loop(threads):
    m = L.variable("bool", 3, "m")

    def step(one, before):
        return T.or_(before, T.dot(one.T, one)), T.cast(T.dot(one.T, one), "float64")

    start = T.zeros((2, 2), "bool")
    (last, each), _ = L.scan(step, sequences=[m.dimshuffle(1, 0, 2)], outputs_info=[start, None])
    data = np.random.RandomState(2).rand(5, 4, 2) > 0.5
    want = L.function([m], [last[-1], each.sum(axis=0)], **FAST)(data)
    for exact in (False, True):
        try:
            f = synk.function([m], [last[-1], each.sum(axis=0)], exact=exact, **FAST)
        except TypeError as error:
            assert not lacks(error.got, "whole")
        else:
            verify(f(data), want, "ab")


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
@pytest.mark.parametrize("exact", [False, True], ids=["plain", "exact"])
def test_positions_outside_the_rows_of_a_rank_are_refused(world, exact, dtype):
    """A position in another row of the same rank is accepted and has the serial value."""
    m, labels = T.dmatrix("m"), L.variable(dtype, 1, "labels")
    first = T.arange(m.shape[0]) * m.shape[1]
    data = np.arange(12.0).reshape(4, 3), np.array([2, 0, 1, 2], dtype)
    f = synk.function([m, labels], m.flatten()[first + labels], exact=exact, **FAST)
    np.testing.assert_array_equal(f(*data), [2, 3, 7, 11])
    for outputs in (m.flatten()[first - 1], T.inc_subtensor(m.flatten()[first - labels], 1.0)):
        g = synk.function([m, labels], outputs, exact=exact, on_unused_input="ignore", **FAST)
        with reports(AssertionError, "negative"):
            g(*data)
    if dtype == "int32":
        with reports(AssertionError, "negative"):
            f(data[0], -data[1])
    np.testing.assert_array_equal(f(data[0], np.array([5, 0, 1, 2], dtype)), [5, 3, 7, 11])
    if world.n > 1:
        with reports((AssertionError, synk.WorkerError), "too large"):
            f(data[0], np.array([2, 3, 1, 2], dtype))
    np.testing.assert_array_equal(f(*data), [2, 3, 7, 11])


def test_slices_of_what_needs_the_whole_are_refused(threads):
    x = T.dvector("x")
    f = synk.function([x], x.sum(dtype="int64"), name="f", **FAST)
    with refuses(ValueError, "num_slices", "1, because"):
        f(np.ones(7), num_slices=2)
    g = synk.function([x], x.sum(dtype="int64"), exact=True, **FAST)
    assert g(np.full(7, 0.6), num_slices=2) == 4


def test_products_over_rows_are_updates(world):
    x, w, count = T.dmatrix("x"), L.shared(np.zeros(3), "w"), L.shared(np.int64(3), "count")
    updates = [(w, w + x.prod(axis=0)), (count, count + T.cast(x.prod(), "int64"))]
    f = synk.function([x], updates=updates, exact=True, **FAST)
    data = np.random.RandomState(0).uniform(0.9, 2, (7, 3))
    f(data)
    np.testing.assert_allclose(synk.gather(w, nd_up=1), [data.prod(axis=0)] * world.n)
    f(data, num_slices=2)
    np.testing.assert_allclose(synk.gather(w, nd_up=1), [2 * data.prod(axis=0)] * world.n)
    assert list(synk.gather(count, nd_up=1)) == [3 + 2 * int(data.prod())] * world.n


@pytest.mark.filterwarnings("ignore:Casting complex values to real discards the imaginary part")
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int8", "bool"])
@pytest.mark.parametrize("reduce", ["sum", "prod"])
def test_reductions_of_complex_numbers_in_real_ones(threads, reduce, dtype, exact):
    """Reductions of complex numbers to a real type are correct; a product's real part is no product of real parts."""
    x = L.variable("complex64", 2, "x")
    try:
        total = getattr(T, reduce)(x, axis=0, dtype=dtype)
    except TypeError:
        pytest.skip("the library refuses them")
    w = L.shared(np.zeros(2, dtype), "w")
    updates = [(w, total)] if exact else []
    f = synk.function([x], [total], updates=updates, exact=exact, **FAST)
    value = np.array([[1 + 2j, 3 - 1j], [0.5 + 1j, 2 + 0j], [1 - 1j, 1 + 1j]], "complex64")
    (found,) = f(value)
    (expected,) = L.function([x], [total], **FAST)(value)
    np.testing.assert_allclose(found, expected)
    assert found.dtype == expected.dtype
    if exact:
        np.testing.assert_allclose(synk.gather(w, nd_up=1), [expected] * 3)
