"""Bugs to plant, one at a time, each of a kind that a library like this has had or could have.

Each bug is a function that takes a `Plant` and makes the library wrong in the calling process, including ranks that are
threads. It must be planted before functions are built. A bug must cause a wrong value or a missing refusal. An
exception does not count (`tests/programs/test_programs.py`): a bug that only raises is stale, and has not been found.
"""

import inspect
import sys

import numpy as np

import synkhronos.calls.function  # noqa: F401, what is first imported while a bug is planted would keep it
from synkhronos import engines, in_graph
from synkhronos.calls import (
    arguments,
    batches,
    changes,
    default_ops,
    division,
    plan_builder,
    rank_call,
    rank_values,
    state_rows,
    step_outputs,
)
from synkhronos.calls.plan import FunctionVariables, Plans
from synkhronos.calls.variants import Variants
from synkhronos.collectives import mixing
from synkhronos.collectives import scatter as scatter_module
from synkhronos.collectives.all_reduce import AllReduceCommand
from synkhronos.collectives.broadcast import Broadcast
from synkhronos.collectives.started import StartReduction
from synkhronos.kernels import copy as copying
from synkhronos.kernels import reduce as kernel
from synkhronos.reductions import Accumulator, ReduceOp, combining, mean, scalars
from synkhronos.runtime.borrowed import Borrowed
from synkhronos.runtime.registry import RowsOfRanks, SharedEntry
from synkhronos.selection import Indices, RowRange
from synkhronos.sharding import Axes, Elementwise, Partial, RuleResult, Subscript, WithinRows, completion, rule
from synkhronos.testing.numpy_engine import NumpyEngine, NumpyFunction, Shared
from synkhronos.testing.numpy_engine.graph import substituted
from synkhronos.transports.common import CommonMemory
from synkhronos.transports.shared_memory import SharedMemoryTransport
from synkhronos.transports.value_buffers import ArrayBlock, ValueBuffers


class Stale(Exception):
    """The code that a bug replaces has changed, and the bug must be adapted."""


class Plant:
    """Plants a bug and removes it again, and clears the library's caches each time.

    Parameters
    ----------
    patch : pytest.MonkeyPatch
    engine : str
        The engine of the functions.

    Attributes
    ----------
    engine : type
    """

    def __init__(self, patch, engine="numpy"):
        self._patch, self.engine = patch, type(engines.get(engine))
        clear_caches()

    def replace(self, owner, name, wrong):
        """Replace a method, or a function in all modules of the library that have imported it.

        Raises
        ------
        Stale
            If the owner has no callable of this name, or it takes other parameters.
        """
        right = getattr(owner, name, None)
        if not callable(right):
            raise Stale(f"{owner.__name__} has no {name}")
        if parameters(right) != parameters(wrong):
            raise Stale(f"{owner.__name__}.{name}{inspect.signature(right)}, not {inspect.signature(wrong)}")
        self._patch.setattr(owner, name, wrong)
        for module in modules() if inspect.ismodule(owner) else ():
            if getattr(module, name, None) is right:
                self._patch.setattr(module, name, wrong)

    def replace_constant(self, module, name, wrong):
        """Replace a constant by one of the same type, in its own module only."""
        if type(getattr(module, name, None)) is not type(wrong):
            raise Stale(f"{module.__name__} has no {name} of type {type(wrong).__name__}")
        self._patch.setattr(module, name, wrong)

    def pull_out(self):
        self._patch.undo()
        clear_caches()


def parameters(function):
    """Return the names, kinds and defaults of the parameters of a function, or of a class's ``__init__``."""
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]


def modules():
    """Return the loaded modules of the library."""
    return [module for name, module in list(sys.modules.items()) if module and name.split(".")[0] == "synkhronos"]


def clear_caches():
    """Empty every `functools.lru_cache` of the library."""
    for module in modules():
        for value in list(vars(module).values()):
            if hasattr(value, "cache_clear"):
                value.cache_clear()


# -- averages: losses in each place that computes them -----------------------------------------------------------------


def average_of_averages(plant):
    """As in 2017: the ranks' results are averaged with equal weights, whatever their numbers of rows."""
    right = division.divide

    def wrong(size, root, n_rows=None, lengths=None, batch_s=None, num_slices=1, all_ranks_call=False, written=None):
        found = right(size, root, n_rows, lengths, batch_s, num_slices, all_ranks_call, written)
        return found if found.weights is None else found._replace(weights=[min(1, rows) for rows in found.weights])

    plant.replace(division, "divide", wrong)


def average_of_slices(plant):
    """As in 2017: a rank's slices are averaged with equal weights, whatever their numbers of rows."""
    right = Accumulator.add

    def wrong(self, value, weight=1):
        right(self, value, 1)

    plant.replace(Accumulator, "add", wrong)


def weights_lost_in_arrays(plant):
    """NumPy's mean of arrays ignores the weights."""
    right = mean.mean_into

    def wrong(parts, weights, out):
        right(parts, None, out)

    plant.replace(mean, "mean_into", wrong)


def weights_lost_in_numbers(plant):
    """The fast path for single numbers ignores the weights."""
    right = scalars.combine_numbers

    def wrong(op, parts, weights):
        return right(op, parts, None)

    plant.replace(scalars, "combine_numbers", wrong)


def weights_lost_in_steps(plant):
    """Numbers from many steps are averaged with equal weights."""
    right = combining.combine_each

    def wrong(op, parts, weights=None):
        return right(op, parts, None)

    plant.replace(combining, "combine_each", wrong)


def weights_of_the_first_steps(plant):
    """All steps are averaged with the weights of the first step's division."""
    right = step_outputs.Combiner.__init__

    def wrong(self, plans, ops, dtypes, divisions, counts, stored, root, pools):
        plans = [plan._replace(division=plans[0].division) for plan in plans]
        right(self, plans, ops, dtypes, divisions, counts, stored, root, pools)

    plant.replace(step_outputs.Combiner, "__init__", wrong)


def indices_of_steps_from_the_first_on(plant):
    """Every step with indices takes those at the beginning of the table."""
    right = batches.selection

    def wrong(row, indices):
        start, stop, step = row
        return right(row if step else (0, stop - start, 0), indices)

    plant.replace(batches, "selection", wrong)


def weights_lost_in_the_kernel(plant):
    """The reduction in C ignores the weights. (Without the kernels, NumPy's does.)"""
    if kernel.streaming.kernels is None:
        return weights_lost_in_arrays(plant)
    right = kernel.recipe_of

    def wrong(op, present, weights, dtype):
        return right(op, present, None, dtype)

    plant.replace(kernel, "recipe_of", wrong)


def weight_0_counts(plant):
    """A rank with weight 0 gets the smallest weight of the other ranks."""
    right = mean.counting

    def wrong(present, weights):
        if weights is not None and any(weights):
            least = min(weight for weight in weights if weight)
            weights = [weight or least for weight in weights]
        return right(present, weights)

    plant.replace(mean, "counting", wrong)


# -- rows: wrong assignments to ranks ----------------------------------------------------------------------------------


def off_by_one_partition(plant):
    """The boundary between the last two ranks lies one row too early."""
    right = division.split_rows

    def wrong(n_rows, n_ranks, root=0):
        bounds = list(right(n_rows, n_ranks, root))
        if n_rows > n_ranks > 1:
            (begin, border), (_, end) = bounds[-2:]
            bounds[-2:] = [(begin, border - 1), (border - 1, end)]
        return tuple(bounds)

    plant.replace(division, "split_rows", wrong)


def without_remainder(n_rows, n_ranks):
    """Return parts of equal length; no part has the remainder at the end."""
    rows = n_rows // n_ranks
    return tuple((rank * rows, (rank + 1) * rows) for rank in range(n_ranks))


def inputs_lose_the_remainder(plant):
    """Inputs are divided into parts of equal length, and the remaining rows are dropped."""
    right = division.split_rows

    def wrong(n_rows, n_ranks, root=0):
        return without_remainder(n_rows, n_ranks) if n_rows >= n_ranks else right(n_rows, n_ranks, root)

    plant.replace(division, "split_rows", wrong)


def scatter_loses_the_remainder(plant):
    """As in 2017: scatter drops the rows that remain after equal parts."""
    right = scatter_module.split_rows

    def wrong(n_rows, n_ranks, root=0):
        return without_remainder(n_rows, n_ranks) if n_rows >= n_ranks else right(n_rows, n_ranks, root)

    plant.replace(scatter_module, "split_rows", wrong)


def slices_lose_the_remainder(plant):
    """A rank's rows are cut into slices of equal length, and the remainder is dropped."""
    right = division.split_slices

    def wrong(n_rows, num_slices):
        return without_remainder(n_rows, num_slices) if 0 < num_slices <= n_rows else right(n_rows, num_slices)

    plant.replace(division, "split_slices", wrong)


def selected_after_scattering(plant):
    """``batch`` selects among each rank's rows after the division, as ``batch_s`` does."""

    def wrong(self, lo, hi):
        return Indices(lo + self.array[lo:hi] % max(1, hi - lo))

    plant.replace(Indices, "part", wrong)


def rows_in_order(plant):
    """Lists of rows are sorted, so that the data set is no longer shuffled."""

    def wrong(self, array, out=None):
        return right(Indices(np.sort(self.array)), array, out)

    right = Indices.take
    plant.replace(Indices, "take", wrong)


def step_forgotten(plant):
    """A slice with a step takes the same number of consecutive rows."""
    right = RowRange.part

    def wrong(self, lo, hi):
        part = right(self, lo, hi)
        return RowRange(part.start, part.start + len(part)) if part.step > 1 else part

    plant.replace(RowRange, "part", wrong)


def one_selection_for_all_ranks(plant):
    """If ``batch_s`` has a selection for each rank, all ranks take the first one."""
    right = division.parse_per_rank

    def wrong(batch_s, lengths, argument="batch_shared", of="the shortest sliceable shared variable"):
        found = right(batch_s, lengths, argument, of)
        fits = all(len(selection) == len(found[0]) for selection in found) and len(set(lengths)) == 1
        return [found[0]] * len(found) if fits else found

    plant.replace(division, "parse_per_rank", wrong)


def batch_applied_twice(plant):
    """``batch`` selects rows from Data that contains only the batch."""
    right = arguments.Arguments.prepare

    def wrong(self, pool, values, batch):
        found, chosen, indices, n_rows = right(self, pool, values, batch)
        found = tuple(
            each._replace(kind="selected") if isinstance(value, arguments.Data) and value.minibatch else each
            for each, value in zip(found, values)
        )
        if isinstance(chosen, Indices) and indices is None:
            indices = self.stage(pool, -1, chosen.array)
        return found, chosen, indices, n_rows

    plant.replace(arguments.Arguments, "prepare", wrong)


def lengths_cut(plant):
    """Scattered inputs of different lengths are not refused: the longer ones lose their last rows."""
    right = arguments.Arguments._select

    def wrong(self, arrays, lengths, batch, argument="batch"):
        return right(self, arrays, lengths, min(lengths) if batch is None else batch, argument)

    plant.replace(arguments.Arguments, "_select", wrong)


def indices_of_the_call_before(plant):
    """A list of rows as long as the previous one is not written to shared memory."""
    stage_only_once(plant, lambda i: i == -1)


def arguments_of_the_call_before(plant):
    """An array of the same shape as the previous one is not written to shared memory."""
    stage_only_once(plant, lambda i: type(i) is int and i >= 0)


def stage_only_once(plant, concerned):
    right = arguments.Arguments.stage

    def wrong(self, pool, i, array, chosen=None):
        shape = array.shape if chosen is None else (len(chosen),) + array.shape[1:]
        staged = self._staging.get(i)
        if concerned(i) and staged is not None and staged.pool is pool and staged.array.shape == shape:
            return staged.handle
        return right(self, pool, i, array, chosen)

    plant.replace(arguments.Arguments, "stage", wrong)


# -- slices and updates --------------------------------------------------------------------------------------------------


def update_per_slice(plant):
    """Every slice's updates are applied immediately, and the next slice computes from them."""
    right = NumpyEngine.variant

    def wrong(self, snapshot, sliced, as_inputs):
        compiled = right(self, snapshot, sliced, as_inputs)
        if sliced and snapshot.halves is None:
            at_once = right(self, snapshot, False, as_inputs)
            compiled = NumpyFunction(
                snapshot._replace(
                    inputs=at_once.inputs,
                    outputs=at_once.outputs + [new for _, new in at_once.updates],
                    updates=at_once.updates,
                    keys=None,
                    single=False,
                )
            )
        return compiled

    plant.replace(NumpyEngine, "variant", wrong)


def stale_variant(plant):
    """A graph for slices keeps the values that shared variables had when it was compiled."""
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
        return NumpyFunction(
            snapshot._replace(
                inputs=compiled.inputs,
                outputs=substituted(compiled.outputs, frozen),
                updates=compiled.updates,
                keys=None,
                single=False,
            )
        )

    plant.replace(NumpyEngine, "variant", wrong)


def lost_default_update(plant):
    """Default updates are missing from the graphs for calls in slices."""
    right = Variants.__init__

    def wrong(self, engine, snapshot, sliceable, scattered, states, written=None):
        names = ("seen", "running", "statistics")
        updates = [(target, target if target.name in names else new) for target, new in snapshot.updates]
        right(self, engine, snapshot._replace(updates=updates), sliceable, scattered, states, written)

    plant.replace(Variants, "__init__", wrong)


def wrong_op_on_the_last_slice(plant):
    """The last slice is accumulated by ``max`` instead of ``avg``."""
    right = rank_call.in_slices

    def wrong(call, weights, outputs, updates, accumulator=Accumulator):
        class LastByMax(Accumulator):
            slices = 0

            def add(self, value, weight=1):
                self.slices += 1
                if self.slices == len(weights) > 1 and self._op.name == "avg":
                    self._op = ReduceOp("max")
                super().add(value, weight)

        return right(call, weights, outputs, updates, LastByMax)

    plant.replace(rank_call, "in_slices", wrong)


def swapped_updates(plant):
    """In slices, two shared variables of the same type get each other's new values."""
    right = Variants.returned

    def wrong(self, sliced):
        found = right(self, sliced)
        if len(found) > 1 and found[0].type == found[1].type:
            found[:2] = found[1::-1]
        return found

    plant.replace(Variants, "returned", wrong)


# -- results -------------------------------------------------------------------------------------------------------------


def wrong_root(plant):
    """Rank 0's value is broadcast, whichever rank is the master."""
    right = Broadcast.run

    def wrong(self, context):
        root, context.root = context.root, 0
        try:
            return right(self, context)
        finally:
            context.root = root

    plant.replace(Broadcast, "run", wrong)


def gather_order(plant):
    """Outputs are gathered in the reverse order of ranks."""
    right = combining.gather_outputs

    def wrong(parts):
        return right(list(parts)[::-1])

    plant.replace(combining, "gather_outputs", wrong)


def last_rank_forgotten(plant):
    """Sums, products and extremes leave out the last rank."""
    right = combining._fold_into

    def wrong(op, parts, out):
        present = [part for part in parts if part is not None]
        right(op, present[:-1] or present, out)

    plant.replace(combining, "_fold_into", wrong)


def subset_in_order(plant):
    """Outputs come in the order of the function, not in that of ``output_subset``."""
    right = plant.engine.call

    def wrong(self, compiled, args, output_subset=None):
        return right(self, compiled, args, None if output_subset is None else sorted(output_subset))

    plant.replace(plant.engine, "call", wrong)


def plan_of_the_call_before(plant):
    """A call reuses the plan of an earlier call with such arguments, even if its rows were different."""

    def wrong(self, key):
        for other, kept in reversed(list(self._cached.items())):
            if other[0] == key[0] and other[4] == key[4] and (other[3] is None) == (key[3] is None):
                return kept
        return None

    plant.replace(Plans, "find", wrong)


def slot_one_collective_old(plant):
    """A collective reads the array in a variable's slot, although a function has since updated the variable."""
    right = SharedMemoryTransport.bind

    def wrong(self, keys, values):
        found = []
        for key, value in zip(keys, values):
            current = self._slots[key].current if key in self._slots else None
            fits = current is not None and (current.array.shape, current.array.dtype) == (value.shape, value.dtype)
            found.append(current.array if fits else right(self, [key], [value])[0])
        return found

    plant.replace(SharedMemoryTransport, "bind", wrong)


# -- collectives inside functions ----------------------------------------------------------------------------------------


def equal_weights_inside(plant):
    """Collectives inside a function weight ranks equally, whatever their numbers of rows."""
    right = division.Division.slice_weights

    def wrong(self, i, root):
        weights = right(self, i, root)
        return weights if weights is None else [int(weight > 0) for weight in weights]

    plant.replace(division.Division, "slice_weights", wrong)


def weight_0_counts_inside(plant):
    """Ranks without rows, which call with another rank's row, count in the collectives."""
    right = division.Division.slice_weights

    def wrong(self, i, root):
        weights = right(self, i, root)
        return weights if weights is None else [weight or 1 for weight in weights]

    plant.replace(division.Division, "slice_weights", wrong)


def no_updates_without_rows(plant):
    """Ranks without rows do not apply the updates that all ranks have in common."""
    right = rank_call.change_of

    def wrong(prepared, chosen, news, divided=()):
        return right(prepared, chosen if prepared.counts else [], news, divided)

    plant.replace(rank_call, "change_of", wrong)


def all_updates_without_rows(plant):
    """Ranks without rows apply all updates."""
    right = rank_call.change_of

    def wrong(prepared, chosen, news, divided=()):
        chosen = range(len(news)) if prepared.plan.division.num_slices == 1 else chosen
        return right(prepared, chosen, news, divided)

    plant.replace(rank_call, "change_of", wrong)


def results_while_they_are_held(plant):
    """The memory of a collective's results is reused, although a variable still refers to it."""

    def wrong(self):
        self._results = self._results or [ArrayBlock(self._pool, self.kinds)]
        return self._results[0]

    plant.replace(ValueBuffers, "result", wrong)


def own_share_is_not_read(plant):
    """A rank reads its own share from shared memory, although it has copied only the others' shares there."""
    plant.replace(kernel.DtypeGroup, "pieces_with", lambda self, rank, own: self.pieces)


def share_of_others_is_not_copied(plant):
    """A rank copies one element too few of a value."""
    right = copying.copy_outside

    def wrong(begin, end, target, source):
        right(begin, min(end + 1, source.size), target, source)

    plant.replace(copying, "copy_outside", wrong)


def sources_without_turns(plant):
    """A rank overwrites its input to a collective while a slow rank is still reading it."""
    right = ValueBuffers.stage

    def wrong(self, arrays, own):
        self._turn = -1
        return right(self, arrays, own)

    plant.replace(ValueBuffers, "stage", wrong)


def weights_of_the_step_before(plant):
    """In steps, collectives weight ranks by their rows in the previous step."""
    right, before = rank_call.CollectivesOfCall.__init__, {}

    def wrong(self, prepared, i, context):
        right(self, prepared, i, context)
        steps = (context.barrier.command, self.plan.number)
        known, last = before.get(context.rank, (None, self.weights))
        if self.plan.division.num_slices == 1:
            before[context.rank] = steps, self.weights
            self.weights = last if known == steps else self.weights

    plant.replace(rank_call.CollectivesOfCall, "__init__", wrong)


def not_linear_in_slices(plant):
    """Functions that are not linear in collectives are not refused in slices."""
    plant.replace(plan_builder, "_check_degree", lambda division, label, degree, op, hint: None)


# -- outputs without ops -------------------------------------------------------------------------------------------------


def other_op_than_found(plant, wrong_ops):
    right = default_ops.op_of

    def wrong(placement, is_float):
        found = right(placement, is_float)
        return ReduceOp(wrong_ops.get(found.name, found.name)) if isinstance(found, ReduceOp) else found

    plant.replace(default_ops, "op_of", wrong)


def default_op_is_sum(plant):
    """Means without an op are added up."""
    other_op_than_found(plant, {"avg": "sum"})


def default_op_is_avg(plant):
    """Sums without an op are averaged, as before placements existed."""
    other_op_than_found(plant, {"sum": "avg"})


def rows_of_the_master_alone(plant):
    """Rows without an op are not gathered."""
    other_op_than_found(plant, {"gather": None})


def least_for_largest(plant):
    """Maxima without an op are combined by the minimum."""
    other_op_than_found(plant, {"max": "min"})


# -- exact functions -----------------------------------------------------------------------------------------------------


def collective_left_out(plant):
    """The first update with a partial value uses the rank's part alone."""
    right = completion.complete

    def wrong(nodes, found, roots, builder):
        return right(nodes, found, list(roots)[1:], builder)

    plant.replace(completion, "complete", wrong)


def no_collectives_before_operations(plant):
    """An operation that needs the combined value uses the rank's part instead."""
    right = rule.taken_whole

    def wrong(inputs, positions, exact):
        whole, after = right(inputs, positions, exact)
        return frozenset(i for i in whole if not isinstance(inputs[i], Partial)), after

    plant.replace(rule, "taken_whole", wrong)


def collective_too_late(plant):
    """A nonlinear function of a partial value is taken for a partial value of the function."""
    right = Elementwise.place

    def wrong(self, inputs, exact):
        if [type(one) for one in inputs] == [Partial] and not self.linear:
            return RuleResult([inputs[0]])
        return right(self, inputs, exact)

    plant.replace(Elementwise, "place", wrong)


def collective_too_early(plant):
    """Values that are computed once, with collectives, are computed from the first slice alone."""
    right = rank_call.in_slices

    def wrong(call, weights, outputs, updates, accumulator=Accumulator):
        if updates and updates[0][0].startswith("part"):
            later = [[*of_slice[: len(outputs)], *[None] * len(updates)] for of_slice in weights[1:]]
            weights = [weights[0], *later]
        return right(call, weights, outputs, updates, accumulator)

    plant.replace(rank_call, "in_slices", wrong)


def other_op_inside(plant, right_op, wrong_op):
    right = in_graph.all_reduce

    def wrong(number, op, arrays, method="all_reduce"):
        return right(number, ReduceOp(wrong_op) if op.name == right_op else op, arrays, method)

    plant.replace(in_graph, "all_reduce", wrong)


def sum_for_avg(plant):
    """The ranks' parts of a mean are added up."""
    other_op_inside(plant, "avg", "sum")


def max_for_min(plant):
    """The largest of the ranks' minima is taken."""
    other_op_inside(plant, "min", "max")


def power_of_rows_forgotten(plant):
    """After the next operation, a mean is taken for a sum."""
    right = Axes._power

    def wrong(self, inputs):
        return right(self, inputs) and 0

    plant.replace(Axes, "_power", wrong)


def parts_of_slices_averaged(plant):
    """Sums over slices are averaged."""
    other_op_of_slices(plant, {"sum": "avg"})


def parts_of_slices_added(plant):
    """Means over slices are added up."""
    other_op_of_slices(plant, {"avg": "sum"})


def other_op_of_slices(plant, wrong_ops):
    right = plan_builder.PlanBuilder._second_half

    def wrong(self, cut, replicator, wanted, num_slices):
        half = right(self, cut, replicator, wanted, num_slices)
        return half._replace(ops=[op and ReduceOp(wrong_ops.get(op.name, op.name)) for op in half.ops])

    plant.replace(plan_builder.PlanBuilder, "_second_half", wrong)


def equal_weights_after_slices(plant):
    """The ranks' parts of all slices are averaged with equal weights."""
    right = rank_call.CollectivesOfCall.of_all_slices

    def wrong(prepared, context):
        call = right(prepared, context)
        call.weights = [int(weight > 0) for weight in call.weights]
        return call

    plant.replace(rank_call.CollectivesOfCall, "of_all_slices", wrong)


def length_of_the_rank(plant):
    """The rank's number of rows is used as the number of all rows."""
    plant.replace(in_graph, "whole_length", lambda length: length)


# -- all_reduce with a matrix, in groups, into other variables, without waiting ----------------------------------------


def matrix_from_the_last_row(plant):
    """A rank gets the weighted sum that another rank should get."""
    right = mixing._of_matrix

    def wrong(matrix, in_place):
        return right(list(matrix)[::-1], in_place)

    plant.replace(mixing, "_of_matrix", wrong)


def groups_without_weights(plant):
    """Within groups, all ranks have equal weights."""
    right = mixing._of_groups

    def wrong(weights, groups):
        return right([1.0] * len(weights), groups)

    plant.replace(mixing, "_of_groups", wrong)


def results_in_place(plant):
    """Results meant for other variables replace the reduced values."""
    right = AllReduceCommand.__init__

    def wrong(self, numbers, reduction, into=None, started=False, feedback=None):
        right(self, numbers, reduction, None, started, feedback)

    plant.replace(AllReduceCommand, "__init__", wrong)


def values_of_the_end(plant):
    """A started collective reduces the values that exist when the program waits for it."""
    right = AllReduceCommand.run

    def wrong(self, context):
        if self.started:
            StartReduction(self).run(context)
        right(self, context)

    plant.replace(AllReduceCommand, "run", wrong)


# -- the program's changes to its variables ----------------------------------------------------------------------------


def news_are_kept(plant):
    """Values that the program sets are not sent to the other ranks."""

    def wrong(session, entries, dense, in_command=False):
        return []

    plant.replace(changes, "send_master_values", wrong)
    plant.replace(FunctionVariables, "news_of_few", lambda self: [])


def writes_in_place_are_not_seen(plant):
    """Changes in an array that the program has borrowed from a variable are not noticed."""
    right = Borrowed.has_changed

    def wrong(self):
        return right(self) and self.is_forgotten

    plant.replace(Borrowed, "has_changed", wrong)


def functions_of_the_program_are_not_seen(plant):
    """Updates by a function that the master calls alone are not noticed."""
    right = SharedEntry.updated

    def wrong(self):
        origin = self.origin
        right(self)
        self.origin = origin
        if self.borrowed is None:
            self.known = self.cell[0]
        else:
            self.borrowed.remember()

    plant.replace(SharedEntry, "updated", wrong)


# -- common memory -------------------------------------------------------------------------------------------------------


def old_map_stays(plant):
    """A rank keeps the array that it has mapped for a variable, although the root offers another one."""
    right = CommonMemory.mapped

    def wrong(self, key, handle, attach):
        slot = self.slots.get(key)
        known = None if slot is None else slot.current
        fits = known is not None and known.handle.shape == handle.shape
        return known if fits else right(self, key, handle, attach)

    plant.replace(CommonMemory, "mapped", wrong)


def only_the_root_swaps(plant):
    """After a call, only the root makes the new values in common memory current."""
    right = rank_call.Change.__call__

    def wrong(self):
        if not self._laid or self._transport.rank == self._transport.root:
            right(self)

    plant.replace(rank_call.Change, "__call__", wrong)


def last_part_is_not_written(plant):
    """The last element of the last rank's part of an update is left out."""
    right = rank_call.Change.lay

    def wrong(self, transport):
        found = right(self, transport)
        if transport.rank == transport.size - 1:
            for entry, value, _ in self._laid:
                value.reshape(-1)[-1:] = entry.cell[0].reshape(-1)[-1:]
        return found

    plant.replace(rank_call.Change, "lay", wrong)


def sum_of_the_own_part(plant):
    """A norm is computed from the rank's part of the elements alone."""
    plant.replace(rank_call.CollectivesOfCall, "combine_parts", lambda self, number, op, arrays: list(arrays))


def parts_without_rows_do_not_count(plant):
    """A norm lacks the parts of ranks without rows."""

    def wrong(self, number, op, arrays):
        return self.all_reduce(number, op, arrays) if self.plan.divides else list(arrays)

    plant.replace(rank_call.CollectivesOfCall, "combine_parts", wrong)


def program_writes_into_common_memory(plant):
    """The program gets the array that all ranks have mapped, and writes into it."""

    def wrong(self):
        pass

    plant.replace(SharedEntry, "unshare", wrong)


# -- rows of states, and literal numbers of rows -----------------------------------------------------------------------


def rows_of_before(plant):
    """Ranks continue with their old rows of a state although the program has set new ones."""

    def wrong(self, entry, taken):
        return self.taken == list(taken)

    plant.replace(RowsOfRanks, "are_on_ranks", wrong)


def rows_of_one_rank(plant):
    """If the rows of ranks 0 and 1 have the same shape, the program gets those of rank 1 twice."""
    right = state_rows.values_by_rank

    def wrong(session, numbers):
        found = []
        for parts in right(session, numbers):
            same = len(parts) > 1 and parts[0].shape == parts[1].shape
            found.append([parts[1], *parts[1:]] if same else parts)
        return found

    plant.replace(rank_values, "values_by_rank", wrong)


def shares_from_the_first_row_on(plant):
    """Every rank takes the first elements of values as long as a literal number of rows."""
    right = rank_call.CollectivesOfCall.share

    def wrong(self, length):
        begin, end = right(self, length)
        return 0, end - begin

    plant.replace(rank_call.CollectivesOfCall, "share", wrong)


# -- ranks on JAX's devices (the modules need JAX) -----------------------------------------------------------------------


def reduced_twice(plant):
    """A value that is already equal on all devices is reduced again."""
    from synkhronos.mesh import traces

    right = traces._on_mesh

    def wrong(name, value, size):
        return right(name, right(name, value, size), size)

    plant.replace(traces, "_on_mesh", wrong)


def equal_weights_of_uneven_rows(plant):
    """Ranks with different numbers of rows have equal weights in averages."""
    from synkhronos.mesh import traces

    right = traces._reduced

    def wrong(name, values, weights):
        return right(name, values, [1] * len(values))

    plant.replace(traces, "_reduced", wrong)


def old_value_stays_on_the_device(plant):
    """A device uses its copy of an array that the program may still write to, as long as it is the same array."""
    from synkhronos.mesh.engine import MeshEngine

    right, keep, copies = MeshEngine._part, MeshEngine._keep, {}

    def wrong(function, args, call):
        part, drawn = right(function, args, call)
        for i, cell in function.cells.items():
            _, before, copy = copies.get(id(cell), (None, None, None))
            if before is not None and part.values[i] is before and not copy.whole.is_deleted():
                part.values[i] = copy
        return part, drawn

    def wrong_keep(part):
        keep(part)
        for i, before in part.moved.items():
            if hasattr(part.values[i], "whole"):
                copies[id(part.cells[i])] = part.cells[i], before, part.values[i]

    plant.replace(MeshEngine, "_part", staticmethod(wrong))
    plant.replace(MeshEngine, "_keep", staticmethod(wrong_keep))


def every_device_takes_the_first_rows(plant):
    """A device does not use its own index when it takes its share of rows."""
    from synkhronos.mesh.traces import Together

    right = Together.share

    def wrong(self, length):
        return 0, right(self, length)[1]

    plant.replace(Together, "share", wrong)


def results_of_other_devices(plant):
    """Ranks get the results of the devices in reverse order."""
    from synkhronos.mesh.program import MeshProgram

    right = MeshProgram._on_mesh

    def wrong(self, parts, joint, arguments, donated):
        return right(self, parts, joint, arguments, donated)[::-1]

    plant.replace(MeshProgram, "_on_mesh", wrong)


# -- types and positions in graphs ---------------------------------------------------------------------------------------


def placing_of_graphs():
    """Return the module that finds rules for operations of graphs."""
    from synkhronos.engines.graph import placing

    return placing


def bools_are_added(plant):
    """A matrix product of bools counts how often both are true, instead of whether they ever are."""
    rules = placing_of_graphs().Placing
    right = rules.rule_of

    def wrong(self, node):
        rule = right(self, node)
        if any(getattr(one, "dtype", "") == "bool" for one in node.outputs) and "Dot" in type(node.op).__name__:
            rule.reduce = ["sum" if op == "max" else op for op in rule.reduce]
        return rule

    plant.replace(rules, "rule_of", wrong)


def every_rank_truncates(plant):
    """Each rank truncates its partial value to an integer."""
    from synkhronos.engines.graph.rules import elementwise

    plant.replace(elementwise, "accumulator", lambda node: np.dtype(node.outputs[0].dtype))
    plant.replace(placing_of_graphs().Placing, "_is_late", lambda self, node, group: False)


def every_rank_wraps(plant):
    """Sums of integers are assumed not to wrap around."""
    placing = placing_of_graphs()
    right = placing.bounds

    def wrong(lengths, variable):
        return right(lengths, variable)._replace(wraps=False)

    plant.replace(placing, "bounds", wrong)


def every_rank_rounds(plant):
    """Partial values are rounded to the type of the result before they are combined."""
    from synkhronos.engines.graph import exact

    plant.replace(exact._Images, "before_rounding", lambda self, variable: variable)


def negative_positions_stay_on_the_rank(plant):
    """A negative position wraps around inside each rank's rows."""
    right = Subscript.place

    def wrong(self, inputs, exact):
        placed = right(self, inputs, exact)
        return placed._replace(equal=[one for one in placed.equal if not isinstance(one, WithinRows)])

    plant.replace(Subscript, "place", wrong)


def shapes_of_the_rank(plant):
    """Values needed only for their shapes stay partial, although a collective changes their number of elements."""
    plant.replace(completion, "_may_reshape", lambda node, reshaped: False)


def rewritten_too_late(plant):
    """The optimizer sees only the function with collectives, and misses expressions that it would stabilize."""
    from synkhronos.engines.graph import exact

    def wrong(library, snapshot, shards, states):
        return exact._with_formulas(library, snapshot, shards, states)

    plant.replace(exact, "_rewritten", wrong)


#: Bugs in the NumPy engine's own code, and bugs of exact functions that average. In graphs, exact functions do not
#: average: the mean of a tensor library is a sum, divided by the number of all rows.
OF_THE_NUMPY_ENGINE = [update_per_slice, stale_variant, sum_for_avg, parts_of_slices_added, equal_weights_after_slices]

#: Bugs of collectives between functions, which are the same for all engines.
OF_COLLECTIVES = [
    matrix_from_the_last_row,
    groups_without_weights,
    results_in_place,
    values_of_the_end,
    own_share_is_not_read,
]

#: Bugs of outputs without ops.
WITHOUT_OPS = [default_op_is_sum, default_op_is_avg, rows_of_the_master_alone, least_for_largest]

#: Bugs of exact functions.
EXACT = [
    collective_left_out,
    no_collectives_before_operations,
    collective_too_late,
    collective_too_early,
    sum_for_avg,
    max_for_min,
    power_of_rows_forgotten,
    parts_of_slices_averaged,
    parts_of_slices_added,
    equal_weights_after_slices,
    length_of_the_rank,
]

#: Bugs of ranks on JAX's devices.
OF_THE_MESH = [
    reduced_twice,
    equal_weights_of_uneven_rows,
    old_value_stays_on_the_device,
    every_device_takes_the_first_rows,
    results_of_other_devices,
]

#: Bugs in the detection of the program's changes to variables between calls of exact functions.
OF_THE_PROGRAM = [news_are_kept, writes_in_place_are_not_seen, functions_of_the_program_are_not_seen]

#: Bugs of values that lie in common memory.
OF_COMMON_MEMORY = [
    old_map_stays,
    only_the_root_swaps,
    last_part_is_not_written,
    program_writes_into_common_memory,
    share_of_others_is_not_copied,
]

#: Bugs of states with a value for each row of the batch.
OF_STATES = [rows_of_before, rows_of_one_rank]

#: Bugs of literal numbers of rows in a graph.
OF_WRITTEN_ROWS = [shares_from_the_first_row_on]

#: Bugs of norms of values that the ranks compute in parts.
OF_PARTS = [sum_of_the_own_part, parts_without_rows_do_not_count]

#: Bugs that only graphs can have; random graphs find them.
OF_GRAPHS = [
    bools_are_added,
    every_rank_truncates,
    every_rank_wraps,
    every_rank_rounds,
    negative_positions_stay_on_the_rank,
    shapes_of_the_rank,
    rewritten_too_late,
]

#: Bugs of collectives inside functions.
INSIDE = [
    equal_weights_inside,
    weight_0_counts_inside,
    no_updates_without_rows,
    all_updates_without_rows,
    results_while_they_are_held,
    sources_without_turns,
    weights_of_the_step_before,
    not_linear_in_slices,
]

BUGS = [
    average_of_averages,
    average_of_slices,
    weights_lost_in_arrays,
    weights_lost_in_numbers,
    weights_lost_in_the_kernel,
    weights_lost_in_steps,
    weights_of_the_first_steps,
    indices_of_steps_from_the_first_on,
    weight_0_counts,
    off_by_one_partition,
    inputs_lose_the_remainder,
    scatter_loses_the_remainder,
    slices_lose_the_remainder,
    selected_after_scattering,
    rows_in_order,
    step_forgotten,
    one_selection_for_all_ranks,
    batch_applied_twice,
    lengths_cut,
    indices_of_the_call_before,
    arguments_of_the_call_before,
    update_per_slice,
    stale_variant,
    lost_default_update,
    wrong_op_on_the_last_slice,
    swapped_updates,
    wrong_root,
    gather_order,
    last_rank_forgotten,
    subset_in_order,
    plan_of_the_call_before,
    slot_one_collective_old,
    *OF_COLLECTIVES,
    *WITHOUT_OPS,
    *EXACT,
    *OF_THE_PROGRAM,
    *OF_COMMON_MEMORY,
    *OF_STATES,
    *INSIDE,
]

#: Bugs that can also be found in functions of Theano and PyTensor.
IN_GRAPHS = [*(bug for bug in BUGS if bug not in OF_THE_NUMPY_ENGINE + OF_COLLECTIVES), *OF_WRITTEN_ROWS, *OF_PARTS]
