"""One training step as expressions: what is computed from rows, and what is then computed from their mean gradient."""

import inspect
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import theano
import theano.tensor as T

from .gradients import check_loss
from .parameters import check_params, describe
from .scalars import check_scalars
from .train_theano import COMBINE

#: The ops of outputs: those that the serial twin has, too, and each of them with the prefix for the CPU transport.
OPS = [prefix + op for prefix in ("", "c_") for op in COMBINE]


class TrainingGraph(NamedTuple):
    """The expressions of one training step.

    Attributes
    ----------
    inputs : list of variables
        Those whose rows are divided: ``x``, then ``y``.
    outputs : list of (expression, op)
        The loss, and what is computed beside it.
    params : list of shared variables
        What is trained.
    grad_updates : dict
        From shared gradients to the expressions of the rows that they become.
    param_updates : dict
        From parameters and the rule's state to expressions of the shared gradients.
    grad_shared : list of shared variables
        The keys of ``grad_updates``.
    state : list of shared variables
        What the rule keeps between steps, in a fixed order.
    """

    inputs: list
    outputs: list
    params: list
    grad_updates: dict
    param_updates: dict
    grad_shared: list
    state: list


def training_graph(loss, params, x, y, update_rule, args, kwargs, outputs, max_norm):
    """Call the rule, clip the gradients that its step reads; refuse what is wrong with a name for it."""
    params = check_params(params)
    inputs = check_inputs("x", x) + check_inputs("y", y)
    if isinstance(loss, (list, tuple)):
        raise TypeError(
            f"loss: expected a floating-point expression of 0 dimensions, got a {type(loss).__name__}; add "
            "up what it has, or "
            "give further expressions as outputs"
        )
    check_loss(loss, "loss")
    grad_updates, param_updates, grad_shared = apply_rule(update_rule, loss, params, args, kwargs)
    grad_shared = list(grad_shared) if isinstance(grad_shared, (list, tuple)) else [grad_shared]
    if max_norm is not None:
        param_updates = clipped(param_updates, grad_shared, *check_max_norm(max_norm))
    for shared, new in param_updates.items():
        for variable in theano.gof.graph.inputs([new]):
            if not isinstance(variable, (theano.Constant, theano.compile.SharedVariable)):
                raise ValueError(
                    f"the step of {shared} depends on {describe(variable)}, which is no shared variable: the "
                    "step has no inputs; "
                    "make it (a learning rate, say) a shared variable and change its value with "
                    "synkhronos.broadcast"
                )
    state = [shared for shared in param_updates if shared not in params]
    return TrainingGraph(
        inputs,
        [(loss, "avg")] + check_outputs(outputs),
        params,
        OrderedDict(grad_updates),
        OrderedDict(param_updates),
        grad_shared,
        state,
    )


def check_inputs(name, given):
    """Return an argument that is a variable, several, or none, as a list."""
    if given is None:
        return []
    listed = [given] if isinstance(given, theano.Variable) or not isinstance(given, Iterable) else list(given)
    for variable in listed:
        if not isinstance(variable, theano.Variable) or variable.owner or isinstance(variable, theano.Constant):
            raise TypeError(f"{name}: expected the variable of an input, or a list of them, got {describe(variable)}")
        if isinstance(variable, theano.compile.SharedVariable):
            raise TypeError(
                f"{name}: {describe(variable)} is a shared variable, which needs no input; give it as one of "
                "sliceable_shareds if "
                "it holds rows"
            )
    return listed


def check_outputs(outputs):
    """Return what is computed beside the loss as pairs of expression and op, where the ops suit."""
    pairs = []
    for i, entry in enumerate(outputs if isinstance(outputs, list) else [outputs] if outputs != () else []):
        output, op = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, "avg")
        if not isinstance(output, theano.Variable):
            raise TypeError(f"outputs[{i}]: expected an expression or (expression, op), got {describe(entry)}")
        if op is not None and op not in OPS:
            raise ValueError(f"outputs[{i}]: unknown op {op!r} (known: {', '.join(sorted(OPS))}, None)")
        if op in ("avg", "c_avg") and output.dtype in T.discrete_dtypes:
            raise TypeError(
                (
                    f"outputs[{i}] ({output}) has the type {output.dtype}, and integers have no average: "
                    "give it another op, or "
                    "cast it to a float"
                )
            )
        pairs.append((output, op))
    return pairs


def apply_rule(rule, loss, params, args, kwargs):
    """Return what the rule makes of loss and parameters, where it is a rule and has the options."""
    if not callable(rule):
        raise TypeError(
            "update_rule: expected a rule of synkhronos.extensions.updates, or a function like these, got "
            f"{describe(rule)}"
        )
    name = getattr(rule, "__name__", repr(rule))
    try:
        signature = inspect.signature(rule)
        signature.bind(loss, params, *args, **kwargs)
    except TypeError as error:
        raise TypeError(
            "update_rule {}: {}; its options are {}".format(name, error, ", ".join(list(signature.parameters)[2:]))
        ) from None
    made = rule(loss, params, *args, **kwargs)
    if not isinstance(made, tuple) or len(made) != 3 or not all(isinstance(part, Mapping) for part in made[:2]):
        raise TypeError(
            f"update_rule {name}: expected it to return (grad_updates, param_updates, grad_shared), got "
            f"{type(made).__name__}; the "
            "rules that do, Lasagne's names among them, are in synkhronos.extensions.updates"
        )
    return made


def check_max_norm(max_norm):
    """Return the bound of the norm, where it is one."""
    checked = check_scalars(max_norm=max_norm)
    if isinstance(checked[0], float) and checked[0] <= 0:
        raise ValueError(f"max_norm: expected a positive number, got {max_norm!r}")
    return checked


def clipped(param_updates, grad_shared, max_norm):
    """Return the updates with all gradients scaled to a global norm of at most ``max_norm``.

    ``g := g * c / max(|g|, c)``, where ``|g|`` is the Euclidean norm over the gradients of all parameters (Pascanu,
    Mikolov & Bengio, 2013, On the difficulty of training recurrent neural networks, ICML, section 3.2). The updates
    read the shared gradients, so this is the norm of their mean over all rows, once that is in there.
    """
    # In float32 at least: the squares of half-precision numbers overflow at 256.
    wide = [T.cast(grad, theano.scalar.upcast(grad.dtype, "float32")) for grad in grad_shared]
    norm = T.sqrt(sum(T.sum(T.sqr(grad)) for grad in wide))
    bound = T.cast(max_norm, norm.dtype)
    scale = bound / T.maximum(norm, bound)
    replace = [(grad, grad * T.cast(scale, grad.dtype)) for grad in grad_shared]
    return OrderedDict(zip(param_updates, theano.clone(list(param_updates.values()), replace=replace)))
