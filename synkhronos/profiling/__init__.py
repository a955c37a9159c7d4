"""Where the time of a session goes: what every rank did when, and what is made of it.

::

    rank r      a named point of the library begins and ends          recording: an observer of `trace`
                  --> a span in the ring of rank r                    ring: shared memory, bounded
    master      close(), a rank's death, or synkhronos.report()
                  reads the rings of all ranks                        spans: on one clock, nested
                  counts every moment of a rank once                  calls: what each command took, on every rank
                  --> profile.json                                    profile: numbers, which `predict` reads
                  --> timeline.json                                   timeline: for Perfetto
                  --> report.txt, report.html                         losses, report, page: for people

A ring is shared memory without a name, so it outlives a rank that is killed, and what was recorded is not lost.
"""
