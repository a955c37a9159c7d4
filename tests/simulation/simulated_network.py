"""The edges between simulated hosts: sockets, polling, eventfds, the threads of serving processes, and MPI.

=====================  ================================================================================================
real                   simulated
=====================  ================================================================================================
TCP                    byte streams with drawn delays, fragments and windows; a cut cable or a host without power stops
                       them silently, and `TCP_USER_TIMEOUT` ends a connection as the kernel does
``poll``, selectors    `Poll`, which waits in the scheduler, also for the next arrival of bytes
eventfds               a number; its descriptor is a real file with the key of the number, so it can be passed on
threads, locks,        greenlets of the scheduler that belong to a process, and end with it
events, queues
mpi4py's communicator  `Communicator`: messages arrive late and in two parts; buffers are read when they are delivered
=====================  ================================================================================================

All drawn numbers come from `Network.rng`, so they follow from the schedule.
"""

import errno
import os
import queue
import random
import select
import selectors
import socket
import threading
from collections import deque
from typing import NamedTuple

from turns_of_ranks import DEAD, ENDED, FOREVER

from synkhronos.cluster.world import World
from synkhronos.host.interfaces import Interface
from synkhronos.memory.memfd import nameless_file
from synkhronos.sync import event_fd
from synkhronos.sync.link import FRAME_BYTES

WRITABLE_BYTES = 2 * FRAME_BYTES  # a socket with less free space does not count as writable
KEEPALIVE_S = 60.0  # a connection that only has keepalive notices a cut cable after this time
NEVER_ACKNOWLEDGED_S = 900.0  # the kernel's limit without TCP_USER_TIMEOUT
LAST_TAG = 32767
EAGER_BYTES = 2048  # MPI copies shorter messages when they are sent
CHUNK_BYTES = 1 << 14  # of transfers and reductions, which therefore consist of several messages


class Behavior(NamedTuple):
    """How the network of a schedule behaves.

    ``delay_s`` is the mean delay of bytes, and ``window_bytes`` the capacity of a connection. ``has_mpi`` states whether
    MPI carries large arrays, and ``mpi_fails`` whether it raises an error after the loss of a host, as Open MPI does.
    ``mpi_delay_s`` is the mean delay of a message, and of the second half of a long one.
    """

    delay_s: float = 1e-4
    window_bytes: int = 1 << 18
    has_mpi: bool = True
    mpi_fails: bool = False
    mpi_delay_s: float = 1e-4


class Delegate:
    """A replacement for a module, which has the other names of the module."""

    def __init__(self, module, **names):
        vars(self).update({**vars(module), **names})


class Pollable:
    """An object that a `Poll` can wait for."""

    def __init__(self):
        self.polls = []

    def events(self, now):
        raise NotImplementedError

    def next_event(self, now):
        """Return the time of the next event that follows from nobody's action."""
        return FOREVER


class Poll:
    """Replacement for ``select.poll`` and ``selectors.DefaultSelector``."""

    def __init__(self, network):
        self._network, self._items = network, {}

    def register(self, item, flags=select.POLLIN, data=None):
        fd = item.fileno()
        pollable = item if isinstance(item, Pollable) else self._network.pollables[fd]
        pollable.polls.append(self)
        self._items[fd] = pollable, flags, selectors.SelectorKey(item, fd, flags, data)

    def unregister(self, item):
        fd = next((fd for fd, each in self._items.items() if each[2].fileobj is item), item)
        self._items.pop(fd)[0].polls.remove(self)

    def poll(self, timeout_ms=None):
        return [(fd, events) for fd, events in self._wait(FOREVER if timeout_ms is None else timeout_ms / 1000)]

    def select(self, seconds):
        return [(self._items[fd][2], events) for fd, events in self._wait(seconds)]

    def close(self):
        for pollable, *_ in self._items.values():
            pollable.polls.remove(self)
        self._items = {}

    def _wait(self, seconds):
        scheduler = self._network.scheduler
        scheduler.visit("polled")
        until = scheduler.now + seconds
        while True:
            now, found, following = scheduler.now, [], until
            for fd, (pollable, flags, _) in self._items.items():
                events = pollable.events(now) & (flags | select.POLLHUP | select.POLLERR)
                if events:
                    found.append((fd, events))
                else:
                    following = min(following, pollable.next_event(now))
            if found or now >= until:
                return found
            scheduler.wait(self, following)


class Bell(event_fd.EventFd, Pollable):
    """Replacement for `EventFd`: a number of the network, whose key is in an unnamed file."""

    def __init__(self, network, fd=-1):
        self._network = network
        if fd >= 0:
            self._fd = os.dup(fd)
        else:
            self._fd = nameless_file("bell")
            network.bells.append([False, []])
            os.pwrite(self._fd, (len(network.bells) - 1).to_bytes(8, "little"), 0)
        self._state = network.bells[int.from_bytes(os.pread(self._fd, 8, 0), "little")]
        self.polls = self._state[1]

    def release(self):
        self._network.scheduler.visit("bell rung")
        self._state[0] = True
        self._network.wake(self)

    def drain(self):
        self._network.scheduler.visit("bell drained")
        self._state[0] = False

    def events(self, now):
        return select.POLLIN if self._state[0] else 0


class Socket(Pollable):
    """One end of a connection between two hosts."""

    def __init__(self, network, host):
        super().__init__()
        self.network, self.host, self.owner = network, host, network.scheduler.running.owner
        self.number = network.new(self)
        self.peer = None
        self._arriving, self._received = deque(), bytearray()  # times and bytes; bytes in the kernel's queue
        self._last = 0.0  # arrival of the last bytes
        self._limit = FOREVER  # time limit for blocking calls; 0 if they do not block
        self._options = {}
        self._ends_at, self._is_reset = FOREVER, False  # when the peer's end arrives here
        self.fails_at = FOREVER  # when the kernel gives the connection up
        self.is_open, self._is_shut = True, False

    def fileno(self):
        return self.number if self.is_open else -1

    def setsockopt(self, level, option, value):
        if not self.is_open:
            raise OSError(errno.EBADF, "the socket is closed")
        self._options[level, option] = value

    def setblocking(self, blocks):
        self._limit = FOREVER if blocks else 0.0

    def settimeout(self, seconds):
        self._limit = FOREVER if seconds is None else seconds

    # -- sending ---------------------------------------------------------------------------------------------------

    def send(self, content, flags=0):
        scheduler, rng = self.network.scheduler, self.network.rng
        scheduler.visit("sent")
        self._check_sendable()
        space, size = self._space(), len(content)
        if flags & socket.MSG_DONTWAIT:
            space = min(space, rng.choice((size, size, rng.randrange(size + 1))))
        elif self._limit:
            while self._space() < WRITABLE_BYTES:
                scheduler.wait(self, min(self.next_event(scheduler.now), scheduler.now + 1.0))
                self._check_sendable()
            space = self._space()
        if space <= 0:
            raise BlockingIOError(errno.EAGAIN, "the window is full")
        self._transmit(bytes(content[:space]))
        scheduler.visit("accepted by the kernel")
        return min(space, size)

    def sendall(self, content, flags=0):
        while len(content):
            content = content[self.send(content, flags) :]

    def _check_sendable(self):
        now = self.network.scheduler.now
        if not self.is_open:
            raise OSError(errno.EBADF, "the socket is closed")
        if now >= self.fails_at:
            raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")
        if self._is_shut or now >= self._ends_at and self._is_reset:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    def _space(self):
        peer = self.peer
        return self.network.behavior.window_bytes - len(peer._received) - sum([len(each[1]) for each in peer._arriving])

    def _transmit(self, content):
        network, peer, now = self.network, self.peer, self.network.scheduler.now
        if network.is_cut(self, peer):
            self._begin_to_fail(now)
            peer._arriving.append((FOREVER, content))
            return
        if not peer.is_open:  # a reset comes back
            self._ends_at, self._is_reset = min(self._ends_at, now + network.delay()), True
            return
        for part in network.fragments(content):
            peer._last = max(peer._last, now + network.delay())
            peer._arriving.append((peer._last, part))
        network.hasten(peer, peer._arriving[0][0])

    def _begin_to_fail(self, now):
        """The first bytes that will never be acknowledged have been sent."""
        limit = self._options.get((socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT), 0) / 1000
        self._fail_at(now + (limit or NEVER_ACKNOWLEDGED_S))

    def _fail_at(self, at):
        self.fails_at = min(self.fails_at, at)
        self.network.hasten(self, self.fails_at)

    def cut(self):
        """The cable of one of the hosts is cut."""
        now = self.network.scheduler.now
        self._deliver()
        if self._arriving:
            self._arriving = deque((FOREVER, content) for _, content in self._arriving)
            self.peer._begin_to_fail(now)
        if self._ends_at > now:
            self._ends_at = FOREVER
        if self._options.get((socket.SOL_SOCKET, socket.SO_KEEPALIVE)):
            self._fail_at(now + KEEPALIVE_S)

    # -- receiving -------------------------------------------------------------------------------------------------

    def _deliver(self):
        now = self.network.scheduler.now
        while self._arriving and self._arriving[0][0] <= now:
            self._received += self._arriving.popleft()[1]

    def recv(self, n):
        self._await_bytes()
        content = bytes(self._received[:n])
        self._remove(len(content))
        return content

    def recv_into(self, buffer, n=0, flags=0):
        self._await_bytes()
        n = min(n or len(buffer), len(self._received))
        buffer[:n] = self._received[:n]
        if not flags & socket.MSG_PEEK:
            self._remove(n)
        return n

    def _remove(self, n):
        was_full = self.peer._space() < WRITABLE_BYTES
        del self._received[:n]
        if was_full:
            self.network.wake(self.peer)

    def _await_bytes(self):
        """Return when bytes, or the end of the connection, are here."""
        scheduler = self.network.scheduler
        scheduler.visit("received")
        until = scheduler.now + self._limit
        while True:
            self._deliver()
            now = scheduler.now
            if self._received or self._is_shut:
                return
            if now >= self.fails_at:
                raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")
            if now >= self._ends_at and not self._arriving:
                if self._is_reset:
                    raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
                return
            if now >= until:
                raise socket.timeout("timed out") if self._limit else BlockingIOError(errno.EAGAIN, "nothing arrived")
            scheduler.wait(self, min(until, self.next_event(now)))

    # -- polling ---------------------------------------------------------------------------------------------------

    def events(self, now):
        if not self.is_open:
            return select.POLLNVAL
        self._deliver()
        least = self._options.get((socket.SOL_SOCKET, socket.SO_RCVLOWAT), 1)
        found = select.POLLIN if len(self._received) >= least else 0
        if now >= self.fails_at:
            return select.POLLIN | select.POLLERR | select.POLLHUP | select.POLLRDHUP
        if self._is_shut or now >= self._ends_at and not self._arriving:
            found |= select.POLLIN | select.POLLRDHUP | (select.POLLHUP if self._is_shut or self._is_reset else 0)
        if self._space() >= WRITABLE_BYTES or not self.peer.is_open:
            found |= select.POLLOUT
        return found

    def next_event(self, now):
        found = [self.fails_at, self._ends_at]
        if self._arriving:
            found.append(self._arriving[0][0])
        return min([each for each in found if each > now], default=FOREVER)

    # -- the end ---------------------------------------------------------------------------------------------------

    def shutdown(self, how):
        self.network.scheduler.visit("shut down")
        if not self.is_open:
            raise OSError(errno.EBADF, "the socket is closed")
        self._finish()

    def _finish(self):
        if self._is_shut:
            return
        self._is_shut, peer = True, self.peer
        if peer is not None and not self.network.is_cut(self, peer):
            self._deliver()
            peer._is_reset = bool(self._received) and self.network.rng.random() < 0.5
            peer._last = max(peer._last, self.network.scheduler.now + self.network.delay())
            peer._ends_at = min(peer._ends_at, peer._last)
            self.network.hasten(peer, peer._ends_at)
        self.network.wake(self)

    def close(self):
        if self.is_open:
            self._finish()
            self.is_open = False
            self.network.pollables.pop(self.number, None)


class ListeningSocket(Pollable):
    """A socket that listens at an address and a port of a host."""

    def __init__(self, network, endpoint):
        super().__init__()
        self.network, self.endpoint, self.owner = network, endpoint, network.scheduler.running.owner
        self.number, self._pending = network.new(self), deque()
        self.is_open = True

    def fileno(self):
        return self.number

    def getsockname(self):
        return self.endpoint

    def setblocking(self, blocks):
        pass

    def add(self, at, sock, address):
        self._pending.append((at, sock, address))
        self.network.hasten(self, at)

    def events(self, now):
        return select.POLLIN if self._pending and self._pending[0][0] <= now else 0

    def next_event(self, now):
        return self._pending[0][0] if self._pending else FOREVER

    def accept(self):
        self.network.scheduler.visit("connection accepted")
        if not self.events(self.network.scheduler.now):
            raise BlockingIOError(errno.EAGAIN, "no connection")
        _, sock, address = self._pending.popleft()
        sock.owner = self.network.scheduler.running.owner
        return sock, (address, 0)

    def close(self):
        if self.is_open:
            self.is_open = False
            self.network.listening.pop(self.endpoint, None)
            self.network.pollables.pop(self.number, None)
            for _, sock, _ in self._pending:
                sock.close()


class Network:
    """The connections between the hosts of one schedule after another; ``world`` has the processes."""

    def __init__(self, world):
        self.world, self.scheduler = world, world.scheduler
        self.begin(Behavior(), 0)

    def begin(self, behavior, seed):
        self.behavior, self.rng = behavior, random.Random(seed)
        self.pollables, self.listening, self.bells = {}, {}, []
        self.unreachable = set()  # hosts without a connection
        self.meeting = None
        self.mpi = {}  # by host, its `Communicator`
        self._numbers = 10_000_000
        self._port = 40_000

    def end(self):
        for each in list(self.pollables.values()):
            if isinstance(each, (Socket, ListeningSocket)):
                each.close()
        self.pollables, self.listening, self.bells, self.mpi = {}, {}, [], {}

    def new(self, pollable):
        """Return the number of a new socket."""
        self._numbers += 1
        self.pollables[self._numbers] = pollable
        return self._numbers

    def wake(self, pollable):
        self.scheduler.wake(pollable)
        for poll in pollable.polls:
            self.scheduler.wake(poll)

    def hasten(self, pollable, at):
        """Let all processes that wait for a pollable object continue at a time."""
        keys = [pollable, *pollable.polls]
        for process in self.scheduler.processes:
            if process.until > at and any(process.key is key for key in keys):
                process.until = at

    def delay(self):
        return self.rng.expovariate(1.0) * self.behavior.delay_s

    def mpi_delay(self):
        return self.rng.expovariate(1.0) * self.behavior.mpi_delay_s

    def fragments(self, content):
        """Cut bytes into the pieces that arrive together."""
        if len(content) < 2 or self.rng.random() < 0.7:
            return [content]
        at = self.rng.randrange(1, len(content))
        return [content[:at], content[at:]]

    def is_gone(self, host):
        """Return whether the serving process of a host has ended, or the host cannot be reached."""
        process = self.world.servers.get(host)
        return host in self.unreachable or process is None or process.state in (DEAD, ENDED)

    def is_cut(self, sock, peer):
        return sock.host != peer.host and bool({sock.host, peer.host} & self.unreachable)

    def cut(self, host):
        """Cut the cable of a host."""
        sockets = [each for each in self.pollables.values() if isinstance(each, Socket) and each.peer is not None]
        for sock in sockets:
            sock._deliver()
        self.unreachable.add(host)
        for sock in sockets:
            if self.is_cut(sock, sock.peer):
                sock.cut()

    def release(self, process):
        """Close the sockets of a process that has ended."""
        for each in list(self.pollables.values()):
            if isinstance(each, (Socket, ListeningSocket)) and each.owner is process:
                each.close()

    # -- the modules of the library --------------------------------------------------------------------------------

    def interfaces(self):
        return [Interface("eth0", f"10.0.0.{self.scheduler.running.owner.host + 1}/24")]

    def create_server(self, endpoint, **options):
        address, port = endpoint
        if not port:
            self._port += 1
            port = self._port
        listening = self.listening[address, port] = ListeningSocket(self, (address, port))
        return listening

    def create_connection(self, endpoint, timeout):
        scheduler = self.scheduler
        scheduler.visit("connecting")
        here, there = scheduler.running.owner.host, int(endpoint[0].rpartition(".")[2]) - 1
        if here != there and {here, there} & self.unreachable:
            scheduler.sleep(timeout)
            raise socket.timeout("timed out")
        scheduler.sleep(self.delay())
        listening = self.listening.get(tuple(endpoint))
        if listening is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        ours, theirs = Socket(self, here), Socket(self, there)
        ours.peer, theirs.peer = theirs, ours
        theirs.owner = listening.owner
        listening.add(scheduler.now + self.delay(), theirs, f"10.0.0.{here + 1}")
        ours.settimeout(timeout)
        return ours

    def read(self, fd, n):
        """Replacement for ``os.read`` of a socket."""
        if fd not in self.pollables:
            raise OSError(errno.EBADF, "the socket is closed")
        return self.pollables[fd].recv(n)

    def modules(self):
        """Return the replacements for modules, by name."""
        network = self

        class Thread(SimulatedThread):
            def __init__(self, **options):
                super().__init__(network.scheduler, **options)

        return {
            "socket": Delegate(
                socket, create_server=self.create_server, create_connection=self.create_connection, socket=Socket
            ),
            "select": Delegate(select, poll=lambda: Poll(network)),
            "selectors": Delegate(selectors, DefaultSelector=lambda: Poll(network)),
            "threading": Delegate(
                threading,
                Thread=Thread,
                Lock=lambda: Lock(network.scheduler),
                RLock=lambda: Lock(network.scheduler),
                Event=lambda: Event(network.scheduler),
            ),
            "queue": Delegate(queue, SimpleQueue=lambda: Queue(network.scheduler)),
        }


class SimulatedThread:
    """Replacement for ``threading.Thread``: it belongs to the process that starts it, and ends with that."""

    def __init__(self, scheduler, target, name="", daemon=True):
        self._scheduler, self._target, self._name, self._process = scheduler, target, name, None

    def start(self):
        owner = self._scheduler.running.owner
        self._process = self._scheduler.start(f"{self._name} of {owner.name}", lambda _: self._target(), owner)

    def is_alive(self):
        return self._process is not None and self._process.state not in (DEAD, ENDED)

    def join(self, seconds=None):
        scheduler = self._scheduler
        until = FOREVER if seconds is None else scheduler.now + seconds
        while self.is_alive() and scheduler.now < until:
            scheduler.wait(self._process, until)


class Lock:
    """Replacement for ``threading.RLock`` and ``threading.Lock``."""

    def __init__(self, scheduler):
        self._scheduler, self._holder, self._count = scheduler, None, 0

    def __enter__(self):
        scheduler = self._scheduler
        scheduler.visit("locked")
        while self._holder not in (None, scheduler.running):
            scheduler.wait(self)
        self._holder, self._count = scheduler.running, self._count + 1

    def __exit__(self, *error):
        self._count -= 1
        if not self._count:
            self._holder = None
            self._scheduler.wake(self)


class Event:
    """Replacement for ``threading.Event``."""

    def __init__(self, scheduler):
        self._scheduler, self._is_set = scheduler, False

    def is_set(self):
        return self._is_set

    def set(self):
        self._is_set = True
        self._scheduler.wake(self)

    def wait(self, seconds=None):
        scheduler = self._scheduler
        scheduler.visit("event awaited")
        until = FOREVER if seconds is None else scheduler.now + seconds
        while not self._is_set and scheduler.now < until:
            scheduler.wait(self, until)
        return self._is_set


class Queue:
    """Replacement for ``queue.SimpleQueue``."""

    def __init__(self, scheduler):
        self._scheduler, self._items = scheduler, deque()

    def put(self, item):
        self._scheduler.visit("queued")
        self._items.append(item)
        self._scheduler.wake(self)

    def empty(self):
        return not self._items

    def get(self, block=True, timeout=None):
        scheduler = self._scheduler
        scheduler.visit("queue read")
        until = scheduler.now if not block else FOREVER if timeout is None else scheduler.now + timeout
        while not self._items:
            if scheduler.now >= until:
                raise queue.Empty
            scheduler.wait(self, until)
        return self._items.popleft()


# -- MPI ---------------------------------------------------------------------------------------------------------------


class Request:
    """Replacement for ``MPI.Request``."""

    def __init__(self, communicator, buffer=None, source=-1, tag=-1):
        self.communicator, self.buffer, self.source, self.tag = communicator, buffer, source, tag
        self.is_complete, self.nbytes = False, 0

    @classmethod
    def Testsome(cls, requests, statuses):
        communicator = requests[0].communicator
        communicator.network.scheduler.visit("MPI tested")
        communicator.check()
        communicator.progress()
        found = [i for i, request in enumerate(requests) if request.is_complete]
        statuses += [Status(requests[i].nbytes) for i in found]
        return found or None


class Status(NamedTuple):
    """Replacement for ``MPI.Status``."""

    nbytes: int

    def Get_count(self):
        return self.nbytes


class Message:
    """A message on its way; ``request`` is the sender's, whose buffer is read on delivery unless it is short."""

    def __init__(self, source, tag, request, at):
        self.source, self.tag, self.request, self.at = source, tag, request, at
        self.content = request.buffer
        if self.content.nbytes <= EAGER_BYTES:
            self.content, request.is_complete = self.content.copy(), True
        self.receive = None  # the matching request
        self.is_half = False


class Communicator:
    """Replacement for mpi4py's communicator, for the thread of one host; see `Network.behavior`."""

    def __init__(self, network, host, hosts):
        self.network, self.host, self.hosts = network, host, hosts
        self.posted = []  # receives without a message, in order
        self.arriving = []  # messages, in order of their arrival
        self.arrived = []  # messages that are matched, and partly delivered
        self.unexpected = []
        self._last = [0.0] * hosts  # by source: the last arrival
        self._barriers = []
        network.mpi[host] = self

    def Get_rank(self):
        return self.host

    def Get_size(self):
        return self.hosts

    def is_lost(self, host):
        return self.network.is_gone(host) or self.host in self.network.unreachable

    def check(self):
        """Raise an error if MPI has noticed the loss of a host."""
        if self.network.behavior.mpi_fails and self.network.rng.random() < 0.3:
            for host in range(self.hosts):
                if host != self.host and self.is_lost(host):
                    raise RuntimeError("MPI_ERR_PROC_FAILED: process failure")

    def Isend(self, buffer, host, tag):
        network = self.network
        network.scheduler.visit("MPI send")
        self.check()
        request, other = Request(self, buffer), network.mpi.get(host)
        if other is None or self.is_lost(host):
            return request
        other._last[self.host] = at = max(other._last[self.host], network.scheduler.now + network.mpi_delay())
        other.arriving.append(Message(self.host, tag, request, at))
        return request

    def Irecv(self, buffer, host, tag):
        self.network.scheduler.visit("MPI receive")
        request = Request(self, buffer, host, tag)
        self.posted.append(request)
        self.progress()
        return request

    def Ibarrier(self):
        self.network.scheduler.visit("MPI barrier")
        request = Request(self)
        self._barriers.append(request)
        for each in zip(*[of_host._barriers for of_host in self.network.mpi.values()]):
            if len(each) == self.hosts:
                for one in each:
                    one.is_complete = True
        return request

    def progress(self):
        """Match and deliver the messages that are here; a long message is delivered in two parts."""
        now, network = self.network.scheduler.now, self.network
        for message in [each for each in self.arriving if each.at <= now]:
            self.arriving.remove(message)
            self.unexpected.append(message)
        for request in list(self.posted):
            for message in self.unexpected:
                if (message.source, message.tag) == (request.source, request.tag):
                    self.unexpected.remove(message)
                    self.posted.remove(request)
                    message.receive, message.at = request, now
                    self.arrived.append(message)
                    break
        for message in [each for each in self.arrived if each.at <= now]:
            sender = network.mpi.get(message.source)
            if not message.request.is_complete and (sender is None or self.is_lost(message.source)):
                continue  # a long message of a host that is lost
            content, into = message.content, message.receive.buffer
            middle = content.nbytes // 2
            if not message.is_half and middle > EAGER_BYTES:
                into[:middle] = content[:middle]
                message.is_half, message.at = True, now + network.mpi_delay()
                continue
            begin = middle if message.is_half else 0
            into[begin : content.nbytes] = content[begin:]
            message.receive.nbytes = content.nbytes
            message.receive.is_complete = message.request.is_complete = True
            self.arrived.remove(message)


class HostsWorld(World):
    """Replacement for the processes that MPI has started, as seen by process ``process``."""

    def __init__(self, network, process, n):
        self._network, self.process, self.n = network, process, n

    def send_address(self, meeting):
        self._network.meeting = meeting
        self._network.scheduler.wake("address")
        return self.n - 1

    def recv_address(self):
        network = self._network
        while network.meeting is None:
            network.scheduler.wait("address", network.scheduler.now + 1.0)
            if network.is_gone(0):  # MPI's launcher ends the job
                network.scheduler.kill(network.scheduler.running.owner)
        return network.meeting

    def courier(self):
        from synkhronos.cluster.mpi_thread import MpiThread

        network = self._network
        if not network.behavior.has_mpi:
            return None
        communicator = Communicator(network, self.process, self.n)
        network.scheduler.wake("communicator")
        while not all(host in network.mpi or network.is_gone(host) for host in range(self.n)):
            network.scheduler.wait("communicator", network.scheduler.now + 1.0)
        return MpiThread(communicator, LAST_TAG, CHUNK_BYTES)

    def launcher(self):
        return 0

    def end(self, together):
        pass

    def abort(self):
        for host, process in self._network.world.servers.items():
            if host and host not in self._network.unreachable:
                self._network.scheduler.kill(process)

    def remedy(self):
        return ""
