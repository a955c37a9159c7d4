"""A function that eats memory on the ranks that are told to."""

import numpy as np

#: Bytes that a call never frees.
BITE = 50 << 20
eaten = []


def eat(hungry):
    """Keep some memory where the rank is hungry; return how many bites there were."""
    if hungry:
        eaten.append(np.ones(BITE, "uint8"))
    return np.float64(len(eaten))
