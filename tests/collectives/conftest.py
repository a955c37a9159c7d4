"""Fixtures shared by the tests of collectives."""

import pytest
import table
from refusals import is_local

import synkhronos as synk
from synkhronos.errors import ArgumentError


@pytest.fixture(params=table.PLACES, ids=lambda place: "{}-root{}".format(*place))
def threads(request, make_world):
    """Return a world of threads with the NumPy engine, for each number of ranks and each root."""
    return make_world("threads", *request.param)


@pytest.fixture
def three(make_world):
    """Return a world of three threads whose master is the middle rank."""
    return make_world("threads", 3, 1)


@pytest.fixture
def differing():
    """Return a function that makes variables whose values differ between ranks, and returns both."""

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
    """Return a function that checks an error, and that a correct call works right after it.

    Each keyword argument consists of one or several texts that the error's field of that name must contain. If the
    error has no fields (`StateError`, and errors of engines and ops), its message must contain them.
    """

    def check(world, error, call, **fields):
        with pytest.raises(error) as caught:
            call()
        raised = caught.value
        assert is_local(raised, error)
        for name, wanted in fields.items():
            text = (getattr(raised, name) or "") if isinstance(raised, ArgumentError) else str(raised)
            for words in [wanted] if isinstance(wanted, str) else wanted:
                assert words in text, f"{name}: {text!r} lacks {words!r}"
        probe = world.shared(table.value("float64", (3,)), "probe")
        parts = [table.value("float64", (3,), rank, seed=7) for rank in range(world.n)]
        world.set_values(probe, parts)
        synk.all_reduce(probe, "max")
        table.assert_same_bits(world.values(probe), table.expected("max", parts))

    return check
