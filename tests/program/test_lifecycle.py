"""`fork` and `close`, and the state in between."""

import gc
import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from library import L, T
from refusals import refuses, reports

import synkhronos as synk
from synkhronos.errors import StateError
from synkhronos.host import gpus, machine
from synkhronos.program.lifecycle import _ranks
from synkhronos.program.program import PROGRAM
from synkhronos.runtime.command import Command

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def closed():
    synk.close()
    yield
    synk.close()


@pytest.mark.parametrize(
    "arguments, n, root",
    [
        ((), machine.core_budget(), 0),
        ((1,), 1, 0),
        ((2,), 2, 0),
        ((3, False, 2), 3, 2),
        ((2, None, np.int64(1)), 2, 1),
        ((2, False, 0, False, 100, 4), 2, 0),
    ],
)
def test_returns_the_number_of_ranks(arguments, n, root):
    assert synk.fork(*arguments) == n
    assert synk.is_forked() and synk.size() == n and PROGRAM.session.root == root
    synk.close()
    assert not synk.is_forked()


@pytest.mark.parametrize("n", [1, 2])
def test_the_end_of_a_with_block_closes(n):
    with synk.fork(n) as ranks:
        assert isinstance(ranks, int) and ranks == n and ranks + 1 == n + 1 and repr(ranks) == str(n)
        assert type(pickle.loads(pickle.dumps(ranks))) is int and json.dumps([ranks]) == f"[{n}]"
        assert np.zeros(ranks).shape == (n,) and synk.is_forked()
    assert not synk.is_forked()
    with ranks, pytest.raises(StateError):  # the number of a closed session
        synk.size()


def test_an_error_in_a_with_block_closes_and_goes_on():
    for error in (ZeroDivisionError, KeyboardInterrupt):
        with pytest.raises(error):
            with synk.fork(2):
                raise error
        assert not synk.is_forked()


def test_a_with_block_closes_its_own_session_alone():
    with synk.fork(2):
        synk.close()
        synk.fork(3)
    assert synk.size() == 3


def test_a_with_block_says_what_was_never_waited_for(make_world):
    world = make_world("threads", 2)
    shared = world.shared(np.zeros(3), "s")
    ranks = _ranks(PROGRAM.session)
    with reports(StateError, "all_reduce", "s"):
        with ranks:
            synk.all_reduce(shared, wait=False)
    make_world("threads", 2)
    with pytest.raises(ZeroDivisionError):
        with _ranks(PROGRAM.session):
            synk.all_reduce(shared, wait=False)
            raise ZeroDivisionError


def test_the_number_of_ranks_keeps_no_session():
    ranks = synk.fork(2)
    synk.close()
    gc.collect()
    assert ranks == 2 and ranks._session() is None


@pytest.mark.parametrize("launcher", ["threads", "fork"])
@pytest.mark.parametrize("root", [0, 1])
def test_rank(make_world, launcher, root):
    """`synk.rank` returns the master's rank in the program, and the executing process's or thread's in a command."""
    make_world(launcher, 3, root)
    assert synk.rank() == root
    assert PROGRAM.session.run(Report()) == [(rank, 3) for rank in range(3)]
    synk.close()
    with pytest.raises(StateError):
        synk.rank()


class Report(Command):
    """Command that returns ``synk.rank()`` and ``synk.size()`` of each rank."""

    def run(self, context):
        return synk.rank(), synk.size()


def test_rank_inside_an_operation():
    x = T.dvector("x")

    @L.as_op(itypes=[T.dvector], otypes=[T.dvector])
    def with_rank(x):
        with ThreadPoolExecutor(1) as threads:  # libraries have their own threads
            return x + 10 * synk.rank() + 100 * threads.submit(synk.rank).result()

    f = synk.function([x], (with_rank(x), "gather"), mode=L.quick)
    with synk.fork(3, use_gpu=False, master_rank=1):
        assert f([0.0, 1.0, 2.0]).tolist() == [0, 111, 222]


def test_keywords():
    assert (
        synk.fork(
            n_parallel=2,
            use_gpu=False,
            master_rank=1,
            profile_workers=False,
            max_n_var=3,
            max_dim=4,
            devices=None,
            seed=5,
            random="same",
            timeout=20,
            pin=False,
            threads=1,
            keep_heap=True,
        )
        == 2
    )
    assert PROGRAM.session.timeout == 20 and PROGRAM.session.affinity.cores == set()


@pytest.mark.parametrize(
    "keywords, error, argument, expected, got",
    [
        (dict(n_parallel=0), ValueError, "n_ranks", "at least 1", "0"),
        (dict(n_parallel=-2), ValueError, "n_ranks", "at least 1", "-2"),
        (dict(n_parallel=2.0), TypeError, "n_ranks", "an int", "2.0 of type float"),
        (dict(n_parallel=True), TypeError, "n_ranks", "an int", "True of type bool"),
        (dict(n_parallel="2"), TypeError, "n_ranks", "an int", "'2' of type str"),
        (dict(n_parallel=2, master_rank=2), ValueError, "master_rank", "an int from 0 to 1 (local ranks: 2)", "2"),
        (dict(n_parallel=2, master_rank=-1), ValueError, "master_rank", "an int from 0 to 1", "-1"),
        (dict(n_parallel=2, master_rank=None), TypeError, "master_rank", "an int", "None"),
        (dict(n_parallel=2, threads=10**400), ValueError, "threads", "at most 4096", "1000"),
        (dict(n_parallel=2, random="other"), ValueError, "random", "'split' or 'same'", "'other'"),
        (dict(n_parallel=2, threads=0), ValueError, "threads", "at least 1", "0"),
        (dict(n_parallel=2, seed="x"), TypeError, "seed", "an int", "'x' of type str"),
        (dict(n_parallel=2, seed=-1), ValueError, "seed", "0 or more", "-1"),
        (dict(n_parallel=2, use_gpu="yes"), TypeError, "use_gpu", "None", "'yes' of type str"),
        (dict(n_parallel=2, pin=None), TypeError, "pin", "True", "None"),
        (dict(n_parallel=2, profile_workers=1), TypeError, "profile_workers", "True", "1 of type int"),
        (dict(n_parallel=2, keep_heap=0), TypeError, "keep_heap", "True", "0 of type int"),
        (dict(n_parallel=2, shard_updates="yes"), TypeError, "shard_updates", "None", "'yes' of type str"),
        (dict(devices=["cuda0"], use_gpu=False), ValueError, "devices", "use_gpu", "['cuda0']"),
        (dict(n_parallel=2, devices=["cuda0"]), ValueError, "devices[0]", "(number of GPUs: 0)", "cuda0"),
    ],
)
def test_bad_arguments(keywords, error, argument, expected, got, monkeypatch):
    monkeypatch.setattr(gpus, "count_gpus", lambda: 0)
    with refuses(error, argument, expected, got):
        synk.fork(**keywords)
    assert not synk.is_forked()
    assert synk.fork(2) == 2


@pytest.mark.parametrize("timeout", [0, 10**400, "3", float("nan")])
def test_bad_timeouts(timeout):
    with refuses(ValueError, "timeout", got=repr(timeout)[:20]):
        synk.fork(2, timeout=timeout)
    assert not synk.is_forked()


def test_no_gpus_to_use():
    with reports(synk.SynkhronosError, "use_gpu=True"):
        synk.fork(2, use_gpu=True)
    assert not synk.is_forked()


def test_order_of_calls():
    with reports(synk.StateError, "synkhronos.fork()"):
        synk.size()
    synk.close()
    synk.fork(2)
    with reports(synk.StateError, "synkhronos.close()"):
        synk.fork(2)
    assert synk.size() == 2
    synk.close()
    synk.close()
    with pytest.raises(synk.StateError):
        synk.size()


def test_get_n_gpu():
    assert isinstance(synk.get_n_gpu(), int) and synk.get_n_gpu() >= 0
