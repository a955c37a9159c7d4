"""Common base of `StandIn` and `Deputy`, which copy events between a control block and other hosts.

All code runs in the event loop's thread. When the block's eventfd is signaled, `look` sends the block's changes.
Some changes, such as step counts, signal no eventfd, so the thread also checks the block at intervals.
"""

from __future__ import annotations

import time
import traceback
from abc import ABC, abstractmethod
from typing import Any, Sequence, Tuple

from .loop import EventLoop
from .messages import ROUTED, Handlers
from .requests import Requests

LOOK_EVERY_S = 0.2  # maximum time between two checks of the block
LOOK_AGAIN_S = 0.005  # time until the next check if an action is postponed


class Copying(ABC):
    """Copies a session's events between a host's control block and other hosts; ``requests`` are those of its ranks."""

    handlers: Handlers = {}  # methods for `messages` that are not `ROUTED`

    def __init__(self, requests: Requests, loop: EventLoop) -> None:
        self.requests, self.hosts, self.block = requests, requests.hosts, requests.block
        self.loop, self.ended = loop, False
        self._due = 0.0  # time of the next check without an event

    def begin(self) -> None:
        self.loop.watch(self.block.bridge, self._on_bell)

    def end(self) -> None:
        """Check the block one last time, and release the session's memory."""
        self.loop.forget(self.block.bridge)
        self._look(True)
        self.ended = True
        self.requests.end()
        self.requests.memory.clear()

    def give_up(self) -> None:
        """Report the block's state, and abort all requests; all hosts must do this before dead ranks are replaced."""
        self._look(True)
        self.requests.give_up_all()

    def drain(self, seconds: float) -> bool:
        """Turn the loop until MPI writes into no memory of this host; return whether it stopped in time."""
        until = time.monotonic() + seconds
        while self.requests.is_draining and not self.ended and time.monotonic() < until:
            self.loop.turn(self.keep_time())
        return not self.requests.is_draining

    def _on_bell(self) -> None:
        self.block.bridge.drain()
        self._look(time.monotonic() >= self._due)

    def keep_time(self) -> float:
        """Check the block if a check is due; return the seconds until the next check."""
        left = self._due - time.monotonic()
        if left <= 0:
            self._look(True)
            left = self._due - time.monotonic()
        return max(0.0, left)

    def _look(self, overdue: bool) -> None:
        waits = False
        if not self.ended:
            try:
                waits = self.look(overdue)
                self.requests.look()
            except (ConnectionError, EOFError):  # the connection's receiver reports the loss
                pass
            except Exception:
                self.fail(traceback.format_exc())
        if waits or overdue:  # not after every event, because events could postpone the check forever
            self._due = time.monotonic() + (LOOK_AGAIN_S if waits else LOOK_EVERY_S)

    @abstractmethod
    def look(self, overdue: bool) -> bool:
        """Send the block's changes; return True to check again soon. ``overdue``: whether the periodic check is due."""

    def receive(self, message: Tuple[Any, ...]) -> None:
        if self.ended:
            return
        try:
            if isinstance(message, ROUTED):
                if message.to == self.hosts.own:
                    self.requests.handlers[type(message)](self.requests, *message)
                else:
                    self.requests.lines[message.to].send(message)
            else:
                self.handlers[type(message)](self, *message)
        except (ConnectionError, EOFError):  # another host is lost; its connection's receiver reports the loss
            pass
        except Exception:
            self.fail(traceback.format_exc())

    @abstractmethod
    def fail(self, reason: str) -> None:
        """End the session after an internal error, so that no rank waits forever."""

    def wake(self, ranks: Sequence[int]) -> None:
        """Wake ranks of this host that wait at a barrier or for another host, so that they read the block again."""
        for rank in ranks:
            self.block.releases[rank].release()
            self.block.fetched[rank].release()
