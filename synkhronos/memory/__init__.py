"""Shared memory: allocation, handles that refer to arrays in it, and attachment of these arrays in other processes.

::

    rank 0                                                 rank 1
    +-----------------------+                              +-----------------------+
    | pool 0 (`Pool`)       |      Handle(pool=0,          | `PoolMap`             |
    |   x = allocate(...)   |        offset, shape,        |                       |
    |   handle(x) ----------+----->  strides, dtype) ----->+-> attach(handle): x   |
    +------|----------------+     in a command, by value   +-----------|-----------+
           | maps                                                      | maps
    +------v-----------------------------------------------------------v-----------+
    | one sparse unnamed file (`memfd`), up to 1 TiB long                          |
    | |### x ###|......... free .........|# y #|............ free ............     |
    |  pages are reserved when an array is allocated and released when its last    |
    |  view dies; `FreeList` records the gaps                                      |
    +------------------------------------------------------------------------------+

Arrays can also be in files (`mapped_file`) and in memory with a POSIX name (`posix_names`). Each kind has its own type
of handle (`handles`), and `attach` accepts all three types. Short messages are sent in slots of the control block, long
messages through a pool (`messages`).
"""

from . import dtypes  # noqa: F401, registers the pickling
