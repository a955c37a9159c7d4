"""Functions on a mesh of JAX's devices; expected values come from NumPy. Run by test_mesh.py."""

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.raise_op import Assert
from pytensor.tensor.random.utils import RandomStream
from refusals import refuses, reports

import synkhronos as synk
from synkhronos.extensions import checkpoint
from synkhronos.extensions.rules import EASGD
from synkhronos.kernels import copy
from synkhronos.mesh.mesh import JaxMesh

ROWS = np.random.default_rng(0).normal(size=(24, 3))
SUMS = ROWS @ [1.0, -2.0, 3.0]
COUNTS = [24, 7, 1]  # with some of them, ranks have different numbers of rows, or none


@pytest.fixture
def n():
    """Return the number of ranks of a session on all devices; the program is the rank in the middle."""
    with synk.fork(devices="jax", master_rank=jax.local_device_count() // 2) as n:
        yield n


def variables():
    return pt.dmatrix("x"), pt.dvector("y"), pytensor.shared(np.zeros(3), "w")


def near(found, expected, tolerance=1e-12):
    assert type(found) is np.ndarray
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rows", COUNTS)
def test_every_op_of_outputs(n, rows):
    x, _, _ = variables()
    ops = [(x.mean(), "avg"), (x.sum(0), "sum"), (x.max(0), "max"), (x.min(), "min"), (x.prod(0), "prod")]
    f = synk.function([x], [*ops, (x * 2, "gather"), x.sum(1)])
    given = ROWS[:rows]
    expected = [given.mean(), given.sum(0), given.max(0), given.min(), given.prod(0), given * 2, given.sum(1)]
    for found, wanted in zip(f(given), expected):
        near(found, wanted)
    assert sum(f.last_rows) == rows
    for found, wanted in zip(f(synk.data(ROWS), batch=slice(0, rows), output_subset=[5, 0]), [given * 2, given.mean()]):
        near(found, wanted)


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("rows", COUNTS)
def test_exact_training(n, rows, slices):
    """Momentum with a normalized gradient, which needs the gradient of all rows."""
    x, y, w = variables()
    v, wanted, speed = pytensor.shared(np.zeros(3), "v"), np.zeros(3), np.zeros(3)
    loss = pt.sqr(x @ w - y).mean()
    gradient = pt.grad(loss, w)
    after = 0.9 * v + gradient / pt.sqrt(pt.sqr(gradient).sum() + 1)
    train = synk.function([x, y], loss, updates=[(v, after), (w, w - 0.1 * after)], exact=True)
    for k in range(4):
        chosen = np.random.default_rng(k).permutation(24)[:rows]
        errors = ROWS[chosen] @ wanted - SUMS[chosen]
        near(train(ROWS, SUMS, batch=chosen, num_slices=slices), (errors**2).mean())
        slope = 2 * ROWS[chosen].T @ errors / rows
        speed = 0.9 * speed + slope / np.sqrt((slope**2).sum() + 1)
        wanted = wanted - 0.1 * speed
    near(w.get_value(), wanted)
    assert synk.in_sync([w, v])
    near(synk.gather(w), [wanted] * n)


def test_every_rank_updates_from_its_own_rows(n):
    x, _, w = variables()
    f = synk.function([x], updates=[(w, w + x.sum(0))], exact=False)
    for rows in (24, 7):
        before = synk.gather(w)
        f(ROWS[:rows])
        bounds = np.cumsum([0, *f.last_rows])
        near(synk.gather(w), before + [ROWS[a:b].sum(0) for a, b in zip(bounds, bounds[1:])])
    synk.all_reduce(w, "sum")
    near(w.get_value(), ROWS.sum(0) + ROWS[:7].sum(0))


@pytest.mark.parametrize("total", [False, True])
def test_steps(n, total):
    x, y, w = variables()
    loss = pt.sqr(x @ w - y).mean()
    train = synk.function([x, y], [loss, (y, "gather")], updates=[(w, w - 0.1 * pt.grad(loss, w))], exact=True)
    batches = [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9], [5], [1, 3, 2, 8, 9, 10]]
    wanted, losses = np.zeros(3), []
    for batch in batches:
        errors = ROWS[batch] @ wanted - SUMS[batch]
        losses.append((errors**2).mean())
        wanted = wanted - 0.2 * ROWS[batch].T @ errors / len(batch)
    found, rows = train.steps(ROWS, SUMS, batches=batches, total=total)
    if total:
        near(found, np.average(losses, weights=list(map(len, batches))))
        near(rows, np.concatenate([SUMS[batch] for batch in batches]))
    else:
        near(found, losses)
        for one, batch in zip(rows, batches):
            near(one, SUMS[batch])
    near(synk.gather(w), [wanted] * n)
    seen = []
    train.steps(ROWS, SUMS, batches=batches, on_step=lambda i, outputs: seen.append(i) or i < 1)
    assert seen == [0, 1]


@pytest.mark.parametrize("rows", COUNTS)
def test_collectives_and_their_gradients(n, rows):
    x, _, _ = variables()
    mean = synk.ops.all_reduce(x.mean())
    f = synk.function(
        [x], [pt.sqr(mean), (pt.grad(pt.sqr(mean), x), "gather"), (x - synk.ops.all_reduce(x.max(), "max"), "gather")]
    )
    given = ROWS[:rows]
    square, gradient, below = f(given)
    near(square, given.mean() ** 2)
    near(below, given - given.max())
    own = np.repeat(f.last_rows, f.last_rows)[:, None]  # the gradient of a rank's own mean
    near(gradient, 2 * given.mean() / (3 * own) * np.ones((rows, 3)))


@pytest.mark.parametrize("rows", COUNTS)
def test_products_over_all_rows(n, rows):
    """Collectives of floats, of integers that wrap around, and of bools."""
    x, i, b = pt.dmatrix("x"), pt.matrix("i", dtype="int8"), pt.matrix("b", dtype="bool")
    f = synk.function([x, i, b], [1 + x.prod(0), pt.prod(i, 0, dtype="int8") // 2, 2 * pt.all(b, 0)], exact=True)
    numbers, bools = (ROWS[:rows] * 4).astype("int8") | 1, ROWS[:rows] > -2
    bools[rows // 2, 0] = False
    found = f(ROWS[:rows], numbers, bools)
    near(found[0], 1 + ROWS[:rows].prod(0))
    near(found[1], numbers.prod(0).astype("int8") // 2, 0)
    near(found[2], 2 * bools.all(0), 0)


@pytest.mark.parametrize("rows", [24, 7])
def test_shares_of_rows(n, rows):
    s = pytensor.shared(ROWS[:rows], "s")
    part = synk.ops.shard(s)
    f = synk.function([], [part.sum(0), synk.ops.all_reduce(part.mean()), (part, "gather")])
    for _ in range(2):
        for found, wanted in zip(f(), [ROWS[:rows].sum(0), ROWS[:rows].mean(), ROWS[:rows]]):
            near(found, wanted)
    assert sum(f.last_rows) == rows and max(f.last_rows) - min(f.last_rows) <= 1
    gradient = synk.function([], pt.grad(pt.sqr(part).sum(), s), exact=True)
    near(gradient(), 2 * ROWS[:rows])


def test_rows_of_shared_variables(n):
    s = pytensor.shared(np.zeros((0, 3)), "s")
    synk.scatter(s, ROWS)
    f = synk.function([], [s.sum(0), (s.max(), "max")], sliceable_shareds=[s])
    for slices in (1, 2):
        found = f(num_slices=slices)
        near(found[0], ROWS.sum(0))
        near(found[1], ROWS.max())
    parts = np.split(ROWS, n)
    near(f(batch_shared=[1, 0])[0], np.sum([part[:2].sum(0) for part in parts], 0))


def test_empty_arrays_and_no_arguments(n):
    x = pt.dmatrix("x")
    f = synk.function([x], [x.sum(), (x, "gather")])
    for found, wanted in zip(f(ROWS[:0]), [0.0, ROWS[:0]]):
        near(found, wanted)
    near(synk.function([], pt.arange(3.0).sum())(), 3.0)
    w = pytensor.shared(0.0, "w")
    synk.function([], updates=[(w, synk.ops.all_reduce(pt.constant(np.array(2.0)), "sum"))])()
    near(synk.gather(w), [2.0 * n] * n)


@pytest.mark.parametrize("batch", [None, 7, slice(3, 9), slice(None, None, -2), [5, 1, 7, 2, 11, 0]], ids=str)
def test_data_on_devices(n, batch, monkeypatch):
    """Calls select rows on the device: only the rows' numbers are sent."""
    x, _, _ = variables()
    data = synk.data(ROWS, device=True)
    f = synk.function([x], [x.sum(0), (x, "gather")])
    selected = ROWS[: batch if isinstance(batch, int) else len(ROWS)]
    selected = selected if batch is None or isinstance(batch, int) else ROWS[batch]
    sent, put = [], JaxMesh.put

    def record(self, values, rank):
        sent.extend(value.size for value in values if not isinstance(value, jax.Array))
        return put(self, values, rank)

    for call in (1, 2):
        found = f(data, batch=batch)
        near(found[0], selected.sum(0))
        near(found[1], selected)
        monkeypatch.setattr(JaxMesh, "put", record)
        assert call == 1 or sent == []
    near(f(data, num_slices=2)[0], ROWS.sum(0))
    near(f.steps(data, batches=[[0, 1, 2], [3, 4, 5]])[0], [ROWS[:3].sum(0), ROWS[3:6].sum(0)])


def test_data_on_devices_is_constant(n):
    data = synk.data(ROWS, device=True)
    assert data.constant
    with pytest.raises(synk.StateError):
        data[0] = 1
    with refuses(ValueError, argument="device", got="True"):
        synk.data(shape=(2, 3), device=True)
    with refuses(TypeError, argument="device", got="'gpu'"):
        synk.data(ROWS, device="gpu")


def test_random_numbers(n):
    x, _, w = variables()
    stream = RandomStream(3)
    noise = stream.normal(size=x.shape)
    f = synk.function([x], (noise, "gather"))
    first, second = f(np.zeros((24, 3))), f(np.zeros((24, 3)))
    assert len(np.unique([first, second])) == 2 * 24 * 3  # every rank draws its own numbers in every call
    assert abs(first.mean()) < 0.5 and 0.7 < first.std() < 1.3
    common = synk.function([x], updates=[(w, w + stream.uniform(size=3) * x.mean(0))], exact=True)
    for _ in range(3):
        common(np.ones((24, 3)))
    assert synk.in_sync(w) and 0 < w.get_value().min() and w.get_value().max() < 3
    states = [synk.get_value(f.get_shared()[0], rank).bit_generator.state["state"]["state"] for rank in range(n)]
    assert len(set(states)) == n


def test_rules_of_communication(n):
    """EASGD: the ranks' parameters and a center attract each other after every second step."""
    x, y, w = variables()
    f = synk.function([x, y], updates=[(w, w - 0.1 * pt.grad(pt.sqr(x @ w - y).mean(), w))], exact=False)
    rule = EASGD(f, [w], every=2, alpha=0.2)
    own, center = np.zeros((n, 3)), np.zeros(3)
    for step in range(4):
        f(ROWS, SUMS)
        rule()
        for rank, (rows, sums) in enumerate(zip(np.split(ROWS, n), np.split(SUMS, n))):
            own[rank] -= 0.2 * rows.T @ (rows @ own[rank] - sums) / len(rows)
        if step % 2:
            own, center = own - 0.2 * (own - center), center + 0.2 * (own - center).sum(0)
    near(synk.gather(w), own)
    synk.broadcast(w)


def test_checkpoints(n, tmp_path):
    x, _, w = variables()
    f = synk.function([x], updates=[(w, w + x.sum(0))], exact=False)
    f(ROWS)
    before = synk.gather(w)
    checkpoint.save(str(tmp_path / "values.npz"), [w])
    f(ROWS)
    checkpoint.load(str(tmp_path / "values.npz"), [w])
    near(synk.gather(w), before)


def test_comparison_and_placements(n):
    x, y, w = variables()
    loss = pt.sqr(x @ w - y).mean()
    train = synk.function([x, y], loss, updates=[(w, w - 0.1 * pt.grad(loss, w))], exact=True)
    assert train.compare(ROWS, SUMS) and train.compare(ROWS[:7], SUMS[:7])
    assert train.sharding().nbytes == [24]
    assert synk.traffic()["ops.all_reduce"].read == [2 * 24 * (n - 1) / n] * n


def test_numbers_keep_their_types(n):
    """JAX alone would compute in 32 bits, or promote float32 to float64."""
    for dtype in ("float32", "float64", "int64", "int8", "complex128", "bool"):
        x = pt.vector("x", dtype=dtype)
        given = np.arange(6).astype(dtype)
        f = synk.function([x], [(x, "gather"), (x[:1].sum(), None)])
        serial = pytensor.function([x], [x, x[:1].sum()])
        for found, wanted in zip(f(given), serial(given)):
            assert found.dtype == wanted.dtype
        near(f(given)[0], given)
    big = pt.lvector("big")
    near(synk.function([big], big + 1)(np.array([2**40] * 3)), [2**40 + 1] * 3)


def test_values_for_the_program(n):
    """The program's own functions, and `get_value`, see NumPy's arrays, even after the session."""
    x, _, w = variables()
    f = synk.function([x], updates=[(w, w + x.sum(0))], exact=True)
    own = pytensor.function([], w * 2, updates=[(w, w + 1)])
    f(ROWS)
    near(own(), 2 * ROWS.sum(0))
    near(w.get_value(borrow=True), ROWS.sum(0) + 1)
    f(ROWS)
    near(synk.gather(w), [2 * ROWS.sum(0) + 1] * n)
    w.set_value(np.ones(3))
    f(ROWS)
    synk.close()
    assert type(w.container.storage[0]) is np.ndarray
    near(w.get_value(), ROWS.sum(0) + 1)


def test_results_belong_to_the_program(n):
    x, _, w = variables()
    f = synk.function([x], [(x, "gather"), (w, None)], updates=[(w, w + 1)])
    rows, before = f(ROWS)
    rows += 1
    before += 1
    f(ROWS)
    near(before, np.ones(3))
    near(w.get_value(), [2.0] * 3)


def test_mixed_types_are_computed_in_pytensors_types(n):
    """JAX alone would compute the first three in float32."""
    x, i, small = pt.fvector("x"), pt.lvector("i"), pt.bvector("small")
    floats, integers = np.float32(1.83) * np.arange(1, 7, dtype="float32"), 2**27 + 1 + np.arange(6)
    outputs = [x * i, pt.switch(small, x, i), pt.stack([x, i]).T, pt.sqrt(small)]
    f = synk.function([x, i, small], [(one, "gather") for one in outputs] + [(pt.sum(x, dtype="float64"), "sum")])
    found = f(floats, integers, np.array([1, 0] * 3, "int8"))
    wide = floats.astype("float64")
    near(found[0], wide * integers, 1e-15)
    near(found[1], np.where([1, 0] * 3, wide, integers), 0)
    near(found[2], np.stack([wide, integers]).T, 0)
    assert found[3].dtype == outputs[3].dtype
    near(found[4], wide.sum(), 1e-15)


def test_large_values_are_gathered_from_devices(n, monkeypatch):
    """Values from a quarter of the cache on are copied by a kernel, which needs arrays on the host."""
    monkeypatch.setattr(copy, "CACHE_BYTES", 4)
    x, w = pt.dvector("x"), pytensor.shared(np.zeros((5, 3)), "w")
    f = synk.function([x], x.mean(), updates=[(w, w + x.mean())], exact=True)
    for i in (1, 2, 3):  # the value is on the devices after each call
        f(np.ones(2 * n))
        near(synk.gather(w), np.full((n, 5, 3), float(i)))
        for rank in range(n):
            f(np.zeros(2 * n))
            near(synk.get_value(w, rank), np.full((5, 3), float(i)))
        f(np.zeros(2 * n))
        assert synk.in_sync(w)


def test_checks_of_shapes(n):
    """Every rank's share must fill whole rows of the new shape."""
    x, w = pt.dmatrix("x"), pytensor.shared(0.0, "w")
    f = synk.function([x], x.reshape((pt.prod(x.shape) // 6, -1)), updates=[(w, w + x.sum())], exact=True)
    with reports(AssertionError, "lengths", "equal"):
        f(ROWS)
    assert synk.gather(w).tolist() == [0.0] * n
    near(f(np.repeat(ROWS, 2, axis=1)), np.repeat(ROWS, 2, axis=1))


def test_shapes_computed_from_shapes(n):
    x = pt.dmatrix("x")
    length = pt.switch(pt.lt(x.shape[1], 5), x.shape[1] * 2, 1)
    f = synk.function([x], [(x.sum(0)[None].repeat(2, 0).reshape((length,)), "sum")])
    near(f(ROWS)[0], np.tile(ROWS.sum(0), 2))


def test_omitted_checks_are_announced(n, caplog):
    """JAX cannot raise an error that depends on values."""
    x = pt.dvector("x")
    f = synk.function([x], Assert("all are positive")(x, pt.all(x > 0)).sum(), exact=True, name="checked")
    (record,) = [each for each in caplog.records if each.name == "synkhronos"]
    assert record.levelname == "WARNING" and "checked" in record.getMessage()
    assert "all are positive" in record.getMessage()
    near(f(SUMS), SUMS.sum())
    with reports(AssertionError, "all are positive"):
        f.as_theano(SUMS)


def test_checks_of_shapes_are_not_announced(n, caplog):
    x, y = pt.dmatrix("x"), pt.dvector("y")
    f = synk.function([x, y], Assert("equal lengths")(y, pt.eq(x.shape[0], y.shape[0])).sum(), exact=True)
    near(f(ROWS, SUMS), SUMS.sum())
    assert not [each for each in caplog.records if each.name == "synkhronos"]
