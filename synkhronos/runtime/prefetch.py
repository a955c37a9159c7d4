"""What the master has compiled is loaded by the ranks while it compiles the next.

A function's graph travels when it is complete, as a command. Most of the time that loading it takes goes into the C
modules of its operations, which the master has long before: it announces every module that it loads or compiles. ::

    master   compile, load 1 | compile, load 2 | ...                 | Distribute
                      | announce        |                            |
    rank            load 1            load 2   (between commands)    | the rest

An announcement is no command: nobody waits for it, or answers. A rank reads them while it waits for a command; one that
comes meanwhile waits for one module at most, or for Theano's index of its cache, which is read once. Whatever is not
announced, not read or not loaded (the slot is full, the file has gone, the rank was busy) is loaded with the functions
that need it, and what is wrong with it is said then.
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
    """The master's side.

    Parameters
    ----------
    block : ControlBlock
    """

    def __init__(self, block: ControlBlock) -> None:
        self._block = block
        self._engines: Dict[str, Any] = {}

    def begin(self, engine: Any) -> None:
        """Announce what the engine has loaded, and from now on what it loads."""
        if self._block.size > 1 and engine.name not in self._engines:
            self._engines[engine.name] = engine
            engine.watch_modules(partial(_announce, self._block, engine.name))

    def end(self) -> None:
        """Announce nothing more."""
        while self._engines:
            self._engines.popitem()[1].watch_modules(None)


def _announce(block: ControlBlock, engine: str, file: str) -> None:
    line = os.fsencode(f"{engine} {file}\n")
    begin, slot = block.words[ANNOUNCED], block.announcements
    if begin + len(line) <= len(slot):
        slot[begin : begin + len(line)] = line
        block.words[ANNOUNCED] = begin + len(line)  # last: ranks read up to here


class Preloader:
    """A rank's side: to be called while it waits for a command.

    Parameters
    ----------
    block : ControlBlock
    watch : callable
        What else is to be done while it waits.
    is_called : callable
        Returns whether there may be something else to do: a command.
    """

    def __init__(self, block: ControlBlock, watch: Callable[[], object], is_called: Callable[[], bool]) -> None:
        self._block, self._watch, self._is_called = block, watch, is_called
        self._read = 0
        self._lines: List[bytes] = []

    def __call__(self) -> None:
        """Load what was announced, until there is a command."""
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
        for engine in engines.loaded():  # others would be imported here, by a path that the program may have changed
            if engine.name == name:
                engine.preload(file)
    except Exception as error:
        logger.debug("not loaded before it is needed: %s (%s: %s)", file, type(error).__name__, error)
