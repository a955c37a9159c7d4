"""The lengths of axes in a PyTensor graph as products of symbols: enough to see what a reshape does to rows."""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

from pytensor import tensor
from pytensor.raise_op import Assert

from ...sharding import Product


def checked(variables: Sequence[Any], equal: Sequence[Tuple[Product, Product]]) -> List[Any]:
    """Return variables that raise an AssertionError where they are computed if lengths are not equal."""
    raise NotImplementedError(str(Assert))


def counted(lengths: Any, sums: Any, position: int) -> Any:
    """Return a vector of lengths with one that was summed over ranks; or the sum if it is a number."""
    return tensor.set_subtensor(lengths[position], sums[position]) if lengths.type.ndim else sums
