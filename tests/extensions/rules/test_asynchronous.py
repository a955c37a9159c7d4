"""Asynchronous runs, repeated bit for bit from their logs, under load; deaths, errors and interrupts in every phase."""

import os
import signal
import time

import numpy as np
import psutil
import pytest
from clocks import Clock
from descent import BEGIN, MOMENTUM, RATE, A, B
from refusals import refuses, reports
from replay import Replay, furthest

import synkhronos as synk
from synkhronos.contrib.asynchronous import RunAsynchronously
from synkhronos.extensions import checkpoint, rules
from synkhronos.extensions.rules import asynchronous
from synkhronos.replication.replicator import replicator_of
from synkhronos.testing import numpy_engine as engine
from synkhronos.testing.numpy_engine import apply, operations

pytestmark = pytest.mark.slow

WORLDS = [("threads", 1, 0), ("threads", 2, 1), ("threads", 3, 1), ("threads", 4, 0), ("fork", 2, 1), ("fork", 3, 0)]


def load(error, slow):
    """Return the model's error, after a pause on slow ranks."""
    if slow:
        time.sleep(float(slow))
    return error


class Training:
    """Training with momentum, with some slow ranks."""

    def __init__(self, world, pauses=None, inside=load):
        self.world = world
        a, b = engine.variable("a", "float64", 2), engine.variable("b", "float64", 1)
        self.w, self.m = engine.shared(BEGIN.copy(), "w"), engine.shared(np.zeros(4), "m")
        self.pause = engine.shared(np.zeros(()), "pause")
        error = apply(inside, engine.dot(a, self.w) - b, self.pause, dtype="float64", ndim=1)
        gradient = apply(np.true_divide, engine.dot(error, a), apply(operations.length, b))
        new = self.m * MOMENTUM - gradient * RATE
        loss = engine.mean(error * error)
        updates = [(self.m, new), (self.w, self.w + new)]
        self.function = synk.function([a, b], loss, updates=updates, exact=False, name="train")
        synk.distribute()
        if pauses is not None:
            world.set_values(self.pause, [np.array(float(each)) for each in pauses])

    def batches(self, count, seed=1):
        random = np.random.RandomState(seed)
        return [random.permutation(60)[: random.randint(1, 8)] for _ in range(count)]

    def step(self, batches):
        """Return a serial step for a replay, by the same formulas as on ranks; every rank has its own momentum."""
        m = dict(enumerate(self.world.values(self.m)))
        w, momentum = engine.shared(np.zeros(4), "w"), engine.shared(np.zeros(4), "m")
        a, b = engine.variable("a", "float64", 2), engine.variable("b", "float64", 1)
        error = engine.dot(a, w) - b
        gradient = apply(np.true_divide, engine.dot(error, a), apply(operations.length, b))
        new = momentum * MOMENTUM - gradient * RATE
        loss = engine.mean(error * error)
        compiled = engine.ENGINE.compile([a, b], loss, [(momentum, new), (w, w + new)], None)
        self.losses = {}

        def one(rank, x, batch):
            w.set_value(x)
            momentum.set_value(m[rank])
            self.losses[batch] = compiled(A[batches[batch]], B[batches[batch]])
            m[rank] = momentum.get_value()
            return w.get_value()

        return one


def make(training, name, **options):
    return getattr(rules, name)(training.function, [training.w], **options)


def parameters(rule):
    return type(rule).__name__, getattr(rule, "alpha", None) or getattr(rule, "rate", None)


@pytest.mark.thorough(but="loaded-(threads-4|fork-3)")
@pytest.mark.parametrize("name, every", [("EASGD", 3), ("ASGD", 1), ("ASGD", 4), ("Gossip", 1)])
@pytest.mark.parametrize("world", WORLDS, ids="{0[0]}-{0[1]}".format)
@pytest.mark.parametrize("is_loaded", [False, True], ids=["even", "loaded"])
def test_the_log_gives_the_run_again(make_world, world, name, every, is_loaded):
    world = make_world(*world)
    slow = [0.01 if rank == world.n - 1 and is_loaded else 0.0 for rank in range(world.n)]
    training = Training(world, slow)
    rule = make(training, name, every=every, **(dict(probability=0.6, seed=2) if name == "Gossip" else {}))
    for seed in (1, 2):  # the second run continues from the first
        batches = training.batches(40, seed)
        training.replayed = training.step(batches)
        x, z = world.values(training.w), BEGIN if name == "Gossip" else rule.centre[0].get_value()
        alphas = list(getattr(rule, "alphas", []))
        losses = rule.run(A, B, batches=batches, asynchronous=True, record=True)
        replay = Replay(world.n, x, training.replayed, z)
        replay.alphas = alphas
        replay.run(rule.log, parameters(rule))
        assert sorted(replay.batches) == list(range(40))
        assert [each.tobytes() for each in world.values(training.w)] == [each.tobytes() for each in replay.x]
        assert losses.tolist() == [training.losses[i].item() for i in range(40)]
        if name == "Gossip":
            assert rule.alphas == replay.alphas and sum(rule.alphas) == pytest.approx(1, abs=1e-12)
            assert not any(replay.boxes)
        else:
            assert all(each.tobytes() == replay.z.tobytes() for each in world.values(rule.centre[0]))
        taken = [sum(len(line.batches) for line in rule.log if line.rank == rank) for rank in range(world.n)]
        if is_loaded and world.n > 1:
            assert taken[-1] < max(taken[:-1])  # a slow rank takes fewer batches
    rows = [sum(len(batches[i]) for line in rule.log if line.rank == r for i in line.batches) for r in range(world.n)]
    assert training.function.last_rows == rows


@pytest.mark.thorough(but="^0")
@pytest.mark.parametrize("name", ["EASGD", "ASGD", "Gossip"])
@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_staleness_is_bounded(make_world, name, staleness):
    """The staleness bound holds with a slow rank and a partial last exchange; without it, the rank falls behind."""
    world = make_world("threads", 3)
    training = Training(world, [0.0, 0.004, 0.0])
    rule, kind = make(training, name, every=2, **(dict(probability=1.0) if name == "Gossip" else {})), "exchange"
    if name == "Gossip":
        kind = "send"
    batches = training.batches(61)
    rule.run(A, B, batches=batches, asynchronous=True, record=True, staleness=staleness)
    assert sorted(i for line in rule.log for i in line.batches) == list(range(61))
    assert 0 <= furthest(rule.log, 3, kind) <= staleness
    # (the other ranks must be slow enough that they do not take all batches before the slow one has begun)
    world.set_values(training.pause, [np.array(0.01), np.array(0.3), np.array(0.01)])
    rule.run(A, B, batches=batches, asynchronous=True, record=True)
    assert furthest(rule.log, 3, kind) > 3


def test_the_largest_lead_is_found_in_a_log():
    line = asynchronous.Exchange
    log = [line(i, rank, "exchange", (i,), 0) for i, rank in enumerate([0, 0, 0, 1, 1, 0])]
    assert furthest(log, 2) == 2  # when rank 0 began its third exchange, rank 1 had made none


# -- deaths ------------------------------------------------------------------------------------------------------------


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def deadly(error, slow):
    """Kill the rank, raise an error or interrupt it in the step at the end of its countdown."""
    if slow:
        slow[...] -= 1  # the value of the shared variable
        if slow == 0:
            ACTIONS[int(os.environ["SYNK_TEST_ACTION"])]()
    return error


def fail():
    raise ZeroDivisionError("the model")


ACTIONS = [die, fail, lambda: os.kill(os.getpid(), signal.SIGINT)]


class Deadly(asynchronous.ElasticExchanges):
    """A rank of EASGD that dies or stops in its second exchange."""

    phase, action = "", staticmethod(die)

    def begin(self, region):
        super().begin(region)
        self.phase, self.is_victim, self.turn = self.title, region.rank == 1, 0
        if self.is_victim and self.phase == "waiting":
            region._wait = self.wait_or_die
        if self.is_victim and self.phase == "taking":
            region._locks[0].release = die

    def wait_or_die(self, is_ready):
        if self.turn and not is_ready():
            die()
        type(self.region)._wait(self.region, is_ready)

    def moved(self, x, z, new):
        self.turn += 1
        if not self.is_victim or self.turn < 2:
            time.sleep(0.002)  # so that other ranks wait
            return super().moved(x, z, new)
        if self.phase == "holding":
            die()
        if self.phase == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        for target, value in zip(new, super().moved(x, z, [each.copy() for each in new])):
            target[: len(target) // 2] = value[: len(target) // 2] + 1
        if self.phase == "between":
            die()
        return super().moved(x, z, new)

    def put(self, values):
        if self.is_victim and self.turn == 2 and self.phase == "flipped":
            die()
        super().put(values)


def of_equal_elements(world):
    """Return a parameter whose elements stay equal unless a copy is incomplete, and a step function."""
    x = engine.variable("x", "float64", 1)
    w = engine.shared(np.zeros(1000), "w")
    mean = engine.mean(x)
    return w, synk.function([x], mean, updates=[(w, w + mean)], exact=False)


@pytest.mark.parametrize("phase", ["holding", "between", "flipped", "waiting", "taking"])
def test_killed_in_an_exchange(make_world, monkeypatch, phase):
    """After a kill in an exchange, the master has a complete center, nothing hangs, and a new session works."""
    monkeypatch.setattr(rules.EASGD, "asynchronous_exchanges", Deadly)
    world = make_world("fork", 3, 0)
    w, f = of_equal_elements(world)
    rule = rules.EASGD(f, [w], every=1)
    monkeypatch.setattr(type(rule), "_settings", lambda self, r: (self.params, 1, self._own_steps, r, phase))
    with reports(synk.WorkerDied, "SIGKILL", rank=1, exitcode=-signal.SIGKILL):
        rule.run(np.arange(1.0, 9.0), batches=[[i % 8] for i in range(3000)], asynchronous=True)
    z = rule.centre[0].get_value()
    assert np.ptp(z) == 0 and np.isfinite(z[0]) and (z[0] > 0 or phase == "taking")
    assert np.ptp(w.get_value()) == 0 and not synk.is_forked()
    with pytest.raises(synk.StateError):
        rule.run(np.ones(8), batches=[[0]], asynchronous=True)
    world = make_world("fork", 2, 0)
    assert f(np.ones(4)) == 1


def test_a_rank_that_stops_with_the_lock(make_world, monkeypatch):
    monkeypatch.setattr(rules.EASGD, "asynchronous_exchanges", Deadly)
    world = make_world("fork", 2, 0)
    w, f = of_equal_elements(world)
    rule = rules.EASGD(f, [w], every=1)
    monkeypatch.setattr(type(rule), "_settings", lambda self, r: (self.params, 1, self._own_steps, r, "stopped"))
    clock, other = Clock(), psutil.Process(world.session.launcher.pid(1))
    monkeypatch.setattr("synkhronos.runtime.session.time", clock)
    clock.when(lambda: other.status() == psutil.STATUS_STOPPED, lambda: setattr(clock, "tick", 0.2))
    with reports(synk.WorkerTimeout, "step", "0.5 s", rank=1):
        rule.run(np.ones(8), batches=[[i % 8] for i in range(3000)], asynchronous=True, timeout=0.5)


@pytest.mark.thorough(but="Gossip")
@pytest.mark.parametrize("name", ["EASGD", "ASGD", "Gossip"])
def test_killed_in_a_step(make_world, monkeypatch, name):
    monkeypatch.setenv("SYNK_TEST_ACTION", "0")
    world = make_world("fork", 2, 1)
    training = Training(world, [7, 0], deadly)
    rule = make(training, name, every=2)
    with reports(synk.WorkerDied, "SIGKILL", rank=0, command="steps of function train", function="train") as caught:
        rule.run(A, B, batches=training.batches(3000), asynchronous=True)
    assert caught.value.steps[0] == 6 and np.isfinite(training.w.get_value()).all()


@pytest.mark.thorough("threads")
@pytest.mark.parametrize("name", ["EASGD", "ASGD", "Gossip"])
@pytest.mark.parametrize("launcher", ["threads", "fork"])
def test_an_error_on_a_rank(make_world, monkeypatch, name, launcher):
    """After an error on a rank, others stop soon, all have the same center, and the rule can continue."""
    monkeypatch.setenv("SYNK_TEST_ACTION", "1")
    world = make_world(launcher, 3, 0)
    training = Training(world, [0, 0, 9], deadly)
    rule = make(training, name, every=2, **(dict(probability=0.9) if name == "Gossip" else {}))
    with reports(synk.WorkerError, "ZeroDivisionError: the model", rank=2) as caught:
        rule.run(A, B, batches=training.batches(100000), asynchronous=True)
    assert caught.value.steps[2] == 8 and max(caught.value.steps) < 50000
    if name == "Gossip":
        assert sum(rule.alphas) == pytest.approx(1, abs=1e-12)
    else:
        assert len({each.tobytes() for each in world.values(rule.centre[0])}) == 1
    if name == "ASGD":
        assert all(each.tobytes() == rule.centre[0].get_value().tobytes() for each in world.values(training.w))
    again(training, rule)


def again(training, rule):
    """Run the rule once more, repeat the run from its log, and compare the results."""
    batches = training.batches(30, 5)
    step = training.step(batches)
    x, z = training.world.values(training.w), rule.centre[0].get_value() if hasattr(rule, "centre") else BEGIN
    replay = Replay(training.world.n, x, step, z)
    replay.alphas = list(getattr(rule, "alphas", []))
    rule.run(A, B, batches=batches, asynchronous=True, record=True)
    replay.run(rule.log, parameters(rule))
    assert [each.tobytes() for each in training.world.values(training.w)] == [each.tobytes() for each in replay.x]


@pytest.mark.thorough(but="Gossip")
@pytest.mark.parametrize("name", ["EASGD", "ASGD", "Gossip"])
def test_ctrl_c(make_world, monkeypatch, name):
    monkeypatch.setenv("SYNK_TEST_ACTION", "2")
    world = make_world("fork", 2, 0)
    training = Training(world, [20, 0], deadly)
    rule = make(training, name, every=2, **(dict(probability=0.9) if name == "Gossip" else {}))
    with pytest.raises(KeyboardInterrupt):
        rule.run(A, B, batches=training.batches(100000), asynchronous=True)
    again(training, rule)


# -- counts, kept values and refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["EASGD", "ASGD", "Gossip"])
def test_bytes_of_exchanges(make_world, name):
    """In bytes, an exchange with the center moves the parameters twice, a gossip message once."""
    world = make_world("threads", 3)
    training = Training(world)
    rule = make(training, name, every=2, **(dict(probability=0.9) if name == "Gossip" else {}))
    rule.run(A, B, batches=training.batches(50), asynchronous=True, record=True)
    moved = synk.traffic()[f"asynchronous {name}"]
    size = BEGIN.nbytes
    count = sum(line.kind in ("exchange", "send") for line in rule.log)
    assert count > 5 and rule.n_exchanges == count
    expected = (0, count * size) if name == "Gossip" else (count * size, count * size)
    assert (sum(moved.read), sum(moved.sent)) == expected


def test_progress_from_before_a_run_in_which_a_rank_gets_no_batch(make_world):
    """ASGD adds every rank's progress since its last exchange to the center, also for a rank without a batch."""
    world = make_world("threads", 2)
    w, speed = world.shareds([np.zeros(1), np.zeros(1)], ["w", "speed"])
    world.set_values(speed, [[1.0], [3.0]])
    x = engine.variable("x", "float64", 1)
    step = synk.function([x], engine.mean(x), updates=[(w, w + speed)], exact=False)
    rule = rules.ASGD(step, [w], every=10)
    for _ in range(5):
        step(np.ones(2))
        assert not rule()
    rule.run(np.ones(2), batches=[[0, 1]], asynchronous=True, record=True)
    (rank,) = (line.rank for line in rule.log if line.batches)
    expected = (5 + 15 + [1, 3][rank]) / 2
    np.testing.assert_allclose(world.values(w), [[expected]] * 2, rtol=1e-12)


def test_what_a_run_changes_is_known_to_those_who_replace_a_rank(make_world):
    """The command of a run lists the rule's parameters as changed, even if another function trains them."""
    world = make_world("threads", 2)
    w, v = world.shareds([np.zeros(1), np.zeros(1)], ["w", "v"])
    x = engine.variable("x", "float64", 1)
    steps = synk.function([x], engine.mean(x), updates=[(v, v + 1)], exact=False)
    other = synk.function([], updates=[(w, w + 1)], exact=False)
    commands, run = [], world.session.run
    world.session.run = lambda command, *more: commands.append(command) or run(command, *more)
    rule = rules.ASGD(steps, [w])
    other()
    rule.run(np.ones(2), batches=[[0], [1]], asynchronous=True)
    world.session.run = run
    (command,) = (each for each in commands if isinstance(each, RunAsynchronously))
    assert replicator_of(world.session).find(engine.ENGINE, w) in command.unsaved(False)


def test_gossip_sends_after_the_same_batches_in_every_run(make_world):
    """Gossip sends after the same batches, whichever rank makes the steps."""
    found = []
    for pauses in ([0, 0, 0], [0.003, 0, 0]):
        training = Training(make_world("threads", 3), pauses)
        rule = make(training, "Gossip", probability=0.3, seed=4)
        rule.run(A, B, batches=training.batches(40), asynchronous=True, record=True)
        found.append(sorted(line.batches[-1] for line in rule.log if line.kind == "send"))
    assert found[0] == found[1] and 3 < len(found[0]) < 25


@pytest.mark.parametrize("name", ["EASGD", "ASGD", "Gossip"])
def test_a_run_goes_on_from_a_checkpoint(make_world, tmp_path, name):
    """A checkpoint restores values, weights and steps since the last exchange; with one rank, runs are equal."""
    path = str(tmp_path / "state.npz")
    for n in (1, 3):
        training = Training(make_world("threads", n))
        rule = make(training, name, every=4)
        rule.run(A, B, batches=training.batches(10), asynchronous=True)
        checkpoint.save(path, [training.w, training.m], rule)
        rule.run(A, B, batches=training.batches(10, 3), asynchronous=True)
        expected, counters = training.world.values(training.w), rule.counters

        training = Training(make_world("threads", n))
        rule = make(training, name, every=4)
        checkpoint.load(path, [training.w, training.m], rule)
        if n == 1:
            rule.run(A, B, batches=training.batches(10, 3), asynchronous=True)
            assert training.w.get_value().tobytes() == expected[0].tobytes() and rule.counters == counters
            continue
        own = list(rule._own_steps)
        again(training, rule)
        first = {line.rank: line for line in reversed(rule.log) if line.kind == "exchange"}
        if name == "EASGD":
            assert all((own[rank] + len(line.batches)) % 4 == 0 for rank, line in first.items()) and first


def test_synchronous_exchanges_and_asynchronous_ones_in_turn(make_world):
    world = make_world("threads", 2)
    training = Training(world)
    rule = make(training, "ASGD", every=1)
    again(training, rule)
    before = rule.centre[0].get_value()
    training.function(A[:8], B[:8])
    x = world.values(training.w)
    rule()
    expected = before + sum(each - before for each in x) / 2
    np.testing.assert_allclose(world.values(training.w), [expected] * 2, rtol=1e-12)
    again(training, rule)


@pytest.mark.parametrize(
    "make_rule, options, error, fields",
    [
        (lambda f, w: rules.LocalSGD(f, [w]), {}, ValueError, ("asynchronous", "LocalSGD", "True")),
        (lambda f, w: rules.DiLoCo(f, [w]), {}, ValueError, ("asynchronous", "DiLoCo", "True")),
        (lambda f, w: rules.EASGD(f, [w]), dict(staleness=-1), ValueError, ("staleness", "0", "-1")),
        (lambda f, w: rules.EASGD(f, [w]), dict(staleness=1.5), TypeError, ("staleness", "int", "1.5")),
        (lambda f, w: rules.EASGD(f, [w]), dict(staleness=True), TypeError, ("staleness", "int", "True")),
        (lambda f, w: rules.EASGD(f, [w]), dict(batches=[[60]]), ValueError, ("batches[0]", None, "60")),
        (lambda f, w: rules.EASGD(f, [w]), dict(on_step=print), ValueError, ("on_step",)),
        (lambda f, w: rules.EASGD(f, [w]), dict(timeout=0), ValueError, ("timeout", None, "0")),
        (
            lambda f, w: rules.EASGD(f, [w], [f.get_shared()[-1]], state_is="reset"),
            {},
            ValueError,
            ("state_is", "'kept'", "'reset'"),
        ),
        (lambda f, w: rules.ASGD(f, [w], exchange="bfloat16"), {}, ValueError, ("asynchronous", "exchange=", "True")),
        (
            lambda f, w: rules.EASGD(f, [w]),
            dict(asynchronous=False, record=True),
            ValueError,
            ("asynchronous", "True", "False"),
        ),
        (lambda f, w: rules.EASGD(params=[w]), {}, ValueError, ("function", None, "None")),
    ],
)
def test_bad_input(make_world, make_rule, options, error, fields):
    training = Training(make_world("threads", 2))
    rule = make_rule(training.function, training.w)
    with refuses(error, *fields):
        rule.run(A, B, **dict(dict(batches=[[1], [2]], asynchronous=True), **options))
    assert all(each.tobytes() == BEGIN.tobytes() for each in training.world.values(training.w))


def test_a_refused_run_draws_nothing(make_world):
    training = Training(make_world("threads", 2))
    rule = make(training, "Gossip")
    before = rule.counters
    with pytest.raises(ValueError):
        rule.run(A, B, batches=[[60]], asynchronous=True)
    assert rule.counters == before


def test_functions_in_which_ranks_meet_are_refused(make_world):
    make_world("threads", 2)
    x, w = engine.variable("x", "float64", 1), engine.shared(np.zeros(()), "w")
    f = synk.function([x], engine.mean(x), updates=[(w, w + engine.mean(x))], exact=True)
    rule = rules.EASGD(f, [w])
    with refuses(ValueError, "function", got="synkhronos.ops"):
        rule.run(np.ones(4), batches=[[0]], asynchronous=True)
    assert rule.run(np.ones(4), batches=[], asynchronous=True) == []


# -- closed forms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_asgd_by_turns(n):
    """With ranks in turn and b = 1 - a^tau, e' = e - b e_{t-n+1} converges up to b = 2 sin(pi / (2 (2n - 1)))."""
    bound = 2 * np.sin(np.pi / (2 * (2 * n - 1)))
    for factor in (0.95, 1.05):
        b = factor * bound
        z, errors = np.ones(1), [1.0]
        origins = [z.copy() for _ in range(n)]
        for t in range(1500):
            x = origins[t % n] * (1 - b)  # tau steps of the rank, toward 0
            z = asynchronous.downpour(x, z, origins[t % n], 1.0)
            origins[t % n] = z.copy()
            errors.append(z[0])
        before = [1.0] * (n - 1) + errors  # the error n - 1 turns earlier
        expected = [errors[t] - b * before[t] for t in range(1500)]
        np.testing.assert_allclose(errors[1:], expected, rtol=1e-9, atol=1e-12)
        largest = np.abs(errors[-50:]).max()
        assert largest < 1e-3 if factor < 1 else largest > 1e3


@pytest.mark.parametrize("name", ["EASGD", "Gossip"])
def test_what_exchanges_conserve(make_world, name):
    """Without steps, EASGD conserves the sum of x and z, and gossip the weighted sum of x."""
    world = make_world("threads", 3)
    training = Training(world)
    stand = synk.function(
        [engine.variable("a", "float64", 2)], [], updates=[(training.w, training.w * 1.0)], exact=False
    )
    synk.distribute()
    begin = np.random.RandomState(3).randn(3, 4)
    world.set_values(training.w, begin)
    rule = getattr(rules, name)(stand, [training.w], every=1, **(dict(probability=0.8) if name == "Gossip" else {}))
    before = begin.sum(axis=0) + rule.centre[0].get_value() if name == "EASGD" else begin.mean(axis=0)
    rule.run(A, batches=[[0]] * 60, asynchronous=True)
    values = world.values(training.w)
    after = sum(values) + rule.centre[0].get_value() if name == "EASGD" else np.dot(rule.alphas, values)
    np.testing.assert_allclose(after, before, rtol=1e-12)
    # If the master has taken all batches, it agrees with the center, which began with the master's value.
    assert stand.last_rows == [60, 0, 0] or np.abs(np.subtract(values, begin)).max() > 0.1
