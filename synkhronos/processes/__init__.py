"""Starting and ending the ranks of one host: as processes forked by a keeper, or inside the master's process.

::

    `ProcessLauncher`                                   `LocalLauncher`

    program (the master, one of the ranks)              program (the master, one of the ranks)
       |                                                   |        |         |
       | forks once, at the first fork()                   |     thread     thread
       v                                                   |     rank 1     rank 2      none for n = 1
    keeper  (watches; outlives sessions)
       |        |        |
       v        v        v
    rank 1   rank 2   rank 3     new for every session; they end with the keeper, which ends with the program

Both launchers implement `runtime.launcher.Launcher`. A keeper's socket (`fd_passing`) carries requests and file
descriptors; the ranks' output returns to the program through files (`output`).
"""
