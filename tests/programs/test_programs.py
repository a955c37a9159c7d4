"""Any program of this interface gives the serial answer: random programs, and the bugs that they must find.

A *draw* is one step of a program, a call of a function or a collective, with its checks: what it returns, and the
values of all shared variables on all ranks, are the serial program's. `recipes` are the functions, `truth` is the serial
program (NumPy alone), `steps` draws and takes steps, `protocol` puts them together. ``make prove`` draws 100,000.

To show that it can fail, `bugs` plants ten, one at a time, and each must be found:

1. weights forgotten: averages of averages
2. off-by-one partition: a row on the wrong rank
3. update per slice: instead of once, from the original values
4. stale variant: a graph that is compiled later has old values
5. lost default update: in slices
6. wrong op on the last slice
7. wrong root: rank 0's value is broadcast, whoever is the master
8. batch applied twice: to minibatch Data
9. gather order: the last rank first
10. swapped updates: two variables of a type
"""

import gc
from collections import Counter

import bugs
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from library import Library
from protocol import Wrong, random_program, replay, seeded_program
from recipes import RECIPES
from steps import Call, Collective

import synkhronos as synk


@pytest.fixture(scope="module")
def library():
    """From an engine's name to its functions, built once; gone at the end, or other tests would distribute them."""
    made = {}

    def library(engine):
        if engine not in made:
            made[engine] = Library(engine)
        return made[engine]

    yield library
    made.clear()
    gc.collect()


@pytest.fixture(autouse=True)
def closed():
    yield
    synk.close()


def features(step):
    """Return what a step uses of the interface."""
    if isinstance(step, Call):
        found = [step.how, "function " + step.recipe]
        for option, value in step.options.items():
            found += [option, f"{option} of {type(value).__name__}"]
        return found + [value.form for value in step.given.values()]
    if isinstance(step, Collective):
        return [step.name] + [
            "{} {}".format(step.name, option if option in ("batch", "weights") else value)
            for option, value in step.options.items()
        ]
    return [type(step).__name__]


def check(library, launcher, seeds, seen=lambda step: None):
    """Draw a program of 100 steps from each seed, and two of 20 by hypothesis."""
    for seed in range(seeds):
        seeded_program(seed, library, launcher, 100, on_step=seen)

    @settings(
        max_examples=2 * seeds,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(st.randoms(use_true_random=False))
    def run(choices):
        random_program(choices, library, launcher, 20, on_step=seen)

    run()


def test_threads(library):
    """1,400 draws, in which all functions, options, forms of arguments and collectives stand."""
    seen = Counter()
    check(library("numpy"), "threads", 10, lambda step: seen.update(features(step)))
    wanted = ["function " + recipe.name for recipe in RECIPES] + ["call", "as_theano", "Put", "Distribute"]
    wanted += ["batch of " + kind for kind in ("int", "slice", "list", "tuple", "ndarray", "range")]
    wanted += ["batch_s of list", "batch_s of slice", "num_slices", "output_subset"]
    wanted += ["array", "list", "view", "data", "minibatch"]
    wanted += [
        "broadcast",
        "scatter",
        "scatter batch",
        "set_value batch",
        "gather 0",
        "gather 1",
        "all_gather",
        "all_reduce weights",
        "get_value",
        "get_lengths",
        "get_shapes",
        "in_sync",
    ]
    wanted += [f"{name} {op}" for name in ("reduce", "all_reduce") for op in ("avg", "sum", "prod", "min", "c_max")]
    assert not set(wanted) - set(seen)
    assert len(RECIPES) >= 60


def test_processes(library):
    """280 draws."""
    check(library("numpy"), "fork", 2)


@pytest.mark.theano
def test_processes_of_theano(library):
    """420 draws."""
    pytest.importorskip("theano")
    check(library("theano"), "fork", 3)


@pytest.mark.parametrize("bug", bugs.BUGS, ids=lambda bug: bug.__name__)
def test_planted_bug_is_found(monkeypatch, bug):
    """Within 2,000 draws; the program that shows it is made short, and without the bug it is right."""
    bug(monkeypatch)
    library = Library("numpy")
    with pytest.raises(Wrong) as found:
        for seed in range(50):
            seeded_program(seed, library, "threads", 40)
    program = found.value.program
    assert len(program.steps) <= 3, found.value
    monkeypatch.undo()
    program.library = Library("numpy")
    assert replay(program, program.steps) is None
