"""DASO: phases as in the paper's code, merges compared with NumPy and with closed forms."""

import numpy as np
import pytest
import words
from descent import A, B, Training
from refusals import refuses

import synkhronos as synk
from synkhronos.extensions import rules

GROUPS = {1: [[0]], 2: [[0], [1]], 3: [[0, 2], [1]], 4: [[0, 1], [2, 3]]}


def skips_of(phases, losses):
    found = []
    for loss in losses:
        found.append(tuple(phases.skips))
        phases.end(loss)
    return found


def test_phases_of_a_loss_that_never_improves():
    phases = rules.Phases(warm_up=4, cool_down=4, epochs=26, largest=8, patience=2, threshold=0.05)
    expected = [(0, 0, 0)] * 4
    for skips in ((4, 1, 1), (2, 1, 1), (1, 1, 1), (8, 2, 2), (4, 1, 1), (2, 1, 1)):
        expected += [skips] * 3
    assert skips_of(phases, [1.0] * 26) == expected[:22] + [(0, 0, 0)] * 4


def test_phases_of_a_loss_that_improves():
    """A phase lasts while losses improve by more than 5 % per epoch; three epochs with less are a plateau."""
    phases = rules.Phases(warm_up=2, cool_down=0, epochs=None, largest=8, patience=2, threshold=0.05)
    losses = [0.9**i for i in range(10)]
    losses += [losses[-1] * 0.99**i for i in range(1, 4)] + [0.01]
    assert skips_of(phases, losses) == [(0, 0, 0)] * 2 + [(4, 1, 1)] * 11 + [(2, 1, 1)]


def test_phases_of_negative_losses():
    """Negative losses, such as log-likelihoods, have the same phases as positive ones."""
    for best in (10.0, -10.0):
        skips = skips_of(rules.Phases(0, 0, None, 8, 1, 0.05), [best] * 4)
        assert skips[-1] != skips[0], "a loss that stays the same is a plateau"
        skips = skips_of(rules.Phases(0, 0, None, 8, 1, 0.05), [best + 0.04 * i for i in range(4)])
        assert skips[-1] != skips[0], "a loss that rises, too"
        falling = [best - 0.06 * abs(best) * i for i in range(6)]
        skips = skips_of(rules.Phases(0, 0, None, 8, 1, 0.05), falling)
        assert len({*map(tuple, skips)}) == 1


class Simulated:
    """DASO's exchanges, simulated on a `serial.Serial`."""

    def __init__(self, serial, groups, merge):
        self.serial, self.groups, self.merge, self.inside = serial, groups, merge, np.zeros(serial.n)

    def count(self, before):
        self.inside += self.serial.rows - before

    def average_inside(self):
        matrix = np.zeros((self.serial.n, self.serial.n))
        for group in self.groups:
            for rank in group:
                matrix[rank, group] = self.inside[group] if self.inside[group].any() else 1
        self.serial.x, self.inside = self.serial.mix(matrix), np.zeros(self.serial.n)

    def begin(self):
        self.serial.begin()

    def arrive(self, wait):
        serial, part = self.serial, len(self.groups) / (2 * wait + len(self.groups))
        if self.merge == "delta":
            serial.x = [x + serial.sent - y for x, y in zip(serial.x, serial.y)]
        else:
            serial.x = [(1 - part) * x + part * serial.sent for x in serial.x]

    def all(self):
        if not self.serial.rows.any():  # no rows since a mean was begun
            self.serial.rows[:] = 1
        mean = self.serial.mean()
        self.serial.x, self.inside = [mean.copy() for _ in self.serial.x], np.zeros(self.serial.n)


@pytest.mark.parametrize("merge", ["delta", "daso"])
def test_every_step_is_that_of_the_simulation(world, merge):
    """DASO equals the simulation in warm-up and the phases (4, 1, 1), (2, 1, 1), (1, 1, 1) and (8, 2, 2)."""
    training, groups = Training(world), GROUPS[world.n]
    rule = rules.DASO(training.function, [training.w], groups=groups, warm_up=1, patience=0, merge=merge)
    simulated, seen = Simulated(training.serial, groups, merge), []
    for epoch in range(6):
        between, inside, wait = skips = tuple(rule.phases.skips)
        seen.append(skips)
        begun = None
        for t, batch in enumerate(training.batches(9, seed=epoch), 1):
            training.function(A[batch], B[batch])
            rule()
            before = training.serial.rows.copy()
            training.serial_step(batch)
            simulated.count(before)
            if between == 0:
                simulated.all()
            else:
                if t % inside == 0 or t % between == 0:
                    simulated.average_inside()
                if begun is not None and t == begun + wait:
                    simulated.arrive(wait)
                    begun = None
                if t % between == 0:
                    simulated.begin()
                    begun = t
            training.check()
        rule.epoch(1.0)
        if begun is not None:
            simulated.arrive(wait)
        simulated.all()
        training.check()
    assert seen == [(0, 0, 0), (4, 1, 1), (2, 1, 1), (1, 1, 1), (8, 2, 2), (4, 1, 1)]


@pytest.mark.parametrize("merge", ["delta", "daso"])
@pytest.mark.parametrize("between, wait", [(4, 1), (8, 2)])
def test_closed_forms_for_constant_gradients(make_world, merge, between, wait):
    """If two groups of one rank step by 1 and 3, the mean's progress and the spread follow closed forms."""
    world = make_world("threads", 2)
    w, speed = world.shareds([np.zeros(1), np.zeros(1)], ["w", "speed"])
    world.set_values(speed, [[1.0], [3.0]])
    step = synk.function([], updates=[(w, w + speed)], exact=False)
    rule = rules.DASO(params=[w], groups=[[0], [1]], warm_up=0, merge=merge)
    rule.phases._skips = type(rule.phases.skips)(between, 1, wait)
    means, spreads = [], []
    for t in range(1, 60 * between + 1):
        step()
        rule()
        if t > between and t % between == wait:
            values = np.array(world.values(w)).ravel()
            means.append(values.mean())
            spreads.append(values[1] - values[0])
    rho = 2 * wait / (2 * wait + 2)
    if merge == "delta":
        assert np.diff(means)[-1] == pytest.approx(2 * between)
        assert spreads[-1] == pytest.approx(2 * wait)
    else:
        assert np.diff(means)[-1] == pytest.approx(2 * (between - (1 - rho) * wait))
        # Right after a merge, the spread is rho times the spread before it, which is that of the limit cycle.
        assert spreads[-1] == pytest.approx(rho * 2 * between / (1 - rho), rel=1e-6)
    rule.finish()


def test_a_run_goes_on_from_its_state(make_world):
    def run(training, rule, batches):
        for t, batch in enumerate(batches):
            training.function(A[batch], B[batch])
            rule()
            if t % 5 == 4:
                rule.epoch(1.0)

    def make(training):
        return rules.DASO(training.function, [training.w], groups=GROUPS[3], warm_up=1, patience=0)

    world = make_world("threads", 3)
    training = Training(world)
    batches = training.batches(30)
    rule = make(training)
    run(training, rule, batches[:14])  # a mean is pending
    variables = [training.w, training.m, *rule.state]
    saved = [[synk.get_value(rank, variable) for rank in range(3)] for variable in variables]
    counters = rule.counters
    run(training, rule, batches[15:])
    expected = [value.tobytes() for value in world.values(training.w)]
    rule.finish()

    world = make_world("threads", 3)
    training = Training(world)
    rule = make(training)
    rule.counters = counters
    for variable, values in zip([training.w, training.m, *rule.state], saved):
        for rank, value in enumerate(values):
            synk.set_value(rank, variable, value)
    run(training, rule, batches[15:])
    assert [value.tobytes() for value in world.values(training.w)] == expected
    rule.finish()


@pytest.mark.parametrize(
    "options, error, argument, got",
    [
        (dict(groups=[[0]]), ValueError, "groups", "[[0]]"),
        (dict(merge="pull"), ValueError, "merge", "'pull'"),
        (dict(threshold=1), ValueError, "threshold", "1"),
        (dict(warm_up=-1), ValueError, "warm_up", "-1"),
        (dict(largest=0), ValueError, "largest", "0"),
        (dict(epochs=2.0), TypeError, "epochs", "2.0"),
    ],
)
def test_bad_input(make_world, options, error, argument, got):
    world = make_world("threads", 2)
    with refuses(error, argument, got=got):
        rules.DASO(params=[world.shared(np.zeros(2), "w")], **options)


def test_rows_of_small_batches_count(make_world):
    """A rank without rows has no weight in its group's mean, or in that of all ranks."""
    world = make_world("threads", 3)
    training = Training(world)
    rule = rules.DASO(training.function, [training.w], groups=GROUPS[3], warm_up=9)
    rows = words.shards(np.arange(2), 3, 0)
    training.function(A[:2], B[:2])
    rule()
    training.serial.step(rows)
    expected = np.average(training.serial.x, axis=0, weights=[len(each) for each in rows])
    np.testing.assert_allclose(world.values(training.w), [expected] * 3, rtol=1e-12)
