"""`synkhronos.fork` and `close`, and the state in between."""

from __future__ import annotations

import logging
import os
import socket
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError, StateError, SynkhronosError
from ..host import gpus, machine
from ..launchers.hosts.facts import Facts
from ..runtime.context import RankContext
from ..runtime.serve import served
from ..runtime.session import Session, check_timeout
from ..sync.hosts import Hosts
from .devices import choose_devices
from .program import PROGRAM

#: Threads per rank that may be asked for: BLAS libraries crash at absurd numbers.
MAX_THREADS = 4096

#: The environment variable that says how many deaths are repaired.
HEAL = "SYNK_HEAL"

logger = logging.getLogger("synkhronos")

#: Open files that a rank takes in the master: its pool and what it prints.
DESCRIPTORS_PER_RANK = 4

#: Those that any rank of a session over several hosts takes in the processes that speak for a host, while it begins.
DESCRIPTORS_PER_RANK_OF_HOSTS = 8


class Ranks(int):
    """The number of ranks, as `fork` returns it; at the end of a ``with`` block it closes the session."""

    _session: Optional[Callable[[], Optional[Session]]] = None  # a weak reference: a number keeps no session alive

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: Optional[type], *error: Any) -> None:
        session = None if self._session is None else self._session()
        if session is None or session is not PROGRAM.session:
            return
        if kind is None:
            close()
        else:
            PROGRAM.close()

    def __reduce__(self) -> Any:
        return int, (int(self),)


def fork(
    n_parallel: Optional[int] = None,
    use_gpu: Optional[bool] = None,
    master_rank: int = 0,
    profile_workers: bool = False,
    max_n_var: Any = None,
    max_dim: Any = None,
    *,
    devices: Optional[Sequence[str]] = None,
    seed: Optional[int] = None,
    random: str = "split",
    timeout: Optional[float] = None,
    pin: bool = True,
    threads: Optional[int] = None,
    keep_heap: bool = True,
    exact: bool = False,
    rows: Optional[int] = None,
    check: bool = False,
    profile: Any = None,
    heal: Optional[int] = None,
    standby: bool = True,
) -> Ranks:
    """Start the other ranks: one process per GPU, or per CPU core.

    The calling process is one of the ranks, and stays usable for plain single-device Theano. The other ranks have the
    modules that the program had imported at its first `fork`, and ``os.environ`` as it is now: import first.

    Parameters
    ----------
    n_parallel : int, optional
        Number of ranks, the master included; 1 is legal. All GPUs, or the cores this process may use, by default. If an
        MPI launcher has started the program on several hosts: of the ranks of each, by default the GPUs, or the cores,
        of each.
    use_gpu : bool, optional
        True: GPUs, or an error that says what is missing; False: CPU processes; None: GPUs if there are any that can be
        used, else CPU processes and a line in the log that says why. With several hosts, on all of them.
    master_rank : int
        The rank of the calling process, one of those of its host.
    profile_workers : bool
        Whether every rank writes a cProfile file, ``synkhronos_rank_<r>.prof``, into the working directory at `close`.
    max_n_var, max_dim
        Ignored; there are no such limits.
    devices : list of str, optional
        The device of every rank, e.g. ``["cuda0", "cuda1"]`` or ``["opencl0:0", "opencl0:0"]``: several ranks may
        share one. All GPUs that ``CUDA_VISIBLE_DEVICES`` shows by default. With several hosts, the devices of each
        host's ranks, which have the same names on all. Theano then puts new shared variables and the computations of
        new functions on the rank's device. A process keeps its device to its end, so in later sessions the master is
        given the same.
    seed : int, optional
        Not negative. The random streams of the program start from it, each when it is first sent to the ranks: the
        same seed gives the same numbers at the same number of ranks. Streams are numbered in the order in which the
        functions that use them were built. By default they start where the master's are then.
    random : {"split", "same"}
        "split": rank 0 draws what plain Theano would, and rank r from the same sequence so far ahead that no two
        ranks draw the same part. "same": all ranks draw the same numbers, if they draw equally many.
    timeout : float, optional
        Seconds that a command may take before `WorkerTimeout` is raised; by default there is no limit.
    pin : bool
        Whether ranks are pinned to cores if there are no more ranks than cores. The master is confined only while it
        executes a command.
    threads : int, optional
        BLAS and OpenMP threads per rank; cores / ranks by default.
    keep_heap : bool
        Whether the C library's heap keeps up to 512 MB of the memory that is freed, on every rank, this process
        included: a rank whose heap gives it back to the kernel after every call may lose a quarter of its time. The
        setting (``mallopt``) holds until the process ends, also after `close`; with False it is never made.
    exact : bool
        Whether all functions that are built from now on compute what the serial ones do, updates included, unless they
        say otherwise: see `function`. Those that were built before compute as they were built; the first call of one
        that did not say is a warning of the log.
    rows : int, optional
        The number of rows that the program has written where operations need that of the batch, in functions that are
        built from now on and do not say it themselves: see `function`.
    check : bool
        Whether the first three calls of every function are compared with the serial one, as by `Function.compare`. What
        differs is a warning of the log, once for every function and output or variable.
    profile : str or path, optional
        A folder without a profile, made if it is not there. Every rank records what it does, a few microseconds for
        each call and collective, and `close`, or the death of a rank, writes there where the time went: ``report.txt``
        and ``report.html``, ``timeline.json`` for Perfetto, and ``profile.json``. Further sessions of the program with
        the same folder take folders inside, ``session-2`` and so on. ``python -m synkhronos --profile`` gives another
        one. See `report`.
    heal : int, optional
        How many deaths of ranks are repaired: another process takes the place of one that was killed, or that has not
        answered in time, with its values, and the command is repeated. By default the number in the environment
        variable ``SYNK_HEAL``, else 0. A call of a function then is, like a collective, something that all ranks do or
        none, and takes the time to copy what it updates; the copies take twice the memory of the updated variables on
        every rank. Not available with several hosts. See :doc:`healing`.
    standby : bool
        Whether one process more stands by if deaths are repaired, which has loaded what functions need. Else a new one
        is started when it is needed, and the program waits for that, too.

    Returns
    -------
    int
        The number of ranks. It also works in ``with``, at whose end the session is closed, as by `close`.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        An argument is wrong.
    StateError
        A session is open already, this is a rank itself, or this process has opened a device by itself.
    SynkhronosError
        Processes cannot be started, memory cannot be allocated, or a device cannot be opened; names rank and device.

    Examples
    --------
    >>> import synkhronos as synk
    >>> synk.fork(2)
    2
    >>> synk.close()
    >>> synk.fork(2, master_rank=1, seed=123, random="same")
    2
    >>> synk.close()
    >>> with synk.fork(2) as n:
    ...     print(n, "ranks, and number", synk.rank(), "is this program")
    2 ranks, and number 0 is this program
    >>> synk.is_forked()
    False
    """
    flags = {"use_gpu": use_gpu, "profile_workers": profile_workers, "pin": pin, "keep_heap": keep_heap}
    flags.update(exact=exact, check=check, standby=standby)
    for argument, value in flags.items():
        if not isinstance(value, (bool, np.bool_)) and not (value is None and argument == "use_gpu"):
            expected = "True, False or None" if argument == "use_gpu" else "True or False"
            raise ArgumentTypeError(argument, expected, _with_type(value))
    if n_parallel is not None:
        n_parallel = _positive("n_parallel", n_parallel)
    if rows is not None:
        rows = _positive("rows", rows)
    if profile is not None:
        if not isinstance(profile, (str, os.PathLike)):
            raise ArgumentTypeError("profile", "the path of a folder", _with_type(profile))
        if not os.fspath(profile):
            raise ArgumentValueError("profile", "the path of a folder", "an empty one")
    argument = "heal" if heal is not None else HEAL
    deaths = _deaths_of_environment() if heal is None else _deaths(argument, heal)
    there = PROGRAM.all_hosts()
    by_host = choose_devices(devices, use_gpu, n_parallel, there)
    names = None if by_host is None else [name for of_host in by_host for name in of_host]
    counts = [len(of_host) for of_host in by_host] if by_host else _ranks_by_host(there, n_parallel)
    size, hosts = sum(counts), _hosts(there, counts)
    root, n_near = _integer("master_rank", master_rank), counts[0]
    if not 0 <= root < n_near:
        raise ArgumentValueError("master_rank", f"from 0 to {n_near - 1}, as there are {n_near} ranks", str(root))
    _check_files(size, machine.descriptor_limit(), DESCRIPTORS_PER_RANK)
    for host in there:
        _check_files(size, host.files, DESCRIPTORS_PER_RANK_OF_HOSTS, f" on host {host.name}")
    if deaths and hosts is not None:
        hint = "ranks are replaced only if all of them run on one host"
        raise ArgumentValueError(argument, "0 with several hosts", str(deaths), hint)
    check_timeout(timeout)
    if random not in ("split", "same"):
        raise ArgumentValueError("random", "'split' or 'same'", repr(random))
    if seed is not None:
        seed = _integer("seed", seed)
        if seed < 0:
            raise ArgumentValueError("seed", "0 or more", str(seed))
    if threads is not None and _positive("threads", threads) > MAX_THREADS:
        raise ArgumentValueError("threads", f"at most {MAX_THREADS}", str(threads))
    options: Dict[str, Any] = dict(
        timeout=timeout,
        pin=bool(pin),
        threads=threads,
        profile=bool(profile_workers),
        seed=seed,
        random=random,
        keep_heap=bool(keep_heap),
        exact=bool(exact),
        rows=rows,
        check=bool(check),
        heal=deaths,
        standby=bool(standby),
        profile_to=None if profile is None else os.fspath(profile),
    )
    if names and use_gpu is None and devices is None:
        try:
            return _ranks(PROGRAM.open(size, root, devices=names, hosts=hosts, **options))
        except StateError:
            raise
        except SynkhronosError as error:
            logger.warning("GPUs are not used, CPU processes take their place: %s", error)
            names, counts = None, _ranks_by_host(there, n_parallel)
            size, hosts = sum(counts), _hosts(there, counts)
            if root >= counts[0]:
                raise
    return _ranks(PROGRAM.open(size, root, devices=names, hosts=hosts, **options))


def _ranks(session: Session) -> Ranks:
    ranks = Ranks(session.size)
    ranks._session = weakref.ref(session)
    return ranks


def close() -> None:
    """Stop the other ranks; nothing of them stays. Also called at exit.

    Functions and data stay valid: after another `fork` they are distributed again when they are next used.

    Raises
    ------
    StateError
        If a collective was started (``wait=False``) and its result never waited for. Everything is closed all the same.

    Examples
    --------
    >>> import synkhronos as synk
    >>> synk.close()    # does nothing if no session is open
    """
    session = PROGRAM.session
    lost = [] if session is None or session.closed else list(session.caches.get("started", {}).values())
    PROGRAM.close()
    if lost:
        raise StateError(f"the session is closed, but its program had not waited for this: {lost[0]!r}")


def is_forked() -> bool:
    """Return whether a session is open: after `fork`, until `close` or the death of a rank.

    Returns
    -------
    bool

    Examples
    --------
    >>> import synkhronos as synk
    >>> synk.is_forked()
    False
    """
    return PROGRAM.session is not None and not PROGRAM.session.closed


def size() -> int:
    """Return the number of ranks, the master included, on all hosts together; inside an operation, too.

    Returns
    -------
    int

    Raises
    ------
    StateError
        Before `fork`, or after `close`.

    Examples
    --------
    >>> import synkhronos as synk
    >>> synk.fork(3)
    3
    >>> synk.size()
    3
    """
    return _here().size


def rank() -> int:
    """Return the rank that computes here: the program's, or inside an operation that of the process that computes it.

    Returns
    -------
    int
        From 0 to `size` - 1. In the program it is the ``master_rank`` of `fork`.

    Raises
    ------
    StateError
        Before `fork`, or after `close`.

    Examples
    --------
    >>> import synkhronos as synk
    >>> synk.fork(3, master_rank=1)
    3
    >>> synk.rank()
    1
    """
    return _here().rank


def _here() -> RankContext:
    """Return the rank of this thread, which is the master's unless the thread serves another."""
    return served(PROGRAM.inside_rank) or PROGRAM.current().context


class Host(NamedTuple):
    """A host of the session.

    Attributes
    ----------
    name : str
    ranks : tuple of int
        Those that run there.
    """

    name: str
    ranks: Tuple[int, ...]


def hosts() -> List[Host]:
    """Return the hosts of the session, that of the program first, and which ranks run on each.

    Returns
    -------
    list of Host
        One, unless an MPI launcher has started the program on several.

    Raises
    ------
    StateError
        Before `fork`, or after `close`.

    Examples
    --------
    >>> import synkhronos as synk
    >>> synk.fork(3)
    3
    >>> [host.ranks for host in synk.hosts()]
    [(0, 1, 2)]
    """
    session = PROGRAM.current()
    if session.hosts is None:
        return [Host(socket.gethostname(), tuple(range(session.size)))]
    return [Host(*host) for host in zip(session.hosts.names, session.hosts.ranks)]


def get_n_gpu() -> int:
    """Return the number of GPUs on this machine, without touching CUDA in this process.

    Returns
    -------
    int

    Examples
    --------
    >>> import synkhronos as synk
    >>> synk.get_n_gpu() >= 0
    True
    """
    return gpus.count_gpus()


def _check_files(size: int, limit: Optional[int], of_rank: int, where: str = "") -> None:
    """Refuse so many ranks if their files are more than a process may have open."""
    most = size if limit is None else limit // of_rank
    if size > max(1, most):
        raise SynkhronosError(
            f"n_parallel: {size} ranks cannot be started, at most {most}: the limit of open files (ulimit -n){where} "
            f"is {limit}, and every rank takes {of_rank}"
        )


def _ranks_by_host(there: Sequence[Facts], n_parallel: Optional[int]) -> List[int]:
    """Return how many CPU processes each host has, or this machine."""
    return [n_parallel or host.cores for host in there] or [n_parallel or machine.core_budget()]


def _hosts(there: Sequence[Facts], counts: Sequence[int]) -> Optional[Hosts]:
    """Return the hosts with so many ranks each, if there are several."""
    if not there:
        return None
    places = tuple(host.place for host in there if host.place is not None) or None
    return Hosts.of_counts(tuple(host.name for host in there), tuple(counts), places=places)


def _integer(argument: str, value: Any) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise ArgumentTypeError(argument, "an int", _with_type(value))
    return int(value)


def _deaths(argument: str, value: Any) -> int:
    """Return how many deaths are repaired."""
    if _integer(argument, value) < 0:
        raise ArgumentValueError(argument, "0 or more", str(value))
    return int(value)


def _deaths_of_environment() -> int:
    value = os.environ.get(HEAL) or "0"
    return _deaths(HEAL, int(value) if value.isdigit() else value)


def _positive(argument: str, value: Any) -> int:
    if _integer(argument, value) < 1:
        raise ArgumentValueError(argument, "at least 1", str(value))
    return int(value)


def _with_type(value: Any) -> str:
    return f"{value!r} of type {type(value).__name__}"
