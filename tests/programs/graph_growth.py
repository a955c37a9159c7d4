"""Random graphs grow by one operation at a time; only operations that can be computed from all rows are added.

Axes have 2 or 3 elements, or as many as there are rows, so that shapes often fit by chance, also where they should not.
"""

import dataclasses
import inspect
import warnings

import graph_words
import numpy as np
import pytest
from graph_values import Computed
from graph_words import IS_THEANO, L
from graphs import Graph, Input, Line, Step

import synkhronos as synk

ROWS = (4, 5, 6, 7, 3)
FLOATS, INTEGERS = ("float32", "float64"), ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES = ("bool", *INTEGERS, "float16", *FLOATS)
HAS_ROWS = "rows" in inspect.signature(synk.function).parameters
#: Maximum numbers of elements and axes of a value, and of nodes to compute it.
MAX_SIZE, MAX_NDIM, MAX_NODES = 500, 4, 250


def drawn(style, dtype, shape, random):
    """Return a random array; ``style`` determines the sizes of its numbers."""
    kind = np.dtype(dtype).kind
    if kind == "b":
        return np.asarray(random.rand(*shape) < 0.5)
    if kind in "iu":
        low, high = {"positions": (0, 2), "large": (np.iinfo(dtype).max // 3, np.iinfo(dtype).max)}.get(style, (-4, 5))
        low = max(low, 0) if kind == "u" else low
        return np.asarray(random.randint(low, high, shape, dtype))
    if style == "tied":
        found = random.randint(-2, 3, shape) / 2.0
    else:
        found = np.round(random.standard_normal(shape), 2)
    if style == "cancelling":  # large numbers whose sums are small
        found = found + random.choice([-1, 1], shape) * (50.0 if dtype == "float16" else 4096.0)
    if style == "large":
        found = found + random.choice([-1, 1]) * (80 if dtype == "float16" else 900)
    if kind == "c":
        found = found + 1j * np.round(random.standard_normal(shape), 2)
    return np.asarray(found).astype(dtype)


class Growth:
    """A random graph that grows.

    Parameters
    ----------
    random : RandomState
        The source of all choices.
    operations : list, optional
        The operations to choose from; by default `OPERATIONS`.
    n_operations : int
        Number of attempts to add an operation.
    styles : list of str, optional
        The styles of inputs' values, see `drawn`.
    """

    def __init__(self, random, operations=None, n_operations=14, styles=None):
        self.operations, self.styles = operations or OPERATIONS, styles
        self.random, self.n_rows = random, int(random.choice(ROWS))
        self.inputs, self.lines, self.shapes = [], [], {}
        self.namespace = dict(vars(graph_words))
        self.data, self.computed = {}, None
        self._begin()
        for _ in range(n_operations):
            self.grow()

    # -- choices -------------------------------------------------------------------------------------------------------

    def chance(self, percent):
        return self.random.randint(100) < percent

    def choice(self, options):
        return options[self.random.randint(len(options))]

    def length(self):
        return self.choice([2, 3, self.n_rows, self.choice([1, 2, 3])])

    def _begin(self):
        random, inputs = self.random, []
        style = {
            "f": ["unit"] * 5 + ["tied", "tied", "large", "large", "cancelling", "cancelling"],
            "i": ["positions"] * 4 + ["unit", "unit", "large"],
        }

        def add(letter, dtype, shape, axis=None):
            kind = "f" if dtype[0] in "fc" else "i"
            one = Input(f"{letter}{len(inputs)}", dtype, len(shape), axis, self.choice(self.styles or style[kind]))
            inputs.append(one)
            self.shapes[one.name] = shape

        floats = self.choice(["float64", "float64", "float32"])
        others = self.choice([FLOATS, DTYPES, INTEGERS, ("bool", "int64", "int32", "uint8", "float32")])
        if self.chance(4):
            others = ("complex64", "complex128")
        for k in range(1 + random.randint(3)):
            ndim = 1 + random.randint(3) if k else 2
            axis = random.randint(ndim) if self.chance(20) else 0
            shape = [self.length() for _ in range(ndim)]
            shape[axis] = None
            add("x", self.choice(others) if k else floats, tuple(shape), axis)
        if self.chance(60):
            add("x", "int64", (None,), 0)
        if self.chance(25):
            add("x", "bool", (None,), 0)
        for _ in range(random.randint(3)):
            dtype = self.choice([floats, self.choice(others), "int64"])
            add("p", dtype, tuple(self.length() for _ in range(random.randint(4))))
        for _ in range(1 + random.randint(2)):
            add("w", floats, tuple(self.length() for _ in range(random.randint(4))))
        if self.chance(30):
            add("w", self.choice(others), tuple(self.length() for _ in range(random.randint(3))))
        self.inputs = inputs
        for one in inputs:
            if one.is_shared:
                self.namespace[one.name] = L.shared(
                    drawn(one.style, one.dtype, self.shapes[one.name], random), one.name
                )
                self.data[one.name] = self.namespace[one.name].get_value()
            else:
                self.namespace[one.name] = L.variable(one.dtype, one.ndim, one.name)
                self.data[one.name] = self.draw(one, self.n_rows)
        self.pool = [one.name for one in inputs]
        self.computed = Computed({self.namespace[name]: value for name, value in self.data.items()})

    def draw(self, one, n_rows):
        """Return random values of an input with this number of rows."""
        shape = [n_rows if length is None else length for length in self.shapes[one.name]]
        return drawn(one.style, one.dtype, shape, self.random)

    def variable(self, name):
        return self.namespace[name]

    def value(self, name):
        return self.computed.values[self.namespace[name]]

    def one(self, ndim=None, kind=None, newest=0.5):
        """Return the name of a variable in the pool, with probability ``newest`` one of the last four that fit."""
        fits = [
            name
            for name in self.pool
            if (ndim is None or self.variable(name).ndim in np.atleast_1d(ndim))
            and (kind is None or np.dtype(self.variable(name).dtype).kind in kind)
        ]
        if not fits:
            raise NothingFits
        return fits[-1 - self.random.randint(min(4, len(fits)))] if self.random.rand() < newest else self.choice(fits)

    def axis(self, name):
        """Return a random axis of a variable, sometimes counted from the end."""
        ndim = self.variable(name).ndim
        if not ndim:
            raise NothingFits
        return int(self.random.randint(ndim) - (ndim if self.chance(15) else 0))

    def shape_of(self, name):
        return np.shape(self.value(name))

    # -- growing -------------------------------------------------------------------------------------------------------

    def grow(self):
        """Add an operation if it can be computed from all rows; return whether it was added."""
        name = f"v{len(self.lines)}"
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"), L.compiled_quickly():
                warnings.simplefilter("ignore")
                operation = self.choice(self.operations)
                line = Line(name, operation(self))
                new = eval(line.text, self.namespace)
                if not hasattr(new, "owner") or new.owner is None or new.ndim > MAX_NDIM:
                    return False
                if len(L.io_toposort(list(self.computed.inputs), [new])) > MAX_NODES:
                    return False
                value = np.asarray(self.computed.add(new))
        except (Exception, pytest.skip.Exception):  # an invalid expression, which is not the subject of the test
            return False
        finite = value.dtype.kind not in "fc" or np.all(np.abs(value) < (1e4 if value.dtype == "float16" else 1e8))
        late = "log" in line.text or "exp" in line.text  # may be finite after optimization
        if not 0 < value.size <= MAX_SIZE or not (finite or late):
            return False
        new.name = name
        self.namespace[name] = new
        self.lines.append(line)
        self.pool.append(name)
        return True

    # -- a program -----------------------------------------------------------------------------------------------------

    def graph(self):
        """Return a program that outputs some of the grown variables, and updates shared variables with some."""
        random = self.random
        made = [line.name for line in self.lines]
        late = made[len(made) // 3 :] or made
        outputs = tuple(dict.fromkeys(self.choice(late) for _ in range(1 + random.randint(3)))) if late else ()
        exact = self.chance(75)
        initial = {one.name: self.data[one.name] for one in self.inputs if one.is_shared}
        inputs, lines, updates = list(self.inputs), list(self.lines), []
        for _ in range(random.randint(4) if exact and late else 0):
            self._update(self.choice(late), inputs, lines, updates, initial)
        rows = self.n_rows if HAS_ROWS and self.chance(20) else None
        graph = Graph(
            tuple(inputs),
            tuple(lines),
            outputs,
            tuple(updates),
            initial,
            self._steps(inputs, initial, exact, [self.n_rows] if rows else [self.n_rows, self.n_rows, 1, 2, 3, 8, 9]),
            n=int(self.choice([1, 2, 2, 2, 3, 3])),
            exact=bool(exact),
            rows=rows,
            optimizer=self.choice(["fast_compile"] * 4 + ["fast_run"] * 5 + [None]),
        ).pruned()
        return dataclasses.replace(graph, root=int(random.randint(graph.n)))

    def _update(self, name, inputs, lines, updates, initial):
        """Make a value the update of an existing or a new shared variable."""
        variable, shape = self.variable(name), self.shape_of(name)
        if self.n_rows in shape and self.chance(80):  # a value with rows cannot be an update
            op, axis = self.choice(["sum", "mean", "max", "sum"]), shape.index(self.n_rows)
            try:
                with warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore")
                    line = Line(f"v{len(lines)}", f"T.{op}({name}, axis={axis})")
                    variable = eval(line.text, self.namespace)
                    shape = np.shape(self.computed.add(variable))
            except Exception:
                return
            lines.append(line)
            name = line.name
        if any(getattr(variable, "broadcastable", ())):
            return
        dtype = variable.dtype
        fits = [
            one
            for one in inputs
            if one.is_shared
            and np.shape(initial[one.name]) == shape
            and np.dtype(one.dtype).kind in "f"
            and np.dtype(dtype).kind in "fiu"  # (PyTensor computes 0.25 * bool, and sums with it, in float32)
            and one.name not in dict(updates)
        ]
        if fits and self.chance(70):
            target = self.choice(fits)
            text = self.choice(
                ["{0} * 0.5 + {1}", "{0} - 0.25 * {1}", "T.tanh({0} - {1})", "{0} / (2 + T.sqrt(T.sum(T.sqr({0} - {1}))))",
                 "T.switch(T.all(T.lt({1}, 2)), {0} - {1}, {0} / (1 + T.sum(abs({1}))))"]
            ).format(target.name, name)  # fmt: skip
            new = f"T.cast({text}, {target.dtype!r})"
        else:
            target = Input(f"w{len(inputs)}", dtype, variable.ndim, None, "unit")
            inputs.append(target)
            turned = shape[::-1] != shape and 1 not in shape and np.dtype(dtype).kind == "f" and self.chance(30)
            initial[target.name] = np.zeros(shape[::-1] if turned else shape, dtype)
            new = name
            if turned:  # both programs must refuse this, although the number of elements is right
                new = f"{target.name} - {name}"
            elif self.chance(40) and np.dtype(dtype).kind == "f":
                new = f"T.cast({target.name} * 0.5 + {name}, {dtype!r})"
        if new != name:
            lines.append(Line(f"v{len(lines)}", new))
            name = lines[-1].name
        updates.append((target.name, name))

    def _steps(self, inputs, initial, exact, numbers):
        divided = [one for one in inputs if one.axis is not None]
        whole = {one.name: self.data[one.name] for one in inputs if one.name.startswith("p")}

        def data(n_rows):
            return {**{one.name: self.draw(one, n_rows) for one in divided}, **whole}

        steps = [Step("call", {**{one.name: self.data[one.name] for one in divided}, **whole})]
        for _ in range(self.random.randint(1, 4)):
            kind, n_rows = self.random.randint(100), int(self.choice(numbers))
            if kind < 25:
                steps.append(Step("call", data(n_rows)))
            elif kind < 40:
                steps.append(Step("call", data(n_rows + 3), {"batch": self._batch(n_rows, n_rows + 3)}))
            elif kind < 60:
                steps.append(Step("call", data(n_rows), {"num_slices": int(self.choice([2, 2, 3, max(n_rows, 1)]))}))
            elif kind < 75:
                batches = [self._batch(n_rows, n_rows + 2) for _ in range(2)]
                steps.append(Step("steps", data(n_rows + 2), {"batches": batches}))
            elif kind < 85:
                steps.append(Step("steps", data(n_rows), {"n_steps": 2}))
            elif exact:  # (in other functions, a value set by the program exists only on the master)
                shared = [one for one in inputs if one.is_shared]
                chosen = {self.choice(shared).name for _ in range(2)} if shared else ()
                by_name = {one.name: one for one in shared}
                values = {
                    name: drawn(by_name[name].style, by_name[name].dtype, np.shape(initial[name]), self.random)
                    for name in sorted(chosen)
                }
                steps += [Step("set_value", values), Step("call", data(n_rows))]
        return tuple(steps)

    def _batch(self, n, length):
        if self.chance(40):
            start = int(self.random.randint(2))
            return slice(start, start + n)
        return [int(i) for i in self.random.permutation(length)[:n]]


def with_more_draws(graph, number, random):
    """Return a graph whose first call is repeated with other values of the inputs that have rows."""
    first = next(step for step in graph.steps if step.how == "call")
    divided = [one for one in graph.inputs if one.axis is not None]

    def again():
        return {one.name: drawn(one.style, one.dtype, first.data[one.name].shape, random) for one in divided}

    more = tuple(Step("call", {**first.data, **again()}) for _ in range(number))
    return dataclasses.replace(graph, steps=graph.steps + more)


class NothingFits(Exception):
    """The graph has no variable that the operation could take."""


# -- operations: each returns the text of an expression ---------------------------------------------------------------------


def unary(g):
    x, f = g.one(), g.choice(
        ["T.exp(T.clip({0}, -5, 5))", "T.sqr({0})", "-{0}", "abs({0})", "T.tanh({0})", "T.sgn({0})",
         "T.sqrt(abs({0}))", "T.log(abs({0}) + 1)", "T.nnet.sigmoid({0})", "T.nnet.softplus({0})", "T.floor({0})",
         "T.log1p(abs({0}))", "T.nnet.relu({0})", "T.inv(abs({0}) + 2)", "T.round({0})", "T.erf({0})", "T.ceil({0})",
         "T.clip({0}, -1, 1)", "T.sin({0})", "T.expm1(T.clip({0}, -3, 3))", "~{0}", "T.isnan({0})", "T.eq({0}, 0)",
         "T.ones_like({0})", "T.zeros_like({0})", "{0}.real", "{0}.imag", "T.conj({0})", "T.angle({0})",
         "T.nnet.hard_sigmoid({0})", "T.arctan({0})"]
    )  # fmt: skip
    return f.format(x)


def binary(g):
    ndim = g.choice([None, 0, 1, 2, 2, 3])
    kind = g.choice([None, None, "f", "iu", "b"])
    x, y = g.one(ndim, kind), g.one(ndim, g.choice([None, kind]))
    f = g.choice(
        ["{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} * {1}", "{0} / (abs({1}) + 1)", "T.maximum({0}, {1})",
         "T.minimum({0}, {1})", "T.gt({0}, {1})", "T.ge({0}, {1})", "T.lt({0}, {1})", "T.eq({0}, {1})", "T.neq({0}, {1})",
         "T.second({0}, {1})", "T.and_({0}, {1})", "T.or_({0}, {1})", "T.xor({0}, {1})", "{0} / {1}",
         "T.int_div({0}, abs({1}) + 1)", "T.mod({0}, abs({1}) + 1)", "T.arctan2({0}, {1})",
         "T.switch(T.gt({0}, {1}), {0}, {1})", "T.sqrt(T.sqr({0}) + T.sqr({1}))"]
    )  # fmt: skip
    return f.format(x, y)


def constant(g):
    x, c = g.one(), g.choice(["2.0", "0.0", "-1.0", "2", "3", "0.5", "np.float32(0.25)", "np.int8(7)", "True"])
    f = g.choice(["{0} * {1}", "{0} + {1}", "{1} - {0}", "{0} / ({1} + 1)", "T.gt({0}, {1})", "{0} ** 2", "{0} ** 3",
                  "{0} // 2", "{0} % 3", "T.maximum({0}, {1})", "{0} > {0}.mean()", "{0} - {0}.mean()"])  # fmt: skip
    return f.format(x, c)


def defined(g, x, dtype):
    """Return a type to cast x to, signed if x is a float: casting negative floats to unsigned types is undefined."""
    return dtype.lstrip("u") if g.variable(x).dtype.startswith("float") else dtype


def cast(g):
    x, text = g.one(), g.choice(["{0}", "{0}", "T.sum({0}, axis={1})", "T.mean({0}, axis={1})", "T.dot({0}.T, {0})"])
    return f"T.cast({text.format(x, some_axes(g, x))}, {defined(g, x, g.choice(DTYPES + FLOATS * 3))!r})"


def switch(g):
    x, y, z = g.one(), g.one(), g.one()
    return g.choice(
        ["T.switch({0} > 0, {1}, {2})", "T.switch({0}, {1}, 0)", "T.switch(T.eq({0}, {1}), {2}, {0})"]
    ).format(x, y, z)


def some_axes(g, x):
    """Return the text of one axis, of several axes, or "None"."""
    ndim = g.variable(x).ndim
    kind = g.random.randint(10)
    if kind < 3 or not ndim:
        return "None"
    if kind < 8 or ndim < 2:
        return str(g.axis(x))
    chosen = sorted(g.random.permutation(ndim)[: 1 + g.random.randint(ndim)])
    return "[" + ", ".join(map(str, chosen)) + "]"


def reduction(g):
    x = g.one(kind=g.choice([None, None, None, "iub"]))
    op = g.choice(["sum"] * 4 + ["mean"] * 3 + ["max", "min", "prod", "all", "any", "var", "std", "max", "min"])
    axes = some_axes(g, x)
    options = [f"axis={axes}"]
    if g.chance(25):
        options.append("keepdims=True")
    if op in ("sum", "prod", "mean") and g.chance(25):
        # No bools, and no integers for float sums: Theano's optimizer merges a sum with the sum that contains it, and
        # ignores the inner sum's type. Without the optimizer, such a program has a different result.
        types = FLOATS if axes != "None" and g.variable(x).dtype.startswith("float") else DTYPES[1:] + FLOATS
        options.append(f"dtype={defined(g, x, g.choice(types))!r}")
    if op in ("sum", "prod", "mean") and g.chance(12):
        options.append(f"acc_dtype={defined(g, x, g.choice(DTYPES + FLOATS))!r}")
    return f"T.{op}({x}, {', '.join(options)})"


def extreme_position(g):
    x = g.one()
    return g.choice(["T.argmax({0}, axis={1})", "T.argmin({0}, axis={1})", "rows_of_max({0}, {1})"]).format(
        x, g.axis(x)
    )


def norm(g):
    x = g.one(kind="f")
    f = ["T.sqrt(T.sum(T.sqr({0})))", "T.sqrt(T.mean(T.sqr({0}), axis={1}))", "{0} / T.sqrt(T.sum(T.sqr({0})) + 1)",
         "({0} - {0}.mean(axis={1}, keepdims=True)) / ({0}.std(axis={1}, keepdims=True) + 0.5)", "abs({0}).sum() / {0}.size",
         "T.sum({0}) / T.sum({0})", "T.sum({0}, axis={1}) / T.sum(T.zeros_like({0}), axis={1})",
         "{0} / T.sum(abs({0}) + 1, axis={1}, keepdims=True)"]  # fmt: skip
    return g.choice(f).format(x, g.axis(x))


def log_sum_exp(g):
    """Return an expression that the optimizer makes numerically stable."""
    rows = [name for name in g.pool if name.startswith("x") and np.dtype(g.variable(name).dtype).kind == "f"]
    x = g.choice(rows) if g.chance(50) else g.one(kind="f", newest=0.3)
    f = ["T.log(T.sum(T.exp({0}), axis={1}))", "T.log(T.sum(T.exp({0})))", "-T.log(T.sum(T.exp(-{0}), axis={1}))",
         "T.log(T.mean(T.exp({0}), axis={1}))", "T.exp({0}) / T.sum(T.exp({0}), axis={1}, keepdims=True)",
         "T.log(T.exp({0}) / T.sum(T.exp({0}), axis={1}, keepdims=True))", "T.log(T.prod(abs({0}) + 1, axis={1}))",
         "{0} - T.log(T.sum(T.exp({0}), axis={1}, keepdims=True))", "T.log1p(T.exp({0}))", "T.log(T.nnet.sigmoid({0}))",
         "T.log(1 - T.nnet.sigmoid({0}))", "T.sum({0} * T.exp({0})) / T.sum(T.exp({0}))",
         "T.log(T.sum(T.exp({0} - T.max({0}, axis={1}, keepdims=True)), axis={1})) + T.max({0}, axis={1})",
         "T.log(T.exp({0}).sum(axis={1}, keepdims=True))", "T.exp({0} - T.log(T.sum(T.exp({0}))))",
         "T.log(T.sum(T.exp({0}), axis={1}) + 1)"]  # fmt: skip
    return g.choice(f).format(x, g.axis(x))


def softmax(g):
    x = g.one(2, "f")
    f = ["T.nnet.softmax({0})", "T.nnet.logsoftmax({0})", "T.log(T.nnet.softmax({0}))", "T.nnet.softmax({0}.T).T",
         "T.nnet.categorical_crossentropy(T.nnet.softmax({0}), {1})", "T.log(T.nnet.softmax({0}))[T.arange({1}.shape[0]), {1}]",
         "T.nnet.binary_crossentropy(T.nnet.sigmoid({0}), T.gt({0}, 0))", "T.argmax(T.nnet.softmax({0}), axis=1)"]  # fmt: skip
    text = g.choice(f)
    return text.format(x, g.one(1, "iu") if "{1}" in text else None)


def product(g):
    kind = g.choice([None, "f", "f", "f", "iu", "b"])
    text = g.choice(
        ["T.dot({0}, {1})"] * 4 + ["T.dot({0}.T, {1})", "T.dot({0}, {1}.T)", "T.dot({0}.T, {0})", "T.outer({2}, {3})",
         "T.tensordot({0}, {1}, axes=1)", "T.tensordot({0}, {1}, axes=[[{4}], [{5}]])", "T.tensordot({0}, {1}, axes=2)",
         "T.dot({2}, {0})", "T.dot({0}, {2})", "T.dot({2}, {3})"]
    )  # fmt: skip
    ndim = g.choice([2, 2, None])
    x, y = g.one(ndim, kind), g.one(ndim, kind)
    vectors = [g.one(1, kind) if one in text else None for one in ("{2}", "{3}")]
    axes = [g.axis(one) if "{4}" in text else None for one in (x, y)]
    return text.format(x, y, *vectors, *axes)


def batched(g):
    x, y = g.one(3), g.one([2, 3])
    return f"T.batched_dot({x}, {y})" if g.chance(40) else f"T.batched_dot({x}, {x}.dimshuffle(0, 2, 1))"


def axes_mixed(g):
    x = g.one()
    order = [int(axis) for axis in g.random.permutation(g.variable(x).ndim)]
    kind = g.random.randint(4)
    if kind == 0:
        order.insert(g.random.randint(len(order) + 1), "x")
    elif kind == 1:
        return f"{x}.T"
    elif kind == 2:
        return g.choice(["{0}[None]", "{0}[:, None]", "T.shape_padright({0})"]).format(x)
    return f"{x}.dimshuffle({', '.join(map(repr, order))})"


def length_text(g, x=None, axis=None):
    """Return the text of a length: a literal number, or an element of a shape."""
    x = g.one([1, 2, 3]) if x is None else x
    axis = g.axis(x) if axis is None else axis
    return g.choice([f"{x}.shape[{axis}]", f"{x}.shape[{axis}]", str(g.shape_of(x)[axis])])


def reshaped(g):
    """Return a reshape that merges, splits or swaps axes, or requests any shape that fits."""
    x = g.one()
    ndim, shape = g.variable(x).ndim, g.shape_of(x)
    lengths = [length_text(g, x, axis) for axis in range(ndim)]
    kind, axis = g.random.randint(7), g.random.randint(max(ndim - 1, 1))
    if kind == 0 and ndim > 1:
        lengths[axis : axis + 2] = [f"{lengths[axis]} * {lengths[axis + 1]}"]
    elif kind == 1 and ndim:
        lengths[axis : axis + 1] = g.choice(
            [["2", str(shape[axis] // 2)], [length_text(g), "-1"], ["-1", "3"], ["3", "-1"], ["-1", "2"]]
        )
    elif kind == 2 and ndim > 1:
        lengths[axis], lengths[axis + 1] = lengths[axis + 1], lengths[axis]
    elif kind == 3:
        other = g.one()
        lengths = [length_text(g, other, axis) for axis in range(g.variable(other).ndim)]
    elif kind == 4:
        lengths = [f"{x}.size"] if g.chance(50) else [f"T.prod({x}.shape) // {length_text(g)}", "-1"]
    elif ndim:
        lengths[axis] = "-1"
    return f"T.reshape({x}, [{', '.join(lengths)}], ndim={len(lengths)})"


def flattened(g):
    x = g.one([1, 2, 3, 4])
    return g.choice(["{0}.flatten()", "{0}.flatten({1})", "{0}.ravel()"]).format(
        x, 1 + g.random.randint(g.variable(x).ndim)
    )


def joined(g):
    ndim = g.choice([1, 2, 2, 3])
    x, y = g.one(ndim), g.one(ndim)
    f = ["T.concatenate([{0}, {1}], axis={2})", "T.stack([{0}, {1}], axis={2})", "T.concatenate([{0}, {0}], axis={2})",
         "T.concatenate([{0}, {1}], axis={2})[:{0}.shape[0]]", "T.concatenate([{0}, {1}, {0}], axis={2})"]  # fmt: skip
    return g.choice(f).format(x, y, g.axis(x))


def split(g):
    x = g.one([1, 2, 3])
    axis = g.axis(x)
    n = g.shape_of(x)[axis]
    first = g.choice([f"{n // 2}, {n - n // 2}", f"{x}.shape[{axis}] - 1, 1", f"1, {x}.shape[{axis}] - 1"])
    return f"T.split({x}, [{first}], 2, axis={axis})[{g.random.randint(2)}]"


def repeated(g):
    x, n = g.one([1, 2, 3]), g.random.randint(2, 4)
    f = ["T.repeat({0}, {1}, axis={2})", "T.tile({0}, {3})", "T.roll({0}, 1, axis={2})", "T.extra_ops.squeeze({0})",
         "{0}.repeat({1}, axis={2})", "T.swapaxes({0}, 0, {2})", "T.tile({0}, T.concatenate([{4}.shape[:1], [1]]), ndim=2)"]  # fmt: skip
    ones = [1] * g.variable(x).ndim
    ones[g.random.randint(len(ones))] = n
    return g.choice(f).format(x, n, g.axis(x), tuple(ones), g.one([1, 2]))


def taken(g):
    """Return a subtensor with a constant or computed index."""
    x = g.one([1, 2, 3, 4])
    axis = g.axis(x) % g.variable(x).ndim
    half = f"{x}.shape[{axis}] // 2"
    index = g.choice(
        ["0", "-1", "1:", "::-1", ":-1", "::2", f":{half}", f"{half}:", f"-{half}:", "0:", "1:3", f":{length_text(g)}",
         f"{x}.shape[{axis}] - 1", "None", "1::2", ":0:-1", ":2"]
    )  # fmt: skip
    return f"{x}[{', '.join([':'] * axis + [index])}]"


def positions(g):
    n = length_text(g)
    f = ["T.arange({0})", "T.arange({0}) * {1}", "T.arange(2 * {0})", "T.arange({0}) + {2}", "T.arange(1, {0})",
         "T.arange({0}, dtype='float32')", "T.arange({0})[::-1]", "T.arange({0}) * {1} + {2}", "T.arange({0}) * {1} - 1",
         "T.cast(T.arange({0}), 'int32') % 2", "T.arange(0, {0}, 2)"]  # fmt: skip
    text = g.choice(f)
    return text.format(n, length_text(g), g.one(1, "iu") if "{2}" in text else None)


def indexed(g):
    x = g.one([1, 2, 3])
    text = g.choice(
        ["{0}[{1}]"] * 3 + ["{0}[:, {1}]", "{0}[T.arange({0}.shape[0]), {1}]", "{0}[T.arange({1}.shape[0]), {1}]",
         "{0}[{1}, T.arange({1}.shape[0])]", "{0}.flatten()[T.arange({0}.shape[0]) * {0}.shape[1] + {1}]",
         "{0}.flatten()[T.arange({0}.shape[0]) * {0}.shape[1] - 1]", "{0}[{1}, {2}]", "{0}[{1}, 0]", "{0}[:, {1}, {2}]",
         "T.take({0}, {1}, axis={3})", "{0}[-{1}]", "{0}[{1}][{2}]", "{0}[T.argmax({0}, axis=0)]", "{0}[T.argsort({4})]",
         "{0}[T.arange({0}.shape[0] // 2)]", "{0}[T.arange({0}.shape[0])[::-1]]", "{0}[{5}]"]
    )  # fmt: skip
    return text.format(
        x,
        g.one(1, "iu") if "{1}" in text else None,
        g.one(1, "iu") if "{2}" in text else None,
        g.axis(x),
        g.one(1) if "{4}" in text else None,
        g.one(2, "iu") if "{5}" in text else None,
    )


def mask(g):
    text = g.choice(
        ["{0}[{0} > 0]", "{0}[({0} > {0}.mean()).nonzero()]", "{0}[{1}]", "{0}[T.gt({2}, 0)]", "{0}[T.gt({2}, {2}.mean())]",
         "{0}[T.gt({2}, 0).nonzero()]", "{0}[{1}.nonzero()]", "T.nonzero({0})[0]", "{0}[T.eq({3}, 1).nonzero()[0]]",
         "unique({0})", "{0} * ({0} > 0)", "T.switch({0} > 0, {0}, 0).sum() / T.sum({0} > 0)", "{0}[{1}].sum(axis=0)",
         "{0}[{0} > 0].mean()", "{0}[{0} > {0}.mean()].sum()", "unique({0}).shape[0]", "{0}[{1}].shape[0]",
         "({0} > 0).nonzero()[0].shape[0]", "T.ones_like({0}[{0} > 0])", "{0}[T.ge({2}, T.max({2}))]",
         "{0}[T.argsort({2})[-2:]]", "T.sort({2})[::-1][:2]", "{0}[T.and_(T.gt({2}, 0), T.lt({2}, 1))]"]
    )  # fmt: skip
    x = g.one([1, 2, 3])
    return text.format(
        x,
        g.one(g.choice([1, 1, 2]), "b") if "{1}" in text else None,
        g.one(1) if "{2}" in text else None,
        g.one(1, "iu") if "{3}" in text else None,
    )


def changed(g):
    """Return a set_subtensor or inc_subtensor."""
    x = g.one([1, 2, 3])
    axis = g.axis(x) % g.variable(x).ndim
    kind = g.random.randint(10)
    before = [":"] * axis
    if kind < 4:
        index = ", ".join(before + [g.choice(["0", "1:", "-1", "::2", ":-1", ":2"])])
    elif kind < 7:
        index = ", ".join(before + [g.one(1, "iu")])
    elif kind < 8:
        index = f"T.arange({x}.shape[0]), {g.one(1, 'iu')}"
    else:
        index = g.choice(["({0} > 0).nonzero()", "T.gt({1}, 0).nonzero()[0]", "T.gt({1}, 0)", "{0} > 0"]).format(
            x, g.one(1)
        )
    part = f"{x}[{index}]"
    cast = f"T.cast({g.one()}, {g.variable(x).dtype!r})"
    value = g.choice([g.one(), "0", "1", f"{part} * 2", g.one(0), f"T.sum({g.one()})", cast])
    of = g.choice(
        [part, part, f"T.zeros_like({x})[{index}]", f"T.zeros([{length_text(g)}, {length_text(g)}])[{index}]"]
    )
    return f"T.{g.choice(['set', 'inc', 'inc'])}_subtensor({of}, {value})"


def filled(g):
    n, m = length_text(g), length_text(g)
    text = g.choice(
        ["T.alloc({0}, {1})", "T.alloc({0}, {1}, {2})", "T.zeros([{1}, {2}])", "T.ones([{1}, {2}])", "T.ones([{1}])",
         "T.eye({1})", "T.eye({1}, {2})", "T.tri({1})", "T.tri({1}, {2}, -1)", "T.identity_like({3})", "T.eye({1})[{4}]",
         "T.ones_like({3})", "T.zeros_like({3}) + {0}", "T.alloc({0}, {1}, 2 * {2})", "T.tril({3})", "T.ones_like(T.eye({1}))",
         "T.eye({1}, dtype='int8')", "T.fill({3}, {0})", "T.ones([{1}], dtype='int32')", "T.triu({3})"]
    )  # fmt: skip
    return text.format(
        g.choice([g.one(0) if "{0}" in text and g.chance(50) else "1.0", "0.0", "2"]),
        n,
        m,
        g.one(2) if "{3}" in text else None,
        g.one(1, "iu") if "{4}" in text else None,
    )


def counted(g):
    """Return an expression with numbers of rows or elements."""
    x = g.one([1, 2, 3])
    f = ["{0}.shape[{1}]", "{0}.size", "T.cast({0}.shape[{1}], 'float64')", "{0}.sum(axis={1}) / {0}.shape[{1}]",
         "{0} / {0}.shape[{1}]", "T.prod({0}.shape)", "{0}.shape[{1}] * 2 - 1", "T.sqrt({0}.shape[{1}])", "{0}.shape",
         "T.sum({0}) / T.prod({0}.shape)", "T.minimum({0}.shape[{1}], 2)", "T.eq({0}.shape[{1}], {0}.shape[0])",
         "{0}.shape[{1}] // 2", "{0}.shape[{1}] % 2", "T.log({0}.shape[{1}])"]  # fmt: skip
    return g.choice(f).format(x, g.axis(x))


def ordered(g):
    text = g.choice(
        ["T.sort({0}, axis={1})", "T.argsort({0}, axis={1})", "T.cumsum({0}, axis={1})", "T.cumprod({0}, axis={1})",
         "T.extra_ops.diff({0}, axis={1})", "T.cumsum({0}, axis={1})[-1]"]
    )  # fmt: skip
    x = g.one(
        [1, 2, 3], "f" if "T.cum" in text else None
    )  # (Theano's sums of small integers have another type than declared)
    return text.format(x, g.axis(x))


def solution(g):
    return f"solved({g.one(2, 'f')})"


def padded(g):
    x = g.one([1, 2, 3], "f")
    widths = [(0, 0) if g.chance(50) else (g.random.randint(2), g.random.randint(3)) for _ in g.shape_of(x)]
    mode = g.choice(["constant", "edge", "mean", "maximum", "linear_ramp", "reflect", "symmetric", "wrap"])
    return f"padded({x}, {widths}, {mode!r})"


def scanned(g):
    x, y = g.one([1, 2, 3], newest=0.8), g.one()
    text = g.choice(
        ["L.scan(lambda a: T.tanh(a) * 2, [{0}])[0]", "L.scan(lambda a, h: h + a, [{0}], [T.zeros_like({0}[0])])[0]",
         "L.scan(lambda a, h: h + a.sum(0), [{0}], [T.zeros_like({0}[0].sum(0))])[0][-1]",
         "L.scan(lambda a, h: T.tanh(h + a), [{0}.swapaxes(0, 1)], [T.zeros_like({0}[:, 0])])[0]",
         "L.scan(lambda a, h, w: T.tanh(T.dot(h, w) + a), [{0}.swapaxes(0, 1)], [T.zeros_like({0}[:, 0])], [{2}])[0][-1]",
         "L.scan(lambda h: h * 0.5 + 1, outputs_info=[{1}], n_steps=3)[0]",
         "L.scan(lambda h, c: T.tanh(h - c), outputs_info=[T.zeros_like({1})], non_sequences=[{1}], n_steps=3)[0][-1]",
         "L.scan(lambda h, c: h * c.mean(), outputs_info=[{1}], non_sequences=[{0}], n_steps=2)[0][-1]",
         "L.scan(lambda i, c: c[i], [T.arange({0}.shape[0])], non_sequences=[{0}])[0]",
         "L.scan(lambda i, c: c[:, i] * 2, [T.arange({0}.shape[1])], non_sequences=[{0}])[0]",
         "L.scan(lambda a: a.sum(), [{0}], go_backwards=True)[0]",
         "L.scan(lambda h: h + 1, outputs_info=[{1}], n_steps={0}.shape[{3}])[0][-1]", "until_small({0})",
         "L.scan(lambda a, b, h: (h * 0.5 + a - b), [{0}, {4}], [T.zeros_like({0}[0])])[0][-1]",
         "L.scan(lambda h, c: T.set_subtensor(h[0], c.sum()), outputs_info=[T.zeros_like({0})], non_sequences=[{1}], n_steps=2)[0][-1]",
         "L.scan(lambda a, h: T.switch(a > 0, a, h), [{0}.swapaxes(0, 1)], [T.zeros_like({0}[:, 0])])[0]"]
    )  # fmt: skip
    return text.format(
        x,
        y,
        g.one(2, "f") if "{2}" in text else None,
        g.axis(x),
        g.one(g.variable(x).ndim) if "{4}" in text else None,
    )


def gradient(g):
    y, x = g.one(kind="f", newest=0.9), g.one(kind="f", newest=0.1)
    f = ["T.grad(T.sum(T.tanh({0})), {1})", "T.grad(T.mean(T.sqr({0})), {1})", "T.grad(T.mean({0}), {1})", "T.grad({0}.sum(), {1})",
         "T.grad(T.max({0}), {1})", "T.grad(T.sqrt(T.sum(T.sqr({0})) + 1), {1})", "T.grad(T.log(T.sum(T.exp(T.clip({0}, -5, 5)))), {1})",
         "T.grad(T.sum(T.sqr(T.grad(T.sum(T.sin({0})), {1}))), {1})", "T.grad((T.grad(T.mean(T.sqr({0})), {1}) * {2}).sum(), {1})",
         "T.grad({0}[{0} > 0].sum(), {1})", "T.grad(T.mean({0}, axis=0)[0].sum(), {1})", "T.Lop({0}, {1}, T.ones_like({0}))",
         "T.Rop({0}, {1}, T.ones_like({1}))", "T.grad({0}[({0} > {0}.mean()).nonzero()].mean(), {1})",
         "T.grad(T.prod({0}), {1})"]  # fmt: skip
    text = g.choice(f)
    return text.format(y, x, g.one(g.variable(x).ndim, "f") if "{2}" in text else None)


def model_gradient(g):
    """Return the gradient of a loss with respect to a shared variable."""
    names = [name for name in g.pool if name.startswith("w") and g.variable(name).dtype in FLOATS]
    if not names:
        raise NothingFits
    text = g.choice(
        ["T.grad(T.mean(T.sqr({0})), {1})", "T.grad(T.sum({0}), {1})", "T.grad(({0} * {2}).sum() / {2}.sum(), {1})"]
    )
    return text.format(g.one(kind="f", newest=0.8), g.choice(names), g.one() if "{2}" in text else None)


def condition(g):
    return f"L.ifelse(T.gt({g.one(0)}, 0), {g.one()}, {g.one()})"


OPERATIONS = [
    *[unary] * 4, *[binary] * 6, *[constant] * 4, *[cast] * 2, switch, *[reduction] * 6, extreme_position, *[norm] * 2,
    *[log_sum_exp] * 3, softmax, *[product] * 5, batched, *[axes_mixed] * 3, *[reshaped] * 4, flattened, *[joined] * 2,
    split, repeated, *[taken] * 3, positions, *[indexed] * 3, *[mask] * 4, *[changed] * 2, *[filled] * 3, *[counted] * 2,
    ordered, solution, *[scanned] * 2, *[gradient] * 5, *[model_gradient] * 3, condition,
    *[padded] * (not IS_THEANO),
]  # fmt: skip
