"""Sessions without processes: the ranks are the devices of one JAX mesh, and PyTensor functions run on all of them.

::

    fork(devices="jax")      devices    ->  launcher: a thread per rank, in place of a process
    f(x)                     engine     ->  program: the function's graph, compiled by JAX for all ranks
                             traces         a collective in the graph is psum, pmin or pmax on the mesh
    all_reduce(w), ...       the commands and the transport of every session, on the ranks' values

Commands, plans, the division of rows and the transaction are the same as for processes. Only the engine differs: the
ranks' variables are arrays on their devices, and a function with collectives is one call for all ranks.
"""
