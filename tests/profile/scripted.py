"""A session scripted moment by moment, on a clock that the test sets."""

from synkhronos.profile import ring
from synkhronos.profile.profile import Setting
from synkhronos.profile.recording import Recording
from synkhronos.runtime.command import CommandStats
from synkhronos.trace import Point


class Clock:
    """A clock that stands still until it is set, in milliseconds."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        return 1_000_000 * self.now


class Command:
    """A command with the attributes that a recording reads."""

    def __init__(self, *amounts):
        self._amounts = CommandStats(*amounts)
        self.title = self._amounts.name

    def amounts(self, context):
        return self._amounts


class Context:
    """A rank's context with the attributes that a recording reads."""

    def __init__(self):
        self.barrier, self.transport = self, self
        self.traffic = self
        self.command, self.read, self.sent = 0, 0.0, 0.0


class Envelope:
    def __init__(self, command):
        self.command = command


def point(name, label):
    owner, method = label.split(".")
    return Point(name, type(owner, (), {}), method)


POINTS = {
    label: point(name, label)
    for name, label in (
        ("call", "Function.__call__"),
        ("call", "Session.run"),
        ("command", "RankContext.execute"),
        ("copy", "Arguments.prepare"),
        ("copy", "Prepared.slice"),
        ("engine", "Engine.call"),
        ("collective", "CollectivesOfCall.all_reduce"),
        ("barrier", "Barrier.wait"),
        ("commit", "Transaction.commit"),
        ("channel", "MasterEnd.send"),
        ("channel", "MasterEnd.wait"),
        ("channel", "RankEnd.wait"),
    )
}


class Rank:
    """One rank, and its recording."""

    def __init__(self, rank, n_ranks):
        self.memory = memoryview(bytearray(ring.ring_bytes(n_ranks)))
        self.clock, self.context = Clock(), Context()
        self.recording = Recording(self.clock)
        # Not `add`, because that would observe the library itself.
        self.recording._rings[rank], self.recording._of_others = ring.RingBuffer(self.memory), rank

    def do(self, label, begin, end, *inside, arguments=()):
        """Record a span from ``begin`` to ``end``, and call the functions ``inside`` within it."""

        def method(context, *arguments):
            for each in inside:
                each()
            self.clock.now = end

        self.clock.now = begin
        self.recording.around(POINTS[label], method)(self.context, *arguments)

    def doing(self, label, begin, end, *inside, arguments=()):
        """Return a function that calls `do`, to be nested in another span."""
        return lambda: self.do(label, begin, end, *inside, arguments=arguments)

    def executing(self, number, command, begin, end, *inside, moved=0):
        """Return a function that executes a command."""

        def execute():
            self.context.command = number
            self.do("RankContext.execute", begin, end, *inside, move, arguments=(Envelope(command),))

        def move():
            self.context.read += moved

        return execute

    def content(self):
        return ring.read(self.memory)


SETTING = Setting("numpy", ["cpu", "cpu"], [[0, 1]], [], [2], "shared_memory")
