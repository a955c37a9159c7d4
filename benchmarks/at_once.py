"""Run independent processes with the same work simultaneously; their speed is an upper bound for parallel programs."""

import mmap
import multiprocessing
import os
import time
from multiprocessing.connection import wait

import threadpoolctl

#: Upper bound for the speed of whole programs.
CEILING = "two simultaneous programs, half of the rows each"
#: The same upper bound with two functions per step, as in programs that average gradients between them.
APART = CEILING + ", with separate gradient and update"


class AtOnce:
    """Forked single-threaded processes that start every call at the same time, on separate cores if possible.

    The context manager ends the processes on exit. `works` is a list with a dict of `Local` contenders for each
    process; all dicts have the same keys. The processes inherit these contenders when they are forked.
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
        """Return a contender whose time for a call is the time of the slowest process."""
        return Slowest(self._pipes, name)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for pipe, process in zip(self._pipes, self._processes):
            if exception[0] is None:
                pipe.send(None)
            else:
                process.kill()  # it may be waiting for a failed process
            process.join()
            pipe.close()


class Slowest:
    """Contender that runs the same call in all processes; see `measure.Local`."""

    def __init__(self, pipes, name):
        self.pipes, self.name = pipes, name

    def measure(self, repeats, warm=0):
        """Return the seconds of `repeats` calls, after `warm` uncounted calls."""
        for pipe in self.pipes:
            pipe.send((self.name, repeats, warm))
        waiting, answers = list(self.pipes), []
        while waiting:
            for pipe in wait(waiting):
                answers.append(pipe.recv())  # raises EOFError if the process has failed
                waiting.remove(pipe)
        return [max(times) for times in zip(*answers)]


class Meeting:
    """Busy-waiting barrier between processes, precise to a microsecond."""

    def __init__(self, size):
        self.arrived = memoryview(mmap.mmap(-1, 8 * size)).cast("q")

    def wait(self, rank):
        """Wait until all processes have arrived as often as this one."""
        self.arrived[rank] += 1
        while min(self.arrived) < self.arrived[rank]:
            os.sched_yield()


def live(rank, works, pipes, meeting):
    """Measure this process's contenders on request, by name, until the connection ends."""
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
