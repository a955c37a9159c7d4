"""Unmodified programs that change variables between calls, with `synk.function(..., exact=True)` for ``function``."""

import functools

import driven
import numpy as np
import pytest
from library import NAME, L

import synkhronos as synk

pytestmark = [getattr(pytest.mark, NAME), pytest.mark.timeout(300), pytest.mark.thorough]

#: Relative to the largest element of a value.
TOLERANCE = 1e-7


def serial(inputs, outputs=None, whole=(), updates=None, givens=None):
    """Call the library's ``function``, with the parameters of ours."""
    return L.function(
        [*inputs, *whole], outputs, updates=updates, givens=givens, mode=L.quick, on_unused_input="ignore"
    )


ours = functools.partial(synk.function, exact=True, mode=L.quick, on_unused_input="ignore")


def differences(program, function):
    """Run a program serially and on ranks; return the largest relative differences of numbers and of variables."""
    want, variables = program(serial)
    got, others = program(function)
    assert len(got) == len(want)

    def of(one, other):
        assert np.shape(one) == np.shape(other)
        return np.max(np.abs(np.asarray(one, float) - other), initial=0) / max(np.max(np.abs(other), initial=0), 1e-3)

    function([], [other.sum() for other in others])()  # (the values set at the end reach the ranks with a command)
    of_variables = [
        of(value, variable.get_value())
        for variable, other in zip(variables, others)
        for value in (*synk.gather(other), other.get_value())
    ]
    return max(map(of, got, want)), max(of_variables)


@pytest.mark.parametrize("program", driven.PROGRAMS, ids=lambda program: program.__name__)
def test_program(program, make_world):
    make_world("threads", 3, 1, engine=NAME)
    of_numbers, of_variables = differences(program, ours)
    assert of_numbers <= TOLERANCE and of_variables <= TOLERANCE


@pytest.mark.parametrize("program", [driven.fitted_with_schedule, driven.conjugate_gradients])
def test_program_on_processes(program, make_world):
    make_world("fork", 2, 0, engine=NAME)
    of_numbers, of_variables = differences(program, ours)
    assert of_numbers <= TOLERANCE and of_variables <= TOLERANCE
