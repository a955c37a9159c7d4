"""Compare an exact function on several ranks with the serial function, in all calls of a program."""

import logging
import re
import warnings
from collections import Counter
from contextlib import contextmanager

import numpy as np
from worlds import opened

import synkhronos as synk
from synkhronos.errors import ArgumentError
from synkhronos.program.program import PROGRAM

#: Allowed relative deviation, and relative change of the data in an estimate of conditioning, by the program's dtype.
ROUNDING = {"float64": (1e-9, 1e-13), "float32": (2e-4, 1e-6), "float16": (3e-2, 1e-3)}

#: Factor between the effect of such a change and an allowed deviation.
AMPLIFICATION = 100


#: Ranks, root and launcher of the open session.
OPENED = []


class Wrong(AssertionError):
    """An exact function returned another result than the serial function."""

    def __init__(self, what, target, call):
        super().__init__(f"{what} of {target} in call {call}")
        self.what, self.target, self.call = what, target, call


def open_session(ranks, root, launcher="threads"):
    """Open a session, unless the open one has these ranks and this root."""
    if not synk.is_forked() or OPENED[:] != [ranks, root, launcher]:
        PROGRAM.close()
        opened(launcher, ranks, root)
        OPENED[:] = ranks, root, launcher


class Graph:
    """The variables of a program, as a set of its own."""

    def __init__(self, program, library):
        self.names = dict(library.NAMES)
        exec("\n".join(program.body(library)), self.names, self.names)
        self.program, self.library = program, library

    def __getitem__(self, name):
        return self.names[name]

    def arguments(self, outputs, updates):
        return [self[name] for name in outputs], [(self[a], self[b]) for a, b in updates]

    def shareds(self):
        return {leaf.name: self[leaf.name] for leaf in self.program.leaves if leaf.role == "shared"}

    def inputs(self, role):
        return [leaf for leaf in self.program.leaves if leaf.role == role]

    def serial(self, outputs, updates, **options):
        outputs, updates = self.arguments(outputs, updates)
        inputs = [self[leaf.name] for role in ("rows", "all") for leaf in self.inputs(role)]
        givens = [(self[a], self[b]) for a, b in self.program.givens]
        return self.library.function(
            inputs, outputs, updates=updates, givens=givens, on_unused_input="ignore", **options
        )

    def exact(self, outputs, updates):
        outputs, updates = self.arguments(outputs, updates)
        inputs = [self[x.name] if x.axis == 0 else synk.sharded(self[x.name], axis=x.axis) for x in self.inputs("rows")]
        everywhere = [self[leaf.name] for leaf in self.inputs("all")]
        givens = [(self[a], self[b]) for a, b in self.program.givens]
        options = {} if self.program.rows is None else {"rows": self.program.rows}
        return synk.function(
            inputs, outputs, everywhere, updates, givens, exact=True, on_unused_input="ignore", **options
        )


class Tally:
    """Counts of what happened, and examples of refusals."""

    def __init__(self, stored=None):
        self.counts, self.refusals = (Counter(stored[name] if stored else {}) for name in ("counts", "refusals"))
        self.examples = {}

    def to_json(self):
        return {"counts": dict(self.counts), "refusals": dict(self.refusals)}

    def include(self, other):
        self.counts += other.counts
        self.refusals += other.refusals

    def refused(self, error, where):
        text = getattr(error, "got", str(error))
        reason = f"{where} {type(error).__name__}: " + re.sub(r"\b[a-z]+\d+\b|\d+", "_", text)[:110]
        self.refusals[reason] += 1
        self.examples.setdefault(reason, str(error))

    def document(self):
        """Return sentences for docs/reliability.md."""
        n = self.counts
        return [
            f"{n['built'] + n['refused']:,} models: {n['refused']:,} were refused, and {n['targets']:,} outputs and"
            f" updates of the others were built. {n['calls']:,} calls were compared, with {n['values']:,} values;"
            f" {n['rounding']:,} of these depend on rounding,"
            f" {n['rewrites']:,} on rewrites such as 0 / 0 = 0, and {n['infinite']:,} are NaN instead of infinite. {n['refused calls']:,} calls were refused."
        ]


def built(graph, program, tally):
    """Return the exact function of all targets that the library accepts, with these outputs and updates."""
    try:
        return graph.exact(program.outputs, program.updates), program.outputs, program.updates
    except ArgumentError as error:
        if len(program.outputs) + len(program.updates) == 1:
            tally.refused(error, "build")
            return None, (), ()
    outputs, updates = [], []
    for kind, targets in (("outputs", program.outputs), ("updates", program.updates)):
        for target in targets:
            try:
                graph.exact(*((target,), ()) if kind == "outputs" else ((), (target,)))
                (outputs if kind == "outputs" else updates).append(target)
            except ArgumentError as error:
                tally.refused(error, "build")
    if not outputs and not updates:
        return None, (), ()
    try:
        return graph.exact(tuple(outputs), tuple(updates)), tuple(outputs), tuple(updates)
    except ArgumentError as error:
        tally.refused(error, "build together")
        return None, (), ()


@contextmanager
def quiet():
    """Hide warnings, and messages of the library below errors."""
    logger = logging.getLogger("synkhronos")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def serial_function(graph, outputs, updates):
    """Return the serial function; None if the library cannot build it."""
    try:
        return graph.serial(outputs, updates)
    except Exception:
        return None


def check(program, library, tally, launcher="threads", kind=None):
    """Compare all calls of a program by a `Comparison` or another ``kind``; raise `Wrong` for the first difference."""
    with quiet():
        open_session(program.ranks, program.root, launcher)
        ours, theirs = Graph(program, library), Graph(program, library)
        try:
            exact, outputs, updates = built(ours, program, tally)
        except Exception as error:
            if serial_function(theirs, program.outputs, program.updates) is not None:
                raise Wrong(f"{type(error).__name__} when built: {str(error)[:300]}", "all", None) from error
            tally.counts["no serial function"] += 1
            return
        if exact is None:
            tally.counts["refused"] += 1
            return
        serial = serial_function(theirs, outputs, updates)
        if serial is None:
            tally.counts["no serial function"] += 1
            return
        tally.counts["built"] += 1
        tally.counts["targets"] += len(outputs) + len(updates)
        comparison = (kind or Comparison)(program, library, ours, theirs, exact, serial, outputs, updates, tally)
        comparison.omits_checks = launcher == "mesh"
        for call in program.calls:
            comparison.call(call)


class Comparison:
    """Both functions of a program, call by call."""

    omits_checks = False  # whether the ranks use JAX, which raises no errors that depend on values

    def __init__(self, program, library, ours, theirs, exact, serial, outputs, updates, tally):
        self.program, self.library, self.exact, self.serial, self.tally = program, library, exact, serial, tally
        self.outputs, self.updates, self.graph, self.plain = outputs, updates, theirs, None
        used = exact.get_shared()
        self.ours = {name: shared for name, shared in ours.shareds().items() if shared in used}
        self.theirs = {name: theirs[name] for name in self.ours}
        self.leaves = ours.inputs("rows") + ours.inputs("all")
        kinds = {str(getattr(getattr(v, "type", None), "dtype", "")) for v in ours.names.values()}
        kinds = {{"complex64": "float32", "complex128": "float64"}.get(kind, kind) for kind in kinds}
        self.rounding = ROUNDING[
            min(kinds & set(ROUNDING), key="float16 float32 float64".split().index, default="float64")
        ]

    def call(self, call):
        if call.changes:
            for leaf in self.program.leaves:
                if leaf.name in self.ours:
                    for shared in (self.ours[leaf.name], self.theirs[leaf.name]):
                        shared.set_value(leaf.value(0, call.seed))
        data = [leaf.value(call.rows, call.seed) for leaf in self.leaves]
        before = self.state()
        expected = self.attempt(lambda: self.serially(call, data, self.serial))
        after = self.state()
        found = self.attempt(lambda: self.in_parallel(call, data))
        if isinstance(found, Exception):
            if not isinstance(expected, Exception):
                self.tally.counts["refused calls"] += 1
                self.tally.refused(found, f"{call.form} call")
            self.restore(before)
            after = before
        elif isinstance(expected, Exception) and self.omits_checks:
            self.tally.counts["omitted checks"] += 1
            self.restore(before)
        elif isinstance(expected, Exception):
            self.tally.counts["serial program fails alone"] += 1
            self.tally.examples.setdefault(f"serial fails: {str(expected)[:60]}", (self.program, call))
            raise Wrong("only the serial program raises", f"{type(expected).__name__}: {str(expected)[:200]}", call)
        else:
            self.tally.counts["calls"] += 1
            self.compare(call, data, before, expected, after, found)
        self.restore({name: self.ours[name].get_value() for name in self.ours})

    def compare(self, call, data, before, expected, after, found):
        """Compare outputs, and the shared variables of all ranks."""
        if [len(steps) for steps in found] != [len(steps) for steps in expected]:
            raise Wrong(f"{[len(steps) for steps in found]} steps", self.outputs, call)
        wrong = [
            (name, step, value, serial)
            for name, *both in zip(self.outputs, found, expected)
            for step, (value, serial) in enumerate(zip(*both))
            if not self.close(value, serial)
        ]
        for name, shared in self.ours.items():
            values = [np.asarray(synk.get_value(shared, rank)) for rank in range(self.program.ranks)]
            for rank, value in enumerate(values):
                if value.tobytes() != values[0].tobytes() and not np.array_equal(value, values[0], equal_nan=True):
                    raise Wrong(f"rank {rank} differs from rank 0 in a shared variable", name, call)
            wrong += [(name, 0, values[0], after[name])] * (not self.close(values[0], after[name]))
        self.tally.counts["values"] += len(self.outputs) + len(self.ours)
        for name, step, p, s in wrong:
            p, s = np.asarray(p), np.asarray(s)
            if (p.dtype, p.shape) != (s.dtype, s.shape):
                raise Wrong(f"{p.dtype}{p.shape} instead of {s.dtype}{s.shape}", name, call)
            reason = self.reason(call, data, before, name, step, p, s)
            if reason is None:
                raise Wrong(f"{p.tolist()} instead of {s.tolist()}", name, call)
            self.tally.counts[reason] += 1
            self.tally.examples[f"{reason} {len(self.tally.examples)}"] = (self.program, call, name, p, s)

    def reason(self, call, data, before, name, step, value, expected):
        """Return why a value may differ from the serial function's; None if it is wrong."""
        if self.is_rounding(call, data, before, name, step, value, expected):
            return "rounding"
        if self.close(value, self.repeated(call, data, before, name, step, self.without_rewrites)):
            return "rewrites"
        return "infinite" if self.is_infinite(value, expected) else None

    def close(self, value, expected, rtol=None):
        value, expected = np.asarray(value), np.asarray(expected)
        if (value.dtype, value.shape) != (expected.dtype, expected.shape):
            return False
        if value.dtype.kind not in "fc":
            return np.array_equal(value, expected)
        rtol = self.rounding[0]
        largest = np.max(np.abs(expected[np.isfinite(expected)]), initial=0)
        return np.allclose(value, expected, rtol, atol=rtol * max(1e-3, min(1.0, float(largest))), equal_nan=True)

    def is_rounding(self, call, data, before, name, step, value, expected):
        """Return whether small changes of the data change this value of the serial function by a similar amount."""
        r = np.random.RandomState(0)
        spread = np.zeros(value.shape)
        for _ in range(4):
            state = {key: self.jittered(r, array) for key, array in before.items()}
            other = self.repeated(call, [self.jittered(r, array) for array in data], state, name, step, self.serial)
            if other is None:
                return True
            change = np.asarray(np.abs(np.asarray(other, complex) - np.asarray(expected, complex)))
            change[np.isnan(np.asarray(other, complex)) != np.isnan(np.asarray(expected, complex))] = np.inf
            spread = np.fmax(spread, change)
        away = np.abs(np.asarray(value, complex) - np.asarray(expected, complex))
        same = np.isclose(value, expected, self.rounding[0], equal_nan=True)
        return bool(np.all(same | (away <= AMPLIFICATION * spread) | np.isinf(spread)))

    def repeated(self, call, data, state, name, step, function):
        """Return a value of another call to the serial function, or to one without rewrites; None if it fails."""
        self.restore(state)
        results = self.attempt(lambda: self.serially(call, data, function))
        if isinstance(results, Exception):
            return None
        return self.theirs[name].get_value() if name in state else results[self.outputs.index(name)][step]

    def without_rewrites(self, *data):
        """Call the serial function without the library's rewrites, which may fold 0 / 0 to 0."""
        if self.plain is None:
            self.plain = self.graph.serial(self.outputs, self.updates, mode=self.library.UNOPTIMIZED)
        return self.plain(*data)

    def is_infinite(self, value, expected):
        """Return whether infinite parts have added up to NaN in place of infinite serial values (docs/exact.rst)."""
        infinite = np.isnan(value) & ~np.isfinite(expected)
        return value.dtype.kind in "fc" and bool(infinite.any()) and self.close(value[~infinite], expected[~infinite])

    def jittered(self, r, array):
        if array.dtype.kind not in "fc":
            return array
        return (array * (1 + self.rounding[1] * r.standard_normal(array.shape))).astype(array.dtype)

    # -- calls -------------------------------------------------------------------------------------------------------

    @staticmethod
    def attempt(function):
        try:
            return function()
        except Exception as error:
            return error

    def state(self):
        return {name: shared.get_value() for name, shared in self.theirs.items()}

    def restore(self, values):
        for name, value in values.items():
            self.theirs[name].set_value(value)

    def selected(self, data, rows):
        return [array.take(rows, leaf.axis) if leaf.role == "rows" else array for leaf, array in zip(self.leaves, data)]

    def serially(self, call, data, function):
        if call.form == "batch":
            choice = slice(call.choice) if isinstance(call.choice, int) else call.choice
            data = self.selected(data, np.arange(call.rows)[choice])
        calls = [self.selected(data, rows) for rows in call.choice] if call.form == "steps" else [data]
        return list(zip(*[function(*one) for one in calls]))

    def in_parallel(self, call, data):
        """Return the results of each output, in all steps."""
        if call.form == "steps":
            return self.exact.steps(*data, batches=call.choice)
        options = {"slices": {"num_slices": call.choice}, "batch": {"batch": call.choice}}.get(call.form, {})
        return [[result] for result in self.exact(*data, **options)]
