"""Training programs with the demos' networks: serial, with three commands per step, and with an epoch per command."""

import time

import numpy as np
import theano

import synkhronos as synk
from synkhronos.extensions import updates

from .clock import Clock, divide_time


class Plain:
    """Training program in plain Theano, with one function and Lasagne's updates.

    `make` is a function that creates a `demo_networks.Task`, with an optional argument ``watch``.
    """

    def __init__(self, make):
        self.task = task = make()
        rule = self._compile(task)
        self._initial = [(shared, shared.get_value()) for shared in rule]
        self.losses, self._moments = [], []

    def _compile(self, task):
        """Create ``self.function``, one training step; return its updates."""
        import lasagne

        rule = lasagne.updates.nesterov_momentum(task.loss, task.params, learning_rate=task.rate)
        self.function = theano.function(task.inputs, task.loss, updates=rule)
        return rule

    def begin(self, part=slice(None)):
        """Restore the initial values, after a warm-up step."""
        self.epoch(part, 1)
        self._moments.pop()
        for shared, value in self._initial:
            shared.set_value(value)
        self.losses = []

    def epoch(self, part=slice(None), steps=None):
        """Run a training step for each batch, or for the first `steps` batches, on a part of the batch's rows."""
        images, labels = self.task.data
        for rows in self.task.batches[:steps]:
            called = time.perf_counter()
            batch = images[rows[part]], labels[rows[part]]
            taken = time.perf_counter()
            self.losses.append(float(self.function(*batch)))
            self._moments.append((called, taken, time.perf_counter()))

    def parts(self):
        """Return the parts of a step's time, in microseconds; the update belongs to the function."""
        called, taken, done = np.mean(self._moments, axis=0)
        return in_micro({"function (gradients)": done - taken, "shuffling": taken - called}, done - called)


class Apart(Plain):
    """`Plain` with separate functions for gradients and update, so that gradients could be averaged between the two."""

    def _compile(self, task):
        gradients, rule, _ = updates.nesterov_momentum(task.loss, task.params, learning_rate=task.rate)
        gradient_fn = theano.function(task.inputs, task.loss, updates=gradients)
        step_fn = theano.function([], updates=rule)

        def function(*batch):
            loss = gradient_fn(*batch)
            step_fn()
            return loss

        self.function = function
        return rule


class Parallel:
    """`Apart` on all ranks, with clocks at both ends of the gradient function; create it before `fork`."""

    def __init__(self, make):
        started = []

        def watch(images):
            images, started_at = Clock()(images)
            started.append((started_at, "gather"))
            return images

        self.task = task = make(watch=watch)
        gradients, rule, self._shared_gradients = updates.nesterov_momentum(
            task.loss, task.params, learning_rate=task.rate
        )
        # An element of a gradient is available only when the whole gradient has been computed.
        loss, ended_at = Clock()(task.loss, *(gradient[:1] for gradient in gradients.values()))
        self.gradient_fn = synk.function(task.inputs, [loss, started[0], (ended_at, "gather")], updates=gradients)
        self.step_fn = synk.function([], updates=rule)
        self._changed = list(rule)
        self._initial = [shared.get_value() for shared in rule]
        self.losses, self._moments = [], []

    def share(self):
        """Distribute functions, and copy the data to shared memory; call this method after `fork`."""
        synk.distribute()
        self._data = [synk.data(array) for array in self.task.data]

    def begin(self):
        """Restore the initial values, after a warm-up step."""
        self.epoch(1)
        self._moments.pop()
        synk.broadcast(self._changed, self._initial)
        self.losses = []

    def epoch(self, steps=None):
        """Run a training step for each batch, or for the first `steps` batches."""
        for rows in self.task.batches[:steps]:
            called = time.perf_counter()
            loss, started, ended = self.gradient_fn(*self._data, batch=rows)
            computed = time.perf_counter()
            synk.all_reduce(self._shared_gradients, weights=self.gradient_fn)
            reduced = time.perf_counter()
            self.step_fn()
            self.losses.append(float(loss))
            self._moments.append((called, started, ended, computed, reduced, time.perf_counter()))

    def parts(self):
        """Return the parts of a step's time, in microseconds, averaged over the ranks."""
        divided = [divide_time(*moments[:3]) for moments in self._moments]
        called, computed, reduced, done = np.mean([moments[:1] + moments[3:] for moments in self._moments], axis=0)
        mean = {name: np.mean([each[name] for each in divided]) for name in divided[0]}
        return in_micro(
            {
                "function (gradients)": mean["function"],
                "shuffling": mean["shuffling"],
                "waiting for the slowest rank": mean["waiting"],
                "all_reduce": reduced - computed,
                "update step": done - reduced,
            },
            done - called,
        )


class InSteps:
    """Training program that averages gradients inside one function, with an epoch per command; create it before `fork`.

    Gradients are averaged with explicit collectives or with ``exact=True``. ``rule`` is the name of a rule of Lasagne.
    """

    def __init__(self, make, rule="nesterov_momentum", exact=False):
        import lasagne

        self.task = task = make()
        loss_or_gradients = task.loss if exact else synk.ops.all_reduce(theano.grad(task.loss, task.params))
        rule = getattr(lasagne.updates, rule)(loss_or_gradients, task.params, learning_rate=task.rate)
        self.function = synk.function(task.inputs, task.loss, updates=rule, exact=exact)
        self._changed = list(rule)
        self._initial = [shared.get_value() for shared in rule]
        self.losses = []

    def share(self, **options):
        """Copy the data to shared memory; call this method after `fork`."""
        self._data = [synk.data(array, **options) for array in self.task.data]

    def begin(self):
        """Restore the initial values, after a warm-up step."""
        self.epoch(1)
        synk.broadcast(self._changed, self._initial)
        self.losses = []

    def epoch(self, steps=None):
        """Run a training step for each batch, or for the first `steps` batches."""
        self.losses += self.function.steps(*self._data, batches=self.task.batches[:steps]).tolist()


def in_micro(parts, total):
    """Convert the parts of a step from seconds to microseconds, and add the remaining time and the total."""
    return {
        name: 1e6 * float(value) for name, value in dict(parts, other=total - sum(parts.values()), total=total).items()
    }
