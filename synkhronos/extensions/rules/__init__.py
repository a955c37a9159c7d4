"""Rules that communicate less than every step: presets of one recurrence (`recurrence`).

===========  ==========================  ===========================================  =====================
rule         whose values meet           what becomes of the centre z                 of a rank's parameters
===========  ==========================  ===========================================  =====================
`LocalSGD`   all, or groups, by rows     there is none                                the mean
`Gossip`     one and another             there is none                                the mean of two
`Swap`       pairs                       there is none                                the other's
`EASGD`      all                         a part of the way to the mean                a part of the way to it
`DiLoCo`     all, by rows; in fragments  a step by Nesterov's momentum                z
`SlowMo`     all, by rows                a step by the heavy ball                     z
`ASGD`       all                         all that ranks have gained, or a part        z
`DASO`       groups; all, later          the mean, some steps before                  nearer to it
===========  ==========================  ===========================================  =====================
"""

from .asynchronous import Exchange
from .centred import ASGD, EASGD
from .daso import DASO, Phases
from .diloco import DiLoCo, SlowMo
from .local import Gossip, LocalSGD, Swap
from .recurrence import Rule

__all__ = ["ASGD", "DASO", "DiLoCo", "EASGD", "Exchange", "Gossip", "LocalSGD", "Phases", "Rule", "SlowMo", "Swap"]
