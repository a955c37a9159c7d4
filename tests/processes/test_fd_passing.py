"""Messages with file descriptors arrive over a socket pair completely or not at all."""

import os
import pickle
import resource

import pytest
from refusals import reports

from synkhronos.processes import fd_passing as descriptors

pytestmark = pytest.mark.slow


@pytest.fixture
def ends():
    ours, theirs = descriptors.socket_pair()
    for end in (ours, theirs):
        end.settimeout(10)
    yield ours, theirs
    ours.close()
    theirs.close()


def make_pipes(n):
    """Return the read ends of n pipes; the k-th contains the number k."""
    reads = []
    for k in range(n):
        read, write = os.pipe()
        os.write(write, b"%d" % k)
        os.close(write)
        reads.append(read)
    return reads


@pytest.mark.parametrize("n", [0, 1, 248, 249, 250, 251, 600])
def test_descriptors_arrive_in_order(ends, n):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * n + 50:
        pytest.skip("needs more open files")
    ours, theirs = ends
    reads = make_pipes(n)
    before = len(os.listdir("/proc/self/fd"))
    descriptors.send(ours, {"n": n}, reads)
    message, received = descriptors.receive(theirs)
    assert message == {"n": n} and len(received) == n
    assert not any(os.get_inheritable(fd) for fd in received)
    assert [os.read(fd, 10) for fd in received] == [b"%d" % k for k in range(n)]
    assert len(os.listdir("/proc/self/fd")) == before + n  # no other descriptors
    for fd in reads + received:
        os.close(fd)


def test_long_messages_and_both_directions(ends):
    ours, theirs = ends
    descriptors.send(ours, "x" * (5 << 20))
    descriptors.send(theirs, ["back"])
    descriptors.send(ours, "second")
    assert descriptors.receive(theirs) == ("x" * (5 << 20), [])
    assert descriptors.receive(theirs) == ("second", [])
    assert descriptors.receive(ours) == (["back"], [])


def test_closed_end(ends):
    ours, theirs = ends
    descriptors.send(ours, 1)
    ours.close()
    assert descriptors.receive(theirs) == (1, [])
    with pytest.raises(EOFError):
        descriptors.receive(theirs)
    with pytest.raises(BrokenPipeError):
        descriptors.send(theirs, 2)


def test_no_message_in_time(ends):
    ends[0].settimeout(0.05)
    with pytest.raises(OSError):
        descriptors.receive(ends[0])


@pytest.mark.parametrize("n", [30, 400])
def test_too_few_free_descriptors(ends, n):
    """The message is lost, its descriptors are closed, and the next one arrives."""
    ours, theirs = ends
    reads = make_pipes(n)
    descriptors.send(ours, "lost", reads)
    descriptors.send(ours, "next")
    for fd in reads:
        os.close(fd)
    before = sorted(map(int, os.listdir("/proc/self/fd")))
    free = [fd for fd in range(before[-1] + 20) if fd not in before]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[10], limits[1]))
    try:
        with reports(OSError, "ulimit -n"):
            descriptors.receive(theirs)
        assert descriptors.receive(theirs) == ("next", [])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_what_cannot_be_pickled_is_not_sent(ends):
    ours, theirs = ends
    with pytest.raises((AttributeError, pickle.PicklingError)):  # the type depends on the Python version
        descriptors.send(ours, lambda: 0)
    descriptors.send(ours, "fine")
    assert descriptors.receive(theirs) == ("fine", [])
