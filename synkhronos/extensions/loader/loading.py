"""`synkhronos.loader`: batches from processes of their own, in order."""

from __future__ import annotations

import os
import time
import weakref
from math import inf
from operator import index
from typing import Any, Iterable, Iterator, List, Optional, Sequence

from ...errors import ArgumentTypeError, ArgumentValueError, LoaderError, RemoteTraceback, StateError
from ...program.program import PROGRAM
from ...runtime.session import check_timeout
from ...shared_data import Data
from ...trace import point
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
    """Return an iterable over batches that processes of their own prepare while the ranks compute.

    Each ``for`` over it is a pass, with processes that are forked from the program when it begins and have ended when
    it ends, however it does. The arrays of a batch arrive as `Data`, which functions take without a copy; if a batch is
    one array, not in a tuple or list, one Data arrives. Their memory is used again once the program refers to them
    no more.

    Parameters
    ----------
    source : callable or iterable
        Without ``items``: a generator function, which is called without arguments, or any iterable, whose elements are
        the batches. With ``items``: the function that makes a batch of one of them.
    items : sequence, optional
        What the batches are made of: names of files, say, or lists of rows. Batch i is ``source(items[i])``.
    n_processes : int
        How many processes make batches, in turn: with ``items`` only.
    depth : int
        How many batches each process prepares beforehand.
    seed : int
        Not negative. Before each batch `numpy.random` and `random` are seeded from it, the number of the pass and that
        of the batch: the same numbers in every run, whichever process draws them.
    timeout : float, optional
        Seconds that one batch may be awaited.

    Returns
    -------
    Loader
        A context manager, whose end is `close`.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        An argument is wrong.
    LoaderError
        While iterating: the source raised an exception, which is the cause, or a process ended or was late. The batches
        before that one have arrived.

    Examples
    --------
    >>> import synkhronos as synk
    >>> import numpy as np, theano.tensor as T
    >>> synk.fork(2)
    2
    >>> x = T.matrix("x")
    >>> total = synk.function([x], (x.sum(), "sum"))
    >>> def batches():
    ...     for rows in (4, 4, 3):
    ...         yield np.ones((rows, 2), "float32")
    >>> with synk.loader(batches) as loader:
    ...     for x_batch in loader:
    ...         print(x_batch, total(x_batch))
    <Data: float32 (4, 2)> 8.0
    <Data: float32 (4, 2)> 8.0
    <Data: float32 (3, 2)> 6.0
    >>> def load(name):
    ...     return np.full(2, len(name)), np.array([0])
    >>> [int(x_batch[0]) for x_batch, y_batch in synk.loader(load, ["a", "bc"], n_processes=2)]
    [1, 2]
    """
    n_processes, depth = _at_least("n_processes", n_processes, 1), _at_least("depth", depth, 1)
    seed = _at_least("seed", seed, 0)
    check_timeout(timeout)
    if items is None:
        if not callable(source) and not isinstance(source, Iterable):
            raise ArgumentTypeError("source", "a generator function or an iterable", repr(source))
        if n_processes > 1:
            hint = "give items, and a function that makes a batch of one of them"
            raise ArgumentValueError("n_processes", "1, as batches come out of one iterable", str(n_processes), hint)
    elif not callable(source):
        raise ArgumentTypeError("source", "a function that makes a batch of an item", repr(source))
    elif not (hasattr(items, "__len__") and hasattr(items, "__getitem__")):
        raise ArgumentTypeError("items", "a sequence", repr(items), "make a list of it")
    return Loader(source, items, n_processes, depth, seed, timeout)


class Loader:
    """Batches that other processes prepare; made by `loader`.

    Attributes
    ----------
    epoch : int
        The number of the next pass, from 0. A training that goes on from a checkpoint sets it, for the random numbers.
    waited : float
        Seconds that the program has waited for batches, in all passes.
    """

    def __init__(
        self,
        source: Any,
        items: Optional[Sequence[Any]],
        n_processes: int,
        depth: int,
        seed: int,
        timeout: Optional[float],
    ) -> None:
        self.epoch, self.waited, self.closed = 0, 0.0, False
        self.items, self.timeout = items, timeout
        self._source, self._n_processes, self._depth, self._seed = source, n_processes, depth, seed
        self._passes: weakref.WeakSet[Pass] = weakref.WeakSet()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.epoch} passes begun"
        return f"<Loader of {getattr(self._source, '__name__', self._source)!r}: {state}>"

    @point("loader")
    def __iter__(self) -> Pass:
        if self.closed:
            raise StateError(f"{self!r} cannot be iterated any more")
        works = [
            Work(self._source, self.items, first, self._n_processes, self._seed, self.epoch)
            for first in range(self._n_processes)
        ]
        begun = Pass(self, works, self._depth)
        self._passes.add(begun)
        self.epoch += 1
        return begun

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End all passes; no process is left. Batches that have arrived stay."""
        self.closed = True
        for each in list(self._passes):
            each.close()


class Pass(Iterator[Any]):
    """One iteration over a `Loader`."""

    def __init__(self, loader: Loader, works: Sequence[Work], depth: int) -> None:
        self._loader, self._owner, self._pool = loader, os.getpid(), PROGRAM.pool
        self._number = 0  # of the next batch
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
            raise StateError("the loader was closed, or this is another process than that in which the pass began")
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
        """End the processes; the pass is over."""
        self._over = True
        for process in self._processes:
            process.ask_to_end()  # all at once
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
            Data.over(self._pool, memory[each.offset : each.offset + array.nbytes], array)
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
