"""What the tests of the collectives have in common."""

import pytest
import table

import synkhronos as synk
from synkhronos.errors import ArgumentError


@pytest.fixture(params=table.PLACES, ids=lambda place: "{}-root{}".format(*place))
def threads(request, make_world):
    """Ranks as threads, with the NumPy engine: every number of ranks and every root in turn."""
    return make_world("threads", *request.param)


@pytest.fixture
def three(make_world):
    """Three ranks as threads, of which the master is the middle one."""
    return make_world("threads", 3, 1)


@pytest.fixture
def differing():
    """Return a function that makes variables with another value on every rank, and returns both."""

    def make(world, dtypes, shapes):
        kinds = [(dtype, shape) for dtype in dtypes for shape in shapes]
        variables = world.shareds([table.value(dtype, shape) for dtype, shape in kinds])
        parts = [[table.value(dtype, shape, rank) for rank in range(world.n)] for dtype, shape in kinds]
        for variable, values in zip(variables, parts):
            world.set_values(variable, values)
        return variables, parts

    return make


@pytest.fixture
def refused():
    """Return a function that checks an error and that a correct call works right after it."""

    def check(world, error, words, call):
        with pytest.raises(error) as caught:
            call()
        assert isinstance(caught.value, ArgumentError), f"{caught.value!r} has no fields"
        for word in words if isinstance(words, (list, tuple)) else [words]:
            assert word in str(caught.value), str(caught.value)
        probe = world.shared(table.value("float64", (3,)), "probe")
        parts = [table.value("float64", (3,), rank, seed=7) for rank in range(world.n)]
        world.set_values(probe, parts)
        synk.all_reduce(probe, "max")
        table.assert_same_bits(world.values(probe), table.expected("max", parts))

    return check
