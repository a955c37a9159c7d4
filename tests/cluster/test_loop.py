"""The event loop of the process that represents a host."""

import os
import time

import pytest

from synkhronos.cluster.loop import EventLoop


class Pipe:
    """Pipe whose read end is watched by the loop."""

    def __init__(self, loop, call=None):
        self.fd, self.writes = os.pipe()
        self.read, self._call = [], call
        loop.watch(self, self.called)

    def fileno(self):
        return self.fd

    def write(self):
        os.write(self.writes, b"x")

    def called(self):
        self.read.append(os.read(self.fd, 1))  # blocks forever without data
        if self._call:
            self._call()

    def __del__(self):
        os.close(self.fd)
        os.close(self.writes)


@pytest.fixture
def loop():
    return EventLoop()


def test_calls_are_made_for_what_can_be_read(loop):
    first, second = Pipe(loop), Pipe(loop)
    loop.turn(0)
    assert first.read == second.read == []
    second.write()
    loop.turn(30)
    assert (first.read, second.read) == ([], [b"x"])


def test_a_turn_ends_in_time(loop):
    Pipe(loop)
    begin = time.monotonic()
    loop.turn(0.02)
    assert time.monotonic() - begin >= 0.02


def test_what_a_call_has_had_forgotten_is_not_called(loop):
    pipes = []
    pipes.extend(Pipe(loop, lambda i=i: loop.forget(pipes[1 - i])) for i in range(2))
    for pipe in pipes:
        pipe.write()
    loop.turn(30)
    loop.turn(0)
    assert sorted(pipe.read for pipe in pipes) == [[], [b"x"]]


def test_what_was_read_in_a_turn_inside_is_not_read_again(loop):
    pipes = []
    pipes.extend(Pipe(loop, lambda: loop.turn(0)) for i in range(3))
    for pipe in pipes:
        pipe.write()
    loop.turn(30)
    assert [pipe.read for pipe in pipes] == [[b"x"]] * 3


def test_a_later_call_follows_those_of_what_can_be_read(loop):
    """It is made once, even if one of these calls runs a turn."""
    calls = []
    pipes = [Pipe(loop, lambda: [calls.append("read"), loop.turn(0)]) for _ in range(2)]
    loop.later(0, lambda: calls.append("later"))
    loop.later(3600, lambda: calls.append("too early"))
    for pipe in pipes:
        pipe.write()
    loop.turn(30)
    assert calls == ["read", "read", "later"]
    pipes[0].write()
    loop.turn(30)
    assert calls == ["read", "read", "later", "read"]


def test_a_later_call_that_is_added_in_a_turn_waits_for_the_next(loop):
    """Files may have become readable meanwhile, if the process has paused."""
    calls, pipes = [], []
    pipes.append(Pipe(loop, lambda: [pipes[1].write(), loop.later(0, lambda: calls.append("later"))]))
    pipes.append(Pipe(loop, lambda: calls.append("read")))
    pipes[0].write()
    for _ in range(2):
        loop.turn(30)
    assert calls == ["read", "later"]


def test_the_end_of_what_is_watched_calls(loop):
    pipe = Pipe(loop)
    os.dup2(os.open(os.devnull, os.O_RDONLY), pipe.writes)  # closes the other end
    loop.turn(30)
    assert pipe.read == [b""]
