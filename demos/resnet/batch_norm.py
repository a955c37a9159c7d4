"""Batch normalisation for Lasagne 0.1, which has none: the layer of Lasagne's later versions, rewritten.

Source: Ioffe, S., & Szegedy, C. (2015). Batch normalization: accelerating deep network training by reducing internal
covariate shift. ICML.
"""

import lasagne
import theano
import theano.tensor as T
from lasagne import layers


class BatchNormLayer(layers.Layer):
    """Normalise over the batch: ``y = (x - mean(x)) / sqrt(var(x) + epsilon) * gamma + beta``.

    Mean and variance are those of ``x`` over `axes`, one number per channel. For use with single images the layer keeps
    running averages, ``mean := (1 - alpha) * mean + alpha * mean(x)`` and likewise ``inv_std`` towards
    ``1 / sqrt(var(x) + epsilon)``. They are default updates: every Theano function that computes the training output
    does them without being told to. On several ranks each rank normalises its own rows by their own statistics, and
    keeps its own running averages.

    Parameters
    ----------
    incoming : Layer or tuple
        The layer before this one, or the shape of its output, ``(rows, channels, ...)``.
    axes : "auto", int or tuple of int
        What to average over; "auto": all but the second axis.
    epsilon : float
        Keeps the division finite if a channel does not vary.
    alpha : float
        How much of the present batch goes into the running averages.
    beta, gamma : as Lasagne's parameters, or None
        Shift and scale, both trained. None leaves the term out.
    mean, inv_std : as Lasagne's parameters
        The running averages.
    **kwargs
        Given to `lasagne.layers.Layer`.

    Raises
    ------
    ValueError
        The size of an axis that is not averaged over is unknown.

    References
    ----------
    * Ioffe, S., & Szegedy, C. (2015). Batch normalization: accelerating deep network training by reducing internal
      covariate shift. ICML.
    """

    def __init__(
        self,
        incoming,
        axes="auto",
        epsilon=1e-4,
        alpha=0.1,
        beta=lasagne.init.Constant(0),
        gamma=lasagne.init.Constant(1),
        mean=lasagne.init.Constant(0),
        inv_std=lasagne.init.Constant(1),
        **kwargs,
    ):
        super().__init__(incoming, **kwargs)
        n_axes = len(self.input_shape)
        if axes == "auto":
            axes = (0,) + tuple(range(2, n_axes))
        self.axes = (axes,) if isinstance(axes, int) else tuple(axes)
        self.epsilon = epsilon
        self.alpha = alpha

        kept = [axis for axis in range(n_axes) if axis not in self.axes]
        shape = [self.input_shape[axis] for axis in kept]
        if None in shape:
            raise ValueError(
                f"axis {kept[shape.index(None)]} of the input shape {self.input_shape} has no known size, "
                "and batch normalisation has parameters along it: "
                f"give its size to the InputLayer, or name it in axes (got {self.axes})"
            )
        # one value per channel, brought to the input's dimensions: "x" for those averaged over
        self.pattern = ["x" if axis in self.axes else kept.index(axis) for axis in range(n_axes)]

        trained = {"trainable": True}
        self.beta = beta if beta is None else self.add_param(beta, shape, "beta", regularizable=False, **trained)
        self.gamma = gamma if gamma is None else self.add_param(gamma, shape, "gamma", regularizable=True, **trained)
        self.mean = self.add_param(mean, shape, "mean", trainable=False, regularizable=False)
        self.inv_std = self.add_param(inv_std, shape, "inv_std", trainable=False, regularizable=False)

    def get_output_for(
        self, input, deterministic=False, batch_norm_use_averages=None, batch_norm_update_averages=None, **kwargs
    ):
        """Return the normalised input.

        Parameters
        ----------
        input : expression
        deterministic : bool
            True for use: normalise by the running averages and leave them. False for training: normalise by the
            batch's statistics and update the running averages.
        batch_norm_use_averages, batch_norm_update_averages : bool, optional
            Decide each of the two by itself.
        """
        use_averages = deterministic if batch_norm_use_averages is None else batch_norm_use_averages
        update_averages = not deterministic if batch_norm_update_averages is None else batch_norm_update_averages

        batch_mean = input.mean(self.axes)
        batch_inv_std = T.inv(T.sqrt(input.var(self.axes) + self.epsilon))
        mean, inv_std = (self.mean, self.inv_std) if use_averages else (batch_mean, batch_inv_std)
        if update_averages:
            mean = self._updating(mean, self.mean, batch_mean)
            inv_std = self._updating(inv_std, self.inv_std, batch_inv_std)

        def over_input(per_channel):
            return per_channel.dimshuffle(self.pattern)

        scale = over_input(inv_std) if self.gamma is None else over_input(self.gamma) * over_input(inv_std)
        normalised = (input - over_input(mean)) * scale
        return normalised if self.beta is None else normalised + over_input(self.beta)

    def _updating(self, used, average, batch_value):
        """Return ``used``, in a form that makes any function that computes it update ``average``."""
        # The default update hangs on a clone, which shares the average's value: on the average itself it would stay,
        # and a function for use, compiled later, would do it too.
        clone = theano.clone(average, share_inputs=False)
        clone.default_update = (1 - self.alpha) * clone + self.alpha * batch_value
        return used + 0 * clone  # Theano finds default updates only in what a function's outputs depend on


def batch_norm(layer, **kwargs):
    """Put batch normalisation between a layer and its nonlinearity.

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
    """
    nonlinearity = getattr(layer, "nonlinearity", None)
    if nonlinearity is not None:
        layer.nonlinearity = lasagne.nonlinearities.identity
    if getattr(layer, "b", None) is not None:
        del layer.params[layer.b]
        layer.b = None
    name = kwargs.pop("name", None) or (layer.name and layer.name + "_bn")
    layer = BatchNormLayer(layer, name=name, **kwargs)
    if nonlinearity is not None:
        layer = layers.NonlinearityLayer(layer, nonlinearity, name=name and name + "_nonlin")
    return layer
