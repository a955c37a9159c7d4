"""Commands: sending by the master, and execution by the ranks of a session.

::

    rank 0, the master: `Session.run`                          rank r: `serve`
    MasterEnd.send           --- Envelope(forget, command) ->  RankEnd.read
    RankContext.execute                                        RankContext.execute
    MasterEnd.read           <-------- Answer ---------------  RankEnd.send
    Command.finish

`context` is the state of one rank; `registry` numbers the functions and shared variables that commands refer to.
`processes` and `cluster`, above this package, implement the interface in `launcher`.
"""
