"""A function on the mesh: compiled once for all ranks, or for ranks with different shapes.

::

    alone      jit of one rank's function, on its own device: functions without collectives
    together   jit(shard_map) of one rank's function, once for all ranks; a collective is psum, pmin or pmax
    lockstep   jit of all ranks' functions on the root's device: if ranks have different numbers of rows

A compiled form is cached under everything that is part of the traced program but of no array: see `MeshProgram._form`.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Set, Tuple, TypeVar

import jax
import numpy as np

from ..engines.pytensor.jax_graph import JaxGraph
from ..errors import ArgumentValueError
from ..runtime.failures import add_note
from .mesh import JaxMesh
from .traces import Lockstep, OneRank, Rows, Together, Uneven

T = TypeVar("T")

MAX_FORMS = 32  #: Maximum number of compiled forms of a function; the oldest is dropped.


class Part(NamedTuple):
    """One rank's part of a common call: the values of all inputs (None if static), on its device, and the call."""

    values: Sequence[Any]
    static: Tuple[int, ...]
    call: Any


class CompiledForm(NamedTuple):
    """A compiled form, and the rows of the calls that it is used in."""

    compiled: Callable[..., Any]
    rows: Rows


class MeshProgram:
    """The compiled forms of one graph."""

    def __init__(self, graph: JaxGraph, mesh: JaxMesh) -> None:
        self.graph, self.mesh = graph, mesh
        self._forms: Dict[Any, CompiledForm] = {}
        self.reduced: Dict[int, int] = {}  # by collective: its bytes in the last common call
        self._uneven: Set[Any] = set()  # keys of calls whose rows are found to be uneven while JAX traces

    def free(self) -> None:
        """Drop all compiled forms."""
        self._forms.clear()

    def alone(self, rank: int, part: Part) -> List[Any]:
        """Compute one rank's results on its device."""
        call = part.call
        rows = None if call is None else call.rows
        key = "alone", part.static, rows, self._shapes([part])

        def make() -> CompiledForm:
            trace = OneRank(Rows())
            return CompiledForm(jax.jit(lambda values: self._evaluate([values], [part.static], trace)[0]), trace.rows)

        return self._run(key, make, [call], lambda form: list(form.compiled(list(part.values))))

    def together(self, parts: Sequence[Part], root: int) -> List[List[Any]]:
        """Compute all ranks' results; return them by rank."""
        key = parts[0].static, self._shapes(parts)
        if self.is_even(parts) and key not in self._uneven:
            try:
                return self._on_mesh(parts)
            except Uneven:  # nothing was computed
                self._uneven.add(key)
        return self._in_lockstep(parts, root)

    def is_even(self, parts: Sequence[Part]) -> bool:
        """Return whether all ranks compute the same program with arrays of the same shapes and with equal weights."""
        first = parts[0]
        weights = None if first.call is None else first.call.weights
        shapes = [getattr(value, "shape", None) for value in first.values]
        rows = [None if part.call is None else part.call.rows for part in parts]
        sizes = {None if one is None else one[1] - one[0] for one in rows}
        arrays = [shape for shape in shapes if shape is not None]
        return (
            len(sizes) == 1
            and bool(arrays)  # XLA cannot compile a program on a mesh without arguments or with empty ones
            and not any(0 in shape for shape in arrays)
            and (weights is None or len(set(weights)) == 1 and weights[0] > 0)
            and all([getattr(value, "shape", None) for value in part.values] == shapes for part in parts[1:])
            and all(part.static == first.static for part in parts)
        )

    def _on_mesh(self, parts: Sequence[Part]) -> List[List[Any]]:
        first, mesh, calls = parts[0], self.mesh, [part.call for part in parts]
        rows = first.call.rows if self.graph.reads_rows and first.call is not None else None
        starts = [part.call.rows[0] for part in parts] if rows is not None and self.graph.divides_rows else None
        key = "together", first.static, rows and (rows[1] - rows[0], rows[2]), self._shapes([first])

        def make() -> CompiledForm:
            found = Rows()

            def one(values: Sequence[Any], start: Any) -> List[Any]:
                return self._evaluate([values], [first.static], Together(found, start))[0]

            return CompiledForm(mesh.common(one), found)

        def run(form: CompiledForm) -> List[List[Any]]:
            values = [None if one is None else mesh.joined(of_ranks) for one, *of_ranks in _columns(parts)]
            start = None
            if starts is not None:
                start = mesh.joined([mesh.put([np.int64(first)], rank)[0] for rank, first in enumerate(starts)])
            of_results = [
                [None] * len(parts) if result is None else mesh.parted(result)
                for result in form.compiled(values, start)
            ]
            return [list(of_rank) for of_rank in zip(*of_results)] if of_results else [[] for _ in parts]

        return self._run(key, make, calls, run)

    def _in_lockstep(self, parts: Sequence[Part], root: int) -> List[List[Any]]:
        calls, mesh = [part.call for part in parts], self.mesh
        rows, weights = tuple(call.rows for call in calls), calls[0].weights
        static = [part.static for part in parts]
        key = "lockstep", tuple(static), rows, weights and tuple(weights), self._shapes(parts)

        def make() -> CompiledForm:
            trace = Lockstep(Rows())
            return CompiledForm(jax.jit(lambda values: self._evaluate(values, static, trace)), trace.rows)

        def run(form: CompiledForm) -> List[List[Any]]:
            found = form.compiled([_put(mesh, part.values, root) for part in parts])
            return [_put(mesh, results, rank) for rank, results in enumerate(found)]

        return self._run(key, make, calls, run)

    def _run(
        self, key: Any, make: Callable[[], CompiledForm], calls: Sequence[Any], run: Callable[[CompiledForm], T]
    ) -> T:
        form = self._forms.get(key)
        if form is None:
            form = make()
            if len(self._forms) >= MAX_FORMS:
                self._forms.pop(next(iter(self._forms)), None)
        form.rows.calls = list(calls)
        try:
            for length in form.rows.lengths:  # the calls check their rows, and set their weights
                form.rows.of_ranks(length)
            result = run(form)
        except (jax.errors.JAXTypeError, IndexError) as error:  # while JAX traces the graph
            expected = "shapes, slices and conditions that follow from the arguments' shapes, as JAX requires"
            hint = "pass the rows themselves, or fork processes instead of devices='jax'"
            got = str(error).split("\n")[0]
            raise ArgumentValueError(f"function {self.graph.name}", expected, got, hint) from error
        except Exception as error:
            if self.graph.failed:
                add_note(error, f"in {self.graph.failed} of function {self.graph.name}, while JAX compiled it")
            raise
        finally:
            form.rows.calls = []
        self._forms[key], self.reduced = form, form.rows.reduced
        return result

    def _shapes(self, parts: Sequence[Part]) -> Any:
        """Return the arrays' shapes if the lengths of divided arrays follow from them."""
        if not self.graph.reads_rows:
            return None
        return tuple(tuple(getattr(value, "shape", None) for value in part.values) for part in parts)

    def _evaluate(
        self, of_ranks: Sequence[Sequence[Any]], static: Sequence[Sequence[int]], trace: OneRank
    ) -> List[List[Any]]:
        """Compute results from values as `Part` lists them; called while JAX traces."""
        given = []
        for values, numbers in zip(of_ranks, static):
            full = list(values)
            for i, number in zip(self.graph.static, numbers):
                full[i] = number
            for i in self.graph.random:
                full[i] = {"jax_state": full[i]}
            given.append(full)
        return self.graph.evaluate(given, trace)


def _put(mesh: JaxMesh, values: Sequence[Any], rank: int) -> List[Any]:
    """Return the values on a rank's device; None stays None."""
    there = iter(mesh.put([value for value in values if value is not None], rank))
    return [None if value is None else next(there) for value in values]


def _columns(parts: Sequence[Part]) -> List[List[Any]]:
    """Return, for each input, the first rank's value, and then all ranks' values."""
    return [[of_ranks[0], *of_ranks] for of_ranks in zip(*[part.values for part in parts])]
