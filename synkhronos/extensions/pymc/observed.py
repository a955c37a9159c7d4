"""The observed variables of a model, as log-probabilities of rows."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import pymc as pm
from pymc.data import MinibatchOp
from pymc.distributions.distribution import PartialObservedRV, SymbolicRandomVariable
from pymc.distributions.shape_utils import change_dist_size
from pymc.distributions.truncated import Truncated, TruncatedRV
from pymc.logprob.basic import transformed_conditional_logp
from pymc.pytensorf import constant_fold
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.builders import SymbolicOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors, graph_inputs, io_toposort
from pytensor.tensor import constant
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import SpecifyShape

import synkhronos as synk
from synkhronos.errors import ArgumentTypeError, ArgumentValueError

from .rows import as_data, is_array, of_values, value_of, variable_for


class Observed(NamedTuple):
    """An observed variable of which the rows are divided.

    Attributes
    ----------
    variable : variable
        The model's.
    rows : variable
        The log-probability of its rows.
    variables, data : list
        Variables for the rows of the observed values and of what explains them, and the arrays.
    params, of_model : list of variables
        Variables for the parameters, and what they are: value variables of the model, or values as ``pm.Data``.
    containers : list of variables
        The model's ``pm.Data`` among the data.
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
        """Those of the parameters that are values, of which there is no gradient."""
        return [param for param, of in zip(self.params, self.of_model) if isinstance(of, SharedVariable)]


def observed_in(model: pm.Model, names: Optional[Sequence[str]]) -> List[Observed]:
    """Return the observed variables of a model that are to be divided.

    Parameters
    ----------
    model : pm.Model
    names : list of str, optional
        Of the observed variables whose rows are divided, with all arrays of their length that they depend on; or of the
        ``pm.Data`` whose rows are divided. By default the observed variables of the greatest length.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If there are none, a name is not one of these, or lengths differ.
    """
    arrays = {rv: _arrays_of(model, rv) for rv in model.observed_RVs}
    lengths = {rv: max([_length(each) for each in of_rv["values"]], default=0) for rv, of_rv in arrays.items()}
    if not any(lengths.values()):
        hint = "of a pm.Potential, give data_parallel the function of its rows" if model.potentials else None
        raise ArgumentValueError("model", "an observed variable with rows", "a model without one", hint)
    found, used = [], set()
    for rv, of_rv in arrays.items():
        named = [each for each in of_rv["all"] if each.name in (names or ())]
        if rv.name in names if names is not None else lengths[rv] == max(lengths.values()):
            named += [each for each in of_rv["all"] if _length(each) == lengths[rv]]
        elif not named:
            continue
        used.update([rv.name, *[each.name for each in named]])
        chosen = list(dict.fromkeys(of_rv["values"] + named))
        found.append(_observed(model, rv, chosen))
    unknown = [name for name in names or () if name not in used]
    if unknown:
        known = [each.name for each in [*model.data_vars, *model.observed_RVs]]
        expected = (
            f"names of pm.Data that observed variables depend on, or of observed variables (of {', '.join(known)})"
        )
        raise ArgumentValueError("data", expected, repr(unknown[0]))
    return found


def _arrays_of(model: pm.Model, rv: Variable) -> Dict[str, List[Variable]]:
    """Return the constants and shared variables with rows among the observed values, and all that a variable reads."""
    if rv.owner is None or isinstance(rv.owner.op, MinibatchRandomVariable):
        got = f"{rv.name}, which has it"
        raise ArgumentValueError(
            "model", "one without total_size", got, "leave it out and pass batch= to data_parallel"
        )
    if isinstance(rv.owner.op, PartialObservedRV) or _is_observed_part(model, rv):
        hint = "leave the rows out in which values are missing, or fill them in"
        raise ArgumentValueError("model", "observed values without missing ones", f"some that are ({rv.name})", hint)
    value = model.rvs_to_values[rv]
    blockers = set(model.basic_RVs) - {rv}
    every = list(ancestors([value, *_distribution_parameters(rv)], blockers))
    if any(each.owner is not None and isinstance(each.owner.op, MinibatchOp) for each in every):
        got = f"{rv.name}, which does"
        hint = "give the model its whole data, and pass batch= to data_parallel"
        raise ArgumentValueError("model", "one that does not use pm.Minibatch", got, hint)
    return {"values": [each for each in ancestors([value]) if is_array(each)], "all": list(filter(is_array, every))}


def _is_observed_part(model: pm.Model, rv: Variable) -> bool:
    """Return whether PyMC has divided what was observed in two, because some of it is missing."""
    return rv.name.endswith("_observed") and rv.name[: -len("observed")] + "unobserved" in model.named_vars


def _distribution_parameters(rv: Variable) -> List[Variable]:
    size = _size_of(rv)
    return [each for each in rv.owner.inputs if each is not size]


def _size_of(rv: Variable) -> Optional[Variable]:
    """Return the input of a random variable that is its size; None if it has none."""
    op = rv.owner.op
    if not hasattr(op, "size_param") or (isinstance(op, SymbolicRandomVariable) and op.extended_signature is None):
        return None
    return op.size_param(rv.owner)


def _length(variable: Variable) -> int:
    return len(value_of(variable))


def _observed(model: pm.Model, rv: Variable, arrays: List[Variable]) -> Observed:
    labels = [each.name or f"data of {rv.name}" for each in arrays]
    data = as_data([value_of(each) for each in arrays], labels)
    variables = [variable_for(each, label) for each, label in zip(data, labels)]
    basic = [each for each in model.basic_RVs if each is not rv]
    reached = set(ancestors(_distribution_parameters(rv), basic))
    others = [each.name for each in model.observed_RVs if each is not rv and each in reached]
    if others:
        raise ArgumentTypeError(rv.name, "to depend on free variables alone", f"one that depends on {others[0]}")
    replaced: Dict[Variable, Variable] = dict(zip(arrays, variables))
    value = _remade(model.rvs_to_values[rv], replaced, basic)
    drawn = _remade(_of_size_of(rv, value), replaced, basic)
    fixed = [node.inputs[0] for node in io_toposort(basic, [drawn]) if _fixes_rows(node, len(data[0]))]
    if fixed:
        expected, hint = "a variable of any number of rows", "make its data pm.Data, whose length is not fixed"
        raise ArgumentTypeError(rv.name, expected, f"{fixed[0]}, which is fixed to {len(data[0])}", hint)
    rows, params, of_model = of_values(_logp(model, drawn, value), model)
    containers = [each for each in arrays if each in model.data_vars]
    return Observed(rv, rows, variables, data, params, of_model, containers)


def _logp(model: pm.Model, rv: Variable, value: Variable) -> Variable:
    """Return the log-probability of a random variable as in `Model.logp`, of the model's value variables."""
    values = {each: model.rvs_to_values[each] for each in model.free_RVs}
    transforms = {each: model.rvs_to_transforms[each] for each in model.free_RVs}
    return transformed_conditional_logp(
        [rv], rvs_to_values={**values, rv: value}, rvs_to_transforms={**transforms, rv: None}
    )[0]


def _of_size_of(rv: Variable, value: Variable) -> Variable:
    """Return the random variable with the size of the value, where the model's has a fixed number of rows."""
    try:
        resized = change_dist_size(rv, value.shape[: rv.type.ndim - rv.owner.op.ndim_supp])
    except (AttributeError, NotImplementedError):
        hint = "give the log-probability of its rows as a function"
        raise ArgumentTypeError(rv.name, "a distribution whose size PyMC can change", str(rv.owner.op), hint) from None
    return _with_constants(resized) if isinstance(resized.owner.op, RandomVariable) else resized


def _with_constants(rv: Variable) -> Variable:
    """Return a random variable whose parameters are constants if they depend on no variable.

    Only an open bound that is a constant is one for PyMC: the logarithm of ``logcdf(inf)`` has no gradient.
    """
    inputs = list(rv.owner.inputs)
    for i, param in enumerate(inputs):
        if param.owner is not None and all(isinstance(each, Constant) for each in graph_inputs([param])):
            inputs[i] = constant(constant_fold([param])[0], dtype=param.type.dtype)
    return rv.owner.op.make_node(*inputs).default_output()


def _remade(variable: Variable, replaced: Dict[Variable, Variable], others: Sequence[Variable]) -> Variable:
    """Return an expression with variables replaced, and what depends on them made again, as static shapes change.

    Other random variables of the model stay as they are.
    """
    new = dict(replaced)
    for node in io_toposort([*replaced, *others], [variable]):
        if not any(each in new for each in node.inputs):
            continue
        inputs, op = [new.get(each, each) for each in node.inputs], node.op
        if isinstance(op, TruncatedRV):  # its graph inside is one for the shapes of before
            *of_base, lower, upper = inputs
            base = op.base_rv_op.make_node(*of_base).default_output()
            outputs = Truncated.rv_op(base, lower, upper, op.max_n_steps).owner.outputs
        elif isinstance(op, SymbolicOp):  # likewise
            op = type(op)(**{name: getattr(op, name) for name in op.__props__}, **op._init_kwargs)
            outputs = op(*inputs, return_list=True)
        else:
            outputs = op.make_node(*inputs).outputs
        new.update(zip(node.outputs, outputs))
    return new.get(variable, variable)


def _fixes_rows(node: Any, n_rows: int) -> bool:
    return isinstance(node.op, SpecifyShape) and node.outputs[0].type.shape[:1] == (n_rows,)
