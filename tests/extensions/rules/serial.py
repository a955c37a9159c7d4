"""The reference for rules: a loop over ranks in NumPy, by the formulas of the papers."""

import numpy as np


class Serial:
    """Gradient steps on ``mean((A x - b) ** 2) / 2`` of each rank's rows, and the exchanges of rules.

    Attributes
    ----------
    x : list of ndarray
        Every rank's parameters.
    """

    def __init__(self, n, A, b, x, rate, momentum=0.0):
        self.n, self.A, self.b, self.rate, self.momentum = n, A, b, rate, momentum
        self.x, self.m = [x.copy() for _ in range(n)], [np.zeros_like(x) for _ in range(n)]
        self.z, self.v, self.rows = x.copy(), np.zeros_like(x), np.zeros(n)

    def step(self, rows_of_ranks):
        for rank in range(self.n):
            rows = rows_of_ranks[rank]
            if len(rows):
                gradient = self.A[rows].T @ (self.A[rows] @ self.x[rank] - self.b[rows]) / len(rows)
                self.m[rank] = self.momentum * self.m[rank] - self.rate * gradient
                self.x[rank] = self.x[rank] + self.m[rank]
                self.rows[rank] += len(rows)

    def mix(self, matrix, values=None):
        matrix = np.asarray(matrix, float)
        values = self.x if values is None else values
        return list((matrix / matrix.sum(axis=1, keepdims=True)) @ np.array(values))

    def mean(self):
        mean = np.average(self.x, axis=0, weights=self.rows)
        self.rows = np.zeros(self.n)
        return mean

    def local_sgd(self, groups=None):
        groups = groups or [list(range(self.n))]
        matrix = np.zeros((self.n, self.n))
        for group in groups:
            for rank in group:
                matrix[rank, group] = self.rows[group]
        self.x, self.m = self.mix(matrix), self.mix(matrix, self.m)
        self.rows = np.zeros(self.n)

    def easgd(self, alpha):
        z = self.z + alpha * sum(x - self.z for x in self.x)
        self.x = [x - alpha * (x - self.z) for x in self.x]
        self.z = z

    def outer(self, rate, momentum, nesterov):
        difference = self.z - self.mean()
        self.v = momentum * self.v + difference
        self.z = self.z - rate * (difference + momentum * self.v if nesterov else self.v)
        self.x = [self.z.copy() for _ in range(self.n)]

    def asgd(self, rate):
        self.z = self.z + rate * sum(x - self.z for x in self.x)
        self.x = [self.z.copy() for _ in range(self.n)]

    def gossip(self, sent, alphas):
        for sender, receiver in sent:
            alphas[sender] /= 2
            whole = alphas[sender] + alphas[receiver]
            self.x[receiver] = (alphas[receiver] * self.x[receiver] + alphas[sender] * self.x[sender]) / whole
            alphas[receiver] = whole

    def swap(self, pairs):
        for one, other in pairs:
            self.x[one], self.x[other] = self.x[other], self.x[one]
            self.m[one], self.m[other] = self.m[other], self.m[one]

    def begin(self):
        """Begin an exchange whose mean arrives later."""
        self.y, self.sent = [x.copy() for x in self.x], self.mean()

    def arrive(self, rate, momentum, nesterov, mix, merge):
        difference = self.z - self.sent
        self.v = momentum * self.v + difference
        self.z = self.z - rate * (difference + momentum * self.v if nesterov else self.v)
        bases = self.y if merge == "delta" else self.x
        self.x = [x + mix * (self.z - base) for x, base in zip(self.x, bases)]
