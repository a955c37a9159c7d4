"""Copying and reducing past the caches, by kernels in C if they could be built: no other package uses C.

::

    copy.py       copy_into, join_into ----+
    reduce.py     Portion.combine ---------+--> _kernels.c   (buffers in, no addresses; NumPy instead without it)
    encoding.py   encode, decode ----------+
"""
