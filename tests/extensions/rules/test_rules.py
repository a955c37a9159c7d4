"""Communication rules, each compared with the same steps and exchanges in a NumPy loop over ranks.

Modules: `centred`, `diloco`, `local`, `means`, `recurrence`, `synkhronos.extensions.arguments`.
"""

import numpy as np
import pytest
import words
from descent import BEGIN, MOMENTUM, RATE, RULES, A, B, Training, local
from refusals import refuses

import synkhronos as synk
from synkhronos.extensions import rules
from synkhronos.testing import numpy_engine as engine


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", RULES)
def test_every_step_is_that_of_the_simulation(world, name, every):
    """All steps equal the simulation's, for batches of 7 rows and of 2, too few for all ranks."""
    training = Training(world)
    make, exchange = RULES[name]
    rule = make(training, every)
    training.serial.alphas = [1 / world.n] * world.n
    for t, batch in enumerate(training.batches(7) + training.batches(5, 2, seed=2), 1):
        training.function(A[batch], B[batch])
        exchanged = rule()
        training.serial_step(batch)
        assert exchanged == (t % every == 0) or name == "Gossip"
        if t % every == 0:
            exchange(training.serial, rule)
        training.check()
    assert rule.n_steps == 12 and rule.n_exchanges == 12 // every


@pytest.mark.parametrize("name", [name for name in RULES if name not in ("Swap", "Gossip")])
def test_an_exchange_of_equal_values_changes_no_bit(world, name):
    training = Training(world)
    rule = RULES[name][0](training, 1)
    for _ in range(3):
        rule()
        assert all(value.tobytes() == BEGIN.tobytes() for value in world.values(training.w))
        for centre in getattr(rule, "centre", []):
            assert all(value.tobytes() == BEGIN.tobytes() for value in world.values(centre))
    assert rule.n_exchanges == 3


def test_local_sgd_of_every_step_is_serial_momentum(world):
    """Averages of parameters and velocities are linear, so steps are those of all rows together."""
    training, x, m = Training(world), BEGIN.copy(), np.zeros(4)
    rule = local(training, every=1)
    for batch in training.batches(10):
        training.function(A[batch], B[batch])
        rule()
        m = MOMENTUM * m - RATE * A[batch].T @ (A[batch] @ x - B[batch]) / len(batch)
        x = x + m
    np.testing.assert_allclose(world.values(training.w), [x] * world.n, rtol=1e-11)


def test_diloco_of_every_step_is_nesterov(world):
    """With H = 1, plain local steps and an outer rate of 1, DiLoCo is Nesterov momentum as in Lasagne."""
    training, x, v = Training(world, momentum=0.0), BEGIN.copy(), np.zeros(4)
    rule = rules.DiLoCo(training.function, [training.w], every=1, outer_rate=1.0, outer_momentum=0.9)
    for batch in training.batches(10):
        training.function(A[batch], B[batch])
        rule()
        step = -RATE * A[batch].T @ (A[batch] @ x - B[batch]) / len(batch)
        v = 0.9 * v + step
        x = x + 0.9 * v + step
    np.testing.assert_allclose(world.values(training.w), [x] * world.n, rtol=1e-10)


@pytest.mark.parametrize("merge", ["delta", "pull"])
@pytest.mark.parametrize("delay, mix", [(1, 1.0), (3, 0.5)])
def test_delayed_means(world, merge, delay, mix):
    """The consensus includes the center and the pending mean; computing it does not affect later steps."""
    training = Training(world)
    options = dict(every=4, delay=delay, mix=mix, merge=merge)
    rule, begun = rules.DiLoCo(training.function, [training.w], **options), None
    for t, batch in enumerate(training.batches(17), 1):
        training.function(A[batch], B[batch])
        assert rule() == (t % 4 == 0)
        training.serial_step(batch)
        if begun is not None and t == begun + delay:
            training.serial.arrive(0.7, 0.9, True, mix, merge)
        if t % 4 == 0:
            training.serial.begin()
            begun = t
        training.check()
        if t == 9:
            assert rule.state
        if t == 13 and delay == 3:
            with rule.consensus():
                values = world.values(training.w)
                assert np.ptp(values, axis=0).max() == 0
                assert np.abs(values[0] - training.serial.z).max() > 1e-6  # the values include the step in progress
    rule.finish()
    assert np.ptp(world.values(training.w), axis=0).max() == 0


@pytest.mark.parametrize("merge, kept", [("delta", 1.0), ("pull", 1 - 0.5 * 2 / 4)])
def test_progress_that_a_delayed_merge_keeps(make_world, merge, kept):
    """Each cycle keeps the fraction 1 - m W / k of the ranks' mean constant step, or all of it with delta."""
    world = make_world("threads", 3)
    w = engine.shared(np.zeros(2), "w")
    step = synk.function([], updates=[(w, w + 1.0)], exact=False)
    synk.distribute()
    options = dict(every=4, delay=2, outer_rate=1.0, outer_momentum=0.0, mix=0.5, merge=merge)
    rule = rules.DiLoCo(params=[w], **options)
    means = []
    for t in range(1, 81):
        step()
        rule()
        if t % 4 == 3:
            means.append(np.mean(world.values(w)))
    np.testing.assert_allclose(np.diff(means[1:]), 4 * kept, rtol=1e-9)
    rule.finish()


@pytest.mark.parametrize("name", ["EASGD", "DiLoCo", "LocalSGD"])
@pytest.mark.parametrize("form, size", [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_exchange_in_16_bits(world, name, form, size):
    """Steps with 16-bit exchanges equal others up to rounding; ranks agree to the bit where they must."""
    training = Training(world)
    kind = getattr(rules, name)
    rule = kind(training.function, [training.w], every=2, exchange=form)
    _, exchange = RULES[name]
    for t, batch in enumerate(training.batches(12), 1):
        training.function(A[batch], B[batch])
        rule()
        training.serial_step(batch)
        if t % 2 == 0:
            m = [each.copy() for each in training.serial.m]
            exchange(training.serial, rule)
            training.serial.m = m
    values = np.array(world.values(training.w))
    error = np.abs(values - training.serial.x).max()
    assert error < 20 * size and (error > size / 1000 or world.n == 1)
    for value in rule.centre if hasattr(rule, "centre") else rule.means.values:
        assert len({each.tobytes() for each in world.values(value)}) == 1


def test_easgd_conserves_the_sum(world):
    training = Training(world)
    rule = rules.EASGD(training.function, [training.w], every=1)
    rule()  # (from here on, ranks have a center)
    for batch in training.batches(4):
        training.function(A[batch], B[batch])
        before = sum(world.values(training.w)) + world.values(rule.centre[0])[0]
        rule()
        after = sum(world.values(training.w)) + world.values(rule.centre[0])[0]
        np.testing.assert_allclose(after, before, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_easgd_has_the_bound_that_it_says(make_world, n):
    """Without gradients, ranks and center converge 5 % below the bound, and diverge 5 % above it."""
    world = make_world("threads", n)
    w = world.shared(np.zeros(1), "w")
    bound = 2 / (n + 1)
    with refuses(ValueError, "alpha", f"2 / (n + 1) = {bound:.4g}"):
        rules.EASGD(params=[w], alpha=bound)
    with refuses(ValueError, "alpha", f"{bound:.4g}"):
        rules.EASGD(params=[w], alpha=10**400)  # not representable as a float
    sizes = []
    for factor in (0.95, 1.05):
        rule = rules.EASGD(params=[w], every=1, alpha=0.95 * bound)
        rule.alpha = factor * bound  # (bypasses the check)
        rule._merge = rule._merge_function()
        world.set_values(w, [np.ones(1)] * n)
        synk.broadcast(rule.centre, [np.full(1, -1.0)])
        for _ in range(60):
            rule()
        sizes.append(abs(world.values(w)[0] - world.values(rule.centre[0])[0])[0])
    assert sizes[0] < 1 and sizes[1] > 10


def test_gossip_conserves_weights_and_their_sum(make_world):
    world = make_world("threads", 4)
    w = world.shared(np.zeros(3), "w")
    begin = np.random.RandomState(0).randn(4, 3)
    world.set_values(w, begin)
    rule = rules.Gossip(params=[w], probability=0.7, seed=5)
    exchanges = sum(rule() for _ in range(60))
    assert 50 < exchanges <= 60 and abs(sum(rule.alphas) - 1) < 1e-12
    np.testing.assert_allclose(np.dot(rule.alphas, world.values(w)), begin.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(world.values(w), [begin.mean(axis=0)] * 4, rtol=1e-4, atol=1e-4)


def test_gossip_is_the_same_in_every_run_and_another_with_another_seed(make_world):
    world = make_world("threads", 4)
    w = world.shared(np.zeros(3), "w")
    runs = []
    for seed in (1, 1, 2):
        rule = rules.Gossip(params=[w], probability=0.5, seed=seed)
        runs.append([list(rule.sent) for _ in range(10) if rule() or True])
    assert runs[0] == runs[1] != runs[2]


def test_swap_hands_on_every_value(make_world):
    world = make_world("threads", 5)
    w = world.shared(np.zeros(1), "w")
    world.set_values(w, [np.full(1, float(rank)) for rank in range(5)])
    rule, seen = rules.Swap(params=[w]), set()
    for _ in range(10):
        assert rule() and len(rule.pairs) == 2
        values = [int(value[0]) for value in world.values(w)]
        assert sorted(values) == list(range(5))
        seen.add(tuple(values))
    assert len(seen) > 5


def test_groups_meet_alone(make_world):
    world = make_world("threads", 4)
    training = Training(world)
    rule = local(training, every=2, groups=[[0, 2], [1, 3]])
    for t, batch in enumerate(training.batches(6), 1):
        training.function(A[batch], B[batch])
        rule()
        training.serial_step(batch)
        if t % 2 == 0:
            training.serial.local_sgd([[0, 2], [1, 3]])
        training.check()
    with rule.consensus():
        expected = np.mean(training.serial.x, axis=0)
        np.testing.assert_allclose(world.values(training.w), [expected] * 4, rtol=1e-12)
    training.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    "start, expected", [(0, [2, 4, 6, 8]), (3, [4, 6, 8]), (4, [4, 6, 8]), (5, [6, 8]), (8, [8]), (9, [])]
)
@pytest.mark.parametrize("kind", [rules.LocalSGD, rules.DiLoCo, rules.SlowMo])
def test_start(world, kind, start, expected):
    """``start`` is the number of the first step, counted from 1, that an exchange may follow."""
    training = Training(world)
    rule = kind(training.function, [training.w], every=2, start=start)
    assert [t for t in range(1, 9) if rule()] == expected


@pytest.mark.parametrize("name", ["LocalSGD", "EASGD", "DiLoCo"])
def test_run_is_the_loop(world, name):
    training = Training(world)
    make, exchange = RULES[name]
    rule, batches = make(training, 3), training.batches(10, 9)
    losses = rule.run(A, B, batches=batches)
    for t, batch in enumerate(batches, 1):
        assert losses[t - 1].shape == ()
        rows = words.shards(batch, world.n, world.root)
        expected = sum(np.sum((A[part] @ training.serial.x[rank] - B[part]) ** 2) for rank, part in enumerate(rows))
        np.testing.assert_allclose(losses[t - 1], expected / len(batch), rtol=1e-10)
        training.serial_step(batch)
        if t % 3 == 0:
            exchange(training.serial, rule)
    training.check()
    assert rule.n_steps == 10 and rule.n_exchanges == 3


@pytest.mark.parametrize("name", ["LocalSGD", "EASGD", "DiLoCo", "Gossip", "ASGD"])
def test_consensus_and_finish(world, name):
    training = Training(world)
    make, exchange = RULES[name]
    rule = make(training, 2)
    training.serial.alphas = [1 / world.n] * world.n
    for t, batch in enumerate(training.batches(5), 1):
        training.function(A[batch], B[batch])
        rule()
        training.serial_step(batch)
        if t % 2 == 0:
            exchange(training.serial, rule)
    serial = training.serial
    answer = serial.z
    if name == "LocalSGD":
        answer = np.average(serial.x, axis=0, weights=serial.rows)
    elif name == "Gossip":
        answer = np.average(serial.x, axis=0, weights=serial.alphas)
    with pytest.raises(ZeroDivisionError), rule.consensus():
        np.testing.assert_allclose(world.values(training.w), [answer] * world.n, rtol=1e-11)
        1 / 0  # noqa: B018
    training.check()
    rule.finish()
    np.testing.assert_allclose(world.values(training.w), [answer] * world.n, rtol=1e-11)


@pytest.mark.parametrize("name", ["LocalSGD", "EASGD", "DiLoCo", "Gossip"])
def test_a_run_goes_on_from_its_state(make_world, name):
    """A new rule, in another session with as many ranks, computes identical values."""

    def run(training, rule, batches):
        for batch in batches:
            training.function(A[batch], B[batch])
            rule()

    world = make_world("threads", 3)
    training = Training(world)
    batches = training.batches(14)
    rule = RULES[name][0](training, 3)
    run(training, rule, batches[:7])
    variables = [training.w, training.m, *rule.state]
    saved = [[synk.get_value(rank, variable) for rank in range(3)] for variable in variables]
    counters = rule.counters
    run(training, rule, batches[7:])
    expected = [value.tobytes() for value in world.values(training.w)]

    world = make_world("threads", 3)
    training = Training(world)
    rule = RULES[name][0](training, 3)
    rule()  # (at another point of the cycle than the saved rule)
    rule.counters = counters
    for variable, values in zip([training.w, training.m, *rule.state], saved):
        for rank, value in enumerate(values):
            synk.set_value(rank, variable, value)
    run(training, rule, batches[7:])
    assert [value.tobytes() for value in world.values(training.w)] == expected


@pytest.mark.parametrize(
    "make, error, fields",
    [
        (lambda w: rules.LocalSGD(params=[w], every=0), ValueError, ("every", "1", "0")),
        (lambda w: rules.LocalSGD(params=[w], every=2.5), TypeError, ("every", "int", "2.5")),
        (lambda w: rules.LocalSGD(params=[w], groups=[[0]]), ValueError, ("groups", "ranks", "[[0]]")),
        (lambda w: rules.LocalSGD(params=[]), ValueError, ("params", "one")),
        (lambda w: rules.LocalSGD(params=w), TypeError, ("params", "list")),
        (lambda w: rules.LocalSGD(), TypeError, ("params", "list")),
        (lambda w: rules.LocalSGD(params=[w, w]), ValueError, ("params[1]", "once")),
        (
            lambda w: rules.LocalSGD(params=[engine.shared(np.zeros(2, int), "n")]),
            TypeError,
            ("params[0]", "floating-point", "n"),
        ),
        (lambda w: rules.LocalSGD(len, params=[w]), TypeError, ("function", "synkhronos", repr(len))),
        (lambda w: rules.EASGD(params=[w], alpha=0), ValueError, ("alpha", "0", "0")),
        (lambda w: rules.EASGD(params=[w], alpha="1"), TypeError, ("alpha", "number", "'1'")),
        (lambda w: rules.DiLoCo(params=[w], outer_momentum=1.0), ValueError, ("outer_momentum", "0", "1.0")),
        (lambda w: rules.DiLoCo(params=[w], outer_rate=-1), ValueError, ("outer_rate", "0", "-1")),
        (lambda w: rules.DiLoCo(params=[w], every=3, delay=3), ValueError, ("delay", "every (3)", "3")),
        (lambda w: rules.DiLoCo(params=[w], merge="mean"), ValueError, ("merge", "'delta' or 'pull'", "'mean'")),
        (lambda w: rules.DiLoCo(params=[w], mix=0), ValueError, ("mix", "1", "0")),
        (lambda w: rules.LocalSGD(params=[w], exchange="float8"), ValueError, ("exchange", "'bfloat16'", "'float8'")),
        (lambda w: rules.Gossip(params=[w], probability=0), ValueError, ("probability", "0", "0")),
        (lambda w: rules.ASGD(params=[w], rate=2), ValueError, ("rate", "1", "2")),
        (lambda w: rules.LocalSGD(params=[w]).run(A, batches=[[1]]), ValueError, ("function", None, "None")),
        (lambda w: rules.Swap(params=[w]).finish(), ValueError, ("rule", None, "Swap")),
    ],
)
def test_bad_input(make_world, make, error, fields):
    world = make_world("threads", 2)
    w = world.shared(np.ones(2), "w")
    with refuses(error, *fields):
        make(w)
    np.testing.assert_array_equal(world.values(w), np.ones((2, 2)))


def test_rules_need_a_session():
    with pytest.raises(synk.StateError):
        rules.EASGD(params=[engine.shared(np.zeros(2), "w")])
