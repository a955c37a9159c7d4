"""Replicas of the program's functions and shared variables on all ranks.

::

    program (rank 0)                                     every other rank
    ---------------------                                ---------------------
    function f   (weakly)    --- pickled ------------>   replica of f   (owned)
    shared w     (weakly)    --- blueprint, value --->   replica of w   (owned)
    del f                    --- "forget" ----------->   dropped with the next command

Functions and variables have the same numbers on all ranks. `replicator` runs on the master, `command` on all ranks.
"""
