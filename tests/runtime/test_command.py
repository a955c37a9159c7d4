"""Executing a command always returns an answer and releases the other ranks."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from synkhronos.errors import Aborted
from synkhronos.runtime.command import Command, Envelope
from synkhronos.runtime.context import RankContext


class Context:
    """A context that records calls."""

    rank, transport = 3, SimpleNamespace(prepare_thread=None)
    pools = SimpleNamespace(taken=set())

    def __init__(self):
        self.calls, self.transaction, self.is_open = [], self, True

    def forget(self, things):
        self.calls.append(("forget", things))

    def abort(self):
        self.calls.append("abort")

    def settle(self):
        self.calls.append("settle")


class Do(Command):
    def __init__(self, what):
        self.what = what

    def run(self, context):
        if isinstance(self.what, type) and issubclass(self.what, BaseException):
            raise self.what("text")
        return self.what


def execute(command, context, forget=()):
    return RankContext.execute(context, Envelope(forget, command))


def test_result():
    context = Context()
    answer = execute(Do(5), context)
    assert (answer.rank, answer.result, answer.error, answer.aborted) == (3, 5, None, False)
    assert context.calls == ["settle"]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
def test_error(kind):
    context = Context()
    answer = execute(Do(kind), context)
    assert type(answer.error) is kind and answer.rank == 3 and not answer.aborted and answer.result is None
    assert context.calls == ["abort", "settle"]


def test_aborted_is_no_error():
    context = Context()
    answer = execute(Do(Aborted), context)
    assert answer.aborted and answer.error is None
    assert context.calls == ["abort", "settle"]


def test_title():
    assert Do(1).title == "Do"


def test_what_was_dropped_is_forgotten_first():
    context = Context()
    assert execute(Do(1), context, [("shared", 5)]).result == 1
    assert context.calls == [("forget", [("shared", 5)]), "settle"]


def test_what_cannot_be_forgotten_is_an_error_of_the_command():
    context = Context()
    context.forget = lambda things: 1 / 0
    assert type(execute(Do(1), context, [("shared", 5)]).error) is ZeroDivisionError
    assert context.calls == ["abort", "settle"]


def test_results_are_finished_in_rank_order():
    assert Do(1).finish([1, 2], Context()) == [1, 2]


def test_a_frozen_command_travels_without_its_pickle():
    command = Do(np.ones(1000))
    command.freeze()
    sent = pickle.loads(command.frozen)
    assert sent.forget == () and (sent.command.what == 1).all() and sent.command.frozen is None
    assert len(pickle.dumps(command)) < 1.5 * len(command.frozen)


def test_a_command_must_say_what_it_does():
    with pytest.raises(TypeError):
        Command()
