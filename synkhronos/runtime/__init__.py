"""How commands reach the ranks of a session, and what a rank is.

::

    rank 0, the master: `Session.run`                          rank r: `serve`
    ---------------------------------                          --------------------------
    MasterEnd.send           --- Envelope(forget, command) ->  RankEnd.read
    RankContext.execute                                        RankContext.execute
    MasterEnd.read           <-------- Answer ---------------  RankEnd.send
    Command.finish

`command` says what travels, `context` what a rank knows and holds, and `registry` by which numbers commands name
functions and shared variables. `failures` turns exceptions into what can travel, and back. `launcher` says what the
classes that start ranks must promise; they are in `launchers`, above this package.
"""
