"""A function that uses up memory on selected ranks."""

import numpy as np

#: Bytes that a call never frees.
BITE = 50 << 20
eaten = []


def eat(hungry):
    """Keep a new block of memory if ``hungry``; return the number of blocks."""
    if hungry:
        eaten.append(np.ones(BITE, "uint8"))
    return np.float64(len(eaten))
