"""Stand-in for mpi4py's communicators between threads of one process: messages, tags, and tested requests.

As in MPI, messages of one sender with one tag arrive in order, and only while a request is tested. Small messages leave
immediately, large ones when they are received. Messages arrive after a random delay of a few tests, and all messages of
a link can be delayed.
"""

import random
import threading
from collections import defaultdict, deque

import numpy as np


class World:
    """Communicators of n processes.

    Parameters
    ----------
    n : int
    eager : int
        Largest message, in bytes, whose send is complete immediately.
    late : int
        Largest delay of a message, as a number of tests by its receiver.
    """

    def __init__(self, n, eager=1000, late=3):
        self.lock = threading.RLock()
        self.eager, self.late = eager, late
        self.random = random.Random(n)
        self.comms = [Comm(self, rank, n) for rank in range(n)]
        self.held = set()  # (source, dest) whose messages are delayed
        self.sent, self.nbytes = 0, {}  # number of messages, and the bytes sent by (source, dest)
        self.come = [0] * n  # number of barriers that each process has reached


class Comm:
    """Communicator of one process."""

    def __init__(self, world, rank, size):
        self.world, self.rank, self.size = world, rank, size
        self.coming = deque()  # messages sent to this process, in order
        self.unexpected = defaultdict(deque)  # messages by (source, tag)
        self.posted = defaultdict(deque)  # receives by (source, tag)
        self.tests = 0

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return self.size

    def Isend(self, buffer, dest, tag):
        request = Request(self, buffer, (self.rank, tag))
        with self.world.lock:
            self.world.sent += 1
            self.world.nbytes[self.rank, dest] = self.world.nbytes.get((self.rank, dest), 0) + buffer.nbytes
            if buffer.nbytes <= self.world.eager:
                request.buffer, request.complete = buffer.copy(), True
            self.world.comms[dest].coming.append([self.world.random.randint(0, self.world.late), request])
        return request

    def Irecv(self, buffer, source, tag):
        assert 0 <= source < self.size and source != self.rank and buffer.flags.writeable
        request = Request(self, buffer, (source, tag))
        with self.world.lock:
            self.posted[source, tag].append(request)
            self.match((source, tag))
        return request

    def Ibarrier(self):
        with self.world.lock:
            self.world.come[self.rank] += 1
            return Barrier(self, self.world.come[self.rank])

    def advance(self):
        """Deliver messages, as MPI does while a request is tested."""
        late = set()
        for entry in list(self.coming):
            source = entry[1].key[0]
            if source in late or (source, self.rank) in self.world.held:
                continue
            if entry[0]:
                entry[0] -= 1
                late.add(source)  # with all messages that it has sent since
                continue
            self.coming.remove(entry)
            self.unexpected[entry[1].key].append(entry[1])
            self.match(entry[1].key)

    def match(self, key):
        while self.posted[key] and self.unexpected[key]:
            receive, send = self.posted[key].popleft(), self.unexpected[key].popleft()
            if send.buffer.nbytes > receive.buffer.nbytes:
                receive.error = RuntimeError("message truncated")
            else:
                receive.buffer[: send.buffer.nbytes] = send.buffer
            receive.nbytes = send.buffer.nbytes
            receive.complete = send.complete = True


class Barrier:
    """Request that is complete when all processes have reached the barrier."""

    error, nbytes = None, 0

    def __init__(self, comm, number):
        self.comm, self.number = comm, number

    @property
    def complete(self):
        return min(self.comm.world.come) >= self.number

    @staticmethod
    def Testsome(requests, statuses):
        return Request.Testsome(requests, statuses)


class Request:
    """Request of a send or a receive."""

    def __init__(self, comm, buffer, key):
        assert buffer.dtype == np.uint8 and buffer.ndim == 1
        self.comm, self.buffer, self.key = comm, buffer, key
        self.complete, self.error, self.nbytes = False, None, 0

    @classmethod
    def Testsome(cls, requests, statuses):
        comm = requests[0].comm
        with comm.world.lock:
            comm.tests += 1
            comm.advance()
            for request in requests:
                if request.error:
                    raise request.error
            found = [i for i, request in enumerate(requests) if request.complete]
            statuses += [Status(requests[i].nbytes) for i in found]
            return found


class Status:
    """Status of a complete request."""

    def __init__(self, nbytes):
        self.nbytes = nbytes

    def Get_count(self):
        return self.nbytes
