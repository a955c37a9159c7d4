"""Prefetching: ranks load the master's compiled modules while the master compiles the next function.

A function's graph is sent once it is complete. Most of its loading time is spent on the C modules of its operations,
which the master has much earlier. So the master announces every module that it loads or compiles. ::

    master   compile, load 1 | compile, load 2 | ...                 | Distribute
                      | announce        |                            |
    rank            load 1            load 2   (between commands)    | the rest

Ranks do not answer announcements. A rank reads them while it waits for a command, and loads at most one module after
the command's arrival. The first load also reads the index of Theano's cache. A module that was not prefetched (full
slot, deleted file, busy rank) is loaded with the functions that need it, and errors are reported then.
"""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import Any, Callable, Dict, List

from .. import engines
from ..sync.control_block import ANNOUNCED, ControlBlock

logger = logging.getLogger("synkhronos")


class Announcer:
    """The master's side of prefetching: announces modules to the ranks."""

    def __init__(self, block: ControlBlock) -> None:
        self._block = block
        self._engines: Dict[str, Any] = {}

    def begin(self, engine: Any) -> None:
        """Announce the modules that the engine has loaded, and from now on every module that it loads."""
        if self._block.size > 1 and engine.name not in self._engines:
            self._engines[engine.name] = engine
            engine.watch_modules(partial(_announce, self._block, engine.name))

    def end(self) -> None:
        while self._engines:
            self._engines.popitem()[1].watch_modules(None)


def _announce(block: ControlBlock, engine: str, file: str) -> None:
    line = os.fsencode(f"{engine} {file}\n")
    begin, slot = block.words[ANNOUNCED], block.announcements
    if begin + len(line) <= len(slot):
        slot[begin : begin + len(line)] = line
        block.words[ANNOUNCED] = begin + len(line)  # last, because ranks read up to this position


class Preloader:
    """A rank's side of prefetching: loads announced modules while the rank waits for a command.

    ``watch`` is called repeatedly, as in other waits; ``is_called`` returns whether a command may have arrived.
    """

    def __init__(self, block: ControlBlock, watch: Callable[[], object], is_called: Callable[[], bool]) -> None:
        self._block, self._watch, self._is_called = block, watch, is_called
        self._read = 0
        self._lines: List[bytes] = []

    def __call__(self) -> None:
        self._watch()
        block = self._block
        if self._read < block.words[ANNOUNCED]:
            begin, self._read = self._read, block.words[ANNOUNCED]
            self._lines[:0] = reversed(bytes(block.announcements[begin : self._read]).splitlines())
        while self._lines and not self._is_called():
            _preload(os.fsdecode(self._lines.pop()))
            self._watch()


def _preload(line: str) -> None:
    name, file = line.split(" ", 1)
    try:
        for engine in engines.loaded():  # importing an engine here might use a path that the program has changed
            if engine.name == name:
                engine.preload(file)
    except Exception as error:
        logger.debug("not prefetched: %s (%s: %s)", file, type(error).__name__, error)
