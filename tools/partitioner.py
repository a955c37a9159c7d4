"""Compare exact functions on JAX's devices with XLA's partitioner, which places the collectives of a serial program.

    python tools/partitioner.py --graphs 200 --models 100            # prints the table
    python tools/partitioner.py --graphs 200 --models 100 --write    # also writes docs/partitioner_table.inc

The serial graph of a random function (tests/programs, tests/fuzzers) is compiled by `jax.jit`, with inputs whose rows
are divided over the devices. Its values, and the values of our function, are compared with PyTensor's on one CPU. XLA's
collectives are counted in the compiled program, and ours by `Function.sharding`. Requires PyTensor and JAX.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "programs"), str(ROOT / "tests" / "fuzzers"), str(ROOT / "tests")]
os.environ.setdefault("PYTENSOR_FLAGS", "linker=py,cxx=")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "3")

import fuzz_check  # noqa: E402
import fuzz_pytensor  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402
from fuzz_program import Author  # noqa: E402
from graph_check import GraphCheck, grown, namespace_of  # noqa: E402
from graph_growth import drawn  # noqa: E402
from graph_values import Expected  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402
from pytensor import In, Out  # noqa: E402

import synkhronos  # noqa: E402, F401, before PyTensor
from synkhronos.engines.graph.snapshot import Source  # noqa: E402
from synkhronos.engines.pytensor.jax_graph import JaxGraph  # noqa: E402
from synkhronos.mesh.traces import OneRank, Rows  # noqa: E402
from synkhronos.program.program import PROGRAM  # noqa: E402
from synkhronos.sharding import Partial  # noqa: E402

DOCUMENT = ROOT / "docs" / "partitioner_table.inc"
HLO = re.compile(r" (all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all)(?:-start)?\(([^)]*)\)")
#: Rows of each device.
ROWS_EACH = 2

#: Kinds of differences.
KINDS = NEITHER, EQUAL, MORE, FEWER, MOVED, REFUSED = (
    "no communication",
    "equal numbers of reduced arrays",
    "XLA reduces more arrays",
    "XLA reduces fewer arrays",
    "XLA moves rows, too",
    "refused by ``synk.function``",
)


class Counts(NamedTuple):
    """Collectives of a function: XLA's by name, and its reduced arrays; ours, their arrays, and partial outputs."""

    xla: Counter[str]
    xla_arrays: int
    ours: int = 0
    our_arrays: int = 0
    partial: int = 0

    def kind(self) -> str:
        """Return the kind of difference, for a function that is not refused."""
        if set(self.xla) - {"all-reduce"}:
            return MOVED
        theirs, ours = self.xla_arrays, self.our_arrays + self.partial
        return (EQUAL if ours else NEITHER) if theirs == ours else MORE if theirs > ours else FEWER


def divided(
    source: Source, axes: Sequence[Optional[int]], n: int, given: Sequence[Any], whole: Optional[Sequence[bool]]
) -> Tuple[List[Any], Counts]:
    """Compute a serial function with rows divided over n devices; XLA decides how values are combined.

    ``axes`` are the axes of the inputs' rows, and ``whole`` says whether an output is wanted on every device. XLA may
    leave the other outputs divided. Shared variables have their current values.
    """
    graph, trace = JaxGraph(source, "serial"), OneRank(Rows())
    trace.rows.calls = [None]
    mesh = Mesh(np.array(jax.local_devices()[:n]), ("ranks",))

    def placed(axis: Optional[int]) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, "ranks"))

    values = [*map(np.asarray, given), *[np.asarray(cell[0]) for cell in graph.cells.values()]]
    of_values = zip(values, [*axes, *[None] * len(graph.cells)])
    moving = {i: jax.device_put(one, placed(k)) for i, (one, k) in enumerate(of_values) if i not in graph.static}

    def compute(arrays: Dict[int, Any]) -> List[Any]:
        full = [arrays[i] if i in arrays else int(value) for i, value in enumerate(values)]
        return graph.evaluate([full], trace)[0]

    whole = [False] * len(source.outputs) if whole is None else whole
    results = [placed(None) if one else None for one in [*whole, *[True] * len(source.updates)]]
    compiled = jax.jit(compute, out_shardings=results).lower(moving).compile()
    found = HLO.findall(compiled.as_text())
    arrays = sum(operands.count("%") for name, operands in found if name == "all-reduce")
    return [np.asarray(one) for one in compiled(moving)], Counts(Counter(name for name, _ in found), arrays)


class Tally:
    """Functions by kind of difference, those for which XLA computes other values, and reasons why some were omitted."""

    def __init__(self) -> None:
        self.found: List[Tuple[str, Counts, str]] = []
        self.wrong: List[str] = []
        self.omitted: Counter[str] = Counter()

    def compiled(self, function: Any, text: str, of: Any, *args: Any) -> Sequence[Any]:
        """Return what XLA's partitioner computes, and count the collectives; ``function`` is None if it was refused."""
        table = None if function is None else function.sharding()
        try:
            values, counts = of(*args, [row.op != "gather" for row in table.outputs] if table else None)
        except Exception as error:  # JAX cannot compute it
            self.omitted[f"{'' if table else 'refused, and '}{type(error).__name__} of JAX"] += 1
            return ()
        if table is not None:
            arrays = sum(len(one.variables) for one in table.collectives)
            partial = sum(isinstance(row.placement, Partial) for row in table.outputs)
            counts = counts._replace(ours=len(table.collectives), our_arrays=arrays, partial=partial)
        self.found.append((counts.kind() if table else REFUSED, counts, text))
        return list(values)

    def text(self) -> str:
        """Return the table as reStructuredText."""
        rows = [["", "functions", "XLA: reductions", "arrays", "other", "ours: reductions", "arrays", "outputs"]]
        for kind in KINDS:
            some = [counts for one, counts, _ in self.found if one == kind]
            reductions = sum(one.xla["all-reduce"] for one in some)
            numbers = [len(some), reductions, sum(one.xla_arrays for one in some)]
            numbers.append(sum(sum(one.xla.values()) for one in some) - reductions)
            numbers += [sum(getattr(one, name) for one in some) for name in ("ours", "our_arrays", "partial")]
            rows.append([kind, *map("{:,}".format, numbers)])
        lines = [".. list-table::", "   :header-rows: 1", "   :widths: 30 10 10 10 10 10 10 10", ""]
        lines += [f"   {' ' if i else '*'} - {cell}".rstrip() for row in rows for i, cell in enumerate(row)]
        return "\n".join(lines) + "\n"


class PartitionedGraph(GraphCheck):
    """A check of a graph with one call, in which XLA's values are compared, too."""

    tally: Tally

    def _expected(self, *args: Any) -> Any:
        self.expected = super()._expected(*args)
        return self.expected

    def _step(self, step: Any, serial: Any, plain: Any, states: Any) -> bool:
        if not super()._step(step, serial, plain, states):
            return False
        found = self.tally.compiled(self.ours, self.graph.text(), of_graph, self.graph)
        targets = [name for name, _ in self.graph.updates]
        new = [np.asarray(self.serial_variables[name].get_value()) for name in targets]
        of_states = [[state[name] for state in states] for name in targets]
        updated = [Expected(value, one[0], one[1:]) for value, one in zip(new, of_states)]
        for name, value, wanted in zip([*self.graph.outputs, *targets], found, [*self.expected[0][0], *updated]):
            difference = wanted.differs(value)
            if difference is not None and not self._is_of_other_precision(value, wanted.value):
                self.tally.wrong.append(f"{name}: {difference}\n{self.graph.text()}")
        return True


def of_graph(graph: Any, whole: Optional[Sequence[bool]]) -> Tuple[List[Any], Counts]:
    """Return the values and counts of a graph's serial program that XLA divides."""
    names, inputs = namespace_of(graph), graph.arguments
    source = Source(
        [In(names[one.name]) for one in inputs],
        [Out(names[name]) for name in graph.outputs],
        [(names[target], names[new]) for target, new in graph.updates],
    )
    given = [graph.steps[0].data[one.name] for one in inputs]
    return divided(source, [one.axis for one in inputs], graph.n, given, whole)


def check_graph(seed: str, number: int, tally: Tally) -> None:
    """Draw a graph, and compare a call of its exact function; count XLA's collectives for refused results."""
    graph = grown(f"{seed} {number}")
    if graph is None or graph.rows is not None:
        tally.omitted["no function, or a literal number of rows"] += 1
        return
    n, random = 2 + number % 2, np.random.RandomState(number)
    data = dict(graph.steps[0].data)
    for one in graph.inputs:
        if one.axis is not None:
            shape = list(data[one.name].shape)
            shape[one.axis] = ROWS_EACH * n
            data[one.name] = drawn(one.style, one.dtype, tuple(shape), random)
    steps = (dataclasses.replace(graph.steps[0], data=data),)
    graph = dataclasses.replace(graph, n=n, root=0, exact=True, optimizer="fast_run", steps=steps)
    check = PartitionedGraph(graph, "mesh", "py")
    check.tally = tally
    check()
    rest = dataclasses.replace(
        graph,
        outputs=tuple(one for one in graph.outputs if one not in check.graph.outputs),
        updates=tuple(one for one in graph.updates if one not in check.graph.updates),
    ).pruned()
    if rest.outputs or rest.updates:
        tally.compiled(None, rest.text(), of_graph, rest)


class PartitionedModel(fuzz_check.Comparison):
    """A comparison of a model's call, in which XLA's values are compared, too."""

    ours_and_xla: Tally

    def compare(self, call: Any, data: Any, before: Any, expected: Any, after: Any, of_ours: Any) -> None:
        super().compare(call, data, before, expected, after, of_ours)
        names, updates = self.graph.arguments(self.outputs, self.updates)
        source = Source([In(self.graph[leaf.name]) for leaf in self.leaves], [Out(one) for one in names], updates)
        source = source._replace(givens=[(self.graph[a], self.graph[b]) for a, b in self.program.givens])
        axes = [leaf.axis if leaf.role == "rows" else None for leaf in self.leaves]
        self.restore(before)
        text = self.program.text(self.library, call)
        targets = [target for target, _ in self.updates]
        wanted = [*[np.asarray(steps[0]) for steps in expected], *[after[name] for name in targets]]
        found = self.ours_and_xla.compiled(self.exact, text, divided, source, axes, self.program.ranks, data)
        for name, value, one in zip([*self.outputs, *targets], found, wanted):
            if not (self.close(value, one) or self.reason(call, data, before, name, 0, value, one)):
                self.ours_and_xla.wrong.append(f"{name}: {one!r}, {value!r}\n{text}")


def check_model(seed: str, number: int, tally: Tally) -> None:
    """Draw a model, and compare a call of its exact function."""
    program = Author(fuzz_pytensor, seed, number).program()
    if program is None or program.rows is not None:
        tally.omitted["no function, or a literal number of rows"] += 1
        return
    n = 2 + number % 2
    call = program.calls[0]._replace(rows=ROWS_EACH * n, form="plain", choice=None, changes=False)
    program = program._replace(ranks=n, root=0, calls=(call,))
    PartitionedModel.ours_and_xla = tally
    fuzz_check.check(program, fuzz_pytensor, fuzz_check.Tally(), "mesh", PartitionedModel)


def main(arguments: Optional[List[str]] = None) -> int:
    """Compare the functions that the command line selects; return 1 if one of our values is wrong."""
    parser = argparse.ArgumentParser(description="Compare exact functions on JAX's devices with XLA's partitioner.")
    parser.add_argument("--graphs", type=int, default=200, help="number of random graphs (default: 200)")
    parser.add_argument("--models", type=int, default=100, help="number of random models (default: 100)")
    parser.add_argument("--seed", default="1", help="selects the random functions (default: 1)")
    parser.add_argument("--show", choices=KINDS, default="", help="print the functions of this kind")
    parser.add_argument("--write", action="store_true", help="write " + str(DOCUMENT.relative_to(ROOT)))
    given = parser.parse_args(arguments)
    logging.getLogger("synkhronos").setLevel(logging.ERROR)
    tally = Tally()
    try:
        for check, number in ((check_graph, given.graphs), (check_model, given.models)):
            for i in range(number):
                check(f"{given.seed} partitioner", i, tally)
    except AssertionError as wrong:
        print(f"WRONG: {wrong}")
        return 1
    finally:
        PROGRAM.close()
    print(*[f"{counts}\n{text}" for kind, counts, text in tally.found if kind == given.show], sep="\n")
    print(tally.text(), *tally.wrong, tally.omitted, sep="\n")
    if given.write:
        DOCUMENT.write_text(tally.text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
