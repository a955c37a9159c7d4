"""Iterable over batches that separate processes prepare, in the original order (`synkhronos.loader`)."""

from __future__ import annotations

import os
import time
import weakref
from math import inf
from operator import index
from typing import Any, Iterable, Iterator, List, Optional, Sequence

from ..errors import ArgumentTypeError, ArgumentValueError, LoaderError, RemoteTraceback, StateError
from ..program.program import PROGRAM
from ..runtime.session import check_timeout
from ..shared_data import Data
from ..trace import point
from .process import LoaderProcess
from .work import Work


def loader(
    source: Any,
    items: Optional[Sequence[Any]] = None,
    *,
    n_processes: int = 1,
    depth: int = 2,
    seed: int = 0,
    timeout: Optional[float] = None,
) -> Loader:
    """Return an iterable over batches that separate processes prepare while the ranks compute.

    Each ``for`` loop over the loader is a pass. The processes of a pass are forked when it begins, and end with it,
    even after an exception. The arrays of a batch arrive as a tuple of `Data`, which functions read without a copy; a
    single array arrives as one `Data`. Memory is reused when the program no longer references its arrays.

    Parameters
    ----------
    source : callable or iterable
        Without ``items``: a generator function without arguments, or any iterable, whose elements are the batches. With
        ``items``: a function that makes a batch from one item.
    items : sequence, optional
        The inputs of the batches, such as file names or lists of rows. Batch i is ``source(items[i])``.
    n_processes : int
        The number of processes, which make batches in turn; more than one process requires ``items``.
    depth : int
        The number of batches that each process prepares ahead.
    seed : int
        A nonnegative seed. Before each batch, `numpy.random` and `random` are seeded from this seed, the pass number
        and the batch number. The seeds do not depend on the number of processes.
    timeout : float, optional
        Time limit for waiting for a batch, in seconds.

    Returns
    -------
    Loader
        An iterable, which is also a context manager that calls `close` at its end.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If an argument is invalid.
    LoaderError
        During iteration, if the source raised an exception (``__cause__`` has its traceback), or a process died or
        exceeded the time limit. All earlier batches are returned first.

    Examples
    --------
    >>> import synkhronos as synk, numpy as np, theano.tensor as T
    >>> synk.fork(2)
    2
    >>> x = T.matrix("x")
    >>> total = synk.function([x], (x.sum(), "sum"))
    >>> def batches():
    ...     for rows in (4, 3):
    ...         yield np.ones((rows, 2), "float32")
    >>> with synk.loader(batches) as loader:
    ...     for x_batch in loader:
    ...         print(x_batch, total(x_batch))
    <Data: float32 (4, 2)> 8.0
    <Data: float32 (3, 2)> 6.0
    """
    n_processes, depth = _at_least("n_processes", n_processes, 1), _at_least("depth", depth, 1)
    seed = _at_least("seed", seed, 0)
    check_timeout(timeout)
    if items is None:
        if not callable(source) and not isinstance(source, Iterable):
            raise ArgumentTypeError("source", "a generator function or an iterable", repr(source))
        if n_processes > 1:
            hint = "pass items, and a function that makes a batch from an item"
            raise ArgumentValueError("n_processes", "1, because there is only one iterable", str(n_processes), hint)
    elif not callable(source):
        raise ArgumentTypeError("source", "a function that makes a batch from an item", repr(source))
    elif not (hasattr(items, "__len__") and hasattr(items, "__getitem__")):
        raise ArgumentTypeError("items", "a sequence", repr(items), "convert it to a list")
    return Loader(Work(source, items, 0, n_processes, seed, 0), depth, timeout)


class Loader:
    """Iterable over batches that other processes prepare; created by `loader`.

    Attributes
    ----------
    epoch : int
        The number of the next pass, counted from 0; it seeds random numbers. Set it to continue from a checkpoint.
    waited : float
        Seconds that the program has waited for batches, in all passes.
    """

    def __init__(self, work: Work, depth: int, timeout: Optional[float]) -> None:
        self.epoch, self.waited, self.closed = 0, 0.0, False
        self.items, self.timeout = work.items, timeout
        self._work, self._depth = work, depth
        self._passes: weakref.WeakSet[Pass] = weakref.WeakSet()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"passes begun: {self.epoch}"
        return f"<Loader of {getattr(self._work.source, '__name__', self._work.source)!r}: {state}>"

    @point("loader")
    def __iter__(self) -> Pass:
        if self.closed:
            raise StateError(f"{self!r} is closed and cannot be iterated over")
        works = [self._work._replace(first=first, epoch=self.epoch) for first in range(self._work.step)]
        begun = Pass(self, works, self._depth)
        self._passes.add(begun)
        self.epoch += 1
        return begun

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End all passes and their processes. Batches that the program has received remain valid."""
        self.closed = True
        for each in list(self._passes):
            each.close()


class Pass(Iterator[Any]):
    """One iteration over a `Loader`."""

    def __init__(self, loader: Loader, works: Sequence[Work], depth: int) -> None:
        self._loader, self._owner, self._pool = loader, os.getpid(), PROGRAM.pool
        self._number = 0  # the next batch
        self._over = False
        self._processes: List[LoaderProcess] = []
        try:
            for work in works:
                self._processes.append(LoaderProcess(work, self._pool, depth))
                self._processes[-1].give()
        except BaseException:
            self.close()
            raise

    @point("loader")
    def __next__(self) -> Any:
        if self._loader.closed or os.getpid() != self._owner:
            raise StateError("the loader was closed, or this is not the process that began the pass")
        if self._over:
            raise StopIteration
        begun = time.monotonic()
        try:
            return self._next(begun + (self._loader.timeout or inf))
        except BaseException:
            self.close()
            raise
        finally:
            self._loader.waited += time.monotonic() - begun

    def close(self) -> None:
        self._over = True
        for process in self._processes:
            process.ask_to_end()  # before waiting for any of them
        for process in self._processes:
            process.end()

    def _next(self, until: float) -> Any:
        items, number = self._loader.items, self._number
        if items is not None and number >= len(items):
            raise StopIteration
        for process in self._processes:
            process.attend()
        process = self._processes[number % len(self._processes)]
        kind, *rest = process.receive(number, until)
        if kind == "end":
            raise StopIteration
        if kind == "error":
            (failure,) = rest
            cause = RemoteTraceback(f"Traceback of the loader process:\n{failure.text}")
            raise LoaderError(f"the loader raised {failure.summary} for batch {number}", number, process.pid) from cause
        _, buffer, placed, single = rest
        memory = process.lend(buffer)
        process.give()
        arrays = [each.of(memory) for each in placed]
        data = [
            Data._over(self._pool, memory[each.offset : each.offset + array.nbytes], array)
            for each, array in zip(placed, arrays)
        ]
        self._number += 1
        return data[0] if single else tuple(data)


def _at_least(argument: str, value: Any, least: int) -> int:
    try:
        number = index(value)
    except TypeError:
        raise ArgumentTypeError(argument, "an int", repr(value)) from None
    if isinstance(value, bool) or number < least:
        raise ArgumentValueError(argument, f"{least} or more", repr(value))
    return number
