"""Ranks on several hosts: who is one of them, the wire between them, and the processes that speak over it.

::

    host 0                                                     host 1
    -------------------------------------------------          -----------------------------------------------
    master, local ranks <-- control block --> bridge           deputy <-- control block --> ranks of host 1
                                              `StandIn` <=wire=> `Deputy`

The *bridge* is a process of the first host; a *deputy* is in the process that was started on another host. They copy
between the control blocks of their hosts whatever may happen at any time, and know nothing of what commands do:
`sync.leading`, by which ranks tell each other of commands and barriers, is faster and knows as little.

===============  ====================================================================================================
``environment``  who this process is among those that an MPI launcher started, before MPI is imported
``wire``         connections between the hosts: opened, authenticated, watched
``facts``        what hosts tell each other before they begin, and what must be equal
``world``        how the processes find each other
``spec``         what another host is told of a session
``loop``         how the processes that speak for hosts wait: in one thread, for all at once
``copying``      what both ends do: copy between a control block and the wire
``requests``     what ranks ask of other hosts: memory, and reductions
``stand_in``     the bridge's end, at the master's control block
``deputy``       the other hosts' end: starts their ranks
``bridge``       the bridge as a process, and the master's side of it
``launcher``     starts the ranks of a session: those of this host by the keeper, others through the bridge
``serve``        what the process does that was started on another host
===============  ====================================================================================================
"""
