"""`synkhronos.functions`: within a block, the engine's own ``function`` builds functions that run on all ranks."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from typing import Any, Dict, Iterator, List, Optional, Sequence

from .. import engines
from ..errors import ArgumentTypeError, ArgumentValueError
from .build import function
from .function import Function
from .signature import Sharded, WrittenRows


@contextmanager
def functions(
    exact: bool = True, bcast_inputs: Sequence[Any] = (), rows: Optional[int] = None
) -> Iterator[List[Function]]:
    """Make ``theano.function`` and ``pytensor.function`` build functions for all ranks, even inside other libraries.

    Inside the block, calls from the same thread build functions as `synkhronos.function` does. This includes calls by
    modules that imported ``function`` before the block. Calls by Theano or PyTensor themselves, for example by
    ``variable.eval()``, still build serial functions. The functions take their arguments in the same order as the
    serial ones. Blocks can be nested; the inner block's arguments apply.

    Parameters
    ----------
    exact : bool
        See `function`. By default, updates equal the serial function's.
    bcast_inputs : list of str or variables
        Names of inputs (or the inputs) whose values are sent whole to every rank. All other inputs are scattered by
        rows, except for scalars and inputs with broadcastable rows.
    rows : int, optional
        The literal batch size, for functions that contain this number; see `function`.

    Returns
    -------
    context manager
        Its value is a list. Each new `Function` is appended to the list.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong; at the end of the block, if one of the ``bcast_inputs`` is not an input of any function
        built inside. Errors of `function` are raised where the library calls ``function``.

    Examples
    --------
    >>> import synkhronos as synk
    >>> import numpy as np, theano, theano.tensor as T
    >>> synk.fork(2)
    2
    >>> def library_fit(w, x):                  # a library's code, which cannot be changed
    ...     loss = T.sqr(x.dot(w)).mean()
    ...     return theano.function([x], loss, updates=[(w, w - 0.1 * theano.grad(loss, w))])
    >>> w = theano.shared(np.array([1., 2.]), "w")
    >>> with synk.functions():
    ...     step = library_fit(w, T.dmatrix("x"))
    >>> step([[1., 0.], [0., 1.], [1., 1.]]), w.get_value()
    (array(4.66666667), array([0.73333333, 1.66666667]))
    >>> type(step).__name__
    'Function'
    """
    block = _Block(exact, bcast_inputs, rows)
    loaded = [engine.catcher for engine in engines.loaded() or [engines.default()]]
    with ExitStack() as catching:
        for catcher in loaded:
            if catcher is not None:
                catching.enter_context(catcher.catching(_build))
        _open.blocks.append(block)
        try:
            yield block.built
        finally:
            _open.blocks.remove(block)
    block.check_found()


class _Open(threading.local):
    """The open blocks of a thread; the last one applies. If it is None, no block applies: a function is being built."""

    def __init__(self) -> None:
        self.blocks: List[Optional[_Block]] = []


_open = _Open()


def _build(given: Dict[str, Any]) -> Any:
    """Build a function from the arguments of the engine's ``function``; NotImplemented if no block applies."""
    block = _open.blocks[-1] if _open.blocks else None
    if block is None:
        return NotImplemented
    given["inputs"] = block.marked(given["inputs"])
    _open.blocks.append(None)  # operations may build functions of their own
    try:
        block.built.append(function(exact=block.exact, rows=block.rows, **given))  # type: ignore  # see `WrittenRows`
    finally:
        _open.blocks.pop()
    return block.built[-1]


class _Block:
    """The checked arguments of a block, and the functions built in it."""

    def __init__(self, exact: Any, bcast_inputs: Any, rows: Any) -> None:
        if isinstance(bcast_inputs, str) or not isinstance(bcast_inputs, (list, tuple)):
            raise ArgumentTypeError("bcast_inputs", "a list of names or variables", type(bcast_inputs).__name__)
        written = WrittenRows.of(rows)
        self.exact, self.rows = exact, None if written is None else WrittenRows(written.rows, False)
        self.built: List[Function] = []
        self._whole, self._found = list(bcast_inputs), [False] * len(bcast_inputs)

    def marked(self, inputs: Any) -> Any:
        if not isinstance(inputs, (list, tuple)):
            return inputs
        return [Sharded(each, None) if self._is_whole(each) else each for each in inputs]

    def _is_whole(self, given: Any) -> bool:
        variable = getattr(given, "variable", given)
        names = [name for name in (getattr(given, "name", None), getattr(variable, "name", None)) if name is not None]
        found = [each in names if isinstance(each, str) else each is given or each is variable for each in self._whole]
        self._found = [one or other for one, other in zip(found, self._found)]
        return any(found)

    def check_found(self) -> None:
        for i, (each, found) in enumerate(zip(self._whole, self._found)):
            if not found:
                seen = sorted({given.name for one in self.built for given in one._arguments.inputs if given.name})
                raise ArgumentValueError(
                    f"bcast_inputs[{i}]",
                    "an input of a function built in the block",
                    repr(each),
                    f"the names of the functions' inputs are: {', '.join(seen) or 'none'}",
                )
