"""What lives as long as this process: its memory, its keeper, its functions, its session.

::

    process   |--------------------------- PROGRAM ------------------------------->   pool, functions
    keeper          |---------- from the first fork() to the end --------------->   forks all ranks
    session         |-- fork() ... close() --|      |-- fork() ... close() --|        one at a time
    ranks           |-- new processes -------|      |-- new processes -------|

`program` has that object, `lifecycle` the published calls, and `devices` the command by which ranks open theirs.
"""
