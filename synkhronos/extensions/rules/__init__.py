"""Communication rules, which exchange parameters between ranks every few steps. All follow the same `recurrence`.

===========  ==============================  ===========================================  =====================
rule         ranks that exchange             new center z                                 new parameters
===========  ==============================  ===========================================  =====================
`LocalSGD`   all or groups, weighted         no center                                    the mean
`Gossip`     random pairs, one way           no center                                    a mean of two
`Swap`       random pairs                    no center                                    the partner's
`EASGD`      all                             moves toward the mean                        move toward z
`DiLoCo`     all, weighted; in fragments     a Nesterov momentum step                     z
`SlowMo`     all, weighted                   a heavy-ball momentum step                   z
`ASGD`       all                             adds all ranks' progress, or a part of it    z
`DASO`       groups often, all less often    the mean from some steps earlier             move toward z
===========  ==============================  ===========================================  =====================

"Weighted" means by the rows that each rank has processed since the last exchange. `DASO` also uses these weights.
"""

from .asynchronous import Exchange
from .centred import ASGD, EASGD
from .daso import DASO, Phases
from .diloco import DiLoCo, SlowMo
from .local import Gossip, LocalSGD, Swap
from .recurrence import Rule

__all__ = ["ASGD", "DASO", "DiLoCo", "EASGD", "Exchange", "Gossip", "LocalSGD", "Phases", "Rule", "SlowMo", "Swap"]
