"""Ring buffer of a rank: shared memory with its latest spans, which survives the rank's death.

::

    words      spans written so far | bytes of names | number of names | offset and error of the clock
    open       by level: the latest span that began: start; spans written before it, plus 1; name; command
    counts     by name: commands counted, including those already overwritten
    names      "engine\\tTheanoEngine.call", "command\\tfunction\\ttrain", each preceded by its length
    records    the spans; each overwrites the span written ``capacity`` spans before

Only the rank's process writes. A reader compares the number of spans before and after copying, and skips spans that may
have been overwritten. The open span of a level has ended if a span of this or an outer level was written later.
"""

from __future__ import annotations

import struct
from typing import Dict, List, NamedTuple, Tuple

WRITTEN, NAME_BYTES, NAMES, OFFSET, ERROR = range(5)

#: Number of levels with recorded open spans; deeper spans are recorded only when they end.
MAX_OPEN = 32
#: Maximum number of distinct names; additional names become "other".
MAX_NAMES = 512
#: Maximum number of bytes of all names together, and of one name.
ALL_NAMES_BYTES, ONE_NAME_BYTES = 1 << 15, 200

OPEN = struct.Struct("<qqII")
OPEN_PLACES = [64 + OPEN.size * level for level in range(MAX_OPEN)]
_COUNTS = OPEN_PLACES[-1] // 8 + OPEN.size // 8
_HEAD_WORDS = _COUNTS + MAX_NAMES
_NAMES_BEGIN = 8 * _HEAD_WORDS
RECORDS_BEGIN = _NAMES_BEGIN + ALL_NAMES_BYTES

#: Start and end in nanoseconds; command; name, thread and level. Four numbers follow for commands and collectives.
SPAN, NUMBERS = struct.Struct("<qqIHBB"), struct.Struct("<qqqq")
RECORD_BYTES = SPAN.size + NUMBERS.size
_HAVE_NUMBERS = ("command\t", "collective\t")
_ONE_LENGTH = struct.Struct("<H")

#: Maximum number of spans in the rings of all ranks together, and in one ring; 56 bytes per span.
MAX_SPANS, MAX_SPANS_OF_RANK = 1 << 20, 1 << 16


def ring_bytes(n_ranks: int) -> int:
    """Return the size of one ring in bytes, for a session with this number of ranks."""
    return RECORDS_BEGIN + RECORD_BYTES * min(MAX_SPANS_OF_RANK, MAX_SPANS // n_ranks)


class Span(NamedTuple):
    """Recorded activity of a rank; numbers are -1 if unknown."""

    begin: int  # nanoseconds of the master's clock
    end: int  # -1 while the span is open
    point: str  # the trace point, such as "barrier"
    label: str  # the method, such as "Barrier.wait", or a command's kind
    name: str  # a command's function or collective, else ""
    command: int  # number of the command that contains the span
    thread: int  # thread of the rank
    level: int  # nesting depth
    rows: int = -1
    nbytes: int = -1
    moved: int = -1
    arrays: int = -1
    is_open: bool = False  # True if the rank was killed during the span or is still in it

    @property
    def is_command(self) -> bool:
        """Whether this is the execution of a command."""
        return self.point == "command"


class Content(NamedTuple):
    """Contents of a ring at the time of reading."""

    names: List[str]
    counts: Dict[str, int]  # number of commands by name, including overwritten spans; 0 for other names
    spans: List[Span]  # in the order of their ends, then the open spans
    dropped: int  # number of overwritten spans
    error: int  # largest error relative to the master's clock, in nanoseconds


class RingBuffer:
    """Writer of a ring, in the rank's process.

    `memory` consists of `ring_bytes` zero bytes, or is the ring of a dead rank, which its replacement continues.
    """

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        self.words = memory[:_NAMES_BEGIN].cast("q")
        self.capacity = (len(memory) - RECORDS_BEGIN) // RECORD_BYTES
        self.command = 0
        self.written = int(self.words[WRITTEN])
        self.numbers: Dict[str, int] = {name: number for number, name in enumerate(read(memory).names)}
        self._commands: Dict[Tuple[str, str], int] = {}
        self.number("other")

    def number(self, name: str) -> int:
        """Return the index of a name, which is written on first use."""
        found = self.numbers.get(name)
        if found is None:
            found = self.numbers[name] = self._added(name.encode("utf-8", "replace")[:ONE_NAME_BYTES])
        return found

    def number_of_command(self, kind: str, title: str) -> int:
        """Return the index of a command's name and count it, so that overwritten commands are counted too."""
        number = self._commands.get((kind, title))
        if number is None:
            number = self._commands[kind, title] = self.number(f"command\t{kind}\t{title}")
        self.words[_COUNTS + number] += 1
        return number

    def _added(self, name: bytes) -> int:
        words = self.words
        used, count = words[NAME_BYTES], words[NAMES]
        if count == MAX_NAMES or used + 2 + len(name) > ALL_NAMES_BYTES:
            return 0
        begin = _NAMES_BEGIN + used
        _ONE_LENGTH.pack_into(self.memory, begin, len(name))
        self.memory[begin + 2 : begin + 2 + len(name)] = name
        words[NAME_BYTES] = used + 2 + len(name)
        words[NAMES] = count + 1
        return int(count)


def set_clock(memory: memoryview, offset: int, error: int) -> None:
    """Record in a ring the lead of its rank's clock over the master's, and the largest error of this lead."""
    words = memory[:_NAMES_BEGIN].cast("q")
    words[OFFSET], words[ERROR] = offset, error


def read(memory: memoryview) -> Content:
    """Read a ring, even while its rank is writing."""
    capacity = (len(memory) - RECORDS_BEGIN) // RECORD_BYTES
    words = memory[:_NAMES_BEGIN].cast("q")
    written = words[WRITTEN]
    begun = bytes(memory[OPEN_PLACES[0] : OPEN_PLACES[-1] + OPEN.size])
    first = max(0, written - capacity)
    copied = bytes(memory[RECORDS_BEGIN : RECORDS_BEGIN + RECORD_BYTES * min(written, capacity)])
    # A span that was being written during the copy is not counted yet, and overwrites the oldest span.
    first = max(first, words[WRITTEN] + 1 - capacity) if words[WRITTEN] >= capacity else first
    names, begin = [], _NAMES_BEGIN
    for _ in range(words[NAMES]):
        (length,) = _ONE_LENGTH.unpack_from(memory, begin)
        names.append(bytes(memory[begin + 2 : begin + 2 + length]).decode("utf-8", "replace"))
        begin += 2 + length
    numbered = {i for i, name in enumerate(names) if name.startswith(_HAVE_NUMBERS)}
    parts = [[*name.split("\t", 2), "", ""][:3] for name in names]
    offset = words[OFFSET]
    spans: List[Span] = []
    ended = [0] * MAX_OPEN  # by level: number of spans written up to the latest span of this level
    for i in range(first, written):
        place = RECORD_BYTES * (i % capacity)
        start, end, command, name, thread, level = SPAN.unpack_from(copied, place)
        numbers = NUMBERS.unpack_from(copied, place + SPAN.size) if name in numbered else ()
        point, label, title = parts[name]
        spans.append(Span(start - offset, end - offset, point, label, title, command, thread, level, *numbers))
        if thread == 0 and level < MAX_OPEN:
            ended[level] = i + 1
    for level, (start, before, name, command) in enumerate(OPEN.iter_unpack(begun)):
        if max(ended[: level + 1]) >= before:
            break
        point, label, title = parts[name]
        spans.append(Span(start - offset, -1, point, label, title, command, 0, level, is_open=True))
    counts = {name: int(words[_COUNTS + i]) for i, name in enumerate(names)}
    return Content(names, counts, spans, first, words[ERROR])


def used(memory: memoryview) -> bytes:
    """Return the used part of a ring, for sending it to another host."""
    written = memory[:8].cast("q")[0]
    capacity = (len(memory) - RECORDS_BEGIN) // RECORD_BYTES
    return bytes(memory[: RECORDS_BEGIN + RECORD_BYTES * min(written + 1, capacity)])
