"""DiLoCo with parameters exchanged in fragments, compared with the recurrence in NumPy for each fragment."""

import numpy as np
import pytest
from descent import A, B, Training
from quadratics import Quadratics
from refusals import refuses

import synkhronos as synk
from synkhronos.extensions import checkpoint, rules
from synkhronos.extensions.rules.diloco import parts_of

pytestmark = pytest.mark.slow


#: Shapes with 40, 10, 30 and 20 numbers.
SHAPES = [(4, 10), (10,), (30, 1), (20,)]

#: Indices of the parameters in each fragment, by the number of fragments.
PARTS = {1: [[0, 1, 2, 3]], 2: [[0, 1], [2, 3]], 3: [[0], [2], [1, 3]], 4: [[0], [2], [3], [1]]}


def turns(every, n_parts):
    """Return the step of each fragment's exchange in a cycle: evenly spaced, the last one after the last step."""
    return [every * (p + 1) // n_parts % every for p in range(n_parts)]


class Streaming:
    """The recurrence in NumPy, for each fragment separately."""

    def __init__(self, quadratics, parts, every, rate=0.7, momentum=0.9, delay=0, merge="delta", mix=1.0):
        self.q, self.parts, self.turns = quadratics, parts, turns(every, len(parts))
        self.every, self.rate, self.momentum = every, rate, momentum
        self.delay, self.merge, self.mix = delay, merge, mix
        self.z = [of_ranks[0].copy() for of_ranks in quadratics.x]
        self.v = [np.zeros_like(z) for z in self.z]
        self.flights = {}

    def after(self, t):
        for p, (begun, before) in list(self.flights.items()):
            if t == begun + self.delay:
                self.arrive(p, before)
        for p, turn in enumerate(self.turns):
            if t % self.every == turn:
                before = {i: [x.copy() for x in self.q.x[i]] for i in self.parts[p]}
                if self.delay:
                    self.flights[p] = t, before
                else:
                    self.arrive(p, before)

    def arrive(self, p, before):
        self.flights.pop(p, None)
        for i, of_ranks in before.items():
            difference = self.z[i] - np.mean(of_ranks, axis=0)
            self.v[i] = self.momentum * self.v[i] + difference
            self.z[i] = self.z[i] - self.rate * (difference + self.momentum * self.v[i])
            bases = of_ranks if self.merge == "delta" and self.delay else self.q.x[i]
            self.q.x[i] = [x + self.mix * (self.z[i] - base) for x, base in zip(self.q.x[i], bases)]


@pytest.mark.parametrize("options", [{}, dict(delay=2), dict(delay=4, merge="pull", mix=0.5), dict(mix=0.3)], ids=str)
@pytest.mark.parametrize("every, n_parts", [(6, 2), (6, 1), (5, 3), (8, 4)])
def test_every_step_is_that_of_the_recurrence(make_world, every, n_parts, options):
    world = make_world("threads", 3, 1)
    quadratics = Quadratics(world, SHAPES)
    rule = rules.DiLoCo(quadratics.function, quadratics.params, every=every, fragments=n_parts, **options)
    serial = Streaming(quadratics, PARTS[n_parts], every, **options)
    for t in range(1, 4 * every + 1):
        quadratics.step()
        assert rule() == (t % every in serial.turns)
        serial.after(t)
        quadratics.check()
    assert rule.n_exchanges == 4 * n_parts
    rule.finish()
    for found in quadratics.values():
        assert all(value.tobytes() == found[0].tobytes() for value in found)


def test_each_fragment_travels_once_in_a_cycle(make_world):
    """A cycle moves as many bytes as one exchange of all parameters, and an exchange those of one fragment."""
    world = make_world("threads", 4)
    shapes = [(6000,), (2000,), (4000,), (4000,)]  # fragments of 8,000 numbers
    quadratics = Quadratics(world, shapes)
    rule = rules.DiLoCo(quadratics.function, quadratics.params, every=6, fragments=2)
    moved = []
    for _ in range(12):
        quadratics.step()
        before = sum(synk.traffic()["all_reduce"].read) if "all_reduce" in synk.traffic() else 0
        rule()
        moved.append((sum(synk.traffic()["all_reduce"].read) if "all_reduce" in synk.traffic() else 0) - before)
    expected = (world.n - 1) * 8000 * 8  # bytes that all ranks read from each other in a reduction, as in a ring
    assert [round(each / expected, 1) for each in moved] == [0, 0, 1, 0, 0, 1] * 2


@pytest.mark.parametrize("merge, mix", [("pull", 0.5), ("pull", 1.0), ("delta", 1.0)])
def test_progress_that_is_kept(make_world, merge, mix):
    """A cycle keeps the fraction 1 - m W / k of constant steps of each parameter, or all with delta."""
    world = make_world("threads", 2)
    every, delay = 6, 2
    params = world.shareds([np.zeros(2), np.zeros(3)], ["w0", "w1"])
    step = synk.function([], updates=[(w, w + 1.0) for w in params], exact=False)
    options = dict(every=every, delay=delay, outer_rate=1.0, outer_momentum=0.0, mix=mix, merge=merge, fragments=2)
    rule = rules.DiLoCo(params=params, **options)
    means = []
    for _ in range(60):
        step()
        rule()
        means.append([np.mean(world.values(w)) for w in params])
    rule.finish()
    kept = 1 if merge == "delta" else 1 - mix * delay / every
    np.testing.assert_allclose(np.subtract(means[-1], means[-1 - every]), every * kept, rtol=1e-9)


def test_rows_count_since_the_fragments_own_exchange(make_world):
    """The second fragment's weights count rows of both halves of a cycle, since its own last exchange."""
    world = make_world("threads", 3)
    training = Training(world)
    (other,) = world.shareds([np.zeros(50)], ["other"])
    options = dict(every=4, fragments=2, outer_rate=1.0, outer_momentum=0.0)
    rule = rules.DiLoCo(training.function, [other, training.w], **options)  # (the larger parameter is first)
    sizes = [2, 7, 1, 9] * 3
    for t, size in enumerate(sizes, 1):
        batch = np.random.RandomState(t).permutation(60)[:size]
        training.function(A[batch], B[batch])
        rule()
        training.serial_step(batch)
        if t % 4 == 0:
            training.serial.outer(1.0, 0.0, True)
        training.check()


@pytest.mark.parametrize("stop", [5, 7, 9])
@pytest.mark.parametrize("exchange", [None, "bfloat16"])
def test_a_run_goes_on_from_its_checkpoint(make_world, tmp_path, stop, exchange):
    """A run resumes bit for bit from a checkpoint, with a pending mean of one fragment or of none."""
    path = str(tmp_path / "model.npz")

    def made():
        quadratics = Quadratics(make_world("threads", 3), SHAPES)
        options = dict(every=6, delay=2, fragments=3, exchange=exchange)
        return quadratics, rules.DiLoCo(quadratics.function, quadratics.params, **options)

    def run(quadratics, rule, n):
        for _ in range(n):
            quadratics.function()
            rule()

    quadratics, rule = made()
    run(quadratics, rule, stop)
    checkpoint.save(path, quadratics.params, rule)
    run(quadratics, rule, 14)
    expected = [value.tobytes() for of_ranks in quadratics.values() for value in of_ranks]
    rule.finish()
    quadratics, rule = made()
    run(quadratics, rule, 3)
    checkpoint.load(path, quadratics.params, rule)
    run(quadratics, rule, 14)
    assert [value.tobytes() for of_ranks in quadratics.values() for value in of_ranks] == expected
    rule.finish()


@pytest.mark.parametrize(
    "every, fragments, error, expected",
    [
        (3, 4, ValueError, "every (3)"),
        (9, 5, ValueError, "4"),
        (9, 0, ValueError, "1"),
        (9, 2.0, TypeError, "int"),
    ],
)
def test_bad_input(make_world, every, fragments, error, expected):
    quadratics = Quadratics(make_world("threads", 2), SHAPES)
    with refuses(error, "fragments", expected, str(fragments)):
        rules.DiLoCo(quadratics.function, quadratics.params, every=every, fragments=fragments)
    quadratics.check()


@pytest.mark.parametrize("sizes", [[1], [0, 0, 0], [5, 1, 1, 1, 9, 2], [3] * 7])
def test_parts_are_about_as_large(sizes):
    for n_parts in range(1, len(sizes) + 1):
        parts = parts_of(sizes, n_parts)
        assert sorted(i for part in parts for i in part) == list(range(len(sizes))) and all(parts)
        loads = [sum(sizes[i] for i in part) for part in parts]
        assert max(loads) - min(loads) <= max(sizes)
