"""Benchmark of unpickling in a fresh process, as on ranks that were forked before functions were built."""

import multiprocessing
import os
import pickle
import sys
import time


class Unpickling:
    """Process that forks a new process for each unpickling; a context manager that ends the process on exit.

    Most of the time is spent loading Theano's compiled modules, once per process.
    """

    def __init__(self):
        fork = multiprocessing.get_context("fork")
        self._pipe, theirs = fork.Pipe()
        self._process = fork.Process(target=live, args=(theirs, self._pipe))
        self._process.start()
        theirs.close()

    def contender(self, pickled):
        """Return a contender that unpickles these bytes."""
        return Loads(self._pipe, pickled)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._pipe.send_bytes(b"")
        self._process.join()
        self._pipe.close()


class Loads:
    """Contender that unpickles bytes; see `measure.Local`."""

    def __init__(self, pipe, pickled):
        self.pipe, self.pickled = pipe, pickled

    def measure(self, repeats, warm=0):
        """Return the seconds of `repeats` unpicklings, after `warm` uncounted unpicklings."""
        times = []
        for _ in range(warm + repeats):
            self.pipe.send_bytes(self.pickled)
            times.append(self.pipe.recv())  # raises EOFError if the unpickling failed
        return times[warm:]


def live(pipe, other_end):
    """Fork a process for every pickle, until an empty message arrives or a pickle fails to load."""
    other_end.close()
    sys.setrecursionlimit(10**6)
    while True:
        try:
            pickled = pipe.recv_bytes()
        except EOFError:  # the benchmark was killed
            return
        if not pickled:
            return
        pid = os.fork()
        if pid == 0:
            try:
                begin = time.perf_counter()
                pickle.loads(pickled)
                pipe.send(time.perf_counter() - begin)
                os._exit(0)
            finally:
                os._exit(1)
        if os.waitpid(pid, 0)[1]:
            return
