"""What a reduction would take over more hosts than were measured: a model with three constants, fitted to those.

::

    t(H, S) = start + 2 (H - 1) chunks per_message + 2 (H - 1) / H S per_byte

Each host sends a piece of every chunk to each other one, and the result of its own piece; `all_reduce` has no other
messages. The model knows nothing of switches that are shared, and of hosts that are late.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from synkhronos.launchers.hosts.courier import CHUNK_BYTES


class Model(NamedTuple):
    """The constants, in seconds, and how far the measured times are from them at most, as part of each."""

    start: float
    per_message: float
    per_byte: float
    error: float = 0.0

    def seconds(self, hosts, nbytes):
        """Return what the model says."""
        return float(np.dot(terms(hosts, nbytes), self[:3]))


def terms(hosts, nbytes):
    """Return by what the constants are multiplied."""
    return [1.0, 2 * (hosts - 1) * math.ceil(nbytes / CHUNK_BYTES), 2 * (hosts - 1) / hosts * nbytes]


def fit(measured):
    """Return the model of times: ``(hosts, nbytes, seconds)``. Each counts as part of itself.

    Examples
    --------
    >>> model = fit([(h, s, 1e-3 + 2 * (h - 1) / h * s * 1e-8) for h in (2, 3, 4) for s in (1e6, 1e8)])
    >>> round(model.seconds(8, 1e8), 3)
    1.751
    """
    times = np.array([seconds for _, _, seconds in measured])
    matrix = np.array([terms(hosts, nbytes) for hosts, nbytes, _ in measured]) / times[:, None]
    scale = matrix.max(axis=0)
    constants = nnls(matrix / scale, np.ones(len(times)))[0] / scale
    errors = np.abs(matrix @ constants - 1)
    return Model(*map(float, constants), float(errors.max()))
