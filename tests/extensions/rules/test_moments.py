"""Rules called at the wrong moment, with wrong variables, or interrupted: errors are clear, and nothing changes."""

import contextlib
import gc
import itertools

import numpy as np
import pytest
from descent import RULES, A, B, Training
from quadratics import Quadratics
from refusals import refuses, reports

import synkhronos as synk
from synkhronos.extensions import rules
from synkhronos.testing import numpy_engine as engine
from synkhronos.testing.numpy_engine import apply, operations

pytestmark = pytest.mark.slow

KINDS = [rules.LocalSGD, rules.EASGD, rules.DiLoCo, rules.SlowMo, rules.ASGD, rules.Gossip, rules.Swap, rules.DASO]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)

CALLS = {
    "a call": lambda rule: rule(),
    "run": lambda rule: rule.run(batches=[None]),
    "consensus": lambda rule: rule.consensus().__enter__(),
    "finish": lambda rule: rule.finish(),
    "epoch": lambda rule: rule.epoch(1.0),
}


def calls_of(rule):
    return {name: call for name, call in CALLS.items() if hasattr(rule, name) or name == "a call"}


def state_of(world, quadratics, rule):
    """Return everything that a rule may change."""
    variables = [*quadratics.params, *rule.state]
    values = [[synk.get_value(rank, each).tobytes() for rank in range(world.n)] for each in variables]
    return values, rule.counters


@each_kind
def test_before_fork(kind):
    w = engine.shared(np.zeros(2), "w")
    function = synk.function([], updates=[(w, w + 1)])
    with reports(synk.StateError, "synkhronos.fork()"):
        kind(function, [w])


@each_kind
@pytest.mark.parametrize("again", [False, True], ids=["closed", "forked again"])
def test_after_close(make_world, kind, again):
    """After `close`, a rule refuses calls, even in a new session, because other ranks' values are lost."""
    quadratics = Quadratics(make_world("threads", 3))
    rule = kind(quadratics.function, quadratics.params)
    quadratics.function()
    rule()
    values, counters = quadratics.params[0].get_value(), rule.counters
    synk.close()
    if again:
        make_world("threads", 2)
    for call in calls_of(rule).values():
        with reports(synk.StateError, kind.__name__ if again else "synkhronos.fork()"):
            call(rule)
    np.testing.assert_array_equal(quadratics.params[0].get_value(), values)
    assert rule.counters == counters
    if again:  # rows from the other session do not count in a new rule for the current number of ranks
        rule = kind(quadratics.function, quadratics.params)
        rule()
        assert rule.counters["rows"] == [0.0, 0.0]


@each_kind
def test_inside_consensus(make_world, kind):
    world = make_world("threads", 3, 2)
    quadratics = Quadratics(world)
    rule = kind(quadratics.function, quadratics.params)
    if kind is rules.Swap:
        with refuses(ValueError, "rule", got="Swap"), rule.consensus():
            raise AssertionError
        quadratics.check()
        return
    for _ in range(3):
        quadratics.function()
        rule()
    before = state_of(world, quadratics, rule)
    with rule.consensus():
        answer = [value.tobytes() for value in world.values(quadratics.params[0])]
        assert len(set(answer)) == 1
        for name, call in calls_of(rule).items():
            if name != "consensus":
                with reports(synk.StateError, kind.__name__, "consensus()"):
                    call(rule)
        with rule.consensus():
            assert [value.tobytes() for value in world.values(quadratics.params[0])] == answer
        assert [value.tobytes() for value in world.values(quadratics.params[0])] == answer
    assert state_of(world, quadratics, rule) == before
    rule()


@each_kind
def test_a_session_that_ends_inside_consensus_leaves_the_masters_own_values(make_world, kind):
    if kind is rules.Swap:
        return
    quadratics = Quadratics(make_world("threads", 3, 1))
    rule = kind(quadratics.function, quadratics.params)
    quadratics.function()
    rule()
    own = quadratics.params[0].get_value()
    quadratics.function()
    own = quadratics.params[0].get_value()
    with rule.consensus():
        assert not np.array_equal(quadratics.params[0].get_value(), own)
        synk.close()
    np.testing.assert_array_equal(quadratics.params[0].get_value(), own)


@each_kind
@pytest.mark.parametrize(
    "make, error, fields",
    [
        (lambda w: dict(params=[engine.shared(np.zeros(2), "v")]), ValueError, ("params[0]", None, "v")),
        (
            lambda w: dict(params=[w], state=[engine.shared(np.zeros(2), "v")]),
            ValueError,
            ("state[0]", None, "v"),
        ),
        (lambda w: dict(params=[w], state=[w.storage]), TypeError, ("state[0]", "shared")),
        (lambda w: dict(params=[w, w]), ValueError, ("params[1]", "once")),
        (lambda w: dict(params=[engine.random_stream(0)]), TypeError, ("params[0]", "floating-point")),
        (lambda w: dict(params={"w": w}), TypeError, ("params", "list")),
    ],
)
def test_wrong_variables(make_world, kind, make, error, fields):
    quadratics = Quadratics(make_world("threads", 2))
    with refuses(error, *fields):
        kind(quadratics.function, **make(quadratics.params[0]))
    quadratics.check()


NUMBERS = {
    "alpha": rules.EASGD,
    "rate": rules.ASGD,
    "outer_rate": rules.DiLoCo,
    "outer_momentum": rules.DiLoCo,
    "mix": rules.DiLoCo,
    "probability": rules.Gossip,
    "threshold": rules.DASO,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(make_world, name):
    """NumPy's numbers are accepted; values that are not finite, or not numbers, are refused."""
    quadratics = Quadratics(make_world("threads", 2))
    for value in (np.float32(0.5), np.float64(0.5), np.float16(0.5)):
        made = NUMBERS[name](quadratics.function, quadratics.params, **{name: value})
        assert (made.phases.threshold if name == "threshold" else getattr(made, name)) == 0.5
    for value, error in ((np.nan, ValueError), (np.inf, ValueError), (-1, ValueError), ("0.5", TypeError)):
        with refuses(error, name, got=str(value)):
            NUMBERS[name](quadratics.function, quadratics.params, **{name: value})
    for value in (True, [0.5], 0.5j):
        with refuses(TypeError, name, got=str(value)):
            NUMBERS[name](quadratics.function, quadratics.params, **{name: value})


@pytest.mark.parametrize("exchange", ["float8", 16, ["bfloat16"]])
@pytest.mark.parametrize("kind", [rules.LocalSGD, rules.EASGD, rules.DiLoCo, rules.ASGD, rules.DASO])
def test_formats(make_world, kind, exchange):
    quadratics = Quadratics(make_world("threads", 2))
    with refuses(ValueError, "exchange", "'bfloat16' or 'float16'", repr(exchange)):
        kind(quadratics.function, quadratics.params, exchange=exchange)


@pytest.mark.parametrize("seed, error", [(-1, ValueError), (2**32, ValueError), (None, TypeError), ("1", TypeError)])
@pytest.mark.parametrize("kind", [rules.Gossip, rules.Swap])
def test_seeds(make_world, kind, seed, error):
    """Invalid seeds are refused, also None, because runs would differ."""
    quadratics = Quadratics(make_world("threads", 2))
    with refuses(error, "seed", got=str(seed)):
        kind(quadratics.function, quadratics.params, seed=seed)


@pytest.mark.parametrize("loss", [np.nan, np.inf, "1", None])
def test_losses_that_are_none(make_world, loss):
    """Losses that are not finite are refused: a NaN is neither lower nor higher than others, and would go unnoticed."""
    world = make_world("threads", 2)
    quadratics = Quadratics(world)
    rule = rules.DASO(quadratics.function, quadratics.params)
    quadratics.step()
    before = state_of(world, quadratics, rule)
    with refuses((ValueError, TypeError), "loss", got=str(loss)):
        rule.epoch(loss)
    assert state_of(world, quadratics, rule) == before
    quadratics.check()


def test_an_exchange_that_fails_can_be_made_with_the_next_step(make_world):
    """If a rank's value has a wrong shape, values and counts stay unchanged; once it is right, the rule continues."""
    for kind in KINDS:
        world = make_world("threads", 3, 1)
        quadratics = Quadratics(world)
        options = dict(groups=[[0, 1, 2]]) if kind is rules.DASO else dict(every=1)
        rule = kind(quadratics.function, quadratics.params, **options, **(dict(seed=1) if kind is rules.Swap else {}))
        if kind is rules.Gossip:
            rule.probability = 1.0
        rule()
        exchanges = rule.n_exchanges
        w = quadratics.params[0]
        good = world.values(w)
        world.set_values(w, [good[0], np.zeros(4), good[2]])
        with pytest.raises((ValueError, synk.WorkerError)):
            rule()
        assert rule.n_exchanges == exchanges
        np.testing.assert_array_equal(world.values(w)[2], good[2])
        world.set_values(w, good)
        quadratics.function()
        assert rule() or kind is rules.Swap
        rule() if kind is rules.Swap else rule.finish()


def test_interrupted_while_a_mean_is_begun(make_world, monkeypatch):
    """The next mean begins, even if Ctrl-C comes before the rule records that ranks copied their values."""
    quadratics = Quadratics(make_world("threads", 2))
    rule = rules.DiLoCo(quadratics.function, quadratics.params, every=2, delay=1)
    means = rule.fragments[0].means
    start = means.start

    def interrupted(weights):
        start(weights)
        raise KeyboardInterrupt

    monkeypatch.setattr(means, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        for _ in range(2):
            quadratics.function()
            rule()
    monkeypatch.undo()
    for _ in range(6):
        quadratics.function()
        rule()
    rule.finish()
    assert rule.n_exchanges == 3


@pytest.mark.parametrize("exchange", [None, "bfloat16"])
@pytest.mark.parametrize("kind", [rules.DiLoCo, rules.DASO])
def test_a_rule_that_is_dropped_takes_with_it_what_it_has_begun(make_world, kind, exchange):
    """A new rule can use the same parameters, as in a notebook, and `close` finds no pending mean."""
    quadratics = Quadratics(make_world("threads", 2))
    options = dict(warm_up=0) if kind is rules.DASO else dict(every=4, delay=2)
    for _ in range(3):
        rule = kind(quadratics.function, quadratics.params, exchange=exchange, **options)
        for _ in range(4):
            quadratics.function()
            rule()
        del rule
        gc.collect()
    synk.close()


INTERRUPTED = {
    "LocalSGD in 16 bits": lambda *given: rules.LocalSGD(*given, every=2, exchange="bfloat16"),
    "EASGD": lambda *given: rules.EASGD(*given, every=2),
    "DiLoCo": lambda *given: rules.DiLoCo(*given, every=2),
    "DiLoCo later": lambda *given: rules.DiLoCo(*given, every=3, delay=2),
    "DiLoCo in fragments": lambda *given: rules.DiLoCo(*given, every=3, delay=1, fragments=2, exchange="float16"),
    "Gossip": lambda *given: rules.Gossip(*given, probability=0.9),
    "DASO": lambda *given: rules.DASO(*given, groups=[[0, 1], [2]], warm_up=0),
}


class Interrupting:
    """Runs commands of a session, and raises KeyboardInterrupt before, or right after, one of them."""

    def __init__(self, session, at, after):
        self.run, self.at, self.after, self.count = session.run, at, after, 0

    def __call__(self, *given):
        self.count += 1
        if self.count == self.at and not self.after:
            raise KeyboardInterrupt
        result = self.run(*given)
        if self.count == self.at:
            raise KeyboardInterrupt
        return result


def run_interrupted(world, monkeypatch, name, at, after):
    """Make 7 steps, and continue after the interrupt; return the number of commands."""
    quadratics = Quadratics(world, [(3,), ()], a=0.9)
    rule = INTERRUPTED[name](quadratics.function, quadratics.params)
    interrupting = Interrupting(world.session, at, after)
    monkeypatch.setattr(world.session, "run", interrupting)
    for _ in range(7):
        for call in (quadratics.function, rule):
            with contextlib.suppress(KeyboardInterrupt):
                call()
    monkeypatch.setattr(world.session, "run", interrupting.run)
    rule.finish()
    for param, c in zip(quadratics.params, quadratics.c):
        values = world.values(param)
        assert all(value.tobytes() == values[0].tobytes() for value in values)
        assert np.abs(values[0] - np.mean(c, axis=0)).max() < 3  # the values have not diverged
    return interrupting.count


@pytest.mark.long
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", INTERRUPTED)
def test_ctrl_c_between_any_two_commands(make_world, monkeypatch, name, after):
    """The program can continue with the next step: a pending mean is merged or lost, and ranks agree at the end."""
    count = run_interrupted(make_world("threads", 3, 1), monkeypatch, name, 0, after)
    assert count > 8
    for at in range(1, count + 1):
        run_interrupted(make_world("threads", 3, 1), monkeypatch, name, at, after)


def test_two_rules_over_the_same_parameters(make_world):
    """Rules may average groups every step, and all ranks every fourth; two pending means of a variable are refused."""
    quadratics = Quadratics(make_world("threads", 4), a=0.8)
    inside = rules.LocalSGD(quadratics.function, quadratics.params, every=1, groups=[[0, 1], [2, 3]])
    among = rules.LocalSGD(quadratics.function, quadratics.params, every=4)
    for t in range(1, 9):
        quadratics.step()
        inside()
        among()
        x = quadratics.x[0]
        halves = [(x[0] + x[1]) / 2, (x[2] + x[3]) / 2]
        quadratics.x[0] = [sum(halves) / 2] * 4 if t % 4 == 0 else [halves[0], halves[0], halves[1], halves[1]]
        quadratics.check()
    first, second = (rules.DiLoCo(quadratics.function, quadratics.params, every=4, delay=delay) for delay in (3, 2))
    with reports(synk.StateError, "wait()", "w0"):
        for _ in range(4):
            first()
            second()
    first.finish()


# -- run ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skips", [(4, 1, 1), (8, 2, 2), (2, 1, 1), (1, 1, 1)])
def test_run_of_daso_is_the_loop(make_world, skips):
    """`run` equals a loop of calls, even where it makes two steps in one command."""
    results = []
    for runs in (False, True):
        world = make_world("threads", 3)
        training = Training(world)
        rule = rules.DASO(training.function, [training.w], groups=[[0, 1], [2]], warm_up=0)
        rule.phases._skips = type(rule.phases.skips)(*skips)
        batches = training.batches(19)
        if runs:
            rule.run(A, B, batches=batches)
        else:
            for batch in batches:
                training.function(A[batch], B[batch])
                rule()
        results.append(([value.tobytes() for value in world.values(training.w)], rule.counters))
        rule.finish()
    assert results[0] == results[1]


@pytest.mark.parametrize("name", RULES)
def test_run_is_the_loop_to_the_bit(make_world, name):
    results = []
    for runs in (False, True):
        world = make_world("threads", 3)
        training = Training(world)
        rule = RULES[name][0](training, 3)
        batches = training.batches(8) + training.batches(3, size=2)
        if runs:
            rule.run(A, B, batches=batches)
        else:
            for batch in batches:
                training.function(A[batch], B[batch])
                rule()
        results.append(([value.tobytes() for value in world.values(training.w)], rule.counters))
    assert results[0] == results[1]


def outputs_of(form):
    x = engine.variable("x", "float64", 1)
    mean, rows = engine.mean(x), (apply(operations.cast, x, "float64"), "gather")
    return x, {
        "one": mean,
        "rows": rows,
        "list": [mean, rows],
        "list of one": [mean],
        "list of rows": [rows],
        "dict": {"a": mean, "b": rows},
        "none": None,
    }[form]


@pytest.mark.parametrize("form", ["one", "rows", "list", "list of one", "list of rows", "dict", "none"])
@pytest.mark.parametrize("every", [1, 2, 3, 9])
def test_outputs_of_run_are_those_of_steps(make_world, form, every):
    """`run` returns the outputs of `steps` in every form, with batches of different sizes."""
    world = make_world("threads", 2)
    w = world.shared(np.zeros(2), "w")
    x, outputs = outputs_of(form)
    function = synk.function([x], outputs, updates=[(w, w + 1)], exact=False)
    batches, data = [[0, 1, 2], [3, 4], [5, 6, 7], [8], [9, 1, 2]], np.arange(10.0) ** 2
    expected = function.steps(data, batches=batches)
    found = rules.LocalSGD(function, [w], every=every).run(data, batches=iter(batches))

    def assert_same(one, other):
        assert type(one) is type(other)
        if isinstance(one, dict):
            assert_same(list(one.items()), list(other.items()))
        elif isinstance(one, (list, tuple)):
            assert len(one) == len(other)
            for each in zip(one, other):
                assert_same(*each)
        else:
            np.testing.assert_array_equal(one, other)

    assert_same(found, expected)


def test_a_rule_cannot_be_called_by_a_rank_in_the_middle_of_steps(make_world):
    training = Training(make_world("threads", 2))
    rule = rules.LocalSGD(training.function, [training.w], every=1)
    with pytest.raises(synk.StateError):
        training.function.steps(A, B, batches=[[0, 1], [2, 3]], on_step=lambda i, outputs: rule())
    assert rule.n_exchanges == 0
    training.function(A, B)
    assert rule()


@pytest.mark.parametrize("name, value", [("total", True), ("n_steps", 2), ("on_step", print), ("batches_s", [[0]])])
def test_what_run_does_not_take(make_world, name, value):
    training = Training(make_world("threads", 2))
    rule = rules.LocalSGD(training.function, [training.w])
    with refuses(ValueError, name, "run()"):
        rule.run(A, B, batches=itertools.repeat([0, 1]), **{name: value})  # (no batch is requested)
    assert rule.n_steps == 0
    training.check()


def test_an_error_in_a_run_counts_the_steps_before(make_world):
    training = Training(make_world("threads", 2))
    rule = rules.LocalSGD(training.function, [training.w], every=2)
    with refuses(ValueError, "batch", got="99"):
        rule.run(A, B, batches=[[0, 1], [2, 3], [4, 99]])
    assert (rule.n_steps, rule.n_exchanges) == (2, 1)
    assert len(rule.run(A, B, batches=[])) == 0


def of_one(world):
    """Return a parameter of one element, 0 on all ranks, and a function that adds 1 to it."""
    w = world.shared(np.zeros(1), "w")
    return w, synk.function([], updates=[(w, w + 1)], exact=False)


@pytest.mark.parametrize("merge", ["delta", "daso"])
def test_a_mean_whose_arrival_was_interrupted_is_not_merged(make_world, monkeypatch, merge):
    """Neither an interrupted mean nor the one before it is merged: after 5 steps of 1, all ranks have 5."""
    world = make_world("threads", 2)
    w, step = of_one(world)
    rule = rules.DASO(step, [w], groups=[[0], [1]], warm_up=0, merge=merge)
    for _ in range(4):
        step()
        rule()  # the last call begins a mean
    step()
    interrupting = Interrupting(world.session, 1, False)
    monkeypatch.setattr(world.session, "run", interrupting)
    with pytest.raises(KeyboardInterrupt):
        rule()
    monkeypatch.setattr(world.session, "run", interrupting.run)
    rule.finish()
    np.testing.assert_array_equal(world.values(w), [[5.0], [5.0]])


GOING_ON = {
    "a step": lambda rule: rule(),
    "an epoch": lambda rule: rule.epoch(1.0),
    "the end": lambda rule: rule.finish(),
}


@pytest.mark.parametrize("then", GOING_ON)
@pytest.mark.parametrize("where", ["start", "state"])
@pytest.mark.parametrize("exchange", [None, "bfloat16"])
def test_daso_after_an_interrupt_when_a_mean_was_begun(make_world, monkeypatch, exchange, where, then):
    """DASO continues after an interrupt while a mean begins, whatever comes next."""
    world = make_world("threads", 2)
    w, step = of_one(world)
    rule = rules.DASO(step, [w], groups=[[0], [1]], warm_up=0, epochs=5, cool_down=4, exchange=exchange)
    start = rule.means.start

    def interrupted(*args):
        if where == "start":
            start(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(*((rule.means, "start") if where == "start" else (rule, "_exchange_state")), interrupted)
    with pytest.raises(KeyboardInterrupt):
        for _ in range(4):
            step()
            rule()
    monkeypatch.undo()
    step()
    GOING_ON[then](rule)
    for _ in range(3):
        step()
        rule()
    rule.finish()
    np.testing.assert_array_equal(world.values(w), [[8.0], [8.0]])
    synk.close()  # nothing is pending, although the rule still exists


def test_a_merge_that_was_interrupted_afterwards_is_not_made_again(make_world, monkeypatch):
    """An interrupted merge is not repeated: 4 and 12 have the mean 8, so ranks get 5 + 8 - 4 and 15 + 8 - 12."""
    world = make_world("threads", 2)
    w, more = world.shared(np.zeros(1), "w"), world.shared(np.zeros(1), "more")
    world.set_values(more, [[1.0], [3.0]])
    step = synk.function([], updates=[(w, w + more)], exact=False)
    rule = rules.DASO(step, [w], groups=[[0], [1]], warm_up=0)
    make = rule._merge_function

    def interrupted(wait):
        def merge():
            make(wait)()
            monkeypatch.undo()
            raise KeyboardInterrupt

        return merge

    monkeypatch.setattr(rule, "_merge_function", interrupted)
    with pytest.raises(KeyboardInterrupt):
        for _ in range(5):
            step()
            rule()
    np.testing.assert_array_equal(world.values(w), [[9.0], [11.0]])
    step()
    rule()
    np.testing.assert_array_equal(world.values(w), [[10.0], [14.0]])


class Rows:
    """A stand-in for a function: the row counts of its last call."""

    last_rows = (1, 1)


def test_rows_of_a_step_whose_exchange_has_failed_count_once(make_world):
    """Row counts 3 and 1, then 1 and 3, give 0 and 8 equal weights."""
    world = make_world("threads", 2)
    w, _ = of_one(world)
    function = Rows()
    rule = rules.DiLoCo(function, [w], every=1, outer_rate=1.0, outer_momentum=0.0)
    world.set_values(w, [np.zeros(1), np.zeros(2)])
    function.last_rows = (3, 1)
    with pytest.raises((ValueError, synk.WorkerError)):
        rule()
    world.set_values(w, [[0.0], [8.0]])
    function.last_rows = (1, 3)
    assert rule()
    np.testing.assert_array_equal(world.values(w), [[4.0], [4.0]])


@pytest.mark.parametrize("options", [dict(start=10**15), dict(every=10**15), dict(every=10**15, start=10**15)], ids=str)
@pytest.mark.parametrize("kind", [rules.LocalSGD, rules.DiLoCo])
def test_a_run_without_an_exchange(make_world, kind, options):
    """With an exchange far ahead, a run does not list the steps before it one by one."""
    w = make_world("threads", 2).shared(np.zeros(1), "w")
    x = engine.variable("x", "float64", 1)
    rule = kind(synk.function([x], engine.mean(x), updates=[(w, w + 1)], exact=False), [w], **options)
    rule.run(np.ones(4), batches=[slice(None)] * 5)
    assert (rule.n_steps, rule.n_exchanges) == (5, 0) and w.get_value() == 5


@pytest.mark.parametrize("subset", [["b"], ["b", "a"], None])
def test_some_outputs_of_a_run_by_their_names(make_world, subset):
    w = make_world("threads", 2).shared(np.zeros(2), "w")
    x = engine.variable("x", "float64", 1)
    outputs = {"a": engine.mean(x), "b": (engine.sum(x), "sum")}
    function = synk.function([x], outputs, updates=[(w, w + 1)], exact=False)
    data, batches = np.arange(10.0), [[0, 1, 2], [3, 4], [5, 6, 7]]
    found = rules.LocalSGD(function, [w], every=2).run(data, batches=batches, output_subset=subset)
    expected = {"a": [np.mean(data[each]) for each in batches], "b": [np.sum(data[each]) for each in batches]}
    assert sorted(found) == sorted(subset or expected)
    for name in found:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12)


def test_another_session_that_begins_inside_consensus_has_the_masters_own_values(make_world):
    world = make_world("threads", 2)
    w, step = of_one(world)
    rule = rules.LocalSGD(step, [w])
    world.set_values(w, [[1.0], [3.0]])
    with rule.consensus():
        assert w.get_value() == 2
        again = make_world("threads", 2)
        synk.distribute()
        assert again.values(w)[1] == 2
    np.testing.assert_array_equal(again.values(w), [[1.0], [1.0]])
