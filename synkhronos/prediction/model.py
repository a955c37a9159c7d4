"""What a step takes on any number of ranks.

::

    T(n) = sum over commands of     work(rows / n) x slowest of n      (computing, memory, cores, waiting)
                                  + reduction by the link              (communicating)
                                  + overhead of the command            (commands)
           + the program's own time between its calls                  (program)

    work(rows) = fixed + rows per_row,  each  alone + (ranks that compute at once on the machine - 1) more
    overhead   = alone + (ranks of a host - 1) more + log2(hosts) between
"""

from __future__ import annotations

import math
from typing import Dict, List, NamedTuple, Optional, Tuple, Union

from .links import OverHosts, Ring, SharedMemory
from .profiles import Key
from .slowest import slowest

#: Where the seconds of a step go, in the order of the table.
PARTS = ("computing", "memory", "cores", "waiting", "communicating", "commands", "program")

#: What makes more ranks less worth than as many times one; `computing` is what remains.
LOSSES = PARTS[1:]


#: Of ranks on one core, beyond which reductions suffer no more from taking turns. On two cores, three ranks have taken
#: 1.2 to 3 times as long as their number alone would say, and 4, 8 and 16 ranks 4 to 7 times (640 KB to 20 MB).
MAX_TURNS = 2.0


class Layout(NamedTuple):
    """Where ranks are.

    Attributes
    ----------
    ranks, hosts : int
    cores : float
        Of each machine; infinite if every rank has a device of its own.
    machines : int, optional
        As many as hosts, unless these are pretended.
    """

    ranks: int
    hosts: int = 1
    cores: float = math.inf
    machines: int = 0

    @property
    def of_host(self) -> int:
        """How many ranks a host has, the fullest."""
        return math.ceil(self.ranks / self.hosts)

    @property
    def of_machine(self) -> int:
        """How many ranks compute on one machine."""
        return math.ceil(self.ranks / (self.machines or self.hosts))

    @property
    def at_once(self) -> float:
        """How many of them compute at the same time: one on each core."""
        return min(float(self.of_machine), self.cores)


class Command(NamedTuple):
    """What a command takes.

    Attributes
    ----------
    per_step : float
        How often it runs in a step.
    rows : float
        As part of those of the step.
    fixed, per_row : (float, float)
        Seconds of work of one rank, and for each of its rows: alone, and how many more for each further rank that
        computes on the machine at the same time.
    overhead : (float, float, float)
        Seconds of one rank alone, for each further one of the host, and for each doubling of hosts.
    nbytes : float
        What a rank gives to collectives.
    row_bytes : float
        That each row has on the way to another host; 0 if not known.
    spread : tuple of float
        The work of a rank as part of its median: quantiles. Of many steps in one command it is that of their mean: what
        ranks wait for each other between them is in the overhead.
    """

    per_step: float
    rows: float
    fixed: Tuple[float, float]
    per_row: Tuple[float, float]
    overhead: Tuple[float, float, float]
    nbytes: float
    row_bytes: float
    spread: Tuple[float, ...]


class Less(NamedTuple):
    """A rule by which ranks communicate less.

    Attributes
    ----------
    every : int
        Steps from one exchange to the next.
    late : bool
        Whether an exchange travels while the ranks go on computing.
    bits : int
        Of each number that travels between hosts or devices: 32 or 16.
    """

    every: int = 1
    late: bool = False
    bits: int = 32


class Model(NamedTuple):
    """A program's steps.

    Attributes
    ----------
    commands : dict of (kind, name) to Command
    main : (kind, name)
        The function that a step is a call of.
    rows : float
        Of a step, of all ranks, as the program was profiled.
    program : float
        Seconds of a step in the program's own code.
    memory : SharedMemory
    between : Ring, OverHosts or None
        The link of devices, or of hosts, if it is known.
    largest : Layout
        Most ranks that were profiled, and most hosts.
    rows_of_rank : (float, float)
        Fewest and most rows that a rank had in a step that was profiled.
    notes : list of str
        What is assumed.
    """

    commands: Dict[Key, Command]
    main: Key
    rows: float
    program: float
    memory: SharedMemory
    between: Optional[Union[Ring, OverHosts]]
    largest: Layout
    rows_of_rank: Tuple[float, float]
    notes: List[str]

    def reduction(self, layout: Layout, nbytes: float, bits: int = 32) -> float:
        """Return the seconds of a reduction of so many bytes, of numbers of 32 bits."""
        if isinstance(self.between, Ring):
            return self.between.seconds(layout.ranks, nbytes * bits / 32)
        within = self.memory.seconds(layout.of_host, nbytes)
        within *= min(max(1.0, layout.of_machine / layout.cores), MAX_TURNS) ** 2
        if layout.hosts == 1:
            return within
        assert self.between is not None, "several hosts need a link"
        return within + self.between.seconds(layout.hosts, nbytes * bits / 32)

    def predict(self, layout: Layout, rows: Optional[float] = None, less: Less = Less()) -> Dict[str, float]:  # noqa: B008
        """Return the seconds of a step by `PARTS`.

        Parameters
        ----------
        layout : Layout
        rows : float, optional
            Of the step, of all ranks; as profiled by default.
        less : Less, optional
            A rule of less communication.
        """
        rows = self.rows if rows is None else rows
        parts = dict.fromkeys(PARTS, 0.0)
        where = (layout.ranks, layout.machines or layout.hosts, layout.cores)
        for (kind, _), command in self.commands.items():
            of_rank = math.ceil(rows * command.rows / layout.ranks) if command.rows else 0
            work, more = (
                command.per_step * (fixed + of_rank * per_row) for fixed, per_row in zip(command.fixed, command.per_row)
            )
            longer = more * (layout.at_once - 1)
            each = (work + longer) / command.per_step
            crowd = slowest((1.0,), *where, each, less.every)
            last = slowest(command.spread, *where, each, less.every)
            parts["computing"] += work
            parts["memory"] += longer
            parts["cores"] += (work + longer) * max(0.0, min(crowd, last) - 1)
            parts["waiting"] += (work + longer) * max(0.0, last - crowd)
            # A collective of its own is left out together with its command; one in a function leaves its command there.
            exchanges = command.per_step / less.every
            parts["communicating"] += exchanges * self.reduction(layout, command.nbytes, less.bits)
            if isinstance(self.between, OverHosts):
                elsewhere = rows * command.rows * (1 - 1 / layout.hosts)
                parts["communicating"] += command.per_step * elsewhere * command.row_bytes * self.between.per_byte
            of_one, of_each, of_hosts = command.overhead
            overhead = of_one + (layout.of_host - 1) * of_each + math.log2(layout.hosts) * of_hosts
            parts["commands"] += overhead * (exchanges if kind == "collective" else command.per_step)
        parts["program"] = self.program
        if less.late:
            others = sum(parts.values()) - parts["communicating"]
            parts["communicating"] = max(0.0, parts["communicating"] - others)
        return parts

    def seconds(self, layout: Layout, rows: Optional[float] = None, less: Less = Less()) -> float:  # noqa: B008
        """Return the seconds of a step."""
        return sum(self.predict(layout, rows, less).values())

    def speedup(self, layout: Layout, rows: Optional[float] = None) -> float:
        """Return how many times as fast as one rank with all of the rows the ranks are."""
        return self.seconds(Layout(1, 1, layout.cores), rows) / self.seconds(layout, rows)

    def smallest_rows(self, layout: Layout, efficiency: float, most: int = 1 << 24) -> Optional[int]:
        """Return the fewest rows for each rank with which so many ranks have an efficiency, or None if no number has.

        Parameters
        ----------
        layout : Layout
        efficiency : float
            Speedup by ranks.
        most : int
            Rows that are tried.
        """

        def is_enough(of_rank: int) -> bool:
            return self.speedup(layout, of_rank * layout.ranks) >= efficiency * layout.ranks

        if not is_enough(most):
            return None
        too_few, enough = 0, 1
        while not is_enough(enough):
            too_few, enough = enough, 2 * enough
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            too_few, enough = (too_few, middle) if is_enough(middle) else (middle, enough)
        return enough

    def extrapolated(self, layout: Layout, rows: Optional[float] = None) -> List[str]:
        """Return in words what of a prediction lies beyond what was profiled."""
        of_rank = (self.rows if rows is None else rows) / layout.ranks
        fewest, most = self.rows_of_rank
        return [
            word
            for word, is_beyond in (
                ("ranks", layout.ranks > self.largest.ranks),
                ("hosts", layout.hosts > self.largest.hosts),
                ("rows", not 0.9 * fewest <= of_rank <= 1.1 * most),
            )
            if is_beyond
        ]
