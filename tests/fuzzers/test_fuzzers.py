"""Random models in the style of users' programs (`fuzz_pytensor`, `fuzz_theano`): exact functions return the serial results.

``make prove`` draws thousands of them.
"""

import importlib

import pytest
from fuzz_check import Tally, Wrong, check
from fuzz_program import Author, Program
from fuzz_shrinking import smallest
from library import NAME, L

from synkhronos.sharding import placements

library = importlib.import_module(f"fuzz_{NAME}")
pytestmark = [getattr(pytest.mark, NAME), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def python_code():
    """Run Python code; ``make prove`` also compiles functions, and applies all rewrites."""
    with L.compiled_quickly():
        yield


def models(seed, number):
    """Return random programs."""
    found = (Author(library, seed, i).program() for i in range(number))
    return [program for program in found if program is not None]


@pytest.mark.parametrize("seed", range(2))
def test_random_models(seed):
    tally = Tally()
    for program in models(f"test {seed}", 6):
        check(program, library, tally)
    assert tally.counts["values"] > 20, "nearly all programs were refused"


def test_the_same_seed_draws_the_same_program():
    one, other = models("same", 3), models("same", 3)
    assert one == other and all(isinstance(program, Program) for program in one)
    assert [program.text(library) for program in one] == [program.text(library) for program in other]


def test_a_planted_fault_is_found_and_reduced(monkeypatch):
    """With sums instead of averages weighted by rows, a mean over rows is wrong."""
    monkeypatch.setattr(placements.Partial, "reduction", property(lambda self: self.op))
    for program in models("planted", 60):
        try:
            check(program, library, Tally())
        except Wrong as wrong:
            small, found = smallest(program, wrong, library, attempts=30)
            assert len(small.lines) <= len(program.lines) and len(small.calls) == 1
            assert "instead of" in found.what or "differs" in found.what
            return
    pytest.fail("no program was wrong")
