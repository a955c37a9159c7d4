"""Commands: how the master sends them, and how the ranks of a session execute them.

::

    rank 0, the master: `Session.run`                          rank r: `serve`
    MasterEnd.send           --- Envelope(forget, command) ->  RankEnd.read
    RankContext.execute                                        RankContext.execute
    MasterEnd.read           <-------- Answer ---------------  RankEnd.send
    Command.finish

`context` is the state of one rank; `registry` maps the numbers in commands to functions and shared variables. The
packages `processes` and `cluster` implement the interface in `launcher`.
"""
