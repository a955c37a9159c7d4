"""Graphs computed on simulated ranks; every variable is compared with the serial program's by its placement.

Every node is computed by the library's Python code, without any optimization: once for all rows, and once for the rows
of each simulated rank. The collectives of exact functions are computed here with NumPy, between the nodes.
"""

import contextlib
import warnings
from collections import namedtuple
from unittest import mock

import numpy as np
import pytest
import scipy.signal
from library import IS_THEANO, L

import synkhronos.sharding as sharding
from synkhronos.engines.graph import lengths
from synkhronos.sharding import Completed, Partial, Replicate, Shard, Size, Unknown, propagate

#: Rows of each rank. Splits with a 0 are skipped for operations that cannot process zero rows.
SPLITS = ((5,), (2, 3), (4, 1, 2), (1, 1, 3, 2), (0, 3), (2, 0, 3))

#: In the shape of a replicated input: the number of rows on all ranks.
ALL_ROWS = "all rows"

Input = namedtuple("Input", "variable make axis")


class Program:
    """The inputs of a case; ``f``, ``h`` and ``k`` are random lengths."""

    def __init__(self, seed=0):
        self.rng = np.random.RandomState(seed)
        self.f, self.h, self.k = (int(one) for one in self.rng.permutation([2, 3, 4]))
        self.inputs = []

    def rows(self, *shape, axis=0, dtype="float64", high=None, low=0, positive=False, make=None):
        """Return an input of shape `shape`, with the rows inserted at `axis`."""
        return self._input(shape, axis, dtype, high, positive, make, low)

    def all(self, *shape, dtype="float64", high=None, low=0, positive=False, make=None):
        """Return a replicated input."""
        return self._input(shape, None, dtype, high, positive, make, low)

    def _input(self, shape, axis, dtype, high, positive, make, low=0):
        def values(n_rows):
            full = [n_rows if one == ALL_ROWS else one for one in shape]
            if axis is not None:
                full.insert(axis, n_rows)
            if make is not None:
                return np.asarray(make(self.rng, full), dtype)
            if high is not None:
                return self.rng.randint(low, high, size=full).astype(dtype)
            drawn = self.rng.uniform(0.2, 1.5, size=full) if positive else self.rng.normal(size=full)
            return drawn.astype(dtype)

        ndim = len(shape) + (axis is not None)
        variable = L.variable(dtype, ndim, f"in{len(self.inputs)}")
        self.inputs.append(Input(variable, values, axis))
        return variable

    def given(self, variable, value):
        """Set a variable (a shared one, a random state) to the same value on every rank."""
        self.inputs.append(Input(variable, lambda n_rows: value, None))
        return variable


def placements(program, outputs, exact=False):
    """Return the placements of outputs."""
    outputs, _, found = _propagated(program, outputs, exact)
    return [found.of(one) for one in outputs]


def _propagated(program, outputs, exact):
    """Return the outputs (with formulas if the graph may be changed), their graph, and its placements."""
    shards = {one.variable: Shard(one.axis) for one in program.inputs if one.axis is not None}

    def placed(outputs):
        graph = L.placing.graph_of([one.variable for one in program.inputs], outputs)
        return outputs, graph, propagate(graph.nodes, {**graph.known, **shards}, exact)

    outputs, graph, found = placed(outputs)
    return placed(L.formulas(outputs, found.of)) if exact else (outputs, graph, found)


def check(program, outputs, exact=False, splits=SPLITS, may_fail=False):
    """Compute the outputs on simulated ranks, compare all variables, and return the outputs' placements.

    With `may_fail`, a rank may raise an error instead of computing a value.
    """
    before = outputs
    outputs, graph, found = _propagated(program, outputs, exact)
    if any(new is not old for new, old in zip(outputs, before)):
        values, _ = serial_values(program, [*outputs, *before], 7)
        for new, old in zip(values, values[len(outputs) :]):
            _equal(new, old, "by formulas")
    nodes = L.io_toposort([one.variable for one in program.inputs], outputs)
    thunks = [_thunk(node) for node in nodes]
    for split in splits:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            _Run(program, graph, found, nodes, thunks, split, exact, may_fail)()
    return [found.of(one) for one in outputs]


def serial_values(program, outputs, n_rows):
    """Return the outputs for all rows, computed node by node and by the library's ``function``."""
    variables = [one.variable for one in program.inputs]
    data = [one.make(n_rows) for one in program.inputs]
    nodes = L.io_toposort(variables, outputs)
    values = dict(zip(variables, data))
    for node in nodes:
        values.update(zip(node.outputs, _thunk(node)([_value_of(one, values) for one in node.inputs])))
    function = L.function(variables, outputs, mode=L.slow, on_unused_input="ignore")
    return [values[one] for one in outputs], function(*data)


def with_convolutions():
    """Return a context that provides the SciPy functions that Theano's Python convolutions expect."""
    if not IS_THEANO:
        return contextlib.nullcontext()
    from theano.tensor.nnet import abstract_conv

    return mock.patch.multiple(
        abstract_conv,
        create=True,
        imported_scipy_signal=True,
        convolve=lambda image, kernel, mode: scipy.signal.convolve(image, kernel, mode, method="direct"),
        _convolve2d=lambda image, kernel, _, mode, *rest: scipy.signal.convolve2d(image, kernel, mode),
        _valfrommode=str,
        _bvalfromboundary=str,
    )


def _thunk(node):
    storage = {one: [None] for one in (*node.inputs, *node.outputs)}
    computed = {one: [True] for one in node.inputs}
    computed.update({one: [False] for one in node.outputs})
    # (the Python code of pooling does not support this NumPy: its index is a list)
    impl = "c" if type(node.op).__module__.startswith("theano.tensor.signal") else "py"
    thunk = node.op.make_thunk(node, storage, computed, [], impl=impl)

    def compute(inputs):
        for variable, value in zip(node.inputs, inputs):
            storage[variable][0] = value
        for variable in node.outputs:
            storage[variable][0] = None
            computed[variable][0] = False
        thunk()
        results = [storage[one][0] for one in node.outputs]
        if type(node.op).__name__ == "AllocEmpty":
            results[0][...] = np.nan if results[0].dtype.kind == "f" else 0  # the contents are undefined
        return [one.copy() if isinstance(one, np.ndarray) else one for one in results]

    return compute


def _value_of(variable, values):
    return values[variable] if variable in values else variable.data


class _Run:
    """One division of the rows."""

    def __init__(self, program, graph, found, nodes, thunks, split, exact, may_fail):
        self.graph, self.found, self.nodes, self.thunks = graph, found, nodes, thunks
        self.split, self.exact, self.n_rows = split, exact, sum(split)
        self.ends = np.cumsum((0, *split))
        self.serial, self.ranks = {}, [{} for _ in split]
        self.may_fail, self.not_compared, self.drawn = may_fail, set(), set()
        for variable, make, axis in program.inputs:
            self.serial[variable] = value = make(self.n_rows)
            for r, values in enumerate(self.ranks):
                values[variable] = value if axis is None else self._rows(value, axis, r)

    def _rows(self, value, axis, r):
        return np.take(value, np.arange(self.ends[r], self.ends[r + 1]), axis=axis)

    def __call__(self):
        steps = zip(self.nodes, self.thunks, self.graph.nodes, self.found.whole, self.found.equal)
        for node, thunk, placed, whole, equal in steps:
            inputs = [_value_of(one, self.serial) for one in node.inputs]
            self.serial.update(zip(node.outputs, thunk(inputs)))
            if self.may_fail or any(isinstance(self.found.of(one), Unknown) for one in (*node.inputs, *node.outputs)):
                if not all(one in self.ranks[-1] or not one.owner for one in node.inputs):
                    continue
                results = node.outputs[isinstance(placed.rule, sharding.Drawn) :]  # without the state of the stream
                if all(isinstance(self.found.of(one), Unknown) for one in results):
                    continue
            for condition in equal:
                if isinstance(condition, sharding.WithinRows):
                    for values in (self.serial, *self.ranks):
                        at, of = (_value_of(node.inputs[i], values) for i in (condition.input, 0))
                        assert np.all((at >= 0) & (at < of.shape[condition.axis])), "a position outside the rows"
                elif len({self._number(one) for one in condition}) > 1:
                    assert self.may_fail, "lengths are not equal"
                    return
            if isinstance(placed.rule, Completed) and not self.exact:
                self._all_reduce(node)
                continue
            try:
                self._compute(node, thunk, whole)
            except Exception:
                if not self.may_fail:
                    raise
                continue
            if isinstance(placed.rule, sharding.Drawn):
                self._draw(node)
            if any(one in self.drawn for one in node.inputs):
                self.drawn.update(node.outputs)
            if self._divides_by_no_rows(node):
                self.not_compared.update(node.outputs)
            if any(one in self.not_compared for one in node.inputs) or self._is_reordered(node, placed.rule):
                self.not_compared.update(node.outputs)
            for variable in node.outputs:
                if variable not in self.not_compared and type(node.op).__name__ != "AllocEmpty":
                    self.compare(variable)

    def _compute(self, node, thunk, whole):
        for values in self.ranks:
            inputs = [_value_of(one, values) for one in node.inputs]
            for i in whole:
                inputs[i] = self._whole(node.inputs[i])
            values.update(zip(node.outputs, thunk(inputs)))

    def _all_reduce(self, node):
        """Compute a collective that the program contains; the serial program uses the same result."""
        for variable, output in zip(node.inputs, node.outputs):
            values = [rank[variable] for rank in self.ranks]
            weights = [n / self.n_rows for n in self.split] if node.op.op.name == "avg" else [1] * len(values)
            result = _reduced([one * weight for one, weight in zip(values, weights)], node.op.op.name)
            for rank in (self.serial, *self.ranks):
                rank[output] = np.asarray(result, output.dtype)

    def _is_reordered(self, node, rule):
        """Return whether random numbers are validly reordered, or drawn inside a loop."""
        if isinstance(rule, sharding.ScanLoop):
            return any(isinstance(one.rule, sharding.Drawn) for one in rule.graph.nodes)
        if not isinstance(rule, sharding.Reshaped) or node.inputs[0] not in self.drawn:
            return False
        before, after = (self.found.of(one) for one in (node.inputs[0], node.outputs[0]))
        return isinstance(after, Shard) and after.uniform and after.axis != before.axis

    def _divides_by_no_rows(self, node):
        """Return whether a rank divides by its number of rows, which is 0; calls avoid this."""
        is_quotient = type(getattr(node.op, "scalar_op", None)).__name__ == "IntDiv"
        return is_quotient and any(not np.all(_value_of(node.inputs[1], rank)) for rank in self.ranks)

    def _draw(self, node):
        """Set every rank's draws to its rows of the serial program's draws, if these rows are known."""
        state, drawn = node.outputs
        self.not_compared.add(state)
        self.drawn.add(drawn)
        placement = self.found.of(drawn)
        if isinstance(placement, Unknown) or placement.loose:
            self.not_compared.add(drawn)
            return
        value = self.serial[drawn]
        for r, rank in enumerate(self.ranks):
            parts = self._separate(value, placement, self.n_rows)
            part = np.take(parts, np.arange(self.ends[r], self.ends[r + 1]), axis=placement.axis + 1)
            assert part.size == rank[drawn].size, f"{node}: rank {r} draws {rank[drawn].shape}"
            rank[drawn] = part.reshape(rank[drawn].shape)

    def _whole(self, variable):
        """Return a complete value: a collective's result, or the number of all rows."""
        placement = self.found.of(variable)
        if isinstance(placement, Size):
            return self.serial[variable]
        assert isinstance(placement, Partial), f"the whole of {placement} is asked for"
        assert placement.reduction in ("sum", "avg", "max", "min", "prod")
        return np.asarray(self._parts(variable, placement), variable.dtype)

    def _parts(self, variable, placement):
        values = []
        for rank, n in zip(self.ranks, self.split):
            if n or placement.power == 0:
                share = n / self.n_rows
                values.append(rank[variable] / share**placement.power if placement.power else rank[variable])
        return _reduced(values, placement.op)

    def compare(self, variable):
        placement, expected = self.found.of(variable), self.serial[variable]
        if isinstance(placement, Unknown) or not _is_array(expected):
            return
        where = f"{variable} of {variable.owner}, {placement!r}, split {self.split}, exact {self.exact}"
        if getattr(placement, "zero", False):
            assert not np.any(np.nan_to_num(expected)), f"not zero: {where}"
        if isinstance(placement, Partial):
            _equal(self._parts(variable, placement), expected, where)
        elif isinstance(placement, Shard):
            self._compare_rows(variable, placement, expected, where)
        else:
            for rank, n in zip(self.ranks, self.split):
                _equal(rank[variable], expected * self._factor(placement, n, np.shape(expected)), where)

    def _factor(self, placement, n, shape):
        share = np.float64(n) / self.n_rows
        if isinstance(placement, Replicate):
            return share**placement.power if placement.power and n else np.nan if placement.power else 1
        factors = [np.nan if one.power is None else share**one.power for one in placement.lengths]
        assert shape in ((), (len(factors),)), f"{len(factors)} lengths of {shape}"
        return np.reshape(factors, shape)

    def _compare_rows(self, variable, placement, expected, where):
        if placement.loose or not (placement.layout.is_even or placement.layout.in_order):
            return
        if placement.positions:
            both = (placement.of, placement.layout)
            if placement.positions == sharding.Index.ROWS and all(one.is_known and one.is_even for one in both):
                for r, (rank, n) in enumerate(zip(self.ranks, self.split)):
                    serial = self._separate(expected, placement, self.n_rows)
                    own = np.take(serial, np.arange(self.ends[r], self.ends[r + 1]), axis=placement.axis + 1)
                    inner = self._number(placement.of.inner)
                    before, at = np.divmod(rank[variable], max(n * inner, 1))
                    _equal(before * self.n_rows * inner + at + self.ends[r] * inner, own.reshape(before.shape), where)
            return
        parts = []
        for rank, n in zip(self.ranks, self.split):
            part = self._separate(rank[variable], placement, n)
            if n or placement.power == 0:
                share = n / self.n_rows
                parts.append(part / share**placement.power if placement.power else part)
        together = np.concatenate(parts, axis=placement.axis + 1)
        assert together.size == expected.size, f"{together.shape} for {expected.shape}: {where}"
        _equal(together.reshape(expected.shape), expected, where)

    def _separate(self, value, placement, n):
        """Return an array with the axis of the rows split into three: the outer axis, the rows, and the inner axis."""
        shape, axis = list(value.shape), placement.axis
        outer = self._number(placement.layout.outer)
        inner = self._number(placement.layout.inner) if placement.layout.is_even else None
        if placement.layout.is_unordered:
            per_row = self._number(placement.layout.per_row)
            assert shape[axis] == n * per_row, f"{shape} along {axis} is not {n} x {per_row}"
            outer = 1
        if outer is None and inner is None:
            raise AssertionError("a layout of which nothing is known")
        if outer == 1 and inner is None:  # also for rows that were merged
            return value.reshape([*shape[:axis], 1, shape[axis], 1, *shape[axis + 1 :]])
        if outer is None:
            outer = shape[axis] // (n * inner) if n * inner else 1
        if inner is None:
            inner = shape[axis] // (n * outer) if n * outer else self._inner_of_empty(value, placement, outer)
        assert shape[axis] == outer * n * inner, f"{shape} along {axis} is not {outer} x {n} x {inner}"
        return value.reshape([*shape[:axis], outer, n, inner, *shape[axis + 1 :]])

    def _inner_of_empty(self, value, placement, outer):
        found = [one for one in self.serial if self.found.of(one) == placement]
        length = self.serial[found[-1]].shape[placement.axis]
        return length // (self.n_rows * outer)

    def _number(self, product):
        """Return the value of a product of lengths in the serial program."""
        if product is None:
            return None
        number = product.number
        for atom, exponent in product.factors:
            if isinstance(atom, lengths.ShiftedLength):
                number *= (self._number(atom.length) - atom.number) ** exponent
                continue
            if isinstance(atom, sharding.Quotient):
                number *= (self._number(atom.length) // self._number(atom.divisor)) ** exponent
                continue
            variable, axis = atom if isinstance(atom, tuple) else (atom, None)
            value = _value_of(variable, self.serial)
            number *= int(value if axis is None else np.shape(value)[axis]) ** exponent
        return number


def _reduced(values, op):
    values = np.asarray(values)  # (integers wrap around in their own type)
    return {"max": np.maximum, "min": np.minimum, "prod": np.multiply}.get(op, np.add).reduce(
        values, dtype=values.dtype
    )


def _is_array(value):
    return isinstance(value, (np.ndarray, np.generic, int, float))


def _equal(actual, expected, where):
    expected = np.asarray(expected)
    known = ~np.isnan(expected) if expected.dtype.kind == "f" else np.ones(expected.shape, bool)
    assert np.shape(actual) == expected.shape, f"shape {np.shape(actual)} for {expected.shape}: {where}"
    np.testing.assert_allclose(
        np.asarray(actual, float)[known], expected[known].astype(float), rtol=1e-6, atol=1e-9, err_msg=where
    )


class Case:
    """Outputs of a `Program`, and their expected placements.

    Parameters
    ----------
    name : str
    expected : str
        The printed placements.
    build : callable
        Returns a `Program`'s outputs.
    exact : str, optional
        The placements in a graph that may be changed, if they differ.
    empty : bool
        Whether a rank may have no rows.
    pytensor : (str, str), optional
        Both placements with PyTensor, if its graph differs.
    """

    def __init__(self, name, expected, build, exact=None, empty=True, pytensor=None):
        if pytensor is not None and not IS_THEANO:
            expected, exact = pytensor
        self.name, self.expected, self.build, self.empty = name, expected, build, empty
        self.exact = expected if exact is None else exact

    def __repr__(self):
        return self.name

    def verify(self, exact, splits=SPLITS):
        with L.compiled_quickly(), with_convolutions():
            program = Program(seed=int(exact))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outputs = self.build(program)
            outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
            splits = [one for one in splits if self.empty or all(one)]
            found = check(program, outputs, exact, splits)
        expected = self.exact if exact else self.expected
        why = [one.why for one in found if isinstance(one, Unknown)]
        assert " ".join(map(str, found)) == expected, why or found
        return found


def parametrize(cases):
    """Return a decorator that runs a test for all cases, plain and exact."""
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), "a name is given twice"

    def decorate(test):
        test = pytest.mark.parametrize(
            "exact", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["plain", "exact"]
        )(test)
        return pytest.mark.parametrize("case", cases, ids=names)(test)

    return decorate
