"""The mean over ranks of the running statistics that each has kept of its own rows."""

from collections.abc import Iterable
from typing import Any, List

import theano
import theano.tensor as T

import synkhronos as synk
from synkhronos.errors import ArgumentTypeError, ArgumentValueError


def average_batch_norm(layers: Any) -> None:
    """Average the running statistics of batch normalisation over the ranks: ``m_r := (m_0 + ... + m_{n-1}) / n``.

    In training every rank normalises its rows by their own mean and variance, and its running averages of these drift
    from the other ranks'. Call this before the network is validated, tested or saved with those averages;
    training itself does not read them.

    Parameters
    ----------
    layers : Lasagne layer, or list of layers or shared variables
        The output layer of a network: all that Lasagne does not train in it (``trainable=False``) is averaged, frozen
        weights too, which are the same on all ranks and stay so. Shared variables are averaged as they are given.

    Raises
    ------
    StateError
        Before `synkhronos.fork`.
    TypeError, ValueError
        If an entry is not a layer, or there is nothing to average.

    Examples
    --------
    The statistics of a layer are shared variables that no gradient changes:

    >>> import synkhronos as synk
    >>> import numpy as np, theano, theano.tensor as T
    >>> from synkhronos.extensions.train import average_batch_norm
    >>> synk.fork(2)
    2
    >>> x, mean = T.dmatrix("x"), theano.shared(np.zeros(2), "mean")
    >>> observe = synk.function([x], updates=[(mean, 0.5 * mean + 0.5 * x.mean(axis=0))])
    >>> _ = observe([[0., 4.], [8., 4.]])
    >>> synk.gather(mean)
    array([[0., 2.],
           [4., 2.]])
    >>> average_batch_norm([mean])
    >>> mean.get_value()
    array([2., 2.])
    """
    statistics: List[Any] = []
    for layer in layers if isinstance(layers, Iterable) else [layers]:
        if isinstance(layer, theano.compile.SharedVariable):
            statistics.append(layer)
        elif hasattr(layer, "get_params"):
            from lasagne.layers import get_all_params  # a program that has a layer has Lasagne

            statistics += get_all_params(layer, trainable=False)
        else:
            expected = "a Lasagne layer or a list of layers or shared variables"
            raise ArgumentTypeError("layers", expected, f"{layer!r} of type {type(layer).__name__}")
    unique = list({id(shared): shared for shared in statistics if shared.dtype in T.float_dtypes}.values())
    if not unique:
        raise ArgumentValueError(
            "layers",
            "layers with floating-point parameters that are not trained",
            "none, so there is nothing to average",
            "give the network's output layer",
        )
    synk.all_reduce(unique)
