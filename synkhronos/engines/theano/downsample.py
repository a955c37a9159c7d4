"""Replacement for ``theano.tensor.signal.downsample``, which Lasagne 0.1 imports and Theano 1.0 lacks."""

from typing import Any, Optional, Tuple

from theano.tensor.signal.pool import pool_2d


def max_pool_2d(
    input: Any,
    ds: Tuple[int, int],
    ignore_border: Optional[bool] = None,
    st: Optional[Tuple[int, int]] = None,
    padding: Tuple[int, int] = (0, 0),
    mode: str = "max",
) -> Any:
    """Pool the last two dimensions over windows of shape ``ds``, like `pool_2d` but with its old argument names.

    Examples
    --------
    >>> import numpy as np
    >>> import theano.tensor as T
    >>> image = T.matrix()
    >>> max_pool_2d(image, (2, 2), ignore_border=True).eval({image: np.arange(16).reshape(4, 4)})
    array([[ 5.,  7.],
           [13., 15.]])
    """
    return pool_2d(input, ws=ds, ignore_border=ignore_border, stride=st, pad=padding, mode=mode)
