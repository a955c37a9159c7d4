"""The serial program: the expected values of every rank and every call, by plain NumPy according to docs/api alone.

This module does not use synkhronos. A `Model` has a method for every function of the interface that random programs
use. The method returns the expected result of the call, and the expected values of the ranks after it.
"""

from dataclasses import dataclass

import numpy as np
from recipes import BY_NAME, DEFAULT, INPUTS, RANDOM, SHARED, STATES, axis_of_rows, evaluate
from vocabulary import Arrays, Meeting, advanced, precision


class NoAnswer(Exception):
    """The step has no meaning (shapes that do not fit, the maximum of nothing, ...); another one must be drawn."""


class Refused(Exception):
    """The call is wrong, and must be refused with a ValueError before any value changes."""


class Expected:
    """An expected value, and the error that a correct value may have.

    Parameters
    ----------
    value : array
    rounding : float
        The precision of its terms; 0 if exactly this value is expected.
    size : float
        A bound on the sum of the magnitudes of its terms.
    """

    def __init__(self, value, rounding=0.0, size=1.0):
        self.value, self.size = np.asarray(value), size
        self.rounding = max(rounding, precision(value)) if rounding else 0.0

    def __repr__(self):
        return "{}{!r}".format("about " if self.rounding else "", self.value)

    def differs(self, actual):
        """Return how an actual value differs, or None."""
        value = self.value
        if not isinstance(actual, np.ndarray) or actual.dtype != value.dtype or actual.shape != value.shape:
            return f"expected {self!r} of {value.dtype}, got {actual!r}"
        if self.rounding and value.dtype.kind == "f":
            bound = self.rounding * (self.size + 256 * float(np.max(np.abs(value), initial=0.0)))
            same = np.all(np.abs(actual - value) <= bound)
        else:
            same = np.array_equal(actual, value)
        return None if same else f"expected {self!r}, got {actual!r}"


def shares(n_rows, n, root):
    """Return the rows of every rank, divided as evenly as possible; with fewer rows than ranks, the root gets one."""
    rows = np.arange(n_rows)
    if n_rows >= n:
        return np.array_split(rows, n)
    served = sorted(([root] + [rank for rank in range(n) if rank != root])[:n_rows])
    return [rows[served.index(rank) :][:1] if rank in served else rows[:0] for rank in range(n)]


def selected(batch, length):
    """Return the rows that ``batch`` selects."""
    if batch is None:
        return np.arange(length)
    if isinstance(batch, (int, np.integer)):
        batch = range(batch)
    try:
        return np.arange(length)[batch if isinstance(batch, slice) else np.array(list(batch), int)]
    except IndexError as error:
        raise Refused(str(error)) from None


def selected_per_rank(batch_s, lengths):
    """Return the rows that ``batch_s`` selects on every rank."""
    for_each = isinstance(batch_s, list) and any(isinstance(entry, (slice, list, np.ndarray)) for entry in batch_s)
    return [selected(batch_s[rank] if for_each else batch_s, length) for rank, length in enumerate(lengths)]


def reduced(op, values, weights=None):
    """Combine the values of all ranks or of all slices by an op."""
    if op == "gather":
        return np.concatenate([np.atleast_1d(value) for value in values])
    if len({np.shape(value) for value in values}) > 1:
        raise NoAnswer("shapes differ")
    stack = np.stack(values)
    if op == "avg":
        return np.average(stack.astype("float64"), axis=0, weights=weights).astype(stack.dtype)
    dtype = stack.dtype if stack.dtype != bool else {"sum": np.dtype(int), "prod": np.dtype(int)}.get(op, stack.dtype)
    ufunc = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
    return ufunc.reduce(stack, axis=0, dtype=dtype)


def rounding_of(op, value):
    """Return the precision of a value after an op, whatever the order of evaluation."""
    return precision(value) if op in ("avg", "sum", "prod") else 0.0


def reduced_in_type(op, values, weights=None):
    """Combine the values of a shared variable like `reduced`, but keep its type."""
    result = reduced(op, values, weights)
    if values[0].dtype == bool and op in ("sum", "prod"):
        return result != 0
    return np.asarray(result).astype(values[0].dtype)


@dataclass(frozen=True)
class Slice:
    """The data of one rank for one slice of a call.

    Parameters
    ----------
    rank, piece : int
        The rank, and the position of the slice.
    weight : int
        Its weight in averages: its rows; 1 if nothing is divided; if there are no rows at all, 1 for the master only.
    counts : bool
        Whether its outputs and updates count. A rank without rows for a slice makes the call with another rank's
        row if others need its collectives.
    values : dict
        Values by the names of inputs and shared variables.
    """

    rank: int
    piece: int
    weight: int
    counts: bool
    values: dict


class Model:
    """A serial model of all ranks.

    Parameters
    ----------
    n, root : int
    initial : dict
        The value of every shared variable, by name.
    computes_all : bool
        Whether the engine also computes the outputs that ``output_subset`` leaves out, so that they can fail.
    rounding : float
        The precision of values of functions that NumPy computes exactly, such as single products.
    """

    def __init__(self, n, root, initial, computes_all=False, rounding=0.0):
        self.n, self.root, self.computes_all, self.rounding = n, root, computes_all, rounding
        self.values = {name: [value] * n for name, value in initial.items()}
        self.last_rows = {}  # by function, the rows of every rank in its last call
        self.started = []  # collectives, as (names, future values of their targets)
        # Variables that were equal on all ranks until the program set the master's value, in any way.
        self.put_by_program = set()
        self.kept = {}  # by variable, the shape of an array that it has borrowed, and to which the program can write
        self.own = set()  # variables that were set on each rank separately, even if their values are equal
        self.saved = []  # checkpoints, as (the values of all ranks by name, the variables set by the program)
        self._put_back = []  # variables that again count as set by the program after the last step

    # -- calls -----------------------------------------------------------------------------------------------------

    def call(self, recipe, given, batch=None, batch_s=None, num_slices=1, output_subset=None):
        """Return the results of a call, and the ranks' values after it, both as `Expected` values."""
        scattered = [name for name in recipe.scattered.split() if name in INPUTS]  # other inputs have no rows to divide
        whole = {name: given[name].array for name in recipe.inputs if name not in scattered}
        parts = shared_rows = None
        if scattered:
            if batch is None and len({len(given[name].array) for name in scattered}) > 1:
                raise Refused("scattered inputs of different lengths")
            chosen = selected(batch, min(len(given[name].array) for name in scattered))
            parts = [chosen[share] for share in shares(len(chosen), self.n, self.root)]
        of_states = self._rows_of_states(recipe, parts, num_slices)
        if parts is None and of_states is not None:
            parts, chosen = of_states, np.concatenate(of_states)
        data = recipe.sliceable.split()
        if data:
            lengths = [[len(self.values[name][rank]) for name in data] for rank in range(self.n)]
            shared_rows = selected_per_rank(batch_s, [min(of_rank) for of_rank in lengths])
            if batch_s is None and any(len(set(of_rank)) > 1 for of_rank in lengths):
                raise Refused("data of different lengths")
        counts = [None if rows is None else [len(of_rank) for of_rank in rows] for rows in (parts, shared_rows)]
        weights = counts[0] or counts[1]
        if recipe.rows is not None and sum(weights) != recipe.rows:
            raise Refused("another number of rows than the one that is written")
        if num_slices > 1 and weights is None:
            raise Refused("nothing to slice")
        num_slices = max(1, min([num_slices, *([max(weights)] if weights else [])]))
        positions = range(len(recipe.outputs)) if output_subset is None else map(recipe.keys.index, output_subset)
        outputs = [recipe.outputs[i] for i in positions]
        others = [output for output in recipe.outputs if output not in outputs] if self.computes_all else []
        ops = ["avg" if output.op == DEFAULT else output.op and output.op.replace("c_", "") for output in outputs]
        if num_slices > 1 and any(op is None and recipe.has_rows(one.formula) for one, op in zip(outputs, ops)):
            raise Refused("op None in slices")
        if weights and any(weights) and not weights[self.root] and None in ops:
            raise Refused("op None, and the master makes no call")
        updates = self._updates(recipe)
        averaging = "avg" in ops or num_slices > 1 and not recipe.exact and any(op == "avg" for _, op in updates)
        if (averaging or "avg" in recipe.collectives or recipe.exact) and None not in counts and counts[0] != counts[1]:
            raise Refused("no weights")
        of_call = [1] * self.n if weights is None else weights
        if recipe.exact:
            if num_slices > 1 and not recipe.in_slices:
                raise Refused("rows that depend on all rows, in slices")
            by_rows = batch_s is not None or num_slices > 1
            given = {**whole, **{name: given[name].array for name in scattered}}
            found = self._exact(recipe, outputs, others, ops, updates, given, parts, shared_rows if by_rows else None)
            self.last_rows[recipe.name] = of_call
            return found
        for made, op in [*zip(outputs, ops), *updates] if num_slices > 1 else []:
            if recipe.meets(made.formula) and not (made.linear and op in ("avg", None)):
                raise Refused("slices of what is not linear in collectives")
        empty = weights is not None and not any(weights)
        slices = []
        for rank in range(self.n):
            by_rows = batch_s is not None or num_slices > 1
            rows = [of_ranks and of_ranks[rank] for of_ranks in (parts, shared_rows if by_rows else None)]
            pieces = max(1, min([num_slices] + [len(each) for each in rows if each is not None]))
            if weights is not None and not empty and not weights[rank]:
                pieces = 0
            for i in range(num_slices if recipe.collectives else pieces):
                here = [each if each is None else np.array_split(each, pieces or 1)[i % (pieces or 1)] for each in rows]
                if i >= pieces:
                    here = [None if parts is None else chosen[:1]]
                    here += [None if rows[1] is None else (rows[1] if len(rows[1]) else np.arange(1))[:1]]
                values = self._values(recipe, rank, {**whole, **{name: given[name].array for name in scattered}}, *here)
                for name in recipe.states.split():
                    share = of_states[rank] if i < pieces else np.arange(len(chosen))[:1]
                    values[name] = np.take(values[name], share, axis_of_rows(name))
                weight = 1 if weights is None else int(rank == self.root) if empty else 0
                if weights is not None and not empty and i < pieces:
                    weight = len(here[0] if parts is not None else here[1] if by_rows else shared_rows[rank])
                for name in RANDOM:
                    values[name] = advanced(values[name], i)
                slices.append(Slice(rank, i, weight, i < pieces, values))
        size = self._size(slices)
        for output in others:
            self._evaluate(recipe, output.value, slices)
        results = []
        for output, op in zip(outputs, ops):
            results.append(self._output(recipe, output, None if empty else op, slices, size))
        self._check_serial(recipe, outputs, ops, results, given, scattered, parts, whole)
        after = self._updated(recipe, updates, slices, num_slices, size)
        self.last_rows[recipe.name] = of_call
        return results, after

    def _rows_of_states(self, recipe, parts, num_slices):
        """Return the rows of every rank in variables that have the batch's rows; None if there are none."""
        for name in recipe.shareds:
            if name in STATES and name not in recipe.states.split():
                self.check_states([name])
        if not recipe.states:
            return None
        lengths = {np.shape(self.values[name][0])[axis_of_rows(name)] for name in recipe.states.split()}
        lengths.update([] if parts is None else [sum(map(len, parts))])
        if num_slices > 1 or len(lengths) > 1:
            raise Refused("states of another number of rows, or in slices")
        return shares(lengths.pop(), self.n, self.root)

    def check_states(self, names):
        """Raise `Refused` if the rows of a variable are divided over the ranks, and `NoAnswer` if they may be later."""
        if any(map(self.is_on_ranks, names)):
            raise Refused("it has the batch's rows")
        if STATES.keys() & set(names):
            raise NoAnswer("no function has divided it yet")

    def is_on_ranks(self, name):
        """Return whether ranks have only their rows of a variable, because a function with this state was called."""
        return self.n > 1 and any(name in BY_NAME[function].states.split() for function in self.last_rows)

    def _exact(self, recipe, outputs, others, ops, updates, given, parts, shared_rows):
        """Return what one rank computes from all ranks' rows, and the values after it, equal on all ranks."""
        put = [name for name in self.differing(recipe.in_common) if name in self.put_by_program]
        if len(put) < len(self.differing(recipe.in_common)):
            raise NoAnswer("ranks differ in what an exact function takes to be the same")
        of_ranks = [
            self._values(recipe, rank, given, parts and parts[rank], shared_rows and shared_rows[rank])
            for rank in range(self.n)
        ]
        values = of_ranks[self.root]
        for name in recipe.sliceable.split() + [name for name in recipe.scattered.split() if name in INPUTS]:
            values[name] = np.concatenate([each[name] for each in of_ranks])
        alone = Slice(self.root, 0, 1, True, values)
        size = self._size([alone]) ** 2  # rules compute products of products

        for output in others:
            self._evaluate(recipe, output.value, [alone])

        def serial(made, op):
            ((value, rounding),) = self._evaluate(recipe, made.value, [alone])
            return Expected(value, max(rounding, rounding_of(op, value)), size)

        after = {
            name: [Expected(self.values[name][self.root])] * self.n for name in put
        }  # the program's values take precedence
        after.update({update.target: [serial(update, None)] * self.n for update, _ in updates})
        return [serial(output, op) for output, op in zip(outputs, ops)], after

    def differing(self, names):
        """Return which of these shared variables differ between ranks."""
        return [name for name in names if len({value.tobytes() for value in self.values[name]}) > 1]

    def steps(self, recipe, given, batches=None, batches_s=None, n_steps=None, **options):
        """Return the results of a series of calls, by output, and the ranks' values after the last call."""
        values, rows, results, after = dict(self.values), np.zeros(self.n, int), [], {}
        last_rows, self.last_rows = self.last_rows, dict(self.last_rows)
        rounding = 0.0  # a step inherits the rounding of earlier steps
        k = len(batches or batches_s or range(n_steps))
        try:
            for i in range(k):
                varied = {"batch": batches, "batch_s": batches_s}
                varied = {name: given_each[i] for name, given_each in varied.items() if given_each is not None}
                of_step, changed = self.call(recipe, given, **varied, **options)
                made = of_step + [each for of_ranks in changed.values() for each in of_ranks]
                for each in {id(each): each for each in made}.values():  # (all ranks may share one value)
                    each.rounding = max(each.rounding, rounding)
                    each.size *= 8**i
                rounding = max([rounding] + [each.rounding for of_ranks in changed.values() for each in of_ranks])
                results.append(of_step)
                after.update(changed)
                self.values.update({name: [each.value for each in of_ranks] for name, of_ranks in changed.items()})
                rows += self.last_rows[recipe.name]
        finally:
            self.values, self.last_rows = values, last_rows
        self.last_rows[recipe.name] = rows.tolist()
        for of_steps in zip(*results):  # one array for all steps (sums of bools are integers, unless there are no rows)
            dtype = np.result_type(*[each.value for each in of_steps])
            for each in of_steps:
                each.value = each.value.astype(dtype)
        return [list(of_steps) for of_steps in zip(*results)], after

    def _values(self, recipe, rank, given, rows, shared_rows):
        """Return a rank's values, with these rows of the inputs and of its sliceable variables; None selects all.

        Variables that have the batch's rows are not divided.
        """
        values = {name: of_ranks[rank] for name, of_ranks in self.values.items()}
        for name in recipe.sliceable.split() if shared_rows is not None else ():
            values[name] = values[name][shared_rows[shared_rows < len(values[name])]]
        lengths = {len(values[name]) for name in recipe.sliceable.split()}
        for name in recipe.inputs:
            is_divided = name in INPUTS
            values[name] = given[name][rows] if is_divided else given[name]
            lengths.update([len(values[name])] if is_divided else [])
        if recipe.aligned and len(lengths) > 1:
            raise NoAnswer("rows do not fit")
        return values

    def _evaluate(self, recipe, value, slices):
        """Return the value of an output or update in every slice, and its precision.

        Formulas are evaluated on all ranks up to the first collective; then again, with its result, up to the second.
        """
        found = {}
        for piece in {each.piece for each in slices}:
            here, results = [i for i, each in enumerate(slices) if each.piece == piece], []
            counting = [i for i in here if slices[i].weight] or here
            weights = [slices[i].weight or 1 for i in counting]
            while True:
                evaluated = {i: self._up_to_collective(recipe, value, slices[i].values, results) for i in here}
                met = [meeting for meeting, _ in evaluated.values() if isinstance(meeting, Meeting)]
                if not met:
                    break
                arguments = zip(*[evaluated[i][0].arrays for i in counting])
                results.append([reduced_in_type(met[0].op, of_ranks, weights) for of_ranks in arguments])
            found.update(evaluated)
        return [(np.asarray(found[i][0]), found[i][1]) for i in range(len(slices))]

    def _up_to_collective(self, recipe, value, values, results):
        """Return the value, or the `Meeting` at a collective that has no result yet, and the precision."""
        words = Arrays(results, None if recipe.rows is None else len(values[recipe.divided[0]]), self.rounding)
        values = dict(values)
        try:
            for name, formula in recipe.givens.items():
                values[name] = evaluate(formula, words, values)
            return value(words, values), words.rounding
        except Meeting as meeting:
            return meeting, words.rounding
        except ValueError as error:
            raise NoAnswer(str(error)) from None

    def _output(self, recipe, output, op, slices, size):
        evaluated = self._evaluate(recipe, output.value, slices)
        rounding = max(precision for _, precision in evaluated)
        counting = [(each, value) for each, (value, _) in zip(slices, evaluated) if each.counts]
        if op is None:
            return Expected(next(value for each, value in counting if each.rank == self.root), rounding, size)
        try:
            value = reduced(op, [value for _, value in counting], [each.weight for each, _ in counting])
        except ValueError as error:
            raise NoAnswer(str(error)) from None
        return Expected(value, max(rounding, rounding_of(op, value)), size)

    def _updates(self, recipe):
        """Return (update, op) for all updates; the op is None where slices must agree."""
        targets = [update.target for update in recipe.updates]
        found = []
        for update in recipe.updates + [more for more in recipe.default_updates if more.target not in targets]:
            op = update.op
            if op == DEFAULT:
                op = "avg" if np.dtype(SHARED[update.target][0]).kind == "f" else None
            found.append((update, op))
        return found

    def _updated(self, recipe, updates, slices, num_slices, size):
        after = {}
        counting = {each.piece: 0 for each in slices if each.counts}  # number of rows in every slice, over all ranks
        for each in slices:
            if each.piece in counting:
                counting[each.piece] += each.weight
        for update, op in updates:
            target = update.target
            after[target] = [Expected(value) for value in self.values[target]]
            common = bool(recipe.collectives) and recipe.is_common(update)
            evaluated = list(zip(slices, self._evaluate(recipe, update.value, slices)))
            if target in STATES:
                of_ranks = [found for each, found in evaluated if each.counts]
                whole = np.concatenate([value for value, _ in of_ranks], axis_of_rows(target))
                after[target] = [Expected(whole, max(rounding for _, rounding in of_ranks), size)] * self.n
                continue
            for rank in {each.rank for each in slices}:
                of_rank = [
                    (counting[each.piece] if common else each.weight, value, rounding)
                    for each, (value, rounding) in evaluated
                    if each.rank == rank and (each.piece in counting if common else each.counts)
                ]
                if not of_rank:
                    continue
                weights, values, roundings = zip(*of_rank)
                result, rounding = values[0], max(roundings)
                if target in RANDOM:
                    result = values[-1]
                elif num_slices > 1 and op is None:
                    if any(not np.array_equal(value, result) for value in values):
                        raise NoAnswer("slices disagree")
                elif num_slices > 1:
                    result = reduced_in_type(op, values, weights)
                    rounding = max(rounding, rounding_of(op, result) if len(values) > 1 else 0)
                after[target][rank] = Expected(result, rounding, size)
            everywhere = len({each.rank for each in slices}) == self.n
            if common and everywhere and len({each.value.tobytes() for each in after[target]}) == 1:
                after[target] = after[target][:1] * self.n  # so the bits must be equal, too
        return after

    def _check_serial(self, recipe, outputs, ops, results, given, scattered, parts, whole):
        """Check that formulas give the same results on all rows together, if the ranks' variables are equal."""
        if parts is None or recipe.sliceable or not sum(map(len, parts)):
            return
        if self.differing(recipe.shareds):
            return
        values = {name: self.values[name][0] for name in recipe.shareds}  # for states, all rows
        values.update(whole)
        values.update((name, given[name].array[np.concatenate(parts)]) for name in scattered)
        for output, op, result in zip(outputs, ops, results):
            if output.serial and op is not None:
                serial = self._evaluate(recipe, output.value, [Slice(self.root, 0, 1, True, values)])[0][0]
                difference = result.differs(serial.astype(result.value.dtype))
                assert difference is None, f"the model is wrong: {difference}"

    def _size(self, slices):
        """Return a bound on the terms of a sum: the number of elements times the largest product."""
        size = 1.0
        for each in slices:
            arrays = [value for name, value in each.values.items() if name != "big" and name not in RANDOM]
            largest = max(float(np.max(np.abs(array.astype(float)), initial=1)) for array in arrays)
            size = max(size, largest**2 * max(array.size for array in arrays))
        return size * len(slices)

    def note(self, after, by_master, is_common):
        """Record a step's changes: on the master alone, equal on all ranks, or different on each rank."""
        for name in after:
            if by_master:
                if name not in self.own and not self.differing([name]):
                    self.put_by_program.add(name)
                continue
            self.put_by_program.discard(name)
            is_same = is_common and len(set(map(id, after[name]))) == 1
            (self.own.discard if is_same else self.own.add)(name)
        for name in self._put_back:
            self.own.discard(name)
            self.put_by_program.add(name)
        self._put_back = []

    def as_theano(self, recipe, given):
        """Return the results and values of a call by the master alone, as in plain Theano."""
        values = {name: of_ranks[self.root] for name, of_ranks in self.values.items()}
        values.update((name, value.array) for name, value in given.items())
        lengths = {np.shape(values[name])[axis_of_rows(name) if name in STATES else 0] for name in recipe.divided}
        if (
            (recipe.aligned or recipe.states)
            and len(lengths) > 1
            or recipe.rows is not None
            and lengths != {recipe.rows}
        ):
            raise NoAnswer("rows do not fit")
        alone = [Slice(self.root, 0, 1, True, values)]
        updates, size = self._updates(recipe), self._size(alone)
        return (
            [self._output(recipe, output, None, alone, size) for output in recipe.outputs],
            self._updated(recipe, updates, alone, 1, size),
        )

    # -- collectives -----------------------------------------------------------------------------------------------

    def broadcast(self, names, values=None):
        return None, {
            name: [Expected(self.values[name][self.root] if values is None else values[i].array)] * self.n
            for i, name in enumerate(names)
        }

    def scatter(self, names, values, batch=None):
        chosen = self._rows_of(values, batch)
        after = {}
        for i, name in enumerate(names):
            rows = np.arange(len(values[i].array)) if batch is None else chosen
            after[name] = [Expected(values[i].array[rows[share]]) for share in shares(len(rows), self.n, self.root)]
        return None, after

    def _rows_of(self, values, batch):
        return selected(batch, min(len(value.array) for value in values))

    def set_value(self, rank, names, values, batch=None):
        after = {name: [Expected(value) for value in self.values[name]] for name in names}
        for i, name in enumerate(names):
            array = values[i].array
            after[name][rank] = Expected(array if batch is None else array[self._rows_of(values, batch)])
        return None, after

    def get_value(self, rank, names):
        return [Expected(self.values[name][rank]) for name in names], {}

    def gather(self, names, nd_up=1):
        results = []
        for name in names:
            parts = self.values[name]
            if nd_up == 1 and len({part.shape for part in parts}) == 1:
                results.append(Expected(np.stack(parts)))
            elif nd_up == 0:
                results.append(Expected(reduced("gather", parts)))
            else:
                results.append([Expected(part) for part in parts])
        return results, {}

    def all_gather(self, names):
        if any(sum(map(len, self.values[name])) > 1000 for name in names):
            raise NoAnswer("values would grow without end")
        return None, {name: [Expected(np.concatenate(self.values[name]))] * self.n for name in names}

    def _weights(self, weights):
        """Return the weights; a function's name stands for the rows of its last call."""
        if isinstance(weights, str):
            weights = self.last_rows.get(weights, [0])
            if not any(weights):
                raise NoAnswer("that function has not been called, or without rows")
        return weights

    def _reduced(self, names, op, weights=None):
        op, weights = op.replace("c_", ""), self._weights(weights)
        results = []
        for name in names:
            parts = self.values[name]
            largest = max(float(np.max(np.abs(part.astype(float)), initial=1)) for part in parts)
            if op in ("sum", "prod") and largest > 1e3 and parts[0].dtype.kind == "f":
                raise NoAnswer("values would grow without end")
            results.append(
                Expected(
                    reduced_in_type(op, parts, weights),
                    rounding_of(op, parts[0]),
                    8 * largest ** (self.n if op == "prod" else 1),
                )
            )
        return results

    def reduce(self, names, op="avg", in_place=True):
        results = self._reduced(names, op)
        if not in_place:
            return results, {}
        after = {name: [Expected(value) for value in self.values[name]] for name in names}
        for name, result in zip(names, results):
            after[name][self.root] = result
        return None, after

    def all_reduce(self, names, op="avg", weights=None, groups=None, into=None, wait=True):
        if not wait and any(name in started for started, _ in self.started for name in names):
            raise NoAnswer("one of a variable is under way")
        targets = into or names
        after = {target: [None] * self.n for target in targets}
        for ranks, row in self._rows(weights, groups):
            alone = row is not None and np.count_nonzero(row) == 1  # then the result is that rank's value
            values = (
                [Expected(self.values[name][np.argmax(row)]) for name in names]
                if alone
                else self._reduced(names, op, row)
            )
            for target, result in zip(targets, values):
                for rank in ranks:
                    after[target][rank] = result
        if wait:
            return None, after
        self.started.append((names, after))
        return None, {}

    def wait(self, i):
        """Return the values after the program has waited for a collective that it started."""
        if i >= len(self.started):
            raise NoAnswer("so many are not under way")
        return None, self.started.pop(i)[1]

    def _rows(self, weights, groups):
        """Return groups of ranks with the same result, each with the weights of all ranks for it."""
        weights = self._weights(weights)
        if weights is not None and isinstance(weights[0], list):
            rows = [tuple(np.array(row) / np.sum(row)) for row in weights]
            return [([rank for rank in range(self.n) if rows[rank] == row], row) for row in dict.fromkeys(rows)]
        if groups is None:
            return [(range(self.n), weights)]
        of_ranks = np.ones(self.n) if weights is None else np.array(weights, float)
        found = []
        for group in groups:
            inside = np.isin(np.arange(self.n), group)
            found.append((group, of_ranks * inside if np.any(of_ranks * inside) else 1.0 * inside))
        return found

    def get_shapes(self, names):
        return [[value.shape for value in self.values[name]] for name in names], {}

    def get_lengths(self, names):
        if any(not self.values[name][0].ndim for name in names):
            raise Refused("no rows")
        return [[len(value) for value in self.values[name]] for name in names], {}

    def in_sync(self, names):
        different = {
            name: [
                rank
                for rank, value in enumerate(self.values[name])
                if value.shape != of_root.shape or value.tobytes() != of_root.tobytes()
            ]
            for name in names
            for of_root in [self.values[name][self.root]]
        }
        return {name: ranks for name, ranks in different.items() if ranks}, {}

    # -- the master alone ------------------------------------------------------------------------------------------

    def put(self, name, value):
        """Return the values after the program has set the master's variable; for states, it sets all ranks' rows."""
        after = [Expected(of_rank) for of_rank in self.values[name]]
        after[self.root] = Expected(value.array)
        return None, {name: after[self.root :][:1] * self.n if name in STATES else after}

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def save(self, names):
        """Save all ranks' values of these variables."""
        self.saved.append(({name: self.values[name] for name in names}, self.put_by_program & set(names)))
        return None, {}

    def load(self, i):
        """Return all ranks' values at the time of saving; values that only the program had set count as set again."""
        if i >= len(self.saved):
            raise NoAnswer("so many were not saved")
        values, put = self.saved[i]
        for name, of_ranks in values.items():
            now = self.values[name]
            if not self.is_on_ranks(name) and list(map(np.shape, of_ranks)) != list(map(np.shape, now)):
                raise NoAnswer("it may be another data set")
        self._put_back = sorted(put)
        same = {name: len({value.tobytes() for value in of_ranks}) == 1 for name, of_ranks in values.items()}
        return None, {
            name: [Expected(of_ranks[0])] * self.n if same[name] else [Expected(value) for value in of_ranks]
            for name, of_ranks in values.items()
        }
