"""Fits recover the coefficients of fictitious programs.

Modules: `least_squares`.
"""

import itertools

import numpy as np
import pytest
from refusals import refuses
from synthetic import Program

from synkhronos.contrib.prediction.fitting import fit, fit_memory, fit_work
from synkhronos.contrib.prediction.least_squares import nonnegative
from synkhronos.contrib.prediction.links import RingModel
from synkhronos.contrib.prediction.profiles import parse

TRAIN, REDUCE, STEP = ("function", "train"), ("collective", "all_reduce"), ("function", "step")


def fitted(program, *runs, **noise):
    """Return the model fitted to runs of a program, each with these (ranks, rows)."""
    return fit([parse(program.profile(ranks, rows, **noise), f"run {i}") for i, (ranks, rows) in enumerate(runs)])


@pytest.mark.parametrize("noise, tolerance", [(0.0, 1e-9), (0.02, 0.05)])
def test_known_coefficients(noise, tolerance):
    program = Program()
    model = fitted(program, (1, (256, 1024)), (2, (256, 1024)), noise=noise)
    train, reduce, step = (model.commands[key] for key in (TRAIN, REDUCE, STEP))
    # The fixed part is a tenth of the work with the fewest rows, and contention adds a tenth of the fixed part.
    assert train.fixed[0] == pytest.approx(1e-3, rel=10 * tolerance)
    assert train.fixed[1] == pytest.approx(1e-4, abs=2e-4 if noise else 1e-9)
    assert train.per_row[0] == pytest.approx(2e-5, rel=tolerance)
    assert train.per_row[1] == pytest.approx(2e-6, abs=4e-7 if noise else 1e-12)
    assert step.fixed == pytest.approx((0.5e-3, 0.5e-4), rel=tolerance, abs=1e-5 if noise else 1e-9)
    assert step.per_row == (0, 0)
    assert (train.per_step, reduce.per_step, step.per_step) == (1, 1, 1)
    assert (train.rows, reduce.rows, step.rows) == (1, 0, 0)
    assert reduce.nbytes == 4e6
    assert reduce.overhead[:2] == pytest.approx((2e-5, 2e-5), rel=1e-6)
    # 2 ranks, 4e6 bytes, 1e-10 s per byte: 0.8 ms, which is as fast as copying at 1e10 bytes per second.
    assert model.memory.start == pytest.approx(0, abs=1e-9)
    assert model.memory.per_byte == pytest.approx(1e-10)
    assert model.program == pytest.approx(3e-4)
    assert (model.rows, model.rows_of_rank, model.largest.ranks) == (1024, (128, 1024), 2)
    assert model.notes == []


def test_a_step_of_the_profiled_program():
    """Predicted times equal the profiled ones."""
    program = Program()
    model = fitted(program, (1, (256, 1024)), (2, (256, 1024)))
    for ranks, rows in itertools.product((1, 2), (256, 1024)):
        calls = program.profile(ranks, rows)["commands"]
        expected = sum(command["calls"][-1]["master_s"] for command in calls) + 3e-4
        layout = model.largest._replace(ranks=ranks, cores=4)
        assert model.seconds(layout, rows) == pytest.approx(expected)


def test_spread():
    model = fitted(Program(spread=0.5), (2, 1024), steps=400)
    logarithms = np.log(model.commands[TRAIN].spread)
    assert np.median(logarithms) == pytest.approx(0, abs=0.01)
    assert np.std(logarithms) == pytest.approx(0.5, rel=0.1)


def test_one_number_of_rows():
    """With one number of rows, time that does not divide among ranks counts as fixed, and no contention is assumed."""
    model = fitted(Program(fixed=0, contention=0.2), (1, 1000), (2, 1000))
    train = model.commands[TRAIN]
    # 20 ms with 1000 rows and 12 ms with 500.
    assert train.fixed == (pytest.approx(4e-3), 0)
    assert train.per_row == (pytest.approx(1.6e-5), 0)


def test_one_number_of_rows_of_a_rank():
    """With one number of rows per rank, only the work of functions without rows counts as fixed."""
    model = fitted(Program(contention=0.1), (2, 1000))
    # 12.1 ms with 500 rows each: 1 ms, 20 microseconds per row, and 10% more because two ranks compute.
    assert model.commands[TRAIN].fixed == (0, 0) and model.commands[TRAIN].per_row == (pytest.approx(2.42e-5), 0)
    assert model.commands[STEP].fixed == (pytest.approx(0.55e-3), 0)
    assert any("all calls to train have the same number of rows per rank, 500," in note for note in model.notes)
    assert not any("500" in note for note in fitted(Program(), (1, 1000), (2, 1000)).notes)


def test_two_ranks_alone():
    model = fitted(Program(contention=0.1), (2, (256, 1024)))
    assert model.commands[TRAIN].per_row == (pytest.approx(2.2e-5), 0)
    assert any("number of ranks per machine" in note for note in model.notes)


def test_one_rank_alone():
    model = fitted(Program(), (1, (256, 1024)))
    assert model.memory.per_byte == 1e-10  # the copy rate in the profile
    assert any("copy rate" in note for note in model.notes)


def test_ranks_that_share_cores():
    """Times profiled with more ranks than cores are converted to those with one core per rank."""
    program = Program(contention=0)
    shared = program.profile(4, (256, 1024))
    for command in shared["commands"]:
        for call in command["calls"]:
            call["engine_s"] = [2 * seconds for seconds in call["engine_s"]]
    model = fit([parse(dict(shared, cores=[2]), "shared")])
    assert model.commands[TRAIN].per_row == (pytest.approx(2e-5), 0)


def test_many_steps_in_a_command():
    """Seconds and bytes are those of one step."""
    content = Program().profile(2, 1024, steps=300)
    (train,) = (command for command in content["commands"] if command["name"] == "train")
    content["commands"] = [dict(train, kind="steps", bytes=4e6)]
    for call in train["calls"]:
        call.update(steps=4, rows=[4 * rows for rows in call["rows"]])
    model = fit([parse(content, "steps")])
    command = model.commands["steps", "train"]
    assert (model.rows, command.nbytes, command.per_step) == (1024, 1e6, 1)
    assert command.fixed[0] + 512 * command.per_row[0] == pytest.approx((1e-3 + 512 * 2e-5) * 1.1 / 4)
    assert command.overhead[0] == pytest.approx(4e-5 / 4)


def test_nccl():
    """A ring's latency and bandwidth are fitted to profiles with two sizes."""
    profiles = []
    for size in (1e6, 1e8):
        program = Program(nbytes=size, per_byte=0)
        content = program.profile(4, 1024, devices=["cuda0", "cuda1", "cuda2", "cuda3"], link="nccl")
        for call in content["commands"][1]["calls"]:
            call["transport_s"] = [RingModel(1e-5, 2e10).seconds(4, size)] * 4
            call["master_s"] += call["transport_s"][0]
        profiles.append(parse(content, f"{size:g}"))
    model = fit(profiles)
    assert model.between.latency == pytest.approx(1e-5)
    assert model.between.bandwidth == pytest.approx(2e10)


@pytest.mark.parametrize(
    "groups, expected",
    [
        # rows of a rank, ranks at once, seconds
        ([(100, 1, 3.0), (200, 1, 5.0), (100, 2, 3.3), (200, 2, 5.5)], ((1.0, 0.1), (0.02, 0.002))),
        ([(100, 2, 3.3), (200, 2, 5.5), (100, 3, 3.6), (200, 3, 6.0)], ((1.0, 0.1), (0.02, 0.002))),
        ([(100, 2, 3.0), (200, 2, 5.0)], ((1.0, 0.0), (0.02, 0.0))),
        ([(0, 1, 3.0), (0, 2, 3.6)], ((3.0, 0.6), (0.0, 0.0))),
        ([], ((0.0, 0.0), (0.0, 0.0))),
    ],
)
def test_work(groups, expected):
    from synkhronos.contrib.prediction.fitting import CallGroup

    got = fit_work(
        [CallGroup(float(rows), float(at_once), seconds, 30, np.ones(1)) for rows, at_once, seconds in groups]
    )
    assert np.array(got) == pytest.approx(np.array(expected), abs=1e-9)


def test_memory():
    assert fit_memory([], 1e-10) == (0, 1e-10)
    start, per_byte = fit_memory([(2, 1e6, 3e-4)], 1e-10)
    assert (start, per_byte) == (pytest.approx(1e-4), 1e-10)
    start, per_byte = fit_memory([(2, 1e6, 1e-4)], 1e-10)  # faster than copying, because the data fits into the caches
    assert (start, per_byte) == (pytest.approx(0), pytest.approx(5e-11))
    start, per_byte = fit_memory([(2, 1e6, 3e-4), (2, 2e6, 5e-4)], 1e-10)
    assert (start, per_byte) == (pytest.approx(1e-4), pytest.approx(1e-10))


def test_least_squares():
    matrix = np.random.RandomState(0).rand(20, 3)
    assert nonnegative(matrix, matrix @ [1, 0, 2]) == pytest.approx([1, 0, 2])
    # With almost all weight on the first value, the fit meets this value.
    both = np.ones((2, 1))
    assert nonnegative(both, np.array([1.0, 2.0]), np.array([1e9, 1.0])) == pytest.approx([1.0], rel=1e-6)
    assert nonnegative(-both, np.array([1.0, 2.0])).tolist() == [0]


def test_nothing_computed():
    content = Program(fixed=0, per_row=0).profile(1, 100)
    with refuses(ValueError, "profile", "'train'", "none in DIR", "profile"):
        fit([parse(content, "DIR")])


def test_programs_that_differ():
    profiles = [parse(Program().profile(1, 100), "one"), parse(Program().profile(2, 100), "two")]
    profiles[1].commands["function", "other"] = profiles[1].commands.pop(TRAIN)
    with refuses(ValueError, "profile", "'train' as in one", "'other' in two"):
        fit(profiles)
