"""Benchmark of the overhead of a call beyond its work, compared with the cheapest ways to synchronize processes."""

import functools
import os
import time

import numpy as np

import synkhronos as synk

from .contenders import PLAIN
from .library import T, function, shared
from .measure import Local, WrongResult, measure_in_turn

#: Peers for the comparison with a call without inputs.
PEERS = ("barrier", "pipes", "openmpi", "mpich", "gloo")


class Functions:
    """Pairs of functions: ours, and the plain library's for one rank's share of the rows; create this before `fork`."""

    def __init__(self, rows, n):
        w = shared(np.float32(3), "w")
        x, y = T.fmatrix("x"), T.fmatrix("y")
        many = [T.fmatrix(f"x{i}") for i in range(20)]
        total = sum(each[0, 0] for each in many)
        self.data = [np.ones((rows, 4), "float32"), np.ones((rows, 2), "float32")]
        self.small = [np.ones((2 * n, 4), "float32") for _ in many]
        self.shuffled = np.random.RandomState(0).permutation(rows)[: min(rows, 1024)]
        self._ours = [
            synk.function([], w * 1),
            synk.function([x, y], (x.sum() + y.sum(), "sum")),
            synk.function(many, (total, "sum")),
        ]
        self._plain = [
            function([], w * 1),
            function([x, y], x.sum() + y.sum()),
            function(many, total),
        ]
        self.n = n

    def cases(self):
        """Return our call, the plain call, and our expected result, by case name; call this method after `fork`."""
        (ours, two, twenty), (plain, plain_two, plain_twenty) = self._ours, self._plain
        data = [synk.data(array) for array in self.data]
        small = [synk.data(array) for array in self.small]
        share = [array[: 128 // self.n] for array in self.data]
        taken = [array[self.shuffled[: len(self.shuffled) // self.n]] for array in self.data]
        halves = [array[:2] for array in self.small]
        rows = slice(len(self.data[0]) // 10, len(self.data[0]) // 10 + 128)
        return {
            "no inputs": (ours, plain, 3),
            "two Data, slice": (lambda: two(*data, batch=rows), lambda: plain_two(*share), 6 * len(self.data[0][rows])),
            "two Data, 1,024 shuffled": (
                lambda: two(*data, batch=self.shuffled),
                lambda: plain_two(*taken),
                6 * len(self.shuffled),
            ),
            "20 Data": (lambda: twenty(*small), lambda: plain_twenty(*halves), 20 * self.n),
        }


def run(groups, n=2, repeats=2000, rows=60000, pauses=(1e-3, 1e-1)):
    """Yield rows with our overhead over the plain call, by case and after pauses, and a row with idle CPU use."""
    functions = Functions(rows, n)
    synk.fork(n, use_gpu=False)
    try:
        for name, (ours, plain, expected) in functions.cases().items():
            if ours() != expected:
                raise WrongResult(name)
            contenders = {"synkhronos": Local(ours), PLAIN: Local(plain)}
            contenders.update(groups.contenders(PEERS if name == "no inputs" else PEERS[:1], n, "barrier"))
            yield row("call, " + name, n, measure_in_turn(contenders, repeats))
        ours, plain, _ = functions.cases()["no inputs"]
        for pause in pauses:
            sleep = functools.partial(time.sleep, pause)
            contenders = {"synkhronos": Local(ours, before=sleep), PLAIN: Local(plain, before=sleep)}
            contenders.update(groups.contenders(PEERS[:2], n, "barrier", pause=pause))
            yield row(
                f"call, after {1e3 * pause:g} ms",
                n,
                measure_in_turn(contenders, max(10, min(repeats // 4, int(5 / pause))), warm=0),
            )
        yield {"case": "idle ranks, % CPU", "n": n, "value": idle_share(1.0 if repeats > 100 else 0.1)}
    finally:
        synk.close()


def row(case, n, times):
    """Return a result row with the overhead of our call over the plain call."""
    plain, ours = times[PLAIN], times["synkhronos"]
    times["synkhronos"] = ours._replace(
        median=ours.median - plain.median, p99=ours.p99 - plain.median, least=ours.least - plain.least
    )
    return {"case": case, "n": n, "times": times}


def idle_share(seconds):
    """Return the total CPU use of all waiting ranks except the master, in percent of a core."""
    pids = [pid for keeper in children(os.getpid()) for pid in children(keeper)]
    time.sleep(0.2)
    before = cpu_seconds(pids)
    time.sleep(seconds)
    return 100 * (cpu_seconds(pids) - before) / seconds


def children(pid):
    """Return the ids of a process's children."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def cpu_seconds(pids):
    """Return the total CPU time of processes in seconds, ignoring processes that have ended."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/schedstat") as file:
                total += int(file.read().split()[0]) / 1e9
        except FileNotFoundError:
            pass
    return total
