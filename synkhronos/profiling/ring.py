"""The ring of a rank: shared memory that keeps its latest spans, whatever becomes of the rank.

::

    words      spans written so far | bytes of names | names | offset and error of the clock
    open       by level: what has begun there last: when, how many spans were written by then (plus 1), name, command
    counts     by name: how many spans of that name were counted, those of commands; whatever became of them
    names      "engine\\tTheanoEngine.call", "command\\tfunction\\ttrain", each with its length before it
    records    the spans, each in the place of the one that was written ``capacity`` spans before

The rank alone writes. A reader looks at the number of spans before and after, and leaves out those that may have been
overwritten meanwhile. What has begun at a level has ended if a span of that level, or an outer one, was written since.
"""

from __future__ import annotations

import struct
from typing import Dict, List, NamedTuple, Tuple

#: Places of words.
WRITTEN, NAME_BYTES, NAMES, OFFSET, ERROR = range(5)

#: Levels whose beginnings are written down; deeper spans are only there once they have ended.
MAX_OPEN = 32
#: Different names; all others are called "other".
MAX_NAMES = 512
#: Bytes of all names, and of one.
ALL_NAMES_BYTES, ONE_NAME_BYTES = 1 << 15, 200

OPEN = struct.Struct("<qqII")
OPEN_PLACES = [64 + OPEN.size * level for level in range(MAX_OPEN)]
_COUNTS = OPEN_PLACES[-1] // 8 + OPEN.size // 8
_HEAD_WORDS = _COUNTS + MAX_NAMES
_NAMES_BEGIN = 8 * _HEAD_WORDS
RECORDS_BEGIN = _NAMES_BEGIN + ALL_NAMES_BYTES

#: Begin and end in nanoseconds; command; name, thread and level. Commands and collectives have four numbers after it.
SPAN, NUMBERS = struct.Struct("<qqIHBB"), struct.Struct("<qqqq")
RECORD_BYTES = SPAN.size + NUMBERS.size
_HAVE_NUMBERS = ("command\t", "collective\t")
_UNKNOWN = (-1, -1, -1, -1)
_ONE_LENGTH = struct.Struct("<H")

#: Spans that the rings of all ranks keep together at most, and that of one rank; 56 bytes each.
MAX_SPANS, MAX_SPANS_OF_RANK = 1 << 20, 1 << 16


def ring_bytes(n_ranks: int) -> int:
    """Return the bytes of each ring if there are so many ranks."""
    return RECORDS_BEGIN + RECORD_BYTES * min(MAX_SPANS_OF_RANK, MAX_SPANS // n_ranks)


class Record(NamedTuple):
    """A span as it lies in a ring.

    Attributes
    ----------
    begin, end : int
        Nanoseconds of the rank's clock; ``end`` is -1 if it has not ended.
    command : int
        The number of the command in progress, or of the last one.
    name : int
    thread, level : int
        In which thread of the process, 0 for the first; and within how many other spans of it.
    numbers : tuple of int
        Four, -1 if not known.
    """

    begin: int
    end: int
    command: int
    name: int
    thread: int
    level: int
    numbers: Tuple[int, int, int, int]


class Content(NamedTuple):
    """What was in a ring when it was read.

    Attributes
    ----------
    names : list of str
    counts : dict of str to int
        How many spans of each name were counted, those included that are not there any more.
    records : list of Record
        In the order in which they ended; then what was open.
    dropped : int
        How many were overwritten.
    offset, error : int
        Nanoseconds: what the rank's clock is ahead of the master's, and how wrong that may be.
    """

    names: List[str]
    counts: Dict[str, int]
    records: List[Record]
    dropped: int
    offset: int
    error: int


class Ring:
    """The writer's side, in a process that is the rank or, if ranks are threads, has it.

    Parameters
    ----------
    memory : memoryview
        Of `ring_bytes`, zeros at first; or that of a rank whose place this one takes, which it goes on with.
    """

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        self.words = memory[:_NAMES_BEGIN].cast("q")
        self.capacity = (len(memory) - RECORDS_BEGIN) // RECORD_BYTES
        #: The number of the command in progress, or of the last one.
        self.command = 0
        self.written = int(self.words[WRITTEN])
        #: Of the names that were written down.
        self.numbers: Dict[str, int] = {name: number for number, name in enumerate(read(memory).names)}
        self._commands: Dict[Tuple[str, str], int] = {}
        self.number("other")

    def number(self, name: str) -> int:
        """Return the number of a name, which is written down at its first use."""
        found = self.numbers.get(name)
        if found is None:
            found = self.numbers[name] = self._added(name.encode("utf-8", "replace")[:ONE_NAME_BYTES])
        return found

    def number_of_command(self, kind: str, title: str) -> int:
        """Return the number of a command's name; it is counted: so many are known when they are not there any more."""
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
    """Note in a ring what its rank's clock is ahead of the master's."""
    words = memory[:_NAMES_BEGIN].cast("q")
    words[OFFSET], words[ERROR] = offset, error


def read(memory: memoryview) -> Content:
    """Return what is in a ring, while its rank goes on or after it has ended."""
    capacity = (len(memory) - RECORDS_BEGIN) // RECORD_BYTES
    words = memory[:_NAMES_BEGIN].cast("q")
    written = words[WRITTEN]
    begun = bytes(memory[OPEN_PLACES[0] : OPEN_PLACES[-1] + OPEN.size])
    first = max(0, written - capacity)
    copied = bytes(memory[RECORDS_BEGIN : RECORDS_BEGIN + RECORD_BYTES * min(written, capacity)])
    # One that was being written when the copy was made is not counted yet: it takes the place of the oldest.
    first = max(first, words[WRITTEN] + 1 - capacity) if words[WRITTEN] >= capacity else first
    names, begin = [], _NAMES_BEGIN
    for _ in range(words[NAMES]):
        (length,) = _ONE_LENGTH.unpack_from(memory, begin)
        names.append(bytes(memory[begin + 2 : begin + 2 + length]).decode("utf-8", "replace"))
        begin += 2 + length
    numbered = {i for i, name in enumerate(names) if name.startswith(_HAVE_NUMBERS)}
    records: List[Record] = []
    ended = [0] * MAX_OPEN  # by level: how many spans had been written with the latest one of it
    for i in range(first, written):
        place = RECORD_BYTES * (i % capacity)
        start, end, command, name, thread, level = SPAN.unpack_from(copied, place)
        a, b, c, d = NUMBERS.unpack_from(copied, place + SPAN.size) if name in numbered else _UNKNOWN
        records.append(Record(start, end, command, name, thread, level, (a, b, c, d)))
        if thread == 0 and level < MAX_OPEN:
            ended[level] = i + 1
    for level, (start, before, name, command) in enumerate(OPEN.iter_unpack(begun)):
        if max(ended[: level + 1]) >= before:
            break
        records.append(Record(start, -1, command, name, 0, level, _UNKNOWN))
    counts = {name: int(words[_COUNTS + i]) for i, name in enumerate(names)}
    return Content(names, counts, records, first, int(words[OFFSET]), int(words[ERROR]))


def used(memory: memoryview) -> bytes:
    """Return the bytes of a ring up to the last one that was written: what has to travel to another host."""
    written = memory[:8].cast("q")[0]
    capacity = (len(memory) - RECORDS_BEGIN) // RECORD_BYTES
    return bytes(memory[: RECORDS_BEGIN + RECORD_BYTES * min(written + 1, capacity)])
