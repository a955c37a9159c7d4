"""Model of a program's time per step on any number of ranks.

::

    T(n) = sum over commands of     work(rows / n) x slowest of n      (computing, memory, cores, waiting)
                                  + reduction by the link              (communicating)
                                  + overhead of the command            (commands)
           + the program's own time between its calls                  (program)

    work(rows) = fixed + rows per_row,  each  alone + (ranks computing simultaneously on the machine - 1) more
    overhead   = alone + (ranks of a host - 1) more + log2(hosts) between
"""

from __future__ import annotations

import math
from typing import Dict, List, NamedTuple, Optional, Tuple, Union

from .links import HostLinkModel, RingModel, SharedMemory
from .profiles import Key, RankLayout
from .slowest import slowest

PARTS = ("computing", "memory", "cores", "waiting", "communicating", "commands", "program")

LOSSES = PARTS[1:]


#: Beyond this number of ranks per core, reductions slow down no further. On two cores, three ranks took 1.2 to 3 times
#: as long as their number alone explains (640 KB to 20 MB). For 4, 8 and 16 ranks, the factor was 4 to 7.
MAX_TURNS = 2.0


class CommandCost(NamedTuple):
    """Cost of a command in a step."""

    per_step: float  # executions per step
    rows: float  # as a fraction of the step's rows
    fixed: Tuple[float, float]  # seconds for one rank alone, and the increase per additional rank on the machine
    per_row: Tuple[float, float]  # like `fixed`, but for each row
    overhead: Tuple[float, float, float]  # seconds for one rank; per additional rank of a host; per doubling of hosts
    nbytes: float  # bytes that a rank contributes to collectives
    row_bytes: float  # bytes of each row sent to another host; 0 if unknown
    #: Quantiles of a rank's work per step divided by its median; waits between the steps of a call count as overhead.
    spread: Tuple[float, ...]


class CommunicationRule(NamedTuple):
    """Rule that reduces the communication between ranks."""

    every: int = 1  # steps from one exchange to the next
    late: bool = False  # whether exchanges overlap with computation
    bits: int = 32  # of each number sent between hosts or devices: 32 or 16


#: Default without a rule: all ranks exchange gradients in every step.
IN_EVERY_STEP = CommunicationRule()


class Model(NamedTuple):
    """Fitted model of the time of a program's steps."""

    commands: Dict[Key, CommandCost]
    main: Key  # the function called in every step
    rows: float  # of a step over all ranks, in the first profile
    program: float  # seconds per step in the program's own code
    memory: SharedMemory
    between: Optional[Union[RingModel, HostLinkModel]]  # the link between devices or hosts, if known
    largest: RankLayout  # largest profiled numbers of ranks and of hosts
    rows_of_rank: Tuple[float, float]  # fewest and most rows of a rank in a profiled step
    notes: List[str]  # assumptions

    def reduction(self, layout: RankLayout, nbytes: float, bits: int = 32) -> float:
        """Return the time to reduce `nbytes`, in seconds; hosts or devices send each 32-bit number as `bits` bits."""
        if isinstance(self.between, RingModel):
            return self.between.seconds(layout.ranks, nbytes * bits / 32)
        within = self.memory.seconds(layout.of_host, nbytes)
        within *= min(max(1.0, layout.of_machine / layout.cores), MAX_TURNS) ** 2
        if layout.hosts == 1:
            return within
        assert self.between is not None, "several hosts need a link"
        return within + self.between.seconds(layout.hosts, nbytes * bits / 32)

    def predict(
        self, layout: RankLayout, rows: Optional[float] = None, less: CommunicationRule = IN_EVERY_STEP
    ) -> Dict[str, float]:
        """Return a step's time in seconds, by part (`PARTS`); `rows` counts all ranks' rows (default: as profiled)."""
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
            # Skipping a separate collective also saves its command; skipping a collective inside a function does not.
            exchanges = command.per_step / less.every
            parts["communicating"] += exchanges * self.reduction(layout, command.nbytes, less.bits)
            if isinstance(self.between, HostLinkModel):
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

    def seconds(
        self, layout: RankLayout, rows: Optional[float] = None, less: CommunicationRule = IN_EVERY_STEP
    ) -> float:
        return sum(self.predict(layout, rows, less).values())

    def speedup(self, layout: RankLayout, rows: Optional[float] = None) -> float:
        """Return the speedup over one rank that computes all rows."""
        return self.seconds(RankLayout(1, 1, layout.cores), rows) / self.seconds(layout, rows)

    def smallest_rows(self, layout: RankLayout, efficiency: float, most: int = 1 << 24) -> Optional[int]:
        """Return the fewest rows per rank with this efficiency (speedup / ranks); None if `most` rows are too few."""

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

    def extrapolated(self, layout: RankLayout, rows: Optional[float] = None) -> List[str]:
        """Return the names of quantities that are outside the profiled range."""
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
