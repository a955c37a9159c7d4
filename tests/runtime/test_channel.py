"""The channel for commands and answers."""

import pickle
import threading

import pytest

from synkhronos.errors import SharedMemoryError
from synkhronos.memory.attach import PoolMap
from synkhronos.memory.pool import Pool
from synkhronos.processes.rank_main import fatal_error, record_fatal_error
from synkhronos.runtime.channel import FROZEN_BYTES, MAX_FROZEN, MasterEnd, RankEnd
from synkhronos.runtime.command import Command, Envelope
from synkhronos.runtime.news import attached
from synkhronos.selection import RowRange
from synkhronos.sync.control_block import ANSWER_BYTES, COMMAND_BYTES, COMMAND_NUMBER, ControlBlock
from synkhronos.sync.semaphore import WaitPolicy


class Channel:
    """A master and two ranks in one process."""

    def __init__(self):
        self.block = ControlBlock(3)
        self.block.close()
        pools = {rank: Pool(rank) for rank in range(3)}
        maps = PoolMap()
        for rank, pool in pools.items():
            maps.add(rank, pool.fileno())
        policy = WaitPolicy.of_threads()
        self.master = MasterEnd(self.block, [0, 2], pools[1], maps, policy)
        self.ends = {rank: RankEnd(self.block, rank, pools[rank], maps, policy) for rank in (0, 2)}
        self.pools = pools


@pytest.fixture
def channel():
    return Channel()


def never():
    raise AssertionError("waits too long")


@pytest.mark.parametrize("length", [0, 10, ANSWER_BYTES, COMMAND_BYTES - 50, COMMAND_BYTES, 1 << 20])
def test_there_and_back(channel, length):
    for number in (1, 2, 9):
        channel.master.send(number, pickle.dumps(Envelope((), ("command", b"c" * length))))
        for rank, end in channel.ends.items():
            assert end.wait(never) == number
            assert end.read().command == ("command", b"c" * length)
            end.send(number, pickle.dumps((rank, b"a" * length)))
        for rank in channel.ends:
            channel.master.wait(rank, number, never)
            assert channel.master.read(rank) == (rank, b"a" * length)
    assert channel.pools[1].used <= length + 1000  # the next message frees a long one


class Hot(Command):
    """A command that may be run repeatedly."""

    def __init__(self, words):
        self.words = words

    def run(self, context):
        raise NotImplementedError


def read(channel, payload):
    """Send a command; return the envelope that rank 0 reads."""
    number = channel.block.words[COMMAND_NUMBER] + 1
    channel.master.send(number, payload)
    assert channel.ends[0].wait(never) == number
    envelope = channel.ends[0].read()
    channel.ends[0].send(number, pickle.dumps(None))
    return envelope


def test_a_frozen_command_is_unpickled_once(channel):
    hot, other = Hot("a"), Hot("b")
    for command in (hot, other):
        command.freeze()
    first, second = read(channel, hot.frozen), read(channel, other.frozen)
    assert (first.command.words, second.command.words) == ("a", "b")
    read(channel, pickle.dumps(Envelope((), Hot("a"))))
    assert read(channel, hot.frozen) is first and read(channel, other.frozen) is second


def test_rows_and_news_are_those_of_the_last_run(channel):
    hot, news = Hot("a"), [(1, "<f4", (), b"....")]
    hot.freeze()
    first = read(channel, attached(hot.frozen, (), RowRange(2, 9, 3)))
    assert (first.command.words, first.command.rows, first.news) == ("a", RowRange(2, 9, 3), ())
    for rows in (None, RowRange(0, 0), None, RowRange(9, -1, -2)):
        for given in (news, (), news):
            is_plain = rows is None and not given
            found = read(channel, hot.frozen if is_plain else attached(hot.frozen, given, rows))
            assert found.command is first.command and (found.command.rows, found.news) == (rows, given)


def test_another_command_is_unpickled(channel):
    plain = pickle.dumps(Envelope((), Hot("a")))
    assert read(channel, plain) is not read(channel, plain)  # the command is not frozen
    long = Hot("x" * FROZEN_BYTES)
    long.freeze()
    assert read(channel, long.frozen) is not read(channel, long.frozen)
    many = [Hot(i) for i in range(MAX_FROZEN + 1)]
    for command in many:
        command.freeze()
    found = [read(channel, command.frozen) for command in many]
    assert read(channel, many[1].frozen) is found[1] and read(channel, many[0].frozen) is not found[0]
    assert read(channel, many[0].frozen).command.words == 0


def test_waits_for_the_command(channel):
    got, waiting = [], threading.Event()
    thread = threading.Thread(target=lambda: got.append(channel.ends[0].wait(waiting.set)))
    thread.start()
    waiting.wait()
    assert not got
    channel.master.send(5, pickle.dumps(1))
    thread.join()
    assert got == [5]


def test_a_rank_that_nobody_wakes_notices_its_command(channel):
    """The first rank of its host may be stopped before it wakes the others."""
    calls = []

    def watch():
        calls.append(1)
        if len(calls) > 1:
            raise TimeoutError
        channel.block.words[COMMAND_NUMBER] = 3

    assert channel.ends[0].wait(watch) == 3


def test_calls_for_attention_are_no_messages(channel):
    channel.block.commands[0].release()
    channel.block.answers[0].release()
    calls = []

    def watch():
        calls.append(1)
        if len(calls) == 2:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        channel.ends[0].wait(watch)
    calls.clear()
    with pytest.raises(TimeoutError):
        channel.master.wait(0, 1, watch)


def test_answers_to_earlier_commands_do_not_count(channel):
    channel.master.send(1, pickle.dumps(1))
    for end in channel.ends.values():
        end.wait(never)
        end.send(1, pickle.dumps("old"))
    channel.master.wait(0, 1, never)  # the other answer's semaphore stays released
    channel.master.send(2, pickle.dumps(2))

    def watch():
        raise TimeoutError

    with pytest.raises(TimeoutError):
        channel.master.wait(2, 2, watch)


def test_no_memory_for_a_long_message(channel):
    channel.master.pool = Pool(1, window=64 << 20)
    with pytest.raises(SharedMemoryError):
        channel.master.send(1, b"x" * (65 << 20))
    assert channel.block.words[COMMAND_NUMBER] == 0
    assert not any(semaphore.try_acquire() for semaphore in channel.block.commands)
    end = channel.ends[0]
    end.pool = Pool(0, window=64 << 20)
    channel.master.send(1, pickle.dumps(1))
    end.wait(never)
    with pytest.raises(SharedMemoryError):
        end.send(1, b"x" * (65 << 20))
    assert channel.block.finished[0] == 0
    end.send(1, pickle.dumps("short"))
    channel.master.wait(0, 1, never)
    assert channel.master.read(0) == "short"


def test_a_dead_rank_is_noticed_by_the_watch(channel):
    waiting = threading.Event()

    def watch():
        waiting.set()
        if channel.block.ended[2]:
            raise ConnectionError("rank 2")

    def die():
        waiting.wait()
        channel.block.ended[2] = 1
        channel.block.answers[2].release()

    thread = threading.Thread(target=die)
    thread.start()
    with pytest.raises(ConnectionError):
        channel.master.wait(2, 1, watch)
    thread.join()


@pytest.mark.parametrize("length", [10, ANSWER_BYTES, 5 * ANSWER_BYTES])
def test_last_words_leave_the_answer_that_waits(channel, length):
    """If a rank ends after it has answered, the master can still read the answer."""
    answer = b"a" * length
    channel.ends[2].send(1, pickle.dumps(answer))
    record_fatal_error(channel.block, 2, MemoryError("no memory for the next command"))
    channel.master.wait(2, 1, never)
    assert channel.master.read(2) == answer
    assert "no memory for the next command" in fatal_error(channel.block, 2)
