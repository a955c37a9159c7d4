"""The life of a rank other than the master: wait for a command, execute it, answer, until told to stop."""

from __future__ import annotations

import pickle
import traceback
from typing import Any, Callable

from ..errors import SharedMemoryError
from .channel import RankEnd
from .command import Answer, Command, execute
from .context import RankContext

#: Characters of a traceback, and of its last line, that travel. Mostly they fit into the slot of an answer.
MAX_TEXT_CHARS, MAX_SUMMARY_CHARS = 10000, 2000


class Start(Command):
    """Answer, so that `fork` tells what keeps a rank from living."""

    title = "start"

    def run(self, context: RankContext) -> None:
        pass


class Stop(Command):
    """Tell the ranks to end."""

    title = "stop"

    def run(self, context: RankContext) -> None:
        pass


class Failure:
    """An exception of another rank as it travels: as text, since not every exception can be pickled."""

    def __init__(self, error: BaseException) -> None:
        self.text = _text(error)
        self.summary = _summary(error)


def _text(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except BaseException as second:  # an exception whose __str__ raises
        text = (
            "".join(traceback.format_tb(error.__traceback__))
            + f"{type(error).__name__} (its text could not be made: {type(second).__name__})\n"
        )
    if len(text) > MAX_TEXT_CHARS:
        text = (
            text[: MAX_TEXT_CHARS // 2]
            + f"\n[... {len(text) - MAX_TEXT_CHARS} characters ...]\n"
            + text[-MAX_TEXT_CHARS // 2 :]
        )
    return text


def _summary(error: BaseException) -> str:
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:
        return type(error).__name__
    return text if len(text) <= MAX_SUMMARY_CHARS else text[:MAX_SUMMARY_CHARS] + " [...]"


def encode(answer: Answer) -> bytes:
    """Pickle an answer; where its result cannot be, the answer is that error."""
    if answer.error is not None:
        answer = Answer(answer.rank, error=Failure(answer.error))  # type: ignore[arg-type]
    try:
        return pickle.dumps((answer.rank, answer.result, answer.error, answer.aborted), pickle.HIGHEST_PROTOCOL)
    except BaseException as error:
        return encode(Answer(answer.rank, error=error))


def decode(message: Any) -> Answer:
    """Return the answer that `encode` pickled; its ``error`` is a `Failure`."""
    rank, result, error, aborted = message
    return Answer(rank, result, error, aborted)


def serve(context: RankContext, channel: RankEnd, watch: Callable[[], object]) -> None:
    """Execute commands until `Stop` comes.

    Parameters
    ----------
    context : RankContext
        This rank's.
    channel : RankEnd
        Where commands come from.
    watch : callable
        Called at every step of a wait for the next command; ends the rank where its master is gone.
    """
    while True:
        number = channel.wait(watch)
        context.barrier.begin(number)
        stop = False
        try:
            forget, command = channel.read()
            if forget:
                context.forget(forget)
        except BaseException as error:  # anything can be raised by unpickling a user's objects
            context.abort()
            answer = Answer(context.rank, error=error)
        else:
            answer = execute(command, context)
            stop = isinstance(command, Stop)
            del command
        try:
            channel.send(number, encode(answer))
        except SharedMemoryError as error:
            channel.send(number, encode(Answer(context.rank, error=error)))
        del answer  # and what it keeps alive, an error's frames included
        if stop:
            return
