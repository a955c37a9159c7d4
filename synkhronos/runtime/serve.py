"""Main loop of a rank other than the master: wait for a command, execute it, answer."""

from __future__ import annotations

import threading
from typing import Callable, Dict, Optional

from ..errors import SharedMemoryError
from .channel import RankEnd
from .command import Answer
from .context import RankContext
from .failures import encode

#: Ranks served by this process, by thread: one in a rank's process; in the program, the ranks that are threads.
_served: Dict[int, RankContext] = {}


def served(in_any_thread: bool) -> Optional[RankContext]:
    """Return the rank that this thread (or with ``in_any_thread``, any thread) of the process serves, or None."""
    others = list(_served.values()) if in_any_thread else []
    return _served.get(threading.get_ident()) or (others[0] if others else None)


def serve(context: RankContext, channel: RankEnd, watch: Callable[[], object]) -> None:
    """Execute commands until one stops the rank; ``watch``, called in waits, ends the rank if the master is gone."""
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
        except BaseException as error:  # unpickling a user's objects can raise anything
            context.abort()
            answer = Answer(context.rank, error=error)
        else:
            answer = context.execute(envelope)
            del envelope
        if channel.has_answered(number):
            if answer.error is not None:  # the other ranks rely on work that this rank did not finish
                raise answer.error
            channel.finish(number)
        else:
            try:
                channel.send(number, encode(answer))
            except SharedMemoryError as error:
                channel.send(number, encode(Answer(context.rank, error=error)))
        del answer  # free the objects that it refers to, such as the frames of an error
    channel.end(watch)
