"""A rank answers every command, even one that fails."""

import pickle
import types

import numpy as np
import pytest
from refusals import reports

from synkhronos.errors import SharedMemoryError
from synkhronos.runtime.command import Answer, CheckStart, Command, Envelope, Stop
from synkhronos.runtime.context import RankContext
from synkhronos.runtime.failures import MAX_SUMMARY_CHARS, MAX_TEXT_CHARS, Failure, encode
from synkhronos.runtime.serve import serve


class Say(Command):
    def __init__(self, what):
        self.what = what

    def run(self, context):
        if isinstance(self.what, BaseException):
            raise self.what
        return self.what


class Context:
    rank, stopped, pools = 1, False, types.SimpleNamespace(taken=set())
    transaction = types.SimpleNamespace(is_open=False)
    execute = RankContext.execute

    def __init__(self):
        self.barrier, self.log = self, []
        self.transport = types.SimpleNamespace(close=lambda: self.log.append("close"), prepare_thread=None)

    def begin(self, number):
        self.log.append(number)

    def forget(self, things):
        self.log += things

    def abort(self):
        self.log.append("abort")


class Channel:
    """A channel that provides commands and records answers."""

    def __init__(self, *commands, full=(), answered=()):
        self.payloads = [
            command if isinstance(command, bytes) else pickle.dumps(Envelope(["thing"], command))
            for command in commands
        ]
        self.answers, self.number, self.full = [], 0, set(full)
        self.answered, self.finished, self.has_ended = answered, [], False

    def wait(self, watch):
        self.number += 1
        return self.number

    def read(self):
        return pickle.loads(self.payloads[self.number - 1])

    def end(self, watch):
        self.has_ended = True

    def has_answered(self, number):
        return number in self.answered

    def finish(self, number):
        self.finished.append(number)

    def send(self, number, payload):
        assert number == self.number
        if number in self.full:
            self.full.remove(number)
            raise SharedMemoryError("full")
        self.answers.append(Answer(*pickle.loads(payload)))


UNPICKLABLE = pickle.dumps(Envelope(["thing"], Say(1))).replace(b"Say", b"Gon")


def test_serves_until_stop():
    channel, context = Channel(Say(5), CheckStart(), Say(np.arange(3)), Stop(), Say(6)), Context()
    serve(context, channel, None)
    assert [answer.rank for answer in channel.answers] == [1] * 4 and channel.has_ended
    assert channel.answers[0].result == 5 and channel.answers[1].result is None
    assert np.array_equal(channel.answers[2].result, np.arange(3))
    assert context.log == [1, "thing", 2, "thing", 3, "thing", 4, "thing", "close"]
    assert channel.has_ended


@pytest.mark.parametrize(
    "bad, text",
    [
        (Say(ValueError("in the command")), "ValueError: in the command"),
        (Say(SystemExit(3)), "SystemExit: 3"),
        (Say(lambda: 0), None),
        (UNPICKLABLE, "AttributeError"),
        (b"", "EOFError"),
        (b"garbage", "Error"),
    ],
    ids=range(6),
)
def test_answers_errors_and_goes_on(bad, text):
    if text is None:  # a result that cannot be pickled

        class Local(Say):
            pass

        context, channel = Context(), Channel(CheckStart(), Stop())
        channel.read = lambda: Envelope([], Local(lambda: 0) if channel.number == 1 else Stop())
        serve(context, channel, None)
        text = "pickle"
        aborts = 0
    else:
        context, channel = Context(), Channel(bad, Stop())
        serve(context, channel, None)
        aborts = 1
    summary = channel.answers[0].error.summary
    # (Python 3.12 and 3.13 name only the object: "Can't get local object 'f'".)
    assert text in summary or (text == "pickle" and "Can't get local object" in summary)
    assert channel.answers[1].error is None
    assert context.log.count("abort") == aborts


def test_no_memory_for_the_answer():
    channel = Channel(Say("long"), Stop(), full=[1])
    serve(Context(), channel, None)
    assert channel.answers[0].error.summary == "SharedMemoryError: full" and len(channel.answers) == 2


def test_promised_answers_are_not_sent_again():
    channel = Channel(Say("before"), Say("promised"), Stop(), answered=[2])
    serve(Context(), channel, None)
    assert [answer.result for answer in channel.answers] == ["before", None] and channel.finished == [2]


def test_a_rank_that_cannot_keep_its_promise_ends():
    channel = Channel(Say(KeyError("after the last barrier")), Stop(), answered=[1])
    with reports(KeyError, "after the last barrier"):
        serve(Context(), channel, None)
    assert not channel.answers and not channel.finished


def test_texts_are_bounded():
    failure = Failure(ValueError("x" * 10**6))
    assert MAX_TEXT_CHARS <= len(failure.text) < MAX_TEXT_CHARS + 100 and "characters" in failure.text
    assert len(failure.summary) < MAX_SUMMARY_CHARS + 100
    assert pickle.loads(pickle.dumps(failure)).text == failure.text


def test_encode_keeps_everything():
    answer = Answer(*pickle.loads(encode(Answer(2, result=(1, "two")))))
    assert (answer.rank, answer.result, answer.error, answer.aborted) == (2, (1, "two"), None, False)
    answer = Answer(*pickle.loads(encode(Answer(2, aborted=True))))
    assert answer.aborted and answer.error is None
    try:
        raise KeyError("where")
    except KeyError as error:
        answer = Answer(*pickle.loads(encode(Answer(2, error=error))))
    assert answer.error.summary == "KeyError: 'where'" and "test_serve.py" in answer.error.text
