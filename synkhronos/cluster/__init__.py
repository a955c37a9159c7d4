"""Ranks on several hosts: discovery, the connections between hosts, and the processes that serve each host.

::

    host 0                                                     host 1
    -------------------------------------------------          -----------------------------------------------
    master, local ranks <-- control block --> bridge           deputy <-- control block --> ranks of host 1
                                              `StandIn` <=wire=> `Deputy`

The *bridge* is a child process of the program on the first host. On every other host, a *deputy* runs in the process
that was started there. Both copy events, such as deaths and aborts, between their hosts' control blocks. The master and
the first rank of each other host exchange commands and barrier messages directly, which is faster (`sync.host_relay`).
"""
