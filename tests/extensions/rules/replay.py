"""Asynchronous runs repeated from their logs, one rank at a time: exchanges in NumPy, serial local steps."""

import zlib

import numpy as np


class Replay:
    """A repetition of an asynchronous run of a rule, by the formulas of its module.

    Parameters
    ----------
    n : int
    x : list of ndarray
        Every rank's parameters before the run.
    step : callable
        ``step(rank, x, batch)`` returns the rank's parameters after its step.
    z : ndarray
    """

    def __init__(self, n, x, step, z):
        self.n, self.x, self.step, self.z = n, [value.copy() for value in x], step, z.copy()
        self.origins = [z.copy() for _ in range(n)]
        self.alphas, self.boxes, self.batches = [1 / n] * n, [None] * n, []

    def run(self, log, exchange):
        """Repeat every line of the log; compare its result with the checksum."""
        assert [line.order for line in log] == list(range(len(log)))
        for line in log:
            for batch in line.batches:
                self.x[line.rank] = self.step(line.rank, self.x[line.rank], batch)
                self.batches.append(batch)
            left = getattr(self, line.kind)(line, exchange)
            assert zlib.crc32(b"".join(np.ascontiguousarray(each).tobytes() for each in left)) == line.checksum, line

    def exchange(self, line, parameters):
        kind, factor = parameters
        x, r = self.x[line.rank], line.rank
        factor = x.dtype.type(factor)
        if kind == "EASGD":
            move = (x - self.z) * factor
            self.x[r], self.z = x - move, self.z + move
        else:
            self.z = self.z + (x - self.origins[r]) * factor
            self.x[r], self.origins[r] = self.z.copy(), self.z.copy()
        return self.x[r], self.z

    def _mean(self, x, alpha, y, beta):
        return x * x.dtype.type(alpha / (alpha + beta)) + y * x.dtype.type(beta / (alpha + beta))

    def send(self, line, parameters):
        s, r = line.rank, line.other
        assert r != s
        self.alphas[s] /= 2
        message, box = (self.x[s].copy(), self.alphas[s]), self.boxes[r]
        self.boxes[r] = message if box is None else (self._mean(*box, *message), box[1] + message[1])
        return self.x[s], self.boxes[r][0]

    def read(self, line, parameters):
        r = line.rank
        self.x[r] = self._mean(self.x[r], self.alphas[r], *self.boxes[r])
        self.alphas[r] += self.boxes[r][1]
        self.boxes[r] = None
        return (self.x[r],)

    def end(self, line, parameters):
        if parameters[0] == "ASGD":
            self.x[line.rank] = self.z.copy()
        return (self.x[line.rank],)


def furthest(log, n, kind="exchange"):
    """Return a rank's largest lead, in exchanges, over the slowest rank with exchanges left."""
    left = [sum(line.rank == rank and line.kind == kind for line in log) for rank in range(n)]
    counts, most = [0] * n, 0
    for line in log:
        if line.kind == kind:
            running = [counts[rank] for rank in range(n) if left[rank] > 0]
            most = max(most, counts[line.rank] - min(running))
            counts[line.rank] += 1
            left[line.rank] -= 1
    return most
