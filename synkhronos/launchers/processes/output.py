"""What ranks print: it reaches the master's own streams, line by line, with the rank's number.

The standard output and the standard error of every rank are nameless files that it appends to, from C code, too. (Not
pipes: a rank must not wait until the master, which may be computing, has read.) The master passes on what has come
whenever it waits, and at the end of every command. ::

    rank 1   print("a") --> file, appended                      master   sys.stdout: [rank 1] a
                             |##########|......                   ^
                              passed on  | new  --- forward() ----+
"""

from __future__ import annotations

import fcntl
import io
import logging
import os
import sys
import threading
from typing import Callable, Dict, Iterable, List, Tuple

from ...memory.memfd import nameless_file

#: Bytes after which a file that has been read is emptied.
EMPTY_AFTER_BYTES = 1 << 20

_NAMES = ("stdout", "stderr")


class Streams:
    """The master's end.

    Parameters
    ----------
    ranks : iterable of int
        The ranks other than the master.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self._lock = threading.RLock()  # a session may be closed in another thread than it runs in
        self._files: Dict[Tuple[int, str], int] = {}
        self._read: Dict[Tuple[int, str], int] = {}  # bytes that have been passed on
        self._begun: Dict[Tuple[int, str], bytes] = {}  # of lines that are not complete
        #: Whether this process passes on what comes; on another host than the program's, the `Deputy` does.
        self.are_forwarded = True
        try:
            for rank in ranks:
                for name in _NAMES:
                    fd = self._files[rank, name] = nameless_file(name, 0)
                    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
        except BaseException:
            self.close()
            raise

    def fds(self) -> List[int]:
        """Return the descriptors, two per rank, in the order of the ranks."""
        return list(self._files.values())

    def forward(self, idle: bool = False, last: bool = False) -> None:
        """Write to the master's streams what the ranks have printed since the last time.

        Parameters
        ----------
        idle : bool
            Whether no rank is in a command: then lines that have no end are passed on, too, and what was read can be
            given back.
        last : bool
            Whether nothing more can come.
        """
        with self._lock:
            for key in list(self._files):
                fd = self._files.get(key)
                if fd is None:  # closed meanwhile, by a signal handler
                    continue
                size = os.lseek(fd, 0, os.SEEK_END)  # a third of the time of fstat; appending is not affected
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
                _write(key, lines)
            self._read[key] = size
            if idle and size > EMPTY_AFTER_BYTES:
                os.ftruncate(fd, 0)
                self._read[key] = 0
        if (idle or last) and key in self._begun:
            _write(key, self._begun.pop(key))

    def close(self) -> None:
        """Pass on the rest and close the files."""
        with self._lock:
            try:
                if self.are_forwarded:
                    self.forward(last=True)
            finally:
                while self._files:
                    os.close(self._files.popitem()[1])


def _write(key: Tuple[int, str], lines: bytes) -> None:
    rank, name = key
    stream = getattr(sys, name)
    if stream is None:  # under pythonw, say
        return
    text = "".join(f"[rank {rank}] {line}\n" for line in lines.decode("utf-8", "replace").split("\n"))
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):  # its reader has gone, or it is closed
        pass


def counter() -> Callable[[], int]:
    """Return what counts the bytes that this process has printed to its streams, as they are now: two such files."""
    files = os.dup(1), os.dup(2)  # functions may have 1 and 2 be anything, pipes for example
    return lambda: sum(os.lseek(fd, 0, os.SEEK_END) for fd in files)


def redirect(fds: Iterable[int]) -> None:
    """Make these descriptors, of `Streams.fds`, the standard output and the standard error of this process."""
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
