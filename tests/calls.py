"""Calls for tests of collectives inside functions: a recorder, and calls that reduce across threads."""

import threading

import numpy as np

from synkhronos import in_graph


class Recorder(in_graph.CurrentCall):
    """Call with collectives whose results identify them: number k returns ``2 x + k + 1``.

    Attributes
    ----------
    seen : list of (number, op, shapes)
    given : list of (array, its copy)
        All arrays that the call has returned.
    """

    def __init__(self):
        self.seen, self.given = [], []

    def all_reduce(self, number, op, arrays):
        assert all(isinstance(array, np.ndarray) for array in arrays)
        self.seen.append((number, str(op), [array.shape for array in arrays]))
        results = [np.asarray(2 * array + number + 1, array.dtype) for array in arrays]
        self.given += [(result, result.copy()) for result in results]
        return results

    @property
    def numbers(self):
        return [number for number, _, _ in self.seen]


class Unchanged(in_graph.CurrentCall):
    """Call with collectives that return their arguments themselves, as in a session of one rank."""

    def all_reduce(self, number, op, arrays):
        return list(arrays)


def record(engine, compiled, *args, subset=None):
    """Call a function; return its outputs and the recorder."""
    recorder = Recorder()
    with recorder:
        results = engine.call(compiled, list(args), subset)
    return results, recorder


class Meeting:
    """Reduction across threads, computed by NumPy in float64.

    Parameters
    ----------
    weights : list of int
        Number of rows of each thread.
    """

    def __init__(self, weights):
        self.weights, self.barrier = weights, threading.Barrier(len(weights), timeout=60)
        self.brought = [None] * len(weights)

    def reduce(self, rank, number, op, arrays):
        self.brought[rank] = number, str(op), [np.array(array) for array in arrays]
        self.barrier.wait()
        numbers, ops, all_arrays = zip(*self.brought)
        assert len(set(numbers)) == len(set(ops)) == 1, (numbers, ops)
        results = []
        for values in zip(*all_arrays):
            if ops[0] == "avg":
                result = np.average(np.array(values), axis=0, weights=self.weights)
            else:
                result = getattr(np, ops[0])(np.array(values), axis=0)
            results.append(np.asarray(result, values[0].dtype))
        self.barrier.wait()  # no thread passes its next value before all have these results
        return results


class AtMeeting(in_graph.CurrentCall):
    """Call of one thread, whose collectives reduce in a `Meeting`."""

    def __init__(self, meeting, rank):
        self.meeting, self.rank = meeting, rank

    def all_reduce(self, number, op, arrays):
        return self.meeting.reduce(self.rank, number, op, arrays)


def call_on_ranks(engine, compiled, args_of_ranks, weights):
    """Call one function per rank, in threads that reduce together; return every rank's outputs."""
    meeting, results, errors = Meeting(weights), [None] * len(weights), []

    def work(rank):
        try:
            with AtMeeting(meeting, rank):
                results[rank] = engine.call(compiled[rank], list(args_of_ranks[rank]))
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(weights))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
