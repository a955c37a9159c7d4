"""A transaction: all ranks make the changes of a command, or none does."""

import pickle

import pytest

from synkhronos.errors import Aborted
from synkhronos.runtime.command import Answer
from synkhronos.runtime.transaction import MAX_UNDO_STEPS, Transaction
from synkhronos.sync.barrier import Barrier
from synkhronos.sync.control_block import DECIDED, ControlBlock
from synkhronos.sync.semaphore import WaitPolicy


class Transport:
    """A transport that agrees with itself at the next barrier."""

    barrier = None

    def agree(self, label):
        self.barrier.wait()


class Deposits:
    """Deposits that note what happens to them."""

    def __init__(self):
        self.log, self.pending, self.has_begun = [], {}, False

    def begin(self, entries, keeps):
        self.has_begun = True

    def stage_results(self, entries, results, others):
        self.pending[1] = "spare"
        if "no room" in results:
            raise MemoryError
        self.log.append("stage_results")

    def stage(self, entries=None):
        self.log.append("stage" if entries is None else f"stage {entries}")

    def apply(self):
        self.log.append("apply")
        self.has_begun = False

    def restore(self):
        self.log.append("restore")
        self.has_begun = False


def make(rank=0, size=1, root=0):
    block, transport = ControlBlock(size), Transport()
    block.close()
    barrier = transport.barrier = Barrier(block, rank, root, lambda: None, WaitPolicy.of_threads())
    barrier.begin(1)
    return Transaction(rank, barrier, transport)


def abort():
    raise Aborted


def test_commit_alone():
    transaction, done = make(), []
    transaction.commit(lambda: done.append(1), lambda: done.append(2))
    assert done == [1, 2]
    transaction.settle()
    assert done == [1, 2]


def test_nothing_is_changed_before_all_have_come():
    transaction, done = make(size=2), []
    transaction.barrier.watch = abort
    with pytest.raises(Aborted):
        transaction.commit(lambda: done.append(1))
    transaction.settle()
    assert not done
    transaction.settle()
    assert not done


@pytest.mark.parametrize("rank", [0, 1])
def test_decided_but_interrupted_before_the_changes(rank):
    """After a complete barrier, changes are made exactly once, even after an interrupt."""
    transaction, done = make(rank, 2), []

    def interrupted():
        transaction.barrier.current += 1
        transaction.barrier.block.words[DECIDED] = transaction.barrier.current  # as the root does
        raise KeyboardInterrupt

    transaction.barrier.wait = interrupted
    with pytest.raises(KeyboardInterrupt):
        transaction.commit(lambda: done.append(1))
    assert not done
    transaction.barrier.abort()
    transaction.settle()
    assert done == [1]
    transaction.settle()
    assert done == [1]


def test_interrupted_in_the_middle_of_the_changes():
    """Interrupted changes are repeated from the first one on."""
    transaction, done = make(), []

    def second():
        if done.count(1) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transaction.commit(lambda: done.append(1), second, lambda: done.append(3))
    transaction.settle()
    assert done == [1, 1, 3]


def test_an_old_commit_is_not_made_by_a_later_rendezvous():
    transaction, done = make(size=1), []

    def refuse():
        transaction.barrier.current += 1
        raise Aborted

    meet, transaction.barrier.wait = transaction.barrier.wait, refuse
    with pytest.raises(Aborted):
        transaction.commit(lambda: done.append("old"))
    transaction.settle()
    transaction.barrier.wait = meet
    transaction.barrier.begin(2)
    transaction.commit(lambda: done.append("new"))
    assert done == ["new"]


def with_deposits(size=1):
    transaction = make(size=size)
    transaction.deposits = Deposits()
    return transaction, transaction.deposits.log


def test_protected_values_are_staged_and_deposited():
    """The changes of a function are made before its new values are staged."""
    transaction, log = with_deposits()
    transaction.protect([])
    transaction.commit(lambda: log.append("change"))
    assert log == ["change", "stage", "apply"]
    transaction.settle()
    assert log == ["change", "stage", "apply"] and not transaction.is_open


def test_protected_values_are_restored():
    transaction, log = with_deposits(2)
    transaction.barrier.watch = abort
    transaction.protect([])
    with pytest.raises(Aborted):
        transaction.commit(lambda: log.append("change"))
    transaction.settle()
    assert log == ["change", "stage", "restore"] and not transaction.is_open


def test_a_commit_with_a_label_does_not_end_the_command():
    transaction, log = with_deposits()
    transaction.protect([])
    transaction.commit(lambda: log.append("change"), label="a step")
    assert log == ["change"] and transaction.is_open
    transaction.commit()
    assert log == ["change", "stage", "apply"]


def test_results_of_a_collective_become_deposits():
    transaction, log = with_deposits()
    transaction.commit_values([], [], lambda: log.append("change"))
    assert log == ["stage_results", "change", "apply"]


def test_deposits_of_a_failed_commit_are_forgotten():
    """Otherwise, the next command's answer would contain values that were never committed."""
    transaction, _ = with_deposits()
    with pytest.raises(MemoryError):
        transaction.commit_values([], ["no room"])
    assert transaction.is_open and transaction.deposits.pending
    transaction.settle()
    assert not transaction.deposits.pending


def test_values_are_deposited_after_failed_steps():
    """The values of completed steps are staged first, and become deposits once, after the barrier."""
    transaction, log = with_deposits(2)
    transaction.barrier.watch = abort
    transaction.protect([], keeps=True)
    with pytest.raises(Aborted):
        transaction.deposit(["w"])
    assert log == ["stage ['w']"]


def test_steps_are_undone_in_reverse_unless_a_later_barrier_is_complete():
    transaction, log = make(size=2), []
    transaction.barrier.watch = abort
    for i in range(3):
        transaction.apply_tentatively(lambda i=i: log.append(-i), lambda i=i: log.append(i), "a step")
    transaction.drop_undo_log()
    assert transaction.is_open
    transaction.settle()
    assert log == [0, 1, 2, -2, -1, 0] and not transaction.is_open


def test_many_steps_without_a_collective_are_committed():
    transaction, log = make(), []
    for i in range(MAX_UNDO_STEPS):
        transaction.apply_tentatively(lambda: log.append("undone"), lambda i=i: log.append(i), "a step")
    transaction.settle()
    assert log == list(range(MAX_UNDO_STEPS))


def test_promises_name_the_barrier_that_makes_them_valid():
    transaction, promised = make(rank=1, size=2), []
    transaction.promises = lambda barrier, payload: promised.append(barrier)
    current = transaction.barrier.current
    transaction.promise("result")
    transaction.promise(ahead=2)
    assert promised == [current + 1, current + 2]
    answers = []
    transaction.promises = lambda barrier, payload: answers.append(Answer(*pickle.loads(payload)))
    transaction.barrier.wait = lambda: None
    transaction.commit_values([], [], result="result")
    assert [answer.result for answer in answers] == ["result"]
    root = make(size=2)
    root.promise()
    assert root.barrier.block.promised[0] == 0
    root.promise(ahead=2)
    assert root.barrier.block.promised[0] == root.barrier.current + 2
