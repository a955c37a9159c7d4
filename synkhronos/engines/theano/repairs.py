"""In-process repairs for faults in Theano 1.0.5 that affect correct programs.

==============================================================  ===============================================
Fault in Theano                                                 Repair
==============================================================  ===============================================
Writes a module's keys in place; another process that reads     Replace the file in one step
them meanwhile deletes the module, so users of the module fail
Fails to save a loaded module's keys if its folder was deleted  Do not save the keys in this case
Leaks all variables created after an observed optimization      End the observation after an error
raised an error, as for ``a + dot(a, b)``
Checks every 5 to 10 seconds whether the compile cache's lock   Check every 5 to 20 ms, because ranks load at
is free, and may not notice for minutes                         the same time and need the lock for a few ms
Overwrites the read-only zeros that NumPy returns for ``imag``  Compute ``imag`` element by element, into a new
of real numbers                                                 array
Computes -2 for ``~True`` in fused operations run by Python     Return False
Asserts if the length of an input was replaced by the length    Use the input's own length
of another variable that rewrites have removed
==============================================================  ===============================================
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
from typing import Any, Iterator, List

import numpy as np
import theano.tensor
from theano.gof import Variable, cmodule, compilelock, graph
from theano.tensor.opt import Shape_i, ShapeFeature

_save_in_place = cmodule.KeyData.save_pkl
_lock = compilelock.lock
_get_computed_shape = ShapeFeature.get_shape


def repair() -> None:
    """Replace Theano's faulty code; see the module's table."""
    cmodule.KeyData.save_pkl = _save_keys
    graph.nodes_constructed = _nodes_constructed
    theano.tensor.imag.nfunc_spec = None
    theano.scalar.Invert.impl = np.invert
    ShapeFeature.get_shape = _get_shape
    # Replace `lock`, because Theano's option ``compile.wait`` cannot be changed at run time.
    compilelock.lock = functools.partial(_lock, min_wait=0.005, max_wait=0.02, verbosity=0)


def _save_keys(data: Any) -> None:
    try:
        whole = pickle.dumps(data, protocol=pickle.HIGHEST_PROTOCOL)
    except pickle.PicklingError:
        _save_in_place(data)  # reports the error and deletes the file
        return
    part = f"{data.key_pkl}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        with open(part, "wb") as file:
            file.write(whole)
        os.replace(part, data.key_pkl)


@contextlib.contextmanager
def _nodes_constructed() -> Iterator[List[Variable]]:
    nodes: List[Variable] = []
    observe = nodes.append
    Variable.append_construction_observer(observe)
    try:
        yield nodes
    finally:
        Variable.remove_construction_observer(observe)


def _get_shape(shapes: Any, variable: Any, axis: int) -> Any:
    if variable.owner is None:
        length = shapes.shape_of[variable][axis].owner
        if length and isinstance(length.op, Shape_i) and length.inputs[0] not in variable.fgraph.variables:
            shapes.set_shape(variable, shapes.shape_tuple(variable), override=True)
    return _get_computed_shape(shapes, variable, axis)
