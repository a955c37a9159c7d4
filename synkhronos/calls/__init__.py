"""Functions that run on all ranks: `synkhronos.function` builds a `Function`, and every call divides its rows.

::

    f(x, y)          rank 0          rank 1          rank 2
    -------          ------------    ------------    ------------
    x  [0 1 2 3 4]   x [0 1]         x [2 3]         x [4]           scattered by rows
    y  [7 7]         y [7 7]         y [7 7]         y [7 7]         in bcast_inputs: whole
                     engine          engine          engine          each rank calls its own copy
    result     <---  2 rows     +    2 rows     +    1 row           reduced by the output's op

`command` describes the stages of a call; `plan` lists the data cached between calls.
"""
