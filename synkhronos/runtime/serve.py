"""The life of a rank other than the master: wait for a command, execute it, answer, until told to stop."""

from __future__ import annotations

import threading
from typing import Callable, Dict, Optional

from ..errors import SharedMemoryError
from .channel import RankEnd
from .command import Answer
from .context import RankContext
from .failures import encode

#: The ranks that this process serves, by the thread that does: one in a rank's process, else threads of the program.
_served: Dict[int, RankContext] = {}


def served(in_any_thread: bool) -> Optional[RankContext]:
    """Return the rank that this thread serves, or else any thread of this process; None if there is none."""
    others = list(_served.values()) if in_any_thread else []
    return _served.get(threading.get_ident()) or (others[0] if others else None)


def serve(context: RankContext, channel: RankEnd, watch: Callable[[], object]) -> None:
    """Execute commands until one of them stops the rank.

    Parameters
    ----------
    context : RankContext
        This rank's.
    channel : RankEnd
        From which commands come.
    watch : callable
        Called at every step of a wait for the next command; ends the rank if its master is gone.
    """
    _served[threading.get_ident()] = context
    try:
        _execute_until_stopped(context, channel, watch)
    finally:
        del _served[threading.get_ident()]


def _execute_until_stopped(context: RankContext, channel: RankEnd, watch: Callable[[], object]) -> None:
    while not context.stopped:
        number = channel.wait(watch)
        context.barrier.begin(number)
        try:
            envelope = channel.read()
        except BaseException as error:  # anything can be raised by unpickling a user's objects
            context.abort()
            answer = Answer(context.rank, error=error)
        else:
            answer = context.execute(envelope)
            del envelope
        if channel.has_answered(number):
            if answer.error is not None:  # the others count on what this rank has not done
                raise answer.error
            channel.finish(number)
        else:
            try:
                channel.send(number, encode(answer))
            except SharedMemoryError as error:
                channel.send(number, encode(Answer(context.rank, error=error)))
        del answer  # and what it keeps alive, an error's frames included
    channel.end(watch)
