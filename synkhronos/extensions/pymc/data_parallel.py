"""Computation of one likelihood, or of a model's likelihoods, on all ranks (`data_parallel`)."""

from __future__ import annotations

import functools
import logging
from typing import Any, Callable, List, Optional, Sequence, Union

import numpy as np
import pymc as pm
import pytensor
from pymc.model.fgraph import fgraph_from_model, model_from_fgraph, model_potential
from pymc.pytensorf import rvs_in_graph
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors

from synkhronos.errors import ArgumentTypeError, ArgumentValueError, StateError

from .batches import Batches, is_iterable_of_batches
from .choosing import faster
from .likelihood import Likelihood
from .observed import observed_in, without_initial_values
from .operation import DataParallelLogp
from .rows import as_data, is_array, of_values, refuse_open_bounds, value_of, variable_for
from .sparse_rows import refuse_sparse

logger = logging.getLogger("synkhronos")


def data_parallel(
    model_or_logp: Union[pm.Model, Callable[..., Variable]],
    data: Optional[Sequence[Any]] = None,
    params: Optional[Sequence[Variable]] = None,
    *,
    batch: Any = None,
    total_size: Optional[int] = None,
    name: str = "likelihood",
    mode: Any = None,
    ranks: Optional[int] = None,
    groups: Optional[int] = None,
) -> Any:
    r"""Compute a likelihood, :math:`\sum_i \log p(x_i \mid \theta)`, on all ranks, with the rows i divided among them.

    Given a function, add a ``pm.Potential`` to the model whose context is active. Given a model, return a new model
    with potentials instead of the divided observed variables. This call copies in-memory arrays to shared memory, once.
    Each evaluation of value and gradient is one call on all ranks and sends only the parameters. `pm.sample` (with
    ``cores=1``, or nutpie), `pm.find_MAP` and `pm.fit` accept the model while a session is open, and raise the error of
    a failed rank. Use the plain model for results per row, such as a pointwise log-likelihood.

    Parameters
    ----------
    model_or_logp : pm.Model or callable
        A whole model, or a function of variables for ``data`` (and ``params``) that returns the log-probability of each
        row, like `pm.logp`. The log-probability of a row must depend on that row alone.
    data : list, optional
        For a function: arrays with one row per observation (or `Data`, ``np.memmap``, paths to ``.npy`` files). For a
        model: names of observed variables, or of ``pm.Data``; by default, the observed variables with the most rows. An
        observed variable is divided together with all arrays of its length that it depends on. If ``pm.Data`` is named,
        only this array and the observed values are divided.
    params : list of variables, optional
        Arguments of the function after the data: the model's variables, or expressions that contain them. Variables
        that the function uses without receiving them are detected.
    batch : int, or iterable, optional
        For `pm.fit`: number of rows in a random subset, as with `pm.Minibatch`. The sum over the subset is scaled to
        all rows. Samplers need all rows and refuse ``batch``. For a function, instead of ``data``: an iterable of
        batches, such as a `synkhronos.loader` or a list, or a generator function. Each evaluation computes the next
        batch, a tuple of arrays (or one array), and scales the sum to ``total_size``. When the iterable ends, it is
        started again. The first batch, loaded by this call, determines the types and columns of all batches.
    total_size : int, optional
        With an iterable ``batch``: the number of rows in a pass; by default, ``batch.total_size``.
    name : str
        The name of the potential. A model's potentials have the names of the variables that they replace.
    mode : mode, optional
        The PyTensor mode for compiling the ranks' function.
    ranks : int, optional
        For a model: the number of ranks to start, unless a session is open. The gradients of both models are then
        compiled and measured, and a message in the log states their times. If the ranks are not more than 1.1 times as
        fast, the given model is returned, and the started ranks are stopped.
    groups : int, optional
        For a model, with ``ranks``: the number of groups (`synkhronos.Groups`) to start, each with that many ranks.
        Chains in several threads (nutpie) then run at once, each on the ranks of a free group, so pass the number of
        chains that run at once. No session may be open. `synkhronos.close` ends the groups.

    Returns
    -------
    variable or pm.Model
        The potential, or the new model.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or a log-probability combines rows; the message then names the operation.
    StateError
        If a function is passed outside a model's context.

    Examples
    --------
    >>> import numpy as np, pymc as pm, synkhronos as synk
    >>> from synkhronos.extensions.pymc import data_parallel
    >>> X = np.random.default_rng(0).normal(size=(1000, 3))
    >>> y = X @ [1.0, -2.0, 0.5] > 0
    >>> with pm.Model() as model:
    ...     beta = pm.Normal("beta", 0, 1, shape=3)
    ...     _ = data_parallel(lambda X, y: pm.logp(pm.Bernoulli.dist(logit_p=X @ beta), y), [X, y])
    >>> synk.fork(2)
    2
    >>> with model:
    ...     trace = pm.sample(cores=1)  # doctest: +SKIP
    >>> synk.close()
    """
    is_iterable = is_iterable_of_batches(batch)
    if not is_iterable and (isinstance(batch, bool) or not isinstance(batch, (int, np.integer, type(None)))):
        got = f"{batch!r} of type {type(batch).__name__}"
        raise ArgumentTypeError("batch", "an int, or an iterable of batches", got)
    if total_size is not None and not is_iterable:
        raise ArgumentTypeError("total_size", "None without an iterable of batches", repr(total_size))
    if isinstance(model_or_logp, pm.Model):
        if params is not None:
            raise ArgumentTypeError("params", "None with a model", repr(params))
        if is_iterable:
            hint = "a model contains its own data; pass a function: data_parallel(f, params=[...], batch=...)"
            raise ArgumentTypeError("batch", "an int with a model", f"an iterable ({type(batch).__name__})", hint)
        if groups is not None and (ranks is None or batch is not None):
            hint = "data_parallel(model, ranks=2, groups=4) starts 4 groups of 2 ranks"
            raise ArgumentTypeError("groups", "None without ranks, and with batch", repr(groups), hint)
        if ranks is not None:
            build = functools.partial(_of_model, model_or_logp, data, batch, mode)
            return faster(model_or_logp, ranks, build, groups)
        return _of_model(model_or_logp, data, batch, mode)
    for argument, value in (("ranks", ranks), ("groups", groups)):
        if value is not None:
            raise ArgumentTypeError(argument, "None with a function", repr(value), "call synkhronos.fork() instead")
    if not callable(model_or_logp):
        expected = "a pm.Model, or a function that returns the log-probability of each row"
        raise ArgumentTypeError("model_or_logp", expected, repr(model_or_logp))
    try:
        model = pm.modelcontext(None)
    except TypeError:
        raise StateError(
            "data_parallel of a function needs the context of a model: with pm.Model() as model: ..."
        ) from None
    if is_iterable:
        if data is not None:
            hint = "the batches are the data; pass the arguments after the data as params=[...]"
            raise ArgumentTypeError("data", "None with an iterable of batches", type(data).__name__, hint)
        batch = Batches(batch, total_size)
        data = batch.peek()
    return _of_function(model, model_or_logp, data, params, batch, name, mode)


def _of_function(
    model: pm.Model,
    logp: Callable[..., Variable],
    values: Any,
    params: Optional[Sequence[Variable]],
    batch: Union[int, Batches, None],
    name: str,
    mode: Any,
) -> Variable:
    batches = batch if isinstance(batch, Batches) else None
    for argument, given, expected in (("data", values, "arrays"), ("params", params, "variables")):
        if not isinstance(given, (list, tuple)) and not (argument == "params" and given is None):
            raise ArgumentTypeError(argument, f"a list of {expected}", type(given).__name__)
    if not values:
        raise ArgumentValueError("data", "at least one array", "an empty list")
    for i, param in enumerate(params or ()):
        if not isinstance(param, Variable):
            raise ArgumentTypeError(f"params[{i}]", "a variable of the model", repr(param))
    labels = [f"{'data' if batches is None else 'batch'}[{i}]" for i in range(len(values))]
    data = as_data(values, labels)
    variables = [variable_for(each, label) for each, label in zip(data, labels)]
    of_function = [each.type(each.name) for each in params or ()]
    rows = logp(*variables, *of_function)
    if not isinstance(rows, Variable):
        got = f"{rows!r} of type {type(rows).__name__}"
        raise ArgumentTypeError("model_or_logp", "a function that returns a variable", got)
    # With value variables, as in PyMC's joint log-probability, the ranks also compute the transforms.
    rows, *given = model.replace_rvs_by_values([rows, *(params or ())])
    for variable, param in zip(of_function, given):
        param.tag.__dict__.update(variable.tag.__dict__)  # hints set by the function, such as "triangular"
    rows, inputs, of_model = of_values(clone_replace(rows, dict(zip(of_function, given))), model)
    random = rvs_in_graph([rows])
    if random:
        names = ", ".join(sorted(str(each.name or each) for each in random))
        hint = (
            "use pm.logp(distribution, values), and pass the model's variables that it depends on to the function: "
            "data_parallel(f, data, params)"
        )
        raise ArgumentTypeError(name, "a log-probability", f"an expression that draws random numbers ({names})", hint)
    refuse_sparse(rows, name, "dense arrays in a function")
    refuse_open_bounds(rows, name)
    fixed = [each for each, of in zip(inputs, of_model) if isinstance(of, SharedVariable)]
    likelihood = Likelihood(rows, variables, data, inputs, name, mode, fixed, model.check_bounds, batches=batches)
    return pm.Potential(name, _computed(likelihood, of_model, batch))


def _of_model(model: pm.Model, names: Any, batch: Optional[int], mode: Any) -> pm.Model:
    if names is not None and (isinstance(names, str) or not all(isinstance(each, str) for each in names)):
        hint = "a model contains its own data; pass arrays only together with a function"
        raise ArgumentTypeError("data", "a list of names of pm.Data and observed variables", repr(names), hint)
    pieces = observed_in(model, names)
    likelihoods = [
        Likelihood(*piece[1:5], piece.variable.name, mode, piece.fixed, model.check_bounds, is_observed=True)
        for piece in pieces
    ]
    serial = [each.name for each in model.potentials if _reads_rows(each, min(each.n_rows for each in likelihoods))]
    if serial:
        logger.warning(
            "a pm.Potential of an array with as many rows as the data, or more, is computed by the master alone (%s): "
            "to divide its rows, pass a function of them: data_parallel(f, [arrays])",
            ", ".join(serial),
        )
    for rv in model.free_RVs:
        value = model.rvs_to_initial_values.get(rv)
        if isinstance(value, Variable):
            got = f"a variable ({value}) for {rv.name}"
            raise ArgumentTypeError("initval", "a number, an array, or the name of a method", got, "pass its value")
    with without_initial_values(model) as initial_values:
        fgraph, in_fgraph = fgraph_from_model(model)
    for piece, likelihood in zip(pieces, likelihoods):
        observed = in_fgraph[piece.variable]
        potential = _computed(likelihood, [in_fgraph.get(each, each) for each in piece.of_model], batch)
        fgraph.add_output(model_potential(potential, piece.variable.name), import_missing=True)
        fgraph.remove_output(fgraph.outputs.index(observed))
        if observed in fgraph.variables:
            got = f"a model with variables that depend on {piece.variable.name}"
            raise ArgumentTypeError("model", "a model without variables that depend on observed variables", got)
    for container in {each for piece in pieces for each in piece.containers}:
        fgraph.remove_output(fgraph.outputs.index(in_fgraph[container]))  # removed unless something still depends on it
    order = list(model.named_vars)
    parallel = model_from_fgraph(fgraph, mutate_fgraph=True)
    # Restore the original order, which determines the order of a point's elements and of random numbers.
    for variables in (parallel.free_RVs, parallel.observed_RVs, parallel.potentials, parallel.deterministics):
        variables.sort(key=lambda each: order.index(each.name))
    parallel.check_bounds = model.check_bounds
    for rv, value in initial_values.items():
        if rv in model.free_RVs:
            parallel.set_initval(parallel[rv.name], value)
    return parallel


def _reads_rows(potential: Variable, n_rows: int) -> bool:
    return any(is_array(each) and value_of(each).shape[0] >= n_rows for each in ancestors([potential]))


def _computed(likelihood: Likelihood, params: List[Variable], batch: Union[int, Batches, None]) -> Variable:
    """Return an expression for the log-probability of all rows, or for its estimate from a batch."""
    if batch is not None and likelihood.contains_rows:
        expected = f"None, because the model contains the number of rows ({likelihood.n_rows})"
        hint = "compute lengths from the arrays: from pm.Data in a model, from its arguments in a function"
        raise ArgumentValueError("batch", expected, str(batch), hint)
    if batch is None or isinstance(batch, Batches):
        return DataParallelLogp(likelihood)(*params, return_list=True)[0]
    if not 1 <= batch <= likelihood.n_rows:
        raise ArgumentValueError("batch", f"an int from 1 to {likelihood.n_rows} (number of rows)", str(batch))
    rows = pm.Minibatch(pytensor.shared(np.arange(likelihood.n_rows)), batch_size=int(batch))
    value = DataParallelLogp(likelihood, in_batches=True)(*params, rows, return_list=True)[0]
    return value * (likelihood.n_rows / rows.shape[0])
