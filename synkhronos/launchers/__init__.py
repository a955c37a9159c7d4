"""How ranks come to life and end: as processes that a keeper forks, or in the master's own process.

::

    `ProcessLauncher`                                   `LocalLauncher`

    program (the master, one of the ranks)              program (the master, one of the ranks)
       |                                                   |        |         |
       | forks once, at the first fork()                   |     thread     thread
       v                                                   |     rank 1     rank 2      none for n = 1
    keeper  (watches; outlives sessions)
       |        |        |
       v        v        v
    rank 1   rank 2   rank 3     new ones for every session; they die with the keeper, and it with the program

Both promise what `runtime.launcher.Launcher` says.
"""
