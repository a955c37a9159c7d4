"""Ranks on several hosts: what travels between them.

::

    host 0   ranks -- shared memory -- `courier`  ===== MPI =====  `courier` -- shared memory -- ranks   host 1
                                          |                           |
                                   `operation`: `transfer`, `all_reduce` -- steps of one operation each
"""
