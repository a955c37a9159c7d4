"""`synkhronos.program.options`: expert options of `fork`, and the arguments of earlier versions."""

import pytest
from refusals import refuses

import synkhronos as synk
from synkhronos.program.program import PROGRAM

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def closed():
    yield
    synk.close()


def test_options():
    assert synk.fork(2, use_gpu=False, options=synk.Options(pin=False, threads=1)) == 2
    assert PROGRAM.session.affinity.cores == set()


@pytest.mark.parametrize(
    "arguments, keywords",
    [
        ((2, False, 1, False, 3, 4), {}),
        ((2, False), dict(master_rank=1, profile_workers=False, max_n_var=3, max_dim=4)),
        ((), dict(n_parallel=2, use_gpu=False, master_rank=1, keep_heap=True, standby=False)),
        ((2,), dict(use_gpu=False, master_rank=1, pin=False, options=synk.Options(pin=True, threads=1))),
    ],
)
def test_earlier_names(arguments, keywords):
    assert synk.fork(*arguments, **keywords) == 2 and synk.rank() == 1
    if "pin" in keywords:
        assert PROGRAM.session.affinity.cores == set()


@pytest.mark.parametrize(
    "arguments, keywords, name",
    [
        ((2,), dict(n_parallel=2), "n_parallel"),
        ((2,), dict(n_ranks=2), "n_ranks"),
        ((), dict(n_parallel=2, n_ranks=2), "n_ranks"),
        ((2, False), dict(use_gpu=False), "use_gpu"),
        ((2, False, 0, False, None, None, ["cuda0"]), {}, "7"),
        ((), dict(n_rank=2), "n_rank"),
    ],
)
def test_what_is_given_twice_or_unknown(arguments, keywords, name):
    with pytest.raises(TypeError) as caught:
        synk.fork(*arguments, **keywords)
    assert name in str(caught.value) and not synk.is_forked()


def test_other_objects():
    with refuses(TypeError, "options", "Options", "dict"):
        synk.fork(2, use_gpu=False, options={"pin": False})
    with refuses(TypeError, "pin", "True", "None"):
        synk.fork(2, use_gpu=False, options=synk.Options(pin=None))
