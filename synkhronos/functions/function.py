"""`Function`: a compiled function that runs on all ranks."""

from __future__ import annotations

import math
import weakref
from typing import Any, Dict, List, Optional, Sequence, Tuple

import cloudpickle
import numpy as np

from .. import engines, selection
from ..partition import split_rows
from ..program import PROGRAM, Program
from ..reduce_op import MISSING, ReduceOp, check_dtype
from ..session import Session
from ..shared_data import Data
from . import spec
from .binding import bind
from .call import Argument, CallFunction, FreeFunction
from .distribute import catalogue_of

#: Lists of indices up to this length travel in the command, longer ones through shared memory.
SHORT = 256


class Function:
    """What `synkhronos.function` returns: called like a Theano function, it runs on all ranks.

    What else Theano's functions have is the master's own: ``f[input]`` and ``input in f`` look at its values,
    `copy`, `free` and `trust_input` are as described there, all other attributes (``maker``, ``fn``, ``profile``,
    ``input_storage``, ...) are those of the function that `as_theano` calls. ``f[input] = value``, ``f.value`` and
    ``f.container`` are refused, because only shared variables keep values between calls on all ranks. A function can
    be pickled where Theano's can: it comes back with its own copies of the shared variables, and is distributed anew.

    Attributes
    ----------
    name : str or None
        As given to `function`; else the engine's own (the place of its definition).
    compiled : the engine's function
        The master's, e.g. for ``theano.printing.debugprint``.
    last_rows : list of int, optional
        Rows that every rank took in the last call (1 each where no input is scattered); None before the first.
    """

    def __init__(self, program: Program, engine: Any, compiled: Any, form: spec.Form, output_ops: List[ReduceOp],
                 update_ops: List[Any], n_scattered: int) -> None:
        self.program, self.engine, self.compiled, self.name = program, engine, compiled, compiled.name
        self._form, self._output_ops, self._update_ops, self._n_scattered = form, output_ops, update_ops, n_scattered
        self._inputs = engine.inputs(compiled)
        self._labels = [_label(i, given) for i, given in enumerate(self._inputs)]
        self._scattered = [i < n_scattered and _has_rows(given) for i, given in enumerate(self._inputs)]
        self._shareds = engine.shareds(compiled)
        self._staging: Dict[int, np.ndarray] = {}  # shared memory that calls use again, by input
        self.last_rows: Optional[List[int]] = None
        self._called_in: Any = None  # reference to the session of the last call
        program.add(self)

    def __repr__(self) -> str:
        return "<synkhronos.Function %s: %d inputs, outputs %s>" % (
            self.name or "without a name", len(self._inputs), self.output_modes)

    @property
    def output_modes(self) -> List[Optional[str]]:
        """The op of every output, a list of (str or None): as given, or ``avg``."""
        return [_mode(op) for op in self._output_ops]

    @property
    def update_modes(self) -> List[Optional[str]]:
        """The op of every update, a list of (str or None): as given, or ``avg`` for floats."""
        return [_mode(op) for op in self._update_ops]

    def get_shared(self) -> List[Any]:
        """Return the shared variables that the function uses, those with default updates included.

        Returns
        -------
        list of shared variables
            What collectives take.
        """
        return list(self._shareds)

    def as_theano(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function on the master only, as plain Theano would.

        Its updates change the master's own shared variables alone.

        Parameters
        ----------
        *args, **kwargs
            As Theano's own function takes them; `Data` may be given, too.

        Returns
        -------
        array, list or dict
            As Theano's own function returns it; ops have no meaning here.

        Examples
        --------
        >>> import synkhronos as synk
        >>> import theano.tensor as T
        >>> x = T.dvector("x")
        >>> f = synk.function([x], (x.sum(), "max"))
        >>> f.as_theano([1., 2., 6.])               # before `fork`, too
        array(9.)
        >>> synk.fork(2)
        2
        >>> f([1., 2., 6.])                         # the largest of 1 + 2 and 6
        array(6.)
        """
        return self.compiled(*map(_array, args), **{key: _array(value) for key, value in kwargs.items()})

    def build_inputs(self, *args: Any, force_cast: bool = False, oversize: float = 1.0, minibatch: bool = False,
                     **kwargs: Any) -> Any:
        """Write the arguments of a call into shared memory, each as a `Data` of its input's dtype.

        Parameters
        ----------
        *args, **kwargs
            One value per input, by position or by name.
        force_cast, oversize, minibatch
            As for `synkhronos.data`.

        Returns
        -------
        Data or tuple of Data
            One per input; a single one alone.

        Raises
        ------
        TypeError, ValueError
            Where a value is missing or does not suit its input, or an input is no dense array.
        SharedMemoryError
            Where the memory cannot be had.

        Examples
        --------
        >>> import synkhronos as synk
        >>> import theano.tensor as T
        >>> x, y = T.fmatrix("x"), T.ivector("y")
        >>> f = synk.function([x, y], (x.sum() * y).sum())
        >>> f.build_inputs([[1, 2], [3, 4]], [0, 1])
        (<Data 'x': float32 (2, 2)>, <Data 'y': int32 (2,)>)
        """
        values = bind(self._inputs, self._labels, self.name, args, kwargs)
        for given, label in zip(self._inputs, self._labels):
            if given.type is None:
                raise TypeError("%s is no dense array, so it cannot be a Data: pass it to the call" % label)
        made = [Data(self.program.pool, value, var=given.type, minibatch=minibatch, force_cast=force_cast,
                     oversize=oversize, name=given.name) for given, value in zip(self._inputs, values)]
        return made[0] if len(made) == 1 else tuple(made)

    def rows_taken(self, session: Session) -> Optional[List[int]]:
        """Return the rows that every rank took in the last call in this session; None where there was none."""
        return self.last_rows if self._called_in is not None and self._called_in() is session else None

    # -- what the engine's functions have, too -------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name in ("value", "container"):
            raise AttributeError("a synkhronos Function has no %s: it keeps no values of inputs between calls; "
                                 "f[input] reads what the master's function has" % name)
        if name.startswith("_") or name == "compiled":  # (not yet there while pickle looks for its methods)
            raise AttributeError("%r has no attribute %r" % (type(self).__name__, name))
        return getattr(self.compiled, name)

    def __getitem__(self, item: Any) -> Any:
        return self.compiled[item]

    def __setitem__(self, item: Any, value: Any) -> None:
        raise TypeError("f[%s] = value: a synkhronos Function keeps no values of inputs between calls; pass it to the "
                        "call, or use a shared variable and its set_value" % item)

    def __contains__(self, item: Any) -> bool:
        return item in self.compiled

    __iter__ = None  # or __getitem__ would make one

    def __reduce__(self) -> Any:
        return _restore, (self.engine.name, self.compiled, self._form, self._output_ops, self._update_ops,
                          self._n_scattered)

    @property
    def trust_input(self) -> bool:
        """Whether `as_theano` takes its arguments as they are; calls on all ranks always check them."""
        return self.compiled.trust_input

    @trust_input.setter
    def trust_input(self, trust_input: bool) -> None:
        self.compiled.trust_input = trust_input

    def copy(self, share_memory: bool = False, swap: Optional[Dict[Any, Any]] = None, delete_updates: bool = False,
             name: Optional[str] = None, profile: Any = None) -> Function:
        """Return another function of the same graph, without optimising it again; parameters as in Theano.

        Parameters
        ----------
        share_memory : bool
            Whether the two use the same memory for intermediate results (on the master).
        swap : dict, optional
            From shared variables to those that the copy uses in their place.
        delete_updates : bool
            Whether the copy updates nothing.
        name : str, optional
            Of the copy; the original's and "copy" by default.
        profile : bool, str or profile, optional

        Returns
        -------
        Function
        """
        compiled = self.engine.copy(self.compiled, share_memory=share_memory, swap=swap, delete_updates=delete_updates,
                                    name=name, profile=profile)
        return Function(self.program, self.engine, compiled, self._form, self._output_ops,
                        [] if delete_updates else self._update_ops, self._n_scattered)

    def free(self) -> None:
        """Free the memory that the function keeps for intermediate results, on all ranks that hold it."""
        session = self.program.session
        if session is None or session.closed:
            self.compiled.free()
            return
        with session.lock:
            catalogue = catalogue_of(session)
            if self in catalogue:
                session.run(FreeFunction(catalogue.number(self)))
            else:
                self.compiled.free()

    # -- the call ------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, output_subset: Any = None, batch: Any = None, batch_s: None = None,
                 num_slices: int = 1, timeout: Optional[float] = None, **kwargs: Any) -> Any:
        """Call the function on all ranks: scatter the rows of its inputs, reduce its outputs.

        Parameters
        ----------
        *args, **kwargs
            One value per input, by position or by name: a `Data`, or whatever the engine itself would take (which
            then goes through shared memory).
        output_subset : list of int (of str, where the outputs are a dict), optional
            The outputs that are wanted.
        batch : int, slice, list, tuple or 1-D integer array, optional
            The rows of the whole data set that the call is about; an int ``n`` means the first n. They are selected
            before they are divided over the ranks.
        batch_s, num_slices
            Reserved for slices.
        timeout : float, optional
            Seconds that the call may take; what `fork` was given by default.

        Returns
        -------
        array, list or dict
            As the engine's own function returns it.

        Raises
        ------
        TypeError, ValueError
            Where an argument is wrong; no rank has moved then.
        StateError
            Before `fork`, after `close`, or inside another call.
        WorkerError
            Where the call failed on another rank; where it failed on the master, its own exception is raised.
        WorkerDied, WorkerTimeout
            Where a rank ended or did not answer in time; the session is closed then.

        Examples
        --------
        >>> import synkhronos as synk
        >>> import theano.tensor as T
        >>> synk.fork(2)
        2
        >>> x, y = T.dvector("x"), T.dvector("y")
        >>> f = synk.function([x, y], [(x * y).mean(), (y, "gather")])
        >>> f([1., 2., 3.], y=[1., 1., 2.])
        [array(3.), array([1., 1., 2.])]
        >>> f([1., 2., 3.], [1., 1., 2.], batch=[2, 0], output_subset=[1])
        [array([2., 1.])]
        """
        if batch_s is not None or num_slices != 1:
            raise ValueError("batch_s and num_slices are not available in this version: leave them out")
        if timeout is not None and not (isinstance(timeout, (int, float)) and 0 < timeout < float("inf")):
            raise ValueError("timeout must be a positive number of seconds or None, got %r" % (timeout,))
        subset = spec.output_indices(output_subset, self._form.keys, len(self._output_ops))
        values = bind(self._inputs, self._labels, self.name, args, kwargs)
        session = self.program.current()
        with session.lock:
            session.check()  # before anything is written: a command in progress may be reading it
            catalogue = catalogue_of(session)
            catalogue.ensure([self])
            arguments, chosen, n_rows = self._prepare(values, batch)
            bounds = None if n_rows is None else split_rows(n_rows, session.size, session.root)
            ops = self._output_ops if subset is None else [self._output_ops[i] for i in subset]
            if n_rows == 0:
                ops = [ReduceOp(None)] * len(ops)  # every rank makes the call without rows; the master's result counts
            results = session.run(CallFunction(catalogue.number(self), self.name or "without a name", arguments,
                                               chosen, bounds, subset, ops), timeout)
            self.last_rows = [1] * session.size if bounds is None else [end - begin for begin, end in bounds]
            self._called_in = weakref.ref(session)
        return self._form.wrap(results[session.root], subset)

    def _prepare(self, values: Sequence[Any], batch: Any) -> Tuple[List[Argument], Any, Optional[int]]:
        """Check the arguments and bring them into shared memory.

        Returns
        -------
        arguments : list of Argument
        chosen : Selection, handle or None
            The rows that ``batch`` selects, as `CallFunction` takes it.
        n_rows : int or None
            Rows to divide over the ranks; None where no input is scattered.
        """
        arrays: List[Any] = []
        for given, label, value in zip(self._inputs, self._labels, values):
            if isinstance(value, Data):
                if given.type is None:
                    raise TypeError("%s is no dense array, so it cannot take a Data" % label)
                self.engine.check(given, value.dtype, value.shape, label)
                arrays.append(value)
            else:
                arrays.append(self.engine.convert(given, value, label))
        chosen, n_rows = self._select(arrays, batch)
        arguments = []
        for i, (given, array) in enumerate(zip(self._inputs, arrays)):
            if given.type is None:
                arguments.append(Argument("value", _pickled(array, self._labels[i])))
            elif isinstance(array, Data):
                kind = "whole" if not self._scattered[i] else "batch" if array.minibatch else "selected"
                arguments.append(Argument(kind, array.handle(), given.mutable))
            elif self._scattered[i]:
                arguments.append(Argument("batch", self._stage(i, array, chosen), given.mutable))
            else:
                arguments.append(Argument("whole", self._stage(i, array), given.mutable))
        if isinstance(chosen, selection.Indices) and len(chosen) > SHORT:
            chosen = self._stage(-1, chosen.array)
        return arguments, chosen, n_rows

    def _select(self, arrays: Sequence[Any], batch: Any) -> Tuple[Any, Optional[int]]:
        """Return the rows that ``batch`` selects, and how many rows there are to divide."""
        lengths = {i: len(array) for i, array in enumerate(arrays) if self._scattered[i]}
        if not lengths:
            if batch is not None:
                raise ValueError("batch was given, but no input of the function is scattered")
            return None, None
        if batch is None:
            if len(set(lengths.values())) > 1:
                raise ValueError("scattered inputs must have the same length, got %s" % ", ".join(
                    "%d of %s" % (length, self._labels[i]) for i, length in lengths.items()))
            return None, next(iter(lengths.values()))
        minibatch = {i for i in lengths if isinstance(arrays[i], Data) and arrays[i].minibatch}
        whole = [length for i, length in lengths.items() if i not in minibatch]
        # Where all inputs hold just the batch, the data set that the indices are about is not there to check them.
        chosen = selection.parse(batch, min(whole) if whole else np.iinfo(np.intp).max)
        for i in minibatch:
            if lengths[i] < len(chosen):
                raise ValueError("%s is a minibatch of %d rows, but batch selects %d: write the selected rows to "
                                 "it first" % (self._labels[i], lengths[i], len(chosen)))
        return chosen, len(chosen)

    def _stage(self, i: int, array: np.ndarray, chosen: Any = None) -> Any:
        """Copy an array, or its chosen rows, into shared memory that is used again; return its handle."""
        pool = self.program.pool
        shape = array.shape if chosen is None else (len(chosen),) + array.shape[1:]
        nbytes = array.itemsize * math.prod(shape)
        buffer = self._staging.get(i)
        if buffer is None or buffer.nbytes < nbytes or not pool.owns(buffer):
            buffer = self._staging[i] = None  # type: ignore[assignment]  # given back before the new one is taken
            buffer = self._staging[i] = pool.allocate((max(1, nbytes),), np.uint8)
        staged: np.ndarray = np.ndarray(shape, array.dtype, buffer)
        if chosen is None:
            np.copyto(staged, array)
        else:
            chosen.take(array, out=staged)
        return pool.handle(staged)


def _label(position: int, given: Any) -> str:
    return "input %r (argument %d)" % (given.name, position) if given.name else "input %d" % position


def _has_rows(given: Any) -> bool:
    """Tell whether an input is divided by rows: not one of 0 dimensions, nor one whose rows are broadcastable."""
    if given.type is None:
        raise TypeError("inputs: %s is no dense array, so its rows cannot be scattered; pass it in bcast_inputs" %
                        (given.name or given.variable))
    return given.type.ndim > 0 and not given.type.broadcastable[0]


def _mode(op: Any) -> Optional[str]:
    return None if op is MISSING or op.name is None else str(op)


def _array(value: Any) -> Any:
    return value.data if isinstance(value, Data) else value


def _pickled(value: Any, label: str) -> bytes:
    try:
        return cloudpickle.dumps(value)
    except Exception as error:
        raise TypeError("%s cannot be sent to the other ranks: expected a value that pickles, got %s (%s: %s)" % (
            label, type(value).__name__, type(error).__name__, error)) from error


def _restore(engine: str, compiled: Any, *rest: Any) -> Function:
    """Return the function of a pickle."""
    return Function(PROGRAM, engines.get(engine), compiled, *rest)


def function(inputs: Sequence[Any], outputs: Any = None, bcast_inputs: Optional[Sequence[Any]] = None,
             updates: Any = None, givens: Any = None, sliceable_shareds: None = None, **kwargs: Any) -> Function:
    """Compile a function that runs on all ranks: ``theano.function`` with a few more words.

    Parameters
    ----------
    inputs : list of variables (or ``theano.In``)
        Their values are scattered: rank r is given its share of the rows (dimension 0). Those of 0 dimensions, or
        with broadcastable rows, go whole to every rank.
    outputs : variable, list or dict, optional
        Each a variable or ``(variable, op)``. The op says what becomes of the ranks' results: ``avg`` (the default for
        floats; weighted by rows, so that it is what the serial program gives), ``sum``, ``prod``, ``min``, ``max``,
        ``gather`` (concatenated in rank order) or None (the master's own result); with the prefix ``c_`` the CPU
        transport is used.
    bcast_inputs : list of variables, optional
        More inputs, after ``inputs``; their values go whole to every rank.
    updates : dict or list, optional
        ``(shared, expression)`` or ``(shared, expression, op)``. Every rank updates its own copy; the op is for
        slices.
    sliceable_shareds
        Reserved for slices.
    givens, **kwargs
        Passed to the engine's own ``function``.

    Returns
    -------
    Function

    Raises
    ------
    TypeError, ValueError
        Where an op does not exist or does not suit the output's dtype, or a name is reserved.

    Examples
    --------
    >>> import synkhronos as synk
    >>> import theano.tensor as T
    >>> synk.fork(2)
    2
    >>> x = T.dvector("x")
    >>> f = synk.function([x], [x.mean(), (x.max(), "max"), (x ** 2, "gather")])
    >>> f([1., 2., 6.])                         # rank 0 has two rows, rank 1 has one
    [array(3.), array(6.), array([ 1.,  4., 36.])]
    """
    if sliceable_shareds is not None:
        raise ValueError("sliceable_shareds is not available in this version: leave it out")
    inputs, bcast_inputs = _as_list(inputs, "inputs"), _as_list(bcast_inputs, "bcast_inputs")
    parsed = spec.parse_outputs(outputs)
    engine = engines.find(_variables(inputs, bcast_inputs, parsed, updates))
    pairs, update_ops = spec.parse_updates(updates, engine.label)
    for shared, _ in pairs:
        if not engine.is_shared(shared):
            raise TypeError("updates: expected a shared variable to update, got %r" % (shared,))
    ops = [op if op is MISSING else ReduceOp.parse(op, "the op of an output") for op in parsed.ops]
    update_ops = [op if op is MISSING else ReduceOp.parse(op, "the op of the update of %s" % engine.label(shared),
                                                          ("avg", "sum", "prod", "min", "max"))
                  for op, (shared, _) in zip(update_ops, pairs)]
    compiled = engine.compile(list(inputs) + list(bcast_inputs), parsed.variables, pairs, givens, **kwargs)
    for given in engine.inputs(compiled):
        if given.name in spec.RESERVED:
            raise ValueError("an input is called %r, which is a keyword of the call itself (reserved: %s): give it "
                             "another name" % (given.name, ", ".join(spec.RESERVED)))
    output_ops = [_output_op(op, output) for op, output in zip(ops, engine.outputs(compiled))]
    update_ops = [_update_op(op, shared, engine) for op, (shared, _) in zip(update_ops, pairs)]
    return Function(PROGRAM, engine, compiled, parsed.form, output_ops, update_ops, len(inputs))


def _as_list(variables: Any, argument: str) -> Sequence[Any]:
    if variables is None:
        return []
    if not isinstance(variables, (list, tuple)):
        raise TypeError("%s must be a list of variables, got %s" % (argument, type(variables).__name__))
    return variables


def _variables(inputs: Sequence[Any], bcast_inputs: Sequence[Any], outputs: spec.Outputs, updates: Any) -> List[Any]:
    found = list(inputs) + list(bcast_inputs)
    form = outputs.variables
    found += list(form.values()) if isinstance(form, dict) else form if isinstance(form, list) else [form]
    if isinstance(updates, dict):
        found += list(updates)
    elif isinstance(updates, (list, tuple)):
        found += [entry[0] for entry in updates if isinstance(entry, (list, tuple)) and entry]
    return found


def _output_op(op: Any, output: Any) -> ReduceOp:
    if output.type is None:
        if op is MISSING or op.name is not None:
            raise TypeError("%s is no dense array, so it cannot be reduced: give it as (variable, None) to have the "
                            "master's own" % output.label)
        return op
    return ReduceOp.for_output(op, output.type.dtype, output.label)


def _update_op(op: Any, shared: Any, engine: Any) -> Any:
    """Check the op of an update; integers and what is no array have none by default: slices must agree."""
    type_ = engine.shared_type(shared)
    if type_ is None:
        if op is not MISSING:
            raise TypeError("the update of %s can have no op: it is no dense array" % engine.label(shared))
        return op
    if op is MISSING:
        return ReduceOp("avg") if type_.dtype.kind in "fc" else MISSING
    check_dtype(op, type_.dtype, "the update of %s" % engine.label(shared))
    return op


def distribute() -> None:
    """Send every function built so far, and the shared variables that they use, to all ranks.

    Optional: it happens by itself at the first call. May be called again after more functions have been built;
    what the ranks hold already is not sent again, and keeps its values.

    Raises
    ------
    StateError
        Before `fork`, or after `close`.
    TypeError
        Where something cannot travel; names the function and the object. All other functions have been sent.

    Examples
    --------
    >>> import synkhronos as synk
    >>> import theano.tensor as T
    >>> synk.fork(2)
    2
    >>> x = T.dvector("x")
    >>> f = synk.function([x], x.mean())
    >>> synk.distribute()
    >>> f([1., 2., 6.])
    array(3.)
    """
    session = PROGRAM.current()
    with session.lock:
        catalogue_of(session).ensure(PROGRAM.functions)
