"""Copying and reducing past the caches, by kernels in C if they could be built: no other package uses C.

::

    copy.py      copy_into, join_into ----+
                                          +--> _kernels.c   (buffers in, no addresses; NumPy instead without it)
    reduce.py    Portion.combine -----------+
"""
