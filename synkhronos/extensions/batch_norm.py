"""Batch normalisation by the rows of all ranks, for networks of Lasagne, which this module imports."""

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
    """Normalise over the rows of all ranks: ``y = (x - mean(x)) / sqrt(var(x) + epsilon) * gamma + beta``.

    Mean and variance are those of ``x`` over `axes`, one number per channel. In a function of `synkhronos.function` all
    ranks normalise by the same ones, however many rows each of them has, and gradients go through them: the network is
    the serial program's. In ``theano.function`` they are those of the rows given.

    For use with single rows the layer keeps running averages, ``mean := (1 - alpha) * mean + alpha * mean(x)`` and
    likewise ``inv_std`` towards ``1 / sqrt(var(x) + epsilon)``. They are default updates: every function that computes
    the training output makes them, on every rank the same.

    Parameters and their names are those of Lasagne's layer (which is in its versions since 0.2), so that values saved
    of the one fit the other.

    Parameters
    ----------
    incoming : Layer or tuple
        The layer before this one, or the shape of its output, ``(rows, channels, ...)``.
    axes : "auto", int or tuple of int
        What to average over, the rows (axis 0) and others; "auto": all but the second axis.
    epsilon : scalar
        Keeps the division finite if a channel does not vary; 0 or more.
    alpha : scalar
        How much of the present batch goes into the running averages; above 0, at most 1.
    beta, gamma : as Lasagne's parameters, or None
        Shift and scale, both trained. None leaves the term out.
    mean, inv_std : as Lasagne's parameters
        The running averages.
    **kwargs
        Given to ``lasagne.layers.Layer``.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or the size of an axis that is not averaged over is unknown.

    Notes
    -----
    There is one collective in a layer's output, and one in its gradient. Calls in slices (``num_slices``) would
    normalise each slice by itself and are refused.

    The variance is computed in double precision as ``avg(x^2) - avg(x)^2``. Of a channel whose mean is 1e6 times its
    standard deviation that leaves 4 digits; Lasagne's layer, which sees all rows, loses fewer. Nothing is lost in
    single precision, which does not hold such channels either.

    References
    ----------
    * Ioffe, S., & Szegedy, C. (2015). Batch normalization: accelerating deep network training by reducing internal
      covariate shift. ICML.

    Examples
    --------
    >>> import synkhronos as synk
    >>> import theano.tensor as T
    >>> from lasagne.layers import InputLayer
    >>> from synkhronos.extensions.batch_norm import BatchNormLayer
    >>> x = T.dmatrix("x")
    >>> layer = BatchNormLayer(InputLayer((None, 1)), epsilon=0)
    >>> f = synk.function([x], (layer.get_output_for(x), "gather"))
    >>> synk.fork(2)
    2
    >>> f([[1.], [3.], [9.], [11.]])                # mean 6, variance 17
    array([[-1.21267813],
           [-0.72760688],
           [ 0.72760688],
           [ 1.21267813]])
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
                f"a known size of axis {kept[shape.index(None)]}, along which there are parameters",
                f"the shape {self.input_shape}",
                "give the InputLayer that size, or name the axis in axes",
            )
        # One value per channel, brought to the input's dimensions: "x" for those averaged over.
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
        """Return the normalised input.

        Parameters
        ----------
        input : expression
        deterministic : bool
            True for use: normalise by the running averages and leave them; ranks do not meet. False for training:
            normalise by the batch's statistics and update the running averages.
        batch_norm_use_averages, batch_norm_update_averages : bool, optional
            Decide each of the two by itself.
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
        """Return mean and variance of the input over `axes` and the rows of all ranks; a subclass may have others."""
        mean = input.mean(self.axes)
        # The variance around the common mean would need a collective after that of the mean, and another one in the
        # gradient. So ranks average their means and mean squares at once, and var = avg(x^2) - avg(x)^2. That subtracts
        # nearly equal numbers if the mean is large: in double precision, of which there are enough digits for a network
        # in single precision. Each rank's share is exact already, as var takes it around the rank's mean.
        wide = T.cast(mean, "float64")
        wide, square = synk.ops.all_reduce([wide, T.cast(input.var(self.axes), "float64") + T.sqr(wide)])
        variance = T.maximum(square - T.sqr(wide), 0)  # rounding can leave a channel that does not vary below 0
        return T.cast(wide, mean.dtype), T.cast(variance, mean.dtype)

    def _updating(self, used: Any, average: Any, batch_value: Any) -> Any:
        """Return ``used``, in a form that makes any function that computes it update ``average``."""
        # The default update hangs on a clone, which shares the average's value: on the average itself it would stay,
        # and a function for use, compiled later, would do it too.
        clone = theano.clone(average, share_inputs=False)
        (alpha,) = cast(average, self.alpha)
        clone.default_update = (1 - alpha) * clone + alpha * T.cast(batch_value, average.dtype)
        return used + 0 * clone  # Theano finds default updates only in what a function's outputs depend on


def batch_norm(layer: Any, **kwargs: Any) -> Any:
    """Put batch normalisation between a layer and its nonlinearity: ``f(x W + b)`` becomes ``f(normalised(x W))``.

    The layer's bias is taken away, because the normalisation would cancel it and has a shift of its own.

    Parameters
    ----------
    layer : Layer
        Changed: its nonlinearity becomes the identity, its bias None.
    **kwargs
        Given to `BatchNormLayer`.

    Returns
    -------
    Layer
        A `BatchNormLayer`, or a NonlinearityLayer on top of it if the layer has a nonlinearity.

    Raises
    ------
    TypeError, ValueError
        If it is not a layer, or `BatchNormLayer` refuses an argument.

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
    normalised = BatchNormLayer(layer, name=name, **kwargs)  # first: what it refuses leaves the layer as it was
    nonlinearity = getattr(layer, "nonlinearity", None)
    if getattr(layer, "b", None) is not None:
        del layer.params[layer.b]
        layer.b = None
    if nonlinearity is None:
        return normalised
    layer.nonlinearity = nonlinearities.identity
    return layers.NonlinearityLayer(normalised, nonlinearity, name=name and name + "_nonlin")


def check_axes(axes: Any, n_axes: int) -> Tuple[int, ...]:
    """Return the axes to average over; refuse any that the input does not have, and to leave out the rows."""
    if isinstance(axes, str) and axes == "auto":
        return (0, *range(2, n_axes))
    listed = list(axes) if isinstance(axes, (list, tuple)) else [axes]
    if not all(isinstance(axis, Integral) and not isinstance(axis, bool) for axis in listed):
        raise ArgumentTypeError("axes", '"auto", an int or a tuple of ints', repr(axes))
    if 0 not in listed or len(set(listed)) < len(listed) or not all(0 <= axis < n_axes for axis in listed):
        expected = f"0, the axis of the rows, and others of the {n_axes} axes, each once"
        raise ArgumentValueError("axes", expected, repr(axes))
    return tuple(map(int, listed))
