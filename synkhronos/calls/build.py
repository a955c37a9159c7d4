"""Definition of `synkhronos.function`, which builds a `Function` from the user's graph."""

from __future__ import annotations

import dataclasses
import functools
import logging
from types import MappingProxyType
from typing import Any, Dict, ItemsView, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from .. import engines
from ..errors import ArgumentError, ArgumentTypeError, ArgumentValueError
from ..program.program import PROGRAM
from ..reductions import COMBINING, MISSING, ReduceOp, check_dtype
from ..sharding import TAKE_SHARE, Shard
from . import signature
from .advice import advice_for
from .arguments import Arguments
from .default_ops import check_states, output_op, own_updates, warn_of_ranks
from .function import Function
from .signature import Sharded, unwrapped
from .variants import Variants, Written

logger = logging.getLogger("synkhronos")


def function(
    inputs: Sequence[Any],
    outputs: Any = None,
    bcast_inputs: Optional[Sequence[Any]] = None,
    updates: Any = None,
    givens: Any = None,
    sliceable_shareds: Optional[Sequence[Any]] = None,
    exact: Optional[bool] = None,
    rows: Optional[int] = None,
    **kwargs: Any,
) -> Function:
    """Compile a function that runs on all ranks: ``theano.function`` with additional arguments.

    Parameters
    ----------
    inputs : list of variables (or ``theano.In``)
        Their values, of shape ``(n_rows,) + shape``, are scattered: rank r's part has the shape ``(n_r,) + shape``.
        Scalars and inputs with broadcastable rows are sent whole to every rank. If the rows are not along axis 0, list
        ``synkhronos.sharded(x, axis)``. List a shared variable that contains the batch's rows as
        ``synkhronos.sharded(shared)``; calls have no argument for it.
    outputs : variable, list or dict, optional
        Each is a variable or ``(variable, op)``. The op combines the ranks' results: ``avg`` (weighted by rows),
        ``sum``, ``prod``, ``min``, ``max``, ``gather`` (concatenated in rank order: ``(n_0 + ... + n_{n-1},) + shape``)
        or None (the master's own result). The prefix ``c_`` selects the CPU transport. Without an op, the output equals
        the serial function's output: values per row are gathered, means over rows are averaged, sums are summed. If no
        op can be inferred, scalar floats of a function without ``exact`` are averaged, with a warning in the log.
    bcast_inputs : list of variables, optional
        Further inputs, after ``inputs``; their values are sent whole to every rank.
    updates : dict or list, optional
        ``(shared, expression)`` or ``(shared, expression, op)``. Every rank updates its own copy of the variable, from
        its own rows only, unless ``exact`` is set. A warning is logged if no collective can then restore the serial
        function's value. The op combines the new values from a rank's slices.
    sliceable_shareds : list of shared variables, optional
        Variables of at least 1 dimension that contain data. On every rank, ``batch_shared`` selects rows of them, and
        ``num_slices`` slices them. If the rows are not along axis 0, list ``synkhronos.sharded(s, axis)``.
    exact : bool, optional
        Whether updates also equal the serial function's updates. If an operation needs a whole gradient, mean or sum,
        the ranks' parts are combined inside the graph, as by `synkhronos.ops.all_reduce`. All ranks then apply the same
        updates. Each rank still draws random numbers for its own rows. A call raises an error if a shared variable,
        other than a random state or a variable with rows, differs between ranks. The default is the value passed to
        `fork`, else False. With an explicit False, updates from each rank's own rows cause no warning.
    rows : int, optional
        The literal batch size in the program, as in ``T.arange(100)`` or ``x.reshape((100, -1))``. This constant then
        stands for the rank's share if an operation needs the number of rows. Every call must have exactly this many
        rows. The default is the value passed to `fork`, for functions that contain the number.
    givens, **kwargs
        Passed to the engine's own ``function``.

    Returns
    -------
    Function

    Raises
    ------
    TypeError, ValueError
        If an op does not exist or does not suit the output's dtype, or an argument is not a variable or is listed
        twice. If an output has no op and none can be inferred; the message names the output and the operation. If
        ``exact`` is set and an update cannot be computed exactly. Also any error of the engine's own ``function``.

    Examples
    --------
    >>> import synkhronos as synk
    >>> import theano, theano.tensor as T
    >>> synk.fork(2)
    2
    >>> x = T.dvector("x")
    >>> f = synk.function([x], [x.mean(), x.max(), x ** 2, (x.max(), "avg")])
    >>> f([1., 2., 6.])                         # rank 0 has two rows, rank 1 has one
    [array(3.), array(6.), array([ 1.,  4., 36.]), array(3.33333333)]

    With ``exact``, any update rule applies to the rows of all ranks:

    >>> w = theano.shared(0., "w")
    >>> gradient = theano.grad((w * x).sum() + T.sqr(w).sum(), w)
    >>> train = synk.function([x], updates=[(w, w - 0.1 * T.sgn(gradient - 8))], exact=True)
    >>> train([1., 2., 6.])                     # 9 - 8; each rank by itself would compute 3 - 8 and 6 - 8
    []
    >>> w.get_value(), synk.gather(w)
    (array(-0.1), array([-0.1, -0.1]))
    """
    named = [each for each in _as_list(inputs, "inputs") if isinstance(each, Sharded)]
    along = unwrapped(_as_list(inputs, "inputs"))
    inputs, bcast_inputs = [each.variable for each in along], _as_list(bcast_inputs, "bcast_inputs")
    for each in bcast_inputs:
        if isinstance(each, Sharded):
            got = f"{each.variable}, sharded along axis {each.axis}"
            raise ArgumentTypeError("bcast_inputs", "variables sent whole to every rank", got, "list it in inputs")
    signature.check_name(kwargs.get("name"))
    parsed = signature.parse_outputs(outputs)
    engine: Any = engines.find(_variables(inputs, bcast_inputs, parsed, updates)) or engines.default()
    states = [each for each in named if engine.is_shared(each.variable)]
    along = [each for each in along if not any(each is one for one in states)]
    inputs = [each.variable for each in along]
    if PROGRAM.session is not None and not PROGRAM.session.closed:
        PROGRAM.session.prefetch.begin(engine)
    pairs, update_ops = signature.parse_updates(updates, engine.label)
    for shared, _ in pairs:
        if not engine.is_shared(shared):
            raise ArgumentTypeError("updates", "shared variables to update", repr(shared))
    ops = [op if op is MISSING else ReduceOp.parse(op, "the op of an output") for op in parsed.ops]
    update_ops = [
        op if op is MISSING else ReduceOp.parse(op, f"the op of {_update(i, shared, engine)}", COMBINING)
        for i, (op, (shared, _)) in enumerate(zip(update_ops, pairs))
    ]
    givens = engine.given_pairs(givens)
    variables = engine.with_states([*inputs, *bcast_inputs])
    axes = [each.axis for each, given in zip(along, variables) if not engine.is_implicit(given)]
    variables.sort(key=engine.is_implicit)  # explicit inputs come first
    chosen, exact = exact, PROGRAM.exact if exact is None else exact
    if not isinstance(exact, (bool, np.bool_)):
        raise ArgumentTypeError("exact", "True, False or None", f"{exact!r} of type {type(exact).__name__}")
    written = signature.WrittenRows.of(rows)
    if written is not None:
        variables, givens = engine.with_any_rows(variables, axes, givens, written.rows)
    compiled, snapshot = engine.draft(variables, parsed.variables, pairs, givens, **kwargs)
    kwargs.update(engine.settings_after_draft(snapshot))
    given_updates = [
        (shared, _update_op(op, _update(i, shared, engine), engine.shared_type(shared)))
        for i, (op, (shared, _)) in enumerate(zip(update_ops, pairs))
    ]
    arguments = Arguments(engine, engine.inputs(compiled), axes)
    _check_states(arguments)
    scattered = arguments.scattered()
    sliceable = _with_rows(sliceable_shareds, engine, compiled, "sliceable_shareds")
    of_calls = _with_rows(states, engine, compiled, "inputs", sliceable)
    shards = {variable: Shard(axis) for variable, axis in {**scattered, **sliceable, **of_calls}.items()}
    own = None if exact else _own_positions(ops, len(engine.updated_in(snapshot)))
    snapshot, read = _read_rows(engine, written, snapshot, shards, own)
    outputs_of = engine.outputs(compiled)
    advise = functools.lru_cache(None)(
        functools.partial(advice_for, engine, snapshot, shards, arguments, ops, outputs_of, bool(exact))
    )
    if exact:
        try:
            snapshot, placements = engine.completed(snapshot, shards)
        except ArgumentError as error:
            found = advise()
            if found is None:
                raise
            hint = found if error.hint is None else f"{found}; or {error.hint}"
            raise type(error)(error.argument, error.expected, error.got.replace(TAKE_SHARE, ""), hint) from None
    else:
        given = [op if op is MISSING else op.name for op in ops]
        snapshot, placements = engine.with_late_outputs(snapshot, shards, given)
    name = engine.function_name(compiled) or "without a name"
    output_ops = [
        output_op(op, output, None if placements is None else placements[i], name, exact, advise)
        for i, (op, output) in enumerate(zip(ops, outputs_of))
    ]
    on_ranks = engine.output_types(snapshot) or [output.type for output in outputs_of]
    for i, (output, type_) in enumerate(zip(outputs_of, on_ranks)):
        if type_ is not None and type_.dtype != output.type.dtype:
            dtypes = (str(type_.dtype), str(output.type.dtype))
            output_ops[i] = dataclasses.replace(output_ops[i], dtypes=dtypes)
    if placements is not None and not exact:
        check_states(engine, snapshot, placements, of_calls)
    if placements is not None and chosen is None and not exact:
        warn_of_ranks(name, own_updates(engine, snapshot, placements, given_updates, {**sliceable, **of_calls}))
    variants = Variants(engine, snapshot, sliceable, scattered, of_calls, read)
    compile_own = None
    cut = None if variants.collectives is None else variants.collectives.cut
    if cut is not None and cut.why_not:
        logger.info("function %s cannot be called in slices (num_slices): %s", name, cut.why_not)
    if variants.is_first_serial:
        compiled = engine.compile(variables, parsed.variables, pairs, givens, **kwargs)
    else:
        # Ranks call another graph, so the draft suffices until `as_theano` or a comparison needs the serial function.
        # Record the default updates now, because the program may change them before the function is compiled.
        given_targets = [shared for shared, _ in pairs]
        more = [one for one in engine.updated_in(snapshot) if not any(one is shared for shared in given_targets)]
        defaults = [(shared, engine.default_update(shared)) for shared in more]
        all_pairs = pairs + [pair for pair in defaults if pair[1] is not None]  # (None for states of inputs)
        settings = dict(kwargs, name=engine.function_name(compiled), no_default_updates=True)
        compile_own = functools.partial(engine.compile, variables, parsed.variables, all_pairs, givens, **settings)
    built = Function(
        PROGRAM, engine, compiled, parsed.form, output_ops, given_updates, arguments, variants, chosen, compile_own
    )
    if PROGRAM.session is not None and not PROGRAM.session.closed:
        PROGRAM.session.launcher.admit(built)
    return built


def _read_rows(
    engine: Any,
    written: Optional[signature.WrittenRows],
    snapshot: Any,
    shards: Mapping[Any, Shard],
    own: Optional[Sequence[int]],
) -> Tuple[Any, Optional[Written]]:
    """Return the graph for any number of rows (see `Engine.with_rows`), and the literal number (`Written`), if any."""
    rows = None if written is None else written.rows
    after, where = engine.with_rows(snapshot, shards, rows, own)
    is_own = written is not None and written.is_own
    return after, Written(rows, where) if where or is_own else None


def _own_positions(ops: Sequence[Any], n_updates: int) -> List[int]:
    """Return the positions of values that may depend on a rank's rows: updates, and outputs with op avg or no op."""
    outputs = [i for i, op in enumerate(ops) if op is MISSING or op.name == "avg"]
    return [*outputs, *range(len(ops), len(ops) + n_updates)]


def _check_states(arguments: Arguments) -> None:
    """Reject scattered inputs that keep a value between calls, because the next call may send other rows to a rank."""
    scattered = arguments.scattered()
    for given, label in zip(arguments.inputs, arguments.labels):
        if given.variable in scattered and (given.state is not None or given.is_updated):
            raise ArgumentValueError(
                label,
                "a broadcast input, because it keeps a value between calls (In(update=...))",
                "an input whose rows are scattered",
                "list it in bcast_inputs",
            )


def _with_rows(
    shareds: Any, engine: Any, compiled: Any, argument: str, others: Mapping[Any, int] = MappingProxyType({})
) -> Dict[Any, int]:
    """Check shared variables that contain rows; return them with the axes of those rows."""
    used = engine.shareds(compiled)
    found: Dict[Any, int] = {}
    for i, (shared, axis) in enumerate(unwrapped(_as_list(shareds, argument))):
        if not engine.is_shared(shared):
            raise ArgumentTypeError(argument, "shared variables", repr(shared))
        label, type_ = engine.label(shared, f"{argument}[{i}]"), engine.shared_type(shared)
        if type_ is None or engine.is_random(shared):
            got = f"{label}, which is not a dense array of data"
            raise ArgumentTypeError(argument, "shared variables with rows to select", got)
        if axis == 0 and (type_.ndim == 0 or type_.broadcastable[0]):
            got = f"{label} with {'0 dimensions' if type_.ndim == 0 else 'broadcastable rows'}"
            raise ArgumentValueError(argument, "shared variables with rows to select", got)
        if not any(shared is other for other in used):  # (the graph must contain this object, not a clone)
            got = f"{label}, which is unused"
            raise ArgumentValueError(argument, "shared variables that the function uses", got)
        if shared in found or shared in others:
            got = f"{label}, which is listed twice"
            raise ArgumentValueError(argument, "different shared variables", got)
        found[shared] = type_.axis_of_rows(axis, label)
    return found


def _as_list(variables: Any, argument: str) -> Sequence[Any]:
    if variables is None:
        return []
    if not isinstance(variables, (list, tuple)):
        raise ArgumentTypeError(argument, "a list of variables", type(variables).__name__)
    return variables


def _variables(
    inputs: Sequence[Any], bcast_inputs: Sequence[Any], outputs: signature.Outputs, updates: Any
) -> List[Any]:
    found = list(inputs) + list(bcast_inputs)
    form = outputs.variables
    found += list(form.values()) if isinstance(form, dict) else form if isinstance(form, list) else [form]
    if isinstance(updates, dict):
        found += list(updates)
    elif isinstance(updates, (list, tuple, ItemsView)):
        found += [entry[0] for entry in updates if isinstance(entry, (list, tuple)) and entry]
    return found


def _update(i: int, shared: Any, engine: Any) -> str:
    return f"the update of {engine.label(shared, f'updates[{i}]')}"


def _update_op(op: Any, label: str, type_: Any) -> Any:
    """Check and return the op of an update. Integers have no default op, so their values must agree in all slices."""
    if type_ is None:
        if op is not MISSING:
            raise ArgumentTypeError(label, "no op, because it is not a dense array", f"op {str(op)!r}")
        return op
    if op is MISSING:
        return ReduceOp("avg") if type_.dtype.kind in "fc" else MISSING
    check_dtype(op, type_.dtype, label, COMBINING)
    return op
