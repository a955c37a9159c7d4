"""Shared memory: who allocates it, how an array in it travels, and how other processes attach it.

::

    rank 0                                                 rank 1
    +-----------------------+                              +-----------------------+
    | pool 0 (`Pool`)       |      Handle(pool=0,          | `PoolMap`             |
    |   x = allocate(...)   |        offset, shape,        |                       |
    |   handle(x) ----------+----->  strides, dtype) ----->+-> attach(handle): x   |
    +------|----------------+     in a command, by value   +-----------|-----------+
           | maps                                                      | maps
    +------v-----------------------------------------------------------v-----------+
    | one sparse file without a name (`memfd`), up to 1 TiB long                   |
    | |### x ###|......... free .........|# y #|............ free ............     |
    |  reserved page by page when an array is made, given back when its last view  |
    |  dies; `FreeList` knows the gaps                                             |
    +------------------------------------------------------------------------------+

Beside the pools there are arrays in files (`mapped_file`) and in memory with a POSIX name (`posix_names`), each with a
handle of its own (`handles`); `attach` takes all three. Short messages travel in slots of the control block, long ones
through a pool (`messages`).
"""
