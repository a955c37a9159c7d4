"""Expert options of `fork`, and arguments of its earlier versions."""

from __future__ import annotations

import functools
from typing import Any, Callable, NamedTuple, Optional, TypeVar, cast


class Options(NamedTuple):
    """Expert options of `fork`; the defaults suit almost every program.

    Parameters
    ----------
    pin : bool
        Whether to pin each rank to its own cores, if there are enough cores that no other program has claimed. The
        master is pinned only while it executes a command.
    threads : int, optional
        BLAS and OpenMP threads per rank; by default, the host's cores divided by its ranks, but at least 1. On several
        hosts, the default is the smallest of their numbers, because it changes the last bits of matrix products.
    keep_heap : bool
        Whether the C library's heap retains up to 512 MB of freed memory on every rank, including this process. If the
        heap returns memory to the kernel after every call, a rank may lose a quarter of its time. The setting
        (``mallopt``) applies until the process ends, even after `close`.
    standby : bool
        Whether to keep a spare process with loaded modules if dead ranks are replaced, so that a replacement is quick.
    profile_workers : bool
        Whether every rank writes a cProfile file, ``synkhronos_rank_<r>.prof``, to the working directory at `close`.
    shard_updates : bool, optional
        Whether each rank computes only its part of the elements of large updates in exact functions. The default is
        True unless there are devices; an explicit True then raises an error. `Function.sharding` shows which updates
        are divided; see *Common memory* in :doc:`design`.

    Examples
    --------
    >>> import synkhronos as synk
    >>> synk.fork(2, options=synk.Options(threads=1, pin=False))
    2
    """

    pin: bool = True
    threads: Optional[int] = None
    keep_heap: bool = True
    standby: bool = True
    profile_workers: bool = False
    shard_updates: Optional[bool] = None


#: Positional arguments of `fork` in the 2017 version; the last two have no effect.
ORDER_OF_2017 = ("n_ranks", "use_gpu", "master_rank", "profile_workers", "max_n_var", "max_dim")

F = TypeVar("F", bound=Callable[..., Any])


def with_earlier_names(fork: F) -> F:
    """Accept ``n_parallel`` as ``n_ranks``, positional arguments of the 2017 version, and `Options` as keywords."""

    @functools.wraps(fork)
    def call(*args: Any, **kwargs: Any) -> Any:
        positional = dict(zip(ORDER_OF_2017, args))
        if "n_parallel" in kwargs:
            positional.setdefault("n_ranks", kwargs["n_parallel"])
        twice = [name for name in kwargs if name in positional or name == "n_parallel" and args]
        if twice or len(args) > len(ORDER_OF_2017):
            raise TypeError(f"fork() got {f'{twice[0]} twice' if twice else f'{len(args)} positional arguments'}")
        given = {**positional, **kwargs}
        for name in ("n_parallel", "max_n_var", "max_dim"):
            given.pop(name, None)
        alone = {name: given.pop(name) for name in Options._fields if name in given}
        if alone:
            given["options"] = (given.get("options") or Options())._replace(**alone)
        return fork(**given)

    return cast(F, call)
