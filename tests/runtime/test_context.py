"""A rank's context: all ranks commit changes, or none does."""

import pytest

from synkhronos.errors import Aborted
from synkhronos.runtime.context import RankContext
from synkhronos.runtime.registry import Registry
from synkhronos.sync.barrier import Barrier
from synkhronos.sync.control_block import ControlBlock
from synkhronos.sync.semaphore import WaitPolicy


class Transport:
    prepare_thread = None

    def __init__(self):
        self.forgotten = []

    def forget(self, prefix):
        self.forgotten.append(prefix)


def make(rank=0, size=1, root=0, block=None):
    block = block or ControlBlock(size)
    block.close()
    barrier = Barrier(block, rank, root, lambda: None, WaitPolicy.of_threads())
    context = RankContext(barrier, None, None, Transport(), Registry())
    context.barrier.begin(1)
    return context


def test_commit_alone():
    context, done = make(), []
    context.commit(lambda: done.append(1), lambda: done.append(2))
    assert done == [1, 2]
    context.settle()
    assert done == [1, 2]


def test_nothing_is_changed_before_all_have_come():
    context, done = make(size=2), []

    def abort():
        raise Aborted

    context.barrier.watch = abort
    with pytest.raises(Aborted):
        context.commit(lambda: done.append(1))
    context.settle()
    assert not done
    context.settle()
    assert not done


@pytest.mark.parametrize("rank", [0, 1])
def test_decided_but_interrupted_before_the_changes(rank):
    """After a complete barrier, changes are made exactly once, even after an interrupt."""
    context, done = make(rank, 2), []

    def interrupted():
        context.barrier.current += 1
        context.barrier.block.decided = context.barrier.current  # as the root does
        raise KeyboardInterrupt

    context.barrier.wait = interrupted
    with pytest.raises(KeyboardInterrupt):
        context.commit(lambda: done.append(1))
    assert not done
    context.abort()
    context.settle()
    assert done == [1]
    context.settle()
    assert done == [1]


def test_interrupted_in_the_middle_of_the_changes():
    """Interrupted changes are repeated from the first one on."""
    context, done = make(), []

    def second():
        if done.count(1) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        context.commit(lambda: done.append(1), second, lambda: done.append(3))
    context.settle()
    assert done == [1, 1, 3]


def test_an_old_commit_is_not_made_by_a_later_rendezvous():
    context, done = make(size=1), []

    def refuse():
        context.barrier.current += 1
        raise Aborted

    meet, context.barrier.wait = context.barrier.wait, refuse
    with pytest.raises(Aborted):
        context.commit(lambda: done.append("old"))
    context.settle()
    context.barrier.wait = meet
    context.barrier.begin(2)
    context.commit(lambda: done.append("new"))
    assert done == ["new"]


def test_forget():
    context = make()
    context.functions[1], context.shareds[2], context.shareds[3] = "f", "w", "v"
    context.forget([("function", 1), ("shared", 2), ("shared", 77)])
    assert context.functions == {} and context.shareds == {3: "v"}
    assert context.transport.forgotten == [("function", 1), ("shared", 2), ("shared", 77)]


def test_repr():
    assert repr(make(1, 3, 2)) == "RankContext(rank=1 of 3, root=2, Registry(functions=0, shareds=0))"
