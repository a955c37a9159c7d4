"""Rules compared with closed forms, for quadratics and constant gradients, without any simulation.

The sections are about local SGD's bias, EASGD's matrix, DiLoCo's recurrence, DASO's mean and spread, the shrinking of
differences by gossip, and bytes. Some tests are for errors of other systems.
"""

import numpy as np
import pytest
from quadratics import Quadratics
from refusals import refuses

import synkhronos as synk
from synkhronos.extensions import rules
from synkhronos.testing import numpy_engine as engine

pytestmark = pytest.mark.slow

RANKS = pytest.mark.parametrize("n", [1, 2, 3, 4])


# -- local SGD ----------------------------------------------------------------------------------------------------------


@RANKS
@pytest.mark.parametrize("every", [1, 2, 5])
def test_bias_of_local_sgd(make_world, n, every):
    """Local SGD settles at the mean of c weighted by w (1 - a^k), which is the optimum only for k = 1."""
    world = make_world("threads", n)
    quadratics = Quadratics(world)
    x, (w,), (c,) = engine.variable("x", "float64", 1), quadratics.params, quadratics.c
    n_rows = 2 * n + n // 2  # some ranks take 3 rows, the others 2
    slope, centre = (next(v for v in quadratics.function.get_shared() if v.name == name) for name in ("a", "c0"))
    step = synk.function([x], updates=[(w, centre + (w - centre) * slope + engine.mean(x) * 0)], exact=False)
    rule = rules.LocalSGD(step, [w], every=every)
    for _ in range(80 * every):
        step(np.ones(n_rows))
        rule()
    rows = np.array([len(part) for part in np.array_split(np.arange(n_rows), n)])
    a = np.asarray(quadratics.a)
    settled, optimum = (np.average(c, axis=0, weights=rows * (1 - a**power)) for power in (every, 1))
    np.testing.assert_allclose(world.values(w), [settled] * n, rtol=1e-9, atol=1e-9)
    if every > 1 and n > 1:
        assert np.abs(world.values(w)[0] - optimum).max() > 0.01  # the expected bias
    else:
        np.testing.assert_allclose(settled, optimum)


@RANKS
@pytest.mark.parametrize("kind", ["sgd", "nesterov"])
def test_local_sgd_of_every_step_is_serial(make_world, n, kind):
    """SGD and Nesterov momentum, both linear in the gradient, equal serial steps if curvatures are equal."""
    world = make_world("threads", n)
    mu, eta, h = 0.7 if kind == "nesterov" else 0.0, 0.2, 0.5
    random = np.random.RandomState(0)
    c, begin = random.randn(n, 3), random.randn(3)
    w, m, centre = world.shareds([begin, np.zeros(3), np.zeros(3)], ["w", "m", "c"])
    world.set_values(centre, c)
    new = m * mu - (w - centre) * (eta * h)
    step = synk.function([], updates=[(m, new), (w, w + new * mu - (w - centre) * (eta * h))], exact=False)
    rule = rules.LocalSGD(step, [w], [m], every=1)
    x, v = begin, np.zeros(3)
    for _ in range(12):
        step()
        rule()
        gradient = h * (x - c.mean(axis=0))
        v = mu * v - eta * gradient
        x = x + mu * v - eta * gradient
        np.testing.assert_allclose(world.values(w), [x] * n, rtol=1e-12)


# -- EASGD --------------------------------------------------------------------------------------------------------------


@RANKS
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("share", [None, 0.3, 0.99], ids="alpha {} of the bound".format)
def test_matrix_of_easgd(make_world, n, every, share):
    """EASGD's matrix maps (mean of x, z), both less the mean of c; each rank's deviation is separate."""
    world = make_world("threads", n, n - 1)
    quadratics = Quadratics(world, a=0.8)
    alpha = 0.9 / n if share is None else share * 2 / (n + 1)
    options = {} if share is None else dict(alpha=alpha)
    rule = rules.EASGD(quadratics.function, quadratics.params, every=every, **options)
    (x,), (c,) = quadratics.x, quadratics.c
    c_mean, power = np.mean(c, axis=0), 0.8**every
    matrix = np.array([[(1 - alpha) * power, alpha], [n * alpha * power, 1 - n * alpha]])
    assert np.abs(np.linalg.eigvals(matrix)).max() < 1
    modes = np.array([np.mean(x, axis=0) - c_mean, x[0] - c_mean])
    deviations = [np.zeros(3)] * n
    for _ in range(25):
        for _ in range(every):
            quadratics.function()
            rule()
        modes = matrix @ modes
        deviations = [(1 - alpha) * (power * d + (1 - power) * (each - c_mean)) for d, each in zip(deviations, c)]
        found, centre = world.values(quadratics.params[0]), world.values(rule.centre[0])
        np.testing.assert_allclose(np.mean(found, axis=0) - c_mean, modes[0], atol=1e-13)
        np.testing.assert_allclose(centre, [c_mean + modes[1]] * n, atol=1e-13)
        np.testing.assert_allclose(found - np.mean(found, axis=0), deviations, atol=1e-13)


@pytest.mark.parametrize("n, diverges", [(2, False), (3, True), (4, True), (6, True)])
def test_one_half_is_too_much_for_four(make_world, n, diverges):
    """The alpha of Platoon's examples, 0.5, is refused in the synchronous form for more than two ranks."""
    world = make_world("threads", n)
    quadratics = Quadratics(world)
    if diverges:
        with refuses(ValueError, "alpha", f"{2 / (n + 1):.4g} with n = {n} ", "0.5"):
            rules.EASGD(quadratics.function, quadratics.params, alpha=0.5)
        quadratics.check()
    else:
        rules.EASGD(quadratics.function, quadratics.params, alpha=0.5)


@pytest.mark.parametrize("every", [1, 4])
def test_eamsgd(make_world, every):
    """EASGD with Nesterov momentum in its steps, and gradients at the look-ahead point, equals NumPy's."""
    world = make_world("threads", 3)
    delta, eta, h, alpha = 0.9, 0.1, np.array([0.5, 1.0, 2.0]), 0.3
    random = np.random.RandomState(1)
    c, begin = random.randn(3, 2), random.randn(2)
    w, v, centre, slope = world.shareds([begin, np.zeros(2), np.zeros(2), np.zeros(())], ["w", "v", "c", "h"])
    world.set_values(centre, c)
    world.set_values(slope, eta * h)
    ahead = w + v * delta
    gradient = (ahead - centre) * slope
    step = synk.function([], updates=[(w, ahead - gradient), (v, v * delta - gradient)], exact=False)
    rule = rules.EASGD(step, [w], [v], every=every, alpha=alpha)
    x, velocity, z = np.array([begin] * 3), np.zeros((3, 2)), begin
    for t in range(1, 21):
        step()
        rule()
        x = x + delta * velocity
        step_of_each = eta * h[:, None] * (x - c)
        x, velocity = x - step_of_each, delta * velocity - step_of_each
        if t % every == 0:
            apart = x - z
            x, z = x - alpha * apart, z + alpha * apart.sum(axis=0)
        np.testing.assert_allclose(world.values(w), x, rtol=1e-12)
    np.testing.assert_allclose(world.values(rule.centre[0]), [z] * 3, rtol=1e-12)


# -- DiLoCo and SlowMo --------------------------------------------------------------------------------------------------


@RANKS
@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("nesterov", [True, False])
def test_recurrence_of_diloco(make_world, n, every, nesterov):
    """In DiLoCo, the center's error e and the velocity v follow two linear equations."""
    world = make_world("threads", n)
    quadratics = Quadratics(world, a=0.7)
    rate, mu = 0.6, 0.8
    options = dict(every=every, outer_rate=rate, outer_momentum=mu, nesterov=nesterov)
    rule = rules.DiLoCo(quadratics.function, quadratics.params, **options)
    c_mean, b = np.mean(quadratics.c[0], axis=0), 1 - 0.7**every
    e, v = quadratics.x[0][0] - c_mean, np.zeros(3)
    for _ in range(15):
        for _ in range(every):
            quadratics.function()
            rule()
        if nesterov:
            e, v = (1 - rate * b * (1 + mu)) * e - rate * mu**2 * v, mu * v + b * e
        else:
            e, v = (1 - rate * b) * e - rate * mu * v, mu * v + b * e
        np.testing.assert_allclose(world.values(quadratics.params[0]), [c_mean + e] * n, atol=1e-13)


@RANKS
def test_diloco_without_an_outer_optimiser_is_local_sgd(make_world, n):
    values = []
    for kind, options in ((rules.DiLoCo, dict(outer_rate=1.0, outer_momentum=0.0)), (rules.LocalSGD, {})):
        world = make_world("threads", n)
        quadratics = Quadratics(world, [(3,), (), (2, 2)])
        rule = kind(quadratics.function, quadratics.params, every=3, **options)
        for _ in range(10):
            quadratics.function()
            rule()
        values.append(quadratics.values())
    for one, other in zip(*values):
        np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-15)


def test_slow_momentum_in_its_own_terms(make_world):
    """SlowMo equals the paper's formula in u, the velocity divided by the steps' rate."""
    world = make_world("threads", 3)
    quadratics = Quadratics(world)
    gamma, beta, alpha = 0.1, 0.6, 0.9
    rule = rules.SlowMo(quadratics.function, quadratics.params, every=2, momentum=beta, rate=alpha)
    z, u = quadratics.x[0][0], np.zeros(3)
    for t in range(1, 13):
        quadratics.step()
        rule()
        if t % 2 == 0:
            u = beta * u + (z - np.mean(quadratics.x[0], axis=0)) / gamma
            z = z - alpha * gamma * u
            quadratics.x[0] = [z] * 3
        quadratics.check()


# -- DASO ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("merge", ["delta", "daso"])
@pytest.mark.parametrize("between, wait", [(1, 1), (4, 1), (8, 2)])
def test_daso_without_gradients(make_world, merge, between, wait):
    """DASO's merges keep the mean; merge="daso" multiplies groups' deviations by 2 W / (2 W + G)."""
    world = make_world("threads", 4)
    w, begin = world.shared(np.zeros(3), "w"), np.random.RandomState(0).randn(2, 3)
    world.set_values(w, [begin[0], begin[0], begin[1], begin[1]])
    rule = rules.DASO(params=[w], groups=[[0, 1], [2, 3]], warm_up=0, merge=merge)
    rule.phases._skips = type(rule.phases.skips)(between, 1, wait)
    rho = 2 * wait / (2 * wait + 2) if merge == "daso" else 0
    expected, merged = (begin[0] - begin[1]) / 2, 0
    for t in range(1, 4 * between + 1):
        rule()
        if t > between and (t - wait) % between == 0:
            expected, merged = expected * rho, merged + 1
        values = np.array(world.values(w))
        np.testing.assert_allclose(values.mean(axis=0), begin.mean(axis=0), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose((values[0] - values[2]) / 2, expected, rtol=1e-12, atol=1e-14)
    assert merged
    rule.finish()


def test_daso_loses_no_progress_with_delta(make_world):
    """In T steps of 1 and 3, DASO's mean moves by 2 T in all phases, once all pending means are merged."""
    world = make_world("threads", 2)
    w, speed = world.shareds([np.zeros(1), np.zeros(1)], ["w", "speed"])
    world.set_values(speed, [[1.0], [3.0]])
    step = synk.function([], updates=[(w, w + speed)], exact=False)
    rule = rules.DASO(params=[w], groups=[[0], [1]], warm_up=1, patience=0, epochs=8, cool_down=1)
    for _ in range(8):
        for _ in range(11):
            step()
            rule()
        rule.epoch(1.0)
    np.testing.assert_allclose(world.values(w), [[2.0 * 88]] * 2)


@pytest.mark.parametrize("largest", [1, 2, 3, 8, 64, 128])
def test_a_mean_never_waits_longer_than_to_the_next(make_world, largest):
    """DASO waits for a mean at most until the next one begins, for any ``largest``; HeAT uses 8."""
    world = make_world("threads", 2)
    quadratics = Quadratics(world)
    rule = rules.DASO(quadratics.function, quadratics.params, groups=[[0], [1]], warm_up=0, patience=0, largest=largest)
    seen = set()
    for _ in range(12):
        seen.add(rule.phases.skips)
        for _ in range(2 * rule.phases.skips.between + 1):
            quadratics.function()
            rule()
        rule.epoch(1.0)
    assert all(1 <= wait <= between and 1 <= inside <= between for between, inside, wait in seen)
    assert {between for between, _, _ in seen} >= {1, largest}


# -- gossip -------------------------------------------------------------------------------------------------------------


def expected_of_gossip(n, probability, rounds, begin):
    """Return the expected sum of (alpha_r (x_r - mean))^2, from the second moments of these numbers.

    A message moves half of the sender's alpha and alpha x to the receiver. Both maps are linear, so the new second
    moments are linear in the old ones. In a round, each rank in turn sends to any other one with this probability.
    """
    y = (begin - begin.mean()) / n
    moments = np.outer(y, y)
    for _ in range(rounds):
        for sender in range(n):
            after = np.zeros((n, n))
            for receiver in set(range(n)) - {sender}:
                message = np.eye(n)
                message[sender, sender] = message[receiver, sender] = 0.5
                after += message @ moments @ message.T / (n - 1)
            moments = (1 - probability) * moments + probability * after
    return np.trace(moments)


@pytest.mark.long("2000")
@pytest.mark.parametrize("n_seeds", [400, 2000])
def test_gossip_shrinks_as_expected(make_world, n_seeds):
    """The mean of gossip over many seeds is within three standard errors of its expectation."""
    n, probability = 4, 0.6
    world = make_world("threads", n)
    w = world.shared(np.zeros(1), "w")
    begin = np.array([3.0, -1.0, 0.5, 7.0])
    rule = rules.Gossip(params=[w], probability=probability)
    found = []
    for seed in range(n_seeds):
        rule._random.seed(seed)
        rule.alphas = [1 / n] * n
        world.set_values(w, begin[:, None])
        for _ in range(2):
            rule()
        found.append(np.sum((np.array(rule.alphas) * (np.ravel(world.values(w)) - begin.mean())) ** 2))
    error = np.std(found) / np.sqrt(n_seeds)
    assert abs(np.mean(found) - expected_of_gossip(n, probability, 2, begin)) < 3 * error
    assert abs(np.mean(found) - expected_of_gossip(n, 0.4, 2, begin)) > 3 * error  # (a control)


@pytest.mark.thorough
def test_pairs_shrink_as_expected(make_world):
    """If one random pair at a time takes its mean, squared deviations shrink by 1 - 1 / (n - 1)."""
    n, n_seeds, rounds = 4, 2000, 3
    world = make_world("threads", n)
    w = world.shared(np.zeros(1), "w")
    random, begin, found = np.random.RandomState(0), np.array([3.0, -1.0, 0.5, 7.0]), []
    for _ in range(n_seeds):
        world.set_values(w, begin[:, None])
        for _ in range(rounds):
            matrix, (i, j) = np.eye(n), random.choice(n, 2, replace=False)
            matrix[np.ix_([i, j], [i, j])] = 0.5
            synk.all_reduce(w, weights=matrix)
        found.append(np.sum((np.ravel(world.values(w)) - begin.mean()) ** 2))
    expected = np.sum((begin - begin.mean()) ** 2) * (1 - 1 / (n - 1)) ** rounds
    assert abs(np.mean(found) - expected) < 3 * np.std(found) / np.sqrt(n_seeds)


def test_ranks_draw_differently(make_world):
    """Ranks draw different receivers, unlike Theano-MPI's, whose equal seeds make all send to one rank."""
    world = make_world("threads", 5)
    rule = rules.Gossip(params=[world.shared(np.zeros(1), "w")], probability=0.5)
    rounds = [list(rule.sent) for _ in range(50) if rule() or True]
    assert {len(sent) for sent in rounds} >= {1, 2, 3, 4}
    assert any(len({receiver for _, receiver in sent}) > 1 for sent in rounds)
    assert all(sender != receiver for sent in rounds for sender, receiver in sent)


# -- invariants of all rules -------------------------------------------------------------------------------------------

#: One rule of each kind, for parameters and state.
KINDS = {
    "LocalSGD": lambda f, params, state: rules.LocalSGD(f, params, state, every=2),
    "LocalSGD in groups": lambda f, params, state: rules.LocalSGD(
        f, params, state, every=2, groups=[list(range(0, synk.size(), 2))] + [[r] for r in range(1, synk.size(), 2)]
    ),
    "EASGD": lambda f, params, state: rules.EASGD(f, params, state, every=2),
    "DiLoCo": lambda f, params, state: rules.DiLoCo(f, params, state, every=2),
    "DiLoCo later": lambda f, params, state: rules.DiLoCo(f, params, state, every=2, delay=1),
    "DiLoCo later, pulled": lambda f, params, state: rules.DiLoCo(
        f, params, state, every=3, delay=2, merge="pull", mix=0.3
    ),
    "DiLoCo in fragments": lambda f, params, state: rules.DiLoCo(f, params, state, every=3, fragments=3),
    "SlowMo": lambda f, params, state: rules.SlowMo(f, params, state, every=2),
    "ASGD": lambda f, params, state: rules.ASGD(f, params, state, every=2),
    "ASGD sum": lambda f, params, state: rules.ASGD(f, params, state, every=2, rate=1),
    "Gossip": lambda f, params, state: rules.Gossip(f, params, state, every=2, probability=0.9),
    "Swap": lambda f, params, state: rules.Swap(f, params, state, every=2),
    "DASO": lambda f, params, state: rules.DASO(f, params, state, warm_up=0, groups=[[r] for r in range(synk.size())]),
    "DASO by its own merge": lambda f, params, state: rules.DASO(f, params, state, warm_up=0, merge="daso"),
    "DASO, all wait": lambda f, params, state: rules.DASO(f, params, state),
}


@pytest.mark.thorough(but="-[35]$")
@pytest.mark.parametrize("n", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("name", KINDS)
def test_equal_values_stay_to_the_bit(make_world, name, n):
    """Exchanges keep equal values, even if weights have no exact sum; a call counts once for all variables."""
    world = make_world("threads", n)
    random = np.random.RandomState(n)
    values = [
        random.randn(40) * 10.0 ** random.randint(-5, 5, 40),
        random.randn(3, 7).astype("float32"),
        np.array(0.1),
        np.zeros((0, 4)),
        np.array([np.inf, -np.inf, -0.0, 5e-324, 1.7e308]) if name in ("LocalSGD", "Swap") else random.randn(2),
        random.randn(5).astype("float16"),
    ]
    *params, velocity = world.shareds([*values, random.randn(6)], [f"w{i}" for i in range(len(values))] + ["m"])
    x = engine.variable("x", "float64", 1)
    function = synk.function([x], engine.mean(x), updates=[(w, w) for w in params])
    rule = KINDS[name](function, params, [velocity])
    before = [[value.tobytes() for value in world.values(each)] for each in (*params, velocity)]
    state = [[synk.get_value(rank, each).tobytes() for rank in range(n)] for each in getattr(rule, "centre", [])]
    for t in range(1, 13):
        function(np.ones(n + t % 3))
        rule()
        assert [[value.tobytes() for value in world.values(each)] for each in (*params, velocity)] == before
    assert [[v.tobytes() for v in world.values(each)] for each in getattr(rule, "centre", [])] == state
    assert rule.n_exchanges == {"DASO, all wait": 12, "DiLoCo in fragments": 12}.get(
        name, 3 if "DASO" in name else 12 // rule.every
    )
    if name != "Swap":
        with rule.consensus():
            assert [[value.tobytes() for value in world.values(each)] for each in params] == before[:-1]
        rule.finish()
        assert [[value.tobytes() for value in world.values(each)] for each in params] == before[:-1]


def test_they_are_not_equal_by_chance(make_world):
    """A control: if one bit of one rank's value differs, an exchange changes the values."""
    world = make_world("threads", 3)
    w = world.shared(np.ones(3), "w")
    world.set_values(w, [np.ones(3), np.ones(3), np.array([1.0, 1.0 + 2**-40, 1.0])])
    rules.LocalSGD(params=[w], every=1)()
    assert world.values(w)[0].tobytes() != np.ones(3).tobytes()


# -- bytes --------------------------------------------------------------------------------------------------------------

N_NUMBERS = 6000  # divisible by the number of ranks and, in bytes, by 64
N_BYTES = 8 * N_NUMBERS


def moved(rule, function, n_steps):
    """Return the bytes that all ranks together read and sent in collectives during these steps."""

    def total():
        return sum(sum(each.read) + sum(each.sent) for each in synk.traffic().values())

    before = total()
    for _ in range(n_steps):
        function()
        rule()
    return total() - before


def ring(n, size=N_BYTES):
    """Return the bytes that a ring of n ranks moves in total to reduce an array of this size."""
    return 2 * (n - 1) * size


@pytest.mark.parametrize(
    "make, n_exchanges",
    [
        (lambda f, params: rules.LocalSGD(f, params, every=4), 6),
        (lambda f, params: rules.EASGD(f, params, every=8), 3),
        (lambda f, params: rules.ASGD(f, params, every=6), 4),
        (lambda f, params: rules.DiLoCo(f, params, every=12), 2),
        (lambda f, params: rules.DiLoCo(f, params, every=10, delay=4), 2),
        (lambda f, params: rules.DiLoCo(f, params, every=12, exchange="bfloat16"), 2),
        (lambda f, params: rules.SlowMo(f, params, every=8), 3),
    ],
    ids=["LocalSGD", "EASGD", "ASGD", "DiLoCo", "DiLoCo later", "DiLoCo in 16 bits", "SlowMo"],
)
def test_bytes_of_rules_of_all(make_world, make, n_exchanges):
    """Each exchange moves the bytes of a ring, and other steps none. (In memory, 16 bits save no bytes.)"""
    world = make_world("threads", 4)
    quadratics = Quadratics(world, [(N_NUMBERS,)])
    rule = make(quadratics.function, quadratics.params)
    np.testing.assert_allclose(moved(rule, quadratics.function, 24), n_exchanges * ring(4), rtol=0.01)


def of_matrix(matrix):
    """Return the bytes that averaging by a matrix moves: ranks with the same result share the work."""
    rows = {}
    for rank, row in enumerate(matrix):
        if np.count_nonzero(row) > 1 or not row[rank]:
            rows.setdefault(tuple(row), []).append(rank)
    read = sum(
        np.count_nonzero(row) - np.count_nonzero(np.take(row, takers)) / len(takers) for row, takers in rows.items()
    )
    return (read + sum(len(takers) - 1 for takers in rows.values())) * N_BYTES


def test_bytes_of_pairs():
    """A pair moves as much as a ring of two ranks; a message, and each part of a swap, one array."""
    assert of_matrix(np.kron(np.eye(2), np.full((2, 2), 0.5))) == 2 * ring(2)
    assert of_matrix(np.array([[0.5, 0.5], [0, 1]])) == N_BYTES
    assert of_matrix(np.roll(np.eye(4), 1, axis=0)) == 4 * N_BYTES


def test_bytes_of_gossip(make_world):
    """Each round of gossip moves the bytes of the drawn messages, or none if no rank sends."""
    world = make_world("threads", 4)
    quadratics = Quadratics(world, [(N_NUMBERS,)])
    rule = rules.Gossip(quadratics.function, quadratics.params, probability=0.2)
    seen = set()
    for _ in range(40):
        found, matrix = moved(rule, quadratics.function, 1), np.eye(4)
        for sender, receiver in rule.sent:
            matrix[receiver] = (matrix[receiver] + matrix[sender]) / 2
        np.testing.assert_allclose(found, of_matrix(matrix), rtol=0.01)
        seen.add(len(rule.sent))
    assert seen >= {0, 1, 2}


def test_bytes_of_swap(make_world):
    world = make_world("threads", 4)
    quadratics = Quadratics(world, [(N_NUMBERS,)])
    rule = rules.Swap(quadratics.function, quadratics.params, every=3)
    found = moved(rule, quadratics.function, 6)
    np.testing.assert_allclose(found, 2 * of_matrix(np.roll(np.eye(4), 1, axis=0)), rtol=0.01)


def test_bytes_of_daso(make_world):
    """DASO's groups exchange every ``inside`` steps, and all ranks exchange once per cycle."""
    world = make_world("threads", 4)
    quadratics = Quadratics(world, [(N_NUMBERS,)])
    rule = rules.DASO(quadratics.function, quadratics.params, groups=[[0, 1], [2, 3]], warm_up=1, patience=0)
    found = moved(rule, quadratics.function, 3)
    np.testing.assert_allclose(found, 3 * ring(4), rtol=0.01)
    inside = of_matrix(np.kron(np.eye(2), np.full((2, 2), 0.5)))
    expected = {(4, 1, 1): (9, 9, 2), (2, 1, 1): (9, 9, 4), (1, 1, 1): (9, 9, 8), (8, 2, 2): (10, 5, 1)}
    for skips, (n_steps, n_inside, n_between) in expected.items():
        rule.epoch(1.0)
        assert rule.phases.skips == skips
        found = moved(rule, quadratics.function, n_steps)
        np.testing.assert_allclose(found, n_inside * inside + n_between * ring(4), rtol=0.01)
    rule.finish()
