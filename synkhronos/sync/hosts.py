"""Which ranks are on which host, as one host sees it."""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple


class Hosts(NamedTuple):
    """The hosts of a session.

    Attributes
    ----------
    names : tuple of str
    ranks : tuple of tuple of int
        Of each host, in its order: ranks are numbered host by host, and the root is on the first.
    own : int
        The host on which this process runs.
    places : tuple of int, optional
        Their numbers in MPI's world, if large arrays travel by MPI: on all hosts, or on none.
    """

    names: Tuple[str, ...]
    ranks: Tuple[Tuple[int, ...], ...]
    own: int
    places: Optional[Tuple[int, ...]] = None

    @classmethod
    def of_counts(
        cls, names: Tuple[str, ...], counts: Tuple[int, ...], own: int = 0, places: Optional[Tuple[int, ...]] = None
    ) -> Hosts:
        """Return hosts with so many ranks each.

        Examples
        --------
        >>> Hosts.of_counts(("a", "b"), (1, 2)).ranks
        ((0,), (1, 2))
        """
        begins = [sum(counts[:i]) for i in range(len(counts))]
        return cls(names, tuple(tuple(range(begin, begin + n)) for begin, n in zip(begins, counts)), own, places)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(map(len, self.ranks))

    @property
    def near(self) -> Tuple[int, ...]:
        """The ranks of this host."""
        return self.ranks[self.own]

    @property
    def far(self) -> Tuple[int, ...]:
        """All others."""
        return tuple(rank for rank in range(self.size) if rank not in self.near)

    def of(self, rank: int) -> int:
        """Return the host of a rank; the memory of the program, whose pools have negative numbers, is on the first."""
        return 0 if rank < 0 else next(host for host, ranks in enumerate(self.ranks) if rank in ranks)

    def is_far(self, pool: int) -> bool:
        """Return whether the memory with this number, a rank's or the program's, is on another host."""
        return self.of(pool) != self.own
