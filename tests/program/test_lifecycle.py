"""`fork`, `close`, and what tells the state in between."""

import numpy as np
import pytest

import synkhronos as synk
from synkhronos.host import machine
from synkhronos.program.program import PROGRAM


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
        )
        == 2
    )
    assert PROGRAM.session.timeout == 20 and PROGRAM.session.affinity.cores == set()


@pytest.mark.parametrize(
    "keywords, kind, text",
    [
        (dict(n_parallel=0), ValueError, "n_parallel must be at least 1, got 0"),
        (dict(n_parallel=-2), ValueError, "got -2"),
        (dict(n_parallel=2.0), TypeError, "n_parallel must be an int, got 2.0"),
        (dict(n_parallel=True), TypeError, "bool"),
        (dict(n_parallel="2"), TypeError, "'2' of type str"),
        (dict(n_parallel=2, master_rank=2), ValueError, "master_rank must be from 0 to 1 .*2 ranks.*, got 2"),
        (dict(n_parallel=2, master_rank=-1), ValueError, "got -1"),
        (dict(n_parallel=2, master_rank=None), TypeError, "master_rank must be an int, got None"),
        (dict(n_parallel=2, timeout=0), ValueError, "timeout must be a positive number"),
        (dict(n_parallel=2, timeout=10**400), ValueError, "timeout must be a positive number"),
        (dict(n_parallel=2, threads=10**400), ValueError, "threads must be at most 4096"),
        (dict(n_parallel=2, timeout="3"), ValueError, "got '3'"),
        (dict(n_parallel=2, timeout=float("nan")), ValueError, "nan"),
        (dict(n_parallel=2, random="other"), ValueError, "random must be 'split' or 'same', got 'other'"),
        (dict(n_parallel=2, threads=0), ValueError, "threads must be at least 1"),
        (dict(n_parallel=2, seed="x"), TypeError, "seed must be an int"),
        (dict(n_parallel=2, use_gpu=True), synk.SynkhronosError, "use_gpu=True"),
        (dict(n_parallel=2, devices=["cuda0"]), ValueError, "devices"),
    ],
)
def test_bad_arguments(keywords, kind, text):
    with pytest.raises(kind, match=text):
        synk.fork(**keywords)
    assert not synk.is_forked()
    assert synk.fork(2) == 2


def test_order_of_calls():
    with pytest.raises(synk.StateError, match="call synkhronos.fork"):
        synk.size()
    synk.close()
    synk.fork(2)
    with pytest.raises(synk.StateError, match="call synkhronos.close"):
        synk.fork(2)
    assert synk.size() == 2
    synk.close()
    synk.close()
    with pytest.raises(synk.StateError):
        synk.size()


def test_get_n_gpu():
    assert isinstance(synk.get_n_gpu(), int) and synk.get_n_gpu() >= 0
