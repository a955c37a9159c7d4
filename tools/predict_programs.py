"""Run the programs of `tools/predict_points.py` in sessions that are timed and, on request, profiled.

    python tools/predict_programs.py mlp '[{"ranks": 2, "rows": [128, 512], "profile": "DIR"}]'

The script prints a line of JSON for every number of rows. The programs differ in their communication:

=============  =================================================================================================
program        a step
=============  =================================================================================================
``mlp``        gradients, all_reduce, update: three commands; two layers of 800 units
``cnn``        one function that averages its gradients
``resnet20``   three commands
``lstm``       one function as in ``cnn``, and `STEPS_OF_COMMAND` steps per command
``sequences``  a function without gradients: a recurrent network on sequences of very different lengths
``uneven``     like ``sequences``, with larger differences in length
=============  =================================================================================================

Functions are built once and used in several sessions, one after another.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import synkhronos as synk  # noqa: E402 (prepares Theano)

#: Seconds of a measurement; minimum and maximum number of timed steps; number of untimed calls to ``run`` before them.
SECONDS, MIN_STEPS, MAX_STEPS, WARM_UP_STEPS = 1.5, 24, 200, 3
STEPS_OF_COMMAND = 10

#: Sequences: number of lengths, median length, standard deviation of the logarithm by program; units of the network.
LENGTHS, MEDIAN_LENGTH, LENGTHS_SPREAD, UNITS = 200, 100, {"sequences": 1.0, "uneven": 1.5}, 64


class ThreeCommands:
    """Training with three commands per step, as in the paper."""

    steps_of_command = 1

    def __init__(self, task):
        from synkhronos.extensions import updates

        self.task = task
        gradients, rule, self._gradients = updates.nesterov_momentum(
            task.loss, task.params, learning_rate=task.rate / 10
        )
        self._gradient_fn = synk.function(task.inputs, task.loss, updates=gradients, name="gradients", exact=False)
        self._step_fn = synk.function([], updates=rule, name="update")

    def share(self, ranks):
        """Distribute functions and data."""
        synk.distribute()
        self._data = [synk.data(array) for array in self.task.data]

    def batches(self, rows, n):
        """Return the row indices of n steps."""
        random = np.random.RandomState(0)
        return [random.randint(0, len(self.task.data[0]), rows) for _ in range(n)]

    def run(self, batches):
        """Run one training step on the rows of the only batch."""
        (batch,) = batches
        self._gradient_fn(*self._data, batch=batch)
        synk.all_reduce(self._gradients, weights=self._gradient_fn)
        self._step_fn()


class InOne(ThreeCommands):
    """Training with one function that averages the gradients and applies the update, called once per step."""

    def __init__(self, task):
        import lasagne
        import theano

        self.task = task
        averaged = synk.ops.all_reduce(theano.grad(task.loss, task.params))
        rule = lasagne.updates.nesterov_momentum(averaged, task.params, learning_rate=task.rate / 10)
        self._function = synk.function(task.inputs, task.loss, updates=rule, name="train")

    def run(self, batches):
        """Run one training step on the rows of the only batch."""
        (batch,) = batches
        self._function(*self._data, batch=batch)


class InSteps(InOne):
    """Training with several steps of one function per command."""

    steps_of_command = STEPS_OF_COMMAND

    def run(self, batches):
        """Run a training step for each batch, in one command."""
        self._function.steps(*self._data, batches=batches)


class Sequences(ThreeCommands):
    """Evaluation of a recurrent network; in each step, all sequences of a rank have the same length."""

    def __init__(self, spread):
        import theano
        import theano.tensor as T

        random = np.random.RandomState(5)
        quantiles = (np.arange(LENGTHS) + 0.5) / LENGTHS
        normal = np.sort(random.standard_normal(100_000))[(quantiles * 100_000).astype(int)]
        self.lengths = np.round(MEDIAN_LENGTH * np.exp(spread * normal)).astype("int32")
        self.of_bucket = 64
        weights = theano.shared((random.randn(UNITS, UNITS) / np.sqrt(UNITS)).astype("float32"), "weights")
        x, lengths = T.fmatrix("x"), T.ivector("lengths")
        states, _ = theano.scan(
            lambda h, w: T.tanh(T.dot(h, w)), outputs_info=x, non_sequences=weights, n_steps=lengths.max()
        )
        self._function = synk.function([x, lengths], (states[-1].sum(), "sum"), name="evaluate")
        values = random.randn(LENGTHS * self.of_bucket, UNITS).astype("float32")
        self._arrays = [values, np.repeat(self.lengths, self.of_bucket)]

    def share(self, ranks):
        """Distribute the function and the sequences."""
        self.ranks = ranks
        synk.distribute()
        self._data = [synk.data(array) for array in self._arrays]

    def batches(self, rows, n):
        """Return the row indices of n steps; each rank's rows come from one bucket of equally long sequences."""
        ranks = self.ranks
        random = np.random.RandomState(rows + ranks)
        orders = [np.resize(random.permutation(LENGTHS), n) for _ in range(ranks)]
        own = np.arange(rows // ranks)
        return [np.concatenate([self.of_bucket * order[i] + own for order in orders]) for i in range(n)]

    def run(self, batches):
        """Evaluate the network on the only batch."""
        (batch,) = batches
        self._function(*self._data, batch=batch)


def make(name):
    """Build a program by name."""
    if name in LENGTHS_SPREAD:
        return Sequences(LENGTHS_SPREAD[name])
    from benchmarks import demo_networks
    from benchmarks.lstm import lstm

    with demo_networks.single_precision():
        if name == "mlp":
            return ThreeCommands(demo_networks.mnist("mlp"))
        if name == "cnn":
            return InOne(demo_networks.mnist("cnn"))
        if name == "resnet20":
            return ThreeCommands(demo_networks.resnet(20, 1))
        return InSteps(lstm())


def measure(program, rows, seconds=SECONDS):
    """Time runs with this number of rows; return each run's seconds per step.

    Programs with sequences have no time limit, because each length must occur once on every rank.
    """
    each = program.steps_of_command
    all_lengths = isinstance(program, Sequences)
    batches = iter(program.batches(rows, WARM_UP_STEPS * each + MAX_STEPS))
    for _ in range(WARM_UP_STEPS):
        program.run([next(batches) for _ in range(each)])
    times = []
    while len(times) * each < MAX_STEPS and (
        all_lengths or len(times) * each < MIN_STEPS or sum(times) * each < seconds
    ):
        batch = [next(batches) for _ in range(each)]
        begin = time.perf_counter()
        program.run(batch)
        times.append((time.perf_counter() - begin) / each)
    return times


def main(name, sessions):
    """Run sessions of a program and print their times."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    program = None
    for session in sessions:
        profile = {"profile": session["profile"]} if session.get("profile") else {}
        hosts = session.get("hosts", 1)
        if hosts > 1:  # other hosts' processes stay inside fork
            synk.fork(1, False, threads=1, **profile)
        program = program or make(name)
        if hosts == 1:
            synk.fork(session["ranks"], False, threads=1, **profile)
        program.share(session["ranks"])
        found = [(rows, measure(program, rows)) for rows in session["rows"]]
        synk.close()
        for rows, times in found:
            print(json.dumps({"ranks": session["ranks"], "rows": rows, "hosts": hosts, "seconds": times}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
