"""Groups of ranks that work at once (`Groups`): calls of one function from several threads."""

from __future__ import annotations

import os
import pickle
import threading
from functools import partial
from typing import Any, Callable, List, Optional

from ..errors import ArgumentTypeError, StateError, SynkhronosError
from ..host import machine
from ..host.affinity import confine, divided_cores
from ..host.heap import keep_freed_memory
from ..host.signals import DeferredSignals
from ..host.threads import limit_threads
from ..runtime.session import check_timeout
from .group import Group
from .lifecycle import fork, integer
from .options import Options
from .program import PROFILE, PROGRAM

START_S = 120.0  #: Time limit for the start of a group's session.


class Groups:
    """Groups of ranks that work at once, each on a call of the same function.

    A session runs one command at a time. With groups, a program whose threads need independent results, such as the
    chains of a sampler, uses more cores than threads: each call runs in a free group of ``n_ranks`` ranks, and its
    thread only waits. A group is a process with a session of its own, forked from the program by this call. Functions
    and `Data` that exist now are available in all groups; shared variables are copies with their current values, and
    their later changes, in the program or in a group, do not reach other processes. The cores are divided among groups.

    No other session can be open meanwhile, so collectives and functions raise `StateError` in the program itself.

    Parameters
    ----------
    function : callable
        The function to call in a group. It may call the program's functions; they compute on the group's ranks. It must
        give the same result in every group.
    n_groups : int
        The number of groups: calls that can run at once.
    n_ranks : int
        The number of ranks of each group.
    timeout : float, optional
        As for `fork`, for the session of each group. So is the environment variable ``SYNK_HEAL``; rank 0 of a group,
        the group's own process, is not replaced.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        An argument is invalid.
    StateError
        A session or other groups are open, this process is a rank, uses a GPU, or is one of several hosts.
    SynkhronosError
        A group cannot be started; the message names the group.

    Examples
    --------
    >>> import synkhronos as synk, theano.tensor as T
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> x, w = T.dvector("x"), T.dscalar("w")
    >>> f = synk.function([x], ((w * x) ** 2).sum(), bcast_inputs=[w])
    >>> data = synk.data([1.0, 2.0, 3.0])
    >>> with synk.Groups(lambda w: float(f(data, w)), n_groups=2, n_ranks=2) as sum_of_squares:
    ...     with ThreadPoolExecutor(2) as threads:
    ...         list(threads.map(sum_of_squares, [1.0, 10.0]))
    [14.0, 1400.0]
    """

    def __init__(
        self, function: Callable[..., Any], n_groups: int, n_ranks: int = 1, *, timeout: Optional[float] = None
    ) -> None:
        if not callable(function):
            raise ArgumentTypeError("function", "a function that each group calls", repr(function))
        n_groups, n_ranks = integer("n_groups", n_groups, 1), integer("n_ranks", n_ranks, 1)
        check_timeout(timeout)
        self.n_groups, self.n_ranks, self.closed = n_groups, n_ranks, False
        self._groups: List[Group] = []
        self._pid, self._changed = os.getpid(), threading.Condition()
        PROGRAM.admit(self)
        try:
            for each in PROGRAM.functions:  # so that groups inherit compiled code
                each.engine.warm_up(each.on_ranks)
            for number, cores in enumerate(divided_cores(n_groups)):
                start = partial(_open_session, n_groups, n_ranks, cores, timeout)
                try:
                    with DeferredSignals():  # otherwise an interrupt could leave a process behind
                        self._groups.append(Group(number, start, function, timeout))
                except OSError as error:
                    raise SynkhronosError(f"group {number} cannot be started: {error}; see ulimit -n") from error
            for group in self._groups:
                group.result(START_S)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"ended: {[group.number for group in self._groups if group.ended]}"
        return f"<Groups: n_groups={self.n_groups}, n_ranks={self.n_ranks}, {state}>"

    def __call__(self, *args: Any) -> Any:
        """Call the function in a free group, after waiting for one if necessary; may be used by several threads.

        Arguments and results are pickled. After an interrupt (Ctrl-C), the group finishes the call unnoticed.

        Raises
        ------
        WorkerError
            The function raised an exception, which the message and ``__cause__`` contain. The group remains usable.
        WorkerDied, WorkerTimeout
            A rank of the group died or did not answer in time. This group has ended; the others continue.
        StateError
            The groups are closed, all of them have ended, or the caller is another process.
        """
        if os.getpid() != self._pid:
            raise StateError("groups can be called only by the process that started them")
        payload, caller = pickle.dumps(args, pickle.HIGHEST_PROTOCOL), threading.get_ident()
        if any(group.caller == caller for group in self._groups):
            raise StateError("groups were called during a call in the same thread (by a signal handler or finalizer?)")
        try:
            return self._free_group(caller).call(payload)
        finally:
            try:
                self._release(caller)
            finally:
                self._release(caller)  # if an interrupt prevented it

    def _free_group(self, caller: int) -> Group:
        """Wait for a free group, and reserve it for a thread."""
        with self._changed:
            while not self.closed:
                living = [group for group in self._groups if not group.ended]
                if not living:
                    why = self._groups[0].ended
                    raise StateError(f"all groups have ended ({why}): call synkhronos.close(), and start them again")
                free = [group for group in living if group.caller is None]
                if free:
                    group = min(free, key=Group.is_computing)
                    group.caller = caller
                    return group
                self._changed.wait()
            raise StateError("the groups are closed: start them again")

    def _release(self, caller: int) -> None:
        with self._changed:
            for group in self._groups:
                if group.caller == caller:
                    group.caller = None
            self._changed.notify_all()

    def close(self) -> None:
        """End all groups; a call in progress in another thread raises `StateError`. Idempotent.

        `synkhronos.close` and the end of the program do the same.
        """
        if os.getpid() != self._pid:
            return
        with DeferredSignals():
            with self._changed:
                self.closed = True
                self._changed.notify_all()
            for group in self._groups:
                group.hang_up("by close()")
            for group in self._groups:
                group.end()
            PROGRAM.dismiss(self)

    def __enter__(self) -> Groups:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def _open_session(n_groups: int, n_ranks: int, cores: List[int], timeout: Optional[float]) -> None:
    """Open a group's session, in its process, on its share of the cores."""
    threads = max(1, machine.core_budget() // (n_groups * n_ranks))
    confine(cores)
    limit_threads(threads)
    keep_freed_memory()
    os.environ.pop(PROFILE, None)  # one folder cannot have the profiles of several sessions at once
    fork(n_ranks, use_gpu=False, timeout=timeout, options=Options(threads=threads))
