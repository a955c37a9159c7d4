"""Messages between the bridge and the serving processes of other hosts; `wire.Line` sends them.

The receiver's table of ``handlers`` maps each type to a method, which is called with the fields of the message.
(Tables belong to classes: a table of bound methods would keep its object, and its memory, alive.)
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..runtime.launcher import RankConfig
from ..sync.fetching import HostReduction
from ..sync.hosts import Hosts
from .facts import HostFacts

#: A class's table of the methods that process messages or questions, by type or kind.
Handlers = Mapping[Any, Callable[..., Any]]

#: The first message of a host, with the number of its process in the job; and the last message to it.
Hello = NamedTuple("Hello", [("process", int), ("facts", HostFacts)])
Bye = NamedTuple("Bye", [("together", bool)])

#: A call of the method ``kind`` of a host's `Server` or `Deputy` with the arguments ``about``, and its result.
Question = NamedTuple("Question", [("kind", str), ("number", int), ("about", Tuple[Any, ...])])
Reply = NamedTuple("Reply", [("number", int), ("content", Any)])

#: A rank's request to abort a command; the master's abort after barrier ``decided``, with the next reduction's number.
AbortCommand = NamedTuple("AbortCommand", [("command", int)])
CommandAborted = NamedTuple("CommandAborted", [("command", int), ("decided", int), ("reductions", int)])

#: By rank: exit status, peak memory and fatal error; command, completed and undone steps. Output on stream 0 or 1.
RanksEnded = NamedTuple("RanksEnded", [("ranks", Dict[int, Tuple[int, int, bytes]])])
StepCounts = NamedTuple("StepCounts", [("steps", Dict[int, Tuple[int, int, int]])])
Printed = NamedTuple("Printed", [("rank", int), ("stream", int), ("text", bytes)])


# Messages of one host's `Requests` to those of host ``to``, possibly forwarded by the first host.


class FetchMemory(NamedTuple):
    """Request of host ``asker``, after barrier ``epoch``, for ranges of a pool; ``carried``: MPI's number, or -1."""

    to: int
    asker: int
    number: int
    epoch: int
    carried: int
    pool: int
    starts: Any
    stops: Any


#: The reply, unless MPI carries the bytes; and a reduction that its sender has begun, but abandoned.
Memory = NamedTuple("Memory", [("to", int), ("number", int), ("content", bytes)])
FinishReduction = NamedTuple("FinishReduction", [("to", int), ("number", int), ("parts", Sequence[HostReduction])])

ROUTED = (FetchMemory, Memory, FinishReduction)


ENGINES = ("theano", "pytensor")  # packages that are slow to import


def modules_to_import() -> List[str]:
    """Return the names of the engines and of this library's modules that the program has imported."""
    ours = [name for name in list(sys.modules) if name.split(".")[0] == __name__.split(".")[0]]
    return [name for name in ENGINES if name in sys.modules] + sorted(ours)


class SessionSpec(NamedTuple):
    """Specification of a new session, sent to the other hosts; for fields without a comment see `Options`."""

    hosts: Hosts  # as seen by the receiving host
    config: RankConfig  # of a rank of the first host; the other hosts replace the fields that differ there
    program_pools: List[int]  # identifiers of the program's pools
    pin: bool
    threads: Optional[int]
    standby: bool  # whether each host has a process that can replace a dead rank
    modules: List[str]  # imported once, before ranks are forked
    span_bytes: int  # size of each rank's ring buffer for its recorded activity; 0 without recording
    reductions: int = 0  # number of the session's first reduction over hosts
