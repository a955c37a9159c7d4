"""Profiles of programs that actually ran: predictions can read the profiles that sessions write."""

import time

import numpy as np
import pytest

import synkhronos as synk
from synkhronos.contrib.prediction.fitting import fit
from synkhronos.contrib.prediction.profiles import RankLayout, read
from synkhronos.testing import numpy_engine as engine

pytestmark = pytest.mark.slow

STEPS, ROW_S = 12, 0.002


def slept(x):
    """Return the sum, after sleeping ROW_S seconds per row."""
    time.sleep(ROW_S * len(x))
    return x.sum()


def run(folder, ranks, rows, in_steps):
    """Profile a program of slow calls, each followed by an all_reduce, or of slow steps."""
    synk.fork(ranks, False, profile=str(folder))
    x, w = engine.variable("x", "float64", 1), engine.shared(np.zeros(100), "w")
    function = synk.function([x], (engine.apply(slept, x), "sum"), updates=[(w, w + engine.sum(x))], name="slow")
    synk.distribute()
    data = synk.data(np.ones(60))
    batches = [np.arange(rows) for _ in range(STEPS)]
    if in_steps:
        for i in range(0, STEPS, 3):
            function.steps(data, batches=batches[i : i + 3])
    else:
        for batch in batches:
            assert function(data, batch=batch) == rows
            synk.all_reduce(w)
    synk.close()
    return read(folder)


def test_functions_and_collectives(tmp_path):
    model = fit([run(tmp_path / str(ranks), ranks, 6, False) for ranks in (1, 2)])
    assert (model.main, model.rows, model.largest.ranks) == (("function", "slow"), 6, 2)
    slow, reduce = model.commands["function", "slow"], model.commands["collective", "all_reduce"]
    assert (slow.per_step, reduce.per_step, reduce.nbytes) == (1, 1, 800)
    # No sleep is too short, but rounding of the fit may put it slightly below one of the two.
    for ranks in (1, 2):
        assert model.predict(RankLayout(ranks))["computing"] > 0.9 * 6 / ranks * ROW_S


@pytest.mark.parametrize("ranks", [1, 2])
def test_steps(tmp_path, ranks):
    profile = run(tmp_path / "run", ranks, 6, True)
    calls = profile.commands["steps", "slow"]
    assert calls.steps.tolist() == [3] * (STEPS // 3)
    assert calls.rows.tolist() == [18] * (STEPS // 3)
    model = fit([profile])
    assert (model.rows, model.commands["steps", "slow"].per_step) == (6, 1)
    assert model.predict(RankLayout(ranks))["computing"] > 0.9 * 6 / ranks * ROW_S
