"""Random programs give the serial program's results, and find planted bugs.

A *draw* is one step of a program, a call of a function or a collective. Its results, and the values of all shared
variables on all ranks, are compared with the serial program's. `recipes` has the functions, `truth` the serial program
(NumPy alone), `steps` draws and takes steps, and `protocol` combines them. ``make prove`` draws 100,000 steps.

To show that the tests can fail, `bugs` plants bugs, one at a time. Each must be found by a wrong value or a missing
refusal. Among them are mistakes of the original library of 2017 that a program can reveal.
"""

import gc
import os
import random
import re
import subprocess
import sys
import traceback
from collections import Counter

import bugs
import pytest
from refusals import reports

pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from protocol import Raised, Wrong, random_program, replay, seeded_program, shortest  # noqa: E402
from recipe_library import Library  # noqa: E402
from recipes import BY_NAME, DATA, OF_ENGINE, RECIPES  # noqa: E402
from steps import WAYS, Call, Collective, Put  # noqa: E402

from synkhronos.calls import division  # noqa: E402
from synkhronos.program.program import PROGRAM  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def library():
    """A function that returns an engine's `Library`, built once; deleted so that other tests do not send it."""
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
    PROGRAM.close()


def features(step):
    """Return the features of the interface that a step uses."""
    if isinstance(step, Call):
        found = [step.how, "function " + step.recipe]
        for option, value in step.options.items():
            found += [option, f"{option} of {type(value).__name__}"]
        recipe, used = BY_NAME[step.recipe], [step.how, *step.options]
        if recipe.collectives:
            found += [f"collectives inside, with {option}" for option in used]
        if recipe.exact:
            found += [f"exact, with {option}" for option in used]
        if not all(output.given for output in recipe.outputs):
            found += [f"without ops, with {option}" for option in used]
        if recipe.states:
            found += [f"states, with {option}" for option in used]
        if recipe.rows:
            found += [f"written rows, with {option}" for option in used]
        return found + [value.form for value in step.given.values()]
    if isinstance(step, Collective):
        return [step.name] + [
            "{} {}".format(step.name, value if option in ("op", "nd_up", "in_place") else option)
            for option, value in step.options.items()
        ]
    return [type(step).__name__, *(["put by " + step.way] if isinstance(step, Put) else [])]


def check(library, launcher, seeds, seen=lambda step: None):
    """Draw a program of 100 steps from each seed, and twice as many of 20 steps with hypothesis."""
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


@pytest.mark.thorough
def test_threads(library):
    """2,560 draws include all functions, options, forms of arguments and collectives."""
    seen = Counter()

    def note(step):
        seen.update(features(step))

    check(library("numpy"), "threads", 14, note)
    for seed in range(14, 20):  # the draws of hypothesis also depend on the imported modules
        seeded_program(seed, library("numpy"), "threads", 100, on_step=note)
    wanted = ["function " + recipe.name for recipe in OF_ENGINE["numpy"]] + ["call", "as_theano", "Put", "Distribute"]
    wanted += ["Save", "Load"]
    wanted += ["batch of " + kind for kind in ("int", "slice", "list", "tuple", "ndarray", "range")]
    wanted += ["batch_s of list", "batch_s of slice", "num_slices", "output_subset"]
    wanted += ["steps", "batches", "batches_s", "n_steps"]
    wanted += [
        f"{what}, with {used}"
        for what in ("collectives inside", "exact", "without ops")
        for used in ("call", "steps", "as_theano", "batch", "batch_s", "num_slices", "output_subset")
    ]
    wanted += [f"states, with {used}" for used in ("call", "steps", "as_theano", "batch", "output_subset")]
    wanted += ["array", "list", "view", "data", "minibatch"] + ["put by " + way for way in WAYS]
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
    wanted += [f"all_reduce {option}" for option in ("groups", "into", "wait")] + ["Wait"]
    wanted += [f"{name} {op}" for name in ("reduce", "all_reduce") for op in ("avg", "sum", "prod", "min", "c_max")]
    assert sorted(set(wanted) - set(seen)) == []
    assert len(RECIPES) >= 60


@pytest.mark.thorough
def test_processes(library):
    """Check 280 draws."""
    check(library("numpy"), "fork", 2)


def test_hosts(library):
    """Check 40 draws over two hosts."""
    random_program(random.Random("hosts"), library("numpy"), "hosts", 40, sizes=(3,))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "engine", [pytest.param(engine, marks=getattr(pytest.mark, engine)) for engine in ("theano", "pytensor")]
)
def test_processes_of_graphs(library, engine):
    """Check 420 draws."""
    seen = Counter()
    check(library(engine), "fork", 3, lambda step: seen.update(features(step)))
    assert sum(seen[f"written rows, with {how}"] for how in ("call", "steps")) > 10


def is_of_the_plant(error):
    """Return whether an exception, or its cause on any rank, was raised by the code of a planted bug."""
    while error is not None:
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        for text in ["".join(lines), *getattr(error, "remote_tracebacks", {}).values()]:
            files = re.findall(r'^ *File "(.*)", line', text, re.MULTILINE)
            if files and files[-1] == bugs.__file__:
                return True
        error = error.__cause__ or error.__context__
    return False


def found_by_a_value(library, programs=150, launcher="threads"):
    """Draw programs until a value is wrong or a refusal is missing; return the shortened program and its error.

    Programs that end with an exception do not count, and the bug itself must not raise.
    """
    for seed in range(programs):
        try:
            random_program(random.Random(seed), library, launcher, 40)
        except Raised as raised:
            assert not is_of_the_plant(raised.__cause__), f"the bug itself raised: {raised}"
        except Wrong as wrong:
            return shortest(wrong.program, wrong)
    return None


@pytest.fixture
def planting(monkeypatch):
    """Return a function that creates a `Plant` for an engine; remove its bugs and clear caches after the test."""
    plants = []

    def planting(engine="numpy"):
        plants.append(bugs.Plant(monkeypatch, engine))
        return plants[-1]

    yield planting
    for plant in plants:
        plant.pull_out()


def concerns(bug, recipe):
    """Return whether a function is of the kind that a bug is about."""
    if bug is bugs.old_value_stays_on_the_device:
        updated = {update.target for update in [*recipe.updates, *recipe.default_updates]}
        return not (recipe.exact or recipe.states) and set(recipe.shareds) - updated - DATA.keys()
    if bug in bugs.INSIDE + bugs.OF_THE_MESH and bug is not bugs.every_device_takes_the_first_rows:
        return recipe.collectives
    if bug in bugs.OF_STATES:
        return recipe.states
    if bug in [*bugs.OF_WRITTEN_ROWS, bugs.every_device_takes_the_first_rows]:
        return recipe.rows
    if bug in bugs.EXACT + bugs.OF_THE_PROGRAM + bugs.OF_COMMON_MEMORY + bugs.OF_PARTS:
        return recipe.exact
    is_plain = not all(output.given for output in recipe.outputs)
    if bug in bugs.WITHOUT_OPS:
        return is_plain
    return not (is_plain or recipe.exact or recipe.states or recipe.rows)


def find_planted_bug(plant, engine, bug, among=None, launcher="threads"):
    """Check that 6,000 draws find the bug by a wrong value, in a short program that is right without the bug."""
    bug(plant)
    recipes = [recipe for recipe in among or OF_ENGINE.get(engine, RECIPES) if concerns(bug, recipe)]
    found = found_by_a_value(Library(engine, recipes), launcher=launcher)
    assert found is not None, "no value was wrong in 6,000 draws"
    program, wrong = found
    assert len(program.steps) <= 4, wrong
    plant.pull_out()
    program.library = Library(engine, recipes)
    assert replay(program, program.steps) is None


@pytest.mark.long
@pytest.mark.parametrize("bug", bugs.BUGS, ids=lambda bug: bug.__name__)
def test_planted_bug_is_found(planting, bug):
    find_planted_bug(planting(), "numpy", bug)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "engine", [pytest.param(engine, marks=getattr(pytest.mark, engine)) for engine in ("theano", "pytensor")]
)
@pytest.mark.parametrize("bug", bugs.IN_GRAPHS, ids=lambda bug: bug.__name__)
def test_planted_bug_is_found_in_graphs(planting, engine, bug):
    find_planted_bug(planting(engine), engine, bug)


def test_bug_that_is_stale_or_raises_is_not_found(planting):
    """A bug is not found if its replacement takes other parameters, or only raises."""
    plant = planting()
    with reports(bugs.Stale, "split_rows"):
        plant.replace(division, "split_rows", lambda n_rows, n_ranks: ())
    with reports(bugs.Stale, "split_columns"):
        plant.replace(division, "split_columns", lambda: ())

    def wrong(n_rows, n_ranks, root=0):
        return right(n_rows)

    right = division.split_rows
    plant.replace(division, "split_rows", wrong)
    assert found_by_a_value(Library("numpy"), programs=2) is None


@pytest.mark.parametrize("bug", bugs.BUGS + bugs.OF_WRITTEN_ROWS + bugs.OF_GRAPHS, ids=lambda bug: bug.__name__)
def test_no_bug_is_stale(planting, bug):
    """Every bug can be planted."""
    bug(planting())


def test_caches_neither_hide_a_bug_nor_keep_it(monkeypatch):
    before = division.divide(2, 0, n_rows=5)
    plant = bugs.Plant(monkeypatch)
    bugs.off_by_one_partition(plant)
    assert division.divide(2, 0, n_rows=5).bounds != before.bounds
    plant.pull_out()
    assert division.divide(2, 0, n_rows=5) == before


@pytest.mark.thorough
def test_bug_alone_is_found():
    """A bug is found by its test alone in a fresh process, without the tests before it."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", __file__]
    done = subprocess.run(
        [*command, "-k", "found and off_by_one_partition and not graphs"],
        stdout=subprocess.PIPE,
        timeout=100,
        env=dict(os.environ, PYTEST_ADDOPTS=""),
    )
    assert b"\n1 passed" in done.stdout, done.stdout.decode()
