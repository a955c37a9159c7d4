"""Faults of the protocol to plant, one at a time; the simulated world must find each of them.

A fault replaces lines of a method by wrong ones. Some of the library's own lines would hide it: a wake-up that is
missed at a barrier, for example, costs a tenth of a second, because every wait also looks at the words by itself.
"""

import inspect
import textwrap
from contextlib import contextmanager
from unittest import mock

from synkhronos.cluster import wire
from synkhronos.cluster.bulk_transfers import BulkTransfers
from synkhronos.cluster.deputy import Deputy
from synkhronos.cluster.requests import Requests
from synkhronos.cluster.stand_in import StandIn
from synkhronos.memory.pool import Pool
from synkhronos.processes import keeper
from synkhronos.replication.command import Rejoin
from synkhronos.runtime import channel
from synkhronos.runtime.channel import MasterEnd, RankEnd
from synkhronos.runtime.deposits import Deposits
from synkhronos.runtime.healing import Healing
from synkhronos.runtime.session import Session
from synkhronos.runtime.transaction import Transaction
from synkhronos.sync import barrier
from synkhronos.sync.barrier import Barrier
from synkhronos.sync.control_block import ControlBlock
from synkhronos.sync.host_relay import LeaderRelay, RootRelay
from synkhronos.sync.link import Link
from synkhronos.transports.common import CommonMemory
from synkhronos.transports.shared_memory import SharedMemoryTransport

#: By name: the owners and the name of a function, and its lines with their wrong replacements.
PLANTS = {
    "a missed wakeup of the master": (
        [RankEnd],
        "send",
        {"block.answers[self.rank].release()": "pass"},
    ),
    "a missed wakeup of a rank": (
        [MasterEnd],
        "send",
        {"for rank in self.ranks:": "for rank in self.ranks[1:]:"},
    ),
    "a missed wakeup at a barrier": (
        [Barrier],
        "_await_arrivals",
        {"block.releases[rank].release()": "pass"},
    ),
    "a decision before the last arrival": (
        [Barrier],
        "_await_arrivals",
        {
            "for _ in self._others[taken:]:": "for _ in self._others[1:]:",
            "while self._arrived[rank] < current:": "while self._arrived[rank] < current and rank != self._others[0]:",
        },
    ),
    "an abort that reaches no rank": (
        [Barrier],
        "abort",
        {"words[ABORTED] = max(words[ABORTED], self.command)": "pass"},
    ),
    "an abort of the next command, too": (
        [Barrier],
        "abort",
        {"words[ABORTED] = max(words[ABORTED], self.command)": "words[ABORTED] = self.command + 1"},
    ),
    "an abort that is requested for the command before": (
        [Barrier],
        "abort",
        {"words[ABORT_REQUESTED] = self.command": "words[ABORT_REQUESTED] = self.command - 1"},
    ),
    "barriers counted from the command before": (
        [Barrier],
        "begin",
        {
            "self.current = command * BARRIERS_PER_COMMAND": "self.current = (command - (self.rank != self.root)) * BARRIERS_PER_COMMAND"
        },
    ),
    "one slot for all notices": (
        [Barrier],
        "exchange",
        {"turn = (self.command + self.current + 1) % 2": "turn = 0"},
    ),
    "a promise that is valid before its barrier": (
        [barrier, channel],
        "is_due",
        {"and promised <= block.words[DECIDED]": ""},
    ),
    "a promise that stays valid for later commands": (
        [barrier, channel],
        "is_due",
        {"promised // BARRIERS_PER_COMMAND == command": "promised"},
    ),
    "an answer to the command before": (
        [MasterEnd],
        "wait",
        {"block.finished[rank] < number": "block.finished[rank] < number - 1"},
    ),
    "an answer that is announced before it is written": (
        [RankEnd],
        "send",
        {
            "self._put(payload)\n": "pass\n",
            "block.answers[self.rank].release()": "block.answers[self.rank].release()\n    self._put(payload)",
        },
    ),
    "a command that is announced before it is written": (
        [MasterEnd],
        "send",
        {
            "words[COMMAND_NUMBER] = number\n": "pass\n",
            "block, words = self.block, self.block.words": "block, words = self.block, self.block.words\n    words[COMMAND_NUMBER] = number",
        },
    ),
    "a command that is taken for a shorter one": (
        [RankEnd],
        "read",
        {
            "known = self._frozen.get(payload)\n": "known = self._frozen.get(len(payload))\n",
            "self._frozen[payload] = envelope": "self._frozen[len(payload)] = envelope",
        },
    ),
    "changes of an aborted command": (
        [Transaction],
        "_make_or_undo",
        {"if self.barrier.is_complete(self._commitment):": "if True:"},
    ),
    "a decided change that is dropped": (
        [Transaction],
        "settle",
        {"self._make_or_undo()": "self._commitment, self._changes, self._undo_log = None, (), []"},
    ),
    "an undo log that is dropped too early": (
        [Transaction],
        "apply_tentatively",
        {"self._undo_log.append((self.barrier.current + 1, undo))": "pass"},
    ),
    "a slot that is swapped twice": (
        [SharedMemoryTransport],
        "swap_in",
        {"slot.spare = before": "slot.spare, slot.current = after, before"},
    ),
    "a journal that is one command old": (
        [Healing],
        "record_deposits",
        {
            "for answer in answers:": "last, self._last = vars(self).get('_last', ()), answers\n    for answer in last:",
        },
    ),
    "a deposit that is overwritten before the commit": (
        [Deposits],
        "_stage_copy",
        {
            "spare = self._transport.allocate(": "old = self._transport.current(_key(entry.number, entry.on_device))\n"
            "    spare = old if old is not None and old.shape == value.shape else self._transport.allocate("
        },
    ),
    "values that are not restored": (
        [Deposits],
        "restore",
        {"self._staged = []": "self._staged, self._entries = [], ()"},
    ),
    "survivors that keep what they have begun": (
        [Rejoin],
        "run",
        {"deposits.restore(even_kept=True)": "pass"},
    ),
    "a step that overwrites the values from before its command": (
        [CommonMemory],
        "spare",
        {"if slot.spare is self._kept.get(key):": "if slot.spare is None:"},
    ),
    "common memory that is not made current again": (
        [CommonMemory],
        "release",
        {"if undo:": "if not undo:"},
    ),
    "a replacement that maps the spare array": (
        [CommonMemory],
        "saved",
        {"**{key: slot.current": "**self._kept, **{key: slot.spare or slot.current", ", **self._kept}": "}"},
    ),
    "a replacement that maps the array of a step": (
        [CommonMemory],
        "saved",
        {"**{key: slot.current": "**self._kept, **{key: slot.current", ", **self._kept}": "}"},
    ),
    "a replacement that keeps nothing apart": (
        [CommonMemory],
        "restore",
        {"handles, self._apart = saved": "handles, _ = saved"},
    ),
    "survivors that remember the spare arrays": (
        [Rejoin],
        "run",
        {", SPARES})": "})"},
    ),
    "new values that are current before the last arrival": (
        [Transaction],
        "commit",
        {"self.transport.agree(label)": "[change() for change in changes] and self.transport.agree(label)"},
    ),
    "a deposit in a rank's own memory that is freed too early": (
        [Deposits],
        "restore",
        {"self._own.get(entry.number)": "self._transport.current(_key(entry.number, entry.on_device))"},
    ),
    "a dead rank's memory that is allocated again": (
        [Pool],
        "_take_all",
        {"self._free.take_at(start, size)": "pass"},
    ),
    "a replacement that repeats the last command": (
        [ControlBlock],
        "reset",
        {"self.finished[rank] = command": "pass"},
    ),
    "a death that is not recorded": (
        [keeper],
        "record_exit",
        {"block.ended[rank] = 1": "pass"},
    ),
    "a death word that is cleared": (
        [Session],
        "_look",
        {"self.launcher.forward(False)": "self.block.words[DEATHS], self.block.ended[self.others[0]] = 0, 0"},
    ),
}

ALONE = "a host that commits alone"

#: The same, of the protocol between hosts.
PLANTS_OVER_HOSTS = {
    "a leader that continues without a notice": (
        [LeaderRelay],
        "has_all",
        {"all([each == number for each in noticed])": "True"},
    ),
    "a notice that overwrites the next one": (
        [LeaderRelay],
        "on_decided",
        {"self.write_notices(of, notices)": "self.write_notices(number, notices)"},
    ),
    "a decision that is announced before its notices": (
        [LeaderRelay],
        "on_decided",
        {
            "self.write_notices(of, notices)\n": "words[DECIDED] = number\n",
            "self.block.releases[rank].release()": "self.block.releases[rank].release()\n        self.write_notices(of, notices)",
        },
    ),
    "a promise that is valid at once": (
        [RootRelay],
        "on_arrived",
        {"block.promised[rank] = barrier": "block.promised[rank] = number - 1"},
    ),
    "an answer that is taken for the root's": (
        [LeaderRelay],
        "forward",
        {"if is_due(block, self._promised[rank], number):": "if self._promised[rank]:"},
    ),
    "a cut cable that is not noticed": (
        [wire.Line],
        "_send_rest",
        {'self._send(b"")': "pass"},
    ),
    "a lost host that is taken for another": (
        [StandIn],
        "lose",
        {"self.hosts.ranks[host]": "self.hosts.ranks[len(self.hosts.ranks) - host]"},
    ),
    "a death that hides the others": (
        [Deputy],
        "replace",
        {"self._ended.discard(rank)": "pass"},
    ),
    "an abort that does not wait for decisions": (
        [Deputy],
        "_abort",
        {"while self._aborted and words[DECIDED] >= self._aborted[0][1]:": "while self._aborted:"},
    ),
    "an abort that stops at the first host": (
        [StandIn],
        "look",
        {"for line in self.requests.lines[1:]:": "for line in self.requests.lines[1:2]:"},
    ),
    "reductions that are counted differently after an abort": (
        [BulkTransfers],
        "skip_to",
        {"self.reductions = reductions": "self.reductions += 3"},
    ),
    "a number of a reduction that was given up is used again": (
        [BulkTransfers],
        "after_abort",
        {"self.reductions + MAX_COUNT_DIFFERENCE + 1": "max(0, self.reductions - 1)"},
    ),
    "a reduction that others have given up, and that one host does not end": (
        [Requests],
        "on_finish",
        {"number in bulk.skipped": "False"},
    ),
    "a reduction that a host takes part in twice": (
        [Requests],
        "on_finish",
        {"bulk.skipped.remove(number)": "pass"},
    ),
    "memory that is announced before it is there": (
        [Requests],
        "on_memory",
        {
            "self._end_fetch(number, self._write(fetch.ranges, memoryview(content)))": "self._end_fetch(number)\n            self._write(fetch.ranges, memoryview(content))"
        },
    ),
    "a copy of another host's memory that is old": (
        [Requests],
        "_begin_fetch",
        {
            "if epoch != self._epoch:": "if self._epoch < 0:",
            "(fetch.error if ranges.constant else waits.rank in fetch.ranks)": "fetch.error",
        },
    ),
    "a message that is lost in an interrupt": (
        [Link],
        "receive",
        {"        if is_last:\n": "        self._n_processed = needed\n        if is_last:\n"},
    ),
    ALONE: (
        [Transaction],
        "commit",
        {
            "self.transport.agree(label)": "self.transport.home == self.transport.root or [change() for change in changes]\n            self.transport.agree(label)"
        },
    ),
    "the root's host alone does not use its spare array": (
        [CommonMemory],
        "offered",
        {"or self.always_copies": ""},
    ),
    "a replaced leader whose array no other rank maps": (
        [CommonMemory],
        "restore",
        {"pool.adopt(handle)": "pool.adopt(handle).copy()"},
    ),
    "parts of all ranks instead of the host's": (
        [SharedMemoryTransport],
        "part",
        {"part_of(size, self.near.index(self.rank), len(self.near))": "part_of(size, self.rank, self.size)"},
    ),
    "a replaced leader without the command": (
        [RootRelay],
        "reconnect",
        {"self._told[host] = link, others, [0, 0]": "self._told[host] = link, others, _"},
    ),
}
#: What finds a fault: a schedule, which tests run first, or a program of `test_simulation.IN_COMMON_MEMORY`. The others are
#: among the first ten schedules (``tools/simulate.py --plants``).
FOUND_BY = {
    "an abort of the next command, too": 30,
    "an abort that is requested for the command before": 16,
    "a command that is announced before it is written": 51,
    "changes of an aborted command": 101,
    "an undo log that is dropped too early": 126,
    "a deposit that is overwritten before the commit": 101,
    "survivors that keep what they have begun": 29,
    "a step that overwrites the values from before its command": 229,
    "a replacement that maps the array of a step": 29,
    "a replacement that keeps nothing apart": 36,
    "survivors that remember the spare arrays": 28,
    "a deposit in a rank's own memory that is freed too early": "from the ranks' own memory",
    "a replacement that repeats the last command": 53,
    "a leader that continues without a notice": 419,
    "a notice that overwrites the next one": 41,
    "a promise that is valid at once": 28,
    "a cut cable that is not noticed": 15,
    "a lost host that is taken for another": 29,
    "a death that hides the others": 150,
    "an abort that does not wait for decisions": 568,
    "a reduction that a host takes part in twice": 28,
    "a message that is lost in an interrupt": 81,
    "the root's host alone does not use its spare array": 165,
    "a replaced leader whose array no other rank maps": 92,
    "a replaced leader without the command": 32,
}


@contextmanager
def planted(name):
    """Plant a fault; plant it before the simulated world observes the library's methods."""
    owners, function, changes = {**PLANTS, **PLANTS_OVER_HOSTS}[name]
    original = vars(owners[0])[function]
    source = textwrap.dedent(inspect.getsource(original))
    for right, wrong in changes.items():
        assert right in source, f"{name}: {right!r} is no longer in {function}"
        source = source.replace(right, wrong)
    source = "\n".join(line for line in source.split("\n") if not line.startswith("@"))
    found = {}
    code = compile("from __future__ import annotations\n" + source, f"<{name}>", "exec")
    exec(code, original.__globals__, found)
    patches = [mock.patch.object(owner, function, found[function]) for owner in owners]
    tables = [vars(owner).get(table, {}) for owner in owners for table in ("handlers", "questions", "kinds")]
    patches += [
        mock.patch.dict(table, {key: found[function]}) for table in tables for key in table if table[key] is original
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()
