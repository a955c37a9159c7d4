"""Odd arguments of `function`, `ops` and update rules with Theano: a typed error, Theano's error, or a result."""

from __future__ import annotations

import random
import signal
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
from everyday import Wrong

import synkhronos as synk
from pieces.arguments import HANG, TYPED, describe, hangs
from pieces.odd_values import odd
from pieces.report import Row, check_nothing_left, clean, scaled
from synkhronos.extensions import updates
from synkhronos.program.program import PROGRAM

import theano  # isort: skip  (not before synkhronos, which prepares it)
import theano.tensor as T  # isort: skip

CASES = 4500

N = 2

#: Python code only, without the C compiler.
MODE = theano.Mode(linker="py", optimizer=None)

RULES = (
    "sgd",
    "momentum",
    "nesterov_momentum",
    "adagrad",
    "rmsprop",
    "adadelta",
    "adam",
    "adamax",
    "amsgrad",
    "sgd_nonflat",
)


class Bench:
    """Variables for building functions."""

    def __init__(self) -> None:
        self.w, self.c = theano.shared(np.arange(4.0), "w"), theano.shared(np.int64(3), "c")
        self.rows = theano.shared(np.arange(6.0), "rows")
        self.x, self.b = T.dvector("x"), T.dscalar("b")
        self.probe = synk.function(
            [self.x], [(self.x * 2, "gather"), self.x.mean()], updates=[(self.w, self.w + 1)], mode=MODE
        )
        PROGRAM.open(N, 0, pin=False)
        self.check()

    def check(self) -> None:
        """Raise if the session does not work."""
        rows, mean = self.probe(np.arange(5.0))
        if not np.array_equal(rows, 2 * np.arange(5.0)) or mean != 2.0:
            raise Wrong(f"the session: {rows!r}, {mean!r}")

    def right(self, draw: random.Random) -> Dict[str, Any]:
        """Return valid arguments of `function`."""
        x, w = self.x, self.w
        return dict(
            inputs=[x],
            outputs=draw.choice([x.sum(), [(x.mean(), "avg"), (x, "gather")], {"a": x.max()}]),
            bcast_inputs=draw.choice([None, [self.b]]),
            updates=draw.choice([None, [(w, w * 2)], {w: w + 1}]),
            givens=draw.choice([None, [], {}]),
            sliceable_shareds=draw.choice([None, []]),
            mode=MODE,
            on_unused_input="ignore",
            name=draw.choice([None, "named"]),
            allow_input_downcast=None,
            no_default_updates=False,
            profile=None,
        )

    def odd(self, draw: random.Random) -> Any:
        """Return an odd value, or one that is valid elsewhere."""
        return draw.choice(
            [lambda: odd(draw)] * 3
            + [
                lambda: draw.choice(
                    [
                        self.x,
                        [self.x, self.x],
                        [self.w],
                        self.w,
                        [self.rows],
                        [(self.w, self.x)],
                        {self.w: self.x},
                        [(self.w, self.w + 1, "sum"), (self.c, self.c + 1)],
                        [(self.c, self.c * 2, "avg")],
                        [(self.w, 1)],
                        [(self.x, "nonsense")],
                        [(self.x, "sum", 3)],
                        (self.x, "min"),
                        (self.c + 1),
                        [self.c + 1],
                        [T.dvector("batch")],
                        [theano.In(self.x, value=1)],
                        [theano.In(self.b, update=self.b)],
                        [T.dvector()] * 2,
                        {self.x: self.w},
                        [(self.w, self.rows)],
                    ]
                )
            ]
        )()

    def build(self, given: Dict[str, Any]) -> str:
        """Build a function, and call it on numbers."""
        function = synk.function(**given)
        function(np.arange(5.0), *[1.0] * len(given["bcast_inputs"] or []))
        return "done"

    def rule(self, draw: random.Random) -> str:
        """Build the updates of a rule with up to two odd arguments."""
        rule = getattr(updates, draw.choice(RULES))
        given: Dict[str, Any] = dict(
            loss_or_grads=T.sum(self.w**2) + T.sum(self.rows), params=[self.w, self.rows], learning_rate=0.1
        )
        for _ in range(draw.choice((0, 1, 1, 2))):
            given[draw.choice(list(given) + ["epsilon", "momentum", "beta1"])] = self.odd(draw)
        rule(**given)
        return "done"

    def copied(self, draw: random.Random) -> str:
        """Copy a function with up to two odd arguments."""
        given: Dict[str, Any] = dict(share_memory=False, swap=None, delete_updates=False, name=None)
        for _ in range(draw.choice((0, 1, 1, 2))):
            given[draw.choice(list(given))] = self.odd(draw)
        copy = self.probe.copy(**given)
        rows, mean = copy(np.arange(5.0))
        if not np.array_equal(rows, 2 * np.arange(5.0)) or mean != 2.0:
            raise Wrong(f"the copy: {rows!r}, {mean!r}")
        return "right"

    def in_graph(self, draw: random.Random) -> str:
        """Divide rows, reduce, or define an operation's rule, with up to two odd arguments."""
        kind = draw.choice(["shard", "all_reduce", "rule"])
        given: Dict[str, Any] = {
            "shard": lambda: dict(v=self.rows, axis=0),
            "all_reduce": lambda: dict(x=self.x.mean(), op=draw.choice(["avg", "sum"])),
            "rule": lambda: dict(op=own_operation(), axes="nk,km->nm", linear=[0, 1], powers=None, reduce="sum"),
        }[kind]()
        right = dict(given)
        for _ in range(draw.choice((0, 1, 1, 2))):
            given[draw.choice(list(given))] = self.odd(draw)
        made = getattr(synk.ops, kind)(**given)
        made = made if isinstance(made, list) else [made]
        if kind == "rule" or not all(isinstance(one, theano.Variable) for one in made):  # (there are other engines)
            return "done"
        result = synk.function([self.x], [one.sum() for one in made], mode=MODE, exact=True)(np.arange(6.0))
        if all(given[name] is right[name] for name in right):
            expected = 15.0 if kind == "shard" else 2.5  # as in the serial function, because the function is exact
            if result != [expected]:
                raise Wrong(f"{kind}: {result!r}, expected {expected}")
            return "right"
        return "done"


def own_operation() -> Any:
    """Return a class of operations that has no rule yet."""
    return type("Own", (theano.Op,), {"__props__": ()})


def is_theanos_own(error: BaseException) -> bool:
    """Return whether Theano raised the error."""
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    ours = max(i for i, name in enumerate(frames) if Path(synk.__file__).parent in Path(name).parents)
    return any(Path(theano.__file__).parent in Path(name).parents for name in frames[ours:])


def run(scale: float, progress: Any, seed: int = 1) -> List[Row]:
    """Run the piece."""
    warnings.simplefilter("ignore")
    bench, outcomes, cases = Bench(), Counter(), scaled(CASES, scale)
    signal.signal(signal.SIGALRM, hangs)
    for i in range(cases):
        draw = random.Random(f"{seed} {i}")
        given: Dict[str, Any] = {}
        signal.alarm(HANG)
        try:
            if i % 3 == 0:
                outcomes[bench.rule(draw)] += 1
            elif i % 3 == 1:
                outcomes[bench.copied(draw) if draw.random() < 0.2 else bench.in_graph(draw)] += 1
            else:
                given = bench.right(draw)
                for _ in range(draw.choice((0, 1, 1, 2))):
                    given[draw.choice(list(given))] = bench.odd(draw)
                outcomes[bench.build(given)] += 1
        except TYPED as error:
            outcomes[type(error).__name__] += 1
            if not synk.is_forked():
                raise Wrong(f"case {i}: the session ended") from error
        except BaseException as error:
            if not is_theanos_own(error):
                raise Wrong(f"case {i}: {describe(given)}: {type(error).__name__}: {error}") from error
            outcomes["Theano's " + type(error).__name__] += 1
        finally:
            signal.alarm(0)
        if i % 10 == 0:
            bench.check()
        progress("theano", i + 1, cases)
    bench.check()
    synk.close()
    check_nothing_left()
    PROGRAM.shut_down()
    told = ", ".join("{} {}".format(name, f"{number:,}") for name, number in outcomes.most_common())
    return [
        Row(
            "odd arguments of function(), of operations in graphs and of the update rules, with Theano",
            cases,
            clean([told]),
        )
    ]
