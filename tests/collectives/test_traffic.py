"""`synkhronos.traffic`: the bytes that collectives move are those that they have to move."""

from functools import partial

import numpy as np
import pytest

import synkhronos as synk
from synkhronos.testing import numpy_engine as engine

SIZE = 60_000  # divisible by all numbers of ranks and, in bytes, by 64
BYTES = 8 * SIZE


@pytest.fixture(
    params=[("threads", 3, 1), ("fork", 2, 0), ("threads", 4, 0), ("threads", 1, 0)], ids="{0[0]}-{0[1]}".format
)
def world(request, make_world):
    return make_world(*request.param)


def of(name, call):
    """Return the bytes that one call of a collective reads and sends on each rank."""
    before = synk.traffic().get(name)
    call()
    after = synk.traffic()[name]
    calls = 0 if before is None else before.calls
    assert after.calls == calls + 1 and after.seconds > 0
    zero = [0.0] * len(after.read)
    read, sent = (zero, zero) if before is None else (before.read, before.sent)
    return np.subtract(after.read, read), np.subtract(after.sent, sent)


def near(found, expected):
    np.testing.assert_allclose(found, expected, atol=128 * len(np.atleast_1d(found)))


def assert_in_parts(world, read, sent):
    """Each rank has read its share from all others, and written it to common memory, in the root's pool."""
    n = world.n
    near(read, [(n - 1) / n * BYTES] * n)
    near(sent, np.where(np.arange(n) == world.root, 0, BYTES / n))


def test_all_reduce(world):
    w = world.shared(np.zeros(SIZE), "w")
    for _ in range(2):
        assert_in_parts(world, *of("all_reduce", lambda: synk.all_reduce(w)))


def test_all_reduce_into_each_ranks_memory_is_as_much_as_a_ring(world):
    """Such results are small, or of variables that a function updates in place on each rank."""
    n = world.n
    w = world.shared(np.zeros(SIZE), "w")
    synk.function([], updates=[(w, w * 1)], inplace=True)()
    some = [w, *[world.shared(np.zeros(1000), f"small {i}") for i in range(3)]]
    for given, nbytes in ((w, BYTES), (some, BYTES + 3 * 8000)):
        for _ in range(2):
            read, sent = of("all_reduce", partial(synk.all_reduce, given))
            near(read + sent, [2 * (n - 1) / n * nbytes] * n)


def test_pairs_and_groups(make_world):
    """A permutation moves every value once; in groups of two, each rank moves as much as in a world of two ranks."""
    world = make_world("threads", 4)
    w = world.shared(np.zeros(SIZE), "w")
    read, sent = of("all_reduce", lambda: synk.all_reduce(w, weights=np.eye(4)))
    assert not read.any() and not sent.any()
    read, sent = of("all_reduce", lambda: synk.all_reduce(w, weights=np.roll(np.eye(4), 1, axis=0)))
    near((read + sent).sum(), 4 * BYTES)
    read, sent = of("all_reduce", lambda: synk.all_reduce(w, groups=[[0, 1], [2, 3]]))
    near(read + sent, [2 * (2 - 1) / 2 * BYTES] * 4)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["2 hosts", "3 hosts"])
def test_what_hosts_receive(make_world, launcher):
    """Each remote array arrives once per host; groups within one host cause no traffic between hosts."""
    world = make_world(launcher, 4)
    w = world.shared(np.zeros(SIZE), "w")
    hosts = [host.ranks for host in synk.hosts()]

    def received(call, name="all_reduce"):
        before = synk.traffic()[name].received if name in synk.traffic() else [0.0] * len(hosts)
        call()
        return np.subtract(synk.traffic()[name].received, before).tolist()

    # At first, the ranks of a host have one array in common, then one each.
    assert received(lambda: synk.all_reduce(w)) == [(len(hosts) - 1) * BYTES] * len(hosts)
    assert received(lambda: synk.all_reduce(w)) == [(4 - len(ranks)) * BYTES for ranks in hosts]
    assert received(lambda: synk.all_reduce(w, groups=[host.ranks for host in synk.hosts()])) == [0] * len(hosts)
    assert received(lambda: synk.all_reduce(w, groups=[[0], [1], [2, 3]])) == [
        BYTES * (2 in ranks) * (3 not in ranks) + BYTES * (3 in ranks) * (2 not in ranks) for ranks in hosts
    ]
    assert received(lambda: synk.broadcast(w), "broadcast") == [0] + [BYTES] * (len(hosts) - 1)
    assert received(lambda: synk.gather(w), "gather") == [(len(hosts) - 1) * BYTES] + [0] * (len(hosts) - 1)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["2 hosts", "3 hosts"])
@pytest.mark.parametrize("size", [1, 1000, 8000])
def test_what_hosts_receive_with_messages(make_world, launcher, size):
    """Values that travel with barrier messages are counted like others, once for each host.

    If other hosts do not need values, these usually do so only up to 8 KiB.
    """
    world = make_world(launcher, 4)
    w, nbytes = world.shared(np.zeros(size), "w"), 8 * size
    hosts = [host.ranks for host in synk.hosts()]
    others = [(4 - len(ranks)) * nbytes for ranks in hosts]

    def received(call, name):
        before = synk.traffic()[name].received if name in synk.traffic() else [0.0] * len(hosts)
        call()
        return np.subtract(synk.traffic()[name].received, before).tolist()

    for _ in range(2):
        assert received(lambda: synk.all_reduce(w), "all_reduce") == others
    assert received(lambda: synk.all_reduce(w, op="max"), "all_reduce") == others
    assert received(lambda: synk.broadcast(w), "broadcast") == [0] + [nbytes] * (len(hosts) - 1)
    of_others = [nbytes * len(set(range(1, 4)).difference(ranks)) for ranks in hosts]  # rank 0 sends nothing
    if size == 8000:
        if len(hosts) > 2:
            of_others = [others[0], 0, 0]
        assert received(lambda: synk.all_reduce(w, groups=[host.ranks for host in synk.hosts()]), "all_reduce") == [
            0
        ] * len(hosts)
    assert received(lambda: synk.gather(w), "gather") == of_others
    given = np.arange(4.0 * size)[: 4 * min(size, 250)]  # 8 KiB at most
    assert received(lambda: synk.scatter(w, given), "scatter") == [0] + [given.nbytes] * (len(hosts) - 1)
    synk.scatter(w, np.zeros(4 * size))
    x = engine.variable("x", "float64", 1)
    f = synk.function([x], updates=[(w, synk.ops.all_reduce(w + engine.sum(x)))])
    assert received(lambda: f([1.0, 2.0, 3.0, 4.0]), "ops.all_reduce") == others


def test_one_host_receives_nothing(world):
    w = world.shared(np.zeros(SIZE), "w")
    synk.all_reduce(w)
    assert synk.traffic()["all_reduce"].received == [0.0]


def test_what_was_started_counts_once(world):
    w, z = world.shareds([np.zeros(SIZE)] * 2)
    assert_in_parts(world, *of("all_reduce", lambda: synk.all_reduce(w, into=z, wait=False).wait()))


def test_reduce_gather_broadcast(world):
    w, n, root = world.shared(np.zeros(SIZE), "w"), world.n, world.root
    is_root = np.arange(n) == root
    read, sent = of("broadcast", lambda: synk.broadcast(w))
    near(read, BYTES * ~is_root if world.launcher == "mesh" else np.zeros(n))  # processes map the root's array
    assert not sent.any()
    small = world.shared(np.zeros(1000), "small")
    read, sent = of("broadcast", lambda: synk.broadcast(small))
    near(read, 8000 * ~is_root)
    assert not sent.any()
    read, sent = of("gather", lambda: synk.gather(w))
    near(read, BYTES * (n - 1) * is_root)
    read, sent = of("reduce", lambda: synk.reduce(w, "sum"))
    near(read + sent, BYTES / n * ((n - 1) + ~is_root))
    read, sent = of("all_gather", lambda: synk.all_gather(w))  # into common memory, in the root's pool
    near(read, np.zeros(n))
    near(sent, BYTES * ~is_root)
    read, sent = of("all_gather", lambda: synk.all_gather(small))
    near(read, [8000 * (n - 1)] * n)


def test_scatter(world):
    w = world.shared(np.zeros(SIZE), "w")
    read, sent = of("scatter", lambda: synk.scatter(w, np.zeros(SIZE)))
    near(read, BYTES / world.n * (np.arange(world.n) != world.root))


def test_inside_functions(world):
    """Every rank reads small values of all ranks whole; large values are reduced in parts, with a ring's traffic."""
    x = engine.variable("x", "float64", 2)
    small = synk.function([x], synk.ops.all_reduce(engine.mean(x)))
    near(np.add(*of("ops.all_reduce", lambda: small(np.ones((8, 2))))), [8 * (world.n - 1)] * world.n)
    large = synk.function([x], (synk.ops.all_reduce(engine.mean(x, 0)), None))
    read, sent = of("ops.all_reduce", lambda: large(np.ones((8, SIZE))))
    near(read + sent, [2 * (world.n - 1) / world.n * BYTES] * world.n)


def test_it_begins_with_the_session(make_world):
    world = make_world("threads", 2)
    synk.all_reduce(world.shared(np.zeros(3), "w"))
    assert synk.traffic()["all_reduce"].calls == 1
    make_world("threads", 2)
    assert synk.traffic() == {}
    synk.close()
    with pytest.raises(synk.StateError):
        synk.traffic()
