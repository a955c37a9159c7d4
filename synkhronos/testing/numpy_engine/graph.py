"""The variables of the NumPy engine, their types, and expressions over them."""

from __future__ import annotations

import operator
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ...engines.base import ArrayType
from ...engines.observer import note_read, note_written, observer_of
from ...errors import ArgumentTypeError


class Variable:
    """A symbolic value; ``type`` is None if it is not a dense array."""

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
        return self.name or f"<{type(self).__name__} {describe(self.type)}>"

    # Without it, __getitem__ would make every variable an endless sequence.
    __iter__: Any = None


class Apply(Variable):
    """The value of ``function(*args)``."""

    def __init__(
        self, function: Callable[..., Any], args: Tuple[Any, ...], type: Optional[ArrayType], name: Optional[str] = None
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

        def get() -> Any:
            if borrow:
                note_read(self.storage)
            value = self.storage[0]
            return value.copy() if isinstance(value, np.ndarray) and not borrow else value

        observer = observer_of(self.storage)
        return get() if observer is None else observer.get(get, borrow)

    def set_value(self, value: Any, borrow: bool = False) -> None:
        """Store a copy of the value, or with ``borrow`` the value itself if it needs no cast."""

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
    """An input with a default, a name of its own, or the permission to destroy its array."""

    variable: Variable
    value: Any = None
    name: Optional[str] = None
    mutable: bool = False


def variable(
    name: Optional[str], dtype: Any, ndim: int = 0, broadcastable: Optional[Sequence[bool]] = None
) -> Variable:
    """Return an input; with dtype None one that takes any object."""
    return Variable(None if dtype is None else array_type(dtype, ndim, broadcastable), name)


def shared(
    value: Any, name: Optional[str] = None, borrow: bool = False, broadcastable: Optional[Sequence[bool]] = None
) -> Shared:
    """Return a shared variable; a value that is not an array, number or list is kept as it is."""
    if isinstance(value, (np.ndarray, np.generic, int, float, complex, list, tuple)):
        value = np.array(value, copy=not borrow or not isinstance(value, np.ndarray))
        return Shared(array_type(value.dtype, value.ndim, broadcastable), [value], name)
    return Shared(None, [value], name)


def apply(
    function: Callable[..., Any], *args: Any, dtype: Any = None, ndim: Optional[int] = None, name: Optional[str] = None
) -> Apply:
    """Return the expression ``function(*args)``; dtype and ndim, if not given, are found by trying it on ones."""
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
    return Apply(function, args, array_type(dtype, ndim), name)


def array_type(dtype: Any, ndim: int, broadcastable: Optional[Sequence[bool]] = None) -> ArrayType:
    return ArrayType(np.dtype(dtype), ndim, tuple(map(bool, broadcastable or (False,) * ndim)))


def describe(type_: Optional[ArrayType]) -> str:
    if type_ is None:
        return "any object"
    return f"{type_.dtype} with {type_.ndim} dimensions"


def convert(type_: Optional[ArrayType], value: Any, argument: str) -> Any:
    """Return the value as an array of the type; what is not an array yet may be cast if that loses nothing."""
    if type_ is None:
        return value
    if isinstance(value, (Variable, type(None))):
        raise ArgumentTypeError(argument, describe(type_), repr(value))
    array = np.asarray(value)
    if not isinstance(value, np.ndarray) and array.dtype.kind in "biufc" and not np.can_cast(array.dtype, type_.dtype):
        cast = array.astype(type_.dtype)
        python_float = isinstance(value, float) and type_.dtype.kind == "f"  # 0.1 may become a float32
        array = cast if python_float or np.array_equal(cast, array) else array
    check(type_, array.dtype, array.shape, argument)
    return array.astype(type_.dtype, copy=False)


def check(type_: Optional[ArrayType], dtype: np.dtype[Any], shape: Tuple[int, ...], argument: str) -> None:
    """Refuse an array of another type than this one."""
    if type_ is None:
        return
    got = f"an array of {dtype} with shape {shape}"
    if not np.can_cast(dtype, type_.dtype):
        raise ArgumentTypeError(argument, describe(type_), got, "cast it first")
    if len(shape) != type_.ndim:
        raise ArgumentTypeError(argument, describe(type_), got, "reshape it")
    if any(broadcastable and length != 1 for broadcastable, length in zip(type_.broadcastable, shape)):
        expected = f"length 1 on the axes whose broadcastable is True in {type_.broadcastable}"
        raise ArgumentTypeError(argument, expected, got, "reshape it")


def ordered(roots: Sequence[Any]) -> List[Variable]:
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


def substituted(roots: Sequence[Any], givens: Sequence[Tuple[Variable, Any]]) -> List[Any]:
    """Return the roots with the givens put in; replacements are taken as they are."""
    new: Dict[int, Any] = {id(old): replacement for old, replacement in givens}
    for node in ordered(roots):
        if isinstance(node, Apply) and id(node) not in new:
            args = tuple(new.get(id(arg), arg) for arg in node.args)
            if any(one is not other for one, other in zip(args, node.args)):
                new[id(node)] = Apply(node.function, args, node.type, node.name)
    return [new.get(id(root), root) for root in roots]
