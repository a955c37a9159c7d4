"""Collectives over shared variables: one command and one public function per module.

::

                      before                 after
    rank              0     1     2          0       1       2
    broadcast         a     b     c          a       a       a           (root 0)
    all_reduce        a     b     c          a+b+c   a+b+c   a+b+c
    reduce            a     b     c          a+b+c   b       c
    all_gather        a     b     c          a b c   a b c   a b c
    gather            a     b     c          unchanged; the master returns [a, b, c]
    scatter [p q r]   a     b     c          p       q       r

`arguments` validates the variables of collectives and caches the result.
"""
