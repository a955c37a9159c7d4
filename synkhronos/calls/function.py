"""A compiled function that runs on all ranks, as built by `synkhronos.function`."""

from __future__ import annotations

import logging
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from .. import engines
from ..engines.observer import note_read, note_written
from ..errors import ArgumentTypeError
from ..program.program import PROGRAM, Program
from ..reductions import MISSING, ReduceOp
from ..replication.replicator import replicator_of
from ..runtime.command import Command
from ..runtime.news import News
from ..runtime.registry import Origin, SharedEntry
from ..runtime.session import Session, check_timeout
from ..selection import RowRange
from ..shared_data import Data
from ..trace import point
from . import signature
from .arguments import Arguments
from .batches import read_all
from .changes import (
    changed,
    check_in_sync,
    entries_of,
    mark_delivered,
    mark_divergent,
    send_master_values,
    warn_of_changes,
    watched,
)
from .command import CallFunction, FreeFunction, ProfileFunctions
from .comparison import Comparison, SerialError, compare, explained
from .first_calls import FirstCalls
from .on_step import OnStep, StepProgress
from .placement_table import PlacementTable, table_of
from .plan import CallMemory, FunctionVariables, Plans
from .plan_builder import PlanBuilder, why_undivided
from .rank_steps import StepSequence
from .state_rows import refuse_rows, rows_of_states, rows_on_ranks, states_of
from .steps import Results, RunSteps, run_in_chunks
from .variants import Variants

logger = logging.getLogger("synkhronos")

_COMPILING = threading.RLock()  #: Held while a serial function is compiled on first use.


class Function:
    """A function built by `synkhronos.function`: call it like a Theano function, and it runs on all ranks.

    Other features of Theano's functions apply to the master alone: ``f[input]``, ``f.value``, ``f.container`` and
    ``input in f`` refer to the master's function. So do undocumented attributes (``maker``, ``fn``, ``input_storage``,
    ...). A function can be pickled if Theano's function can be pickled. The restored function has its own copies of the
    shared variables and is distributed again.

    A broadcast input may keep its value between calls: ``In(s, value=0., update=s + x)``. Each rank stores its own
    value in a shared variable, listed by `get_shared`; a call without a value continues from the stored value. A value
    set on the master, ``f[s] = value`` or ``f[s][0] = 1``, reaches all ranks with the next call. If this value is a
    random state, the ranks start far apart in the same sequence, unless all ranks draw the same numbers.

    Attributes
    ----------
    name : str or None
        The name passed to `function`; by default, the file and line of the definition.
    last_rows : list of int, optional
        Number of rows that each rank computed in the last successful call, or in all steps of the last `steps`. A call
        to a function without rows counts as 1 row. None before the first call.
    """

    def __init__(
        self,
        program: Program,
        engine: Any,
        compiled: Any,
        form: signature.Form,
        output_ops: List[ReduceOp],
        updates: List[Tuple[Any, Any]],
        arguments: Arguments,
        variants: Variants,
        exact: Optional[bool],
        compile_own: Optional[Callable[[], Any]] = None,
    ) -> None:
        self.program, self.engine, self.name = program, engine, engine.function_name(compiled)
        self._compiled, self._compile_own = compiled, compile_own
        #: The user's ``exact``; by default, True if ``fork(exact=True)`` came before the definition, else None.
        self.exact = PROGRAM.exact or None if exact is None else exact
        self._form, self._output_ops, self._updates, self._arguments = form, output_ops, updates, arguments
        self._shareds = engine.shareds(compiled)
        self._variants = variants
        #: Random states that are equal on all ranks, so that all draw the same numbers.
        self.common_streams = engine.common_streams(variants.snapshot)
        #: The random states that each rank advances separately in a call.
        random = [one for one in engine.updated_in(variants.snapshot) if engine.is_random(one)]
        self.own_streams = [one for one in random if one not in self.common_streams]
        self._planner = PlanBuilder(engine, compiled, output_ops, updates, self._arguments, variants)
        #: The function that ranks call: `compiled` or a variant of it; its results stay on the device.
        self.on_ranks = engine.on_ranks(variants.first(compiled))
        self.last_rows: Optional[List[int]] = None
        self._called_in: Any = None  # weak reference to the session of the last call
        self._plans: Optional[Plans] = None  # for the session of the last call
        self._has_warned = False
        self._first_calls = FirstCalls()
        program.add(self)

    def __repr__(self) -> str:
        return (
            f"<synkhronos.Function {self.name or 'without a name'}: "
            f"number of inputs {len(self._arguments.inputs)}, outputs {self.output_modes}>"
        )

    @property
    def compiled(self) -> Any:
        """The engine's function on the master, for example for ``debugprint``; the first access may compile it."""
        if self._compile_own is not None:
            with _COMPILING:
                if self._compile_own is not None:  # otherwise another thread has just compiled it
                    self._compiled, self._compile_own = self._compile_own(), None
        return self._compiled

    @property
    def output_modes(self) -> List[Optional[str]]:
        """Ops of the outputs, passed by the user or inferred, as a list of (str or None)."""
        return [_mode(op) for op in self._output_ops]

    @property
    def update_modes(self) -> List[Optional[str]]:
        """Ops of the updates passed to `function`: the user's op, else ``avg`` for floats and None for other types."""
        return [_mode(op) for _, op in self._updates]

    def get_shared(self) -> List[Any]:
        """Return a list of all shared variables that the function reads or updates, for use in collectives."""
        return list(self._shareds)

    def sharding(self) -> PlacementTable:
        """Return a printable table of the function's inner collectives and the placements of its values.

        An input is ``Shard(axis)`` if every rank has its own rows, or ``Replicate`` if all ranks have the same value.
        An output is ``Shard`` (the rank's rows), ``Partial(op)`` (a part of the value), ``Replicate`` (the value) or
        ``Size`` (a number of rows); if it is ``Unknown``, the responsible operation is named. See `docs/exact.rst`.
        An update is ``divided by elements`` if each rank computes only its part of the new value; otherwise, the reason
        is given. See `Options`.

        Returns
        -------
        PlacementTable
            Its main attributes are ``inputs``, ``outputs``, ``updates``, ``collectives`` and ``nbytes``.

        Raises
        ------
        TypeError
            If the engine does not propagate placements.

        Examples
        --------
        >>> import synkhronos as synk
        >>> import numpy as np, theano, theano.tensor as T
        >>> synk.fork(2)
        2
        >>> x, w = T.dmatrix("x"), theano.shared(np.ones(2), "w")
        >>> scores = T.dot(x, w)
        >>> g = theano.grad(T.sqr(scores).mean(), w)
        >>> g.name = "g"
        >>> f = synk.function([x], scores, updates=[(w, w - 0.1 * g / abs(g).max())], name="f", exact=True)
        >>> f([[1., 2.], [3., 4.], [5., 6.]])
        array([ 3.,  7., 11.])
        >>> f.sharding()
        function f
        inputs
          x                              Shard(0)
        outputs
          output                         Shard(0)       gather
        updates
          w                              Replicate      whole: smaller than 65,536 bytes
        collectives
          0: sum of 1, 16 bytes, then the updates of w
               g (float64 vector)
        """
        session, number = self.program.session, None
        if session is not None and not session.closed and self in replicator_of(session):
            number = replicator_of(session).number(self)
        nbytes: Any = {} if session is None else session.context.kept(CallMemory).bytes_inside
        names = [given.name or label for given, label in zip(self._arguments.inputs, self._arguments.labels)]
        outputs = self.engine.outputs(self._compiled)
        ops, undivided = zip(outputs, self._output_ops), "" if session is None else why_undivided(self.program, session)
        in_parts = session is None or session.launcher.runs_python
        return table_of(self, self._variants, names, ops, lambda i: nbytes.get((number, i)), undivided, in_parts)

    def as_theano(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function on the master only, as plain Theano would; it updates only the master's variables.

        Parameters
        ----------
        *args, **kwargs
            As for Theano's own function; `Data` is also accepted.

        Returns
        -------
        array, list or dict
            As Theano's own function returns it; ops are ignored.

        Examples
        --------
        >>> import synkhronos as synk
        >>> import theano.tensor as T
        >>> x = T.dvector("x")
        >>> f = synk.function([x], (x.sum(), "max"))
        >>> f.as_theano([1., 2., 6.])               # also works before `fork`
        array(9.)
        >>> synk.fork(2)
        2
        >>> f([1., 2., 6.])                         # the largest of 1 + 2 and 6
        array(6.)
        """
        # An output that is a variable's old value shares the variable's memory, which the function may reuse: copy it.
        held = [self.engine.get(shared) for shared in self._shareds]
        results = self.compiled(*map(_array, args), **{key: _array(value) for key, value in kwargs.items()})
        return _apart(results, [value for value in held if isinstance(value, np.ndarray)])

    def build_inputs(
        self, *args: Any, force_cast: bool = False, oversize: float = 1.0, minibatch: bool = False, **kwargs: Any
    ) -> Any:
        """Write the arguments of a call into shared memory, each as a `Data` of its input's dtype.

        Parameters
        ----------
        *args, **kwargs
            One value per input, by position or by name.
        force_cast, oversize, minibatch
            See `synkhronos.data`.

        Returns
        -------
        Data or tuple of Data
            One `Data` per input, in a tuple unless there is only one. Trailing inputs that keep their value between
            calls are omitted if no value is passed.

        Raises
        ------
        TypeError, ValueError
            If a value is missing or does not fit its input, or an input is not a dense array.
        SharedMemoryError
            If there is not enough memory for the values.

        Examples
        --------
        >>> import synkhronos as synk
        >>> import theano.tensor as T
        >>> x, y = T.fmatrix("x"), T.ivector("y")
        >>> f = synk.function([x, y], (x.sum() * y).sum())
        >>> f.build_inputs([[1, 2], [3, 4]], [0, 1])
        (<Data 'x': float32 (2, 2)>, <Data 'y': int32 (2,)>)
        """
        own = dict(force_cast=force_cast, oversize=None if oversize == 1 else oversize, minibatch=minibatch)
        inputs, values = self._arguments.inputs, self._bind(args, kwargs, own)
        while values and values[-1] is signature.KEPT:
            values.pop()
        for given, label, value in zip(inputs, self._arguments.labels, values):
            if value is signature.KEPT:
                expected = "a value, because a later input has one"
                raise ArgumentTypeError(label, expected, "none", "list it last, or pass its value as well")
            if given.type is None:
                raise ArgumentTypeError(label, "a dense array", str(given.variable), "pass it to the call instead")
        made = [
            Data(
                self.program.pool,
                value,
                var=given.type,
                minibatch=minibatch,
                force_cast=force_cast,
                oversize=oversize,
                name=given.name,
            )
            for given, value in zip(inputs, values)
        ]
        return made[0] if len(made) == 1 else tuple(made)

    def _rows_taken(self, session: Session) -> Optional[List[int]]:
        """Return `last_rows` if the last successful call was in this session; else None."""
        return self.last_rows if self._called_in is not None and self._called_in() is session else None

    def _engine_attribute(self, name: str) -> Any:
        if name.startswith("__") or "_compiled" not in vars(self):  # (pickle looks up methods before attributes exist)
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        if name in ("value", "container", "input_storage"):  # the program can read and write any variable through them
            for shared in self._shareds:
                note_read(self.engine.storage(shared))
        # Programs that display objects probe private names, which must not compile the serial function.
        return getattr(self._compiled if name.startswith("_") else self.compiled, name)

    if TYPE_CHECKING:  # listed by name, because otherwise a type checker would accept every attribute
        container: Any
        defaults: Any
        dprint: Any
        finder: Any
        fn: Any
        indices: Any
        input_storage: Any
        inv_finder: Any
        maker: Any
        n_returned_outputs: Any
        nodes_with_inner_function: Any
        output_keys: Any
        output_storage: Any
        outputs: Any
        pickle_aliased_memory_strategy: Any
        return_none: Any
        sync_shared: Any
        unpack_single: Any
        value: Any
        vm: Any
    else:
        __getattr__ = _engine_attribute

    def __getitem__(self, item: Any) -> Any:
        note_read(self.compiled.container[item].storage)  # (the function's own containers are not observed)
        return self.compiled[item]

    def __setitem__(self, item: Any, value: Any) -> None:
        self.compiled[item] = value
        note_written(self.compiled.container[item].storage)  # the next call sends the value to the other ranks

    def __contains__(self, item: Any) -> bool:
        return bool(item in self.compiled)

    __iter__ = None  # otherwise __getitem__ would imply iteration

    def __copy__(self) -> Function:
        return self.copy()

    def __reduce__(self) -> Any:
        of_variants = self._variants.snapshot, self._variants.sliceable, self._variants.states, self._variants.written
        of_function = self._form, self._output_ops, self._updates, self._arguments.axes, self.exact
        return _restore, (self.engine.name, self.compiled, of_function, of_variants)

    @property
    def trust_input(self) -> bool:
        """Whether `as_theano` skips checks of its arguments; calls on all ranks always check them."""
        trusts: bool = self.engine.trust_input(self.compiled)
        return trusts

    @trust_input.setter
    def trust_input(self, trust_input: bool) -> None:
        self.engine.set_trust_input(self.compiled, trust_input)

    def copy(
        self,
        share_memory: bool = False,
        swap: Optional[Dict[Any, Any]] = None,
        delete_updates: bool = False,
        name: Optional[str] = None,
        profile: Any = None,
    ) -> Function:
        """Return a new function with the same graph, as Theano's ``copy`` does.

        The graph is optimized again only if the ranks call a variant, for example one with inner collectives.

        Parameters
        ----------
        share_memory, delete_updates, name, profile
            As in Theano; ``share_memory`` applies to the master only.
        swap : dict, optional
            Maps shared variables to their replacements in the copy.

        Returns
        -------
        Function

        Raises
        ------
        TypeError
            If ``swap`` contains anything but shared variables of the same type, ``name`` is not a str, or the engine
            cannot copy functions.
        """
        signature.check_name(name)
        compiled, snapshot = self.engine.copy(
            self.compiled,
            self._variants.snapshot,
            share_memory=share_memory,
            swap=swap,
            delete_updates=delete_updates,
            name=name,
            profile=profile,
        )
        new = {id(old): new for old, new in dict(swap or {}).items()}
        updates = [] if delete_updates else [(new.get(id(shared), shared), op) for shared, op in self._updates]
        sliceable, states = (
            {new.get(id(shared), shared): axis for shared, axis in axes.items()}
            for axes in (self._variants.sliceable, self._variants.states)
        )
        of_function = self._form, self._output_ops, updates, self._arguments.axes, self.exact
        of_variants = snapshot, sliceable, states, self._variants.written
        return _restore(self.engine.name, compiled, of_function, of_variants, self.program)

    def free(self) -> None:
        """Free the memory that the function keeps for intermediate results, on all ranks.

        Raises
        ------
        StateError
            If called inside another call.
        WorkerError, WorkerDied, WorkerTimeout
            As in a call.
        """
        session, graphs = self.program.session, self._graphs()
        if session is not None and not session.closed:
            with session.lock:
                session.run(FreeFunction(self._numbers(session, graphs)))
        for compiled in [self._compiled] + [graph.on_ranks for graph in graphs]:
            self.engine.free(compiled)  # including graphs that the ranks do not have

    @property
    def profile(self) -> Any:
        """The engine's profile of the function, over all its graphs and all ranks of this session.

        The value is the engine's ``ProfileStats``, or None if the function was built without ``profile=True``. Its
        ``summary()`` adds up the times of all ranks. Accessing it may send a command and raise the errors of `free`.
        """
        graphs, session = self._graphs(), self.program.session
        counts = [self.engine.profile([graph.on_ranks for graph in graphs])]
        if counts == [None]:
            return None
        if session is not None and not session.closed:
            with session.lock:
                replicator = replicator_of(session)
                if self in replicator:
                    # Graphs that exist on the ranks come first; the other graphs were never called there.
                    graphs.sort(key=lambda graph: graph not in replicator)
                    compiled = [graph.on_ranks for graph in graphs]
                    counts = session.run(ProfileFunctions(self._numbers(session, graphs), compiled))
        return self.engine.merged_profile([graph.on_ranks for graph in graphs], counts)

    def _numbers(self, session: Session, graphs: Sequence[Any]) -> List[int]:
        replicator = replicator_of(session)
        return [replicator.number(graph) for graph in graphs if graph in replicator]

    def _graphs(self) -> List[Any]:
        return [self, *self._variants]

    @point("call")
    def __call__(
        self,
        *args: Any,
        output_subset: Any = None,
        batch: Any = None,
        batch_shared: Any = None,
        batch_s: Any = None,
        num_slices: int = signature.ONE_CALL,
        timeout: Optional[float] = None,
        **kwargs: Any,
    ) -> Any:
        """Call the function on all ranks: scatter the rows of the inputs, and reduce the outputs.

        Parameters
        ----------
        *args, **kwargs
            One value per input, by position or by name: a `Data`, or any value that the engine accepts (copied through
            shared memory). Values of scattered inputs have the shape ``(n_rows,) + shape``.
        output_subset : list of int (of str, if the outputs are a dict), optional
            Positions or keys of the outputs to compute.
        batch : int, slice, list, tuple or 1-D integer array, optional
            The rows of the data set to use, selected before they are divided over the ranks; an int ``n`` means the
            first ``n`` rows.
        batch_shared, batch_s : slice, list of int or array, or list with one of these per rank, optional
            The rows of the ``sliceable_shareds`` to use, numbered separately on each rank. Former name: ``batch_s``.
        num_slices : int
            Number of calls that each rank makes, on slices of its rows, to save memory; at most one per row. Outputs
            and updates are accumulated with their ops. Updates are computed from the original values and applied once,
            at the end; random states advance in each slice. The first call in slices, like the first call with
            ``batch_shared``, compiles another graph.
        timeout : float, optional
            Time limit of the call in seconds; the default is the value passed to `fork`.

        Returns
        -------
        array, list or dict
            In the form of the engine's own function. If an output has shape ``(n_r,) + shape`` on rank r, op ``gather``
            returns shape ``(n_0 + ... + n_{n-1},) + shape``. With other ops, an output has the same shape as on a rank.

        Raises
        ------
        TypeError, ValueError
            If an argument is wrong; then no value has changed. Also if results cannot be combined, because output
            shapes differ between ranks or slices, or integer updates differ between slices. No update of a call in
            slices is then applied, but random states of functions that are not exact may have advanced.
        StateError
            Before `fork`, after `close`, or inside another call.
        SharedMemoryError
            If there is not enough memory for the arguments or results.
        WorkerError
            If the call failed on another rank; a failure on the master raises the original exception.
        WorkerDied, WorkerTimeout
            If a rank died or did not answer in time; the session is then closed.

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
        >>> f([1., 2., 3.], [1., 1., 2.], num_slices=2)     # rank 0 makes two calls, one per row
        [array(3.), array([1., 1., 2.])]
        """
        if batch_shared is not None:
            batch_s = signature.one_of("batch_shared", batch_shared, "batch_s", batch_s)
        inputs, checks = self._arguments.inputs, self.program.check and self._first_calls.left
        values: Sequence[Any] = args
        if kwargs or len(args) != len(inputs) or checks:
            own = dict(output_subset=output_subset, batch=batch, batch_s=batch_s, num_slices=num_slices)
            values = self._bind(args, kwargs, dict(own, batch_shared=batch_shared, timeout=timeout))
            if checks:
                return self._first_calls.call(self, values, dict(own, timeout=timeout))
        if timeout is not None:
            check_timeout(timeout)
        subset = None if output_subset is None else self._positions(output_subset)
        session = self.program.session
        if session is None or session.closed:
            session = self.program.current()  # raises
        with session.lock:
            session.check()  # before anything is written, because a command in progress may be reading the memory
            plans = self._plans_in(session)
            arguments, chosen, indices, n_rows = self._arguments.prepare(session.pool, values, batch)
            if self._variants.states:
                n_rows = rows_of_states(self.engine, self._variants.states, n_rows, num_slices)
            rows = chosen if isinstance(chosen, RowRange) else None
            at_once = num_slices is signature.ONE_CALL or type(num_slices) is int and num_slices == 1
            division = None
            if self._variants.sliceable or batch_s is not None or not at_once:
                division = self._planner.division(session, n_rows, batch_s, num_slices)
            key = (arguments, n_rows, indices, division and division.key, subset)
            cached = plans.find(key)
            if cached is None:
                division = division or self._planner.division(session, n_rows, batch_s, num_slices)
                plan = self._planner.plan(self, replicator_of(session), arguments, indices, division, subset)
                alone = () if plan.writes else self._variants.updated_in_graph(division.num_slices > 1)
                cached = plans.add(key, plan, alone)
            command: Any = cached.command
            if command is None:
                command = CallFunction(cached.plan.name, cached.place, cached.plan)
            command.rows = rows
            outputs = self._run(session, command, timeout, cached.updates)
            if cached.command is None and cached.place is not None:
                cached.command = CallFunction(cached.plan.name, cached.place, None)
                cached.command.freeze()
            if cached.skips:
                mark_divergent(session, self.engine, self.engine.updated_in(self._variants.snapshot))
            weights = command.division.weights
            self.last_rows = [1] * session.size if weights is None else list(weights)
            self._called_in = plans.session
        if self._form.keys is not None:
            return self._form.wrap(outputs, subset)
        return outputs[0] if self._form.single and subset is None else outputs

    def compare(
        self,
        *args: Any,
        output_subset: Any = None,
        batch: Any = None,
        batch_shared: Any = None,
        batch_s: Any = None,
        num_slices: int = signature.ONE_CALL,
        timeout: Optional[float] = None,
        **kwargs: Any,
    ) -> Comparison:
        """Make a call, and compare it with a call to the serial function (see `as_theano`) on all rows.

        The serial function runs first, on copies of the master's shared variables. The copies of ``sliceable_shareds``
        contain the rows that the call uses on all ranks, in rank order. The call then changes the shared variables of
        all ranks once, as usual. The comparison covers

        * before the call, the dense shared variables of each rank and of the master (except variables with rows);
        * the outputs, except outputs with op None, which are the master's own;
        * after the call, the updated variables of each rank and of the serial function; ``sliceable_shareds`` are
          compared by the rows of all ranks together, unless ``batch_shared`` selects rows.

        Floats differ if they are further apart than ``sqrt(eps) * m + 16 * eps * max(1, m)``. Here, ``m`` is the
        largest magnitude in the expected array. For an updated variable, the largest change replaces ``m`` in the first
        term. ``eps`` is the machine epsilon of the function's least precise type. Integers must be equal. If a function
        draws random numbers, only its variables before the call are compared, because each rank draws its own numbers.

        The comparison adds the time of a serial call. The master needs memory for all ranks' values of the
        function's variables, and for the serial function on all rows.

        Parameters
        ----------
        *args, output_subset, batch, batch_shared, num_slices, timeout, **kwargs
            As in a call.

        Returns
        -------
        Comparison
            True if the function was compared and nothing differs. ``results`` contains the results of the call;
            ``differences`` lists each difference with both numbers and a likely reason.

        Raises
        ------
        Exception
            Any error of a call; argument errors are raised before anything has changed. If the serial function raises
            an error, a note on the error names its source. The call is then not made, and nothing has changed.

        Examples
        --------
        >>> import synkhronos as synk
        >>> import theano.tensor as T
        >>> synk.fork(2)
        2
        >>> x = T.dvector("x")
        >>> f = synk.function([x], [x.sum(), (x.sum() ** 2, "avg")])
        >>> found = f.compare([1., 2., 6.])
        >>> bool(found), found.results
        (False, [array(9.), array(18.)])
        >>> print(found.differences[0].reason)
        it has op 'avg', but pow of x needs the whole value, and every rank has only a part of it
        """
        batch_s = signature.one_of("batch_shared", batch_shared, "batch_s", batch_s)
        own = dict(output_subset=output_subset, batch=batch, batch_s=batch_s, num_slices=num_slices, timeout=timeout)
        try:
            return compare(self, self._bind(args, kwargs, dict(own, batch_shared=batch_shared)), own)
        except SerialError as error:
            raise explained(error.__cause__ or error) from None

    @point("call")
    def steps(
        self,
        *args: Any,
        batches: Any = None,
        batches_shared: Any = None,
        batches_s: Any = None,
        n_steps: Optional[int] = None,
        on_step: Any = None,
        output_subset: Any = None,
        num_slices: int = signature.ONE_CALL,
        total: bool = False,
        timeout: Optional[float] = None,
        **kwargs: Any,
    ) -> Any:
        """Make many calls to the function, usually in one command: one step per batch, in sequence on every rank.

        Shared variables and (without ``total``) results equal those of separate calls, bit for bit. Between steps,
        ranks wait for each other only in collectives inside the graph and, in functions that have any or are exact, for
        ``on_step``. Outputs are reduced over the ranks once, at the end.

        Parameters
        ----------
        *args, **kwargs
            As in a call; plain arrays are copied to shared memory once, whole.
        batches : sequence, optional
            The ``batch`` of each step, or a 2-D array of integers with one row per step. Generators are read before the
            first step; without ``n_steps``, more than 2**20 batches raise an error. A progress bar around the batches,
            ``tqdm(batches)``, shows the steps that the master has completed.
        batches_shared, batches_s : sequence, optional
            The ``batch_shared`` of each step. Former name: ``batches_s``.
        n_steps : int, optional
            Without batches: the number of calls, all with the same arguments. With batches: a limit on their number, so
            that a generator may be infinite.
        on_step : callable, optional
            ``on_step(i, outputs)`` runs on the master after its i-th step. It must not call anything that runs on all
            ranks, nor write into a `Data` that the steps read, because other ranks may be computing with it. The
            outputs are the master's own, in the form that a call returns (each None if the master has no rows). If
            ``on_step`` returns False, it is not called again, and the steps end after the furthest step that any rank
            has begun. If the function is exact, shared variables set by ``on_step`` have their new values on all ranks
            from the next step on. Otherwise, the new values stay on the master alone, with a logged warning.
        output_subset, num_slices
            As in a call.
        total : bool
            Return the result of a single call on the rows of all steps together. For ``avg``, this is the mean over all
            rows, not over batches. Outputs with op ``gather`` contain the rows of all steps in order.
        timeout : float, optional
            Time limit in seconds, restarted whenever a rank completes a step; by default, the value passed to `fork`.

        Returns
        -------
        array, list or dict
            In the form that a call returns. Each output has shape ``(k,) + shape`` for k steps, and is on the host.
            Outputs with op ``gather``, and outputs whose shape varies between steps, are lists of k arrays. With
            ``total``, the outputs are those of one call.

        Raises
        ------
        TypeError, ValueError
            Before any rank has begun, if an argument such as ``batches[3]`` is wrong. After a step, or after the last
            step, if results of slices or of ranks cannot be combined.
        SharedMemoryError
            Before any rank has begun, if there is not enough memory for the outputs of all steps.
        StateError, WorkerError, WorkerDied, WorkerTimeout
            As in a call. If a step failed, even on the master, ``error.step`` is its number, counted from 0.
            ``error.steps`` lists the number of steps that each rank has completed and not undone.

        Examples
        --------
        >>> import numpy as np, theano
        >>> import synkhronos as synk
        >>> import theano.tensor as T
        >>> x, w = T.dvector("x"), theano.shared(0., "w")
        >>> f = synk.function([x], [x.mean(), (x, "gather")], updates=[(w, w + x.mean())])
        >>> synk.fork(2)
        2
        >>> f.steps([1., 2., 6., 7.], batches=[[0, 1], [3, 2, 1]])
        [array([1.5, 5. ]), [array([1., 2.]), array([7., 6., 2.])]]
        >>> synk.gather(w, nd_up=1)                 # 1 + 6.5 and 2 + 2
        array([7.5, 4. ])
        >>> f.steps([1., 2., 6., 7.], batches=[[0, 1], [3, 2, 1]], total=True)
        [array(3.6), array([1., 2., 7., 6., 2.])]
        """
        batches_s = signature.one_of("batches_shared", batches_shared, "batches_s", batches_s)
        own: Dict[str, Any] = dict(batches=batches, batches_s=batches_s, n_steps=n_steps, on_step=on_step, total=total)
        own.update(output_subset=output_subset, num_slices=num_slices, timeout=timeout, batches_shared=batches_shared)
        values = self._bind(args, kwargs, own)
        if timeout is not None:
            check_timeout(timeout)
        if on_step is not None and not callable(on_step):
            raise ArgumentTypeError("on_step", "a function", f"{on_step!r} of type {type(on_step).__name__}")
        if not isinstance(total, (bool, np.bool_)):
            raise ArgumentTypeError("total", "True or False", f"{total!r} of type {type(total).__name__}")
        subset = None if output_subset is None else self._positions(output_subset)
        progress = StepProgress()
        batches, batches_s = read_all(progress.taken_off(batches), progress.taken_off(batches_s), n_steps)
        session = self.program.session
        if session is None or session.closed:
            session = self.program.current()  # raises
        with session.lock, progress:
            session.check()
            variables = self._plans_in(session).variables
            if self.program.check and self._first_calls.left:
                self._update_ranks(session)
                of_call = dict(output_subset=output_subset, num_slices=num_slices)
                self._first_calls.steps(self, session, values, batches, batches_s, n_steps, of_call)
            steps = self._planner.steps(self, session, values, batches, batches_s, n_steps, num_slices, subset, total)
            steps = steps._replace(asks=on_step is not None, is_exact=bool(self.exact))
            call = None if on_step is None else lambda i, outputs: on_step(i, self._form.wrap(list(outputs), subset))

            def run(some: StepSequence) -> Results:
                after = OnStep(call, progress, session, variables, bool(self.exact))
                command = RunSteps(some.plans[0].name, some, None if call is None and not progress else after)
                try:
                    results = self._run(session, command, timeout, self._variants.updated_in_graph(False))
                finally:
                    after.end()
                return Results(results[0], results[1], results[2], after.has_ended)

            table = session.pools.attach(steps.table)
            outputs, rows, n_made, _ = run_in_chunks(steps, table, run, session.healing is not None)
            if any(plan.division.skips for plan in steps.plans):
                mark_divergent(session, self.engine, self.engine.updated_in(self._variants.snapshot))
            self.last_rows, self._called_in = rows or [n_made] * session.size, weakref.ref(session)
            if on_step is not None and not self.exact:  # `on_step` may have changed values on the master alone
                self._update_ranks(session)
        return self._form.wrap(outputs, subset)

    def _plans_in(self, session: Session) -> Plans:
        """Return the cached plans of the session; distribute the function to its ranks first if necessary."""
        plans = self._plans
        if plans is None or plans.session() is not session:
            replicator_of(session).ensure([self])
            plans = self._plans = Plans(session, self._variables_in(session))
            if session.size > 1 and any(axis is not None for axis in self._arguments.axes) and not self._has_warned:
                self._warn_if_nothing_is_divided()
            if PROGRAM.exact and self.exact is None:
                logger.warning(
                    "function %s was built before fork(exact=True), which applies only to functions built after it, so "
                    "this function is not exact: build it again, or with exact=True",
                    self.name or "without a name",
                )
        return plans

    def _variables_in(self, session: Session) -> FunctionVariables:
        engine, snapshot, variants = self.engine, self._variants.snapshot, self._variants
        streams = self.common_streams
        states = states_of(session, engine, variants.states, engine.updated_in(snapshot))
        rows = {engine.identity(shared) for shared in (*variants.sliceable, *variants.states)}
        others = [each for each in self._shareds if engine.identity(each) not in map(engine.identity, variants.states)]
        sent = [*engine.states(self._compiled), *streams]
        common: List[Any] = list(streams)
        if self.exact:
            common += [each for each in self._shareds if not engine.is_random(each)]
            common = [each for each in common if engine.identity(each) not in rows]
            sent = [*common, *sent, *self.own_streams]
        entries: Any = partial(entries_of, session, engine)
        own = [] if self.exact or session.size == 1 else self._updated_by_rows()
        dense = watched(session, engine, others)
        same, sent, updated, own, used = map(entries, (common, sent, engine.updated_in(snapshot), own, others))
        return FunctionVariables(dense, same, sent, updated, own, states, used)

    def _updated_by_rows(self) -> List[Any]:
        """Return the shared variables whose new values may differ between ranks although the old values are equal."""
        updated = self.engine.updated_in(self._variants.snapshot)
        own = self._variants.own_updates(self._updates) if updated else []
        if own is None:
            return [each for each in updated if not self.engine.is_random(each)]
        return [one.shared for one in own]

    def _warn_if_nothing_is_divided(self) -> None:
        """Warn if the function divides no rows, because every rank then does the same work."""
        variants, self._has_warned = self._variants, True
        divides = variants.collectives is not None and variants.collectives.divides
        if not (self._arguments.scattered() or variants.rows or divides):
            logger.warning(
                "function %s has inputs, but none of them has rows to divide, so every rank computes the same result. "
                "If it reads rows of a shared variable, divide them: givens={x: synkhronos.ops.shard(s[i * b:(i + 1) * "
                "b])}; if this is intended, list the inputs in bcast_inputs",
                self.name or "without a name",
            )

    def _update_ranks(self, session: Session, in_command: bool = False) -> Sequence[News]:
        """Send values that the program has set on the master, or warn; with ``in_command``, some only as `News`."""
        variables = self._plans_in(session).variables
        few = variables.news_of_few() if in_command and session.healing is None else None
        if few is not None:
            return few
        return send_master_values(session, self._outdated(session, variables), variables.dense, in_command)

    def _outdated(self, session: Session, variables: FunctionVariables) -> List[SharedEntry]:
        """Detect the program's changes; return the variables with values that the master must send to all ranks."""
        refuse_rows(self, variables.all)
        found = changed(session, variables.all)
        check_in_sync(self, session, variables.common)
        if found and len(variables.sent) < len(variables.all):
            warn_of_changes(self, session, [entry for entry in found if entry not in variables.sent])
        by_program = Origin.PROGRAM
        return [entry for entry in variables.sent if entry.origin is by_program]

    def _run(self, session: Session, command: Command, timeout: Optional[float], updates: Sequence[str]) -> Any:
        """Run a command that calls the function on every rank, after distributing the program's changes."""
        plans: Any = self._plans
        variables: FunctionVariables = plans.variables
        if variables.states and not variables.states[0].rows.is_away:
            with rows_on_ranks(session, variables.states, self._variants.collectives is not None):
                return self._run(session, command, timeout, updates)
        news = () if variables.are_unchanged() else self._update_ranks(session, in_command=bool(self.exact))
        if command.has_steps:
            variables.drop_old_values()
        try:
            result = session.run(command, timeout, updates, news)
        finally:
            variables.record()
        if news:
            mark_delivered(session, news)
        return result

    def _bind(self, args: Tuple[Any, ...], kwargs: Dict[str, Any], own: Dict[str, Any]) -> List[Any]:
        """Return one value per input; ``own`` contains the values of the call's own keywords."""
        inputs, labels = self._arguments.inputs, self._arguments.labels
        default = partial(self.engine.default, self._compiled)
        return signature.bind(inputs, labels, self.name, args, kwargs, default, own)

    def _positions(self, output_subset: Any) -> Tuple[int, ...]:
        return tuple(signature.output_indices(output_subset, self._form.keys, len(self._output_ops)))


def _mode(op: Any) -> Optional[str]:
    return None if op is MISSING or op.name is None else str(op)


def _array(value: Any) -> Any:
    return value.data if isinstance(value, Data) else value


def _apart(results: Any, held: Sequence[np.ndarray[Any, Any]]) -> Any:
    """Return the results; arrays that share memory with ``held`` values are replaced by copies."""
    if isinstance(results, dict):
        return type(results)((key, _apart(value, held)) for key, value in results.items())
    if isinstance(results, list):
        return [_apart(value, held) for value in results]
    if isinstance(results, np.ndarray) and any(np.may_share_memory(results, value) for value in held):
        return results.copy("K")
    return results


def _restore(
    engine: str, compiled: Any, of_function: Tuple[Any, ...], of_variants: Tuple[Any, ...], program: Program = PROGRAM
) -> Function:
    found = engines.get(engine)
    (form, output_ops, updates, axes, exact), (snapshot, sliceable, states, written) = of_function, of_variants
    arguments = Arguments(found, found.inputs(compiled), axes)
    variants = Variants(found, snapshot, sliceable, arguments.scattered(), states, written)
    return Function(program, found, compiled, form, output_ops, updates, arguments, variants, exact)
