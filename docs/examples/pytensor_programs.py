"""Statistical programs in PyTensor: each function returns a parallel program and the serial program with its results.

Run this file to time them. ``X`` contains the rows of the data, and ``y`` contains a target for each row.
"""

import argparse
import time
from functools import partial

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.tensor.optimize import minimize, minimize_scalar
from scipy import optimize

import synkhronos as synk


def likelihood(X, y):
    """Log-likelihood, gradient and Hessian of a logistic regression, as functions of its parameters."""
    x, t, beta = pt.dmatrix("x"), pt.dvector("t"), pt.dvector("beta")
    logit = x @ beta
    loglik = (t * logit - pt.softplus(logit)).sum()
    outputs = [loglik, pytensor.grad(loglik, beta), pytensor.gradient.hessian(loglik, beta)]

    parallel = synk.function([x, t], outputs, bcast_inputs=[beta], exact=True)
    serial = pytensor.function([x, t, beta], outputs)
    parameters = np.full(X.shape[1], 0.1)
    return partial(parallel, synk.data(X), synk.data(y), parameters), partial(serial, X, y, parameters)


def lbfgs(X, y):
    """Robust ridge regression with a SciPy optimizer. The data are in shared variables."""
    x, t, beta = pytensor.shared(X, "x"), pytensor.shared(y, "t"), pt.dvector("beta")

    def loss_and_gradient(rows, targets):
        loss = (pt.sqrt(1 + (rows @ beta - targets) ** 2) - 1).mean() + 0.01 * (beta**2).sum()
        return [loss, pytensor.grad(loss, beta)]

    def fit(f):
        tolerances = dict(ftol=0, gtol=1e-9)
        return optimize.minimize(f, np.zeros(X.shape[1]), jac=True, method="L-BFGS-B", options=tolerances).x

    of_shares = loss_and_gradient(synk.ops.shard(x), synk.ops.shard(t))
    parallel = synk.function([], of_shares, bcast_inputs=[beta], exact=True)
    serial = pytensor.function([beta], loss_and_gradient(x, t))
    return partial(fit, parallel), partial(fit, serial)


def scattered_rows(X, y):
    """Correlation of every column with the targets. Each rank stores only its own rows."""

    def correlations(x, t):
        x, t = x - x.mean(axis=0), t - t.mean()
        return x.T @ t / pt.sqrt((x**2).sum(axis=0) * (t**2).sum())

    x, t = pytensor.shared(X, "x"), pytensor.shared(y, "t")
    serial = pytensor.function([], correlations(x, t))

    x, t = pytensor.shared(X[:0], "x"), pytensor.shared(y[:0], "t")
    parallel = synk.function([], correlations(x, t), sliceable_shareds=[x, t], exact=True)
    synk.scatter([x, t], [X, y])
    return parallel, serial


def irls(X, y):
    """Logistic regression by iteratively reweighted least squares (Newton's method)."""

    def build(function, **options):
        x, t = pt.dmatrix("x"), pt.dvector("t")
        beta = pytensor.shared(np.zeros(X.shape[1]), "beta")
        p = pt.sigmoid(x @ beta)
        weights = p * (1 - p)
        step = pt.linalg.solve(x.T @ (x * weights[:, None]), x.T @ (t - p), assume_a="pos")
        newton = function([x, t], abs(step).max(), updates=[(beta, beta + step)], **options)

        def fit(X, y):
            beta.set_value(np.zeros(X.shape[1]))
            while newton(X, y) > 1e-6:
                pass
            return beta.get_value()

        return fit

    parallel, serial = build(synk.function, exact=True), build(pytensor.function)
    return partial(parallel, synk.data(X), synk.data(y)), partial(serial, X, y)


def em(X, y, k=3):
    """Gaussian mixture by expectation maximization. One function computes the E-step and the M-step."""
    start = [np.full(k, 1 / k), X[:k], np.ones((k, X.shape[1]))]

    def build(function, **options):
        x, state = pt.dmatrix("x"), [pytensor.shared(value) for value in start]
        weights, means, variances = state
        densities = -0.5 * ((x[:, None] - means) ** 2 / variances + pt.log(2 * np.pi * variances)).sum(axis=2)
        joint = pt.log(weights) + densities
        responsibilities = pt.special.softmax(joint, axis=1)
        counts = responsibilities.sum(axis=0)
        new_means = responsibilities.T @ x / counts[:, None]
        new_variances = responsibilities.T @ x**2 / counts[:, None] - new_means**2
        updates = list(zip(state, [counts / x.shape[0], new_means, new_variances]))
        step = function([x], pt.logsumexp(joint, axis=1).sum(), updates=updates, **options)

        def fit(X):
            for variable, value in zip(state, start):
                variable.set_value(value)
            return [[step(X) for _ in range(20)], *(variable.get_value() for variable in state)]

        return fit

    parallel, serial = build(synk.function, exact=True), build(pytensor.function)
    return partial(parallel, synk.data(X)), partial(serial, X)


def k_means(X, y, k=3):
    """Lloyd's algorithm, whose iterations are the steps of one command."""

    def build(function, **options):
        x, centers = pt.dmatrix("x"), pytensor.shared(X[:k], "centers")
        distances = ((x[:, None] - centers) ** 2).sum(axis=2)
        members = pt.eq(distances.argmin(axis=1)[:, None], np.arange(k)).astype("float64")
        new_centers = members.T @ x / members.sum(axis=0)[:, None]
        inertia = distances.min(axis=1).sum()
        return function([x], inertia, updates=[(centers, new_centers)], **options), centers

    def fit(iterate, centers):
        centers.set_value(X[:k])
        return [iterate(), centers.get_value()]

    (step, centers), data = build(synk.function, exact=True), synk.data(X)
    serial_step, serial_centers = build(pytensor.function)
    return (
        partial(fit, lambda: step.steps(data, n_steps=10), centers),
        partial(fit, lambda: [serial_step(X) for _ in range(10)], serial_centers),
    )


def volatility(X, y):
    """GARCH(1, 1): a scan over the time steps of each series. Every row is a series, and every column a time step."""
    x, a, b = pt.dmatrix("x"), pt.dscalar("a"), pt.dscalar("b")
    variances = pytensor.scan(
        lambda value, variance: 0.1 + a * value**2 + b * variance,
        sequences=x.T,
        outputs_info=pt.ones(x.shape[0]),
        return_updates=False,
    ).T
    loglik = -0.5 * (pt.log(variances[:, :-1]) + x[:, 1:] ** 2 / variances[:, :-1]).sum()
    outputs = [loglik, *pytensor.grad(loglik, [a, b]), variances[:, -1]]

    parallel = synk.function([x], outputs, bcast_inputs=[a, b], exact=True)
    serial = pytensor.function([x, a, b], outputs)
    return partial(parallel, synk.data(X), 0.2, 0.7), partial(serial, X, 0.2, 0.7)


def scores(X, y):
    """Log-likelihood and gradient of a single row, which ``vectorize_graph`` extends to all rows."""
    row, target, beta = pt.dvector("row"), pt.dscalar("target"), pt.dvector("beta")
    loglik = -pt.log(1 + (target - pt.tanh(row @ beta)) ** 2)
    x, t = pt.dmatrix("x"), pt.dvector("t")
    logliks, gradients = vectorize_graph([loglik, pytensor.grad(loglik, beta)], {row: x, target: t})
    outputs = [logliks, gradients.T @ gradients]

    parallel = synk.function([x, t], outputs, bcast_inputs=[beta], exact=True)
    serial = pytensor.function([x, t, beta], outputs)
    parameters = np.full(X.shape[1], 0.1)
    return partial(parallel, synk.data(X), synk.data(y), parameters), partial(serial, X, y, parameters)


def minimum_of_each_row(X, y):
    """The posterior mode of each row: ``minimize_scalar`` for a single row, extended to all rows."""
    z, target, precision = pt.dscalar("z"), pt.dscalar("target"), pt.dscalar("precision")
    mode, _ = minimize_scalar(pt.exp(z) - z * target + precision * z**2, z)
    t = pt.dvector("t")
    modes = vectorize_graph(mode, {target: t})
    outputs = [modes, pytensor.grad(modes.sum(), precision)]

    parallel = synk.function([t], outputs, bcast_inputs=[z, precision], exact=True)
    serial = pytensor.function([t, z, precision], outputs)
    return partial(parallel, synk.data(y), 0.0, 1.0), partial(serial, y, 0.0, 1.0)


def minimum_of_sums(X, y):
    """Sparse regression: ``minimize`` with an objective that depends on the data through two sums over rows."""
    beta, gram, moments = pt.dvector("beta"), pt.dmatrix("gram"), pt.dvector("moments")
    objective = beta @ gram @ beta / 2 - moments @ beta + pt.sqrt(1e-3 + beta**2).sum()
    best, _ = minimize(objective, beta, method="BFGS")
    x, t = pt.dmatrix("x"), pt.dvector("t")
    fitted = graph_replace(best, {gram: x.T @ x, moments: x.T @ t})

    parallel = synk.function([x, t], fitted, bcast_inputs=[beta], exact=True)
    serial = pytensor.function([x, t, beta], fitted)
    start = np.zeros(X.shape[1])
    return partial(parallel, synk.data(X), synk.data(y), start), partial(serial, X, y, start)


PROGRAMS = [likelihood, lbfgs, scattered_rows, irls, em, k_means, volatility, scores]
PROGRAMS += [minimum_of_each_row, minimum_of_sums]


def draw(rows, columns):
    """Return rows of two clusters, and a target of 0 or 1 for each row."""
    random = np.random.default_rng(0)
    X = random.normal(size=(rows, columns)) + 3 * random.integers(0, 2, (rows, 1))
    return X, (random.random(rows) < 1 / (1 + np.exp(2 - X[:, 0]))).astype("float64")


def seconds(program):
    program()  # compiles
    begin = time.perf_counter()
    program()
    return time.perf_counter() - begin


def main(rows=200_000, columns=10, ranks=2):
    synk.fork(ranks)
    for program in PROGRAMS:
        n = rows // 100 if program is minimum_of_each_row else rows  # it calls SciPy for each row
        parallel, serial = map(seconds, program(*draw(n, columns)))
        times = f"serial {serial:8.4f} s, {ranks} ranks {parallel:8.4f} s"
        print(f"{program.__name__:20} {times}, {serial / parallel:.2f} times as fast", flush=True)
    synk.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=2)
    main(**vars(parser.parse_args()))
