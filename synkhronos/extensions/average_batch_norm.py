"""Average the running statistics of batch normalization over the ranks."""

from collections.abc import Iterable
from typing import Any, List

import theano
import theano.tensor as T

import synkhronos as synk
from synkhronos.errors import ArgumentTypeError, ArgumentValueError


def average_batch_norm(layers: Any) -> None:
    """Average the running statistics of batch normalization over the ranks: ``m_r := (m_0 + ... + m_{n-1}) / n``.

    In training, Lasagne's layer normalizes each rank's rows by their own mean and variance, so the running statistics
    differ between ranks. Training does not read them. Call this function before validating or saving the model.

    Parameters
    ----------
    layers : Lasagne layer, or list of layers or shared variables
        The output layer of a network, whose parameters with ``trainable=False`` are averaged. Frozen weights do not
        change, because they are equal on all ranks. Shared variables are averaged directly.

    Raises
    ------
    StateError, TypeError, ValueError
        If called before `synkhronos.fork`, if an entry has the wrong type, or if there is nothing to average.

    Examples
    --------
    >>> import synkhronos as synk, numpy as np, theano, theano.tensor as T
    >>> from synkhronos.extensions.train import average_batch_norm
    >>> synk.fork(2)
    2
    >>> x, mean = T.dmatrix("x"), theano.shared(np.zeros(2), "mean")
    >>> observe = synk.function([x], updates=[(mean, 0.5 * mean + 0.5 * x.mean(axis=0))])
    >>> _ = observe([[0., 4.], [8., 4.]])                    # rank 0: [0, 2], rank 1: [4, 2]
    >>> average_batch_norm([mean])
    >>> mean.get_value()
    array([2., 2.])
    """
    statistics: List[Any] = []
    for layer in layers if isinstance(layers, Iterable) else [layers]:
        if isinstance(layer, theano.compile.SharedVariable):
            statistics.append(layer)
        elif hasattr(layer, "get_params"):
            from lasagne.layers import get_all_params  # installed, because the argument is a Lasagne layer

            statistics += get_all_params(layer, trainable=False)
        else:
            expected = "a Lasagne layer or a list of layers or shared variables"
            raise ArgumentTypeError("layers", expected, f"{layer!r} of type {type(layer).__name__}")
    unique = list({id(shared): shared for shared in statistics if shared.dtype in T.float_dtypes}.values())
    if not unique:
        raise ArgumentValueError(
            "layers",
            "layers with floating-point parameters that are not trained",
            "nothing to average",
            "pass the network's output layer",
        )
    synk.all_reduce(unique)
