"""The engine of a session on a mesh: PyTensor's, except that the ranks compute with JAX.

::

    every rank's thread     its arrays, on its device
    functions with          left in the mesh  ->  the root's thread computes all ranks' results  ->  every rank takes
    collectives                                   in one call                                        its own
    other functions         computed by every rank on its own device

A shared variable is on its rank's device after the first call that uses it, until a collective or the program sets it.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import weakref
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import jax
import numpy as np

from .. import in_graph
from ..engines.observer import observer_of
from ..engines.pytensor.jax_graph import JaxGraph, key_of
from ..runtime.registry import Origin, SharedEntry
from ..runtime.serve import served
from ..selection import RowRange
from .collectives import MeshCollectives
from .mesh import ConstantArray, JaxMesh, RankArray, TakenRows, is_on_device
from .program import MeshProgram, Part
from .traces import Uneven


def _on_host(value: Any) -> Any:
    """Return a device's array as a NumPy array of its own; return any other value unchanged."""
    if isinstance(value, RankArray):
        return value.on_host()
    return np.array(value) if isinstance(value, jax.Array) else value


class RankFunction(NamedTuple):
    """A function on one rank: its program, and the rank's storages by the position of the input."""

    rank: int
    program: MeshProgram
    cells: Mapping[int, List[Any]]


class Replaced(NamedTuple):
    """The results of a call that replace inputs, by the positions of the inputs."""

    positions: Mapping[int, int]
    are_all: bool  # whether these are all new values, and no outputs
    only_scalars: bool  # whether, besides, all outputs are scalars
    has_outputs: bool  # whether there are outputs


class MeshEngine:
    """PyTensor's engine for the ranks of a session on a mesh; ``root`` is the rank of the program."""

    def __init__(self, engine: Any, mesh: JaxMesh, root: int) -> None:
        self.engine, self.mesh, self.root = engine, mesh, root
        self._number = next(_numbers)
        _engines[self._number] = self
        self._programs: weakref.WeakKeyDictionary[Any, RankFunction] = weakref.WeakKeyDictionary()
        self._sent: weakref.WeakValueDictionary[int, MeshProgram] = weakref.WeakValueDictionary()
        #: By program, for its last plan.
        self._replacements: weakref.WeakKeyDictionary[MeshProgram, Any] = weakref.WeakKeyDictionary()
        #: Copies of constant Data on devices, by handle, while a function's plan uses them.
        self._constants: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
        self._collectives = MeshCollectives(mesh, root)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def __reduce__(self) -> Any:
        return _engine_of, (self._number,)

    # -- functions -----------------------------------------------------------------------------------------------

    def function(self, compiled: Any) -> RankFunction:
        """Return the master's function on the mesh; raise ArgumentError if JAX cannot compute it."""
        found = self._programs.get(compiled.maker)
        if found is None:
            name = self.engine.function_name(compiled) or "without a name"
            graph = JaxGraph(self.engine.sources[compiled.maker], name)
            found = self._programs[compiled.maker] = RankFunction(self.root, MeshProgram(graph, self.mesh), graph.cells)
        return found

    def reference(self, owner: Any) -> Callable[[], Any]:
        living = weakref.ref(owner)

        def on_ranks() -> Any:
            there = living()
            return None if there is None else self.function(there.on_ranks)

        return on_ranks

    def warm_up(self, compiled: Any) -> None:
        """Do nothing, because JAX compiles a function when it is first called."""

    def constants(self, compiled: Any) -> List[Any]:
        return []

    def free(self, function: RankFunction) -> None:
        function.program.free()

    def profile(self, compiled: Sequence[Any]) -> None:
        """Return None, because JAX does not report the times of operations."""

    def dumps(
        self, compiled: Sequence[Any], numbers: Mapping[Any, int], variables: Mapping[int, int], constants: Any
    ) -> bytes:
        found = []
        for function in map(self.function, compiled):
            self._sent[id(function.program)] = function.program
            places = {i: numbers[id(cell)] for i, cell in function.cells.items()}
            found.append((id(function.program), places))
        return pickle.dumps(found)

    def loads(self, data: Any, replicas: Mapping[int, Any], constant: Any) -> List[Any]:
        context: Any = served(False)
        return [
            RankFunction(
                context.rank,
                self._sent[key],
                {i: self.engine.storage(replicas[number]) for i, number in places.items()},
            )
            for key, places in pickle.loads(data)
        ]

    calls_together = True

    # -- calls ---------------------------------------------------------------------------------------------------

    def call(self, function: RankFunction, args: Sequence[Any], output_subset: Optional[Sequence[int]] = None) -> Any:
        call: Any = in_graph.current()
        program, rank = function.program, function.rank
        part, drawn = self._part(function, args, call)
        if call is not None and call.reduces:
            results = self._in_threads(program, part, rank)
        else:
            results = program.alone(rank, part)
        self._keep(part)
        store = self._complete(function, results, drawn)
        chosen = range(program.graph.n_outputs) if output_subset is None else output_subset
        n_hosted = len(chosen)  # new values of variables stay on the device unless in slices
        if call is not None and call.reduces and call.plan.division.num_slices == 1:
            n_hosted = len(call.plan.ops)
        found = [_on_host(results[i]) if k < n_hosted else results[i] for k, i in enumerate(chosen)]
        if not n_hosted:
            program.wait([results])
        store()
        return found

    def call_together(
        self,
        ranks: Sequence[int],
        functions: Sequence[RankFunction],
        steps: Sequence[Sequence[Any]],
        calls: Sequence[Any],
        subset: Any,
        n_most: int = 1,
    ) -> Tuple[List[List[List[Any]]], Callable[[], object]]:
        program = functions[0].program
        chosen = range(program.graph.n_outputs) if subset is None else subset
        is_full = len(ranks) == self.mesh.size
        replaced = self._replaced(functions[0], calls[0], chosen)
        if n_most > 1 and is_full:
            with contextlib.suppress(Uneven):
                return self._repeated(functions, steps, calls, chosen, n_most, replaced)
        parts, drawn = zip(*map(self._part, functions, steps[0], calls))
        # Results with outputs that are arrays need other memory, because the host may fail to combine the outputs.
        donated = replaced.positions if replaced.only_scalars else {}
        results = program.together(parts, self.root, donated) if is_full else []
        for call in calls if results else ():
            self._note_reduced(program, call)
        results = results or [program.alone(rank, part) for rank, part in zip(ranks, parts)]
        if not replaced.has_outputs:  # whose arrival would show that the computation has succeeded
            program.wait(results)
        changes = []
        for function, part, of_rank, states in zip(functions, parts, results, drawn):
            self._keep(part)
            changes.append(self._complete(function, of_rank, states))
        return [[[of_rank[i] for i in chosen] for of_rank in results]], partial(_call_all, changes)

    def collective_together(self, name: str, argument: Any, columns: Sequence[Sequence[Any]]) -> Any:
        if not any([is_on_device(value) for column in columns for value in column]):
            return None
        if name == "gather":
            read = range(self.mesh.size) if argument is None else [argument]
            found: Any = [[_on_host(one) if rank in read else None for rank, one in enumerate(of)] for of in columns]
            nbytes = sum([of[rank].nbytes for of in found for rank in read if rank != self.root])
            return found, [(float(nbytes * (rank == self.root)), 0.0) for rank in range(self.mesh.size)]
        wholes = self._collectives.wholes(columns)
        if wholes is None:
            return None
        found, moved = getattr(self._collectives, name)(wholes, argument)
        size = self.mesh.size
        sizes = [size if column[0].ndim else 0 for column in columns]
        return [[RankArray(whole, rank, n) for rank in range(size)] for whole, n in zip(found, sizes)], moved

    def _repeated(
        self,
        functions: Sequence[RankFunction],
        steps: Sequence[Any],
        calls: Sequence[Any],
        chosen: Sequence[int],
        n_most: int,
        replaced: Replaced,
    ) -> Tuple[List[List[List[Any]]], Callable[[], object]]:
        """Compute several steps in one loop on the devices, or raise `Uneven` if this is impossible."""
        program, graph = functions[0].program, functions[0].program.graph
        if not replaced.are_all:
            raise Uneven
        parts, drawn = map(list, zip(*map(self._part, functions, steps[0], calls)))
        rows = {i: [_steps_of([of[r][i] for of in steps]) for r in range(len(parts))] for i in range(len(steps[0][0]))}
        varying = {i: of_ranks for i, of_ranks in rows.items() if of_ranks[0] is not None}
        for i in graph.random:
            varying[i] = []
            for rank, states in enumerate(drawn):
                keys, state = [parts[rank].values[i]], states[i]
                for _ in steps[1:]:
                    key, state = key_of(state)
                    keys.append(key)
                varying[i].append(np.stack(keys))
                states[i] = state
        results = program.repeated(parts, varying, len(steps), n_most, replaced.positions, chosen)
        if not replaced.has_outputs:
            program.wait([[cell[0] for cell in function.cells.values()] for function in functions])
        changes = []
        for rank, (function, part, states) in enumerate(zip(functions, parts, drawn)):
            self._keep(part)
            last: List[Any] = [None] * len(graph.graph.outputs)
            for i, k in replaced.positions.items():
                last[k] = part.cells[i][0]
            changes.append(self._complete(function, last, states))
            of_rank = results[-1][rank]
            of_rank[:] = [last[k] if one is None else one for k, one in zip(chosen, of_rank)]
            for _ in steps:
                self._note_reduced(program, part.call)
        return results, partial(_call_all, changes)

    def _replaced(self, function: RankFunction, call: Any, chosen: Sequence[int]) -> Replaced:
        """Return the inputs that a call replaces, and their new values among the results."""
        plan = None if call is None else call.plan
        known: Any
        found: Replaced
        known, found = self._replacements.get(function.program, (None, None))
        if known is None or known is not plan:
            graph = function.program.graph
            replaced: Dict[Any, int] = dict(graph.updates)
            n_outputs = len(chosen)
            if plan is not None:
                entries, n_outputs = call.context.entries([number for number, _ in plan.updates]), len(plan.ops)
                positions = {id(cell): i for i, cell in function.cells.items()}
                places = [positions.get(id(entry.cell)) for entry in entries]
                replaced.update({i: chosen[n_outputs + k] for k, i in enumerate(places)})
            results = chosen[:n_outputs]
            are_all = None not in replaced and not set(replaced.values()) & set(results)
            only_scalars = are_all and not any(graph.graph.outputs[i].ndim for i in results)
            inputs = {i: k for i, k in replaced.items() if k not in graph.sources and i is not None}
            found = Replaced(inputs, are_all, only_scalars, bool(results))
            self._replacements[function.program] = plan, found
        return found

    @staticmethod
    def _complete(function: RankFunction, results: List[Any], drawn: Mapping[int, Any]) -> Callable[[], None]:
        """Add random states to the results, and return the function that stores the updates that the graph contains."""
        graph = function.program.graph
        for i, source in graph.sources.items():
            results[i] = drawn[source]

        def store() -> None:
            for i, k in graph.updates.items():
                function.cells[i][0] = results[k]

        return store

    @staticmethod
    def _part(function: RankFunction, args: Sequence[Any], call: Any) -> Tuple[Part, Dict[int, np.random.Generator]]:
        """Return a rank's part of a call, and the random states after it by the position of the input."""
        graph, drawn = function.program.graph, {}
        values: List[Any] = [*args, *[cell[0] for cell in function.cells.values()]]
        for i in graph.random:
            values[i], drawn[i] = key_of(values[i])
        static = tuple([int(values[i]) for i in graph.static])
        for i in graph.static:
            values[i] = None
        return Part(values, static, call, function.cells, {}), drawn

    @staticmethod
    def _keep(part: Part) -> None:
        """Store the values that a call has put on the device, so that later calls need not copy them again."""
        for i, before in part.moved.items():
            cell, entry = part.cells[i], observer_of(part.cells[i])
            if cell[0] is not before:
                continue  # e.g. a random state, whose value is a key
            if not isinstance(entry, SharedEntry):
                cell[0] = part.values[i]
            elif entry.borrowed is None:  # otherwise the program may write to its array at any time
                entry.set(part.values[i], Origin.MOVED)

    def _in_threads(self, program: MeshProgram, part: Part, rank: int) -> List[Any]:
        """Compute a function with collectives on all ranks; every rank's thread calls this."""
        mesh, barrier = self.mesh, part.call.context.barrier
        mesh.parts[rank] = part
        barrier.wait()
        if rank == self.root:
            parts, mesh.parts = mesh.parts, [None] * mesh.size
            mesh.results = program.together(parts, self.root, {})
        barrier.wait()
        self._note_reduced(program, part.call)
        results, mesh.results[rank] = mesh.results[rank], []
        return results

    @staticmethod
    def _note_reduced(program: MeshProgram, call: Any) -> None:
        for number, nbytes in program.reduced.items():
            call.note_reduced(number, nbytes)

    def replace_lost(self, functions: Sequence[RankFunction], error: BaseException) -> bool:
        return functions[0].program.replace_lost([function.cells for function in functions], error)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)

    # -- values --------------------------------------------------------------------------------------------------

    is_on_device = staticmethod(is_on_device)
    to_host = for_program = staticmethod(_on_host)

    def to_device(self, shared: Any, value: Any) -> Any:
        return _on_host(value)

    def constant(self, rank: int, handle: Any, array: Any) -> Any:
        whole = self._constants.get(handle)
        if whole is None:
            whole = self._constants[handle] = self.mesh.spread([array] * self.mesh.size)
        return ConstantArray(whole, rank, self.mesh.size)

    def take(self, array: Any, rows: Any) -> Any:
        if not is_on_device(array):
            return self.engine.take(array, rows)
        is_range = isinstance(rows, RowRange) and rows.step == 1
        found = TakenRows(array, np.int64(rows.start) if is_range else rows.numbers, len(rows))
        return found if type(array) is ConstantArray else found.array

    def export(self, shared: Any) -> Any:
        value = self.engine.storage(shared)[0]
        return _on_host(value) if is_on_device(value) else self.engine.export(shared)


def _call_all(functions: Sequence[Callable[[], object]]) -> None:
    for function in functions:
        function()


def _steps_of(values: Sequence[Any]) -> Any:
    """Return the numbers of all steps' `TakenRows` in one array; None if all steps have the same argument."""
    if type(values[0]) is not TakenRows:
        if any([value is not values[0] for value in values]):
            raise Uneven
        return None
    numbers = [value.rows for value in values]
    if len({number.ndim for number in numbers}) > 1:
        raise Uneven
    return np.stack(numbers)


_numbers = itertools.count()
#: The engines of open sessions, for commands that are pickled within this process.
_engines: "weakref.WeakValueDictionary[int, MeshEngine]" = weakref.WeakValueDictionary()


def _engine_of(number: int) -> MeshEngine:
    return _engines[number]
