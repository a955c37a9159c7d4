"""What the ranks hold of the program's functions and shared variables, and how it gets there.

::

    program (rank 0)                                     every other rank
    ---------------------                                ---------------------
    function f   (weakly)    --- pickled ------------>   replica of f   (owned)
    shared w     (weakly)    --- blueprint, value --->   replica of w   (owned)
    del f                    --- "forget" ----------->   dropped with the next command

Both sides know a function or a variable by the same number; `replicator` is the master's side, `command` what travels.
"""
