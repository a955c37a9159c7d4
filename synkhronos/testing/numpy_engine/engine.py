"""Engine for graphs of Python callables on NumPy arrays."""

from __future__ import annotations

from typing import Any, Callable, Hashable, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ...engines import pickling, random_states
from ...engines.base import ArrayType, Collectives, Engine, Input, Output
from ...engines.exact import placed
from ...errors import ArgumentTypeError, ArgumentValueError
from ...reductions import IN_GRAPH, ReduceOp, check_dtype
from ...sharding import Placement, Shard
from ...trace import point
from . import collectives, placing
from .function import NumpyFunction, NumpyGraph, given_pairs, graph_of
from .graph import Apply, In, NumpyVariable, Shared, apply, check, convert, substituted
from .operations import all_reduce

#: Variables, each with its new value or with its replacement.
Pairs = Sequence[Tuple[Any, Any]]


class NumpyEngine(Engine):
    """Engine that evaluates graphs of Python callables, one node after another."""

    name = "numpy"

    def owns(self, thing: Any) -> bool:
        return isinstance(thing, (NumpyVariable, In, NumpyFunction))

    def is_shared(self, thing: Any) -> bool:
        return isinstance(thing, Shared)

    def label(self, variable: Any, place: str = "unnamed") -> str:
        if isinstance(variable, Shared) and not variable.name:
            return f"{place} ({variable.type.words if variable.type else 'any object'})"
        return (variable.name or repr(variable.variable)) if isinstance(variable, In) else repr(variable)

    def shared_type(self, shared: Shared) -> Optional[ArrayType]:
        return shared.type

    def identity(self, shared: Any) -> Hashable:
        return id(shared.storage)

    def storage(self, shared: Any) -> List[Any]:
        storage: List[Any] = shared.storage
        return storage

    def coerce(self, shared: Any, value: Any, argument: str) -> Any:
        if self.is_random(shared) and not isinstance(value, np.random.RandomState):
            raise ArgumentTypeError(argument, "a RandomState", type(value).__name__)
        return convert(shared.type, value, argument)

    def blueprint(self, shared: Any) -> Any:
        return shared.type, shared.name

    def build(self, blueprint: Any, value: Any, storage_of: Optional[Any] = None) -> Shared:
        type_, name = blueprint
        return Shared(type_, [value] if storage_of is None else storage_of.storage, name)

    def compile(self, inputs: Sequence[Any], outputs: Any, updates: Pairs, givens: Any, **kwargs: Any) -> NumpyFunction:
        return NumpyFunction(self.snapshot(inputs, outputs, updates, givens, **kwargs))

    def given_pairs(self, givens: Any) -> List[Tuple[Any, Any]]:
        return given_pairs(givens)

    def snapshot(self, inputs: Sequence[Any], outputs: Any, updates: Pairs, givens: Any, **kwargs: Any) -> NumpyGraph:
        return graph_of(inputs, outputs, updates, givens, **kwargs)

    def updated_in(self, snapshot: NumpyGraph) -> List[Any]:
        return [target for target, _ in snapshot.updates]

    def variant(self, snapshot: NumpyGraph, sliced: bool, as_inputs: Sequence[Any]) -> NumpyFunction:
        outputs, updates = snapshot.outputs, snapshot.updates
        if sliced and snapshot.halves is not None:
            nothing = apply(np.array, 0)
            states = [new for target, new in updates if self.is_random(target)]
            outputs = [nothing if i in snapshot.halves.after_split else output for i, output in enumerate(outputs)]
            outputs, updates = [*outputs, *snapshot.halves.parts, *states], []
        elif collectives.is_joint(snapshot):
            outputs, updates = collectives.numbered(snapshot.expressions()), []
        elif sliced:
            outputs = outputs + [new for target, new in updates if not self.is_random(target)]
            updates = [(target, new) for target, new in updates if self.is_random(target)]
        return NumpyFunction(_with_inputs(snapshot, outputs, updates, _new_inputs(as_inputs)))

    def after_collective(self, snapshot: NumpyGraph, as_inputs: Sequence[Any]) -> NumpyFunction:
        assert snapshot.halves is not None
        news = [new for target, new in snapshot.updates if not self.is_random(target)]
        replaced = _new_inputs([*as_inputs, *snapshot.halves.parts])
        outputs = [snapshot.outputs[i] for i in snapshot.halves.after_split] + news
        after = _with_inputs(snapshot, outputs, [], replaced)
        return NumpyFunction(after._replace(outputs=collectives.numbered(after.outputs)))

    def all_reduce(self, variables: Sequence[Any], op: ReduceOp) -> List[Any]:
        for index, variable in enumerate(variables):
            type_ = variable.type if isinstance(variable, NumpyVariable) else None
            argument = f"x[{index}] ({variable!r})"
            if type_ is None:
                raise ArgumentTypeError(argument, f"a dense array of {self.name}", repr(variable), "leave it out")
            check_dtype(op, type_.dtype, argument, IN_GRAPH)
        return all_reduce(variables, op)

    def collectives(self, snapshot: NumpyGraph, scattered: Mapping[Any, int]) -> Optional[Collectives]:
        return collectives.survey(snapshot, list(scattered))

    def placed(self, snapshot: NumpyGraph, shards: Mapping[Any, Shard]) -> List[Placement]:
        return placed(placing.graph_of(snapshot.expressions()), shards)

    def completed(self, snapshot: NumpyGraph, shards: Mapping[Any, Shard]) -> Tuple[NumpyGraph, List[Placement]]:
        return placing.completed(snapshot, shards, self.label, self.is_random)

    def shapes(self, snapshot: NumpyGraph, as_inputs: Sequence[Any]) -> NumpyFunction:
        outputs = [apply(_shape, output, dtype="int64", ndim=1) for output in snapshot.outputs]
        inputs = [given._replace(mutable=False) for given in snapshot.inputs]
        return NumpyFunction(_with_inputs(snapshot._replace(inputs=inputs), outputs, [], _new_inputs(as_inputs)))

    def is_random(self, shared: Any) -> bool:
        return isinstance(shared.storage[0], np.random.RandomState)

    def jumped(self, shared: Any, value: Any, jumps: int) -> Any:
        return random_states.jumped_random_state(value, jumps)

    def reseeded(self, shared: Any, value: Any, seed: int, index: int) -> Any:
        return random_states.seeded_random_state(seed, index)

    def inputs(self, compiled: Any) -> List[Input]:
        return [
            Input(variable, name, variable.type, mutable, value is not None, value)
            for variable, value, name, mutable in compiled.inputs
        ]

    def outputs(self, compiled: Any) -> List[Output]:
        keys = compiled.keys or [None] * len(compiled.outputs)
        result = []
        for index, (key, output) in enumerate(zip(keys, compiled.outputs)):
            label = "output" if compiled.single else f"outputs[{(index if key is None else key)!r}]"
            if output.name:
                label += f" ({output.name})"
            result.append(Output(output, label, output.type, key))
        return result

    def shareds(self, compiled: Any) -> List[Any]:
        return [node for node in compiled.order if isinstance(node, Shared)]

    def written(self, compiled: Any) -> List[Any]:
        if compiled.inplace:
            return [target for target, _ in compiled.updates]
        return [new for _, new in compiled.updates if isinstance(new, Shared)]

    def convert(self, input: Input, value: Any, argument: str) -> Any:
        return convert(input.type, value, argument)

    def check(self, input: Input, dtype: np.dtype[Any], shape: Tuple[int, ...], argument: str) -> None:
        check(input.type, np.dtype(dtype), shape, argument)

    @point("engine")
    def call(
        self, compiled: NumpyFunction, args: Sequence[Any], output_subset: Optional[Sequence[int]] = None
    ) -> List[Any]:
        chosen = range(len(compiled.outputs)) if output_subset is None else list(output_subset)
        if not all(0 <= index < len(compiled.outputs) for index in chosen):
            expected = f"indices of outputs (n_outputs={len(compiled.outputs)})"
            raise ArgumentValueError("output_subset", expected, str(output_subset))
        values = [
            convert(given.variable.type, value, f"input {given.name or given.variable!r}")
            for given, value in zip(compiled.inputs, args)
        ]
        return compiled.evaluate(values, chosen)

    def dumps(
        self,
        compiled: Sequence[Any],
        numbers: Mapping[Hashable, int],
        variables: Mapping[int, int],
        constants: Mapping[int, Any],
    ) -> bytes:
        return pickling.dumps(
            compiled,
            pickling.names(numbers, variables, constants),
            _reduced,
            lambda function: f"function {function.name!r}",
            _parts,
        )

    @point("replication")
    def loads(
        self, data: Any, replicas: Mapping[int, Any], constant: Callable[[Any], np.ndarray[Any, Any]]
    ) -> List[Any]:
        return pickling.loads(
            data, lambda kind, number: replicas[number] if kind == "variable" else replicas[number].storage
        )


def _new_inputs(variables: Sequence[Any]) -> List[Tuple[Any, NumpyVariable]]:
    return [(variable, NumpyVariable(variable.type, variable.name)) for variable in variables]


def _with_inputs(graph: NumpyGraph, outputs: Sequence[Any], updates: Pairs, replaced: Pairs) -> NumpyGraph:
    """Return the graph with the given outputs and updates, and with variables replaced by additional inputs."""
    new_values = substituted([new for _, new in updates], replaced)
    return graph._replace(
        # The new inputs have no names, because names of inputs must be unique.
        inputs=graph.inputs + [In(variable) for _, variable in replaced],
        outputs=substituted(outputs, replaced),
        updates=[(target, new) for (target, _), new in zip(updates, new_values)],
        keys=None,
        single=False,
    )


def _shape(value: Any) -> Any:
    return np.array(np.shape(value) if isinstance(value, np.ndarray) else (), np.int64)


def _reduced(thing: Any) -> Any:
    """Pickle NumPy's ufuncs by name; without this function, pickle would search all modules for each of them."""
    is_named = isinstance(thing, np.ufunc) and getattr(np, thing.__name__, None) is thing
    return (getattr, (np, thing.__name__)) if is_named else NotImplemented


def _parts(compiled: NumpyFunction) -> Iterator[Tuple[str, Any]]:
    for node in compiled.order:
        if isinstance(node, Apply):
            yield f"the operation {node.function!r}", node.function
            for arg in node.args:
                if not isinstance(arg, NumpyVariable):
                    yield f"the constant {arg!r}", arg
    for given in compiled.inputs:
        yield f"the default of input {given.name or given.variable!r}", given.value


ENGINE = NumpyEngine()
