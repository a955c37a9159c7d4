"""This computer: its cores, memory, threads and GPUs, and how this process uses them.

::

    cores     0       1       2       3        `machine` counts those that this process may use
              rank 0  rank 1  rank 2  rank 3   `affinity` pins a rank to each, the master while it executes
    threads   1       1       1       1        `threads`: of BLAS and OpenMP, cores / ranks
    heap      each keeps what it frees         `heap`, with fork(keep_heap=True)
"""
