"""A small engine over NumPy, for tests and for teaching: what Theano does, in a page.

Its graphs are made of plain Python callables on arrays:

>>> x = variable("x", "float64", 2)
>>> w = shared(np.ones(3), "w")
>>> step = ENGINE.compile([x], mean(dot(x, w)), [(w, w - 0.5)], None)
>>> step(np.ones((4, 3)))
array(3.)
>>> w.get_value()
array([0.5, 0.5, 0.5])
"""

from __future__ import annotations

import copy
import inspect
import operator
from typing import Any, Callable, Dict, Hashable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..engines import pickling, random_states, register
from ..engines.base import ArrayType, Engine, Input, Output
from ..trace import point

# -- graphs ------------------------------------------------------------------------------------------------------------


class Variable:
    """A symbolic value; ``type`` is None where it is no dense array."""

    #: NumPy leaves ``array + variable`` to the variable.
    __array_ufunc__ = None

    def __init__(self, type: Optional[ArrayType], name: Optional[str] = None) -> None:
        self.type = type
        self.name = name

    def __add__(self, other: Any) -> Apply:
        return apply(np.add, self, other)

    def __radd__(self, other: Any) -> Apply:
        return apply(np.add, other, self)

    def __sub__(self, other: Any) -> Apply:
        return apply(np.subtract, self, other)

    def __rsub__(self, other: Any) -> Apply:
        return apply(np.subtract, other, self)

    def __mul__(self, other: Any) -> Apply:
        return apply(np.multiply, self, other)

    def __rmul__(self, other: Any) -> Apply:
        return apply(np.multiply, other, self)

    def __getitem__(self, index: Any) -> Apply:
        return apply(operator.getitem, self, index)

    def __repr__(self) -> str:
        return self.name or f"<{type(self).__name__} {_describe(self.type)}>"

    # Without it, __getitem__ would make every variable an endless sequence.
    __iter__ = None


class Apply(Variable):
    """The value of ``function(*args)``."""

    def __init__(
        self, function: Callable, args: Tuple[Any, ...], type: Optional[ArrayType], name: Optional[str] = None
    ) -> None:
        super().__init__(type, name)
        self.function = function
        self.args = args


class Shared(Variable):
    """A variable with a value of its own, in a storage that functions and clones share."""

    def __init__(self, type: Optional[ArrayType], storage: List[Any], name: Optional[str] = None) -> None:
        super().__init__(type, name)
        self.storage = storage
        self.default_update: Optional[Variable] = None

    def get_value(self, borrow: bool = False) -> Any:
        """Return a copy of the value, or the value itself."""
        value = self.storage[0]
        return value.copy() if isinstance(value, np.ndarray) and not borrow else value

    def set_value(self, value: Any, borrow: bool = False) -> None:
        """Store a copy of the value, or where it needs no cast the value itself."""
        value = _convert(self.type, value, f"shared variable {self}")
        self.storage[0] = value.copy() if isinstance(value, np.ndarray) and not borrow else value

    def clone(self) -> Shared:
        """Return another variable over the same storage."""
        return Shared(self.type, self.storage, self.name)


class In(NamedTuple):
    """An input with a default, a name of its own, or leave to destroy its array."""

    variable: Variable
    value: Any = None
    name: Optional[str] = None
    mutable: bool = False


def variable(
    name: Optional[str], dtype: Any, ndim: int = 0, broadcastable: Optional[Sequence[bool]] = None
) -> Variable:
    """Return an input; with dtype None one that takes any object."""
    return Variable(None if dtype is None else _type(dtype, ndim, broadcastable), name)


def shared(
    value: Any, name: Optional[str] = None, borrow: bool = False, broadcastable: Optional[Sequence[bool]] = None
) -> Shared:
    """Return a shared variable; what is no array, number or list is kept as it is."""
    if isinstance(value, (np.ndarray, np.generic, int, float, complex, list, tuple)):
        value = np.array(value, copy=not borrow or not isinstance(value, np.ndarray))
        return Shared(_type(value.dtype, value.ndim, broadcastable), [value], name)
    return Shared(None, [value], name)


def apply(
    function: Callable, *args: Any, dtype: Any = None, ndim: Optional[int] = None, name: Optional[str] = None
) -> Apply:
    """Return the expression ``function(*args)``; what is not given of its type is seen by trying it on ones."""
    if dtype is None or ndim is None:
        types = [
            arg.type if isinstance(arg, Variable) else arg if isinstance(arg, np.ndarray) else None for arg in args
        ]
        sample = np.asarray(
            function(
                *[arg if type_ is None else np.ones((1,) * type_.ndim, type_.dtype) for type_, arg in zip(types, args)]
            )
        )
        dtype = sample.dtype if dtype is None else dtype
        ndim = sample.ndim if ndim is None else ndim
    return Apply(function, args, _type(dtype, ndim), name)


def mean(x: Variable, axis: Optional[int] = None) -> Apply:
    """Return the mean over one axis, or over all."""
    return apply(np.mean, x, axis)


def sum(x: Variable, axis: Optional[int] = None) -> Apply:
    """Return the sum over one axis, or over all."""
    return apply(np.sum, x, axis)


def max(x: Variable, axis: Optional[int] = None) -> Apply:
    """Return the maximum over one axis, or over all."""
    return apply(np.max, x, axis)


def dot(x: Any, y: Any) -> Apply:
    """Return the matrix product."""
    return apply(np.dot, x, y)


def random_stream(seed: int, name: Optional[str] = None) -> Shared:
    """Return a shared variable that holds the state of a random number generator; see `uniform`."""
    return shared(np.random.RandomState(seed), name)


def uniform(stream: Shared, shape: Any, ndim: Optional[int] = None) -> Apply:
    """Return numbers from [0, 1), other ones at every call: the stream's default update is its state after them.

    Parameters
    ----------
    stream
        From `random_stream`. What is drawn from it a second time follows upon the first.
    shape
        A tuple, or an expression for an array of integers; then with ``ndim``.
    """
    before = stream if stream.default_update is None else stream.default_update
    drawn = Apply(_draw, (before, shape), None)
    stream.default_update = Apply(operator.itemgetter(1), (drawn,), None)
    return apply(operator.itemgetter(0), drawn, dtype="float64", ndim=len(shape) if ndim is None else ndim)


def _draw(state: np.random.RandomState, shape: Any) -> Tuple[np.ndarray, np.random.RandomState]:
    after = copy.deepcopy(state)
    return np.asarray(after.random_sample(tuple(shape))), after


def _type(dtype: Any, ndim: int, broadcastable: Optional[Sequence[bool]] = None) -> ArrayType:
    return ArrayType(np.dtype(dtype), ndim, tuple(map(bool, broadcastable or (False,) * ndim)))


def _describe(type_: Optional[ArrayType]) -> str:
    if type_ is None:
        return "any object"
    return f"{type_.dtype} with {type_.ndim} dimensions"


def _ordered(roots: Sequence[Any]) -> List[Variable]:
    """Return every variable that the roots depend on, each once and after all that it depends on."""
    order: List[Variable] = []
    seen: Dict[int, bool] = {}  # False while what it depends on is not in the order yet
    stack = list(reversed(roots))
    while stack:
        node = stack[-1]
        if not isinstance(node, Variable) or seen.get(id(node)):
            stack.pop()
        elif id(node) not in seen:
            seen[id(node)] = False
            stack.extend(reversed(getattr(node, "args", ())))
        else:
            seen[id(node)] = True
            order.append(stack.pop())
    return order


def _substituted(roots: Sequence[Any], givens: Sequence[Tuple[Variable, Any]]) -> List[Any]:
    """Return the roots with the givens put in; replacements are taken as they are."""
    new: Dict[int, Any] = {id(old): replacement for old, replacement in givens}
    for node in _ordered(roots):
        if isinstance(node, Apply) and id(node) not in new:
            args = tuple(new.get(id(arg), arg) for arg in node.args)
            if any(one is not other for one, other in zip(args, node.args)):
                new[id(node)] = Apply(node.function, args, node.type, node.name)
    return [new.get(id(root), root) for root in roots]


class Graph(NamedTuple):
    """A function before it is compiled; the givens are put in, the default updates collected."""

    inputs: List[In]
    outputs: List[Any]
    updates: List[Tuple[Shared, Any]]
    keys: Optional[List[str]]
    single: bool
    name: Optional[str]
    inplace: bool


# -- functions ---------------------------------------------------------------------------------------------------------


class Function:
    """A compiled function; call it as one of Theano's."""

    def __init__(self, graph: Graph) -> None:
        order = _ordered(graph.outputs + [new for _, new in graph.updates])
        order += [target for target, _ in graph.updates if not any(target is node for node in order)]
        for node in order:
            if type(node) is Variable and not any(node is given.variable for given in graph.inputs):
                raise ValueError(f"inputs: expected every variable of the graph, {node!r} is missing")
        self.order = order  # pickled first, so that pickling does not go deep
        self.inputs, self.outputs, self.updates, self.keys, self.single, self.name, self.inplace = graph

    def __call__(self, *args: Any, output_subset: Optional[Sequence[Any]] = None, **kwargs: Any) -> Any:
        parameters = [
            inspect.Parameter(f"_{i}" if given.name is None else given.name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for i, given in enumerate(self.inputs)
        ]
        bound = inspect.Signature(parameters).bind_partial(*args, **kwargs).arguments
        values = []
        for parameter, given in zip(parameters, self.inputs):
            value = bound.get(parameter.name, given.value)
            if value is None and given.variable.type is not None:
                raise TypeError(f"missing required input: {parameter.name}")
            values.append(_convert(given.variable.type, value, f"input {parameter.name!r}"))
        if output_subset is not None and self.keys is not None:
            output_subset = [self.keys.index(key) for key in output_subset]
        chosen = range(len(self.outputs)) if output_subset is None else output_subset
        results = self.evaluate(values, chosen)
        if self.keys is not None:
            return {self.keys[index]: result for index, result in zip(chosen, results)}
        return results[0] if self.single and output_subset is None else results

    def evaluate(self, values: Sequence[Any], chosen: Sequence[int]) -> List[Any]:
        """Return the chosen outputs for converted values, and apply the updates."""
        known = {id(given.variable): value for given, value in zip(self.inputs, values)}
        wanted = [self.outputs[index] for index in chosen]
        new_values = [expression for _, expression in self.updates]
        # Nothing is computed that nobody asked for.
        for node in self.order if len(chosen) == len(self.outputs) else _ordered(wanted + new_values):
            if isinstance(node, Shared):
                known[id(node)] = node.storage[0]
            elif isinstance(node, Apply):
                value = node.function(*[known.get(id(arg), arg) for arg in node.args])
                known[id(node)] = value if node.type is None else np.asarray(value, node.type.dtype)
        leaves = [known[id(node)] for node in self.order if not isinstance(node, Apply) and id(node) in known]
        results: List[Any] = []
        for node in wanted:
            results.append(_own(known.get(id(node), node), leaves + results))
        self._update([known.get(id(node), node) for node in new_values], leaves)
        for given, value in zip(self.inputs, values):
            if given.mutable and isinstance(value, np.ndarray):
                value[...] = 0  # so that a test sees whose array it was
        return results

    def _update(self, values: List[Any], leaves: List[Any]) -> None:
        """Store the new values: in the arrays that are there (``inplace``), or as arrays of their own."""
        # An update that is just another updated variable passes its array on ([(a, b), (b, a)] swaps), as in Theano.
        free = {id(target.storage[0]) for target, _ in self.updates}
        own = []
        for value in values:
            passes_on = not self.inplace and id(value) in free
            free.discard(id(value))
            own.append(value if passes_on else _own(value, leaves))
        for (target, _), value in zip(self.updates, own):
            old = target.storage[0]
            if self.inplace and isinstance(old, np.ndarray) and old.shape == value.shape:
                old[...] = value
            else:
                target.storage[0] = value


def _own(value: Any, leaves: Sequence[Any]) -> Any:
    """Return the value as an array that shares no memory with inputs and shared variables."""
    if isinstance(value, np.ndarray) and any(
        isinstance(leaf, np.ndarray) and np.may_share_memory(value, leaf) for leaf in leaves
    ):
        return value.copy()
    return value


def _convert(type_: Optional[ArrayType], value: Any, argument: str) -> Any:
    """Return the value as an array of the type; what is no array yet may be cast where that loses nothing."""
    if type_ is None:
        return value
    if isinstance(value, (Variable, type(None))):
        raise TypeError(f"{argument}: expected {_describe(type_)}, got {value!r}")
    array = np.asarray(value)
    if not isinstance(value, np.ndarray) and array.dtype.kind in "biufc" and not np.can_cast(array.dtype, type_.dtype):
        cast = array.astype(type_.dtype)
        python_float = isinstance(value, float) and type_.dtype.kind == "f"  # 0.1 is welcome where float32 is meant
        array = cast if python_float or np.array_equal(cast, array) else array
    _check(type_, array.dtype, array.shape, argument)
    return array.astype(type_.dtype, copy=False)


def _check(type_: Optional[ArrayType], dtype: np.dtype, shape: Tuple[int, ...], argument: str) -> None:
    if type_ is None:
        return
    got = f"an array of {dtype} with shape {shape}"
    if not np.can_cast(dtype, type_.dtype):
        raise TypeError(f"{argument}: expected {_describe(type_)}, got {got}; cast it first")
    if len(shape) != type_.ndim:
        raise TypeError(f"{argument}: expected {_describe(type_)}, got {got}; reshape it")
    if any(broadcastable and length != 1 for broadcastable, length in zip(type_.broadcastable, shape)):
        raise TypeError(
            f"{argument}: expected length 1 where broadcastable is True in {type_.broadcastable}, got {got}; reshape it"
        )


# -- the engine --------------------------------------------------------------------------------------------------------


class NumpyEngine(Engine):
    """Evaluates graphs of Python callables, one node after the other."""

    name = "numpy"

    def owns(self, thing: Any) -> bool:
        return isinstance(thing, (Variable, In, Function))

    def is_shared(self, thing: Any) -> bool:
        return isinstance(thing, Shared)

    def label(self, variable: Any) -> str:
        return (variable.name or repr(variable.variable)) if isinstance(variable, In) else repr(variable)

    def shared_type(self, shared: Any) -> Optional[ArrayType]:
        return shared.type

    def identity(self, shared: Any) -> Hashable:
        return id(shared.storage)

    def storage(self, shared: Any) -> List[Any]:
        storage: List[Any] = shared.storage
        return storage

    def coerce(self, shared: Any, value: Any, argument: str) -> np.ndarray:
        if self.is_random(shared) and not isinstance(value, np.random.RandomState):
            raise TypeError(f"{argument}: expected a RandomState, got {type(value).__name__}")
        return _convert(shared.type, value, argument)

    def blueprint(self, shared: Any) -> Any:
        return shared.type, shared.name

    def build(self, blueprint: Any, value: Any, storage_of: Optional[Any] = None) -> Shared:
        type_, name = blueprint
        return Shared(type_, [value] if storage_of is None else storage_of.storage, name)

    def compile(
        self,
        inputs: Sequence[Any],
        outputs: Any,  # type: ignore[override]
        updates: Sequence[Tuple[Any, Any]],
        givens: Any,
        name: Optional[str] = None,
        inplace: bool = False,
        no_default_updates: bool = False,
    ) -> Function:
        """Compile one function.

        Parameters
        ----------
        inputs, outputs, updates, givens, name, no_default_updates
            As in Theano.
        inplace
            Write updates into the arrays that the shared variables hold, where the shape allows it.
        """
        return Function(self.snapshot(inputs, outputs, updates, givens, name, inplace, no_default_updates))

    def given_pairs(self, givens: Any) -> List[Tuple[Any, Any]]:
        pairs = givens.items() if isinstance(givens, dict) else givens or ()
        return [(old, new if isinstance(new, Variable) else shared(new)) for old, new in pairs]

    def snapshot(
        self,
        inputs: Sequence[Any],
        outputs: Any,  # type: ignore[override]
        updates: Sequence[Tuple[Any, Any]],
        givens: Any,
        name: Optional[str] = None,
        inplace: bool = False,
        no_default_updates: bool = False,
    ) -> Graph:
        wrapped = [given if isinstance(given, In) else In(given) for given in inputs]
        for index, given in enumerate(wrapped):
            if not isinstance(given.variable, Variable):
                raise TypeError(f"inputs[{index}]: expected a variable, got {given.variable!r}")
        wrapped = [given._replace(name=given.name or given.variable.name) for given in wrapped]
        keys = sorted(outputs) if isinstance(outputs, dict) else None
        single = isinstance(outputs, Variable)
        if outputs is None or isinstance(outputs, (list, tuple)):
            flat = list(outputs or ())
        else:
            flat = [outputs] if keys is None else [outputs[key] for key in keys]
        replaced = self.given_pairs(givens)
        for index, output in enumerate(flat):
            if not isinstance(output, Variable):
                raise TypeError(f"outputs[{index}]: expected a variable, got {output!r}")
        targets, new_values = [], []
        for target, expression in updates or ():
            if not isinstance(target, Shared):
                raise TypeError(f"updates: expected a shared variable to update, got {target!r}")
            if not isinstance(expression, Variable):
                expression = apply(np.array, _convert(target.type, expression, f"update of {target!r}"))
            if expression.type is not None and expression.type[:2] != (target.type or ())[:2]:
                raise TypeError(
                    f"updates: expected {_describe(target.type)} for the new value of {target!r}, got "
                    f"{_describe(expression.type)}"
                )
            targets.append(target)
            new_values.append(expression)
        flat = _substituted(flat, replaced)
        new_values = _substituted(new_values, replaced)
        order = _ordered(flat + new_values)
        while not no_default_updates:
            # A default update may itself lead to shared variables that have one.
            more = [
                node
                for node in order
                if isinstance(node, Shared)
                and node.default_update is not None
                and not any(node is target for target in targets)
            ]
            if not more:
                break
            targets += more
            new_values += _substituted([node.default_update for node in more], replaced)
            order = _ordered(flat + new_values)
        return Graph(wrapped, flat, list(zip(targets, new_values)), keys, single, name, inplace)

    def updated_in(self, snapshot: Graph) -> List[Any]:
        return [target for target, _ in snapshot.updates]

    def variant(self, snapshot: Graph, sliced: bool, as_inputs: Sequence[Any]) -> Function:
        replaced = [(shared, Variable(shared.type, shared.name)) for shared in as_inputs]
        outputs, updates = snapshot.outputs, snapshot.updates
        if sliced:
            outputs = outputs + [new for target, new in updates if not self.is_random(target)]
            updates = [(target, new) for target, new in updates if self.is_random(target)]
        new_values = _substituted([new for _, new in updates], replaced)
        # Nameless, because a function's inputs cannot have one name twice.
        return Function(
            snapshot._replace(
                inputs=snapshot.inputs + [In(variable) for _, variable in replaced],
                outputs=_substituted(outputs, replaced),
                updates=[(target, new) for (target, _), new in zip(updates, new_values)],
                keys=None,
                single=False,
            )
        )

    def is_random(self, shared: Any) -> bool:
        return isinstance(shared.storage[0], np.random.RandomState)

    def jumped(self, shared: Any, value: Any, jumps: int) -> Any:
        return random_states.jumped_random_state(value, jumps)

    def reseeded(self, shared: Any, value: Any, seed: int, index: int) -> Any:
        return random_states.seeded_random_state(seed, index)

    def inputs(self, compiled: Any) -> List[Input]:
        return [
            Input(given.variable, given.name, given.variable.type, given.mutable, given.value is not None, given.value)
            for given in compiled.inputs
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

    def updated(self, compiled: Any) -> List[Any]:
        return [target for target, _ in compiled.updates]

    def convert(self, input: Input, value: Any, argument: str) -> Any:
        return _convert(input.type, value, argument)

    def check(self, input: Input, dtype: np.dtype, shape: Tuple[int, ...], argument: str) -> None:
        _check(input.type, np.dtype(dtype), shape, argument)

    @point("engine")
    def call(self, compiled: Any, args: Sequence[Any], output_subset: Optional[Sequence[int]] = None) -> List[Any]:
        chosen = range(len(compiled.outputs)) if output_subset is None else list(output_subset)
        if not all(0 <= index < len(compiled.outputs) for index in chosen):
            raise ValueError(
                f"output_subset: expected indices from 0 to {len(compiled.outputs) - 1}, got {output_subset}"
            )
        values = [
            _convert(given.type, value, f"input {given.name!r}") for given, value in zip(self.inputs(compiled), args)
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
            lambda thing: NotImplemented,
            lambda function: f"function {function.name!r}",
            _parts,
        )

    @point("replication")
    def loads(self, data: Any, replicas: Mapping[int, Any], constant: Callable[[Any], np.ndarray]) -> List[Any]:
        return pickling.loads(
            data, lambda kind, number: replicas[number] if kind == "variable" else replicas[number].storage
        )


def _parts(compiled: Function) -> Iterator[Tuple[str, Any]]:
    for node in compiled.order:
        if isinstance(node, Apply):
            yield f"the operation {node.function!r}", node.function
            for arg in node.args:
                if not isinstance(arg, Variable):
                    yield f"the constant {arg!r}", arg
    for given in compiled.inputs:
        yield f"the default of input {given.name!r}", given.value


ENGINE = NumpyEngine()
register(ENGINE.name, __name__)
