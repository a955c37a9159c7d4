"""Ranks on several hosts: discovery, the connections between hosts, and the processes that serve each host.

::

    host 0                                                     host 1
    -------------------------------------------------          -----------------------------------------------
    master, local ranks <-- control block --> bridge           deputy <-- control block --> ranks of host 1
                                              `StandIn` <=wire=> `Deputy`

The *bridge* is a child process of the program on the first host. A *deputy* runs in the process that was started on
every other host. Bridge and deputies copy asynchronous events between the control blocks of their hosts. The ranks
themselves exchange commands and barriers directly, which is faster (`sync.host_relay`).
"""
