"""A program with all everyday operations, and the serial program's values for every rank after each operation."""

import time

import numpy as np

import synkhronos as synk
from synkhronos.errors import SynkhronosError, WorkerError
from synkhronos.program.program import PROGRAM
from synkhronos.replication.replicator import replicator_of
from synkhronos.runtime.command import Command
from synkhronos.testing import numpy_engine as engine

ROWS = 14

#: Number of elements of a variable that is large enough for common memory.
LARGE = 1 << 13

#: Rows of many calls in one command; the last call of the second command has fewer rows than ranks.
BATCHES = [list(range(begin, begin + 6)) for begin in (0, 4, 8)]
JOINT_BATCHES = [[0, 1, 2, 3, 4], [5, 6, 7, 8], [9]]


class Look(Command):
    """Return copies of a rank's shared variables, without the collectives that sabotage disturbs."""

    title = "look"

    def __init__(self, numbers):
        self.numbers = numbers

    def run(self, context):
        return [np.array(context.registry.shareds[number].cell[0]) for number in self.numbers]


class Wrong(Exception):
    """Raised if a result is wrong."""


def same(got, expected):
    return len(got) == len(expected) and all(np.array_equal(a, b) for a, b in zip(got, expected))


def chain(change, model, count):
    """Return the model before and after each of ``count`` changes."""
    models = [model]
    for _ in range(count):
        models.append(change(models[-1]))
    return models


class Program:
    """A session with all everyday operations.

    The model is the serial program: ``[w, v]`` for every rank, worked out with NumPy. All elements of ``u``, a variable
    in common memory, have one of the values ``of_u`` on every rank.

    Parameters
    ----------
    n : int
        Number of ranks.
    launcher : str
    width : int
        Length of the rows of the data and of ``v``: a power of two, to make all means exact.
    **options
        Options of `Program.open`.
    """

    def __init__(self, n, launcher="fork", width=2, **options):
        self.n, self.launcher, self.options = n, launcher, dict({"timeout": 60, "pin": False}, **options)
        self.width = width
        self.w, self.v = engine.shared(np.zeros(1), "w"), engine.shared(np.zeros((2, 2)), "v")
        x = engine.variable("x", "float64", 2)
        self.f = synk.function([x], [(engine.mean(x), "avg"), (x, "gather")], updates=[(self.w, self.w + 1)])
        self.g = synk.function([], [], updates=[(self.v, self.v * 2)])
        most = synk.ops.all_reduce(self.w, "max")
        self.h = synk.function([x], [(synk.ops.all_reduce(engine.mean(x)), None)], updates=[(self.w, most + 1)])
        self.u, self.of_u = engine.shared(np.ones(LARGE), "u"), (1.0,)
        self.k = synk.function([], [], updates=[(self.u, self.u * 2)], exact=True)
        self.x = np.arange(float(width) * ROWS).reshape(ROWS, width)
        self.data = synk.data(self.x)
        self.reached = None  # the operation in progress

    def operations(self):
        """Yield (name, operation, change of the model); with steps, the change returns a list of models."""
        n, w, v = self.n, self.w, self.v

        def plus_one(model):
            return [[a + 1, b] for a, b in model]

        yield "fork", self.fork, None
        yield "distribute", synk.distribute, None
        yield "call", lambda: self.call(self.x), plus_one
        yield "drop", self.drop, None
        yield "call2", self.g, lambda model: [[a, b * 2] for a, b in model]
        yield (
            "set_value",
            lambda: synk.set_value(n - 1, w, np.full(4, 9.0)),
            lambda model: model[:-1] + [[np.full(4, 9.0), model[-1][1]]],
        )
        yield (
            "all_reduce",
            lambda: synk.all_reduce([w, v], op="sum"),
            lambda model: [[sum(each[i] for each in model) for i in range(2)]] * n,
        )
        yield "sliced", lambda: self.f(self.x, num_slices=2), plus_one
        yield "joint call", lambda: self.expect(self.h(self.x)[0], np.mean(self.x)), self.most_plus_one
        yield "steps", self.steps, lambda model: chain(plus_one, model, len(BATCHES))
        yield "joint steps", self.joint_steps, lambda model: chain(self.most_plus_one, model, len(JOINT_BATCHES))
        yield "large update", self.double, None
        yield "data growth", self.grow, plus_one
        yield (
            "reduce",
            lambda: synk.reduce(w, op="sum"),
            lambda model: [[sum(a for a, _ in model), model[0][1]]] + model[1:],
        )
        yield (
            "broadcast",
            lambda: synk.broadcast(w, np.full(4, 3.0)),
            lambda model: [[np.full(4, 3.0), b] for _, b in model],
        )
        yield "gather", lambda: self.expect(synk.gather(v), np.stack([v.get_value()] * n)), None
        yield (
            "scatter",
            lambda: synk.scatter(w, np.arange(2.0 * n)),
            lambda model: [[np.arange(2.0 * n)[2 * r : 2 * r + 2], b] for r, (_, b) in enumerate(model)],
        )
        yield "all_gather", lambda: synk.all_gather(w), lambda model: [[np.arange(2.0 * n), b] for _, b in model]
        yield "get_value", lambda: self.expect(synk.get_value(n - 1, w), np.arange(2.0 * n)), None
        yield "in_sync", lambda: self.expect(bool(synk.in_sync(w)), True), None
        yield "look", None, None
        yield "close", synk.close, None

    def fork(self):
        PROGRAM.open(self.n, 0, launcher=self.launcher, **self.options)

    def expect(self, got, expected):
        if not np.array_equal(got, expected):
            raise Wrong(f"{self.reached}: got {got!r}, expected {expected!r}")

    def call(self, x):
        mean, rows = self.f(x)
        self.expect(mean, np.mean(x))
        self.expect(rows, x)

    def most_plus_one(self, model):
        return [[np.max([w for w, _ in model], axis=0) + 1, v] for _, v in model]

    def steps(self):
        means, rows = self.f.steps(self.x, batches=BATCHES)
        self.expect(means, [np.mean(self.x[batch]) for batch in BATCHES])
        self.expect(np.concatenate(rows), self.x[np.concatenate(BATCHES)])

    def joint_steps(self):
        (means,) = self.h.steps(self.x, batches=JOINT_BATCHES)
        self.expect(means, [np.mean(self.x[batch]) for batch in JOINT_BATCHES])

    def double(self):
        self.of_u = 1.0, 2.0
        self.k()
        self.of_u = (2.0,)

    def drop(self):
        """Use a function and a variable and drop them; the ranks drop them with the next command."""
        other = engine.shared(np.zeros(3), "other")
        synk.function([], [], updates=[(other, other + 1)])()
        self.expect(other.get_value(), np.ones(3))

    def grow(self):
        self.data.set_value(self.x)
        self.data.set_length(4 * ROWS)  # the array moves
        self.data[ROWS:] = 1.0
        self.call(self.data)

    def look(self):
        """Return ``[w, v]`` of every rank, and check ``u``."""
        session = PROGRAM.current()
        replicator = replicator_of(session)
        replicator.ensure([self.f, self.g, self.h, self.k])
        looked = session.run(Look([replicator.find(engine.ENGINE, shared) for shared in (self.w, self.v, self.u)]))
        self.check_large("all ranks together", [u for _, _, u in looked])
        return [[w, v] for w, v, _ in looked]

    def check_large(self, whose, values):
        """Check that ``u`` has the same allowed value everywhere."""
        found = sorted({number for u in values for number in u.tolist()})
        if len(found) > 1 or found[0] not in self.of_u:
            raise Wrong(f"{self.reached}: of u, {whose} have {found}, expected one of {self.of_u}")

    def check_master(self, what, *allowed):
        got = [self.w.get_value(), self.v.get_value()]
        if not any(same(got, model[0]) for model in allowed):
            raise Wrong(f"{what}: the master has {got!r}, expected one of {[model[0] for model in allowed]!r}")
        self.check_large("the master's elements", [self.u.get_value()])

    def run(self):
        """Run and check all operations; return the name of the one that failed, its error and the time."""
        model = [[np.arange(4.0), np.ones((2, self.width))]] * self.n
        self.w.set_value(model[0][0])
        self.v.set_value(model[0][1])
        self.u.set_value(np.ones(LARGE))
        self.of_u = (1.0,)
        self.data.free_memory()
        for name, operation, change in self.operations():
            self.reached = name
            after = change(model) if change else model
            allowed = [model, after]
            if name.endswith("steps"):
                allowed, after = after, after[-1]
            try:
                if name == "look":
                    for rank, got in enumerate(self.look()):
                        if not same(got, model[rank]):
                            raise Wrong(f"rank {rank} has {got!r}, expected {model[rank]!r}")
                else:
                    operation()
            except SynkhronosError as error:
                moment = time.monotonic()
                self.check_master(name, *allowed)
                if isinstance(error, WorkerError) and name != "fork":
                    self.check_survivors(name, allowed)
                return name, error, moment
            self.check_master(name, after)
            model = after
        return None, None, None

    def check_survivors(self, name, allowed):
        """Check that every rank has the values of an allowed model, and after collectives of the same one."""
        looked = self.look()
        for rank, got in enumerate(looked):
            if not any(same(got, model[rank]) for model in allowed):
                raise Wrong(f"{name}: rank {rank} has {got!r}, expected one of {[model[rank] for model in allowed]!r}")
        if name not in ("call", "call2", "data growth", "steps") and not any(
            all(same(got, of_rank) for got, of_rank in zip(looked, model)) for model in allowed
        ):
            raise Wrong(f"{name}: ranks have the values of different moments: {looked!r}")

    def open(self):
        """Open a session if none is open."""
        if PROGRAM.session is None or PROGRAM.session.closed:
            self.fork()

    def recover(self):
        """Check that the program works after a failure, with the serial program's values."""
        self.open()
        synk.broadcast([self.w, self.v])
        w, v = self.w.get_value(), self.v.get_value()
        self.reached = "recovery"
        self.call(self.x)
        for rank, got in enumerate(self.look()):
            if not same(got, [w + 1, v]):
                raise Wrong(f"recovery: rank {rank} has {got!r}, expected {[w + 1, v]!r}")
        synk.close()
