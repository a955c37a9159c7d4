"""Gradients of all parameters, stored in flat vectors that are averaged over the ranks."""

import typing
from collections import OrderedDict
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import theano
import theano.tensor as T

from synkhronos.errors import ArgumentTypeError, ArgumentValueError

from .scalars import cast
from .shared_variables import check_params, describe, label

#: The return value of an update rule: ``(grad_updates, param_updates, grad_shared)``.
Updates = Tuple[Dict[Any, Any], Dict[Any, Any], Any]


class FlatGradients(typing.OrderedDict[Any, Any]):
    """Updates of flat vectors; ``pieces[flat]``: pairs of a view, which the rule's step reads, and its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: Dict[Any, List[Tuple[Any, Any]]] = {}


def flat_gradients(loss_or_grads: Any, params: Any) -> Tuple[Dict[Any, Any], List[Tuple[Any, Any]], Any]:
    """Return the updates of one flat vector per dtype, (parameter, gradient view) pairs, and the vector or vectors."""
    params = check_params(params)
    grads = gradients_of(loss_or_grads, params)
    dtypes = list(OrderedDict.fromkeys(param.dtype for param in params))
    grad_updates = FlatGradients()
    views: Dict[Any, Any] = {}
    for dtype in dtypes:
        group = [(param, grad, shape_of(param)) for param, grad in zip(params, grads) if param.dtype == dtype]
        sizes = [int(np.prod(shape)) for _, _, shape in group]
        flat = theano.shared(
            np.zeros(sum(sizes), dtype),
            "gradients" if len(dtypes) == 1 else "gradients." + dtype,
            target=device_of(params[0]),
        )
        # Gradients are written in place, piece by piece, directly into the memory that the ranks reduce.
        gradients, begin = flat, 0
        for (param, grad, shape), size in zip(group, sizes):
            piece = slice(begin, begin + size)
            # The length is fixed (not -1), so that a gradient of the wrong shape cannot shift the following pieces.
            gradients = T.set_subtensor(gradients[piece], T.reshape(grad, (size,)))
            views[param] = T.patternbroadcast(T.reshape(flat[piece], shape), param.broadcastable)
            begin += size
        grad_updates[flat] = gradients
        grad_updates.pieces[flat] = [(views[param], grad) for param, grad, _ in group]
    shared = list(grad_updates)
    return grad_updates, [(param, views[param]) for param in params], shared if len(shared) > 1 else shared[0]


def for_each_parameter(loss_or_grads: Any, params: Any, step: Callable[..., Any], *scalars: Any) -> Updates:
    """Return a rule's result; ``step(param, gradient, *scalars)`` returns updates; scalars have the param's dtype."""
    grad_updates, pairs, grad_shared = flat_gradients(loss_or_grads, params)
    updates = [update for param, grad in pairs for update in step(param, grad, *cast(param, *scalars))]
    return grad_updates, OrderedDict(updates), grad_shared


def gradients_of(loss_or_grads: Any, params: List[Any]) -> List[Any]:
    """Return one gradient per parameter, with the parameter's dtype and broadcast pattern."""
    for i, param in enumerate(params):
        if device_of(param) != device_of(params[0]):
            raise ArgumentValueError(
                label(i, param),
                f"a variable with target={device_of(params[0])!r}, like {label(0, params[0])}",
                f"a variable with target={device_of(param)!r}",
                "pass the same target to theano.shared for all parameters",
            )
    if isinstance(loss_or_grads, (list, tuple)):
        grads = list(loss_or_grads)
        if len(grads) != len(params):
            expected = f"one gradient per parameter ({len(params)} in total)"
            raise ArgumentValueError("loss_or_grads", expected, str(len(grads)))
        advice = "remove it from params, and remove its gradient"
    else:
        loss = loss_or_grads
        check_loss(loss, "loss_or_grads", ", or a list of gradients")
        grads = theano.grad(loss, params, disconnected_inputs="ignore", return_disconnected="None")
        advice = "remove it from params, or make the loss depend on it"
    return [_like(grad, i, param, advice) for i, (grad, param) in enumerate(zip(grads, params))]


def state_like(param: Any, what: str) -> Any:
    """Return a zero-initialized shared variable of a parameter's type, for the state of an update rule."""
    return theano.shared(
        np.zeros(shape_of(param), param.dtype),
        f"{param.name}.{what}" if param.name else what,
        broadcastable=param.broadcastable,
        target=device_of(param),
    )


def shape_of(param: Any) -> Tuple[int, ...]:
    """Return the shape of a parameter's value, without moving it off its device."""
    shape: Tuple[int, ...] = param.get_value(borrow=True, return_internal_type=True).shape
    return shape


def device_of(param: Any) -> Any:
    """Return the device of a shared variable as Theano's ``target``: "cpu", a GPU context, or None (the default)."""
    return getattr(param.type, "context_name", "cpu")


def check_loss(loss: Any, name: str, also: str = "") -> None:
    if not isinstance(loss, theano.Variable) or getattr(loss, "dtype", None) not in T.float_dtypes or loss.ndim:
        expected = f"a 0-dimensional floating-point expression{also}"
        raise ArgumentTypeError(name, expected, describe(loss), "average the loss over the rows")


def _like(grad: Any, i: int, param: Any, advice: str) -> Any:
    if grad is None or isinstance(getattr(grad, "type", None), theano.gradient.DisconnectedType):
        expected = "a parameter that the loss depends on"
        raise ArgumentValueError(label(i, param), expected, "a parameter that the loss does not depend on", advice)
    if (
        not isinstance(grad, theano.Variable)
        or getattr(grad, "ndim", None) != param.ndim
        or (grad.dtype in T.complex_dtypes)
    ):
        expected = f"a real gradient expression with ndim={param.ndim}, like the parameter"
        raise ArgumentTypeError(label(i, param), expected, describe(grad))
    grad = T.cast(grad, param.dtype)
    if any(theirs and not ours for theirs, ours in zip(grad.broadcastable, param.broadcastable)):
        grad = T.alloc(grad, *shape_of(param))
    return T.patternbroadcast(grad, param.broadcastable)
