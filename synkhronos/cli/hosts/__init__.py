"""The doctor of several hosts: ``mpirun ... python -m synkhronos doctor``.

::

    process 0 (host 0)                  process 1 (host 1)      ...
    `facts.gather`                      `facts.gather`              what is so on this host
         |  <---------- MPI ------------------|
    `comparison.CHECKS`                                             what does not go together
         |  <---- `links.measure` ----------->|                     each pair of hosts in turn
       prints
"""
