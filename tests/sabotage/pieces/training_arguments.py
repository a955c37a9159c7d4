"""Odd arguments of steps, of collectives in graphs, and of communication rules."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

import numpy as np
from everyday import Wrong, same

import synkhronos as synk
from pieces.arguments import Bench, Call, fuzz
from pieces.report import Row, clean, scaled
from synkhronos.extensions import rules
from synkhronos.testing import numpy_engine as engine

CASES = 30000

#: Number of steps that would exceed a case's time limit.
MANY = 1000


class TrainingBench(Bench):
    """A session with functions for training."""

    def __init__(self) -> None:
        super().__init__()
        self.v = engine.shared(np.zeros(4), "v")  # rules may change this variable
        x = engine.variable("x", "float64", 1)
        self.train = synk.function([x], (engine.mean(x), "avg"), updates=[(self.v, self.v + engine.mean(x))])

    # -- calls -----------------------------------------------------------------------------------------------------

    def steps(self, **given: Any) -> Any:
        n_steps = given.get("n_steps")
        if given["batches"] is None and isinstance(n_steps, (int, np.integer)) and n_steps > MANY:
            given["n_steps"] = 2
        return self.f.steps(*given.pop("args"), **given)

    def check_steps(self, given: Dict[str, Any], before: Any, error: Any) -> None:
        value, c = before[0]
        for _ in range(error.steps[0]):
            value = value + given["args"][1]
        if not same([self.w.get_value(), self.c.get_value()], [value, c]):
            raise Wrong(f"other values than after {error.steps} steps: {self.w.get_value()}") from error

    def truth_of_steps(self, given: Dict[str, Any], before: Any) -> Any:
        if given["batches"] != BATCHES or given["n_steps"] is not None or given["on_step"] is not None:
            return None
        rows, b = (np.asarray(value.data if isinstance(value, synk.Data) else value) for value in given["args"])
        if rows.ndim != 1 or given["total"] is not False or given["output_subset"] is not None:
            return None
        results = [
            np.array([rows[batch].mean(dtype=float) for batch in BATCHES]),
            [2.0 * rows[batch] for batch in BATCHES],
        ]
        values = [[value + b * len(BATCHES), c] for value, c in before]
        return values, results

    def all_reduced(self, x: Any, op: Any) -> Any:
        """Call a function with a collective in its graph on 5 rows; rank 0 has 3 of them."""
        y = synk.ops.all_reduce(x, op)
        return synk.function([self.of_ops], [(one, None) for one in (y if isinstance(y, list) else [y])], exact=False)(
            ROWS
        )

    def truth_of_all_reduce_inside(self, given: Dict[str, Any], before: Any) -> Any:
        op = given["op"]
        if given["x"] is not self.mean or not isinstance(op, str):
            return None
        means = [ROWS[:3].mean(), ROWS[3:].mean()]
        name = op[2:] if op.startswith("c_") else op
        return before, [np.average(means, weights=[3, 2]) if name == "avg" else getattr(np, name)(means)]

    def ruled(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that makes a rule and uses all its methods."""

        def call(**given: Any) -> None:
            made = rule(**given)
            made()
            self.v.set_value(np.ones(4))  # from here on, errors do not concern arguments
            try:
                if isinstance(made, rules.DASO):
                    made.epoch(0.5)
                made()
                with made.consensus():
                    pass
                made.finish()
            except ValueError as error:
                # (Swap has no consensus.)
                if not str(error).startswith("rule: expected a rule with a consensus of all ranks"):
                    raise

        return call

    def run_rule(self, **given: Any) -> Any:
        rule = given.pop("rule")(self.train, params=[self.v], every=2)
        return rule.run(*given.pop("args"), **given)

    def training_calls(self) -> List[Call]:
        """Return all calls."""
        self.of_ops = engine.variable("x", "float64", 1)
        self.mean = engine.mean(self.of_ops)
        common: Dict[str, Callable[[], Any]] = {
            "function": lambda: self.draw.choice([None, self.train, self.f]),
            "params": lambda: [self.v],
            "state": lambda: None,
            "every": lambda: self.draw.choice([1, 2]),
        }
        own: Dict[Any, Dict[str, Any]] = {
            rules.LocalSGD: dict(start=0, groups=None, exchange=None, state_is="averaged"),
            rules.Gossip: dict(probability=0.5, seed=0, state_is="kept"),
            rules.Swap: dict(seed=0),
            rules.EASGD: dict(alpha=None, exchange=None, state_is="kept"),
            rules.ASGD: dict(rate=None, exchange=None, state_is="kept"),
            rules.DiLoCo: dict(
                start=0,
                outer_rate=0.7,
                outer_momentum=0.9,
                nesterov=True,
                delay=0,
                merge="delta",
                mix=1.0,
                exchange=None,
                fragments=1,
                state_is="kept",
            ),
            rules.SlowMo: dict(start=0, momentum=0.5, rate=1.0, state_is="kept"),
            rules.DASO: dict(
                groups=[[0], [1]],
                epochs=9,
                warm_up=0,
                cool_down=1,
                largest=4,
                patience=2,
                threshold=0.05,
                merge="delta",
                exchange=None,
                state_is="kept",
            ),
        }

        def right(rule: Any) -> Callable[[], Dict[str, Any]]:
            names = [name for name in common if rule is not rules.DASO or name != "every"]
            return lambda: {**{name: common[name]() for name in names}, **own[rule]}

        return [
            Call(
                "steps",
                self.steps,
                lambda: dict(
                    args=[np.arange(8.0), self.draw.random()],
                    batches=[list(batch) for batch in BATCHES],
                    batches_s=None,
                    n_steps=None,
                    on_step=None,
                    output_subset=None,
                    num_slices=self.draw.choice([1, 2]),
                    total=False,
                    timeout=30,
                ),
                self.truth_of_steps,
            ),
            Call(
                "ops.all_reduce",
                self.all_reduced,
                lambda: dict(x=self.mean, op=self.draw.choice(["avg", "sum"])),
                self.truth_of_all_reduce_inside,
            ),
            Call(
                "rule.run",
                self.run_rule,
                lambda: dict(
                    rule=self.draw.choice([rules.EASGD, rules.LocalSGD]),
                    args=[ROWS],
                    batches=[[0, 1], [2, 3], [4]],
                    asynchronous=False,
                    record=False,
                    staleness=None,
                    timeout=30,
                ),
            ),
            *[Call(rule.__name__, self.ruled(rule), right(rule)) for rule in own],
        ]


BATCHES = [[0, 1, 2], [7, 3], [4, 5, 6, 1]]

ROWS = np.arange(5.0)


def run(scale: float, progress: Any, seed: int = 1, first: int = 0) -> List[Row]:
    """Run the piece from case ``first`` on."""
    bench, cases = TrainingBench(), scaled(CASES, scale)
    calls = bench.training_calls()
    told = fuzz(bench, calls, cases, progress, seed, first)
    title = (
        f"odd arguments of steps, of collectives in graphs, and of rules of communication ({len(calls)} calls, 2 ranks)"
    )
    return [Row(title, cases, clean([told]))]
