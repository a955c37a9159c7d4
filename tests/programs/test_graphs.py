"""Random graphs on ranks give the serial program's values; wrong graphs are found and shrunk.

``make prove`` draws 20,000 graphs. Tables test the bounds: rounding errors pass, and larger errors do not.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import bugs
import numpy as np
import pytest
from library import NAME

pytestmark = getattr(pytest.mark, NAME)

import graph_growth  # noqa: E402
from graph_check import WrongGraph, check, grown  # noqa: E402
from graph_growth import Growth  # noqa: E402
from graph_shrinking import shortest  # noqa: E402
from graph_tally import Tally  # noqa: E402
from graph_values import Expected  # noqa: E402

from synkhronos.engines.graph.operations import CheckShapesOp  # noqa: E402

ROOT = Path(__file__).parents[2]


def checked(seeds, launcher="threads"):
    tally = Tally()
    for seed in seeds:
        graph = grown(f"tests {seed}")
        if graph is not None:
            tally.add(check(graph, launcher))
    return tally


@pytest.mark.thorough
def test_threads():
    tally = checked(range(40))
    assert tally.compared > 150 and sum(tally.reasons.values()) < 0.5 * tally.offered, str(tally)
    assert tally.undecided < 0.1 * tally.compared and not tally.none > 0.3 * tally.graphs


def test_processes():
    assert checked(range(40, 55), "fork").compared > 50


def test_the_same_seed_grows_the_same_graph():
    one, other = (grown("the same") for _ in range(2))
    assert one.text() == other.text() != grown("another").text()


@pytest.mark.long
def test_much_is_drawn():
    """The generator draws all required types, operations and ways to call."""
    seen = Counter()
    for seed in range(400):
        graph = Growth(np.random.RandomState(seed)).graph()
        seen.update(one.dtype for one in graph.inputs)
        seen.update(f"{step.how} {option}" for step in graph.steps for option in step.options)
        seen.update(step.how for step in graph.steps)
        seen.update([graph.exact, graph.optimizer, graph.n, bool(graph.updates), bool(graph.outputs)])
        seen.update(axis for one in graph.inputs for axis in [one.axis] if one.axis)
        text = " ".join(line.text for line in graph.lines)
        seen.update(word for word in WORDS if word in text)
    wanted = [*WORDS, "bool", "int8", "int32", "int64", "uint8", "uint64", "float16", "float32", "float64", "complex64"]
    wanted += ["call", "steps", "set_value", "call batch", "call num_slices", "steps batches", "steps n_steps"]
    wanted += [True, False, None, "fast_compile", "fast_run", 1, 2, 3]
    assert sorted(map(str, set(wanted) - set(seen))) == []


WORDS = [
    *("T.grad", "T.grad(T.sum(T.sqr(T.grad", "L.scan", "n_steps=", "T.dot", "tensordot", "batched_dot", "dimshuffle"),
    *("reshape", "flatten", "concatenate", "T.split", "T.stack", "set_subtensor", "inc_subtensor", "nonzero", "unique"),
    *("T.eye", "T.tri(", "T.arange", "T.switch", "softmax", "logsoftmax", "T.log(T.sum(T.exp", "T.sort", "T.cumsum"),
    *("dtype=", "acc_dtype=", "keepdims=True", "T.prod", "T.max", "T.argmax", "T.cast", ".shape[", ".mean()"),
]


def rows(g):
    """Return the names of float inputs that have rows."""
    return [name for name in g.pool if name[0] == "x" and g.variable(name).dtype.startswith("float")]


def above_the_mean(name):
    return f"{name}[T.gt({name}, {name}.mean()).nonzero()]"


#: Graphs that expose a bug quickly: their operations, and how their inputs are drawn.
WHERE = {
    bugs.max_for_min: ([lambda g: f"T.tanh(T.min({g.one([1, 2], 'f')}, axis=0))"], ["unit"]),
    bugs.news_are_kept: ([graph_growth.model_gradient, graph_growth.binary], None),
    bugs.bools_are_added: ([lambda g: f"T.dot({g.one([1, 2], 'b')}.T, {g.one([1, 2], 'b')})"], None),
    bugs.every_rank_truncates: ([lambda g: f"T.sum({g.choice(rows(g))}, axis=0, dtype='int32')"], ["unit"]),
    bugs.every_rank_wraps: ([lambda g: f"T.sum({g.one([1, 2], 'i')}, axis=0, dtype='int32') / 2.0"], ["large"]),
    bugs.every_rank_rounds: ([lambda g: f"T.cast(T.sum({g.one(2, 'f')}, axis=0), 'float16')"], ["cancelling"]),
    bugs.negative_positions_stay_on_the_rank: (
        [lambda g: "{0}.flatten()[T.arange({0}.shape[0]) * {0}.shape[1] - 1]".format(g.one(2))],
        ["unit"],
    ),
    bugs.shapes_of_the_rank: ([lambda g: f"T.sum(T.ones_like({above_the_mean(g.one(1, 'f'))}))"], ["unit"]),
    bugs.rewritten_too_late: ([lambda g: f"T.log(T.sum(T.exp({g.choice(rows(g))} * 512)))"], ["large"]),
}


def found_by_a_value(bug, graphs=200):
    """Check graphs until a value is wrong; return the shrunk graph, or None."""
    operations, styles = WHERE.get(bug, (None, None))
    for seed in range(graphs):
        graph = grown(f"tests {seed}", operations=operations, styles=styles, n_operations=6 if operations else 14)
        try:
            if graph is not None:
                check(graph)
        except WrongGraph as wrong:
            if wrong.kind in ("value", "ranks differ"):
                return shortest(wrong)
    return None


@pytest.mark.long
@pytest.mark.parametrize(
    "bug",
    [bugs.collective_left_out, bugs.length_of_the_rank, bugs.max_for_min, bugs.news_are_kept, *bugs.OF_GRAPHS],
    ids=lambda bug: bug.__name__,
)
def test_planted_bug_is_found_by_a_value_and_made_small(monkeypatch, bug):
    plant = bugs.Plant(monkeypatch, NAME)
    bug(plant)
    small = found_by_a_value(bug)
    assert small is not None, "no value was wrong"
    assert len(small.graph.lines) <= 5, small.graph.text()
    plant.pull_out()
    check(small.graph)
    assert any(line.startswith("print('serial'") for line in small.graph.text().splitlines())


@pytest.mark.long
def test_an_update_of_another_shape_must_raise_an_error(monkeypatch):
    """Without the check of shapes, the elements of a matrix and of its transpose are combined one by one."""

    def unchecked(operation, node, inputs, outputs):
        outputs[0][0] = inputs[0]

    monkeypatch.setattr(CheckShapesOp, "perform", unchecked)
    product = [lambda g: "T.dot(x0.T, T.concatenate([x0, x0], axis=1))"]
    with pytest.raises(WrongGraph) as caught:
        for seed in range(100):
            graph = grown(f"tests {seed}", operations=product, n_operations=1)
            if graph is not None:
                check(graph)
    assert caught.value.kind == "no error"


@pytest.mark.long
def test_the_text_of_a_graph_is_a_program(tmp_path):
    graphs = [graph for graph in (grown(f"text {i}") for i in range(12)) if graph is not None and graph.exact]
    graph = next(graph for graph in graphs if graph.updates and not check(graph).refused)
    path = tmp_path / "program.py"
    path.write_text(graph.text())
    command = [sys.executable, "-W", "ignore", str(path)]
    done = subprocess.run(command, cwd=str(ROOT), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=100)
    out = done.stdout.decode()
    assert done.returncode == 0 and out.count("serial") >= out.count("ours  "), out


@pytest.mark.parametrize(
    "value, plain, others, actual, is_wrong",
    [
        (1.0, 1.0, [1.0, 1.0], 1.0 + 1e-15, False),
        (1.0, 1.0, [1.0, 1.0], 1.0 + 1e-12, True),
        (1e-3, 1e-3, [1e-3 + 1e-9, 1e-3], 1e-3 + 2e-9, False),  # a small sum of large numbers
        (1e-3, 1e-3, [1e-3 + 1e-9, 1e-3], 1e-3 + 1e-6, True),
        (3.5, np.inf, [np.inf, np.inf], 3.5 + 1e-9, False),  # the optimizer stabilizes the value
        (3.5, np.inf, [np.inf, np.inf], np.inf, True),
        (3.5, np.inf, [np.inf, np.inf], 3.6, True),
        (np.inf, np.inf, [np.inf, np.inf], np.inf, False),
        (np.inf, np.inf, [np.inf, np.inf], -np.inf, True),
        (np.nan, np.nan, [np.nan, np.nan], 1.0, True),
        (np.nan, np.nan, [1.0, np.nan], 1.0, False),  # rounding determines whether the value is a number
        (np.float32(1), np.float32(1), [np.float32(1)], np.float32(1 + 1e-6), False),
        (np.float32(1), np.float32(1), [np.float32(1)], np.float32(1 + 1e-4), True),
        (np.float32(1), np.float32(1), [np.float32(1)], np.float64(1), True),
        (3, 3, [3, 3], 3, False),
        (3, 3, [3, 3], 4, True),
        (3, 3, [3, 4], 4, False),  # a truncated mean that is an integer up to rounding
        (np.array([1, 2]), np.array([1, 2]), [np.array([1, 2])], np.array([1, 2, 3]), True),
        (np.array([1, 2]), np.array([1, 2]), [np.array([1, 2, 3])], np.array([1, 2, 3]), False),
    ],
)
def test_what_counts_as_rounding(value, plain, others, actual, is_wrong):
    assert (Expected(value, plain, others).differs(actual) is not None) is is_wrong
