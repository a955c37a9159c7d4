"""Training with the demos' networks: the steps that the paper takes on all ranks, and a plain program's."""

import time

import numpy as np
import theano

import synkhronos as synk
from synkhronos.extensions import updates

from .clock import Clock, divide_time


class Plain:
    """A program in plain Theano, one function with Lasagne's updates.

    Parameters
    ----------
    make : callable
        Makes a `demo_networks.Task`; takes ``watch``.
    """

    def __init__(self, make):
        self.task = task = make()
        rule = self._compile(task)
        self._initial = [(shared, shared.get_value()) for shared in rule]
        self.losses, self._moments = [], []

    def _compile(self, task):
        """Make ``self.function``, one training step; return what it changes."""
        import lasagne

        rule = lasagne.updates.nesterov_momentum(task.loss, task.params, learning_rate=task.rate)
        self.function = theano.function(task.inputs, task.loss, updates=rule)
        return rule

    def begin(self, part=slice(None)):
        """Go back to the initial values, after a step that warms up."""
        self.epoch(part, 1)
        self._moments.pop()
        for shared, value in self._initial:
            shared.set_value(value)
        self.losses = []

    def epoch(self, part=slice(None), steps=None):
        """Take the steps, of each batch with a part of the rows."""
        images, labels = self.task.data
        for rows in self.task.batches[:steps]:
            called = time.perf_counter()
            batch = images[rows[part]], labels[rows[part]]
            taken = time.perf_counter()
            self.losses.append(float(self.function(*batch)))
            self._moments.append((called, taken, time.perf_counter()))

    def parts(self):
        """Return where the time of all steps went, in microseconds per step; the update is part of the function."""
        called, taken, done = np.mean(self._moments, axis=0)
        return in_micro({"function (gradients)": done - taken, "shuffling": taken - called}, done - called)


class Apart(Plain):
    """The same with the gradients written by one function and read by another, as ranks need it to average them."""

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
    """The same program on all ranks, with clocks at both ends of the function; made before `fork`."""

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
        # All gradients are there when an element of what they are written into is.
        loss, ended_at = Clock()(task.loss, *(gradient[:1] for gradient in gradients.values()))
        self.gradient_fn = synk.function(task.inputs, [loss, started[0], (ended_at, "gather")], updates=gradients)
        self.step_fn = synk.function([], updates=rule)
        self._changed = list(rule)
        self._initial = [shared.get_value() for shared in rule]
        self.losses, self._moments = [], []

    def share(self):
        """Bring the data to the ranks; after `fork`."""
        synk.distribute()
        self._data = [synk.data(array) for array in self.task.data]

    def begin(self):
        """Go back to the initial values, after a step that warms up."""
        self.epoch(1)
        self._moments.pop()
        synk.broadcast(self._changed, self._initial)
        self.losses = []

    def epoch(self, steps=None):
        """Take the steps."""
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
        """Return where the time of all steps went, in microseconds per step, as a mean over the ranks."""
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
    """The same with gradients averaged inside the one function, and an epoch in one command; made before `fork`.

    By hand, or by ``exact=True``; ``rule`` is one of Lasagne's.
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
        """Bring the data to the ranks; after `fork`."""
        self._data = [synk.data(array, **options) for array in self.task.data]

    def begin(self):
        """Go back to the initial values, after a step that warms up."""
        self.epoch(1)
        synk.broadcast(self._changed, self._initial)
        self.losses = []

    def epoch(self, steps=None):
        """Take the steps."""
        self.losses += self.function.steps(*self._data, batches=self.task.batches[:steps]).tolist()


def in_micro(parts, total):
    """Return the parts of a step, what else there was, and all of it, from seconds in microseconds."""
    return {
        name: 1e6 * float(value) for name, value in dict(parts, other=total - sum(parts.values()), total=total).items()
    }
