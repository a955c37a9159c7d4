"""The gradients of all parameters, and the flat vectors that hold them while ranks average them."""

from collections import OrderedDict

import numpy as np
import theano
import theano.tensor as T

from .parameters import check_params, describe, device_of, label, shape_of


def flat_gradients(loss_or_grads, params):
    """Return the updates of one flat vector per dtype, pairs of parameter and view of its gradient, and the vectors."""
    params = check_params(params)
    grads = gradients_of(loss_or_grads, params)
    dtypes = list(OrderedDict.fromkeys(param.dtype for param in params))
    grad_updates, views = OrderedDict(), {}
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
            # To a length that is known, not to -1: a gradient of the user's that has not its parameter's shape must not
            # move all those behind it.
            gradients = T.set_subtensor(gradients[piece], T.reshape(grad, (size,)))
            views[param] = T.patternbroadcast(T.reshape(flat[piece], shape), param.broadcastable)
            begin += size
        grad_updates[flat] = gradients
    shared = list(grad_updates)
    return grad_updates, [(param, views[param]) for param in params], shared if len(shared) > 1 else shared[0]


def gradients_of(loss_or_grads, params):
    """Return one gradient per parameter, of its dtype and pattern."""
    for i, param in enumerate(params):
        if device_of(param) != device_of(params[0]):
            raise ValueError(
                f"{label(i, param)} is on device {device_of(param)}, but {label(0, params[0])} on device "
                f"{device_of(params[0])}; expected all on one: give theano.shared one "
                "target"
            )
    if isinstance(loss_or_grads, (list, tuple)):
        grads = list(loss_or_grads)
        if len(grads) != len(params):
            raise ValueError(f"loss_or_grads: expected one gradient for each of {len(params)} params, got {len(grads)}")
        advice = "remove it from params, and its gradient"
    else:
        loss = loss_or_grads
        check_loss(loss, "loss_or_grads", ", or a list of gradients")
        grads = theano.grad(loss, params, disconnected_inputs="ignore", return_disconnected="None")
        advice = "remove it from params, or make the loss depend on it"
    return [_like(grad, i, param, advice) for i, (grad, param) in enumerate(zip(grads, params))]


def check_loss(loss, name, also=""):
    """Refuse what is no floating-point expression of 0 dimensions."""
    if not isinstance(loss, theano.Variable) or getattr(loss, "dtype", None) not in T.float_dtypes or loss.ndim:
        raise TypeError(
            f"{name}: expected a floating-point expression of 0 dimensions{also}, got {describe(loss)}; "
            "average the losses of the "
            "rows"
        )


def _like(grad, i, param, advice):
    """Return a gradient as an expression of its parameter's dtype and pattern, where it can be that."""
    if grad is None or isinstance(getattr(grad, "type", None), theano.gradient.DisconnectedType):
        raise ValueError(f"{label(i, param)}: the loss does not depend on it; {advice}")
    if (
        not isinstance(grad, theano.Variable)
        or getattr(grad, "ndim", None) != param.ndim
        or (grad.dtype in T.complex_dtypes)
    ):
        raise TypeError(
            f"{label(i, param)}: expected a real gradient expression of {param.ndim} dimensions, as the "
            f"parameter, got {describe(grad)}"
        )
    grad = T.cast(grad, param.dtype)
    if any(theirs and not ours for theirs, ours in zip(grad.broadcastable, param.broadcastable)):
        grad = T.alloc(grad, *shape_of(param))
    return T.patternbroadcast(grad, param.broadcastable)
