"""`execute`: whatever a command does, there is an answer, and the peers are freed."""

import pytest

from synkhronos.errors import Aborted
from synkhronos.runtime.command import Ack, Command, execute


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
    ack = execute(Do(5), context)
    assert (ack.rank, ack.result, ack.error, ack.aborted) == (3, 5, None, False)
    assert context.calls == ["settle"]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
def test_error(kind):
    context = Context()
    ack = execute(Do(kind), context)
    assert type(ack.error) is kind and ack.rank == 3 and not ack.aborted and ack.result is None
    assert context.calls == ["abort", "settle"]


def test_aborted_is_no_error():
    context = Context()
    ack = execute(Do(Aborted), context)
    assert ack.aborted and ack.error is None
    assert context.calls == ["abort", "settle"]


def test_title():
    assert Do(1).title == "Do"


def test_repr():
    assert repr(Ack(1, 5)) == "Ack(rank=1, result=5)"
    assert repr(Ack(1, error=ValueError("x"))) == "Ack(rank=1, error=ValueError('x'))"
    assert repr(Ack(1, aborted=True)) == "Ack(rank=1, aborted)"


def test_a_command_must_say_what_it_does():
    with pytest.raises(TypeError):
        Command()
