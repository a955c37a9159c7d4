"""Synchronization of ranks: semaphores, the control block that contains them, and the barrier.

::

    rank 0 (root)      rank 1             rank 2             keeper
         |                |                  |                  |        all of them map
    +----v----------------v------------------v------------------v----+
    | `ControlBlock`:  words  |  semaphores  |  command  |  answers   |   one unnamed file
    +----------------------------------------------------------------+

A word stores state, and a `Semaphore` wakes waiting ranks to read the words. A `Barrier` is a protocol on words and
semaphores that survives the death of a rank. With several hosts, each host has a control block. The rank that leads a
host (`host_relay`) waits for an `EventFd` and for `Link` sockets. A second `EventFd` wakes the bridge or the deputy.
"""
