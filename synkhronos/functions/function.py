"""`Function`: a compiled function that runs on all ranks.

Longer than other modules because the public methods, most of it their documentation, belong to one class.
"""

from __future__ import annotations

import logging
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
from ..selection import Rows
from ..shared_data import Data
from ..trace import point
from . import signature
from .arguments import Arguments
from .batches import read_all
from .call import CallFunction
from .changes import changed, entries_of, give, tell, watched, were_given
from .checks import FirstCalls
from .chunks import Results, run_in_chunks
from .comparison import DRAWS, Comparison, SerialError, Subject, compare, explained
from .division import divide
from .held import put_back
from .on_step import OnStep
from .own_updates import own_updates
from .parted import note_parted, refuse_parted
from .plan import Plans
from .planning import Planner
from .progress import Progress
from .serial import Given
from .state_rows import on_ranks, refuse_rows, rows_of_states, states_of
from .steps import RunSteps, Steps
from .table import Table, table_of
from .upkeep import FreeFunction, Profile
from .variants import Variants, Written

logger = logging.getLogger("synkhronos")


class Function:
    """What `synkhronos.function` returns: called like a Theano function, it runs on all ranks.

    Everything else that Theano's functions have is the master's own: ``f[input]``, ``f.value``, ``f.container`` and
    ``input in f`` look at its values, `copy`, `free`, `profile` and `trust_input` are as described there, all other
    attributes (``maker``, ``fn``, ``input_storage``, ...) are those of the function that `as_theano` calls. A function
    can be pickled if Theano's can: it comes back with its own copies of the shared variables, and is distributed again.

    An input that goes whole to all ranks may keep its value between calls, ``In(s, value=0., update=s + x)``. Each rank
    keeps its own, in a shared variable that is among those of `get_shared`; without a value in a call it goes on from
    there. What the program puts there on the master, ``f[s] = value``, all ranks have from the next call on; in a
    random state that is put there they begin far apart. What it writes into the array, ``f[s][0] = 1``, counts as well.

    Attributes
    ----------
    name : str or None
        As given to `function`; else the engine's own (the place of its definition).
    last_rows : list of int, optional
        Rows that every rank took in the last call that succeeded (1 each if no input is scattered), or in all of the
        last `steps` together; n_ranks of them, None before the first.
    """

    def __init__(
        self,
        program: Program,
        engine: Any,
        compiled: Any,
        form: signature.Form,
        output_ops: List[ReduceOp],
        updates: List[Tuple[Any, Any]],
        axes: Sequence[int],
        variants: Variants,
        exact: Optional[bool],
        compile_own: Optional[Callable[[], Any]] = None,
    ) -> None:
        self.program, self.engine, self.name = program, engine, engine.function_name(compiled)
        self._compiled, self._compile_own = compiled, compile_own
        #: Whether the function was asked to be exact; None if it was left to `fork`, after which it was built.
        self.exact = PROGRAM.exact or None if exact is None else exact
        self._form, self._output_ops, self._updates, self._axes = form, output_ops, updates, axes
        self._arguments = Arguments(engine, engine.inputs(compiled), axes)
        self._shareds = engine.shareds(compiled)
        self._variants = variants
        #: The random states from which all ranks draw the same numbers.
        self.common_streams = engine.common_streams(variants.snapshot)
        #: Those that a rank advances when it makes a call.
        random = [one for one in engine.updated_in(variants.snapshot) if engine.is_random(one)]
        self.own_streams = [one for one in random if one not in self.common_streams]
        self._planner = Planner(engine, compiled, output_ops, updates, self._arguments, variants)
        #: The function as ranks call it: the same, or one that leaves results on the device, or updates to us.
        self.on_ranks = engine.on_ranks(variants.first(compiled))
        self.last_rows: Optional[List[int]] = None
        self._called_in: Any = None  # reference to the session of the last call
        self._plans: Optional[Plans] = None  # of that session
        self._told = False
        self._first_calls = FirstCalls()
        program.add(self)

    def __repr__(self) -> str:
        return (
            f"<synkhronos.Function {self.name or 'without a name'}: {len(self._arguments.inputs)} inputs, "
            f"outputs {self.output_modes}>"
        )

    @property
    def compiled(self) -> Any:
        """The master's own function, of the engine; that of an exact function is compiled when first asked for.

        Theano's printers take it, not the Function: ``theano.printing.debugprint(f.compiled)``.
        """
        if self._compile_own is not None:
            self._compiled, self._compile_own = self._compile_own(), None
        return self._compiled

    @property
    def output_modes(self) -> List[Optional[str]]:
        """The op of every output, a list of (str or None): as given, or the one that makes the serial value."""
        return [_mode(op) for op in self._output_ops]

    @property
    def update_modes(self) -> List[Optional[str]]:
        """The op of every update, a list of (str or None): as given, or ``avg`` for floats."""
        return [_mode(op) for _, op in self._updates]

    def get_shared(self) -> List[Any]:
        """Return the shared variables that the function uses, those with default updates included.

        Returns
        -------
        list of shared variables
            What collectives take.
        """
        return list(self._shareds)

    def sharding(self) -> Table:
        """Return how the function's values lie over the ranks, and the collectives inside it, as a table to print.

        An input is ``Shard(axis)`` if every rank has its own rows, else ``Replicate``: all have the same value. An
        output is, on every rank, rows (``Shard``), a part of the value (``Partial(op)``), the value itself
        (``Replicate``), or ``Unknown``, with the operation that made it so. `docs/exact.rst` explains the words.

        Returns
        -------
        Table
            Named: ``inputs``, ``outputs``, ``updates``, ``collectives``, ``nbytes``; ``str`` of it is the table.

        Raises
        ------
        TypeError
            If the engine does not know how values lie over the ranks.

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
          w                              Replicate
        collectives
          0: sum of 1, 16 bytes, then the updates of w
               g (float64 vector)
        """
        session, number = self.program.session, None
        if session is not None and not session.closed and self in replicator_of(session):
            number = replicator_of(session).number(self)
        nbytes: Any = {} if session is None else session.context.bytes_inside
        names = [given.name or label for given, label in zip(self._arguments.inputs, self._arguments.labels)]
        outputs = self.engine.outputs(self._compiled)
        return table_of(self, self._variants, names, zip(outputs, self._output_ops), lambda i: nbytes.get((number, i)))

    def as_theano(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function on the master only, as plain Theano would.

        Its updates change the master's own shared variables alone.

        Parameters
        ----------
        *args, **kwargs
            As Theano's own function takes them; `Data` may also be given.

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
        # An output that is the value of before an update comes in that value's own memory, which is used again here.
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
            As for `synkhronos.data`.

        Returns
        -------
        Data or tuple of Data
            One per input; a single one alone. The last inputs are left out if they keep a value between calls and none
            is given.

        Raises
        ------
        TypeError, ValueError
            If a value is missing or does not suit its input, or an input is not a dense array.
        SharedMemoryError
            If there is no memory for the values.

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
                expected = "a value, because one is given for an input after it"
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

    def rows_taken(self, session: Session) -> Optional[List[int]]:
        """Return `last_rows` if the last call that succeeded was in this session; else None."""
        return self.last_rows if self._called_in is not None and self._called_in() is session else None

    # -- what the engine's functions also have -------------------------------------------------------------------

    def _engine_attribute(self, name: str) -> Any:
        if name.startswith("__") or "_compiled" not in vars(self):  # (not yet there while pickle looks for its methods)
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        if name in ("value", "container", "input_storage"):  # through which the program can read and write any of them
            for shared in self._shareds:
                note_read(self.engine.storage(shared))
        # Programs that show objects look for private names: an exact function need not be compiled for these.
        return getattr(self._compiled if name.startswith("_") else self.compiled, name)

    if TYPE_CHECKING:  # by names: a type checker would take any other for one of the engine's
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
        note_read(self.compiled.container[item].storage)  # (the function's own containers report nothing)
        return self.compiled[item]

    def __setitem__(self, item: Any, value: Any) -> None:
        self.compiled[item] = value
        note_written(self.compiled.container[item].storage)  # other ranks are given it with the next call

    def __contains__(self, item: Any) -> bool:
        return bool(item in self.compiled)

    __iter__ = None  # or __getitem__ would make one

    def __copy__(self) -> Function:
        return self.copy()

    def __reduce__(self) -> Any:
        return _restore, (
            self.engine.name,
            self.compiled,
            self._form,
            self._output_ops,
            self._updates,
            self._axes,
            self._variants.snapshot,
            self._variants.sliceable,
            self.exact,
            self._variants.states,
            self._variants.written,
        )

    @property
    def trust_input(self) -> bool:
        """Whether `as_theano` takes its arguments as they are; calls on all ranks always check them."""
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
        """Return another function of the same graph; parameters as in Theano.

        It is not optimised again, but for what ranks call if there are collectives inside: that is compiled anew.

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

        Raises
        ------
        TypeError
            If ``swap`` has something other than shared variables of the same type, ``name`` is no str, or the engine
            cannot copy.
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
        return Function(
            self.program,
            self.engine,
            compiled,
            self._form,
            self._output_ops,
            updates,
            self._axes,
            Variants(self.engine, snapshot, sliceable, self._arguments.scattered(), states, self._variants.written),
            self.exact,
        )

    def free(self) -> None:
        """Free the memory that the function keeps for intermediate results, on all ranks that hold it.

        Raises
        ------
        StateError
            Inside another call.
        WorkerError
            If something went wrong on another rank.
        WorkerDied, WorkerTimeout
            If a rank ended or did not answer in time; the session is closed then.
        """
        session, graphs = self.program.session, self._graphs()
        if session is not None and not session.closed:
            with session.lock:
                session.run(FreeFunction(self._numbers(session, graphs)))
        for compiled in [self._compiled] + [graph.on_ranks for graph in graphs]:
            self.engine.free(compiled)  # also those that the ranks do not hold

    @property
    def profile(self) -> Any:
        """What the engine's profiler has counted, of all graphs of the function and on all ranks of this session.

        A Theano ``ProfileStats``, for functions that were built with ``profile=True``: its ``summary()`` shows the
        times of all ranks added up. Every access asks all ranks for it, and can raise what `free` raises.
        """
        graphs, session = self._graphs(), self.program.session
        counts = [self.engine.profile([graph.on_ranks for graph in graphs])]
        if counts == [None]:
            return None
        if session is not None and not session.closed:
            with session.lock:
                replicator = replicator_of(session)
                if self in replicator:
                    # In the order of the graphs; what the ranks do not hold was not called there.
                    graphs.sort(key=lambda graph: graph not in replicator)
                    compiled = [graph.on_ranks for graph in graphs]
                    counts = session.run(Profile(self._numbers(session, graphs), compiled))
        return self.engine.merged_profile([graph.on_ranks for graph in graphs], counts)

    def _numbers(self, session: Session, graphs: Sequence[Any]) -> List[int]:
        """Return the numbers of those graphs that the ranks hold."""
        replicator = replicator_of(session)
        return [replicator.number(graph) for graph in graphs if graph in replicator]

    def _graphs(self) -> List[Any]:
        """Return the function itself, and its other graphs that have been compiled."""
        return [self, *self._variants]

    # -- the call ------------------------------------------------------------------------------------------------

    @point("call")
    def __call__(
        self,
        *args: Any,
        output_subset: Any = None,
        batch: Any = None,
        batch_s: Any = None,
        num_slices: int = signature.ONE_CALL,
        timeout: Optional[float] = None,
        **kwargs: Any,
    ) -> Any:
        """Call the function on all ranks: scatter the rows of its inputs, reduce its outputs.

        Parameters
        ----------
        *args, **kwargs
            One value per input, by position or by name: a `Data`, or whatever the engine itself would take (which
            then goes through shared memory). Those of scattered inputs are of shape ``(n_rows,) + shape``.
        output_subset : list of int (of str, if the outputs are a dict), optional
            The outputs that are wanted.
        batch : int, slice, list, tuple or 1-D integer array, optional
            The rows of the whole data set that the call is about; an int ``n`` means the first n. They are selected
            before they are divided over the ranks.
        batch_s : slice, list of int or array, or list with one of these per rank, optional
            The rows of the ``sliceable_shareds`` that the call is about, on each rank: of what the rank has.
        num_slices : int
            Every rank makes that many calls on pieces of its rows, to save memory; as many as it has rows, if these
            are fewer.
            Outputs and updates are accumulated by their ops; updates are computed from the original values and
            applied once, at the end, except random states, which advance. The first call in slices, and the first
            with ``batch_s``, compiles another graph.
        timeout : float, optional
            Seconds that the call may take; what `fork` was given by default.

        Returns
        -------
        array, list or dict
            As the engine's own function returns it. Outputs of op ``gather`` are of shape
            ``(n_0 + ... + n_{n-1},) + shape`` if rank r's is of shape ``(n_r,) + shape``; others of the ranks' shape.

        Raises
        ------
        TypeError, ValueError
            If an argument is wrong; no value has changed then. Also if results do not fit: outputs whose shapes differ
            between ranks or slices, integer updates that differ between slices; no update in slices is applied then,
            though in functions that are not exact random states may have advanced.
        StateError
            Before `fork`, after `close`, or inside another call.
        SharedMemoryError
            If there is no memory for the arguments or results.
        WorkerError
            If the call failed on another rank; if it failed on the master, its own exception is raised.
        WorkerDied, WorkerTimeout
            If a rank ended or did not answer in time; the session is closed then.

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
        >>> f([1., 2., 3.], [1., 1., 2.], num_slices=2)     # rank 0 calls twice: it has two rows
        [array(3.), array([1., 1., 2.])]
        """
        inputs, checks = self._arguments.inputs, self.program.check and self._first_calls.left
        values: Sequence[Any] = args
        if kwargs or len(args) != len(inputs) or checks:
            own = dict(output_subset=output_subset, batch=batch, batch_s=batch_s, num_slices=num_slices)
            values = self._bind(args, kwargs, dict(own, timeout=timeout))
            if checks:
                return self._checked(values, dict(own, timeout=timeout))
        if timeout is not None:
            check_timeout(timeout)
        subset = None if output_subset is None else self._positions(output_subset)
        session = self.program.session
        if session is None or session.closed:
            session = self.program.current()  # which raises
        with session.lock:
            session.check()  # before anything is written: a command in progress may be reading it
            plans = self._plans_in(session)
            arguments, chosen, indices, n_rows = self._arguments.prepare(session.pool, values, batch)
            if self._variants.states:
                n_rows = rows_of_states(self.engine, self._variants.states, n_rows, num_slices)
            rows = chosen if isinstance(chosen, Rows) else None
            at_once = num_slices is signature.ONE_CALL or type(num_slices) is int and num_slices == 1
            division = None
            if self._variants.sliceable or batch_s is not None or not at_once:
                division = self._planner.division(session, n_rows, batch_s, num_slices)
            key = (arguments, n_rows, indices, division and division.key, subset)
            kept = plans.find(key)
            if kept is None:
                division = division or divide(
                    session.size,
                    session.root,
                    n_rows,
                    joint=self._variants.collectives is not None,
                    written=self._variants.written_rows,
                )
                plan = self._planner.plan(self, replicator_of(session), arguments, indices, division, subset)
                alone = () if plan.writes else self._variants.updated_in_graph(division.num_slices > 1)
                kept = plans.add(key, plan, alone)
            command: Any = kept.command
            if command is None or rows is not None:
                command = CallFunction(kept.plan.name, kept.place, None if kept.known else kept.plan, rows)
            outputs = self._run(session, command, timeout, kept.updates)
            if kept.command is None and kept.place is not None:
                kept.known, kept.command = True, CallFunction(kept.plan.name, kept.place, None, None)
                kept.command.freeze()
            if kept.skips:
                note_parted(session, self.engine, self.engine.updated_in(self._variants.snapshot))
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
        batch_s: Any = None,
        num_slices: int = signature.ONE_CALL,
        timeout: Optional[float] = None,
        **kwargs: Any,
    ) -> Comparison:
        """Make a call, and compare it with the serial function: what `as_theano` calls, given all rows.

        The serial function is called first, with copies of the master's shared variables; those of
        ``sliceable_shareds`` have the rows that the call is about, of all ranks in rank order. Then the call is made as
        always: the shared variables of all ranks are what they are after one call. Compared are

        * before the call, the shared variables of all ranks with the master's (but ``sliceable_shareds``);
        * the outputs, but for those of op None, which are the master's own;
        * after the call, the updated variables of every rank with the serial function's; of ``sliceable_shareds`` the
          rows of all ranks together, unless ``batch_s`` selects some.

        Floats differ if they are further apart than ``sqrt(eps)`` times the largest magnitude of the array (of an
        updated variable: the largest change) and 16 ``eps``; ``eps`` is that of the coarsest type in the function.
        Integers differ if they are not equal. A function that draws random numbers is not called serially, because
        every rank draws its own; of it only the variables before the call are compared.

        It takes the time of a call on one rank in addition, and memory on the master: for all ranks' values of the
        function's variables, and for the serial function on all rows.

        Parameters
        ----------
        *args, output_subset, batch, batch_s, num_slices, timeout, **kwargs
            As in a call.

        Returns
        -------
        Comparison
            True if everything was compared and nothing differs. It has what the call has returned in ``results``, and
            what differs in ``differences``, each with both numbers and what it may come from.

        Raises
        ------
        Exception
            What a call raises; what is raised for the arguments is raised before anything has changed. Also what the
            serial function raises, with a note that says so: the call is not made then, and nothing has changed.

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
        it has op 'avg', but pow of x needs the whole of a value of which every rank has a part
        """
        own = dict(output_subset=output_subset, batch=batch, batch_s=batch_s, num_slices=num_slices, timeout=timeout)
        try:
            return self._compared(self._bind(args, kwargs, own), own)
        except SerialError as error:
            raise explained(error.__cause__ or error) from None

    @point("call")
    def steps(
        self,
        *args: Any,
        batches: Any = None,
        batches_s: Any = None,
        n_steps: Optional[int] = None,
        on_step: Any = None,
        output_subset: Any = None,
        num_slices: int = signature.ONE_CALL,
        total: bool = False,
        timeout: Optional[float] = None,
        **kwargs: Any,
    ) -> Any:
        """Make many calls of the function in one command: one step for each batch, one after the other on every rank.

        It returns what these calls would return, bit for bit, and the shared variables are what they would be. But the
        ranks do not wait for each other between steps, unless collectives in the graph make them meet, and outputs are
        reduced over the ranks once, at the end.

        Parameters
        ----------
        *args, **kwargs
            As in a call; plain arrays go through shared memory once, whole.
        batches : sequence, optional
            For each step what ``batch`` takes in a call, or a 2-D array of integers with one row for each step.
            Generators are read before the first step, without ``n_steps`` at most 2**20 batches. A progress bar around
            them, ``tqdm(batches)``, shows the steps that the master has made.
        batches_s : sequence, optional
            For each step what ``batch_s`` takes in a call.
        n_steps : int, optional
            Without batches: how many calls to make, all with the same arguments. With batches: at most so many of
            these, so that a generator may be endless.
        on_step : callable, optional
            ``on_step(i, outputs)`` is called on the master after its i-th step, with its own outputs of that step, in
            the form in which a call returns them (None each if it has no rows in it). If it returns False, the steps
            end after the one that the furthest rank has begun, and it is not called again. It may not call anything
            that runs on all ranks. What it gives to a shared variable counts on all ranks from the next step on if the
            function is exact; else it stays the master's alone, as the log says.
        output_subset, num_slices
            As in a call.
        total : bool
            Return what one call on the rows of all steps together would return, by the ops of the outputs: the mean
            over all rows for ``avg``, not over batches. Rows of op ``gather`` are those of all steps, in their order.
        timeout : float, optional
            Seconds without any rank finishing a step; what `fork` was given by default.

        Returns
        -------
        array, list or dict
            As a call, each output with a leading axis of the k steps: shape ``(k,) + shape``, on the host. Those of op
            ``gather``, and others whose shape is not the same in all steps, are lists of k arrays. With ``total`` as
            one call.

        Raises
        ------
        TypeError, ValueError
            If an argument is wrong (``batches[3]``, say), before any rank has begun. Also if results of ranks do not
            fit, after the last step.
        SharedMemoryError
            If there is no memory for the outputs of all steps, before any rank has begun.
        StateError, WorkerError, WorkerDied, WorkerTimeout
            As for a call. These, and what is raised on the master itself, say in ``error.step`` in which step it
            happened, and in ``error.steps`` how many steps each rank has made: its own updates are those of so many.

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
        >>> f.steps([1., 2.], n_steps=3, output_subset=[0])
        [array([1.5, 1.5, 1.5])]
        """
        own: Dict[str, Any] = dict(batches=batches, batches_s=batches_s, n_steps=n_steps, on_step=on_step, total=total)
        own.update(output_subset=output_subset, num_slices=num_slices, timeout=timeout)
        values = self._bind(args, kwargs, own)
        if timeout is not None:
            check_timeout(timeout)
        if on_step is not None and not callable(on_step):
            raise ArgumentTypeError("on_step", "a function", f"{on_step!r} of type {type(on_step).__name__}")
        if not isinstance(total, (bool, np.bool_)):
            raise ArgumentTypeError("total", "True or False", f"{total!r} of type {type(total).__name__}")
        subset = None if output_subset is None else self._positions(output_subset)
        progress = Progress()
        batches, batches_s = read_all(progress.taken_off(batches), progress.taken_off(batches_s), n_steps)
        session = self.program.session
        if session is None or session.closed:
            session = self.program.current()  # which raises
        with session.lock, progress:
            session.check()
            plans = self._plans_in(session)
            if self.program.check and self._first_calls.left:
                give(session, self._to_be_given(session, plans), plans.dense)
                self._check_steps(session, values, batches, batches_s, n_steps, output_subset, num_slices)
            steps = self._planner.steps(self, session, values, batches, batches_s, n_steps, num_slices, subset, total)
            steps = steps._replace(asks=on_step is not None, is_exact=bool(self.exact))
            call = None if on_step is None else lambda i, outputs: on_step(i, self._form.wrap(list(outputs), subset))

            def run(some: Steps) -> Results:
                after = OnStep(call, progress, session, plans, bool(self.exact))
                command = RunSteps(some.plans[0].name, some, None if call is None and not progress else after)
                try:
                    results = self._run(session, command, timeout, self._variants.updated_in_graph(False))
                finally:
                    after.end()
                return Results(results[0], results[1], results[2], after.has_ended)

            table = session.pools.attach(steps.table)
            outputs, rows, n_made, _ = run_in_chunks(steps, table, run, session.healing is not None)
            if any(plan.division.skips for plan in steps.plans):
                note_parted(session, self.engine, self.engine.updated_in(self._variants.snapshot))
            self.last_rows, self._called_in = rows or [n_made] * session.size, weakref.ref(session)
            if on_step is not None and not self.exact:  # it may have changed something on the master alone
                give(session, self._to_be_given(session, plans), plans.dense)
        return self._form.wrap(outputs, subset)

    def _compared(self, values: Sequence[Any], options: Dict[str, Any]) -> Comparison:
        """Return what `compare` does; values are all inputs', options the keywords that a call keeps for itself."""
        subset = None if options["output_subset"] is None else self._positions(options["output_subset"])
        if options["timeout"] is not None:
            check_timeout(options["timeout"])
        session = self.program.current()
        with session.lock:
            session.check()
            plans = self._plans_in(session)
            if not plans.are_known() or not plans.are_common():
                give(session, self._to_be_given(session, plans), plans.dense)
            arguments, chosen, _, n_rows = self._arguments.prepare(session.pool, values, options["batch"])
            all_rows = rows_of_states(self.engine, self._variants.states, n_rows, options["num_slices"])
            self._planner.division(session, all_rows, options["batch_s"], options["num_slices"])  # which may refuse it
            subject = Subject(
                self.engine,
                lambda: self.compiled,
                [each.type for each in [*self._arguments.inputs, *self.engine.outputs(self._compiled)]],
                self._shareds,
                self._output_ops,
                self._variants,
                bool(self.exact),
            )
            given = Given(arguments, chosen, n_rows, options["batch_s"], subset)
            left, self._first_calls.left = self._first_calls.left, 0
            try:
                return compare(
                    subject,
                    session,
                    given,
                    lambda: self(*values, **options),
                    lambda results: self._form.flat(results, subset),
                )
            finally:
                self._first_calls.left = max(0, left - 1)

    def _checked(self, values: Sequence[Any], options: Dict[str, Any]) -> Any:
        """Make a call that is compared with the serial function because the program was asked to check."""
        try:
            found = self._compared(values, options)
        except SerialError as error:
            self._first_calls.give_up(self, error.__cause__ or error, self.program.checked)
            return self(*values, **options)
        self._first_calls.tell(self, found, self.program.checked)
        return found.results

    def _check_steps(
        self,
        session: Session,
        values: Sequence[Any],
        batches: Any,
        batches_s: Any,
        n_steps: Any,
        output_subset: Any,
        num_slices: Any,
    ) -> None:
        """Make the first steps as calls that are compared with the serial function, and put back what they change."""
        updated = self.engine.updated_in(self._variants.snapshot)
        given = batches if batches is not None else batches_s
        n_steps, not_compared = (n_steps or 1) if given is None else len(given), ""
        if any(map(self.engine.is_random, self._shareds)):
            not_compared = DRAWS
        elif any(self.engine.shared_type(shared) is None for shared in updated):
            not_compared = "it updates what is not a dense array, and is called in steps"
        if not_compared:
            self._first_calls.tell(self, Comparison(None, [], not_compared), self.program.checked)
            return
        replicator = replicator_of(session)
        numbers: Dict[Any, None] = dict.fromkeys(replicator.find(self.engine, shared) for shared in updated)
        with put_back(session, list(numbers)):
            for i in range(min(n_steps, self._first_calls.left)):
                options: Dict[str, Any] = dict.fromkeys(signature.KEYWORDS)
                options.update(
                    output_subset=output_subset,
                    num_slices=num_slices,
                    batch=None if batches is None else batches[i],
                    batch_s=None if batches_s is None else batches_s[i],
                )
                try:
                    self._checked(values, options)
                except Exception:
                    if session.closed:
                        raise
                    break  # the steps will raise it, and say where
                if not self._first_calls.left:
                    break

    def _plans_in(self, session: Session) -> Plans:
        """Return the plans of the session, whose ranks have the function from then on."""
        plans = self._plans
        if plans is None or plans.session() is not session:
            replicator_of(session).ensure([self])
            plans = self._plans = self._new_plans(session)
            if session.size > 1 and self._axes and not self._told:
                self._tell_if_nothing_is_divided()
            if PROGRAM.exact and self.exact is None:
                logger.warning(
                    "function %s was built before fork(exact=True), which holds for what is built after it: it "
                    "computes as it was built; build it again, or with exact=True",
                    self.name or "without a name",
                )
        return plans

    def _new_plans(self, session: Session) -> Plans:
        engine, snapshot, variants = self.engine, self._variants.snapshot, self._variants
        streams = self.common_streams
        states = states_of(session, engine, variants.states, engine.updated_in(snapshot))
        rows = {engine.identity(shared) for shared in (*variants.sliceable, *variants.states)}
        others = [each for each in self._shareds if engine.identity(each) not in map(engine.identity, variants.states)]
        given = [*engine.states(self._compiled), *streams]
        common: List[Any] = list(streams)
        if self.exact:
            common += [each for each in self._shareds if not engine.is_random(each)]
            common = [each for each in common if engine.identity(each) not in rows]
            given = [*common, *given, *self.own_streams]
        entries: Any = partial(entries_of, session, engine)
        own = [] if self.exact or session.size == 1 else self._updated_by_rows()
        dense = watched(session, engine, others)
        same, given, updated, own, used = map(entries, (common, given, engine.updated_in(snapshot), own, others))
        return Plans(session, dense, same, given, updated, own, states, used)

    def _updated_by_rows(self) -> List[Any]:
        """Return the shared variables whose new values may differ between ranks that have the same old ones."""
        variants, updated = self._variants, self.engine.updated_in(self._variants.snapshot)
        placements = self.engine.placed(variants.snapshot, variants.placements) if updated else []
        if placements is None:
            return [each for each in updated if not self.engine.is_random(each)]
        own = own_updates(self.engine, variants.snapshot, placements, self._updates, variants.rows)
        return [one.shared for one in own]

    def _tell_if_nothing_is_divided(self) -> None:
        """Say, once, that every rank does the same work, if it does although there are inputs to divide."""
        variants, self._told = self._variants, True
        divides = variants.collectives is not None and variants.collectives.divides
        if not (self._arguments.scattered() or variants.rows or divides):
            logger.warning(
                "function %s has inputs, but none of them has rows to divide, so every rank computes the same. If it "
                "takes its rows from a shared variable, divide them: givens={x: synkhronos.ops.shard(s[i * b:(i + 1) * "
                "b])}; if it is meant to, pass the inputs in bcast_inputs",
                self.name or "without a name",
            )

    def _look(self, session: Session, plans: Plans) -> Sequence[News]:
        """Have all ranks know what the program has changed on the master, or say that they do not.

        Returns
        -------
        sequence of News
            What is to travel with the next command.

        Raises
        ------
        ArgumentValueError
            If the function is exact, and ranks have different values of a variable.
        """
        return give(session, self._to_be_given(session, plans), plans.dense, in_command=bool(self.exact))

    def _to_be_given(self, session: Session, plans: Plans) -> List[SharedEntry]:
        """Return the variables of which all ranks are to be given the master's value."""
        refuse_rows(self, plans.all)
        found = changed(session, plans.all)
        refuse_parted(self, session, plans.common)
        if found and len(plans.given) < len(plans.all):
            tell(self, session, [entry for entry in found if entry not in plans.given])
        return [entry for entry in plans.given if entry.origin is Origin.PROGRAM]

    def _run(self, session: Session, command: Command, timeout: Optional[float], updates: Sequence[str]) -> Any:
        """Have every rank run a command that calls the function, with what the program has changed before."""
        plans: Any = self._plans
        if plans.states and not plans.states[0].rows.is_away:
            with on_ranks(session, plans.states, self._variants.collectives is not None):
                return self._run(session, command, timeout, updates)
        news = () if plans.are_known() and plans.are_common() else self._look(session, plans)
        if command.has_steps:
            plans.release()
        try:
            result = session.run(command, timeout, updates, news)
        finally:
            plans.note()
        if news:
            were_given(session, news)
        return result

    def _bind(self, args: Tuple[Any, ...], kwargs: Dict[str, Any], own: Dict[str, Any]) -> List[Any]:
        """Return one value per input, as a call is given them; ``own`` are the keywords that are no inputs."""
        inputs, labels = self._arguments.inputs, self._arguments.labels
        default = partial(self.engine.default, self._compiled)
        return signature.bind(inputs, labels, self.name, args, kwargs, default, own)

    def _positions(self, output_subset: Any) -> Tuple[int, ...]:
        """Return the positions of the outputs that a call asks for."""
        return tuple(signature.output_indices(output_subset, self._form.keys, len(self._output_ops)))


def _mode(op: Any) -> Optional[str]:
    return None if op is MISSING or op.name is None else str(op)


def _array(value: Any) -> Any:
    return value.data if isinstance(value, Data) else value


def _apart(results: Any, held: Sequence[np.ndarray[Any, Any]]) -> Any:
    """Return what a function has returned with copies in place of arrays that lie in the memory of others."""
    if isinstance(results, dict):
        return type(results)((key, _apart(value, held)) for key, value in results.items())
    if isinstance(results, list):
        return [_apart(value, held) for value in results]
    if isinstance(results, np.ndarray) and any(np.may_share_memory(results, value) for value in held):
        return results.copy("K")
    return results


def _restore(
    engine: str,
    compiled: Any,
    form: Any,
    output_ops: Any,
    updates: Any,
    axes: Sequence[int],
    snapshot: Any,
    sliceable: Any,
    exact: Any,
    states: Any,
    written: Optional[Written] = None,
) -> Function:
    """Return the function of a pickle."""
    found = engines.get(engine)
    scattered = Arguments(found, found.inputs(compiled), axes).scattered()
    variants = Variants(found, snapshot, sliceable, scattered, states, written)
    return Function(PROGRAM, found, compiled, form, output_ops, updates, axes, variants, exact)
