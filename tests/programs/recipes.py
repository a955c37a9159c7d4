"""The functions that random programs call: their formulas define both the graphs and the expected values.

The parameters of a formula are the names of the inputs, shared variables and givens that it uses.
"""

import inspect
from dataclasses import dataclass, field

import numpy as np
from vocabulary import state_of

#: Scattered inputs: dtype and shape of a row.
INPUTS = {
    "x": ("float64", (3,)),
    "y": ("float64", ()),
    "z": ("float32", (2,)),
    "t": ("float64", (2, 2)),
    "i": ("int64", ()),
    "j": ("int32", (3,)),
    "o": ("uint8", ()),
    "b": ("bool", ()),
    "s": ("int8", (2,)),
    "g": ("uint16", ()),
    "n": ("int16", (2,)),
    "d": ("uint32", ()),
    "r": ("int32", ()),
    "f": ("uint64", (2,)),
}

#: Ranges of integers that are not small; their sums wrap around.
RANGES = {"r": (1 << 29, (1 << 31) - 1), "s": (-100, 101), "g": (0, 1 << 15), "d": (0, 1 << 31)}

#: Inputs that are sent whole to every rank: dtype, shape, broadcastable.
WHOLE = {
    "p": ("float64", (3,), None),
    "q": ("float64", (), None),
    "c": ("int64", (), None),
    "e": ("float64", (2, 3), None),
    "row": ("float64", (1, 3), (True, False)),
    "wide": ("float64", (4, 6), None),
}

#: Shared variables with a fixed shape: dtype and shape. (All ranks reduce "big" together.)
FIXED = {
    "w": ("float64", (3,)),
    "u": ("float64", (3,)),
    "scale": ("float64", ()),
    "m": ("float64", (2, 3)),
    "h": ("float32", (3,)),
    "count": ("int64", ()),
    "k": ("int32", (3,)),
    "flags": ("bool", (3,)),
    "seen": ("int64", ()),
    "running": ("float64", ()),
    "statistics": ("float64", (3,)),
    "big": ("float64", (9001,)),
}

#: Shared variables with as many rows of data as were scattered to a rank: dtype and shape of a row.
DATA = {"table": ("float64", (3,)), "column": ("float64", ()), "labels": ("int64", ()), "small": ("float32", (2,))}

#: Shared variables with a state for each row of a batch (`synkhronos.sharded`): dtype and shape; None: its rows.
STATES = {
    "hidden": ("float64", (None, 3)),
    "before": ("float64", (None, 3)),
    "across": ("float64", (2, None)),
    "taken": ("int64", (None,)),
}

#: Shared variables with the state of a random number generator, as an array (`vocabulary.state_of`).
RANDOM = {"stream": ("uint32", (626,))}

SHARED = {**FIXED, **{name: (dtype, (None,) + shape) for name, (dtype, shape) in DATA.items()}, **STATES, **RANDOM}

#: Stands for a missing op.
DEFAULT = "default"


#: Words for the collectives in a formula, and their ops.
COLLECTIVES = {"all_avg": "avg", "all_sum": "sum", "all_min": "min", "all_max": "max"}


def axis_of_rows(name):
    """Return the axis of a variable along which the states of rows are stored."""
    return STATES[name][1].index(None)


def collectives(formula):
    """Return the ops of the collectives in a formula."""
    return {COLLECTIVES[word] for word in formula.__code__.co_names if word in COLLECTIVES}


def parameters(formula):
    """Return the names of the values that a formula uses."""
    return list(inspect.signature(formula).parameters)[1:]


def evaluate(formula, words, values):
    """Return the value of a formula; ``values`` must have one for every name that the formula uses."""
    return formula(words, *[values[name] for name in parameters(formula)])


@dataclass(frozen=True)
class Output:
    """An output: ``outer(formula)``, and its op.

    ``given``: whether the op is passed to the function; if not, it is the op that must be chosen for the serial output.
    ``serial``: whether the op combines the values for divided rows to the value for all rows. ``linear``: whether the
    mean over slices is the value on all rows, as far as collectives in the formula are concerned.
    """

    formula: object
    op: object
    outer: str = ""
    serial: bool = False
    linear: bool = True
    given: bool = True

    def value(self, words, values):
        inner = evaluate(self.formula, words, values)
        return getattr(words, self.outer)(inner) if self.outer else inner


def mean(formula, linear=True):
    return Output(formula, DEFAULT, "mean", True, linear)


def total(formula, op="sum"):
    return Output(formula, op, "sum", True)


def largest(formula, op="max"):
    return Output(formula, op, "max", True)


def smallest(formula):
    return Output(formula, "min", "min", True)


def product(formula):
    return Output(formula, "prod", "prod", True)


def each(formula, op="gather"):
    """Return an output whose rows depend on one input row each."""
    return Output(formula, op, "", True)


def own(formula):
    return Output(formula, None)


def common(formula, op="max"):
    """Return an output of collectives, which equals their value on all rows."""
    return Output(formula, op, "", True)


def plain(formula, op):
    """Return an output without an op; ``op`` is the one that must be chosen."""
    return Output(formula, op, "", True, given=False)


@dataclass(frozen=True)
class Update:
    """An update: the name of the shared variable, its new value, and its op.

    ``linear``: whether the mean over slices is the value on all rows, as far as collectives in it are concerned.
    """

    target: str
    formula: object
    op: object = DEFAULT
    linear: bool = True

    def value(self, words, values):
        return evaluate(self.formula, words, values)


@dataclass(frozen=True)
class Recipe:
    """A function of the random programs.

    Parameters
    ----------
    name : str
    scattered, whole : str
        Names of inputs.
    outputs : list of Output
    updates : list of Update
    default_updates : list of Update
        Default updates of shared variables while the function is built.
    givens : dict
        The formulas that replace variables, by the variables' names.
    like : dict
        The shared variables with the same types, by the names of the replaced variables.
    sliceable : str
        Names of shared variables.
    states : str
        Names of shared variables that have the batch's rows.
    form : {"list", "single", "dict"}
        The form of the outputs.
    mutable : bool
        Whether the function may destroy its inputs.
    inplace : bool
        Whether the NumPy engine updates in place.
    aligned : bool
        Whether inputs and data are combined row by row, so that all must have the same number of rows.
    exact : bool
        Whether it is built with ``exact=True``.
    in_slices : bool
        Whether an exact function can be called in slices: no row depends on a value of all rows.
    graphs : bool
        Whether only tensor libraries support the function.
    stable : bool
        Whether it needs an optimizer to be numerically stable.
    rows : int, optional
        A literal number of rows in the function, which formulas use as ``v.rows``.
    """

    name: str
    scattered: str = ""
    outputs: list = field(default_factory=list)
    whole: str = ""
    updates: list = field(default_factory=list)
    default_updates: list = field(default_factory=list)
    givens: dict = field(default_factory=dict)
    like: dict = field(default_factory=dict)
    sliceable: str = ""
    states: str = ""
    form: str = "list"
    mutable: bool = False
    inplace: bool = False
    aligned: bool = False
    exact: bool = False
    in_slices: bool = True
    graphs: bool = False
    stable: bool = False
    rows: object = None

    @property
    def inputs(self):
        return self.scattered.split() + self.whole.split()

    @property
    def divided(self):
        """The names of all inputs and variables whose rows are divided."""
        return [name for name in self.scattered.split() if name in INPUTS] + (
            self.sliceable + " " + self.states
        ).split()

    @property
    def keys(self):
        """The keys of the outputs in ``output_subset``, in the order of the outputs."""
        return ["zyxwvut"[i] if self.form == "dict" else i for i in range(len(self.outputs))]

    @property
    def shareds(self):
        """The names of all shared variables that the function uses."""
        used = [update.target for update in self.updates + self.default_updates]
        for formula in (
            [output.formula for output in self.outputs]
            + [update.formula for update in self.updates + self.default_updates]
            + list(self.givens.values())
        ):
            used += parameters(formula)
        return [name for name in SHARED if name in used]

    @property
    def in_common(self):
        """The names of the shared variables that an exact function assumes to be equal on all ranks."""
        return [name for name in self.shareds if name not in self.sliceable.split() and name not in STATES]

    # -- collectives inside ----------------------------------------------------------------------------------------

    @property
    def collectives(self):
        """The ops of all collectives inside the function."""
        formulas = [each.formula for each in self.outputs + self.updates + self.default_updates]
        return set().union(*map(collectives, formulas + list(self.givens.values())))

    def behind(self, formula):
        """Return a formula and the formulas of the givens that it uses."""
        return [formula] + [self.givens[name] for name in parameters(formula) if name in self.givens]

    def meets(self, formula):
        """Return whether a formula or its givens contain a collective."""
        return any(map(collectives, self.behind(formula)))

    def has_rows(self, formula):
        """Return whether a formula depends on rows or draws, so that its value may differ between slices."""
        return self.meets(formula) or self._differs(formula, {*self.divided, *RANDOM})

    def is_common(self, update):
        """Return whether ranks without rows also apply an update: it has a collective, or no values of single ranks."""
        updates = self.updates + self.default_updates
        of_ranks, before = {*self.scattered.split(), *self.divided, *RANDOM}, None
        while of_ranks != before:
            before = set(of_ranks)
            of_ranks |= {each.target for each in updates if self._differs(each.formula, of_ranks)}
        return self.meets(update.formula) or not self._differs(update.formula, of_ranks)

    def _differs(self, formula, of_ranks):
        """Return whether a formula has no collectives, and uses values that differ between ranks."""
        names = {name for each in self.behind(formula) for name in parameters(each)}
        return not self.meets(formula) and bool(names & of_ranks)


def gradient(v, x, y, w):
    """Return the scaled gradient of a linear model's mean squared error."""
    return v.mean(v.transposed(x) * (v.dot(x, w) - y), 1) * 0.0625


def norm(v, g):
    return v.sqrt(v.sum(g * g))


RECIPES = [
    # one input, every op
    Recipe("mean", "y", [mean(lambda v, y: y)], form="single"),
    Recipe(
        "sums",
        "x",
        [total(lambda v, x: x), total(lambda v, x: x * x, "c_sum"), Output(lambda v, x: v.sum(x, 0), "sum")],
    ),
    Recipe("product", "y", [product(lambda v, y: y)], form="single"),
    Recipe("extremes", "x", [smallest(lambda v, x: x), largest(lambda v, x: x, "c_max"), mean(lambda v, x: x)]),
    Recipe("rows", "x", [each(lambda v, x: x)], form="single"),
    Recipe("rows computed", "x", [each(lambda v, x: x * 2 - 1, "c_gather"), each(lambda v, x: v.sum(x, 1))]),
    Recipe(
        "one entry per rank",
        "y",
        [Output(lambda v, y: v.sum(y), "gather"), Output(lambda v, y: v.max(y), "gather")],
        form="dict",
    ),
    Recipe("the master's", "y", [own(lambda v, y: y), own(lambda v, y: v.sum(y)), total(lambda v, y: y)]),
    Recipe(
        "every op",
        "y",
        [
            mean(lambda v, y: y),
            total(lambda v, y: y),
            product(lambda v, y: y),
            smallest(lambda v, y: y),
            largest(lambda v, y: y),
            each(lambda v, y: y),
            own(lambda v, y: v.length(y)),
        ],
        form="dict",
    ),
    Recipe(
        "ops crossed",
        "y",
        [
            Output(lambda v, y: v.sum(y), "max"),
            Output(lambda v, y: v.sum(y), "min"),
            Output(lambda v, y: v.max(y), "sum"),
            Output(lambda v, y: v.min(y), "prod"),
            Output(lambda v, y: v.max(y), "avg"),
        ],
    ),
    Recipe("column means", "x", [Output(lambda v, x: v.mean(x, 0), "avg"), Output(lambda v, x: v.max(x, 0), "c_max")]),
    Recipe(
        "number of rows", "x", [Output(lambda v, x: v.length(x), "sum"), Output(lambda v, x: v.length(x), "gather")]
    ),
    # dtypes
    Recipe("float32", "z", [mean(lambda v, z: z), each(lambda v, z: z * z), largest(lambda v, z: z)]),
    Recipe(
        "float32 columns", "z", [Output(lambda v, z: v.sum(z, 0), "sum"), Output(lambda v, z: v.mean(z, 0), "c_avg")]
    ),
    Recipe(
        "int64", "i", [total(lambda v, i: i), product(lambda v, i: i), smallest(lambda v, i: i), each(lambda v, i: i)]
    ),
    Recipe(
        "int32",
        "j",
        [Output(lambda v, j: v.max(j, 0), "max"), each(lambda v, j: j * j), Output(lambda v, j: v.min(j, 0), "sum")],
    ),
    Recipe("uint8", "o", [each(lambda v, o: o), smallest(lambda v, o: o), Output(lambda v, o: v.max(o), "sum")]),
    Recipe(
        "bool",
        "b",
        [
            Output(lambda v, b: v.any(b), "max"),
            Output(lambda v, b: v.all(b), "min"),
            each(lambda v, b: b),
            Output(lambda v, b: v.any(b), "sum"),
            Output(lambda v, b: v.all(b), "prod"),
        ],
    ),
    Recipe(
        "comparisons", "y", [each(lambda v, y: v.greater(y, 0)), Output(lambda v, y: v.any(v.greater(y, 1)), "max")]
    ),
    Recipe("mean of integers", "i", [mean(lambda v, i: v.cast(i, "float64"))], form="single"),
    # more dimensions, more inputs
    Recipe(
        "3 dimensions",
        "t",
        [
            each(lambda v, t: t),
            mean(lambda v, t: t),
            Output(lambda v, t: v.sum(t, 0), "sum"),
            each(lambda v, t: v.max(t, 2)),
        ],
    ),
    Recipe(
        "2 inputs",
        "x y",
        [Output(lambda v, x, y: v.dot(y, x), "sum"), total(lambda v, x, y: v.sum(x, 1) * y)],
        form="dict",
    ),
    Recipe(
        "3 inputs",
        "x y i",
        [total(lambda v, x, y: v.max(x, 1) * y), each(lambda v, i: i * 2), total(lambda v, y, i: y * i)],
    ),
    Recipe(
        "4 inputs",
        "z t o b",
        [
            each(lambda v, z, o: v.at(z, (slice(None), 0)) * o),
            each(lambda v, t: v.sum(t, 1)),
            largest(lambda v, o, b: v.where(b, o, o - o)),
        ],
    ),
    Recipe("an input nobody uses", "y i", [mean(lambda v, y: y)]),
    Recipe("inputs that may be destroyed", "x y", [each(lambda v, x: x + 1), total(lambda v, y: y)], mutable=True),
    Recipe(
        "class of each row",
        "x",
        [each(lambda v, x: v.argmax(x, 1)), Output(lambda v, x: v.argmax(v.sum(x, 1)), "gather")],
    ),
    # whole inputs
    Recipe("weighted rows", "x", [each(lambda v, x, p: v.dot(x, p)), mean(lambda v, x, p: x * p)], whole="p"),
    Recipe("scalars", "y", [each(lambda v, y, q, c: y * q + c), Output(lambda v, c: c, "sum")], whole="q c"),
    Recipe(
        "broadcastable row", "x row", [each(lambda v, x, row: x * row), Output(lambda v, row: v.sum(row), "gather")]
    ),
    Recipe("a scalar among the scattered", "y q", [total(lambda v, y, q: y * q), own(lambda v, q: q)]),
    Recipe("matrix product", "x", [each(lambda v, x, e: v.dot(x, v.transposed(e)))], whole="e", form="single"),
    Recipe(
        "whole inputs only",
        "",
        [Output(lambda v, p: p, "sum"), Output(lambda v, p: p, "gather"), mean(lambda v, p: p), own(lambda v, p: p)],
        whole="p",
    ),
    # nothing, or little
    Recipe("nothing at all"),
    Recipe(
        "a shared variable",
        "",
        [
            Output(lambda v, w: w, "avg"),
            Output(lambda v, w: w, "sum"),
            Output(lambda v, w: w, "gather"),
            own(lambda v, w: w * 2),
        ],
    ),
    Recipe(
        "all kinds of shared variables",
        "",
        [
            Output(lambda v, k: k, "max"),
            Output(lambda v, flags: flags, "sum"),
            Output(lambda v, h: h, "avg"),
            Output(lambda v, count: count, "prod"),
            Output(lambda v, m: v.max(m, 0), "gather"),
        ],
    ),
    Recipe("only an update", updates=[Update("count", lambda v, count: count + 1)]),
    # shared variables and inputs
    Recipe("linear model", "x", [each(lambda v, x, w: v.dot(x, w)), mean(lambda v, x, w, scale: x * w + scale)]),
    Recipe("loss", "x y", [mean(lambda v, x, y, w: (v.dot(x, w) - y) * (v.dot(x, w) - y))], form="single"),
    Recipe("big", "y", [Output(lambda v, y, big: big * v.mean(y), "avg"), Output(lambda v, big: big * 2, "max")]),
    # updates
    Recipe(
        "learn",
        "x y",
        [mean(lambda v, x, y, w: v.dot(x, w) - y)],
        updates=[Update("w", lambda v, x, y, w: w * 0.5 - v.mean(x, 0) * 0.25)],
    ),
    Recipe(
        "learn in place",
        "x",
        [mean(lambda v, x, u: x * u)],
        updates=[Update("u", lambda v, x, u: u * 0.5 + v.mean(x, 0))],
        inplace=True,
    ),
    Recipe(
        "update by sum",
        "x",
        [total(lambda v, x: x)],
        updates=[Update("w", lambda v, x: v.sum(x, 0), "sum"), Update("scale", lambda v, x: v.max(x), "max")],
    ),
    Recipe(
        "update by every op",
        "x",
        updates=[
            Update("w", lambda v, x: v.min(x, 0), "min"),
            Update("u", lambda v, x: v.max(x, 0), "max"),
            Update("scale", lambda v, x: v.max(x), "prod"),
            Update("statistics", lambda v, x: v.mean(x, 0), "avg"),
        ],
    ),
    Recipe("swap", "y", [mean(lambda v, y: y)], updates=[Update("w", lambda v, u: u), Update("u", lambda v, w: w)]),
    Recipe(
        "two of a type",
        "x",
        updates=[
            Update("w", lambda v, x, u: v.mean(x, 0) + u * 0.5),
            Update("u", lambda v, x, w: w * 0.5 - v.mean(x, 0)),
        ],
        inplace=True,
    ),
    Recipe(
        "integer updates",
        "i",
        [each(lambda v, i: i)],
        updates=[Update("count", lambda v, i, count: v.sum(i), "sum"), Update("k", lambda v, k: k + 1)],
    ),
    Recipe(
        "count the rows",
        "x",
        updates=[
            Update("count", lambda v, x: v.length(x), "sum"),
            Update("flags", lambda v, x: v.greater(v.sum(x, 0), 0), "max"),
        ],
    ),
    Recipe(
        "bools updated",
        "x b",
        [total(lambda v, x: x)],
        updates=[
            Update("flags", lambda v, x, flags: v.and_(flags, v.greater(v.max(x, 0), 0)), "min"),
            Update("m", lambda v, x, m: m * 0.5 + v.mean(x, 0)),
        ],
    ),
    Recipe(
        "float32 update",
        "z",
        [largest(lambda v, z: z)],
        updates=[Update("h", lambda v, z, h: h * v.cast(v.greater(v.max(z), 1), "float32"), "min")],
    ),
    Recipe(
        "matrix update",
        "x",
        [mean(lambda v, x, m: v.dot(x, v.transposed(m)))],
        whole="e",
        updates=[Update("m", lambda v, x, e, m: e + v.mean(x, 0))],
        inplace=True,
    ),
    Recipe(
        "update without rows",
        "",
        [Output(lambda v, w: v.sum(w), "avg")],
        whole="p",
        updates=[Update("w", lambda v, w, p: w * 0.5 + p), Update("count", lambda v, count: count + 1)],
    ),
    Recipe("big update", "y", updates=[Update("big", lambda v, y, big: big * 0.5 + v.mean(y))], inplace=True),
    # default updates
    Recipe(
        "default update",
        "y",
        [mean(lambda v, y, seen: y + seen)],
        default_updates=[Update("seen", lambda v, seen: seen + 1)],
    ),
    Recipe(
        "running mean",
        "x",
        [each(lambda v, x, running: x - running)],
        default_updates=[Update("running", lambda v, x, running: running * 0.5 + v.mean(x) * 0.5)],
    ),
    Recipe(
        "batch statistics",
        "x",
        [mean(lambda v, x, statistics, seen: x * statistics + seen)],
        updates=[Update("w", lambda v, x, w: w * 0.5 + v.mean(x, 0))],
        default_updates=[
            Update("statistics", lambda v, x, statistics: statistics * 0.5 + v.mean(x, 0)),
            Update("seen", lambda v, seen: seen + 1),
        ],
    ),
    Recipe(
        "default update overruled",
        "y",
        [mean(lambda v, y, running: y * running)],
        updates=[Update("running", lambda v, y: v.max(y), "max")],
    ),
    # givens
    Recipe(
        "given an expression",
        "y",
        [total(lambda v, y, g: y * v.sum(g))],
        like={"g": "w"},
        givens={"g": lambda v, w: w * 2},
    ),
    Recipe(
        "given an input", "x", [mean(lambda v, g, x: g + x)], like={"g": "table"}, givens={"g": lambda v, x: x * 0.5}
    ),
    # data in shared variables
    Recipe(
        "data",
        "",
        [Output(lambda v, table: v.sum(table, 0), "sum"), each(lambda v, column: column)],
        sliceable="table column",
    ),
    Recipe(
        "mean of data",
        "",
        [mean(lambda v, column: column), largest(lambda v, column: column)],
        sliceable="column",
        form="dict",
    ),
    Recipe(
        "data in givens",
        "",
        [total(lambda v, g: g), each(lambda v, g: g * 2)],
        like={"g": "table"},
        givens={"g": lambda v, table: table},
        sliceable="table",
    ),
    Recipe(
        "data in givens and in the graph",
        "",
        [total(lambda v, g, table: g * table), each(lambda v, table: v.sum(table, 1))],
        like={"g": "table"},
        givens={"g": lambda v, table: table - 1},
        sliceable="table",
    ),
    Recipe(
        "learn from data",
        "",
        [mean(lambda v, table, w, column: v.dot(table, w) - column)],
        updates=[
            Update("w", lambda v, table, w: w * 0.5 + v.mean(table, 0) * 0.25),
            Update("count", lambda v, labels: v.sum(labels), "sum"),
        ],
        sliceable="table column labels",
        aligned=True,
    ),
    Recipe(
        "labels",
        "",
        [each(lambda v, labels: labels), smallest(lambda v, labels: labels)],
        sliceable="labels",
        updates=[Update("scale", lambda v, small: v.cast(v.sum(small), "float64"), "sum")],
    ),
    Recipe(
        "float32 data",
        "",
        [mean(lambda v, small, running: v.cast(small, "float64") + running), each(lambda v, small: small)],
        sliceable="small",
        whole="q",
        default_updates=[Update("running", lambda v, q, running: running * 0.5 + q)],
    ),
    Recipe("data not sliceable", "y", [total(lambda v, y, column: y * v.sum(column)), mean(lambda v, y: y)]),
    Recipe(
        "inputs and data",
        "x",
        [total(lambda v, x: x), total(lambda v, table: table), each(lambda v, table: table)],
        updates=[Update("u", lambda v, x, table: v.sum(x, 0) + v.sum(table, 0), "sum")],
        sliceable="table",
    ),
    Recipe(
        "inputs and data, row by row",
        "y",
        [mean(lambda v, y, column: y * column), each(lambda v, y, column: y + column)],
        updates=[Update("scale", lambda v, y, column: v.mean(y + column))],
        sliceable="column",
        aligned=True,
    ),
    Recipe(
        "data and a default update",
        "",
        [mean(lambda v, table, statistics: table * statistics)],
        sliceable="table",
        default_updates=[Update("statistics", lambda v, table, statistics: statistics * 0.5 + v.mean(table, 0))],
    ),
    # collectives inside
    Recipe(
        "gradients of all",
        "x y",
        [mean(lambda v, x, y, w: (v.dot(x, w) - y) * (v.dot(x, w) - y))],
        updates=[
            Update(
                "w",
                lambda v, x, y, w: w * 0.5 - v.all_avg(v.mean(v.transposed(x) * (v.dot(x, w) - y), 1)) * 0.03125,
            ),
            Update("seen", lambda v, seen: seen + 1),
        ],
    ),
    Recipe(
        "momentum of all",
        "x",
        [mean(lambda v, x, w: x * w), common(lambda v, g: v.sum(g))],
        like={"g": "w"},
        givens={"g": lambda v, x: v.all_avg(v.mean(x, 0))},
        updates=[
            Update("u", lambda v, u, g: u * 0.5 - g * 0.25),
            Update("w", lambda v, w, u, g: w * 0.5 + u * 0.25 - g * 0.125),
        ],
    ),
    Recipe(
        "normalised rows",
        "x",
        [
            each(lambda v, x: x - v.all_avg(v.mean(x, 0))),
            mean(lambda v, x: v.abs(x - v.all_avg(v.mean(x, 0))), linear=False),
            largest(lambda v, x: x - v.all_min(v.min(x, 0))),
        ],
    ),
    Recipe(
        "averages beside rows",
        "x y",
        [
            common(lambda v, x, g: v.mean(x, 0) * 2 - g * 3, "avg"),
            common(lambda v, g: g * 0.5 + 1, "avg"),
            common(lambda v, y: v.all_avg(v.mean(y)) - v.mean(y) * 2, "avg"),
        ],
        like={"g": "w"},
        givens={"g": lambda v, x: v.all_avg(v.mean(x, 0))},
    ),
    Recipe(
        "variance of all",
        "y",
        [
            common(
                lambda v, y: v.all_avg(v.mean((y - v.all_avg(v.mean(y))) * (y - v.all_avg(v.mean(y))))),
            ),
            total(lambda v, y: y),
        ],
        updates=[
            Update("scale", lambda v, y: v.all_avg(v.mean(v.abs(y - v.all_avg(v.mean(y))))), linear=False),
        ],
    ),
    Recipe(
        "extremes of all",
        "x",
        [
            common(lambda v, x: v.all_max(v.max(x, 0)) - v.all_min(v.min(x, 0)), "min"),
            Output(lambda v, x: v.all_min(v.min(x)), "gather"),
            own(lambda v, x: v.all_max(v.max(x, 0))),
        ],
        form="dict",
    ),
    Recipe(
        "sums of all",
        "x y",
        [
            common(lambda v, x: v.all_sum(v.sum(x, 0))),
            common(lambda v, x: v.all_sum(v.length(x)), "min"),
            total(lambda v, y: y),
        ],
        updates=[Update("w", lambda v, x, y: v.all_sum(v.dot(y, x)) * 0.5, linear=False)],
    ),
    Recipe(
        "several in one",
        "x y z",
        [
            common(lambda v, x, y: v.dot(*v.all_avg([v.mean(x, 0), v.mean(v.transposed(x) * y, 1)]))),
            common(lambda v, x, z: v.dot(*v.all_max([v.max(x), v.max(z, 0)])), "c_max"),
            each(lambda v, x: v.sum(x, 1)),
        ],
    ),
    Recipe(
        "float32 and integers of all",
        "z i",
        [
            common(lambda v, z: v.all_avg(v.mean(z, 0))),
            common(lambda v, z: v.all_sum(v.sum(z)), "min"),
            common(lambda v, i: v.all_sum(v.sum(i))),
            own(lambda v, i: v.all_min(v.min(i))),
        ],
        updates=[Update("h", lambda v, z, h: v.all_min(h * v.cast(v.greater(v.max(z), 1), "float32")), linear=False)],
    ),
    Recipe(
        "integers updated by all",
        "i j",
        [each(lambda v, i: i)],
        updates=[
            Update("count", lambda v, i: v.all_sum(v.sum(i)), linear=False),
            Update("k", lambda v, j: v.all_max(v.max(j, 0)), linear=False),
            Update("seen", lambda v, seen: seen + 1),
        ],
    ),
    Recipe(
        "own updates beside",
        "x",
        [mean(lambda v, x, u: x * u)],
        updates=[
            Update("w", lambda v, x, w: w * 0.5 + v.mean(x, 0)),
            Update("u", lambda v, x: v.all_avg(v.mean(x, 0)) * 0.5),
            Update("scale", lambda v, w: v.sum(w) * 0.5),
            Update("count", lambda v, x: v.length(x), "sum"),
            Update("seen", lambda v, seen: seen + 1),
        ],
    ),
    Recipe(
        "averaged parameters",
        "x",
        [mean(lambda v, x, w: x * w)],
        updates=[Update("w", lambda v, x, w: v.all_avg(w * 0.5 + v.mean(x, 0) * 0.25))],
        inplace=True,
    ),
    Recipe(
        "averages and own rows",
        "x",
        [mean(lambda v, x, u: x * u)],
        updates=[Update("u", lambda v, x, u: u * 0.5 + v.all_avg(v.mean(x, 0)) + v.mean(x, 0), linear=False)],
    ),
    Recipe(
        "averages that are cut",
        "x",
        [mean(lambda v, x, w: x * w)],
        updates=[Update("w", lambda v, x, w: v.larger(w * 0.5 + v.all_avg(v.mean(x, 0)), -1), linear=False)],
    ),
    Recipe(
        "big of all",
        "y",
        [Output(lambda v, g, big: v.max(g - big), "max"), own(lambda v, g: g), mean(lambda v, y: y)],
        like={"g": "big"},
        givens={"g": lambda v, y, big: v.all_avg(big * 0.5 + v.mean(y))},
        updates=[Update("big", lambda v, g: g)],
    ),
    Recipe(
        "big and small of all",
        "y",
        [common(lambda v, y, big: v.all_max(v.max(y) + v.max(big)), "min")],
        updates=[
            Update("big", lambda v, y, big: v.all_sum(big * 0.25 + v.mean(y)), linear=False),
            Update("scale", lambda v, y: v.all_avg(v.mean(y)) + 1),
        ],
        inplace=True,
    ),
    Recipe(
        "running statistics of all",
        "x",
        [mean(lambda v, x, statistics, running: x - statistics + running)],
        default_updates=[
            Update("statistics", lambda v, x, statistics: statistics * 0.5 + v.all_avg(v.mean(x, 0)) * 0.5),
            Update("running", lambda v, x, running: running * 0.5 + v.mean(x) * 0.5),
        ],
        updates=[Update("w", lambda v, x, w: w * 0.5 + v.all_avg(v.mean(x * w, 0)) * 0.25)],
    ),
    Recipe(
        "data of all",
        "",
        [
            mean(lambda v, table, w, column: v.dot(table, w) - column),
            Output(lambda v, labels: v.all_sum(v.sum(labels)), "max"),
        ],
        updates=[
            Update("w", lambda v, table, w: w * 0.5 + v.all_avg(v.mean(table, 0)) * 0.25),
            Update("seen", lambda v, seen: seen + 1),
        ],
        sliceable="table column labels",
        aligned=True,
    ),
    Recipe(
        "inputs and data of all",
        "y",
        [total(lambda v, y: y)],
        updates=[
            Update("scale", lambda v, y, column: v.all_avg(v.mean(y) + v.mean(column)) * 0.5),
            Update("running", lambda v, column: v.mean(column)),
        ],
        sliceable="column",
    ),
    Recipe(
        "nothing divided, of all",
        "",
        [
            Output(lambda v, w, p: v.all_avg(w * p), "gather"),
            Output(lambda v, p: v.all_sum(p), "min"),
            own(lambda v, h, flags: v.all_max([h, v.cast(flags, "float32")])[1]),
        ],
        whole="p",
        updates=[Update("u", lambda v, u: v.all_avg(u) * 0.5), Update("seen", lambda v, seen: seen + 1)],
    ),
    Recipe(
        "bools of all",
        "b x",
        [common(lambda v, b: v.all_max(v.any(b))), each(lambda v, x: v.greater(x, v.all_avg(v.mean(x, 0)) + 1e-3))],
        updates=[Update("flags", lambda v, b, flags: v.and_(flags, v.all_min(v.all(b))), linear=False)],
    ),
    Recipe(
        "random numbers",
        "x",
        [each(lambda v, x: x), Output(lambda v, stream: v.draw(stream), "sum"), mean(lambda v, x: x)],
        default_updates=[Update("stream", lambda v, stream: v.advanced(stream))],
    ),
    Recipe(
        "random numbers of all",
        "x",
        [
            Output(lambda v, stream: v.draw(stream), "gather"),
            Output(lambda v, x, stream: v.all_avg(v.mean(x, 0) * v.draw(stream)), "max"),
        ],
        updates=[Update("w", lambda v, w, stream: w * 0.5 + v.all_avg(v.draw(stream)))],
        default_updates=[Update("stream", lambda v, stream: v.advanced(stream))],
    ),
    # without ops
    Recipe(
        "plain rows",
        "x y",
        [
            plain(lambda v, x, w: v.dot(x, w), "gather"),
            plain(lambda v, x, y: v.sum(x, 1) * y, "gather"),
            plain(lambda v, x: v.argmax(x, 1), "gather"),
            plain(lambda v, y: v.greater(y, 0), "gather"),
        ],
    ),
    Recipe(
        "plain sums",
        "x y",
        [
            plain(lambda v, x: v.sum(x, 0), "sum"),
            plain(lambda v, x, y: v.dot(y, x), "sum"),
            plain(lambda v, x, y, q: v.sum(x) * q - v.sum(y), "sum"),
            plain(lambda v, y: v.prod(y), "prod"),
            plain(lambda v, x: v.length(x), "sum"),
        ],
        whole="q",
        form="dict",
    ),
    Recipe(
        "plain means",
        "x y",
        [
            plain(lambda v, x: v.mean(x, 0), "avg"),
            plain(lambda v, x, w: v.mean(x * w, 0) + w, "avg"),
            plain(lambda v, x, y: v.divide(v.dot(y, x), v.length(y)), "avg"),
            plain(lambda v, y: v.mean(y), "avg"),
        ],
    ),
    Recipe("plain matrix of rows", "t", [plain(lambda v, t: v.sum(t, 2) * 2, "gather")], form="single"),
    Recipe(
        "plain extremes",
        "x b j",
        [
            plain(lambda v, x: v.max(x, 0), "max"),
            plain(lambda v, x: v.min(x), "min"),
            plain(lambda v, b: v.any(b), "max"),
            plain(lambda v, b: v.all(b), "min"),
            plain(lambda v, j: v.max(j, 0), "max"),
        ],
    ),
    Recipe(
        "plain integers", "i j", [plain(lambda v, i: v.sum(i), "sum"), plain(lambda v, j: j * j, "gather")], form="dict"
    ),
    Recipe("plain float32", "z", [plain(lambda v, z: v.sum(z, 0), "sum"), plain(lambda v, z: v.mean(z, 1), "gather")]),
    Recipe(
        "plain values of all",
        "",
        [plain(lambda v, w, p: w * p, "avg"), plain(lambda v, m: v.sum(m, 0), "avg"), plain(lambda v, h: h, "avg")],
        whole="p",
    ),
    Recipe(
        "plain integers of all",
        "y",
        [plain(lambda v, count: count, None), plain(lambda v, c: c * 2, None), plain(lambda v, y: v.sum(y), "sum")],
        whole="c",
    ),
    Recipe(
        "plain and updated",
        "x",
        [plain(lambda v, x, w: x * w, "gather"), plain(lambda v, x, w: v.max(v.dot(x, w)), "max")],
        updates=[Update("w", lambda v, x, w: w * 0.5 + v.mean(x, 0) * 0.25)],
    ),
    Recipe(
        "plain data",
        "",
        [
            plain(lambda v, table: v.sum(table, 0), "sum"),
            plain(lambda v, column: column * 2, "gather"),
            plain(lambda v, column: v.max(column), "max"),
        ],
        sliceable="table column",
    ),
    Recipe(
        "plain with collectives",
        "x",
        [
            plain(lambda v, x: x - v.all_avg(v.mean(x, 0)), "gather"),
            plain(lambda v, x: v.all_avg(v.mean(x, 0)) * 2, "avg"),
        ],
    ),
    # exact
    Recipe(
        "exact momentum",
        "x y",
        [mean(lambda v, x, y, w: (v.dot(x, w) - y) * (v.dot(x, w) - y)), plain(lambda v, g: norm(v, g), "avg")],
        like={"g": "w"},
        givens={"g": gradient},
        updates=[
            Update("u", lambda v, u, g: u * 0.5 - g),
            Update("w", lambda v, w, u, g: w * 0.5 + u * 0.25 - g * 0.5),
        ],
        exact=True,
    ),
    Recipe(
        "exact adam",
        "x y",
        [plain(lambda v, x, w: v.dot(x, w), "gather"), mean(lambda v, x: x)],
        like={"g": "w"},
        givens={"g": gradient},
        updates=[
            Update("statistics", lambda v, statistics, g: v.abs(statistics) * 0.5 + g * g * 0.5),
            Update(
                "w",
                lambda v, w, g, statistics: w * 0.5 - v.divide(g, v.sqrt(v.abs(statistics) * 0.5 + g * g * 0.5) + 0.5),
            ),
            Update("seen", lambda v, seen: seen + 1),
        ],
        exact=True,
    ),
    Recipe(
        "exact norm of gradients",
        "x",
        [plain(lambda v, g: norm(v, g) * 2, "avg"), plain(lambda v, x: v.sum(x, 0), "sum")],
        like={"g": "w"},
        givens={"g": lambda v, x: v.mean(x, 0)},
        updates=[
            Update("u", lambda v, u, g: u * 0.5 - v.divide(g, norm(v, g) + 0.5)),
            Update("scale", lambda v, g: norm(v, g)),
        ],
        exact=True,
        inplace=True,
    ),
    Recipe(
        "exact logarithm",
        "y",
        [plain(lambda v, y: v.log(v.sum(y * y) + 1), "avg"), plain(lambda v, y: v.sum(y), "sum")],
        updates=[
            Update("scale", lambda v, y: v.log(v.sum(y * y) + 1)),
            Update("running", lambda v, y, running: v.tanh(running * 0.5 + v.mean(y))),
        ],
        exact=True,
        form="dict",
    ),
    Recipe(
        "exact sums",
        "x y",
        [total(lambda v, x: x), plain(lambda v, x, y: v.dot(y, x), "sum"), each(lambda v, x: x + 1)],
        updates=[
            Update("w", lambda v, x, y: v.larger(v.dot(y, x) * 0.125, -1)),
            Update("u", lambda v, x: v.tanh(v.sum(x, 0))),
            Update("scale", lambda v, x: v.sum(x) * 0.125),
            Update("running", lambda v, y: v.sum(y) * v.mean(y) * 0.0625),
        ],
        exact=True,
    ),
    Recipe(
        "exact means of means",
        "x",
        [plain(lambda v, x, w: v.mean(v.mean(x, 0) * w), "avg")],
        updates=[
            Update("w", lambda v, x, w: v.mean(x, 0) * 0.5 + w * 0.25),
            Update("scale", lambda v, x: v.mean(v.abs(v.mean(x, 0)))),
        ],
        exact=True,
        form="single",
    ),
    Recipe(
        "exact counts",
        "x i",
        [plain(lambda v, x: v.length(x), "sum"), plain(lambda v, i: v.sum(i), "sum")],
        updates=[
            Update("count", lambda v, x: v.length(x) * 2 - 1),
            Update("seen", lambda v, i: v.larger(v.sum(i), 2)),
            Update("scale", lambda v, x: v.divide(v.sum(x), v.length(x))),
            Update("running", lambda v, x: v.tanh(v.divide(v.sum(x), v.length(x)) - 1)),
        ],
        exact=True,
    ),
    Recipe(
        "exact extremes",
        "x j b",
        [
            plain(lambda v, x: v.max(x, 0), "max"),
            plain(lambda v, x: v.max(x) * v.min(x), "avg"),
            plain(lambda v, b: v.any(b), "max"),
        ],
        updates=[
            Update("u", lambda v, x: v.max(x, 0) * v.min(x, 0)),
            Update("k", lambda v, j: v.max(j, 0)),
            Update("flags", lambda v, x, b: v.and_(v.greater(v.max(x, 0), 1), v.any(b))),
            Update("scale", lambda v, x: v.min(x)),
        ],
        exact=True,
    ),
    Recipe(
        "exact normalised rows",
        "x",
        [
            plain(lambda v, x: x - v.mean(x, 0), "gather"),
            plain(lambda v, x: v.mean((x - v.mean(x, 0)) * (x - v.mean(x, 0)), 0), "avg"),
            plain(lambda v, x: v.sum(x, 0), "sum"),
        ],
        updates=[Update("statistics", lambda v, x: v.sqrt(v.mean((x - v.mean(x, 0)) * (x - v.mean(x, 0)), 0) + 1))],
        exact=True,
        in_slices=False,
    ),
    Recipe(
        "exact matrix",
        "x",
        [plain(lambda v, x, e: v.dot(x, v.transposed(e)), "gather"), mean(lambda v, x: x)],
        whole="e",
        updates=[
            Update(
                "m",
                lambda v, x, e, m: v.tanh(v.dot(v.transposed(v.dot(x, v.transposed(e))), x) * 0.0625 + m * 0.5),
            )
        ],
        exact=True,
    ),
    Recipe(
        "exact values of all",
        "",
        [plain(lambda v, w, p: w * p, "avg"), plain(lambda v, count: count, None)],
        whole="p",
        updates=[
            Update("u", lambda v, u, p: v.sqrt(u * u * 0.25 + p * p + 1)),
            Update("w", lambda v, u: u),
            Update("count", lambda v, count: count + 1),
        ],
        exact=True,
    ),
    Recipe(
        "exact default updates",
        "x",
        [mean(lambda v, x, running, seen: x - running + seen)],
        updates=[Update("w", lambda v, x, w, statistics: w * 0.5 + v.tanh(v.mean(x * statistics, 0)))],
        default_updates=[
            Update("statistics", lambda v, x, statistics: statistics * 0.5 + v.mean(x, 0) * v.mean(x, 0) * 0.25),
            Update("running", lambda v, x, running: running * 0.5 + v.mean(x) * 0.5),
            Update("seen", lambda v, seen: seen + 1),
        ],
        exact=True,
    ),
    Recipe(
        "exact float32",
        "z",
        [plain(lambda v, z: z * z, "gather"), plain(lambda v, z: v.mean(z), "avg")],
        updates=[Update("h", lambda v, z, h: v.tanh(h + v.mean(z)))],
        exact=True,
    ),
    Recipe(
        "exact big",
        "y",
        [plain(lambda v, y: v.tanh(v.sum(y)), "avg"), mean(lambda v, y: y)],
        updates=[Update("big", lambda v, y, big: v.larger(big * 0.5 + v.mean(y), -1))],
        exact=True,
        inplace=True,
    ),
    Recipe(
        "exact with collectives",
        "x",
        [plain(lambda v, x: v.all_avg(v.mean(x, 0)) * 2, "avg")],
        updates=[
            Update("w", lambda v, x, w: w * 0.5 + v.tanh(v.all_sum(v.mean(x, 0)))),
            Update("scale", lambda v, x: v.log(v.all_avg(v.sum(x * x)) + 1)),
        ],
        exact=True,
    ),
    Recipe(
        "exact data",
        "",
        [mean(lambda v, table, w, column: v.dot(table, w) - column), plain(lambda v, table: table * 2, "gather")],
        updates=[
            Update("w", lambda v, w, table: w * 0.5 - v.divide(v.mean(table, 0), norm(v, v.mean(table, 0)) + 0.5)),
            Update("running", lambda v, column: v.log(v.sum(column * column) + 1)),
            Update("count", lambda v, labels: v.sum(labels)),
        ],
        sliceable="table column labels",
        aligned=True,
        exact=True,
    ),
    Recipe(
        "exact inputs and data",
        "y",
        [plain(lambda v, y, column: y + column, "gather"), plain(lambda v, y, column: v.dot(y, column), "sum")],
        updates=[
            Update("scale", lambda v, y, column: v.tanh(v.mean(y * column))),
            Update("seen", lambda v, y: v.length(y)),
        ],
        sliceable="column",
        aligned=True,
        exact=True,
    ),
    # functions that would have a value for other lengths, too, but are refused
    Recipe(
        "exact data beside data",
        "",
        [plain(lambda v, table, column: v.mean(table) * v.mean(column), "avg")],
        updates=[Update("scale", lambda v, column: v.tanh(v.mean(column * column)))],
        sliceable="table column",
        exact=True,
    ),
    Recipe(
        "exact inputs beside data",
        "y",
        [plain(lambda v, y, column: v.sum(y) * v.mean(column), "avg")],
        updates=[Update("scale", lambda v, column: v.tanh(v.mean(column * column)))],
        sliceable="column",
        exact=True,
    ),
]

#: Functions with a state for each row.
RECIPES += [
    Recipe(
        "exact state",
        "x",
        [plain(lambda v, hidden, w: v.dot(hidden, w), "gather"), mean(lambda v, x, hidden: x * hidden)],
        updates=[
            Update("hidden", lambda v, x, hidden: v.tanh(hidden * 0.5 + x)),
            Update("w", lambda v, x, hidden, w: w * 0.5 + v.mean(x * hidden, 0) * 0.25),
        ],
        states="hidden",
        exact=True,
    ),
    Recipe(
        "exact states of no input",
        "",
        [
            plain(lambda v, hidden: v.sum(hidden, 0), "sum"),
            plain(lambda v, before: before * 2, "gather"),
            plain(lambda v, taken: v.max(taken), "max"),
        ],
        updates=[
            Update("hidden", lambda v, before, w: before * 0.5 + w),
            Update("before", lambda v, hidden: hidden),
            Update("taken", lambda v, taken: taken + 1),
        ],
        states="hidden before taken",
        exact=True,
    ),
    Recipe(
        "exact state along another axis",
        "z",
        [
            plain(lambda v, across, g: v.transposed(across) + g, "gather"),
            plain(lambda v, across: v.mean(across, 1), "avg"),
        ],
        like={"g": "small"},
        givens={"g": lambda v, z: z * 2},
        updates=[Update("across", lambda v, across, z: across * 0.5 + v.transposed(z))],
        states="across",
        exact=True,
    ),
    Recipe(
        "exact state by a default update",
        "y",
        [plain(lambda v, y, taken: y * taken, "gather")],
        default_updates=[Update("taken", lambda v, taken: taken + 1)],
        updates=[Update("scale", lambda v, y, taken: v.tanh(v.sum(y * taken)))],
        states="taken",
        exact=True,
    ),
    Recipe(
        "exact state normalised",
        "x",
        [plain(lambda v, hidden: hidden - v.mean(hidden, 0), "gather")],
        updates=[Update("hidden", lambda v, x, hidden: x - v.mean(hidden * 0.5, 0))],
        states="hidden",
        exact=True,
        in_slices=False,
    ),
    Recipe(
        "states that are read",
        "y",
        [
            total(lambda v, taken: taken),
            each(lambda v, y, before: v.sum(before, 1) * y),
            mean(lambda v, before: before),
        ],
        updates=[Update("scale", lambda v, y, before: v.mean(v.sum(before, 1) * y))],
        states="before taken",
    ),
    Recipe(
        "own rows of states",
        "x",
        [each(lambda v, x, hidden: x + hidden), own(lambda v, hidden: v.sum(hidden))],
        updates=[
            Update("hidden", lambda v, x, hidden: hidden * 0.5 + x - v.mean(x, 0)),
            Update("count", lambda v, x: v.length(x), "sum"),
        ],
        states="hidden",
    ),
    Recipe(
        "plain state",
        "y",
        [plain(lambda v, y, taken: y * taken, "gather"), plain(lambda v, taken: v.sum(taken), "sum")],
        updates=[Update("taken", lambda v, taken: 3 - taken)],
        states="taken",
    ),
    Recipe(
        "states and averages of all",
        "x",
        [each(lambda v, before: before), common(lambda v, before: v.all_avg(v.mean(before, 0)), "min")],
        updates=[
            Update("before", lambda v, x, before: before * 0.5 + x - v.all_avg(v.mean(x, 0))),
            Update("u", lambda v, before: v.all_avg(v.mean(before, 0))),
        ],
        states="before",
    ),
    Recipe("a state that is not named", "", [Output(lambda v, hidden: v.sum(hidden), "sum")]),
    Recipe(
        "exact, of a state that is not named",
        "x",
        [plain(lambda v, x: v.sum(x, 0), "sum"), plain(lambda v, taken: v.sum(taken), None)],
        exact=True,
    ),
]

#: Functions that only graphs can have.
RECIPES += [
    Recipe(
        "exact rows that are written",
        "x y",
        [
            plain(lambda v, x: v.reshape(x, (v.rows, -1)) * 2, "gather"),
            plain(lambda v, x, wide: v.dot(v.concatenate([x, v.ones((v.rows, 1), "float64")], 1), wide), "gather"),
            plain(lambda v, x: v.sum(v.reshape(x, (v.rows * 3,))), "sum"),
            plain(lambda v, y: v.divide(v.sum(y), v.rows), "avg"),
        ],
        whole="wide",
        updates=[
            Update("w", lambda v, x, w: w * 0.5 - v.tanh(v.divide(v.sum(x * w, 0), v.rows))),
            Update("scale", lambda v, y: v.sum(y * v.arange(v.rows)) * 0.125),
        ],
        rows=6,
        exact=True,
        graphs=True,
    ),
    Recipe(
        "exact positions that are written",
        "x y",
        [
            plain(lambda v, x: v.at(x, (v.arange(v.rows), v.argmax(x, 1))), "gather"),
            plain(lambda v, y: v.greater(y, v.arange(v.rows) * 0.5 - 1), "gather"),
            plain(lambda v, y: v.sum(v.at(v.eye(v.rows), v.cast(v.greater(y, 0), "int64")), 0), "sum"),
        ],
        updates=[Update("running", lambda v, y: v.tanh(v.divide(v.sum(y * v.arange(v.rows)), v.rows)))],
        rows=6,
        exact=True,
        graphs=True,
    ),
    Recipe(
        "exact, as wide as the rows that are written",
        "x",
        [
            plain(lambda v, x: v.reshape(x, (v.rows, v.rows)) + v.ones((v.rows, v.rows), "float64"), "gather"),
            plain(lambda v, x: x * v.arange(v.rows), "gather"),
            plain(lambda v, x: v.transposed(v.transposed(x) * v.arange(v.rows)), "gather"),
            plain(lambda v, x, w: v.sum(v.at(v.eye(v.rows), v.argmax(x, 1)) * (x - w)), "sum"),
        ],
        updates=[Update("w", lambda v, x, w: w * 0.5 + v.tanh(v.divide(v.sum(x, 0), v.rows)) * v.arange(v.rows))],
        rows=3,
        exact=True,
        graphs=True,
    ),
    Recipe(
        "rows that are written",
        "x y",
        [
            each(lambda v, x: v.reshape(x, (v.rows, -1)) + v.ones((v.rows, 1), "float64")),
            each(lambda v, x: v.at(x, (v.arange(v.rows), v.argmax(x, 1)))),
            mean(lambda v, x: v.reshape(x, (v.rows, 3))),
            Output(lambda v, y: v.divide(v.sum(y), v.rows), "avg"),
        ],
        updates=[Update("w", lambda v, x, w: w * 0.5 - v.divide(v.sum(x, 0), v.rows))],
        rows=6,
        graphs=True,
    ),
    Recipe(
        "plain rows that are written",
        "x",
        [
            plain(lambda v, x: v.reshape(x, (v.rows, -1)) * 2, "gather"),
            plain(lambda v, x: v.sum(v.reshape(x, (v.rows * 3,))), "sum"),
        ],
        rows=3,
        graphs=True,
    ),
    Recipe(
        "exact rows of data that are written",
        "",
        [
            plain(lambda v, table: v.reshape(table, (v.rows, -1)), "gather"),
            plain(lambda v, table: v.sum(table * v.ones((v.rows, 1), "float64"), 0), "sum"),
        ],
        updates=[Update("u", lambda v, table: v.tanh(v.divide(v.sum(table, 0), v.rows)))],
        sliceable="table",
        rows=6,
        exact=True,
        graphs=True,
    ),
    Recipe(
        "exact states of rows that are written",
        "y",
        [plain(lambda v, before: v.reshape(before, (v.rows, 3)) * v.ones((v.rows, 1), "float64"), "gather")],
        updates=[
            Update("before", lambda v, y, before: v.transposed(v.transposed(before) * 0.5 + y * v.arange(v.rows))),
            Update("taken", lambda v, taken: taken + v.arange(v.rows)),
        ],
        states="before taken",
        rows=6,
        exact=True,
        graphs=True,
    ),
    Recipe(
        "exact products of bools",
        "b x",
        [plain(lambda v, b, x: v.dot(b, v.greater(x, 0)), "max"), plain(lambda v, b: v.dot(b, b), "max")],
        updates=[
            Update("flags", lambda v, b, x: v.dot(b, v.greater(x, 1))),
            Update("scale", lambda v, b: v.cast(v.dot(b, b), "float64")),
        ],
        exact=True,
        graphs=True,
    ),
    Recipe(
        "plain integers of all types",
        "s g n d r f",
        [
            plain(lambda v, s: v.max(s, 0), "max"),
            plain(lambda v, n: v.min(n, 0), "min"),
            plain(lambda v, d: v.max(d), "max"),
            plain(lambda v, f: f * f, "gather"),
            plain(lambda v, r: v.sum_as(r, "int32"), "sum"),
            plain(lambda v, g: v.sum_as(g, "uint16"), "sum"),
            plain(lambda v, s: v.prod_as(s, "int8"), "prod"),
            plain(lambda v, d: v.sum_as(d, "int64"), "sum"),
        ],
        graphs=True,
    ),
    Recipe(
        "exact integers that wrap",
        "r s d",
        [plain(lambda v, r: v.sum_as(r, "int32"), "sum"), plain(lambda v, s: v.sum_as(s, "int8"), "sum")],
        updates=[
            Update("scale", lambda v, r: v.divide(v.sum_as(r, "int32"), v.length(r))),
            Update("running", lambda v, s: v.cast(v.sum_as(s, "int8"), "float64")),
            Update("count", lambda v, d: v.cast(v.sum_as(d, "uint32"), "int64")),
        ],
        exact=True,
        graphs=True,
    ),
    Recipe(
        "exact sums of other types",
        "y z",
        [
            plain(lambda v, y: v.cast(v.sum_as(y, "int64"), "float64"), "avg"),
            plain(lambda v, z: v.sum_in(z, "float64"), "sum"),
        ],
        updates=[
            Update("count", lambda v, y: v.sum_as(y * 2, "int64")),
            Update("scale", lambda v, z: v.cast(v.sum_as(z, "int32"), "float64")),
        ],
        exact=True,
        graphs=True,
    ),
    Recipe(
        "exact masks",
        "y",
        [
            plain(lambda v, y: v.sum(v.chosen(y, v.greater(y, v.mean(y)))), "sum"),
            plain(lambda v, y: v.length(v.chosen(y, v.greater(y, v.mean(y)))), "sum"),
            plain(lambda v, y: v.length(v.chosen(y, v.greater(y, 0))), "sum"),
        ],
        updates=[
            Update("scale", lambda v, y: v.sum(v.ones_like(v.chosen(y, v.greater(y, v.mean(y)))))),
            Update("running", lambda v, y: v.tanh(v.sum(v.chosen(y, v.greater(y, 0))))),
        ],
        exact=True,
        in_slices=False,
        graphs=True,
    ),
    Recipe(
        "exact lengths",
        "x",
        [plain(lambda v, x: v.sum(v.ones_like(v.eye(v.length(x - v.mean(x, 0))))), "sum")],
        updates=[
            Update("scale", lambda v, x: v.sum(v.ones_like(v.eye(v.length(x - v.mean(x, 0)))))),
            Update("running", lambda v, x: v.cast(v.length(v.arange(v.length(x))), "float64")),
            # (A mean would be rounded: the ranks' parts of a zero sum, divided by 3, may add up to 1e-17.)
            Update("seen", lambda v, x: v.length(v.unique(v.greater(v.sum(x, 0), 0)))),
        ],
        exact=True,
        in_slices=False,
        graphs=True,
    ),
    Recipe(
        "exact and stable",
        "x y",
        [plain(lambda v, y: v.log_sum_exp(y * 512), "avg"), plain(lambda v, x: v.log_sum_exp(x * 512, 0), "avg")],
        updates=[
            Update("scale", lambda v, y: v.log_sum_exp(y * 1024) * (1 / 1024)),
            Update("w", lambda v, x, w: w * 0.5 + v.log_sum_exp(x * 1024, 0) * (1 / 1024)),
        ],
        exact=True,
        in_slices=False,  # the largest of all rows is subtracted from each row
        graphs=True,
        stable=True,
    ),
]

#: Functions that only tensor libraries have are not drawn with the NumPy engine.
OF_ENGINE = {"numpy": [recipe for recipe in RECIPES if not recipe.graphs]}

#: Functions that programs on JAX's devices do not draw, and why: JAX refuses them, or draws other random numbers.
NOT_ON_MESH = {
    "exact masks": "JAX has no arrays whose length depends on values",
    "exact lengths": "JAX has no arrays whose length depends on values",
    "random numbers": "other numbers",
    "random numbers of all": "other numbers",
}
ON_MESH = [recipe for recipe in RECIPES if recipe.name not in NOT_ON_MESH]

BY_NAME = {recipe.name: recipe for recipe in RECIPES}


def fresh(name, rows, random, whole_numbers):
    """Return a value for an input or a shared variable: small whole numbers, whose sums are exact, or real ones."""
    if name in INPUTS:
        dtype, shape = INPUTS[name]
        shape = (rows,) + shape
    else:
        dtype, shape = (WHOLE if name in WHOLE else SHARED)[name][:2]
        shape = tuple(rows if length is None else length for length in shape)
    if name in RANDOM:
        return state_of(random)
    kind = np.dtype(dtype).kind
    if name in RANGES:
        return np.asarray(random.randint(*RANGES[name], shape, "int64")).astype(dtype)
    if whole_numbers or kind != "f":
        low, high = {"b": (0, 2), "u": (0, 9)}.get(kind, (-3, 4))
        return np.asarray(random.randint(low, high, shape)).astype(dtype)
    return np.asarray(random.standard_normal(shape)).astype(dtype)
