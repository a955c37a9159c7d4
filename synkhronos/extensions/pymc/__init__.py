"""PyMC models whose likelihood is computed by all ranks, each from its own part of the rows.

::

    pm.sample, pm.find_MAP, pm.fit           plain PyMC, on the master
      point --> logp_dlogp_function
                  priors                     as ever
                  DataParallelLogp           an operation of the graph (operation)
                    `-- Likelihood           one call over all ranks (likelihood):
                          rows of rank 0, 1, ...  -->  the sum of their log-probabilities and its gradient

nutpie and PyMC's optimizer lose errors, so that they are watched (nutpie_sampling, optimizing). What PyMC computes of
each row is refused (unavailable), because such a model does not have the rows.

`data_parallel` makes the operation of a function of the rows, or of the observed variables of a whole model (observed).
"""

from .requirement import check

check()

from . import optimizing, unavailable  # noqa: E402
from .data_parallel import data_parallel  # noqa: E402

optimizing.install()
unavailable.install()

__all__ = ["data_parallel"]
