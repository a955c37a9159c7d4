"""`execute`: whatever a command does, there is an answer, and the peers are freed."""

import pytest

from synkhronos.errors import Aborted
from synkhronos.runtime.command import Answer, Command, execute


class Context:
    """Notes what is done to it."""

    rank = 3

    def __init__(self):
        self.calls = []

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


def test_repr():
    assert repr(Answer(1, 5)) == "Answer(rank=1, result=5)"
    assert repr(Answer(1, error=ValueError("x"))) == "Answer(rank=1, error=ValueError('x'))"
    assert repr(Answer(1, aborted=True)) == "Answer(rank=1, aborted)"


def test_a_command_must_say_what_it_does():
    with pytest.raises(TypeError):
        Command()
