"""The same work in several processes at the same time, with nothing of ours between them: what the machine gives."""

import mmap
import multiprocessing
import os
import time
from multiprocessing.connection import wait

import threadpoolctl

#: The contender that whole programs could at best be as fast as.
CEILING = "two programs at once, half the rows each"
#: The same if training takes two functions, as it must if gradients are averaged in between.
APART = CEILING + ", gradients and step apart"


class AtOnce:
    """Forked processes, each on a core of its own with one thread, that begin every call together.

    A context manager that ends them. What is to be called is made before, in this process.

    Parameters
    ----------
    works : list of dict of str to Local
        The contenders of every process, by the same names.
    """

    def __init__(self, works):
        fork = multiprocessing.get_context("fork")
        pipes = [fork.Pipe() for _ in works]
        meeting = Meeting(len(works))
        self._pipes = [ours for ours, _ in pipes]
        self._processes = [
            fork.Process(target=live, args=(rank, each, pipes, meeting), daemon=True) for rank, each in enumerate(works)
        ]
        for process in self._processes:
            process.start()
        for _, theirs in pipes:
            theirs.close()

    def contender(self, name):
        """Return a contender, whose time for a call is that of the slowest process."""
        return Slowest(self._pipes, name)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for pipe, process in zip(self._pipes, self._processes):
            if exception[0] is None:
                pipe.send(None)
            else:
                process.kill()  # it may be waiting for one that failed
            process.join()
            pipe.close()


class Slowest:
    """One work of all processes, as a contender; see `measure.Local`."""

    def __init__(self, pipes, name):
        self.pipes, self.name = pipes, name

    def measure(self, repeats, warm=0):
        """Return the seconds of so many calls, after a few that are not counted."""
        for pipe in self.pipes:
            pipe.send((self.name, repeats, warm))
        waiting, answers = list(self.pipes), []
        while waiting:
            for pipe in wait(waiting):
                answers.append(pipe.recv())  # EOFError if the process has failed
                waiting.remove(pipe)
        return [max(times) for times in zip(*answers)]


class Meeting:
    """Where processes wait for each other, awake, so that they go on within a microsecond."""

    def __init__(self, size):
        self.arrived = memoryview(mmap.mmap(-1, 8 * size)).cast("q")

    def wait(self, rank):
        """Wait until all have come as often as this one."""
        self.arrived[rank] += 1
        while min(self.arrived) < self.arrived[rank]:
            os.sched_yield()


def live(rank, works, pipes, meeting):
    """Measure what is asked for, until nothing more is."""
    for i, (ours, theirs) in enumerate(pipes):
        ours.close()
        if i != rank:
            theirs.close()
    cores = sorted(os.sched_getaffinity(0))
    if len(pipes) <= len(cores):
        os.sched_setaffinity(0, {cores[rank]})
    threadpoolctl.threadpool_limits(1)
    while True:
        try:
            message = pipes[rank][1].recv()
        except EOFError:  # the benchmark was killed
            return
        if message is None:
            return
        name, repeats, warm = message
        work, times = works[name], []
        for _ in range(warm + repeats):
            if work.before is not None:
                work.before()
            meeting.wait(rank)
            begin = time.perf_counter()
            work.call()
            times.append(time.perf_counter() - begin)
        pipes[rank][1].send(times[warm:])
