"""Ten bugs to plant by hand, one at a time, each of a kind that a library like this has had or could have.

Each is a function of pytest's ``monkeypatch`` (or what has its ``setattr``) that makes the library wrong in the process
that calls it, ranks that are threads included. To be planted before functions are built.
"""

import numpy as np

from synkhronos.functions import arguments, call, division, slicing
from synkhronos.functions.variants import Variants
from synkhronos.reductions import ReduceOp, combining
from synkhronos.testing.numpy_engine import Function, NumpyEngine, Shared, _substituted
from synkhronos.transports.shared_memory import SharedMemoryTransport


def weights_forgotten(plant):
    """An average of the ranks' averages, whatever rows they had."""
    right = SharedMemoryTransport.reduce
    plant.setattr(
        SharedMemoryTransport,
        "reduce",
        lambda self, keys, arrays, ops, weights, *args, **kwargs: right(self, keys, arrays, ops, None, *args, **kwargs),
    )
    right_small = call.reduce_outputs
    plant.setattr(call, "reduce_outputs", lambda op, parts, weights, root: right_small(op, parts, None, root))


def off_by_one_partition(plant):
    """The last border between two ranks lies one row too early."""
    right = division.split_rows

    def wrong(n_rows, n_ranks, root=0):
        bounds = list(right(n_rows, n_ranks, root))
        if n_rows > n_ranks > 1:
            (begin, border), (_, end) = bounds[-2:]
            bounds[-2:] = [(begin, border - 1), (border - 1, end)]
        return tuple(bounds)

    plant.setattr(division, "split_rows", wrong)


def update_per_slice(plant):
    """Every slice's updates are applied at once, and the next slice computes from them."""
    right = call.CallFunction._in_slices

    def wrong(self, context, engine, compiled, prepared):
        targets = [context.shareds[number][1] for number, _ in prepared.plan.updates]
        called = engine.call

        def call_and_update(function, args, subset):
            values = called(function, args, subset)
            for target, value in zip(targets, values[len(values) - len(targets) :]):
                engine.put(target, value)
            return values

        proxy = type(
            "Proxy", (), {"__getattr__": lambda _, name: getattr(engine, name), "call": staticmethod(call_and_update)}
        )()
        return right(self, context, proxy, compiled, prepared)

    plant.setattr(call.CallFunction, "_in_slices", wrong)


def stale_variant(plant):
    """A graph that is compiled later has the shared variables as they were when it was compiled."""
    right = NumpyEngine.variant

    def wrong(self, snapshot, sliced, as_inputs):
        compiled = right(self, snapshot, sliced, as_inputs)
        if not sliced:
            return compiled
        targets = [target for target, _ in compiled.updates]
        frozen = [
            (node, Shared(node.type, [np.array(node.storage[0])], node.name))
            for node in compiled.order
            if isinstance(node, Shared) and node not in targets
        ]
        outputs = _substituted(compiled.outputs, frozen)
        return Function(
            snapshot._replace(
                inputs=compiled.inputs, outputs=outputs, updates=compiled.updates, keys=None, single=False
            )
        )

    plant.setattr(NumpyEngine, "variant", wrong)


def lost_default_update(plant):
    """Default updates are forgotten in the graphs for calls in slices."""
    right = Variants.__init__

    def wrong(self, engine, snapshot, sliceable):
        names = ("seen", "running", "statistics")
        right(
            self,
            engine,
            snapshot._replace(updates=[(target, new) for target, new in snapshot.updates if target.name not in names]),
            sliceable,
        )

    plant.setattr(Variants, "__init__", wrong)


def wrong_op_on_the_last_slice(plant):
    """The last slice is accumulated by ``max`` instead of ``avg``."""

    def wrong(call_slice, weights, output_ops, updates):
        class Accumulator(slicing.Accumulator):
            slices = 0

            def add(self, value, weight=1):
                self.slices += 1
                if self.slices == len(weights) and self._op.name == "avg":
                    self._op = ReduceOp("max")
                super().add(value, weight)

        outputs = [Accumulator(op) for op in output_ops]
        news = [slicing.Agreement(name) if op is None else Accumulator(op, keep_dtype=True) for name, op in updates]
        for i, weight in enumerate(weights):
            for accumulator, value in zip(outputs + news, call_slice(i)):
                accumulator.add(value, weight)
        return [one.finish()[0] for one in outputs], [one.finish()[0] for one in news]

    plant.setattr(call, "in_slices", wrong)


def wrong_root(plant):
    """Rank 0's value is broadcast, whoever is the master."""
    right = SharedMemoryTransport.broadcast
    plant.setattr(SharedMemoryTransport, "broadcast", lambda self, keys, arrays, root: right(self, keys, arrays, 0))


def batch_applied_twice(plant):
    """Rows are selected by ``batch`` from Data that holds just the batch."""
    right = arguments.Arguments.prepare

    def wrong(self, pool, values, batch):
        found, chosen, n_rows = right(self, pool, values, batch)
        return (
            [
                argument._replace(kind="selected")
                if isinstance(value, arguments.Data) and value.minibatch
                else argument
                for argument, value in zip(found, values)
            ],
            chosen,
            n_rows,
        )

    plant.setattr(arguments.Arguments, "prepare", wrong)


def gather_order(plant):
    """Outputs are gathered the last rank first."""
    right = combining.gather_outputs
    plant.setattr(combining, "gather_outputs", lambda parts: right(list(parts)[::-1]))


def swapped_updates(plant):
    """In slices, two shared variables of a type are given each other's new values."""
    right = Variants.accumulated

    def wrong(self):
        found = right(self)
        if len(found) > 1 and found[0].type == found[1].type:
            found[:2] = found[1::-1]
        return found

    plant.setattr(Variants, "accumulated", wrong)


BUGS = [
    weights_forgotten,
    off_by_one_partition,
    update_per_slice,
    stale_variant,
    lost_default_update,
    wrong_op_on_the_last_slice,
    wrong_root,
    batch_applied_twice,
    gather_order,
    swapped_updates,
]
