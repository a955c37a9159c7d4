"""Programs of many kinds, parallel by `synk.function(..., exact=True)` in place of `theano.function`.

Each is trained for some steps as it is, in plain Theano, and on ranks, from the same values with the same batches: the
number of rows is uneven, and the last batch of an epoch is smaller. Draws, such as dropout masks, are inputs of both.
"""

import numpy as np
import pytest
from worlds import needs_lasagne

import synkhronos as synk

pytestmark = [
    pytest.mark.theano,
    needs_lasagne,
    pytest.mark.filterwarnings("ignore:.*corr_gemm.c:pytest.PytestUnraisableExceptionWarning"),  # Theano leaves it open
]
theano = pytest.importorskip("theano")
lasagne = pytest.importorskip("lasagne")

import convolutional  # noqa: E402
import dense  # noqa: E402
import generative  # noqa: E402
import recurrent  # noqa: E402
from corpus import Program, batches  # noqa: E402

STEPS = 20
#: Of the way that a parameter went.
TOLERANCE = 1e-5

PROGRAMS = [*dense.PROGRAMS, *convolutional.PROGRAMS, *recurrent.PROGRAMS, *generative.PROGRAMS]


def built(program):
    """Return a program's functions: one, or several that are called one after another."""
    lasagne.random.set_rng(np.random.RandomState(0))
    found = program()
    return [found] if isinstance(found, Program) else list(found)


def variables_of(programs):
    """Return everything that is trained, and then the other targets of updates."""
    found = []
    for program in programs:
        for variable in [*program.params, *dict(program.updates)]:
            if variable not in found:
                found.append(variable)
    return found


def train(functions, programs):
    """Call one function after another, each for its steps; return all outputs."""
    return [f(*batch) for f, program in zip(functions, programs) for batch in batches(program.data, STEPS)]


def distance(values, others):
    """Return the largest difference of two values."""
    return np.abs(np.asarray(values) - others).max()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_program(program, make_world):
    make_world("threads", 3, 1, engine="theano")
    check(program)


def check(program):
    """Train by both, and compare outputs after each step, and all variables on all ranks in the end."""
    serial, ours = built(program), built(program)
    mode = getattr(program, "mode", "FAST_COMPILE")
    functions = [synk.function(p.inputs, p.outputs, updates=p.updates, exact=True, mode=mode) for p in ours]
    plain = [
        theano.function(
            p.inputs,
            [output[0] if isinstance(output, tuple) else output for output in p.outputs],
            updates=p.updates,
            mode=mode,
        )
        for p in serial
    ]
    before = [variable.get_value() for variable in variables_of(serial)]
    for ours_before, value in zip(variables_of(ours), before):
        np.testing.assert_array_equal(ours_before.get_value(), value)
    for got, want in zip(train(functions, ours), train(plain, serial)):
        for one, other in zip(got, want):
            np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=1e-9)
    params = [param for p in serial for param in p.params]
    for variable, mine, start in zip(variables_of(serial), variables_of(ours), before):
        end = variable.get_value()
        way = distance(end, start)
        assert way > 0 or variable not in params, f"{variable} was not trained"
        for rank, value in enumerate(np.atleast_1d(synk.gather(mine, nd_up=1))):
            assert distance(value, end) <= TOLERANCE * way, f"{variable} on rank {rank}"
