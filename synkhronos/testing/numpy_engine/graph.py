"""Variables of the NumPy engine, their types, and expressions over them."""

from __future__ import annotations

import operator
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ...engines.base import ArrayType
from ...engines.observer import note_read, note_written, observer_of
from ...errors import ArgumentTypeError


class NumpyVariable(NDArrayOperatorsMixin):
    """Symbolic value; ``type`` is None if the value is not a dense array."""

    __eq__, __ne__, __hash__ = object.__eq__, object.__ne__, object.__hash__

    def __init__(self, type: Optional[ArrayType], name: Optional[str] = None) -> None:
        self.type = type
        self.name = name

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or kwargs or ufunc.nout != 1:
            return NotImplemented
        return apply(ufunc, *inputs)

    def __getitem__(self, index: Any) -> Apply:
        return apply(operator.getitem, self, index)

    def __repr__(self) -> str:
        return self.name or f"<{type(self).__name__} {describe(self.type)}>"

    # Without this attribute, __getitem__ would make every variable an endless sequence.
    __iter__: Any = None


class Apply(NumpyVariable):
    """Value of ``function(*args)``."""

    def __init__(
        self, function: Callable[..., Any], args: Tuple[Any, ...], type: Optional[ArrayType], name: Optional[str] = None
    ) -> None:
        super().__init__(type, name)
        self.function = function
        self.args = args


class Shared(NumpyVariable):
    """Variable with a value, in a storage that functions and clones share."""

    def __init__(self, type: Optional[ArrayType], storage: List[Any], name: Optional[str] = None) -> None:
        super().__init__(type, name)
        self.storage = storage
        self.default_update: Optional[NumpyVariable] = None

    def get_value(self, borrow: bool = False) -> Any:
        """Return the value; an array is copied unless ``borrow`` is set."""

        def get() -> Any:
            if borrow:
                note_read(self.storage)
            value = self.storage[0]
            return value.copy() if isinstance(value, np.ndarray) and not borrow else value

        observer = observer_of(self.storage)
        return get() if observer is None else observer.get(get, borrow)

    def set_value(self, value: Any, borrow: bool = False) -> None:
        """Store the value; an array is copied unless ``borrow`` is set and it needs no cast."""

        def put(value: Any) -> None:
            value = convert(self.type, value, f"shared variable {self}")
            self.storage[0] = value.copy() if isinstance(value, np.ndarray) and not borrow else value
            note_written(self.storage)

        observer = observer_of(self.storage)
        put(value) if observer is None else observer.put(put, value, borrow)

    def clone(self) -> Shared:
        """Return another variable over the same storage."""
        return Shared(self.type, self.storage, self.name)


class In(NamedTuple):
    """Input with an optional default, an optional name, and permission to overwrite its array if `mutable`."""

    variable: NumpyVariable
    value: Any = None
    name: Optional[str] = None
    mutable: bool = False


def variable(
    name: Optional[str], dtype: Any, ndim: int = 0, broadcastable: Optional[Sequence[bool]] = None
) -> NumpyVariable:
    """Return an input; with dtype None, it accepts any object."""
    return NumpyVariable(None if dtype is None else array_type(dtype, ndim, broadcastable), name)


def shared(
    value: Any, name: Optional[str] = None, borrow: bool = False, broadcastable: Optional[Sequence[bool]] = None
) -> Shared:
    """Return a shared variable; values other than arrays, numbers, lists and tuples are stored unchanged."""
    if isinstance(value, (np.ndarray, np.generic, int, float, complex, list, tuple)):
        value = np.array(value, copy=not borrow or not isinstance(value, np.ndarray))
        return Shared(array_type(value.dtype, value.ndim, broadcastable), [value], name)
    return Shared(None, [value], name)


def apply(
    function: Callable[..., Any], *args: Any, dtype: Any = None, ndim: Optional[int] = None, name: Optional[str] = None
) -> Apply:
    """Return the expression ``function(*args)``; a trial call on ones determines a missing `dtype` or `ndim`."""
    if dtype is None or ndim is None:
        sample = np.asarray(function(*map(_sample, args)))
        dtype = sample.dtype if dtype is None else dtype
        ndim = sample.ndim if ndim is None else ndim
    return Apply(function, args, array_type(dtype, ndim), name)


def _sample(arg: Any) -> Any:
    type_ = arg.type if isinstance(arg, NumpyVariable) else arg
    return np.ones((1,) * type_.ndim, type_.dtype) if isinstance(type_, (ArrayType, np.ndarray)) else arg


def array_type(dtype: Any, ndim: int, broadcastable: Optional[Sequence[bool]] = None) -> ArrayType:
    return ArrayType(np.dtype(dtype), ndim, tuple(map(bool, broadcastable or (False,) * ndim)))


def describe(type_: Optional[ArrayType]) -> str:
    return "any object" if type_ is None else f"{type_.dtype} with ndim={type_.ndim}"


def convert(type_: Optional[ArrayType], value: Any, argument: str) -> Any:
    """Convert a value to an array of the type; floats may be rounded, but casts of integers and lists must be exact."""
    if type_ is None:
        return value
    if isinstance(value, (NumpyVariable, type(None))):
        raise ArgumentTypeError(argument, describe(type_), repr(value))
    array = np.asarray(value)
    if not isinstance(value, np.ndarray) and array.dtype.kind in "biufc" and not np.can_cast(array.dtype, type_.dtype):
        cast = array.astype(type_.dtype)
        python_float = isinstance(value, float) and type_.dtype.kind == "f"  # 0.1 may become a float32
        array = cast if python_float or np.array_equal(cast, array) else array
    check(type_, array.dtype, array.shape, argument)
    return array.astype(type_.dtype, copy=False)


def check(type_: Optional[ArrayType], dtype: np.dtype[Any], shape: Tuple[int, ...], argument: str) -> None:
    """Raise `ArgumentTypeError` for an array that does not match the type."""
    if type_ is None or dtype == type_.dtype and len(shape) == type_.ndim and not any(type_.broadcastable):
        return
    got = f"an array of {dtype} with shape {shape}"
    if not np.can_cast(dtype, type_.dtype):
        raise ArgumentTypeError(argument, describe(type_), got, "cast it first")
    if len(shape) != type_.ndim:
        raise ArgumentTypeError(argument, describe(type_), got, "reshape it")
    if any(broadcastable and length != 1 for broadcastable, length in zip(type_.broadcastable, shape)):
        expected = f"length 1 on the axes that are True in broadcastable={type_.broadcastable}"
        raise ArgumentTypeError(argument, expected, got, "reshape it")


def ordered(roots: Sequence[Any]) -> List[NumpyVariable]:
    """Return all variables that the roots depend on, in topological order."""
    order: List[NumpyVariable] = []
    seen: Dict[NumpyVariable, bool] = {}  # False until the node's dependencies are in the order
    stack = list(reversed(roots))
    while stack:
        node = stack[-1]
        if not isinstance(node, NumpyVariable) or seen.get(node):
            stack.pop()
        elif node not in seen:
            seen[node] = False
            stack.extend(reversed(getattr(node, "args", ())))
        else:
            seen[node] = True
            order.append(stack.pop())
    return order


def substituted(
    roots: Sequence[Any],
    givens: Sequence[Tuple[NumpyVariable, Any]],
    changed: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function,
) -> List[Any]:
    """Substitute the givens in the roots, but not inside the replacements, and change the functions of all nodes."""
    new: Dict[int, Any] = {id(old): replacement for old, replacement in givens}
    for node in ordered(roots):
        if isinstance(node, Apply) and id(node) not in new:
            function, args = changed(node.function), tuple(new.get(id(arg), arg) for arg in node.args)
            if function is not node.function or any(one is not other for one, other in zip(args, node.args)):
                new[id(node)] = Apply(function, args, node.type, node.name)
    return [new.get(id(root), root) for root in roots]
