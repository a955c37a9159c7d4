"""Forwarding of the ranks' printed output to the master's streams, line by line, with the rank's number.

Each rank appends its standard output and standard error, including output of C code, to unnamed files. A full pipe
would block a rank until the master, which may be computing, reads from it. The master forwards new output whenever it
waits, and at the end of every command. ::

    rank 1   print("a") --> file, appended                      master   sys.stdout: [rank 1] a
                             |##########|......                   ^
                              forwarded  | new  --- forward() ----+
"""

from __future__ import annotations

import fcntl
import io
import logging
import os
import sys
import threading
from typing import Callable, Dict, Iterable, List, Tuple

from ..memory.memfd import nameless_file

EMPTY_AFTER_BYTES = 1 << 20  # a larger file is truncated after reading, between commands

_NAMES = ("stdout", "stderr")


class Streams:
    """The master's end of the output files of the other ranks; every line begins with ``label`` and the number."""

    def __init__(self, ranks: Iterable[int], label: str = "rank") -> None:
        self._label = label
        self._lock = threading.RLock()  # another thread may close the session
        self._files: Dict[Tuple[int, str], int] = {}
        self._read: Dict[Tuple[int, str], int] = {}  # bytes already forwarded
        self._begun: Dict[Tuple[int, str], bytes] = {}  # incomplete lines
        self.are_forwarded = True  # on other hosts, the `Deputy` forwards the output
        try:
            for rank in ranks:
                for name in _NAMES:
                    fd = self._files[rank, name] = nameless_file(name, 0)
                    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
        except BaseException:
            self.close()
            raise

    def fds(self) -> List[int]:
        """Return the descriptors, two per rank, in rank order."""
        return list(self._files.values())

    def forward(self, idle: bool = False, last: bool = False) -> None:
        """Write the ranks' new output to the master's streams.

        If ``idle`` (no rank is in a command), also write incomplete lines and truncate large files. If ``last``,
        write incomplete lines, because no output can follow.
        """
        with self._lock:
            for key in list(self._files):
                fd = self._files.get(key)
                if fd is None:  # closed meanwhile by a signal handler
                    continue
                size = os.lseek(fd, 0, os.SEEK_END)  # three times as fast as fstat; does not affect appending
                if size != self._read.get(key, 0) or key in self._begun:
                    self._forward(key, fd, size, idle, last)

    def _forward(self, key: Tuple[int, str], fd: int, size: int, idle: bool, last: bool) -> None:
        read = self._read.get(key, 0)
        if size > read:
            text = self._begun.pop(key, b"") + os.pread(fd, size - read, read)
            lines, _, rest = text.rpartition(b"\n")
            if rest:
                self._begun[key] = rest
            if lines or not rest:
                self._write(key, lines)
            self._read[key] = size
            if idle and size > EMPTY_AFTER_BYTES:
                os.ftruncate(fd, 0)
                self._read[key] = 0
        if (idle or last) and key in self._begun:
            self._write(key, self._begun.pop(key))

    def close(self) -> None:
        """Forward the remaining output and close the files."""
        with self._lock:
            try:
                if self.are_forwarded:
                    self.forward(last=True)
            finally:
                while self._files:
                    os.close(self._files.popitem()[1])

    def _write(self, key: Tuple[int, str], lines: bytes) -> None:
        rank, name = key
        stream = getattr(sys, name)
        if stream is None:  # under pythonw, for example
            return
        text = "".join(f"[{self._label} {rank}] {line}\n" for line in lines.decode("utf-8", "replace").split("\n"))
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError):  # the reader is gone, or the stream is closed
            pass


def counter() -> Callable[[], int]:
    """Return a function that counts the bytes printed to this process's current stdout and stderr, which are files."""
    files = os.dup(1), os.dup(2)  # functions may redirect descriptors 1 and 2, for example to pipes
    return lambda: sum(os.lseek(fd, 0, os.SEEK_END) for fd in files)


def redirect(fds: Iterable[int]) -> None:
    """Make two descriptors from `Streams.fds` the standard output and standard error of this process."""
    replaced = {}
    for number, (name, fd) in enumerate(zip(_NAMES, fds), 1):
        os.dup2(fd, number)
        stream = io.TextIOWrapper(
            io.FileIO(number, "w", closefd=False), encoding="utf-8", errors="backslashreplace", write_through=True
        )
        for attribute in (name, f"__{name}__"):
            replaced[id(getattr(sys, attribute))] = stream
            setattr(sys, attribute, stream)
    loggers = [logging.root] + [
        logger for logger in logging.Logger.manager.loggerDict.values() if isinstance(logger, logging.Logger)
    ]
    for logger in loggers:
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler) and id(handler.stream) in replaced:
                handler.stream = replaced[id(handler.stream)]
