"""A program over two hosts with two ranks each, in which ranks die in large reductions and calls: ``healed.py FOLDER``.

It prints "done" if all values are as expected. FOLDER is shared by all hosts.
"""

import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np

import synkhronos as synk
from synkhronos.errors import WorkerDied
from synkhronos.program.program import PROGRAM
from synkhronos.runtime.command import Command
from synkhronos.testing import numpy_engine as engine

SIZE, ROUNDS = 1 << 18, 4


class Die(Command):
    """Kill a rank, once: in this command, or some seconds after it."""

    title = "die"

    def __init__(self, flag, rank, seconds=None):
        self.flag, self.rank, self.seconds = flag, rank, seconds
        flag.touch()

    def run(self, context):
        if context.rank == self.rank and self.flag.exists():
            if self.seconds is None:
                self.die()
            threading.Timer(self.seconds, self.die).start()
        context.barrier.wait()

    def die(self):
        self.flag.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def check(w, m, expected):
    """Compare all ranks' values with NumPy's."""
    for rank in range(4):
        np.testing.assert_array_equal(synk.get_value(rank, w), np.arange(SIZE) + rank)
        np.testing.assert_array_equal(synk.get_value(rank, m), expected)


def train(session, flag):
    """Let ranks die while the ranks of each host write to its common memory, and return the number of deaths."""
    v, x = engine.shared(np.arange(float(SIZE)), "v"), engine.variable("x", "float64", 1)
    f = synk.function([x], updates=[(v, v + engine.sum(x))], exact=True)
    rows, batches, n, expected = np.arange(16.0), [slice(j, j + 4) for j in range(8)], 0, np.arange(float(SIZE))
    f(rows)
    expected += rows.sum()
    for rank in (1, 2, 3):
        for i in range(ROUNDS):
            session.run(Die(flag, rank, 0.01 * i))
            n += 1
            while flag.exists():
                f.steps(rows, batches=batches)
                expected += sum(rows[batch].sum() for batch in batches)
            f(rows)
            expected += rows.sum()
            for each in range(4):
                np.testing.assert_array_equal(synk.get_value(each, v), expected)
            expected *= 0.5
            synk.broadcast(v, expected)
    return n


def main(folder):
    """Run the program."""
    flag = Path(folder) / "flag"
    synk.fork(2, heal=1000)
    session = PROGRAM.session
    w, m = engine.shared(np.zeros(SIZE), "w"), engine.shared(np.zeros(SIZE), "m")
    synk.broadcast([w, m])
    for rank in range(4):
        synk.set_value(rank, w, np.arange(SIZE) + float(rank))
    total, n = 4 * np.arange(SIZE) + 6.0, 0
    for rank in (1, 2, 3):
        synk.all_reduce(w, "sum", into=m, wait=False).drop()  # MPI may still be writing its result
        session.run(Die(flag, rank))
        n += 1
        synk.all_reduce(w, "sum", into=m)
        check(w, m, total)
        for i in range(ROUNDS):
            session.run(Die(flag, rank, 0.01 * i))
            while flag.exists():
                synk.all_reduce(w, "sum", into=m)
            synk.all_reduce(w, "max", into=m)
            n += 1
            check(w, m, np.arange(SIZE) + 3.0)
    n += train(session, flag)
    assert len(session.healing.deaths) == n, session.healing.deaths
    started = synk.all_reduce(w, "sum", into=m, wait=False)
    try:
        session.run(Die(flag, 2))
    except WorkerDied as error:
        assert "all_reduce(wait=False) was pending" in str(error.__notes__), error.__notes__
    else:
        raise AssertionError("the pending reduction was lost without an error")
    started.drop()
    synk.close()
    print("done", flush=True)


if __name__ == "__main__":
    import healed  # other hosts find the class `Die` in this module

    healed.main(sys.argv[1])
