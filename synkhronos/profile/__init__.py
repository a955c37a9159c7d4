"""Profiling: record the activity of every rank, and report where time is spent.

::

    rank r      a trace point of the library begins and ends          recording: an observer of `trace`
                  --> a span in the ring of rank r                    ring: shared memory, bounded
    master      close(), a rank's death, or synkhronos.report()
                  reads the rings of all ranks                        spans: on one clock, nested
                  counts all time of a rank exactly once              calls: each command's time on every rank
                  --> profile.json                                    profile: numbers that `predict` reads
                  --> timeline.json                                   timeline: for Perfetto
                  --> report.txt, report.html                         losses, report, page: for readers

Rings are anonymous shared memory, so the records of a killed rank are not lost.
"""
