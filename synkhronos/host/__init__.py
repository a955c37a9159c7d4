"""This machine: its cores, memory, threads and GPUs, and how this process uses them.

::

    cores     0       1       2       3        `machine` counts the cores that this process may use
              rank 0  rank 1  rank 2  rank 3   `affinity` pins each rank to its cores, and the master during commands
    threads   1       1       1       1        `threads` limits BLAS and OpenMP to cores / ranks
    heap      freed memory stays with ranks    `heap` keeps it, with fork(keep_heap=True)
"""
