"""A function on the mesh: compiled once for all ranks, or for ranks with different shapes.

::

    alone      jit of one rank's function, on its own device: functions without collectives
    together   jit(shard_map) of one rank's function, once for all ranks; a collective is psum, pmin or pmax
    repeated   the same in a loop over several steps
    lockstep   jit of all ranks' functions on the root's device: if ranks have different numbers of rows

A compiled form is cached under everything that is part of the traced program but of no array.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..engines.pytensor.jax_graph import JaxGraph
from ..errors import ArgumentValueError, StateError
from ..runtime.failures import add_note
from .mesh import JaxMesh, RankArray, StepArray, TakenRows, common_whole, taken
from .traces import Lockstep, OneRank, Rows, Together, Uneven

T = TypeVar("T")

MAX_FORMS = 32  #: Maximum number of compiled forms of a function; the oldest is dropped.


class Part(NamedTuple):
    """One rank's part of a common call: the values of all inputs (None if static), and the call.

    ``cells`` are the storages of shared variables by the position of the input. ``moved`` are the earlier values
    of those that a call has put on the devices.
    """

    values: List[Any]
    static: Tuple[int, ...]
    call: Any
    cells: Mapping[int, List[Any]]
    moved: Dict[int, Any]


class CompiledForm(NamedTuple):
    """A compiled form, the rows of the calls that it is used in, and the arguments' shapes in successful calls."""

    compiled: Callable[..., Any]
    rows: Rows
    shapes: Set[Any]


class CommonCall(NamedTuple):
    """Properties of a common call: numbers of `TakenRows` and of their axes, and a key beginning with static numbers.

    ``shapes`` are those of the arguments. ``rows`` are used if a form is compiled.
    """

    lengths: Sequence[Any]
    key: Tuple[Any, ...]
    shapes: Tuple[Any, ...]
    rows: Rows


class MeshProgram:
    """The compiled forms of one graph."""

    def __init__(self, graph: JaxGraph, mesh: JaxMesh) -> None:
        self.graph, self.mesh = graph, mesh
        self._forms: Dict[Any, CompiledForm] = {}
        self.reduced: Dict[int, int] = {}  # by collective: its bytes in the last common call
        # `RankArray.size` of inputs and results
        self._in_sizes, self._out_sizes = (
            [mesh.size if getattr(one.type, "ndim", 1) else 0 for one in some]
            for some in (graph.graph.inputs, graph.graph.outputs)
        )
        self._uneven: Set[Any] = set()  # keys of calls whose rows are found to be uneven while JAX traces

    def free(self) -> None:
        """Drop all compiled forms."""
        self._forms.clear()

    def alone(self, rank: int, part: Part) -> List[Any]:
        """Compute one rank's results on its device, after putting its values there."""
        call = part.call
        rows = None if call is None else call.rows
        _put(self.mesh, part, rank)
        key = "alone", rows, self._key_of([part])

        def make() -> CompiledForm:
            trace = OneRank(Rows())
            return CompiledForm(
                jax.jit(lambda values: self._evaluate([values], [part.static], trace)[0]), trace.rows, set()
            )

        return self._run(key, make, [call], lambda form: list(form.compiled(_local(part.values))))

    def together(self, parts: Sequence[Part], root: int, donated: Mapping[int, int]) -> List[List[Any]]:
        """Compute all ranks' results; return them by rank, or nothing if the ranks differ and `alone` is possible.

        ``donated`` are positions of inputs whose memory results may use, with the positions of these results.
        """
        found = self._joined(parts, donated)
        if found is not None and not (self._uneven and self._key_of(parts) in self._uneven):
            try:
                return self._on_mesh(parts, *found, donated)
            except Uneven:  # nothing was computed
                self._uneven.add(self._key_of(parts))
        return [] if parts[0].call is None else self._in_lockstep(parts, root)

    def _on_mesh(
        self, parts: Sequence[Part], joint: CommonCall, arguments: Any, donated: Mapping[int, int]
    ) -> List[List[Any]]:
        def one(kept: Sequence[Any], given: Sequence[Any], start: Any) -> List[Any]:
            values = [a if b is None else b for a, b in zip(kept, given)]
            values = [a if n is None else _taken(*a, *n) for a, n in zip(values, joint.lengths)]
            return [
                result if result is None else jnp.atleast_1d(result) for result in self._traced(joint, values, start)
            ]

        key = "together", *joint.key, tuple(donated)
        return self._run_on_mesh(key, one, parts, joint, arguments, donated, self._out_sizes)

    def repeated(
        self,
        parts: Sequence[Part],
        steps: Mapping[int, Any],
        n_steps: int,
        n_most: int,
        carried: Mapping[int, int],
        chosen: Any,
    ) -> List[List[List[Any]]]:
        """Compute ``n_steps`` calls in one loop on the devices; return the chosen outputs by step and rank.

        The compiled loop has memory for ``n_most`` steps. For inputs that differ from step to step, ``steps`` contains
        every rank's array of all steps: random keys, or rows of constant arrays. ``carried`` are the positions of
        inputs that each step replaces, with those of the results. Raise `Uneven`, before anything is computed, if the
        ranks or the steps cannot share one program.
        """
        joint_and_arguments = self._joined(parts, carried)
        if joint_and_arguments is None:
            raise Uneven
        joint, (kept, given, start) = joint_and_arguments
        n_most = 1 << (n_most - 1).bit_length()  # so that few numbers of steps are compiled

        def padded(array: Any) -> Any:
            return np.concatenate([array, np.zeros((n_most - n_steps, *array.shape[1:]), array.dtype)])

        there = {i: self.mesh.spread(list(map(padded, of_ranks))) for i, of_ranks in steps.items()}
        n = self.mesh.spread([np.int64(n_steps)] * len(parts))
        outputs = [k for k in chosen if k not in carried.values() and k not in self.graph.sources]

        def many(kept: Any, given: Any, start: Any, there: Any, n: Any) -> Any:
            def step(i: Any, carry: Any) -> Any:
                state, buffers = carry
                values = [state.get(j, one) for j, one in enumerate(kept)]
                for j, of_steps in there.items():
                    length = joint.lengths[j]
                    values[j] = of_steps[i] if length is None else taken(kept[j][0], of_steps[i], length[0])
                made = self._traced(joint, values, start)
                after = {j: made[k] for j, k in carried.items()}
                if buffers is None:
                    return after, [jnp.zeros((n_most, *made[k].shape), made[k].dtype) for k in outputs]
                return after, [buffer.at[i].set(made[k]) for buffer, k in zip(buffers, outputs)]

            state = {j: one if self._in_sizes[j] else one[0] for j, one in enumerate(given) if one is not None}
            shapes, buffers = jax.eval_shape(lambda: step(0, (state, None)))
            if any([(one.shape, one.dtype) != (shapes[j].shape, shapes[j].dtype) for j, one in state.items()]):
                raise Uneven
            buffers = [jnp.zeros(one.shape, one.dtype) for one in buffers]
            state, buffers = jax.lax.fori_loop(0, n[0], step, (state, buffers))
            return [jnp.atleast_1d(one) for one in (*[state[j] for j in carried], *buffers)]

        key = "repeated", *joint.key, tuple(carried), tuple(outputs), n_most
        places = {i: k for k, i in enumerate(carried)}
        sizes = [*[self._in_sizes[i] for i in carried], *[len(parts)] * len(outputs)]
        of_ranks = self._run_on_mesh(key, many, parts, joint, (kept, given, start, there, n), places, sizes)
        whole_of = {k: one.whole for k, one in zip(outputs, of_ranks[0][len(carried) :])}
        of_steps = [whole_of.get(k) for k in chosen]
        return [
            [
                [None if one is None else StepArray(one, rank, len(parts), i) for one in of_steps]
                for rank in range(len(parts))
            ]
            for i in range(n_steps)
        ]

    def _joined(
        self, parts: Sequence[Part], donated: Mapping[int, int]
    ) -> Optional[Tuple[CommonCall, Tuple[Any, Any, Any]]]:
        """Return all ranks' arrays, put on the devices: those to keep, those to donate, and the first rows.

        Return None if the ranks compute different programs, or if their arrays have different shapes.
        """
        if not _is_common(parts):
            return None
        first, mesh, wholes, shapes, lengths = parts[0], self.mesh, [], [], []
        for i, column in enumerate(zip(*[part.values for part in parts])):
            one, whole, length = column[0], common_whole(column), None
            if whole is None and one is not None:
                if any([each.shape != one.shape for each in column]):
                    return None
                if type(one) is TakenRows:
                    length = one.n_rows, one.rows.ndim
                    whole = mesh.whole([each.source for each in column]), mesh.spread([each.rows for each in column])
                else:
                    whole = mesh.whole(column)
                    for rank, part in enumerate(parts if i in first.cells else ()):
                        part.moved[i], part.values[i] = part.values[i], RankArray(whole, rank, self._in_sizes[i])
            wholes.append(whole)
            shapes.append(one.shape if length else whole if whole is None else whole.shape)
            lengths.append(length)
        # (XLA cannot compile a program on a mesh without arguments or with empty ones.)
        if not any(shapes) or any([shape is not None and 0 in shape for shape in shapes]):
            return None
        rows, start = None, None
        if self.graph.reads_rows and first.call is not None and first.call.rows is not None:
            rows = first.call.rows[1] - first.call.rows[0], first.call.rows[2]
            if self.graph.divides_rows:
                start = mesh.spread([np.int64(part.call.rows[0]) for part in parts])
        kept = [None if i in donated else one for i, one in enumerate(wholes)]
        given = [one if i in donated else None for i, one in enumerate(wholes)]
        key = first.static, rows, self.graph.reads_rows and tuple(shapes), tuple(lengths)
        return CommonCall(lengths, key, tuple(shapes), Rows()), (kept, given, start)

    def _traced(self, joint: CommonCall, values: Sequence[Any], start: Any) -> List[Any]:
        return self._evaluate([values], [joint.key[0]], Together(joint.rows, start if start is None else start[0]))[0]

    def _run_on_mesh(
        self,
        key: Any,
        function: Any,
        parts: Sequence[Part],
        joint: CommonCall,
        arguments: Any,
        places: Mapping[int, int],
        sizes: Sequence[int],
    ) -> List[List[Any]]:
        """Run ``function`` for all ranks; return the results by rank, and store those that use variables' memory.

        ``places`` are the positions of these results by those of the variables. ``sizes`` are of `RankArray`.
        """
        wholes: List[List[Any]] = []
        kept, given, *others = arguments

        def compute(form: CompiledForm) -> None:
            if places and joint.shapes not in form.shapes:
                # The first computation shows whether memory suffices, and uses copies, so that the old values remain.
                copies = [None if one is None else jnp.copy(one) for one in given]
                wholes.append(jax.block_until_ready(form.compiled(kept, copies, *others)))
                form.shapes.add(joint.shapes)
            else:
                # The call and the storage of its results are one call of C code, which no signal's handler interrupts.
                wholes.extend(map(form.compiled, *[(one,) for one in arguments]))

        def stored() -> List[List[Any]]:
            of_ranks = [
                [None if whole is None else RankArray(whole, rank, size) for whole, size in zip(wholes[0], sizes)]
                for rank in range(len(parts))
            ]
            for part, of_rank in zip(parts, of_ranks):
                for i, k in places.items():
                    part.cells[i][0] = of_rank[k]
            return of_ranks

        try:
            self._run(
                key,
                lambda: CompiledForm(self.mesh.common(function), joint.rows, set()),
                [part.call for part in parts],
                compute,
            )
            return stored()
        except BaseException:
            if wholes:  # a signal's handler raised afterwards
                stored()
            raise

    @staticmethod
    def wait(results: Sequence[Sequence[Any]]) -> None:
        """Wait for results by rank; raise an error that occurred while devices computed them."""
        jax.block_until_ready([one.whole if isinstance(one, RankArray) else one for some in results for one in some])

    def replace_lost(self, cells: Sequence[Mapping[int, List[Any]]], error: BaseException) -> bool:
        """Replace values whose memory a failed computation has reused, and add a note; return whether there are any.

        ``cells`` are the ranks' storages of shared variables, by the positions of the inputs.
        """
        lost = [i for i, cell in cells[0].items() if type(cell[0]) is RankArray and _is_lost(cell[0].whole)]
        for i in lost:
            for of_rank in cells:
                value = of_rank[i][0]
                of_rank[i][0] = np.full(value.shape, np.nan if value.dtype.kind in "fc" else 0, value.dtype)
        if lost:
            names = ", ".join([str(self.graph.graph.inputs[i].name or "a variable without a name") for i in lost])
            note = f"the values of {names} are lost on all ranks, and now NaN (integers: 0)"
            add_note(error, f"in function {self.graph.name}: {note}: set them, or load a checkpoint")
        elif isinstance(error, jax.errors.JaxRuntimeError) or str(error).startswith("INTERNAL"):
            add_note(error, f"in function {self.graph.name}: the failed computation has changed no values")
        return bool(lost)

    def _in_lockstep(self, parts: Sequence[Part], root: int) -> List[List[Any]]:
        calls, mesh = [part.call for part in parts], self.mesh
        rows, weights = tuple(call.rows for call in calls), calls[0].weights
        static = [part.static for part in parts]
        for rank, part in enumerate(parts):
            _put(mesh, part, rank)
        key = "lockstep", rows, weights and tuple(weights), self._key_of(parts)

        def make() -> CompiledForm:
            trace = Lockstep(Rows())
            return CompiledForm(jax.jit(lambda values: self._evaluate(values, static, trace)), trace.rows, set())

        def run(form: CompiledForm) -> List[List[Any]]:
            found = form.compiled(jax.device_put([_local(part.values) for part in parts], mesh.devices[root]))
            return [jax.device_put(results, device) for results, device in zip(found, mesh.devices)]

        return self._run(key, make, calls, run)

    def _run(
        self, key: Any, make: Callable[[], CompiledForm], calls: Sequence[Any], run: Callable[[CompiledForm], T]
    ) -> T:
        if not jax.config.jax_enable_x64:
            raise StateError("JAX computes in 32 bits: set jax_enable_x64 to True, as synkhronos.fork() has done")
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

    def _key_of(self, parts: Sequence[Part]) -> Any:
        """Return the static numbers, and the arrays' shapes if the lengths of divided arrays follow from them."""
        if not self.graph.reads_rows:
            return tuple(part.static for part in parts)
        return tuple((part.static, *[getattr(value, "shape", None) for value in part.values]) for part in parts)

    def _evaluate(
        self, of_ranks: Sequence[Sequence[Any]], static: Sequence[Sequence[int]], trace: OneRank
    ) -> List[List[Any]]:
        """Compute results from values as `Part` lists them; called while JAX traces."""
        given, inputs = [], self.graph.graph.inputs
        for values, numbers in zip(of_ranks, static):
            full = [
                one[0] if one is not None and one.ndim > getattr(variable.type, "ndim", 1) else one
                for variable, one in zip(inputs, values)
            ]
            for i, number in zip(self.graph.static, numbers):
                full[i] = number
            for i in self.graph.random:
                full[i] = {"jax_state": full[i]}
            given.append(full)
        return self.graph.evaluate(given, trace)


def _put(mesh: JaxMesh, part: Part, rank: int) -> None:
    """Put a part's values on the rank's device; None stays None."""
    values = [value.array if type(value) is TakenRows else value for value in part.values]
    there = iter(mesh.put([value for value in values if value is not None], rank))
    for i, value in enumerate(values):
        part.values[i] = None if value is None else next(there)
        if i in part.cells and part.values[i] is not value:
            part.moved[i] = value


def _local(values: Sequence[Any]) -> List[Any]:
    """Return the values as arrays of JAX; scalars of all ranks have an axis of length 1."""
    return [value.block if isinstance(value, RankArray) else value for value in values]


def _taken(source: Any, rows: Any, n_rows: int, ndim: int) -> Any:
    return taken(source, rows if ndim else rows[0], n_rows)


def _is_common(parts: Sequence[Part]) -> bool:
    """Return whether all ranks compute the same program, with equal numbers of rows and equal weights."""
    call, static = parts[0].call, parts[0].static
    if call is not None and call.weights is not None:
        if call.weights[0] <= 0 or any([weight != call.weights[0] for weight in call.weights]):
            return False
    rows = [None if each.call is None else each.call.rows for each in parts]
    return len({one and one[1] - one[0] for one in rows}) == 1 and all([each.static == static for each in parts])


def _is_lost(whole: Any) -> bool:
    try:
        return whole.is_deleted() or whole.block_until_ready() is None
    except Exception:  # a single device raises other types
        return True
