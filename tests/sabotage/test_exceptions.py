"""Exceptions of any kind, on any rank, are reported, and the session continues."""

import os
import pickle
import signal
import threading

import numpy as np
import pytest
from refusals import lacks, reports

import synkhronos as synk
from synkhronos.errors import RemoteTraceback, WorkerError
from synkhronos.program.program import PROGRAM
from synkhronos.runtime.command import Command

pytestmark = pytest.mark.slow


class TwoArguments(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class Unpicklable(Exception):
    def __init__(self):
        super().__init__("no pickle")
        self.lock = threading.Lock()

    def __reduce__(self):
        raise pickle.PicklingError("never")


class NoText(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class ExitText(Exception):
    def __str__(self):
        raise SystemExit(3)


def huge():
    return ValueError("x" * (50 << 20))


def chained():
    try:
        raise KeyError("inner")
    except KeyError as error:
        result = ValueError("outer")
        result.__cause__ = error
        error.__context__ = result  # a reference cycle
        return result


KINDS = [
    (lambda: TwoArguments(1, 2), "TwoArguments: 1 and 2"),
    (Unpicklable, "Unpicklable: no pickle"),
    (NoText, "NoText"),
    (ExitText, "ExitText"),
    (huge, "ValueError: xxxx"),
    (chained, "ValueError: outer"),
    (lambda: SystemExit(7), "SystemExit: 7"),
    (lambda: KeyboardInterrupt("odd"), "KeyboardInterrupt: odd"),
    (lambda: GeneratorExit(), "GeneratorExit"),
    (lambda: StopIteration(4), "StopIteration: 4"),
    (lambda: UnicodeError("\udc80 lone"), "UnicodeError"),
    (MemoryError, "MemoryError"),
]


class Raise(Command):
    """Fail on some ranks, before, between or after two barriers."""

    title = "sabotage"

    def __init__(self, kinds, place, result=None):
        self.kinds, self.place, self.result = kinds, place, result

    def run(self, context):
        for place in range(3):
            if place == self.place and context.rank in self.kinds:
                raise KINDS[self.kinds[context.rank]][0]()
            if place < 2:
                context.barrier.wait()
        return context.rank


def check_alive(world):
    assert world.session.run(Raise({}, 0)) == list(range(world.n))
    w = world.shared(np.arange(3.0))
    synk.all_reduce(w, op="sum")
    assert all(np.array_equal(value, world.n * np.arange(3.0)) for value in world.values(w))


@pytest.mark.parametrize("launcher, n, root", [("threads", 2, 0), ("threads", 3, 1), ("fork", 2, 0), ("fork", 3, 1)])
def test_every_kind_at_every_place(launcher, n, root, make_world):
    world = make_world(launcher, n, root)
    for kind, (_, text) in enumerate(KINDS):
        for place in range(3):
            rank = (root + 1 + place % (n - 1)) % n
            with pytest.raises(WorkerError) as caught:
                world.session.run(Raise({rank: kind}, place))
            error = caught.value
            assert error.rank == rank and list(error.remote_tracebacks) == [rank]
            assert str(error).startswith(f"rank {rank} raised {text}") and "in sabotage" in str(error)
            assert len(str(error)) < 10000
            assert isinstance(error.__cause__, RemoteTraceback)
            assert f"Traceback of rank {rank}" in str(error.__cause__)
            assert "in run" in str(error.__cause__) and len(str(error.__cause__)) < 30000
    check_alive(world)


@pytest.mark.parametrize("launcher", ["threads", "fork"])
def test_several_ranks_are_all_told(launcher, make_world):
    world = make_world(launcher, 4, 1)
    with pytest.raises(WorkerError) as caught:
        world.session.run(Raise({0: 0, 2: 6, 3: 5}, 1))
    message = str(caught.value)
    # The first failing rank may release others before they fail; if all fail, the error names all.
    told = [rank for rank in (0, 2, 3) if f"rank {rank} raised" in message]
    assert told == sorted(caught.value.remote_tracebacks) and caught.value.rank == told[0]
    with pytest.raises(WorkerError) as caught:
        world.session.run(Raise({0: 0, 2: 6, 3: 5}, 0))
    assert sorted(caught.value.remote_tracebacks) == [0, 2, 3] and caught.value.rank == 0
    for text in ("rank 0 raised TwoArguments: 1 and 2", "rank 2 raised SystemExit: 7", "rank 3 raised ValueError"):
        assert text in str(caught.value)
    check_alive(world)


@pytest.mark.parametrize("launcher", ["threads", "fork"])
@pytest.mark.parametrize("kind", [0, 2, 5, 11])
def test_masters_own_keeps_its_type(launcher, kind, make_world):
    world = make_world(launcher, 3, 0)
    with pytest.raises(type(KINDS[kind][0]())) as caught:
        world.session.run(Raise({0: kind, 1: 9, 2: 6}, 0))
    notes = "\n".join(caught.value.__notes__)
    assert not lacks(notes, "rank 1", "StopIteration: 4", "rank 2", "SystemExit: 7")
    check_alive(world)


@pytest.mark.parametrize("launcher", ["threads", "fork"])
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_master_is_interrupted_at_every_place(launcher, kind, make_world):
    world = make_world(launcher, 3, 2)
    number = [i for i, (make, _) in enumerate(KINDS) if isinstance(make(), kind)][0]
    for place in range(3):
        with pytest.raises(kind):
            world.session.run(Raise({2: number}, place))
        check_alive(world)


class Result:
    """A result, or a command's field, that fails in pickling or unpickling."""

    def __init__(self, where, how):
        self.where, self.how = where, how

    def __reduce__(self):
        if self.where == "pickling":
            self.how()
        return Result._load, (self.where, self.how)

    @staticmethod
    def _load(where, how):
        if where == "unpickling":
            how()
        return Result(where, how)


def raise_error():
    raise OSError("on the way")


def raise_exit():
    raise SystemExit(5)


class Return(Command):
    title = "return"

    def __init__(self, ranks, where, how):
        self.ranks, self.where, self.how = ranks, where, how

    def run(self, context):
        context.barrier.wait()
        if context.rank in self.ranks:
            return Result(self.where, self.how)
        return context.rank


class Carry(Command):
    title = "carry"

    def __init__(self, thing):
        self.thing = thing

    def run(self, context):
        context.barrier.wait()


@pytest.mark.parametrize("launcher", ["threads", "fork"])
@pytest.mark.parametrize("how, text", [(raise_error, "OSError: on the way"), (raise_exit, "SystemExit: 5")])
def test_results_that_do_not_travel(launcher, how, text, make_world):
    world = make_world(launcher, 3, 0)
    for ranks in ([1], [1, 2]):
        with pytest.raises(WorkerError) as caught:
            world.session.run(Return(ranks, "pickling", how))
        assert sorted(caught.value.remote_tracebacks) == ranks and text in str(caught.value)
        check_alive(world)
    if how is raise_error:
        with reports(WorkerError, "OSError: on the way", rank=2):
            world.session.run(Return([2], "unpickling", how))
    else:
        with pytest.raises(SystemExit):
            world.session.run(Return([2], "unpickling", how))
    check_alive(world)


@pytest.mark.parametrize("launcher", ["threads", "fork"])
def test_commands_that_do_not_travel(launcher, make_world):
    world = make_world(launcher, 3, 0)
    with reports(OSError, "on the way"):
        world.session.run(Carry(Result("pickling", raise_error)))
    check_alive(world)
    for how, text in ((raise_error, "OSError: on the way"), (raise_exit, "SystemExit: 5")):
        with pytest.raises(WorkerError) as caught:
            world.session.run(Carry(Result("unpickling", how)))
        assert sorted(caught.value.remote_tracebacks) == [1, 2] and text in str(caught.value)
        check_alive(world)


def crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def leave():
    os._exit(3)


class AtEnd:
    """An object that runs an action when it is collected."""

    def __init__(self, how):
        self.how = how

    def __del__(self):
        if not PROGRAM.keeper_pid:  # only on the ranks
            self.how()


@pytest.mark.parametrize("how, exitcode", [(crash, -signal.SIGSEGV), (leave, 3)])
@pytest.mark.parametrize("where", ["unpickling", "pickling", "garbage"])
def test_objects_that_end_the_rank(where, how, exitcode, make_world):
    world = make_world("fork", 3, 0)
    if where == "unpickling":
        command = Carry(Result("unpickling", how))
    elif where == "pickling":
        command = Return([1, 2], "pickling", how)
    else:
        command = Carry(AtEnd(how))
    with reports(synk.WorkerDied, exitcode=exitcode) as caught:
        world.session.run(command)
        world.session.run(Raise({}, 0))  # if the failure occurred after the answer
    assert caught.value.rank in (1, 2)
    check_alive(make_world("fork", 3, 0))


def test_garbage_that_raises_does_not_matter(make_world):
    world = make_world("fork", 3, 0)
    for how in (raise_error, raise_exit):
        world.session.run(Carry(AtEnd(how)))
        check_alive(world)


class Uneven(Command):
    """A command whose ranks make different calls: an internal error, which must not hang."""

    title = "uneven"

    def __init__(self, ranks):
        self.ranks = ranks

    def run(self, context):
        if context.rank in self.ranks:
            context.barrier.wait()


@pytest.mark.parametrize("launcher", ["threads", "fork"])
@pytest.mark.parametrize("ranks", [[0], [1], [0, 1], [1, 2]])
def test_ranks_that_disagree_do_not_hang(launcher, ranks, make_world):
    world = make_world(launcher, 3, 0)
    with reports(synk.SynkhronosError, "uneven"):
        world.session.run(Uneven(ranks))
    assert not synk.is_forked()
