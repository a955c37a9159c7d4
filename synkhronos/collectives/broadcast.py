"""`synkhronos.broadcast`: set variables to the same values on every rank."""

from __future__ import annotations

from typing import Any, Iterable, List, Optional, Sequence

from ..runtime.context import RankContext
from ..transports.base import Pending
from .arguments import StagedValue, checked
from .command import CollectiveCommand, Joint, taken


class Broadcast(CollectiveCommand):
    """Set variables on every rank to staged values, or to the master's values if ``handles`` is None."""

    title = "broadcast"

    def __init__(self, numbers: List[int], handles: Optional[Sequence[Any]], on_host: bool) -> None:
        super().__init__(numbers)
        self.handles, self.on_host = handles, on_host

    def reads(self, context: RankContext) -> Iterable[Any]:
        return self.handles or ()

    def joint(self, context: RankContext) -> Optional[Joint]:
        if self.handles is not None or self.on_host:
            return None
        return Joint("broadcast", None, self.numbers, True, (context.root,))

    def run(self, context: RankContext) -> None:
        transport, entries = context.transport, context.entries(self.numbers)
        is_own = self.handles is None and context.rank == context.root
        for entry in entries if is_own else ():  # values that are no longer borrowed need not be compared any more
            if entry.borrowed is not None:
                entry.reclaim(context.pool, transport.keeps(entry.key, entry.cell[0]))
        if self.handles is None:
            keys, arrays = context.bind(self.numbers, is_own and not transport.common.is_open)
            results = transport.broadcast(keys, arrays, context.root, self.on_host)
        else:
            results = self._given(context, [context.pools.attach(handle) for handle in self.handles])
        context.transaction.commit_values(entries, results, same=True, is_own=is_own)

    def _given(self, context: RankContext, values: List[Any]) -> Pending:
        """Return the values in memory of all ranks or, if they are small, copied into this rank's memory."""
        transport, entries = context.transport, context.entries(self.numbers)
        common = transport.common.taken([entry.key for entry in entries], values)
        if not common:
            return taken(context, self.numbers, values, [None] * len(values))
        own = [i for i in range(len(values)) if i not in common]
        copies = taken(context, [self.numbers[i] for i in own], [values[i] for i in own], [None] * len(own))
        results = dict(zip(own, copies))
        results.update(zip(common, transport.share([entries[i].key for i in common], [values[i] for i in common])))
        return [results[i] for i in range(len(values))]


def broadcast(shared_vars: Any, values: Any = None, nccl: bool = True) -> None:
    """Set the variables to the same values on every rank: ``x_r := values``, by default ``x_r := x_root``.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        The variables to overwrite. If no function uses a variable yet, the ranks store its value for later functions.
    values : Data or array of any shape ``shape``, or list of them, optional
        One value per variable (no list for a single variable), as for the variable's own ``set_value``; by default, the
        master's values. Afterwards, the variable has the shape ``shape`` on every rank.
    nccl : bool
        Whether to use the GPU transport for variables on GPUs.

    Raises
    ------
    TypeError, ValueError, StateError, SharedMemoryError, RankFailure
        See `synkhronos.errors`. If a rank died, all survivors may have the new values; otherwise, no value has changed.

    Examples
    --------
    >>> import numpy as np, synkhronos as synk, theano
    >>> n_ranks = synk.fork(2)
    >>> w = theano.shared(np.zeros(2), "w")
    >>> synk.broadcast(w, [3., 4.])
    >>> synk.get_value(w, rank=1)
    array([3., 4.])
    """
    variables = checked(shared_vars, unused=True)
    if values is None:
        variables.run(Broadcast, None, not nccl)
        return

    def broadcast_of(staged: List[StagedValue]) -> Broadcast:
        return Broadcast(variables.numbers, [value.handle for value in staged], not nccl)

    with variables.session.lock:
        variables.run_with(values, broadcast_of, "broadcast", bool(nccl))
