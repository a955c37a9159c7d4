"""Odd values for every argument of the public interface: a typed error without changes, or a correct result."""

from __future__ import annotations

import os
import random
import signal
import warnings
from collections import Counter
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import numpy as np
from everyday import Look, Wrong, same

import synkhronos as synk
from pieces.odd_values import Evil, odd
from pieces.report import Row, check_nothing_left, clean, scaled
from synkhronos.program.program import PROGRAM
from synkhronos.replication.replicator import replicator_of
from synkhronos.runtime.command import Command
from synkhronos.testing import numpy_engine as engine

CASES = 90000

#: A name in /dev/shm that only this program uses, because several campaigns may run at a time.
SHARED_AS = f"/odd-arguments-{os.getpid()}"

#: Time limit for a call in seconds.
HANG = 20

N = 2

#: Accepted exceptions: OSErrors for texts that are used as paths, MemoryErrors for arrays that would be too large.
TYPED = (TypeError, ValueError, IndexError, OSError, MemoryError, synk.SynkhronosError, Evil)


class Put(Command):
    """Set each rank's values of the variables."""

    def __init__(self, numbers: List[int], values: List[List[np.ndarray]]) -> None:
        self.numbers, self.values = numbers, values

    def run(self, context: Any) -> None:
        for number, value in zip(self.numbers, self.values[context.rank]):
            its_engine, variable = context.registry.shareds[number]
            its_engine.put(variable, np.array(value))


class Call(NamedTuple):
    """One public call: its valid arguments, and its expected result."""

    name: str
    function: Callable
    right: Callable[[], Dict[str, Any]]
    #: Called with the arguments, the values before and after, and the result; returns the expected values and result,
    #: or None if it cannot compute them (for unknown forms of arguments).
    truth: Optional[Callable] = None


def hangs(*_: Any) -> None:
    raise Wrong("a call hangs")


class Bench:
    """A session with variables and functions for the calls."""

    def __init__(self) -> None:
        self.w, self.c = engine.shared(np.zeros(4), "w"), engine.shared(np.zeros((), "int64"), "c")
        x, b = engine.variable("x", "float64", 1), engine.variable("b", "float64", 0)
        self.f = synk.function(
            [x],
            [(engine.mean(x), "avg"), (x * 2, "gather")],
            bcast_inputs=[b],
            updates=[(self.w, self.w + b)],
            name="f",
        )
        self.s = synk.function([], [(engine.sum(self.w), "sum"), (self.c, None)], sliceable_shareds=[self.w], name="s")
        self.base = [[np.arange(4.0) + 10 * rank, np.array(rank)] for rank in range(N)]
        self.draw = random.Random(0)
        self.open()

    def open(self) -> None:
        PROGRAM.open(N, 0, pin=False)
        replicator = replicator_of(PROGRAM.session)
        replicator.ensure([self.f, self.s])  # not distribute(): it might fail to pickle odd functions of earlier cases
        self.numbers = [replicator.find(engine.ENGINE, shared) for shared in (self.w, self.c)]
        self.reset()

    def reset(self) -> None:
        PROGRAM.session.run(Put(self.numbers, self.base))

    def look(self) -> List[List[np.ndarray]]:
        return PROGRAM.session.run(Look(self.numbers))

    def check_steps(self, given: Dict[str, Any], before: Any, error: Any) -> None:
        """Raise if the values do not match the number of steps in an error."""
        raise Wrong(f"there are no steps here: {error}")

    def calls(self) -> List[Call]:
        """Return all calls."""
        w, draw = self.w, self.draw

        def call_f(**given: Any) -> Any:
            return self.f(*given.pop("args"), **given)

        def on_data(method: str) -> Callable:
            def call(**given: Any) -> Any:
                data = synk.data(np.arange(6.0).reshape(3, 2))
                before = np.array(data)
                try:
                    result = getattr(data, method)(**given)
                except BaseException:
                    if not np.array_equal(np.array(data), before):
                        raise Wrong(f"Data.{method} changed it and raised") from None
                    raise
                assert data.shape == np.array(data.data).shape if method != "free_memory" else True
                return result

            return call

        def index_data(rows: Any, values: Any) -> None:
            data, array = synk.data(np.arange(6.0)), np.arange(6.0)
            try:
                expected: Any = array[rows]
            except Exception as error:
                expected = type(error)
            try:
                got: Any = data[rows]
            except Exception as error:
                got = type(error)
            if not (got is expected if isinstance(expected, type) else np.array_equal(got, expected, equal_nan=False)):
                raise Wrong(f"Data[{rows!r}]: {got!r}, NumPy's: {expected!r}")
            try:
                array[rows] = values
            except Exception as error:
                expected = type(error)
            try:
                data[rows] = values
            except Exception as error:
                if type(error) is not expected:
                    raise
                return
            if not np.array_equal(data, array, equal_nan=True):
                raise Wrong(f"Data[{rows!r}] = {values!r}: {np.array(data)!r}, NumPy's: {array!r}")

        def build(**given: Any) -> Any:
            function = synk.function(**given)
            return function(np.arange(5.0)) if len(function._arguments.inputs) == 1 else None

        def fork(**given: Any) -> None:
            synk.close()
            try:
                if synk.fork(**given) != synk.size():
                    raise Wrong("fork returned another number than size()")
                synk.close()
            finally:
                synk.close()
                self.open()

        x = engine.variable("x", "float64", 1)
        return [
            Call(
                "f()",
                call_f,
                lambda: dict(
                    args=[np.arange(draw.randrange(2, 9) * 1.0), draw.random()],
                    batch=draw.choice([None, 2, slice(0, 2)]),
                    num_slices=draw.choice([1, 2]),
                    output_subset=draw.choice([None, [0], [1, 0]]),
                    timeout=30,
                    batch_s=None,
                ),
                self.truth_of_f,
            ),
            Call("f(kw)", lambda **given: self.f(**given), lambda: dict(x=np.arange(5.0), b=1.0)),
            Call("s()", lambda **given: self.s(**given), lambda: dict(batch_s=[0, 1], num_slices=1)),
            Call(
                "as_theano", lambda **given: self.f.as_theano(*given["args"]), lambda: dict(args=[np.arange(3.0), 0.0])
            ),
            Call(
                "build_inputs",
                self.f.build_inputs,
                lambda: dict(x=np.arange(3.0), b=1.0, force_cast=False, oversize=1.0, minibatch=False),
            ),
            Call(
                "function",
                build,
                lambda: dict(
                    inputs=[x],
                    outputs=[(engine.mean(x), "avg")],
                    bcast_inputs=None,
                    updates=[(w, w + 1)],
                    givens=None,
                    sliceable_shareds=None,
                    name=None,
                ),
            ),
            Call(
                "data",
                synk.data,
                lambda: draw.choice(
                    [
                        dict(
                            value=np.arange(4.0),
                            var=None,
                            dtype=None,
                            ndim=None,
                            minibatch=False,
                            force_cast=False,
                            oversize=1,
                            name=None,
                        ),
                        dict(dtype="float32", ndim=1),
                        dict(dtype="float32", shape=(2, 3)),
                        dict(value=[1, 2], share_as=SHARED_AS),
                    ]
                ),
                self.truth_of_data,
            ),
            Call(
                "Data.set_value",
                on_data("set_value"),
                lambda: dict(value=np.ones((2, 2)), force_cast=False, oversize=1),
            ),
            Call("Data.set_length", on_data("set_length"), lambda: dict(n=5, oversize=1.5)),
            Call("Data.set_shape", on_data("set_shape"), lambda: dict(shape=(4, 4), oversize=1)),
            Call(
                "Data.condition_data", on_data("condition_data"), lambda: dict(value=np.ones((2, 2)), force_cast=True)
            ),
            Call("Data[]", index_data, lambda: dict(rows=slice(0, 2), values=1.0)),
            Call(
                "broadcast",
                synk.broadcast,
                lambda: dict(shared_vars=w, values=np.arange(3.0), nccl=True),
                self.truth_of_broadcast,
            ),
            Call(
                "scatter",
                synk.scatter,
                lambda: dict(shared_vars=w, values=np.arange(7.0), batch=None),
                self.truth_of_scatter,
            ),
            Call(
                "gather",
                synk.gather,
                lambda: dict(shared_vars=w, nd_up=draw.choice([0, 1]), nccl=True),
                self.truth_of_gather,
            ),
            Call("all_gather", synk.all_gather, lambda: dict(shared_vars=w, nccl=True), self.truth_of_all_gather),
            Call(
                "reduce",
                synk.reduce,
                lambda: dict(shared_vars=w, op="sum", in_place=True, nccl=True),
                self.truth_of_reduce,
            ),
            Call(
                "all_reduce",
                synk.all_reduce,
                lambda: dict(shared_vars=w, op=draw.choice(["avg", "sum"]), nccl=True, weights=None),
                self.truth_of_all_reduce,
            ),
            Call("set_value", synk.set_value, lambda: dict(rank=1, shared_vars=w, values=np.ones(2), batch=None)),
            Call("get_value", synk.get_value, lambda: dict(rank=1, shared_vars=w), self.truth_of_get_value),
            Call(
                "get_lengths",
                synk.get_lengths,
                lambda: dict(shared_vars=w),
                lambda given, before: (before, [4] * N) if given["shared_vars"] is w else None,
            ),
            Call(
                "get_shapes",
                synk.get_shapes,
                lambda: dict(shared_vars=w),
                lambda given, before: (before, [(4,)] * N) if given["shared_vars"] is w else None,
            ),
            Call(
                "in_sync",
                lambda **given: bool(synk.in_sync(**given)),
                lambda: dict(shared_vars=w),
                lambda given, before: (before, False) if given["shared_vars"] is w else None,
            ),
            Call(
                "fork",
                fork,
                lambda: dict(
                    n_parallel=2,
                    use_gpu=None,
                    master_rank=0,
                    profile_workers=False,
                    max_n_var=None,
                    max_dim=None,
                    seed=None,
                    random="split",
                    timeout=None,
                    pin=False,
                    threads=None,
                    heal=None,
                    standby=True,
                ),
            ),
        ]

    # -- truth, from NumPy -----------------------------------------------------------------------------------------

    def truth_of_f(self, given: Dict[str, Any], before: Any) -> Any:
        if given.get("batch_s") is not None:
            return None
        rows, b = (np.asarray(value.data if isinstance(value, synk.Data) else value) for value in given["args"])
        batch = np.asarray(given["batch"]) if isinstance(given["batch"], synk.Data) else given["batch"]
        if batch is not None:
            if isinstance(given["args"][0], synk.Data) and given["args"][0].minibatch:
                return None
            if isinstance(batch, (slice, list, tuple, range)) or isinstance(batch, np.ndarray) and batch.ndim:
                rows = rows[batch if isinstance(batch, slice) else np.asarray(batch, int)]
            else:
                rows = rows[: int(batch)]
        results: List[Any] = [np.mean(rows, dtype=float) if len(rows) else np.nan, rows * 2.0]
        subset = given["output_subset"]
        if subset is not None:
            results = [results[int(i)] for i in subset]
        taking = [rank for rank in range(N) if rank < len(rows) or not len(rows)]
        return [[value + b if rank in taking else value, c] for rank, (value, c) in enumerate(before)], results

    def truth_of_data(self, given: Dict[str, Any], before: Any) -> Any:
        return None

    def truth_of_broadcast(self, given: Dict[str, Any], before: Any) -> Any:
        if given["shared_vars"] is not self.w:
            return None
        value = before[0][0] if given["values"] is None else self.as_value(given["values"])
        return [[value, c] for _, c in before], None

    def as_value(self, values: Any) -> np.ndarray:
        """Return the value that a separate variable would store."""
        twin = engine.shared(np.zeros(4), "twin")
        twin.set_value(np.asarray(values.data) if isinstance(values, synk.Data) else values)
        return twin.get_value()

    def truth_of_scatter(self, given: Dict[str, Any], before: Any) -> Any:
        if given["shared_vars"] is not self.w or given["batch"] is not None:
            return None
        parts = np.array_split(self.as_value(given["values"]), N)
        return [[part, c] for part, (_, c) in zip(parts, before)], None

    def truth_of_gather(self, given: Dict[str, Any], before: Any) -> Any:
        if given["shared_vars"] is not self.w:
            return None
        values = [value for value, _ in before]
        return before, np.stack(values) if given["nd_up"] == 1 else np.concatenate(values)

    def truth_of_all_gather(self, given: Dict[str, Any], before: Any) -> Any:
        if given["shared_vars"] is not self.w:
            return None
        whole = np.concatenate([value for value, _ in before])
        return [[whole, c] for _, c in before], None

    def combined(self, op: Any, before: Any, weights: Any = None) -> np.ndarray:
        values = np.stack([value for value, _ in before])
        op = str(op)
        if op.startswith("c_"):
            op = op[2:]
        if op == "avg":
            return np.average(values, axis=0, weights=weights)
        return getattr(np, op)(values, axis=0)

    def truth_of_reduce(self, given: Dict[str, Any], before: Any) -> Any:
        if given["shared_vars"] is not self.w:
            return None
        value = self.combined(given["op"], before)
        if given["in_place"]:
            return [[value, before[0][1]]] + before[1:], None
        return before, value

    def truth_of_all_reduce(self, given: Dict[str, Any], before: Any) -> Any:
        weights = given["weights"]
        if given["shared_vars"] is not self.w or isinstance(weights, synk.Function):
            return None
        return [[self.combined(given["op"], before, weights), c] for _, c in before], None

    def truth_of_get_value(self, given: Dict[str, Any], before: Any) -> Any:
        if given["shared_vars"] is not self.w:
            return None
        return before, before[int(given["rank"])][0]


def close_enough(a: Any, b: Any) -> bool:
    """Compare results: numbers, arrays, or lists of them."""
    if isinstance(b, list):
        return isinstance(a, list) and len(a) == len(b) and all(map(close_enough, a, b))
    if b is None or isinstance(b, (bool, tuple)):
        return a is b or a == b
    return np.shape(a) == np.shape(b) and bool(np.allclose(a, b, rtol=1e-12, equal_nan=True))


def distort(draw: random.Random, given: Dict[str, Any], bench: Bench) -> Dict[str, Any]:
    """Replace up to two arguments by odd values, or add an unknown argument."""
    given = dict(given)
    for _ in range(draw.choice((0, 1, 1, 1, 1, 2))):
        name = draw.choice(list(given) + (["foreign"] if draw.random() < 0.05 else []))
        if name == "args":
            given["args"] = list(given["args"])
            place = draw.randrange(len(given["args"]))
            given["args"][place] = odd(draw)
        elif name == "shared_vars" and draw.random() < 0.3:
            given[name] = draw.choice([[bench.w, bench.c], [bench.w, bench.w], (bench.c,), bench.c, [bench.w]])
        else:
            given[name] = odd(draw)
    return given


def play(bench: Bench, call: Call, given: Dict[str, Any]) -> str:
    """Make the call; return "right", "done" (the expected result is unknown) or the type of the error."""
    before = bench.base
    try:
        result = call.function(**given)
    except TYPED as error:
        if (
            isinstance(error, (synk.WorkerDied, synk.WorkerTimeout))
            or PROGRAM.session is None
            or PROGRAM.session.closed
        ):
            raise Wrong(f"the session died: {error}") from error
        if not isinstance(error, (Evil, MemoryError)) and not str(error):
            raise Wrong(f"an error without a word: {error!r}") from error
        if hasattr(error, "steps"):
            bench.check_steps(given, before, error)
            bench.reset()
        elif not isinstance(error, synk.WorkerError):
            after = [[bench.w.get_value(), bench.c.get_value()]]
            if not all(same(a, b) for a, b in zip(after, before)):
                raise Wrong(f"the error left other values: {error}") from error
        else:
            bench.reset()
        return type(error).__name__
    truth = None if call.truth is None else call.truth(given, before)
    if truth is not None:
        values, expected = truth
        after = bench.look()
        if not all(close_enough(list(a), list(b)) for a, b in zip(after, values)):
            raise Wrong(f"the values are {after!r}, expected {values!r}")
        if not close_enough(result, expected):
            raise Wrong(f"the result is {result!r}, expected {expected!r}")
    bench.reset()
    return "right" if truth is not None else "done"


def fuzz(bench: Bench, calls: List[Call], cases: int, progress: Any, seed: int, first: int = 0) -> str:
    """Make calls with odd arguments, from case ``first`` on; return the outcomes. The last call is made rarely."""
    warnings.simplefilter("ignore")
    outcomes: Counter = Counter()
    for call in calls:
        outcome = play(bench, call, call.right())
        if outcome not in ("right", "done"):
            raise Wrong(f"{call.name} with the right arguments: {outcome}")
    signal.signal(signal.SIGALRM, hangs)
    for i in range(first, cases):
        draw = bench.draw = random.Random(f"{seed} {i}")
        call = draw.choice(calls[:-1]) if draw.random() > 0.01 else calls[-1]
        given = distort(draw, call.right(), bench)
        signal.alarm(HANG)
        try:
            outcomes[play(bench, call, given)] += 1
        except BaseException as error:
            signal.alarm(0)
            raise Wrong(f"case {i}: {call.name}({describe(given)}): {type(error).__name__}: {error}") from error
        signal.alarm(0)
        del given
        if i % 20 == 0:  # check all ranks
            for rank, got in enumerate(bench.look()):
                if not same(got, bench.base[rank]):
                    raise Wrong(f"case {i}: rank {rank} has {got!r}")
        progress("arguments", i + 1, cases)
    synk.close()
    check_nothing_left()
    PROGRAM.shut_down()
    return ", ".join("{} {}".format(name, f"{number:,}") for name, number in outcomes.most_common())


def run(scale: float, progress: Any, seed: int = 1, first: int = 0) -> List[Row]:
    """Run the piece from case ``first`` on."""
    bench, cases = Bench(), scaled(CASES, scale)
    calls = bench.calls()
    told = fuzz(bench, calls, cases, progress, seed, first)
    assert not os.path.exists("/dev/shm" + SHARED_AS)
    return [Row(f"odd arguments of the public interface ({len(calls)} calls, 2 ranks)", cases, clean([told]))]


def describe(given: Dict[str, Any]) -> str:
    """Return arguments as text, even if ``repr`` fails."""
    parts = []
    for name, value in given.items():
        try:
            parts.append(f"{name}={value!r:.300}")
        except BaseException as error:
            parts.append(f"{name}=<{type(value).__name__} whose repr raises {type(error).__name__}>")
    return ", ".join(parts)
