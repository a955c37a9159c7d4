"""Ranks on several hosts: MPI's launcher starts one process on each, and each keeps the ranks of its host.

::

    mpirun -- host 0: process 0   runs the user's program
           |- host 1: process 1   serves it
           +- host 2: process 2   serves it
"""
