"""Train a deep autoencoder with Hessian-free optimization (serial code that calls parallel functions), SGD and Adam.

    python -m synkhronos demos/second_order.py

Synkhronos itself has no Hessian-free optimizer. `hessian_free` and `conjugate_gradients` are NumPy programs on the
master, written for one process. The functions that they call (`Problem`) process the whole data set, on all ranks.
`problem_on_ranks` builds these functions with `synk.function`; `problem_in_theano` builds them with `theano.function`.
Before training, the demo checks that both problems lead to the same steps, and checks products against a dense matrix.

The method
    Each step minimizes a quadratic model of the loss, ``g.d + d.(G + damping I).d / 2``, with conjugate gradients (CG).
    CG needs only products ``G v``, never ``G`` itself. ``G = mean_i J_i' H_i J_i`` is the Gauss-Newton matrix
    (Schraudolph 2002). J_i is the Jacobian of the network's last linear outputs for row i, and H_i is the Hessian of
    the loss with respect to these outputs. CG starts from a fraction of the last direction, and stops when progress
    becomes slow. The step is the best of several iterates, shortened by a line search. The damping follows the ratio of
    the actual to the predicted decrease of the loss, by the Levenberg-Marquardt rule (Martens 2010; Martens & Sutskever
    2012). The preconditioner of these papers is omitted, because it needs the squared gradients of every single row.

The comparison
    A *pass* is one use of all training rows. Every gradient, every Gauss-Newton product, and every loss that
    Hessian-free optimization needs for its decisions counts as one pass. For SGD and Adam, only gradients count; the
    losses of their curves are free. SGD and Adam run with minibatches and, like Hessian-free optimization, with the
    whole data set in each step. Their learning rates and SGD's momentum are the best entries of `GRID`, by the loss at
    the end of a run of this demo's default length. ``--tune`` runs the whole grid again.

Results after 200 passes, from an initial loss of 544 (with the mean image as every output, the loss is 207)
    Minibatches win: Adam reaches 87, and SGD reaches 96. If every step uses all rows, Hessian-free optimization wins
    with 159; Adam reaches 175, and SGD stays at 207. A pass with minibatches of 100 rows needs 40 averages over the
    ranks, one after another; a pass of Hessian-free optimization needs one average. (These results are for one seed and
    2 ranks. Rounding alone changes them: in plain Theano, Adam with all rows ended at 180, and SGD with minibatches
    ended at 98.)
"""

import argparse
import itertools
import sys
import time
import warnings
from typing import NamedTuple

import lasagne
import mnist_data
import numpy as np
import theano
import theano.tensor as T
from lasagne import layers
from tqdm import tqdm

import synkhronos as synk
from synkhronos.extensions import updates

UNITS = (784, 100, 50, 12, 50, 100, 784)
MINIBATCH = 100

#: Learning rates and momenta to try.
GRID = {
    "sgd": [dict(learning_rate=a, momentum=m) for m in (0.9, 0.99) for a in (1e-3, 3e-3, 1e-2, 3e-2)],
    "adam": [dict(learning_rate=a) for a in (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)],
}
#: The best entries of `GRID`, by rule and rows per step (None: all rows).
TUNED = {
    ("sgd", MINIBATCH): dict(learning_rate=3e-3, momentum=0.9),
    ("adam", MINIBATCH): dict(learning_rate=1e-3),
    ("sgd", None): dict(learning_rate=1e-2, momentum=0.9),
    ("adam", None): dict(learning_rate=1e-2),
}


# The network: plain Lasagne code.


class Network(NamedTuple):
    """Expressions of an autoencoder."""

    x: T.TensorVariable  # the rows
    z: T.TensorVariable  # inputs of the last layer's sigmoids
    loss: T.TensorVariable  # cross-entropy, summed over the pixels, averaged over the rows
    params: list


def build_network(units, seed, dtype):
    """Build an autoencoder with tanh units; initial values depend only on the seed."""
    theano.config.floatX = dtype
    lasagne.random.set_rng(np.random.RandomState(seed))
    x = T.matrix("x")
    network = layers.InputLayer((None, units[0]), x)
    for width in units[1:-1]:
        network = layers.DenseLayer(network, width, nonlinearity=T.tanh)
    network = layers.DenseLayer(network, units[-1], nonlinearity=None)
    z = layers.get_output(network)
    loss = (T.nnet.softplus(z) - x * z).sum(axis=1).mean()  # cross-entropy of sigmoid(z); softplus does not overflow
    return Network(x, z, loss, layers.get_all_params(network))


def flat_values(params):
    """Return the values of all parameters in one float64 vector."""
    return np.concatenate([param.get_value().ravel() for param in params]).astype(np.float64)


def split(vector, shapes):
    """Divide a NumPy or Theano vector into arrays of the given shapes."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    return [vector[end - int(np.prod(shape)) : end].reshape(shape) for end, shape in zip(ends, shapes)]


def gauss_newton_product(network, v):
    """Return ``J' H J v``, computed from right to left: forward derivative, loss curvature, backward derivative."""
    vs = split(v, [param.get_value().shape for param in network.params])
    Jv = T.Rop(network.z, network.params, vs)
    HJv = T.Rop(T.grad(network.loss, network.z), network.z, Jv)
    return T.Lop(network.z, network.params, HJv)


def flat(expressions):
    return T.concatenate([expression.flatten() for expression in expressions])


# The method's interface: functions of the whole data set.


class Problem:
    """Loss, gradient and Gauss-Newton product over all rows, at the current parameters, with pass counts.

    Parameters
    ----------
    set_params : callable
        Sets all parameters from one vector.
    loss, loss_and_gradient, product : callable
        Return a number, a number and a vector, and the product with the given vector, respectively.
    """

    def __init__(self, set_params, loss, loss_and_gradient, product):
        self.set_params = set_params
        self._functions = dict(loss=loss, gradient=loss_and_gradient, product=product)
        self.on_pass = lambda: None
        self.forget()

    def forget(self):
        """Reset the pass counts to 0."""
        self.counts = dict.fromkeys(self._functions, 0)

    @property
    def passes(self):
        return sum(self.counts.values())

    def loss(self):
        return float(self._call("loss"))

    def loss_and_gradient(self):
        loss, gradient = self._call("gradient")
        return float(loss), np.asarray(gradient, np.float64)

    def product(self, v):
        return np.asarray(self._call("product", v.astype(theano.config.floatX)), np.float64)

    def _call(self, kind, *args):
        result = self._functions[kind](*args)
        self.counts[kind] += 1
        self.on_pass()
        return result


def problem_on_ranks(network, X, num_slices=1):
    """Return a `Problem` with functions that run on all ranks, built with ``synk.function``.

    Hundreds of calls use the same rows, so the rows are scattered once, into a shared variable on each rank's device. A
    call sends only vectors: ``v`` to every rank, and one mean to the master. Each rank computes in ``num_slices``
    slices of its rows, so activations and their forward derivatives need memory for only one slice at a time. (A
    product over 4,000 rows on one rank needed 56 MB with 1 slice, 18 MB with 4 slices, and 8 MB with 16 slices.)
    """
    rows = theano.shared(X[:0], "rows")
    v = T.vector("v")
    data = dict(givens={network.x: rows}, sliceable_shareds=[rows])
    loss_and_gradient = [network.loss, flat(T.grad(network.loss, network.params))]
    loss_fn = synk.function([], network.loss, name="loss", **data)
    gradient_fn = synk.function([], loss_and_gradient, name="gradient", **data)
    product_fn = synk.function([], flat(gauss_newton_product(network, v)), bcast_inputs=[v], name="product", **data)
    synk.scatter(rows, X)
    shapes = [param.get_value().shape for param in network.params]

    def set_params(theta):
        synk.broadcast(network.params, split(theta.astype(theano.config.floatX), shapes))

    return Problem(
        set_params,
        lambda: loss_fn(num_slices=num_slices),
        lambda: gradient_fn(num_slices=num_slices),
        lambda v: product_fn(v, num_slices=num_slices),
    )


def problem_in_theano(network, X):
    """Return a `Problem` with the functions of the serial program, built with ``theano.function``."""
    v = T.vector("v")
    data = dict(givens={network.x: theano.shared(X)})
    shapes = [param.get_value().shape for param in network.params]

    def set_params(theta):
        for param, value in zip(network.params, split(theta.astype(theano.config.floatX), shapes)):
            param.set_value(value)

    return Problem(
        set_params,
        theano.function([], network.loss, **data),
        theano.function([], [network.loss, flat(T.grad(network.loss, network.params))], **data),
        theano.function([v], flat(gauss_newton_product(network, v)), **data),
    )


# The method: NumPy, one process.


class Step(NamedTuple):
    """State of Hessian-free optimization after a step."""

    passes: int
    loss: float
    theta: np.ndarray
    cg_iterations: int
    damping: float
    rate: float  # factor of the line search for the step; 0: no step


def conjugate_gradients(product, b, x, max_iterations, min_progress=5e-4):
    """Minimize ``phi(x) = x.A x / 2 - b.x`` from ``x``, until the mean gain per iteration is small (``min_progress``).

    Returns
    -------
    iterates : list of (int, numpy.ndarray, float)
        Number of iterations, x and phi, for earlier iterates at growing distances (1.3 ** j), and for the last iterate.
    """
    r = b - product(x)
    p, rr = r.copy(), r.dot(r)
    phis, iterates, save_at = [], [], 1
    for i in itertools.count():
        phis.append(-x.dot(b + r) / 2)
        window = max(10, i // 10)
        done = (
            i == max_iterations
            or rr == 0
            or (i > window and phis[-1] < 0 and phis[-1 - window] - phis[-1] < window * min_progress * -phis[-1])
        )
        if done or i == save_at:
            iterates.append((i, x, phis[-1]))
            save_at = max(i + 1, int(np.ceil(1.3 * i)))
        if done:
            return iterates
        Ap = product(p)
        alpha = rr / p.dot(Ap)
        x, r = x + alpha * p, r - alpha * Ap
        rr, last = r.dot(r), rr
        p = r + rr / last * p


def hessian_free(problem, theta, passes, cg_iterations=100, damping=1.0, shrink=0.95):
    """Train from the parameters ``theta``; yield a `Step` after each step, while enough passes remain for another."""
    direction = np.zeros_like(theta)
    while passes - problem.passes > 8:  # besides iterations, a step needs a gradient, a product, and a few losses
        max_iterations = min(cg_iterations, passes - problem.passes - 8)
        problem.set_params(theta)
        loss, gradient = problem.loss_and_gradient()

        def loss_at(candidate):
            problem.set_params(candidate)
            return problem.loss()

        iterates = conjugate_gradients(
            lambda v, damping=damping: problem.product(v) + damping * v, -gradient, shrink * direction, max_iterations
        )
        n_iterations, direction, phi = iterates.pop()
        new_loss = loss_at(theta + direction)
        while iterates:  # backtrack while the loss decreases: the last iterate minimizes the model, not the loss
            _, earlier, earlier_phi = iterates.pop()
            earlier_loss = loss_at(theta + earlier)
            if not earlier_loss < new_loss:
                break
            direction, phi, new_loss = earlier, earlier_phi, earlier_loss

        model = phi - damping * direction.dot(direction) / 2  # the undamped model's prediction for the step
        ratio = (new_loss - loss) / model if model < 0 else -1.0
        rate, slope = 1.0, min(0.0, gradient.dot(direction))
        while not new_loss <= loss + 1e-2 * rate * slope:  # also rejects NaN
            rate = rate / 2 if rate > 1e-3 else 0.0
            if not rate:
                break
            new_loss = loss_at(theta + rate * direction)
        damping *= 2 / 3 if ratio > 0.75 else 1.5 if not ratio >= 0.25 else 1
        if rate:
            theta, loss = theta + rate * direction, new_loss
        else:
            direction = np.zeros_like(theta)
        yield Step(problem.passes, loss, theta, n_iterations, damping, rate)


# First-order rules for comparison, from `synkhronos.extensions.updates`.

RULES = {"sgd": updates.nesterov_momentum, "adam": updates.adam}


def make_first_order(network, X, rule, num_slices=1):
    """Return a generator function that trains with a rule and yields the number of passes after each step."""
    scalars = {name: theano.shared(np.zeros((), theano.config.floatX), name) for name in GRID[rule][0]}
    grad_updates, param_updates, grad_shared = RULES[rule](network.loss, network.params, **scalars)
    grad_fn = synk.function([network.x], updates=grad_updates)
    param_fn = synk.function([], updates=param_updates)
    states = [state for state in param_updates if not any(state is param for param in network.params)]

    def train(batch_size, random, **values):
        synk.broadcast(list(scalars.values()), [np.asarray(values[name], theano.config.floatX) for name in scalars])
        synk.broadcast(states, [np.zeros_like(state.get_value()) for state in states])
        for epoch in itertools.count():
            order = random.permutation(len(X))
            for start in range(0, len(X), batch_size or len(X)):
                if batch_size:
                    grad_fn(X, batch=order[start : start + batch_size])
                else:
                    grad_fn(X, num_slices=num_slices)
                synk.all_reduce(grad_shared, weights=grad_fn)
                param_fn()
                yield epoch + min(start + (batch_size or len(X)), len(X)) / len(X)

    return train


# The curves.


class Curve(NamedTuple):
    """Training loss by number of passes."""

    name: str
    points: list  # of (passes, loss), from 0 passes on
    seconds: float  # without the time of losses computed only for the curve

    def loss(self, passes):
        """Return the loss reached after a number of passes."""
        return [loss for made, loss in self.points if made <= passes][-1]


def progress_bar(name, passes, shown):
    """Return a tqdm bar that counts passes."""
    return tqdm(
        total=passes,
        desc=name,
        unit="pass",
        leave=False,
        bar_format="{l_bar}{bar}| {n:.0f}/{total} {elapsed}",
        disable=None if shown else True,
    )  # None shows a bar only on a terminal


def run_hessian_free(problem, theta, passes, cg_iterations, progress):
    problem.set_params(theta)
    points = [(0, problem.loss())]
    problem.forget()
    with progress_bar("Hessian-free", passes, progress) as bar:
        problem.on_pass = bar.update
        start = time.perf_counter()
        for step in hessian_free(problem, theta, passes, cg_iterations):
            points.append((step.passes, step.loss))
            bar.write(
                "  {:4d} passes   loss {:8.3f}   {:3d} CG iterations   damping {:.3g}{}".format(
                    step.passes,
                    step.loss,
                    step.cg_iterations,
                    step.damping,
                    "" if step.rate == 1 else f"   step times {step.rate:.3g}",
                ),
                file=sys.stdout,
            )
            sys.stdout.flush()
        seconds = time.perf_counter() - start
    problem.on_pass = lambda: None
    return Curve("Hessian-free", points, seconds)


def run_first_order(name, train, problem, theta, passes, batch_size, values, seed, progress, n_points=40):
    problem.set_params(theta)
    points, seconds, next_point = [(0, problem.loss())], 0.0, passes / n_points
    with progress_bar(name, passes, progress) as bar:
        start = time.perf_counter()
        for made in train(batch_size, np.random.RandomState(seed), **values):
            if made >= next_point:
                seconds += time.perf_counter() - start
                points.append((made, problem.loss()))
                bar.update(made - bar.n)
                next_point = made + passes / n_points
                start = time.perf_counter()
                if made >= passes or not np.isfinite(points[-1][1]):
                    break
    return Curve(name, points, seconds)


def run_all(X, units, passes, num_slices, cg_iterations, tune, seed, progress):
    """Train with every method on the ranks; return the curves, and the problem with its pass counts."""
    network = build_network(units, seed, str(X.dtype))
    theta = flat_values(network.params)
    print(
        "\n{:,} rows, {} units, {:,} parameters, {}, {} slice{} per rank".format(
            len(X), "-".join(map(str, units)), theta.size, X.dtype, num_slices, "s" if num_slices > 1 else ""
        )
    )
    problem = problem_on_ranks(network, X, num_slices)
    curves = []
    shared_X = synk.data(X)
    trainers = {rule: make_first_order(network, shared_X, rule, num_slices) for rule in RULES}
    synk.distribute()  # now, so that the first calls are not slower
    for (rule, batch_size), best in TUNED.items():
        tried = []
        for values in GRID[rule] if tune else [best]:
            name = "{}, {} ({})".format(
                {"sgd": "SGD", "adam": "Adam"}[rule],
                f"{batch_size} rows per step" if batch_size else "all rows in each step",
                ", ".join("{} {:g}".format(key.replace("_", " "), value) for key, value in values.items()),
            )
            tried.append(
                run_first_order(name, trainers[rule], problem, theta, passes, batch_size, values, seed, progress)
            )
            print(f"  {name:65s} loss {tried[-1].points[-1][1]:8.3f}", flush=True)
        curves.append(min(tried, key=lambda curve: np.nan_to_num(curve.points[-1][1], nan=np.inf)))
    return [run_hessian_free(problem, theta, passes, cg_iterations, progress)] + curves, problem


def report(curves, problem, passes):
    """Print the pass counts of Hessian-free optimization, and every curve's losses at five numbers of passes."""
    made = ", ".join(f"{kind} {count}" for kind, count in problem.counts.items() if count)
    print(f"\npasses of Hessian-free optimization: {made}")
    marks = [max(1, passes * k // 8) for k in (1, 2, 4, 6, 8)]
    print("\n{:62s}{} {:>9s}".format("training loss by passes", "".join(f"{mark:9d}" for mark in marks), "seconds"))
    for curve in curves:
        print(
            "{:62s}{} {:9.1f}".format(curve.name, "".join(f"{curve.loss(mark):9.2f}" for mark in marks), curve.seconds)
        )
    best = min(curves, key=lambda curve: curve.loss(passes))
    print(f"\nlowest loss after {passes} passes: {best.name}")


def draw(curves, passes, path):
    """Plot the curves, if matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot, because matplotlib is not installed: python -m pip install matplotlib")
        return
    figure = Figure(figsize=(8, 5), tight_layout=True)
    axes = figure.add_subplot()
    for curve in curves:
        made, losses = zip(*curve.points)
        axes.plot(made, losses, label=curve.name, marker="o" if curve is curves[0] else None, markersize=3)
    axes.set(
        xlabel="passes over the training rows (one per gradient, product and loss that a method needs)",
        ylabel="training loss (cross-entropy per row)",
        xlim=(0, passes),
        yscale="log",
    )
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)
    print(f"plotted to {path}")


# The checks.


def dense_gauss_newton(theta, units, X):
    """Return ``G = mean_i J_i' H_i J_i`` as a matrix, computed with NumPy only.

    Derivatives are the imaginary parts after an imaginary step, f(t + ih) = f(t) + ih f'(t), exact up to rounding.
    """
    shapes = [shape for n_in, n_out in zip(units, units[1:]) for shape in ((n_in, n_out), (n_out,))]

    def outputs(theta):
        params, hidden = split(theta, shapes), X
        for W, b in zip(params[::2], params[1::2]):
            z = hidden.dot(W) + b
            hidden = np.tanh(z)
        return z

    J = np.stack([outputs(theta + 1e-30j * unit).imag / 1e-30 for unit in np.eye(theta.size)], axis=-1)
    p = 1 / (1 + np.exp(-outputs(theta)))
    J *= np.sqrt(p * (1 - p))[:, :, None]  # a sigmoid's cross-entropy has the second derivative p (1 - p)
    J = J.reshape(-1, theta.size)
    return J.T.dot(J) / len(X)


def check_product(units=(6, 5, 3, 5, 6), n_rows=23, num_slices=3):
    """Return the largest relative error of the ranks' products, compared with the dense matrix's, in float64."""
    random = np.random.RandomState(1)
    X = random.rand(n_rows, units[0])
    network = build_network(units, 1, "float64")
    theta = flat_values(network.params)
    theta += 0.1 * random.randn(theta.size)  # makes biases nonzero
    G, problem = dense_gauss_newton(theta, units, X), problem_on_ranks(network, X, num_slices)
    problem.set_params(theta)
    return max(
        float(np.linalg.norm(problem.product(v) - G.dot(v)) / np.linalg.norm(G.dot(v)))
        for v in random.randn(3, theta.size)
    )


def check_steps(X, units=(784, 16, 784), n_rows=203, n_steps=3, num_slices=3, cg_iterations=6):
    """Return the relative difference between the first steps and plain Theano's, in float64.

    The number of CG iterations is small. Once CG has found an eigenvector of G, rounding errors determine its next
    iterates, and two correct programs differ. After the third step, they differ by 1e-5 with 15 iterations, but by only
    4e-15 with 6 iterations.
    """
    X = X[:n_rows].astype(np.float64)
    ends = []
    for make in (problem_in_theano, lambda network, X: problem_on_ranks(network, X, num_slices)):
        network = build_network(units, 1, "float64")
        start = flat_values(network.params)
        steps = hessian_free(make(network, X), start, 1000, cg_iterations)
        ends.append(list(itertools.islice(steps, n_steps))[-1].theta)
    serial, parallel = ends
    return float(np.linalg.norm(parallel - serial) / np.linalg.norm(serial - start))


#: Largest accepted relative error in both checks; sums over shards and slices round differently.
TOLERANCE = 1e-10


class Result(NamedTuple):
    """Curves, pass counts, and errors of the checks, as returned by `main`."""

    curves: list  # of Curve, Hessian-free first
    counts: dict  # passes of Hessian-free optimization, by kind
    product_error: float
    steps_error: float

    @property
    def agree(self):
        return self.product_error <= TOLERANCE and self.steps_error <= TOLERANCE


def main(
    passes=200,
    n_ranks=None,
    num_slices=1,
    cg_iterations=100,
    rows=None,
    units=UNITS,
    dtype="float32",
    tune=False,
    plot="second_order.png",
    seed=0,
    progress=True,
):
    """Run the checks, train with every method, and compare the results.

    Parameters
    ----------
    passes : int
        Number of passes over all training rows for each method.
    n_ranks : int, optional
        Number of ranks; by default, the number of usable cores.
    num_slices : int
        Number of slices of each rank's rows; more slices need less memory.
    cg_iterations : int
        Maximum number of conjugate-gradient iterations in a step.
    rows : int, optional
        Number of training rows; by default, all rows.
    units : tuple of int
        Widths of the layers, 784 at both ends.
    dtype : {"float32", "float64"}
        Dtype of the functions; the method's own vectors are float64. float64 needs twice the time and gains little:
        after 100 passes, Hessian-free optimization reached a loss of 201 in float32 and 195 in float64.
    tune : bool
        Whether to run every entry of `GRID`, instead of the best entries in `TUNED`.
    plot : str
        File for the plot; no plot if empty.
    seed : int
        Seed of the initial values and the minibatches.
    progress : bool
        Whether to show progress bars.

    Returns
    -------
    Result
    """
    warnings.filterwarnings("ignore", module="lasagne")  # Lasagne 0.1 uses keywords that Theano renamed
    mnist = mnist_data.load()
    n_ranks = synk.fork(n_ranks, use_gpu=False)
    print("{}; {} rank{}".format(mnist.source, n_ranks, "s" if n_ranks > 1 else ""))
    print("compiling, and comparing a small problem with a dense matrix (a minute the first time)", flush=True)
    product_error, steps_error = check_product(), check_steps(mnist.X_train)
    print(
        f"relative errors: {product_error:.0e} of Gauss-Newton products against a dense matrix, "
        f"{steps_error:.0e} of the first steps against plain Theano "
        f"(allowed: {TOLERANCE:.0e})",
        flush=True,
    )
    X = mnist.X_train[:rows].astype(dtype)
    curves, problem = run_all(X, units, passes, num_slices, cg_iterations, tune, seed, progress)
    synk.close()
    report(curves, problem, passes)
    if plot:
        draw(curves, passes, plot)
    return Result(curves, dict(problem.counts), product_error, steps_error)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--passes", type=int, help="passes over all training rows for each method; default: 200")
    parser.add_argument(
        "--n-ranks", "--n-parallel", type=int, help="number of ranks; default: the number of usable cores"
    )
    parser.add_argument("--num-slices", type=int, help="slices of each rank's rows; default: 1")
    parser.add_argument("--cg-iterations", type=int, help="maximum number of CG iterations in a step; default: 100")
    parser.add_argument("--rows", type=int, help="number of training rows; default: all")
    parser.add_argument(
        "--units", type=int, nargs="+", help="widths of the layers; default: {}".format(" ".join(map(str, UNITS)))
    )
    parser.add_argument("--dtype", choices=["float32", "float64"], help="default: float32")
    parser.add_argument("--tune", action="store_true", help="run the whole grid of learning rates and momenta")
    parser.add_argument("--plot", metavar="PNG", help="file for the plot; default: second_order.png; '' for no plot")
    parser.add_argument("--seed", type=int, help="seed of initial values and minibatches; default: 0")
    parser.add_argument("--no-progress", dest="progress", action="store_false", help="no progress bar")
    return {name: value for name, value in vars(parser.parse_args()).items() if value is not None}


if __name__ == "__main__":
    if not main(**parse_arguments()).agree:
        sys.exit("the parallel program's results differ from the serial program's")
