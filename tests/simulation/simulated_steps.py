"""The operations of simulated programs, each with its meaning in NumPy.

A *model* is the value of every variable on every rank: ``{"w": [rank 0's, rank 1's, ...], ...}``. All values are small
integers in float64, so every sum is exact and results have the same bits in any order of addition.
"""

from __future__ import annotations

import numpy as np

import synkhronos as synk
from synkhronos.program.program import PROGRAM
from synkhronos.testing import numpy_engine as engine

NAMES = ("w", "v", "u")
LARGEST = 2.0**40  # larger values are replaced, because sums must stay exact

#: Values at the start of every program, on all ranks.
START = {"w": np.arange(4.0), "v": np.ones((2, 2)), "u": np.arange(3.0)}


#: Shape of ``v`` on one host, and on several, where MPI carries arrays of 64 KiB.
SMALL, LARGE = (2, 2), (120, 80)


def choose_size(is_large):
    """Choose the size of ``v`` for the next programs."""
    START["v"] = np.ones(LARGE if is_large else SMALL)


def rows(seed, n):
    """Return n rows of two small integers."""
    return ((seed + 3 * np.arange(2 * n)) % 7).reshape(n, 2).astype("float64")


class Variables:
    """The variables and functions of a simulated program, built before the session or when a step needs them.

    ``w`` may differ between ranks: a rank adds the sum of its rows. ``v`` changes alike on all ranks without
    communication, in place, and ``u`` by an exact function, or alike by a function that computes in place.
    """

    def __init__(self):
        self.w, self.v, self.u = (engine.shared(START[name], name) for name in NAMES)
        self._x = engine.variable("x", "float64", 2)
        self._mean = engine.mean(self._x)
        for name in ("own", "alike", "exact"):  # without a function, the ranks would not have the variables
            getattr(self, name)

    def __getattr__(self, name):
        """Build a function."""
        x, mean = self._x, self._mean
        if name == "own":
            outputs, update, exact = [(mean, "avg"), (x, "gather")], (self.w, self.w + engine.sum(x)), False
        elif name == "alike":
            outputs, update, exact = [(mean, "avg"), (x, "gather")], (self.v, self.v + 1), False
        elif name == "joint":
            most = synk.ops.all_reduce(self.w, "max")
            outputs, update, exact = [(synk.ops.all_reduce(mean), None)], (self.w, most + 1), False
        elif name == "exact":
            outputs, update, exact = mean, (self.u, self.u + engine.sum(x)), True
        elif name == "apart":
            outputs, update, exact = (mean, "avg"), (self.u, self.u + 1), False
        else:
            raise AttributeError(name)
        in_place = {"inplace": True} if name in ("alike", "apart") else {}
        vars(self)[name] = synk.function([x], outputs, updates=[update], exact=exact, name=name, **in_place)
        return vars(self)[name]

    def __getitem__(self, name):
        return getattr(self, name)


class Meaning:
    """What a step does: the models after each of its parts, and its result.

    ``moments`` has the model before the step, and after each part; ``together`` states whether all ranks have the
    values of one moment whatever happens.
    """

    def __init__(self, moments, result=None, together=True):
        self.moments, self.result, self.together = moments, result, together


def changed(model, **values):
    return {**model, **values}


def divided(x, n, root):
    """Return the rows of every rank."""
    if len(x) >= n:
        return np.array_split(x, n)
    owners = [root, *(rank for rank in range(n) if rank != root)][: len(x)]
    found, begin = [], 0
    for rank in range(n):
        found.append(x[begin : begin + (rank in owners)])
        begin += rank in owners
    return found


class Kind:
    """A kind of step: ``draw`` returns its arguments, ``run`` takes the step, and ``mean`` returns its `Meaning`."""

    def draw(self, rng, n):
        return ()

    def is_possible(self, model):
        return True


KINDS = {}


def kind(cls):
    KINDS[cls.__name__.lower()] = cls()
    return cls


def same_shapes(*names):
    def is_possible(self, model):
        return all(len({value.shape for value in model[name]}) == 1 for name in names)

    return is_possible


def call_of(name, update):
    """Return a kind of call with outputs for all rows, and an update for a rank's rows."""

    class Call(Kind):
        def draw(self, rng, n):
            return rng.randrange(7), rng.choice((n + 3, 2 * n, 9, 1, 2))

        def run(self, variables, seed, count):
            mean, all_rows = variables[name](rows(seed, count))
            return [mean, all_rows]

        def mean(self, model, n, root, seed, count):
            x = rows(seed, count)
            return Meaning([model, update(model, x, n, root)], [np.mean(x), x], together=False)

    return Call()


def steps_of(name, update, inside):
    """Return a kind of several steps in one command."""

    class Steps(Kind):
        def draw(self, rng, n):
            return rng.randrange(7), rng.choice((2, 3, 5)), rng.choice((n, n + 2, 1))

        def run(self, variables, seed, n_steps, count):
            batches = [list(range(begin, begin + count)) for begin in range(n_steps)]
            found = variables[name].steps(rows(seed, 16), batches=batches)
            return [found] if name == "exact" else found[:1]

        def mean(self, model, n, root, seed, n_steps, count):
            moments, means = [model], []
            for begin in range(n_steps):
                x = rows(seed, 16)[begin : begin + count]
                means.append(np.mean(x))
                moments.append(update(moments[-1], x, n, root))
            return Meaning(moments, [np.array(means)], together=inside)

    return Steps()


def own_update(model, x, n, root):
    return changed(model, w=[value + part.sum() for value, part in zip(model["w"], divided(x, n, root))])


def alike_update(model, x, n, root):
    parts = divided(x, n, root)
    return changed(model, v=[value + (len(part) > 0) for value, part in zip(model["v"], parts)])


def joint_update(model, x, n, root):
    counting = [value for value, part in zip(model["w"], divided(x, n, root)) if len(part)]
    return changed(model, w=[np.max(counting, axis=0) + 1] * n)  # ranks without rows contribute no value


def exact_update(model, x, n, root):
    return changed(model, u=[value + x.sum() for value in model["u"]])


class _Joint(Kind):
    is_possible = same_shapes("w")
    name, update = "joint", staticmethod(joint_update)

    def draw(self, rng, n):
        return rng.randrange(7), rng.choice((n, n + 1, 8, 1))

    def run(self, variables, seed, count):
        found = variables[self.name](rows(seed, count))
        return [found] if self.name == "exact" else found

    def mean(self, model, n, root, seed, count):
        x = rows(seed, count)
        return Meaning([model, self.update(model, x, n, root)], [np.mean(x)])


def is_equal(model):
    return all(np.array_equal(value, model["u"][0]) for value in model["u"])


class _Exact(_Joint):
    def is_possible(self, model):
        return is_equal(model)

    name, update = "exact", staticmethod(exact_update)


KINDS.update(call=call_of("own", own_update), call_alike=call_of("alike", alike_update))
KINDS.update(joint_call=_Joint(), exact_call=_Exact())
KINDS.update(steps=steps_of("own", own_update, False), joint_steps=steps_of("joint", joint_update, True))
KINDS.update(exact_steps=steps_of("exact", exact_update, True), alike_steps=steps_of("alike", alike_update, False))
KINDS["joint_steps"].is_possible = KINDS["joint_call"].is_possible
KINDS["exact_steps"].is_possible = KINDS["exact_call"].is_possible


@kind
class Apart(Kind):
    """From its first call on, every rank has its own memory for ``u``."""

    def draw(self, rng, n):
        return (rng.randrange(7),)

    def run(self, variables, seed):
        return [variables.apart(rows(seed, 9))]

    def mean(self, model, n, root, seed):
        after = changed(model, u=[value + 1 for value in model["u"]])
        return Meaning([model, after], [np.mean(rows(seed, 9))], together=False)


@kind
class Sliced(Kind):
    def draw(self, rng, n):
        return (rng.randrange(7),)

    def run(self, variables, seed):
        return list(variables.alike(rows(seed, 9), num_slices=2))

    def mean(self, model, n, root, seed):
        x = rows(seed, 9)
        return Meaning([model, alike_update(model, x, n, root)], [np.mean(x), x], together=False)


@kind
class All_Reduce(Kind):
    def draw(self, rng, n):
        return rng.choice(("w", "v", "u")), rng.choice(("sum", "max", "min"))

    def run(self, variables, name, op):
        synk.all_reduce(variables[name], op=op)

    def is_possible(self, model):
        return same_shapes("w", "v")(self, model)

    def mean(self, model, n, root, name, op):
        reduced = getattr(np, op)(model[name], axis=0)
        return Meaning([model, {**model, name: [reduced] * n}])


@kind
class All_Reduce_Both(Kind):
    is_possible = same_shapes("w", "v")

    def run(self, variables):
        synk.all_reduce([variables.w, variables.v], op="max")

    def mean(self, model, n, root):
        return Meaning([model, changed(model, **{name: [np.max(model[name], axis=0)] * n for name in ("w", "v")})])


@kind
class Exchange(Kind):
    """A reduction that rounds its result to 16 bits: small values stay exact."""

    def is_possible(self, model):
        if not same_shapes("w", "v")(self, model):
            return False
        return all(np.abs(np.sum(model[name], axis=0)).max() <= 256 for name in "wv")

    def draw(self, rng, n):
        return (rng.choice(("w", "v")),)

    def run(self, variables, name):
        synk.all_reduce(variables[name], op="sum", exchange="bfloat16")

    def mean(self, model, n, root, name):
        return Meaning([model, {**model, name: [np.sum(model[name], axis=0)] * n}])


@kind
class Broadcast(Kind):
    def draw(self, rng, n):
        return rng.choice(("w", "v", "u")), rng.choice((None, 3.0, 5.0))

    def run(self, variables, name, value):
        synk.broadcast(variables[name], None if value is None else np.full(START[name].shape, value))

    def mean(self, model, n, root, name, value):
        new = model[name][root] if value is None else np.full(START[name].shape, value)
        return Meaning([model, {**model, name: [new] * n}])


@kind
class Scatter(Kind):
    def draw(self, rng, n):
        return (rng.randrange(1, 4),)

    def run(self, variables, each):
        synk.scatter(variables.w, np.arange(float(each * synk.size())))

    def mean(self, model, n, root, each):
        return Meaning([model, changed(model, w=list(np.arange(float(each * n)).reshape(n, each)))])


@kind
class Gather(Kind):
    is_possible = same_shapes("v")

    def run(self, variables):
        return [synk.gather(variables.v, nd_up=1)]

    def mean(self, model, n, root):
        return Meaning([model], [np.stack(model["v"])])


@kind
class All_Gather(Kind):
    def is_possible(self, model):
        return sum(len(value) for value in model["w"]) <= 64

    def run(self, variables):
        synk.all_gather(variables.w)

    def mean(self, model, n, root):
        return Meaning([model, changed(model, w=[np.concatenate(model["w"])] * n)])


@kind
class Reduce(Kind):
    is_possible = same_shapes("w", "v")

    def draw(self, rng, n):
        return rng.choice(("w", "v")), rng.random() < 0.5

    def run(self, variables, name, in_place):
        found = synk.reduce(variables[name], op="sum", in_place=in_place)
        return None if in_place else [found]

    def mean(self, model, n, root, name, in_place):
        total = np.sum(model[name], axis=0)
        if not in_place:
            return Meaning([model], [total])
        return Meaning([model, {**model, name: [total if r == root else old for r, old in enumerate(model[name])]}])


@kind
class Set_Value(Kind):
    def draw(self, rng, n):
        return rng.choice(("w", "v")), rng.randrange(n), float(rng.randrange(9))

    def run(self, variables, name, rank, value):
        synk.set_value(variables[name], np.full(START[name].shape, value), rank=rank % synk.size())

    def mean(self, model, n, root, name, rank, value):
        rank %= n  # hosts may be lost
        new = np.full(START[name].shape, value)
        return Meaning([model, {**model, name: [new if r == rank else old for r, old in enumerate(model[name])]}])


@kind
class Get_Value(Kind):
    def draw(self, rng, n):
        return rng.choice(NAMES), rng.randrange(n)

    def run(self, variables, name, rank):
        return [synk.get_value(variables[name], rank=rank % synk.size())]

    def mean(self, model, n, root, name, rank):
        return Meaning([model], [model[name][rank % n]])


@kind
class In_Sync(Kind):
    def run(self, variables):
        return [np.array(bool(synk.in_sync(variables.u)))]

    def mean(self, model, n, root):
        return Meaning([model], [np.array(is_equal(model))])


@kind
class Own_Value(Kind):
    """The program sets its own variable; the other ranks get the value with their next command."""

    def draw(self, rng, n):
        return (float(rng.randrange(5)),)

    def run(self, variables, value):
        variables.v.set_value(np.full(START["v"].shape, value))
        synk.broadcast(variables.v)

    def mean(self, model, n, root, value):
        new = np.full(START["v"].shape, value)
        by_master = changed(model, v=[new if rank == root else old for rank, old in enumerate(model["v"])])
        return Meaning([model, by_master, changed(model, v=[new] * n)])


@kind
class Started(Kind):
    """A collective is started, the variable changes, and the collective ends."""

    is_possible = same_shapes("v")

    def draw(self, rng, n):
        return (rng.random() < 0.3,)

    def run(self, variables, drops):
        started = synk.all_reduce(variables.v, op="sum", wait=False)
        try:
            variables.alike(rows(1, 2 * synk.size()))
        except BaseException:
            started.drop()
            raise
        started.drop() if drops else started.wait()

    def mean(self, model, n, root, drops):
        between = changed(model, v=[value + 1 for value in model["v"]])
        after = between if drops else changed(model, v=[np.sum(model["v"], axis=0)] * n)
        return Meaning([model, between, after], together=False)


@kind
class Dropped(Kind):
    """A function and a variable are used and dropped; the ranks drop them with the next command."""

    def run(self, variables):
        other = engine.shared(np.zeros(3), "other")
        synk.function([], [], updates=[(other, other + 1)], exact=False)()
        return [other.get_value()]

    def mean(self, model, n, root):
        return Meaning([model], [np.ones(3)])


@kind
class Long_Message(Kind):
    """A call with an answer that is too long for its slot."""

    def run(self, variables):
        return list(variables.alike(np.ones((1200, 2))))

    def mean(self, model, n, root):
        x = np.ones((1200, 2))
        return Meaning([model, alike_update(model, x, n, root)], [np.mean(x), x], together=False)


@kind
class Distribute(Kind):
    """A new function is sent to the ranks before its first call."""

    def run(self, variables):
        function = synk.function([], [(variables.v + 1, None)], exact=False)
        synk.distribute()
        return function()

    def mean(self, model, n, root):
        return Meaning([model], [model["v"][root] + 1])


@kind
class Growing_Data(Kind):
    """Data in shared memory grows between two calls, so the array moves."""

    def draw(self, rng, n):
        return (rng.randrange(7),)

    def run(self, variables, seed):
        data = synk.data(rows(seed, 8))
        variables.alike(data)
        data.set_length(40)
        data[8:] = 1.0
        return list(variables.alike(data))

    def mean(self, model, n, root, seed):
        x = np.concatenate([rows(seed, 8), np.ones((32, 2))])
        between = alike_update(model, x[:8], n, root)
        return Meaning([model, between, alike_update(between, x, n, root)], [np.mean(x), x], together=False)


@kind
class Reopen(Kind):
    """The session is closed, and another one is opened; all ranks then have the master's values."""

    def run(self, variables):
        PROGRAM.close()

    def mean(self, model, n, root):
        return Meaning([model, {name: [model[name][root]] * n for name in NAMES}])


#: How often each kind is drawn, relative to 4.
RARE = {
    "apart": 1,
    "dropped": 1,
    "distribute": 2,
    "growing_data": 2,
    "long_message": 1,
    "reopen": 1,
    "in_sync": 2,
    "own_value": 2,
    "gather": 2,
    "get_value": 2,
}
