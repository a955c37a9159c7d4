"""`data_parallel`: a likelihood, or those of a model, computed by all ranks."""

from __future__ import annotations

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

from .likelihood import Likelihood
from .observed import observed_in
from .operation import DataParallelLogp
from .rows import as_data, is_array, of_values, refuse_open_bounds, value_of, variable_for

logger = logging.getLogger("synkhronos")


def data_parallel(
    model_or_logp: Union[pm.Model, Callable[..., Variable]],
    data: Optional[Sequence[Any]] = None,
    params: Optional[Sequence[Variable]] = None,
    *,
    batch: Optional[int] = None,
    name: str = "likelihood",
    mode: Any = None,
) -> Any:
    r"""Have all ranks compute a likelihood together: :math:`\sum_i \log p(x_i \mid \theta)`, each its own rows i.

    Given a function, it adds a ``pm.Potential`` to the model whose context it is called in. Given a model, it returns
    another one, whose observed variables are such potentials. Value and gradient are one call over all ranks, which
    sends the parameters; the rows go into shared memory once, here. `pm.sample` (with ``cores=1``, or nutpie),
    `pm.find_MAP` and `pm.fit` take such a model as any other, while a session is open; if a rank fails, they end with
    that error. What needs the rows, as a log-likelihood of each, is computed with the plain model.

    Parameters
    ----------
    model_or_logp : pm.Model or callable
        A whole model. Or a function of variables for the data (and of those for ``params``), which returns the
        log-probability of each row, as `pm.logp` does; each must depend on its own row alone.
    data : list, optional
        For a function: arrays with a row for each observation (or `Data`, ``np.memmap``, paths to ``.npy`` files).
        For a model: names of observed variables, whose rows are divided with all arrays of their length that they
        depend on; or of ``pm.Data``, which alone are divided with the observed values. By default the observed
        variables with the most rows.
    params : list of variables, optional
        What the function is given after the data: variables of the model, or expressions of them. Variables that
        it uses without being given them are found.
    batch : int, optional
        Every evaluation takes so many rows, drawn as by `pm.Minibatch`, and scales their sum to all rows: for
        `pm.fit`. Samplers need all rows, and refuse it.
    name : str
        Of the potential (those of a model have the names of the observed variables).
    mode : mode, optional
        PyTensor's, in which the ranks' function is compiled.

    Returns
    -------
    variable or pm.Model
        The potential, or the new model.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or a log-probability combines rows: names the operation.
    StateError
        If a function is given outside of a model's context.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> import synkhronos as synk
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
    if isinstance(model_or_logp, pm.Model):
        if params is not None:
            raise ArgumentTypeError("params", "nothing, because a model is given", repr(params))
        return _of_model(model_or_logp, data, batch, mode)
    if not callable(model_or_logp):
        expected = "a pm.Model, or a function that returns the log-probability of each row"
        raise ArgumentTypeError("model_or_logp", expected, repr(model_or_logp))
    try:
        model = pm.modelcontext(None)
    except TypeError:
        raise StateError(
            "data_parallel takes a function inside a model's context: with pm.Model() as model: ..."
        ) from None
    return _of_function(model, model_or_logp, data, params, batch, name, mode)


def _of_function(
    model: pm.Model,
    logp: Callable[..., Variable],
    values: Any,
    params: Optional[Sequence[Variable]],
    batch: Optional[int],
    name: str,
    mode: Any,
) -> Variable:
    for argument, given, expected in (("data", values, "arrays"), ("params", params, "variables")):
        if not isinstance(given, (list, tuple)) and not (argument == "params" and given is None):
            raise ArgumentTypeError(argument, f"a list of {expected}", type(given).__name__)
    if not values:
        raise ArgumentValueError("data", "at least one array", "none")
    for i, param in enumerate(params or ()):
        if not isinstance(param, Variable):
            raise ArgumentTypeError(f"params[{i}]", "a variable of the model", repr(param))
    labels = [f"data[{i}]" for i in range(len(values))]
    data = as_data(values, labels)
    variables = [variable_for(each, label) for each, label in zip(data, labels)]
    of_function = [each.type(each.name) for each in params or ()]
    rows = logp(*variables, *of_function)
    if not isinstance(rows, Variable):
        got = f"{rows!r} of type {type(rows).__name__}"
        raise ArgumentTypeError("model_or_logp", "a function that returns a variable", got)
    # Of the value variables, as PyMC's joint log-probability is, so that ranks have the transforms in their graph.
    rows, *given = model.replace_rvs_by_values([rows, *(params or ())])
    for variable, param in zip(of_function, given):
        param.tag.__dict__.update(variable.tag.__dict__)  # as that it is triangular, if the function says so
    rows, inputs, of_model = of_values(clone_replace(rows, dict(zip(of_function, given))), model)
    random = rvs_in_graph([rows])
    if random:
        names = ", ".join(sorted(str(each.name or each) for each in random))
        hint = (
            "pm.logp(distribution, values) is that of a distribution; variables of the model that it depends on are "
            "best given to the function: data_parallel(f, data, params)"
        )
        raise ArgumentTypeError(name, "a log-probability", f"one that draws random numbers ({names})", hint)
    refuse_open_bounds(rows, name)
    fixed = [each for each, of in zip(inputs, of_model) if isinstance(of, SharedVariable)]
    likelihood = Likelihood(rows, variables, data, inputs, name, mode, fixed, model.check_bounds)
    return pm.Potential(name, _computed(likelihood, of_model, batch))


def _of_model(model: pm.Model, names: Any, batch: Optional[int], mode: Any) -> pm.Model:
    if names is not None and (isinstance(names, str) or not all(isinstance(each, str) for each in names)):
        hint = "a model has its data itself; give arrays to a function"
        raise ArgumentTypeError("data", "a list of names of pm.Data and observed variables", repr(names), hint)
    pieces = observed_in(model, names)
    likelihoods = [
        Likelihood(*piece[1:5], piece.variable.name, mode, piece.fixed, model.check_bounds, is_observed=True)
        for piece in pieces
    ]
    serial = [each.name for each in model.potentials if _reads_rows(each, min(each.n_rows for each in likelihoods))]
    if serial:
        logger.warning(
            "%s of the model: a pm.Potential with as many rows stays with the master, which computes it alone; give "
            "data_parallel the function of its rows instead: data_parallel(f, [arrays])",
            ", ".join(serial),
        )
    fgraph, in_fgraph = fgraph_from_model(model)
    for piece, likelihood in zip(pieces, likelihoods):
        observed = in_fgraph[piece.variable]
        potential = _computed(likelihood, [in_fgraph.get(each, each) for each in piece.of_model], batch)
        fgraph.add_output(model_potential(potential, piece.variable.name), import_missing=True)
        fgraph.remove_output(fgraph.outputs.index(observed))
        if observed in fgraph.variables:
            got = f"{piece.variable.name}, on which others depend"
            raise ArgumentTypeError("model", "one in which nothing depends on observed variables", got)
    for container in {each for piece in pieces for each in piece.containers}:
        fgraph.remove_output(fgraph.outputs.index(in_fgraph[container]))  # what does not depend on it forgets it
    order = list(model.named_vars)
    parallel = model_from_fgraph(fgraph, mutate_fgraph=True)
    # In the order of before, which is that of a point's elements and of random numbers.
    for variables in (parallel.free_RVs, parallel.observed_RVs, parallel.potentials, parallel.deterministics):
        variables.sort(key=lambda each: order.index(each.name))
    parallel.check_bounds = model.check_bounds
    return parallel


def _reads_rows(potential: Variable, n_rows: int) -> bool:
    return any(is_array(each) and len(value_of(each)) >= n_rows for each in ancestors([potential]))


def _computed(likelihood: Likelihood, params: List[Variable], batch: Optional[int]) -> Variable:
    """Return the log-probability of all rows, or its estimate from a batch of them."""
    if batch is None:
        return DataParallelLogp(likelihood)(*params, return_list=True)[0]
    if isinstance(batch, bool) or not isinstance(batch, (int, np.integer)):
        raise ArgumentTypeError("batch", "an int", f"{batch!r} of type {type(batch).__name__}")
    if not 1 <= batch <= likelihood.n_rows:
        raise ArgumentValueError("batch", f"from 1 to {likelihood.n_rows}, the number of rows", str(batch))
    rows = pm.Minibatch(pytensor.shared(np.arange(likelihood.n_rows)), batch_size=int(batch))
    value = DataParallelLogp(likelihood, in_batches=True)(*params, rows, return_list=True)[0]
    return value * (likelihood.n_rows / rows.shape[0])
