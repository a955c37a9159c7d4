"""How ranks wait for each other: semaphores, the control block that they lie in, and the barrier.

::

    rank 0 (root)      rank 1             rank 2             keeper
         |                |                  |                  |        all of them map
    +----v----------------v------------------v------------------v----+
    | `ControlBlock`:  words  |  semaphores  |  command  |  answers   |   one file without a name
    +----------------------------------------------------------------+

A word says what has happened, a `Semaphore` wakes waiting ranks to look at the words, and a `Barrier` is a protocol of
both that survives the death of a rank.

If there are several hosts, each has a block of its own. The rank that speaks for a host (`leading`) waits at once
for its `Bell` and for its `Link` to another host; another bell wakes the process that speaks for it of what may
come at any time.
"""
