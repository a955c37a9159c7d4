"""C kernels for copies, reductions and bfloat16 conversion, with NumPy as the fallback; the library's only C code.

::

    copy.py       copy_into, join_into ----+
    reduce.py     Portion.combine ---------+--> _kernels.c   (accepts buffers, never addresses)
    encoding.py   encode, decode ----------+
"""
