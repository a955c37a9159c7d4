"""The state of this process: memory, keeper, functions, and session.

::

    process   |--------------------------- PROGRAM ------------------------------->   pool, functions
    keeper          |---------- from the first fork() to the end --------------->   forks the other ranks
    session         |-- fork() ... close() --|      |-- fork() ... close() --|        one at a time
    ranks           |-- new processes -------|      |-- new processes -------|
    groups                                     or  |-- Groups() ... close() -|        each a process with a session

`program` defines ``PROGRAM``, `lifecycle` and `groups` define the public names, and `devices` opens the ranks' devices.
"""
