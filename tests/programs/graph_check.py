"""Random graphs on ranks, compared with the serial program call by call."""

import dataclasses
import gc
import hashlib
import logging
import re
import warnings

import graph_words
import numpy as np
from graph_growth import Growth, with_more_draws
from graph_tally import reason_of
from graph_values import ERRORS, Expected, Recipe
from graph_words import L, mode_of
from protocol import divide_small_values
from recipe_library import Peek, Quiet
from worlds import LINKER, MESH_SIZES, opened, over_hosts

import synkhronos as synk
from synkhronos.errors import ArgumentError
from synkhronos.program.program import PROGRAM
from synkhronos.replication.replicator import replicator_of

#: Number of ranks on each of two hosts, by the number of all ranks.
COUNTS_OF = {2: (1, 1), 3: (1, 2)}


#: Errors of casts that the libraries' Python code refuses. Compiled code and larger arrays wrap around.
CASTS = (
    "Python int too large to convert to C long",
    "out of bounds for int",  # (the error of an index ends in "for axis 0")
    "out of bounds for uint",
    "cannot convert float infinity to integer",
    "cannot convert float NaN to integer",
)

#: Errors of calls that are not wrong results: the limits of positions, of ``reshape((-1, k))``, and of literal numbers
#: of rows that docs/exact.rst describes; and `CASTS`.
NOT_OURS = (
    "positions in rows were computed with a wrong row size",
    "Cannot reshape input of shape",
    "cannot reshape array of size",
    "a rank's elements do not fill whole rows of a reshape with -1",
    "SpecifyShape: Got shape",
    "a position that was computed from a row's position is negative or too large",
    *CASTS,
)

#: Number of additional calls of a graph on JAX's devices.
MORE_DRAWS = 12

#: A note to errors of JAX, which computes fewer graphs than PyTensor; every value that it does compute is compared.
WHILE_JAX_COMPILED = "while JAX compiled it"


class WrongGraph(AssertionError):
    """A graph behaves differently from the serial program.

    Attributes
    ----------
    kind : str
        The kind of error in a few words: the same for graphs that are wrong in the same way.
    graph : Graph
    """

    def __init__(self, kind, message, graph):
        super().__init__(f"{kind}: {message}")
        self.kind, self.graph = kind, graph


class Checked:
    """The results of a check of one graph.

    Attributes
    ----------
    draws, compared, undecided : int
        Numbers of compared calls and values, and of values that depend on rounding.
    offered : int
        Number of outputs and updates of the program.
    refused : list of (str, str)
        The reasons for refusals of outputs and updates, and the texts of these.
    refused_calls : list of str
        Why calls of the function were refused.
    broken : str or None
        Why there is no serial program to compare with.
    """

    def __init__(self):
        self.draws = self.compared = self.undecided = self.offered = 0
        self.refused, self.refused_calls, self.broken = [], [], None


def namespace_of(graph):
    """Return the variables of a graph, by name."""
    names = dict(vars(graph_words))
    with warnings.catch_warnings(), L.compiled_quickly():
        warnings.simplefilter("ignore")
        exec("\n".join(graph.definitions()), names)
    for line in graph.lines:
        if names[line.name].name is None:
            names[line.name].name = line.name
    return names


def tensors_of(graph):
    """Return all variables of a graph that have a dtype."""
    return [one for one in namespace_of(graph).values() if isinstance(getattr(one, "dtype", None), str)]


class _Records(logging.Handler):
    """A context that collects the library's log records and passes them to no other handler."""

    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)

    def __enter__(self):
        logger = logging.getLogger("synkhronos")
        self._propagate, logger.propagate = logger.propagate, False
        logger.addHandler(self)
        return self.records

    def __exit__(self, *exception):
        logger = logging.getLogger("synkhronos")
        logger.propagate = self._propagate
        logger.removeHandler(self)


class GraphCheck:
    """A check of one graph."""

    def __init__(self, graph, launcher, linker):
        self.graph, self.launcher, self.linker = graph, launcher, linker
        self.found, self.mode = Checked(), mode_of(graph.optimizer, linker)
        self.found.offered = len(graph.outputs) + len(graph.updates)

    def wrong(self, kind, message):
        return WrongGraph(kind, message, self.graph)

    def __call__(self):
        with warnings.catch_warnings(), np.errstate(all="ignore"), _Records() as self.warnings:
            warnings.simplefilter("ignore")
            try:
                self._run()
            finally:
                PROGRAM.close()
        return self.found

    def _run(self):
        self._open()
        function = self._build()
        graph = self.graph
        if function is None:
            return
        built = self._serial()
        if built is None:
            return
        self.ours, (serial, self.serial_variables) = function, built
        inputs = graph.arguments
        shared = [one for one in graph.inputs if one.is_shared]
        names = namespace_of(graph)
        plain = Recipe(
            [names[one.name] for one in (*inputs, *shared)],
            [names[name] for name in (*graph.outputs, *(new for _, new in graph.updates))],
        )
        states = [{one.name: graph.initial[one.name] for one in shared} for _ in range(1 + len(ERRORS))]
        for number, step in enumerate(graph.steps):
            self.where = f"step {number + 1} ({step.how}{step.options or ''})"
            if step.how == "set_value":
                self._set_values(step, states)
                continue
            if not self._step(step, serial, plain, states):
                return

    def _open(self):
        graph = self.graph
        PROGRAM.close()
        divide_small_values(self.launcher, graph.n, graph.root)
        if self.launcher == "hosts" and graph.n > 1:
            self.session = over_hosts(COUNTS_OF[graph.n], min(graph.root, COUNTS_OF[graph.n][0] - 1))
        else:  # (a single rank is on one host)
            launcher = "fork" if self.launcher == "hosts" else self.launcher
            self.session = opened(launcher, graph.n, graph.root)
        if self.launcher not in ("threads", "mesh"):
            self.session.run(Quiet())

    def _build(self):
        """Return the function of all outputs and updates that are not refused, or None if there are none."""
        while True:
            graph = self.graph
            names = namespace_of(graph)
            scattered = [
                synk.sharded(names[one.name], axis=one.axis) if one.axis else names[one.name]
                for one in graph.arguments
                if one.axis is not None
            ]
            whole = [names[one.name] for one in graph.arguments if one.axis is None]
            options = {} if graph.rows is None else {"rows": graph.rows}
            self.warnings.clear()
            try:
                function = synk.function(
                    scattered,
                    [names[name] for name in graph.outputs],
                    whole,
                    [(names[target], names[new]) for target, new in graph.updates],
                    mode=self.mode,
                    on_unused_input="ignore",
                    exact=graph.exact,
                    **options,
                )
            except ArgumentError as error:
                if not self._refuse(error):
                    return None
                continue
            except Exception as error:
                if self._serial() is None:
                    return None
                raise self.wrong(f"build raises {type(error).__name__}", str(error)[:2000]) from error
            if self._leave_out_averaged():
                if not self.graph.outputs:
                    return None
                continue
            self.variables = {one.name: names[one.name] for one in graph.inputs if one.is_shared}
            return function

    def _leave_out_averaged(self):
        """Leave out outputs averaged with a warning, which may differ from the serial ones; return whether any are."""
        averaged = [record.args for record in self.warnings if "is averaged over the ranks" in record.msg]
        for _, label, reason, *_ in averaged:
            self._refuse(ArgumentError(label, "an op", f"averaged, with a warning: {reason}"))
        return bool(averaged)

    def _refuse(self, error):
        """Leave out the refused outputs and updates; return whether any are left."""
        graph = self.graph
        position = re.search(r"(output|update)s?\W?\[?(\d+)", error.argument)
        named = re.search(r"(output|update of) ([vxpw]\d+)", error.argument)
        if named and named[1] == "output" and named[2] in graph.outputs:
            which = [("outputs", name) for name in graph.outputs if name == named[2]]
        elif named and named[1] != "output":
            which = [("updates", pair) for pair in graph.updates if pair[0] == named[2]]
        elif position and position[1] == "output" and int(position[2]) < len(graph.outputs):
            which = [("outputs", graph.outputs[int(position[2])])]
        elif error.argument == "output" and len(graph.outputs) == 1:
            which = [("outputs", graph.outputs[0])]
        else:
            which = [("outputs", name) for name in graph.outputs] + [("updates", pair) for pair in graph.updates]
        for part, one in which:
            name = one if part == "outputs" else one[1]
            text = f"{one[0] + ' := ' if part == 'updates' else ''}{graph.cone(name)}"
            self.found.refused.append((reason_of(error), text))
        rest = {
            part: tuple(one for one in getattr(graph, part) if (part, one) not in which)
            for part in ("outputs", "updates")
        }
        self.graph = dataclasses.replace(graph, **rest).pruned()
        return bool(self.graph.outputs or self.graph.updates)

    def _serial(self):
        """Return the serial function and its shared variables, or None if it cannot be built."""
        graph, names = self.graph, namespace_of(self.graph)
        try:
            function = L.function(
                [names[one.name] for one in graph.arguments],
                [names[name] for name in graph.outputs],
                updates=[(names[target], names[new]) for target, new in graph.updates],
                mode=self.mode,
                on_unused_input="ignore",
            )
        except Exception as error:
            self.found.broken = f"build: {type(error).__name__}: {first_line(error)}"
            return None
        return function, {one.name: names[one.name] for one in graph.inputs if one.is_shared}

    def _set_values(self, step, states):
        for name, value in step.data.items():
            self.variables[name].set_value(value)
            self.serial_variables[name].set_value(value)
            for state in states:
                state[name] = value

    def _step(self, step, serial, plain, states):
        """Take a step with all programs, and compare the results; return whether the program continues."""
        arguments, variables = self.graph.arguments, self.serial_variables
        before = {name: variable.get_value() for name, variable in variables.items()}
        states_before = [dict(state) for state in states]
        expected, failed, is_ruled_out = self._expected(step, serial, plain, states)
        held = self._look()
        try:
            call = self.ours if step.how == "call" else self.ours.steps
            results = call(*[step.data[one.name] for one in arguments], **step.options)
        except Exception as error:
            if failed is None:
                self._note_refusal(error)
            if not isinstance(error, ArgumentError):
                return False
            after = self._look()
            if any(not self._is_unchanged(held[name], after[name]) for name in held):
                raise self.wrong("refused, and changed", f"{self.where}: {held!r:.300}, {after!r:.300}") from error
            for name, variable in variables.items():  # as if the step had not run
                variable.set_value(before[name])
            for state, of_before in zip(states, states_before):
                state.update(of_before)
            return True
        if failed is not None:
            omits_checks = self.launcher == "mesh"  # JAX raises no errors that depend on values
            if not (is_ruled_out or omits_checks or self._needs_no_error(step, results, before)):
                kind = type(failed).__name__
                raise self.wrong(
                    "no error", f"{self.where}: serial {kind}: {first_line(failed)}; ours {results!r:.300}"
                )
            return False
        self.found.draws += len(expected)
        for i, name in enumerate(self.graph.outputs):
            for k, actual in enumerate(self._of_calls(step, results[i], len(expected))):
                self._compare(f"output {name}" + f" of step {k}" * (step.how == "steps"), actual, expected[k][i])
        self._compare_variables(states)
        return True

    def _is_unchanged(self, held, after):
        """Return whether ranks have their values; JAX may refuse a call when ranks already have the program's values."""
        if self.launcher == "mesh":
            held = [one if _same([one], [other]) else held[self.graph.root] for one, other in zip(held, after)]
        return _same(held, after)

    def _of_calls(self, step, result, number):
        found = [result] if step.how == "call" else list(result)
        if len(found) != number:
            raise self.wrong("steps", f"{self.where}: {len(found)} results of {number} steps")
        return found

    def _expected(self, step, serial, plain, states):
        """Return the serial results of every call in a step, the error that ends it, and whether our program need not
        raise the error: it is in `CASTS`, or its operation was removed by the serial program's optimizer.
        """
        found = []
        for selected in self.graph.selections(step):
            given = [selected[one.name] for one in self.graph.arguments]
            try:
                values = serial(*given)
            except Exception as error:
                return found, error, any(text in str(error) for text in CASTS)
            try:
                computed = [self._computed(plain, given, state, k) for k, state in enumerate(states)]
            except Exception as error:
                return found, error, True
            found.append([Expected(value, *_first(of_runs)) for value, of_runs in zip(values, zip(*computed))])
        return found, None, False

    def _note_refusal(self, error):
        """Record why a call was refused; raise an error if it was not a refusal."""
        known = [text for text in NOT_OURS if text in str(error)]
        if isinstance(error, ArgumentError):
            known = [f"{error.expected}, got {error.got}"]
        known += [first_line(error) for note in getattr(error, "__notes__", ()) if WHILE_JAX_COMPILED in note]
        if not known:
            raise self.wrong(f"call raises {type(error).__name__}", f"{self.where}: {str(error)[-3000:]}") from error
        self.found.refused_calls.append(reason_of(Exception(known[0])))

    def _needs_no_error(self, step, results, before):
        """Return whether the serial program gives our results in another mode, instead of raising its error.

        The optimizer may remove an operation. Operations in place require the variable's shape, while NumPy broadcasts
        vectors with one element and with none to one with none. If no value depends on the rows (``ones_like(x)``),
        other operations determine whether the optimizer removes the rows or first checks their number.
        """
        optional = ("inplace", "local_elemwise_alloc", "BlasOpt")
        without = [self.mode.excluding(*each) for each in (*zip(optional), optional)]
        modes = mode_of("fast_run", self.linker), *without
        return any(self._gives(results, step, before, mode) for mode in modes)

    def _gives(self, results, step, before, mode):
        """Return whether the serial program in a mode has these results."""
        self.mode = mode
        built = self._serial()
        if built is None:
            return False
        serial, variables = built
        for name, variable in variables.items():
            variable.set_value(before[name])
        for k, selected in enumerate(self.graph.selections(step)):
            try:
                values = serial(*[selected[one.name] for one in self.graph.arguments])
            except Exception:
                return False
            for value, result in zip(values, results):
                if Expected(value, value, [value]).differs(result if step.how == "call" else result[k]) is not None:
                    return False
        for name, of_ranks in self._look().items():
            value = np.asarray(variables[name].get_value(), variables[name].dtype)
            if any(Expected(value, value, [value]).differs(one) is not None for one in of_ranks):
                return False
        return True

    def _computed(self, plain, given, state, number):
        """Compute the graph node by node, with other roundings if ``number`` is not 0; return its outputs."""
        shared = [one.name for one in self.graph.inputs if one.is_shared]
        errors = ERRORS[number - 1]() if number else None
        values = plain([*given, *[state[name] for name in shared]], errors)
        n = len(self.graph.outputs)
        state.update({target: value for (target, _), value in zip(self.graph.updates, values[n:])})
        return values[:n]

    def _compare(self, what, actual, expected):
        if expected.is_comparable:
            self.found.compared += 1
        else:
            self.found.undecided += 1
        difference = expected.differs(actual)
        if difference is not None and self._is_of_other_precision(actual, expected.value):
            self.found.undecided += 1
        elif difference is not None:
            raise self.wrong("value", f"{self.where}: {what}: {difference}")

    def _is_of_other_precision(self, actual, value):
        """Return whether JAX computes in other bits than NumPy, so that a value may differ by more than its rounding.

        NumPy computes functions of 8 bits in float16, and JAX in float32. JAX does not round products before it adds to
        them, so that the exponential of a difference between huge numbers may be infinite. A float that is too large for
        an integer type becomes the type's limit in JAX, and NaN becomes 0.
        """
        if self.launcher != "mesh" or np.shape(actual) != np.shape(value):
            return False
        if value.dtype.kind in "iu":
            low, high = np.iinfo(value.dtype).min, np.iinfo(value.dtype).max
            limited = (actual == low) | (actual == high) | (actual == 0) & (value == low)
            return bool(np.all((actual == value) | limited) and np.any(limited))
        with np.errstate(all="ignore"):
            is_huge = value.dtype.kind == "f" and np.all(np.abs(value) * np.finfo(value.dtype).eps > 100)
            small = any(np.dtype(one.dtype).itemsize == 1 for one in tensors_of(self.graph))
            near = small and np.allclose(actual, value, rtol=4e-3, equal_nan=True)
        return bool(near or is_huge and not np.any(np.isfinite(actual)))

    def _look(self):
        """Return the values of all ranks' shared variables, by name."""
        replicator = replicator_of(self.session)
        numbers = {name: replicator.find(L.engine, variable) for name, variable in self.variables.items()}
        numbers = {name: number for name, number in numbers.items() if number is not None}
        by_rank = self.session.run(Peek(list(numbers.values())))
        return {name: [of_rank[i] for of_rank in by_rank] for i, name in enumerate(numbers)}

    def _compare_variables(self, states):
        """Compare all ranks' shared variables with the serial program's."""
        found = self._look()
        for name, _ in self.graph.updates:
            variable = self.serial_variables[name]
            # PyTensor's Numba code leaves values of other types in variables, such as int64 in a bool variable.
            value = np.asarray(variable.get_value(), variable.dtype)
            expected = Expected(value, *_first([state[name] for state in states]))
            for rank, of_rank in enumerate(found[name]):
                self._compare(f"{name} on rank {rank}", of_rank, expected)
            if self.graph.exact and len({of_rank.tobytes() for of_rank in found[name]}) > 1:
                raise self.wrong("ranks differ", f"{self.where}: {name} has other bits on some ranks")


def _same(values, others):
    return all(one.shape == other.shape and one.tobytes() == other.tobytes() for one, other in zip(values, others))


def _first(values):
    values = list(values)
    return values[0], values[1:]


def first_line(error):
    return (str(error).splitlines() or [""])[0][:200]


def check(graph, launcher="threads", linker=LINKER):
    """Build and call a graph, and compare its results; return a `Checked`.

    Raises
    ------
    WrongGraph
    """
    try:
        return GraphCheck(graph, launcher, linker)()
    finally:
        gc.collect(0)


def grown(seed, **options):
    """Return the graph grown from a seed, or None if it computes nothing; options are those of `Growth`."""
    number = int.from_bytes(hashlib.sha256(str(seed).encode()).digest()[:4], "little")
    graph = Growth(np.random.RandomState(number), **options).graph()
    return graph if graph.outputs or graph.updates else None


def of_launcher(graph, launcher):
    """Return the graph; on JAX's devices, return it for every number of devices, with more calls of the compiled function.

    JAX applies the optimizations of its own mode, whatever the mode of a function.
    """
    if launcher != "mesh":
        return [graph]
    graph = with_more_draws(graph, MORE_DRAWS, np.random.RandomState(len(graph.lines)))
    graph = dataclasses.replace(graph, optimizer="fast_run")
    return [dataclasses.replace(graph, n=n, root=min(graph.root, n - 1)) for n in MESH_SIZES]
