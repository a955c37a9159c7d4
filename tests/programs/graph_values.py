"""A graph's values, computed node by node, and the errors that correct values may have.

The serial program is also computed with other roundings: the outputs of every operation, and its inputs if it adds or
multiplies several numbers, get errors of some units in the last place. The differences between the results show the
effect of rounding, however the graph cancels or amplifies errors.
"""

import warnings
from functools import partial

import numpy as np
from graph_words import L

#: Relative error of an operation, in units in the last place.
ULPS = 2.0

#: Directions of the errors in each run of the program: all upward, all downward, or random. (The first or the second
#: truncates a number that is an integer up to rounding to another integer. Random errors in a sum cancel about one
#: time in ten.)
ERRORS = (
    lambda: np.ones,
    lambda: lambda shape: -np.ones(shape),
    *(lambda seed=seed: partial(np.random.RandomState(seed).uniform, -1, 1) for seed in range(3, 8)),
)

#: Multiple of the largest difference between these runs that still counts as rounding.
FACTOR = 32.0

#: Tolerances, by dtype, of values that the optimizer stabilizes, so that the plain graph does not show their rounding.
LOOSE = {"float16": 3e-2, "float32": 1e-3, "complex64": 1e-3}

#: Operations that select and copy numbers.
EXACT = {
    *("DimShuffle", "Reshape", "Join", "Split", "Alloc", "AllocEmpty", "Shape", "Shape_i", "MakeVector", "Rebroadcast"),
    *(
        "Subtensor",
        "AdvancedSubtensor",
        "AdvancedSubtensor1",
        "AdvancedBooleanSubtensor",
        "IfElse",
        "SortOp",
        "ArgSortOp",
    ),
    *(
        "Argmax",
        "MaxAndArgmax",
        "Max",
        "Min",
        "All",
        "Any",
        "Nonzero",
        "Unique",
        "Eye",
        "ARange",
        "Tri",
        "TensorFromScalar",
    ),
    *(
        "ScalarFromTensor",
        "RepeatOp",
        "Repeat",
        "Unbroadcast",
        "SpecifyShape",
        "ExtractDiag",
        "Assert",
        "CheckAndRaise",
    ),
    *("JoinDims", "SplitDims", "Squeeze", "ExpandDims", "ViewOp", "DeepCopyOp", "NonZero", "Tile"),
}

#: Elementwise operations.
EXACT_SCALARS = {
    *(
        "Identity",
        "Neg",
        "Abs",
        "Maximum",
        "Minimum",
        "ScalarMaximum",
        "ScalarMinimum",
        "Switch",
        "Second",
        "Sgn",
        "Sign",
    ),
    *(
        "Floor",
        "Ceil",
        "Trunc",
        "RoundHalfToEven",
        "RoundHalfAwayFromZero",
        "EQ",
        "NEQ",
        "LT",
        "GT",
        "LE",
        "GE",
        "Conj",
    ),
    *("Real", "Imag", "Invert", "AND", "OR", "XOR", "Clip"),
}


def thunk_of(node):
    """Return a function that computes a node's outputs from its inputs, with the library's Python code."""
    storage = {one: [None] for one in (*node.inputs, *node.outputs)}
    computed = {one: [True] for one in node.inputs}
    computed.update({one: [False] for one in node.outputs})
    thunk = node.op.make_thunk(node, storage, computed, [], impl="py")

    def compute(inputs):
        for variable, value in zip(node.inputs, inputs):
            storage[variable][0] = value
        for variable in node.outputs:
            storage[variable][0], computed[variable][0] = None, False
        thunk()
        results = [storage[one][0] for one in node.outputs]
        return [one.copy() if isinstance(one, np.ndarray) else one for one in results]

    return compute


class Computed:
    """The values of a growing graph.

    Attributes
    ----------
    inputs : dict
        Values by input variable.
    values : dict
        Values by variable, for inputs and all computed variables.
    """

    def __init__(self, inputs):
        self.inputs, self.values = dict(inputs), dict(inputs)

    def add(self, new):
        """Compute a variable and all that it depends on; add nothing if this fails."""
        found = {}
        for node in L.io_toposort(list(self.values), [new]):
            if all(one in self.values for one in node.outputs):
                continue
            of = {**self.values, **found} if len(node.inputs) > 8 else None
            inputs = [
                (of or (found if one in found else self.values))[one]
                if one in found or one in self.values
                else one.data
                for one in node.inputs
            ]
            found.update(zip(node.outputs, thunk_of(node)(inputs)))
        self.values.update(found)
        return self.values[new]


class Recipe:
    """The nodes of a program, for repeated computation.

    Parameters
    ----------
    inputs : list of variables
        The inputs, including shared variables.
    outputs : list of variables
    """

    def __init__(self, inputs, outputs):
        self.inputs, self.outputs = inputs, outputs
        self.nodes = L.io_toposort(inputs, outputs)
        with L.compiled_quickly():
            self._thunks = [thunk_of(node) for node in self.nodes]
        self._kinds = [_rounds(node) for node in self.nodes]

    def __call__(self, inputs, errors=None):
        """Return the outputs, computed with other roundings if ``errors`` is one of `ERRORS`."""
        values = dict(zip(self.inputs, inputs))
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            for node, thunk, (of_inputs, of_outputs) in zip(self.nodes, self._thunks, self._kinds):
                given = [values[one] if one in values else one.data for one in node.inputs]
                if errors is not None and of_inputs:
                    given = [_rounded(one, errors) for one in given]
                results = thunk(given)
                if errors is not None and of_outputs:
                    results = [_rounded(one, errors) for one in results]
                values.update(zip(node.outputs, results))
        return [values[one] if one in values else one.data for one in self.outputs]


def _rounds(node):
    """Return whether a node's inputs are subject to rounding errors, and whether its outputs are."""
    name = type(node.op).__name__
    if name in EXACT:
        return False, False
    if name == "Elemwise":
        scalar = type(node.op.scalar_op).__name__
        narrows = scalar in ("Cast",) and np.dtype(node.inputs[0].dtype).kind in "fc"
        return False, scalar not in EXACT_SCALARS and (scalar != "Cast" or narrows)
    if name in ("CAReduce", "CAReduceDtype", "Sum", "Prod"):
        scalar = type(node.op.scalar_op).__name__
        rounds = scalar not in EXACT_SCALARS
        return rounds, rounds
    return True, True


def _rounded(value, errors):
    """Return a value with errors of some units in the last place."""
    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype.kind not in "fc":
        return value
    wide = value.astype("float64") if value.dtype.kind == "f" else value
    factors = 1 + errors(np.shape(value)) * (ULPS * np.finfo(value.dtype).eps)
    return np.asarray(wide * factors).astype(value.dtype)


class Expected:
    """A serial value, and the errors that a correct value may have.

    Parameters
    ----------
    value : array
        The serial program's value.
    plain : array
        The value of its graph, computed node by node.
    others : list of array
        Such values with other roundings.
    """

    def __init__(self, value, plain, others):
        self.value = np.asarray(value)
        self._plain, self._others = np.asarray(plain), [np.asarray(one) for one in others]

    @property
    def is_comparable(self):
        """Whether its shape and, unless it has floats, at least one element do not depend on rounding."""
        if len({one.shape for one in (self._plain, *self._others)}) > 1:
            return False
        return self.value.dtype.kind in "fc" or not self.value.size or not np.all(self._undecided())

    def _undecided(self):
        """Return which of the elements depend on rounding, although they are not floats."""
        return np.any([one != self._plain for one in self._others], axis=0)

    def differs(self, actual):
        """Return how an actual value differs, or None."""
        value = self.value
        actual = np.asarray(actual)
        if actual.dtype != value.dtype:
            return f"expected {value.dtype}, got {actual.dtype}"
        if not self.is_comparable:
            return None
        if actual.shape != value.shape:
            return f"expected shape {value.shape}, got {actual.shape}: {_short(value)}, {_short(actual)}"
        if value.dtype.kind not in "fc":
            wrong = (actual != value) & ~self._undecided()
        else:
            wrong = self._differing(actual)
        if not np.any(wrong):
            return None
        return f"expected {_short(value)}, got {_short(actual)}, in {np.count_nonzero(wrong)} of {wrong.size} elements"

    def _differing(self, actual):
        value, eps = self.value, np.finfo(self.value.dtype).eps
        wide = "complex128" if value.dtype.kind == "c" else "float64"
        value, actual = value.astype(wide), actual.astype(wide)
        with np.errstate(all="ignore"):
            plain, others = self._plain.astype(wide), [one.astype(wide) for one in self._others]
            loose = LOOSE.get(str(self.value.dtype), 1e-6) * (np.abs(value) + 1e-3)
            if plain.shape != value.shape:  # as for ``y[y > 0]`` if the optimizer replaces ``y = x / x`` with ones
                return ~((actual == value) | (np.abs(actual - value) <= loose) | (np.isnan(actual) & np.isnan(value)))
            finite = np.isfinite(plain)
            known = finite & np.all([np.isfinite(one) for one in others], axis=0)
            spread = np.max([np.abs(np.where(known, one - plain, 0)) for one in others], axis=0)
            size = np.max(np.abs(np.where(known, plain, 0)), initial=0)
            bound = FACTOR * np.maximum(spread, np.mean(spread) if spread.size else 0) + 64 * eps * np.abs(value)
            bound = bound + 4 * eps * size + 4 * np.finfo(self.value.dtype).tiny
            # If the optimizer changes a number to another number than the plain graph's, its rounding is unknown.
            other = ~known | ~(np.abs(value - plain) <= bound)
            bound = np.where(other, np.maximum(np.where(known, bound, 0), loose), bound)
            same = np.isfinite(value) & (np.abs(actual - value) <= bound)
            same |= (actual == value) | (np.isnan(actual) & np.isnan(value))
            # Rounding determines whether the value is a number at all.
            undecided = np.any([np.isfinite(one) != finite for one in others], axis=0)
        return ~(same | undecided)


def _short(value):
    return " ".join(np.array2string(value, threshold=12, precision=8, separator=", ").split())
