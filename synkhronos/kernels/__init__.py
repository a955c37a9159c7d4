"""C kernels for copies, reductions, bfloat16 conversion and barriers, with NumPy or Python as the fallback.

This is the library's only C code. It accepts buffers, never addresses::

    copy.py            copy_into, join_into ----+
    reduce.py          Portion.combine ---------+--> _kernels.c
    encoding.py        encode, decode ----------+
    ../sync/barrier    Barrier.wait, exchange -----> _meeting.c
"""
