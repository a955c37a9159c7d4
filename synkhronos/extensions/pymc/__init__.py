"""PyMC models whose likelihood is computed by all ranks, with one shard of the rows on each rank.

::

    pm.sample, pm.find_MAP, pm.fit           plain PyMC, on the master
      point --> logp_dlogp_function
                  priors                     unchanged
                  DataParallelLogp           an operation in the graph (operation)
                    `-- Likelihood           one call on all ranks (likelihood):
                          rows of rank 0, 1, ...  -->  the sum of their log-probabilities and its gradient

`data_parallel` builds the operation from a function of the rows, or from a model's observed variables (observed).
`compute_log_likelihood` and `sample_posterior_predictive` compute values per row and draw (pointwise, predictive).
nutpie and PyMC's optimizer swallow exceptions, so both are monitored (nutpie_sampling, optimizing).
"""

from .requirement import check

check()

from . import optimizing, unavailable  # noqa: E402
from .data_parallel import data_parallel  # noqa: E402
from .pointwise import compute_log_likelihood  # noqa: E402
from .predictive import sample_posterior_predictive  # noqa: E402

optimizing.install()
unavailable.install()

__all__ = ["compute_log_likelihood", "data_parallel", "sample_posterior_predictive"]
