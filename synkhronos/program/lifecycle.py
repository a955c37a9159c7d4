"""The functions `synkhronos.fork` and `close`, and queries about the open session."""

from __future__ import annotations

import logging
import os
import socket
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from ..cluster.facts import HostFacts
from ..errors import ArgumentTypeError, ArgumentValueError, StateError, SynkhronosError
from ..host import gpus, machine
from ..mesh import devices as mesh
from ..runtime.context import RankContext
from ..runtime.serve import served
from ..runtime.session import Session, check_timeout
from ..sync.hosts import Hosts
from .devices import choose_devices
from .options import Options, with_earlier_names
from .program import PROGRAM

MAX_THREADS = 4096  #: Maximum number of threads per rank; BLAS libraries crash if the number is huge.
HEAL = "SYNK_HEAL"  #: The environment variable with the default of ``heal``.

logger = logging.getLogger("synkhronos")

DESCRIPTORS_PER_RANK = 4  #: Open files in the master per rank, for the rank's pool and output.
DESCRIPTORS_PER_RANK_OF_HOSTS = 8  #: Open files per rank in each host's serving process, when a session starts.


class Ranks(int):
    """The number of ranks, returned by `fork`; as a context manager, it closes the session on exit."""

    _session: Optional[Callable[[], Optional[Session]]] = None  # weak reference: does not keep the session alive

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


@with_earlier_names
def fork(
    n_ranks: Optional[int] = None,
    use_gpu: Optional[bool] = None,
    master_rank: int = 0,
    *,
    devices: Union[None, str, Sequence[Any]] = None,
    seed: Optional[int] = None,
    random: str = "split",
    timeout: Optional[float] = None,
    exact: bool = False,
    rows: Optional[int] = None,
    check: bool = False,
    profile: Any = None,
    heal: Optional[int] = None,
    options: Optional[Options] = None,
) -> Ranks:
    """Start the other ranks; by default, there is one rank per GPU or per CPU core.

    The calling process is one of the ranks, and can still be used for plain single-device Theano. The other ranks start
    with the current ``os.environ`` and the modules that were imported before the first `fork`, so import modules first.

    Programs for the 2017 version still work: ``n_parallel`` means ``n_ranks``, and fields of `Options` are keywords.
    Positional ``profile_workers``, ``max_n_var`` and ``max_dim`` follow ``master_rank``; the last two have no effect.

    Parameters
    ----------
    n_ranks : int, optional
        Number of ranks, including the master; 1 is allowed. By default, one rank per GPU or per usable core. Under an
        MPI launcher on several hosts, this is the number of ranks on each host.
    use_gpu : bool, optional
        True: use GPUs, or raise an error that names the missing requirement. False: use CPU processes. None: use GPUs
        if possible, otherwise CPU processes; log why existing GPUs are not used. Applies to all hosts.
    master_rank : int
        The rank of the calling process, among the ranks of its host.
    devices : list of str, optional
        The device of every rank on each host, e.g. ``["cuda0", "cuda1"]`` or ``["opencl0:0", "opencl0:0"]``; several
        ranks may share one. By default, all GPUs in ``CUDA_VISIBLE_DEVICES``. Theano then places new shared variables
        and the computations of new functions on the rank's device. The master keeps its device in later sessions.
        ``"jax"``, or a list of JAX's devices: ranks without processes, for PyTensor functions (:ref:`mesh`).
    seed : int, optional
        Nonnegative seed of the program's random streams, applied when a stream is first sent to the ranks. With the
        same number of ranks, the same seed produces the same numbers, if functions are built in the same order. By
        default, streams start from the master's current states.
    random : {"split", "same"}
        "split": rank 0 draws the serial program's numbers (unless seeded). Rank r draws from the same sequence, so far
        ahead that no two ranks draw the same part. "same": all ranks draw the same numbers, if they draw equally often.
    timeout : float, optional
        Time limit in seconds for each command; a longer command raises `WorkerTimeout`. No limit by default.
    exact : bool
        Default for ``exact`` in functions built from now on: whether they compute the serial function's results,
        updates included; see `function`. The first call to an earlier function without ``exact`` logs a warning.
    rows : int, optional
        Default for ``rows`` in functions built from now on: the number of rows in a batch, if the program contains this
        number literally, as in ``x.reshape((100, -1))``; see `function`.
    check : bool
        Whether to compare the first three calls to every function with the serial function, as `Function.compare` does.
        A difference logs a warning, once per function and output or variable.
    profile : str or path, optional
        A folder for the profile, created if necessary; it must not contain a profile. Every rank records its activity,
        which costs a few microseconds per call and collective. At the end of the session, the profile is written:
        ``report.txt`` and ``report.html``, ``timeline.json`` for Perfetto, and ``profile.json``. Later sessions with
        the same folder use subfolders ``session-2`` and so on. ``python -m synkhronos --profile`` overrides the folder.
    heal : int, optional
        Maximum number of dead ranks to replace; default: environment variable ``SYNK_HEAL``, or 0. A new process
        replaces a rank that died or did not answer in time, and restores its values. The command is then repeated
        and takes effect on all ranks or none. Updated variables, unless an exact function updates them and they are
        large, need memory for one additional copy on the master and two on every other rank, and copying takes time. A
        rank is replaced on its host; a lost host ends the session. See :doc:`fault_tolerance`.
    options : Options, optional
        Expert options: cores, threads, memory, the spare process, cProfile files.

    Returns
    -------
    int
        The number of ranks. In a ``with`` statement, the session is closed at the end of the block.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        An argument is invalid.
    StateError
        A session is already open, this process is a rank, or a device that it has opened conflicts with the session.
    SynkhronosError
        Processes or memory are unavailable, or a device cannot be opened; the message names the rank and the device.

    Examples
    --------
    >>> import synkhronos as synk
    >>> synk.fork(2, master_rank=1, seed=123, random="same")
    2
    >>> synk.close()
    >>> with synk.fork(2) as n:
    ...     print(n, "ranks, and number", synk.rank(), "is this program")
    2 ranks, and number 0 is this program
    """
    if options is not None and not isinstance(options, Options):
        raise ArgumentTypeError("options", "synk.Options(...)", _with_type(options))
    settings: Dict[str, Any] = (options or Options())._asdict()
    threads = settings["threads"]
    flags = {"use_gpu": use_gpu, **settings, "exact": exact, "check": check}
    del flags["threads"]
    for argument, value in flags.items():
        has_default = argument in ("use_gpu", "shard_updates")
        if not (isinstance(value, (bool, np.bool_)) or has_default and value is None):
            expected = "True, False or None" if has_default else "True or False"
            raise ArgumentTypeError(argument, expected, _with_type(value))
    n_ranks = None if n_ranks is None else integer("n_ranks", n_ranks, 1)
    rows = None if rows is None else integer("rows", rows, 1)
    if profile is not None:
        if not isinstance(profile, (str, os.PathLike)):
            raise ArgumentTypeError("profile", "the path of a folder", _with_type(profile))
        if not os.fspath(profile):
            raise ArgumentValueError("profile", "the path of a folder", "an empty path")
    argument = "heal" if heal is not None else HEAL
    in_environment = os.environ.get(HEAL) or "0"
    is_number = in_environment.isascii() and in_environment.isdecimal()
    default = int(in_environment) if is_number else in_environment
    deaths = integer(argument, default if heal is None else heal, 0)
    there = PROGRAM.all_hosts()
    root = integer("master_rank", master_rank)
    if mesh.is_wanted(devices):
        settings["launcher"] = starter = mesh.launcher_of(devices, n_ranks, use_gpu, deaths, bool(there), root)
        by_host, names, counts = None, None, [starter.mesh.size]
    else:
        by_host = choose_devices(devices, use_gpu, n_ranks, there)
        names = None if by_host is None else [name for of_host in by_host for name in of_host]
        counts = [len(of_host) for of_host in by_host] if by_host else _ranks_by_host(there, n_ranks)
    size, hosts = sum(counts), _hosts(there, counts)
    if settings["shard_updates"] and (devices is not None or names):
        expected = "None or False, because there is no common memory with devices"
        raise ArgumentValueError("shard_updates", expected, "True")
    n_near = counts[0]
    if not 0 <= root < n_near:
        raise ArgumentValueError("master_rank", f"an int from 0 to {n_near - 1} (local ranks: {n_near})", str(root))
    _check_files(size, machine.descriptor_limit(), DESCRIPTORS_PER_RANK)
    for host in there:
        _check_files(size, host.files, DESCRIPTORS_PER_RANK_OF_HOSTS, f" on host {host.name}")
    check_timeout(timeout)
    if random not in ("split", "same"):
        raise ArgumentValueError("random", "'split' or 'same'", repr(random))
    seed = None if seed is None else integer("seed", seed, 0)
    if threads is not None and integer("threads", threads, 1) > MAX_THREADS:
        raise ArgumentValueError("threads", f"at most {MAX_THREADS}", str(threads))
    settings.update(timeout=timeout, seed=seed, random=random, exact=exact, rows=rows, check=check, heal=deaths)
    settings["profile_to"] = None if profile is None else os.fspath(profile)
    if names and use_gpu is None and devices is None:
        try:
            return _ranks(PROGRAM.open(size, root, devices=names, hosts=hosts, **settings))
        except StateError:
            raise
        except SynkhronosError as error:
            logger.warning("GPUs are not used; CPU processes are started instead: %s", error)
            names, counts = None, _ranks_by_host(there, n_ranks)
            size, hosts = sum(counts), _hosts(there, counts)
            if root >= counts[0]:
                raise
    return _ranks(PROGRAM.open(size, root, devices=names, hosts=hosts, **settings))


def _ranks(session: Session) -> Ranks:
    ranks = Ranks(session.size)
    ranks._session = weakref.ref(session)
    return ranks


def close() -> None:
    """Stop the other ranks and all `Groups`, and release their resources; this also happens at exit.

    Functions and data stay valid. After another `fork`, they are distributed again at their next use.

    Raises
    ------
    StateError
        If the program never waited for a collective started with ``wait=False``. The session is closed anyway.

    Examples
    --------
    >>> import synkhronos as synk
    >>> synk.close()    # does nothing if no session is open
    """
    session = PROGRAM.session
    lost = [] if session is None or session.closed else list(session.caches.get("started", {}).values())
    PROGRAM.close()
    if lost:
        raise StateError(f"the session is closed, but the program did not wait for this collective: {lost[0]!r}")


def is_forked() -> bool:
    """Return whether a session is open: after `fork`, until `close` or a failure that ends the session.

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
    """Return the number of ranks on all hosts, including the master; also usable inside an operation.

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
    >>> with synk.fork(3):
    ...     synk.size()
    3
    """
    return _here().size


def rank() -> int:
    """Return the rank of the program or, inside an operation, the rank that computes it.

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
    >>> with synk.fork(3, master_rank=1):
    ...     synk.rank()
    1
    """
    return _here().rank


def _here() -> RankContext:
    """Return the context of this thread's rank: the master's unless the thread serves another rank."""
    return served(PROGRAM.inside_rank) or PROGRAM.current().context


class Host(NamedTuple):
    """A host of the session, with its ranks.

    Attributes
    ----------
    name : str
    ranks : tuple of int
        The ranks on this host.
    """

    name: str
    ranks: Tuple[int, ...]


def hosts() -> List[Host]:
    """Return the hosts of the session, the program's host first, with the ranks of each host.

    Returns
    -------
    list of Host
        One host, unless an MPI launcher has started the program on several hosts.

    Raises
    ------
    StateError
        Before `fork`, or after `close`.

    Examples
    --------
    >>> import synkhronos as synk
    >>> with synk.fork(3):
    ...     [host.ranks for host in synk.hosts()]
    [(0, 1, 2)]
    """
    there = PROGRAM.current().hosts
    return [Host(*host) for host in zip(there.names, there.ranks)]


def get_n_gpu() -> int:
    """Return the number of this machine's GPUs that are visible to this process, without initializing CUDA.

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
    most = size if limit is None else limit // of_rank
    if size > max(1, most):
        raise SynkhronosError(
            f"n_ranks: got {size} ranks, expected at most {most}: the limit on open files (ulimit -n){where} "
            f"is {limit}, and every rank needs {of_rank}; raise the limit, or start fewer ranks"
        )


def _ranks_by_host(there: Sequence[HostFacts], n_ranks: Optional[int]) -> List[int]:
    """Return the number of CPU processes to start on each host, or on this machine if it is the only host."""
    return [n_ranks or host.cores for host in there] or [n_ranks or machine.core_budget()]


def _hosts(there: Sequence[HostFacts], counts: Sequence[int]) -> Hosts:
    names = tuple(host.name for host in there) or (socket.gethostname(),)
    places = tuple(host.place for host in there if host.place is not None) or None
    cores = tuple(host.cores for host in there) or (machine.core_budget(),)
    return Hosts.of_counts(names, tuple(counts), places=places)._replace(cores=cores)


def integer(argument: str, value: Any, least: Optional[int] = None) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise ArgumentTypeError(argument, "an int", _with_type(value))
    if least is not None and value < least:
        raise ArgumentValueError(argument, f"at least {least}" if least else "0 or more", str(value))
    return int(value)


def _with_type(value: Any) -> str:
    return f"{value!r} of type {type(value).__name__}"
