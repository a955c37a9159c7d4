"""The gradients of all parameters, and the flat vectors that hold them while ranks average them."""

import typing
from collections import OrderedDict
from typing import Any, Dict, List, Tuple

import numpy as np
import theano
import theano.tensor as T

from synkhronos.errors import ArgumentTypeError, ArgumentValueError

from .parameters import check_params, describe, device_of, label, shape_of

#: What a rule returns: ``(grad_updates, param_updates, grad_shared)``.
Updates = Tuple[Dict[Any, Any], Dict[Any, Any], Any]


class FlatGradients(typing.OrderedDict[Any, Any]):
    """The updates of flat vectors, ``{flat: gradients}``, and what the vectors are made of.

    Attributes
    ----------
    pieces : dict
        For every vector, in the order in which they lie there: pairs of the view of a gradient, which is what the steps
        of a rule read, and the gradient as an expression of the rows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pieces: Dict[Any, List[Tuple[Any, Any]]] = {}


def flat_gradients(loss_or_grads: Any, params: Any) -> Tuple[Dict[Any, Any], List[Tuple[Any, Any]], Any]:
    """Return the updates of one flat vector per dtype, pairs of parameter and view of its gradient, and the vectors."""
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
        # In place, piece by piece: no step between the gradients and the memory that ranks reduce.
        gradients, begin = flat, 0
        for (param, grad, shape), size in zip(group, sizes):
            piece = slice(begin, begin + size)
            # To a length that is known, not to -1: a gradient of the user's that does not have its parameter's shape
            # must not shift all those that follow it.
            gradients = T.set_subtensor(gradients[piece], T.reshape(grad, (size,)))
            views[param] = T.patternbroadcast(T.reshape(flat[piece], shape), param.broadcastable)
            begin += size
        grad_updates[flat] = gradients
        grad_updates.pieces[flat] = [(views[param], grad) for param, grad, _ in group]
    shared = list(grad_updates)
    return grad_updates, [(param, views[param]) for param in params], shared if len(shared) > 1 else shared[0]


def gradients_of(loss_or_grads: Any, params: List[Any]) -> List[Any]:
    """Return one gradient per parameter, of its dtype and pattern."""
    for i, param in enumerate(params):
        if device_of(param) != device_of(params[0]):
            raise ArgumentValueError(
                label(i, param),
                f"a variable on device {device_of(params[0])}, as {label(0, params[0])}",
                f"one on device {device_of(param)}",
                "give theano.shared one target",
            )
    if isinstance(loss_or_grads, (list, tuple)):
        grads = list(loss_or_grads)
        if len(grads) != len(params):
            expected = f"one gradient for each of {len(params)} params"
            raise ArgumentValueError("loss_or_grads", expected, str(len(grads)))
        advice = "remove it from params, and its gradient"
    else:
        loss = loss_or_grads
        check_loss(loss, "loss_or_grads", ", or a list of gradients")
        grads = theano.grad(loss, params, disconnected_inputs="ignore", return_disconnected="None")
        advice = "remove it from params, or make the loss depend on it"
    return [_like(grad, i, param, advice) for i, (grad, param) in enumerate(zip(grads, params))]


def check_loss(loss: Any, name: str, also: str = "") -> None:
    """Refuse a loss that is not a floating-point expression of 0 dimensions."""
    if not isinstance(loss, theano.Variable) or getattr(loss, "dtype", None) not in T.float_dtypes or loss.ndim:
        expected = f"a floating-point expression of 0 dimensions{also}"
        raise ArgumentTypeError(name, expected, describe(loss), "average the losses of the rows")


def _like(grad: Any, i: int, param: Any, advice: str) -> Any:
    """Return a gradient as an expression of its parameter's dtype and pattern; refuse it if that is impossible."""
    if grad is None or isinstance(getattr(grad, "type", None), theano.gradient.DisconnectedType):
        expected = "a parameter that the loss depends on"
        raise ArgumentValueError(label(i, param), expected, "one that the loss does not depend on", advice)
    if (
        not isinstance(grad, theano.Variable)
        or getattr(grad, "ndim", None) != param.ndim
        or (grad.dtype in T.complex_dtypes)
    ):
        expected = f"a real gradient expression of {param.ndim} dimensions, as the parameter"
        raise ArgumentTypeError(label(i, param), expected, describe(grad))
    grad = T.cast(grad, param.dtype)
    if any(theirs and not ours for theirs, ours in zip(grad.broadcastable, param.broadcastable)):
        grad = T.alloc(grad, *shape_of(param))
    return T.patternbroadcast(grad, param.broadcastable)
