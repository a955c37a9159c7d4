"""The ring of a rank: shared memory that keeps its latest spans, whatever becomes of the rank.

::

    words      spans written so far | depth of what is open | bytes of names | names | offset and error of the clock
    open       what has begun and not ended: when, name, command
    counts     by name: how many spans of that name were counted, those of commands; whatever became of them
    names      "engine\\tTheanoEngine.call", "command\\tfunction\\ttrain", each with its length before it
    records    the spans, each in the place of the one that was written ``capacity`` spans before

The rank alone writes. A reader looks at the number of spans before and after, and leaves out those that may have been
overwritten meanwhile.
"""

from __future__ import annotations

import struct
from typing import Dict, List, NamedTuple, Tuple

#: Places of words.
WRITTEN, DEPTH, NAME_BYTES, NAMES, OFFSET, ERROR = range(6)

#: Things that can be open at a time, each in three words; deeper ones are recorded when they end.
MAX_OPEN = 32
#: Different names; all others are called "other".
MAX_NAMES = 512
#: Bytes of all names, and of one.
ALL_NAMES_BYTES, ONE_NAME_BYTES = 1 << 15, 200

_OPEN = 8
_COUNTS = _OPEN + 3 * MAX_OPEN
_HEAD_WORDS = _COUNTS + MAX_NAMES
_NAMES_BEGIN = 8 * _HEAD_WORDS
_RECORDS_BEGIN = _NAMES_BEGIN + ALL_NAMES_BYTES

#: Begin and end in nanoseconds; command; name, thread and level; and what the name says of four numbers.
_RECORD = struct.Struct("<qqIHBBqqqq")
_ONE_LENGTH = struct.Struct("<H")

#: Spans that the rings of all ranks keep together at most, and that of one rank; 56 bytes each.
MAX_SPANS, MAX_SPANS_OF_RANK = 1 << 20, 1 << 16


def ring_bytes(n_ranks: int) -> int:
    """Return the bytes of each ring if there are so many ranks."""
    return _RECORDS_BEGIN + _RECORD.size * min(MAX_SPANS_OF_RANK, MAX_SPANS // n_ranks)


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
        Of `ring_bytes`, zeros at first.
    """

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        self.words = memory[:_NAMES_BEGIN].cast("q")
        self.capacity = (len(memory) - _RECORDS_BEGIN) // _RECORD.size
        #: The number of the command in progress, or of the last one.
        self.command = 0
        self.written = 0
        self._numbers: Dict[str, int] = {}
        self.number("other")

    def number(self, name: str) -> int:
        """Return the number of a name, which is written down at its first use."""
        found = self._numbers.get(name)
        if found is None:
            found = self._numbers[name] = self._added(name.encode("utf-8", "replace")[:ONE_NAME_BYTES])
        return found

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

    def begin(self, depth: int, moment: int, name: int, command: int) -> None:
        """Write down that something has begun within ``depth`` other things."""
        if depth < MAX_OPEN:
            words, place = self.words, _OPEN + 3 * depth
            words[place] = moment
            words[place + 1] = name
            words[place + 2] = command
            words[DEPTH] = depth + 1

    def end(
        self,
        begin: int,
        end: int,
        command: int,
        name: int,
        thread: int,
        level: int,
        first: int = -1,
        second: int = -1,
        third: int = -1,
        fourth: int = -1,
    ) -> None:
        """Write a span; of the first thread, whose latest open thing this was."""
        written, words = self.written, self.words
        place = _RECORDS_BEGIN + _RECORD.size * (written % self.capacity)
        _RECORD.pack_into(self.memory, place, begin, end, command, name, thread, level, first, second, third, fourth)
        words[WRITTEN] = self.written = written + 1
        if thread == 0:
            words[DEPTH] = level

    def count(self, name: int) -> None:
        """Count a span of that name: it is known how many there were when they are not there any more."""
        self.words[_COUNTS + name] += 1


def set_clock(memory: memoryview, offset: int, error: int) -> None:
    """Note in a ring what its rank's clock is ahead of the master's."""
    words = memory[:_NAMES_BEGIN].cast("q")
    words[OFFSET], words[ERROR] = offset, error


def read(memory: memoryview) -> Content:
    """Return what is in a ring, while its rank goes on or after it has ended."""
    capacity = (len(memory) - _RECORDS_BEGIN) // _RECORD.size
    words = memory[:_NAMES_BEGIN].cast("q")
    written, depth = words[WRITTEN], min(words[DEPTH], MAX_OPEN)
    still_open = words[_OPEN : _OPEN + 3 * depth].tolist()
    first = max(0, written - capacity)
    copied = bytes(memory[_RECORDS_BEGIN : _RECORDS_BEGIN + _RECORD.size * min(written, capacity)])
    # One that was being written when the copy was made is not counted yet: it takes the place of the oldest.
    first = max(first, words[WRITTEN] + 1 - capacity) if words[WRITTEN] >= capacity else first
    names, begin = [], _NAMES_BEGIN
    for _ in range(words[NAMES]):
        (length,) = _ONE_LENGTH.unpack_from(memory, begin)
        names.append(bytes(memory[begin + 2 : begin + 2 + length]).decode("utf-8", "replace"))
        begin += 2 + length
    records = []
    for i in range(first, written):
        start, end, command, name, thread, level, a, b, c, d = _RECORD.unpack_from(
            copied, _RECORD.size * (i % capacity)
        )
        records.append(Record(start, end, command, name, thread, level, (a, b, c, d)))
    for level in range(depth):
        start, name, command = still_open[3 * level : 3 * level + 3]
        records.append(Record(start, -1, command, name, 0, level, (-1, -1, -1, -1)))
    counts = {name: int(words[_COUNTS + i]) for i, name in enumerate(names)}
    return Content(names, counts, records, first, int(words[OFFSET]), int(words[ERROR]))


def used(memory: memoryview) -> bytes:
    """Return the bytes of a ring up to the last one that was written: what has to travel to another host."""
    written = memory[:8].cast("q")[0]
    capacity = (len(memory) - _RECORDS_BEGIN) // _RECORD.size
    return bytes(memory[: _RECORDS_BEGIN + _RECORD.size * min(written + 1, capacity)])
