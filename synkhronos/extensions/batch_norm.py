"""Batch normalization over the rows of all ranks, for Lasagne networks (this module imports Lasagne)."""

from __future__ import annotations

from numbers import Integral
from typing import Any, Tuple

import theano
import theano.tensor as T

import synkhronos as synk
from synkhronos.errors import ArgumentTypeError, ArgumentValueError

from .scalars import cast, check_scalars

try:
    from lasagne import init, layers, nonlinearities
except ImportError as error:
    raise ImportError(
        f"synkhronos.extensions.batch_norm needs Lasagne ({error}): pip install lasagne 'setuptools<81'"
    ) from error

__all__ = ["BatchNormLayer", "batch_norm"]


class BatchNormLayer(layers.Layer):  # type: ignore[misc]  # Lasagne has no types
    """Batch normalization over the rows of all ranks: ``y = (x - mean(x)) / sqrt(var(x) + epsilon) * gamma + beta``.

    Mean and variance are computed over ``axes``, one pair for each position on the other axes (each channel). Functions
    built with `synkhronos.function` compute them from the rows of all ranks, and their gradients are those of the
    serial program. A ``theano.function`` computes them from the rows that it receives.

    Running averages are for inference: ``mean := (1 - alpha) * mean + alpha * mean(x)``. The update of ``inv_std`` has
    the same form, with ``1 / sqrt(var(x) + epsilon)``. Both are default updates, so every function that computes the
    training output applies them, identically on every rank. The parameters are named as in Lasagne's layer (0.2 or
    later), so saved values are interchangeable.

    Parameters
    ----------
    incoming : Layer or tuple
        The previous layer, or the shape of its output, ``(rows, channels, ...)``.
    axes : "auto", int or tuple of int
        The axes to average over, which must include the rows (axis 0); "auto" selects all axes but the second.
    epsilon : scalar
        A constant, 0 or more; if positive, it prevents division by zero for a channel that does not vary.
    alpha : scalar
        The weight of the current batch in the running averages, above 0 and at most 1.
    beta, gamma : as in Lasagne's layer, or None
        Trained shift and scale; None omits the parameter.
    mean, inv_std : as in Lasagne's layer
        The running averages.
    **kwargs
        Passed to ``lasagne.layers.Layer``.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or the size of an axis that is not averaged over is unknown.

    Notes
    -----
    The layer's output contains one collective, and its gradient contains another. Functions that compute
    the training output refuse calls in slices (``num_slices``), because each slice would be normalized separately.

    The variance is ``avg(x^2) - avg(x)^2`` in double precision. If a channel's mean is 1e6 times its standard
    deviation, 4 digits remain. Lasagne's layer subtracts the mean first, and loses fewer digits. Single-precision
    inputs lose nothing, because they cannot represent such channels accurately.

    Source: Ioffe, S., & Szegedy, C. (2015). Batch normalization: accelerating deep network training by reducing
    internal covariate shift. ICML.

    Examples
    --------
    >>> import synkhronos as synk, theano.tensor as T
    >>> from lasagne.layers import InputLayer
    >>> from synkhronos.extensions.batch_norm import BatchNormLayer
    >>> x = T.dmatrix("x")
    >>> layer = BatchNormLayer(InputLayer((None, 1)), epsilon=0)
    >>> f = synk.function([x], (layer.get_output_for(x), "gather"))
    >>> synk.fork(2)
    2
    >>> f([[1.], [3.], [9.], [11.]]).round(3).T              # mean 6, variance 17
    array([[-1.213, -0.728,  0.728,  1.213]])
    """

    def __init__(
        self,
        incoming: Any,
        axes: Any = "auto",
        epsilon: Any = 1e-4,
        alpha: Any = 0.1,
        beta: Any = init.Constant(0),
        gamma: Any = init.Constant(1),
        mean: Any = init.Constant(0),
        inv_std: Any = init.Constant(1),
        **kwargs: Any,
    ) -> None:
        super().__init__(incoming, **kwargs)
        n_axes = len(self.input_shape)
        self.axes = check_axes(axes, n_axes)
        self.epsilon, self.alpha = check_scalars(epsilon=epsilon, alpha=alpha)
        if isinstance(self.epsilon, float) and self.epsilon < 0:
            raise ArgumentValueError("epsilon", "0 or more", repr(epsilon))
        if isinstance(self.alpha, float) and not 0 < self.alpha <= 1:
            raise ArgumentValueError("alpha", "above 0 and at most 1", repr(alpha))

        kept = [axis for axis in range(n_axes) if axis not in self.axes]
        shape = [self.input_shape[axis] for axis in kept]
        if None in shape:
            raise ArgumentValueError(
                "incoming",
                f"a known size for axis {kept[shape.index(None)]}, because the layer has parameters along it",
                f"the shape {self.input_shape}",
                "set that size in the InputLayer, or list the axis in axes",
            )
        # The pattern broadcasts one value per channel to the input's dimensions; "x" marks averaged axes.
        self.pattern = ["x" if axis in self.axes else kept.index(axis) for axis in range(n_axes)]

        trained = {"trainable": True}
        self.beta = beta if beta is None else self.add_param(beta, shape, "beta", regularizable=False, **trained)
        self.gamma = gamma if gamma is None else self.add_param(gamma, shape, "gamma", regularizable=True, **trained)
        self.mean = self.add_param(mean, shape, "mean", trainable=False, regularizable=False)
        self.inv_std = self.add_param(inv_std, shape, "inv_std", trainable=False, regularizable=False)

    def get_output_for(
        self,
        input: Any,
        deterministic: bool = False,
        batch_norm_use_averages: Any = None,
        batch_norm_update_averages: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Return the normalized input.

        With ``deterministic=True`` (inference), normalize by the running averages, without changing them or
        communicating. With False (training), normalize by the batch statistics, and update the running averages.
        ``batch_norm_use_averages`` and ``batch_norm_update_averages`` override these two effects.
        """
        use_averages = deterministic if batch_norm_use_averages is None else batch_norm_use_averages
        update_averages = not deterministic if batch_norm_update_averages is None else batch_norm_update_averages

        mean, inv_std = self.mean, self.inv_std
        if update_averages or not use_averages:
            batch_mean, variance = self.statistics(input)
            batch_inv_std = T.inv(T.sqrt(variance + cast(variance, self.epsilon)[0]))
            if not use_averages:
                mean, inv_std = batch_mean, batch_inv_std
            if update_averages:
                mean = self._updating(mean, self.mean, batch_mean)
                inv_std = self._updating(inv_std, self.inv_std, batch_inv_std)

        scale = inv_std if self.gamma is None else self.gamma * inv_std
        normalised = (input - mean.dimshuffle(self.pattern)) * scale.dimshuffle(self.pattern)
        return normalised if self.beta is None else normalised + self.beta.dimshuffle(self.pattern)

    def statistics(self, input: Any) -> Tuple[Any, Any]:
        """Return mean and variance over `axes` and the rows of all ranks; subclasses may override this method."""
        mean = input.mean(self.axes)
        # A variance around the common mean would need another collective here and in the gradient. The difference
        # avg(x^2) - avg(x)^2 is inaccurate for a large mean, but double precision leaves enough digits for
        # single-precision networks. Each rank's own part is accurate, because var() computes it around the rank's mean.
        wide = T.cast(mean, "float64")
        wide, square = synk.ops.all_reduce([wide, T.cast(input.var(self.axes), "float64") + T.sqr(wide)])
        variance = T.maximum(square - T.sqr(wide), 0)  # rounding can make a zero variance negative
        return T.cast(wide, mean.dtype), T.cast(variance, mean.dtype)

    def _updating(self, used: Any, average: Any, batch_value: Any) -> Any:
        """Return an expression equal to ``used``; functions that compute the expression also update ``average``."""
        # The default update is attached to a clone that shares the average's value. On the average itself, the update
        # would persist, and inference functions compiled later would also apply it.
        clone = theano.clone(average, share_inputs=False)
        (alpha,) = cast(average, self.alpha)
        clone.default_update = (1 - alpha) * clone + alpha * T.cast(batch_value, average.dtype)
        return used + 0 * clone  # Theano applies default updates only for variables that outputs depend on


def batch_norm(layer: Any, **kwargs: Any) -> Any:
    """Insert batch normalization between a layer and its nonlinearity: ``f(x W + b)`` becomes ``f(normalized(x W))``.

    Parameters
    ----------
    layer : Layer
        The layer to modify. Its nonlinearity becomes the identity. Its bias is removed, because normalization would
        cancel it; the new layer adds its own shift.
    **kwargs
        Passed to `BatchNormLayer`.

    Returns
    -------
    Layer
        A `BatchNormLayer`, or a NonlinearityLayer on top of it if the layer has a nonlinearity.

    Raises
    ------
    TypeError, ValueError
        If the argument is not a layer, or `BatchNormLayer` refuses an option.

    Examples
    --------
    >>> from lasagne.layers import DenseLayer, InputLayer, get_all_params
    >>> from synkhronos.extensions.batch_norm import batch_norm
    >>> network = batch_norm(DenseLayer(InputLayer((None, 28)), 10, name="dense"))
    >>> [param.name for param in get_all_params(network)]
    ['dense.W', 'dense_bn.beta', 'dense_bn.gamma', 'dense_bn.mean', 'dense_bn.inv_std']
    """
    if not isinstance(layer, layers.Layer):
        raise ArgumentTypeError("layer", "a Lasagne layer", f"{layer!r} of type {type(layer).__name__}")
    name = kwargs.pop("name", None) or (layer.name and layer.name + "_bn")
    normalised = BatchNormLayer(layer, name=name, **kwargs)  # first, so that an error leaves the layer unchanged
    nonlinearity = getattr(layer, "nonlinearity", None)
    if getattr(layer, "b", None) is not None:
        del layer.params[layer.b]
        layer.b = None
    if nonlinearity is None:
        return normalised
    layer.nonlinearity = nonlinearities.identity
    return layers.NonlinearityLayer(normalised, nonlinearity, name=name and name + "_nonlin")


def check_axes(axes: Any, n_axes: int) -> Tuple[int, ...]:
    if isinstance(axes, str) and axes == "auto":
        return (0, *range(2, n_axes))
    listed = list(axes) if isinstance(axes, (list, tuple)) else [axes]
    if not all(isinstance(axis, Integral) and not isinstance(axis, bool) for axis in listed):
        raise ArgumentTypeError("axes", '"auto", an int or a tuple of ints', repr(axes))
    if 0 not in listed or len(set(listed)) < len(listed) or not all(0 <= axis < n_axes for axis in listed):
        expected = f"distinct nonnegative axes below {n_axes}, including axis 0 (the rows)"
        raise ArgumentValueError("axes", expected, repr(axes))
    return tuple(map(int, listed))
