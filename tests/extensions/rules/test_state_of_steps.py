"""Treatment of the state of local steps, such as velocities, when ranks exchange parameters."""

import numpy as np
import pytest
from descent import A, B, Training
from refusals import refuses

from synkhronos.extensions import rules
from synkhronos.testing import numpy_engine as engine

GROUPS = [[0, 2], [1]]
KINDS = {
    "LocalSGD": lambda function, *args, **options: rules.LocalSGD(function, *args, every=3, **options),
    "EASGD": lambda function, *args, **options: rules.EASGD(function, *args, every=3, **options),
    "ASGD": lambda function, *args, **options: rules.ASGD(function, *args, every=3, **options),
    "DiLoCo": lambda function, *args, **options: rules.DiLoCo(function, *args, every=3, **options),
    "DiLoCo, later": lambda function, *args, **options: rules.DiLoCo(function, *args, every=3, delay=1, **options),
    "SlowMo": lambda function, *args, **options: rules.SlowMo(function, *args, every=3, **options),
    "DASO": lambda function, *args, **options: rules.DASO(function, *args, groups=GROUPS, **options),
}
#: Defaults as in the papers; for local SGD, as before rules existed.
DEFAULTS = dict.fromkeys(KINDS, "kept")
DEFAULTS["LocalSGD"] = "averaged"


def expected_of(values, rows, state_is):
    return {
        "averaged": [np.average(values, axis=0, weights=rows)] * len(values),
        "kept": values,
        "reset": [np.zeros_like(value) for value in values],
    }[state_is]


@pytest.mark.slow
@pytest.mark.parametrize("state_is", [None, "averaged", "kept", "reset"])
@pytest.mark.parametrize("name", KINDS)
def test_in_an_exchange(make_world, name, state_is):
    """Averages of state are weighted by rows: after steps of 7, 7 and 2 rows, ranks have 6, 6 and 4."""
    world = make_world("threads", 3)
    training = Training(world)
    options = {} if state_is is None else {"state_is": state_is}
    rule = KINDS[name](training.function, [training.w], [training.m], **options)
    before, rows = None, np.zeros(3)
    for batch in [*training.batches(2), np.arange(2)]:
        if name == "DASO":
            rows[:] = 0  # in DASO's first epochs, all ranks exchange after every step
        training.function(A[batch], B[batch])
        rows += training.function.last_rows
        before = [value.copy() for value in world.values(training.m)]
        rule()
    found = world.values(training.m)
    np.testing.assert_allclose(found, expected_of(before, rows, state_is or DEFAULTS[name]), rtol=1e-12, atol=1e-15)
    assert np.ptp(before, axis=0).max() > 1e-3
    rule.finish()  # (a mean may be pending)


@pytest.mark.parametrize("state_is", ["averaged", "kept"])
def test_gossip(make_world, state_is):
    world = make_world("threads", 3)
    w, m = world.shareds([np.zeros(2), np.zeros(2)])
    rule = rules.Gossip(params=[w], state=[m], probability=0.5, seed=1, state_is=state_is)
    values = np.random.RandomState(0).randn(2, 3, 2)
    world.set_values(w, values[0])
    world.set_values(m, values[1])
    alphas, expected = [1 / 3] * 3, values[1].copy()
    for _ in range(5):
        rule()
        for sender, receiver in rule.sent if state_is == "averaged" else ():
            alphas[sender] /= 2
            whole = alphas[sender] + alphas[receiver]
            expected[receiver] = (alphas[receiver] * expected[receiver] + alphas[sender] * expected[sender]) / whole
            alphas[receiver] = whole
    np.testing.assert_allclose(world.values(m), expected, rtol=1e-12)
    rule.finish()
    if state_is == "averaged":
        expected = [np.average(expected, axis=0, weights=alphas)] * 3
    np.testing.assert_allclose(world.values(m), expected, rtol=1e-12)


def test_what_is_reset_may_have_been_infinite(make_world):
    world = make_world("threads", 2)
    w, m = world.shareds([np.zeros(2), np.full(2, np.inf)])
    rule = rules.EASGD(params=[w], state=[m], every=1, state_is="reset")
    rule()
    np.testing.assert_array_equal(world.values(m), np.zeros((2, 2)))


@pytest.mark.parametrize("kind, got", [(rules.EASGD, "sum"), (rules.LocalSGD, "average"), (rules.Gossip, "reset")])
def test_bad_input(make_world, kind, got):
    world = make_world("threads", 2)
    with refuses(ValueError, "state_is", "'averaged' or 'kept'", repr(got)):
        kind(params=[world.shared(np.zeros(2), "w")], state_is=got)


class OfTraining:
    """A function with the attributes `params` and `state`, like a `TrainFunction`."""

    def __init__(self, function, params, state):
        self.function, self.params, self.state = function, params, state

    def __getattr__(self, name):
        return getattr(self.function, name)


def test_state_is_that_of_a_training_function(make_world):
    """A training function's state is used, except counters; if parameters are given, none is."""
    world = make_world("threads", 2)
    training = Training(world)
    counter = engine.shared(np.int64(3), "counter")
    function = OfTraining(training.function, [training.w], [training.m, counter])
    rule = rules.LocalSGD(function)
    assert rule.params == [training.w] and rule.kept == [training.m]
    assert rules.LocalSGD(function, [training.w]).kept == []
    assert rules.LocalSGD(function, state=[]).kept == []
    with refuses(TypeError, "state", got="counter"):
        rules.LocalSGD(function, state=[counter])
