"""The hosts of a session and their ranks, as seen by one host."""

from __future__ import annotations

import socket
from typing import NamedTuple, Optional, Tuple

from ..host.machine import core_budget


class Hosts(NamedTuple):
    """The hosts of a session and their ranks. Ranks are numbered host by host; the root is on the first host."""

    names: Tuple[str, ...]
    ranks: Tuple[Tuple[int, ...], ...]  # by host
    own: int  # the number of this process's host
    places: Optional[Tuple[int, ...]] = None  # the hosts' ranks in MPI_COMM_WORLD, if large arrays are sent with MPI
    cores: Tuple[int, ...] = ()  # numbers of usable cores by host; () if unknown

    @classmethod
    def of_counts(
        cls, names: Tuple[str, ...], counts: Tuple[int, ...], own: int = 0, places: Optional[Tuple[int, ...]] = None
    ) -> Hosts:
        """Return hosts with ``counts[i]`` ranks on host i.

        >>> Hosts.of_counts(("a", "b"), (1, 2)).ranks
        ((0,), (1, 2))
        """
        begins = [sum(counts[:i]) for i in range(len(counts))]
        return cls(names, tuple(tuple(range(begin, begin + n)) for begin, n in zip(begins, counts)), own, places)

    @classmethod
    def alone(cls, size: int) -> Hosts:
        """Return this computer as the only host of ``size`` ranks."""
        return cls.of_counts((socket.gethostname(),), (size,))._replace(cores=(core_budget(),))

    @property
    def are_several(self) -> bool:
        return len(self.ranks) > 1

    @property
    def link(self) -> str:
        """The link over which ranks exchange large arrays."""
        return "shared_memory" if not self.are_several else "mpi" if self.places else "tcp"

    @property
    def size(self) -> int:
        """The number of ranks."""
        return sum(map(len, self.ranks))

    @property
    def near(self) -> Tuple[int, ...]:
        """The ranks of this host."""
        return self.ranks[self.own]

    @property
    def far(self) -> Tuple[int, ...]:
        """The ranks of all other hosts."""
        return tuple(rank for rank in range(self.size) if rank not in self.near)

    def of(self, rank: int) -> int:
        """Return the host of a rank or pool; negative numbers denote the program's pools, on the first host."""
        return 0 if rank < 0 else next(host for host, ranks in enumerate(self.ranks) if rank in ranks)

    def led_by(self, rank: int) -> Tuple[int, ...]:
        """Return the ranks whose answers a rank forwards to the first host; empty unless it leads another host."""
        return next((ranks for ranks in self.ranks[1:] if ranks[0] == rank), ())

    def is_far(self, pool: int) -> bool:
        """Return whether a pool, of a rank or of the program, is on another host."""
        return self.of(pool) != self.own
