"""Conversion of the observed variables of a model to log-probabilities of rows."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import pymc as pm
from pymc.data import MinibatchOp
from pymc.distributions.continuous import InterpolatedRV
from pymc.distributions.custom import CustomSymbolicDistRV
from pymc.distributions.dist_math import SplineWrapper
from pymc.distributions.distribution import PartialObservedRV, SymbolicRandomVariable
from pymc.distributions.shape_utils import change_dist_size
from pymc.distributions.simulator import SimulatorRV
from pymc.distributions.truncated import Truncated, TruncatedRV
from pymc.logprob.basic import transformed_conditional_logp
from pymc.pytensorf import constant_fold
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.builders import SymbolicOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, graph_inputs, io_toposort
from pytensor.tensor import constant
from pytensor.tensor.random.op import RandomVariable

import synkhronos as synk
from synkhronos.errors import ArgumentTypeError, ArgumentValueError

from .named_axes import axes_of, in_place_of
from .rows import as_data, is_array, of_values, value_of, variable_for
from .sparse_rows import SparseRows, as_dense, is_sparse, multiplied, refuse_sparse

synk.ops.rule(
    SplineWrapper, lambda node: "{0}->{0}".format("abcdef"[: node.inputs[0].type.ndim])
)  # used by `pm.Interpolated`


class Observed(NamedTuple):
    """An observed variable whose rows are divided.

    ``rows`` is its log-probability as a function of ``variables`` (inputs for ``data``) and ``params`` (inputs for
    ``of_model``, the model's value variables and shared variables). ``containers`` are the ``pm.Data`` in ``data``.
    """

    variable: Variable
    rows: Variable
    variables: List[Variable]
    data: List[synk.Data]
    params: List[Variable]
    of_model: List[Variable]
    containers: List[Variable]

    @property
    def fixed(self) -> List[Variable]:
        """The parameters without a gradient, such as the values of ``pm.Data``."""
        return [param for param, of in zip(self.params, self.of_model) if isinstance(of, SharedVariable)]


def observed_in(model: pm.Model, names: Optional[Sequence[str]]) -> List[Observed]:
    """Return the observed variables to divide by rows; for ``names``, see the argument ``data`` of `data_parallel`."""
    arrays = {rv: _arrays_of(model, rv) for rv in model.observed_RVs}
    lengths = {rv: max([_length(each) for each in of_rv["values"]], default=0) for rv, of_rv in arrays.items()}
    if not any(lengths.values()):
        hint = "for a pm.Potential, pass a function of its rows to data_parallel" if model.potentials else None
        raise ArgumentValueError("model", "an observed variable with rows", "a model without such a variable", hint)
    found, used = [], set()
    for rv, of_rv in arrays.items():
        named = [each for each in of_rv["all"] if each.name in (names or ())]
        if rv.name in names if names is not None else lengths[rv] == max(lengths.values()):
            named += [each for each in of_rv["all"] if _length(each) == lengths[rv] and _may_have_rows(each, rv)]
        elif not named:
            continue
        used.update([rv.name, *[each.name for each in named]])
        chosen = list(dict.fromkeys(of_rv["values"] + named))
        found.append(_observed(model, rv, chosen))
    unknown = [name for name in names or () if name not in used]
    if unknown:
        known = [each.name for each in [*model.data_vars, *model.observed_RVs]]
        expected = f"names of observed variables, or of pm.Data that these depend on (among {', '.join(known)})"
        raise ArgumentValueError("data", expected, repr(unknown[0]))
    return found


def _arrays_of(model: pm.Model, rv: Variable) -> Dict[str, List[Variable]]:
    """Return the arrays (`is_array`) in an observed variable's values, and all arrays that the variable depends on."""
    if rv.owner is None or isinstance(rv.owner.op, MinibatchRandomVariable):
        got = f"{rv.name}, which has total_size"
        raise ArgumentValueError(
            "model", "no variable with total_size", got, "omit total_size, and pass batch= to data_parallel"
        )
    if isinstance(rv.owner.op, PartialObservedRV) or _is_observed_part(model, rv):
        hint = "remove the rows with missing values, or impute the values"
        raise ArgumentValueError("model", "no missing observed values", f"missing values in {rv.name}", hint)
    if isinstance(rv.owner.op, SimulatorRV):
        expected, got = "a distribution with a log-probability of each row", "pm.Simulator, which compares all rows"
        raise ArgumentTypeError(rv.name, expected, got, "use plain PyMC for it")
    value = model.rvs_to_values[rv]
    blockers = set(model.basic_RVs) - {rv}
    every = list(ancestors([value, *_distribution_parameters(rv)], blockers))
    if any(each.owner is not None and isinstance(each.owner.op, MinibatchOp) for each in every):
        got = f"{rv.name}, which uses pm.Minibatch"
        hint = "use the whole data in the model, and pass batch= to data_parallel"
        raise ArgumentValueError("model", "no variable that uses pm.Minibatch", got, hint)
    refuse_sparse(value, rv.name)
    return {"values": [each for each in ancestors([value]) if is_array(each)], "all": list(filter(is_array, every))}


def _is_observed_part(model: pm.Model, rv: Variable) -> bool:
    """Return whether PyMC has split the variable in two, because some of its values are missing."""
    return rv.name.endswith("_observed") and rv.name[: -len("observed")] + "unobserved" in model.named_vars


def _distribution_parameters(rv: Variable) -> List[Variable]:
    size = _size_of(rv)
    return [each for each in rv.owner.inputs if each is not size]


def _size_of(rv: Variable) -> Optional[Variable]:
    op = rv.owner.op
    if not hasattr(op, "size_param") or (isinstance(op, SymbolicRandomVariable) and op.extended_signature is None):
        return None
    return op.size_param(rv.owner)


def _length(variable: Variable) -> int:
    return int(value_of(variable).shape[0])


def _may_have_rows(array: Variable, rv: Variable) -> bool:
    """Return whether an array's first axis may be the axis of the rows: the names are equal, or one is missing."""
    if isinstance(rv.owner.op, InterpolatedRV) and array in set(ancestors(rv.owner.inputs)):
        return False  # points of the density, whose number matches the rows only by chance
    names = axes_of(array)[:1], axes_of(rv)[:1]
    return names[0] == names[1] or () in names


def _observed(model: pm.Model, rv: Variable, arrays: List[Variable]) -> Observed:
    basic = _of_free_variables(model, rv)
    data, variables, replaced = _divided(model, rv, arrays)
    value = _remade(model.rvs_to_values[rv], replaced, basic)
    drawn = _remade(rv, replaced, basic)
    lengths = {axis: len(data[0]) for axis in axes_of(rv)[:1]}
    if not lengths:
        drawn = _of_size_of(drawn, value, rv.name)
    refuse_sparse(drawn, rv.name, others=basic)
    rows, params, of_model = of_values(_logp(model, drawn, value), model, lengths, len(data[0]))
    containers = [each for each in arrays if each in model.data_vars]
    return Observed(rv, rows, variables, data, params, of_model, containers)


def _divided(
    model: pm.Model, rv: Variable, arrays: List[Variable], rows: Optional[np.ndarray[Any, Any]] = None
) -> Tuple[List[synk.Data], List[Variable], Dict[Variable, Any]]:
    """Return `Data` for ``arrays`` and ``rows``, input variables for them, and replacements for model variables.

    If the axis of the rows has a name, the model's length of this axis is replaced by the data's number of rows.
    """
    labels = [each.name or f"data of {rv.name}" for each in arrays]
    for array, label in zip(arrays, labels):
        if not _may_have_rows(array, rv):
            expected = f"an array whose first axis is {axes_of(rv)[0]}, like that of {rv.name}"
            hint = "put the axis of the rows first in dims= and in all arrays of rows"
            raise ArgumentValueError(label, expected, f"the axes {', '.join(axes_of(array))}", hint)
    parts = [
        as_dense(value_of(each), label) if is_sparse(each) else [value_of(each)] for each, label in zip(arrays, labels)
    ]
    if rows is not None:
        parts, labels = [*parts, [rows]], [*labels, f"rows of {rv.name}"]
    labels = [label for label, each in zip(labels, parts) for _ in each]
    data = as_data([part for each in parts for part in each], labels)
    variables = [variable_for(each, label) for each, label in zip(data, labels)]
    remaining = iter(variables)
    replaced: Dict[Variable, Any] = {
        each: SparseRows(next(remaining), next(remaining)) if is_sparse(each) else in_place_of(next(remaining), each)
        for each in arrays
    }
    replaced.update({model.dim_lengths[axis]: variables[0].shape[0] for axis in axes_of(rv)[:1]})
    return data, variables, replaced


def _of_free_variables(model: pm.Model, rv: Variable) -> List[Variable]:
    """Return the model's other random variables; refuse ``rv`` if it depends on another observed variable."""
    basic = [each for each in model.basic_RVs if each is not rv]
    reached = set(ancestors(_distribution_parameters(rv), basic))
    others = [each.name for each in model.observed_RVs if each is not rv and each in reached]
    if others:
        raise ArgumentTypeError(rv.name, "dependence on free variables only", f"dependence on {others[0]}")
    return basic


def draws_of(model: pm.Model, rv: Variable) -> Observed:
    """Return an `Observed` whose ``rows`` are draws of ``rv``; arrays with the same number of rows are also divided.

    The model's data may have changed since the observation, so the variable's shape determines the number of rows.
    """
    _arrays_of(model, rv)  # refuses a variable that cannot be divided
    basic = _of_free_variables(model, rv)
    if axes_of(rv):
        shape = [model.dim_lengths[axes_of(rv)[0]]]
    else:
        shape = constant_fold(tuple(rv.shape)[: rv.type.ndim - rv.owner.op.ndim_supp], raise_not_constant=False)
    shape = [int(each.eval() if isinstance(each, Variable) else each) for each in shape]
    if not shape:
        hint = f"leave {rv.name} out of var_names; pm.sample_posterior_predictive draws it on the master"
        raise ArgumentValueError(rv.name, "an observed variable with rows", "a variable without rows", hint)
    arrays = [
        each
        for each in ancestors(_distribution_parameters(rv), basic)
        if is_array(each) and _length(each) == shape[0] and _may_have_rows(each, rv)
    ]
    data, variables, replaced = _divided(model, rv, arrays, np.zeros(shape, np.int8))
    drawn = _remade(rv, replaced, basic)
    if not axes_of(rv):
        drawn = _of_size_of(drawn, variables[-1], rv.name)
    refuse_sparse(drawn, rv.name, others=basic)
    drawn = clone_replace(drawn, {each: model.rvs_to_values[each] for each in model.free_RVs})
    rows, params, of_model = of_values(drawn, model, {axis: shape[0] for axis in axes_of(rv)[:1]}, len(data[0]))
    rows = rewrite_graph(rows, include=("canonicalize",))  # removes draws that are used only for their shapes
    return Observed(rv, rows, variables, data, params, of_model, [])


def _logp(model: pm.Model, rv: Variable, value: Variable) -> Variable:
    """Return the log-probability of a random variable as in `Model.logp`, as a function of value variables."""
    values = {each: model.rvs_to_values[each] for each in model.free_RVs}
    transforms = {each: model.rvs_to_transforms[each] for each in model.free_RVs}
    return transformed_conditional_logp(
        [rv], rvs_to_values={**values, rv: value}, rvs_to_transforms={**transforms, rv: None}
    )[0]


def _of_size_of(rv: Variable, value: Variable, name: str) -> Variable:
    """Return a copy of a random variable with the value's size, because the original has a fixed number of rows."""
    op = rv.owner.op
    try:
        resized = change_dist_size(rv, value.shape[: rv.type.ndim - op.ndim_supp])
    except (AttributeError, NotImplementedError):
        hint = "pass the log-probability of its rows as a function"
        raise ArgumentTypeError(name, "a distribution whose size PyMC can change", str(op), hint) from None
    if isinstance(resized.owner.op, RandomVariable):
        return _with_constants(resized)
    if isinstance(op, CustomSymbolicDistRV):
        # PyMC resizes a CustomDist with the parameters that it was created with, even in a copy of the model.
        given = dict(zip(resized.owner.op.dist_params(resized.owner), op.dist_params(rv.owner)))
        if any(one is not other for one, other in given.items()):
            return _remade(resized, given, ())
    return resized


def _with_constants(rv: Variable) -> Variable:
    """Return a random variable with constant-folded parameters.

    PyMC recognizes an infinite bound only if it is constant. Otherwise, the gradient through ``logcdf(inf)`` is NaN.
    """
    inputs = list(rv.owner.inputs)
    for i, param in enumerate(inputs):
        if param.owner is not None and all(isinstance(each, Constant) for each in graph_inputs([param])):
            inputs[i] = constant(constant_fold([param])[0], dtype=param.type.dtype)
    return rv.owner.op.make_node(*inputs).default_output()


def _remade(variable: Variable, replaced: Dict[Variable, Any], others: Sequence[Variable]) -> Variable:
    """Replace variables in an expression, and rebuild the nodes that depend on them, because static shapes change.

    The model's random variables in ``others`` remain unchanged.
    """
    new = dict(replaced)
    for node in io_toposort([*replaced, *others], [variable]):
        if not any(each in new for each in node.inputs):
            continue
        inputs, op = [new.get(each, each) for each in node.inputs], node.op
        if any(isinstance(each, SparseRows) for each in inputs):
            outputs = multiplied(node, inputs)
        elif isinstance(op, TruncatedRV):  # its inner graph is specific to the old shapes
            *of_base, lower, upper = inputs
            base = op.base_rv_op.make_node(*of_base).default_output()
            outputs = Truncated.rv_op(base, lower, upper, op.max_n_steps).owner.outputs
        elif isinstance(op, SymbolicOp):  # its inner graph also depends on the shapes
            op = type(op)(**{name: getattr(op, name) for name in op.__props__}, **op._init_kwargs)
            outputs = op(*inputs, return_list=True)
        else:
            outputs = op.make_node(*inputs).outputs
        new.update(zip(node.outputs, outputs))
    return new.get(variable, variable)


@contextmanager
def without_initial_values(model: pm.Model) -> Iterator[Dict[Variable, Any]]:
    """Remove the initial values inside a ``with`` block, because PyMC cannot copy a model that has any; yield them."""
    values = model.rvs_to_initial_values
    given = {rv: value for rv, value in values.items() if value is not None}
    try:
        values.update(dict.fromkeys(given))
        yield given
    finally:
        values.update(given)
