import numpy as np
import pytest
import table

import synkhronos as synk


def test_in_sync(world, differing):
    variables = world.shareds([table.value(dtype, shape) for dtype in table.DTYPES for shape in ((), (2, 3), (0, 2))])
    report = synk.in_sync(variables)
    assert report and repr(report) == "in sync" and report.differences == {}
    if world.n > 1:
        world.set_values(
            variables[1], [np.arange(6).reshape(2, 3) % 2 == (rank != world.root) for rank in range(world.n)]
        )
        report = synk.in_sync(tuple(variables))
        assert not report
        assert list(report.differences) == ["v1"]
        assert set(report.differences["v1"]) == set(range(world.n)) - {world.root}
        synk.broadcast(variables)
    assert synk.in_sync(variables[1])


@pytest.mark.parametrize("dtype", table.DTYPES)
def test_tells_which_rank_and_where(three, dtype):
    value = np.zeros((3, 4), dtype)
    other = value.copy()
    other[1, 2] = other[2, 0] = 1
    W, b = three.shareds([value, value], ["W", "b"])
    three.set_values(W, [value, value, other])
    report = synk.in_sync([W, b])
    assert not report
    assert list(report.differences) == ["W"] and list(report.differences["W"]) == [2]
    assert "in 2 of 12 elements, first at index (1, 2)" in report.differences["W"][2]
    assert "W differs on rank 2" in repr(report)


def test_shapes_that_differ(three):
    W = three.shared(np.zeros((2, 2)), "W")
    three.set_values(W, [np.zeros((2, 2)), np.zeros((2, 2)), np.zeros((1, 2))])
    assert "in shape: float64 (1, 2) instead of float64 (2, 2)" in repr(synk.in_sync(W))
    three.set_values(W, [np.zeros((2, 2)), np.zeros((2, 2)), np.zeros((2, 2), "float32")])
    assert "in dtype: float32 (2, 2) instead of float64 (2, 2)" in repr(synk.in_sync(W))


def test_bits_are_compared(three):
    """NaN is in sync with NaN, but 0.0 is not in sync with -0.0."""
    W = three.shared(np.array([np.nan, 0.0]), "W")
    assert synk.in_sync(W)
    three.set_values(W, [[np.nan, 0.0], [np.nan, 0.0], [np.nan, -0.0]])
    report = synk.in_sync(W)
    assert not report and "(1,)" in repr(report)


def test_large(make_world):
    world = make_world("fork", 2)
    value = np.zeros(1_000_003, "float32")
    W = world.shared(value, "W")
    assert synk.in_sync(W)
    other = value.copy()
    other[999_999] = 1e-30
    world.set_values(W, [value, other])
    assert "(999999,)" in repr(synk.in_sync(W))
