"""The model's limits, compared to manual calculations.

Modules: `outlook`.
"""

import math

import numpy as np
import pytest
from synthetic import Program

from synkhronos.contrib.prediction.fitting import fit
from synkhronos.contrib.prediction.links import HostLinkModel, RingModel, SharedMemory
from synkhronos.contrib.prediction.model import PARTS, CommandCost, CommunicationRule, Model
from synkhronos.contrib.prediction.outlook import limit_of, outlooks
from synkhronos.contrib.prediction.profiles import RankLayout, parse

TRAIN = ("function", "train")


def model(between=None, program=0.0, **changes):
    """Return the model of a program with one function, which takes 10 ms for 1000 rows, with changes."""
    command = CommandCost(1.0, 1.0, (0.0, 0.0), (1e-5, 0.0), (0.0, 0.0, 0.0), 0.0, 0.0, (1.0,))._replace(**changes)
    return Model(
        {TRAIN: command}, TRAIN, 1000, program, SharedMemory(0.0, 1e-10), between, RankLayout(2), (500, 1000), []
    )


@pytest.mark.parametrize("ranks", [1, 2, 8, 1000])
def test_no_communication(ranks):
    """Without communication, the speedup is the number of ranks."""
    assert model().speedup(RankLayout(ranks)) == pytest.approx(ranks)


def test_infinite_bytes():
    """With infinitely many bytes, the speedup is 0."""
    assert model(nbytes=1e30).speedup(RankLayout(2)) == pytest.approx(0, abs=1e-9)
    assert model(RingModel(0, 1e9), nbytes=1e30).speedup(RankLayout(2)) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("ranks, speedup", [(2, 2), (4, 4), (8, 4), (6, 4), (250, 4)])
def test_ranks_beyond_the_cores(ranks, speedup):
    """On four cores, more ranks are as fast as four if the work is long enough (10,000 s) to share cores evenly."""
    assert model(per_row=(10.0, 0.0)).speedup(RankLayout(ranks, 1, 4.0)) == pytest.approx(speedup, rel=1e-2)
    # Within 10 ms, two of six ranks wait until other ranks are done.
    if ranks == 6:
        assert model().speedup(RankLayout(ranks, 1, 4.0)) == pytest.approx(3, rel=1e-2)


def test_amdahl():
    """Of the function's 10 ms, 2 ms do not divide among ranks, nor does 1 ms of the program's own code."""
    some = model(program=1e-3, fixed=(2e-3, 0.0), per_row=(8e-6, 0.0))
    assert some.seconds(RankLayout(4)) == pytest.approx(2e-3 + 8e-3 / 4 + 1e-3)
    assert some.speedup(RankLayout(10**6, 1), 1000) < 11 / 3


def test_parts():
    some = model(HostLinkModel(1e-3, 0.0, 1e-8), nbytes=1e6, per_row=(1e-5, 5e-6), overhead=(1e-4, 1e-5, 1e-3))
    parts = some.predict(RankLayout(8, 2, 2.0), 1000)
    work = 125 * 1e-5  # on each of four ranks on two cores, so two ranks compute at a time
    expected = {
        "computing": work,
        "memory": 0.5 * work,
        "cores": 1.5 * work,
        "waiting": 0,
        # 4 ranks of a host: 1e6 bytes each at 1e-10, times 4 (two share a core). Between hosts: 1 ms, 1e6 bytes at 1e-8
        "communicating": 16e-4 + 1e-3 + 1e-2,
        "commands": 1e-4 + 3e-5 + 1e-3,
        "program": 0,
    }
    assert parts == pytest.approx(expected)
    assert list(parts) == list(PARTS)


def test_the_slowest_is_waited_for():
    some = model(spread=(1.0, 3.0))
    assert some.predict(RankLayout(30))["waiting"] == pytest.approx(2 * math.ceil(1000 / 30) * 1e-5)


def test_less_communication():
    some = model(RingModel(0.0, 1e9), nbytes=1e7)  # 10 ms on two ranks, beside 5 ms of work
    always = some.predict(RankLayout(2))
    assert always["communicating"] == pytest.approx(10e-3)
    assert some.predict(RankLayout(2), less=CommunicationRule(every=4))["communicating"] == pytest.approx(2.5e-3)
    assert some.seconds(RankLayout(2), less=CommunicationRule(late=True)) == pytest.approx(
        10e-3
    )  # the longer of the two
    assert some.predict(RankLayout(2), less=CommunicationRule(bits=16))["communicating"] == pytest.approx(5e-3)


def test_smallest_rows():
    """For 90% of the ideal speedup, each ms of communication needs 9 ms of work, since T(1) / n = 0.9 T(n)."""
    some = model(RingModel(0.0, 1e9), nbytes=0.999e6)  # 0.999 ms
    # r 1e-5 = 0.9 (r 1e-5 + 0.999e-3): r = 899.1
    assert some.smallest_rows(RankLayout(2), 0.9) == 900
    assert model(per_row=(1e-5, 2e-6)).smallest_rows(RankLayout(2), 0.9) is None
    assert model().smallest_rows(RankLayout(2), 0.9) == 1


def test_rows_that_do_not_divide():
    """If the rows do not divide evenly, the largest share counts."""
    assert model().seconds(RankLayout(3), 1000) == pytest.approx(334e-5)


@pytest.mark.parametrize(
    "layout, rows, words",
    [
        (RankLayout(2), 1000, []),
        (RankLayout(4), 2000, ["ranks"]),
        (RankLayout(2, 2), 1000, ["hosts"]),
        (RankLayout(2), 100, ["rows"]),
        (RankLayout(2), 9000, ["rows"]),
    ],
)
def test_extrapolated(layout, rows, words):
    assert model().extrapolated(layout, rows) == words


def test_limits():
    ideal = dict.fromkeys(PARTS, 0.0)
    for part in PARTS:
        assert limit_of(dict(ideal, **{part: 1.0}), ideal, 0.5) == part
    assert limit_of(dict(ideal, waiting=1.0), ideal, 0.95) == "computing"


def test_outlooks():
    """With the same number of rows for each rank, the speedup is that of rows per second."""
    some = model(RingModel(0.0, 1e9), nbytes=1e6, fixed=(1e-3, 0.0))
    one, two = outlooks(some, [RankLayout(1), RankLayout(2)], of_rank=1000)
    assert (one.rows, two.rows, one.speedup) == (1000, 2000, pytest.approx(1))
    assert two.seconds == pytest.approx(12e-3)
    assert two.speedup == pytest.approx(2 * 11 / 12)
    (divided,) = outlooks(some, [RankLayout(2)], rows=1000)
    assert divided.speedup == pytest.approx(11 / 7)
    assert divided.limit in ("computing", "communicating")
    assert one.by_rule == {} and set(two.by_rule) == {"every 4th step", "every 16th step", "one step late", "16 bits"}


def test_more_ranks_than_were_profiled():
    """A model fitted to one and two ranks predicts the time of eight ranks of a fictitious program."""
    program = Program(contention=0.02)
    found = fit([parse(program.profile(ranks, (2048, 4096)), str(ranks)) for ranks in (1, 2)])
    eight = program.profile(8, 4096, steps=9)
    expected = sum(command["calls"][-1]["master_s"] for command in eight["commands"]) + 3e-4
    assert found.seconds(RankLayout(8, 1, 8.0), 4096) == pytest.approx(expected, rel=1e-6)


def test_spread_of_profiles_is_waited_for():
    """If the work's logarithm varies by 0.1, the predicted waiting follows from the quantile of the largest of n."""
    program = Program(spread=0.1, fixed=0, nbytes=0, overhead=0, between=0)
    found = fit([parse(program.profile(2, (2048, 4096), steps=500), "2")])
    quantile = np.quantile(np.exp(0.1 * np.random.RandomState(1).standard_normal(100000)), 0.5 ** (1 / 16))
    parts = found.predict(RankLayout(16, 1, 16.0), 4096)
    assert parts["waiting"] / parts["computing"] == pytest.approx(quantile - 1, rel=0.15)
